//! Controllers in one thread: messages are lost, delayed and cut off, nodes crash and forget what they had not
//! made durable. What was acknowledged is never lost, and all agree on what was committed.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    ops::Range,
    rc::Rc,
    time::Duration,
};

use bytes::Bytes;
use proptest::prelude::*;
use protobuf::{Message as _, ProtobufEnum as _};
use raft::eraftpb as pb;
use semel_control::{
    Codec, Config, Error, Node, NodeConfig, NodeError, Output, Reply, Request,
    log_store::{Batch, Key, LogStore},
    node::Moment,
    ops::{
        create_topics::{CreateTopics, NewTopic},
        heartbeat::Heartbeat,
        register_broker::{RegisterBroker, Registered},
    },
};
use semel_metadata::{ClusterImage, Delta, IncarnationId, Message, Record, Session};
use semel_model::{BrokerEpoch, BrokerId, ControllerId, MetadataIndex, Timestamp};

/// Bytes are numbers of what lies in the arena: formats are the shell's matter.
#[derive(Clone, Default)]
struct Arena {
    batches: Rc<RefCell<Vec<Vec<Record>>>>,
    images: Rc<RefCell<Vec<ClusterImage>>>,
}

fn number(bytes: &[u8]) -> usize {
    u64::from_be_bytes(bytes.try_into().unwrap()) as usize
}

fn keep<V>(list: &RefCell<Vec<V>>, value: V) -> Bytes {
    list.borrow_mut().push(value);
    Bytes::copy_from_slice(&(list.borrow().len() as u64 - 1).to_be_bytes())
}

impl Codec for Arena {
    type Error = Infallible;
    fn encode_batch(&self, records: &[Record]) -> Bytes {
        keep(&self.batches, records.to_vec())
    }
    fn decode_batch(&self, bytes: Bytes) -> Result<Vec<Record>, Infallible> {
        Ok(self.batches.borrow()[number(&bytes)].clone())
    }
    fn encode_image(&self, image: &ClusterImage) -> Bytes {
        keep(&self.images, image.clone())
    }
    fn decode_image(&self, bytes: Bytes) -> Result<ClusterImage, Infallible> {
        Ok(self.images.borrow()[number(&bytes)].clone())
    }
}

/// A disk: what was written, and what survives a crash.
#[derive(Clone, Default)]
struct Disk(Rc<RefCell<(Values, Values)>>);

type Values = BTreeMap<Key, Bytes>;

impl Disk {
    fn crash(&self) {
        let mut disk = self.0.borrow_mut();
        disk.0 = disk.1.clone();
    }
}

impl LogStore for Disk {
    type Error = Infallible;
    fn get(&self, key: Key) -> Result<Option<Bytes>, Infallible> {
        Ok(self.0.borrow().0.get(&key).cloned())
    }
    fn entries(&self, range: Range<u64>, bytes_max: u64) -> Result<Vec<(u64, Bytes)>, Infallible> {
        let mut size = 0;
        let mut found = Vec::new();
        for (key, bytes) in self.0.borrow().0.range(Key::Entry(range.start)..Key::Entry(range.end)) {
            let Key::Entry(index) = key else { unreachable!() };
            size += bytes.len() as u64;
            if size > bytes_max && !found.is_empty() {
                break;
            }
            found.push((*index, bytes.clone()));
        }
        Ok(found)
    }
    fn write(&mut self, batch: Batch) -> Result<(), Infallible> {
        let mut disk = self.0.borrow_mut();
        for range in batch.remove {
            disk.0.retain(|key, _| !matches!(key, Key::Entry(index) if range.contains(index)));
        }
        disk.0.extend(batch.put);
        if batch.sync {
            disk.1 = disk.0.clone();
        }
        Ok(())
    }
}

type TestNode = Node<Disk, Arena, u32>;

struct Cluster {
    arena: Arena,
    disks: Vec<Disk>,
    nodes: Vec<Option<TestNode>>,
    /// What each node's watchers have seen in this life.
    watchers: Vec<Session>,
    /// On the way: to whom, and when it may arrive.
    wire: Vec<(usize, usize, Bytes, bool)>,
    /// Pairs that do not hear each other.
    cut: BTreeSet<(usize, usize)>,
    /// Everything ever committed, by index: whoever tells it first, all others must agree.
    history: BTreeMap<u64, Delta>,
    answers: BTreeMap<u32, Result<Reply, Error>>,
    random: u64,
    now: Duration,
    tick: u64,
}

