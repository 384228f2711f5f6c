//! What compaction keeps of each batch.
//!
//! A record stays if it is the last of its key, and a tombstone only until its delete horizon (KIP-534). Records of
//! aborted transactions go. A transaction's marker stays until its records are gone, and then until its own delete
//! horizon. The last batch of each living producer stays, emptied if need be, for its sequence number (KIP-98).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use semel_model::{Millis, Offset, ProducerEpoch, ProducerId, Timestamp};
use semel_record::{
    Batch, BatchError, BatchHeader, ControlRecord, DecodeLimits, Outcome, ProducerSnapshotEntry, RecordView,
    Retained,
};

use super::map::OffsetMap;
use crate::txn_index::AbortedTransaction;

/// Follows transactions through the batches that compaction reads.
#[derive(Debug)]
pub(crate) struct Transactions {
    /// Not met yet, in the order of their first offsets.
    coming: VecDeque<AbortedTransaction>,
    aborted: BTreeMap<ProducerId, Aborted>,
    /// Producers with records of a committed transaction that were met.
    committed: BTreeSet<ProducerId>,
}

#[derive(Debug)]
struct Aborted {
    transaction: AbortedTransaction,
    has_records: bool,
}

impl Transactions {
    pub(crate) fn new(mut aborted: Vec<AbortedTransaction>) -> Self {
        aborted.sort_unstable_by_key(|transaction| transaction.first_offset);
        Self { coming: aborted.into(), aborted: BTreeMap::new(), committed: BTreeSet::new() }
    }

    fn meet(&mut self, offset: Offset) {
        while let Some(transaction) = self.coming.pop_front_if(|next| next.first_offset <= offset) {
            let met = Aborted { transaction, has_records: false };
            self.aborted.entry(transaction.producer_id).or_insert(met);
        }
    }

    /// Takes in a batch of records; whether they were aborted.
    pub(crate) fn records(&mut self, header: &BatchHeader) -> bool {
        self.meet(header.last_offset());
        if !header.attributes.is_transactional() {
            return false;
        }
        match self.aborted.get_mut(&header.producer_id) {
            Some(aborted) => {
                aborted.has_records = true;
                true
            }
            None => {
                self.committed.insert(header.producer_id);
                false
            }
        }
    }

    /// Takes in a control batch; whether nothing is left of what it ends. If it aborts records that are still there,
    /// that transaction is given too: readers must be told of it.
    pub(crate) fn control(
        &mut self,
        header: &BatchHeader,
        control: Option<ControlRecord>,
    ) -> (bool, Option<AbortedTransaction>) {
        self.meet(header.last_offset());
        let outcome = match control {
            Some(ControlRecord::EndTransaction(marker)) => marker.outcome,
            // Emptied by an earlier compaction.
            None => return (true, None),
            // What it means is not known here, so it stays.
            Some(_) => return (false, None),
        };
        match outcome {
            Outcome::Abort => match self.aborted.remove(&header.producer_id) {
                Some(aborted) if aborted.has_records => (false, Some(aborted.transaction)),
                _ => (true, None),
            },
            Outcome::Commit => (!self.committed.remove(&header.producer_id), None),
        }
    }
}

/// The last thing each living producer wrote.
#[derive(Debug)]
pub(crate) struct LastOfProducers(BTreeMap<ProducerId, (Offset, ProducerEpoch)>);

impl LastOfProducers {
    pub(crate) fn new(entries: &[ProducerSnapshotEntry]) -> Self {
        Self(
            entries
                .iter()
                .map(|entry| (entry.producer_id, (entry.last_offset, entry.producer_epoch)))
                .collect(),
        )
    }

    /// Whether the batch is what keeps its producer's sequence, or if it has none its epoch.
    fn needs(&self, header: &BatchHeader) -> bool {
        match self.0.get(&header.producer_id) {
            Some((last_offset, _)) if *last_offset >= Offset::ZERO => header.last_offset() == *last_offset,
            Some((_, epoch)) => header.attributes.is_control() && header.producer_epoch == *epoch,
            None => false,
        }
    }
}

/// What is left of a batch.
#[derive(Debug)]
pub(crate) enum Kept {
    All,
    Changed(Batch),
    Nothing,
}

/// Everything that decides what stays.
#[derive(Debug)]
pub(crate) struct Keep<'a> {
    pub map: &'a OffsetMap,
    /// Records from here on were not put in the map, and all stay (exclusive end of what is cleaned).
    pub cleaned_to: Offset,
    pub producers: &'a LastOfProducers,
    pub now: Timestamp,
    pub delete_retention_ms: Millis,
    pub limits: DecodeLimits,
}

impl Keep<'_> {
    /// What is left of `batch`; its transaction is added to `aborted` if it is an abort marker that must be found.
    ///
    /// `is_last` says that the batch is the last of its segment: it stays, emptied if need be, so that a segment ends
    /// where the next one begins.
    pub(crate) fn batch(
        &self,
        batch: &Batch,
        transactions: &mut Transactions,
        is_last: bool,
        aborted: &mut Vec<AbortedTransaction>,
    ) -> Result<Kept, BatchError> {
        let header = &batch.header;
        let is_control = header.attributes.is_control();
        let horizon = header.delete_horizon();
        let horizon_passed = horizon.is_some_and(|horizon| horizon <= self.now);
        let (discard, marks_nothing) = if is_control {
            let control = ControlRecord::of(batch, &self.limits)?;
            let (nothing_left, still_aborts) = transactions.control(header, control);
            aborted.extend(still_aborts);
            (nothing_left && horizon_passed, nothing_left)
        } else {
            (transactions.records(header), false)
        };
        let retain_empty = is_last || (header.is_idempotent() && self.producers.needs(header));
        let emptied = |batch: &Batch| match (retain_empty, batch.header.record_count) {
            (false, _) => Kept::Nothing,
            (true, 0) => Kept::All,
            (true, _) => Kept::Changed(batch.emptied()),
        };
        if discard || header.record_count == 0 {
            return Ok(emptied(batch));
        }
        let payload = batch.payload(&self.limits)?;
        let mut keeps_tombstone = false;
        for view in payload.views() {
            let view = view?;
            keeps_tombstone |= !is_control && view.value.is_none() && self.keeps(header, &view);
        }
        let new_horizon = ((keeps_tombstone || marks_nothing) && horizon.is_none())
            .then(|| self.now.plus(self.delete_retention_ms));
        let retained = batch.retain(&payload, new_horizon, |view| is_control || self.keeps(header, view))?;
        Ok(match retained {
            Retained::All => Kept::All,
            Retained::Some(batch) => Kept::Changed(batch),
            Retained::None => emptied(batch),
        })
    }

    fn keeps(&self, header: &BatchHeader, view: &RecordView<'_>) -> bool {
        let offset = header.base_offset.plus(i64::from(view.offset_delta));
        if offset >= self.cleaned_to {
            return true;
        }
        // A record without a key says nothing about any; compacted topics refuse them at the door.
        let Some(key) = view.key else { return false };
        let is_last_of_key = self.map.get(key).is_none_or(|last| last <= offset);
        let may_be_tombstone = header.delete_horizon().is_none_or(|horizon| self.now < horizon);
        is_last_of_key && (view.value.is_some() || may_be_tombstone)
    }
}
