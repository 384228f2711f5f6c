//! W3C trace context (`traceparent`, `tracestate`) into and out of gRPC metadata.
//!
//! A process that exports no traces still passes on the context of the request it works for, so that a trace doesn't
//! break in the middle.

use opentelemetry::{
    Context,
    propagation::{Extractor, Injector, TextMapPropagator as _},
    trace::TraceContextExt as _,
};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tonic::{
    codegen::http::{HeaderMap, HeaderName, HeaderValue},
    metadata::{AsciiMetadataKey, MetadataMap},
};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

/// The caller's context, if its headers carry a valid one.
#[must_use]
pub fn extract(headers: &HeaderMap) -> Option<Context> {
    // Most requests inside a cluster carry none; parsing begins only where there is something to parse.
    if !headers.contains_key("traceparent") {
        return None;
    }
    let context = TraceContextPropagator::new().extract_with_context(&Context::new(), &Headers(headers));
    context.span().span_context().is_valid().then_some(context)
}

/// The context that a call made now belongs to: the current span's, or, where spans are not recorded, the one of the
/// request being answered.
#[must_use]
pub fn current() -> Context {
    let of_span = Span::current().context();
    if of_span.span().span_context().is_valid() { of_span } else { Context::current() }
}

/// Writes `context` into a request's metadata; an invalid one writes nothing.
pub fn inject(context: &Context, metadata: &mut MetadataMap) {
    if context.span().span_context().is_valid() {
        TraceContextPropagator::new().inject_context(context, &mut Metadata(metadata));
    }
}

/// The interceptor that [`inject`]s the [`current`] context into each call of a client.
#[derive(Clone, Copy, Debug, Default)]
pub struct InjectTrace;

impl tonic::service::Interceptor for InjectTrace {
    fn call(&mut self, mut request: tonic::Request<()>) -> Result<tonic::Request<()>, tonic::Status> {
        inject(&current(), request.metadata_mut());
        Ok(request)
    }
}

struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).and_then(|value| value.to_str().ok())
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(HeaderName::as_str).collect()
    }
}

struct Metadata<'a>(&'a mut MetadataMap);

impl Injector for Metadata<'_> {
    fn set(&mut self, key: &str, value: String) {
        // Both come from the propagator; a value that is no header (a bad `tracestate` of a caller) is left out.
        if let (Ok(key), Ok(value)) = (key.parse::<AsciiMetadataKey>(), HeaderValue::try_from(value))
            && let Ok(value) = tonic::metadata::MetadataValue::try_from(value.as_bytes())
        {
            self.0.insert(key, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::context::FutureExt as _;
    use tonic::service::Interceptor as _;

    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[tokio::test]
    async fn a_context_passes_through_a_process_that_records_nothing() {
        let mut headers = HeaderMap::new();
        headers.insert("traceparent", HeaderValue::from_static(PARENT));
        headers.insert("tracestate", HeaderValue::from_static("vendor=1"));
        let context = extract(&headers).unwrap();
        async {
            let request = InjectTrace.call(tonic::Request::new(())).unwrap();
            assert_eq!(request.metadata().get("traceparent").unwrap(), PARENT);
            assert_eq!(request.metadata().get("tracestate").unwrap(), "vendor=1");
        }
        .with_context(context)
        .await;
        let request = InjectTrace.call(tonic::Request::new(())).unwrap();
        assert!(request.metadata().get("traceparent").is_none());
    }

    #[test]
    fn a_malformed_context_is_none() {
        let mut headers = HeaderMap::new();
        assert!(extract(&headers).is_none());
        for bad in
            ["", "00-zz-b7ad6b7169203331-01", "00-00000000000000000000000000000000-b7ad6b7169203331-01"]
        {
            headers.insert("traceparent", HeaderValue::from_str(bad).unwrap());
            assert!(extract(&headers).is_none(), "{bad}");
        }
    }
}
