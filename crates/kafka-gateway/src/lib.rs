//! The Kafka listener: sockets, frames, the order of answers, and back-pressure; generic over a [`Backend`].
//!
//! It turns bytes into requests, hands each to the backend in the order in which it came, and sends the answers back
//! in that order, while later requests are already being worked on. Record batches of a fetch leave their file by
//! `sendfile`. It answers `ApiVersions` itself, and keeps fetch sessions ([`fetch_session`], KIP-227).
//!
//! It must never decide anything about topics, offsets, epochs or producers, nor look into record batches.
//!
//! Invariants:
//! - `call` sees the requests of a connection in their order, and answers leave in it;
//! - whatever one client sends or doesn't, others go on: a bad frame closes its own connection, with one log line;
//! - memory grows only with bytes that were received; requests in flight are bounded per connection and in total,
//!   and at the bound the client isn't read from until answers have left;
//! - a connection is one task; a request wakes no other task unless the backend does.
//!
//! Start with [`Backend`], then [`Gateway::serve`] and the loop in `connection.rs`.

mod api_versions;
mod backend;
mod config;
mod connection;
pub mod fetch_session;
mod gateway;
mod inbound;
mod metrics;
mod outbound;
mod pool;
mod responses;

pub use backend::{
    Answer, ApiRange, Backend, ClientSoftware, ConnectionInfo, FeatureLevel, FeatureRange, FileRange, Later,
    NodeInfo, Reply, RequestContext,
};
pub use config::{Config, ConfigError, ListenerConfig};
pub use gateway::{Gateway, Listening, bind};
