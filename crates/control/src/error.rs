//! Why the controller refuses, under Kafka's names.

use semel_metadata::config::InvalidConfig;
use semel_model::TopicNameError;

/// A refusal. Each variant is Kafka's error of that name; the text says what was asked of what.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// This controller does not lead, or has not taken over yet: ask the leader.
    #[error("{0}")]
    NotController(String),
    /// The change was handed to the log, and its fate is not known: read before asking again.
    #[error("leadership changed while the change was under way: it may happen or not")]
    RequestTimedOut,
    /// Too much is under way: ask again later.
    #[error("{0}")]
    ThrottlingQuotaExceeded(String),
    /// Another process has this broker's id.
    #[error("{0}")]
    DuplicateBrokerRegistration(String),
    /// The broker belongs to another cluster.
    #[error("{0}")]
    InconsistentClusterId(String),
    /// The registration itself is bad.
    #[error("{0}")]
    InvalidRegistration(String),
    /// Not in the broker's current life.
    #[error("{0}")]
    StaleBrokerEpoch(String),
    /// No such broker.
    #[error("{0}")]
    BrokerIdNotRegistered(String),
    /// The request contradicts itself.
    #[error("{0}")]
    InvalidRequest(String),
    /// No topic may have this name.
    #[error("{0}")]
    InvalidTopicException(String),
    /// The name is taken.
    #[error("topic '{0}' already exists")]
    TopicAlreadyExists(String),
    /// No such topic or partition.
    #[error("{0}")]
    UnknownTopicOrPartition(String),
    /// No topic of this id.
    #[error("{0}")]
    UnknownTopicId(String),
    /// A bad number of partitions.
    #[error("{0}")]
    InvalidPartitions(String),
    /// A bad number of replicas, or more than there are brokers.
    #[error("{0}")]
    InvalidReplicationFactor(String),
    /// A bad list of brokers.
    #[error("{0}")]
    InvalidReplicaAssignment(String),
    /// A bad configuration.
    #[error("{0}")]
    InvalidConfig(String),
    /// More than this cluster allows.
    #[error("{0}")]
    PolicyViolation(String),
    /// The sender no longer leads the partition.
    #[error("{0}")]
    FencedLeaderEpoch(String),
    /// The partition has changed since the sender looked.
    #[error("{0}")]
    InvalidUpdateVersion(String),
    /// A replica that may not be in sync.
    #[error("{0}")]
    IneligibleReplica(String),
}

impl From<TopicNameError> for Error {
    fn from(error: TopicNameError) -> Self {
        Self::InvalidTopicException(error.to_string())
    }
}

impl From<InvalidConfig> for Error {
    fn from(error: InvalidConfig) -> Self {
        match error {
            InvalidConfig::ReadOnly { .. } | InvalidConfig::PerBrokerOnly { .. } => {
                Self::InvalidRequest(error.to_string())
            }
            InvalidConfig::UnknownName { .. }
            | InvalidConfig::WrongType { .. }
            | InvalidConfig::OutOfBounds { .. }
            | InvalidConfig::NotSupported { .. }
            | InvalidConfig::Conflict { .. } => Self::InvalidConfig(error.to_string()),
        }
    }
}
