//! The state of a replica, its positions and its reads.

use semel_model::{BrokerId, LeaderEpoch, Offset, PartitionEpoch, Timestamp};
use semel_record::{BatchHeader, ProducerSnapshotEntry};

use crate::{Config, Error, leader::Leadership, producers::ProducerTable, transactions::Transactions};

/// What recovery found on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveredLog {
    /// Inclusive.
    pub log_start_offset: Offset,
    /// Exclusive.
    pub log_end_offset: Offset,
    /// From the checkpoint, exclusive. What lies outside the log is corrected.
    pub high_watermark: Offset,
    /// Up to where the log is on stable storage, exclusive. What lies beyond the log is corrected.
    pub flushed_end: Offset,
}

/// What a reader may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// Everything in the log: for other replicas.
    LogEnd,
    /// What is replicated: up to the high watermark.
    ReadUncommitted,
    /// What is replicated and decided: up to the last stable offset.
    ReadCommitted,
}

/// Who may answer a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServedBy {
    /// Only the leader.
    Leader,
    /// A follower too (KIP-392).
    AnyReplica,
}

/// The role of a replica, without what belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleKind {
    /// The controller has not said anything since the start.
    Unassigned,
    /// Another broker leads.
    Follower,
    /// This broker leads.
    Leader,
    /// The log's directory has failed.
    Offline,
}

#[derive(Clone, Debug)]
pub(crate) enum Role {
    Unassigned,
    Follower { leader: BrokerId },
    Leader(Leadership),
    Offline,
}

/// One partition's replica on this broker.
#[derive(Clone, Debug)]
pub struct Replica {
    pub(crate) config: Config,
    pub(crate) broker: BrokerId,
    // Given by the controller.
    pub(crate) leader_epoch: LeaderEpoch,
    pub(crate) partition_epoch: PartitionEpoch,
    pub(crate) role: Role,
    // Positions in the log.
    pub(crate) log_start_offset: Offset,
    pub(crate) log_end_offset: Offset,
    pub(crate) flushed_end: Offset,
    pub(crate) high_watermark: Offset,
    // What the log's batches determine.
    pub(crate) producers: ProducerTable,
    pub(crate) transactions: Transactions,
}

impl Replica {
    /// A replica on `broker` with what recovery found, not yet told its role.
    ///
    /// `snapshot` is the producer table of some offset; the caller then [`replay`](Self::replay)s the batches from
    /// there to the log's end, in order.
    #[must_use]
    pub fn recovered(
        broker: BrokerId,
        config: Config,
        log: RecoveredLog,
        snapshot: &[ProducerSnapshotEntry],
        now: Timestamp,
    ) -> Self {
        let log_end_offset = log.log_end_offset.max(log.log_start_offset);
        let mut replica = Self {
            config,
            broker,
            leader_epoch: LeaderEpoch::NONE,
            partition_epoch: PartitionEpoch(-1),
            role: Role::Unassigned,
            log_start_offset: log.log_start_offset,
            log_end_offset,
            flushed_end: log.flushed_end.min(log_end_offset),
            high_watermark: log.high_watermark.clamp(log.log_start_offset, log_end_offset),
            producers: ProducerTable::default(),
            transactions: Transactions::default(),
        };
        replica.reload(snapshot, now);
        replica
    }

    /// Replaces the producer table by a snapshot, after recovery or a truncation; the batches from the snapshot's
    /// offset to the log's end are to be [`replay`](Self::replay)ed next, in order.
    pub fn reload(&mut self, snapshot: &[ProducerSnapshotEntry], now: Timestamp) {
        self.producers.load(snapshot, now);
        self.transactions.reload(self.log_end_offset);
        for entry in snapshot {
            if let Some(first_offset) = entry.current_txn_first_offset {
                self.transactions.begin(first_offset, entry.producer_id);
            }
        }
    }

    /// Completes what a snapshot lost, for it keeps only the last batch of each producer: of a batch that lies
    /// *before* the snapshot's offset, lets a retry be known again.
    ///
    /// To be called after [`reload`](Self::reload), with the newest batch first, as far back as the caller cares
    /// to read, and before [`replay`](Self::replay).
    pub fn recall(&mut self, header: &BatchHeader) {
        if header.is_idempotent() && !header.attributes.is_control() {
            self.producers.recall(header);
        }
    }

