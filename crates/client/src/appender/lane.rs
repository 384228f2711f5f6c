//! One partition's records: what is open, queued and in flight, and the rules of sequences.
//!
//! - A batch gets its identity (producer id, epoch, sequence) when it is first sent, and keeps it until it is
//!   decided: acknowledged, or refused in a way that proves it is not in the log.
//! - After a refusal the batches behind it can't be accepted either (their sequences don't follow), so the lane
//!   *drains*: it lets the batches in flight be decided and then goes on under a fresh producer id.
//! - A batch that may be in the log and can't be decided in time fails together with every batch sent after it.
//!   Only batches that never left take the fresh id.
//! - Until a producer id's first batch is acknowledged, only one is in flight: a broker takes any first sequence of a
//!   producer it doesn't know, so a second batch could get in before a refused first.
//!
//! No I/O and no clock here: `now` is an argument.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;
use semel_model::{Offset, PartitionIndex, Sequence, Timestamp};
use semel_proto::v1::{self, ErrorCode};
use semel_record::{BatchBuilder, BatchError, Compression};
use tokio::time::Instant;

use super::{Appended, Identity, NewRecord, Waiter};
use crate::{
    Error,
    error::{Failed, Fate, Safety},
};

/// Some records that go as one batch.
#[derive(Debug)]
pub(super) struct Pending {
    /// Orders batches over all lanes, for flush.
    pub(super) ticket: u64,
    records: Vec<NewRecord>,
    waiters: Vec<Waiter>,
    size: usize,
    opened_at: Instant,
    /// As sent; `None`: never.
    sent: Option<Bytes>,
    attempts: u32,
    /// Whether an attempt ended without saying if the batch is in the log.
    doubt: bool,
}

/// A partition's state in the appender.
#[derive(Debug)]
pub(super) struct Lane {
    topic: Arc<str>,
    partition: PartitionIndex,
    config: LaneConfig,
    open: Option<Pending>,
    /// To be sent, in order. Sent ones (being retried) stand before those never sent.
    queue: VecDeque<Pending>,
    /// Sent and unanswered, in order, each with its request's number.
    in_flight: VecDeque<(u64, Pending)>,
    /// Refused and so not in the log, waiting for the drain to end.
    refused: Vec<Pending>,
    identity: Identity,
    next_sequence: Sequence,
    /// Whether a batch of `identity` was acknowledged here.
    proven: bool,
    draining: bool,
    pub(super) asking_identity: bool,
    /// In a row, without an acknowledgement.
    failures: u32,
    not_before: Option<Instant>,
    last_failure: Option<Failed>,
    pub(super) route: Way,
}

/// What is known of a lane's leader.
#[derive(Clone, Debug)]
pub(super) enum Way {
    /// The leader is to be looked up; a view of this version was wrong.
    Unknown { stale: u64 },
    /// It is being looked up.
    Asking { stale: u64 },
    /// It is at `address`, by a view of this version.
    Known { address: Arc<str>, version: u64 },
}

/// What all lanes of an appender share.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaneConfig {
    pub(super) idempotent: bool,
    pub(super) compression: Compression,
    pub(super) batch_bytes: usize,
    pub(super) in_flight_max: usize,
    pub(super) linger: Duration,
    pub(super) delivery_timeout: Duration,
}

/// Batches that were decided, by ticket: `remaining` counts fall by one each; a split adds one.
#[derive(Debug, Default)]
pub(super) struct Settled {
    pub(super) done: Vec<u64>,
    pub(super) split: Vec<u64>,
}

impl Lane {
    pub(super) fn new(
        topic: Arc<str>,
        partition: PartitionIndex,
        config: LaneConfig,
        identity: Identity,
    ) -> Self {
        Self {
            topic,
            partition,
            config,
            open: None,
            queue: VecDeque::new(),
            in_flight: VecDeque::new(),
            refused: Vec::new(),
            identity,
            next_sequence: Sequence::FIRST,
            proven: false,
            draining: false,
            asking_identity: false,
            failures: 0,
            not_before: None,
            last_failure: None,
            route: Way::Unknown { stale: 0 },
        }
    }

