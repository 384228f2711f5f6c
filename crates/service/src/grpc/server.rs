//! The gRPC server of a process.

use std::{convert::Infallible, future::Future, time::Duration};

use axum::response::IntoResponse;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::{
    body::Body,
    codegen::{Service, http::Request},
    server::NamedService,
    service::{Routes, RoutesBuilder},
};
use tonic_health::{ServingStatus, server::HealthReporter};

use super::{CONNECTION_WINDOW_BYTES, FRAME_BYTES, STREAM_WINDOW_BYTES, observe::ObserveLayer};
use crate::{health::Health, metrics::Registry, net::Acceptor};

/// How a gRPC server behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerConfig {
    /// The most connections at a time; further ones wait to be accepted. Default 4096.
    pub connections_max: usize,
    /// The most streams a client may have open on one connection. Default 1024.
    pub streams_per_connection_max: u32,
    /// The most requests and streams of all connections; further ones are refused with `RESOURCE_EXHAUSTED`. Default
    /// 16384.
    pub in_flight_max: usize,
    /// How often a silent connection is probed. Default 10 s.
    pub keepalive_interval: Duration,
    /// How long a probe may stay unanswered before the connection is closed. Default 10 s.
    pub keepalive_timeout: Duration,
    /// How long requests may go on after the stop; connections that are open then are cut. Default 5 s.
    pub stop_grace: Duration,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            connections_max: 4096,
            streams_per_connection_max: 1024,
            in_flight_max: 16384,
            keepalive_interval: Duration::from_secs(10),
            keepalive_timeout: Duration::from_secs(10),
            stop_grace: Duration::from_secs(5),
        }
    }
}

