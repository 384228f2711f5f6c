//! One replica of one partition: what may be appended to its log, what readers may see of it, and who is in sync.
//!
//! The core decides and the shell does: [`Replica::check_append`] looks at a batch and changes nothing, the shell
//! appends it to the log, [`Replica::apply`] takes note. Followers and recovery call only `apply`, so a state
//! can't differ between a replica that led and one that followed.
//!
//! This crate never does I/O, never reads a clock, never holds a record: it sees batch headers and markers.
//!
//! Invariants ([`Replica::invariants`] checks those that one replica can show):
//! - `log start ≤ last stable offset ≤ high watermark ≤ log end`, and `flushed end ≤ log end`.
//! - The high watermark of a replica goes back only if its log is cut below it.
//! - For each producer id and epoch each sequence is appended once and in order; the retry of one of the last
//!   five batches is answered with its first offset.
//! - A transaction's records lie at or above the last stable offset until its marker is below the high watermark.
//! - The producer table outlives the records it came from, and is bounded.
//!
//! Start with [`replica`] (the state), then [`append`] (check and apply), [`producers`] (idempotence and
//! fencing), [`leader`] (in-sync replicas and the high watermark).

pub mod append;
pub mod config;
pub mod error;
pub mod leader;
pub mod producers;
pub mod replica;
mod transactions;

#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod script_tests;

pub use append::{
    Acks, AppendContext, Applied, CompletedTransaction, MarkerVerdict, Origin, TransactionVerification,
    TransactionVersion, Verdict,
};
pub use config::{Config, ConfigError, Durability};
pub use error::Error;
pub use leader::{FollowerPosition, FollowerState, IsrChange, LeaderState};
pub use producers::BATCHES_REMEMBERED;
pub use replica::{Isolation, RecoveredLog, Replica, RoleKind, ServedBy};
