//! Taking offsets off the log's end or start.

use std::{path::Path, sync::Arc};

use semel_env::{Disk, DiskFile, Open};
use semel_model::{Offset, Timestamp};

use crate::{
    checkpoint,
    error::{Doing, ReadError, StorageError},
    index::{self, Growing, relative},
    names::{INDEX, LOG, TIME_INDEX, TRUNCATED},
    partition::{Active, PartitionLog},
    read::Place,
    scan::{Headers, Indexed, Stop},
    txn_index::{self, TxnIndex},
};

/// Why a log could not be cut. What was not cut is still there; the log must be opened again.
#[derive(Debug, thiserror::Error)]
pub enum TruncateError {
    /// Below the log's start there is nothing to keep: `truncate_fully_and_start_at` is meant.
    #[error("cannot truncate to {offset}: the log starts at {log_start_offset}")]
    BelowLogStart {
        /// What was asked for.
        offset: Offset,
        /// The first offset there is.
        log_start_offset: Offset,
    },
    /// The place to cut at could not be found.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The disk refused.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// A truncation that the owner's recovery point may not know of yet: without it, a start would take what was cut on
/// purpose for lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Truncated {
    /// The lowest end that the log was cut to: nothing from here on was promised.
    pub end_offset: Offset,
    /// No recovery point that anybody wrote is larger (exclusive end). Once the log is flushed up to here it is of no
    /// account.
    pub promised: Offset,
}

/// What the directory says about truncations. One that can't be read counts as none.
pub(crate) fn read_truncated<D: Disk>(disk: &D, dir: &Path) -> Option<Truncated> {
    let text = checkpoint::read_text(disk, &dir.join(TRUNCATED)).ok()??;
    let rows = checkpoint::parse(&text, checkpoint::pair).ok()?;
    let (end_offset, promised) = *rows.first()?;
    Some(Truncated { end_offset: Offset(end_offset), promised: Offset(promised) })
}

impl<D: Disk> PartitionLog<D> {
    /// Says on stable storage that the log is about to be cut to `end_offset`, while no recovery point that was written
    /// is larger than `promised`.
    pub(crate) fn note_truncation(
        &mut self,
        end_offset: Offset,
        promised: Offset,
    ) -> Result<(), StorageError> {
        let known = self.truncated.unwrap_or(Truncated { end_offset, promised });
        let truncated = Truncated {
            end_offset: known.end_offset.min(end_offset),
            promised: known.promised.max(promised),
        };
        if end_offset >= truncated.promised || self.truncated == Some(truncated) {
            return Ok(());
        }
        let path = self.dir.join(TRUNCATED);
        let text = checkpoint::render([format!("{} {}", truncated.end_offset, truncated.promised)].iter());
        self.disk.write_atomic(&path, text.as_bytes()).doing("write", &path)?;
        self.truncated = Some(truncated);
        Ok(())
    }

    /// Forgets truncations that no recovery point lies above any more.
    pub(crate) fn forget_truncation(&mut self) {
        if self.truncated.is_some_and(|truncated| truncated.promised <= self.flushed_end) {
            self.truncated = None;
            // One that stays only makes a start less suspicious.
            let _ = self.disk.remove_file(&self.dir.join(TRUNCATED));
        }
    }

    /// Makes `offset` the log's end: it and all later ones go, with the rest of a batch that holds it. Nothing happens
    /// if the log ends there or before.
    ///
    /// Epochs, indexes, aborted transactions and snapshots of what goes, go too; the producers' table must be built
    /// again by the caller. The cut is on stable storage when this returns: a follower must not find again after a
    /// crash what its leader told it to drop.
    /// Errors: [`TruncateError`]; on a disk error the log refuses everything from then on.
    pub fn truncate_to(&mut self, offset: Offset, now: Timestamp) -> Result<(), TruncateError> {
        if offset >= self.log_end_offset() {
            return Ok(());
        }
        if offset < self.log_start_offset {
            return Err(TruncateError::BelowLogStart { offset, log_start_offset: self.log_start_offset });
        }
        let cut = self.cut_to(offset, now);
        if cut.is_err() {
            self.failed = true;
        }
        cut
    }

