//! `semel-broker`: one broker, from a configuration file.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Context as _;
use clap::Parser;
use semel_broker::{Broker, File, FrontDoor, Limits, StartError, Surroundings};
use semel_service::{
    config, grpc, health::Health, http, metrics::Registry, net, runtime, shutdown, telemetry,
};
use tokio_util::sync::CancellationToken;

/// A Semel broker: holds partitions, serves Kafka and gRPC clients.
#[derive(Parser)]
#[command(name = "semel-broker", version)]
struct Arguments {
    /// The TOML configuration file; variables that begin with SEMEL_ win over it.
    #[arg(long)]
    config: PathBuf,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("semel-broker: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let file: File = config::load(Some(&arguments.config))?;
    let runtime = runtime::build(None, "semel-broker").context("cannot start the runtime")?;
    let _entered = runtime.enter();
    let telemetry = telemetry::init(&telemetry::TelemetryConfig {
        service_name: "semel-broker".to_owned(),
        ..file.telemetry.clone()
    })?;
    let served = runtime.block_on(serve(&file));
    telemetry.shutdown();
    served
}

async fn serve(file: &File) -> anyhow::Result<()> {
    let stop = shutdown::on_signal().context("cannot watch for signals")?;
    let (registry, health) = (Registry::new(), Health::new());
    let bind = |what: &'static str, address: String| async move {
        net::bind(&address).await.with_context(|| format!("cannot listen for {what} on {address}"))
    };
    let http = bind("HTTP", file.http.listen.clone()).await?;
    let grpc = bind("gRPC", file.grpc.listen.clone()).await?;
    let (http_address, grpc_address) = (http.local_addr()?, grpc.local_addr()?);
    let stop_servers = CancellationToken::new();
    let http =
        tokio::spawn(http::serve(http, http::router(registry.clone(), health.clone()), stop_servers.clone()));
    let config = file.broker();
    let door = FrontDoor::with_limits(Limits::of(&config));
    let server = door.add_to(grpc::Server::new(grpc::ServerConfig::default(), &registry, &health));
    let grpc = tokio::spawn(server.serve(grpc, stop_servers.clone()));

    let surroundings =
        Surroundings { registry, health: health.clone(), grpc: grpc_address, stop: stop.clone() };
    match Broker::start(config, surroundings, &door).await {
        Ok(broker) => {
            println!(
                "semel-broker ready kafka={} grpc={grpc_address} http={http_address}",
                broker.kafka_address()
            );
            stop.cancelled().await;
            health.set_stopping();
            broker.stop().await;
        }
        Err(StartError::Stopped) => tracing::info!("told to stop before the start was done"),
        Err(error) => return Err(error.into()),
    }
    stop_servers.cancel();
    grpc.await.context("the gRPC server panicked")??;
    http.await.context("the HTTP server panicked")??;
    Ok(())
}
