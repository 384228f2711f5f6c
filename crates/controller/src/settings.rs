//! The controller's configuration file and command line.

use std::{collections::BTreeMap, net::SocketAddr, num::NonZeroUsize, path::PathBuf, time::Duration};

use anyhow::Context as _;
use clap::Parser;
use semel_controller::Config;
use semel_model::ControllerId;
use semel_service::{config, telemetry};
use serde::Deserialize;

/// A controller of a Semel cluster: keeps the metadata by Raft.
#[derive(Debug, Parser)]
#[command(name = "semel-controller", version)]
pub(crate) struct Flags {
    /// A TOML file. `SEMEL_…` variables win over it, and flags over both.
    #[arg(long)]
    config: Option<PathBuf>,
    /// This controller's id among the voters.
    #[arg(long)]
    node_id: Option<u64>,
    /// Where its log lies.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Where it listens for controllers and brokers.
    #[arg(long, value_name = "HOST:PORT")]
    grpc: Option<String>,
    /// Where it serves metrics and health.
    #[arg(long, value_name = "HOST:PORT")]
    http: Option<String>,
    /// Every controller: 1=host:9191,2=host:9191,…
    #[arg(long, value_name = "ID=HOST:PORT,…", value_delimiter = ',')]
    voters: Vec<String>,
}

/// What the file may say.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct Settings {
    node_id: u64,
    data: PathBuf,
    pub(crate) grpc: String,
    pub(crate) http: String,
    /// Empty: this controller alone.
    voters: BTreeMap<String, String>,
    cluster_id: Option<String>,
    num_partitions: i32,
    default_replication_factor: i32,
    broker_session_timeout_ms: u64,
    disconnect_grace_ms: u64,
    election_timeout_ms: u64,
    heartbeat_interval_ms: u64,
    snapshot_entries: u64,
    keep_entries: u64,
    threads: Option<NonZeroUsize>,
    log: Log,
    otlp_endpoint: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
struct Log {
    json: bool,
    filter: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        let defaults = Config::new(ControllerId(1), PathBuf::new(), BTreeMap::new());
        let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        Self {
            node_id: 1,
            data: PathBuf::from("semel-controller-data"),
            grpc: "127.0.0.1:9191".to_owned(),
            http: "127.0.0.1:9291".to_owned(),
            voters: BTreeMap::new(),
            cluster_id: None,
            num_partitions: defaults.control.num_partitions,
            default_replication_factor: defaults.control.default_replication_factor,
            broker_session_timeout_ms: millis(defaults.control.session_timeout),
            disconnect_grace_ms: millis(defaults.control.disconnect_grace),
            election_timeout_ms: millis(defaults.election_timeout),
            heartbeat_interval_ms: millis(defaults.heartbeat_interval),
            snapshot_entries: defaults.snapshot_entries,
            keep_entries: defaults.keep_entries,
            threads: NonZeroUsize::new(2),
            log: Log::default(),
            otlp_endpoint: None,
        }
    }
}

impl Flags {
    /// The file, the environment, and over them the flags.
    pub(crate) fn load(self) -> anyhow::Result<Settings> {
        let mut settings: Settings = config::load(self.config.as_deref())?;
        settings.node_id = self.node_id.unwrap_or(settings.node_id);
        settings.data = self.data.unwrap_or(settings.data);
        settings.grpc = self.grpc.unwrap_or(settings.grpc);
        settings.http = self.http.unwrap_or(settings.http);
        if !self.voters.is_empty() {
            let voter = |text: &String| {
                let (id, address) = text.split_once('=')?;
                Some((id.to_owned(), address.to_owned()))
            };
            let voters: Option<_> = self.voters.iter().map(voter).collect();
            settings.voters = voters.context("--voters: expected ID=HOST:PORT,…")?;
        }
        Ok(settings)
    }
}

impl Settings {
    pub(crate) fn threads(&self) -> Option<NonZeroUsize> {
        self.threads
    }

    pub(crate) fn telemetry(&self) -> telemetry::TelemetryConfig {
        let mut telemetry = telemetry::TelemetryConfig {
            service_name: "semel-controller".to_owned(),
            otlp_endpoint: self.otlp_endpoint.clone(),
            ..telemetry::TelemetryConfig::default()
        };
        if self.log.json {
            telemetry.log_format = telemetry::LogFormat::Json;
        }
        if let Some(filter) = &self.log.filter {
            telemetry.log_filter.clone_from(filter);
        }
        telemetry
    }

    /// The controller's own configuration; `bound` is where its gRPC port came to be.
    pub(crate) fn controller(&self, bound: SocketAddr) -> anyhow::Result<Config> {
        let node_id = ControllerId(self.node_id);
        let mut voters = BTreeMap::new();
        for (id, address) in &self.voters {
            let id = id.parse().map(ControllerId).with_context(|| format!("voter id '{id}' is no number"))?;
            voters.insert(id, address.clone());
        }
        if voters.is_empty() {
            voters.insert(node_id, bound.to_string());
        }
        let mut config = Config::new(node_id, self.data.clone(), voters);
        config.cluster_id.clone_from(&self.cluster_id);
        config.control.num_partitions = self.num_partitions;
        config.control.default_replication_factor = self.default_replication_factor;
        config.control.session_timeout = Duration::from_millis(self.broker_session_timeout_ms);
        config.control.disconnect_grace = Duration::from_millis(self.disconnect_grace_ms);
        config.election_timeout = Duration::from_millis(self.election_timeout_ms);
        config.heartbeat_interval = Duration::from_millis(self.heartbeat_interval_ms);
        config.snapshot_entries = self.snapshot_entries;
        config.keep_entries = self.keep_entries;
        config.validate()?;
        Ok(config)
    }
}
