//! What a controller must store: a Raft log, a snapshot and a few small values, as bytes under keys.
//!
//! The shell implements [`LogStore`] over a disk. Everything in one [`Batch`] becomes durable together or not at
//! all, and batches become durable in the order they were written.

use std::ops::Range;

use bytes::Bytes;

/// Where a value stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// Raft's term, vote and commit index.
    HardState,
    /// The voters.
    ConfState,
    /// The index and term before the first entry.
    Truncated,
    /// The newest snapshot.
    Snapshot,
    /// The log entry of this index.
    Entry(u64),
}

/// One atomic write: first the removal, then the values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Entries to remove: a conflicting tail, or what a snapshot replaced. Some may not be there.
    pub remove: Vec<Range<u64>>,
    /// Values to set.
    pub put: Vec<(Key, Bytes)>,
    /// Whether the batch must be durable when `write` returns.
    pub sync: bool,
}

/// Durable storage of one controller.
pub trait LogStore {
    /// Why a read or write failed.
    type Error: std::error::Error + Send + Sync + 'static;

    /// One value.
    fn get(&self, key: Key) -> Result<Option<Bytes>, Self::Error>;

    /// The entries in a range of indexes, in order: all there are, or as many as reach `bytes_max`, but one at
    /// the least.
    fn entries(&self, range: Range<u64>, bytes_max: u64) -> Result<Vec<(u64, Bytes)>, Self::Error>;

    /// Writes a batch. After an error nothing of it may count: the node stops.
    fn write(&mut self, batch: Batch) -> Result<(), Self::Error>;
}
