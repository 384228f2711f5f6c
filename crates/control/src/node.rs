//! One controller without I/O: Raft, the state machine on top of it, and the brokers' sessions.
//!
//! The shell calls one method for each thing that happens (a tick, a message, a request, a stream that broke) and
//! then [`Node::advance`], which stores what must be stored and answers what must be done.

use std::{
    collections::{BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use raft::{Config as RaftConfig, RawNode, SnapshotStatus, StateRole, eraftpb as pb};
use semel_metadata::{ClusterImage, Delta, Message, Record};
use semel_model::{ControllerEpoch, ControllerId, MetadataIndex, Timestamp};
use semel_rsm::{BatchNumber, Busy, Ctx, Driver, Ended, Limits, Phase, Step};

use crate::{
    admission,
    config::Config,
    error::Error,
    log_store::LogStore,
    lost_log,
    machine::{Control, Entry, Reply, Request},
    ops::{create_cluster::CreateCluster, heartbeat::Fence},
    raft_log::{RaftLog, decoded, encoded},
    reads::Reads,
    sessions::Sessions,
};

/// How records and images become bytes. The shell supplies it, since cores know no format.
pub trait Codec {
    /// Why bytes are neither.
    type Error: std::error::Error + Send + Sync + 'static;
    /// One atomic change; never empty.
    fn encode_batch(&self, records: &[Record]) -> Bytes;
    /// What `encode_batch` wrote, on this node or another.
    fn decode_batch(&self, bytes: Bytes) -> Result<Vec<Record>, Self::Error>;
    /// A whole image.
    fn encode_image(&self, image: &ClusterImage) -> Bytes;
    /// What `encode_image` wrote, on this node or another.
    fn decode_image(&self, bytes: Bytes) -> Result<ClusterImage, Self::Error>;
}

/// A controller's place among the others, and Raft's timing in ticks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    /// Its id; not 0.
    pub id: ControllerId,
    /// Every voter's id, its own among them.
    pub voters: BTreeSet<ControllerId>,
    /// The id to give a new cluster; `None` draws one.
    pub cluster_id: Option<String>,
    /// Without a word from a leader for this many ticks a follower asks for votes: drawn anew each time from
    /// `first..second`. The first is also how long a leader without a majority stays one.
    pub election_ticks: (usize, usize),
    /// A leader speaks this often.
    pub heartbeat_ticks: usize,
    /// A snapshot is kept after this many entries.
    pub snapshot_entries: u64,
    /// Or after this many bytes of entries.
    pub snapshot_bytes: u64,
    /// How many entries stay behind a snapshot, for followers and watchers that are a little late.
    pub keep_entries: u64,
}

impl NodeConfig {
    /// With the defaults: at ticks of 50 ms a follower waits 500 to 1000 ms.
    #[must_use]
    pub fn new(id: ControllerId, voters: BTreeSet<ControllerId>) -> Self {
        Self {
            id,
            voters,
            cluster_id: None,
            election_ticks: (10, 20),
            heartbeat_ticks: 2,
            snapshot_entries: 4096,
            snapshot_bytes: 16 << 20,
            keep_entries: 1024,
        }
    }
}

/// Why a node cannot go on. It must stop: what it has in memory may differ from what it stored.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The store failed: the disk is full or broken.
    #[error("cannot {doing}")]
    Store {
        /// What was being done.
        doing: &'static str,
        /// The store's error.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// What is stored contradicts itself.
    #[error("the stored log is corrupt: {0}")]
    Corrupt(&'static str),
    /// The configuration names other voters than the log was begun with.
    #[error("the log was begun with voters {stored:?}, the configuration has {configured:?}")]
    VotersChanged {
        /// In the log.
        stored: Vec<u64>,
        /// In the configuration.
        configured: Vec<u64>,
    },
    /// The settings do not fit.
    #[error("bad raft configuration: {0}")]
    Config(String),
    /// Raft itself failed.
    #[error("raft failed")]
    Raft(#[source] raft::Error),
    /// Raft's own bytes are malformed.
    #[error("malformed raft message or value")]
    Encoding(#[source] protobuf::ProtobufError),
    /// An entry or snapshot cannot be read: it is corrupt, or from a newer version.
    #[error("cannot decode metadata at index {index}")]
    Metadata {
        /// Of the entry or snapshot.
        index: u64,
        /// The codec's error.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A message that no correct controller sends. It was dropped; the node can go on.
    #[error("raft message {kind} of controller {from} refused: {why}")]
    Refused {
        /// Who it says has sent it.
        from: u64,
        /// raft-rs's name of its kind.
        kind: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// What was committed is not what this leader proposed: a fault in Semel.
    #[error("the committed entry {0} is not the one this leader proposed")]
    Diverged(u64),
}

impl NodeError {
    pub(crate) fn store(doing: &'static str, cause: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Store { doing, cause: Box::new(cause) }
    }
}

/// When something happens, and random bits for it.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// The time of day, for records.
    pub wall: Timestamp,
    /// A clock that never goes back, for sessions.
    pub monotonic: Duration,
    /// For this event alone.
    pub entropy: u128,
}

/// A message to another controller.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// To whom.
    pub to: ControllerId,
    /// For its [`Node::receive`].
    pub bytes: Bytes,
    /// Whether it carries a snapshot: then [`Node::snapshot_sent`] must be told what became of it.
    pub is_snapshot: bool,
}

/// Who leads, as one node knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leadership {
    /// The leader, if known.
    pub leader: Option<ControllerId>,
    /// Its epoch.
    pub controller_epoch: ControllerEpoch,
    /// Whether it is this node and it takes requests.
    pub is_active: bool,
}

/// What is to be done.
#[derive(Debug)]
pub struct Output<T> {
    /// To be sent, in this order for each receiver; may be lost.
    pub messages: Vec<Outgoing>,
    /// Callers to answer.
    pub ended: Vec<(T, Result<Reply, Error>)>,
    /// What watchers must see, in this order.
    pub published: Vec<Message>,
    /// Set when it has changed.
    pub leadership: Option<Leadership>,
    /// How often the store made something durable.
    pub syncs: u32,
}

impl<T> Default for Output<T> {
    fn default() -> Self {
        Self { messages: Vec::new(), ended: Vec::new(), published: Vec::new(), leadership: None, syncs: 0 }
    }
}

/// A node's place in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Who leads.
    pub leadership: Leadership,
    /// The last entry known to be committed.
    pub committed: MetadataIndex,
    /// The last entry applied.
    pub applied: MetadataIndex,
    /// The first entry that is kept.
    pub first: MetadataIndex,
    /// Each voter, and at the leader how far its log agrees.
    pub voters: Vec<(ControllerId, Option<MetadataIndex>)>,
    /// Changes under way.
    pub in_flight: usize,
}

/// Whose request it is.
enum Token<T> {
    Caller(T),
    Own,
}

/// One controller. `T` is the shell's handle of a caller.
pub struct Node<S: LogStore, C: Codec, T> {
    raw: RawNode<RaftLog<S>>,
    codec: C,
    config: NodeConfig,
    driver: Driver<Control, Token<T>>,
    control: Arc<Config>,
    sessions: Sessions,
    /// The batches in flight with their indexes, oldest first.
    proposed: VecDeque<(u64, BatchNumber)>,
    /// Answers that change nothing, until it is sure that this node leads.
    reads: Reads<T>,
    /// The term under which the driver is active.
    active_term: Option<u64>,
    applied: u64,
    /// Whether it has been logged that this node's log is shorter than its leader believes.
    has_told_of_lost_log: bool,
    leadership: Leadership,
    output: Output<T>,
}

impl<S: LogStore, C: Codec, T> Node<S, C, T> {
    /// Opens a node on its store. A single voter leads after the first [`advance`](Self::advance).
    pub fn new(config: NodeConfig, control: Config, store: S, codec: C) -> Result<Self, NodeError> {
        control.validate().map_err(|error| NodeError::Config(error.to_string()))?;
        if !config.voters.contains(&config.id) {
            return Err(NodeError::Config(format!("controller {} is not among the voters", config.id)));
        }
        let voters: Vec<u64> = config.voters.iter().map(|id| id.0).collect();
        let (log, snapshot) = RaftLog::open(store, &voters)?;
        let control = Arc::new(control);
        let applied = log.snapshot_index();
        let image = match snapshot {
            Some(bytes) => codec
                .decode_image(bytes)
                .map_err(|cause| NodeError::Metadata { index: applied, cause: Box::new(cause) })?,
            None => ClusterImage::new(),
        };
        let (election_min, election_max) = config.election_ticks;
        let raft_config = RaftConfig {
            id: config.id.0,
            election_tick: election_min,
            heartbeat_tick: config.heartbeat_ticks,
            min_election_tick: election_min,
            max_election_tick: election_max,
            applied,
            max_size_per_msg: 1 << 20,
            max_inflight_msgs: 256,
            max_committed_size_per_ready: 16 << 20,
            max_uncommitted_size: 256 << 20,
            check_quorum: true,
            pre_vote: true,
            ..RaftConfig::default()
        };
        raft_config.validate().map_err(|error| NodeError::Config(error.to_string()))?;
        let logger = slog::Logger::root(ToTracing, slog::o!());
        let mut raw = RawNode::new(&raft_config, log, &logger).map_err(NodeError::Raft)?;
        if voters.len() == 1 {
            raw.campaign().map_err(NodeError::Raft)?;
        }
        let limits = Limits { in_flight: control.changes_in_flight_max, parked: 0 };
        Ok(Self {
            raw,
            codec,
            config,
            driver: Driver::new(Control::from_image(Arc::clone(&control), image), limits),
            sessions: Sessions::new(&control),
            control,
            proposed: VecDeque::new(),
            reads: Reads::new(),
            active_term: None,
            applied,
            has_told_of_lost_log: false,
            leadership: Leadership { leader: None, controller_epoch: ControllerEpoch(0), is_active: false },
            output: Output::default(),
        })
    }

    /// Time passes: one of [`NodeConfig::election_ticks`].
    pub fn tick(&mut self, moment: &Moment) -> Result<(), NodeError> {
        self.raw.tick();
        if self.driver.phase() == Phase::Active {
            let image = self.driver.latest_state().image().clone();
            for fence in self.sessions.due(&image, moment.monotonic) {
                tracing::info!(broker = %fence.broker, epoch = %fence.epoch, "broker session ended");
                self.decide(moment, Request::Fence(fence), Token::Own)?;
            }
        }
        Ok(())
    }

    /// Another controller's message. A malformed one is refused and harms nothing.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), NodeError> {
        let mut message: pb::Message = decoded(bytes)?;
        admission::check(&self.raw.raft, &self.config.voters, &message).map_err(|why| {
            NodeError::Refused { from: message.from, kind: format!("{:?}", message.get_msg_type()), why }
        })?;
        if let Some(commit) = lost_log::distrust_commit(&self.raw.raft, &mut message)
            && !std::mem::replace(&mut self.has_told_of_lost_log, true)
        {
            tracing::warn!(
                leader = message.from,
                commit,
                log_end = self.raw.raft.raft_log.last_index(),
                "this controller's log ends before what its leader believes it has: its disk was lost or replaced; \
                 it is filled again"
            );
        }
        if lost_log::refill(&mut self.raw.raft, &message) {
            return Ok(());
        }
        let from = message.from;
        let is_in_doubt = lost_log::is_in_doubt(&self.raw.raft, &message);
        if let Err(error) = self.raw.step(message) {
            // Normal while leadership moves; raft-rs has dropped the message.
            tracing::debug!(%error, "raft message not taken");
        } else if is_in_doubt {
            self.raw.raft.send_append(from);
        }
        Ok(())
    }

    /// A request. Its answer comes with this or a later [`advance`](Self::advance).
    pub fn request(&mut self, moment: &Moment, mut request: Request, token: T) -> Result<(), NodeError> {
        match &mut request {
            Request::RegisterBroker(register) => {
                let id = register.broker.broker;
                let known = self.driver.latest_state().image().broker(id);
                register.earlier_life_is_gone =
                    known.is_some_and(|known| self.sessions.is_gone(id, known.epoch));
            }
            Request::Heartbeat(heartbeat) if self.is_current(heartbeat.broker, heartbeat.epoch) => {
                self.sessions.heard(heartbeat.broker, heartbeat.epoch, moment.monotonic);
            }
            _ => {}
        }
        self.decide(moment, request, Token::Caller(token))
    }

    /// A broker opened a heartbeat stream.
    pub fn stream_opened(
        &mut self,
        moment: &Moment,
        broker: semel_model::BrokerId,
        epoch: semel_model::BrokerEpoch,
    ) {
        if self.is_current(broker, epoch) {
            self.sessions.opened(broker, epoch, moment.monotonic);
        }
    }

    /// A heartbeat stream ended, by a broken connection or its own will. A broker that said it would stop has stopped:
    /// it is fenced at once.
    pub fn stream_closed(
        &mut self,
        moment: &Moment,
        broker: semel_model::BrokerId,
        epoch: semel_model::BrokerEpoch,
    ) -> Result<(), NodeError> {
        self.sessions.closed(broker, epoch, moment.monotonic);
        let known = self.driver.latest_state().live_broker(broker, epoch);
        let has_stopped = known.is_ok_and(|known| known.is_alive() && known.shutting_down)
            && self.sessions.is_gone(broker, epoch);
        if has_stopped && self.driver.phase() == Phase::Active {
            tracing::info!(%broker, %epoch, "broker has stopped");
            self.decide(moment, Request::Fence(Fence { broker, epoch }), Token::Own)?;
        }
        Ok(())
    }

    /// A message to this controller was lost.
    pub fn unreachable(&mut self, id: ControllerId) {
        self.raw.report_unreachable(id.0);
    }

    /// What became of a snapshot that was to be sent. Must always be told, or the follower is never sent to again.
    pub fn snapshot_sent(&mut self, to: ControllerId, delivered: bool) {
        let status = if delivered { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
        self.raw.report_snapshot(to.0, status);
    }

    /// Before a clean stop: hands leadership to the voter whose log is the longest, if this node leads others.
    pub fn resign(&mut self) {
        if self.raw.raft.state != StateRole::Leader {
            return;
        }
        let own = self.config.id.0;
        let best = self.raw.raft.prs().iter().filter(|(id, _)| **id != own);
        if let Some((id, _)) = best.max_by_key(|(_, progress)| progress.matched) {
            let id = *id;
            self.raw.transfer_leader(id);
        }
    }

    /// What has been applied here.
    #[must_use]
    pub fn image(&self) -> &ClusterImage {
        self.driver.committed_state().image()
    }

    /// Where this node stands.
    #[must_use]
    pub fn status(&self) -> Status {
        let is_leader = self.raw.raft.state == StateRole::Leader;
        let matched = |id: &ControllerId| {
            let progress = self.raw.raft.prs().get(id.0);
            progress.filter(|_| is_leader).map(|progress| MetadataIndex(progress.matched))
        };
        Status {
            leadership: self.current_leadership(),
            committed: MetadataIndex(self.raw.raft.raft_log.committed),
            applied: MetadataIndex(self.applied),
            first: MetadataIndex(self.raw.store().first()),
            voters: self.config.voters.iter().map(|id| (*id, matched(id))).collect(),
            in_flight: self.driver.in_flight(),
        }
    }

    /// What was committed after `index`, as far as it is applied here: for a watcher that comes back. `None` if
    /// that is more than `count_max` changes or no longer kept: then it gets the image.
    pub fn changes_after(
        &self,
        index: MetadataIndex,
        count_max: u64,
    ) -> Result<Option<Vec<Delta>>, NodeError> {
        let low = index.0 + 1;
        if index.0 >= self.applied {
            return Ok(Some(Vec::new()));
        }
        if low < self.raw.store().first() || self.applied - index.0 > count_max {
            return Ok(None);
        }
        let mut deltas = Vec::new();
        let mut next = low;
        while next <= self.applied {
            let entries = self.raw.store().read_entries(next, self.applied + 1, 1 << 20)?;
            if entries.is_empty() {
                return Err(NodeError::Corrupt("a hole in the log"));
            }
            next += entries.len() as u64;
            for entry in entries {
                deltas.push(self.delta(&entry)?);
            }
        }
        Ok(Some(deltas))
    }

    /// Stores what must be stored, applies what is committed, and answers what is to be done.
    pub fn advance(&mut self, moment: &Moment) -> Result<Output<T>, NodeError> {
        self.notice_role();
        self.confirm_reads();
        while self.raw.has_ready() {
            self.process_ready()?;
            self.notice_role();
            self.take_over(moment)?;
            self.confirm_reads();
        }
        self.raw.store().check()?;
        self.compact_if_due()?;
        let leadership = self.current_leadership();
        if leadership != self.leadership {
            self.leadership = leadership;
            self.output.leadership = Some(leadership);
        }
        Ok(std::mem::take(&mut self.output))
    }

    fn is_current(&self, broker: semel_model::BrokerId, epoch: semel_model::BrokerEpoch) -> bool {
        self.driver.latest_state().live_broker(broker, epoch).is_ok()
    }

    /// Decides on a request and hands the change to Raft.
    fn decide(&mut self, moment: &Moment, request: Request, token: Token<T>) -> Result<(), NodeError> {
        // Leadership may have gone since the last `advance`: raft-rs would forward a proposal to the new leader.
        self.notice_role();
        let position = self.raw.raft.raft_log.last_index() + 1;
        let ctx = Ctx { now: moment.wall, position, entropy: moment.entropy };
        let (batch, step) = self.driver.handle(&ctx, request, token);
        let batch = batch.map(|batch| {
            let records: Vec<Record> =
                batch.records.iter().filter_map(|entry| entry.record.clone()).collect();
            (batch.number, records)
        });
        // What ends here has changed nothing.
        step.ended.into_iter().for_each(|(token, ended)| self.hold(token, ended));
        let Some((number, records)) = batch else { return Ok(()) };
        let data = self.codec.encode_batch(&records);
        match self.raw.propose(Vec::new(), data.to_vec()) {
            Ok(()) if self.raw.raft.raft_log.last_index() == position => {
                self.proposed.push_back((position, number));
                Ok(())
            }
            Ok(()) => Err(NodeError::Diverged(position)),
            Err(error) => {
                // Too much is uncommitted, or leadership is being handed over: nothing was appended.
                tracing::debug!(%error, "change not taken by raft");
                let step = self.driver.rejected(number).map_err(|_| NodeError::Diverged(position))?;
                self.end(step);
                Ok(())
            }
        }
    }

    /// One round of raft-rs: the order of the steps is its contract.
    fn process_ready(&mut self) -> Result<(), NodeError> {
        let mut ready = self.raw.ready();
        self.raw.store().check()?;
        // A leader's appends may leave before its own disk has them: its own vote for them comes with `advance`.
        self.send(ready.take_messages())?;
        for state in ready.take_read_states() {
            // Whatever else raft-rs may hand out, only this node's own questions have this form.
            let Ok(question) = <[u8; 8]>::try_from(&state.request_ctx[..]) else { continue };
            let confirmed = self.reads.confirmed(u64::from_be_bytes(question));
            self.output.ended.extend(confirmed);
        }
        if !ready.snapshot().is_empty() {
            let snapshot = ready.snapshot();
            let index = snapshot.get_metadata().index;
            let image = self
                .codec
                .decode_image(snapshot.get_data().to_vec().into())
                .map_err(|cause| NodeError::Metadata { index, cause: Box::new(cause) })?;
            tracing::info!(index, "metadata snapshot received");
            let state = Control::from_image(Arc::clone(&self.control), image.clone());
            self.driver.install(state).map_err(|_| NodeError::Diverged(index))?;
            self.applied = index;
            self.output.published.push(Message::Image(image));
        }
        let committed = ready.take_committed_entries();
        let must_sync = ready.must_sync() || !ready.snapshot().is_empty();
        self.raw.mut_store().persist(ready.snapshot(), ready.entries(), ready.hs(), must_sync)?;
        self.output.syncs += u32::from(must_sync);
        self.apply(committed)?;
        self.send(ready.take_persisted_messages())?;
        let mut light = self.raw.advance(ready);
        self.raw.store().check()?;
        if let Some(commit) = light.commit_index() {
            self.raw.mut_store().note_commit(commit);
        }
        self.send(light.take_messages())?;
        self.apply(light.take_committed_entries())?;
        self.raw.advance_apply();
        Ok(())
    }

    fn send(&mut self, messages: Vec<pb::Message>) -> Result<(), NodeError> {
        for message in messages {
            self.output.messages.push(Outgoing {
                to: ControllerId(message.to),
                is_snapshot: message.get_msg_type() == pb::MessageType::MsgSnapshot,
                bytes: encoded(&message)?,
            });
        }
        Ok(())
    }

    fn apply(&mut self, entries: Vec<pb::Entry>) -> Result<(), NodeError> {
        for entry in entries {
            let delta = self.delta(&entry)?;
            match self.proposed.front() {
                Some((index, number)) if *index == entry.index && self.active_term == Some(entry.term) => {
                    let step =
                        self.driver.committed(*number).map_err(|_| NodeError::Diverged(entry.index))?;
                    self.proposed.pop_front();
                    // The first is the change's own. The others only read what it would make: the votes that committed
                    // it may be older than they are.
                    let mut ended = step.ended.into_iter();
                    if let Some((token, ended)) = ended.next() {
                        self.answer(token, ended);
                    }
                    ended.for_each(|(token, ended)| self.hold(token, ended));
                }
                _ => {
                    let replay = self.driver.replay(&entries_of(&delta));
                    // While this node decides, every entry is its own.
                    replay.map_err(|_| NodeError::Diverged(entry.index))?;
                }
            }
            self.applied = entry.index;
            self.output.published.push(Message::Delta(delta));
        }
        Ok(())
    }

    fn delta(&self, entry: &pb::Entry) -> Result<Delta, NodeError> {
        if entry.get_entry_type() != pb::EntryType::EntryNormal {
            return Err(NodeError::Corrupt("an entry that changes the voters"));
        }
        let records = if entry.data.is_empty() {
            Vec::new()
        } else {
            self.codec
                .decode_batch(entry.data.to_vec().into())
                .map_err(|cause| NodeError::Metadata { index: entry.index, cause: Box::new(cause) })?
        };
        let controller_epoch = epoch(entry.term);
        Ok(Delta { index: MetadataIndex(entry.index), controller_epoch, records })
    }

    /// Stops deciding as soon as Raft says another may.
    fn notice_role(&mut self) {
        let Some(term) = self.active_term else { return };
        if self.raw.raft.state == StateRole::Leader && self.raw.raft.term == term {
            return;
        }
        tracing::info!(controller_epoch = term, "controller leadership lost");
        self.active_term = None;
        self.proposed.clear();
        let step = self.driver.fence();
        self.end(step);
        for token in self.reads.fail() {
            self.answer(Token::Caller(token), Ended::NotOwner);
        }
    }

    /// Asks the other voters whether this node still leads, if an answer waits for that.
    fn confirm_reads(&mut self) {
        // Asked before this leadership's first entry is applied, raft-rs would drop the question.
        if self.active_term.is_none() {
            return;
        }
        if let Some(question) = self.reads.next_question() {
            // A lost one is asked again with each of the leader's heartbeats.
            self.raw.read_index(question.to_be_bytes().to_vec());
        }
    }

    /// Begins to decide once everything before this leadership is applied: its first entry says so.
    fn take_over(&mut self, moment: &Moment) -> Result<(), NodeError> {
        let raft = &self.raw.raft;
        if self.active_term.is_some() || raft.state != StateRole::Leader {
            return Ok(());
        }
        let term = raft.term;
        if raft.raft_log.term(self.applied).ok() != Some(term) {
            return Ok(());
        }
        self.driver.activate().map_err(|_| NodeError::Diverged(self.applied))?;
        self.active_term = Some(term);
        self.sessions.restart(moment.monotonic);
        tracing::info!(controller_epoch = term, "controller leadership taken over");
        if self.image().cluster_id().is_none() {
            let cluster_id = self.config.cluster_id.clone();
            self.decide(moment, Request::CreateCluster(CreateCluster { cluster_id }), Token::Own)?;
        }
        Ok(())
    }

    fn compact_if_due(&mut self) -> Result<(), NodeError> {
        let log = self.raw.store();
        let entries = self.applied.saturating_sub(log.snapshot_index());
        let is_due = entries >= self.config.snapshot_entries
            || (entries > 0 && log.bytes_since_snapshot() >= self.config.snapshot_bytes);
        if is_due {
            let data = self.codec.encode_image(self.image());
            let (index, keep) = (self.applied, self.config.keep_entries);
            self.raw.mut_store().compact(index, data, keep)?;
            self.output.syncs += 1;
        }
        Ok(())
    }

    fn current_leadership(&self) -> Leadership {
        let raft = &self.raw.raft;
        Leadership {
            leader: (raft.leader_id != raft::INVALID_ID).then_some(ControllerId(raft.leader_id)),
            controller_epoch: epoch(raft.term),
            is_active: self.active_term.is_some(),
        }
    }

    fn end(&mut self, step: Step<Control, Token<T>>) {
        step.ended.into_iter().for_each(|(token, ended)| self.answer(token, ended));
    }

    fn answer(&mut self, token: Token<T>, ended: Ended<Reply, Error>) {
        if let Token::Caller(token) = token {
            self.output.ended.push((token, answer(ended)));
        }
    }

    /// [`answer`](Self::answer) for what changed nothing: a decision waits until it is sure that this node leads.
    /// A single voter has nobody to ask.
    fn hold(&mut self, token: Token<T>, ended: Ended<Reply, Error>) {
        let is_decision = matches!(ended, Ended::Answered(_));
        match token {
            Token::Caller(token) if is_decision && self.config.voters.len() > 1 => {
                if let Err(token) = self.reads.hold(token, answer(ended)) {
                    self.answer(Token::Caller(token), Ended::Busy(Busy::Parked));
                }
            }
            token => self.answer(token, ended),
        }
    }
}

fn answer(ended: Ended<Reply, Error>) -> Result<Reply, Error> {
    match ended {
        Ended::Answered(answer) => answer,
        Ended::Busy(busy @ (Busy::InFlight | Busy::Parked)) => {
            Err(Error::ThrottlingQuotaExceeded(busy.to_string()))
        }
        Ended::Rejected => {
            Err(Error::NotController("the change was not taken: leadership is moving".to_owned()))
        }
        Ended::Unknown => Err(Error::RequestTimedOut),
        Ended::NotOwner | Ended::Superseded => {
            Err(Error::NotController("this controller does not lead".to_owned()))
        }
    }
}

/// A Raft term as a controller epoch. A term grows by one with each election: 2^31 of them do not happen.
fn epoch(term: u64) -> ControllerEpoch {
    ControllerEpoch(i32::try_from(term).unwrap_or(i32::MAX))
}

fn entries_of(delta: &Delta) -> Vec<Entry> {
    let (index, controller_epoch) = (delta.index, delta.controller_epoch);
    let mut entries: Vec<Entry> = delta
        .records
        .iter()
        .map(|record| Entry { index, controller_epoch, record: Some(record.clone()) })
        .collect();
    if entries.is_empty() {
        entries.push(Entry { index, controller_epoch, record: None });
    }
    entries
}

/// Leads raft-rs's log to `tracing`: what is news to Raft is detail to an operator.
struct ToTracing;

impl slog::Drain for ToTracing {
    type Ok = ();
    type Err = slog::Never;

    fn log(&self, record: &slog::Record<'_>, _: &slog::OwnedKVList) -> Result<(), slog::Never> {
        match record.level() {
            slog::Level::Critical | slog::Level::Error => tracing::warn!(target: "raft", "{}", record.msg()),
            slog::Level::Warning | slog::Level::Info => tracing::debug!(target: "raft", "{}", record.msg()),
            slog::Level::Debug | slog::Level::Trace => tracing::trace!(target: "raft", "{}", record.msg()),
        }
        Ok(())
    }
}
