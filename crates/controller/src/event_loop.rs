//! The one thread that owns the node: events in, answers, messages and changes out.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use semel_control::{
    Codec, Error, Node, NodeError, Output, Reply, Request,
    node::{Leadership, Moment, Status},
};
use semel_env::{Clock, Entropy};
use semel_metadata::{ClusterImage, Message, Record};
use semel_model::{BrokerEpoch, BrokerId, ControllerEpoch, ControllerId, MetadataIndex};
use semel_proto::metadata::{MalformedMetadata, decode_batch, decode_image, encode_batch, encode_image};
use tokio::sync::{oneshot, watch};

use crate::{
    inbox::Inbox,
    metrics::Metrics,
    peers::Peers,
    store::SledStore,
    watchers::{CHANGES_MAX, WatchSender, Watchers},
};

/// How many events may wait. Beyond it callers are told to come back.
pub(crate) const INBOX: usize = 8192;
/// How many events one turn takes, and so how many changes share one flush at the most.
const TURN: usize = 1024;
/// How long a leader waits at a clean stop for another to take over.
const RESIGN_WAIT: Duration = Duration::from_millis(1000);

/// A reply, and where the metadata stood when it was given.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) reply: Reply,
    pub(crate) controller_epoch: ControllerEpoch,
    /// The last index known to be committed.
    pub(crate) committed: MetadataIndex,
}

/// A refusal, and who leads if that is somebody else.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) error: Error,
    pub(crate) leader: Option<String>,
}

pub(crate) type Caller = oneshot::Sender<Result<Answered, Refused>>;

/// Everything that can happen to a controller.
pub(crate) enum Event {
    /// A request of a node.
    Call(Request, Caller),
    /// A broker's heartbeat stream begins.
    StreamOpened(BrokerId, BrokerEpoch),
    /// A broker's heartbeat stream is over.
    StreamClosed(BrokerId, BrokerEpoch),
    /// A message of another controller.
    Raft(Bytes),
    /// A node wants every change after an index.
    Watch(MetadataIndex, WatchSender),
    /// Somebody wants to know where this controller stands.
    Describe(oneshot::Sender<Status>),
    /// A peer cannot be reached.
    Unreachable(ControllerId),
    /// What became of a snapshot for a peer.
    SnapshotSent(ControllerId, bool),
    /// End.
    Stop,
}

/// Metadata as bytes, in the form `semel-proto` defines.
pub(crate) struct ProtoCodec;

impl Codec for ProtoCodec {
    type Error = MalformedMetadata;

    fn encode_batch(&self, records: &[Record]) -> Bytes {
        encode_batch(records)
    }

    fn decode_batch(&self, bytes: Bytes) -> Result<Vec<Record>, MalformedMetadata> {
        decode_batch(bytes)
    }

    fn encode_image(&self, image: &ClusterImage) -> Bytes {
        encode_image(image)
    }

    fn decode_image(&self, bytes: Bytes) -> Result<ClusterImage, MalformedMetadata> {
        decode_image(bytes)
    }
}

/// What the loop shows to the rest of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) leadership: Leadership,
    /// Whether the cluster has its id: nothing works before.
    pub(crate) has_cluster: bool,
}

/// The loop with all it owns.
pub(crate) struct EventLoop {
    pub(crate) node: Node<SledStore, ProtoCodec, Caller>,
    pub(crate) inbox: Inbox<Event>,
    pub(crate) peers: Peers,
    pub(crate) watchers: Watchers,
    pub(crate) watchers_max: usize,
    pub(crate) addresses: BTreeMap<ControllerId, String>,
    pub(crate) own_id: ControllerId,
    pub(crate) cluster_id: Arc<OnceLock<String>>,
    pub(crate) view: watch::Sender<View>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
    pub(crate) metrics: Metrics,
    pub(crate) tick: Duration,
}

impl EventLoop {
    /// Runs until it is told to stop, or the node cannot go on.
    pub(crate) fn run(mut self) -> Result<(), NodeError> {
        let result = self.turns();
        // Callers, watchers and streams learn of the end by their channels.
        self.inbox.close();
        result
    }

    fn turns(&mut self) -> Result<(), NodeError> {
        self.finish_turn()?;
        let mut next_tick = self.clock.monotonic() + self.tick;
        let mut stop_at: Option<Duration> = None;
        loop {
            let now = self.clock.monotonic();
            let events = self.inbox.take(next_tick.saturating_sub(now), TURN);
            for event in events {
                if matches!(event, Event::Stop) && stop_at.is_none() {
                    self.node.resign();
                    stop_at = Some(self.clock.monotonic() + RESIGN_WAIT);
                } else {
                    self.take(event)?;
                }
            }
            let now = self.clock.monotonic();
            if now >= next_tick {
                let moment = self.moment();
                self.node.tick(&moment)?;
                self.watchers.sweep();
                self.metrics.show(&self.node.status());
                // A process that was held up makes up for no more than one tick: Raft counts them as silence.
                next_tick = (next_tick + self.tick).max(now);
            }
            self.finish_turn()?;
            if let Some(deadline) = stop_at {
                let leads = self.node.status().leadership.leader == Some(self.own_id);
                if !leads || self.addresses.len() == 1 || now >= deadline {
                    return Ok(());
                }
            }
        }
    }

