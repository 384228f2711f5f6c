//! Kafka's text checkpoints: a version, a count, and as many lines.
//!
//! ```text
//! 0              version
//! 2              how many lines follow
//! orders 0 1042  leader-epoch-checkpoint: <epoch> <start offset>
//! orders 1 998   the directory's checkpoints: <topic> <partition> <offset>
//! ```

use std::{collections::BTreeMap, fmt::Write as _, io, path::Path};

use semel_env::Disk;
use semel_model::{Offset, PartitionIndex, TopicName};

use crate::{
    error::{Doing, StorageError},
    names::PartitionName,
};

/// Larger than a checkpoint of a hundred thousand partitions with the longest names.
const CHECKPOINT_BYTES_MAX: u64 = 64 << 20;

/// `None` if there is no such file.
pub(crate) fn read_text<D: Disk>(disk: &D, path: &Path) -> Result<Option<String>, StorageError> {
    match disk.read(path, CHECKPOINT_BYTES_MAX) {
        Ok(bytes) => match String::from_utf8(bytes) {
            Ok(text) => Ok(Some(text)),
            Err(_) => Err(StorageError::invalid("read", path, "not UTF-8")),
        },
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(StorageError::new("read", path, cause)),
    }
}

/// The lines of a checkpoint, each parsed by `line`; the reason if it is malformed.
pub(crate) fn parse<T>(text: &str, line: impl Fn(&str) -> Option<T>) -> Result<Vec<T>, String> {
    let mut lines = text.lines();
    match lines.next().map(str::trim) {
        Some("0") => {}
        Some(version) => return Err(format!("unknown version {version:?}")),
        None => return Err("empty file".into()),
    }
    let expected: usize =
        lines.next().and_then(|count| count.trim().parse().ok()).ok_or("no count of entries")?;
    let entries: Vec<T> = lines
        .map(|text| line(text).ok_or_else(|| format!("malformed line {text:?}")))
        .collect::<Result<_, _>>()?;
    if entries.len() != expected {
        return Err(format!("{expected} entries expected, {} found", entries.len()));
    }
    Ok(entries)
}

/// A whole checkpoint; each item is one line.
pub(crate) fn render<T: std::fmt::Display>(lines: impl ExactSizeIterator<Item = T>) -> String {
    let mut text = format!("0\n{}\n", lines.len());
    for line in lines {
        // Writing to a string can't fail.
        let _ = writeln!(text, "{line}");
    }
    text
}

/// Two numbers, one space: the lines of `leader-epoch-checkpoint` and of Semel's own files.
pub(crate) fn pair<A: std::str::FromStr, B: std::str::FromStr>(line: &str) -> Option<(A, B)> {
    let (a, b) = line.split_once(' ')?;
    Some((a.parse().ok()?, b.trim_end().parse().ok()?))
}

/// Offsets by partition: `recovery-point-offset-checkpoint`, `log-start-offset-checkpoint` and
/// `replication-offset-checkpoint`.
pub type Offsets = BTreeMap<PartitionName, Offset>;

pub(crate) fn render_offsets(offsets: &Offsets) -> String {
    render(offsets.iter().map(|(name, offset)| format!("{} {} {offset}", name.topic, name.partition)))
}

pub(crate) fn parse_offsets(text: &str) -> Result<Offsets, String> {
    let lines = parse(text, |line| {
        let mut words = line.split_ascii_whitespace();
        let topic = TopicName::new(words.next()?).ok()?;
        let partition = PartitionIndex(words.next()?.parse().ok().filter(|index| *index >= 0)?);
        let offset = Offset(words.next()?.parse().ok().filter(|offset| *offset >= 0)?);
        words.next().is_none().then_some((PartitionName { topic, partition }, offset))
    })?;
    Ok(lines.into_iter().collect())
}

/// Empty if there is no such file; an error if it is malformed.
pub(crate) fn read_offsets<D: Disk>(disk: &D, path: &Path) -> Result<Offsets, StorageError> {
    match read_text(disk, path)? {
        Some(text) => parse_offsets(&text).map_err(|why| StorageError::invalid("read checkpoint", path, why)),
        None => Ok(Offsets::new()),
    }
}

pub(crate) fn write_offsets<D: Disk>(disk: &D, path: &Path, offsets: &Offsets) -> Result<(), StorageError> {
    disk.write_atomic(path, render_offsets(offsets).as_bytes()).doing("write checkpoint", path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_kafkas() {
        let name = |topic, partition| PartitionName {
            topic: TopicName::new(topic).unwrap(),
            partition: PartitionIndex(partition),
        };
        let offsets = Offsets::from([(name("b", 1), Offset(7)), (name("a-x", 0), Offset(1042))]);
        let text = render_offsets(&offsets);
        assert_eq!(text, "0\n2\na-x 0 1042\nb 1 7\n");
        assert_eq!(parse_offsets(&text), Ok(offsets));
        assert_eq!(parse_offsets("0\n0\n"), Ok(Offsets::new()));
    }

    #[test]
    fn malformed_checkpoints_are_named() {
        for (text, why) in [
            ("", "empty file"),
            ("1\n0\n", "unknown version \"1\""),
            ("0\n", "no count of entries"),
            ("0\n2\na 0 1\n", "2 entries expected, 1 found"),
            ("0\n1\na 0\n", "malformed line \"a 0\""),
            ("0\n1\na 0 -1\n", "malformed line \"a 0 -1\""),
            ("0\n1\na 0 1 2\n", "malformed line \"a 0 1 2\""),
        ] {
            assert_eq!(parse_offsets(text), Err(why.to_owned()));
        }
    }
}