    /// Adds a record to the open batch, closing it before or after if it is full. `Some(ticket)` if it opened one.
    pub(super) fn push(
        &mut self,
        record: NewRecord,
        size: usize,
        waiter: Waiter,
        now: Instant,
        next_ticket: u64,
    ) -> Option<u64> {
        if self.open.as_ref().is_some_and(|open| open.size + size > self.config.batch_bytes) {
            self.seal();
        }
        let opened = self.open.is_none().then_some(next_ticket);
        let open = self.open.get_or_insert_with(|| Pending {
            ticket: next_ticket,
            records: Vec::new(),
            waiters: Vec::new(),
            size: 0,
            opened_at: now,
            sent: None,
            attempts: 0,
            doubt: false,
        });
        open.records.push(record);
        open.waiters.push(waiter);
        open.size += size;
        if open.size >= self.config.batch_bytes {
            self.seal();
        }
        opened
    }

    /// Closes the open batch.
    pub(super) fn seal(&mut self) {
        self.queue.extend(self.open.take());
    }

    /// Closes the open batch if its time has come, and ends a wait that is over.
    pub(super) fn tick(&mut self, now: Instant) {
        if self.ready(now) {
            self.not_before = None;
        }
        if self.open.as_ref().is_some_and(|open| open.opened_at + self.config.linger <= now) {
            self.seal();
        }
    }

    /// Whether nothing waits here.
    pub(super) fn is_idle(&self) -> bool {
        self.open.is_none() && self.queue.is_empty() && self.in_flight.is_empty() && self.refused.is_empty()
    }

    /// Whether the lane needs its leader's address now.
    pub(super) fn wants_route(&self, now: Instant) -> Option<u64> {
        match self.route {
            Way::Unknown { stale } if !self.queue.is_empty() && self.ready(now) => Some(stale),
            _ => None,
        }
    }

    /// Whether the drain is over and a fresh producer id is needed.
    pub(super) fn wants_identity(&self, now: Instant) -> bool {
        let drained =
            self.in_flight.is_empty() && self.queue.front().is_none_or(|first| first.sent.is_none());
        self.draining && !self.asking_identity && drained && self.ready(now) && !self.is_idle()
    }

    fn ready(&self, now: Instant) -> bool {
        self.not_before.is_none_or(|then| then <= now)
    }

