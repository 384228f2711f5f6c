//! Compaction: of each key only the last value stays.
//!
//! Three steps, so that the log is held only for the first and the last of them: [`PartitionLog::plan_cleaning`] looks
//! what there is to do, [`CleanPlan::run`] rewrites closed segments beside the log, and
//! [`PartitionLog::install_cleaned`] puts the new ones in place. One log must not be cleaned twice at a time.
//!
//! The new segments are written under names that end in `.cleaned`. A small file that names them, written in one step,
//! is the point of no return: without it a start throws the new files away, with it a start carries the swap to its end.

mod install;
mod keep;
mod map;
mod rewrite;

use std::sync::Arc;

use bytes::Bytes;
use semel_env::{Disk, DiskFile};
use semel_model::{Offset, Timestamp};
use semel_record::{Batch, BatchError, BatchHeader, DecodeLimits, ProducerSnapshotEntry};

pub(crate) use install::finish_swap;
use keep::Transactions;
use map::OffsetMap;

use crate::{
    config::Config,
    error::{Doing, ReadError, StorageError},
    names::LOG,
    partition::PartitionLog,
    scan::{Headers, MaxTimestamp, Stop},
    txn_index::AbortedTransaction,
};

/// More aborted transactions than this in what one run cleans, and it refuses: 40 MB.
const ABORTED_MAX: usize = 1 << 20;

/// What a run of compaction needs to know.
#[derive(Clone, Debug)]
pub struct CleanRequest {
    /// The time.
    pub now: Timestamp,
    /// The last stable offset (exclusive): undecided transactions are not touched.
    pub last_stable_offset: Offset,
    /// All living producers: the last batch of each stays.
    pub producers: Vec<ProducerSnapshotEntry>,
    /// Memory for keys, in bytes (`log.cleaner.dedupe.buffer.size`); 24 bytes hold one at best.
    pub map_bytes_max: usize,
    /// Drawn at random for each run, so that nobody can make two keys that compaction takes for one.
    pub hash_seed: [u64; 2],
    /// Whether to clean also when it does not pay.
    pub force: bool,
}

/// Why compaction stopped. Nothing of the log was changed.
#[derive(Debug, thiserror::Error)]
pub enum CleanError {
    /// A batch could not be read or rewritten.
    #[error("cannot compact the batch at offset {offset}")]
    Batch {
        /// Its base offset.
        offset: Offset,
        /// Why.
        #[source]
        cause: BatchError,
    },
    /// One batch has more keys than the map can hold.
    #[error("the keys of the batch at offset {offset} do not fit {map_bytes_max} bytes")]
    MapTooSmall {
        /// Its base offset.
        offset: Offset,
        /// The limit.
        map_bytes_max: usize,
    },
    /// Whoever runs it asked it to stop.
    #[error("compaction was told to stop")]
    Stopped,
    /// The log could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The disk refused.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// What there is to clean in one log.
#[derive(Debug)]
#[must_use = "nothing is cleaned before `run`"]
pub struct CleanPlan<D: Disk> {
    disk: D,
    dir: std::path::PathBuf,
    config: Config,
    request: CleanRequest,
    /// All closed segments from the log's first to the last that is cleaned.
    sources: Vec<Source<D>>,
    first_dirty_offset: Offset,
    aborted: Vec<AbortedTransaction>,
    truncations: u64,
    dirty_ratio: f64,
}

/// A segment to be read.
#[derive(Debug)]
pub(crate) struct Source<D: Disk> {
    base_offset: Offset,
    end_offset: Offset,
    size: u32,
    file: Arc<D::File>,
}

/// What a run did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CleanStats {
    /// Of the segments read for rewriting.
    pub bytes_read: u64,
    /// Of the segments written.
    pub bytes_written: u64,
    /// Batches read.
    pub batches_read: u64,
    /// Batches that stay as they are, or changed, or emptied.
    pub batches_kept: u64,
    /// Different keys in what was cleaned for the first time.
    pub keys: usize,
}

/// New segments, ready to be put in place.
#[derive(Debug)]
#[must_use = "nothing has changed before it is installed"]
pub struct Cleaned {
    groups: Vec<Group>,
    truncations: u64,
    cleaned_to: Offset,
    stats: CleanStats,
}

/// One new segment and the ones it replaces.
#[derive(Clone, Copy, Debug)]
struct Group {
    base_offset: Offset,
    /// Of the last segment it replaces.
    last_base_offset: Offset,
    size: u32,
    max: MaxTimestamp,
    /// Every batch stayed as it was: there is nothing to put in place.
    unchanged: bool,
}

impl Cleaned {
    /// What the run did.
    #[must_use]
    pub fn stats(&self) -> CleanStats {
        self.stats
    }
}

