//! Roles, the in-sync replicas and the high watermark.
//!
//! The high watermark is the smallest end among the in-sync replicas of what counts as kept: flushed ends under
//! [`Durability::Fsync`], log ends otherwise. It moves only while enough replicas are in
//! sync, so that a consumer never sees a record with fewer copies (KIP-966).

use std::collections::{BTreeMap, BTreeSet};

use semel_model::{BrokerId, LeaderEpoch, Millis, Offset, PartitionEpoch, Timestamp};

use crate::{Durability, Error, Replica, replica::Role};

/// What the controller decided for a leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderState {
    /// The leadership.
    pub leader_epoch: LeaderEpoch,
    /// Counts the partition's changes.
    pub partition_epoch: PartitionEpoch,
    /// The in-sync replicas, the leader among them.
    pub isr: BTreeSet<BrokerId>,
    /// The assigned replicas, the leader among them.
    pub replicas: BTreeSet<BrokerId>,
}

/// What the controller decided for a follower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowerState {
    /// The leadership.
    pub leader_epoch: LeaderEpoch,
    /// Counts the partition's changes.
    pub partition_epoch: PartitionEpoch,
    /// Who leads; [`BrokerId::NONE`] if nobody does for now.
    pub leader: BrokerId,
}

/// Where a follower is, as it says when it fetches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowerPosition {
    /// The leadership that it follows.
    pub leader_epoch: LeaderEpoch,
    /// Exclusive: the offset it fetches from.
    pub log_end_offset: Offset,
    /// Exclusive: up to where its log is on stable storage.
    pub flushed_end: Offset,
}

/// A change of the in-sync replicas that a leader asks the controller for: compare-and-set on the partition epoch
/// (KIP-497).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IsrChange {
    /// The leadership under which it is asked.
    pub leader_epoch: LeaderEpoch,
    /// The partition epoch that the change builds on.
    pub partition_epoch: PartitionEpoch,
    /// The in-sync replicas to be, the leader among them.
    pub isr: BTreeSet<BrokerId>,
}

/// What only a leader knows.
#[derive(Clone, Debug)]
pub(crate) struct Leadership {
    isr: BTreeSet<BrokerId>,
    replicas: BTreeSet<BrokerId>,
    /// Asked of the controller and not answered. Until then whoever is in either set counts as in sync.
    asked: Option<BTreeSet<BrokerId>>,
    /// The log's end when this leadership began.
    epoch_start_offset: Offset,
    followers: BTreeMap<BrokerId, Follower>,
}

#[derive(Clone, Copy, Debug)]
struct Follower {
    log_end_offset: Offset,
    flushed_end: Offset,
    /// When it last had all that the leader had.
    caught_up_at: Timestamp,
    /// When it last fetched, and the leader's end then: a follower that is always one fetch behind keeps up.
    fetched_at: Timestamp,
    leader_end_at_fetch: Offset,
}

impl Follower {
    /// Of which nothing is heard yet; one in the ISR has the time of a lag to show itself.
    const fn silent(now: Timestamp) -> Self {
        Self {
            log_end_offset: Offset(-1),
            flushed_end: Offset(-1),
            caught_up_at: now,
            fetched_at: Timestamp::NONE,
            leader_end_at_fetch: Offset(-1),
        }
    }

    fn kept_end(&self, durability: Durability) -> Offset {
        match durability {
            Durability::Fsync => self.flushed_end,
            Durability::Interval | Durability::Os => self.log_end_offset,
        }
    }
}

impl Leadership {
    pub(crate) const fn in_sync(&self) -> &BTreeSet<BrokerId> {
        &self.isr
    }

    pub(crate) const fn epoch_start_offset(&self) -> Offset {
        self.epoch_start_offset
    }
}

impl Replica {
    /// Leads from now on, or goes on leading with other in-sync or assigned replicas; `Some` if the high
    /// watermark moved with that.
    ///
    /// A change that is already obeyed is passed over.
    /// Errors: [`Error::FencedLeaderEpoch`], [`Error::StalePartitionEpoch`], [`Error::KafkaStorageError`].
    pub fn become_leader(&mut self, state: LeaderState, now: Timestamp) -> Result<Option<Offset>, Error> {
        self.check_newer(state.leader_epoch, state.partition_epoch)?;
        if state.partition_epoch == self.partition_epoch && state.leader_epoch == self.leader_epoch {
            return Ok(None);
        }
        let same_leadership = state.leader_epoch == self.leader_epoch;
        let (epoch_start_offset, mut followers) = match &mut self.role {
            Role::Leader(leadership) if same_leadership => {
                (leadership.epoch_start_offset, std::mem::take(&mut leadership.followers))
            }
            Role::Unassigned | Role::Follower { .. } | Role::Leader(_) | Role::Offline => {
                (self.log_end_offset, BTreeMap::new())
            }
        };
        followers.retain(|broker, _| state.replicas.contains(broker));
        for &broker in state.replicas.iter().filter(|&&broker| broker != self.broker) {
            followers.entry(broker).or_insert_with(|| Follower::silent(now));
        }
        self.leader_epoch = state.leader_epoch;
        self.partition_epoch = state.partition_epoch;
        self.role = Role::Leader(Leadership {
            isr: state.isr,
            replicas: state.replicas,
            asked: None,
            epoch_start_offset,
            followers,
        });
        Ok(self.advance_high_watermark())
    }

