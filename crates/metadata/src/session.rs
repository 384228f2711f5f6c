//! A node's session with the controllers: what it has applied, and what it may apply next.

use semel_model::{ControllerEpoch, MetadataIndex};

use crate::{
    change::{Change, changes_between},
    image::ClusterImage,
    record::Delta,
};

/// What a controller sends to a watching node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Replaces everything.
    Image(ClusterImage),
    /// The next change.
    Delta(Delta),
}

/// Why a message was not applied. After each of them the node drops the stream and subscribes again from
/// [`Session::subscribe_from`]; after [`SessionError::StaleControllerEpoch`] and [`SessionError::BehindUs`] at
/// another controller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The sender is a deposed or lagging controller.
    #[error("controller epoch {received} is older than {applied}, which this node has obeyed")]
    StaleControllerEpoch {
        /// In the message.
        received: ControllerEpoch,
        /// The newest seen.
        applied: ControllerEpoch,
    },
    /// A change between the applied one and this one is missing.
    #[error("metadata index {received} does not follow {applied}")]
    Gap {
        /// In the message.
        received: MetadataIndex,
        /// The last applied.
        applied: MetadataIndex,
    },
    /// The image is older than what this node has applied.
    #[error("metadata image at index {received} is behind {applied}, which this node has applied")]
    BehindUs {
        /// Of the image.
        received: MetadataIndex,
        /// The last applied.
        applied: MetadataIndex,
    },
    /// The sender belongs to another cluster.
    #[error("metadata of cluster {received} reached a node of cluster {ours}")]
    InconsistentClusterId {
        /// In the message.
        received: String,
        /// This node's.
        ours: String,
    },
}

/// The metadata a node has applied. Pure: it is told what arrived and answers what changed.
#[derive(Clone, Debug, Default)]
pub struct Session {
    image: ClusterImage,
    /// The newest epoch seen, which may be newer than the image's: command replies carry it too.
    epoch: Option<ControllerEpoch>,
}

impl Session {
    /// A node that knows nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What has been applied. Clone it to keep it.
    #[must_use]
    pub fn image(&self) -> &ClusterImage {
        &self.image
    }

    /// The index to watch after.
    #[must_use]
    pub fn subscribe_from(&self) -> MetadataIndex {
        self.image.index()
    }

    /// The newest controller epoch seen.
    #[must_use]
    pub fn controller_epoch(&self) -> ControllerEpoch {
        self.epoch.unwrap_or(ControllerEpoch(0)).max(self.image.controller_epoch())
    }

    /// Notes the epoch under which a controller answered a command. Refuses one that is older than the newest.
    pub fn observe_epoch(&mut self, received: ControllerEpoch) -> Result<(), SessionError> {
        let applied = self.controller_epoch();
        if received < applied {
            return Err(SessionError::StaleControllerEpoch { received, applied });
        }
        self.epoch = Some(received);
        Ok(())
    }

    /// Applies a message and tells what changed; nothing if it had been applied before.
    ///
    /// Deltas are checked against the epoch of the last one applied, not against the newest one observed: what
    /// was committed under an older epoch stays committed.
    pub fn receive(&mut self, message: Message) -> Result<Vec<Change>, SessionError> {
        match message {
            Message::Delta(delta) => self.receive_delta(&delta),
            Message::Image(image) => self.receive_image(image),
        }
    }

    fn receive_delta(&mut self, delta: &Delta) -> Result<Vec<Change>, SessionError> {
        let applied = self.image.index();
        if delta.index <= applied {
            return Ok(Vec::new());
        }
        if delta.index != applied.next() {
            return Err(SessionError::Gap { received: delta.index, applied });
        }
        if delta.controller_epoch < self.image.controller_epoch() {
            return Err(SessionError::StaleControllerEpoch {
                received: delta.controller_epoch,
                applied: self.image.controller_epoch(),
            });
        }
        let before = self.image.clone();
        self.image.apply_delta(delta);
        Ok(changes_between(&before, &self.image))
    }

    fn receive_image(&mut self, image: ClusterImage) -> Result<Vec<Change>, SessionError> {
        if let (Some(ours), Some(received)) = (self.image.cluster_id(), image.cluster_id())
            && ours != received
        {
            return Err(SessionError::InconsistentClusterId {
                received: received.to_owned(),
                ours: ours.to_owned(),
            });
        }
        if image.controller_epoch() < self.image.controller_epoch() {
            return Err(SessionError::StaleControllerEpoch {
                received: image.controller_epoch(),
                applied: self.image.controller_epoch(),
            });
        }
        if image.index() < self.image.index() {
            return Err(SessionError::BehindUs { received: image.index(), applied: self.image.index() });
        }
        let before = std::mem::replace(&mut self.image, image);
        Ok(changes_between(&before, &self.image))
    }
}
