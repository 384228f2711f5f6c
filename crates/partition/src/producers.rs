//! Idempotence and fencing: what a partition remembers of each producer.
//!
//! | the batch's epoch | its sequence | answer |
//! |---|---|---|
//! | producer unknown | any | append: its state may have expired (KAFKA-9916) |
//! | older | any | `INVALID_PRODUCER_EPOCH` |
//! | same | range of one of the last five batches | the offsets of that batch, no append |
//! | same | follows the last, 0 after `i32::MAX` | append |
//! | same | other | `OUT_OF_ORDER_SEQUENCE_NUMBER` |
//! | newer | 0 | append |
//! | newer | other | `OUT_OF_ORDER_SEQUENCE_NUMBER` |
//!
//! Source: KIP-98, KIP-360, KIP-890; Kafka's `ProducerAppendInfo` and `ProducerStateEntry`.

use std::collections::BTreeMap;

use semel_model::{CoordinatorEpoch, Millis, Offset, ProducerEpoch, ProducerId, Sequence, Timestamp};
use semel_record::{BatchHeader, EndTransactionMarker, ProducerSnapshotEntry};

use crate::{AppendContext, Error, Origin, TransactionVerification, TransactionVersion};

/// How many batches of a producer are known again: its client has at most so many in flight.
pub const BATCHES_REMEMBERED: usize = 5;

/// "No coordinator has written a marker."
const NO_COORDINATOR: CoordinatorEpoch = CoordinatorEpoch(-1);

/// A batch that may be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KnownBatch {
    last_sequence: Sequence,
    pub(crate) last_offset: Offset,
    offset_delta: i32,
    /// The batch's max timestamp, which is the append time where the topic says so.
    pub(crate) timestamp: Timestamp,
}

impl KnownBatch {
    const fn of(header: &BatchHeader) -> Self {
        Self {
            last_sequence: header.last_sequence(),
            last_offset: header.last_offset(),
            offset_delta: header.last_offset_delta,
            timestamp: header.max_timestamp,
        }
    }

    fn first_sequence(&self) -> Sequence {
        if self.last_sequence == Sequence::NONE {
            return Sequence::NONE;
        }
        // The way back over the wrap: there are 2^31 sequences.
        let first = i64::from(self.last_sequence.0) - i64::from(self.offset_delta);
        Sequence(first.rem_euclid(1 << 31) as i32)
    }

    pub(crate) const fn first_offset(&self) -> Offset {
        self.last_offset.plus(-(self.offset_delta as i64))
    }

    fn is_retried_by(&self, header: &BatchHeader) -> bool {
        header.base_sequence >= Sequence::FIRST
            && self.first_sequence() == header.base_sequence
            && self.last_sequence == header.last_sequence()
    }
}

/// The last batches of a producer's current epoch, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Window {
    batches: [Option<KnownBatch>; BATCHES_REMEMBERED],
    length: usize,
}

impl Window {
    fn as_slice(&self) -> &[Option<KnownBatch>] {
        &self.batches[..self.length]
    }

    fn iter(&self) -> impl DoubleEndedIterator<Item = &KnownBatch> {
        self.as_slice().iter().flatten()
    }

    fn first(&self) -> Option<&KnownBatch> {
        self.iter().next()
    }

    fn last(&self) -> Option<&KnownBatch> {
        self.iter().next_back()
    }

    fn push(&mut self, batch: KnownBatch) {
        if self.length == BATCHES_REMEMBERED {
            self.batches.rotate_left(1);
            self.length -= 1;
        }
        self.batches[self.length] = Some(batch);
        self.length += 1;
    }

