//! Appending records: batched by partition, one stream per leader, in order, each once.
//!
//! ```text
//! send ──▶ partition ──▶ lane ──▶ leg ──▶ broker        lane: one partition's open batch, queue and batches in flight
//!              ▲                                        leg:  one ProduceStream to one broker
//!        key or sticky                                  engine: the one task that owns both
//! ```
//!
//! Start with [`engine`]; [`lane`] holds the rules of sequences and retries and no I/O at all.

mod engine;
mod lane;
mod leg;

use std::{
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use semel_model::{Offset, PartitionIndex, ProducerEpoch, ProducerId, Timestamp};
use semel_proto::v1;
pub use semel_record::RecordHeader as Header;
use semel_record::{Codec, Compression};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::{
    Cluster, Error, TopicView,
    error::{Failed, Safety},
    partitioner::{Sticky, partition_for_key},
};
use engine::{Command, Engine};

/// Commands on their way to the engine; records are bounded by bytes besides.
const COMMANDS_MAX: usize = 4096;

/// When an append counts as done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Acks {
    /// When all in-sync replicas have it, on stable storage where the topic says so.
    #[default]
    All,
    /// When the leader's log has it. Not idempotent: a retry after a lost answer may append twice, and one batch is
    /// in flight at a time so that the order is kept.
    Leader,
}

/// How an [`Appender`] gathers and sends.
#[derive(Clone, Debug)]
pub struct AppenderConfig {
    /// When an append counts as done. Default all (`acks`).
    pub acks: Acks,
    /// Default none (`compression.type`).
    pub codec: Codec,
    /// The codec's level; `None`: its default (`compression.*.level`).
    pub level: Option<i32>,
    /// A batch is sent when it has this many bytes before compression. Default 256 KiB (`batch.size`). A larger
    /// record makes a batch of its own.
    pub batch_bytes: usize,
    /// A batch is sent when its first record is this old. Default 5 ms (`linger.ms`).
    pub linger: Duration,
    /// Bytes of records that may wait for their acknowledgement; then [`Appender::send`] waits. Default 64 MiB
    /// (`buffer.memory`). Encoded batches in flight come on top, at most once more.
    pub buffer_bytes: usize,
    /// Batches in flight per partition, 1 to 5: brokers recognise the last five. Default 5.
    pub in_flight_max: usize,
    /// How long a batch is retried before its records fail. Default 120 s (`delivery.timeout.ms`).
    pub delivery_timeout: Duration,
}

impl Default for AppenderConfig {
    fn default() -> Self {
        Self {
            acks: Acks::All,
            codec: Codec::None,
            level: None,
            batch_bytes: 256 << 10,
            linger: Duration::from_millis(5),
            buffer_bytes: 64 << 20,
            in_flight_max: 5,
            delivery_timeout: Duration::from_secs(120),
        }
    }
}

/// A record to append.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewRecord {
    /// `None` is null, which is not empty.
    pub key: Option<Bytes>,
    /// `None` is null: a tombstone on a compacted topic.
    pub value: Option<Bytes>,
    /// In order; keys may repeat.
    pub headers: Vec<Header>,
    /// `None`: the time of [`Appender::send`].
    pub timestamp: Option<Timestamp>,
}

impl NewRecord {
    /// In a batch before compression: the bytes, and generously what frames them.
    pub(crate) fn size(&self) -> usize {
        let part = |part: &Option<Bytes>| part.as_ref().map_or(0, Bytes::len);
        let headers: usize = self.headers.iter().map(|one| one.key.len() + part(&one.value) + 10).sum();
        part(&self.key) + part(&self.value) + headers + 32
    }
}

/// Where a record went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Chosen by key, or sticky.
    pub partition: PartitionIndex,
    /// `None`: a retry found the record in the log already, too far back for the broker to say where.
    pub offset: Option<Offset>,
    /// The broker's time, if the topic stamps records; else the record's own.
    pub timestamp: Timestamp,
}

/// Resolves when the record's fate is known. Dropping it leaves the record on its way.
#[derive(Debug)]
pub struct Receipt {
    answer: oneshot::Receiver<Result<Appended, Error>>,
}

impl Future for Receipt {
    type Output = Result<Appended, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.answer).poll(context).map(|answer| answer.unwrap_or(Err(Error::Closed)))
    }
}

/// Appends records, idempotently with [`Acks::All`]. Cheap to clone; clones share one engine, which goes on until
/// all of them are gone and what they sent is decided.
#[derive(Clone, Debug)]
pub struct Appender {
    cluster: Cluster,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    commands: mpsc::Sender<Command>,
    room: Arc<Semaphore>,
    buffer_bytes: usize,
    batch_bytes: usize,
    /// By topic.
    sticky: Mutex<BTreeMap<Arc<str>, Sticky>>,
}

/// Who an appender is to the brokers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) id: ProducerId,
    pub(crate) epoch: ProducerEpoch,
}

impl Identity {
    /// Of appends that are not idempotent.
    pub(crate) const NONE: Self = Self { id: ProducerId::NONE, epoch: ProducerEpoch::NONE };
}

