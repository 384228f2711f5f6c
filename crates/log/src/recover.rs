//! Opening a log, whatever the last process left of it.
//!
//! What counts is what was promised: below the recovery point everything was on stable storage, so damage there is
//! reported and never served, nothing is cut, and the log goes on behind it: no offset is given twice. From the recovery
//! point on batches may be torn, and the log ends at the last whole valid one that follows without a gap; but for damage
//! that a read had noted, behind which appends went on.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    path::PathBuf,
    sync::{Arc, Mutex, OnceLock, atomic::AtomicBool},
};

use semel_env::{DirEntry, Disk, DiskFile, Open};
use semel_model::{Offset, OffsetRange, Timestamp};
use semel_record::{BatchHeader, ProducerSnapshotEntry};

use crate::{
    checkpoint, cleaner,
    config::Config,
    epochs::LeaderEpochs,
    error::{Doing, ReadError, StorageError},
    index::{self, Growing, OffsetEntry, TimeEntry},
    names::{self, CLEANED, DELETED, INDEX, LEADER_EPOCHS, LOG, SNAPSHOT, TEMPORARY, TIME_INDEX, TXN_INDEX},
    partition::{Active, Closed, PartitionLog, add_range, read_corrupt, write_corrupt},
    scan::{Damage, Headers, Indexed, MaxTimestamp, Stop, crc_matches},
    truncate::{Truncated, read_truncated},
    txn_index::{self, TxnIndex},
    warm::{Cache, INDEX_BYTES_MAX, store_index},
};

/// What the directory's checkpoints say about a log that is opened.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Everything below was on stable storage. `None` if that is not known: then everything is read, and nothing but
    /// the last segment's tail is cut.
    pub recovery_point: Option<Offset>,
    /// The log's start, as DeleteRecords may have moved it; zero if nothing is known.
    pub log_start_offset: Offset,
    /// Whether the last process ended the log properly ([`PartitionLog::close`]).
    pub clean: bool,
}

/// What was found and done when a log was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Bytes after the last whole valid batch that were cut off: a torn tail.
    pub truncated_bytes: u64,
    /// Whole valid batches that were cut with them, as they stood after a torn one; they were never promised.
    pub truncated_batches: u64,
    /// Segments after a torn one that were dropped with it.
    pub dropped_segments: usize,
    /// Segments whose indexes were missing or not what the log says, and were built again.
    pub rebuilt_indexes: usize,
    /// Offsets that are damaged, found now or earlier. Nothing of them was deleted; they are never served.
    pub corrupt: Vec<OffsetRange>,
    /// Offsets that were on stable storage and are gone from the log's end. Among `corrupt` too, and the log goes on
    /// behind them; unless there was no segment at all, then it begins anew.
    pub lost: Option<OffsetRange>,
    /// Whether an interrupted compaction was carried to its end.
    pub finished_compaction: bool,
    /// Bytes of batches that were read to check them.
    pub checked_bytes: u64,
}

impl Default for Known {
    fn default() -> Self {
        Self { recovery_point: None, log_start_offset: Offset::ZERO, clean: false }
    }
}

/// A segment as it was found on disk.
#[derive(Clone, Copy, Debug)]
struct Found {
    base_offset: Offset,
    size: u32,
}

/// What reading a segment showed.
struct Scanned<D: Disk> {
    file: Arc<D::File>,
    indexed: Indexed,
    /// Where the last whole valid batch ends.
    good: u32,
    /// Whether something else than a batch stands there.
    bad: bool,
    /// What the index files hold, if they hold an index at all.
    stored: Stored,
}

/// Both index files of a segment; `None` for one that is missing or makes no sense.
type Stored = (Option<Vec<OffsetEntry>>, Option<Vec<TimeEntry>>);

/// What is known of a segment's end before it is read.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// Everything below was on stable storage, whichever segment it is in.
    promised: Offset,
    /// Where the next segment begins, if there is one.
    next_base: Option<Offset>,
}

/// Whole valid batches behind a bad one.
#[derive(Clone, Copy, Debug, Default)]
struct Behind {
    count: u64,
    next_offset: Option<Offset>,
}