    /// Adds an older one, if there is room.
    fn push_front(&mut self, batch: KnownBatch) {
        if self.length < BATCHES_REMEMBERED {
            self.batches.rotate_right(1);
            self.batches[0] = Some(batch);
            self.length += 1;
        }
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

/// What is remembered of one producer.
#[derive(Clone, Debug)]
struct Producer {
    // Persisted: the log and its snapshots give it back.
    epoch: ProducerEpoch,
    window: Window,
    timestamp: Timestamp,
    coordinator_epoch: CoordinatorEpoch,
    current_txn_first_offset: Option<Offset>,
    // In memory: when it was last heard of, by the broker's clock. Expiry by the producer's own timestamps would
    // forget at once whoever writes old data.
    last_used: Timestamp,
    /// Orders uses within a millisecond.
    used_at: u64,
}

impl Producer {
    const fn new(epoch: ProducerEpoch) -> Self {
        Self {
            epoch,
            window: Window { batches: [None; BATCHES_REMEMBERED], length: 0 },
            timestamp: Timestamp::NONE,
            coordinator_epoch: NO_COORDINATOR,
            current_txn_first_offset: None,
            last_used: Timestamp::NONE,
            used_at: 0,
        }
    }

    fn move_to(&mut self, epoch: ProducerEpoch) {
        if self.epoch != epoch {
            self.window.clear();
            self.epoch = epoch;
        }
    }

    fn last_sequence(&self) -> Sequence {
        self.window.last().map_or(Sequence::NONE, |batch| batch.last_sequence)
    }

    fn to_snapshot(&self, producer_id: ProducerId) -> ProducerSnapshotEntry {
        let last = self.window.last();
        ProducerSnapshotEntry {
            producer_id,
            producer_epoch: self.epoch,
            last_sequence: self.last_sequence(),
            last_offset: last.map_or(Offset(-1), |batch| batch.last_offset),
            offset_delta: last.map_or(0, |batch| batch.offset_delta),
            timestamp: self.timestamp,
            coordinator_epoch: self.coordinator_epoch,
            current_txn_first_offset: self.current_txn_first_offset,
        }
    }
}

/// All producers that are remembered.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProducerTable {
    producers: BTreeMap<ProducerId, Producer>,
    uses: u64,
}

impl ProducerTable {
    /// What a leader does with an idempotent data batch: `Some` if it is a retry of one that is in the log.
    pub(crate) fn check_data(
        &self,
        header: &BatchHeader,
        context: &AppendContext,
    ) -> Result<Option<KnownBatch>, Error> {
        let producer_id = header.producer_id;
        let out_of_order = |expected| Error::OutOfOrderSequenceNumber {
            producer_id,
            producer_epoch: header.producer_epoch,
            sequence: header.base_sequence,
            expected,
        };
        let transactional = header.attributes.is_transactional();
        let unverified = transactional && context.verification == TransactionVerification::Missing;

        let Some(producer) = self.producers.get(&producer_id) else {
            if unverified {
                return Err(Error::TransactionNotVerified { producer_id });
            }
            // The second protocol bumps the epoch with each transaction, so a producer of which nothing is known
            // is at its first batch; anything else is a gap.
            let starts_here = context.verification == TransactionVerification::VerifiedWithEpochBump;
            if starts_here && header.base_sequence > Sequence::FIRST {
                return Err(out_of_order(Sequence::FIRST));
            }
            return Ok(None);
        };

        if header.producer_epoch == producer.epoch
            && let Some(known) = producer.window.iter().find(|batch| batch.is_retried_by(header))
        {
            return Ok(Some(*known));
        }
        if header.producer_epoch < producer.epoch {
            return Err(Error::InvalidProducerEpoch {
                producer_id,
                given: header.producer_epoch,
                current: producer.epoch,
            });
        }
        let ongoing = producer.current_txn_first_offset.is_some() && header.producer_epoch == producer.epoch;
        if unverified && !ongoing {
            return Err(Error::TransactionNotVerified { producer_id });
        }
        if context.origin == Origin::Client || header.base_sequence != Sequence::NONE {
            let expected = if header.producer_epoch == producer.epoch {
                producer.last_sequence().next()
            } else {
                Sequence::FIRST
            };
            if header.base_sequence != expected {
                return Err(out_of_order(expected));
            }
        }
        if producer.current_txn_first_offset.is_some() && !transactional {
            return Err(Error::InvalidTxnState { producer_id });
        }
        Ok(None)
    }

    /// What a leader does with a marker: `true` if it is to be appended, `false` if it stands in the log already.
    pub(crate) fn check_marker(
        &self,
        header: &BatchHeader,
        marker: &EndTransactionMarker,
        version: TransactionVersion,
    ) -> Result<bool, Error> {
        let producer_id = header.producer_id;
        let Some(producer) = self.producers.get(&producer_id) else { return Ok(true) };
        let open = producer.current_txn_first_offset.is_some();
        if producer.coordinator_epoch > marker.coordinator_epoch {
            return Err(Error::TransactionCoordinatorFenced {
                producer_id,
                given: marker.coordinator_epoch,
                current: producer.coordinator_epoch,
            });
        }
        let late = match version {
            TransactionVersion::V1 => header.producer_epoch < producer.epoch,
            // The coordinator has bumped the epoch before the marker: one that is not newer ended an earlier
            // transaction, and would end this one.
            TransactionVersion::V2 => {
                header.producer_epoch < producer.epoch || (header.producer_epoch == producer.epoch && open)
            }
        };
        if late {
            return Err(Error::InvalidProducerEpoch {
                producer_id,
                given: header.producer_epoch,
                current: producer.epoch,
            });
        }
        // A marker that ends nothing may still have to fence: a newer producer or coordinator epoch is written.
        let known = !open
            && header.producer_epoch == producer.epoch
            && marker.coordinator_epoch == producer.coordinator_epoch;
        Ok(!known)
    }

    /// Whether a producer that is not known finds a place, if need be that of another.
    pub(crate) fn has_room_for(&self, producer_id: ProducerId, open: usize, max: usize) -> bool {
        self.producers.len() < max || open < max || self.producers.contains_key(&producer_id)
    }

    /// Takes note of a data batch in the log; `true` if it opens a transaction.
    pub(crate) fn apply_data(&mut self, header: &BatchHeader, now: Timestamp) -> bool {
        let producer = self.used(header, now);
        producer.move_to(header.producer_epoch);
        producer.window.push(KnownBatch::of(header));
        producer.timestamp = header.max_timestamp;
        let opens = header.attributes.is_transactional() && producer.current_txn_first_offset.is_none();
        if opens {
            producer.current_txn_first_offset = Some(header.base_offset);
        }
        opens
    }

