//! The Kafka front door: each request of the wire protocol as an operation on this node.

pub(crate) mod backend;
mod configs;
pub(crate) mod fetch;
mod log_dirs;
pub(crate) mod metadata;
mod offsets;
mod produce;
mod producers;
mod topics;