impl Cluster {
    fn new(count: usize, seed: u64) -> Self {
        let mut cluster = Self {
            arena: Arena::default(),
            disks: Vec::new(),
            nodes: Vec::new(),
            watchers: Vec::new(),
            wire: Vec::new(),
            cut: BTreeSet::new(),
            history: BTreeMap::new(),
            answers: BTreeMap::new(),
            random: seed | 1,
            now: Duration::ZERO,
            tick: 0,
        };
        for _ in 0..count {
            cluster.disks.push(Disk::default());
            cluster.nodes.push(None);
            cluster.watchers.push(Session::new());
        }
        for at in 0..count {
            cluster.start(at);
        }
        cluster
    }

    fn start(&mut self, at: usize) {
        let ids = (1..=self.nodes.len() as u64).map(ControllerId).collect();
        let mut config = NodeConfig::new(ControllerId(at as u64 + 1), ids);
        // One tick wide: raft-rs draws from the thread's entropy, and this test must be one run per seed.
        config.election_ticks = (10 + 3 * at, 11 + 3 * at);
        config.snapshot_entries = 12;
        config.keep_entries = 4;
        let node = Node::new(config, Config::default(), self.disks[at].clone(), self.arena.clone()).unwrap();
        self.watchers[at] = Session::new();
        // A watcher that starts with the node begins with its image.
        self.watchers[at].receive(Message::Image(node.image().clone())).unwrap();
        self.nodes[at] = Some(node);
        self.advance(at);
    }

    fn crash(&mut self, at: usize) {
        self.nodes[at] = None;
        self.disks[at].crash();
        let (lost, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.wire).into_iter().partition(|(_, to, _, _)| *to == at);
        self.wire = kept;
        // As a shell does whose connection breaks: else the sender waits for this snapshot's fate forever.
        for (from, ..) in lost.into_iter().filter(|(.., is_snapshot)| *is_snapshot) {
            if let Some(node) = &mut self.nodes[from] {
                node.snapshot_sent(ControllerId(at as u64 + 1), false);
            }
        }
    }

    /// A crash that takes the whole disk with it.
    fn lose_disk(&mut self, at: usize) {
        self.crash(at);
        self.disks[at] = Disk::default();
    }

    fn next_random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn moment(&mut self) -> Moment {
        let entropy = u128::from(self.next_random()) << 64 | u128::from(self.next_random());
        Moment { wall: Timestamp(1), monotonic: self.now, entropy }
    }

    fn advance(&mut self, at: usize) {
        let moment = self.moment();
        let Some(node) = &mut self.nodes[at] else { return };
        let Output { messages, ended, published, .. } = node.advance(&moment).unwrap();
        for message in messages {
            self.wire.push((at, message.to.0 as usize - 1, message.bytes, message.is_snapshot));
        }
        for (token, answer) in ended {
            assert!(self.answers.insert(token, answer).is_none(), "answered twice");
        }
        for message in published {
            if let Message::Delta(delta) = &message {
                let first = self.history.entry(delta.index.0).or_insert_with(|| delta.clone());
                assert_eq!(first, delta, "two nodes committed different entries");
            }
            self.watchers[at].receive(message).unwrap();
        }
    }

    fn request(&mut self, at: usize, request: Request, token: u32) {
        let moment = self.moment();
        if let Some(node) = &mut self.nodes[at] {
            node.request(&moment, request, token).unwrap();
            self.advance(at);
        }
    }

    /// One tick: messages of the last one arrive unless they are lost.
    fn round(&mut self, loss_percent: u64) {
        self.tick += 1;
        self.now += Duration::from_millis(50);
        for (from, to, bytes, is_snapshot) in std::mem::take(&mut self.wire) {
            let is_lost = self.cut.contains(&(from, to)) || self.next_random() % 100 < loss_percent;
            if is_snapshot && let Some(node) = &mut self.nodes[from] {
                node.snapshot_sent(ControllerId(to as u64 + 1), !is_lost && to < 9);
            }
            if !is_lost && let Some(node) = &mut self.nodes[to] {
                node.receive(&bytes).unwrap();
                self.advance(to);
            }
        }
        for at in 0..self.nodes.len() {
            let moment = self.moment();
            if let Some(node) = &mut self.nodes[at] {
                node.tick(&moment).unwrap();
                self.advance(at);
            }
        }
        let mut leaders = BTreeMap::new();
        for node in self.nodes.iter().flatten() {
            let status = node.status();
            if status.leadership.is_active {
                let epoch = status.leadership.controller_epoch;
                assert!(
                    leaders.insert(epoch, status.leadership.leader).is_none(),
                    "two leaders of one epoch"
                );
            }
        }
    }

