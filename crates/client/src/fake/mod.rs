//! A cluster in this process that behaves like brokers where a client can see it, and misbehaves on command.
//!
//! It keeps records in memory and follows the rules a client relies on: one leader per partition, the producer
//! table's five last batches, ordered answers, resumable reads. For tests only.

mod admin;
mod log;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use semel_proto::v1::{
    self, ErrorCode, admin_service_server::AdminServiceServer, cluster_service_server::ClusterServiceServer,
    log_service_server::LogServiceServer,
};
use semel_record::{Batch, DecodeLimits};
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Status, transport::Server};

/// What happens to the next produce request of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The broker answers with this error and appends nothing.
    Refuse(ErrorCode),
    /// The broker appends and then breaks the stream instead of answering.
    DropAnswer,
    /// The broker breaks the stream and appends nothing.
    DropRequest,
    /// The broker appends and answers with this error.
    AppendAndRefuse(ErrorCode),
    /// The leader moves to this broker before the request is looked at.
    Move(i32),
}

/// What happens to the next administrative call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallFault {
    /// Refused with this error.
    Refuse(ErrorCode),
    /// Done, and the answer lost.
    DropAnswer,
}

/// Brokers on free ports of 127.0.0.1. Dropping it stops them.
pub struct FakeCluster {
    shared: Shared,
    tasks: Vec<JoinHandle<()>>,
}

#[derive(Clone)]
pub(crate) struct Shared {
    world: Arc<Mutex<World>>,
    changed: watch::Sender<u64>,
}

#[derive(Default)]
pub(crate) struct World {
    brokers: Vec<FakeBroker>,
    topics: BTreeMap<String, FakeTopic>,
    broker_configs: BTreeMap<String, BTreeMap<String, String>>,
    next_producer_id: i64,
    next_topic: u128,
    call_faults: VecDeque<CallFault>,
    /// Produce requests that were looked at, retries included.
    produced: usize,
    fetches: usize,
}

pub(crate) struct FakeBroker {
    address: String,
    down: bool,
}

pub(crate) struct FakeTopic {
    id: String,
    configs: BTreeMap<String, String>,
    partitions: Vec<FakePartition>,
    batch_bytes_max: usize,
}

#[derive(Default)]
pub(crate) struct FakePartition {
    leader: i32,
    leader_epoch: i32,
    log_start: i64,
    records: Vec<v1::Record>,
    producers: BTreeMap<i64, Producer>,
    faults: VecDeque<Fault>,
    /// Each entry breaks one fetch stream after that many records.
    fetch_breaks: VecDeque<usize>,
}

#[derive(Default)]
pub(crate) struct Producer {
    epoch: i16,
    /// Of the last five batches: first sequence, record count, first offset.
    last: VecDeque<(i32, i32, i64)>,
}

impl FakeCluster {
    pub async fn start(brokers: usize) -> Self {
        let shared = Shared { world: Arc::default(), changed: watch::Sender::new(0) };
        let mut tasks = Vec::new();
        for id in 0..brokers {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            let address = listener.local_addr().expect("a bound address").to_string();
            shared.lock().brokers.push(FakeBroker { address, down: false });
            let node = Node { id: id as i32, shared: shared.clone() };
            let server = Server::builder()
                .add_service(LogServiceServer::new(node.clone()).max_decoding_message_size(64 << 20))
                .add_service(AdminServiceServer::new(node.clone()))
                .add_service(ClusterServiceServer::new(node))
                .serve_with_incoming(TcpListenerStream::new(listener));
            tasks.push(tokio::spawn(async move { server.await.expect("the server runs") }));
        }
        Self { shared, tasks }
    }

    /// All brokers' addresses, by id.
    pub fn addresses(&self) -> Vec<String> {
        self.shared.lock().brokers.iter().map(|broker| broker.address.clone()).collect()
    }

    /// Partition `p` is led by broker `p % brokers`.
    pub fn create_topic(&self, name: &str, partitions: usize) {
        self.shared.lock().create_topic(name, partitions);
        self.shared.bump();
    }

    pub fn move_leader(&self, topic: &str, partition: usize, broker: i32) {
        self.shared.partition(topic, partition, |partition| partition.lead(broker));
    }

    /// Adds to what befalls the partition's next produce requests, one fault each.
    pub fn fault(&self, topic: &str, partition: usize, fault: Fault) {
        self.shared.partition(topic, partition, |partition| partition.faults.push_back(fault));
    }

    /// Takes back the faults that have not happened yet.
    pub fn heal(&self, topic: &str, partition: usize) {
        self.shared.partition(topic, partition, |partition| partition.faults.clear());
    }

    /// Breaks the partition's next fetch stream after so many records.
    pub fn break_fetch(&self, topic: &str, partition: usize, after_records: usize) {
        self.shared.partition(topic, partition, |partition| partition.fetch_breaks.push_back(after_records));
    }

    pub fn call_fault(&self, fault: CallFault) {
        self.shared.lock().call_faults.push_back(fault);
    }

    /// Larger batches are refused with `MESSAGE_TOO_LARGE`.
    pub fn set_batch_bytes_max(&self, topic: &str, bytes: usize) {
        self.shared.lock().topics.get_mut(topic).expect("the topic").batch_bytes_max = bytes;
    }

    /// From now on the broker serves nobody, and what it was serving ends.
    pub fn stop(&self, broker: usize) {
        self.shared.lock().brokers[broker].down = true;
        self.tasks[broker].abort();
        self.shared.bump();
    }

    /// What a partition holds.
    pub fn records(&self, topic: &str, partition: usize) -> Vec<v1::Record> {
        self.shared.partition(topic, partition, |partition| partition.records.clone())
    }

