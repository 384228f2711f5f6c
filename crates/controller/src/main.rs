//! `semel-controller`: one controller as a process of its own.

mod settings;

use std::{io::Write as _, process::ExitCode, time::Duration};

use anyhow::Context as _;
use clap::Parser as _;
use semel_controller::{Controller, Environment, Stopped};
use semel_service::{grpc, health::Health, http, metrics::Registry, net, runtime, shutdown, telemetry};

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("semel-controller: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<ExitCode> {
    let settings = settings::Flags::parse().load()?;
    let runtime = runtime::build(settings.threads(), "semel-controller")?;
    let code = runtime.block_on(serve(settings));
    runtime.shutdown_timeout(Duration::from_secs(1));
    code
}

async fn serve(settings: settings::Settings) -> anyhow::Result<ExitCode> {
    let telemetry = telemetry::init(&settings.telemetry())?;
    let (registry, health) = (Registry::new(), Health::new());
    let stop = shutdown::on_signal()?;
    let grpc_listener = net::bind(settings.grpc_listen()).await?;
    let http_listener = net::bind(settings.http_listen()).await?;
    let (grpc_address, http_address) = (grpc_listener.local_addr()?, http_listener.local_addr()?);
    let config = settings.controller(grpc_address)?;
    let controller = Controller::start(config, Environment::real(registry.clone(), health.clone()))?;
    let server = grpc::Server::new(grpc::ServerConfig::default(), &registry, &health);
    let grpc = tokio::spawn(controller.serve_on(server).serve(grpc_listener, stop.clone()));
    let routes = http::router(registry, health.clone());
    let http = tokio::spawn(http::serve(http_listener, routes, stop.clone()));
    let announce = async {
        controller.ready().await;
        // Whoever started this may have closed the other end: no reason to stop.
        let _ = writeln!(std::io::stdout(), "semel-controller ready grpc={grpc_address} http={http_address}");
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = stop.cancelled() => {}
        ended = controller.stopped() => tracing::debug!(?ended, "controller ended"),
        () = announce => {}
    }
    health.set_stopping();
    let stopped = controller.shutdown().await;
    stop.cancel();
    grpc.await.context("gRPC server")??;
    http.await.context("HTTP server")??;
    telemetry.shutdown();
    Ok(match stopped {
        Stopped::Cleanly => ExitCode::SUCCESS,
        Stopped::Failed(why) => {
            eprintln!("semel-controller: {why}");
            ExitCode::FAILURE
        }
    })
}