    fn take(&mut self, event: Event) -> Result<(), NodeError> {
        match event {
            Event::Call(request, caller) => {
                let moment = self.moment();
                self.node.request(&moment, request, caller)?;
            }
            Event::StreamOpened(broker, epoch) => {
                let moment = self.moment();
                self.node.stream_opened(&moment, broker, epoch);
            }
            Event::StreamClosed(broker, epoch) => {
                let moment = self.moment();
                self.node.stream_closed(&moment, broker, epoch)?;
            }
            Event::Raft(bytes) => {
                if let Err(error) = self.node.receive(&bytes) {
                    tracing::warn!(%error, "message of another controller refused");
                }
            }
            Event::Watch(after, sender) => self.watch(after, sender)?,
            Event::Describe(answer) => {
                // The asker may have gone.
                let _ = answer.send(self.node.status());
            }
            Event::Unreachable(id) => self.node.unreachable(id),
            Event::SnapshotSent(id, delivered) => self.node.snapshot_sent(id, delivered),
            Event::Stop => {}
        }
        Ok(())
    }

    fn watch(&mut self, after: MetadataIndex, sender: WatchSender) -> Result<(), NodeError> {
        if self.watchers.len() >= self.watchers_max {
            let _ = sender.try_send(Err(tonic::Status::resource_exhausted("too many nodes watch")));
            return Ok(());
        }
        // Whoever has nothing gets an image; a log from its first entry on would be the longer way.
        let changes = if after == MetadataIndex::ZERO && self.node.image().index() > after {
            None
        } else {
            self.node.changes_after(after, CHANGES_MAX)?
        };
        self.watchers.add(sender, after, changes, self.node.image());
        Ok(())
    }

    /// Stores, applies and sends what the turn brought.
    fn finish_turn(&mut self) -> Result<(), NodeError> {
        let moment = self.moment();
        let Output { messages, ended, published, leadership, syncs } = self.node.advance(&moment)?;
        self.metrics.syncs.inc_by(u64::from(syncs));
        for message in messages {
            let (to, is_snapshot) = (message.to, message.is_snapshot);
            if self.peers.send(message) {
                self.metrics.messages_sent.inc();
                continue;
            }
            self.metrics.messages_dropped.inc();
            if is_snapshot {
                self.node.snapshot_sent(to, false);
            } else {
                self.node.unreachable(to);
            }
        }
        for message in &published {
            self.metrics.changes.inc();
            let cut = self.watchers.publish(message);
            if cut > 0 {
                tracing::info!(cut, "watchers cut off: they did not keep up");
                self.metrics.watchers_cut.inc_by(cut as u64);
            }
        }
        self.metrics.watchers.set(i64::try_from(self.watchers.len()).unwrap_or(i64::MAX));
        if !ended.is_empty() {
            self.answer(ended);
        }
        if leadership.is_some() || (!published.is_empty() && !self.view.borrow().has_cluster) {
            self.show(&published);
        }
        Ok(())
    }

    fn answer(&self, ended: Vec<(Caller, Result<Reply, Error>)>) {
        let Status { leadership, committed, .. } = self.node.status();
        let leader =
            leadership.leader.filter(|id| *id != self.own_id).and_then(|id| self.addresses.get(&id)).cloned();
        for (caller, answer) in ended {
            let controller_epoch = leadership.controller_epoch;
            let answer = answer.map(|reply| Answered { reply, controller_epoch, committed });
            let answer = answer.map_err(|error| {
                self.metrics.refused.inc();
                Refused { error, leader: leader.clone() }
            });
            // The caller may have gone; what it asked for is done all the same.
            let _ = caller.send(answer);
        }
    }

    fn show(&mut self, published: &[Message]) {
        let leadership = self.node.status().leadership;
        let cluster_id = self.node.image().cluster_id();
        if let Some(cluster_id) = cluster_id {
            self.cluster_id.get_or_init(|| cluster_id.to_owned());
        }
        let view = View { leadership, has_cluster: cluster_id.is_some() };
        tracing::debug!(?view, published = published.len(), "controller state");
        self.view.send_if_modified(|now| {
            if *now == view {
                return false;
            }
            if now.leadership.leader != view.leadership.leader {
                self.metrics.leader_changes.inc();
                tracing::info!(
                    leader = view.leadership.leader.map_or(0, |id| id.0),
                    controller_epoch = %view.leadership.controller_epoch,
                    "controller leader changed"
                );
            }
            *now = view;
            true
        });
    }

    fn moment(&self) -> Moment {
        let mut entropy = [0; 16];
        self.entropy.fill(&mut entropy);
        Moment {
            wall: self.clock.now(),
            monotonic: self.clock.monotonic(),
            entropy: u128::from_le_bytes(entropy),
        }
    }
}
