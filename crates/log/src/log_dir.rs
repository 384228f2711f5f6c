//! A directory of partitions (`log.dirs`), its identity and its checkpoints; and several of them.

use std::{
    collections::BTreeMap,
    fmt, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use semel_env::{Disk, Space};
use semel_model::{BrokerEpoch, BrokerId, TopicId};
use thiserror::Error;

use crate::{
    checkpoint::{self, Offsets},
    error::{Doing, StorageError},
    names::{LOG, PARTITION_METADATA, PartitionName, TEMPORARY, parse_segment_file},
};

const LOCK: &str = ".lock";
const META: &str = "meta.properties";
const CLEAN_SHUTDOWN: &str = ".kafka_cleanshutdown";
const RECOVERY_POINTS: &str = "recovery-point-offset-checkpoint";
const LOG_STARTS: &str = "log-start-offset-checkpoint";
const HIGH_WATERMARKS: &str = "replication-offset-checkpoint";
const CLEANED: &str = "cleaner-offset-checkpoint";
const DELETE: &str = "-delete";
const STRAY: &str = "-stray";
/// How often the log of one partition is set aside before an operator must look.
const STRAYS_MAX: u32 = 100;
/// The longest name of a file or directory.
const NAME_BYTES_MAX: usize = 255;

/// A directory's identity (KIP-858), printed as all of Kafka's ids.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DirectoryId([u8; 16]);

impl DirectoryId {
    /// From sixteen random bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The sixteen bytes that stand on the wire.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    fn parse(text: &str) -> Option<Self> {
        TopicId::parse(text).map(|id| Self(id.to_bytes()))
    }
}

impl fmt::Display for DirectoryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        TopicId::from_bytes(self.0).fmt(f)
    }
}

impl fmt::Debug for DirectoryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DirectoryId({self})")
    }
}

/// What `meta.properties` says: whose directory this is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaProperties {
    /// The cluster it belongs to; empty if it was not yet known when the directory was made.
    pub cluster_id: String,
    /// The node.
    pub node_id: BrokerId,
    /// The directory.
    pub directory_id: DirectoryId,
}

impl MetaProperties {
    fn render(&self) -> String {
        format!(
            "#\ncluster.id={}\ndirectory.id={}\nnode.id={}\nversion=1\n",
            self.cluster_id, self.directory_id, self.node_id
        )
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut values = BTreeMap::new();
        for line in
            text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(['#', '!']))
        {
            let (key, value) = line.split_once('=').ok_or_else(|| format!("malformed line {line:?}"))?;
            values.insert(key.trim(), value.trim());
        }
        let value = |key: &str| values.get(key).copied().ok_or_else(|| format!("no {key}"));
        if value("version")? != "1" {
            return Err(format!("unknown version {:?}", value("version")?));
        }
        let node_id = value("node.id")?.parse().map_err(|_| "node.id is no number")?;
        let directory_id = DirectoryId::parse(value("directory.id")?).ok_or("directory.id is no id")?;
        Ok(Self { cluster_id: value("cluster.id")?.to_owned(), node_id: BrokerId(node_id), directory_id })
    }
}

/// Who opens a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster, if it is known.
    pub cluster_id: Option<String>,
    /// The node.
    pub node_id: BrokerId,
    /// What the directory is called if it is a new one: drawn at random by the caller.
    pub new_directory_id: DirectoryId,
}

/// Why a directory can't be used.
#[derive(Debug, Error)]
pub enum LogDirError {
    /// Another process has it.
    #[error("log directory {} is in use by another process", path.display())]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// It holds another cluster's data.
    #[error("log directory {} belongs to cluster {found:?}, not {expected:?}", path.display())]
    InconsistentClusterId {
        /// The directory.
        path: PathBuf,
        /// In its `meta.properties`.
        found: String,
        /// The caller's.
        expected: String,
    },
    /// It holds another node's data.
    #[error("log directory {} belongs to node {found}, not {expected}", path.display())]
    InconsistentNodeId {
        /// The directory.
        path: PathBuf,
        /// In its `meta.properties`.
        found: BrokerId,
        /// The caller's.
        expected: BrokerId,
    },
    /// `INCONSISTENT_TOPIC_ID`: a partition of another topic with this name is there.
    #[error("partition {name} is there for topic id {found}, not {expected}")]
    InconsistentTopicId {
        /// The partition.
        name: PartitionName,
        /// In its `partition.metadata`.
        found: TopicId,
        /// The caller's.
        expected: TopicId,
    },
    /// The disk refused.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// A partition's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionDir {
    /// The partition.
    pub name: PartitionName,
    /// Where its log is.
    pub path: PathBuf,
    /// Which topic of this name; `None` if its `partition.metadata` is missing or damaged.
    pub topic_id: Option<TopicId>,
}

