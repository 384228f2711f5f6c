//! Semel's Rust client over gRPC.
//!
//! For now this is a thin client: it finds leaders, keeps channels, retries what may be retried, appends
//! idempotently and reads with resumption. What a full producer and consumer decide beyond that (transactions,
//! group membership, assignment, committed positions) will live in the sans-io crate `client-core`; the seam is
//! [`Appender`] and [`Reader`], whose engines will then ask that core instead of deciding for themselves. There is
//! no consumer group and no transaction here, and nothing that pretends to be one.
//!
//! This crate must never:
//! - resend a change whose fate is unknown unless doing it twice is the same as doing it once;
//! - give a batch that may have reached a broker another producer id, epoch or sequence;
//! - hold more than its bounds: buffered bytes, batches in flight, attempts, time.
//!
//! Invariants:
//! - records of one [`Appender`] to one partition are appended in the order of [`Appender::send`], each once, as
//!   long as its receipt is `Ok`; a receipt that fails says whether the record may be in the log anyway;
//! - a [`Reader`] yields each offset at most once and never goes back.
//!
//! Start with [`Cluster`] (who leads what, and how to reach it), then [`Admin`], [`Appender`] and [`Reader`].

mod admin;
mod appender;
mod backoff;
mod cluster;
mod config;
mod error;
#[cfg(any(test, feature = "fake"))]
#[allow(missing_docs, clippy::missing_panics_doc)]
pub mod fake;
mod offsets;
mod partitioner;
mod reader;
#[cfg(test)]
mod tests;

pub use admin::{Admin, ConfigChange, Resource};
pub use appender::{Acks, Appended, Appender, AppenderConfig, Header, NewRecord, Receipt};
pub use cluster::{BrokerView, Cluster, PartitionView, TopicView};
pub use config::Config;
pub use error::{Error, Tried};
pub use offsets::{At, FoundOffset, OffsetQuery};
pub use partitioner::{murmur2, partition_for_key};
pub use reader::{Isolation, ReadOptions, Reader};
pub use semel_proto::v1;
pub use semel_record::Codec;
