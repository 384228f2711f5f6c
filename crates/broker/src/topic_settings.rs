//! A topic's configuration as the data path uses it: resolved once, when the metadata changes, and shared by the
//! topic's partitions.

use semel_metadata::config::Effective;
use semel_model::{Millis, Timestamp};
pub(crate) use semel_partition::Durability;
use semel_record::{Codec, Compression, DecodeLimits, Limits};

/// What a produced batch may unpack to where the topic must look into it (another codec, keys for compaction), in bytes:
/// sixty times the default largest batch. A topic that stores what it gets has no such bound.
const UNPACKED_BYTES_MAX: usize = 64 << 20;

/// Everything an append, a read or housekeeping asks of a topic's configuration.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TopicSettings {
    pub(crate) log: semel_log::Config,
    pub(crate) durability: Durability,
    pub(crate) min_insync_replicas: usize,
    /// The codec stored, where it is not the producer's choice (`compression.type`).
    pub(crate) compression: Option<Compression>,
    /// `message.timestamp.type=LogAppendTime`.
    pub(crate) append_time: bool,
    timestamp_before_max: Millis,
    timestamp_after_max: Millis,
    pub(crate) flush_messages: i64,
    pub(crate) flush_ms: Millis,
}

impl TopicSettings {
    pub(crate) fn new(effective: &Effective) -> Self {
        let long = |name| effective.long(name).unwrap_or_default();
        let limit = |name| effective.long(name).filter(|value| *value >= 0);
        let size = |name| u32::try_from(long(name)).unwrap_or(u32::MAX);
        let policy: Vec<&str> = effective.list("cleanup.policy").collect();
        let level = |name| effective.int(name).unwrap_or_default();
        let defaults = semel_log::Config::default();
        Self {
            log: semel_log::Config {
                segment_bytes: size("segment.bytes")
                    .clamp(semel_log::Config::SEGMENT_BYTES_MIN, i32::MAX as u32),
                segment_ms: Millis(long("segment.ms").max(1)),
                segment_jitter_ms: Millis(0),
                segment_index_bytes: size("segment.index.bytes").clamp(24, i32::MAX as u32),
                index_interval_bytes: size("index.interval.bytes"),
                retention_ms: limit("retention.ms").map(Millis),
                retention_bytes: limit("retention.bytes").and_then(|bytes| u64::try_from(bytes).ok()),
                cleanup_policy: semel_log::CleanupPolicy {
                    delete: policy.contains(&"delete"),
                    compact: policy.contains(&"compact"),
                },
                delete_retention_ms: Millis(long("delete.retention.ms")),
                min_compaction_lag_ms: Millis(long("min.compaction.lag.ms")),
                max_compaction_lag_ms: Millis(long("max.compaction.lag.ms")),
                min_cleanable_dirty_ratio: effective.double("min.cleanable.dirty.ratio").unwrap_or(0.5),
                file_delete_delay_ms: Millis(long("file.delete.delay.ms")),
                max_message_bytes: size("max.message.bytes"),
                ..defaults
            },
            durability: match effective.text("semel.durability") {
                Some("os") => Durability::Os,
                Some("interval") => Durability::Interval,
                // Also for a value of a later version: the safe one.
                _ => Durability::Fsync,
            },
            min_insync_replicas: usize::try_from(long("min.insync.replicas")).unwrap_or(1).max(1),
            compression: match effective.text("compression.type") {
                Some("uncompressed") => Some(Compression::of(Codec::None)),
                Some("gzip") => Some(Compression {
                    codec: Codec::Gzip,
                    level: Some(level("compression.gzip.level")).filter(|l| *l >= 0),
                }),
                Some("snappy") => Some(Compression::of(Codec::Snappy)),
                Some("lz4") => {
                    Some(Compression { codec: Codec::Lz4, level: Some(level("compression.lz4.level")) })
                }
                Some("zstd") => {
                    Some(Compression { codec: Codec::Zstd, level: Some(level("compression.zstd.level")) })
                }
                _ => None,
            },
            append_time: effective.text("message.timestamp.type") == Some("LogAppendTime"),
            timestamp_before_max: Millis(long("message.timestamp.before.max.ms")),
            timestamp_after_max: Millis(long("message.timestamp.after.max.ms")),
            flush_messages: long("flush.messages").max(1),
            flush_ms: Millis(long("flush.ms").max(0)),
        }
    }

    /// What a produced batch must keep to, at this moment.
    pub(crate) fn limits(&self, now: Timestamp) -> Limits {
        let (timestamp_min, timestamp_max) = if self.append_time {
            // The producer's times are replaced.
            (Timestamp(i64::MIN), Timestamp(i64::MAX))
        } else {
            (
                Timestamp(now.get().saturating_sub(self.timestamp_before_max.get())),
                now.plus(self.timestamp_after_max),
            )
        };
        Limits {
            message_bytes_max: self.log.max_message_bytes as usize,
            timestamp_min,
            timestamp_max,
            keys_required: self.log.cleanup_policy.compact,
            decode: DecodeLimits { decompressed_bytes_max: UNPACKED_BYTES_MAX },
        }
    }
}
