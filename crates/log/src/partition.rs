//! The log of one partition: its state and what every operation shares.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use semel_env::{Disk, DiskFile as _, Open};
use semel_model::{LeaderEpoch, Offset, OffsetRange, Timestamp};
use semel_record::ProducerSnapshotEntry;

use crate::{
    checkpoint,
    config::Config,
    epochs::LeaderEpochs,
    error::{Doing, StorageError},
    flush::Unsynced,
    index::{Growing, OffsetEntry, TimeEntry},
    names::{self, CORRUPT_RANGES, DELETED, INDEX, LEADER_EPOCHS, LOG, SNAPSHOT, TIME_INDEX},
    scan::{MaxTimestamp, Tally},
    snapshot,
    truncate::Truncated,
    txn_index::{self, TxnIndex},
    warm::Cache,
};

/// What the producers' table is at the moment a segment is closed; asked for only then.
pub type ProducersNow<'a> = &'a dyn Fn() -> Vec<ProducerSnapshotEntry>;

/// The log of one partition on one disk. Synchronous: its owner decides on which thread it runs, and holds it in one
/// hand for everything that takes `&mut self`.
///
/// `log_start_offset ≤ log_end_offset` and `flushed_end ≤ log_end_offset`; batches lie in segments in the order of
/// their offsets.
#[derive(Debug)]
pub struct PartitionLog<D: Disk> {
    pub(crate) disk: D,
    pub(crate) dir: PathBuf,
    pub(crate) config: Config,
    // Persisted.
    pub(crate) closed: BTreeMap<Offset, Closed>,
    pub(crate) active: Active<D>,
    pub(crate) epochs: LeaderEpochs,
    pub(crate) snapshots: BTreeSet<Offset>,
    /// Offsets whose bytes are damaged. Behind a lock, as reads find them too.
    pub(crate) corrupt: Mutex<Vec<OffsetRange>>,
    // In memory; the owner writes them to the directory's checkpoints.
    pub(crate) log_start_offset: Offset,
    pub(crate) flushed_end: Offset,
    pub(crate) cleaned_to: Offset,
    /// What was cut off on purpose below what the owner's checkpoint may still promise.
    pub(crate) truncated: Option<Truncated>,
    // In memory.
    /// Whether `epochs` says more than its file.
    pub(crate) epochs_dirty: bool,
    /// Closed segments that are not known to be on stable storage, oldest first.
    pub(crate) unsynced: Vec<Unsynced<D>>,
    /// Counts names made or removed in the directory, and how many of these are known to be on stable storage.
    pub(crate) dir_changes: u64,
    pub(crate) dir_synced: u64,
    /// Counts truncations: a flush that began before one says nothing about what was written after it.
    pub(crate) truncations: u64,
    /// Files under their last name, with the time from which they may go.
    pub(crate) doomed: VecDeque<(Timestamp, PathBuf)>,
    pub(crate) failed: bool,
    /// A read found damage in the active segment: the next append goes to a new one, where reads can get at it.
    pub(crate) damaged_active: AtomicBool,
    pub(crate) cache: Mutex<Cache<D>>,
}

/// A segment that is only read; its files are opened when somebody does.
#[derive(Debug)]
pub(crate) struct Closed {
    pub size: u32,
    /// Known once the time index was checked.
    pub max: OnceLock<MaxTimestamp>,
}

/// The segment that is written to.
#[derive(Debug)]
pub(crate) struct Active<D: Disk> {
    pub base_offset: Offset,
    pub file: Arc<D::File>,
    pub size: u32,
    /// Up to where room in the file is set aside, in bytes; at most `size` if none is.
    pub reserved: u64,
    pub tally: Tally,
    pub index: Growing<OffsetEntry>,
    pub times: Growing<TimeEntry>,
    pub txn: TxnIndex<D>,
    pub txn_unsynced: bool,
    /// When it was made, or opened if its file doesn't say.
    pub created: Timestamp,
}

impl<D: Disk> Active<D> {
    /// Makes the files of an empty segment. Leftovers of that name hold nothing that was acknowledged.
    pub(crate) fn create(
        disk: &D,
        dir: &Path,
        base_offset: Offset,
        config: &Config,
        now: Timestamp,
    ) -> Result<Self, StorageError> {
        let create = |kind| {
            let path = names::segment_file(dir, base_offset, kind);
            disk.open(&path, Open::Truncate).doing("create", &path)
        };
        let file = Arc::new(create(LOG)?);
        let txn = (|| {
            create(INDEX)?;
            create(TIME_INDEX)?;
            TxnIndex::create(disk, txn_index::path(dir, base_offset))
        })();
        let txn = txn.inspect_err(|_| {
            // Without its indexes the segment was not made: an empty log of that name must not stay behind.
            let _ = disk.remove_file(&names::segment_file(dir, base_offset, LOG));
        })?;
        Ok(Self {
            base_offset,
            file,
            size: 0,
            reserved: 0,
            tally: Tally::new(base_offset, config.index_interval_bytes),
            index: Growing::stored(names::segment_file(dir, base_offset, INDEX), Vec::new()),
            times: Growing::stored(names::segment_file(dir, base_offset, TIME_INDEX), Vec::new()),
            txn,
            txn_unsynced: false,
            created: now,
        })
    }

