//! `semel dev`: a controller and a broker in one process, on one data folder. They talk to each other over gRPC on
//! loopback, as they do on separate hosts: there is no second code path.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, time::Duration};

use anyhow::Context as _;
use clap::Args;
use semel_broker::{Broker, FrontDoor, ListenerConfig, StartError, Surroundings};
use semel_controller::{Controller, Environment, Stopped};
use semel_model::{BrokerId, ControllerId};
use semel_service::{grpc, health::Health, http, metrics::Registry, net, runtime, shutdown, telemetry};
use tokio_util::sync::CancellationToken;

/// The broker and the controller of a development node.
const BROKER: BrokerId = BrokerId(0);
const CONTROLLER: ControllerId = ControllerId(1);
/// How long the servers may take to end.
const SERVER_GRACE: Duration = Duration::from_secs(10);

/// Options of `semel dev`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Arguments {
    /// Where everything is kept
    #[arg(long, value_name = "DIR", default_value = "semel-data")]
    data: PathBuf,
    /// Where Kafka clients are served; port 0 takes a free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9092")]
    kafka: String,
    /// Where gRPC clients are served
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9190")]
    grpc: String,
    /// Where metrics and health are served
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9290")]
    http: String,
    /// Sets one of Kafka's broker settings, such as num.partitions=4; may be repeated
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = setting)]
    settings: Vec<(String, String)>,
    /// Which log lines are written, in the syntax of RUST_LOG
    #[arg(long, value_name = "FILTER", default_value = "info")]
    log: String,
    /// The gRPC address of an OpenTelemetry collector, to export traces to
    #[arg(long, value_name = "URL")]
    otlp: Option<String>,
}

fn setting(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("expected NAME=VALUE, found {text:?}")),
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let runtime = runtime::build(None, "semel").context("cannot start the runtime")?;
    let telemetry = {
        let _entered = runtime.enter();
        telemetry::init(&telemetry::TelemetryConfig {
            log_filter: arguments.log.clone(),
            otlp_endpoint: arguments.otlp.clone(),
            ..Default::default()
        })?
    };
    let served = runtime.block_on(serve(arguments));
    telemetry.shutdown();
    served
}

async fn serve(arguments: &Arguments) -> anyhow::Result<()> {
    let stop = shutdown::on_signal().context("cannot watch for signals")?;
    let (registry, health) = (Registry::new(), Health::new());
    std::fs::create_dir_all(&arguments.data)
        .with_context(|| format!("cannot make the data folder {}", arguments.data.display()))?;
    let http = net::bind(&arguments.http)
        .await
        .with_context(|| format!("cannot listen for HTTP on {}", arguments.http))?;
    let grpc = net::bind(&arguments.grpc)
        .await
        .with_context(|| format!("cannot listen for gRPC on {}", arguments.grpc))?;
    let (http_address, grpc_address) = (http.local_addr()?, grpc.local_addr()?);
    let stop_servers = CancellationToken::new();
    let http =
        tokio::spawn(http::serve(http, http::router(registry.clone(), health.clone()), stop_servers.clone()));

    let settings: BTreeMap<String, String> = arguments.settings.iter().cloned().collect();
    let controller = Controller::start(
        controller_config(arguments, &settings, grpc_address)?,
        Environment::real(registry.clone(), health.clone()),
    )?;
    let door = FrontDoor::new();
    let server = grpc::Server::new(grpc::ServerConfig::default(), &registry, &health);
    let server = door.add_to(controller.serve_on(server));
    let grpc = tokio::spawn(server.serve(grpc, stop_servers.clone()));

    let started = Broker::start(
        semel_broker::Config {
            id: BROKER,
            log_dirs: vec![arguments.data.join("log")],
            kafka: ListenerConfig {
                name: "PLAINTEXT".to_owned(),
                bind: arguments.kafka.clone(),
                advertised: None,
            },
            grpc_advertised: None,
            controllers: vec![grpc_address.to_string()],
            rack: None,
            settings,
        },
        Surroundings { registry, health: health.clone(), grpc: grpc_address, stop: stop.clone() },
        &door,
    )
    .await;
    let broker = match started {
        Ok(broker) => Some(broker),
        // A signal while it started: that is what was asked for.
        Err(StartError::Stopped) => None,
        Err(error) => return Err(error.into()),
    };
    if let Some(broker) = broker {
        println!("semel ready kafka={} grpc={grpc_address} http={http_address}", broker.kafka_address());
        stop.cancelled().await;
        health.set_stopping();
        broker.stop().await;
    }
    stop_servers.cancel();
    for (name, server) in [("gRPC", flatten(grpc)), ("HTTP", flatten(http))] {
        match tokio::time::timeout(SERVER_GRACE, server).await {
            Ok(ended) => ended.with_context(|| format!("the {name} server failed"))?,
            Err(_) => tracing::warn!(server = name, "did not end in time"),
        }
    }
    match controller.shutdown().await {
        Stopped::Cleanly => Ok(()),
        Stopped::Failed(why) => anyhow::bail!("controller: {why}"),
    }
}

/// A quorum of one. The broker settings that a controller acts on count for it too.
fn controller_config(
    arguments: &Arguments,
    settings: &BTreeMap<String, String>,
    grpc_address: SocketAddr,
) -> anyhow::Result<semel_controller::Config> {
    let voters = BTreeMap::from([(CONTROLLER, grpc_address.to_string())]);
    let mut config = semel_controller::Config::new(CONTROLLER, arguments.data.join("controller"), voters);
    let number = |name: &str, default: i32| match settings.get(name) {
        None => Ok(default),
        Some(text) => text.parse().with_context(|| format!("--set {name}={text}: not a whole number")),
    };
    config.control.num_partitions = number("num.partitions", config.control.num_partitions)?;
    config.control.default_replication_factor =
        number("default.replication.factor", config.control.default_replication_factor)?;
    Ok(config)
}

/// A server task's end as one result.
fn flatten<E: Into<anyhow::Error> + Send + 'static>(
    task: tokio::task::JoinHandle<Result<(), E>>,
) -> std::pin::Pin<Box<dyn Future<Output = anyhow::Result<()>>>> {
    Box::pin(async move { task.await.context("panicked")?.map_err(Into::into) })
}
