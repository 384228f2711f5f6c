//! The one task that owns an appender's lanes and legs.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use semel_model::PartitionIndex;
use semel_proto::v1::{self, produce_request::Payload};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::Instant,
};

use super::{
    Acks, AppenderConfig, Identity, NewRecord, Waiter,
    lane::{Lane, LaneConfig, OutOfOrder, Settled, Way},
    leg,
};
use crate::{
    Cluster,
    cluster::Route,
    error::{Failed, Fate},
};

/// Requests unanswered on one leg.
const LEG_WINDOW: usize = 64;
/// Events on their way to the engine.
const EVENTS_MAX: usize = 1024;
/// Commands taken at once, so that lanes are looked at once for many records.
const COMMANDS_AT_ONCE: usize = 512;
/// How long after the request timeout a silent leg is given up: the broker's own timeout answers first.
const LEG_GRACE: Duration = Duration::from_secs(5);

/// What handles ask of the engine.
#[derive(Debug)]
pub(super) enum Command {
    Append { topic: Arc<str>, partition: PartitionIndex, record: NewRecord, size: usize, waiter: Waiter },
    Flush(oneshot::Sender<()>),
}

/// What the engine's own tasks tell it.
#[derive(Debug)]
pub(super) enum Event {
    Answered { leg: u64, number: u64, outcome: Result<v1::ProduceResponse, v1::Error> },
    Down { leg: u64, failed: Failed },
    Routed { lane: Key, result: Result<Route, Failed> },
    Identified { lane: Key, result: Result<Identity, Failed> },
}

type Key = (Arc<str>, PartitionIndex);

struct Leg {
    number: u64,
    requests: mpsc::Sender<v1::ProduceStreamRequest>,
    unanswered: usize,
    /// When the last answer came, or the first request after all were answered left.
    progress: Instant,
    task: JoinHandle<()>,
}

pub(super) struct Engine {
    cluster: Cluster,
    config: AppenderConfig,
    lane_config: LaneConfig,
    identity: Identity,
    lanes: BTreeMap<Key, Lane>,
    /// Lanes with something in them.
    active: BTreeSet<Key>,
    /// By address.
    legs: BTreeMap<Arc<str>, Leg>,
    /// Request numbers in flight, with their lanes.
    numbers: BTreeMap<u64, Key>,
    next_number: u64,
    next_leg: u64,
    next_ticket: u64,
    /// Batches that are not decided, by ticket, with how many parts each was split into.
    undecided: BTreeMap<u64, u32>,
    /// Each waits until no ticket below its number is undecided.
    flushes: Vec<(u64, oneshot::Sender<()>)>,
    events: mpsc::Sender<Event>,
    inbox: Option<mpsc::Receiver<Event>>,
}

impl Engine {
    pub(super) fn new(cluster: Cluster, config: AppenderConfig, identity: Identity) -> Self {
        let (events, inbox) = mpsc::channel(EVENTS_MAX);
        let lane_config = LaneConfig {
            idempotent: config.acks == Acks::All,
            compression: config.compression(),
            batch_bytes: config.batch_bytes.max(1),
            in_flight_max: config.in_flight_max,
            linger: config.linger,
            delivery_timeout: config.delivery_timeout,
        };
        Self {
            cluster,
            config,
            lane_config,
            identity,
            lanes: BTreeMap::new(),
            active: BTreeSet::new(),
            legs: BTreeMap::new(),
            numbers: BTreeMap::new(),
            next_number: 1,
            next_leg: 1,
            next_ticket: 1,
            undecided: BTreeMap::new(),
            flushes: Vec::new(),
            events,
            inbox: Some(inbox),
        }
    }

    /// Runs until every handle is gone and everything they sent is decided.
    pub(super) async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        let Some(mut inbox) = self.inbox.take() else { return };
        let mut batch = Vec::with_capacity(COMMANDS_AT_ONCE);
        let mut open = true;
        while open || !self.undecided.is_empty() {
            let deadline = self.deadline();
            let sleep = async {
                match deadline {
                    Some(then) => tokio::time::sleep_until(then).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                Some(event) = inbox.recv() => self.event(event),
                taken = commands.recv_many(&mut batch, COMMANDS_AT_ONCE), if open => {
                    if taken == 0 {
                        open = false;
                        self.seal_all();
                    }
                    let now = Instant::now();
                    for command in batch.drain(..) {
                        self.command(command, now);
                    }
                }
                () = sleep => {}
            }
            // All that has already come, before the lanes are looked at.
            while let Ok(event) = inbox.try_recv() {
                self.event(event);
            }
            self.advance(Instant::now());
        }
        for leg in self.legs.values() {
            leg.task.abort();
        }
    }

