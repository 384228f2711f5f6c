//! A backend of one file and a gate, and a client that speaks frames.

use std::{
    fs::File,
    io,
    net::SocketAddr,
    os::{
        fd::{AsFd as _, BorrowedFd},
        unix::fs::FileExt as _,
    },
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use semel_kafka_gateway::{
    Answer, ApiRange, Backend, Config, FileRange, Gateway, Listening, NodeInfo, Reply, RequestContext,
};
use semel_kafka_wire::{
    ApiKey, External, KString, Records, Request, Response, decode_response, encode_request,
    messages::{
        self, FetchRequest, FetchResponse, MetadataRequest, MetadataResponse, ProduceRequest,
        ProduceResponse,
        fetch::{FetchableTopicResponse, PartitionData},
        produce::{PartitionProduceResponse, TopicProduceResponse},
    },
};
use semel_service::metrics::Registry;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tokio_util::sync::CancellationToken;

/// Nothing here takes this long; a test that would hang fails instead.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone)]
pub(crate) struct Toy {
    /// What Fetch answers, as ranges of this file, `pieces` of them.
    pub(crate) file: Arc<File>,
    pub(crate) file_len: u32,
    pub(crate) pieces: u32,
    /// Without a descriptor, so that the gateway must read.
    pub(crate) hide_fd: bool,
    /// Produce with `acks=-1` is answered when this reaches the number of its timeout.
    pub(crate) gate: Arc<watch::Sender<i32>>,
    /// Correlation ids in the order in which they were called.
    pub(crate) calls: Arc<Mutex<Vec<i32>>>,
    pub(crate) waiting: Arc<AtomicUsize>,
}

impl Toy {
    pub(crate) fn new(content: &[u8]) -> Self {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(content, 0).unwrap();
        Self {
            file: Arc::new(file),
            file_len: content.len() as u32,
            pieces: 1,
            hide_fd: false,
            gate: Arc::new(watch::Sender::new(0)),
            calls: Arc::default(),
            waiting: Arc::default(),
        }
    }

    pub(crate) fn calls(&self) -> usize {
        self.calls.lock().unwrap().len()
    }
}

pub(crate) struct Range {
    file: Arc<File>,
    position: u64,
    len: u64,
    hide_fd: bool,
}

impl FileRange for Range {
    fn position(&self) -> u64 {
        self.position
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        (!self.hide_fd).then(|| self.file.as_fd())
    }

    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        self.file.read_at(buffer, position)
    }
}

impl Backend for Toy {
    type Range = Range;

    fn call(&self, context: &RequestContext, request: Request) -> Reply<Range> {
        self.calls.lock().unwrap().push(context.correlation_id);
        match request {
            Request::Produce(produce) => self.produce(&produce),
            Request::Fetch(_) => Reply::Now(self.fetch()),
            Request::Metadata(_) => {
                let software = context.software.as_ref().map_or("unknown", |software| &software.name);
                Reply::now(MetadataResponse {
                    cluster_id: Some(KString::from(software)),
                    ..Default::default()
                })
            }
            other => Reply::Close { reason: format!("{} is not for a toy", other.key()) },
        }
    }

    fn apis(&self) -> Vec<ApiRange> {
        [ApiKey::Produce, ApiKey::Fetch, ApiKey::Metadata].into_iter().filter_map(ApiRange::all).collect()
    }

    fn node(&self) -> NodeInfo {
        NodeInfo::default()
    }
}

impl Toy {
    fn produce(&self, produce: &ProduceRequest) -> Reply<Range> {
        let wanted = produce.timeout_ms;
        match produce.acks {
            0 if wanted < 0 => Reply::Close { reason: "acks=0 failed".to_owned() },
            0 => Reply::Silent,
            1 => Reply::now(produced(wanted)),
            _ => {
                let (mut gate, waiting) = (self.gate.subscribe(), self.waiting.clone());
                waiting.fetch_add(1, Ordering::SeqCst);
                Reply::later(async move {
                    let _ = gate.wait_for(|open| *open >= wanted).await;
                    waiting.fetch_sub(1, Ordering::SeqCst);
                    Reply::now(produced(wanted))
                })
            }
        }
    }

    fn fetch(&self) -> Answer<Range> {
        let step = self.file_len / self.pieces;
        let mut ranges = Vec::new();
        let partitions = (0..self.pieces)
            .map(|piece| {
                let len = if piece + 1 == self.pieces { self.file_len - piece * step } else { step };
                ranges.push(Range {
                    file: self.file.clone(),
                    position: u64::from(piece * step),
                    len: u64::from(len),
                    hide_fd: self.hide_fd,
                });
                PartitionData {
                    partition_index: piece as i32,
                    records: Records::External(External { token: piece, len }),
                    ..Default::default()
                }
            })
            .collect();
        let topic =
            FetchableTopicResponse { topic: KString::from_static("t"), partitions, ..Default::default() };
        Answer { response: FetchResponse { responses: vec![topic], ..Default::default() }.into(), ranges }
    }
}

