//! One error for both front doors: Kafka's code and a text a person can act on.
//!
//! Each core's error becomes a Kafka code here, in one exhaustive match, so that the Kafka listener and gRPC never
//! disagree about a name.

use semel_kafka_wire::ErrorCode;
use semel_proto::v1;
use semel_record::BatchError;

/// A request, or one item of it, that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", code.name())]
pub(crate) struct Failure {
    /// Kafka's code; never `None`.
    pub(crate) code: ErrorCode,
    /// What was being done, to what.
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    pub(crate) fn unknown_topic(name: &str) -> Self {
        Self::new(ErrorCode::UnknownTopicOrPartition, format!("no topic {name:?}"))
    }

    pub(crate) fn unknown_partition(name: &str, partition: i32) -> Self {
        Self::new(ErrorCode::UnknownTopicOrPartition, format!("no partition {partition} of topic {name:?}"))
    }

    /// As it leaves by gRPC.
    pub(crate) fn to_grpc(&self) -> v1::Error {
        let code =
            v1::ErrorCode::try_from(i32::from(self.code.code())).unwrap_or(v1::ErrorCode::UnknownServerError);
        v1::Error::new(code, self.message.clone())
    }
}

/// A controller's answer, passed on to the client.
impl From<v1::Error> for Failure {
    fn from(error: v1::Error) -> Self {
        let code = i16::try_from(error.code)
            .ok()
            .and_then(ErrorCode::from_code)
            .filter(|code| *code != ErrorCode::None)
            .unwrap_or(ErrorCode::UnknownServerError);
        Self { code, message: error.message }
    }
}

impl From<Failure> for tonic::Status {
    fn from(failure: Failure) -> Self {
        failure.to_grpc().into_status()
    }
}

impl From<BatchError> for Failure {
    fn from(error: BatchError) -> Self {
        Self { code: batch_code(&error), message: error.to_string() }
    }
}

fn batch_code(error: &BatchError) -> ErrorCode {
    use semel_record::BatchErrorKind as Kind;
    match error.kind() {
        Kind::CorruptMessage => ErrorCode::CorruptMessage,
        Kind::InvalidRecord => ErrorCode::InvalidRecord,
        Kind::InvalidTimestamp => ErrorCode::InvalidTimestamp,
        Kind::UnsupportedCompressionType => ErrorCode::UnsupportedCompressionType,
        Kind::MessageTooLarge => ErrorCode::MessageTooLarge,
        Kind::UnknownServerError => ErrorCode::UnknownServerError,
    }
}

/// An error with everything beneath it, on one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text.push_str(": ");
        text.push_str(&next.to_string());
        cause = next.source();
    }
    text
}

pub(crate) fn partition_failure(error: &semel_partition::Error) -> Failure {
    use semel_partition::Error as E;
    let code = match error {
        E::NotLeaderOrFollower | E::NotAReplica { .. } => ErrorCode::NotLeaderOrFollower,
        E::FencedLeaderEpoch { .. } => ErrorCode::FencedLeaderEpoch,
        E::UnknownLeaderEpoch { .. } => ErrorCode::UnknownLeaderEpoch,
        E::StalePartitionEpoch { .. } => ErrorCode::InvalidUpdateVersion,
        E::KafkaStorageError => ErrorCode::KafkaStorageError,
        E::NotEnoughReplicas { .. } => ErrorCode::NotEnoughReplicas,
        E::NotEnoughReplicasAfterAppend { .. } => ErrorCode::NotEnoughReplicasAfterAppend,
        E::OutOfOrderSequenceNumber { .. } => ErrorCode::OutOfOrderSequenceNumber,
        E::InvalidProducerEpoch { .. } => ErrorCode::InvalidProducerEpoch,
        E::InvalidTxnState { .. } | E::TransactionNotVerified { .. } => ErrorCode::InvalidTxnState,
        E::TransactionCoordinatorFenced { .. } => ErrorCode::TransactionCoordinatorFenced,
        E::TooManyProducers { .. } => ErrorCode::ThrottlingQuotaExceeded,
        E::OffsetOutOfRange { .. } | E::UnexpectedOffset { .. } => ErrorCode::OffsetOutOfRange,
        E::OffsetNotAvailable => ErrorCode::OffsetNotAvailable,
    };
    Failure::new(code, error.to_string())
}

pub(crate) fn append_failure(error: &semel_log::AppendError) -> Failure {
    use semel_log::AppendError as E;
    let code = match error {
        E::RecordListTooLarge { .. } => ErrorCode::RecordListTooLarge,
        E::FencedLeaderEpoch { .. } => ErrorCode::FencedLeaderEpoch,
        E::Corrupt(_) => ErrorCode::CorruptMessage,
        E::OffsetSpanTooLarge => ErrorCode::InvalidRecord,
        // The replica gave the offset: that it doesn't fit is ours.
        E::Discontiguous { .. } => ErrorCode::UnknownServerError,
        E::LogFailed | E::Storage(_) => ErrorCode::KafkaStorageError,
    };
    Failure::new(code, chain(error))
}

pub(crate) fn read_failure(error: &semel_log::ReadError) -> Failure {
    use semel_log::ReadError as E;
    let code = match error {
        E::OffsetOutOfRange { .. } => ErrorCode::OffsetOutOfRange,
        E::Corrupt { .. } | E::Batch { .. } => ErrorCode::CorruptMessage,
        E::Storage(_) => ErrorCode::KafkaStorageError,
    };
    Failure::new(code, chain(error))
}
