//! A broker's configuration: what it needs to run, and the file it comes from.

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf};

use semel_kafka_gateway::ListenerConfig;
use semel_metadata::config::{StaticConfigs, broker_def};
use semel_model::BrokerId;
use semel_service::telemetry::TelemetryConfig;
use serde::Deserialize;

/// Everything a broker needs to run. [`Config::validate`] names what is missing or wrong.
#[derive(Clone, Debug)]
pub struct Config {
    /// `node.id`, 0 or greater; unique among the brokers.
    pub id: BrokerId,
    /// `log.dirs`, at least one, each on a disk of its own if there are several.
    pub log_dirs: Vec<PathBuf>,
    /// Where Kafka clients connect, and what they are told.
    pub kafka: ListenerConfig,
    /// What other nodes and gRPC clients are told, `host:port`; `None` is the bound address, or `localhost` if that is
    /// all addresses.
    pub grpc_advertised: Option<String>,
    /// The controllers' gRPC addresses, `host:port`; at least one, any of them finds the leader.
    pub controllers: Vec<String>,
    /// `broker.rack`.
    pub rack: Option<String>,
    /// Kafka's broker settings, by Kafka's names: the defaults of topics, limits of connections.
    pub settings: StaticConfigs,
}

/// A configuration that can't work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Broker ids start at 0.
    #[error("node-id must be 0 or greater, not {0}")]
    NegativeId(BrokerId),
    /// There is nowhere to write.
    #[error("log-dirs is empty: name at least one directory")]
    NoLogDirs,
    /// Two log directories are one.
    #[error("log-dirs names {} twice", .0.display())]
    SameLogDir(PathBuf),
    /// There is nobody to register with.
    #[error("controllers is empty: name at least one controller's gRPC address (host:port)")]
    NoControllers,
    /// Others would be told an address that is no place.
    #[error("{setting} {address:?} is every address of a host and none that others can connect to: name one")]
    Unspecified {
        /// Its name in the file.
        setting: &'static str,
        /// As configured.
        address: String,
    },
    /// A setting Kafka doesn't have, or Semel doesn't.
    #[error("settings: there is no broker setting {0:?}")]
    UnknownSetting(String),
    /// A setting's value is out of its range.
    #[error("settings: {0}")]
    InvalidSetting(String),
}

impl Config {
    /// Checks what can be checked without touching the system.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.id.get() < 0 {
            return Err(ConfigError::NegativeId(self.id));
        }
        if self.log_dirs.is_empty() {
            return Err(ConfigError::NoLogDirs);
        }
        for (at, directory) in self.log_dirs.iter().enumerate() {
            if self.log_dirs[..at].contains(directory) {
                return Err(ConfigError::SameLogDir(directory.clone()));
            }
        }
        if self.controllers.is_empty() {
            return Err(ConfigError::NoControllers);
        }
        let advertised =
            [("kafka.advertised", &self.kafka.advertised), ("grpc.advertised", &self.grpc_advertised)];
        for (setting, address) in advertised {
            let Some(address) = address else { continue };
            let host = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host);
            let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
            if ip.is_ok_and(|ip| ip.is_unspecified()) {
                return Err(ConfigError::Unspecified { setting, address: address.clone() });
            }
        }
        for (name, value) in &self.settings {
            let def = broker_def(name).ok_or_else(|| ConfigError::UnknownSetting(name.clone()))?;
            def.validate(value).map_err(|error| ConfigError::InvalidSetting(error.to_string()))?;
        }
        Ok(())
    }
}

/// The broker's TOML file.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct File {
    /// See [`Config::id`].
    pub node_id: i32,
    /// See [`Config::log_dirs`].
    pub log_dirs: Vec<PathBuf>,
    /// See [`Config::controllers`].
    pub controllers: Vec<String>,
    /// See [`Config::rack`].
    pub rack: Option<String>,
    /// Kafka clients' address; default 0.0.0.0:9092.
    #[serde(default = "Listener::kafka")]
    pub kafka: Listener,
    /// gRPC's address; default 0.0.0.0:9190.
    #[serde(default = "Listener::grpc")]
    pub grpc: Listener,
    /// The address of metrics and health; default 0.0.0.0:9290.
    #[serde(default = "Listener::http")]
    pub http: Listener,
    /// See [`Config::settings`].
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
    /// Logs and traces.
    #[serde(default)]
    pub telemetry: TelemetryConfig,
}

/// One address.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Listener {
    /// `host:port`; port 0 takes a free one.
    pub listen: String,
    /// What others are told; default what was bound, or `localhost` if that is all addresses.
    pub advertised: Option<String>,
}

impl Listener {
    fn at(listen: &str) -> Self {
        Self { listen: listen.to_owned(), advertised: None }
    }

    fn kafka() -> Self {
        Self::at("0.0.0.0:9092")
    }

    fn grpc() -> Self {
        Self::at("0.0.0.0:9190")
    }

    fn http() -> Self {
        Self::at("0.0.0.0:9290")
    }
}

impl File {
    /// The broker's part of the file.
    #[must_use]
    pub fn broker(&self) -> Config {
        Config {
            id: BrokerId(self.node_id),
            log_dirs: self.log_dirs.clone(),
            kafka: ListenerConfig {
                name: "PLAINTEXT".to_owned(),
                bind: self.kafka.listen.clone(),
                advertised: self.kafka.advertised.clone(),
            },
            grpc_advertised: self.grpc.advertised.clone(),
            controllers: self.controllers.clone(),
            rack: self.rack.clone(),
            settings: self.settings.clone(),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn config() -> Config {
        Config {
            id: BrokerId(1),
            log_dirs: vec!["a".into()],
            kafka: ListenerConfig { name: "PLAINTEXT".into(), bind: "127.0.0.1:0".into(), advertised: None },
            grpc_advertised: None,
            controllers: vec!["127.0.0.1:9191".into()],
            rack: None,
            settings: BTreeMap::new(),
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!(config().validate(), Ok(()));
        let named = |change: fn(&mut Config)| {
            let mut config = config();
            change(&mut config);
            config.validate().unwrap_err().to_string()
        };
        assert_eq!(named(|c| c.id = BrokerId(-1)), "node-id must be 0 or greater, not -1");
        assert_eq!(named(|c| c.log_dirs.push("a".into())), "log-dirs names a twice");
        assert!(named(|c| c.controllers.clear()).contains("at least one controller"));
        assert!(named(|c| c.grpc_advertised = Some("0.0.0.0:9190".into())).contains("grpc.advertised"));
        assert!(named(|c| c.kafka.advertised = Some("[::]:9092".into())).contains("kafka.advertised"));
        assert!(named(|c| drop(c.settings.insert("no.such".into(), "1".into()))).contains("no.such"));
        assert!(
            named(|c| drop(c.settings.insert("num.partitions".into(), "0".into())))
                .contains("num.partitions")
        );
    }

    #[test]
    fn the_example_in_deploy_is_valid() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/broker.toml");
        let file: File = semel_service::config::load_with(Some(&path), "NONE_", []).unwrap();
        assert_eq!(file.broker().validate(), Ok(()));
        assert_eq!(file.node_id, 1);
    }
}
