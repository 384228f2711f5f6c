//! Errors a person can act on.

use std::{error::Error as _, fmt::Write as _, io};

use semel_client::{Error, v1::ErrorCode};

use crate::{DEFAULT_SERVER, Global};

/// Why a command could not be done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The client says why.
    #[error(transparent)]
    Client(#[from] Error),
    /// Whoever read standard output is gone.
    #[error("standard output is closed")]
    BrokenPipe,
    /// Standard output can't be written.
    #[error("cannot write to standard output")]
    Write(#[source] io::Error),
    /// Input can't be read.
    #[error("cannot read {name}")]
    Read {
        name: String,
        #[source]
        cause: io::Error,
    },
    /// Part of what was asked for was done.
    #[error("{done}")]
    Partly {
        done: String,
        #[source]
        cause: Box<Failure>,
    },
    /// Anything else, with what to do about it.
    #[error("{what}")]
    Other { what: String, next: Option<String> },
}

impl From<io::Error> for Failure {
    fn from(cause: io::Error) -> Self {
        if cause.kind() == io::ErrorKind::BrokenPipe { Self::BrokenPipe } else { Self::Write(cause) }
    }
}

impl Failure {
    pub(crate) fn other(what: impl Into<String>) -> Self {
        Self::Other { what: what.into(), next: None }
    }

    /// What failed with all its causes, and what to type next.
    pub(crate) fn explain(&self, global: &Global, topic: Option<&str>) -> String {
        let mut text = format!("semel: {self}");
        let mut cause = self.source();
        while let Some(next) = cause {
            // Writing to a string doesn't fail.
            let _ = write!(text, ": {next}");
            cause = next.source();
        }
        text.push('\n');
        if self.client().is_some_and(Error::is_uncertain) {
            text.push_str("  it may have been done all the same: look before you repeat it\n");
        }
        if let Some(next) = self.advice(global, topic) {
            let _ = writeln!(text, "  {next}");
        }
        text
    }

    fn client(&self) -> Option<&Error> {
        match self {
            Self::Client(error) => Some(error),
            Self::Partly { cause, .. } => cause.client(),
            _ => None,
        }
    }

    fn advice(&self, global: &Global, topic: Option<&str>) -> Option<String> {
        if let Self::Other { next, .. } = self {
            return next.clone();
        }
        let server = match global.server.join(",") {
            server if server == DEFAULT_SERVER => String::new(),
            server => format!(" --server {server}"),
        };
        let topic = topic.unwrap_or("TOPIC");
        let error = self.client()?;
        match error {
            Error::Unreachable { .. } => {
                return Some(
                    "is the node running? start one with `semel dev`, or name another with --server HOST:PORT \
                     (its gRPC port, 9190 by default; 9092 is Kafka's)"
                        .to_owned(),
                );
            }
            Error::Address { .. } | Error::NoServers => {
                return Some(format!("write it like --server {DEFAULT_SERVER}"));
            }
            Error::NoSuchPartition { .. } => {
                return Some(format!("see its partitions: semel topic describe {topic}{server}"));
            }
            Error::Call { .. } | Error::Batch { .. } | Error::RecordTooLarge { .. } | Error::Closed => {}
        }
        use ErrorCode as E;
        Some(match error.code()? {
            E::UnknownTopicOrPartition | E::UnknownTopicId => {
                format!(
                    "see which topics there are: semel topic list{server}; or make it: semel topic create {topic}{server}"
                )
            }
            E::TopicAlreadyExists => format!("see it: semel topic describe {topic}{server}"),
            E::InvalidTopicException => {
                "a topic's name has 1 to 249 of the characters a-z, A-Z, 0-9, '.', '_' and '-'".to_owned()
            }
            E::InvalidReplicationFactor | E::InvalidReplicaAssignment | E::BrokerIdNotRegistered => {
                format!("see which brokers there are: semel cluster brokers{server}")
            }
            E::InvalidPartitions => format!("see how many it has: semel topic describe {topic}{server}"),
            E::InvalidConfig => format!("see the names and values: semel topic configs {topic}{server}"),
            E::OffsetOutOfRange => format!("see which offsets it has: semel topic offsets {topic}{server}"),
            E::MessageTooLarge | E::RecordListTooLarge => {
                format!("to allow it: semel topic alter {topic} --set max.message.bytes=BYTES{server}")
            }
            E::NotEnoughReplicas
            | E::NotEnoughReplicasAfterAppend
            | E::LeaderNotAvailable
            | E::NotLeaderOrFollower => {
                format!("see who leads and who is in sync: semel topic describe {topic}{server}")
            }
            E::KafkaStorageError => format!("see the disks: semel cluster log-dirs{server}"),
            E::NotController => format!("see the controllers: semel cluster quorum{server}"),
            E::NetworkException | E::RequestTimedOut | E::BrokerNotAvailable => {
                format!("see which brokers serve: semel cluster status{server}")
            }
            E::UnsupportedVersion => {
                "does a Semel broker listen there? its gRPC port is 9190 by default".to_owned()
            }
            _ => return None,
        })
    }
}
