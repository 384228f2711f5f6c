//! The HTTP port of each process: metrics and health, and whatever routes a role adds.

use std::{future::Future, io, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{health::Health, metrics::Registry, net::Acceptor};

/// The most connections to this port at a time.
pub const CONNECTIONS_MAX: usize = 256;

/// How long open requests may take after the stop.
pub const GRACE: Duration = Duration::from_secs(2);

/// `/metrics`, `/livez`, `/readyz` and `/startupz`, to be merged with a role's own routes.
pub fn router(registry: Registry, health: Health) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .route("/startupz", get(startupz))
        .with_state(Arc::new(Sources { registry, health }))
}

/// Serves `routes` on `listener` until `stop` is cancelled and the open requests are done, for at most [`GRACE`]
/// longer.
///
/// Errors: the server failed as a whole; a single connection's failure isn't one.
pub fn serve(
    listener: TcpListener,
    routes: Router,
    stop: CancellationToken,
) -> impl Future<Output = io::Result<()>> + Send {
    let cut = CancellationToken::new();
    let acceptor = Acceptor::new(listener, CONNECTIONS_MAX, cut.clone());
    let cut = cut.drop_guard();
    let server = axum::serve(acceptor, routes).with_graceful_shutdown(stop.clone().cancelled_owned());
    async move {
        let _cut = cut;
        let grace = async {
            stop.cancelled().await;
            tokio::time::sleep(GRACE).await;
        };
        tokio::select! {
            result = server => result,
            () = grace => Ok(()),
        }
    }
}

struct Sources {
    registry: Registry,
    health: Health,
}

async fn metrics(State(sources): State<Arc<Sources>>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], sources.registry.encode())
}

async fn livez(State(sources): State<Arc<Sources>>) -> impl IntoResponse {
    let state = sources.health.snapshot();
    answer(state.is_live(), || state.report())
}

async fn readyz(State(sources): State<Arc<Sources>>) -> impl IntoResponse {
    let state = sources.health.snapshot();
    answer(state.is_ready(), || state.report())
}

async fn startupz(State(sources): State<Arc<Sources>>) -> impl IntoResponse {
    let state = sources.health.snapshot();
    answer(state.started, || state.report())
}

fn answer(good: bool, report: impl FnOnce() -> String) -> (StatusCode, String) {
    if good { (StatusCode::OK, "ok\n".to_owned()) } else { (StatusCode::SERVICE_UNAVAILABLE, report()) }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    async fn get(address: std::net::SocketAddr, path: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    }

    #[tokio::test]
    async fn metrics_and_health_are_served_until_the_stop() {
        let (registry, health) = (Registry::new(), Health::new());
        registry.counter("test_total", "a test").inc_by(3);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let routes =
            router(registry, health.clone()).route("/extra", axum::routing::get(|| async { "more" }));
        let server = tokio::spawn(serve(listener, routes, stop.clone()));

        let part = health.component("log");
        let text = get(address, "/readyz").await;
        assert!(text.starts_with("HTTP/1.1 503") && text.contains("log: starting"), "{text}");
        assert!(get(address, "/startupz").await.starts_with("HTTP/1.1 503"));
        assert!(get(address, "/livez").await.starts_with("HTTP/1.1 200"));
        part.ready();
        assert!(get(address, "/readyz").await.starts_with("HTTP/1.1 200"));
        assert!(get(address, "/startupz").await.starts_with("HTTP/1.1 200"));
        let text = get(address, "/metrics").await;
        assert!(
            text.contains("semel_test_total 3") && text.contains("process_resident_memory_bytes"),
            "{text}"
        );
        assert!(get(address, "/extra").await.ends_with("more"));

        // An open connection without a request does not hold the stop up.
        let idle = tokio::net::TcpStream::connect(address).await.unwrap();
        stop.cancel();
        server.await.unwrap().unwrap();
        drop(idle);
    }
}