impl Cluster {
    /// Starts an appender; with [`Acks::All`] a broker gives it a producer id first. Must be called within a tokio
    /// runtime.
    pub async fn appender(&self, config: AppenderConfig) -> Result<Appender, Error> {
        let identity =
            match config.acks {
                Acks::All => {
                    self.retry("get a producer id", Safety::Repeatable, || async move {
                        self.init_producer().await
                    })
                    .await?
                }
                Acks::Leader => Identity::NONE,
            };
        // The semaphore counts in u32.
        let buffer_bytes = config.buffer_bytes.clamp(1, u32::MAX as usize);
        let batch_bytes = config.batch_bytes;
        let (commands, inbox) = mpsc::channel(COMMANDS_MAX);
        tokio::spawn(Engine::new(self.clone(), config, identity).run(inbox));
        let room = Arc::new(Semaphore::new(buffer_bytes));
        let shared = Shared { commands, room, buffer_bytes, batch_bytes, sticky: Mutex::default() };
        Ok(Appender { cluster: self.clone(), shared: Arc::new(shared) })
    }

    pub(crate) async fn init_producer(&self) -> Result<Identity, Failed> {
        let address = self.any();
        let mut client = self.log_client(&address)?;
        let response = self.settle(&address, client.init_producer(v1::InitProducerRequest {})).await?;
        match i16::try_from(response.producer_epoch) {
            Ok(epoch) if response.producer_id >= 0 && epoch >= 0 => {
                Ok(Identity { id: ProducerId(response.producer_id), epoch: ProducerEpoch(epoch) })
            }
            _ => {
                let text = format!(
                    "the broker gave producer id {} epoch {}",
                    response.producer_id, response.producer_epoch
                );
                Err(Failed::answered(&address, v1::Error::new(v1::ErrorCode::UnknownServerError, text)))
            }
        }
    }
}

impl Appender {
    /// Hands a record over; waits while the buffer is full. Without a `partition` the key decides, or without a key
    /// the partition in turn. Records that one task sends to one partition are appended in that order.
    ///
    /// Errors: [`Error::RecordTooLarge`], [`Error::NoSuchPartition`], [`Error::Closed`], or the topic can't be
    /// looked up. What becomes of the record afterwards, the receipt says.
    pub async fn send(
        &self,
        topic: &str,
        partition: Option<PartitionIndex>,
        mut record: NewRecord,
    ) -> Result<Receipt, Error> {
        let size = record.size();
        let bound = self.shared.buffer_bytes;
        if size > bound {
            return Err(Error::RecordTooLarge { size, bound });
        }
        let view = self.cluster.topic(topic).await?;
        let partition = self.place(&view, partition, &record, size)?;
        record.timestamp.get_or_insert_with(|| self.cluster.clock().now());
        let room = Arc::clone(&self.shared.room)
            .acquire_many_owned(u32::try_from(size).unwrap_or(u32::MAX))
            .await
            .map_err(|_| Error::Closed)?;
        let (tell, answer) = oneshot::channel();
        let topic = Arc::clone(&view.name);
        let command =
            Command::Append { topic, partition, record, size, waiter: Waiter { tell, _room: room } };
        self.shared.commands.send(command).await.map_err(|_| Error::Closed)?;
        Ok(Receipt { answer })
    }

    /// Sends what is gathered at once and waits until everything handed over before is decided, either way.
    pub async fn flush(&self) -> Result<(), Error> {
        let (tell, done) = oneshot::channel();
        self.shared.commands.send(Command::Flush(tell)).await.map_err(|_| Error::Closed)?;
        done.await.map_err(|_| Error::Closed)
    }

    fn place(
        &self,
        view: &TopicView,
        wanted: Option<PartitionIndex>,
        record: &NewRecord,
        size: usize,
    ) -> Result<PartitionIndex, Error> {
        let count = view.partitions.len();
        if let Some(partition) = wanted {
            if usize::try_from(partition.get()).is_ok_and(|at| at < count) {
                return Ok(partition);
            }
            return Err(Error::NoSuchPartition {
                topic: view.name.to_string(),
                partition: partition.get(),
                count,
            });
        }
        if let Some(key) = &record.key {
            return Ok(partition_for_key(key, count));
        }
        let mut sticky = self.shared.sticky.lock().unwrap_or_else(PoisonError::into_inner);
        let sticky = sticky
            .entry(Arc::clone(&view.name))
            .or_insert_with(|| Sticky::new(self.cluster.entropy().next_u64()));
        Ok(sticky.place(size, self.shared.batch_bytes, &view.led, count))
    }
}

/// Whoever waits for a record, and the room the record takes until then.
#[derive(Debug)]
pub(crate) struct Waiter {
    tell: oneshot::Sender<Result<Appended, Error>>,
    _room: tokio::sync::OwnedSemaphorePermit,
}

impl Waiter {
    /// The receipt may have been dropped: then nobody wants to know.
    pub(crate) fn settle(self, result: Result<Appended, Error>) {
        let _ = self.tell.send(result);
    }
}

impl AppenderConfig {
    pub(crate) fn compression(&self) -> Compression {
        Compression { codec: self.codec, level: self.level }
    }
}