    /// Other settings from now on; `Some` if the high watermark moved with them.
    pub fn reconfigure(&mut self, config: Config) -> Option<Offset> {
        self.config = config;
        self.advance_high_watermark()
    }

    /// The log is on stable storage up to `end` (exclusive); `Some` if the high watermark moved with it.
    pub fn flushed(&mut self, end: Offset) -> Option<Offset> {
        // A sync that began before a truncation may report an end that is no more.
        self.flushed_end = self.flushed_end.max(end.min(self.log_end_offset));
        self.advance_high_watermark()
    }

    /// The log was cut: `to` (exclusive) is its end now, if that is less than before. The producer table must be
    /// [`reload`](Self::reload)ed next.
    pub fn truncated(&mut self, to: Offset) {
        let end = to.min(self.log_end_offset);
        if end < self.high_watermark {
            tracing::warn!(
                high_watermark = self.high_watermark.0,
                log_end_offset = end.0,
                "log was truncated below its high watermark"
            );
        }
        self.log_end_offset = end;
        // A log that was started over elsewhere begins where it ends.
        self.log_start_offset = self.log_start_offset.min(end);
        self.flushed_end = self.flushed_end.min(end);
        self.high_watermark = self.high_watermark.min(end);
    }

    /// Records before `to` are deleted; never back. Producers are not forgotten with their records (KAFKA-7190).
    ///
    /// A follower's log may start over beyond its end, with its leader's.
    pub fn log_start_moved(&mut self, to: Offset) {
        self.log_start_offset = self.log_start_offset.max(to);
        self.log_end_offset = self.log_end_offset.max(self.log_start_offset);
        self.high_watermark = self.high_watermark.max(self.log_start_offset);
        // What is deleted needs no sync.
        self.flushed_end = self.flushed_end.max(self.log_start_offset);
        self.transactions.release(self.log_start_offset);
    }

    /// Up to where a reader sees, exclusive.
    #[must_use]
    pub fn fetch_bound(&self, isolation: Isolation) -> Offset {
        match isolation {
            Isolation::LogEnd => self.log_end_offset,
            Isolation::ReadUncommitted => self.high_watermark,
            Isolation::ReadCommitted => self.last_stable_offset(),
        }
    }

    /// The answer to "what is the latest offset", for a reader of that isolation.
    ///
    /// Errors: those of [`validate_fetch_epoch`](Self::validate_fetch_epoch) for the leader, and
    /// [`Error::OffsetNotAvailable`] while a new leader's high watermark lies before its own epoch: an earlier
    /// answer may have been greater (KIP-207).
    pub fn latest_offset(
        &self,
        isolation: Isolation,
        current_leader_epoch: Option<LeaderEpoch>,
    ) -> Result<Offset, Error> {
        let leadership = self.check_leader(current_leader_epoch)?;
        if isolation != Isolation::LogEnd && self.high_watermark < leadership.epoch_start_offset() {
            return Err(Error::OffsetNotAvailable);
        }
        Ok(self.fetch_bound(isolation))
    }

    /// Whether a client with that view of the leadership may read here (KIP-320). `None` if it told none.
    ///
    /// Errors: [`Error::FencedLeaderEpoch`], [`Error::UnknownLeaderEpoch`], [`Error::NotLeaderOrFollower`],
    /// [`Error::KafkaStorageError`].
    pub fn validate_fetch_epoch(
        &self,
        current_leader_epoch: Option<LeaderEpoch>,
        served_by: ServedBy,
    ) -> Result<(), Error> {
        match served_by {
            ServedBy::Leader => self.check_leader(current_leader_epoch).map(drop),
            ServedBy::AnyReplica => {
                self.check_epoch(current_leader_epoch)?;
                match self.role {
                    Role::Unassigned => Err(Error::NotLeaderOrFollower),
                    Role::Follower { .. } | Role::Leader(_) => Ok(()),
                    Role::Offline => Err(Error::KafkaStorageError),
                }
            }
        }
    }

    fn check_epoch(&self, given: Option<LeaderEpoch>) -> Result<(), Error> {
        let current = self.leader_epoch;
        match given {
            Some(given) if given < current => Err(Error::FencedLeaderEpoch { given, current }),
            Some(given) if given > current => Err(Error::UnknownLeaderEpoch { given, current }),
            Some(_) | None => Ok(()),
        }
    }

