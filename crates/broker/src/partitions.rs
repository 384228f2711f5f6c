//! All partitions of this broker: opened, given their roles, reconfigured and removed as the metadata says; looked up
//! by every request without a lock.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use arc_swap::ArcSwap;
use imbl::OrdMap;
use parking_lot::Mutex;
use semel_env::{Clock, Disk as _, Entropy};
use semel_kafka_wire::ErrorCode;
use semel_log::{Known, LogDirError, Opened, PartitionDir, PartitionLog, PartitionName, ProducersAt};
use semel_metadata::{
    ClusterImage, Topic, changes_between,
    config::{StaticConfigs, resolve_topic},
};
use semel_model::{BrokerId, Millis, Offset, PartitionIndex, TopicId, TopicName, TopicPartition};
use semel_partition::{RecoveredLog, Replica};
use semel_record::ControlRecord;

use crate::{
    assignment::{Step, steps},
    directory::{Checkpoints, Directory},
    failure::{Failure, chain},
    lifecycle::Registration,
    metadata_cache::MetadataCache,
    metrics::PartitionMetrics,
    node::{DirectoryInfo, ReplicaInfo},
    partition::Partition,
    topic_settings::TopicSettings,
};

/// How far back before a producer snapshot batches are looked at, so that the retry of any of a producer's last five
/// is known after a restart: the snapshot itself names only the last one.
const RECALL_BYTES: u32 = 4 << 20;
/// Threads that open logs at a start (Kafka's `num.recovery.threads.per.data.dir`).
const RECOVERY_THREADS: usize = 4;

/// The partitions that are open, in two orders. Cheap to clone: a change makes the next one.
#[derive(Clone, Default)]
struct Hosted {
    by_id: OrdMap<TopicPartition, Arc<Partition>>,
    by_name: OrdMap<TopicName, OrdMap<PartitionIndex, Arc<Partition>>>,
}

impl Hosted {
    fn insert(&mut self, partition: Arc<Partition>) {
        self.by_name
            .entry(partition.topic.clone())
            .or_default()
            .insert(partition.id.partition, partition.clone());
        self.by_id.insert(partition.id, partition);
    }

    fn remove(&mut self, id: TopicPartition) -> Option<Arc<Partition>> {
        let partition = self.by_id.remove(&id)?;
        if let Some(of_topic) = self.by_name.get_mut(partition.topic.as_str()) {
            // A topic of the same name may have been created since.
            if of_topic.get(&id.partition).is_some_and(|there| there.id == id) {
                of_topic.remove(&id.partition);
            }
            if of_topic.is_empty() {
                self.by_name.remove(partition.topic.as_str());
            }
        }
        Some(partition)
    }
}

/// A log on disk that is not open: found at the start, or given up because it failed.
#[derive(Clone)]
struct FoundLog {
    directory: Arc<Directory>,
    at: PartitionDir,
    known: Known,
    high_watermark: Offset,
    cleaned_to: Offset,
}

/// What the partitions of a broker have in common.
pub(crate) struct Partitions {
    me: BrokerId,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    statics: Arc<StaticConfigs>,
    metadata: Arc<MetadataCache>,
    metrics: Arc<PartitionMetrics>,
    directories: Vec<Arc<Directory>>,
    /// `producer.id.expiration.ms`: only a restart changes it.
    producer_id_expiration: Millis,
    registration: Registration,
    hosted: ArcSwap<Hosted>,
    /// Held by whoever changes `hosted`: the metadata's task, and housekeeping when it opens a log again.
    changing: Mutex<()>,
    found: Mutex<BTreeMap<PartitionName, FoundLog>>,
    /// Partitions of this broker whose logs could not be opened: tried again until they can.
    unopened: Mutex<BTreeSet<TopicPartition>>,
    /// Whether logs that are nobody's have been looked for.
    strays_dropped: AtomicBool,
    /// Whether a log directory is missing among `directories`, because it could not be opened at the start.
    incomplete: bool,
    /// Partitions older than this start that were not found: they may lie in the directory that is missing.
    missing: Mutex<BTreeSet<TopicPartition>>,
    /// Directories of partitions that are gone, to be removed once their readers had time to finish.
    doomed: Mutex<Vec<(semel_model::Timestamp, Arc<Directory>, PathBuf)>>,
}

