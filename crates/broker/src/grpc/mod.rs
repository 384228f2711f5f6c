//! The gRPC front door: `semel.v1`, with the same checks and error names as the Kafka listener.

mod admin;
mod admission;
mod cluster;
mod fetch;
mod log;

use std::{convert::Infallible, sync::Arc, time::Duration};

use futures::{Stream, StreamExt as _};
use parking_lot::RwLock;
use semel_kafka_wire::ErrorCode;
use semel_metadata::config::broker_def;
use semel_proto::v1::{
    admin_service_server::AdminServiceServer, cluster_service_server::ClusterServiceServer,
    log_service_server::LogServiceServer,
};
use semel_service::grpc::Server;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use self::admission::Admission;
use crate::{config::Config, failure::Failure, node::Node};

/// What a message holds besides its batch.
const ENVELOPE_BYTES: usize = 1 << 20;
/// How long acknowledgements that are waited for may take once the door closes; as the Kafka listener's.
const CLOSE_GRACE: Duration = Duration::from_secs(5);
/// Fetches at a time that hold a batch of more than [`fetch::BATCH_BYTES`] once decompressed.
const LARGE_BATCHES_MAX: usize = 4;

/// What the gRPC door holds in memory at the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest message taken, in bytes, inclusive. Default 16 MiB.
    pub message_bytes_max: usize,
    /// All produce requests that are being received or appended, in bytes. Not less than `message_bytes_max`.
    /// Default 128 MiB.
    pub produce_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { message_bytes_max: 16 << 20, produce_bytes_max: 128 << 20 }
    }
}

impl Limits {
    /// The defaults, or what `message.max.bytes` in the broker's file needs where that is more.
    #[must_use]
    pub fn of(config: &Config) -> Self {
        let default = Self::default();
        let name = "message.max.bytes";
        let batch = config.settings.get(name).map(String::as_str).or(broker_def(name).map(|def| def.default));
        let batch = batch.and_then(|bytes| bytes.trim().parse::<usize>().ok()).unwrap_or_default();
        let message_bytes_max = default.message_bytes_max.max(batch.saturating_add(ENVELOPE_BYTES));
        Self { message_bytes_max, produce_bytes_max: default.produce_bytes_max.max(message_bytes_max) }
    }
}

/// The broker's gRPC services. They can be served before the broker is there, which in one process with the
/// controller they must be, and after it has stopped; each call then fails with BROKER_NOT_AVAILABLE. Cheap to clone;
/// all clones are one.
#[derive(Clone)]
pub struct FrontDoor {
    inner: Arc<Inner>,
}

struct Inner {
    limits: Limits,
    state: RwLock<State>,
    /// Cancelled when the door closes: streams end.
    closed: CancellationToken,
    /// A permit for each byte of [`Limits::produce_bytes_max`].
    produce_room: Arc<Semaphore>,
    large_batches: Arc<Semaphore>,
}

enum State {
    Starting,
    Open {
        node: Arc<Node>,
        /// Each request that waits for its acknowledgement has a clone.
        working: mpsc::Sender<Infallible>,
        /// Ends when they all have ended.
        done: mpsc::Receiver<Infallible>,
    },
    Closed,
}

/// A request that the door's closing waits for, until dropped.
struct Working {
    _sender: mpsc::Sender<Infallible>,
}

impl Default for FrontDoor {
    fn default() -> Self {
        Self::new()
    }
}

impl FrontDoor {
    /// Closed until the broker has started; with the default limits.
    #[must_use]
    pub fn new() -> Self {
        Self::with_limits(Limits::default())
    }

    /// As [`new`](Self::new), with other limits.
    #[must_use]
    pub fn with_limits(limits: Limits) -> Self {
        let room = limits.produce_bytes_max.max(limits.message_bytes_max).min(Semaphore::MAX_PERMITS);
        Self {
            inner: Arc::new(Inner {
                limits,
                state: RwLock::new(State::Starting),
                closed: CancellationToken::new(),
                produce_room: Arc::new(Semaphore::new(room)),
                large_batches: Arc::new(Semaphore::new(LARGE_BATCHES_MAX)),
            }),
        }
    }