fn produced(offset: i32) -> ProduceResponse {
    let partition = PartitionProduceResponse { base_offset: i64::from(offset), ..Default::default() };
    let topic = TopicProduceResponse { partition_responses: vec![partition], ..Default::default() };
    ProduceResponse { responses: vec![topic], ..Default::default() }
}

pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) registry: Registry,
    pub(crate) stop: CancellationToken,
    pub(crate) task: tokio::task::JoinHandle<usize>,
}

pub(crate) async fn start(config: Config, toy: &Toy) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (registry, stop) = (Registry::new(), CancellationToken::new());
    let gateway = Gateway::new(config, toy.clone(), &registry).unwrap();
    let serving = gateway.serve(vec![Listening::new("PLAINTEXT", listener)], stop.clone());
    let task = tokio::spawn(async move { serving.await.unwrap() });
    Running { address, registry, stop, task }
}

impl Running {
    pub(crate) async fn connect(&self) -> Client {
        Client { stream: TcpStream::connect(self.address).await.unwrap() }
    }

    /// The value of a metric without labels; 0 if there is none.
    pub(crate) fn metric(&self, name: &str) -> i64 {
        let text = self.registry.encode();
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.map_or(0, |value| value.parse::<f64>().unwrap() as i64)
    }
}

pub(crate) struct Client {
    pub(crate) stream: TcpStream,
}

impl Client {
    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    /// The next frame, without its length; `None` if the connection is closed or reset.
    pub(crate) async fn frame(&mut self) -> Option<Bytes> {
        tokio::time::timeout(PATIENCE, async {
            let length = self.stream.read_i32().await.ok()?;
            let mut frame = vec![0; length as usize];
            self.stream.read_exact(&mut frame).await.ok()?;
            Some(Bytes::from(frame))
        })
        .await
        .unwrap()
    }

    pub(crate) async fn response(&mut self, key: ApiKey, version: i16) -> Option<(i32, Response)> {
        let frame = self.frame().await?;
        Some(decode_response(frame, key, version).unwrap())
    }

    /// A Produce answer's correlation id and base offset.
    pub(crate) async fn produced(&mut self) -> Option<(i32, i64)> {
        let (id, response) = self.response(ApiKey::Produce, 9).await?;
        let Response::Produce(response) = response else { panic!("{response:?}") };
        Some((id, response.responses[0].partition_responses[0].base_offset))
    }

    /// The records of a Fetch answer, in order.
    pub(crate) async fn fetched(&mut self) -> Option<(i32, Vec<Bytes>)> {
        let (id, response) = self.response(ApiKey::Fetch, 12).await?;
        let Response::Fetch(response) = response else { panic!("{response:?}") };
        let records = response.responses[0].partitions.iter().map(|partition| match &partition.records {
            Records::Bytes(bytes) => bytes.clone(),
            other => panic!("{other:?}"),
        });
        Some((id, records.collect()))
    }

    pub(crate) async fn metadata(&mut self) -> Option<i32> {
        self.response(ApiKey::Metadata, 9).await.map(|(id, _)| id)
    }

    /// Whether the server closes, without a further frame.
    pub(crate) async fn is_closed(&mut self) -> bool {
        self.frame().await.is_none()
    }
}

pub(crate) fn bytes(id: i32, version: i16, request: impl Into<Request>) -> Vec<u8> {
    let frame = encode_request(id, Some(KString::from_static("test")), version, &request.into()).unwrap();
    frame.assemble(|_| Bytes::new()).unwrap().to_vec()
}

pub(crate) fn metadata(id: i32) -> Vec<u8> {
    bytes(id, 9, MetadataRequest::default())
}

pub(crate) fn fetch(id: i32) -> Vec<u8> {
    bytes(id, 12, FetchRequest { replica_id: -1, ..Default::default() })
}

/// `acks=1` is answered at once, `-1` when the gate reaches `gate`.
pub(crate) fn produce(id: i32, acks: i16, gate: i32) -> Vec<u8> {
    produce_of(id, acks, gate, 0)
}

pub(crate) fn produce_of(id: i32, acks: i16, gate: i32, record_bytes: usize) -> Vec<u8> {
    let partition = messages::produce::PartitionProduceData {
        records: Some(Bytes::from(vec![7; record_bytes])),
        ..Default::default()
    };
    let topic = messages::produce::TopicProduceData { partition_data: vec![partition], ..Default::default() };
    bytes(id, 9, ProduceRequest { acks, timeout_ms: gate, topic_data: vec![topic], ..Default::default() })
}

/// Waits until `condition` holds.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"));
}

/// Bytes that tell their place.
pub(crate) fn content(size: usize) -> Vec<u8> {
    (0..size).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect()
}
