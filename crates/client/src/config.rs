//! What a client may be told.

use std::time::Duration;

/// How a [`Cluster`](crate::Cluster) connects, waits and retries.
#[derive(Clone, Debug)]
pub struct Config {
    /// For one TCP connection. Default 3 s.
    pub connect_timeout: Duration,
    /// For one attempt of a unary call. Default 30 s (`request.timeout.ms`).
    pub request_timeout: Duration,
    /// For an operation with all its attempts. Default 60 s (`default.api.timeout.ms`).
    pub operation_timeout: Duration,
    /// Attempts of one operation, at least 1. Default 10.
    pub attempts: u32,
    /// The wait before the second attempt; doubles from there, with 20 % jitter. Default 50 ms
    /// (`retry.backoff.ms`).
    pub backoff_first: Duration,
    /// The longest wait between two attempts. Default 1 s (`retry.backoff.max.ms`).
    pub backoff_max: Duration,
    /// The largest message accepted from a broker. Default 64 MiB: a batch is never split, so this bounds the
    /// largest readable batch.
    pub message_bytes_max: usize,
    /// Sent as the HTTP user agent. Default `semel-client/<version>`.
    pub user_agent: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(3),
            request_timeout: Duration::from_secs(30),
            operation_timeout: Duration::from_secs(60),
            attempts: 10,
            backoff_first: Duration::from_millis(50),
            backoff_max: Duration::from_secs(1),
            message_bytes_max: 64 << 20,
            user_agent: concat!("semel-client/", env!("CARGO_PKG_VERSION")).to_owned(),
        }
    }
}
