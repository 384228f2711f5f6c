//! Settings of the Kafka listeners, with Kafka's names.

use std::{net::SocketAddr, time::Duration};

/// How the gateway treats connections. One for all listeners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The largest frame, in bytes without its length field (`socket.request.max.bytes`). Default 100 MiB.
    pub frame_bytes_max: usize,
    /// The most connections of all listeners; further ones wait to be accepted (`max.connections`). Default 10,000.
    pub connections_max: usize,
    /// The most connections of one address; further ones are closed (`max.connections.per.ip`). Default no limit.
    pub connections_per_ip_max: usize,
    /// How long a connection may do nothing, half-sent frames and unread answers included
    /// (`connections.max.idle.ms`). Default 10 min.
    pub idle_max: Duration,
    /// The most requests of a connection that are not yet answered and sent. Default 64.
    pub requests_per_connection_max: usize,
    /// The most bytes of frames in flight on a connection; one frame may always be. Default 128 MiB.
    pub request_bytes_per_connection_max: usize,
    /// The most bytes of frames in flight on all connections; at it, connections are not read until others finish
    /// (`queued.max.request.bytes`). Default 512 MiB.
    pub request_bytes_max: usize,
    /// The most bytes of answers in memory, file ranges not counted, before a connection is not read. Default 8 MiB.
    pub answer_bytes_per_connection_max: usize,
    /// How long requests in flight may take after the stop. Default 5 s.
    pub stop_grace: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            frame_bytes_max: 100 << 20,
            connections_max: 10_000,
            connections_per_ip_max: usize::MAX,
            idle_max: Duration::from_secs(600),
            requests_per_connection_max: 64,
            request_bytes_per_connection_max: 128 << 20,
            request_bytes_max: 512 << 20,
            answer_bytes_per_connection_max: 8 << 20,
            stop_grace: Duration::from_secs(5),
        }
    }
}

/// A setting that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A bound of zero would let nothing through.
    #[error("{name} must be at least 1")]
    Zero {
        /// The setting.
        name: &'static str,
    },
    /// A frame that may be received could never be admitted.
    #[error(
        "socket.request.max.bytes ({frame_bytes_max}) must not exceed queued.max.request.bytes ({request_bytes_max})"
    )]
    FrameOverTotal {
        /// The one.
        frame_bytes_max: usize,
        /// The other.
        request_bytes_max: usize,
    },
    /// The protocol's lengths are `int32`.
    #[error("socket.request.max.bytes must be at most 2147483647")]
    FrameTooLarge,
    /// Two listeners have one name.
    #[error("two listeners are named {name}")]
    SameName {
        /// The name.
        name: String,
    },
}

impl Config {
    /// Checks the settings against each other. Errors: [`ConfigError`].
    pub fn validate(&self) -> Result<(), ConfigError> {
        for (name, value) in [
            ("socket.request.max.bytes", self.frame_bytes_max),
            ("max.connections", self.connections_max),
            ("max.connections.per.ip", self.connections_per_ip_max),
            ("requests-per-connection-max", self.requests_per_connection_max),
            ("request-bytes-per-connection-max", self.request_bytes_per_connection_max),
            ("answer-bytes-per-connection-max", self.answer_bytes_per_connection_max),
        ] {
            if value == 0 {
                return Err(ConfigError::Zero { name });
            }
        }
        if self.idle_max.is_zero() {
            return Err(ConfigError::Zero { name: "connections.max.idle.ms" });
        }
        if i32::try_from(self.frame_bytes_max).is_err() {
            return Err(ConfigError::FrameTooLarge);
        }
        if self.frame_bytes_max > self.request_bytes_max {
            return Err(ConfigError::FrameOverTotal {
                frame_bytes_max: self.frame_bytes_max,
                request_bytes_max: self.request_bytes_max,
            });
        }
        Ok(())
    }
}

/// One address that clients connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerConfig {
    /// Its name, such as `PLAINTEXT`: clients are sent to the address of the listener they came through.
    pub name: String,
    /// Where it listens, as `host:port`; port 0 takes a free one.
    pub bind: String,
    /// What clients are told, as `host:port`; `None` is the bound address.
    pub advertised: Option<String>,
}

impl ListenerConfig {
    /// Host and port to tell clients, given where the listener was bound. A listener on all addresses (`0.0.0.0`)
    /// without an advertised one tells `localhost`, the only name that is right somewhere.
    ///
    /// `None` if `advertised` isn't `host:port`.
    #[must_use]
    pub fn advertised(&self, bound: SocketAddr) -> Option<(String, u16)> {
        let Some(text) = &self.advertised else {
            let host =
                if bound.ip().is_unspecified() { "localhost".to_owned() } else { bound.ip().to_string() };
            return Some((host, bound.port()));
        };
        let (host, port) = text.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port: u16 = port.parse().ok()?;
        // Port 0 in both places: tests and development, where the system chooses.
        let port = if port == 0 { bound.port() } else { port };
        (!host.is_empty()).then(|| (host.to_owned(), port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid_and_contradictions_are_named() {
        assert_eq!(Config::default().validate(), Ok(()));
        let config = Config { request_bytes_max: 1000, ..Config::default() };
        let text = config.validate().unwrap_err().to_string();
        assert!(
            text.contains("socket.request.max.bytes") && text.contains("queued.max.request.bytes"),
            "{text}"
        );
        let config = Config { connections_max: 0, ..Config::default() };
        assert_eq!(config.validate(), Err(ConfigError::Zero { name: "max.connections" }));
    }

    #[test]
    fn the_advertised_address_is_the_configured_or_the_bound_one() {
        let bound: SocketAddr = "127.0.0.1:9092".parse().unwrap();
        let mut listener =
            ListenerConfig { name: "PLAINTEXT".to_owned(), bind: "127.0.0.1:0".to_owned(), advertised: None };
        assert_eq!(listener.advertised(bound), Some(("127.0.0.1".to_owned(), 9092)));
        assert_eq!(listener.advertised("0.0.0.0:1".parse().unwrap()), Some(("localhost".to_owned(), 1)));
        for (text, expected) in [
            ("broker-0.semel:19092", Some(("broker-0.semel".to_owned(), 19092))),
            ("[::1]:0", Some(("::1".to_owned(), 9092))),
            ("broker", None),
            (":9092", None),
            ("broker:many", None),
        ] {
            listener.advertised = Some(text.to_owned());
            assert_eq!(listener.advertised(bound), expected, "{text}");
        }
    }
}