impl<D: Disk> PartitionLog<D> {
    /// Opens the log in `dir`, which must exist; an empty one becomes an empty log.
    ///
    /// After an unclean stop, what follows the recovery point is read and checked, the rest of a torn batch is cut,
    /// and all that is kept is synced before this returns, so that what a reader sees after a crash it also sees after
    /// the next. A cleanly closed log costs a few small reads.
    /// Errors: [`ReadError::Storage`] only.
    pub fn open(
        disk: D,
        dir: PathBuf,
        config: Config,
        known: Known,
        now: Timestamp,
    ) -> Result<(Self, Recovery), ReadError> {
        let mut opening = Opening::new(disk, dir, config, known, now)?;
        opening.scan()?;
        opening.finish()
    }
}

/// A log half opened.
struct Opening<D: Disk> {
    disk: D,
    dir: PathBuf,
    config: Config,
    known: Known,
    now: Timestamp,
    names: BTreeSet<String>,
    segments: Vec<Found>,
    epochs: LeaderEpochs,
    epochs_dirty: bool,
    corrupt: Vec<OffsetRange>,
    truncated: Option<Truncated>,
    scanned: BTreeMap<Offset, Scanned<D>>,
    doomed: Vec<Offset>,
    recovery: Recovery,
    /// Whether the last segment's aborted transactions are still to be found, once the log is there to look in.
    txn_unknown: bool,
    buffer: Vec<u8>,
}

impl<D: Disk> Opening<D> {
    fn new(
        disk: D,
        dir: PathBuf,
        config: Config,
        mut known: Known,
        now: Timestamp,
    ) -> Result<Self, ReadError> {
        let finished_compaction = cleaner::finish_swap(&disk, &dir)?;
        let listed = disk.read_dir(&dir).doing("list", &dir)?;
        let mut names = BTreeSet::new();
        for DirEntry { name, is_dir } in listed {
            if !is_dir && [DELETED, CLEANED, TEMPORARY].iter().any(|end| name.ends_with(end)) {
                let path = dir.join(&name);
                disk.remove_file(&path).doing("remove", &path)?;
            } else if !is_dir {
                names.insert(name);
            }
        }
        let mut segments = Vec::new();
        for name in &names {
            if let Some(base_offset) = names::parse_segment_file(name, LOG) {
                let path = dir.join(name);
                let len = disk.file_len(&path).doing("look up the size of", &path)?;
                let size = u32::try_from(len).ok().filter(|size| *size <= i32::MAX as u32);
                let size = size.ok_or_else(|| StorageError::invalid("open", &path, "larger than 2 GiB"))?;
                segments.push(Found { base_offset, size });
            }
        }
        let corrupt = read_corrupt(&disk, &dir)?;
        let truncated = read_truncated(&disk, &dir);
        // After a clean stop the recovery point is as new as the log.
        if let Some(truncated) = truncated.filter(|_| !known.clean) {
            known.recovery_point = known.recovery_point.map(|point| point.min(truncated.end_offset));
        }
        let path = dir.join(LEADER_EPOCHS);
        let epochs = match checkpoint::read_text(&disk, &path)?.map(|text| LeaderEpochs::parse(&text)) {
            Some(Ok(epochs)) => Some(epochs),
            // The batches carry their epochs, so all but leaderships that wrote nothing can be found again.
            Some(Err(_)) => None,
            None if segments.is_empty() => Some(LeaderEpochs::default()),
            None => None,
        };
        let mut opening = Self {
            disk,
            dir,
            config,
            known,
            now,
            names,
            segments,
            epochs_dirty: epochs.is_none(),
            epochs: epochs.unwrap_or_default(),
            corrupt,
            truncated,
            scanned: BTreeMap::new(),
            doomed: Vec::new(),
            recovery: Recovery { finished_compaction, ..Recovery::default() },
            txn_unknown: false,
            buffer: Vec::new(),
        };
        if opening.epochs_dirty {
            opening.find_epochs()?;
        }
        Ok(opening)
    }

    fn path(&self, base_offset: Offset, kind: &str) -> PathBuf {
        names::segment_file(&self.dir, base_offset, kind)
    }

    fn open_log(&self, base_offset: Offset) -> Result<Arc<D::File>, StorageError> {
        let path = self.path(base_offset, LOG);
        self.disk.open(&path, Open::Write).doing("open", &path).map(Arc::new)
    }

    fn failed(&self, base_offset: Offset, cause: std::io::Error) -> ReadError {
        StorageError::new("read", &self.path(base_offset, LOG), cause).into()
    }

