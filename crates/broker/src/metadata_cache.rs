//! The broker's copy of the cluster's metadata: read without a lock, replaced whole by the one task that follows the
//! controllers.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use semel_metadata::ClusterImage;
use semel_model::MetadataIndex;
use tokio::sync::watch;

/// The newest image this broker has applied.
pub(crate) struct MetadataCache {
    image: ArcSwap<ClusterImage>,
    applied: watch::Sender<MetadataIndex>,
}

impl MetadataCache {
    pub(crate) fn new() -> Self {
        let image = ClusterImage::new();
        let (applied, _) = watch::channel(image.index());
        Self { image: ArcSwap::from_pointee(image), applied }
    }

    /// The image of this moment. It doesn't change while the caller holds it.
    pub(crate) fn image(&self) -> Arc<ClusterImage> {
        self.image.load_full()
    }

    /// Publishes an image whose consequences (opened and removed logs, new roles) are already in force here.
    pub(crate) fn publish(&self, image: ClusterImage) {
        let index = image.index();
        self.image.store(Arc::new(image));
        self.applied.send_replace(index);
    }

    /// The index of the published image, as it moves.
    pub(crate) fn follow(&self) -> watch::Receiver<MetadataIndex> {
        self.applied.subscribe()
    }

    /// Waits until `index` is applied here, so that a client that made a change sees it at the next request. Gives up
    /// after `within`: the change is made all the same.
    pub(crate) async fn wait_for(&self, index: MetadataIndex, within: Duration) {
        let mut applied = self.applied.subscribe();
        // The sender lives in self: only the time-out can end this early.
        let _ = tokio::time::timeout(within, applied.wait_for(|now| *now >= index)).await;
    }
}