    /// Sets room aside for a write that ends at `end`, and for some that follow: the more, the larger the segment is.
    pub(crate) fn reserve(&mut self, end: u64, segment_bytes: u32) {
        const FROM: u32 = 1 << 20;
        const AHEAD_MAX: u64 = 16 << 20;
        if self.size < FROM || end <= self.reserved {
            return;
        }
        let size = u64::from(self.size);
        let upto =
            (end + (size / 4).clamp(u64::from(FROM), AHEAD_MAX)).min(u64::from(segment_bytes)).max(end);
        // Where it can't be had the write finds out for itself; asked again when the segment is full.
        self.reserved =
            if self.file.reserve(size, upto - size).is_ok() { upto } else { u64::from(segment_bytes) };
    }

    /// Gives back the room that was set aside and not used. What stays is given back when the file is cut or removed.
    pub(crate) fn release(&mut self) {
        if self.reserved > u64::from(self.size) && self.file.set_len(u64::from(self.size)).is_ok() {
            self.reserved = 0;
        }
    }

    /// Brings the index files to what the segment holds.
    pub(crate) fn finish_indexes(&mut self, disk: &D) -> Result<(), StorageError> {
        if let Some(entry) = self.tally.time_entry(self.times.last()) {
            self.times.push(entry);
        }
        self.index.persist(disk)?;
        self.times.persist(disk)
    }
}

impl<D: Disk> PartitionLog<D> {
    /// Where its files are.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The settings in force.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Puts other settings in force, for what is written from now on. They must have passed [`Config::validate`].
    pub fn set_config(&mut self, config: Config) {
        self.active.tally.interval_bytes = config.index_interval_bytes;
        self.config = config;
    }

    /// The first offset there is (inclusive).
    #[must_use]
    pub fn log_start_offset(&self) -> Offset {
        self.log_start_offset
    }

    /// The offset that the next record will get (exclusive end).
    #[must_use]
    pub fn log_end_offset(&self) -> Offset {
        self.active.tally.next_offset
    }

    /// Everything below is on stable storage (exclusive end): the recovery point.
    #[must_use]
    pub fn flushed_end(&self) -> Offset {
        self.flushed_end
    }

    /// Everything below was compacted (exclusive end): `cleaner-offset-checkpoint`.
    #[must_use]
    pub fn cleaned_to(&self) -> Offset {
        self.cleaned_to
    }

    /// Tells the log what the directory's `cleaner-offset-checkpoint` says about it.
    pub fn set_cleaned_to(&mut self, offset: Offset) {
        self.cleaned_to = offset;
    }

    /// The latest leader epoch in the log; [`LeaderEpoch::NONE`] if there is none.
    #[must_use]
    pub fn latest_epoch(&self) -> LeaderEpoch {
        self.epochs.latest().map_or(LeaderEpoch::NONE, |entry| entry.leader_epoch)
    }

    /// How many segments there are, the active one included.
    #[must_use]
    pub fn segment_count(&self) -> usize {
        self.closed.len() + 1
    }

    /// Of all batches, in bytes; indexes are not counted, as in Kafka.
    #[must_use]
    pub fn size_in_bytes(&self) -> u64 {
        self.closed.values().map(|segment| u64::from(segment.size)).sum::<u64>() + u64::from(self.active.size)
    }