    /// Builds the leadership history from the batches.
    fn find_epochs(&mut self) -> Result<(), ReadError> {
        for found in self.segments.clone() {
            let file = self.open_log(found.base_offset)?;
            let mut headers = Headers::new(&*file, 0, found.size).not_below(found.base_offset);
            loop {
                match headers.next() {
                    Ok(Some((_, header))) => {
                        self.epochs.assign(header.leader_epoch, header.base_offset);
                    }
                    Ok(None) | Err(Stop::Bad) => break,
                    Err(Stop::Io(cause)) => return Err(self.failed(found.base_offset, cause)),
                }
            }
        }
        Ok(())
    }

    /// Reads what must be read, and decides where the log ends.
    fn scan(&mut self) -> Result<(), ReadError> {
        let Some(last) = self.segments.last().copied() else { return Ok(()) };
        let clean = self.known.clean && self.known.recovery_point.is_some();
        let first = match self.known.recovery_point {
            _ if clean => self.segments.len() - 1,
            Some(point) => {
                self.segments.partition_point(|found| found.base_offset <= point).saturating_sub(1)
            }
            None => 0,
        };
        // Without a recovery point only the last segment's tail may be taken for torn.
        let promised = self.known.recovery_point.unwrap_or(last.base_offset);
        for at in first..self.segments.len() {
            let found = self.segments[at];
            let next_base = self.segments.get(at + 1).map(|next| next.base_offset);
            let check_from = self.known.recovery_point.unwrap_or(Offset::ZERO);
            let bounds = Bounds { promised, next_base };
            let mut scanned = self.scan_segment(found, check_from, clean, bounds)?;
            let end = scanned.indexed.tally.next_offset;
            let torn = if scanned.bad {
                self.settle_bad(found, bounds, &mut scanned)?
            } else {
                // A later segment that was never promised must go on where this one ends, or where its damage does.
                self.known.recovery_point.is_some()
                    && next_base
                        .is_some_and(|next| next > promised && next != end && next != self.damaged_until(end))
            };
            self.scanned.insert(found.base_offset, scanned);
            if torn {
                self.drop_after(at)?;
                break;
            }
        }
        Ok(())
    }

    /// Decides about a segment with a bad batch and nothing whole to go on with: cuts a torn tail (and says so), or
    /// leaves all in place and marks the damage.
    ///
    /// Damage is what was promised, and what a read already found and noted: then the log went on behind it.
    fn settle_bad(
        &mut self,
        found: Found,
        Bounds { promised, next_base }: Bounds,
        scanned: &mut Scanned<D>,
    ) -> Result<bool, ReadError> {
        let from = scanned.indexed.tally.next_offset;
        let behind = self.look_behind(found, scanned)?;
        let noted_end = self.damaged_until(from);
        if from < promised || noted_end > from {
            let seen_end = behind.next_offset.unwrap_or(from).max(promised).max(noted_end);
            let end = next_base.unwrap_or(seen_end);
            if end > from {
                self.note_corrupt(OffsetRange { start: from, end });
            } else {
                // The next segment goes on where the last whole batch ends, so no offset is missing: what stands
                // behind that batch is rubbish, which a range of damaged offsets could not keep from being served.
                self.cut(found, scanned)?;
            }
            return Ok(false);
        }
        self.recovery.truncated_batches += behind.count;
        self.cut(found, scanned)?;
        Ok(true)
    }

    /// Where damage that is known and reaches over `offset` ends; `offset` itself if it is not damaged.
    fn damaged_until(&self, offset: Offset) -> Offset {
        let mut end = offset;
        // Each round but the last goes on behind another range.
        while let Some(range) = self.corrupt.iter().find(|range| range.start <= end && range.end > end) {
            end = range.end;
        }
        end
    }

    /// Remembers damage, also for later starts.
    fn note_corrupt(&mut self, range: OffsetRange) {
        if add_range(&mut self.corrupt, range) {
            // Found again by the next start if it can't be written now.
            let _ = write_corrupt(&self.disk, &self.dir, &self.corrupt);
        }
    }

    /// Cuts a segment's file behind its last whole valid batch.
    fn cut(&mut self, found: Found, scanned: &Scanned<D>) -> Result<(), ReadError> {
        let path = self.path(found.base_offset, LOG);
        scanned.file.set_len(u64::from(scanned.good)).doing("truncate", &path)?;
        self.recovery.truncated_bytes += u64::from(found.size - scanned.good);
        for segment in self.segments.iter_mut().filter(|segment| segment.base_offset == found.base_offset) {
            segment.size = scanned.good;
        }
        Ok(())
    }

