//! A trace from a client's span through a server's to a collector, all in this process. One test, since telemetry
//! begins once per process.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
};

use opentelemetry::trace::TraceContextExt as _;
use semel_service::{
    grpc::{ChannelConfig, Server, ServerConfig, channel},
    health::Health,
    metrics::Registry,
    runtime,
    telemetry::{self, TelemetryConfig, TelemetryError},
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tonic::{
    body::Body,
    codegen::{Service, http},
    server::{Grpc, NamedService, UnaryService},
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tracing::Instrument as _;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

/// Keeps the `ResourceSpans` of each export as they are on the wire: `Vec<u8>` as a message is its field 1.
#[derive(Clone, Default)]
struct Collector {
    exports: Arc<Mutex<Vec<u8>>>,
}

impl NamedService for Collector {
    const NAME: &'static str = "opentelemetry.proto.collector.trace.v1.TraceService";
}

impl UnaryService<Vec<u8>> for Collector {
    type Response = ();
    type Future = std::future::Ready<Result<tonic::Response<()>, tonic::Status>>;

    fn call(&mut self, request: tonic::Request<Vec<u8>>) -> Self::Future {
        self.exports.lock().unwrap().extend(request.into_inner());
        std::future::ready(Ok(tonic::Response::new(())))
    }
}

impl Service<http::Request<Body>> for Collector {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            let codec = tonic_prost::ProstCodec::<(), Vec<u8>>::default();
            Ok(Grpc::new(codec).unary(this, request).await)
        })
    }
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

#[test]
fn one_trace_crosses_a_call_and_reaches_the_collector() {
    let runtime = runtime::build(None, "test").unwrap();
    let stop = CancellationToken::new();
    let collector = Collector::default();
    let start = |service: Option<Collector>, stop: &CancellationToken| {
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let mut server = Server::new(ServerConfig::default(), &Registry::new(), &Health::new());
            if let Some(service) = service {
                server = server.add_service(service);
            }
            (address, tokio::spawn(server.serve(listener, stop.clone())))
        })
    };
    let collector_stop = CancellationToken::new();
    let (collector_address, _) = start(Some(collector.clone()), &collector_stop);
    let (server_address, server) = start(None, &stop);

    let config = TelemetryConfig {
        service_name: "semel-test".to_owned(),
        otlp_endpoint: Some(format!("http://{collector_address}")),
        ..TelemetryConfig::default()
    };
    assert!(matches!(telemetry::init(&config), Err(TelemetryError::NoRuntime)));
    let guard = {
        let _entered = runtime.enter();
        let guard = telemetry::init(&config).unwrap();
        assert!(matches!(telemetry::init(&config), Err(TelemetryError::Twice(_))));
        guard
    };
    assert!(guard.exports());

    let trace_id = runtime.block_on(async {
        let span = tracing::info_span!("client side");
        let trace_id = span.context().span().span_context().trace_id();
        async {
            let mut client =
                HealthClient::new(channel(&server_address.to_string(), &ChannelConfig::default()).unwrap());
            client.check(HealthCheckRequest { service: String::new() }).await.unwrap();
        }
        .instrument(span)
        .await;
        trace_id
    });
    // When the server has ended, so have its spans.
    stop.cancel();
    runtime.block_on(server).unwrap().unwrap();
    guard.shutdown();

    let exports = collector.exports.lock().unwrap();
    assert!(contains(&exports, b"client side"));
    assert!(contains(&exports, b"semel-test"));
    assert!(contains(&exports, b"grpc.health.v1.Health/Check"), "the server's span");
    let of_trace = exports.windows(16).filter(|window| *window == trace_id.to_bytes()).count();
    assert!(of_trace >= 2, "both spans are of one trace, found {of_trace}");
    collector_stop.cancel();
}
