//! Kafka's error names through gRPC.
//!
//! A failed call's status carries an encoded [`v1::Error`] in its details, so a client sees the same name that a
//! Kafka client would; the gRPC code beside it is for generic tools.

use prost::Message as _;
use tonic::{Code, Status};

use crate::v1::{self, ErrorCode};

impl v1::Error {
    /// An error with its Kafka name filled in.
    #[must_use]
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            code: code.into(),
            name: kafka_name(code).to_owned(),
            message: message.into(),
            retriable: is_retriable(code),
        }
    }

    /// The status that carries this error.
    #[must_use]
    pub fn into_status(self) -> Status {
        let code = self.error_code();
        let text = format!("{}: {}", self.name, self.message);
        Status::with_details(grpc_code(code), text, self.encode_to_vec().into())
    }

    /// The error a status carries; for a status made elsewhere (a lost connection, a deadline) the nearest of Kafka's.
    #[must_use]
    pub fn from_status(status: &Status) -> Self {
        if let Ok(error) = Self::decode(status.details())
            && error.code != 0
        {
            return error;
        }
        let code = match status.code() {
            Code::DeadlineExceeded => ErrorCode::RequestTimedOut,
            Code::Unavailable | Code::Cancelled => ErrorCode::NetworkException,
            Code::InvalidArgument | Code::OutOfRange => ErrorCode::InvalidRequest,
            Code::Unimplemented => ErrorCode::UnsupportedVersion,
            Code::ResourceExhausted => ErrorCode::ThrottlingQuotaExceeded,
            _ => ErrorCode::UnknownServerError,
        };
        Self::new(code, status.message())
    }

    /// The code as the enum; a number this build doesn't know is `UnknownServerError`.
    #[must_use]
    pub fn error_code(&self) -> ErrorCode {
        ErrorCode::try_from(self.code).unwrap_or(ErrorCode::UnknownServerError)
    }
}

impl std::fmt::Display for v1::Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.message.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}: {}", self.name, self.message)
        }
    }
}

impl std::error::Error for v1::Error {}

/// Kafka's name of a code: `UNKNOWN_TOPIC_OR_PARTITION`.
#[must_use]
pub fn kafka_name(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::Unspecified => "NONE",
        _ => code.as_str_name().trim_start_matches("ERROR_CODE_"),
    }
}

/// Whether Kafka's clients retry on this code.
#[must_use]
pub fn is_retriable(code: ErrorCode) -> bool {
    use ErrorCode as E;
    matches!(
        code,
        E::CorruptMessage
            | E::UnknownTopicOrPartition
            | E::LeaderNotAvailable
            | E::NotLeaderOrFollower
            | E::RequestTimedOut
            | E::ReplicaNotAvailable
            | E::NetworkException
            | E::CoordinatorLoadInProgress
            | E::CoordinatorNotAvailable
            | E::NotCoordinator
            | E::NotEnoughReplicas
            | E::NotEnoughReplicasAfterAppend
            | E::NotController
            | E::ConcurrentTransactions
            | E::KafkaStorageError
            | E::FetchSessionIdNotFound
            | E::InvalidFetchSessionEpoch
            | E::ListenerNotFound
            | E::FencedLeaderEpoch
            | E::UnknownLeaderEpoch
            | E::OffsetNotAvailable
            | E::PreferredLeaderNotAvailable
            | E::EligibleLeadersNotAvailable
            | E::ElectionNotNeeded
            | E::UnstableOffsetCommit
            | E::ThrottlingQuotaExceeded
            | E::UnknownTopicId
            | E::InconsistentTopicId
    )
}

fn grpc_code(code: ErrorCode) -> Code {
    use ErrorCode as E;
    if is_retriable(code) {
        return match code {
            E::UnknownTopicOrPartition | E::UnknownTopicId => Code::NotFound,
            E::RequestTimedOut => Code::DeadlineExceeded,
            E::ThrottlingQuotaExceeded => Code::ResourceExhausted,
            E::CorruptMessage => Code::DataLoss,
            _ => Code::Unavailable,
        };
    }
    match code {
        E::Unspecified => Code::Ok,
        E::UnknownServerError => Code::Internal,
        E::OffsetOutOfRange | E::PositionOutOfRange => Code::OutOfRange,
        E::TopicAlreadyExists | E::DuplicateResource | E::DuplicateBrokerRegistration => Code::AlreadyExists,
        E::ResourceNotFound | E::GroupIdNotFound | E::TransactionalIdNotFound | E::BrokerIdNotRegistered => {
            Code::NotFound
        }
        E::TopicAuthorizationFailed
        | E::GroupAuthorizationFailed
        | E::ClusterAuthorizationFailed
        | E::TransactionalIdAuthorizationFailed => Code::PermissionDenied,
        E::SaslAuthenticationFailed => Code::Unauthenticated,
        E::UnsupportedVersion => Code::Unimplemented,
        // Not retriable on Kafka's wire, where clients look for another broker; here it says that this one is starting.
        E::BrokerNotAvailable => Code::Unavailable,
        E::ProducerFenced
        | E::InvalidProducerEpoch
        | E::OutOfOrderSequenceNumber
        | E::InvalidTxnState
        | E::StaleBrokerEpoch
        | E::StaleControllerEpoch
        | E::TransactionCoordinatorFenced => Code::FailedPrecondition,
        _ => Code::InvalidArgument,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_survives_a_status() {
        let error = v1::Error::new(ErrorCode::OutOfOrderSequenceNumber, "expected 5, got 7");
        let status = error.clone().into_status();
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert_eq!(v1::Error::from_status(&status), error);
        assert_eq!(error.to_string(), "OUT_OF_ORDER_SEQUENCE_NUMBER: expected 5, got 7");
    }

    #[test]
    fn a_foreign_status_gets_the_nearest_name() {
        let error = v1::Error::from_status(&Status::unavailable("connection refused"));
        assert_eq!((error.error_code(), error.retriable), (ErrorCode::NetworkException, true));
    }
}