    /// Follows from now on. A change that is already obeyed is passed over.
    ///
    /// Errors: [`Error::FencedLeaderEpoch`], [`Error::StalePartitionEpoch`], [`Error::KafkaStorageError`].
    pub fn become_follower(&mut self, state: FollowerState) -> Result<(), Error> {
        self.check_newer(state.leader_epoch, state.partition_epoch)?;
        self.leader_epoch = state.leader_epoch;
        self.partition_epoch = state.partition_epoch;
        self.role = Role::Follower { leader: state.leader };
        Ok(())
    }

    /// The log's directory has failed: nothing is taken or served until the replica is recovered anew.
    pub fn go_offline(&mut self) {
        self.role = Role::Offline;
    }

    fn check_newer(&self, leader_epoch: LeaderEpoch, partition_epoch: PartitionEpoch) -> Result<(), Error> {
        if matches!(self.role, Role::Offline) {
            return Err(Error::KafkaStorageError);
        }
        if leader_epoch < self.leader_epoch {
            return Err(Error::FencedLeaderEpoch { given: leader_epoch, current: self.leader_epoch });
        }
        if partition_epoch < self.partition_epoch {
            return Err(Error::StalePartitionEpoch { given: partition_epoch, current: self.partition_epoch });
        }
        Ok(())
    }

    /// Takes note of where a follower is; `Some` if the high watermark moved with it.
    ///
    /// Errors: those of a leader's epoch check, [`Error::NotAReplica`], [`Error::OffsetOutOfRange`] if it is
    /// beyond this log.
    pub fn follower_fetched(
        &mut self,
        broker: BrokerId,
        position: FollowerPosition,
        now: Timestamp,
    ) -> Result<Option<Offset>, Error> {
        self.check_leader(Some(position.leader_epoch))?;
        let (leader_end, durability) = (self.log_end_offset, self.config.durability);
        if position.log_end_offset > leader_end {
            return Err(Error::OffsetOutOfRange {
                offset: position.log_end_offset,
                log_start_offset: self.log_start_offset,
                log_end_offset: leader_end,
            });
        }
        let Role::Leader(leadership) = &mut self.role else { return Err(Error::NotLeaderOrFollower) };
        let Some(follower) = leadership.followers.get_mut(&broker) else {
            return Err(Error::NotAReplica { broker });
        };
        follower.log_end_offset = position.log_end_offset;
        follower.flushed_end = position.flushed_end.min(position.log_end_offset);
        // By what counts as kept: a follower whose disk hangs holds the high watermark back like one that is gone.
        let kept_end = follower.kept_end(durability);
        if kept_end >= leader_end {
            follower.caught_up_at = follower.caught_up_at.max(now);
        } else if follower.fetched_at != Timestamp::NONE && kept_end >= follower.leader_end_at_fetch {
            follower.caught_up_at = follower.caught_up_at.max(follower.fetched_at);
        }
        follower.fetched_at = now;
        follower.leader_end_at_fetch = leader_end;
        Ok(self.advance_high_watermark())
    }

    /// The high watermark as a follower hears it from its leader; `Some` if its own moved, never back.
    pub fn leader_high_watermark(&mut self, high_watermark: Offset) -> Option<Offset> {
        match self.role {
            Role::Follower { .. } => self.raise_high_watermark(high_watermark.min(self.log_end_offset)),
            Role::Unassigned | Role::Leader(_) | Role::Offline => None,
        }
    }