    pub(crate) fn check_leader(&self, given: Option<LeaderEpoch>) -> Result<&Leadership, Error> {
        if matches!(self.role, Role::Offline) {
            return Err(Error::KafkaStorageError);
        }
        self.check_epoch(given)?;
        match &self.role {
            Role::Leader(leadership) => Ok(leadership),
            Role::Unassigned | Role::Follower { .. } | Role::Offline => Err(Error::NotLeaderOrFollower),
        }
    }

    /// Forgets producers that are idle for too long and have no open transaction; how many they were.
    pub fn expire_producers(&mut self, now: Timestamp) -> usize {
        self.producers.expire(now, self.config.producer_id_expiration)
    }

    /// The producer table as a snapshot has it, valid at the log's end; by producer id.
    #[must_use]
    pub fn snapshot_producers(&self) -> Vec<ProducerSnapshotEntry> {
        self.producers.rows().collect()
    }

    /// The producers that are remembered, for `DescribeProducers`; by producer id.
    pub fn active_producers(&self) -> impl ExactSizeIterator<Item = ProducerSnapshotEntry> {
        self.producers.rows()
    }

    /// Up to where records are replicated and decided, exclusive.
    #[must_use]
    pub fn last_stable_offset(&self) -> Offset {
        match self.transactions.first_unstable_offset() {
            // A transaction may have begun before what is left of the log.
            Some(first) => first.max(self.log_start_offset).min(self.high_watermark),
            None => self.high_watermark,
        }
    }

    /// Where the first transaction without a marker begins: compaction must not pass it.
    #[must_use]
    pub fn first_open_transaction_offset(&self) -> Option<Offset> {
        self.transactions.first_open_offset()
    }

    /// Inclusive.
    #[must_use]
    pub const fn log_start_offset(&self) -> Offset {
        self.log_start_offset
    }

    /// Exclusive: the next offset to be given.
    #[must_use]
    pub const fn log_end_offset(&self) -> Offset {
        self.log_end_offset
    }

    /// Exclusive.
    #[must_use]
    pub const fn high_watermark(&self) -> Offset {
        self.high_watermark
    }

    /// Exclusive.
    #[must_use]
    pub const fn flushed_end(&self) -> Offset {
        self.flushed_end
    }

    /// [`LeaderEpoch::NONE`] before the controller has said anything.
    #[must_use]
    pub const fn leader_epoch(&self) -> LeaderEpoch {
        self.leader_epoch
    }

    /// -1 before the controller has said anything.
    #[must_use]
    pub const fn partition_epoch(&self) -> PartitionEpoch {
        self.partition_epoch
    }

    /// Whether this replica leads, follows or neither.
    #[must_use]
    pub const fn role(&self) -> RoleKind {
        match self.role {
            Role::Unassigned => RoleKind::Unassigned,
            Role::Follower { .. } => RoleKind::Follower,
            Role::Leader(_) => RoleKind::Leader,
            Role::Offline => RoleKind::Offline,
        }
    }

    /// Who leads, as far as this replica knows.
    #[must_use]
    pub const fn leader(&self) -> Option<BrokerId> {
        match self.role {
            Role::Follower { leader } => Some(leader),
            Role::Leader(_) => Some(self.broker),
            Role::Unassigned | Role::Offline => None,
        }
    }

    /// The settings in force.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Checks what must hold of a replica after every step; the `Err` names what does not.
    pub fn invariants(&self) -> Result<(), &'static str> {
        let checks = [
            (self.log_start_offset <= self.last_stable_offset(), "log start <= last stable offset"),
            (self.last_stable_offset() <= self.high_watermark, "last stable offset <= high watermark"),
            (self.high_watermark <= self.log_end_offset, "high watermark <= log end"),
            (self.flushed_end <= self.log_end_offset, "flushed end <= log end"),
            (self.producers.windows_are_ordered(), "a producer's batches follow each other"),
            (self.open_transactions_agree(), "open transactions are the producers' open transactions"),
        ];
        checks.iter().try_for_each(|&(holds, name)| if holds { Ok(()) } else { Err(name) })
    }

    fn open_transactions_agree(&self) -> bool {
        let mut by_producer: Vec<_> = self
            .producers
            .rows()
            .filter_map(|row| row.current_txn_first_offset.map(|first| (first, row.producer_id)))
            .collect();
        by_producer.sort_unstable();
        by_producer.into_iter().eq(self.transactions.open())
    }
}