    /// Looks for whole valid batches behind a bad one: where its length leads, and where the index points.
    fn look_behind(&mut self, found: Found, scanned: &Scanned<D>) -> Result<Behind, ReadError> {
        let mut starts = BTreeSet::new();
        let mut head = [0; BatchHeader::SIZE];
        let fits = found.size - scanned.good >= BatchHeader::SIZE as u32;
        if fits
            && scanned.file.read_exact_at(&mut head, u64::from(scanned.good)).is_ok()
            && let Ok(header) = BatchHeader::parse(&head)
        {
            let next = u64::from(scanned.good) + header.size_in_bytes() as u64;
            starts.extend(u32::try_from(next).ok().filter(|next| *next < found.size));
        }
        let path = self.path(found.base_offset, INDEX);
        let entries: Vec<OffsetEntry> = index::load(&self.disk, &path, INDEX_BYTES_MAX).unwrap_or_default();
        starts.extend(
            entries
                .iter()
                .map(|entry| entry.position)
                .filter(|at| (scanned.good + 1..found.size).contains(at)),
        );
        let mut behind = Behind::default();
        let mut reached = scanned.good;
        for start in starts {
            if start < reached {
                continue;
            }
            let mut headers = Headers::new(&*scanned.file, start, found.size);
            while let Ok(Some((position, header))) = headers.next() {
                let valid = header.base_offset >= scanned.indexed.tally.next_offset
                    && crc_matches(&*scanned.file, position, &header, &mut self.buffer)
                        .map_err(|cause| self.failed(found.base_offset, cause))?;
                if !valid {
                    break;
                }
                behind.count += 1;
                behind.next_offset = behind.next_offset.max(Some(header.next_offset()));
                reached = headers.position();
            }
        }
        Ok(behind)
    }

    /// Takes the segments after the `at`-th out of the log.
    fn drop_after(&mut self, at: usize) -> Result<(), ReadError> {
        // The last first, so that a crash meanwhile leaves no hole.
        for found in self.segments.split_off(at + 1).into_iter().rev() {
            self.recovery.dropped_segments += 1;
            self.recovery.truncated_bytes += u64::from(found.size);
            self.doomed.push(found.base_offset);
            let from = self.path(found.base_offset, LOG);
            self.disk.rename(&from, &names::with_suffix(&from, DELETED)).doing("rename", &from)?;
        }
        Ok(())
    }