    /// The base offsets of all segments, oldest first.
    pub fn segments(&self) -> impl Iterator<Item = Offset> + '_ {
        self.closed.keys().copied().chain([self.active.base_offset])
    }

    /// Offsets whose stored bytes are damaged; reads of them answer [`ReadError::Corrupt`](crate::ReadError::Corrupt).
    #[must_use]
    pub fn corrupt_ranges(&self) -> Vec<OffsetRange> {
        self.corrupt().clone()
    }

    /// Whether an earlier failure left files in a state that only opening the log again can mend.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// Refuses appends from now on: for an owner whose sync failed, after which no later sync can be trusted.
    pub fn mark_failed(&mut self) {
        self.failed = true;
    }

    pub(crate) fn corrupt(&self) -> MutexGuard<'_, Vec<OffsetRange>> {
        self.corrupt.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn cache(&self) -> MutexGuard<'_, Cache<D>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn file_path(&self, base_offset: Offset, kind: &str) -> PathBuf {
        names::segment_file(&self.dir, base_offset, kind)
    }

    /// Where the segment of `base_offset` ends (exclusive): at the next one's base, or at the log's end.
    pub(crate) fn segment_end(&self, base_offset: Offset) -> Offset {
        if base_offset >= self.active.base_offset {
            return self.log_end_offset();
        }
        let next = self.closed.range(base_offset.next()..).next();
        next.map_or(self.active.base_offset, |(base, _)| *base)
    }

    /// Remembers that these offsets are damaged, also for later starts.
    pub(crate) fn note_corrupt(&self, range: OffsetRange) {
        let mut corrupt = self.corrupt();
        if !add_range(&mut corrupt, range) {
            return;
        }
        if range.end > self.active.base_offset {
            self.damaged_active.store(true, Ordering::Release);
        }
        tracing::error!(
            log = %self.dir.display(), from = %range.start, to = %range.end,
            "stored batches are damaged and will not be served"
        );
        // Found again by the next read if it can't be written now.
        let _ = write_corrupt(&self.disk, &self.dir, &corrupt);
    }

    /// Forgets damage outside of what the log holds.
    pub(crate) fn trim_corrupt(&mut self) {
        let (start, end) = (self.log_start_offset, self.log_end_offset());
        let mut corrupt = self.corrupt();
        let before = corrupt.clone();
        corrupt.retain(|range| range.end > start && range.start < end);
        for range in &mut *corrupt {
            range.end = range.end.min(end);
        }
        if *corrupt != before {
            let _ = write_corrupt(&self.disk, &self.dir, &corrupt);
        }
    }

    pub(crate) fn write_epochs(&mut self) -> Result<(), StorageError> {
        let path = self.dir.join(LEADER_EPOCHS);
        self.epochs_dirty = true;
        self.disk.write_atomic(&path, self.epochs.render().as_bytes()).doing("write", &path)?;
        self.epochs_dirty = false;
        Ok(())
    }

    /// Closes the active segment and goes on in a new one; nothing happens if it is empty.
    ///
    /// The producers' table as of now is written beside the new segment, so that a start need not read older ones.
    /// On an error the log goes on in the old segment.
    pub fn roll(&mut self, now: Timestamp, producers: ProducersNow<'_>) -> Result<(), StorageError> {
        if self.active.size == 0 {
            return Ok(());
        }
        let next_base = self.log_end_offset();
        self.active.finish_indexes(&self.disk)?;
        self.active.release();
        self.write_snapshot(next_base, &producers())?;
        let next = Active::create(&self.disk, &self.dir, next_base, &self.config, now)?;
        self.dir_changes += 1;
        self.replace_active(next);
        self.remove_stray_snapshots();
        Ok(())
    }

    /// Makes `next` the active segment and what was active a closed one.
    pub(crate) fn replace_active(&mut self, next: Active<D>) {
        self.damaged_active.store(false, Ordering::Release);
        let old = std::mem::replace(&mut self.active, next);
        if self.flushed_end < old.tally.next_offset || old.txn_unsynced {
            self.unsynced.push(Unsynced {
                end_offset: old.tally.next_offset,
                file: old.file,
                txn: old.txn_unsynced.then(|| old.txn.shared_file()).flatten(),
            });
        }
        let closed = Closed { size: old.size, max: OnceLock::from(old.tally.max) };
        self.closed.insert(old.base_offset, closed);
    }

    pub(crate) fn write_snapshot(
        &mut self,
        offset: Offset,
        producers: &[ProducerSnapshotEntry],
    ) -> Result<(), StorageError> {
        snapshot::write(&self.disk, &self.file_path(offset, SNAPSHOT), producers)?;
        self.snapshots.insert(offset);
        Ok(())
    }

    /// Writes the producers' table as of now, so that a start after a crash replays only what follows. For an owner that
    /// writes its checkpoints; rolling and closing do it by themselves.
    pub fn snapshot_producers(&mut self, producers: &[ProducerSnapshotEntry]) -> Result<(), StorageError> {
        self.write_snapshot(self.log_end_offset(), producers)?;
        self.remove_stray_snapshots();
        Ok(())
    }

    /// Notes that `leader_epoch` writes from the log's end on, on stable storage when this returns: what a new leader
    /// does before it answers followers. Nothing happens if the epoch is not newer than the latest.
    pub fn assign_epoch(&mut self, leader_epoch: LeaderEpoch) -> Result<(), StorageError> {
        if self.epochs.assign(leader_epoch, self.log_end_offset()) { self.write_epochs() } else { Ok(()) }
    }

    /// Removes snapshots that no segment begins with, but for the latest.
    pub(crate) fn remove_stray_snapshots(&mut self) {
        let Some(latest) = self.snapshots.last().copied() else { return };
        let stray: Vec<Offset> = self
            .snapshots
            .iter()
            .copied()
            .filter(|at| *at != latest && *at != self.active.base_offset && !self.closed.contains_key(at))
            .collect();
        for offset in stray {
            self.remove_snapshot(offset);
        }
    }

    pub(crate) fn remove_snapshot(&mut self, offset: Offset) {
        self.snapshots.remove(&offset);
        // One that stays is seen as stray by the next start.
        let _ = self.disk.remove_file(&self.file_path(offset, SNAPSHOT));
    }

    /// Takes all files of a segment out of the log: renamed now, removed once the delay has passed, so that whoever
    /// reads by name has time to finish. Readers that hold the file are never disturbed.
    pub(crate) fn doom_segment(&mut self, base_offset: Offset, now: Timestamp) -> Result<(), StorageError> {
        let due = now.plus(self.config.file_delete_delay_ms);
        // The log file goes first: indexes without a log are swept at the next start, a log without indexes is a log.
        for kind in [LOG, INDEX, TIME_INDEX, names::TXN_INDEX] {
            let path = self.file_path(base_offset, kind);
            let to = names::with_suffix(&path, DELETED);
            match self.disk.rename(&path, &to) {
                Ok(()) => self.doomed.push_back((due, to)),
                Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
                Err(cause) => return Err(StorageError::new("rename", &path, cause)),
            }
        }
        self.dir_changes += 1;
        self.cache().forget(base_offset);
        Ok(())
    }

    /// Removes files of deleted segments whose delay has passed; how many.
    pub fn remove_due(&mut self, now: Timestamp) -> Result<usize, StorageError> {
        let mut removed = 0;
        while let Some((_, path)) = self.doomed.pop_front_if(|(due, _)| *due <= now) {
            match self.disk.remove_file(&path) {
                Ok(()) => removed += 1,
                Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
                Err(cause) => return Err(StorageError::new("remove", &path, cause)),
            }
        }
        Ok(removed)
    }

    /// Ends the log for a clean stop: indexes complete, everything on stable storage, and the producers' table
    /// written, so that the next start reads no batches. Nothing may be appended afterwards.
    ///
    /// A log that has failed is not closed but left for recovery: a sync that now succeeds says nothing of the pages
    /// that an earlier one lost.
    pub fn close(&mut self, producers: &[ProducerSnapshotEntry]) -> Result<(), StorageError> {
        if self.failed {
            return Err(StorageError::new("close", &self.dir, io::Error::other("the log has failed")));
        }
        self.active.finish_indexes(&self.disk)?;
        self.active.release();
        self.write_snapshot(self.log_end_offset(), producers)?;
        self.remove_stray_snapshots();
        self.flush()
    }
}

