//! One partition on this broker: a [`Replica`] that decides and a [`PartitionLog`] that stores, behind one lock.
//!
//! The lock is held for a header's check and one write to the page cache, never across an await and never while
//! something is synced. Checks that need no state (structure, CRC, compression) happen before it is taken.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use arc_swap::ArcSwap;
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use semel_env::RealDisk;
use semel_kafka_wire::ErrorCode;
use semel_log::{AppendError, PartitionLog, ReadError, RetentionError, StorageError, TimestampOffset};
use semel_model::{BrokerId, LeaderEpoch, Millis, Offset, Timestamp, TopicName, TopicPartition};
use semel_partition::{AppendContext, FollowerState, LeaderState, Replica, RoleKind, ServedBy, Verdict};
use semel_record::{Batch, ProducerSnapshotEntry, validate_produced};

pub(crate) use semel_partition::{Acks, Isolation};

use crate::{
    directory::Directory,
    failure::{Failure, append_failure, partition_failure, read_failure},
    metrics::PartitionMetrics,
    ops::visible::Aborted,
    topic_settings::{Durability, TopicSettings},
    waiters::{AckWait, WaitError, Waiters},
};

/// Whole batches in a file, for `sendfile`.
pub(crate) type Slice = semel_log::Slice<RealDisk>;

/// Aborted transactions that one fetch may have to name; Kafka has no bound, and a reader must be told all or none.
const ABORTED_MAX: usize = 100_000;

/// A partition's replica here, with its log.
pub(crate) struct Partition {
    pub(crate) id: TopicPartition,
    pub(crate) topic: TopicName,
    pub(crate) directory: Arc<Directory>,
    settings: ArcSwap<TopicSettings>,
    waiters: Arc<Waiters>,
    /// Whether the directory's flusher has this partition in its queue.
    queued: AtomicBool,
    /// Held from a flush ticket to the note of its end. The system reports a lost page to one sync only: a second
    /// sync beside it would come back with success.
    flushing: Mutex<()>,
    metrics: Arc<PartitionMetrics>,
    state: Mutex<State>,
}

struct State {
    replica: Replica,
    log: PartitionLog<RealDisk>,
    /// When something was first seen that is not synced yet; for `flush.ms`.
    unflushed_from: Option<Timestamp>,
    /// The partition is no longer this broker's: its directory has another name or another owner by now, and nothing
    /// may be done to it by path.
    retired: bool,
}

/// Where an append went, and what is left to wait for.
pub(crate) struct Appended {
    pub(crate) base_offset: Offset,
    /// [`Timestamp::NONE`] unless the topic stamps records.
    pub(crate) append_time: Timestamp,
    pub(crate) log_start_offset: Offset,
    /// With acks=all, until the high watermark has passed the batch; `None` if it has, or nobody waits.
    pub(crate) ack: Option<AckWait>,
}

/// What to read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadSpec {
    pub(crate) offset: Offset,
    pub(crate) max_bytes: u32,
    pub(crate) isolation: Isolation,
    /// A batch larger than `max_bytes` is given all the same, if it is the first.
    pub(crate) at_least_one: bool,
    /// The leadership that the reader believes in.
    pub(crate) leader_epoch: Option<LeaderEpoch>,
}

/// What was read.
pub(crate) struct Read {
    /// `None` if there is nothing at the offset yet.
    pub(crate) slice: Option<Slice>,
    /// Whether the reader could have been given more than `slice`: it ends with its segment, or at the limit.
    pub(crate) more_follows: bool,
    pub(crate) high_watermark: Offset,
    pub(crate) last_stable_offset: Offset,
    pub(crate) log_start_offset: Offset,
    /// Under read_committed, the aborted transactions among the batches.
    pub(crate) aborted: Vec<Aborted>,
}

/// The watermarks of a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watermarks {
    pub(crate) log_start_offset: Offset,
    pub(crate) last_stable_offset: Offset,
    pub(crate) high_watermark: Offset,
    pub(crate) log_end_offset: Offset,
}

/// The end of a wait for an acknowledgement, as an error for the client.
pub(crate) struct AckResult(Result<(), WaitError>);

impl From<Result<(), WaitError>> for AckResult {
    fn from(outcome: Result<(), WaitError>) -> Self {
        Self(outcome)
    }
}

impl AckResult {
    pub(crate) fn into_result(self) -> Result<(), Failure> {
        self.0.map_err(|error| match error {
            WaitError::NoLongerLeader => Failure::new(
                ErrorCode::NotLeaderOrFollower,
                "leadership moved before the append was acknowledged",
            ),
            WaitError::Storage => Failure::new(
                ErrorCode::KafkaStorageError,
                "the log directory failed before the append was acknowledged",
            ),
        })
    }
}