    /// Reads a segment from as far on as its indexes can be trusted; batches that end above `check_from` are checked
    /// against their checksums.
    fn scan_segment(
        &mut self,
        found: Found,
        check_from: Offset,
        clean: bool,
        Bounds { promised, next_base }: Bounds,
    ) -> Result<Scanned<D>, ReadError> {
        let base_offset = found.base_offset;
        let file = self.open_log(base_offset)?;
        // A cleanly closed log is checked from its last index entry on, whatever the recovery point.
        let upto = if clean { Offset(i64::MAX) } else { check_from };
        let stored: Stored = (
            index::load(&self.disk, &self.path(base_offset, INDEX), INDEX_BYTES_MAX),
            index::load(&self.disk, &self.path(base_offset, TIME_INDEX), INDEX_BYTES_MAX),
        );
        let mut indexed = self.trusted_prefix(&file, found, upto, &stored)?;
        let start = indexed.index.last().map_or(0, |entry| entry.position);
        // The batch that the last entry names is met again.
        let mut next_offset = indexed.tally.next_offset;
        let mut first = !indexed.index.is_empty();
        let check_all = clean || self.known.recovery_point.is_none();
        let limit = next_base.unwrap_or(base_offset.plus(i64::from(i32::MAX) + 1));
        let mut headers = Headers::new(&*file, start, found.size);
        let (good, bad) = loop {
            let bad_at = match headers.next() {
                Ok(None) => break (found.size, false),
                Ok(Some((position, header))) => {
                    let mut valid = header.base_offset >= next_offset
                        && header.last_offset().since(base_offset) <= i64::from(i32::MAX);
                    if valid && (check_all || header.next_offset() > check_from) {
                        self.recovery.checked_bytes += header.size_in_bytes() as u64;
                        valid = crc_matches(&*file, position, &header, &mut self.buffer)
                            .map_err(|cause| self.failed(base_offset, cause))?;
                    }
                    if valid {
                        next_offset = header.next_offset();
                        if self.epochs.assign(header.leader_epoch, header.base_offset) {
                            self.epochs_dirty = true;
                        }
                        if first {
                            // Its entry stands already: it only counts towards the next one.
                            first = false;
                            indexed.tally.max.add(&header);
                            indexed.tally.next_offset = next_offset;
                            indexed.tally.bytes_since_entry =
                                u32::try_from(header.size_in_bytes()).unwrap_or(u32::MAX);
                        } else {
                            indexed.add(position, &header);
                        }
                        continue;
                    }
                    position
                }
                Err(Stop::Bad) => headers.position(),
                Err(Stop::Io(cause)) => return Err(self.failed(base_offset, cause)),
            };
            if first {
                // Both indexes end with what the bad batch says. They are made anew from those before it.
                first = false;
                indexed = Indexed::new(base_offset, self.config.index_interval_bytes);
                next_offset = base_offset;
                headers = Headers::new(&*file, 0, found.size);
                continue;
            }
            // What may be a torn tail ends the segment; behind damage it goes on.
            if next_offset >= promised && self.damaged_until(next_offset) == next_offset {
                break (bad_at, true);
            }
            let entries = stored.0.as_deref().unwrap_or_default();
            let behind = headers
                .resume(Damage { position: bad_at, base_offset, next_offset, limit }, entries)
                .map_err(|cause| self.failed(base_offset, cause))?;
            let Some(behind) = behind else { break (bad_at, true) };
            self.note_corrupt(OffsetRange { start: next_offset, end: behind });
            next_offset = behind;
        };
        Ok(Scanned { file, indexed, good, bad, stored })
    }

    /// The part of both stored indexes, up to `upto`, that the log confirms. Empty if anything contradicts it.
    fn trusted_prefix(
        &mut self,
        file: &D::File,
        found: Found,
        upto: Offset,
        stored: &Stored,
    ) -> Result<Indexed, ReadError> {
        let base_offset = found.base_offset;
        let mut trusted = Indexed::new(base_offset, self.config.index_interval_bytes);
        let none = trusted.clone();
        let (Some(mut index), Some(mut times)) = stored.clone() else {
            self.recovery.rebuilt_indexes += 1;
            return Ok(none);
        };
        let before =
            index::relative(base_offset, upto).unwrap_or(if upto < base_offset { 0 } else { u32::MAX });
        index.truncate(index.partition_point(|entry| entry.relative < before && entry.position < found.size));
        let Some(last) = index.last().copied() else { return Ok(none) };
        times.truncate(times.partition_point(|entry| entry.relative <= last.relative));
        let time = times.last().copied();
        let time_start = time.map_or(0, |time| {
            let covering = index.partition_point(|entry| entry.relative <= time.relative);
            covering.checked_sub(1).map_or(0, |at| index[at].position)
        });
        // From the batch of the last time entry to that of the last offset entry no timestamp may be larger.
        let mut headers = Headers::new(file, time_start, found.size).not_below(base_offset);
        let (mut max, mut time_seen) = (MaxTimestamp::NONE, time.is_none());
        let largest = time.map_or(Timestamp::NONE, |time| time.timestamp);
        let confirmed = loop {
            match headers.next() {
                Ok(Some((position, header))) => {
                    let relative = index::relative(base_offset, header.last_offset());
                    max.add(&header);
                    time_seen |= time.is_some_and(|time| {
                        relative == Some(time.relative) && header.max_timestamp == time.timestamp
                    });
                    if position >= last.position {
                        trusted.tally.next_offset = header.base_offset;
                        break position == last.position && relative == Some(last.relative);
                    }
                }
                Ok(None) | Err(Stop::Bad) => break false,
                Err(Stop::Io(cause)) => return Err(self.failed(base_offset, cause)),
            }
        };
        if !confirmed || !time_seen || max.timestamp > largest {
            self.recovery.rebuilt_indexes += 1;
            return Ok(none);
        }
        trusted.tally.max = time.map_or(MaxTimestamp::NONE, |time| MaxTimestamp {
            timestamp: time.timestamp,
            offset: base_offset.plus(i64::from(time.relative)),
        });
        // The age counts from the first batch, which is not read again.
        let mut headers = Headers::new(file, 0, found.size);
        if let Ok(Some((_, header))) = headers.next() {
            trusted.tally.first_timestamp = Some(header.max_timestamp).filter(|at| *at >= Timestamp(0));
        }
        (trusted.index, trusted.times) = (index, times);
        Ok(trusted)
    }