/// What [`Partitions::new`] needs.
pub(crate) struct Parts {
    pub(crate) me: BrokerId,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
    pub(crate) statics: Arc<StaticConfigs>,
    pub(crate) metadata: Arc<MetadataCache>,
    pub(crate) metrics: Arc<PartitionMetrics>,
    pub(crate) producer_id_expiration: Millis,
    pub(crate) registration: Registration,
    /// Whether `directories` lacks some of the configuration, because they could not be opened.
    pub(crate) incomplete: bool,
    /// Each with what was found in it.
    pub(crate) directories: Vec<(Arc<Directory>, Opened)>,
}

impl Partitions {
    pub(crate) fn new(parts: Parts) -> Self {
        let mut found = BTreeMap::new();
        let mut directories = Vec::new();
        for (directory, opened) in parts.directories {
            for at in opened.partitions {
                let name = at.name.clone();
                let log = FoundLog {
                    directory: directory.clone(),
                    known: Known {
                        recovery_point: opened.recovery_points.get(&name).copied(),
                        log_start_offset: opened.log_starts.get(&name).copied().unwrap_or(Offset::ZERO),
                        clean: opened.clean,
                    },
                    high_watermark: opened.high_watermarks.get(&name).copied().unwrap_or(Offset::ZERO),
                    cleaned_to: opened.cleaned.get(&name).copied().unwrap_or(Offset::ZERO),
                    at,
                };
                if let Some(other) = found.insert(name, log) {
                    tracing::error!(
                        partition = %other.at.name, left_alone = %other.at.path.display(),
                        "partition is in two log directories, the later one is used"
                    );
                }
            }
            directories.push(directory);
        }
        Self {
            me: parts.me,
            clock: parts.clock,
            entropy: parts.entropy,
            statics: parts.statics,
            metadata: parts.metadata,
            metrics: parts.metrics,
            directories,
            producer_id_expiration: parts.producer_id_expiration,
            registration: parts.registration,
            hosted: ArcSwap::default(),
            changing: Mutex::new(()),
            found: Mutex::new(found),
            unopened: Mutex::default(),
            strays_dropped: AtomicBool::new(false),
            incomplete: parts.incomplete,
            missing: Mutex::default(),
            doomed: Mutex::default(),
        }
    }

    /// The partition, for a request that names its topic.
    ///
    /// Errors: UNKNOWN_TOPIC_OR_PARTITION; NOT_LEADER_OR_FOLLOWER if another broker has it;
    /// KAFKA_STORAGE_ERROR if its log could not be opened.
    pub(crate) fn by_name(&self, topic: &str, partition: i32) -> Result<Arc<Partition>, Failure> {
        let index = PartitionIndex(partition);
        if let Some(found) = self.hosted.load().by_name.get(topic).and_then(|of_topic| of_topic.get(&index)) {
            return Ok(found.clone());
        }
        let image = self.metadata.image();
        let Some(known) = image.topic_by_name(topic) else { return Err(Failure::unknown_topic(topic)) };
        Err(self.elsewhere(known, index))
    }

    /// The partition, for a request that names its topic by id. Errors: as [`by_name`](Self::by_name), and
    /// UNKNOWN_TOPIC_ID.
    pub(crate) fn by_id(&self, id: TopicPartition) -> Result<Arc<Partition>, Failure> {
        if let Some(found) = self.hosted.load().by_id.get(&id) {
            return Ok(found.clone());
        }
        let image = self.metadata.image();
        let Some(known) = image.topic(id.topic) else {
            return Err(Failure::new(ErrorCode::UnknownTopicId, format!("no topic with id {}", id.topic)));
        };
        Err(self.elsewhere(known, id.partition))
    }