    fn leader(&self) -> Option<usize> {
        let is_leader =
            |node: &&Option<TestNode>| node.as_ref().is_some_and(|node| node.status().leadership.is_active);
        self.nodes.iter().position(|node| is_leader(&node))
    }

    /// Rounds until there is a leader; how many it took.
    fn elect(&mut self) -> (usize, u64) {
        let start = self.tick;
        while self.leader().is_none() {
            assert!(self.tick - start < 400, "no leader");
            self.round(0);
        }
        (self.leader().unwrap(), self.tick - start)
    }

    fn statuses(&self) -> Vec<Option<semel_control::node::Status>> {
        self.nodes.iter().map(|node| node.as_ref().map(Node::status)).collect()
    }

    fn settle(&mut self) {
        self.cut.clear();
        for at in 0..self.nodes.len() {
            if self.nodes[at].is_none() {
                self.start(at);
            }
        }
        let start = self.tick;
        loop {
            let applied: BTreeSet<_> = self
                .nodes
                .iter()
                .flatten()
                .map(|node| (node.status().applied, node.status().leadership.controller_epoch))
                .collect();
            if applied.len() == 1 && self.leader().is_some() {
                break;
            }
            assert!(self.tick - start < 600, "the cluster does not settle: {:#?}", self.statuses());
            self.round(0);
        }
    }

    fn check_agreement(&self) {
        let images: Vec<&ClusterImage> = self.nodes.iter().flatten().map(|node| node.image()).collect();
        assert!(images.windows(2).all(|pair| pair[0] == pair[1]), "images differ");
        for (node, watcher) in self.nodes.iter().zip(&self.watchers) {
            assert_eq!(node.as_ref().map(|node| node.image()), Some(watcher.image()), "a watcher differs");
        }
    }

    fn register(&mut self, at: usize, id: i32, incarnation: u8, token: u32) {
        let broker = semel_metadata::RegisterBroker {
            broker: BrokerId(id),
            incarnation: IncarnationId([incarnation; 16]),
            kafka_host: "h".into(),
            kafka_port: 1,
            grpc_address: "h:2".into(),
            rack: None,
            directories: [].into(),
        };
        let request = RegisterBroker { broker, cluster_id: None, earlier_life_is_gone: false };
        self.request(at, Request::RegisterBroker(request), token);
    }
}

fn topic(name: String) -> Request {
    let topics = vec![NewTopic { name, partitions: Some(2), ..NewTopic::default() }];
    Request::CreateTopics(CreateTopics { topics, validate_only: false })
}

fn created(answer: &Result<Reply, Error>) -> bool {
    matches!(answer, Ok(Reply::CreatedTopics(created)) if created.results[0].1.is_ok())
}

/// Registers broker 1 and brings it to life; answers its epoch's token range end.
fn bring_up_broker(cluster: &mut Cluster, leader: usize) {
    cluster.register(leader, 1, 1, 900_000);
    while !cluster.answers.contains_key(&900_000) {
        cluster.round(0);
    }
    let Ok(Reply::Registered(Registered { broker_epoch, .. })) = cluster.answers[&900_000].clone() else {
        panic!("{:?}", cluster.answers[&900_000])
    };
    let heartbeat = Heartbeat {
        broker: BrokerId(1),
        epoch: broker_epoch,
        metadata_index: MetadataIndex(u64::MAX >> 1),
        want_fence: false,
        want_shutdown: false,
    };
    cluster.request(leader, Request::Heartbeat(heartbeat), 900_001);
    while !cluster.answers.contains_key(&900_001) {
        cluster.round(0);
    }
}

#[test]
fn a_single_voter_leads_at_once() {
    let mut cluster = Cluster::new(1, 1);
    assert_eq!(cluster.leader(), Some(0));
    assert!(cluster.nodes[0].as_ref().unwrap().image().cluster_id().is_some());
    bring_up_broker(&mut cluster, 0);
    for token in 0..40 {
        cluster.request(0, topic(format!("t{token}")), token);
        assert!(created(&cluster.answers[&token]), "answered in the same step");
    }
    let before = cluster.nodes[0].as_ref().unwrap().image().clone();
    cluster.crash(0);
    cluster.start(0);
    let after = cluster.nodes[0].as_ref().unwrap().image();
    assert_eq!(after.topics().count(), 40);
    assert_eq!(after.cluster_id(), before.cluster_id());
    assert!(after.controller_epoch() > before.controller_epoch());
}

