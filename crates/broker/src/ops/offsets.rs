//! Looking offsets up.

use semel_model::{LeaderEpoch, Offset, Timestamp};

use crate::{
    failure::Failure,
    partition::{Isolation, Partition},
};

/// What is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Position {
    Earliest,
    Latest,
    /// The record with the greatest time (KIP-734).
    MaxTimestamp,
    /// The first record of this time or later.
    At(Timestamp),
}

/// What was found. Without a record (earliest, latest) the time is [`Timestamp::NONE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) offset: Offset,
    pub(crate) timestamp: Timestamp,
    pub(crate) leader_epoch: LeaderEpoch,
}

impl Partition {
    /// `None`: there is no such record.
    pub(crate) fn find_offset(
        &self,
        position: Position,
        isolation: Isolation,
        leader_epoch: Option<LeaderEpoch>,
    ) -> Result<Option<Found>, Failure> {
        let bare = |(offset, leader_epoch)| Found { offset, timestamp: Timestamp::NONE, leader_epoch };
        let record = |found: semel_log::TimestampOffset| Found {
            offset: found.offset,
            timestamp: found.timestamp,
            leader_epoch: found.leader_epoch,
        };
        Ok(match position {
            Position::Earliest => Some(bare(self.earliest(leader_epoch)?)),
            Position::Latest => Some(bare(self.latest(isolation, leader_epoch)?)),
            Position::MaxTimestamp => self.max_timestamp(isolation, leader_epoch)?.map(record),
            Position::At(time) => self.at_time(time, isolation, leader_epoch)?.map(record),
        })
    }
}