    fn elsewhere(&self, topic: &Topic, index: PartitionIndex) -> Failure {
        match topic.partition(index) {
            None => Failure::unknown_partition(topic.name.as_str(), index.get()),
            Some(state) if state.replicas.contains(&self.me) => Failure::new(
                ErrorCode::KafkaStorageError,
                format!("the log of {}-{index} is not available on this broker", topic.name),
            ),
            Some(_) => Failure::new(
                ErrorCode::NotLeaderOrFollower,
                format!("broker {} is no replica of {}-{index}", self.me, topic.name),
            ),
        }
    }

    /// Every open partition.
    pub(crate) fn all(&self) -> Vec<Arc<Partition>> {
        self.hosted.load().by_id.values().cloned().collect()
    }

    pub(crate) fn directories(&self) -> &[Arc<Directory>] {
        &self.directories
    }

    /// Does what the step from `before` to `after` asks of this broker. Blocks: logs are opened and recovered.
    pub(crate) fn follow(&self, before: &ClusterImage, after: &ClusterImage) {
        let _changing = self.changing.lock();
        let steps = steps(self.me, &changes_between(before, after), after, &self.hosted.load().by_id);
        // What goes, goes first: a topic that was deleted and made again needs its name.
        let mut dropped = BTreeSet::new();
        let mut to_host = Vec::new();
        for step in &steps {
            match step {
                Step::Drop(id) => self.drop_partition(*id, &mut dropped),
                Step::Host(id) => to_host.push(*id),
                Step::TakeRole(_) | Step::Reconfigure(_) => {}
            }
        }
        self.unopened
            .lock()
            .retain(|id| after.partition(*id).is_some_and(|state| state.replicas.contains(&self.me)));
        if !dropped.is_empty() {
            // The checkpoints must not speak of what is gone when its name is used again.
            for directory in
                self.directories.iter().filter(|directory| dropped.contains(directory.dir.path()))
            {
                self.checkpoint(directory);
            }
        }
        self.host_all(&to_host, after);
        for step in steps {
            match step {
                Step::Host(_) | Step::Drop(_) => {}
                Step::TakeRole(id) => self.take_role(id, after),
                Step::Reconfigure(topic) => self.reconfigure(topic, after),
            }
        }
        // Once, and not before the image is one that knows this life of the broker: a controller that lags behind
        // does not know the newest topics, and their logs are not strays.
        let current = after.broker(self.me).is_some_and(|broker| broker.epoch == self.registration.epoch());
        if current && !self.strays_dropped.swap(true, Ordering::Relaxed) {
            self.drop_strays(after);
        }
    }

    fn take_role(&self, id: TopicPartition, image: &ClusterImage) {
        let partition = self.hosted.load().by_id.get(&id).cloned();
        if let (Some(partition), Some(state)) = (partition, image.partition(id)) {
            partition.take_role(self.me, state, self.clock.now());
        }
    }

    /// Takes the partitions of failed directories offline, gives up logs that failed by themselves, and opens what
    /// could not be opened before.
    pub(crate) fn heal(&self, image: &ClusterImage) {
        let _changing = self.changing.lock();
        for partition in self.all() {
            if partition.directory.dir.has_failed() {
                partition.go_offline();
            } else if partition.has_failed() && !partition.is_retired() {
                self.give_up(&partition);
            }
        }
        let again: Vec<TopicPartition> = self.unopened.lock().iter().copied().collect();
        if again.is_empty() {
            return;
        }
        self.host_all(&again, image);
        for id in again {
            self.take_role(id, image);
        }
    }