/// Why a gRPC server can't serve.
#[derive(Debug, thiserror::Error)]
pub enum GrpcError {
    /// The descriptors compiled into this binary can't be offered for reflection.
    #[error("cannot build gRPC reflection")]
    Reflection(#[source] tonic_reflection::server::Error),
    /// The server failed as a whole.
    #[error("gRPC server failed")]
    Serve(#[source] tonic::transport::Error),
}

/// A gRPC server being put together: services, then [`Server::serve`]. Health and reflection come by themselves.
pub struct Server {
    config: ServerConfig,
    health: Health,
    registry: Registry,
    routes: RoutesBuilder,
    names: Vec<&'static str>,
}

impl Server {
    /// Without services.
    #[must_use]
    pub fn new(config: ServerConfig, registry: &Registry, health: &Health) -> Self {
        Self {
            config,
            health: health.clone(),
            registry: registry.clone(),
            routes: Routes::builder(),
            names: Vec::new(),
        }
    }

    /// Adds a generated service. Its decode limit is its own: see [`MESSAGE_BYTES_MAX`](super::MESSAGE_BYTES_MAX).
    #[must_use]
    pub fn add_service<S>(mut self, service: S) -> Self
    where
        S: Service<Request<Body>, Error = Infallible> + NamedService + Clone + Send + Sync + 'static,
        S::Response: IntoResponse,
        S::Future: Send + 'static,
    {
        self.routes.add_service(service);
        self.names.push(S::NAME);
        self
    }

    /// Serves on `listener` until `stop` is cancelled and the open requests are done, for at most the configured
    /// grace longer. When this ends, or is dropped, no connection is left.
    ///
    /// Errors: [`GrpcError`].
    pub fn serve(
        self,
        listener: TcpListener,
        stop: CancellationToken,
    ) -> impl Future<Output = Result<(), GrpcError>> + Send {
        let Self { config, health, registry, mut routes, names } = self;
        let cut = CancellationToken::new();
        let acceptor = Acceptor::new(listener, config.connections_max, cut.clone());
        let guard = cut.clone().drop_guard();
        async move {
            let _guard = guard;
            let (reporter, health_service) = tonic_health::server::health_reporter();
            routes.add_service(health_service);
            let reflection = || {
                tonic_reflection::server::Builder::configure()
                    .register_encoded_file_descriptor_set(semel_proto::DESCRIPTORS)
                    .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            };
            routes.add_service(reflection().build_v1().map_err(GrpcError::Reflection)?);
            // Tools of before 2023 know only this one.
            routes.add_service(reflection().build_v1alpha().map_err(GrpcError::Reflection)?);

            let server = tonic::transport::Server::builder()
                .initial_stream_window_size(STREAM_WINDOW_BYTES)
                .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
                .max_frame_size(FRAME_BYTES)
                .max_concurrent_streams(config.streams_per_connection_max)
                .http2_keepalive_interval(Some(config.keepalive_interval))
                .http2_keepalive_timeout(Some(config.keepalive_timeout))
                .layer(ObserveLayer::new(&registry, config.in_flight_max))
                .serve_with_incoming_shutdown(
                    routes.routes().prepare(),
                    acceptor.into_stream(),
                    stop.clone().cancelled_owned(),
                );
            let cutting = async {
                stop.cancelled().await;
                tokio::time::sleep(config.stop_grace).await;
                // Streams that never end by themselves (watches, replication) hold their connections open.
                cut.cancel();
                std::future::pending::<()>().await;
            };
            tokio::select! {
                result = server => result.map_err(GrpcError::Serve),
                () = cutting => Ok(()),
                () = mirror(health, reporter, names) => Ok(()),
            }
        }
    }
}

/// Keeps the gRPC health service (of the whole server, and of each service) at what [`Health`] says; never ends.
async fn mirror(health: Health, reporter: HealthReporter, names: Vec<&'static str>) {
    let mut changes = health.subscribe();
    loop {
        let status = if changes.borrow_and_update().is_ready() {
            ServingStatus::Serving
        } else {
            ServingStatus::NotServing
        };
        for name in names.iter().copied().chain([""]) {
            reporter.set_service_status(name, status).await;
        }
        if changes.changed().await.is_err() {
            // `health` above owns the sender, so this is not reached; ending here would stop the server.
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tonic::Code;
    use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
    use tonic_reflection::pb::v1::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    };

    use super::*;
    use crate::grpc::{Channel, ChannelConfig, channel};

    struct Running {
        address: SocketAddr,
        registry: Registry,
        health: Health,
        stop: CancellationToken,
        task: tokio::task::JoinHandle<Result<(), GrpcError>>,
    }

    async fn start(config: ServerConfig) -> Running {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (registry, health, stop) = (Registry::new(), Health::new(), CancellationToken::new());
        let task = tokio::spawn(Server::new(config, &registry, &health).serve(listener, stop.clone()));
        Running { address, registry, health, stop, task }
    }

    fn connect(address: SocketAddr) -> Channel {
        channel(&address.to_string(), &ChannelConfig::default()).unwrap()
    }

    fn whole() -> HealthCheckRequest {
        HealthCheckRequest { service: String::new() }
    }

    #[tokio::test]
    async fn health_follows_and_requests_are_counted() {
        let server = start(ServerConfig::default()).await;
        let mut client = HealthClient::new(connect(server.address));
        let mut watch = client.watch(whole()).await.unwrap().into_inner();
        let part = server.health.component("log");
        part.ready();
        let mut seen = 0;
        while seen != 1 {
            seen = watch.message().await.unwrap().unwrap().status;
        }
        assert_eq!(client.check(whole()).await.unwrap().into_inner().status, 1);
        let missing = HealthCheckRequest { service: "no.such.Service".to_owned() };
        assert_eq!(client.check(missing).await.unwrap_err().code(), Code::NotFound);

        // The server may count a moment after the client has its answer.
        let mut text = String::new();
        for _ in 0..1000 {
            text = server.registry.encode();
            if text.contains("code=\"NotFound\"") && text.contains("code=\"Ok\"") {
                break;
            }
            tokio::task::yield_now().await;
        }
        let line = "semel_grpc_requests_total{code=\"Ok\",method=\"grpc.health.v1.Health/Check\"} 1";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("semel_grpc_requests_in_flight 1"), "the watch is open: {text}");
    }

    #[tokio::test]
    async fn a_stop_cuts_streams_that_do_not_end() {
        let config = ServerConfig { stop_grace: Duration::from_millis(20), ..ServerConfig::default() };
        let server = start(config).await;
        let mut client = HealthClient::new(connect(server.address));
        let mut watch = client.watch(whole()).await.unwrap().into_inner();
        watch.message().await.unwrap().unwrap();
        server.stop.cancel();
        tokio::time::timeout(Duration::from_secs(30), server.task).await.unwrap().unwrap().unwrap();
        assert!(watch.message().await.is_err());
        assert!(client.check(whole()).await.is_err());
    }

    #[tokio::test]
    async fn dropping_the_server_leaves_no_connection() {
        let server = start(ServerConfig::default()).await;
        let mut client = HealthClient::new(connect(server.address));
        let mut watch = client.watch(whole()).await.unwrap().into_inner();
        watch.message().await.unwrap().unwrap();
        server.task.abort();
        assert!(watch.message().await.is_err());
        assert!(client.check(whole()).await.is_err());
    }

    #[tokio::test]
    async fn requests_over_the_bound_are_refused() {
        let server = start(ServerConfig { in_flight_max: 1, ..ServerConfig::default() }).await;
        let mut client = HealthClient::new(connect(server.address));
        let watch = client.watch(whole()).await.unwrap();
        assert_eq!(client.check(whole()).await.unwrap_err().code(), Code::ResourceExhausted);
        drop(watch);
        let mut result = client.check(whole()).await;
        for _ in 0..1000 {
            if result.is_ok() {
                break;
            }
            tokio::task::yield_now().await;
            result = client.check(whole()).await;
        }
        assert!(result.is_ok(), "{result:?}");
    }

    #[tokio::test]
    async fn reflection_lists_the_services_and_unknown_methods_make_no_series() {
        let server = start(ServerConfig::default()).await;
        let mut client = ServerReflectionClient::new(connect(server.address));
        let request = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(MessageRequest::ListServices(String::new())),
        };
        let mut answers =
            client.server_reflection_info(futures::stream::iter([request])).await.unwrap().into_inner();
        let Some(MessageResponse::ListServicesResponse(list)) =
            answers.message().await.unwrap().unwrap().message_response
        else {
            panic!("not a list of services");
        };
        assert!(list.service.iter().any(|service| service.name.starts_with("semel.v1.")), "{list:?}");

        let mut raw = tonic::client::Grpc::new(connect(server.address));
        raw.ready().await.unwrap();
        let path = "/made.up.Service/Call".parse().unwrap();
        let codec = tonic_prost::ProstCodec::<HealthCheckRequest, HealthCheckRequest>::default();
        let result = raw.unary(tonic::Request::new(whole()), path, codec).await;
        assert_eq!(result.unwrap_err().code(), Code::Unimplemented);
        assert!(!server.registry.encode().contains("made.up"));
    }
}