/// What was found in a directory when it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// Whether the last process ended properly. The mark of it is gone by now: the next start must earn it again.
    pub clean: bool,
    /// The broker epoch that process had, if it ended properly and said so (KIP-966).
    pub broker_epoch: Option<BrokerEpoch>,
    /// By partition: everything below is on stable storage.
    pub recovery_points: Offsets,
    /// By partition: where the log starts.
    pub log_starts: Offsets,
    /// By partition: the high watermark.
    pub high_watermarks: Offsets,
    /// By partition: everything below was compacted.
    pub cleaned: Offsets,
    /// The partitions there are.
    pub partitions: Vec<PartitionDir>,
    /// Names of checkpoints that could not be understood and count as empty.
    pub damaged_checkpoints: Vec<&'static str>,
    /// How many deleted partitions' directories were finished off.
    pub removed_partitions: usize,
}

/// One directory of partitions. Shared between threads; it holds no partition's log.
#[derive(Debug)]
pub struct LogDir<D: Disk> {
    disk: D,
    path: PathBuf,
    meta: MetaProperties,
    _lock: D::Lock,
    failed: AtomicBool,
    partitions: AtomicUsize,
}

impl<D: Disk> LogDir<D> {
    /// Takes the directory for this process, making it if it is missing, and reads all but the logs.
    ///
    /// Works on a full disk too, unless the directory is a new one.
    pub fn open(disk: D, path: PathBuf, identity: &Identity) -> Result<(Self, Opened), LogDirError> {
        if disk.read_dir(&path).is_err() {
            disk.create_dir_all(&path).doing("create", &path)?;
            let parent =
                path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
            disk.sync_dir(parent).doing("sync", parent)?;
        }
        let lock_path = path.join(LOCK);
        let lock = disk.try_lock(&lock_path).doing("lock", &lock_path)?;
        let Some(lock) = lock else { return Err(LogDirError::Locked { path }) };
        let meta = Self::own(&disk, &path, identity)?;
        let mut opened = Opened::default();
        let clean_path = path.join(CLEAN_SHUTDOWN);
        if let Some(text) = checkpoint::read_text(&disk, &clean_path)? {
            opened.clean = true;
            opened.broker_epoch = parse_broker_epoch(&text);
            // Gone before anything is written: if this process ends badly, the next one must know.
            disk.remove_file(&clean_path).doing("remove", &clean_path)?;
            disk.sync_dir(&path).doing("sync", &path)?;
        }
        let mut damaged = Vec::new();
        let mut read = |name: &'static str| match checkpoint::read_offsets(&disk, &path.join(name)) {
            Err(error) if error.cause.kind() == io::ErrorKind::InvalidData => {
                damaged.push(name);
                Ok(Offsets::new())
            }
            other => other,
        };
        opened.recovery_points = read(RECOVERY_POINTS)?;
        opened.log_starts = read(LOG_STARTS)?;
        opened.high_watermarks = read(HIGH_WATERMARKS)?;
        opened.cleaned = read(CLEANED)?;
        opened.damaged_checkpoints = damaged;
        for entry in disk.read_dir(&path).doing("list", &path)? {
            let entry_path = path.join(&entry.name);
            if entry.is_dir && entry.name.ends_with(DELETE) {
                disk.remove_dir_all(&entry_path).doing("remove", &entry_path)?;
                opened.removed_partitions += 1;
            } else if !entry.is_dir && entry.name.ends_with(TEMPORARY) {
                disk.remove_file(&entry_path).doing("remove", &entry_path)?;
            } else if let Some(name) = PartitionName::parse(&entry.name).filter(|_| entry.is_dir) {
                let topic_id = read_topic_id(&disk, &entry_path)?;
                opened.partitions.push(PartitionDir { name, path: entry_path, topic_id });
            }
        }
        let partitions = AtomicUsize::new(opened.partitions.len());
        Ok((Self { disk, path, meta, _lock: lock, failed: AtomicBool::new(false), partitions }, opened))
    }

    /// Checks or writes `meta.properties`.
    fn own(disk: &D, dir: &Path, identity: &Identity) -> Result<MetaProperties, LogDirError> {
        let path = dir.join(META);
        let Some(text) = checkpoint::read_text(disk, &path)? else {
            let meta = MetaProperties {
                cluster_id: identity.cluster_id.clone().unwrap_or_default(),
                node_id: identity.node_id,
                directory_id: identity.new_directory_id,
            };
            disk.write_atomic(&path, meta.render().as_bytes()).doing("write", &path)?;
            return Ok(meta);
        };
        let mut meta =
            MetaProperties::parse(&text).map_err(|why| StorageError::invalid("read", &path, why))?;
        if meta.node_id != identity.node_id {
            let (found, expected) = (meta.node_id, identity.node_id);
            return Err(LogDirError::InconsistentNodeId { path: dir.to_owned(), found, expected });
        }
        match &identity.cluster_id {
            Some(expected) if meta.cluster_id.is_empty() => {
                meta.cluster_id.clone_from(expected);
                disk.write_atomic(&path, meta.render().as_bytes()).doing("write", &path)?;
            }
            Some(expected) if *expected != meta.cluster_id => {
                let (found, expected) = (meta.cluster_id, expected.clone());
                return Err(LogDirError::InconsistentClusterId { path: dir.to_owned(), found, expected });
            }
            _ => {}
        }
        Ok(meta)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The disk it is on.
    #[must_use]
    pub fn disk(&self) -> &D {
        &self.disk
    }

    /// Whose it is.
    #[must_use]
    pub fn meta(&self) -> &MetaProperties {
        &self.meta
    }

    /// Binds a directory that was made before the cluster's id was known.
    ///
    /// Errors: [`LogDirError::InconsistentClusterId`] if it is bound to another one.
    pub fn bind_cluster(&mut self, cluster_id: &str) -> Result<(), LogDirError> {
        if self.meta.cluster_id == cluster_id {
            return Ok(());
        }
        let identity = Identity {
            cluster_id: Some(cluster_id.to_owned()),
            node_id: self.meta.node_id,
            new_directory_id: self.meta.directory_id,
        };
        self.meta = Self::own(&self.disk, &self.path, &identity)?;
        Ok(())
    }

    /// How many partitions it holds.
    #[must_use]
    pub fn partition_count(&self) -> usize {
        self.partitions.load(Ordering::Relaxed)
    }

    /// Whether it failed; its partitions are offline then.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Marks it as failed, for good; whether this is news.
    pub fn mark_failed(&self) -> bool {
        !self.failed.swap(true, Ordering::AcqRel)
    }

    /// Room on its file system.
    pub fn space(&self) -> Result<Space, StorageError> {
        self.disk.space(&self.path).doing("look up the free space of", &self.path)
    }

    /// Makes the directory of a new partition, or finds it; on stable storage when this returns.
    ///
    /// A directory with a log of which it can't be told which topic's it is, is not taken over: it is renamed to
    /// `<name>.<topic id>-stray`, for an operator to look into, and a new one is made.
    /// Errors: [`LogDirError::InconsistentTopicId`] if one of this name belongs to another topic.
    pub fn create_partition(
        &self,
        name: &PartitionName,
        topic_id: TopicId,
    ) -> Result<PartitionDir, LogDirError> {
        let path = self.path.join(name.to_string());
        let mut is_new = false;
        match self.disk.read_dir(&path) {
            Ok(entries) => match read_topic_id(&self.disk, &path)? {
                Some(found) if found != topic_id => {
                    return Err(LogDirError::InconsistentTopicId {
                        name: name.clone(),
                        found,
                        expected: topic_id,
                    });
                }
                Some(_) => return Ok(PartitionDir { name: name.clone(), path, topic_id: Some(topic_id) }),
                None if entries.iter().any(|entry| parse_segment_file(&entry.name, LOG).is_some()) => {
                    self.set_aside(name, &path, topic_id)?;
                }
                // Its maker did not get further.
                None => {}
            },
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => is_new = true,
            Err(cause) => return Err(StorageError::new("list", &path, cause).into()),
        }
        self.disk.create_dir_all(&path).doing("create", &path)?;
        let metadata = path.join(PARTITION_METADATA);
        let text = format!("version: 0\ntopic_id: {topic_id}");
        self.disk.write_atomic(&metadata, text.as_bytes()).doing("write", &metadata)?;
        self.disk.sync_dir(&self.path).doing("sync", &self.path)?;
        if is_new {
            self.partitions.fetch_add(1, Ordering::Relaxed);
        }
        Ok(PartitionDir { name: name.clone(), path, topic_id: Some(topic_id) })
    }

    /// Renames the directory of a log that nobody can be given.
    fn set_aside(&self, name: &PartitionName, from: &Path, topic_id: TopicId) -> Result<(), StorageError> {
        let id = u128::from_be_bytes(topic_id.to_bytes());
        for attempt in 0..STRAYS_MAX {
            let suffix = format!("-{}.{id:032x}.{attempt}{STRAY}", name.partition);
            let to = self.path.join(with_room(name.topic.as_str(), &suffix));
            match self.disk.read_dir(&to) {
                Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
                    tracing::error!(
                        partition = %name, from = %from.display(), to = %to.display(),
                        "partition metadata cannot be read, the log is set aside and a new one is made"
                    );
                    self.disk.rename(from, &to).doing("rename", from)?;
                    return self.disk.sync_dir(&self.path).doing("sync", &self.path);
                }
                Err(cause) => return Err(StorageError::new("list", &to, cause)),
                Ok(_) => {}
            }
        }
        Err(StorageError::invalid("set aside", from, "too many logs of this partition were set aside before"))
    }

    /// Takes a partition out: its directory is renamed to `<name>.<unique>-delete`, on stable storage when this
    /// returns. The path it now has, for [`remove_doomed`](Self::remove_doomed) once its readers had time to finish.
    ///
    /// `unique` is drawn at random by the caller, so that a topic can be deleted twice in a row.
    pub fn doom_partition(&self, name: &PartitionName, unique: u128) -> Result<PathBuf, StorageError> {
        let from = self.path.join(name.to_string());
        let suffix = format!("-{}.{unique:032x}{DELETE}", name.partition);
        let to = self.path.join(with_room(name.topic.as_str(), &suffix));
        self.disk.rename(&from, &to).doing("rename", &from)?;
        self.disk.sync_dir(&self.path).doing("sync", &self.path)?;
        self.partitions.fetch_sub(1, Ordering::Relaxed);
        Ok(to)
    }

    /// Removes what [`doom_partition`](Self::doom_partition) renamed.
    pub fn remove_doomed(&self, path: &Path) -> Result<(), StorageError> {
        match self.disk.remove_dir_all(path) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
                Err(StorageError::new("remove", path, cause))
            }
            _ => Ok(()),
        }
    }

    /// Writes `recovery-point-offset-checkpoint`, in one step.
    pub fn write_recovery_points(&self, offsets: &Offsets) -> Result<(), StorageError> {
        checkpoint::write_offsets(&self.disk, &self.path.join(RECOVERY_POINTS), offsets)
    }

    /// Writes `log-start-offset-checkpoint`, in one step.
    pub fn write_log_starts(&self, offsets: &Offsets) -> Result<(), StorageError> {
        checkpoint::write_offsets(&self.disk, &self.path.join(LOG_STARTS), offsets)
    }

    /// Writes `replication-offset-checkpoint`, in one step.
    pub fn write_high_watermarks(&self, offsets: &Offsets) -> Result<(), StorageError> {
        checkpoint::write_offsets(&self.disk, &self.path.join(HIGH_WATERMARKS), offsets)
    }

    /// Writes `cleaner-offset-checkpoint`, in one step.
    pub fn write_cleaned(&self, offsets: &Offsets) -> Result<(), StorageError> {
        checkpoint::write_offsets(&self.disk, &self.path.join(CLEANED), offsets)
    }

    /// Marks the directory as properly ended: after every log in it was closed and the checkpoints were written.
    pub fn mark_clean(&self, broker_epoch: BrokerEpoch) -> Result<(), StorageError> {
        let path = self.path.join(CLEAN_SHUTDOWN);
        let text = format!("{{\"version\":\"0\",\"broker_epoch\":\"{broker_epoch}\"}}");
        self.disk.write_atomic(&path, text.as_bytes()).doing("write", &path)
    }
}

