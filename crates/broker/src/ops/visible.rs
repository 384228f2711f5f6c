//! Which records of fetched batches a reader sees: control records never, aborted ones not under read_committed.

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;
use semel_model::{Offset, OffsetRange, ProducerId};
use semel_record::{Batch, BatchError, Batches, ControlRecord, DecodeLimits, Outcome, Record};

/// An aborted transaction, as a fetch lists it beside the batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Aborted {
    pub(crate) producer_id: ProducerId,
    pub(crate) first_offset: Offset,
}

/// A record with its offset.
pub(crate) struct Visible {
    pub(crate) offset: Offset,
    pub(crate) record: Record,
}

/// Decodes whole batches. Records outside of `range` are left out: a batch is fetched whole even when the reader
/// starts in its middle.
///
/// `aborted`: the transactions whose records to leave out; empty under read_uncommitted.
pub(crate) fn decode(
    batches: Bytes,
    aborted: &[Aborted],
    range: OffsetRange,
    limits: &DecodeLimits,
) -> Result<Vec<Visible>, BatchError> {
    let mut starting: VecDeque<Aborted> = {
        let mut sorted = aborted.to_vec();
        sorted.sort_by_key(|transaction| transaction.first_offset);
        sorted.into()
    };
    // Producers of whose aborted transaction we are inside: from its first record to its marker.
    let mut inside = BTreeSet::new();
    let mut visible = Vec::new();
    for batch in Batches::new(batches) {
        let batch: Batch = batch?;
        let header = batch.header;
        while starting.front().is_some_and(|transaction| transaction.first_offset <= header.last_offset()) {
            inside.extend(starting.pop_front().map(|transaction| transaction.producer_id));
        }
        if header.attributes.is_control() {
            let aborts = matches!(
                ControlRecord::of(&batch, limits)?,
                Some(ControlRecord::EndTransaction(marker)) if marker.outcome == Outcome::Abort
            );
            if aborts {
                inside.remove(&header.producer_id);
            }
            continue;
        }
        if header.attributes.is_transactional() && inside.contains(&header.producer_id) {
            continue;
        }
        for record in batch.records(limits)? {
            let record = record?;
            let offset = header.base_offset.plus(i64::from(record.offset_delta));
            if range.contains(offset) {
                visible.push(Visible { offset, record });
            }
        }
    }
    Ok(visible)
}
