//! Real controllers as processes: killed, restarted, cut short; what they acknowledged stays.

mod support;

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use semel_env::Clock as _;
use semel_metadata::{ClusterImage, Session};
use semel_model::BrokerId;
use semel_proto::{internal::v1 as pb, v1::ErrorCode};
use support::{Cluster, FakeBroker, Finder, PATIENCE, connect, follow, image_at, pause, ready_line};

/// Clients that create topics one after another, as fast as they are acknowledged.
struct Creators {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<Mutex<BTreeSet<String>>>,
    count: Arc<AtomicU32>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Creators {
    fn start(finder: &Finder, clients: u32) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let acknowledged = Arc::new(Mutex::new(BTreeSet::new()));
        let count = Arc::new(AtomicU32::new(0));
        let tasks = (0..clients).map(|client| {
            let (finder, stop) = (finder.clone(), Arc::clone(&stop));
            let (acknowledged, count) = (Arc::clone(&acknowledged), Arc::clone(&count));
            tokio::spawn(async move {
                for number in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let name = format!("t{client}-{number}");
                    finder.create(&name).await.unwrap();
                    acknowledged.lock().unwrap().insert(name);
                    count.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        let tasks = tasks.collect();
        Self { stop, acknowledged, count, tasks }
    }

    async fn wait_for_more(&self, more: u32) {
        let target = self.count.load(Ordering::Relaxed) + more;
        tokio::time::timeout(PATIENCE, async {
            while self.count.load(Ordering::Relaxed) < target {
                pause().await;
            }
        })
        .await
        .expect("topics are no longer created");
    }

    async fn finish(self) -> BTreeSet<String> {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.unwrap();
        }
        std::mem::take(&mut self.acknowledged.lock().unwrap())
    }
}

fn names(image: &ClusterImage) -> BTreeSet<String> {
    image.topics().map(|topic| topic.name.to_string()).collect()
}

fn check_topics(image: &ClusterImage, acknowledged: &BTreeSet<String>) {
    let names = names(image);
    let lost: Vec<_> = acknowledged.difference(&names).collect();
    assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
    // Names and ids are one to one, and each topic is whole.
    assert_eq!(image.topics().count(), image.topic_count());
    assert!(image.topics().all(|topic| topic.partition_count() == 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_controller_is_ready_at_once_and_stops_cleanly() {
    let mut cluster = Cluster::new(1, &[]);
    let start = cluster.clock.monotonic();
    let output = cluster.start(1);
    let line = tokio::task::spawn_blocking(|| ready_line(output)).await.unwrap();
    let took = cluster.clock.monotonic() - start;
    println!("ready after {took:?}");
    let grpc = &cluster.addresses[&1];
    assert!(line.starts_with(&format!("semel-controller ready grpc={grpc} http=127.0.0.1:")), "{line}");
    assert!(took < Duration::from_secs(10));
    let quorum = connect(grpc).await.unwrap().describe_quorum(pb::DescribeQuorumRequest {}).await.unwrap();
    let quorum = quorum.into_inner();
    assert_eq!((quorum.leader_id, quorum.controller_id, quorum.voters.len()), (1, 1, 1));
    // A watcher does not hold up the stop.
    let mut watcher = connect(grpc).await.unwrap();
    let mut stream =
        watcher.watch_metadata(pb::WatchMetadataRequest { after_index: 0 }).await.unwrap().into_inner();
    assert!(stream.message().await.unwrap().is_some());
    let pid = cluster.pid(1).to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let code = tokio::task::spawn_blocking(move || cluster.wait(1)).await.unwrap();
    assert_eq!(code, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_store_reopens_with_every_acknowledged_change() {
    let mut cluster = Cluster::new(1, &[("SEMEL_SNAPSHOT_ENTRIES", "40"), ("SEMEL_KEEP_ENTRIES", "10")]);
    cluster.start_all();
    let broker = FakeBroker::start(cluster.finder(), 1).await;
    let creators = Creators::start(&cluster.finder(), 4);
    for round in 0..12 {
        creators.wait_for_more(5 + round % 4).await;
        cluster.kill(1);
        drop(cluster.start(1));
    }
    creators.wait_for_more(5).await;
    let acknowledged = creators.finish().await;
    broker.stop().await;
    cluster.kill(1);
    drop(cluster.start(1));
    let image = image_at(&cluster, 1, |image| names(image).is_superset(&acknowledged)).await;
    check_topics(&image, &acknowledged);
    println!("{} topics acknowledged over 13 kills", acknowledged.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_controllers_lose_their_leader_again_and_again() {
    let mut cluster = Cluster::new(3, &[("SEMEL_SNAPSHOT_ENTRIES", "50"), ("SEMEL_KEEP_ENTRIES", "10")]);
    cluster.start_all();
    let broker = FakeBroker::start(cluster.finder(), 1).await;
    let creators = Creators::start(&cluster.finder(), 3);
    let mut took = Vec::new();
    for _ in 0..6 {
        creators.wait_for_more(10).await;
        let leader = cluster.leader().await;
        let killed_at = cluster.clock.monotonic();
        cluster.kill(leader);
        let next = cluster.leader().await;
        took.push(cluster.clock.monotonic() - killed_at);
        assert_ne!(next, leader);
        creators.wait_for_more(5).await;
        drop(cluster.start(leader));
    }
    creators.wait_for_more(5).await;
    let acknowledged = creators.finish().await;
    broker.stop().await;
    took.sort();
    println!("{} topics acknowledged; a new leader after {took:?}", acknowledged.len());
    assert!(took[0] < Duration::from_secs(5), "{took:?}");
    // All three end at one image, the one that was killed last by a snapshot or the log.
    let first = image_at(&cluster, 1, |image| names(image).is_superset(&acknowledged)).await;
    check_topics(&first, &acknowledged);
    for id in 2..=3 {
        let image = image_at(&cluster, id, |image| names(image) == names(&first)).await;
        check_topics(&image, &acknowledged);
        let ids = |image: &ClusterImage| image.topics().map(|topic| topic.id).collect::<Vec<_>>();
        assert_eq!(ids(&image), ids(&first));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watcher_goes_on_at_another_controller() {
    let mut cluster = Cluster::new(3, &[]);
    cluster.start_all();
    let leader = cluster.leader().await;
    let follower = (1..=3).find(|id| *id != leader).unwrap();
    let broker = FakeBroker::start(cluster.finder(), 1).await;
    let finder = cluster.finder();
    let mut session = Session::new();
    finder.create("before").await.unwrap();
    let has = |name: &'static str| move |image: &ClusterImage| image.topic_by_name(name).is_some();
    assert!(follow(&cluster.addresses[&follower], &mut session, has("before")).await.unwrap());
    let seen = session.subscribe_from();
    cluster.kill(follower);
    finder.create("between").await.unwrap();
    assert!(follow(&cluster.addresses[&leader], &mut session, has("between")).await.unwrap());
    assert!(session.subscribe_from() > seen);
    drop(cluster.start(follower));
    // The restarted one may still be behind this watcher: it waits, and misses nothing.
    finder.create("after").await.unwrap();
    let deadline = cluster.clock.monotonic() + PATIENCE;
    while !matches!(follow(&cluster.addresses[&follower], &mut session, has("after")).await, Ok(true)) {
        assert!(cluster.clock.monotonic() < deadline);
        pause().await;
    }
    assert_eq!(names(session.image()).len(), 3);
    // A follower names the leader.
    let mut client = connect(&cluster.addresses[&follower]).await.unwrap();
    let refused = client.create_topics(pb::CreateTopicsRequest::default()).await.unwrap_err();
    let hint =
        refused.metadata().get(semel_controller::LEADER_TRAILER).map(|at| at.to_str().unwrap().to_owned());
    let now = cluster.leader().await;
    assert!(hint.is_none() || now != leader || hint == Some(cluster.addresses[&leader].clone()));
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_breaks_off_is_fenced_and_may_come_back_at_once() {
    let mut cluster = Cluster::new(1, &[]);
    cluster.start_all();
    let finder = cluster.finder();
    let first = finder.register(1, 1).await.unwrap();
    let stream = finder.heartbeat(1, first.broker_epoch).await.unwrap();
    assert!(!stream.fenced);
    let refused = finder.register(1, 2).await.unwrap_err();
    assert_eq!(refused.error_code(), ErrorCode::DuplicateBrokerRegistration);
    let alive = |image: &ClusterImage| image.is_alive(BrokerId(1));
    assert!(alive(&image_at(&cluster, 1, alive).await));
    drop(stream);
    // Long before the session's nine seconds.
    let began = cluster.clock.monotonic();
    image_at(&cluster, 1, |image| image.broker(BrokerId(1)).is_some_and(|broker| broker.fenced)).await;
    let took = cluster.clock.monotonic() - began;
    println!("fenced {took:?} after its connection broke");
    assert!(took < Duration::from_secs(8));
    let second = finder.register(1, 2).await.unwrap();
    assert!(second.broker_epoch > first.broker_epoch);
    assert_eq!(second.cluster_id, first.cluster_id);
    let stale = finder.heartbeat(1, first.broker_epoch).await.err().unwrap();
    assert_eq!(stale.error_code(), ErrorCode::StaleBrokerEpoch);
    assert!(!finder.heartbeat(1, second.broker_epoch).await.unwrap().fenced);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broker_that_restarts_with_its_controller_registers_at_once() {
    let mut cluster = Cluster::new(1, &[]);
    cluster.start_all();
    let finder = cluster.finder();
    let first = finder.register_with(1, 1, &[200, 201]).await.unwrap();
    let stream = finder.heartbeat(1, first.broker_epoch).await.unwrap();
    assert!(!stream.fenced && stream.committed >= first.broker_epoch.unsigned_abs());
    // Both die at once: the next controller never sees the end of a stream.
    cluster.kill(1);
    drop(stream);
    drop(cluster.start(1));
    let refused = finder.register_with(1, 2, &[202]).await.unwrap_err();
    assert_eq!(refused.error_code(), ErrorCode::DuplicateBrokerRegistration);
    let began = cluster.clock.monotonic();
    let second = finder.register_with(1, 2, &[201, 202]).await.unwrap();
    let took = cluster.clock.monotonic() - began;
    println!("registered again after {took:?}");
    assert!(second.broker_epoch > first.broker_epoch && took < Duration::from_secs(5), "{took:?}");
    // The answers of a stream show how the log grows.
    let mut stream = finder.heartbeat(1, second.broker_epoch).await.unwrap();
    let before = stream.committed;
    assert!(!stream.fenced && before >= second.broker_epoch.unsigned_abs());
    finder.create("t").await.unwrap();
    assert!(stream.next().await.unwrap().committed_index > before);
    // One that leaves in order is fenced as soon as its stream is over.
    assert!(stream.leave().await.unwrap().may_shutdown);
    assert!(image_at(&cluster, 1, |image| image.is_alive(BrokerId(1))).await.is_alive(BrokerId(1)));
    drop(stream);
    image_at(&cluster, 1, |image| !image.is_alive(BrokerId(1))).await;
    finder.register_with(1, 3, &[]).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_requests_are_named() {
    let mut cluster = Cluster::new(1, &[]);
    cluster.start_all();
    let finder = cluster.finder();
    let short = pb::RegisterBrokerRequest { incarnation_id: vec![1; 3].into(), ..Default::default() };
    let refused = finder
        .call(|mut client| {
            let short = short.clone();
            async move { client.register_broker(short).await }
        })
        .await
        .1
        .unwrap_err();
    assert_eq!(
        (refused.error_code(), refused.message.as_str()),
        (ErrorCode::InvalidRequest, "incarnation_id has 3 bytes instead of 16")
    );
    let refused = finder.register_with(1, 1, &[0]).await.unwrap_err();
    assert_eq!(refused.error_code(), ErrorCode::InvalidRegistration);
    let wrong = pb::ExchangeRequest { to: 9, ..Default::default() };
    let mut raft = semel_proto::internal::v1::raft_service_client::RaftServiceClient::connect(format!(
        "http://{}",
        cluster.addresses[&1]
    ))
    .await
    .unwrap();
    let refused = raft.exchange(tokio_stream::once(wrong)).await.unwrap_err();
    assert!(refused.message().contains("this is controller 1, not 9"), "{refused}");
    // Bytes that are no Raft message harm nothing.
    let garbage = pb::ExchangeRequest { to: 1, message: vec![0xff; 64].into(), ..Default::default() };
    raft.exchange(tokio_stream::once(garbage)).await.unwrap();
    assert_eq!(cluster.leader().await, 1);
}