    /// Makes the log of what was found.
    fn finish(mut self) -> Result<(PartitionLog<D>, Recovery), ReadError> {
        let unclean = !(self.known.clean && self.known.recovery_point.is_some());
        let was_there = !self.segments.is_empty();
        let active = match self.segments.pop() {
            Some(last) => self.make_active(last)?,
            None => {
                let start = self.known.log_start_offset.max(Offset::ZERO);
                Active::create(&self.disk, &self.dir, start, &self.config, self.now)?
            }
        };
        let mut closed = BTreeMap::new();
        for found in &self.segments {
            closed.insert(found.base_offset, Closed { size: found.size, max: OnceLock::new() });
        }
        if unclean {
            self.sync_kept(&active)?;
        }
        let first_base = closed.keys().next().copied().unwrap_or(active.base_offset);
        let log_end = active.tally.next_offset;
        let mut go_on_at = self.damaged_until(log_end);
        if let Some(point) = self.known.recovery_point
            && point > go_on_at
        {
            let lost = OffsetRange { start: go_on_at, end: point };
            self.recovery.lost = Some(lost);
            // Their offsets were given to records. A directory without any segment is another matter: it is a new one,
            // which is filled from the start.
            if was_there {
                self.note_corrupt(lost);
                go_on_at = point;
            }
        }
        let mut log = PartitionLog {
            snapshots: self
                .names
                .iter()
                .filter_map(|name| names::parse_segment_file(name, SNAPSHOT))
                .collect(),
            corrupt: Mutex::new(std::mem::take(&mut self.corrupt)),
            log_start_offset: self.known.log_start_offset.max(first_base),
            flushed_end: log_end,
            cleaned_to: Offset::ZERO,
            truncated: self.truncated,
            epochs: std::mem::take(&mut self.epochs),
            epochs_dirty: self.epochs_dirty,
            unsynced: Vec::new(),
            dir_changes: 0,
            dir_synced: 0,
            truncations: 0,
            doomed: VecDeque::new(),
            failed: false,
            cache: Mutex::new(Cache::default()),
            damaged_active: AtomicBool::new(false),
            disk: self.disk.clone(),
            dir: self.dir.clone(),
            config: self.config.clone(),
            closed,
            active,
        };
        for base in std::mem::take(&mut self.doomed) {
            log.doom_segment(base, self.now)?;
            let path = names::with_suffix(&log.file_path(base, LOG), DELETED);
            log.doomed.push_back((self.now.plus(self.config.file_delete_delay_ms), path));
        }
        if let Some(lost) = self.recovery.lost.filter(|_| !was_there) {
            // The next start must not miss it again, in the log that begins here.
            log.note_truncation(log_end, lost.end)?;
        }
        if self.txn_unknown {
            let file = Arc::clone(&log.active.file);
            log.active.txn = log.rebuild_txn_index(&file, log.active.base_offset, log.active.size)?;
            if let Some(file) = log.active.txn.shared_file() {
                file.sync_all().doing("sync an index in", &self.dir)?;
            }
        }
        // Damage that reaches beyond the last valid batch: offsets go on after all that was there, in a new segment.
        if go_on_at > log_end {
            let next = Active::create(&self.disk, &self.dir, go_on_at, &self.config, self.now)?;
            log.replace_active(next);
            log.unsynced.clear();
            log.flushed_end = go_on_at;
            self.disk.sync_dir(&self.dir).doing("sync", &self.dir)?;
        }
        log.forget_truncation();
        self.settle_ends(&mut log)?;
        self.rebuild_closed(&log)?;
        self.recovery.corrupt = log.corrupt_ranges();
        Ok((log, self.recovery))
    }

