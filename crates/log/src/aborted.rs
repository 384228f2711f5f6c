//! Finding the aborted transactions of a segment again, from what was open at its start and from its markers.

use std::collections::BTreeSet;

use semel_env::{Disk, Open};
use semel_model::{Offset, OffsetRange, ProducerId};
use semel_record::{BatchHeader, ControlRecord, Outcome};

use crate::{
    error::{Doing, ReadError},
    index::{self, OffsetEntry},
    names::{INDEX, LOG, SNAPSHOT},
    partition::PartitionLog,
    scan::{Damage, Headers, Stop},
    snapshot,
    txn_index::{self, AbortedTransaction, OpenTransactions, TxnIndex},
    warm::INDEX_BYTES_MAX,
};

impl<D: Disk> PartitionLog<D> {
    /// Builds the index of the segment's aborted transactions again, or finds it right.
    ///
    /// Where not all that came before can be read (no snapshot of the producers' table, or damage), the batches do not
    /// tell every transaction's start: then stored entries whose markers are there, or are damaged, are kept. To drop
    /// one would show aborted records to read_committed readers.
    pub(crate) fn rebuild_txn_index(
        &self,
        file: &D::File,
        base_offset: Offset,
        size: u32,
    ) -> Result<TxnIndex<D>, ReadError> {
        let (mut open, mut complete) = self.open_transactions_at(base_offset)?;
        let mut aborted = Vec::new();
        let mut markers: BTreeSet<(Offset, ProducerId)> = BTreeSet::new();
        let damaged = self.walk(file, base_offset, size, &mut |header, control| {
            if let Some(ControlRecord::EndTransaction(marker)) = &control
                && marker.outcome == Outcome::Abort
            {
                markers.insert((header.last_offset(), header.producer_id));
            }
            aborted.extend(open.add(header, control));
        })?;
        complete &= damaged.is_empty() && !self.has_damage(base_offset, self.segment_end(base_offset));
        let path = txn_index::path(&self.dir, base_offset);
        let stored = TxnIndex::open(&self.disk, path.clone(), base_offset);
        if let Some(stored) = stored.as_ref().filter(|_| !complete) {
            for at in 0..stored.count() {
                let entry = stored.get(at)?;
                if markers.contains(&(entry.last_offset, entry.producer_id))
                    || damaged.iter().chain(&*self.corrupt()).any(|range| range.contains(entry.last_offset))
                {
                    aborted.retain(|found: &AbortedTransaction| found.last_offset != entry.last_offset);
                    aborted.push(entry);
                }
            }
            aborted.sort_unstable_by_key(|entry| entry.last_offset);
        }
        // What is right is left alone: on a full disk it could not be written again.
        if let Some(stored) = stored
            && stored.count() == aborted.len() as u64
            && aborted.iter().zip(0..).all(|(entry, at)| stored.get(at).is_ok_and(|stored| stored == *entry))
        {
            return Ok(stored);
        }
        Ok(TxnIndex::rebuild(&self.disk, path, &aborted)?)
    }

    /// The transactions that were open where a segment begins, and whether that is certain: from the snapshot there, or
    /// from the latest one before it and the batches since.
    fn open_transactions_at(&self, base_offset: Offset) -> Result<(OpenTransactions, bool), ReadError> {
        let first_base = self.segments().next().unwrap_or(base_offset);
        let usable = self.snapshots.range(..=base_offset).rev().find_map(|&at| {
            let entries = snapshot::read(&self.disk, &self.file_path(at, SNAPSHOT))?;
            Some((at, OpenTransactions::at_snapshot(&entries)))
        });
        let (from, mut open) = usable.unwrap_or((Offset::ZERO, OpenTransactions::default()));
        // Without a snapshot all is known only if nothing was ever deleted.
        let mut complete = from >= first_base && !self.has_damage(from, base_offset);
        for &base in self.closed.range(..base_offset).map(|(base, _)| base) {
            if self.segment_end(base) <= from {
                continue;
            }
            let path = self.file_path(base, LOG);
            let file = self.disk.open(&path, Open::Read).doing("open", &path)?;
            let size = self.closed.get(&base).map_or(0, |closed| closed.size);
            let damaged = self.walk(&file, base, size, &mut |header, control| {
                if header.next_offset() > from {
                    // What was aborted there stands in that segment's own index.
                    let _ = open.add(header, control);
                }
            })?;
            complete &= damaged.is_empty();
        }
        Ok((open, complete))
    }

    fn has_damage(&self, from: Offset, to: Offset) -> bool {
        self.corrupt().iter().any(|range| range.start < to && range.end > from)
    }

    /// Shows all batches of a segment with the control records of those that have one, and goes on behind damage; the
    /// offsets that could not be shown.
    fn walk(
        &self,
        file: &D::File,
        base_offset: Offset,
        size: u32,
        each: &mut dyn FnMut(&BatchHeader, Option<ControlRecord>),
    ) -> Result<Vec<OffsetRange>, ReadError> {
        let limit = self.segment_end(base_offset);
        let mut headers = Headers::new(file, 0, size).not_below(base_offset);
        let (mut next_offset, mut damaged) = (base_offset, Vec::new());
        loop {
            match headers.next() {
                Ok(None) => return Ok(damaged),
                Ok(Some((position, header))) => {
                    next_offset = header.next_offset();
                    each(&header, self.control_of(file, position, &header)?);
                }
                Err(Stop::Io(cause)) => return Err(self.read_failed(base_offset, cause)),
                Err(Stop::Bad) => {
                    let damage = Damage { position: headers.position(), base_offset, next_offset, limit };
                    let behind = headers
                        .resume(damage, &self.stored_entries(base_offset))
                        .map_err(|cause| self.read_failed(base_offset, cause))?;
                    damaged.push(OffsetRange { start: next_offset, end: behind.unwrap_or(limit) });
                    match behind {
                        Some(behind) => next_offset = behind,
                        None => return Ok(damaged),
                    }
                }
            }
        }
    }

    /// What the index of a segment says, as far as it can be read: to go on behind damage.
    pub(crate) fn stored_entries(&self, base_offset: Offset) -> Vec<OffsetEntry> {
        if base_offset == self.active.base_offset {
            return self.active.index.entries().to_vec();
        }
        index::load(&self.disk, &self.file_path(base_offset, INDEX), INDEX_BYTES_MAX).unwrap_or_default()
    }
}