/// Where a new partition goes: the directory with the fewest that has not failed, the first of equals. `None` if all
/// have failed. `dir_of` finds the directory in what the caller keeps of it.
pub fn pick<'a, T, D: Disk + 'a>(
    dirs: impl IntoIterator<Item = &'a T>,
    dir_of: impl Fn(&'a T) -> &'a LogDir<D>,
) -> Option<&'a T> {
    dirs.into_iter().filter(|dir| !dir_of(dir).has_failed()).min_by_key(|dir| dir_of(dir).partition_count())
}

/// A directory's name, of which the topic's part is cut short if need be. Topic names are ASCII.
fn with_room(topic: &str, suffix: &str) -> String {
    let topic = &topic[..topic.len().min(NAME_BYTES_MAX.saturating_sub(suffix.len()))];
    format!("{topic}{suffix}")
}

/// `None` if the file is missing or damaged.
fn read_topic_id<D: Disk>(disk: &D, partition: &Path) -> Result<Option<TopicId>, StorageError> {
    match checkpoint::read_text(disk, &partition.join(PARTITION_METADATA)) {
        Ok(text) => Ok(text.as_deref().and_then(parse_topic_id)),
        Err(error) if error.cause.kind() == io::ErrorKind::InvalidData => Ok(None),
        Err(error) => Err(error),
    }
}

