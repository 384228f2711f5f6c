//! The controller's configuration file and command line.

use std::{collections::BTreeMap, net::SocketAddr, num::NonZeroUsize, path::PathBuf, time::Duration};

use anyhow::{Context as _, bail};
use clap::Parser;
use semel_controller::Config;
use semel_model::ControllerId;
use semel_service::{config, telemetry::TelemetryConfig};
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
    /// Where controllers and brokers connect; default 0.0.0.0:9191.
    grpc: GrpcListener,
    /// The address of metrics and health; default 0.0.0.0:9291.
    http: HttpListener,
    /// Every controller's gRPC address by id. Empty: this controller alone.
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
    /// Logs and traces.
    telemetry: TelemetryConfig,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct GrpcListener {
    /// `host:port`; port 0 takes a free one.
    #[serde(default = "GrpcListener::default_listen")]
    listen: String,
    /// What others are told. Default this controller's address in `voters`; without voters what was bound, or
    /// `localhost` if that is all addresses.
    advertised: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct HttpListener {
    /// `host:port`; port 0 takes a free one.
    listen: String,
}

impl GrpcListener {
    fn default_listen() -> String {
        "0.0.0.0:9191".to_owned()
    }
}

impl Default for Settings {
    fn default() -> Self {
        let defaults = Config::new(ControllerId(1), PathBuf::new(), BTreeMap::new());
        let millis = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        Self {
            node_id: 1,
            data: PathBuf::from("semel-controller-data"),
            grpc: GrpcListener { listen: GrpcListener::default_listen(), advertised: None },
            http: HttpListener { listen: "0.0.0.0:9291".to_owned() },
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
            telemetry: TelemetryConfig::default(),
        }
    }
}

impl Flags {
    /// The file, the environment, and over them the flags.
    pub(crate) fn load(self) -> anyhow::Result<Settings> {
        let mut settings: Settings = config::load(self.config.as_deref())?;
        settings.node_id = self.node_id.unwrap_or(settings.node_id);
        settings.data = self.data.unwrap_or(settings.data);
        settings.grpc.listen = self.grpc.unwrap_or(settings.grpc.listen);
        settings.http.listen = self.http.unwrap_or(settings.http.listen);
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

    pub(crate) fn telemetry(&self) -> TelemetryConfig {
        TelemetryConfig { service_name: "semel-controller".to_owned(), ..self.telemetry.clone() }
    }

    pub(crate) fn grpc_listen(&self) -> &str {
        &self.grpc.listen
    }

    pub(crate) fn http_listen(&self) -> &str {
        &self.http.listen
    }

    /// The controller's own configuration; `bound` is where its gRPC port came to be.
    pub(crate) fn controller(&self, bound: SocketAddr) -> anyhow::Result<Config> {
        let node_id = ControllerId(self.node_id);
        let mut voters = BTreeMap::new();
        for (id, address) in &self.voters {
            let id = id.parse().map(ControllerId).with_context(|| format!("voter id '{id}' is no number"))?;
            voters.insert(id, address.clone());
        }
        let advertised = self.grpc.advertised.as_ref();
        match (voters.get(&node_id), advertised) {
            (Some(voter), Some(told)) if voter != told => {
                bail!("grpc.advertised is {told}, but voters has {voter} for controller {node_id}")
            }
            (None, _) if voters.is_empty() => {
                let address = advertised.cloned().unwrap_or_else(|| reachable(bound));
                voters.insert(node_id, address);
            }
            // A node that is not among its voters is refused below.
            _ => {}
        }
        if let Some(address) = voters.get(&node_id).filter(|address| is_unspecified(address)) {
            bail!(
                "controller {node_id} is told to others as {address}, where nobody can connect: name its host"
            );
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

/// Where others on this host find a server that has no better address.
fn reachable(bound: SocketAddr) -> String {
    if bound.ip().is_unspecified() { format!("localhost:{}", bound.port()) } else { bound.to_string() }
}

fn is_unspecified(address: &str) -> bool {
    address.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_unspecified())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use semel_service::telemetry::LogFormat;

    use super::*;

    const BOUND: &str = "0.0.0.0:4711";

    fn load(text: &str, flags: &[&str]) -> anyhow::Result<Settings> {
        let mut file = tempfile::NamedTempFile::new()?;
        file.write_all(text.as_bytes())?;
        let path = file.path().to_str().context("a UTF-8 path")?;
        let arguments = ["semel-controller", "--config", path];
        Flags::try_parse_from(arguments.iter().chain(flags))?.load()
    }

    fn voters(text: &str, flags: &[&str]) -> Result<Vec<(u64, String)>, String> {
        let config = load(text, flags).and_then(|settings| settings.controller(BOUND.parse()?));
        let config = config.map_err(|error| format!("{error:#}"))?;
        Ok(config.voters.into_iter().map(|(id, address)| (id.0, address)).collect())
    }

    #[test]
    fn the_example_in_deploy_is_valid() {
        let text = include_str!("../../../deploy/controller.toml");
        assert_eq!(voters(text, &[]).unwrap().len(), 3);
    }

    #[test]
    fn an_empty_file_is_a_controller_of_its_own() {
        let settings = load("", &[]).unwrap();
        assert_eq!((settings.grpc_listen(), settings.http_listen()), ("0.0.0.0:9191", "0.0.0.0:9291"));
        let telemetry = TelemetryConfig { service_name: "semel-controller".into(), ..Default::default() };
        assert_eq!(settings.telemetry(), telemetry);
        assert_eq!(voters("", &[]).unwrap(), [(1, "localhost:4711".to_owned())]);
    }

    #[test]
    fn the_file_has_the_form_of_the_brokers_and_flags_win() {
        let text = r#"
            node-id = 2
            [grpc]
            listen = "10.0.0.2:1"
            advertised = "c2:1"
            [http]
            listen = "10.0.0.2:2"
            [voters]
            1 = "c1:1"
            2 = "c2:1"
            [telemetry]
            log-format = "json"
            log-filter = "warn"
            otlp-endpoint = "http://collector:4317"
        "#;
        let settings = load(text, &["--http", "10.0.0.2:3"]).unwrap();
        assert_eq!((settings.grpc_listen(), settings.http_listen()), ("10.0.0.2:1", "10.0.0.2:3"));
        let telemetry = settings.telemetry();
        assert_eq!((telemetry.log_format, telemetry.log_filter.as_str()), (LogFormat::Json, "warn"));
        assert_eq!(telemetry.otlp_endpoint.as_deref(), Some("http://collector:4317"));
        assert_eq!(telemetry.service_name, "semel-controller");
        let both = vec![(1, "c1:1".to_owned()), (2, "c2:1".to_owned())];
        assert_eq!(voters(text, &[]).unwrap(), both);
        assert_eq!(
            voters(text, &["--voters", "2=elsewhere:1"]).unwrap_err(),
            "grpc.advertised is c2:1, but voters has elsewhere:1 for controller 2"
        );
    }

    #[test]
    fn others_are_told_where_it_can_be_reached() {
        let alone = "[grpc]\nadvertised = \"c1.example:9191\"";
        assert_eq!(voters(alone, &[]).unwrap(), [(1, "c1.example:9191".to_owned())]);
        assert_eq!(load(alone, &[]).unwrap().grpc_listen(), "0.0.0.0:9191");
        assert!(voters("", &["--voters", "1=0.0.0.0:9191"]).unwrap_err().contains("nobody can connect"));
        assert!(voters("", &["--voters", "2=c2:1"]).unwrap_err().contains("node.id 1 is not among"));
        let replicated = voters("default-replication-factor = 3", &[]).unwrap_err();
        assert!(replicated.contains("brokers do not replicate partitions yet"), "{replicated}");
        for unknown in ["otlp-endpoint = \"x\"", "[log]\njson = true", "[http]\nport = 1"] {
            assert!(load(unknown, &[]).is_err(), "{unknown}");
        }
    }
}
