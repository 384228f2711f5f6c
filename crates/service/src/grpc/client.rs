//! Channels to other processes.

use std::time::Duration;

use tonic::{
    service::interceptor::InterceptedService,
    transport::{self, Endpoint},
};

use super::{CONNECTION_WINDOW_BYTES, FRAME_BYTES, STREAM_WINDOW_BYTES};
use crate::trace_context::InjectTrace;

/// A connection to one server that connects when first used, again after each loss (resolving the name anew), and
/// carries the trace context of each call. Cheap to clone.
pub type Channel = InterceptedService<transport::Channel, InjectTrace>;

/// How to reach a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelConfig {
    /// How long a connection may take. Default 3 s.
    pub connect_timeout: Duration,
    /// How often a silent connection is probed. Default 10 s.
    pub keepalive_interval: Duration,
    /// How long a probe may stay unanswered before the connection is given up. Default 5 s.
    pub keepalive_timeout: Duration,
}

impl Default for ChannelConfig {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(3),
            keepalive_interval: Duration::from_secs(10),
            keepalive_timeout: Duration::from_secs(5),
        }
    }
}

/// A text that is no server's address.
#[derive(Debug, thiserror::Error)]
#[error("'{address}' is not a gRPC address (expected host:port)")]
pub struct ChannelError {
    /// The text.
    pub address: String,
    /// What is wrong.
    #[source]
    pub cause: transport::Error,
}

/// A channel to `address` (`host:port` or `http://host:port`). Does not connect yet.
///
/// Must be called within a runtime. Errors: [`ChannelError`].
pub fn channel(address: &str, config: &ChannelConfig) -> Result<Channel, ChannelError> {
    let uri = if address.contains("://") { address.to_owned() } else { format!("http://{address}") };
    let endpoint =
        Endpoint::from_shared(uri).map_err(|cause| ChannelError { address: address.to_owned(), cause })?;
    let channel = endpoint
        .connect_timeout(config.connect_timeout)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(config.keepalive_interval)
        .keep_alive_timeout(config.keepalive_timeout)
        // Also between calls, so that a dead server is noticed before the next call waits for it.
        .keep_alive_while_idle(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES)
        .connect_lazy();
    Ok(InterceptedService::new(channel, InjectTrace))
}