fn parse_topic_id(text: &str) -> Option<TopicId> {
    let mut lines = text.lines().map(str::trim);
    if lines.next()? != "version: 0" {
        return None;
    }
    TopicId::parse(lines.next()?.strip_prefix("topic_id: ")?)
}

/// The number in `"broker_epoch":"42"`; `None` if there is none (older Kafkas left the file empty) or it is -1.
fn parse_broker_epoch(text: &str) -> Option<BrokerEpoch> {
    let (_, rest) = text.split_once("\"broker_epoch\"")?;
    let rest = rest.trim_start().strip_prefix(':')?.trim_start();
    let rest = rest.strip_prefix('"').unwrap_or(rest);
    let digits = rest.split(|letter: char| !letter.is_ascii_digit()).next()?;
    digits.parse().ok().map(BrokerEpoch)
}

#[cfg(test)]
mod tests {
    use semel_env::{Open, sim::SimDisk};
    use semel_model::{Offset, PartitionIndex, TopicName};

    use super::*;

    fn identity(cluster: Option<&str>) -> Identity {
        Identity {
            cluster_id: cluster.map(str::to_owned),
            node_id: BrokerId(1),
            new_directory_id: DirectoryId::from_bytes([7; 16]),
        }
    }

    fn name(topic: &str, partition: i32) -> PartitionName {
        PartitionName { topic: TopicName::new(topic).unwrap(), partition: PartitionIndex(partition) }
    }