impl<D: Disk> PartitionLog<D> {
    /// The share of bytes that were never cleaned, of all that could be; 0 if there are none.
    pub fn dirty_ratio(&self, request: &CleanRequest) -> Result<f64, ReadError> {
        let (first_dirty, end) = self.dirty_range(request)?;
        Ok(self.ratio(first_dirty, end))
    }

    /// What there is to clean: nothing if the policy has no `compact`, if too little is dirty
    /// (`min.cleanable.dirty.ratio`) and nothing is too old (`max.compaction.lag.ms`), or if part of it is damaged.
    pub fn plan_cleaning(&self, request: CleanRequest) -> Result<Option<CleanPlan<D>>, ReadError> {
        if !self.config.cleanup_policy.compact || self.failed {
            return Ok(None);
        }
        let (first_dirty_offset, end) = self.dirty_range(&request)?;
        let dirty_ratio = self.ratio(first_dirty_offset, end);
        if end <= first_dirty_offset {
            return Ok(None);
        }
        if self.corrupt().iter().any(|range| range.start < end) {
            // Whatever is damaged might hold the last value of any key.
            return Ok(None);
        }
        let pays = request.force
            || dirty_ratio >= self.config.min_cleanable_dirty_ratio
            || self.is_overdue(first_dirty_offset, request.now)?;
        if !pays {
            return Ok(None);
        }
        let mut sources = Vec::new();
        for (&base_offset, closed) in self.closed.range(..end) {
            let path = self.file_path(base_offset, LOG);
            let file = self.disk.open(&path, semel_env::Open::Read).doing("open", &path)?;
            sources.push(Source {
                base_offset,
                end_offset: self.segment_end(base_offset),
                size: closed.size,
                file: Arc::new(file),
            });
        }
        let Some(first) = sources.first() else { return Ok(None) };
        let aborted = self.aborted_transactions(first.base_offset, end, ABORTED_MAX)?;
        Ok(Some(CleanPlan {
            disk: self.disk.clone(),
            dir: self.dir.clone(),
            config: self.config.clone(),
            request,
            sources,
            first_dirty_offset,
            aborted,
            truncations: self.truncations,
            dirty_ratio,
        }))
    }

    /// From the first offset that was never cleaned to the first that may not be (exclusive), a segment's base.
    fn dirty_range(&self, request: &CleanRequest) -> Result<(Offset, Offset), ReadError> {
        let first_dirty = self.cleaned_to.max(self.log_start_offset);
        let bound = request.last_stable_offset.min(self.flushed_end);
        let lag = self.config.min_compaction_lag_ms;
        let mut end = first_dirty;
        for &base in self.closed.keys() {
            let segment_end = self.segment_end(base);
            if segment_end <= first_dirty {
                continue;
            }
            if segment_end > bound {
                break;
            }
            if lag.get() > 0
                && self.segment_max(base)?.timestamp > Timestamp(request.now.get().saturating_sub(lag.get()))
            {
                break;
            }
            end = segment_end;
        }
        Ok((first_dirty, end))
    }

    fn ratio(&self, first_dirty: Offset, end: Offset) -> f64 {
        let (mut dirty, mut all) = (0_u64, 0_u64);
        for (&base, closed) in self.closed.range(..end) {
            all += u64::from(closed.size);
            if self.segment_end(base) > first_dirty {
                dirty += u64::from(closed.size);
            }
        }
        if all == 0 { 0.0 } else { dirty as f64 / all as f64 }
    }

    /// Whether the first dirty segment's first record has waited longer than `max.compaction.lag.ms`.
    fn is_overdue(&self, first_dirty: Offset, now: Timestamp) -> Result<bool, ReadError> {
        let lag = self.config.max_compaction_lag_ms;
        if lag.get() == i64::MAX {
            return Ok(false);
        }
        let place = self.place_of(first_dirty)?;
        let first = self.locate(&place, first_dirty)?;
        Ok(first.is_some_and(|(_, header)| {
            header.max_timestamp >= Timestamp(0) && now.since(header.max_timestamp) > lag
        }))
    }
}

impl<D: Disk> CleanPlan<D> {
    /// The share of bytes that were never cleaned.
    #[must_use]
    pub fn dirty_ratio(&self) -> f64 {
        self.dirty_ratio
    }

    /// How many bytes the run will read, at most twice.
    #[must_use]
    pub fn size_in_bytes(&self) -> u64 {
        self.sources.iter().map(|source| u64::from(source.size)).sum()
    }