impl Partition {
    pub(crate) fn new(
        id: TopicPartition,
        topic: TopicName,
        directory: Arc<Directory>,
        settings: Arc<TopicSettings>,
        metrics: Arc<PartitionMetrics>,
        replica: Replica,
        log: PartitionLog<RealDisk>,
    ) -> Self {
        Self {
            id,
            topic,
            directory,
            settings: ArcSwap::new(settings),
            waiters: Arc::default(),
            queued: AtomicBool::new(false),
            flushing: Mutex::new(()),
            metrics,
            state: Mutex::new(State { replica, log, unflushed_from: None, retired: false }),
        }
    }

    /// As messages name it: `topic-partition`.
    pub(crate) fn name(&self) -> String {
        format!("{}-{}", self.topic, self.id.partition)
    }

    pub(crate) fn waiters(&self) -> &Waiters {
        &self.waiters
    }

    pub(crate) fn settings(&self) -> Arc<TopicSettings> {
        self.settings.load_full()
    }

    /// Checks what a producer sent and appends it. The order of calls is the order in the log.
    pub(crate) fn append(
        self: &Arc<Self>,
        records: Bytes,
        acks: Acks,
        now: Timestamp,
    ) -> Result<Appended, Failure> {
        let settings = self.settings.load();
        let batch = validate_produced(records, &settings.limits(now))?;
        if batch.header.attributes.is_transactional() {
            // Without a transaction coordinator nobody could ever end it.
            return Err(Failure::new(
                ErrorCode::InvalidTxnState,
                "transactional batches need a transaction coordinator, which this cluster does not have",
            ));
        }
        let batch = prepared(batch, &settings, now)?;
        let mut state = self.state.lock();
        let verdict = state
            .replica
            .check_append(&batch.header, &AppendContext::client(acks))
            .map_err(|error| partition_failure(&error))?;
        let (base_offset, end_offset, append_time) = match verdict {
            Verdict::Duplicate { base_offset, last_offset, append_time } => {
                self.metrics.duplicates.inc();
                (base_offset, last_offset.next(), append_time)
            }
            Verdict::Append { base_offset, leader_epoch } => {
                let end_offset = self.write(&mut state, &batch, base_offset, leader_epoch, now)?;
                (base_offset, end_offset, now)
            }
        };
        let high_watermark = state.replica.high_watermark();
        let appended = Appended {
            base_offset,
            append_time: if settings.append_time { append_time } else { Timestamp::NONE },
            log_start_offset: state.replica.log_start_offset(),
            ack: (acks == Acks::All && high_watermark < end_offset)
                .then(|| self.waiters.until_high_watermark(end_offset)),
        };
        // The replica's own view: a change of the topic's durability reaches it first.
        let due = match state.replica.config().durability {
            Durability::Fsync => true,
            Durability::Interval => state.log.unflushed() >= settings.flush_messages,
            Durability::Os => false,
        };
        drop(state);
        if due {
            self.directory.flusher.enqueue(self);
        }
        Ok(appended)
    }

    /// One write to the log and the replica's note of it; under the lock.
    fn write(
        &self,
        state: &mut MutexGuard<'_, State>,
        batch: &Batch,
        base_offset: Offset,
        leader_epoch: LeaderEpoch,
        now: Timestamp,
    ) -> Result<Offset, Failure> {
        let State { replica, log, .. } = &mut **state;
        let producers = || replica.snapshot_producers();
        let appended = log.append(batch, base_offset, leader_epoch, now, &producers);
        let appended = appended.map_err(|error| {
            if let AppendError::Storage(cause) = &error {
                self.directory.trouble(cause);
            }
            append_failure(&error)
        })?;
        self.directory.fine();
        let applied = replica.apply(&batch.header.stamped(base_offset, leader_epoch), None, now);
        self.metrics.appended(batch.bytes.len(), batch.header.record_count);
        if let Some(high_watermark) = applied.high_watermark {
            self.waiters.moved(high_watermark);
        }
        Ok(appended.log_end_offset)
    }

