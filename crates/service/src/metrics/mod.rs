//! Prometheus metrics: one registry per process, and the names and buckets that all of Semel uses.
//!
//! Metrics carry the prefix `semel_`; process metrics keep the names every dashboard knows. On a hot path resolve
//! labels once (`vec.with_label_values(..)` at start) and keep the handle: observing is then a few atomic adds.

mod process;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

pub use prometheus::{
    Counter, CounterVec, Gauge, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec,
};
use prometheus::{HistogramOpts, Opts, TextEncoder, core::Collector};

/// Buckets for latencies, in seconds: from 50 µs (a page-cache append) to 30 s (a long poll), about ×2.5 apart.
pub const LATENCY_BUCKETS: &[f64] = &[
    0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0, 30.0,
];

/// Buckets for sizes, in bytes: 256 B to 64 MiB, ×4 apart.
pub const SIZE_BUCKETS: &[f64] = &[
    256.0,
    1024.0,
    4096.0,
    16384.0,
    65536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
];

/// The metrics of this process. Cheap to clone; all clones are one.
///
/// Asking twice for one name gives the same metric, so that two roles in one process share, say, the gRPC counters.
#[derive(Clone)]
pub struct Registry {
    shared: Arc<Shared>,
}

struct Shared {
    registry: prometheus::Registry,
    known: Mutex<BTreeMap<String, Metric>>,
    before_scrape: Mutex<Vec<Box<dyn Fn() + Send + Sync>>>,
}

#[derive(Clone)]
enum Metric {
    Counter(IntCounter),
    CounterVec(IntCounterVec),
    Gauge(IntGauge),
    GaugeVec(IntGaugeVec),
    Histogram(Histogram),
    HistogramVec(HistogramVec),
}

/// One method per kind of metric; they differ in the type and in what makes it.
macro_rules! registering {
    ($(#[$doc:meta])* $method:ident($($argument:ident: $type:ty),*) -> $metric:ident as $variant:ident, $make:expr) => {
        $(#[$doc])*
        #[must_use]
        pub fn $method(&self, name: &str, help: &str $(, $argument: $type)*) -> $metric {
            let name = format!("semel_{name}");
            let mut known = self.shared.known.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(Metric::$variant(metric)) = known.get(&name) {
                return metric.clone();
            }
            let make: fn(&str, &str $(, $type)*) -> prometheus::Result<$metric> = $make;
            let metric = make(&name, help $(, $argument)*)
                .expect("metric and label names are literals that Prometheus allows");
            if known.contains_key(&name) {
                // Two callers disagree on its kind. Both may count; only the first is shown.
                tracing::error!(name, "metric is registered twice with different kinds");
                return metric;
            }
            self.register(Box::new(metric.clone()));
            known.insert(name, Metric::$variant(metric.clone()));
            metric
        }
    };
}

impl Registry {
    /// With the process metrics (memory, CPU, files, threads, uptime) already in it.
    #[must_use]
    pub fn new() -> Self {
        let registry = Self {
            shared: Arc::new(Shared {
                registry: prometheus::Registry::new(),
                known: Mutex::default(),
                before_scrape: Mutex::default(),
            }),
        };
        process::register(&registry);
        registry
    }

    registering! {
        /// A counter `semel_{name}`; by convention `name` ends in `_total`.
        counter() -> IntCounter as Counter, |name, help| IntCounter::new(name, help)
    }
    registering! {
        /// A counter for each combination of `labels`.
        counter_vec(labels: &[&str]) -> IntCounterVec as CounterVec,
        |name, help, labels| IntCounterVec::new(Opts::new(name, help), labels)
    }
    registering! {
        /// A gauge `semel_{name}`.
        gauge() -> IntGauge as Gauge, |name, help| IntGauge::new(name, help)
    }
    registering! {
        /// A gauge for each combination of `labels`.
        gauge_vec(labels: &[&str]) -> IntGaugeVec as GaugeVec,
        |name, help, labels| IntGaugeVec::new(Opts::new(name, help), labels)
    }
    registering! {
        /// A histogram `semel_{name}` with the upper bounds `buckets` (inclusive, ascending), such as
        /// [`LATENCY_BUCKETS`].
        histogram(buckets: &[f64]) -> Histogram as Histogram,
        |name, help, buckets| Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec()))
    }
    registering! {
        /// A histogram for each combination of `labels`.
        histogram_vec(labels: &[&str], buckets: &[f64]) -> HistogramVec as HistogramVec,
        |name, help, labels, buckets| HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), labels)
    }

    /// Calls `update` before each scrape, for values that are cheaper to read when asked for than to keep current.
    pub fn on_scrape(&self, update: impl Fn() + Send + Sync + 'static) {
        self.shared.before_scrape.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(update));
    }

    /// Adds a collector of one's own; a name that is taken is logged and left out.
    pub fn register(&self, collector: Box<dyn Collector>) {
        if let Err(error) = self.shared.registry.register(collector) {
            tracing::error!(%error, "cannot register metric");
        }
    }

    /// Everything, in Prometheus's text format.
    #[must_use]
    pub fn encode(&self) -> String {
        for update in self.shared.before_scrape.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            update();
        }
        TextEncoder::new().encode_to_string(&self.shared.registry.gather()).unwrap_or_else(|error| {
            tracing::error!(%error, "cannot encode metrics");
            String::new()
        })
    }
}

impl Default for Registry {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_name_is_one_metric() {
        let registry = Registry::new();
        registry.counter("made_total", "help").inc();
        registry.counter("made_total", "help").inc();
        registry.counter_vec("kinds_total", "help", &["kind"]).with_label_values(&["a"]).inc_by(5);
        registry.histogram("seconds", "help", LATENCY_BUCKETS).observe(0.002);
        let gauge = registry.gauge("level", "help");
        registry.on_scrape(move || gauge.set(7));
        let text = registry.encode();
        for line in [
            "semel_made_total 2",
            "semel_kinds_total{kind=\"a\"} 5",
            "semel_seconds_count 1",
            "semel_level 7",
        ] {
            assert!(text.contains(line), "{line} not in {text}");
        }
    }

    #[test]
    fn the_process_is_measured() {
        let text = Registry::new().encode();
        let value = |name: &str| -> f64 {
            text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap()
        };
        assert!(value("process_resident_memory_bytes ") > 100_000.0);
        assert!(value("process_open_fds ") >= 3.0);
        assert!(value("process_threads ") >= 1.0);
        assert!(value("process_cpu_seconds_total ") >= 0.0);
    }
}
