//! The layer around every gRPC request: a bound on how many run, a span, a count and a time.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use http_body::{Frame, SizeHint};
use opentelemetry::context::FutureExt as _;
use prometheus::{HistogramVec, IntCounterVec, IntGauge};
use tokio::time::Instant;
use tonic::{
    Code, Status,
    body::Body,
    codegen::{
        Bytes, Service,
        http::{HeaderMap, Request, Response},
    },
};
use tower::Layer;
use tracing::{Instrument as _, Span, field::Empty};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use crate::{
    metrics::{LATENCY_BUCKETS, Registry},
    trace_context,
};

/// The label of requests for methods that this process doesn't serve: their paths are the client's words, and must
/// not become series.
const UNKNOWN_METHOD: &str = "unknown";

#[derive(Clone)]
pub(super) struct ObserveLayer {
    shared: Arc<Shared>,
}

struct Shared {
    requests: IntCounterVec,
    seconds: HistogramVec,
    in_flight_shown: IntGauge,
    in_flight: AtomicUsize,
    in_flight_max: usize,
}

impl ObserveLayer {
    /// At most `in_flight_max` requests run at a time, an open stream being one; more are refused.
    pub(super) fn new(registry: &Registry, in_flight_max: usize) -> Self {
        Self {
            shared: Arc::new(Shared {
                requests: registry.counter_vec(
                    "grpc_requests_total",
                    "gRPC requests that ended, by method and status code.",
                    &["method", "code"],
                ),
                seconds: registry.histogram_vec(
                    "grpc_request_seconds",
                    "Time from a gRPC request to the end of its answer; a stream counts until it ends.",
                    &["method"],
                    LATENCY_BUCKETS,
                ),
                in_flight_shown: registry
                    .gauge("grpc_requests_in_flight", "gRPC requests and streams being served."),
                in_flight: AtomicUsize::new(0),
                in_flight_max,
            }),
        }
    }
}

impl<S> Layer<S> for ObserveLayer {
    type Service = Observe<S>;

    fn layer(&self, inner: S) -> Observe<S> {
        Observe { inner, shared: self.shared.clone() }
    }
}

#[derive(Clone)]
pub(super) struct Observe<S> {
    inner: S,
    shared: Arc<Shared>,
}

impl<S> Service<Request<Body>> for Observe<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let method = request.uri().path().trim_start_matches('/').to_owned();
        let span = tracing::info_span!(
            "grpc",
            otel.name = method,
            otel.kind = "server",
            rpc.system = "grpc",
            rpc.grpc.status_code = Empty,
        );
        let parent = trace_context::extract(request.headers());
        if let Some(parent) = &parent {
            // It fails where spans are not recorded; then the context passes through below.
            let _ = span.set_parent(parent.clone());
        }
        let Some(observation) = Observation::begin(&self.shared, method, span.clone()) else {
            let refused = Status::resource_exhausted("too many gRPC requests in flight; retry later");
            return Box::pin(async { Ok(refused.into_http()) });
        };
        let answer = self.inner.call(request).instrument(span);
        let finish = move |response: Result<Response<Body>, Infallible>| {
            response.map(|response| {
                let (parts, body) = response.into_parts();
                let mut observation = observation;
                // An answer without messages carries its status in the headers.
                observation.code = status_code(&parts.headers);
                Response::from_parts(parts, Body::new(ObservedBody { body, observation }))
            })
        };
        match parent {
            Some(parent) => Box::pin(async move { finish(answer.with_context(parent).await) }),
            None => Box::pin(async move { finish(answer.await) }),
        }
    }
}

fn status_code(headers: &HeaderMap) -> Option<Code> {
    headers.get("grpc-status").map(|value| Code::from_bytes(value.as_bytes()))
}

/// One request; reports when dropped, since a client may leave at any moment.
struct Observation {
    shared: Arc<Shared>,
    method: String,
    span: Span,
    began: Instant,
    code: Option<Code>,
}

impl Observation {
    /// `None` if too many run.
    fn begin(shared: &Arc<Shared>, method: String, span: Span) -> Option<Self> {
        if shared.in_flight.fetch_add(1, Ordering::Relaxed) >= shared.in_flight_max {
            shared.in_flight.fetch_sub(1, Ordering::Relaxed);
            shared.requests.with_label_values(&[UNKNOWN_METHOD, "ResourceExhausted"]).inc();
            return None;
        }
        shared.in_flight_shown.inc();
        Some(Self { shared: shared.clone(), method, span, began: Instant::now(), code: None })
    }
}

impl Drop for Observation {
    fn drop(&mut self) {
        self.shared.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.shared.in_flight_shown.dec();
        let code = self.code.unwrap_or(Code::Cancelled);
        // A future dropped before it answered says nothing about whether its method exists.
        let method = match self.code {
            None | Some(Code::Unimplemented) => UNKNOWN_METHOD,
            Some(_) => &self.method,
        };
        let elapsed = self.began.elapsed();
        self.shared.requests.with_label_values(&[method, &format!("{code:?}")]).inc();
        self.shared.seconds.with_label_values(&[method]).observe(elapsed.as_secs_f64());
        self.span.record("rpc.grpc.status_code", code as i32);
        self.span.in_scope(|| tracing::debug!(method = self.method, ?code, ?elapsed, "gRPC request ended"));
    }
}

struct ObservedBody {
    body: Body,
    observation: Observation,
}

impl http_body::Body for ObservedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        let _entered = this.observation.span.enter();
        let frame = Pin::new(&mut this.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && let Some(trailers) = frame.trailers_ref()
        {
            this.observation.code = status_code(trailers);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