    /// Finds what a reader may see at an offset. Reads no records: those leave by `sendfile`.
    pub(crate) fn read(&self, spec: &ReadSpec) -> Result<Read, Failure> {
        let state = self.state.lock();
        state
            .replica
            .validate_fetch_epoch(spec.leader_epoch, ServedBy::Leader)
            .map_err(|error| partition_failure(&error))?;
        let bound = state.replica.fetch_bound(spec.isolation);
        let mut read = Read {
            slice: None,
            more_follows: false,
            high_watermark: state.replica.high_watermark(),
            last_stable_offset: state.replica.last_stable_offset(),
            log_start_offset: state.replica.log_start_offset(),
            aborted: Vec::new(),
        };
        // Also for an offset at or past the bound: out of the log is an error, in it is "nothing yet".
        let slice = state
            .log
            .read(spec.offset, spec.max_bytes, bound, spec.at_least_one)
            .map_err(|error| self.read_failed(&error))?;
        if !slice.is_empty() {
            if spec.isolation == Isolation::ReadCommitted {
                read.aborted = state
                    .log
                    .aborted_transactions(spec.offset, slice.next_offset, ABORTED_MAX)
                    .map_err(|error| self.read_failed(&error))?
                    .into_iter()
                    .map(|one| Aborted { producer_id: one.producer_id, first_offset: one.first_offset })
                    .collect();
            }
            read.more_follows = slice.next_offset < bound;
            read.slice = Some(slice);
        }
        Ok(read)
    }

    fn read_failed(&self, error: &ReadError) -> Failure {
        if let ReadError::Storage(cause) = error {
            self.directory.trouble(cause);
        }
        read_failure(error)
    }

    pub(crate) fn watermarks(&self) -> Watermarks {
        let state = self.state.lock();
        Watermarks {
            log_start_offset: state.replica.log_start_offset(),
            last_stable_offset: state.replica.last_stable_offset(),
            high_watermark: state.replica.high_watermark(),
            log_end_offset: state.replica.log_end_offset(),
        }
    }

    pub(crate) fn size_in_bytes(&self) -> u64 {
        self.state.lock().log.size_in_bytes()
    }

