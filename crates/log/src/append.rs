//! Appending.

use std::{io::IoSlice, sync::atomic::Ordering};

use bytes::Bytes;
use semel_env::{Disk, DiskFile};
use semel_model::{LeaderEpoch, Offset, Timestamp};
use semel_record::{Batch, BatchError, BatchHeader, Batches};

use crate::{
    error::{AppendError, StorageError},
    index::{Entry, OffsetEntry, TimeEntry},
    names::{self, LOG},
    partition::{PartitionLog, ProducersNow},
    txn_index::AbortedTransaction,
};

/// Where a batch went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// The offset of its first record.
    pub base_offset: Offset,
    /// The log's end after it (exclusive).
    pub log_end_offset: Offset,
    /// The base offset of the segment it lies in.
    pub segment: Offset,
    /// Its position in that segment's file, in bytes.
    pub position: u32,
}

impl<D: Disk> PartitionLog<D> {
    /// Appends `batch` as the leader of `leader_epoch`: its records get the offsets from `base_offset` on, which must
    /// be where the log ends.
    ///
    /// One vectored write to the page cache, without copying the batch. When the epoch is new, it is on stable storage
    /// before the batch is written. Rolls first if the batch does not fit the active segment or that is old or full.
    /// Errors: see [`AppendError`]; whatever the error, the log is as it was, or refuses everything from then on.
    pub fn append(
        &mut self,
        batch: &Batch,
        base_offset: Offset,
        leader_epoch: LeaderEpoch,
        now: Timestamp,
        producers: ProducersNow<'_>,
    ) -> Result<Appended, AppendError> {
        let log_end_offset = self.log_end_offset();
        if base_offset != log_end_offset {
            return Err(AppendError::Discontiguous { log_end_offset, found: base_offset });
        }
        let header = batch.header.stamped(base_offset, leader_epoch);
        self.prepare(&header, now, producers)?;
        let head = batch.stamped_head(base_offset, leader_epoch);
        self.write(&mut [IoSlice::new(&head), IoSlice::new(&batch.bytes[head.len()..])])?;
        Ok(self.written(&header))
    }

    /// Appends batches that a leader has stamped, as they are; they must be whole, and go on where the log ends or,
    /// if the leader's log is compacted, later. Appends all of them or, on an error, those before the one it tells of.
    ///
    /// Checks the checksums: what is damaged on the way must not be stored.
    /// Errors: also [`AppendError::Corrupt`].
    pub fn append_as_follower(
        &mut self,
        batches: &Bytes,
        now: Timestamp,
        producers: ProducersNow<'_>,
        applied: &mut dyn FnMut(&Batch, Appended),
    ) -> Result<(), AppendError> {
        let mut walk = Batches::new(batches.clone());
        for batch in walk.by_ref() {
            let batch = batch.map_err(AppendError::Corrupt)?;
            batch.verify_crc().map_err(AppendError::Corrupt)?;
            let log_end_offset = self.log_end_offset();
            if batch.header.base_offset < log_end_offset {
                return Err(AppendError::Discontiguous { log_end_offset, found: batch.header.base_offset });
            }
            self.prepare(&batch.header, now, producers)?;
            self.write(&mut [IoSlice::new(&batch.bytes)])?;
            let appended = self.written(&batch.header);
            applied(&batch, appended);
        }
        match walk.remainder().len() {
            0 => Ok(()),
            available => {
                Err(AppendError::Corrupt(BatchError::Truncated { needed: available + 1, available }))
            }
        }
    }

    /// Notes a transaction whose abort marker was just appended.
    ///
    /// On an error the log refuses everything from then on: the marker is there, but readers would not know.
    pub fn append_aborted(&mut self, transaction: &AbortedTransaction) -> Result<(), StorageError> {
        let appended = self.active.txn.append(transaction);
        match appended {
            Ok(()) => self.active.txn_unsynced = true,
            Err(_) => self.failed = true,
        }
        appended
    }