#[test]
fn another_leads_soon_after_the_leader_dies() {
    let mut cluster = Cluster::new(3, 7);
    let (first, _) = cluster.elect();
    bring_up_broker(&mut cluster, first);
    cluster.crash(first);
    let (second, rounds) = cluster.elect();
    assert_ne!(first, second);
    // 1.5 s at 50 ms a round.
    assert!(rounds <= 30, "{rounds} rounds");
    cluster.settle();
    cluster.check_agreement();
}

#[test]
fn a_broker_is_fenced_after_silence_and_a_new_leader_waits_a_full_session() {
    let mut cluster = Cluster::new(3, 3);
    let (leader, _) = cluster.elect();
    bring_up_broker(&mut cluster, leader);
    let is_alive = |cluster: &Cluster| {
        let leader = cluster.leader().unwrap();
        cluster.nodes[leader].as_ref().unwrap().image().is_alive(BrokerId(1))
    };
    for _ in 0..100 {
        cluster.round(0);
    }
    assert!(is_alive(&cluster));
    cluster.crash(leader);
    cluster.elect();
    for _ in 0..170 {
        cluster.round(0);
    }
    assert!(is_alive(&cluster), "8.5 s after the new leader began");
    for _ in 0..30 {
        cluster.round(0);
    }
    assert!(!is_alive(&cluster));
}

#[test]
fn a_node_that_was_cut_off_disturbs_nobody() {
    let mut cluster = Cluster::new(3, 5);
    let (leader, _) = cluster.elect();
    bring_up_broker(&mut cluster, leader);
    let epoch = cluster.nodes[leader].as_ref().unwrap().status().leadership.controller_epoch;
    let follower = (leader + 1) % 3;
    for other in 0..3 {
        cluster.cut.extend([(follower, other), (other, follower)]);
    }
    for round in 0..120 {
        cluster.request(leader, topic(format!("t{round}")), round);
        cluster.round(0);
    }
    cluster.settle();
    for round in 0..120 {
        assert!(created(&cluster.answers[&round]), "{round}: {:?}", cluster.answers[&round]);
    }
    let status = cluster.nodes[leader].as_ref().unwrap().status();
    assert_eq!((status.leadership.controller_epoch, status.leadership.is_active), (epoch, true));
    // It had fallen behind what the leader keeps: a snapshot brought it back.
    assert!(status.first > MetadataIndex(100));
    cluster.check_agreement();
}

#[test]
fn a_leader_that_was_cut_off_stops_and_its_changes_are_of_unknown_fate() {
    let mut cluster = Cluster::new(3, 11);
    let (leader, _) = cluster.elect();
    bring_up_broker(&mut cluster, leader);
    for other in 0..3 {
        cluster.cut.extend([(leader, other), (other, leader)]);
    }
    cluster.request(leader, topic("lost".to_owned()), 1);
    let start = cluster.tick;
    while cluster.nodes[leader].as_ref().unwrap().status().leadership.is_active {
        cluster.round(0);
        // Two election timeouts, the longer ones.
        assert!(cluster.tick - start <= 40);
    }
    assert_eq!(cluster.answers[&1], Err(Error::RequestTimedOut));
    cluster.request(leader, topic("refused".to_owned()), 2);
    assert!(matches!(cluster.answers[&2], Err(Error::NotController(_))));
    cluster.elect();
    cluster.settle();
    let image = cluster.nodes[0].as_ref().unwrap().image();
    assert!(image.topic_by_name("lost").is_none() && image.topic_by_name("refused").is_none());
    cluster.check_agreement();
}

/// How a topic that is to be created fared.
fn refused_with(answer: &Result<Reply, Error>) -> Option<&Error> {
    match answer {
        Ok(Reply::CreatedTopics(created)) => created.results[0].1.as_ref().err(),
        Ok(_) => None,
        Err(error) => Some(error),
    }
}

