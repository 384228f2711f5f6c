//! Why an operation failed.

use std::{fmt, sync::Arc};

use semel_proto::{
    error::is_retriable,
    v1::{self, ErrorCode},
};
use tonic::{Code, Status};

/// Why an operation failed. Cheap to clone, because one failed batch fails many receipts.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The list of servers is empty.
    #[error("no server address is given")]
    NoServers,
    /// A server's address can't be one.
    #[error("{address:?} is not an address of the form HOST:PORT")]
    Address {
        /// As given.
        address: String,
    },
    /// None of the servers to start from answered.
    #[error("no server answers: tried {}", list(tried))]
    Unreachable {
        /// Each address with its reason, in the order tried.
        tried: Vec<Tried>,
    },
    /// A call failed for good: refused, or the attempts ran out.
    #[error("cannot {doing} at {address}{}", after(*attempts))]
    Call {
        /// What was being done, to what: "append to orders-3".
        doing: String,
        /// The broker of the last attempt.
        address: String,
        /// How often it was tried.
        attempts: u32,
        /// Whether the change may have been made all the same.
        uncertain: bool,
        /// The last attempt's error.
        #[source]
        cause: Box<v1::Error>,
    },
    /// Records could not be made into a batch.
    #[error("cannot build a batch for {topic}-{partition}")]
    Batch {
        /// The topic's name.
        topic: String,
        /// The partition's number.
        partition: i32,
        /// What is wrong with them.
        #[source]
        cause: Arc<semel_record::BatchError>,
    },
    /// A record that could never be sent.
    #[error("the record is {size} bytes, the appender's buffer holds {bound}")]
    RecordTooLarge {
        /// With key, value and headers.
        size: usize,
        /// [`AppenderConfig::buffer_bytes`](crate::AppenderConfig::buffer_bytes).
        bound: usize,
    },
    /// A partition that the topic doesn't have.
    #[error("topic {topic} has partitions 0 to {}, not {partition}", count - 1)]
    NoSuchPartition {
        /// The topic's name.
        topic: String,
        /// The one asked for.
        partition: i32,
        /// How many there are.
        count: usize,
    },
    /// The appender was closed, or its runtime was shut down.
    #[error("the appender is closed")]
    Closed,
}

/// One address and why it didn't serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// `HOST:PORT`.
    pub address: String,
    /// The innermost cause.
    pub reason: String,
}

impl Error {
    /// The error a broker answered with, if one did (or the nearest of Kafka's to what the network said).
    #[must_use]
    pub fn kafka(&self) -> Option<&v1::Error> {
        match self {
            Self::Call { cause, .. } => Some(cause),
            _ => None,
        }
    }

    /// The code of [`Error::kafka`].
    #[must_use]
    pub fn code(&self) -> Option<ErrorCode> {
        self.kafka().map(v1::Error::error_code)
    }

    /// Whether the change may have been made although this says it failed.
    #[must_use]
    pub fn is_uncertain(&self) -> bool {
        matches!(self, Self::Call { uncertain: true, .. })
    }
}

fn after(attempts: u32) -> String {
    if attempts > 1 { format!(" after {attempts} attempts") } else { String::new() }
}

fn list(tried: &[Tried]) -> String {
    tried.iter().map(|one| format!("{} ({})", one.address, one.reason)).collect::<Vec<_>>().join(", ")
}

/// What is known about a request whose attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// No connection: it never left.
    NotSent,
    /// It left, and nothing came back.
    Unknown,
    /// A broker answered with the error.
    Answered,
}

/// One failed attempt.
#[derive(Clone, Debug)]
pub(crate) struct Failed {
    pub(crate) address: String,
    pub(crate) error: v1::Error,
    pub(crate) fate: Fate,
}

impl Failed {
    pub(crate) fn answered(address: &str, error: v1::Error) -> Self {
        Self { address: address.to_owned(), error, fate: Fate::Answered }
    }