    /// Whatever must be so before the batch can be written.
    fn prepare(
        &mut self,
        header: &BatchHeader,
        now: Timestamp,
        producers: ProducersNow<'_>,
    ) -> Result<(), AppendError> {
        if self.failed {
            return Err(AppendError::LogFailed);
        }
        let size = header.size_in_bytes();
        if size > self.config.segment_bytes as usize {
            return Err(AppendError::RecordListTooLarge { size, segment_bytes: self.config.segment_bytes });
        }
        let latest = self.latest_epoch();
        if header.leader_epoch < latest {
            return Err(AppendError::FencedLeaderEpoch { latest, found: header.leader_epoch });
        }
        if self.must_roll(header, size, now) {
            self.roll(now, producers)?;
        }
        // A new segment begins where the log ends, which on a follower may be before the batch.
        if header.last_offset().since(self.active.base_offset) > i64::from(i32::MAX) {
            if self.active.size > 0 {
                return Err(AppendError::OffsetSpanTooLarge);
            }
            self.restart_active_at(header.base_offset, now)?;
        }
        if header.leader_epoch > latest || self.epochs_dirty {
            self.epochs.assign(header.leader_epoch, header.base_offset);
            self.write_epochs()?;
        }
        Ok(())
    }

    fn must_roll(&self, header: &BatchHeader, size: usize, now: Timestamp) -> bool {
        let active = &self.active;
        if active.size == 0 {
            return false;
        }
        let age = match active.tally.first_timestamp {
            // A record from the future must not close a segment with each batch that follows.
            Some(first) => header.max_timestamp.min(now).since(first),
            None => now.since(active.created),
        };
        let index_bytes_max = self.config.segment_index_bytes as usize;
        active.size as usize + size > self.config.segment_bytes as usize
            || age.get() > self.config.segment_ms.get() - self.config.segment_jitter_ms.get()
            || active.index.size_in_bytes() + OffsetEntry::SIZE > index_bytes_max
            // One entry is kept free for the last one, which is written when the segment is closed.
            || active.times.size_in_bytes() + 2 * TimeEntry::SIZE > index_bytes_max
            || header.last_offset().since(active.base_offset) > i64::from(i32::MAX)
            || self.damaged_active.load(Ordering::Acquire)
    }

    /// Writes at the end of the active segment; on an error the file is cut back to what it was.
    fn write(&mut self, parts: &mut [IoSlice<'_>]) -> Result<(), AppendError> {
        let end = u64::from(self.active.size);
        let length: usize = parts.iter().map(|part| part.len()).sum();
        self.active.reserve(end + length as u64, self.config.segment_bytes);
        if let Err(cause) = self.active.file.write_all_vectored_at(parts, end) {
            // What may have been written lies behind the end, where no read looks. If it can't be cut off, a start
            // after a crash could take it for a batch, so nothing more may follow it.
            if self.active.file.set_len(end).is_err() {
                self.failed = true;
            }
            let path = names::segment_file(&self.dir, self.active.base_offset, LOG);
            return Err(StorageError::new("append to", &path, cause).into());
        }
        Ok(())
    }

    /// Takes note of a batch that now stands at the end of the active segment.
    fn written(&mut self, header: &BatchHeader) -> Appended {
        let active = &mut self.active;
        let position = active.size;
        if let Some(entry) = active.tally.add(position, header) {
            active.index.push(entry);
            if let Some(entry) = active.tally.time_entry(active.times.last()) {
                active.times.push(entry);
            }
            if active.index.has_many_pending() {
                // A start after a crash finds less to read again. An index that can't be written now is written
                // later or built anew: it is no reason to refuse a batch that stands in the log.
                let _ = active.index.persist(&self.disk);
                let _ = active.times.persist(&self.disk);
            }
        }
        // `must_roll` keeps the size within `segment_bytes`, which is at most `i32::MAX`.
        active.size += header.size_in_bytes() as u32;
        Appended {
            base_offset: header.base_offset,
            log_end_offset: active.tally.next_offset,
            segment: active.base_offset,
            position,
        }
    }
}
