//! What the gateway asks of whoever answers requests.

use std::{future::Future, io, net::SocketAddr, os::fd::BorrowedFd, pin::Pin, sync::Arc};

use semel_kafka_wire::{ApiKey, KString, Request, Response};
use tokio::time::Instant;

/// Answers Kafka requests: the broker.
pub trait Backend: Clone + Send + Sync + 'static {
    /// Record batches that stay in their file until they are sent.
    type Range: FileRange;

    /// Answers one request, or begins to.
    ///
    /// Called on the connection's task, in the order in which the requests of a connection arrived: what must keep
    /// that order (an append) happens before this returns; what must wait goes into [`Reply::Later`]. It must not
    /// block for longer than a page-cache read or write.
    fn call(&self, context: &RequestContext, request: Request) -> Reply<Self::Range>;

    /// The APIs that are answered, with their versions: what ApiVersions shows, and all that `call` ever gets.
    /// `ApiVersions` itself need not be in it. Asked once, when the gateway is made.
    fn apis(&self) -> Vec<ApiRange>;

    /// What ApiVersions says of this node besides its APIs. Asked at each ApiVersions.
    fn node(&self) -> NodeInfo;
}

/// A future of a reply. The gateway may poll it more often than it was woken, and drops it with its connection.
pub type Later<R> = Pin<Box<dyn Future<Output = Reply<R>> + Send>>;

/// The end of a request, or its promise.
pub enum Reply<R> {
    /// The answer.
    Now(Answer<R>),
    /// The answer comes later; requests behind this one go on meanwhile.
    Later(Later<R>),
    /// There is no answer: Produce with `acks=0`.
    Silent,
    /// The connection is closed, after the answers before this one: a Produce with `acks=0` that failed has no other
    /// way to say so.
    Close {
        /// For the log.
        reason: String,
    },
}

impl<R> Reply<R> {
    /// An answer without file ranges.
    #[must_use]
    pub fn now(response: impl Into<Response>) -> Self {
        Self::Now(Answer::new(response))
    }

    /// [`Reply::Later`] of a future of an answer.
    #[must_use]
    pub fn later(future: impl Future<Output = Self> + Send + 'static) -> Self {
        Self::Later(Box::pin(future))
    }
}

/// A response and the file ranges it refers to: `External::token` is an index into `ranges`.
#[derive(Debug)]
pub struct Answer<R> {
    /// The response.
    pub response: Response,
    /// Each is sent once, where its token stands, and must be as long as the response says.
    pub ranges: Vec<R>,
}

impl<R> Answer<R> {
    /// Without file ranges.
    #[must_use]
    pub fn new(response: impl Into<Response>) -> Self {
        Self { response: response.into(), ranges: Vec::new() }
    }
}

/// A run of bytes in a file.
///
/// The bytes must stay as they are until it is dropped. It may outlive the file's name.
pub trait FileRange: Send + 'static {
    /// Where it begins in the file, in bytes.
    fn position(&self) -> u64;

    /// Its size, in bytes.
    fn len(&self) -> u64;

    /// Whether it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The open file for `sendfile`; `None` if it has no descriptor, and then `read_at` is used.
    fn as_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Reads at `position` of the file (not of the range); 0 only at the file's end. Errors: the file's.
    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize>;
}

/// The versions of one API that a backend answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApiRange {
    /// The API.
    pub key: ApiKey,
    /// The oldest version, inclusive.
    pub min: i16,
    /// The newest version, inclusive.
    pub max: i16,
}

impl ApiRange {
    /// All versions that Kafka advertises and the codec knows; `None` for an API without a schema.
    #[must_use]
    pub fn all(key: ApiKey) -> Option<Self> {
        semel_kafka_wire::support(key).map(|support| Self { key, min: support.min, max: support.stable_max })
    }
}

/// What a node says of itself in ApiVersions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeInfo {
    /// The cluster's id; a client that expects another is told to bootstrap anew. `None` while it isn't known.
    pub cluster_id: Option<String>,
    /// This broker's id, if it has one.
    pub node_id: Option<i32>,
    /// The features this node can do.
    pub supported_features: Vec<FeatureRange>,
    /// The features the cluster has agreed on, as of `finalized_features_epoch`.
    pub finalized_features: Vec<FeatureLevel>,
    /// Moves with each change of `finalized_features`; -1 if they are not known.
    pub finalized_features_epoch: i64,
}

/// The levels of one feature that a node can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeatureRange {
    /// Kafka's name, such as `transaction.version`.
    pub name: &'static str,
    /// Inclusive.
    pub min: i16,
    /// Inclusive.
    pub max: i16,
}

/// The level of one feature that the cluster has agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeatureLevel {
    /// Kafka's name, such as `transaction.version`.
    pub name: &'static str,
    /// The level.
    pub level: i16,
}

/// What is known of a connection from the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionInfo {
    /// Unique in this gateway's life.
    pub id: u64,
    /// The client's address.
    pub peer: SocketAddr,
    /// The name of the listener it came through.
    pub listener: Arc<str>,
}

/// What a client's ApiVersions request said of its library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientSoftware {
    /// Such as `apache-kafka-java`.
    pub name: Box<str>,
    /// Such as `4.0.0`.
    pub version: Box<str>,
}

/// Everything about a request but its body. Cheap to clone.
#[derive(Clone, Debug)]
pub struct RequestContext {
    /// The connection.
    pub connection: Arc<ConnectionInfo>,
    /// The client's library, if it said.
    pub software: Option<Arc<ClientSoftware>>,
    /// What the client calls itself. Keeps the frame alive: `detached` it to hold it for long.
    pub client_id: Option<KString>,
    /// The API.
    pub key: ApiKey,
    /// Its version, one that [`Backend::apis`] names.
    pub version: i16,
    /// The client's number of this request.
    pub correlation_id: i32,
    /// When it had been read; monotonic.
    pub received: Instant,
}
