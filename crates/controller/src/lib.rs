//! A controller process: joins the decisions of `semel-control` to a disk, to the other controllers and to the
//! brokers.
//!
//! One thread owns the node and runs a loop over a closed set of [`events`](event_loop::Event); gRPC tasks put
//! events into its inbox and wait for the answers. This crate must never decide anything about the cluster: an
//! `if` about epochs, leaders or replicas belongs into `semel-control`.
//!
//! Invariants:
//! - Nothing is answered before the log has it on a majority's disks.
//! - What must be durable is durable before it is told to another controller: one write and one flush for all that
//!   one turn of the loop brought.
//! - Everything that waits is bounded: the inbox, each peer's and each watcher's queue, watchers and streams.
//! - A disk that fails stops this controller with a named error; it never goes on with what it may have lost.
//!
//! Start with [`Controller`], then [`event_loop`].

mod config;
mod controller;
mod convert;
mod event_loop;
mod inbox;
mod metrics;
mod peers;
mod rpc;
mod store;
mod watchers;

pub use config::{Config, ConfigError};
pub use controller::{Controller, Environment, StartError, Stopped};
pub use rpc::{ControllerRpc, RaftRpc};
pub use store::StoreError;

/// In bytes: the largest message between controllers and to watching nodes. A snapshot or image is one message.
pub const MESSAGE_BYTES_MAX: usize = 256 << 20;

/// The trailer in which a controller that does not lead names the one that does, as `host:port`.
pub const LEADER_TRAILER: &str = "semel-controller-leader";