    /// Writes the new segments beside the log. The log may be read, appended to, and have its old segments deleted
    /// meanwhile. `go_on` is asked before each batch; once it says no the run ends with [`CleanError::Stopped`].
    ///
    /// On an error what was written is removed again: on a full disk it is room that is needed.
    pub fn run(&self, go_on: &mut dyn FnMut() -> bool) -> Result<Cleaned, CleanError> {
        let ran = self.run_to_end(go_on);
        if ran.is_err() {
            for source in &self.sources {
                for kind in install::KINDS {
                    let path = crate::names::with_suffix(
                        &self.path(source.base_offset, kind),
                        crate::names::CLEANED,
                    );
                    // What can't be removed now is swept by the next start.
                    let _ = self.disk.remove_file(&path);
                }
            }
        }
        ran
    }

    fn run_to_end(&self, go_on: &mut dyn FnMut() -> bool) -> Result<Cleaned, CleanError> {
        let mut map = OffsetMap::new(self.request.map_bytes_max, self.request.hash_seed);
        let cleaned_to = self.fill_map(&mut map, go_on)?;
        let (groups, mut stats) = self.rewrite(&map, cleaned_to, go_on)?;
        stats.keys = map.len();
        Ok(Cleaned { groups, truncations: self.truncations, cleaned_to, stats })
    }

    fn limits(&self) -> DecodeLimits {
        DecodeLimits { decompressed_bytes_max: self.config.decompressed_bytes_max }
    }

    /// Puts the keys of the dirty part into the map until it is full; where it then stands (exclusive), a segment's
    /// end unless the very first one fills it.
    fn fill_map(&self, map: &mut OffsetMap, go_on: &mut dyn FnMut() -> bool) -> Result<Offset, CleanError> {
        let mut transactions = Transactions::new(self.aborted.clone());
        let mut reached = self.first_dirty_offset;
        for source in &self.sources {
            let mut headers = Headers::new(&*source.file, 0, source.size);
            while let Some((position, header)) = self.next(source, &mut headers)? {
                if !go_on() {
                    return Err(CleanError::Stopped);
                }
                if header.next_offset() <= self.first_dirty_offset {
                    continue;
                }
                if !self.map_batch(map, source, position, &header, &mut transactions)? {
                    if reached == self.first_dirty_offset {
                        return Err(CleanError::MapTooSmall {
                            offset: header.base_offset,
                            map_bytes_max: self.request.map_bytes_max,
                        });
                    }
                    return Ok(reached);
                }
                reached = header.next_offset();
            }
            reached = reached.max(source.end_offset);
        }
        Ok(reached)
    }

    /// `false` if the map has no room for the batch's keys.
    fn map_batch(
        &self,
        map: &mut OffsetMap,
        source: &Source<D>,
        position: u32,
        header: &BatchHeader,
        transactions: &mut Transactions,
    ) -> Result<bool, CleanError> {
        let failed = |cause| CleanError::Batch { offset: header.base_offset, cause };
        if header.attributes.is_control() {
            let batch = self.read_batch(source, position, header)?;
            let control = semel_record::ControlRecord::of(&batch, &self.limits()).map_err(failed)?;
            transactions.control(header, control);
            return Ok(true);
        }
        if transactions.records(header) || header.record_count == 0 {
            return Ok(true);
        }
        let batch = self.read_batch(source, position, header)?;
        batch.verify_crc().map_err(failed)?;
        let payload = batch.payload(&self.limits()).map_err(failed)?;
        for view in payload.views() {
            let view = view.map_err(failed)?;
            let offset = header.base_offset.plus(i64::from(view.offset_delta));
            if let Some(key) = view.key
                && offset >= self.first_dirty_offset
                && !map.put(key, offset)
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn next(
        &self,
        source: &Source<D>,
        headers: &mut Headers<'_, D::File>,
    ) -> Result<Option<(u32, BatchHeader)>, CleanError> {
        headers.next().map_err(|stop| match stop {
            Stop::Io(cause) => StorageError::new("read", &self.path(source.base_offset, LOG), cause).into(),
            // Where it begins is not known here; a scrub or the next start finds out.
            Stop::Bad => ReadError::Corrupt { from: source.base_offset, to: source.end_offset }.into(),
        })
    }

    fn read_batch(
        &self,
        source: &Source<D>,
        position: u32,
        header: &BatchHeader,
    ) -> Result<Batch, CleanError> {
        let mut bytes = vec![0; header.size_in_bytes()];
        let path = || self.path(source.base_offset, LOG);
        source
            .file
            .read_exact_at(&mut bytes, u64::from(position))
            .map_err(|cause| StorageError::new("read", &path(), cause))?;
        Batch::parse(Bytes::from(bytes))
            .map_err(|cause| CleanError::Batch { offset: header.base_offset, cause })
    }

    fn path(&self, base_offset: Offset, kind: &str) -> std::path::PathBuf {
        crate::names::segment_file(&self.dir, base_offset, kind)
    }
}