    /// Appends records as if some producer had.
    pub fn put(&self, topic: &str, partition: usize, records: impl IntoIterator<Item = v1::Record>) {
        self.shared.partition(topic, partition, |partition| {
            for mut record in records {
                record.offset = partition.end();
                partition.records.push(record);
            }
        });
    }

    /// How many produce requests were looked at, retries included.
    pub fn produced(&self) -> usize {
        self.shared.lock().produced
    }

    /// How many fetch streams were opened.
    pub fn fetches(&self) -> usize {
        self.shared.lock().fetches
    }
}

impl Drop for FakeCluster {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// One broker's services.
#[derive(Clone)]
pub(crate) struct Node {
    id: i32,
    shared: Shared,
}

impl Node {
    fn up(&self) -> Result<(), Status> {
        if self.shared.lock().brokers[self.id as usize].down {
            return Err(Status::unavailable("the broker is down"));
        }
        Ok(())
    }

    /// Runs an administrative call, or what was ordered instead.
    fn call<T>(
        &self,
        run: impl FnOnce(&mut World) -> Result<T, v1::Error>,
    ) -> Result<tonic::Response<T>, Status> {
        self.up()?;
        let mut world = self.shared.lock();
        let fault = world.call_faults.pop_front();
        if let Some(CallFault::Refuse(code)) = fault {
            return Err(v1::Error::new(code, "ordered by the test").into_status());
        }
        let result = run(&mut world);
        drop(world);
        self.shared.bump();
        if fault == Some(CallFault::DropAnswer) {
            return Err(Status::unavailable("ordered by the test"));
        }
        result.map(tonic::Response::new).map_err(v1::Error::into_status)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bump(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    fn partition<T>(&self, topic: &str, partition: usize, run: impl FnOnce(&mut FakePartition) -> T) -> T {
        let result = run(&mut self.lock().topics.get_mut(topic).expect("the topic").partitions[partition]);
        self.bump();
        result
    }
}

impl World {
    fn create_topic(&mut self, name: &str, partitions: usize) -> String {
        self.next_topic += 1;
        let id = semel_model::TopicId::from_bytes(self.next_topic.to_be_bytes()).to_string();
        let brokers = self.brokers.len();
        let partitions = (0..partitions)
            .map(|at| FakePartition { leader: (at % brokers) as i32, ..FakePartition::default() })
            .collect();
        let topic =
            FakeTopic { id: id.clone(), configs: BTreeMap::new(), partitions, batch_bytes_max: usize::MAX };
        self.topics.insert(name.to_owned(), topic);
        id
    }

    /// The partition, if `broker` leads it.
    fn led_by(&mut self, broker: i32, topic: &str, partition: i32) -> Result<&mut FakePartition, v1::Error> {
        let found = self.topics.get_mut(topic).and_then(|topic| topic.partitions.get_mut(partition as usize));
        let Some(found) = found else {
            let text = format!("there is no partition {topic}-{partition}");
            return Err(v1::Error::new(ErrorCode::UnknownTopicOrPartition, text));
        };
        if found.leader != broker {
            let text = format!("broker {broker} does not lead {topic}-{partition}");
            return Err(v1::Error::new(ErrorCode::NotLeaderOrFollower, text));
        }
        Ok(found)
    }
}

impl FakePartition {
    fn end(&self) -> i64 {
        self.records.last().map_or(self.log_start, |last| last.offset + 1)
    }

    fn lead(&mut self, broker: i32) {
        self.leader = broker;
        self.leader_epoch += 1;
    }

    /// The producer table's verdict on a batch and its effect.
    fn append(&mut self, bytes: &Bytes) -> Result<i64, v1::Error> {
        let corrupt = |text: String| v1::Error::new(ErrorCode::CorruptMessage, text);
        let batch = Batch::parse(bytes.clone()).map_err(|cause| corrupt(cause.to_string()))?;
        batch.verify_crc().map_err(|cause| corrupt(cause.to_string()))?;
        let header = batch.header;
        let base = self.end();
        if header.producer_id.get() >= 0 {
            let known = self.producers.contains_key(&header.producer_id.get());
            let producer = self.producers.entry(header.producer_id.get()).or_default();
            producer.epoch = header.producer_epoch.get();
            let sequence = header.base_sequence.get();
            let copy = producer
                .last
                .iter()
                .find(|(first, count, _)| (*first, *count) == (sequence, header.record_count));
            if let Some((_, _, offset)) = copy {
                return Ok(*offset);
            }
            let next = producer.last.back().map_or(sequence, |(first, count, _)| first + count);
            if known && sequence != next {
                let text = format!("expected sequence {next}, got {sequence}");
                return Err(v1::Error::new(ErrorCode::OutOfOrderSequenceNumber, text));
            }
            producer.last.push_back((sequence, header.record_count, base));
            if producer.last.len() > 5 {
                producer.last.pop_front();
            }
        }
        for record in batch.records(&DecodeLimits::default()).map_err(|cause| corrupt(cause.to_string()))? {
            let record = record.map_err(|cause| corrupt(cause.to_string()))?;
            let headers = record.headers.iter().map(|header| v1::Header {
                key: String::from_utf8_lossy(&header.key).into_owned(),
                value: header.value.clone(),
            });
            self.records.push(v1::Record {
                headers: headers.collect(),
                key: record.key,
                value: record.value,
                timestamp_ms: Some(record.timestamp.get()),
                offset: base + i64::from(record.offset_delta),
            });
        }
        Ok(base)
    }
}