    /// Makes the last segment the one that is written to.
    fn make_active(&mut self, last: Found) -> Result<Active<D>, ReadError> {
        let base_offset = last.base_offset;
        let scanned = match self.scanned.remove(&base_offset) {
            Some(scanned) => scanned,
            None => {
                let bounds = Bounds { promised: base_offset, next_base: None };
                self.scan_segment(last, Offset(i64::MAX), true, bounds)?
            }
        };
        let index_path = self.path(base_offset, INDEX);
        let times_path = self.path(base_offset, TIME_INDEX);
        let end = scanned.indexed.tally.next_offset;
        let damaged = self.damaged_until(end) > end;
        // The damaged part stays in the file, and the file stays as large.
        let size = if damaged { last.size } else { scanned.good };
        let unclean = !self.known.clean || scanned.bad;
        let txn = match self.recover_txn_index(base_offset, &scanned, unclean)? {
            Some(txn) => txn,
            None => {
                self.txn_unknown = true;
                let path = txn_index::path(&self.dir, base_offset);
                TxnIndex::open(&self.disk, path.clone(), base_offset)
                    .map_or_else(|| TxnIndex::create(&self.disk, path), Ok)?
            }
        };
        let created = scanned.file.modified().map_or(self.now, |at| at.min(self.now));
        let Indexed { tally, index, mut times } = scanned.indexed;
        let (stored_index, stored_times) = scanned.stored;
        // A log that was closed properly ends its time index with an entry of its own.
        let last = tally.time_entry(times.last().copied());
        if stored_times
            .as_ref()
            .is_some_and(|stored| stored.len() == times.len() + 1 && stored.last().copied() == last)
        {
            times.extend(last);
        }
        Ok(Active {
            reserved: 0,
            base_offset,
            file: scanned.file,
            size,
            tally,
            index: self.regrow(index_path, index, stored_index),
            times: self.regrow(times_path, times, stored_times),
            txn,
            txn_unsynced: false,
            created,
        })
    }

    /// An index in memory whose file holds the same, or is written anew.
    fn regrow<E: index::Entry + PartialEq>(
        &self,
        path: PathBuf,
        entries: Vec<E>,
        stored: Option<Vec<E>>,
    ) -> Growing<E> {
        if stored.is_some_and(|stored| stored == entries) {
            return Growing::stored(path, entries);
        }
        crate::truncate::grown(&self.disk, path, entries)
    }

    /// The aborted transactions of the last segment. After a bad end those after the last usable snapshot of the
    /// producers' table are found again from the markers. `None` if there is no such snapshot in this segment or some
    /// of it is damaged: then the segments before it are needed as well.
    fn recover_txn_index(
        &self,
        base_offset: Offset,
        scanned: &Scanned<D>,
        unclean: bool,
    ) -> Result<Option<TxnIndex<D>>, ReadError> {
        let path = txn_index::path(&self.dir, base_offset);
        let promised = self.known.recovery_point.unwrap_or(base_offset);
        let stored = TxnIndex::open(&self.disk, path.clone(), base_offset);
        let upto = match stored {
            Some(stored) if !unclean => return Ok(Some(stored)),
            Some(_) => promised.min(scanned.indexed.tally.next_offset),
            None => base_offset,
        };
        if self.corrupt.iter().any(|range| range.end > base_offset) {
            return Ok(None);
        }
        let Some((from, at_start)) = self.snapshot_in(base_offset, upto) else { return Ok(None) };
        let mut open = txn_index::OpenTransactions::at_snapshot(&at_start);
        let mut aborted = Vec::new();
        // Every batch before this entry's ends before the snapshot.
        let before = index::relative(base_offset, from).unwrap_or(0);
        let index = &scanned.indexed.index;
        let covering = index.partition_point(|entry| entry.relative < before);
        let start = covering.checked_sub(1).map_or(0, |at| index[at].position);
        let mut headers = Headers::new(&*scanned.file, start, scanned.good);
        while let Some((position, header)) = match headers.next() {
            Ok(next) => next,
            Err(Stop::Bad) => None,
            Err(Stop::Io(cause)) => return Err(self.failed(base_offset, cause)),
        } {
            if header.next_offset() <= from {
                continue;
            }
            let control = match header.attributes.is_control() {
                true => crate::producers::read_control(&*scanned.file, position, &header)
                    .map_err(|cause| self.failed(base_offset, cause))?,
                false => None,
            };
            aborted.extend(open.add(&header, control));
        }
        let Some(mut stored) = stored else {
            return Ok(Some(TxnIndex::rebuild(&self.disk, path, &aborted)?));
        };
        let keep = stored.first_ending_at(from)?;
        let same = stored.count() == keep + aborted.len() as u64
            && aborted
                .iter()
                .zip(keep..)
                .all(|(entry, at)| stored.get(at).is_ok_and(|stored| stored == *entry));
        if !same {
            stored.truncate(from)?;
            for entry in &aborted {
                stored.append(entry)?;
            }
        }
        Ok(Some(stored))
    }

