//! What the broker counts. Labels come from what the node serves, never from what a client sends.

use std::sync::{Arc, Weak};

use semel_service::metrics::{Histogram, IntCounter, LATENCY_BUCKETS, Registry};

use crate::node::Node;

/// Shared by all partitions of the node.
pub(crate) struct PartitionMetrics {
    pub(crate) duplicates: IntCounter,
    bytes_in: IntCounter,
    records_in: IntCounter,
    batches_in: IntCounter,
    pub(crate) fsync_seconds: Histogram,
    pub(crate) compacted_bytes: IntCounter,
    pub(crate) deleted_bytes: IntCounter,
}

impl PartitionMetrics {
    pub(crate) fn new(registry: &Registry) -> Self {
        Self {
            duplicates: registry.counter(
                "duplicate_batches_total",
                "Retries of acknowledged batches, answered with their first offset",
            ),
            bytes_in: registry.counter("log_append_bytes_total", "Bytes of batches appended"),
            records_in: registry.counter("log_append_records_total", "Records appended"),
            batches_in: registry.counter("log_append_batches_total", "Batches appended"),
            fsync_seconds: registry.histogram(
                "log_fsync_seconds",
                "One sync of one partition",
                LATENCY_BUCKETS,
            ),
            compacted_bytes: registry.counter("log_compacted_bytes_total", "Bytes that compaction removed"),
            deleted_bytes: registry.counter("log_deleted_bytes_total", "Bytes that retention removed"),
        }
    }

    pub(crate) fn appended(&self, bytes: usize, records: i32) {
        self.bytes_in.inc_by(bytes as u64);
        self.records_in.inc_by(u64::from(records.unsigned_abs()));
        self.batches_in.inc();
    }
}

/// Values that are cheaper to read when somebody asks than to keep current.
pub(crate) fn on_scrape(registry: &Registry, node: &Arc<Node>) {
    let labels = &["topic", "partition"];
    let log_start = registry.gauge_vec("partition_log_start_offset", "First offset of a partition", labels);
    let stable =
        registry.gauge_vec("partition_last_stable_offset", "Last stable offset of a partition", labels);
    let high = registry.gauge_vec("partition_high_watermark", "High watermark of a partition", labels);
    let end = registry.gauge_vec("partition_log_end_offset", "Log end offset of a partition", labels);
    let size = registry.gauge_vec("partition_size_bytes", "Bytes of batches of a partition", labels);
    let count = registry.gauge("partitions", "Partitions hosted by this broker");
    let failed = registry.gauge("log_directories_failed", "Log directories that have failed");
    let index = registry.gauge("metadata_index", "Index of the metadata applied by this broker");
    let node: Weak<Node> = Arc::downgrade(node);
    registry.on_scrape(move || {
        let Some(node) = node.upgrade() else { return };
        // Partitions that are gone must not stay in the output.
        for gauge in [&log_start, &stable, &high, &end, &size] {
            gauge.reset();
        }
        let partitions = node.partitions.all();
        for partition in &partitions {
            let watermarks = partition.watermarks();
            let index = partition.id.partition.to_string();
            let labels = &[partition.topic.as_str(), index.as_str()];
            log_start.with_label_values(labels).set(watermarks.log_start_offset.get());
            stable.with_label_values(labels).set(watermarks.last_stable_offset.get());
            high.with_label_values(labels).set(watermarks.high_watermark.get());
            end.with_label_values(labels).set(watermarks.log_end_offset.get());
            size.with_label_values(labels).set(i64::try_from(partition.size_in_bytes()).unwrap_or(i64::MAX));
        }
        count.set(i64::try_from(partitions.len()).unwrap_or(i64::MAX));
        let broken =
            node.partitions.directories().iter().filter(|directory| directory.dir.has_failed()).count();
        failed.set(i64::try_from(broken + node.unusable.len()).unwrap_or(i64::MAX));
        index.set(i64::try_from(node.metadata.image().index().get()).unwrap_or(i64::MAX));
    });
}
