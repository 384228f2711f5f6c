//! Finding offsets: by time, by leader epoch, and the aborted transactions among them.

use bytes::Bytes;
use semel_env::{Disk, DiskFile};
use semel_model::{LeaderEpoch, Offset, Timestamp};
use semel_record::{Batch, BatchHeader, DecodeLimits};

use crate::{
    epochs::{EpochEnd, EpochEntry},
    error::{ReadError, StorageError},
    partition::PartitionLog,
    read::Place,
    scan::Headers,
    txn_index::{AbortedTransaction, TxnIndex},
};

/// The answer to a look-up by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimestampOffset {
    /// The record found.
    pub offset: Offset,
    /// Its timestamp.
    pub timestamp: Timestamp,
    /// The leadership that wrote it.
    pub leader_epoch: LeaderEpoch,
}

impl<D: Disk> PartitionLog<D> {
    /// The first record with a timestamp of `timestamp` or later, at or after the log's start; `None` if there is
    /// none. (ListOffsets by time.)
    ///
    /// Errors: [`ReadError::Corrupt`] if it can't be told for damage.
    pub fn offset_for_timestamp(&self, timestamp: Timestamp) -> Result<Option<TimestampOffset>, ReadError> {
        let bases: Vec<Offset> = self.segments().collect();
        for base in bases {
            if self.segment_end(base) <= self.log_start_offset {
                continue;
            }
            let max = self.segment_max(base)?;
            if max.timestamp < timestamp {
                continue;
            }
            let place = self.place_of(base)?;
            let before =
                place.last_time(|entry| entry.timestamp <= timestamp)?.map_or(0, |entry| entry.relative);
            let from = base.plus(i64::from(before)).max(self.log_start_offset);
            let found = self.first_in(
                &place,
                from,
                |header| header.max_timestamp >= timestamp,
                |at, offset| at >= timestamp && offset >= self.log_start_offset,
            )?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// The first record that has the largest timestamp of all; `None` if there is no record with a timestamp.
    /// (ListOffsets -3, KIP-734.)
    pub fn max_timestamp(&self) -> Result<Option<TimestampOffset>, ReadError> {
        let mut largest: Option<(Timestamp, Offset)> = None;
        for base in self.segments() {
            let max = self.segment_max(base)?;
            if max.timestamp >= Timestamp(0) && largest.is_none_or(|(timestamp, _)| timestamp < max.timestamp)
            {
                largest = Some((max.timestamp, base));
            }
        }
        let Some((timestamp, base)) = largest else { return Ok(None) };
        let place = self.place_of(base)?;
        let last = self.segment_max(base)?.offset;
        self.first_in(&place, last, |header| header.max_timestamp >= timestamp, |at, _| at >= timestamp)
    }

    /// The first record from the batch of `from` on for which `takes` says yes, looking into batches for which
    /// `may_have` does.
    fn first_in(
        &self,
        place: &Place<'_, D>,
        from: Offset,
        may_have: impl Fn(&BatchHeader) -> bool,
        takes: impl Fn(Timestamp, Offset) -> bool,
    ) -> Result<Option<TimestampOffset>, ReadError> {
        let Some((start, _)) = self.locate(place, from)? else { return Ok(None) };
        let mut headers = Headers::new(&**place.file(), start, place.size());
        let mut expected = from;
        let limits = DecodeLimits { decompressed_bytes_max: self.config.decompressed_bytes_max };
        loop {
            let (position, header) = match headers.next() {
                Ok(Some(found)) => found,
                Ok(None) => return Ok(None),
                Err(stop) => return Err(self.stopped(place, headers.position(), expected, stop)),
            };
            expected = header.next_offset();
            if header.record_count == 0 || !may_have(&header) {
                continue;
            }
            let batch = self.read_batch(place, position, &header)?;
            let failed = |cause| ReadError::Batch { offset: header.base_offset, cause };
            let payload = batch.payload(&limits).map_err(failed)?;
            for view in payload.views() {
                let view = view.map_err(failed)?;
                let offset = header.base_offset.plus(i64::from(view.offset_delta));
                if takes(view.timestamp, offset) {
                    return Ok(Some(TimestampOffset {
                        offset,
                        timestamp: view.timestamp,
                        leader_epoch: header.leader_epoch,
                    }));
                }
            }
        }
    }

    fn read_batch(
        &self,
        place: &Place<'_, D>,
        position: u32,
        header: &BatchHeader,
    ) -> Result<Batch, ReadError> {
        // Bounded by the segment: the walk has seen that the whole batch lies in it.
        let mut bytes = vec![0; header.size_in_bytes()];
        place
            .file()
            .read_exact_at(&mut bytes, u64::from(position))
            .map_err(|cause| self.read_failed(place.base_offset(), cause))?;
        Batch::parse(Bytes::from(bytes))
            .map_err(|cause| ReadError::Batch { offset: header.base_offset, cause })
    }

    /// Where `leader_epoch` ends in this log; `None` if that can't be known here (newer than all, or no history).
    /// (OffsetForLeaderEpoch. Source: KIP-101, KIP-279.)
    #[must_use]
    pub fn end_offset_for_epoch(&self, leader_epoch: LeaderEpoch) -> Option<EpochEnd> {
        self.epochs.end_offset_for(leader_epoch, self.log_end_offset())
    }

    /// The leadership that wrote `offset`; [`LeaderEpoch::NONE`] if that is not known.
    #[must_use]
    pub fn epoch_at(&self, offset: Offset) -> LeaderEpoch {
        self.epochs.epoch_at(offset)
    }

    /// The leadership history, oldest first.
    #[must_use]
    pub fn epoch_history(&self) -> &[EpochEntry] {
        self.epochs.entries()
    }

    /// The aborted transactions with a record in `start..end`, in the order of their markers: what a read_committed
    /// reader of these offsets must be told. At most `max` of them.
    ///
    /// Errors: [`StorageError`] also if there are more, as a reader must never be told only some.
    pub fn aborted_transactions(
        &self,
        start: Offset,
        end: Offset,
        max: usize,
    ) -> Result<Vec<AbortedTransaction>, ReadError> {
        let mut found = Vec::new();
        if start >= end {
            return Ok(found);
        }
        let mut place = self.place_of(start)?;
        loop {
            let txn: &TxnIndex<D> = match &place {
                Place::Active(log) => &log.active.txn,
                Place::Closed(warm) => &warm.txn,
            };
            for at in txn.first_ending_at(start)?..txn.count() {
                let entry = txn.get(at)?;
                if entry.first_offset < end {
                    if found.len() == max {
                        return Err(StorageError::invalid(
                            "collect the aborted transactions of",
                            &self.dir,
                            format!("more than {max} between {start} and {end}"),
                        )
                        .into());
                    }
                    found.push(entry);
                }
                // Every transaction that began below the last stable offset has ended by here.
                if entry.last_stable_offset >= end {
                    return Ok(found);
                }
            }
            match self.place_after(&place)? {
                Some(next) => place = next,
                None => return Ok(found),
            }
        }
    }
}
