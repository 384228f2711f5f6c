//! Letting old segments go: by time, by size, and by the log's start (DeleteRecords).

use semel_env::{Disk, DiskFile, Open};
use semel_model::{Offset, Timestamp};

use crate::{
    error::{Doing, ReadError, StorageError},
    names::LOG,
    partition::{PartitionLog, ProducersNow},
};

/// Why segments could not be let go.
#[derive(Debug, thiserror::Error)]
pub enum RetentionError {
    /// `OFFSET_OUT_OF_RANGE`: records above the high watermark can't be deleted.
    #[error("cannot delete before {offset}: high watermark is {high_watermark}")]
    OffsetOutOfRange {
        /// What was asked for.
        offset: Offset,
        /// The limit, inclusive.
        high_watermark: Offset,
    },
    /// A segment could not be looked into.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The disk refused.
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// What retention would let go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expired {
    /// Base offsets of the segments, oldest first; without a gap, from the first segment on.
    pub segments: Vec<Offset>,
    /// Whether the active segment is one of them, and must be closed first.
    pub active_too: bool,
}

/// What retention did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deleted {
    /// How many segments went.
    pub segments: usize,
    /// Their size in bytes.
    pub bytes: u64,
}

impl<D: Disk> PartitionLog<D> {
    /// Moves the log's start to `offset` (DeleteRecords); whether it moved. Segments that lie below as a whole go with
    /// the next [`enforce_retention`](Self::enforce_retention).
    ///
    /// `offset` is at most `high_watermark`. Producers keep their state: what is deleted was written all the same.
    pub fn delete_before(&mut self, offset: Offset, high_watermark: Offset) -> Result<bool, RetentionError> {
        if offset > high_watermark || offset > self.log_end_offset() {
            return Err(RetentionError::OffsetOutOfRange { offset, high_watermark });
        }
        if offset <= self.log_start_offset {
            return Ok(false);
        }
        self.move_start(offset);
        Ok(true)
    }

    fn move_start(&mut self, offset: Offset) {
        self.log_start_offset = self.log_start_offset.max(offset);
        self.cleaned_to = self.cleaned_to.max(self.log_start_offset);
        // The file says more than there is until it is next written, which does no harm: a start cuts it. A sync here
        // would make every DeleteRecords wait for the disk.
        self.epochs.truncate_from_start(self.log_start_offset);
        self.trim_corrupt();
    }

    /// The segments that may go: below the log's start; or, if `cleanup.policy` has `delete`, too old or too much.
    /// Never one with an offset at or above `high_watermark`.
    ///
    /// A segment is as old as its largest timestamp says; if that lies in the future, as old as its file, so that one
    /// record with a wrong clock does not keep a log for ever (KAFKA-20609).
    pub fn expired_segments(&self, now: Timestamp, high_watermark: Offset) -> Result<Expired, ReadError> {
        let policy = self.config.cleanup_policy;
        let retention_ms = self.config.retention_ms.filter(|_| policy.delete);
        let mut excess = match self.config.retention_bytes.filter(|_| policy.delete) {
            Some(max) => self.size_in_bytes().saturating_sub(max),
            None => 0,
        };
        let mut expired = Expired::default();
        for (&base, segment) in &self.closed {
            let end = self.segment_end(base);
            if end > high_watermark {
                return Ok(expired);
            }
            let size = u64::from(segment.size);
            let below_start = end <= self.log_start_offset;
            let too_much = excess > 0 && excess >= size;
            let goes = below_start
                || too_much
                || match retention_ms {
                    Some(span) => now.since(self.age_of(base, now)?) > span,
                    None => false,
                };
            if !goes {
                return Ok(expired);
            }
            excess = excess.saturating_sub(size);
            expired.segments.push(base);
        }
        let active = &self.active;
        if active.size > 0
            && self.log_end_offset() <= high_watermark
            && let Some(span) = retention_ms
            && now.since(self.age_of(active.base_offset, now)?) > span
        {
            expired.active_too = true;
        }
        Ok(expired)
    }

    /// The time from which a segment's age counts; never in the future.
    fn age_of(&self, base_offset: Offset, now: Timestamp) -> Result<Timestamp, ReadError> {
        let largest = self.segment_max(base_offset)?.timestamp;
        if (Timestamp(0)..=now).contains(&largest) {
            return Ok(largest);
        }
        let modified = if base_offset == self.active.base_offset {
            self.active.file.modified()
        } else {
            self.disk.open(&self.file_path(base_offset, LOG), Open::Read).and_then(|file| file.modified())
        };
        let modified = modified.doing("look up the age of", &self.file_path(base_offset, LOG))?;
        Ok(modified.min(now))
    }

    /// Lets go what [`expired_segments`](Self::expired_segments) names, and moves the log's start.
    ///
    /// Files are renamed now and removed by [`remove_due`](Self::remove_due) later; who reads them goes on reading.
    pub fn enforce_retention(
        &mut self,
        now: Timestamp,
        high_watermark: Offset,
        producers: ProducersNow<'_>,
    ) -> Result<Deleted, RetentionError> {
        let mut expired = self.expired_segments(now, high_watermark)?;
        if expired.active_too {
            expired.segments.push(self.active.base_offset);
            self.roll(now, producers)?;
        }
        let mut deleted = Deleted::default();
        // The start moves first: if a crash comes between, it says no more than what is there.
        if let Some(last) = expired.segments.last() {
            self.move_start(self.segment_end(*last));
        }
        for base in expired.segments {
            self.doom_segment(base, now)?;
            if let Some(segment) = self.closed.remove(&base) {
                deleted.segments += 1;
                deleted.bytes += u64::from(segment.size);
            }
            if self.snapshots.last() != Some(&base) {
                self.remove_snapshot(base);
            }
        }
        // What is gone needs no sync.
        let first = self.segments().next().unwrap_or(self.log_start_offset);
        self.flushed_end = self.flushed_end.max(first);
        self.unsynced.retain(|segment| segment.end_offset > first);
        Ok(deleted)
    }
}