#[test]
fn a_leader_that_was_cut_off_tells_nothing_old() {
    let mut cluster = Cluster::new(3, 13);
    let (leader, _) = cluster.elect();
    bring_up_broker(&mut cluster, leader);
    cluster.request(leader, topic("t".to_owned()), 1);
    for _ in 0..5 {
        cluster.round(0);
    }
    assert!(created(&cluster.answers[&1]));
    // With a majority, it says what it knows after one round to the others and back.
    cluster.request(leader, topic("t".to_owned()), 2);
    assert!(!cluster.answers.contains_key(&2), "nobody has confirmed it yet");
    for _ in 0..3 {
        cluster.round(0);
    }
    assert_eq!(refused_with(&cluster.answers[&2]), Some(&Error::TopicAlreadyExists("t".to_owned())));
    for other in 0..3 {
        cluster.cut.extend([(leader, other), (other, leader)]);
    }
    // Both only read: one the state, one a change that is under way and will never commit.
    cluster.request(leader, topic("t".to_owned()), 3);
    cluster.request(leader, topic("new".to_owned()), 4);
    cluster.request(leader, topic("new".to_owned()), 5);
    let start = cluster.tick;
    while cluster.nodes[leader].as_ref().unwrap().status().leadership.is_active {
        assert!(cluster.answers.range(3..=5).next().is_none());
        cluster.round(0);
        assert!(cluster.tick - start <= 40);
    }
    assert!(matches!(cluster.answers[&3], Err(Error::NotController(_))), "{:?}", cluster.answers[&3]);
    assert_eq!(cluster.answers[&4], Err(Error::RequestTimedOut));
    assert_eq!(cluster.answers[&5], Err(Error::RequestTimedOut));
    cluster.settle();
    cluster.check_agreement();
}

#[test]
fn a_lost_question_is_asked_again() {
    let mut cluster = Cluster::new(3, 17);
    let (leader, _) = cluster.elect();
    bring_up_broker(&mut cluster, leader);
    for token in 0..20 {
        // Unknown brokers: nothing is written.
        let heartbeat = Heartbeat {
            broker: BrokerId(9),
            epoch: BrokerEpoch(9),
            metadata_index: MetadataIndex(0),
            want_fence: false,
            want_shutdown: false,
        };
        cluster.request(leader, Request::Heartbeat(heartbeat), token);
        cluster.wire.clear();
        let start = cluster.tick;
        while !cluster.answers.contains_key(&token) {
            cluster.round(0);
            assert!(cluster.tick - start <= 8, "{token}");
        }
        assert!(matches!(cluster.answers[&token], Err(Error::StaleBrokerEpoch(_))));
    }
}

#[test]
fn a_broker_that_said_it_would_stop_is_fenced_when_its_stream_ends() {
    let mut cluster = Cluster::new(1, 1);
    bring_up_broker(&mut cluster, 0);
    let is_alive = |cluster: &Cluster| cluster.nodes[0].as_ref().unwrap().image().is_alive(BrokerId(1));
    let epoch = cluster.nodes[0].as_ref().unwrap().image().broker(BrokerId(1)).unwrap().epoch;
    let streams = |cluster: &mut Cluster, opened: bool| {
        let moment = cluster.moment();
        let node = cluster.nodes[0].as_mut().unwrap();
        if opened {
            node.stream_opened(&moment, BrokerId(1), epoch);
        } else {
            node.stream_closed(&moment, BrokerId(1), epoch).unwrap();
        }
        cluster.advance(0);
    };
    streams(&mut cluster, true);
    streams(&mut cluster, false);
    assert!(is_alive(&cluster), "it has a grace to come back");
    streams(&mut cluster, true);
    let stopping = Heartbeat {
        broker: BrokerId(1),
        epoch,
        metadata_index: MetadataIndex(u64::MAX >> 1),
        want_fence: false,
        want_shutdown: true,
    };
    cluster.request(0, Request::Heartbeat(stopping), 1);
    let Ok(Reply::Heartbeat(answer)) = &cluster.answers[&1] else { panic!("{:?}", cluster.answers[&1]) };
    assert!(answer.may_shutdown && is_alive(&cluster), "it serves what nobody else can until it is gone");
    // A second stream, of a broker that reconnected: the first one's end is no end.
    streams(&mut cluster, true);
    streams(&mut cluster, false);
    assert!(is_alive(&cluster));
    streams(&mut cluster, false);
    assert!(!is_alive(&cluster), "no tick, no grace");
    // Its next life need not wait for anything.
    cluster.register(0, 1, 2, 2);
    assert!(matches!(cluster.answers[&2], Ok(Reply::Registered(_))));
}

