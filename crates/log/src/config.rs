//! What a topic may set about its log.

use semel_model::Millis;
use thiserror::Error;

/// What happens to old data (`cleanup.policy`). Both may be set; neither means that everything is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CleanupPolicy {
    /// Whole segments go when they are too old or the log is too large.
    pub delete: bool,
    /// Of each key only the last value stays.
    pub compact: bool,
}

/// A partition's log settings. Field by field Kafka's topic configuration, with Kafka's defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `segment.bytes`, 1 GiB: a segment that would grow beyond is closed. At least [`Config::SEGMENT_BYTES_MIN`],
    /// at most `i32::MAX`.
    pub segment_bytes: u32,
    /// `segment.ms`, 7 days: a segment this old is closed. At least 1.
    pub segment_ms: Millis,
    /// `segment.jitter.ms`, 0: already drawn by the caller for this log, and taken off `segment_ms`, so that not
    /// all logs roll at one moment. In `0..=segment_ms`.
    pub segment_jitter_ms: Millis,
    /// `segment.index.bytes`, 10 MiB: a segment whose offset or time index is this large is closed. At least 24.
    pub segment_index_bytes: u32,
    /// `index.interval.bytes`, 4096: how many bytes of batches lie between two index entries, at least.
    pub index_interval_bytes: u32,
    /// `retention.ms`, 7 days; `None` keeps for ever.
    pub retention_ms: Option<Millis>,
    /// `retention.bytes`, no limit.
    pub retention_bytes: Option<u64>,
    /// `cleanup.policy`, delete.
    pub cleanup_policy: CleanupPolicy,
    /// `delete.retention.ms`, 1 day: how long a tombstone or a transaction marker stays after compaction first met it.
    pub delete_retention_ms: Millis,
    /// `min.compaction.lag.ms`, 0: a record younger than this is not compacted.
    pub min_compaction_lag_ms: Millis,
    /// `max.compaction.lag.ms`, no limit (`i64::MAX`): a record older than this is compacted whatever the ratio.
    pub max_compaction_lag_ms: Millis,
    /// `min.cleanable.dirty.ratio`, 0.5: the share of bytes not yet compacted from which compaction pays. In `0..=1`.
    pub min_cleanable_dirty_ratio: f64,
    /// `file.delete.delay.ms`, 60 s: how long a deleted segment's file stays under another name.
    pub file_delete_delay_ms: Millis,
    /// `max.message.bytes`, 1,048,588: the largest batch, inclusive. Enforced by whoever validates produced batches;
    /// here it sizes buffers.
    pub max_message_bytes: u32,
    /// Not Kafka's: the most bytes one batch may unpack to when compaction or a look-up by time must read it, 256 MiB.
    pub decompressed_bytes_max: usize,
}

impl Config {
    /// The smallest segment: one batch header and a little.
    pub const SEGMENT_BYTES_MIN: u32 = 128;

    /// Refuses values out of range and fields that disagree.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let range = |name, ok: bool, allowed| {
            if ok { Ok(()) } else { Err(ConfigError::OutOfRange { name, allowed }) }
        };
        range(
            "segment.bytes",
            (Self::SEGMENT_BYTES_MIN..=i32::MAX as u32).contains(&self.segment_bytes),
            "128..=2147483647",
        )?;
        range("segment.ms", self.segment_ms.get() >= 1, "1..")?;
        range("segment.jitter.ms", self.segment_jitter_ms.get() >= 0, "0..")?;
        range(
            "segment.index.bytes",
            (24..=i32::MAX as u32).contains(&self.segment_index_bytes),
            "24..=2147483647",
        )?;
        range("retention.ms", self.retention_ms.is_none_or(|span| span.get() >= 0), "-1..")?;
        range("delete.retention.ms", self.delete_retention_ms.get() >= 0, "0..")?;
        range("min.compaction.lag.ms", self.min_compaction_lag_ms.get() >= 0, "0..")?;
        range("max.compaction.lag.ms", self.max_compaction_lag_ms.get() >= 1, "1..")?;
        range("min.cleanable.dirty.ratio", (0.0..=1.0).contains(&self.min_cleanable_dirty_ratio), "0..=1")?;
        range("file.delete.delay.ms", self.file_delete_delay_ms.get() >= 0, "0..")?;
        if self.segment_jitter_ms > self.segment_ms {
            return Err(ConfigError::Disagree { one: "segment.jitter.ms", other: "segment.ms" });
        }
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms {
            return Err(ConfigError::Disagree {
                one: "min.compaction.lag.ms",
                other: "max.compaction.lag.ms",
            });
        }
        Ok(())
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            segment_bytes: 1 << 30,
            segment_ms: Millis::from_secs(7 * 24 * 3600),
            segment_jitter_ms: Millis(0),
            segment_index_bytes: 10 << 20,
            index_interval_bytes: 4096,
            retention_ms: Some(Millis::from_secs(7 * 24 * 3600)),
            retention_bytes: None,
            cleanup_policy: CleanupPolicy { delete: true, compact: false },
            delete_retention_ms: Millis::from_secs(24 * 3600),
            min_compaction_lag_ms: Millis(0),
            max_compaction_lag_ms: Millis(i64::MAX),
            min_cleanable_dirty_ratio: 0.5,
            file_delete_delay_ms: Millis(60_000),
            max_message_bytes: 1_048_588,
            decompressed_bytes_max: 256 << 20,
        }
    }
}

/// Why a [`Config`] can't be used.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ConfigError {
    /// One value is out of its range.
    #[error("{name} must be in {allowed}")]
    OutOfRange {
        /// Kafka's name of the setting.
        name: &'static str,
        /// The range.
        allowed: &'static str,
    },
    /// Two values contradict each other.
    #[error("{one} must not be greater than {other}")]
    Disagree {
        /// Kafka's name of the smaller one.
        one: &'static str,
        /// Kafka's name of the greater one.
        other: &'static str,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_kafkas_and_valid() {
        let config = Config::default();
        assert_eq!(config.segment_bytes, 1_073_741_824);
        assert_eq!(config.retention_ms, Some(Millis(604_800_000)));
        assert_eq!(config.validate(), Ok(()));
    }

    #[test]
    fn bad_values_are_named() {
        let named = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            config.validate().unwrap_err().to_string()
        };
        assert_eq!(named(|c| c.segment_bytes = 1), "segment.bytes must be in 128..=2147483647");
        assert_eq!(
            named(|c| c.min_cleanable_dirty_ratio = 1.5),
            "min.cleanable.dirty.ratio must be in 0..=1"
        );
        let disagree = named(|c| {
            c.min_compaction_lag_ms = Millis(5);
            c.max_compaction_lag_ms = Millis(2);
        });
        assert_eq!(disagree, "min.compaction.lag.ms must not be greater than max.compaction.lag.ms");
    }
}