    fn command(&mut self, command: Command, now: Instant) {
        match command {
            Command::Append { topic, partition, record, size, waiter } => {
                let key = (topic, partition);
                if !self.active.contains(&key) {
                    self.active.insert(key.clone());
                }
                let (config, identity) = (self.lane_config, self.identity);
                let lane = self.lanes.entry(key).or_insert_with_key(|(topic, partition)| {
                    Lane::new(Arc::clone(topic), *partition, config, identity)
                });
                if let Some(ticket) = lane.push(record, size, waiter, now, self.next_ticket) {
                    self.undecided.insert(ticket, 1);
                    self.next_ticket += 1;
                }
            }
            Command::Flush(done) => {
                self.seal_all();
                self.flushes.push((self.next_ticket, done));
            }
        }
    }

    fn seal_all(&mut self) {
        for key in &self.active {
            if let Some(lane) = self.lanes.get_mut(key) {
                lane.seal();
            }
        }
    }

    fn event(&mut self, event: Event) {
        let now = Instant::now();
        let cluster = self.cluster.clone();
        let backoff = |failures| cluster.backoff(failures);
        let mut settled = Settled::default();
        match event {
            Event::Answered { leg: number_of_leg, number, outcome } => {
                let found = self.legs.iter_mut().find(|(_, leg)| leg.number == number_of_leg);
                let Some((address, leg)) = found else { return };
                leg.unanswered = leg.unanswered.saturating_sub(1);
                leg.progress = now;
                let address = Arc::clone(address);
                // A number that isn't known any more belongs to an attempt that was given up.
                let Some(key) = self.numbers.remove(&number) else { return };
                let Some(lane) = self.lanes.get_mut(&key) else { return };
                let before = matches!(lane.route, Way::Known { .. });
                let result = lane.answered(number, &address, outcome, now, backoff, &mut settled);
                let requeued = before && !matches!(lane.route, Way::Known { .. });
                if requeued {
                    self.numbers.retain(|_, lane| *lane != key);
                }
                self.settle(&settled);
                if result == Err(OutOfOrder) {
                    let text = "the broker answered out of order";
                    let error = v1::Error::new(v1::ErrorCode::NetworkException, text);
                    let failed = Failed { address: address.to_string(), error, fate: Fate::Unknown };
                    self.down(&address, failed, Some(&key));
                }
            }
            Event::Down { leg: number, failed } => {
                let found =
                    self.legs.iter().find(|(_, leg)| leg.number == number).map(|(address, _)| address);
                if let Some(address) = found.cloned() {
                    self.down(&address, failed, None);
                }
            }
            Event::Routed { lane: key, result } => {
                let Some(lane) = self.lanes.get_mut(&key) else { return };
                let Way::Asking { stale } = lane.route else { return };
                match result {
                    Ok(route) => {
                        lane.route = Way::Known { address: route.address.into(), version: route.version }
                    }
                    Err(failed) => {
                        lane.route = Way::Unknown { stale };
                        lane.stalled(failed, now, backoff, &mut settled);
                    }
                }
                self.settle(&settled);
            }
            Event::Identified { lane: key, result } => {
                let Some(lane) = self.lanes.get_mut(&key) else { return };
                lane.asking_identity = false;
                match result {
                    Ok(identity) => lane.renew(identity),
                    Err(failed) => lane.stalled(failed, now, backoff, &mut settled),
                }
                self.settle(&settled);
            }
        }
    }

    /// Drops a leg; the lanes whose batches it carried (and `also`) take them back.
    fn down(&mut self, address: &Arc<str>, failed: Failed, also: Option<&Key>) {
        let Some(leg) = self.legs.remove(address) else { return };
        leg.task.abort();
        tracing::debug!(address = &**address, error = %failed.error, unanswered = leg.unanswered, "produce stream lost");
        let now = Instant::now();
        let cluster = self.cluster.clone();
        let mut settled = Settled::default();
        let carried: BTreeSet<Key> = self.numbers.values().chain(also).cloned().collect();
        for key in carried {
            let Some(lane) = self.lanes.get_mut(&key) else { continue };
            if matches!(&lane.route, Way::Known { address: at, .. } if at == address) {
                lane.lost(failed.clone(), now, |failures| cluster.backoff(failures), &mut settled);
                self.numbers.retain(|_, lane| *lane != key);
            }
        }
        self.settle(&settled);
    }

    fn settle(&mut self, settled: &Settled) {
        for ticket in &settled.split {
            if let Some(parts) = self.undecided.get_mut(ticket) {
                *parts += 1;
            }
        }
        for ticket in &settled.done {
            if let Some(parts) = self.undecided.get_mut(ticket) {
                *parts -= 1;
                if *parts == 0 {
                    self.undecided.remove(ticket);
                }
            }
        }
    }