    /// Takes note of a marker in the log; the first offset of the transaction that it ends.
    pub(crate) fn apply_marker(
        &mut self,
        header: &BatchHeader,
        marker: &EndTransactionMarker,
        now: Timestamp,
    ) -> Option<Offset> {
        let producer = self.used(header, now);
        producer.move_to(header.producer_epoch);
        producer.coordinator_epoch = marker.coordinator_epoch;
        producer.timestamp = header.max_timestamp;
        producer.current_txn_first_offset.take()
    }

    /// Completes a producer's window with a batch from before the snapshot it was loaded from.
    ///
    /// Batches come newest first; one that does not join the window's oldest is passed over.
    pub(crate) fn recall(&mut self, header: &BatchHeader) {
        let Some(producer) = self.producers.get_mut(&header.producer_id) else { return };
        let Some(oldest) = producer.window.first() else { return };
        let joins = header.base_sequence >= Sequence::FIRST
            && header.producer_epoch == producer.epoch
            && header.last_offset() < oldest.first_offset()
            && header.last_sequence().next() == oldest.first_sequence();
        if joins {
            producer.window.push_front(KnownBatch::of(header));
        }
    }

    fn used(&mut self, header: &BatchHeader, now: Timestamp) -> &mut Producer {
        self.uses += 1;
        let producer =
            self.producers.entry(header.producer_id).or_insert_with(|| Producer::new(header.producer_epoch));
        producer.last_used = now;
        producer.used_at = self.uses;
        producer
    }

    /// Forgets the least recently used producers without an open transaction if there are more than `max`.
    ///
    /// A sixteenth goes at a time, so that the search is paid once for many newcomers.
    pub(crate) fn keep_within(&mut self, max: usize) {
        if self.producers.len() <= max {
            return;
        }
        let mut idle: Vec<(u64, ProducerId)> = self
            .producers
            .iter()
            // The one used last is the one just applied.
            .filter(|(_, producer)| {
                producer.current_txn_first_offset.is_none() && producer.used_at != self.uses
            })
            .map(|(id, producer)| (producer.used_at, *id))
            .collect();
        idle.sort_unstable();
        let surplus = self.producers.len() - max + max / 16;
        for (_, id) in idle.iter().take(surplus) {
            self.producers.remove(id);
        }
        tracing::debug!(forgotten = surplus.min(idle.len()), max, "producer table was full");
    }

    /// Forgets producers idle for `expiration` or longer; how many they were.
    pub(crate) fn expire(&mut self, now: Timestamp, expiration: Millis) -> usize {
        let before = self.producers.len();
        self.producers.retain(|_, producer| {
            producer.current_txn_first_offset.is_some() || now.since(producer.last_used) < expiration
        });
        before - self.producers.len()
    }

    /// Replaces everything by a snapshot. Idle time counts from `now`: the snapshot only has the producers' clocks.
    pub(crate) fn load(&mut self, entries: &[ProducerSnapshotEntry], now: Timestamp) {
        self.producers.clear();
        for entry in entries {
            self.uses += 1;
            let mut producer = Producer::new(entry.producer_epoch);
            producer.timestamp = entry.timestamp;
            producer.coordinator_epoch = entry.coordinator_epoch;
            producer.current_txn_first_offset = entry.current_txn_first_offset;
            producer.last_used = now;
            producer.used_at = self.uses;
            if entry.last_offset >= Offset::ZERO {
                producer.window.push(KnownBatch {
                    last_sequence: entry.last_sequence,
                    last_offset: entry.last_offset,
                    offset_delta: entry.offset_delta,
                    timestamp: entry.timestamp,
                });
            }
            self.producers.insert(entry.producer_id, producer);
        }
    }

    /// All rows, by producer id.
    pub(crate) fn rows(&self) -> impl ExactSizeIterator<Item = ProducerSnapshotEntry> {
        self.producers.iter().map(|(id, producer)| producer.to_snapshot(*id))
    }

    /// Whether the batches in each window follow each other in offset and sequence.
    pub(crate) fn windows_are_ordered(&self) -> bool {
        self.producers.values().all(|producer| {
            let known: Vec<_> = producer.window.iter().collect();
            known.windows(2).all(|pair| {
                let joined = pair[0].last_sequence.next() == pair[1].first_sequence();
                let unsequenced =
                    pair[0].last_sequence == Sequence::NONE || pair[1].last_sequence == Sequence::NONE;
                pair[0].last_offset < pair[1].first_offset() && (joined || unsequenced)
            })
        })
    }
}

#[cfg(test)]
impl ProducerTable {
    /// Everything that the log determines: without when a producer was used.
    pub(crate) fn persisted(&self) -> Vec<(ProducerSnapshotEntry, Vec<KnownBatch>)> {
        self.producers
            .iter()
            .map(|(id, producer)| (producer.to_snapshot(*id), producer.window.iter().copied().collect()))
            .collect()
    }
}
