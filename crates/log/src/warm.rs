//! Closed segments that are being read: open files, checked indexes, and where readers stopped.

use std::sync::Arc;

use semel_env::{Disk, DiskFile, Open};
use semel_model::{Offset, OffsetRange};
use semel_record::{BatchHeader, ControlRecord};

use crate::{
    error::{Doing, ReadError, StorageError},
    index::{self, Entries, Entry, Lookup, OffsetEntry, TimeEntry},
    names::{INDEX, LOG, TIME_INDEX},
    partition::PartitionLog,
    producers::read_control,
    scan::{Damage, Headers, Indexed, MaxTimestamp, Stop},
    txn_index::{self, TxnIndex},
};

/// How many closed segments of one log stay open: each costs four descriptors and no memory to speak of.
const WARM_MAX: usize = 4;
/// How many readers' positions are remembered per log.
const HINTS_MAX: usize = 8;
/// No index is larger: a 2 GiB segment of the smallest batches with an entry for each.
pub(crate) const INDEX_BYTES_MAX: u64 = 512 << 20;

/// A closed segment ready to be read.
#[derive(Debug)]
pub(crate) struct Warm<D: Disk> {
    pub base_offset: Offset,
    pub file: Arc<D::File>,
    pub size: u32,
    pub index: Lookup<D, OffsetEntry>,
    pub times: Lookup<D, TimeEntry>,
    pub txn: TxnIndex<D>,
}

/// A read ended at `position` of this segment, and the next one of the same reader will ask for `offset`.
#[derive(Clone, Copy, Debug)]
struct Hint {
    offset: Offset,
    segment: Offset,
    position: u32,
}

/// What reads leave behind for the next.
#[derive(Debug)]
pub(crate) struct Cache<D: Disk> {
    warm: Vec<Arc<Warm<D>>>,
    hints: [Option<Hint>; HINTS_MAX],
    next_hint: usize,
}

impl<D: Disk> Default for Cache<D> {
    fn default() -> Self {
        Self { warm: Vec::new(), hints: [None; HINTS_MAX], next_hint: 0 }
    }
}

