//! File and directory names, as Kafka has them.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use semel_model::{Offset, PartitionIndex, TopicName};

pub(crate) const LOG: &str = "log";
pub(crate) const INDEX: &str = "index";
pub(crate) const TIME_INDEX: &str = "timeindex";
pub(crate) const TXN_INDEX: &str = "txnindex";
pub(crate) const SNAPSHOT: &str = "snapshot";
/// Ends the names of files that are about to go.
pub(crate) const DELETED: &str = ".deleted";
/// Ends the names of files that compaction has not finished.
pub(crate) const CLEANED: &str = ".cleaned";
/// Ends the names of half-written checkpoints.
pub(crate) const TEMPORARY: &str = ".tmp";

pub(crate) const LEADER_EPOCHS: &str = "leader-epoch-checkpoint";
pub(crate) const PARTITION_METADATA: &str = "partition.metadata";
/// Semel's own, absent from a healthy directory: the offsets whose bytes are damaged.
pub(crate) const CORRUPT_RANGES: &str = "semel-corrupt-ranges";
/// Semel's own, there only between a truncation and the log's being flushed that far again: see `truncate`.
pub(crate) const TRUNCATED: &str = "semel-truncated";
/// Semel's own, there only while compaction swaps segments: which ones are replaced.
pub(crate) const SWAP: &str = "semel-compaction-swap";

/// `<offset, 20 digits>.<kind>`: Kafka's name of a segment's files and of producer snapshots.
pub(crate) fn segment_file(dir: &Path, base_offset: Offset, kind: &str) -> PathBuf {
    dir.join(format!("{:020}.{kind}", base_offset.get()))
}

/// The offset in a name that [`segment_file`] made for this kind.
pub(crate) fn parse_segment_file(name: &str, kind: &str) -> Option<Offset> {
    let digits = name.strip_suffix(kind)?.strip_suffix('.')?;
    if digits.len() != 20 || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok().map(Offset)
}

/// A path with something appended to its last name.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// A partition by name, as its directory is called: `<topic>-<partition>`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionName {
    /// Its topic.
    pub topic: TopicName,
    /// Which of the topic's partitions.
    pub partition: PartitionIndex,
}

impl PartitionName {
    /// Reads `<topic>-<partition>`; topics may hold dashes themselves. `None` for anything else.
    #[must_use]
    pub fn parse(directory: &str) -> Option<Self> {
        let (topic, partition) = directory.rsplit_once('-')?;
        if partition.is_empty() || !partition.bytes().all(|digit| digit.is_ascii_digit()) {
            return None;
        }
        // Kafka writes no leading zeros, so `t-01` is somebody else's directory.
        if partition.len() > 1 && partition.starts_with('0') {
            return None;
        }
        Some(Self { topic: TopicName::new(topic).ok()?, partition: PartitionIndex(partition.parse().ok()?) })
    }
}

impl fmt::Display for PartitionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.topic, self.partition)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segment_files_are_named_as_kafka_names_them() {
        let path = segment_file(Path::new("/d/t-0"), Offset(42), LOG);
        assert_eq!(path, Path::new("/d/t-0/00000000000000000042.log"));
        assert_eq!(parse_segment_file("00000000000000000042.log", LOG), Some(Offset(42)));
        for bad in [
            "42.log",
            "00000000000000000042.index",
            "0000000000000000004x.log",
            "00000000000000000042.log.deleted",
        ] {
            assert_eq!(parse_segment_file(bad, LOG), None, "{bad}");
        }
        assert_eq!(parse_segment_file("99999999999999999999.log", LOG), None);
    }

    #[test]
    fn partition_directories_parse_back() {
        for (name, topic, partition) in [("a-0", "a", 0), ("a-b-c-12", "a-b-c", 12), ("-7-3", "-7", 3)] {
            let parsed = PartitionName::parse(name).unwrap();
            assert_eq!((parsed.topic.as_str(), parsed.partition), (topic, PartitionIndex(partition)));
            assert_eq!(parsed.to_string(), name);
        }
        for bad in ["a", "a-", "-1", "a-01", "a-0.f00d-delete", "a-x", "a/b-0", "a-99999999999"] {
            assert_eq!(PartitionName::parse(bad), None, "{bad}");
        }
    }
}