/// Adds a range unless it is empty or lies in one that is there already; whether it was added.
pub(crate) fn add_range(ranges: &mut Vec<OffsetRange>, range: OffsetRange) -> bool {
    let known = |other: &OffsetRange| other.start <= range.start && range.end <= other.end;
    let is_new = !range.is_empty() && !ranges.iter().any(known);
    if is_new {
        ranges.push(range);
    }
    is_new
}

pub(crate) fn read_corrupt<D: Disk>(disk: &D, dir: &Path) -> Result<Vec<OffsetRange>, StorageError> {
    let path = dir.join(CORRUPT_RANGES);
    let Some(text) = checkpoint::read_text(disk, &path)? else { return Ok(Vec::new()) };
    checkpoint::parse(&text, |line| {
        let (start, end) = checkpoint::pair(line)?;
        Some(OffsetRange { start: Offset(start), end: Offset(end) })
    })
    .map_err(|why| StorageError::invalid("read", &path, why))
}

pub(crate) fn write_corrupt<D: Disk>(
    disk: &D,
    dir: &Path,
    ranges: &[OffsetRange],
) -> Result<(), StorageError> {
    let path = dir.join(CORRUPT_RANGES);
    if ranges.is_empty() {
        return match disk.remove_file(&path) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
                Err(StorageError::new("remove", &path, cause))
            }
            _ => Ok(()),
        };
    }
    let text = checkpoint::render(ranges.iter().map(|range| format!("{} {}", range.start, range.end)));
    disk.write_atomic(&path, text.as_bytes()).doing("write", &path)
}