    /// Adds the services to a server.
    #[must_use]
    pub fn add_to(&self, server: Server) -> Server {
        let bytes_max = self.inner.limits.message_bytes_max;
        let log = LogServiceServer::new(log::Log { door: self.clone() })
            .max_decoding_message_size(bytes_max)
            .max_encoding_message_size(usize::MAX);
        server
            .add_service(Admission::new(log, self.inner.produce_room.clone(), bytes_max))
            .add_service(AdminServiceServer::new(admin::Admin { door: self.clone() }))
            .add_service(
                ClusterServiceServer::new(cluster::Cluster { door: self.clone() })
                    .max_encoding_message_size(usize::MAX),
            )
    }

    pub(crate) fn open(&self, node: Arc<Node>) {
        let mut state = self.inner.state.write();
        // A door opens once; a second broker behind one door would be a mistake of whoever starts it.
        assert!(matches!(*state, State::Starting), "the front door has or had a broker already");
        let (working, done) = mpsc::channel(1);
        *state = State::Open { node, working, done };
    }

    /// Ends what goes through the door: when this returns nothing is appended any more, streams are told to end, and
    /// acknowledgements that were waited for have been given, or can't be soon. The logs may be closed then.
    pub(crate) async fn close(&self) {
        // Whoever appends holds the lock for reading.
        let was = std::mem::replace(&mut *self.inner.state.write(), State::Closed);
        self.inner.closed.cancel();
        let State::Open { working, mut done, .. } = was else { return };
        drop(working);
        if tokio::time::timeout(CLOSE_GRACE, done.recv()).await.is_err() {
            tracing::warn!("gRPC producers still wait for acknowledgements, closing all the same");
        }
    }

    fn node(&self) -> Result<Arc<Node>, Failure> {
        match &*self.inner.state.read() {
            State::Open { node, .. } => Ok(node.clone()),
            other => Err(other.not_open()),
        }
    }

    /// Does something that changes a log, and that must not wait for anything: the door does not close meanwhile.
    /// The guard is kept as long as the closing should wait for what follows.
    fn change<T>(&self, change: impl FnOnce(Working) -> Result<T, Failure>) -> Result<T, Failure> {
        match &*self.inner.state.read() {
            State::Open { working, .. } => change(Working { _sender: working.clone() }),
            other => Err(other.not_open()),
        }
    }

    /// `stream` until the door closes. The last item says so then: it is not an end as the client asked for.
    fn until_closed<T: Send + 'static>(
        &self,
        stream: impl Stream<Item = Result<T, Status>> + Send + 'static,
    ) -> impl Stream<Item = Result<T, Status>> + Send + 'static {
        let closed = self.inner.closed.clone();
        let last = futures::stream::once(async move {
            closed.is_cancelled().then(|| Err(State::Closed.not_open().into()))
        });
        stream
            .take_until(self.inner.closed.clone().cancelled_owned())
            .chain(last.filter_map(std::future::ready))
    }
}

impl State {
    fn not_open(&self) -> Failure {
        let text = match self {
            Self::Closed => "the broker is stopping",
            Self::Starting | Self::Open { .. } => "the broker is starting, try again shortly",
        };
        Failure::new(ErrorCode::BrokerNotAvailable, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_door_without_a_broker_refuses_and_closes_at_once() {
        let door = FrontDoor::new();
        let refusal = |door: &FrontDoor| door.node().map(drop).unwrap_err();
        assert_eq!(refusal(&door).code, ErrorCode::BrokerNotAvailable);
        assert!(refusal(&door).message.contains("starting"));
        door.close().await;
        assert!(refusal(&door).message.contains("stopping"));
        assert!(door.change(|_| Ok(())).is_err());
        assert!(door.inner.closed.is_cancelled());
    }

    #[test]
    fn messages_are_as_large_as_the_largest_batch_needs() {
        let mut config = crate::config::tests::config();
        assert_eq!(Limits::of(&config), Limits::default());
        config.settings.insert("message.max.bytes".into(), (200 << 20).to_string());
        let limits = Limits::of(&config);
        assert_eq!(limits.message_bytes_max, 201 << 20);
        assert_eq!(limits.produce_bytes_max, limits.message_bytes_max);
    }
}
