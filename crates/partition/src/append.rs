//! Check, then append, then apply.

use semel_model::{LeaderEpoch, Offset, ProducerId, Timestamp};
use semel_record::{BatchHeader, EndTransactionMarker, Outcome};

use crate::{Error, Replica, replica::Role};

/// What a producer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acks {
    /// Nothing: it gets no answer (0).
    None,
    /// The leader's append (1).
    Leader,
    /// All in-sync replicas (-1).
    All,
}

/// Who made a data batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A client: sequences are checked.
    Client,
    /// A coordinator on behalf of a producer (committed offsets in a transaction): without a sequence, only the
    /// producer's epoch is checked.
    Coordinator,
}

/// What is known of the transaction that a transactional batch belongs to (KIP-890).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionVerification {
    /// The batch is not transactional, or nobody has to ask.
    NotNeeded,
    /// The coordinator said that the transaction is ongoing and has this partition.
    Verified,
    /// The same, in the protocol that bumps the epoch with each transaction: a producer that is unknown here starts
    /// with sequence 0.
    VerifiedWithEpochBump,
    /// Nobody has asked the coordinator yet.
    Missing,
}

/// Which protocol a marker follows (KIP-890).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionVersion {
    /// `transaction.version` 0 and 1: a marker has the epoch of its transaction.
    V1,
    /// `transaction.version` 2: a marker has the next epoch.
    V2,
}

/// What comes with a data batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppendContext {
    /// What the producer waits for.
    pub acks: Acks,
    /// Who made the batch.
    pub origin: Origin,
    /// The leadership that the caller believes in; `None` if it told none.
    pub current_leader_epoch: Option<LeaderEpoch>,
    /// Looked at only if the batch is transactional.
    pub verification: TransactionVerification,
}

impl AppendContext {
    /// Of a client's plain batch.
    #[must_use]
    pub const fn client(acks: Acks) -> Self {
        Self {
            acks,
            origin: Origin::Client,
            current_leader_epoch: None,
            verification: TransactionVerification::Missing,
        }
    }
}

/// What to do with a data batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Append it with these stamps, then [`Replica::apply`].
    Append {
        /// The offset of its first record.
        base_offset: Offset,
        /// The leadership it is appended under.
        leader_epoch: LeaderEpoch,
    },
    /// It is in the log already: append nothing and answer with these. acks=all still has to wait until
    /// `last_offset` is below the high watermark.
    Duplicate {
        /// The offset of its first record.
        base_offset: Offset,
        /// The offset of its last record (inclusive).
        last_offset: Offset,
        /// The max timestamp it has in the log: its append time if the topic uses that.
        append_time: Timestamp,
    },
}

/// What to do with a marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkerVerdict {
    /// Append it with these stamps, then [`Replica::apply`].
    Append {
        /// Its offset.
        base_offset: Offset,
        /// The leadership it is appended under.
        leader_epoch: LeaderEpoch,
    },
    /// It stands in the log already: append nothing and answer as if it had been. It is replicated when the high
    /// watermark has reached the log end of now.
    AlreadyEnded,
}

/// A transaction whose marker was applied; an aborted one belongs into the aborted index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletedTransaction {
    /// Whose it was.
    pub producer_id: ProducerId,
    /// Of its first batch.
    pub first_offset: Offset,
    /// Of its marker (inclusive).
    pub last_offset: Offset,
    /// Whether its records are for nobody.
    pub aborted: bool,
    /// The last stable offset once the marker is replicated: where the next open transaction begins, or behind the
    /// marker.
    pub last_stable_offset: Offset,
}

/// What applying a batch brought about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Of the batch (inclusive).
    pub last_offset: Offset,
    /// The transaction that it ended.
    pub completed: Option<CompletedTransaction>,
    /// Set if the high watermark moved: a leader that is alone in sync and does not wait for its disk.
    pub high_watermark: Option<Offset>,
}

impl Replica {
    /// Whether a leader takes a data batch. Changes nothing.
    ///
    /// The batch has passed [`semel_record::validate_produced`].
    /// Errors: [`Error::KafkaStorageError`], [`Error::FencedLeaderEpoch`], [`Error::UnknownLeaderEpoch`],
    /// [`Error::NotLeaderOrFollower`], [`Error::NotEnoughReplicas`]; of idempotent producers
    /// [`Error::InvalidProducerEpoch`], [`Error::TransactionNotVerified`], [`Error::OutOfOrderSequenceNumber`],
    /// [`Error::InvalidTxnState`], [`Error::TooManyProducers`].
    pub fn check_append(&self, header: &BatchHeader, context: &AppendContext) -> Result<Verdict, Error> {
        let leadership = self.check_leader(context.current_leader_epoch)?;
        if context.acks == Acks::All {
            let (in_sync, needed) = (leadership.in_sync().len(), self.replicas_needed(leadership));
            if in_sync < needed {
                return Err(Error::NotEnoughReplicas { in_sync, needed });
            }
        }
        if header.is_idempotent() {
            let mut context = *context;
            if !self.config.transaction_verification
                && context.verification == TransactionVerification::Missing
            {
                context.verification = TransactionVerification::NotNeeded;
            }
            if let Some(known) = self.producers.check_data(header, &context)? {
                return Ok(Verdict::Duplicate {
                    base_offset: known.first_offset(),
                    last_offset: known.last_offset,
                    append_time: known.timestamp,
                });
            }
            let max = self.config.producers_max;
            if !self.producers.has_room_for(header.producer_id, self.transactions.open().len(), max) {
                return Err(Error::TooManyProducers { max });
            }
        }
        Ok(Verdict::Append { base_offset: self.log_end_offset, leader_epoch: self.leader_epoch })
    }

