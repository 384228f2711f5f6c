//! The row of a producer snapshot: what storage writes and the partition core reads back.

use semel_model::{CoordinatorEpoch, Offset, ProducerEpoch, ProducerId, Sequence, Timestamp};

/// What a partition remembers of one producer, with the fields of Kafka's `.snapshot` file (version 1).
///
/// Of the last five batches that are known in memory only the last is kept, as in Kafka.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerSnapshotEntry {
    /// Whose row it is.
    pub producer_id: ProducerId,
    /// The latest seen.
    pub producer_epoch: ProducerEpoch,
    /// Of its last batch; [`Sequence::NONE`] if none of this epoch is known.
    pub last_sequence: Sequence,
    /// The last offset of its last batch (inclusive); -1 if none of this epoch is known.
    pub last_offset: Offset,
    /// Last offset minus first offset of its last batch; 0 if none is known.
    pub offset_delta: i32,
    /// Max timestamp of its last batch or marker.
    pub timestamp: Timestamp,
    /// Of the coordinator that wrote its last marker; -1 if none did.
    pub coordinator_epoch: CoordinatorEpoch,
    /// Where its open transaction begins; `None` (-1 in the file) if it has none.
    pub current_txn_first_offset: Option<Offset>,
}