    /// Lets each lane with something in it do what it can do now.
    fn advance(&mut self, now: Instant) {
        let quiet = self.config_timeout();
        let silent: Vec<Arc<str>> = self
            .legs
            .iter()
            .filter(|(_, leg)| leg.unanswered > 0 && leg.progress + quiet <= now)
            .map(|(address, _)| Arc::clone(address))
            .collect();
        for address in silent {
            self.down(&address, Failed::timed_out(&address, quiet), None);
        }
        let mut settled = Settled::default();
        let keys: Vec<Key> = self.active.iter().cloned().collect();
        for key in keys {
            let Some(lane) = self.lanes.get_mut(&key) else { continue };
            lane.tick(now);
            lane.expire(now, &mut settled);
            if lane.is_idle() {
                self.active.remove(&key);
                continue;
            }
            if lane.wants_identity(now) {
                lane.asking_identity = true;
                let (cluster, events) = (self.cluster.clone(), self.events.clone());
                tokio::spawn(async move {
                    let result = cluster.init_producer().await;
                    // The engine may be gone.
                    let _ = events.send(Event::Identified { lane: key, result }).await;
                });
                continue;
            }
            if let Some(stale) = lane.wants_route(now) {
                lane.route = Way::Asking { stale };
                let (cluster, events) = (self.cluster.clone(), self.events.clone());
                tokio::spawn(async move {
                    let result = cluster.route(&key.0, key.1, stale).await;
                    // The engine may be gone.
                    let _ = events.send(Event::Routed { lane: key, result }).await;
                });
                continue;
            }
            self.send(&key, now, &mut settled);
        }
        self.settle(&settled);
        let oldest = self.undecided.keys().next().copied().unwrap_or(u64::MAX);
        for (below, done) in std::mem::take(&mut self.flushes) {
            if below > oldest {
                self.flushes.push((below, done));
            } else {
                // Whoever asked may be gone.
                let _ = done.send(());
            }
        }
    }

    fn send(&mut self, key: &Key, now: Instant, settled: &mut Settled) {
        let Some(lane) = self.lanes.get_mut(key) else { return };
        let Way::Known { address, .. } = &lane.route else { return };
        let address = Arc::clone(address);
        if !self.legs.contains_key(&address) {
            let client = match self.cluster.log_client(&address) {
                Ok(client) => client,
                Err(failed) => {
                    let cluster = &self.cluster;
                    lane.stalled(failed, now, |failures| cluster.backoff(failures), settled);
                    return;
                }
            };
            let number = self.next_leg;
            self.next_leg += 1;
            let (requests, outbox) = mpsc::channel(LEG_WINDOW);
            let task =
                tokio::spawn(leg::run(number, address.to_string(), client, outbox, self.events.clone()));
            let leg = Leg { number, requests, unanswered: 0, progress: now, task };
            self.legs.insert(Arc::clone(&address), leg);
        }
        let Some(leg) = self.legs.get_mut(&address) else { return };
        while leg.unanswered < LEG_WINDOW {
            // Room is certain before a batch is taken: nothing else sends on this leg.
            let Ok(room) = leg.requests.try_reserve() else { return };
            let number = self.next_number;
            let Some(batch) = lane.next_to_send(number, now, settled) else { return };
            self.next_number += 1;
            self.numbers.insert(number, key.clone());
            if leg.unanswered == 0 {
                leg.progress = now;
            }
            leg.unanswered += 1;
            let acks = match self.config.acks {
                Acks::All => v1::Acks::All,
                Acks::Leader => v1::Acks::Leader,
            };
            let timeout = self.cluster.config().request_timeout.as_millis();
            room.send(v1::ProduceStreamRequest {
                number,
                request: Some(v1::ProduceRequest {
                    topic: key.0.to_string(),
                    partition: key.1.get(),
                    payload: Some(Payload::Batch(batch)),
                    acks: acks.into(),
                    compression: v1::Compression::Unspecified.into(),
                    idempotence: None,
                    timeout_ms: i32::try_from(timeout).unwrap_or(i32::MAX),
                }),
            });
        }
    }

    fn config_timeout(&self) -> Duration {
        self.cluster.config().request_timeout + LEG_GRACE
    }

    fn deadline(&self) -> Option<Instant> {
        let quiet = self.config_timeout();
        let legs = self.legs.values().filter(|leg| leg.unanswered > 0).map(|leg| leg.progress + quiet);
        let lanes = self.active.iter().filter_map(|key| self.lanes.get(key)).filter_map(Lane::deadline);
        legs.chain(lanes).min()
    }
}