#[test]
fn a_watcher_resumes_from_the_log_or_gets_an_image() {
    let mut cluster = Cluster::new(1, 1);
    bring_up_broker(&mut cluster, 0);
    for token in 0..30 {
        cluster.request(0, topic(format!("t{token}")), token);
    }
    let node = cluster.nodes[0].as_ref().unwrap();
    let applied = node.status().applied;
    let changes = node.changes_after(MetadataIndex(applied.0 - 3), 100).unwrap().unwrap();
    assert_eq!(
        changes.iter().map(|delta| delta.index.0).collect::<Vec<_>>(),
        [applied.0 - 2, applied.0 - 1, applied.0]
    );
    assert!(changes.iter().all(|delta| cluster.history[&delta.index.0] == *delta));
    assert_eq!(node.changes_after(MetadataIndex(1), 100).unwrap(), None, "compacted");
    assert_eq!(node.changes_after(MetadataIndex(applied.0 - 3), 2).unwrap(), None, "too many");
    assert_eq!(node.changes_after(applied, 100).unwrap(), Some(Vec::new()));
    // A node that has heard more than this controller: it waits.
    assert_eq!(node.changes_after(MetadataIndex(applied.0 + 9), 100).unwrap(), Some(Vec::new()));
}

#[test]
fn other_voters_than_the_logs_are_refused() {
    let disk = Disk::default();
    let open = |ids: &[u64]| {
        let config = NodeConfig::new(ControllerId(1), ids.iter().copied().map(ControllerId).collect());
        Node::<_, _, u32>::new(config, Config::default(), disk.clone(), Arena::default()).err()
    };
    assert!(open(&[1]).is_none());
    assert_eq!(
        open(&[1, 2, 3]).unwrap().to_string(),
        "the log was begun with voters [1], the configuration has [1, 2, 3]"
    );
    assert!(open(&[2]).is_some());
}

#[derive(Clone, Debug)]
enum Action {
    Create(usize),
    Rounds(u64),
    Crash(usize),
    Start(usize),
    Cut(usize, usize),
    Heal,
    Loss(u64),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        8 => (0..3_usize).prop_map(Action::Create),
        8 => (1..25_u64).prop_map(Action::Rounds),
        2 => (0..3_usize).prop_map(Action::Crash),
        3 => (0..3_usize).prop_map(Action::Start),
        2 => (0..3_usize, 0..3_usize).prop_map(|(from, to)| Action::Cut(from, to)),
        2 => Just(Action::Heal),
        1 => (0..40_u64).prop_map(Action::Loss),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn nothing_acknowledged_is_lost_and_all_agree(
        seed in any::<u64>(),
        actions in prop::collection::vec(action(), 1..60),
    ) {
        let mut cluster = Cluster::new(3, seed);
        let (leader, _) = cluster.elect();
        bring_up_broker(&mut cluster, leader);
        let mut loss = 0;
        let mut token = 0;
        let mut asked = BTreeMap::new();
        for action in actions {
            match action {
                Action::Create(at) => {
                    token += 1;
                    // Mostly at the leader, sometimes wherever.
                    let at = if token % 4 == 0 { at } else { cluster.leader().unwrap_or(at) };
                    let name = format!("t{token}");
                    asked.insert(token, name.clone());
                    cluster.request(at, topic(name), token);
                }
                Action::Rounds(count) => (0..count).for_each(|_| cluster.round(loss)),
                Action::Crash(at) => cluster.crash(at),
                Action::Start(at) if cluster.nodes[at].is_none() => cluster.start(at),
                Action::Start(_) => {}
                Action::Cut(from, to) => drop(cluster.cut.insert((from, to))),
                Action::Heal => cluster.cut.clear(),
                Action::Loss(percent) => loss = percent,
            }
        }
        cluster.settle();
        cluster.check_agreement();
        let image = cluster.nodes[0].as_ref().unwrap().image();
        for (token, name) in asked {
            let exists = image.topic_by_name(&name).is_some();
            match cluster.answers.get(&token) {
                Some(answer) if created(answer) => prop_assert!(exists, "{} was acknowledged", name),
                // Its node crashed, or lost its leadership with the change under way: either is right.
                None | Some(Err(Error::RequestTimedOut)) => {}
                Some(_) => prop_assert!(!exists, "{} was refused", name),
            }
        }
    }
}

/// Creates a topic at the leader and waits until it is acknowledged.
fn create(cluster: &mut Cluster, leader: usize, token: u32) {
    cluster.request(leader, topic(format!("t{token}")), token);
    let start = cluster.tick;
    while !cluster.answers.contains_key(&token) {
        cluster.round(0);
        assert!(cluster.tick - start < 100, "{token}: {:#?}", cluster.statuses());
    }
    assert!(created(&cluster.answers[&token]), "{:?}", cluster.answers[&token]);
}