    /// A log that refuses everything is closed as a crash would, to be opened and recovered.
    fn give_up(&self, partition: &Arc<Partition>) {
        let name = PartitionName { topic: partition.topic.clone(), partition: partition.id.partition };
        tracing::warn!(partition = %name, "log has failed and is opened again");
        let log = partition.tend(|replica, log| FoundLog {
            directory: partition.directory.clone(),
            at: PartitionDir {
                name: name.clone(),
                path: log.dir().to_owned(),
                topic_id: Some(partition.id.topic),
            },
            known: Known {
                recovery_point: Some(log.flushed_end()),
                log_start_offset: log.log_start_offset(),
                clean: false,
            },
            high_watermark: replica.high_watermark(),
            cleaned_to: log.cleaned_to(),
        });
        let Some(log) = log else { return };
        partition.retire();
        let mut hosted = Hosted::clone(&self.hosted.load());
        hosted.remove(partition.id);
        self.hosted.store(Arc::new(hosted));
        self.found.lock().insert(name, log);
        self.unopened.lock().insert(partition.id);
    }

    fn settings(&self, image: &ClusterImage, topic: &Topic) -> Arc<TopicSettings> {
        Arc::new(TopicSettings::new(&resolve_topic(image, self.me, &self.statics, &topic.configs)))
    }

    fn host_all(&self, ids: &[TopicPartition], image: &ClusterImage) {
        let mut settings: BTreeMap<TopicId, Arc<TopicSettings>> = BTreeMap::new();
        let wanted: Vec<_> = ids
            .iter()
            .filter_map(|id| {
                let topic = image.topic(id.topic)?;
                let settings =
                    settings.entry(id.topic).or_insert_with(|| self.settings(image, topic)).clone();
                Some((*id, topic.name.clone(), settings))
            })
            .collect();
        let host = |(id, topic, settings): &(TopicPartition, TopicName, Arc<TopicSettings>)| {
            let opened = self.open(*id, topic, settings.clone());
            if let Err(error) = &opened {
                tracing::error!(
                    partition = %format_args!("{topic}-{}", id.partition), error = format!("{error:#}"),
                    "cannot open log, tried again"
                );
            }
            opened.ok()
        };
        let opened: Vec<Partition> = if wanted.len() <= RECOVERY_THREADS {
            wanted.iter().filter_map(host).collect()
        } else {
            // Recovery waits for the disk: a few at a time, each thread with its own share.
            std::thread::scope(|scope| {
                let share = wanted.len().div_ceil(RECOVERY_THREADS);
                let threads: Vec<_> = wanted
                    .chunks(share)
                    .map(|share| scope.spawn(move || share.iter().filter_map(host).collect::<Vec<_>>()))
                    .collect();
                let joined = threads.into_iter().map(|thread| {
                    thread.join().unwrap_or_else(|_| {
                        tracing::error!("a recovery thread had panicked, its logs are tried again");
                        Vec::new()
                    })
                });
                joined.flatten().collect()
            })
        };
        let mut hosted = Hosted::clone(&self.hosted.load());
        let mut unopened = self.unopened.lock();
        unopened.extend(wanted.iter().map(|(id, _, _)| *id));
        for partition in opened {
            unopened.remove(&partition.id);
            self.found
                .lock()
                .remove(&PartitionName { topic: partition.topic.clone(), partition: partition.id.partition });
            hosted.insert(Arc::new(partition));
        }
        drop(unopened);
        self.hosted.store(Arc::new(hosted));
    }