    fn open(disk: &SimDisk) -> (LogDir<SimDisk>, Opened) {
        LogDir::open(disk.clone(), "/data".into(), &identity(Some("c1"))).unwrap()
    }

    fn text(disk: &SimDisk, path: &str) -> String {
        String::from_utf8(disk.read(Path::new(path), 1 << 20).unwrap()).unwrap()
    }

    #[test]
    fn the_files_are_kafkas() {
        let disk = SimDisk::new(1);
        let (dir, _) = open(&disk);
        assert_eq!(
            text(&disk, "/data/meta.properties"),
            "#\ncluster.id=c1\ndirectory.id=BwcHBwcHBwcHBwcHBwcHBw\nnode.id=1\nversion=1\n"
        );
        let topic_id = TopicId::from_bytes([1; 16]);
        dir.create_partition(&name("a-b", 3), topic_id).unwrap();
        assert_eq!(
            text(&disk, "/data/a-b-3/partition.metadata"),
            "version: 0\ntopic_id: AQEBAQEBAQEBAQEBAQEBAQ"
        );
        dir.mark_clean(BrokerEpoch(42)).unwrap();
        assert_eq!(text(&disk, "/data/.kafka_cleanshutdown"), r#"{"version":"0","broker_epoch":"42"}"#);
        dir.write_recovery_points(&Offsets::from([(name("a-b", 3), Offset(9))])).unwrap();
        assert_eq!(text(&disk, "/data/recovery-point-offset-checkpoint"), "0\n1\na-b 3 9\n");
    }

    #[test]
    fn kafkas_own_meta_properties_are_read() {
        let kafka = "#\n#Sat Nov 28 10:00:00 UTC 2026\nnode.id=1\ndirectory.id=AQEBAQEBAQEBAQEBAQEBAQ\nversion=1\ncluster.id=xyz\n";
        let meta = MetaProperties::parse(kafka).unwrap();
        assert_eq!((meta.cluster_id.as_str(), meta.node_id), ("xyz", BrokerId(1)));
        assert!(MetaProperties::parse("version=0\nbroker.id=1\n").is_err());
        assert_eq!(
            parse_broker_epoch("{ \"broker_epoch\" : \"5\", \"version\":\"0\"}"),
            Some(BrokerEpoch(5))
        );
        assert_eq!(parse_broker_epoch("{\"broker_epoch\":\"-1\"}"), None);
        assert_eq!(parse_broker_epoch(""), None);
    }

    #[test]
    fn a_directory_is_found_again_as_it_was_left() {
        let disk = SimDisk::new(1);
        let (dir, first) = open(&disk);
        assert_eq!(first, Opened::default());
        let topic_id = TopicId::from_bytes([1; 16]);
        let made = dir.create_partition(&name("t", 0), topic_id).unwrap();
        dir.create_partition(&name("gone", 0), topic_id).unwrap();
        assert_eq!(dir.partition_count(), 2);
        let points = Offsets::from([(name("t", 0), Offset(9))]);
        dir.write_recovery_points(&points).unwrap();
        dir.write_high_watermarks(&points).unwrap();
        dir.doom_partition(&name("gone", 0), 5).unwrap();
        dir.mark_clean(BrokerEpoch(42)).unwrap();
        drop(dir);
        let (dir, found) = open(&disk);
        assert_eq!(found.partitions, [made]);
        assert_eq!((found.clean, found.broker_epoch), (true, Some(BrokerEpoch(42))));
        assert_eq!((found.recovery_points, found.removed_partitions), (points, 1));
        let other = dir.create_partition(&name("t", 0), TopicId::from_bytes([2; 16]));
        assert!(matches!(other, Err(LogDirError::InconsistentTopicId { .. })));
        disk.crash_losing_all();
        let (_, found) = open(&disk);
        assert!(!found.clean, "a clean mark outlived its use");
        assert_eq!(found.partitions.len(), 1);
    }

    #[test]
    fn a_log_of_an_unknown_topic_is_set_aside_and_not_taken_over() {
        let disk = SimDisk::new(1);
        let (dir, _) = open(&disk);
        let topic_id = TopicId::from_bytes([1; 16]);
        let put = |path: &str, bytes: &[u8]| {
            let file = disk.open(Path::new(path), Open::Truncate).unwrap();
            semel_env::DiskFile::write_all_at(&file, bytes, 0).unwrap();
        };
        // Half made, and so without a log: made to its end.
        disk.create_dir_all(Path::new("/data/half-0")).unwrap();
        dir.create_partition(&name("half", 0), topic_id).unwrap();
        assert!(text(&disk, "/data/half-0/partition.metadata").ends_with("AQEBAQEBAQEBAQEBAQEBAQ"));
        for round in 0..2_u8 {
            dir.create_partition(&name("t", 0), topic_id).unwrap();
            let count = dir.partition_count();
            put("/data/t-0/00000000000000000000.log", &[round; 3]);
            put("/data/t-0/partition.metadata", b"\xff\xfe");
            let made = dir.create_partition(&name("t", 0), topic_id).unwrap();
            assert_eq!(made.path, Path::new("/data/t-0"));
            assert_eq!(disk.read_dir(&made.path).unwrap().len(), 1, "nothing was taken over");
            assert_eq!(dir.partition_count(), count);
            let id = "01".repeat(16);
            let stray = format!("/data/t-0.{id}.{round}-stray/00000000000000000000.log");
            assert_eq!(disk.read(Path::new(&stray), 10).unwrap(), [round; 3]);
        }
        drop(dir);
        let (_, found) = open(&disk);
        assert_eq!(found.partitions.len(), 2, "strays are no partitions");
        assert_eq!(
            disk.read_dir(Path::new("/data")).unwrap().iter().filter(|e| e.name.ends_with("-stray")).count(),
            2
        );
    }

    #[test]
    fn others_directories_are_refused() {
        let disk = SimDisk::new(1);
        let (held, _) = open(&disk);
        let open = |identity: &Identity| LogDir::open(disk.clone(), "/data".into(), identity).map(|_| ());
        assert!(matches!(open(&identity(Some("c1"))), Err(LogDirError::Locked { .. })));
        drop(held);
        assert!(matches!(open(&identity(Some("c2"))), Err(LogDirError::InconsistentClusterId { .. })));
        let other = Identity { node_id: BrokerId(2), ..identity(None) };
        assert!(matches!(open(&other), Err(LogDirError::InconsistentNodeId { .. })));
        assert!(open(&identity(None)).is_ok());
    }

    #[test]
    fn a_damaged_checkpoint_counts_as_empty() {
        let disk = SimDisk::new(1);
        drop(open(&disk));
        let file = disk.open(Path::new("/data/recovery-point-offset-checkpoint"), Open::Create).unwrap();
        semel_env::DiskFile::write_all_at(&file, b"\xff\xfe", 0).unwrap();
        let (_, found) = open(&disk);
        assert_eq!(found.damaged_checkpoints, ["recovery-point-offset-checkpoint"]);
    }

    #[test]
    fn a_new_partition_goes_where_the_fewest_are() {
        let disk = SimDisk::new(1);
        let open = |path: &str| LogDir::open(disk.clone(), path.into(), &identity(None)).unwrap().0;
        let dirs = vec![open("/a"), open("/b")];
        let picked = |dirs: &[LogDir<SimDisk>]| pick(dirs, |dir| dir).map(|dir| dir.path().to_owned());
        assert_eq!(picked(&dirs), Some("/a".into()));
        pick(&dirs, |dir| dir)
            .unwrap()
            .create_partition(&name("t", 0), TopicId::from_bytes([1; 16]))
            .unwrap();
        assert_eq!(picked(&dirs), Some("/b".into()));
        assert!(dirs[1].mark_failed());
        assert!(!dirs[1].mark_failed());
        assert_eq!(picked(&dirs), Some("/a".into()));
        dirs[0].mark_failed();
        assert_eq!(picked(&dirs), None);
    }

    #[test]
    fn a_long_topic_name_can_be_deleted() {
        let disk = SimDisk::new(1);
        let (dir, _) = open(&disk);
        let name = name(&"x".repeat(249), 0);
        dir.create_partition(&name, TopicId::from_bytes([1; 16])).unwrap();
        let doomed = dir.doom_partition(&name, u128::MAX).unwrap();
        assert!(doomed.file_name().unwrap().len() <= 255);
        dir.remove_doomed(&doomed).unwrap();
    }
}