    fn cut_to(&mut self, offset: Offset, now: Timestamp) -> Result<(), TruncateError> {
        // Found before anything is changed.
        let (base, size, end) = {
            let place = self.place_of(offset)?;
            match self.locate(&place, offset)? {
                Some((position, header)) => (place.base_offset(), position, header.base_offset.min(offset)),
                None => (place.base_offset(), place.size(), offset),
            }
        };
        self.note_truncation(end, self.flushed_end)?;
        self.truncations += 1;
        self.cache().clear();
        // From the end, so that whatever a crash leaves is a log without a hole.
        let later: Vec<Offset> = self.segments().filter(|other| *other > base).collect();
        for other in later.into_iter().rev() {
            self.doom_segment(other, now)?;
        }
        if base != self.active.base_offset {
            let closed = self.closed.get(&base).map_or(0, |closed| closed.size);
            let reopened = self.reopen(base, closed.min(size), now)?;
            self.closed.retain(|other, _| *other < base);
            self.active = reopened;
        }
        self.shrink_active(size, offset)?;
        if self.log_end_offset() < self.log_start_offset {
            // The log's start lies inside the batch that went: nothing is left.
            return Ok(self.restart_at(self.log_start_offset, now)?);
        }
        self.unsynced.retain(|segment| segment.end_offset <= base);
        let end = self.log_end_offset();
        self.flushed_end = self.flushed_end.min(end);
        self.cleaned_to = self.cleaned_to.min(end);
        let gone: Vec<Offset> = self.snapshots.range(end.next()..).copied().collect();
        for snapshot in gone {
            self.remove_snapshot(snapshot);
        }
        if self.epochs.truncate_from_end(end) {
            self.write_epochs()?;
        }
        self.trim_corrupt();
        self.active.file.sync_all().doing("sync a segment in", &self.dir)?;
        self.disk.sync_dir(&self.dir).doing("sync", &self.dir)?;
        self.dir_synced = self.dir_changes;
        Ok(())
    }

    /// Makes a closed segment the one that is written to, up to `size`.
    fn reopen(&self, base_offset: Offset, size: u32, now: Timestamp) -> Result<Active<D>, TruncateError> {
        // Its indexes were checked when the place to cut at was looked for.
        let path = self.file_path(base_offset, LOG);
        let file = Arc::new(self.disk.open(&path, Open::Write).doing("open", &path)?);
        let mut indexed = Indexed::new(base_offset, self.config.index_interval_bytes);
        let mut headers = Headers::new(&*file, 0, size).not_below(base_offset);
        loop {
            match headers.next() {
                Ok(Some((position, header))) => indexed.add(position, &header),
                Ok(None) => break,
                Err(Stop::Io(cause)) => return Err(self.read_failed(base_offset, cause).into()),
                Err(Stop::Bad) => {
                    let range = semel_model::OffsetRange {
                        start: indexed.tally.next_offset,
                        end: self.segment_end(base_offset),
                    };
                    self.note_corrupt(range);
                    return Err(ReadError::Corrupt { from: range.start, to: range.end }.into());
                }
            }
        }
        let txn_path = txn_index::path(&self.dir, base_offset);
        let txn = match TxnIndex::open(&self.disk, txn_path, base_offset) {
            Some(txn) => txn,
            None => self.rebuild_txn_index(&file, base_offset, size)?,
        };
        Ok(Active {
            reserved: 0,
            base_offset,
            file,
            size,
            tally: indexed.tally,
            index: grown(&self.disk, self.file_path(base_offset, INDEX), indexed.index),
            times: grown(&self.disk, self.file_path(base_offset, TIME_INDEX), indexed.times),
            txn,
            txn_unsynced: false,
            created: now,
        })
    }

