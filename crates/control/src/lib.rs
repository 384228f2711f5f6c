//! The controller's decisions: who is in the cluster, who leads what, and which change comes next.
//!
//! A small set of voters keeps one metadata log by Raft; the leader decides on requests and every voter applies
//! what was committed. This crate must never open a file or socket, wait, or read a clock: time, entropy,
//! messages and storage are its shell's (`semel-controller`).
//!
//! Invariants:
//! - Nothing is answered before it is committed, and what was answered is never lost while a majority's disks are.
//! - Voters apply the same entries in the same order: images at one index are equal.
//! - A partition's leader and ISR change by one record, which raises its partition epoch; a new leader raises its
//!   leader epoch; the ISR is never empty.
//! - A broker's epoch is the index of its registration, so a later life has a greater one.
//! - Only the leader of the current term, after it has applied every earlier entry, decides; an answer that changes
//!   nothing leaves once a majority has confirmed that it still leads.
//!
//! Deliberately absent for now: partitions with more than one replica. Placement, elections and ISR changes handle
//! them, but brokers do not replicate yet, so [`Config::replication_factor_max`] is 1.
//!
//! Start with [`machine`] (the state and the one `match`), then a file of [`ops`]; [`node`] joins the state
//! machine to Raft; [`log_store`] is what a shell must store.

mod admission;
mod config;
mod election;
mod error;
pub mod log_store;
mod lost_log;
pub mod machine;
pub mod node;
pub mod ops;
mod placement;
mod raft_log;
mod random;
mod reads;
mod sessions;

pub use config::{Config, ConfigError};
pub use error::Error;
pub use machine::{Control, Reply, Request};
pub use node::{Codec, Node, NodeConfig, NodeError, Output};
pub use sessions::Sessions;