    /// Which in-sync replicas a leader wants: without those that fell behind for longer than `lag_max`
    /// (`replica.lag.time.max.ms`), with those that have reached the high watermark and this leadership.
    ///
    /// `None` if they are what they are, if an earlier change is not answered yet, or on a replica that does not
    /// lead. Changes nothing: [`isr_asked`](Self::isr_asked) follows when it is sent.
    #[must_use]
    pub fn isr_change(&self, now: Timestamp, lag_max: Millis) -> Option<IsrChange> {
        let Role::Leader(leadership) = &self.role else { return None };
        if leadership.asked.is_some() {
            return None;
        }
        let mut isr = leadership.isr.clone();
        for (&broker, follower) in &leadership.followers {
            // By what counts as kept: a follower whose disk hangs has every byte and holds the high watermark back.
            let kept_end = follower.kept_end(self.config.durability);
            let keeps_up = kept_end == self.log_end_offset || now.since(follower.caught_up_at) <= lag_max;
            let arrived = kept_end >= self.high_watermark && kept_end >= leadership.epoch_start_offset;
            if leadership.isr.contains(&broker) && !keeps_up {
                isr.remove(&broker);
            } else if !leadership.isr.contains(&broker) && arrived && keeps_up {
                isr.insert(broker);
            }
        }
        (isr != leadership.isr).then_some(IsrChange {
            leader_epoch: self.leader_epoch,
            partition_epoch: self.partition_epoch,
            isr,
        })
    }

    /// The change was sent to the controller: until it is answered, who may be in sync by either is waited for.
    pub fn isr_asked(&mut self, change: &IsrChange) {
        if let Role::Leader(leadership) = &mut self.role
            && change.leader_epoch == self.leader_epoch
            && change.partition_epoch == self.partition_epoch
        {
            leadership.asked = Some(change.isr.clone());
        }
    }

    /// The controller has refused the change, which never becomes true; `Some` if the high watermark moved with it.
    ///
    /// Not to be called if its fate is unknown. (A change that was made arrives by
    /// [`become_leader`](Self::become_leader).)
    pub fn isr_refused(&mut self) -> Option<Offset> {
        if let Role::Leader(leadership) = &mut self.role {
            leadership.asked = None;
        }
        self.advance_high_watermark()
    }

    /// Whether an acks=all producer whose records end at `end` (exclusive) can be answered; `None`: not yet.
    ///
    /// Errors: [`Error::NotEnoughReplicasAfterAppend`]; those of a leader's check, for one that was deposed while
    /// the producer waited: `leader_epoch` is the one it appended under.
    #[must_use]
    pub fn acknowledged(&self, end: Offset, leader_epoch: LeaderEpoch) -> Option<Result<(), Error>> {
        let leadership = match self.check_leader(Some(leader_epoch)) {
            Ok(leadership) => leadership,
            // To the producer it is simply no leader any more.
            Err(Error::FencedLeaderEpoch { .. }) => return Some(Err(Error::NotLeaderOrFollower)),
            Err(error) => return Some(Err(error)),
        };
        let (in_sync, needed) = (leadership.isr.len(), self.replicas_needed(leadership));
        if self.high_watermark >= end {
            return Some(if in_sync < needed {
                Err(Error::NotEnoughReplicasAfterAppend { in_sync, needed })
            } else {
                Ok(())
            });
        }
        None
    }

    /// The in-sync replicas of a leader.
    #[must_use]
    pub const fn isr(&self) -> Option<&BTreeSet<BrokerId>> {
        match &self.role {
            Role::Leader(leadership) => Some(&leadership.isr),
            Role::Unassigned | Role::Follower { .. } | Role::Offline => None,
        }
    }

    pub(crate) fn replicas_needed(&self, leadership: &Leadership) -> usize {
        self.config.min_insync_replicas.min(leadership.replicas.len())
    }

    /// Moves a leader's high watermark to the smallest kept end among the in-sync replicas; `Some(new)` if it moved.
    pub(crate) fn advance_high_watermark(&mut self) -> Option<Offset> {
        let Role::Leader(leadership) = &self.role else { return None };
        if leadership.isr.len() < self.replicas_needed(leadership) {
            return None;
        }
        let durability = self.config.durability;
        let mut smallest = match durability {
            Durability::Fsync => self.flushed_end,
            Durability::Interval | Durability::Os => self.log_end_offset,
        };
        for (broker, follower) in &leadership.followers {
            let counts = leadership.isr.contains(broker)
                || leadership.asked.as_ref().is_some_and(|asked| asked.contains(broker));
            if counts {
                smallest = smallest.min(follower.kept_end(durability));
            }
        }
        self.raise_high_watermark(smallest)
    }

    fn raise_high_watermark(&mut self, to: Offset) -> Option<Offset> {
        if to <= self.high_watermark {
            return None;
        }
        self.high_watermark = to;
        self.transactions.release(to);
        Some(to)
    }
}