    /// The latest readable snapshot of the producers' table from a segment's start up to `upto` (inclusive).
    fn snapshot_in(&self, base_offset: Offset, upto: Offset) -> Option<(Offset, Vec<ProducerSnapshotEntry>)> {
        let offsets = self.names.iter().rev().filter_map(|name| names::parse_segment_file(name, SNAPSHOT));
        for offset in offsets.filter(|at| base_offset <= *at && *at <= upto) {
            if let Some(entries) = crate::snapshot::read(&self.disk, &self.path(offset, SNAPSHOT)) {
                return Some((offset, entries));
            }
        }
        None
    }

    /// What is served from now on must still be there after the next crash.
    fn sync_kept(&self, active: &Active<D>) -> Result<(), ReadError> {
        for scanned in self.scanned.values() {
            scanned.file.sync_all().doing("sync a segment in", &self.dir)?;
        }
        active.file.sync_all().doing("sync a segment in", &self.dir)?;
        if let Some(file) = active.txn.shared_file() {
            file.sync_all().doing("sync an index in", &self.dir)?;
        }
        self.disk.sync_dir(&self.dir).doing("sync", &self.dir)?;
        Ok(())
    }

    /// Brings start, end, epochs and snapshots together.
    fn settle_ends(&mut self, log: &mut PartitionLog<D>) -> Result<(), ReadError> {
        if log.log_start_offset > log.log_end_offset() {
            // All that was left lies below what was deleted on purpose.
            log.truncate_fully_and_start_at(log.log_start_offset, self.now)?;
        }
        let (start, end) = (log.log_start_offset, log.log_end_offset());
        let gone: Vec<Offset> = log.snapshots.range(end.next()..).copied().collect();
        for snapshot in gone {
            log.remove_snapshot(snapshot);
        }
        log.remove_stray_snapshots();
        let cut_end = log.epochs.truncate_from_end(end);
        let cut_start = log.epochs.truncate_from_start(start);
        if cut_end || cut_start || log.epochs_dirty {
            match log.write_epochs() {
                // A full disk can still be read from; the history is written before it is next added to.
                Err(error) if !error.is_disk_full() => return Err(error.into()),
                _ => {}
            }
        }
        log.trim_corrupt();
        Ok(())
    }

    /// Builds the indexes of closed segments again where a look at their files is enough to see that they are wrong,
    /// and of all that were read.
    fn rebuild_closed(&mut self, log: &PartitionLog<D>) -> Result<(), ReadError> {
        for (&base, closed) in &log.closed {
            // Of a damaged one too: entries that point behind the damage would lead reads there.
            if let Some(mut scanned) = self.scanned.remove(&base) {
                scanned.indexed.finish();
                let _ = store_index(&self.disk, &self.path(base, INDEX), &scanned.indexed.index);
                let _ = store_index(&self.disk, &self.path(base, TIME_INDEX), &scanned.indexed.times);
                let _ = closed.max.set(scanned.indexed.tally.max);
                let _ = log.rebuild_txn_index(&scanned.file, base, closed.size)?;
                continue;
            }
            if !self.looks_indexed(base, closed.size) {
                self.recovery.rebuilt_indexes += 1;
                match log.warm(base) {
                    Ok(_) | Err(ReadError::Corrupt { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    fn looks_indexed(&self, base_offset: Offset, size: u32) -> bool {
        let whole = |kind, entry_size: u64, may_be_empty| {
            self.disk
                .file_len(&self.path(base_offset, kind))
                .is_ok_and(|len| len % entry_size == 0 && (len > 0 || may_be_empty))
        };
        // One batch calls for no entry, however large it is; and none may have a timestamp. What is wrong beyond that
        // is found when the segment is first read.
        let one_batch = self.config.index_interval_bytes.saturating_add(self.config.max_message_bytes);
        whole(INDEX, 8, size <= one_batch)
            && whole(TIME_INDEX, 12, true)
            && whole(TXN_INDEX, txn_index::SIZE as u64, true)
    }
}
