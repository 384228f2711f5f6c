//! Which records of fetched batches a reader sees: control records never, aborted ones not under read_committed.

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;
use semel_model::{Offset, OffsetRange, ProducerId};
use semel_record::{Batch, BatchError, Batches, ControlRecord, DecodeLimits, Outcome, Record, Records};

/// An aborted transaction, as a fetch lists it beside the batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Aborted {
    pub(crate) producer_id: ProducerId,
    pub(crate) first_offset: Offset,
}

/// A record with its offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Visible {
    pub(crate) offset: Offset,
    pub(crate) record: Record,
}

/// Decodes whole batches, one at a time: what is held is the one batch that the walk stands in, decompressed. Ends
/// after an error, but for [`BatchError::DecompressedTooLarge`]: see [`raise`](Self::raise).
pub(crate) struct VisibleRecords {
    batches: Batches,
    range: OffsetRange,
    limits: DecodeLimits,
    /// Aborted transactions whose first record is still to come, in order.
    starting: VecDeque<Aborted>,
    /// Producers of whose aborted transaction we are inside: from its first record to its marker.
    inside: BTreeSet<ProducerId>,
    /// A batch of records to be seen that is not decompressed yet.
    next: Option<Batch>,
    /// The batch we are in, and its base offset.
    within: Option<(Offset, Records)>,
    failed: bool,
}

impl VisibleRecords {
    /// `batches` are whole ones. Records outside of `range` are left out: a batch is fetched whole even when the
    /// reader starts in its middle.
    ///
    /// `aborted`: the transactions whose records to leave out; empty under read_uncommitted.
    pub(crate) fn new(batches: Bytes, aborted: &[Aborted], range: OffsetRange, limits: DecodeLimits) -> Self {
        let mut starting = aborted.to_vec();
        starting.sort_by_key(|transaction| transaction.first_offset);
        Self {
            batches: Batches::new(batches),
            range,
            limits,
            starting: starting.into(),
            inside: BTreeSet::new(),
            next: None,
            within: None,
            failed: false,
        }
    }

    /// Allows larger batches from here on; after [`BatchError::DecompressedTooLarge`] the walk goes on with the batch
    /// that was too large.
    pub(crate) fn raise(&mut self, limits: DecodeLimits) {
        self.limits = limits;
        self.failed &= self.next.is_none();
    }

    /// The next batch with records to be seen; control batches only change whose records those are.
    fn next_batch(&mut self) -> Option<Result<Batch, BatchError>> {
        loop {
            let batch = match self.batches.next()? {
                Ok(batch) => batch,
                Err(error) => return Some(Err(error)),
            };
            let header = batch.header;
            while let Some(transaction) =
                self.starting.pop_front_if(|transaction| transaction.first_offset <= header.last_offset())
            {
                self.inside.insert(transaction.producer_id);
            }
            if header.attributes.is_control() {
                match ControlRecord::of(&batch, &self.limits) {
                    Ok(Some(ControlRecord::EndTransaction(marker))) if marker.outcome == Outcome::Abort => {
                        self.inside.remove(&header.producer_id);
                    }
                    Ok(_) => {}
                    Err(error) => return Some(Err(error)),
                }
                continue;
            }
            if header.attributes.is_transactional() && self.inside.contains(&header.producer_id) {
                continue;
            }
            return Some(Ok(batch));
        }
    }

    fn step(&mut self) -> Result<Option<Visible>, BatchError> {
        loop {
            if let Some((base_offset, records)) = &mut self.within {
                for record in records {
                    let record = record?;
                    let offset = base_offset.plus(i64::from(record.offset_delta));
                    if self.range.contains(offset) {
                        return Ok(Some(Visible { offset, record }));
                    }
                }
                self.within = None;
            }
            if self.next.is_none() {
                self.next = self.next_batch().transpose()?;
            }
            let Some(batch) = &self.next else { return Ok(None) };
            let records = batch.records(&self.limits)?;
            self.within = Some((batch.header.base_offset, records));
            self.next = None;
        }
    }
}

impl Iterator for VisibleRecords {
    type Item = Result<Visible, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let step = self.step();
        self.failed = step.is_err();
        step.transpose()
    }
}

#[cfg(test)]
mod tests {
    use semel_model::{LeaderEpoch, ProducerEpoch, Sequence, Timestamp};
    use semel_record::{BatchBuilder, Codec, Compression};

    use super::*;

    const ALL: OffsetRange = OffsetRange { start: Offset(0), end: Offset(i64::MAX) };

    fn batch(base: i64, producer: Option<i64>, codec: Codec, values: &[&[u8]]) -> Bytes {
        let mut builder =
            BatchBuilder::new().compression(Compression::of(codec)).stamp(Offset(base), LeaderEpoch(0));
        if let Some(id) = producer {
            builder = builder.producer(ProducerId(id), ProducerEpoch(0), Sequence(0)).transactional();
        }
        for value in values {
            builder.push(Timestamp(1), None, Some(value), &[]);
        }
        builder.build().unwrap().bytes
    }

    fn offsets(records: VisibleRecords) -> Vec<i64> {
        records.map(|visible| visible.unwrap().offset.get()).collect()
    }

    #[test]
    fn aborted_transactions_and_what_is_out_of_range_are_left_out() {
        let batches = [
            batch(0, None, Codec::None, &[b"a", b"b"]),
            batch(2, Some(7), Codec::Lz4, &[b"c"]),
            batch(3, Some(8), Codec::Gzip, &[b"d", b"e"]),
        ]
        .concat();
        let aborted = [Aborted { producer_id: ProducerId(7), first_offset: Offset(2) }];
        let seen = |range, aborted: &[Aborted]| {
            offsets(VisibleRecords::new(batches.clone().into(), aborted, range, DecodeLimits::default()))
        };
        assert_eq!(seen(ALL, &[]), [0, 1, 2, 3, 4]);
        assert_eq!(seen(ALL, &aborted), [0, 1, 3, 4]);
        assert_eq!(seen(OffsetRange { start: Offset(1), end: Offset(4) }, &aborted), [1, 3]);
    }

    #[test]
    fn a_batch_that_is_too_large_is_decoded_once_the_limit_is_raised() {
        let large = vec![0; 10_000];
        let batches =
            [batch(0, None, Codec::None, &[b"a"]), batch(1, None, Codec::Zstd, &[&large, b"z"])].concat();
        let small = DecodeLimits { decompressed_bytes_max: 1000 };
        let mut records = VisibleRecords::new(batches.into(), &[], ALL, small);
        assert_eq!(records.next().unwrap().unwrap().offset, Offset(0));
        assert!(matches!(records.next(), Some(Err(BatchError::DecompressedTooLarge { max: 1000 }))));
        assert!(records.next().is_none());
        records.raise(DecodeLimits::default());
        assert_eq!(offsets(records), [1, 2]);
    }

    #[test]
    fn an_error_ends_the_walk_for_good() {
        let mut bytes = batch(0, None, Codec::Zstd, &[b"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"]).to_vec();
        let end = bytes.len();
        bytes[end - 12..].fill(0xff);
        let mut records = VisibleRecords::new(bytes.into(), &[], ALL, DecodeLimits::default());
        assert!(records.next().unwrap().is_err());
        records.raise(DecodeLimits::default());
        // The batch is still at hand, and still bad: no panic, no endless loop.
        assert!(records.next().is_none_or(|again| again.is_err()));
    }
}