    /// Opens or creates the log of a partition, and builds its replica from what is in it.
    fn open(
        &self,
        id: TopicPartition,
        topic: &TopicName,
        settings: Arc<TopicSettings>,
    ) -> Result<Partition, anyhow::Error> {
        let name = PartitionName { topic: topic.clone(), partition: id.partition };
        let now = self.clock.now();
        // It stays listed until the log is open: what is known of it must not be lost with a failure.
        let found = self.found.lock().get(&name).cloned();
        let found = match found {
            // Deleted and created again while this broker was away.
            Some(old) if old.at.topic_id.is_some_and(|found| found != id.topic) => {
                self.doom(&old.directory, &name)?;
                self.found.lock().remove(&name);
                self.forget_name(&old.directory, &name)?;
                None
            }
            other => other,
        };
        let (directory, known, high_watermark, cleaned_to) = match found {
            // Not somewhere else: there it would begin empty.
            Some(found) if found.directory.dir.has_failed() => anyhow::bail!("its log directory has failed"),
            Some(found) => (found.directory, found.known, found.high_watermark, found.cleaned_to),
            None if self.may_be_missing(id) => {
                anyhow::bail!("it may lie in a log directory that could not be opened")
            }
            None => {
                let directory = self.place(&name)?;
                let exists =
                    directory.dir.disk().read_dir(&directory.dir.path().join(name.to_string())).is_ok();
                // Nothing is in a new one, so nothing has to be recovered. One that is there was left by a failure.
                let known = if exists {
                    Known::default()
                } else {
                    self.forget_name(&directory, &name)?;
                    Known { recovery_point: Some(Offset::ZERO), log_start_offset: Offset::ZERO, clean: true }
                };
                (directory, known, Offset::ZERO, Offset::ZERO)
            }
        };
        let at = match directory.dir.create_partition(&name, id.topic) {
            Err(LogDirError::InconsistentTopicId { .. }) => {
                self.doom(&directory, &name)?;
                self.forget_name(&directory, &name)?;
                directory.dir.create_partition(&name, id.topic)?
            }
            other => other?,
        };
        let opened = PartitionLog::open(*directory.dir.disk(), at.path, settings.log.clone(), known, now);
        let (mut log, recovery) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                if let semel_log::ReadError::Storage(cause) = &error {
                    directory.trouble(cause);
                }
                return Err(error.into());
            }
        };
        log.set_cleaned_to(cleaned_to);
        if recovery.truncated_bytes > 0 {
            tracing::warn!(
                partition = %name, bytes = recovery.truncated_bytes, log_end_offset = %log.log_end_offset(),
                "cut a torn tail that was never acknowledged"
            );
        }
        for damaged in &recovery.corrupt {
            tracing::error!(
                partition = %name, from = %damaged.start, to = %damaged.end,
                "stored batches are damaged and are not served"
            );
        }
        if let Some(lost) = recovery.lost {
            tracing::error!(partition = %name, from = %lost.start, to = %lost.end, "offsets that were on stable storage are gone");
        }
        if recovery.rebuilt_indexes > 0 {
            tracing::info!(partition = %name, segments = recovery.rebuilt_indexes, "built indexes anew");
        }
        let config = self.partition_config(&settings);
        let recovered = RecoveredLog {
            log_start_offset: log.log_start_offset(),
            log_end_offset: log.log_end_offset(),
            high_watermark,
            flushed_end: log.flushed_end(),
        };
        let ProducersAt { entries, offset } = log.producers();
        let mut replica = Replica::recovered(self.me, config, recovered, &entries, now);
        for header in log.headers_before(offset, RECALL_BYTES)?.iter().rev() {
            replica.recall(header);
        }
        log.replay(offset, &mut |header, control| {
            let marker = match &control {
                Some(ControlRecord::EndTransaction(marker)) => Some(marker),
                _ => None,
            };
            replica.replay(header, marker, now);
        })?;
        Ok(Partition::new(id, topic.clone(), directory, settings, self.metrics.clone(), replica, log))
    }

    /// Makes sure that the directory's checkpoints don't speak of an earlier partition of this name: a start after a
    /// crash would take its offsets for promises of the new one.
    fn forget_name(&self, directory: &Arc<Directory>, name: &PartitionName) -> Result<(), anyhow::Error> {
        let may_name = || directory.checkpoints.lock().may_name(name);
        if may_name() {
            self.checkpoint(directory);
        }
        anyhow::ensure!(!may_name(), "the checkpoints of {} still name it", directory.dir.path().display());
        Ok(())
    }

    fn partition_config(&self, settings: &TopicSettings) -> semel_partition::Config {
        semel_partition::Config {
            durability: settings.durability,
            min_insync_replicas: settings.min_insync_replicas,
            producer_id_expiration: self.producer_id_expiration,
            ..semel_partition::Config::default()
        }
    }

    /// Whether a partition that was not found may lie in a directory that could not be opened. What this broker is
    /// told of before it has seen itself in the metadata is older than this start.
    fn may_be_missing(&self, id: TopicPartition) -> bool {
        if !self.incomplete {
            return false;
        }
        let mut missing = self.missing.lock();
        if !self.strays_dropped.load(Ordering::Relaxed) {
            missing.insert(id);
        }
        missing.contains(&id)
    }

    /// Where a partition that was not found at the start goes: where it lies, else where the fewest are.
    fn place(&self, name: &PartitionName) -> Result<Arc<Directory>, anyhow::Error> {
        let mut usable = self.directories.iter().filter(|directory| !directory.dir.has_failed());
        let there = usable.find(|directory| {
            directory.dir.disk().read_dir(&directory.dir.path().join(name.to_string())).is_ok()
        });
        there
            .or_else(|| semel_log::pick(&self.directories, |directory| &directory.dir))
            .cloned()
            .ok_or_else(|| anyhow::anyhow!("every log directory has failed"))
    }

    fn reconfigure(&self, topic: TopicId, image: &ClusterImage) {
        let Some(known) = image.topic(topic) else { return };
        let settings = self.settings(image, known);
        let config = self.partition_config(&settings);
        for partition in self.all().into_iter().filter(|partition| partition.id.topic == topic) {
            partition.reconfigure(settings.clone(), config);
            // What waited for a sync under the old durability must not wait for the next append.
            partition.directory.flusher.enqueue(&partition);
        }
    }

    fn drop_partition(&self, id: TopicPartition, touched: &mut BTreeSet<PathBuf>) {
        let mut hosted = Hosted::clone(&self.hosted.load());
        let Some(partition) = hosted.remove(id) else { return };
        self.hosted.store(Arc::new(hosted));
        partition.retire();
        let name = PartitionName { topic: partition.topic.clone(), partition: id.partition };
        touched.insert(partition.directory.dir.path().to_owned());
        if let Err(error) = self.doom(&partition.directory, &name) {
            tracing::warn!(partition = %name, error = format!("{error:#}"), "cannot remove log");
        }
    }

    /// Renames a partition's directory, to be removed later.
    fn doom(&self, directory: &Arc<Directory>, name: &PartitionName) -> Result<(), anyhow::Error> {
        let path = directory.dir.doom_partition(name, self.entropy.uuid().as_u128())?;
        const DELAY: Millis = Millis(60_000);
        self.doomed.lock().push((self.clock.now().plus(DELAY), directory.clone(), path));
        Ok(())
    }

    /// Writes what a start needs to know of the logs in a directory and can't read from them. A failure costs that
    /// start time, nothing else.
    pub(crate) fn checkpoint(&self, directory: &Arc<Directory>) {
        if directory.dir.has_failed() {
            return;
        }
        let mut written = directory.checkpoints.lock();
        let mut points = Checkpoints::default();
        for (name, log) in &*self.found.lock() {
            if Arc::ptr_eq(&log.directory, directory) {
                if let Some(point) = log.known.recovery_point {
                    points.recovery_points.insert(name.clone(), point);
                }
                points.log_starts.insert(name.clone(), log.known.log_start_offset);
                points.high_watermarks.insert(name.clone(), log.high_watermark);
                points.cleaned.insert(name.clone(), log.cleaned_to);
            }
        }
        for partition in self.all() {
            if Arc::ptr_eq(&partition.directory, directory) {
                let name =
                    PartitionName { topic: partition.topic.clone(), partition: partition.id.partition };
                partition.tend(|replica, log| {
                    points.recovery_points.insert(name.clone(), log.flushed_end());
                    points.log_starts.insert(name.clone(), log.log_start_offset());
                    points.high_watermarks.insert(name.clone(), replica.high_watermark());
                    points.cleaned.insert(name, log.cleaned_to());
                });
            }
        }
        if let Err(error) = points.write(&directory.dir, &mut written) {
            // The next one writes everything again.
            *written = Checkpoints::default();
            directory.trouble(&error);
        }
    }

    /// Ends every log in order: what is in it is synced and indexed, so that the next start reads nothing.
    pub(crate) fn close(&self, broker_epoch: semel_model::BrokerEpoch) {
        let mut dirty: BTreeSet<PathBuf> = BTreeSet::new();
        for partition in self.all() {
            let closed = partition.close();
            if let Err(error) = closed {
                tracing::error!(partition = partition.name(), error = chain(&error), "cannot close log");
                dirty.insert(partition.directory.dir.path().to_owned());
            }
        }
        // What was not closed properly before this start and was not opened since is still to be recovered.
        let unrecovered = self.found.lock();
        dirty.extend(
            unrecovered
                .values()
                .filter(|log| !log.known.clean)
                .map(|log| log.directory.dir.path().to_owned()),
        );
        drop(unrecovered);
        for directory in &self.directories {
            self.checkpoint(directory);
            if dirty.contains(directory.dir.path()) || directory.dir.has_failed() {
                continue;
            }
            if let Err(error) = directory.dir.mark_clean(broker_epoch) {
                tracing::warn!(error = chain(&error), "cannot mark the log directory as cleanly ended");
            }
        }
    }

    /// Removes logs on disk whose topics are not in the cluster any more: they were deleted while this broker was
    /// away. A log whose topic id is not known is left alone.
    fn drop_strays(&self, image: &ClusterImage) {
        let found = std::mem::take(&mut *self.found.lock());
        for (name, log) in found {
            match log.at.topic_id {
                Some(id) if image.topic(id).is_none_or(|topic| topic.partition(name.partition).is_none()) => {
                    tracing::info!(partition = %name, topic_id = %id, "topic was deleted while this broker was away");
                    if let Err(error) = self.doom(&log.directory, &name) {
                        tracing::warn!(partition = %name, error = format!("{error:#}"), "cannot remove log");
                    }
                }
                _ => {
                    tracing::warn!(partition = %name, path = %log.at.path.display(), "log is nobody's, left alone")
                }
            }
        }
    }

    /// Removes directories of dropped partitions whose time has come.
    pub(crate) fn remove_doomed(&self) {
        let now = self.clock.now();
        let due: Vec<_> = self.doomed.lock().extract_if(.., |(at, _, _)| *at <= now).collect();
        for (_, directory, path) in due {
            if let Err(error) = directory.dir.remove_doomed(&path) {
                tracing::warn!(
                    error = chain(&error),
                    "cannot remove a deleted partition, the next start will"
                );
            }
        }
    }

    pub(crate) fn describe_directories(&self) -> Vec<DirectoryInfo> {
        let partitions = self.all();
        self.directories
            .iter()
            .map(|directory| {
                let replicas = partitions
                    .iter()
                    .filter(|partition| Arc::ptr_eq(&partition.directory, directory))
                    .map(|partition| {
                        let watermarks = partition.watermarks();
                        ReplicaInfo {
                            topic: partition.topic.clone(),
                            partition: partition.id.partition,
                            size_bytes: partition.size_in_bytes(),
                            log_start_offset: watermarks.log_start_offset,
                            high_watermark: watermarks.high_watermark,
                            log_end_offset: watermarks.log_end_offset,
                        }
                    })
                    .collect();
                let space = directory.dir.space();
                let failure = if directory.dir.has_failed() {
                    Some(Failure::new(ErrorCode::KafkaStorageError, "the log directory failed"))
                } else {
                    space.as_ref().err().map(|error| Failure::new(ErrorCode::KafkaStorageError, chain(error)))
                };
                let (total_bytes, usable_bytes) = space.map_or((0, 0), |space| (space.total, space.free));
                DirectoryInfo {
                    path: directory.dir.path().to_owned(),
                    total_bytes,
                    usable_bytes,
                    failure,
                    replicas,
                }
            })
            .collect()
    }
}
