//! The cluster as every node sees it: which brokers, topics and partitions there are, who leads what, and how
//! each is configured.
//!
//! Controllers decide; their decisions are [`Record`]s in one Raft log. Every node applies the same [`Delta`]s
//! in the same order to a [`ClusterImage`], so two nodes at one index hold equal images. This crate must never
//! decide anything about the cluster, read a clock, or know how records are stored or sent.
//!
//! Invariants:
//! - [`ClusterImage::apply`] is total and deterministic: any sequence of records gives some image, the same one
//!   everywhere.
//! - [`ClusterImage::records`] rebuilds an equal image on an empty one.
//! - [`Session::receive`] moves only forward: one index at a time by delta, further only by an image, and never
//!   under an older controller epoch.
//!
//! Start with [`record`], then [`image`]; a node follows the controllers with [`session`]; [`config`] is the
//! table of Kafka's topic and broker configurations.

pub mod change;
pub mod config;
pub mod image;
pub mod record;
pub mod session;

pub use change::{Change, changes_between};
pub use image::{Broker, ClusterImage, Configs, Partition, Topic};
pub use record::{ConfigResource, Delta, DirectoryId, IncarnationId, PartitionState, Record, RegisterBroker};
pub use session::{Message, Session, SessionError};