/// Rounds without a change until the leader knows that `at` has all.
fn catch_up(cluster: &mut Cluster, leader: usize, at: usize) {
    let start = cluster.tick;
    loop {
        let status = cluster.nodes[leader].as_ref().unwrap().status();
        assert!(status.leadership.is_active);
        let applied = cluster.nodes[at].as_ref().unwrap().status().applied;
        if applied == status.committed && status.voters[at].1 == Some(status.committed) {
            return;
        }
        assert!(cluster.tick - start < 200, "it does not catch up: {:#?}", cluster.statuses());
        cluster.round(0);
    }
}

/// How the follower's disk is lost: what the leader notices of it, and whether it has more to send.
#[derive(Clone, Copy, Debug)]
struct Loss {
    /// Topics before the loss: few are still in the leader's log, many need a snapshot.
    topics: u32,
    /// Whether the leader is told that its messages do not arrive.
    is_noticed: bool,
    /// Whether the leader writes while the follower is away.
    is_busy: bool,
}

#[test]
fn a_follower_that_lost_its_disk_is_filled_again() {
    for at in 0..8 {
        let loss =
            Loss { topics: if at & 1 == 0 { 2 } else { 40 }, is_noticed: at & 2 == 0, is_busy: at & 4 == 0 };
        let mut cluster = Cluster::new(3, 19);
        let (leader, _) = cluster.elect();
        bring_up_broker(&mut cluster, leader);
        let (lost, other) = ((leader + 1) % 3, (leader + 2) % 3);
        let mut token = 0;
        for _ in 0..loss.topics {
            create(&mut cluster, leader, token);
            token += 1;
        }
        catch_up(&mut cluster, leader, lost);
        let before = cluster.nodes[leader].as_ref().unwrap().status();
        assert_eq!(before.first > MetadataIndex(1), loss.topics > 12, "{loss:?}: compacted");
        cluster.lose_disk(lost);
        if loss.is_noticed {
            cluster.nodes[leader].as_mut().unwrap().unreachable(ControllerId(lost as u64 + 1));
        }
        if loss.is_busy {
            create(&mut cluster, leader, token);
            token += 1;
        }
        cluster.start(lost);
        assert_eq!(cluster.nodes[lost].as_ref().unwrap().status().applied, MetadataIndex(0));
        catch_up(&mut cluster, leader, lost);
        let after = cluster.nodes[leader].as_ref().unwrap().status();
        assert_eq!(after.leadership, before.leadership, "{loss:?}: it disturbed the leader");
        // Its word counts again.
        cluster.crash(other);
        for _ in 0..3 {
            create(&mut cluster, leader, token);
            token += 1;
        }
        cluster.settle();
        cluster.check_agreement();
        // And what it was filled with is all there when the others' leader is gone.
        cluster.crash(leader);
        cluster.elect();
        cluster.settle();
        cluster.check_agreement();
        for (at, node) in cluster.nodes.iter().flatten().enumerate() {
            for token in 0..token {
                let name = format!("t{token}");
                assert!(node.image().topic_by_name(&name).is_some(), "{loss:?}: {name} is lost at {at}");
            }
        }
    }
}

#[test]
fn a_leader_that_lost_its_disk_follows_and_is_filled_again() {
    let mut cluster = Cluster::new(3, 23);
    let (leader, _) = cluster.elect();
    bring_up_broker(&mut cluster, leader);
    for token in 0..30 {
        create(&mut cluster, leader, token);
    }
    cluster.lose_disk(leader);
    cluster.start(leader);
    let (next, _) = cluster.elect();
    assert_ne!(next, leader, "an empty log must not win");
    catch_up(&mut cluster, next, leader);
    create(&mut cluster, next, 30);
    cluster.settle();
    cluster.check_agreement();
    let image = cluster.nodes[leader].as_ref().unwrap().image();
    assert_eq!(image.topics().count(), 31);
}

#[test]
fn a_deposed_leader_refuses_requests_of_the_same_turn() {
    let mut cluster = Cluster::new(3, 29);
    let (leader, _) = cluster.elect();
    bring_up_broker(&mut cluster, leader);
    let next = (leader + 1) % 3;
    let term = cluster.nodes[leader].as_ref().unwrap().status().leadership.controller_epoch.0 as u64;
    let message = pb::Message {
        msg_type: pb::MessageType::MsgHeartbeat,
        from: next as u64 + 1,
        to: leader as u64 + 1,
        term: term + 1,
        ..pb::Message::default()
    };
    let bytes = message.write_to_bytes().unwrap();
    cluster.nodes[leader].as_mut().unwrap().receive(&bytes).unwrap();
    cluster.request(leader, topic("late".to_owned()), 1);
    assert!(matches!(cluster.answers[&1], Err(Error::NotController(_))), "{:?}", cluster.answers[&1]);
    for (_, _, bytes, _) in cluster.wire.iter().filter(|(from, ..)| *from == leader) {
        let mut sent = pb::Message::default();
        sent.merge_from_bytes(bytes).unwrap();
        assert_ne!(sent.get_msg_type(), pb::MessageType::MsgPropose, "it hands the change to another");
    }
}

