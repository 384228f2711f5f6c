//! Kafka's record batch, version 2: the one format in which records travel and rest.
//!
//! The bytes a producer sends are the bytes that lie on disk and reach the consumer; a broker looks at the 61
//! bytes in front ([`BatchHeader`]), checks what an untrusted hand wrote ([`validate_produced`]) and stamps two
//! fields that stand outside the checksum ([`Batch::stamped_head`]).
//!
//! This crate never does I/O, never reads a clock, and never trusts a length: no number in the bytes makes it
//! allocate more than the bytes themselves, or the limit given with a call ([`DecodeLimits`]), account for.
//!
//! Invariants:
//! - In a [`Batch`] the header is what its bytes say, and the bytes are exactly that one batch.
//! - Offset deltas of a batch's records increase strictly and lie in `0..=last_offset_delta`; whatever yields
//!   records refuses others.
//! - A null key or value and an empty one stay two things on every path.
//!
//! Start with [`header`] (the layout), then [`batch`], [`produced`] (what a leader checks), [`walk`] (the layout
//! of one record) and [`retain`] (what compaction does to a batch). [`control`] has transaction markers,
//! [`producer_state`] the row of a producer snapshot.

pub mod batch;
pub mod batches;
pub mod builder;
pub mod codec;
pub mod control;
pub mod error;
pub mod header;
pub mod produced;
pub mod producer_state;
pub mod retain;
mod varint;
pub mod walk;

#[cfg(test)]
mod corpus_tests;
#[cfg(test)]
mod oracle_tests;

pub use batch::{Batch, Payload, Record, RecordHeader, Records};
pub use batches::{BatchHeaders, Batches};
pub use builder::BatchBuilder;
pub use codec::{Codec, Compression, DecodeLimits};
pub use control::{ControlRecord, EndTransactionMarker, Outcome};
pub use error::{BatchError, BatchErrorKind};
pub use header::{Attributes, BatchHeader, LOG_OVERHEAD, MAGIC, TimestampType};
pub use produced::{Limits, validate_produced};
pub use producer_state::ProducerSnapshotEntry;
pub use retain::Retained;
pub use walk::{HeaderViews, RecordView, RecordViews};