    /// When this lane next has something to do by itself.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let linger = self.open.as_ref().map(|open| open.opened_at + self.config.linger);
        let waiting = !self.queue.is_empty() || !self.refused.is_empty();
        let backoff = self.not_before.filter(|_| waiting);
        // While something is in flight its answer decides what comes next.
        let first = self.queue.front().filter(|_| self.in_flight.is_empty());
        let expiry = first.map(|first| first.opened_at + self.config.delivery_timeout);
        let refused = self.refused.first().map(|first| first.opened_at + self.config.delivery_timeout);
        [linger, backoff, expiry, refused].into_iter().flatten().min()
    }

    /// The next batch to send with `number`, encoded; `None`: nothing may be sent now. A batch that can't be encoded
    /// fails and the next is tried.
    pub(super) fn next_to_send(&mut self, number: u64, now: Instant, settled: &mut Settled) -> Option<Bytes> {
        let limit = match (self.config.idempotent, self.proven) {
            (true, true) => self.config.in_flight_max.clamp(1, 5),
            (true, false) | (false, _) => 1,
        };
        if self.in_flight.len() >= limit || self.asking_identity || !self.ready(now) {
            return None;
        }
        loop {
            let mut batch = self.queue.pop_front()?;
            if self.draining && batch.sent.is_none() {
                self.queue.push_front(batch);
                return None;
            }
            let bytes = match batch.sent.clone() {
                Some(bytes) => bytes,
                None => match self.encode(&batch) {
                    Ok(bytes) => bytes,
                    Err(cause) => {
                        let error = Error::Batch {
                            topic: self.topic.to_string(),
                            partition: self.partition.get(),
                            cause: Arc::new(cause),
                        };
                        // It never left and took no sequence: the batches behind it are not harmed.
                        fail(batch, &error, settled);
                        continue;
                    }
                },
            };
            if batch.sent.is_none() {
                let count = i32::try_from(batch.records.len()).unwrap_or(i32::MAX);
                self.next_sequence = self.next_sequence.plus(count);
                batch.sent = Some(bytes.clone());
            }
            batch.attempts += 1;
            self.in_flight.push_back((number, batch));
            return Some(bytes);
        }
    }

    fn encode(&self, batch: &Pending) -> Result<Bytes, BatchError> {
        let mut builder = BatchBuilder::new().compression(self.config.compression);
        if self.config.idempotent {
            builder = builder.producer(self.identity.id, self.identity.epoch, self.next_sequence);
        }
        for record in &batch.records {
            let timestamp = record.timestamp.unwrap_or(Timestamp::NONE);
            builder.push(timestamp, record.key.as_deref(), record.value.as_deref(), &record.headers);
        }
        Ok(builder.build()?.bytes)
    }

    /// Takes the answer to request `number`, which the engine knows to be this lane's oldest in flight. `Err` if it
    /// isn't: then the broker answered out of order and its stream can't be trusted.
    pub(super) fn answered(
        &mut self,
        number: u64,
        address: &str,
        outcome: Result<v1::ProduceResponse, v1::Error>,
        now: Instant,
        backoff: impl FnOnce(u32) -> Duration,
        settled: &mut Settled,
    ) -> Result<(), OutOfOrder> {
        if self.in_flight.front().is_none_or(|(first, _)| *first != number) {
            return Err(OutOfOrder);
        }
        let error = match outcome {
            Ok(response) => {
                self.acknowledge(Some(Offset(response.base_offset)), response.append_time_ms, settled);
                return Ok(());
            }
            Err(error) => error,
        };
        let code = error.error_code();
        let failed = Failed::answered(address, error);
        match code {
            // It is in the log, further back than the broker remembers offsets.
            ErrorCode::DuplicateSequenceNumber => self.acknowledge(None, -1, settled),
            // The batch before it was refused, so this one could not follow: it isn't in the log.
            ErrorCode::OutOfOrderSequenceNumber if self.draining => {
                if let Some((_, batch)) = self.in_flight.pop_front() {
                    self.refused.push(batch);
                }
            }
            _ if failed.may_retry(Safety::Repeatable) => {
                // The answers to the batches behind this one will be ignored: their retries find out.
                for (at, (_, batch)) in self.in_flight.iter_mut().enumerate() {
                    batch.doubt |= at > 0 || failed.uncertain();
                }
                self.retry(failed, now, backoff);
            }
            ErrorCode::MessageTooLarge | ErrorCode::RecordListTooLarge => {
                let Some((_, batch)) = self.in_flight.pop_front() else { return Ok(()) };
                self.draining = self.config.idempotent;
                if batch.records.len() > 1 && !batch.doubt {
                    settled.split.push(batch.ticket);
                    let halves = split(batch);
                    if self.draining {
                        self.refused.extend(halves);
                    } else {
                        halves.into_iter().rev().for_each(|half| self.queue.push_front(half));
                    }
                } else {
                    self.fail_one(batch, &failed, settled);
                }
            }
            _ => {
                let Some((_, batch)) = self.in_flight.pop_front() else { return Ok(()) };
                self.draining = self.config.idempotent;
                self.fail_one(batch, &failed, settled);
            }
        }
        Ok(())
    }

    /// The stream that carried this lane's batches is gone: each of them may be in the log or not.
    pub(super) fn lost(
        &mut self,
        failed: Failed,
        now: Instant,
        backoff: impl FnOnce(u32) -> Duration,
        settled: &mut Settled,
    ) {
        if failed.fate != Fate::NotSent {
            self.in_flight.iter_mut().for_each(|(_, batch)| batch.doubt = true);
        }
        if failed.may_retry(Safety::Repeatable) {
            self.retry(failed, now, backoff);
        } else {
            self.requeue();
            self.abandon(&failed, settled);
        }
    }

    /// A look-up (of the leader, of a producer id) failed.
    pub(super) fn stalled(
        &mut self,
        failed: Failed,
        now: Instant,
        backoff: impl FnOnce(u32) -> Duration,
        settled: &mut Settled,
    ) {
        if failed.may_retry(Safety::Repeatable) {
            self.failures = self.failures.saturating_add(1);
            self.not_before = Some(now + backoff(self.failures));
            self.last_failure = Some(failed);
        } else {
            self.fail_all(&failed, settled);
        }
    }

    /// The fresh identity has come: what was refused or never sent goes on under it.
    pub(super) fn renew(&mut self, identity: Identity) {
        self.identity = identity;
        self.next_sequence = Sequence::FIRST;
        self.proven = false;
        self.draining = false;
        for mut batch in self.refused.drain(..).rev() {
            batch.sent = None;
            self.queue.push_front(batch);
        }
    }

    /// Fails what has waited longer than the delivery timeout.
    pub(super) fn expire(&mut self, now: Instant, settled: &mut Settled) {
        let timeout = self.config.delivery_timeout;
        let due = |batch: &Pending| batch.opened_at + timeout <= now;
        if self.refused.first().is_some_and(due) {
            let failed = self.expired();
            for batch in std::mem::take(&mut self.refused) {
                self.fail_one(batch, &failed, settled);
            }
        }
        while self.in_flight.is_empty() && self.queue.front().is_some_and(due) {
            let failed = self.expired();
            if self.queue.front().is_some_and(|first| first.sent.is_some()) {
                self.abandon(&failed, settled);
            } else if let Some(batch) = self.queue.pop_front() {
                self.fail_one(batch, &failed, settled);
            }
        }
    }

    fn expired(&self) -> Failed {
        self.last_failure.clone().unwrap_or_else(|| {
            let address = match &self.route {
                Way::Known { address, .. } => address.to_string(),
                Way::Unknown { .. } | Way::Asking { .. } => "any broker".to_owned(),
            };
            Failed::timed_out(&address, self.config.delivery_timeout)
        })
    }

    fn acknowledge(&mut self, base: Option<Offset>, append_time_ms: i64, settled: &mut Settled) {
        let Some((_, batch)) = self.in_flight.pop_front() else { return };
        self.failures = 0;
        self.last_failure = None;
        self.proven = true;
        settled.done.push(batch.ticket);
        for (at, (waiter, record)) in batch.waiters.into_iter().zip(&batch.records).enumerate() {
            let own = record.timestamp.unwrap_or(Timestamp::NONE);
            waiter.settle(Ok(Appended {
                partition: self.partition,
                offset: base.map(|base| base.plus(at as i64)),
                timestamp: if append_time_ms >= 0 { Timestamp(append_time_ms) } else { own },
            }));
        }
    }

    fn retry(&mut self, failed: Failed, now: Instant, backoff: impl FnOnce(u32) -> Duration) {
        self.requeue();
        self.failures = self.failures.saturating_add(1);
        self.not_before = Some(now + backoff(self.failures));
        self.last_failure = Some(failed);
        if let Way::Known { version, .. } = self.route {
            self.route = Way::Unknown { stale: version };
        }
    }

    /// Puts what is in flight back in front of the queue, identity and all. Answers still to come for the old
    /// numbers are ignored: the retry finds out.
    fn requeue(&mut self) {
        while let Some((_, batch)) = self.in_flight.pop_back() {
            self.queue.push_front(batch);
        }
    }

    /// Fails every batch that was sent; those never sent go on under a fresh identity.
    fn abandon(&mut self, failed: &Failed, settled: &mut Settled) {
        while self.queue.front().is_some_and(|first| first.sent.is_some()) {
            if let Some(batch) = self.queue.pop_front() {
                self.fail_one(batch, failed, settled);
            }
        }
        self.draining = self.config.idempotent;
    }

    fn fail_all(&mut self, failed: &Failed, settled: &mut Settled) {
        self.seal();
        self.requeue();
        let refused = std::mem::take(&mut self.refused);
        for batch in refused.into_iter().chain(std::mem::take(&mut self.queue)) {
            self.fail_one(batch, failed, settled);
        }
        self.draining = self.config.idempotent;
    }

    fn fail_one(&self, batch: Pending, failed: &Failed, settled: &mut Settled) {
        let doing = format!("append to {}-{}", self.topic, self.partition);
        let uncertain = batch.doubt;
        let error = Error::Call {
            doing,
            address: failed.address.clone(),
            attempts: batch.attempts.max(1),
            uncertain,
            cause: Box::new(failed.error.clone()),
        };
        fail(batch, &error, settled);
    }
}

/// A broker answered a request that is not the oldest of its partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OutOfOrder;

fn fail(batch: Pending, error: &Error, settled: &mut Settled) {
    settled.done.push(batch.ticket);
    for waiter in batch.waiters {
        waiter.settle(Err(error.clone()));
    }
}

fn split(batch: Pending) -> [Pending; 2] {
    let middle = batch.records.len() / 2;
    let (mut records, mut waiters) = (batch.records, batch.waiters);
    let late_records = records.split_off(middle);
    let late_waiters = waiters.split_off(middle);
    let half = |records: Vec<NewRecord>, waiters| Pending {
        ticket: batch.ticket,
        size: records.iter().map(NewRecord::size).sum(),
        records,
        waiters,
        opened_at: batch.opened_at,
        sent: None,
        attempts: batch.attempts,
        doubt: false,
    };
    [half(records, waiters), half(late_records, late_waiters)]
}
