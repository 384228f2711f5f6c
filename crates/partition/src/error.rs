//! Why a replica refuses.

use semel_model::{
    BrokerId, CoordinatorEpoch, LeaderEpoch, Offset, PartitionEpoch, ProducerEpoch, ProducerId, Sequence,
};

/// Why a replica refuses; variants are named as Kafka names its errors, where it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Another broker leads, or none is known to.
    #[error("this replica does not lead the partition")]
    NotLeaderOrFollower,
    /// The caller knows an older leadership.
    #[error("leader epoch {given} is older than {current}")]
    FencedLeaderEpoch {
        /// The caller's.
        given: LeaderEpoch,
        /// This replica's.
        current: LeaderEpoch,
    },
    /// The caller knows a newer leadership, of which this replica will hear soon.
    #[error("leader epoch {given} is newer than {current}")]
    UnknownLeaderEpoch {
        /// The caller's.
        given: LeaderEpoch,
        /// This replica's.
        current: LeaderEpoch,
    },
    /// A change of the partition older than one already obeyed.
    #[error("partition epoch {given} is older than {current}")]
    StalePartitionEpoch {
        /// The change's.
        given: PartitionEpoch,
        /// This replica's.
        current: PartitionEpoch,
    },
    /// The directory of the log has failed.
    #[error("the log of this replica is offline")]
    KafkaStorageError,
    /// Too few replicas are in sync for acks=all; nothing was appended.
    #[error("{in_sync} replicas are in sync, {needed} are needed")]
    NotEnoughReplicas {
        /// The leader included.
        in_sync: usize,
        /// `min.insync.replicas`, or all replicas if they are fewer.
        needed: usize,
    },
    /// The in-sync replicas became too few after the append.
    #[error("{in_sync} replicas are in sync after the append, {needed} are needed")]
    NotEnoughReplicasAfterAppend {
        /// The leader included.
        in_sync: usize,
        /// `min.insync.replicas`, or all replicas if they are fewer.
        needed: usize,
    },
    /// A batch that does not follow the producer's last one and is none of the last five.
    #[error(
        "sequence {sequence} of producer {producer_id} epoch {producer_epoch} is out of order, expected {expected}"
    )]
    OutOfOrderSequenceNumber {
        /// Of the batch.
        producer_id: ProducerId,
        /// Of the batch.
        producer_epoch: ProducerEpoch,
        /// Of the batch.
        sequence: Sequence,
        /// The one that would have been right.
        expected: Sequence,
    },
    /// A zombie's batch or marker.
    #[error("epoch {given} of producer {producer_id} is older than or ended by {current}")]
    InvalidProducerEpoch {
        /// Of the batch.
        producer_id: ProducerId,
        /// Of the batch.
        given: ProducerEpoch,
        /// The latest seen.
        current: ProducerEpoch,
    },
    /// A plain batch amid the producer's transaction.
    #[error("producer {producer_id} sent a non-transactional batch while its transaction is open")]
    InvalidTxnState {
        /// Of the batch.
        producer_id: ProducerId,
    },
    /// The batch would open a transaction of which nobody knows that it is ongoing. The shell asks the
    /// coordinator and checks again; if it can't, this is `INVALID_TXN_STATE` (KIP-890).
    #[error("the transaction of producer {producer_id} is not verified")]
    TransactionNotVerified {
        /// Of the batch.
        producer_id: ProducerId,
    },
    /// A marker of a coordinator that has been replaced.
    #[error("coordinator epoch {given} for producer {producer_id} is older than {current}")]
    TransactionCoordinatorFenced {
        /// Of the marker.
        producer_id: ProducerId,
        /// Of the marker.
        given: CoordinatorEpoch,
        /// The latest seen.
        current: CoordinatorEpoch,
    },
    /// Every remembered producer has an open transaction and there is no room for another.
    #[error("{max} producers have open transactions, there is no room for another")]
    TooManyProducers {
        /// The bound.
        max: usize,
    },
    /// A position beyond the log.
    #[error("offset {offset} is outside {log_start_offset}..={log_end_offset}")]
    OffsetOutOfRange {
        /// The caller's.
        offset: Offset,
        /// Inclusive.
        log_start_offset: Offset,
        /// Inclusive: a reader may wait there.
        log_end_offset: Offset,
    },
    /// A new leader does not know yet how far its predecessor's high watermark was (KIP-207).
    #[error("the high watermark is not known yet")]
    OffsetNotAvailable,
    /// A broker fetches as a replica that is not one.
    #[error("broker {broker} is not a replica of this partition")]
    NotAReplica {
        /// Who fetched.
        broker: BrokerId,
    },
    /// A leader sent what does not follow the log's end.
    #[error("batch at offset {given} does not follow the log end {log_end_offset}")]
    UnexpectedOffset {
        /// The batch's.
        given: Offset,
        /// This replica's.
        log_end_offset: Offset,
    },
}

impl Error {
    /// Kafka's name of the error that a client gets.
    #[must_use]
    pub const fn kafka_name(&self) -> &'static str {
        match self {
            Self::NotLeaderOrFollower | Self::NotAReplica { .. } => "NOT_LEADER_OR_FOLLOWER",
            Self::FencedLeaderEpoch { .. } => "FENCED_LEADER_EPOCH",
            Self::UnknownLeaderEpoch { .. } => "UNKNOWN_LEADER_EPOCH",
            Self::StalePartitionEpoch { .. } => "INVALID_UPDATE_VERSION",
            Self::KafkaStorageError => "KAFKA_STORAGE_ERROR",
            Self::NotEnoughReplicas { .. } => "NOT_ENOUGH_REPLICAS",
            Self::NotEnoughReplicasAfterAppend { .. } => "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
            Self::OutOfOrderSequenceNumber { .. } => "OUT_OF_ORDER_SEQUENCE_NUMBER",
            Self::InvalidProducerEpoch { .. } => "INVALID_PRODUCER_EPOCH",
            Self::InvalidTxnState { .. } | Self::TransactionNotVerified { .. } => "INVALID_TXN_STATE",
            Self::TransactionCoordinatorFenced { .. } => "TRANSACTION_COORDINATOR_FENCED",
            Self::TooManyProducers { .. } => "THROTTLING_QUOTA_EXCEEDED",
            Self::OffsetOutOfRange { .. } | Self::UnexpectedOffset { .. } => "OFFSET_OUT_OF_RANGE",
            Self::OffsetNotAvailable => "OFFSET_NOT_AVAILABLE",
        }
    }
}
