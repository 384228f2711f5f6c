//! The log on disk: segments, indexes, recovery, retention and compaction, over any [`Disk`](semel_env::Disk).
//!
//! A partition's log is a directory of files in Kafka's own formats, byte for byte, so that Kafka's tools read it. This
//! crate appends batches to them, finds them again, and brings them through crashes. It knows nothing of leaders,
//! producers' rules or clients: what may be appended is the `partition` core's to decide, when to sync is the shell's.
//!
//! It must never read a clock or a random number (time and seeds are arguments), start a thread, retry, or serve a byte
//! that it has reason to doubt.
//!
//! ```text
//! <log dir>/.lock  meta.properties  .kafka_cleanshutdown  *-offset-checkpoint        LogDir
//! <log dir>/<topic>-<partition>/                                                     PartitionLog
//!     <base offset>.log        record batches                                        scan, append, read
//!     <base offset>.index      offset → position, sparse                             index
//!     <base offset>.timeindex  timestamp → offset, sparse                            index
//!     <base offset>.txnindex   aborted transactions                                  txn_index
//!     <offset>.snapshot        the producers' table at that log end                  snapshot
//!     leader-epoch-checkpoint  which leadership wrote from where                     epochs
//!     partition.metadata       the topic's id                                        log_dir
//!     semel-corrupt-ranges     offsets that are damaged; only if there are any       partition
//!     semel-truncated          how far below old recovery points it was cut on purpose   truncate
//!     semel-compaction-swap    only while compaction swaps segments                  cleaner
//! ```
//!
//! Invariants:
//! - A batch is in the log as a whole or not at all, whatever fails; offsets only grow.
//! - What [`FlushTicket::sync`] covered is there after a power cut. What a start serves is there after the next one.
//! - Below the recovery point nothing is ever cut: damage there is reported, kept, and answered with
//!   [`ReadError::Corrupt`] up to the next whole batch that can be found; offsets go on behind it. From the recovery point on the log ends at the first batch that is
//!   not whole and valid.
//! - Indexes say only what the batches say, are checked before they are used, and are built again if they differ.
//! - A segment that was compacted still ends where the next one begins: each keeps its last batch, emptied if need be.
//! - Whoever holds a [`Slice`] can read it, whatever happens to the log.
//!
//! Start with [`PartitionLog`]: [`open`](PartitionLog::open), [`append`](PartitionLog::append),
//! [`read`](PartitionLog::read), [`flush_ticket`](PartitionLog::flush_ticket). Then [`LogDir`], and
//! [`plan_cleaning`](PartitionLog::plan_cleaning) for compaction.

mod aborted;
mod append;
mod checkpoint;
mod cleaner;
mod config;
mod epochs;
mod error;
mod flush;
mod index;
mod log_dir;
mod lookup;
mod names;
mod partition;
mod producers;
mod read;
mod recover;
mod retention;
mod scan;
mod scrub;
mod snapshot;
mod truncate;
mod txn_index;
mod warm;

pub use append::Appended;
pub use checkpoint::Offsets;
pub use cleaner::{CleanError, CleanPlan, CleanRequest, CleanStats, Cleaned};
pub use config::{CleanupPolicy, Config, ConfigError};
pub use epochs::{EpochEnd, EpochEntry};
pub use error::{AppendError, Reach, ReadError, StorageError};
pub use flush::FlushTicket;
pub use log_dir::{DirectoryId, Identity, LogDir, LogDirError, MetaProperties, Opened, PartitionDir, pick};
pub use lookup::TimestampOffset;
pub use names::PartitionName;
pub use partition::{PartitionLog, ProducersNow};
pub use producers::ProducersAt;
pub use read::Slice;
pub use recover::{Known, Recovery};
pub use retention::{Deleted, Expired, RetentionError};
pub use scrub::Scrub;
pub use truncate::TruncateError;
pub use txn_index::AbortedTransaction;

#[cfg(test)]
mod tests;