    pub(crate) fn status(address: &str, status: &Status) -> Self {
        if !status.details().is_empty() {
            return Self::answered(address, v1::Error::from_status(status));
        }
        let chain = causes(status);
        if chain.iter().any(|cause| cause.is::<tonic::ConnectError>()) {
            let error = v1::Error::new(ErrorCode::NetworkException, innermost(status));
            return Self { address: address.to_owned(), error, fate: Fate::NotSent };
        }
        // A status that a server sent has no source; with one it was made here, out of a broken connection.
        let lost = matches!(status.code(), Code::Unavailable | Code::Cancelled) || chain.len() > 1;
        let error = if lost {
            v1::Error::new(ErrorCode::NetworkException, innermost(status))
        } else {
            v1::Error::from_status(status)
        };
        let unknown = lost || status.code() == Code::DeadlineExceeded;
        let fate = if unknown { Fate::Unknown } else { Fate::Answered };
        Self { address: address.to_owned(), error, fate }
    }

    pub(crate) fn timed_out(address: &str, after: std::time::Duration) -> Self {
        let error =
            v1::Error::new(ErrorCode::RequestTimedOut, format!("no answer within {} ms", after.as_millis()));
        Self { address: address.to_owned(), error, fate: Fate::Unknown }
    }

    pub(crate) fn code(&self) -> ErrorCode {
        self.error.error_code()
    }

    /// Whether to try again, given that doing it twice is `Safety`.
    pub(crate) fn may_retry(&self, safety: Safety) -> bool {
        let timed_out = self.code() == ErrorCode::RequestTimedOut;
        match (self.fate, safety) {
            (Fate::NotSent, _) | (Fate::Unknown, Safety::Repeatable) => true,
            (Fate::Unknown, Safety::Once) => false,
            (Fate::Answered, Safety::Repeatable) => self.error.retriable || is_retriable(self.code()),
            // A broker that timed out waiting for the controller doesn't know either.
            (Fate::Answered, Safety::Once) => is_retriable(self.code()) && !timed_out,
        }
    }

    /// Whether the change may have been made.
    pub(crate) fn uncertain(&self) -> bool {
        match self.fate {
            Fate::NotSent => false,
            Fate::Unknown => true,
            Fate::Answered => {
                matches!(self.code(), ErrorCode::RequestTimedOut | ErrorCode::NotEnoughReplicasAfterAppend)
            }
        }
    }

    pub(crate) fn into_error(self, doing: &str, attempts: u32, changes: bool) -> Error {
        let uncertain = changes && self.uncertain();
        Error::Call {
            doing: doing.to_owned(),
            address: self.address,
            attempts,
            uncertain,
            cause: Box::new(self.error),
        }
    }
}

/// Whether doing an operation twice is the same as doing it once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Safety {
    /// It is, or it is a read.
    Repeatable,
    /// It is not.
    Once,
}

fn causes<'a>(status: &'a Status) -> Vec<&'a (dyn std::error::Error + 'static)> {
    let mut chain: Vec<&(dyn std::error::Error + 'static)> = vec![status];
    while chain.len() < 16
        && let Some(next) = chain.last().and_then(|last| last.source())
    {
        chain.push(next);
    }
    chain
}

/// The last cause's text: "Connection refused (os error 111)" rather than "tcp connect error".
fn innermost(status: &Status) -> String {
    match causes(status).last() {
        Some(cause) if !cause.is::<Status>() => cause.to_string(),
        _ => status.message().to_owned(),
    }
}

impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.address, self.reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_answer_is_repeated_only_if_that_is_safe() {
        let lost = Failed::status("a:1", &Status::unavailable("broken"));
        assert_eq!((lost.fate, lost.code()), (Fate::Unknown, ErrorCode::NetworkException));
        assert!(lost.may_retry(Safety::Repeatable));
        assert!(!lost.may_retry(Safety::Once));
        assert!(lost.into_error("create topic t", 1, true).is_uncertain());
    }

    #[test]
    fn an_answered_error_keeps_its_name() {
        let status = v1::Error::new(ErrorCode::NotController, "").into_status();
        let failed = Failed::status("a:1", &status);
        assert_eq!(failed.fate, Fate::Answered);
        assert!(failed.may_retry(Safety::Once));
        let refused = Failed::status("a:1", &v1::Error::new(ErrorCode::InvalidConfig, "x").into_status());
        assert!(!refused.may_retry(Safety::Repeatable));
        assert!(!refused.uncertain());
    }

    #[test]
    fn a_foreign_servers_status_is_not_retried() {
        let failed = Failed::status("a:1", &Status::unimplemented("no such service"));
        assert_eq!(failed.code(), ErrorCode::UnsupportedVersion);
        assert!(!failed.may_retry(Safety::Repeatable));
    }
}