    /// Cuts the active segment's files to `size`, which is where the batch of `offset` begins.
    fn shrink_active(&mut self, size: u32, offset: Offset) -> Result<(), TruncateError> {
        let path = self.file_path(self.active.base_offset, LOG);
        let base = self.active.base_offset;
        self.active.file.set_len(u64::from(size)).doing("truncate", &path)?;
        self.active.txn.truncate(offset)?;
        if self.active.size != size || self.active.tally.next_offset > offset {
            let mut indexed = Indexed::new(base, self.config.index_interval_bytes);
            let mut headers = Headers::new(&*self.active.file, 0, size);
            loop {
                match headers.next() {
                    Ok(Some((position, header))) => indexed.add(position, &header),
                    Ok(None) => break,
                    Err(stop) => {
                        let expected = indexed.tally.next_offset;
                        let place = Place::Active(self);
                        return Err(self.stopped(&place, headers.position(), expected, stop).into());
                    }
                }
            }
            let keep_index = self.active.index.entries().partition_point(|entry| entry.position < size);
            let end = relative(base, indexed.tally.next_offset).unwrap_or(u32::MAX);
            let keep_times = self.active.times.entries().partition_point(|entry| entry.relative < end);
            self.active.index.truncate(&self.disk, keep_index)?;
            self.active.times.truncate(&self.disk, keep_times)?;
            self.active.tally = indexed.tally;
            self.active.size = size;
        }
        Ok(())
    }

    /// Drops everything and goes on at `offset`: a follower whose log its leader no longer has (KIP-101), or one that
    /// must start from a later point. Durable when it returns.
    pub fn truncate_fully_and_start_at(
        &mut self,
        offset: Offset,
        now: Timestamp,
    ) -> Result<(), StorageError> {
        let restarted = self.restart_at(offset, now);
        if restarted.is_err() {
            self.failed = true;
        }
        restarted
    }

    fn restart_at(&mut self, offset: Offset, now: Timestamp) -> Result<(), StorageError> {
        self.note_truncation(offset, self.flushed_end)?;
        self.truncations += 1;
        self.cache().clear();
        let all: Vec<Offset> = self.segments().collect();
        for base in all.into_iter().rev() {
            self.doom_segment(base, now)?;
        }
        self.closed.clear();
        self.unsynced.clear();
        self.active = Active::create(&self.disk, &self.dir, offset, &self.config, now)?;
        self.log_start_offset = offset;
        self.flushed_end = offset;
        self.cleaned_to = self.cleaned_to.min(offset);
        for snapshot in std::mem::take(&mut self.snapshots) {
            self.remove_snapshot(snapshot);
        }
        self.epochs.clear();
        self.write_epochs()?;
        self.corrupt().clear();
        crate::partition::write_corrupt(&self.disk, &self.dir, &[])?;
        self.disk.sync_dir(&self.dir).doing("sync", &self.dir)?;
        self.dir_changes += 1;
        self.dir_synced = self.dir_changes;
        Ok(())
    }

    /// Replaces an empty active segment by one that begins at `offset`: the leader's log has a hole that no segment
    /// can span.
    pub(crate) fn restart_active_at(&mut self, offset: Offset, now: Timestamp) -> Result<(), StorageError> {
        let next = Active::create(&self.disk, &self.dir, offset, &self.config, now)?;
        let old = std::mem::replace(&mut self.active, next);
        self.dir_changes += 1;
        self.cache().clear();
        if self.closed.is_empty() {
            self.log_start_offset = self.log_start_offset.max(offset);
        }
        self.doom_segment(old.base_offset, now)
    }
}

/// An index that is whole in memory and is written when it next would be; what its file holds until then is of no use.
pub(crate) fn grown<D: Disk, E: index::Entry>(
    disk: &D,
    path: std::path::PathBuf,
    entries: Vec<E>,
) -> Growing<E> {
    match crate::warm::store_index(disk, &path, &entries) {
        Ok(()) => Growing::stored(path, entries),
        // The disk may be full: reading goes on, and the file is written once it can be.
        Err(_) => Growing::unstored(path, entries),
    }
}
