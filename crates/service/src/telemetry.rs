//! Logs to stderr, and traces to an OpenTelemetry collector when one is configured.

use std::{io::IsTerminal as _, time::Duration};

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::{
    Resource,
    trace::{Sampler, SdkTracerProvider},
};
use serde::Deserialize;
use tracing_subscriber::{EnvFilter, Layer as _, layer::SubscriberExt as _, util::SubscriberInitExt as _};

/// The variable that OpenTelemetry defines for the collector's address.
const OTLP_ENDPOINT_VARIABLE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

/// How long [`Guard::shutdown`] waits for the collector to take the last spans.
const FLUSH_MAX: Duration = Duration::from_secs(3);

/// How a process tells what it does.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct TelemetryConfig {
    /// The service's name in traces. Default `semel`.
    pub service_name: String,
    /// The form of log lines. Default text.
    pub log_format: LogFormat,
    /// Which log lines are written, in the syntax of `RUST_LOG`, which wins over this. Default `info`.
    pub log_filter: String,
    /// The gRPC address of an OTLP collector (`http://collector:4317`); `None` leaves it to
    /// `OTEL_EXPORTER_OTLP_ENDPOINT`, and without either no trace is recorded.
    pub otlp_endpoint: Option<String>,
    /// Which spans are exported, in the syntax of `RUST_LOG`. Default `info,semel=debug`: every request.
    pub trace_filter: String,
    /// The share of traces that begin here and are recorded, 0 to 1. A caller's decision wins. Default 1.
    pub trace_sample_ratio: f64,
}

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self {
            service_name: "semel".to_owned(),
            log_format: LogFormat::Text,
            log_filter: "info".to_owned(),
            otlp_endpoint: None,
            trace_filter: "info,semel=debug".to_owned(),
            trace_sample_ratio: 1.0,
        }
    }
}

/// The form of log lines.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

impl std::str::FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            other => Err(format!("expected text or json, found {other}")),
        }
    }
}

/// Why telemetry can't begin.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// A filter isn't in the syntax of `RUST_LOG`.
    #[error("filter '{filter}' is not valid")]
    Filter {
        /// The filter.
        filter: String,
        /// What is wrong with it.
        #[source]
        cause: tracing_subscriber::filter::ParseError,
    },
    /// The exporter can't be made.
    #[error("cannot export traces to {endpoint}")]
    Exporter {
        /// The collector's address.
        endpoint: String,
        /// What is wrong.
        #[source]
        cause: opentelemetry_otlp::ExporterBuildError,
    },
    /// An exporter needs the async runtime to be there.
    #[error("traces can only be exported from within a runtime")]
    NoRuntime,
    /// The process already has a subscriber.
    #[error("telemetry is already running in this process")]
    Twice(#[source] tracing_subscriber::util::TryInitError),
}

/// Begins logging, and tracing if a collector is configured. Once per process.
///
/// With a collector it must be called within a runtime (`runtime.enter()` is enough). Errors: [`TelemetryError`].
pub fn init(config: &TelemetryConfig) -> Result<Guard, TelemetryError> {
    // An empty RUST_LOG is how scripts unset it.
    let chosen = std::env::var("RUST_LOG").ok().filter(|text| !text.is_empty());
    let log_filter = filter(chosen.as_deref().unwrap_or(&config.log_filter))?;
    let format = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let log = match config.log_format {
        LogFormat::Text => format.with_ansi(std::io::stderr().is_terminal()).with_filter(log_filter).boxed(),
        LogFormat::Json => format.json().flatten_event(true).with_filter(log_filter).boxed(),
    };

    let endpoint = config
        .otlp_endpoint
        .clone()
        .or_else(|| std::env::var(OTLP_ENDPOINT_VARIABLE).ok())
        .filter(|endpoint| !endpoint.is_empty());
    let provider = endpoint.map(|endpoint| provider(config, endpoint)).transpose()?;
    let traces = match &provider {
        Some(provider) => Some(
            tracing_opentelemetry::layer()
                .with_tracer(provider.tracer("semel"))
                .with_filter(filter(&config.trace_filter)?),
        ),
        None => None,
    };
    tracing_subscriber::registry().with(log).with(traces).try_init().map_err(TelemetryError::Twice)?;
    Ok(Guard { provider })
}

fn filter(text: &str) -> Result<EnvFilter, TelemetryError> {
    EnvFilter::builder()
        .parse(text)
        .map_err(|cause| TelemetryError::Filter { filter: text.to_owned(), cause })
}

fn provider(config: &TelemetryConfig, endpoint: String) -> Result<SdkTracerProvider, TelemetryError> {
    tokio::runtime::Handle::try_current().map_err(|_| TelemetryError::NoRuntime)?;
    let exporter = SpanExporter::builder()
        .with_tonic()
        .with_endpoint(endpoint.clone())
        .with_timeout(FLUSH_MAX)
        .build()
        .map_err(|cause| TelemetryError::Exporter { endpoint, cause })?;
    let sampler = Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(config.trace_sample_ratio)));
    Ok(SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_sampler(sampler)
        .with_resource(Resource::builder().with_service_name(config.service_name.clone()).build())
        .build())
}

/// Keeps telemetry going; the last spans leave when it is dropped.
///
/// Drop it outside of async code and while the runtime still lives: it waits for the collector, up to 3 s.
#[derive(Debug)]
#[must_use = "spans that are not yet exported are lost without it"]
pub struct Guard {
    provider: Option<SdkTracerProvider>,
}

impl Guard {
    /// Whether traces are exported.
    #[must_use]
    pub fn exports(&self) -> bool {
        self.provider.is_some()
    }

    /// Sends what is recorded and ends tracing; logs go on.
    pub fn shutdown(self) {}
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(provider) = &self.provider
            && let Err(error) = provider.shutdown_with_timeout(FLUSH_MAX)
        {
            tracing::info!(%error, "last traces not exported");
        }
    }
}