    /// Whether a leader takes a transaction's marker. Changes nothing.
    ///
    /// Errors: [`Error::KafkaStorageError`], [`Error::NotLeaderOrFollower`],
    /// [`Error::TransactionCoordinatorFenced`], [`Error::InvalidProducerEpoch`].
    pub fn check_marker(
        &self,
        header: &BatchHeader,
        marker: &EndTransactionMarker,
        version: TransactionVersion,
    ) -> Result<MarkerVerdict, Error> {
        self.check_leader(None)?;
        Ok(if self.producers.check_marker(header, marker, version)? {
            MarkerVerdict::Append { base_offset: self.log_end_offset, leader_epoch: self.leader_epoch }
        } else {
            MarkerVerdict::AlreadyEnded
        })
    }

    /// Whether a follower takes a batch as its leader sent it. Changes nothing.
    ///
    /// Errors: [`Error::NotLeaderOrFollower`] if it does not follow, [`Error::KafkaStorageError`],
    /// [`Error::UnknownLeaderEpoch`] if the batch is of a leadership not heard of, [`Error::UnexpectedOffset`].
    pub fn check_replicated(&self, header: &BatchHeader) -> Result<(), Error> {
        match self.role {
            Role::Follower { .. } => {}
            Role::Offline => return Err(Error::KafkaStorageError),
            Role::Unassigned | Role::Leader(_) => return Err(Error::NotLeaderOrFollower),
        }
        if header.leader_epoch > self.leader_epoch {
            return Err(Error::UnknownLeaderEpoch { given: header.leader_epoch, current: self.leader_epoch });
        }
        // Compaction leaves gaps, so a batch may begin later, but never earlier.
        if header.base_offset < self.log_end_offset {
            return Err(Error::UnexpectedOffset {
                given: header.base_offset,
                log_end_offset: self.log_end_offset,
            });
        }
        Ok(())
    }

    /// Takes note of a batch that was appended to the log, stamped as it lies there.
    ///
    /// `marker` is what the batch holds if it is the control batch that ends a transaction; `None` also for a
    /// control batch that compaction emptied. Total: what stands in the log is believed.
    ///
    /// Panics if the batch begins before the log's end: a log that goes back is broken, and the check that comes
    /// before an append refuses such a batch.
    pub fn apply(
        &mut self,
        header: &BatchHeader,
        marker: Option<&EndTransactionMarker>,
        now: Timestamp,
    ) -> Applied {
        assert!(header.base_offset >= self.log_end_offset, "a batch begins before the log's end");
        self.log_end_offset = header.next_offset();
        let completed = self.replay(header, marker, now);
        let high_watermark = self.advance_high_watermark();
        Applied { last_offset: header.last_offset(), completed, high_watermark }
    }

    /// Takes note of a batch that lies in a recovered log between a producer snapshot and the log's end: as
    /// [`apply`](Self::apply), but the positions are known already.
    ///
    /// Gives the transaction that it ended, from which an aborted index can be rebuilt.
    pub fn replay(
        &mut self,
        header: &BatchHeader,
        marker: Option<&EndTransactionMarker>,
        now: Timestamp,
    ) -> Option<CompletedTransaction> {
        if !header.is_idempotent() {
            return None;
        }
        let completed = match marker {
            Some(marker) => self.apply_marker(header, marker, now),
            None => {
                if !header.attributes.is_control() && self.producers.apply_data(header, now) {
                    self.transactions.begin(header.base_offset, header.producer_id);
                }
                None
            }
        };
        self.producers.keep_within(self.config.producers_max);
        completed
    }

    fn apply_marker(
        &mut self,
        header: &BatchHeader,
        marker: &EndTransactionMarker,
        now: Timestamp,
    ) -> Option<CompletedTransaction> {
        // A marker without a transaction only fences.
        let first_offset = self.producers.apply_marker(header, marker, now)?;
        let last_offset = header.last_offset();
        self.transactions.end(first_offset, last_offset, self.high_watermark);
        Some(CompletedTransaction {
            producer_id: header.producer_id,
            first_offset,
            last_offset,
            aborted: marker.outcome == Outcome::Abort,
            last_stable_offset: self.transactions.first_open_offset().unwrap_or(last_offset.next()),
        })
    }
}