#[test]
fn kinds_that_no_controller_sends_are_refused_by_name() {
    let mut cluster = Cluster::new(3, 31);
    let (leader, _) = cluster.elect();
    let node = cluster.nodes[leader].as_mut().unwrap();
    for kind in [
        pb::MessageType::MsgHup,
        pb::MessageType::MsgBeat,
        pb::MessageType::MsgPropose,
        pb::MessageType::MsgUnreachable,
        pb::MessageType::MsgSnapStatus,
        pb::MessageType::MsgCheckQuorum,
        pb::MessageType::MsgTransferLeader,
        pb::MessageType::MsgReadIndex,
        pb::MessageType::MsgReadIndexResp,
    ] {
        let from = (leader as u64 + 1) % 3 + 1;
        let message =
            pb::Message { msg_type: kind, from, to: leader as u64 + 1, term: 1, ..pb::Message::default() };
        let error = node.receive(&message.write_to_bytes().unwrap()).unwrap_err();
        assert!(matches!(error, NodeError::Refused { .. }));
        assert!(
            error.to_string().starts_with(&format!("raft message {kind:?} of controller {from} refused"))
        );
    }
    assert!(node.receive(b"\xff\xff").is_err());
    assert!(node.status().leadership.is_active);
}

/// A message as a broken or hostile peer may send it; small numbers, so that many of them fit.
fn forged() -> impl Strategy<Value = pb::Message> {
    let number = || {
        prop_oneof![
            12 => 0..24_u64,
            1 => Just(u64::MAX),
            1 => Just(u64::MAX - 1),
            1 => Just(i64::MAX as u64),
            1 => Just(i32::MAX as u64),
        ]
    };
    // Beside the leader's term mostly.
    let term = || prop_oneof![10 => 1..4_u64, 1 => 0..1_u64, 1 => number()];
    let entries = (number(), prop::collection::vec((0..8_u8, term()), 0..4));
    let bits = any::<(bool, bool, bool)>();
    (0..19_usize, 1..4_u64, (term(), term(), number(), number(), number()), entries, (number(), term()), bits)
        .prop_map(|(kind, from, (term, log_term, index, commit, hint), entries, snapshot, bits)| {
            let mut message = pb::Message {
                msg_type: pb::MessageType::values()[kind],
                from,
                term,
                log_term,
                index,
                commit,
                commit_term: log_term,
                reject_hint: hint,
                reject: bits.0,
                ..pb::Message::default()
            };
            // Mostly in order, after the anchor.
            let mut next = if bits.1 { index.wrapping_add(1) } else { entries.0 };
            for (step, term) in entries.1 {
                let entry = pb::Entry {
                    entry_type: pb::EntryType::values()[usize::from(step == 7)],
                    index: next,
                    term,
                    ..pb::Entry::default()
                };
                message.entries.push(entry);
                next = next.wrapping_add(if step == 6 { 2 } else { 1 });
            }
            let meta = message.mut_snapshot().mut_metadata();
            (meta.index, meta.term) = snapshot;
            meta.mut_conf_state().set_voters(if bits.2 { vec![1, 2, 3] } else { vec![1, 2] });
            message
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_message_makes_a_node_panic(
        at in 0..3_usize,
        is_fresh in any::<bool>(),
        steps in prop::collection::vec((forged(), 0..4_u8), 1..40),
    ) {
        let mut cluster = Cluster::new(3, 37);
        if !is_fresh {
            let (leader, _) = cluster.elect();
            bring_up_broker(&mut cluster, leader);
        }
        let image = keep(&cluster.arena.images, ClusterImage::new());
        let mut node = cluster.nodes[at].take().unwrap();
        for (mut message, after) in steps {
            message.to = at as u64 + 1;
            message.mut_snapshot().set_data(image.clone());
            // Refused or not, both are right.
            let _ = node.receive(&message.write_to_bytes().unwrap());
            cluster.now += Duration::from_millis(50);
            let moment = cluster.moment();
            if after == 3 {
                for _ in 0..12 {
                    node.tick(&moment).unwrap();
                }
            }
            // A node may stop on committed entries that make no sense, but by an error.
            if after != 0 && node.advance(&moment).is_err() {
                break;
            }
        }
    }
}
