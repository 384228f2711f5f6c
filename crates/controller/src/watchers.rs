//! The nodes that watch the metadata: each gets every change in order, or is cut off and comes back.

use semel_metadata::{ClusterImage, Delta, Message};
use semel_model::MetadataIndex;
use semel_proto::{
    internal::v1::WatchMetadataResponse,
    metadata::{delta_message, image_message},
};
use tokio::sync::mpsc;
use tonic::Status;

/// How many messages may wait for one watcher. One that does not keep up is cut: it comes back with its index.
pub(crate) const QUEUE: usize = 256;

/// A watcher that is further behind than this gets an image instead of changes. Less than the queue holds.
pub(crate) const CHANGES_MAX: u64 = 128;

pub(crate) type WatchSender = mpsc::Sender<Result<WatchMetadataResponse, Status>>;

/// All watchers of this controller.
#[derive(Default)]
pub(crate) struct Watchers {
    watchers: Vec<Watcher>,
}

struct Watcher {
    sender: WatchSender,
    /// The index its next change must have.
    next: MetadataIndex,
}

impl Watchers {
    pub(crate) fn len(&self) -> usize {
        self.watchers.len()
    }

    /// Adds a watcher that has applied `after`: with the changes since, or an image if they are not at hand.
    pub(crate) fn add(
        &mut self,
        sender: WatchSender,
        after: MetadataIndex,
        changes: Option<Vec<Delta>>,
        image: &ClusterImage,
    ) {
        let mut watcher = Watcher { sender, next: after.next() };
        let is_added = match changes {
            Some(changes) => {
                changes.iter().all(|delta| watcher.send_delta(delta.index, || delta_message(delta)))
            }
            None => watcher.send_image(image.index(), || image_message(image)),
        };
        if is_added {
            self.watchers.push(watcher);
        }
    }

    /// Tells everyone; answers how many were cut off.
    pub(crate) fn publish(&mut self, message: &Message) -> usize {
        let before = self.watchers.len();
        if before == 0 {
            return 0;
        }
        match message {
            Message::Delta(delta) => {
                let encoded = delta_message(delta);
                self.watchers.retain_mut(|watcher| watcher.send_delta(delta.index, || encoded.clone()));
            }
            Message::Image(image) => {
                let encoded = image_message(image);
                self.watchers.retain_mut(|watcher| watcher.send_image(image.index(), || encoded.clone()));
            }
        }
        before - self.watchers.len()
    }

    /// Forgets those whose node has gone.
    pub(crate) fn sweep(&mut self) {
        self.watchers.retain(|watcher| !watcher.sender.is_closed());
    }
}

impl Watcher {
    /// Whether the watcher is still to be served.
    fn send_delta(&mut self, index: MetadataIndex, message: impl FnOnce() -> WatchMetadataResponse) -> bool {
        if index < self.next {
            return true;
        }
        self.next = index.next();
        self.sender.try_send(Ok(message())).is_ok()
    }

    fn send_image(&mut self, index: MetadataIndex, message: impl FnOnce() -> WatchMetadataResponse) -> bool {
        if index < self.next {
            return true;
        }
        self.next = index.next();
        self.sender.try_send(Ok(message())).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use semel_model::ControllerEpoch;

    use super::*;

    fn delta(index: u64) -> Delta {
        Delta { index: MetadataIndex(index), controller_epoch: ControllerEpoch(1), records: Vec::new() }
    }

    #[test]
    fn a_slow_watcher_is_cut_and_the_others_go_on() {
        let mut watchers = Watchers::default();
        let (slow, mut slow_rx) = mpsc::channel(2);
        let (quick, mut quick_rx) = mpsc::channel(9);
        let image = ClusterImage::new();
        watchers.add(slow, MetadataIndex(3), Some(vec![delta(4)]), &image);
        // This one has heard more than this controller: it waits for what is new to it.
        watchers.add(quick, MetadataIndex(5), Some(Vec::new()), &image);
        assert_eq!(watchers.publish(&Message::Delta(delta(5))), 0);
        assert_eq!(watchers.publish(&Message::Delta(delta(6))), 1);
        assert_eq!(watchers.publish(&Message::Delta(delta(7))), 0);
        let indexes = |receiver: &mut mpsc::Receiver<Result<WatchMetadataResponse, Status>>| {
            std::iter::from_fn(|| receiver.try_recv().ok()).map(|m| m.unwrap().index).collect::<Vec<_>>()
        };
        assert_eq!((indexes(&mut slow_rx), indexes(&mut quick_rx)), (vec![4, 5], vec![6, 7]));
        drop(quick_rx);
        watchers.sweep();
        assert_eq!(watchers.len(), 0);
    }

    #[test]
    fn without_the_changes_there_is_an_image() {
        let mut image = ClusterImage::new();
        image.advance(MetadataIndex(9), ControllerEpoch(2));
        let (sender, mut receiver) = mpsc::channel(2);
        let mut watchers = Watchers::default();
        watchers.add(sender, MetadataIndex(0), None, &image);
        assert_eq!(receiver.try_recv().unwrap().unwrap().index, 9);
    }
}