impl<D: Disk> Cache<D> {
    pub(crate) fn forget(&mut self, base_offset: Offset) {
        self.warm.retain(|warm| warm.base_offset != base_offset);
        for hint in &mut self.hints {
            *hint = hint.filter(|hint| hint.segment != base_offset);
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn hint(&self, segment: Offset, offset: Offset) -> Option<u32> {
        let hint =
            self.hints.iter().flatten().find(|hint| hint.offset == offset && hint.segment == segment)?;
        Some(hint.position)
    }

    pub(crate) fn note(&mut self, segment: Offset, offset: Offset, position: u32) {
        let hint = Some(Hint { offset, segment, position });
        // The position of a reader that moves on replaces its last one only by age: readers are not told apart.
        let same =
            self.hints.iter().flatten().any(|known| known.offset == offset && known.segment == segment);
        if !same {
            self.hints[self.next_hint] = hint;
            self.next_hint = (self.next_hint + 1) % HINTS_MAX;
        }
    }
}

impl<D: Disk> PartitionLog<D> {
    /// Opens a closed segment for reading, or finds it open. The first time its indexes are checked against the log,
    /// and built again if they say anything else.
    pub(crate) fn warm(&self, base_offset: Offset) -> Result<Arc<Warm<D>>, ReadError> {
        {
            let mut cache = self.cache();
            if let Some(at) = cache.warm.iter().position(|warm| warm.base_offset == base_offset) {
                // Move to the front: the last one is the first to be forgotten.
                cache.warm[..=at].rotate_right(1);
                return Ok(Arc::clone(&cache.warm[0]));
            }
        }
        let warm = Arc::new(self.open_closed(base_offset)?);
        let mut cache = self.cache();
        cache.warm.insert(0, Arc::clone(&warm));
        cache.warm.truncate(WARM_MAX);
        Ok(warm)
    }

    fn open_closed(&self, base_offset: Offset) -> Result<Warm<D>, ReadError> {
        let path = self.file_path(base_offset, LOG);
        let file = self.disk.open(&path, Open::Read).doing("open", &path)?;
        let closed = self.closed.get(&base_offset);
        let size = closed.map_or(0, |closed| closed.size);
        let mut indexes = (self.open_lookup(base_offset, INDEX), self.open_lookup(base_offset, TIME_INDEX));
        let checked = closed.is_some_and(|closed| closed.max.get().is_some());
        let found = match &indexes {
            (Some(index), Some(times)) if checked => {
                // Checked before in this process; only a file that was tampered with since could differ.
                (index.len() > 0 || times.len() > 0 || size <= self.config.index_interval_bytes)
                    .then_some(None)
            }
            (Some(index), Some(times)) => {
                self.check_indexes(&file, base_offset, size, index, times)?.map(Some)
            }
            _ => None,
        };
        let max = match found {
            Some(max) => max,
            None => {
                let rebuilt = self.rebuild_indexes(&file, base_offset, size)?;
                let max = rebuilt.tally.max;
                indexes = (
                    Some(self.store_lookup(base_offset, INDEX, rebuilt.index)),
                    Some(self.store_lookup(base_offset, TIME_INDEX, rebuilt.times)),
                );
                Some(max)
            }
        };
        if let (Some(closed), Some(max)) = (closed, max) {
            let _ = closed.max.set(max);
        }
        let txn_path = txn_index::path(&self.dir, base_offset);
        let txn = match TxnIndex::open(&self.disk, txn_path, base_offset) {
            Some(txn) => txn,
            None => self.rebuild_txn_index(&file, base_offset, size)?,
        };
        let (index, times) = match indexes {
            (Some(index), Some(times)) => (index, times),
            _ => (Lookup::Memory(Vec::new()), Lookup::Memory(Vec::new())),
        };
        Ok(Warm { base_offset, file: Arc::new(file), size, index, times, txn })
    }

    /// `None` if the file is missing or can't be an index.
    fn open_lookup<E: Entry>(&self, base_offset: Offset, kind: &str) -> Option<Lookup<D, E>> {
        let path = self.file_path(base_offset, kind);
        let entries: Vec<E> = index::load(&self.disk, &path, INDEX_BYTES_MAX)?;
        let file = self.disk.open(&path, Open::Read).ok()?;
        Some(Lookup::file(path, file, entries.len()))
    }

    /// Writes an index anew and opens it; if that can't be done (the disk is full) it lives in memory.
    fn store_lookup<E: Entry>(&self, base_offset: Offset, kind: &str, entries: Vec<E>) -> Lookup<D, E> {
        let path = self.file_path(base_offset, kind);
        let stored =
            store_index(&self.disk, &path, &entries).and_then(|()| self.disk.open(&path, Open::Read));
        match stored {
            Ok(file) => Lookup::file(path, file, entries.len()),
            Err(_) => Lookup::Memory(entries),
        }
    }

    /// Whether both indexes are complete and right as far as their last entries tell; the largest timestamp if so.
    ///
    /// Reads on from the last entries to the segment's end: a few KiB, unless timestamps are out of order.
    fn check_indexes(
        &self,
        file: &D::File,
        base_offset: Offset,
        size: u32,
        index: &Lookup<D, OffsetEntry>,
        times: &Lookup<D, TimeEntry>,
    ) -> Result<Option<MaxTimestamp>, ReadError> {
        let last_index = index.len().checked_sub(1).map(|at| index.get(at)).transpose()?;
        let last_time = times.len().checked_sub(1).map(|at| times.get(at)).transpose()?;
        let time_start = match last_time {
            Some(time) => index.last_where(|entry| entry.relative <= time.relative)?,
            None => None,
        };
        let index_start = last_index.map_or(0, |entry| entry.position);
        let start = time_start.map_or(0, |entry| entry.position).min(index_start);
        if start > 0 && start >= size {
            return Ok(None);
        }
        let mut headers = Headers::new(file, start, size).not_below(base_offset);
        let mut tail = Indexed::new(base_offset, self.config.index_interval_bytes);
        let (mut max, mut index_seen, mut time_seen) =
            (MaxTimestamp::NONE, last_index.is_none(), last_time.is_none());
        loop {
            match headers.next() {
                Ok(None) => break,
                Ok(Some((position, header))) => {
                    let relative = index::relative(base_offset, header.last_offset());
                    if position >= index_start {
                        index_seen |= last_index.is_some_and(|entry| {
                            entry.position == position && relative == Some(entry.relative)
                        });
                        tail.add(position, &header);
                    }
                    max.add(&header);
                    time_seen |= last_time.is_some_and(|entry| {
                        relative == Some(entry.relative) && header.max_timestamp == entry.timestamp
                    });
                }
                Err(Stop::Io(cause)) => return Err(self.read_failed(base_offset, cause)),
                // The damage is found, and noted, by building the indexes again.
                Err(Stop::Bad) => return Ok(None),
            }
        }
        let complete = index_seen && time_seen && tail.index.is_empty();
        let largest = last_time.map_or(MaxTimestamp::NONE, |time| MaxTimestamp {
            timestamp: time.timestamp,
            offset: base_offset.plus(i64::from(time.relative)),
        });
        Ok((complete && max.timestamp <= largest.timestamp).then_some(largest))
    }

    /// Builds both indexes from the log's headers. Damage is noted and passed over; it ends them only if nothing whole
    /// is found behind it.
    fn rebuild_indexes(&self, file: &D::File, base_offset: Offset, size: u32) -> Result<Indexed, ReadError> {
        tracing::info!(log = %self.dir.display(), segment = %base_offset, "indexes are built again");
        let mut indexed = Indexed::new(base_offset, self.config.index_interval_bytes);
        let mut headers = Headers::new(file, 0, size).not_below(base_offset);
        loop {
            match headers.next() {
                Ok(None) => break,
                Ok(Some((position, header))) => indexed.add(position, &header),
                Err(Stop::Io(cause)) => return Err(self.read_failed(base_offset, cause)),
                Err(Stop::Bad) => {
                    let next_offset = indexed.tally.next_offset;
                    let limit = self.segment_end(base_offset);
                    let damage = Damage { position: headers.position(), base_offset, next_offset, limit };
                    let behind = headers
                        .resume(damage, &self.stored_entries(base_offset))
                        .map_err(|cause| self.read_failed(base_offset, cause))?;
                    self.note_corrupt(OffsetRange { start: next_offset, end: behind.unwrap_or(limit) });
                    match behind {
                        Some(behind) => indexed.tally.next_offset = behind,
                        None => break,
                    }
                }
            }
        }
        indexed.finish();
        Ok(indexed)
    }

    /// The control record of a batch, if it is one of these and can be read.
    pub(crate) fn control_of(
        &self,
        file: &D::File,
        position: u32,
        header: &BatchHeader,
    ) -> Result<Option<ControlRecord>, ReadError> {
        if !header.attributes.is_control() {
            return Ok(None);
        }
        read_control(file, position, header).map_err(|cause| self.read_failed(header.base_offset, cause))
    }

    pub(crate) fn read_failed(&self, base_offset: Offset, cause: std::io::Error) -> ReadError {
        StorageError::new("read", &self.file_path(base_offset, LOG), cause).into()
    }

    /// The largest timestamp in a segment.
    pub(crate) fn segment_max(&self, base_offset: Offset) -> Result<MaxTimestamp, ReadError> {
        if base_offset >= self.active.base_offset {
            return Ok(self.active.tally.max);
        }
        let Some(closed) = self.closed.get(&base_offset) else { return Ok(MaxTimestamp::NONE) };
        if closed.max.get().is_none() {
            self.warm(base_offset)?;
        }
        Ok(closed.max.get().copied().unwrap_or(MaxTimestamp::NONE))
    }
}

/// Replaces an index file. Not synced: what a crash leaves of it is checked before it is used.
pub(crate) fn store_index<D: Disk, E: Entry>(
    disk: &D,
    path: &std::path::Path,
    entries: &[E],
) -> std::io::Result<()> {
    let file = disk.open(path, Open::Truncate)?;
    file.write_all_at(&index::encode(entries), 0)
}