    /// Runs `look` on the leader's state; `leader_epoch` is the leadership the client believes in.
    fn as_leader<T>(
        &self,
        leader_epoch: Option<LeaderEpoch>,
        look: impl FnOnce(&Replica, &PartitionLog<RealDisk>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let state = self.state.lock();
        state
            .replica
            .validate_fetch_epoch(leader_epoch, ServedBy::Leader)
            .map_err(|error| partition_failure(&error))?;
        look(&state.replica, &state.log)
    }

    /// The latest offset a reader of that isolation may reach (exclusive).
    pub(crate) fn latest(
        &self,
        isolation: Isolation,
        leader_epoch: Option<LeaderEpoch>,
    ) -> Result<(Offset, LeaderEpoch), Failure> {
        self.as_leader(leader_epoch, |replica, _| {
            let offset =
                replica.latest_offset(isolation, leader_epoch).map_err(|error| partition_failure(&error))?;
            Ok((offset, replica.leader_epoch()))
        })
    }

    /// The log's start and the leadership that wrote it.
    pub(crate) fn earliest(
        &self,
        leader_epoch: Option<LeaderEpoch>,
    ) -> Result<(Offset, LeaderEpoch), Failure> {
        self.as_leader(leader_epoch, |replica, log| {
            let start = replica.log_start_offset();
            Ok((start, log.epoch_at(start)))
        })
    }

    /// The first record of that time or later, of those a reader of that isolation may see.
    pub(crate) fn at_time(
        &self,
        time: Timestamp,
        isolation: Isolation,
        leader_epoch: Option<LeaderEpoch>,
    ) -> Result<Option<TimestampOffset>, Failure> {
        self.as_leader(leader_epoch, |replica, log| {
            let found = log.offset_for_timestamp(time).map_err(|error| self.read_failed(&error))?;
            Ok(found.filter(|found| found.offset < replica.fetch_bound(isolation)))
        })
    }

    /// The record with the greatest time, if a reader of that isolation may see it.
    pub(crate) fn max_timestamp(
        &self,
        isolation: Isolation,
        leader_epoch: Option<LeaderEpoch>,
    ) -> Result<Option<TimestampOffset>, Failure> {
        self.as_leader(leader_epoch, |replica, log| {
            let found = log.max_timestamp().map_err(|error| self.read_failed(&error))?;
            Ok(found.filter(|found| found.offset < replica.fetch_bound(isolation)))
        })
    }

    /// Where `wanted` ended in this log (KIP-101).
    pub(crate) fn end_of_epoch(
        &self,
        wanted: LeaderEpoch,
        leader_epoch: Option<LeaderEpoch>,
    ) -> Result<Option<semel_log::EpochEnd>, Failure> {
        self.as_leader(leader_epoch, |replica, log| {
            // A leadership is in the log's history from its first batch on; until then this replica alone knows it.
            if wanted == replica.leader_epoch() {
                let end_offset = replica.log_end_offset();
                return Ok(Some(semel_log::EpochEnd { leader_epoch: wanted, end_offset }));
            }
            Ok(log.end_offset_for_epoch(wanted))
        })
    }

    pub(crate) fn active_producers(&self) -> Result<Vec<ProducerSnapshotEntry>, Failure> {
        self.as_leader(None, |replica, _| Ok(replica.active_producers().collect()))
    }

    /// Deletes records below `before`; [`Offset`] -1 is the high watermark. Returns the new log start.
    pub(crate) fn delete_records(&self, before: Offset) -> Result<Offset, Failure> {
        if !self.settings.load().log.cleanup_policy.delete {
            return Err(Failure::new(
                ErrorCode::PolicyViolation,
                format!(
                    "records of {:?} can't be deleted: its cleanup.policy is not delete",
                    self.topic.as_str()
                ),
            ));
        }
        let mut state = self.state.lock();
        state
            .replica
            .validate_fetch_epoch(None, ServedBy::Leader)
            .map_err(|error| partition_failure(&error))?;
        let high_watermark = state.replica.high_watermark();
        let to = if before == Offset(-1) { high_watermark } else { before };
        if to < Offset::ZERO || to > high_watermark {
            return Err(Failure::new(
                ErrorCode::OffsetOutOfRange,
                format!("can't delete before {to}: the high watermark is {high_watermark}"),
            ));
        }
        let State { replica, log, .. } = &mut *state;
        log.delete_before(to, high_watermark).map_err(|error| {
            if let RetentionError::Storage(cause) = &error {
                self.directory.trouble(cause);
            }
            Failure::new(ErrorCode::KafkaStorageError, crate::failure::chain(&error))
        })?;
        replica.log_start_moved(log.log_start_offset());
        let log_start_offset = replica.log_start_offset();
        drop(state);
        // Durable at the next checkpoint; a crash before it brings records back that were asked to go, none that
        // were never there. Kafka promises no more.
        self.directory.checkpoint_soon();
        self.waiters.changed();
        Ok(log_start_offset)
    }

    /// The controller decided who leads.
    pub(crate) fn take_role(&self, me: BrokerId, state: &semel_metadata::Partition, now: Timestamp) {
        let mut locked = self.state.lock();
        let was_leader = locked.replica.role() == RoleKind::Leader;
        let changed = if state.leader == Some(me) {
            let leader = LeaderState {
                leader_epoch: state.leader_epoch,
                partition_epoch: state.partition_epoch,
                isr: state.isr.iter().copied().collect(),
                replicas: state.replicas.iter().copied().collect::<BTreeSet<_>>(),
            };
            locked.replica.become_leader(leader, now)
        } else {
            let follower = FollowerState {
                leader_epoch: state.leader_epoch,
                partition_epoch: state.partition_epoch,
                leader: state.leader.unwrap_or(BrokerId::NONE),
            };
            locked.replica.become_follower(follower).map(|()| None)
        };
        let role = locked.replica.role();
        drop(locked);
        match changed {
            Ok(Some(high_watermark)) => self.waiters.moved(high_watermark),
            Ok(None) => self.waiters.changed(),
            Err(error) => tracing::warn!(partition = self.name(), %error, "change of leadership refused"),
        }
        if was_leader && role != RoleKind::Leader {
            self.waiters.fail(WaitError::NoLongerLeader);
        }
        tracing::debug!(partition = self.name(), ?role, leader_epoch = %state.leader_epoch, "role taken");
    }

    /// Puts a changed configuration in force.
    pub(crate) fn reconfigure(&self, settings: Arc<TopicSettings>, config: semel_partition::Config) {
        let mut state = self.state.lock();
        state.log.set_config(settings.log.clone());
        let moved = state.replica.reconfigure(config);
        drop(state);
        self.settings.store(settings);
        if let Some(high_watermark) = moved {
            self.waiters.moved(high_watermark);
        }
    }

    /// Syncs what was appended and lets the high watermark follow. Called by the directory's flusher; appends go on
    /// meanwhile.
    ///
    /// On an error the directory has failed, and this partition's log with it.
    pub(crate) fn flush(&self) -> Result<(), StorageError> {
        // Before the ticket is taken: an append after it must queue the partition again.
        self.queued.store(false, Ordering::SeqCst);
        let _flushing = self.flushing.lock();
        let ticket = {
            let state = self.state.lock();
            // After a sync that failed a later one may claim success for pages that are gone.
            if state.retired || state.log.has_failed() || !state.log.needs_flush() {
                return Ok(());
            }
            state.log.flush_ticket()
        };
        let synced = ticket.sync();
        let mut state = self.state.lock();
        // Renamed meanwhile, and perhaps somebody else's name by now: whatever the sync says is about nothing.
        if state.retired {
            return Ok(());
        }
        if let Err(error) = synced {
            state.log.mark_failed();
            drop(state);
            self.directory.fail(&error);
            return Err(error);
        }
        if state.log.has_failed() {
            return Ok(());
        }
        state.log.flushed(&ticket);
        state.unflushed_from = None;
        let flushed_end = state.log.flushed_end();
        let moved = state.replica.flushed(flushed_end);
        drop(state);
        if let Some(high_watermark) = moved {
            self.waiters.moved(high_watermark);
        }
        Ok(())
    }

    /// Whether something is not synced yet and was first seen so at least `span` ago.
    pub(crate) fn unflushed_since(&self, now: Timestamp, span: Millis) -> bool {
        let mut state = self.state.lock();
        if !state.log.needs_flush() {
            state.unflushed_from = None;
            return false;
        }
        let from = *state.unflushed_from.get_or_insert(now);
        now.since(from) >= span
    }

    /// Whether the caller is the one to put this partition into the flusher's queue.
    pub(crate) fn claim_queueing(&self) -> bool {
        !self.queued.swap(true, Ordering::SeqCst)
    }

    /// The directory failed, or the log: nothing more is appended or read here, and nobody waits any longer.
    pub(crate) fn go_offline(&self) {
        let mut state = self.state.lock();
        state.log.mark_failed();
        state.replica.go_offline();
        drop(state);
        self.waiters.fail(WaitError::Storage);
    }

    /// The partition is not this broker's any more. To be called before anything happens to its directory.
    pub(crate) fn retire(&self) {
        let mut state = self.state.lock();
        state.retired = true;
        state.log.mark_failed();
        state.replica.go_offline();
        drop(state);
        self.waiters.fail(WaitError::NoLongerLeader);
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.state.lock().retired
    }

    /// Whether the log refuses everything until it is opened again.
    pub(crate) fn has_failed(&self) -> bool {
        self.state.lock().log.has_failed()
    }

    /// Ends the log in order and refuses everything afterwards: nothing may be appended behind what was synced and
    /// checkpointed.
    pub(crate) fn close(&self) -> Result<(), StorageError> {
        let _flushing = self.flushing.lock();
        let mut state = self.state.lock();
        if state.retired {
            return Ok(());
        }
        let State { replica, log, .. } = &mut *state;
        let closed = log.close(&replica.snapshot_producers());
        let moved = if closed.is_ok() { replica.flushed(log.flushed_end()) } else { None };
        drop(state);
        if let Some(high_watermark) = moved {
            self.waiters.moved(high_watermark);
        }
        self.go_offline();
        closed
    }

    /// Runs one piece of housekeeping under the lock; `None` if the partition is no longer this broker's.
    pub(crate) fn tend<T>(
        &self,
        tend: impl FnOnce(&mut Replica, &mut PartitionLog<RealDisk>) -> T,
    ) -> Option<T> {
        let mut state = self.state.lock();
        if state.retired {
            return None;
        }
        let State { replica, log, .. } = &mut *state;
        Some(tend(replica, log))
    }
}

/// What the topic does to a batch before it is stored: another codec, the broker's time.
fn prepared(batch: Batch, settings: &TopicSettings, now: Timestamp) -> Result<Batch, Failure> {
    let batch = match settings.compression {
        Some(to) if batch.header.attributes.codec()? != to.codec => {
            let limits = settings.limits(now);
            let batch = batch.recompress(to, &limits.decode)?;
            if batch.bytes.len() > limits.message_bytes_max {
                return Err(Failure::new(
                    ErrorCode::MessageTooLarge,
                    format!(
                        "batch of {} bytes after recompression exceeds max.message.bytes {}",
                        batch.bytes.len(),
                        limits.message_bytes_max
                    ),
                ));
            }
            batch
        }
        _ => batch,
    };
    Ok(if settings.append_time { batch.with_append_time(now) } else { batch })
}

/// An I/O error met while bytes that are known to be there are read.
pub(crate) fn storage_failure(error: &std::io::Error) -> Failure {
    Failure::new(ErrorCode::KafkaStorageError, crate::failure::chain(error))
}
