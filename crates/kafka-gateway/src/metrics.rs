//! What the gateway counts. Handles are resolved when it is made: a request costs atomic adds.

use semel_kafka_wire::{ApiKey, ErrorCode};
use semel_service::metrics::{Histogram, IntCounter, IntCounterVec, IntGauge, LATENCY_BUCKETS, Registry};

use crate::backend::ApiRange;

pub(crate) struct Metrics {
    /// By key, with gaps; the last is for what isn't served.
    apis: Vec<Option<ApiMetrics>>,
    other: ApiMetrics,
    errors: IntCounterVec,
    pub(crate) accepted: IntCounter,
    pub(crate) refused: IntCounter,
    pub(crate) closed: IntCounterVec,
    pub(crate) connections: IntGauge,
    pub(crate) in_flight: IntGauge,
    pub(crate) request_memory: IntGauge,
    pub(crate) sendfile_bytes: IntCounter,
    pub(crate) sent_bytes: IntCounter,
}

pub(crate) struct ApiMetrics {
    pub(crate) requests: IntCounter,
    pub(crate) request_bytes: IntCounter,
    pub(crate) response_bytes: IntCounter,
    pub(crate) seconds: Histogram,
}

impl Metrics {
    pub(crate) fn new(registry: &Registry, apis: &[ApiRange]) -> Self {
        let requests = registry.counter_vec("kafka_requests_total", "Kafka requests, by API.", &["api"]);
        let request_bytes = registry.counter_vec(
            "kafka_request_bytes_total",
            "Bytes of Kafka request frames, by API.",
            &["api"],
        );
        let response_bytes = registry.counter_vec(
            "kafka_response_bytes_total",
            "Bytes of Kafka response frames, file ranges included, by API.",
            &["api"],
        );
        let seconds = registry.histogram_vec(
            "kafka_request_seconds",
            "Time from a whole Kafka request to its answer being queued for sending, by API.",
            &["api"],
            LATENCY_BUCKETS,
        );
        let of = |name: &str| ApiMetrics {
            requests: requests.with_label_values(&[name]),
            request_bytes: request_bytes.with_label_values(&[name]),
            response_bytes: response_bytes.with_label_values(&[name]),
            seconds: seconds.with_label_values(&[name]),
        };
        let mut by_key: Vec<Option<ApiMetrics>> = Vec::new();
        for api in apis {
            let index = index(api.key);
            if by_key.len() <= index {
                by_key.resize_with(index + 1, || None);
            }
            by_key[index] = Some(of(api.key.name()));
        }
        Self {
            apis: by_key,
            other: of("other"),
            errors: registry.counter_vec(
                "kafka_errors_total",
                "Kafka answers with an error, by API and the first error in the answer.",
                &["api", "error"],
            ),
            accepted: registry.counter("kafka_connections_accepted_total", "Kafka connections accepted."),
            refused: registry.counter(
                "kafka_connections_refused_total",
                "Kafka connections closed at once, their address having too many.",
            ),
            closed: registry.counter_vec(
                "kafka_connections_closed_total",
                "Kafka connections ended.",
                &["reason"],
            ),
            connections: registry.gauge("kafka_connections", "Open Kafka connections."),
            in_flight: registry.gauge("kafka_requests_in_flight", "Kafka requests being worked on."),
            request_memory: registry
                .gauge("kafka_request_memory_bytes", "Bytes of Kafka request frames in memory."),
            sendfile_bytes: registry
                .counter("kafka_sendfile_bytes_total", "Bytes sent from files without a copy."),
            sent_bytes: registry.counter("kafka_sent_bytes_total", "Bytes sent to Kafka clients."),
        }
    }

    pub(crate) fn api(&self, key: ApiKey) -> &ApiMetrics {
        self.apis.get(index(key)).and_then(Option::as_ref).unwrap_or(&self.other)
    }

    pub(crate) fn error(&self, key: ApiKey, error: ErrorCode) {
        self.errors.with_label_values(&[key.name(), error.name()]).inc();
    }
}

fn index(key: ApiKey) -> usize {
    // Keys are 0 and up.
    usize::try_from(key.code()).unwrap_or_default()
}
