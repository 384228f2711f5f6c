//! Listeners, and the connections they accept.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use semel_kafka_wire::ApiKey;
use semel_service::{
    metrics::Registry,
    net::{accept_backoff, is_connection_error},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    api_versions,
    backend::{ApiRange, Backend, ConnectionInfo},
    config::{Config, ConfigError, ListenerConfig},
    connection::{Closed, Connection},
    metrics::Metrics,
    pool::Pool,
};

/// A bound listener.
#[derive(Debug)]
pub struct Listening {
    name: Arc<str>,
    listener: TcpListener,
}

impl Listening {
    /// A listener that was bound elsewhere.
    #[must_use]
    pub fn new(name: &str, listener: TcpListener) -> Self {
        Self { name: name.into(), listener }
    }

    /// Its configured name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it is bound. Errors: the system's.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Binds a listener; clients wait in the kernel's queue until [`Gateway::serve`].
///
/// Errors: the address is in use or isn't one of this host; the message names it.
pub async fn bind(config: &ListenerConfig) -> io::Result<Listening> {
    Ok(Listening::new(&config.name, semel_service::net::bind(&config.bind).await?))
}

/// The Kafka front door of one node.
pub struct Gateway<B> {
    shared: Arc<Shared<B>>,
}

/// What all connections have in common.
pub(crate) struct Shared<B> {
    pub(crate) config: Config,
    pub(crate) backend: B,
    pub(crate) metrics: Metrics,
    pub(crate) pool: Arc<Pool>,
    /// What ApiVersions shows, by key.
    pub(crate) apis: Vec<ApiRange>,
    permits: Arc<Semaphore>,
    per_ip: Mutex<BTreeMap<IpAddr, usize>>,
    next_id: AtomicU64,
}

impl<B> Shared<B> {
    /// Whether the backend answers this version of this API.
    pub(crate) fn serves(&self, key: ApiKey, version: i16) -> bool {
        self.apis
            .binary_search_by_key(&key, |api| api.key)
            .is_ok_and(|index| (self.apis[index].min..=self.apis[index].max).contains(&version))
    }
}

impl<B: Backend> Gateway<B> {
    /// Errors: [`ConfigError`].
    pub fn new(config: Config, backend: B, registry: &Registry) -> Result<Self, ConfigError> {
        config.validate()?;
        let apis = api_versions::advertised(backend.apis());
        let pool = Arc::new(Pool::new(config.request_bytes_max));
        let metrics = Metrics::new(registry, &apis);
        let (memory, of_pool) = (metrics.request_memory.clone(), pool.clone());
        registry.on_scrape(move || memory.set(i64::try_from(of_pool.used()).unwrap_or(i64::MAX)));
        Ok(Self {
            shared: Arc::new(Shared {
                permits: Arc::new(Semaphore::new(config.connections_max.min(Semaphore::MAX_PERMITS))),
                config,
                backend,
                metrics,
                pool,
                apis,
                per_ip: Mutex::default(),
                next_id: AtomicU64::new(1),
            }),
        })
    }

    /// Serves clients of `listeners` until `stop` is cancelled; then accepts and reads no more, lets the requests in
    /// flight be answered for at most the configured grace, and closes. When this ends, or is dropped, every
    /// connection is closed or about to be.
    ///
    /// Gives the number of connections that had to be cut. Errors: [`ConfigError::SameName`].
    pub async fn serve(
        self,
        listeners: Vec<Listening>,
        stop: CancellationToken,
    ) -> Result<usize, ConfigError> {
        for (index, listening) in listeners.iter().enumerate() {
            if listeners[..index].iter().any(|earlier| earlier.name == listening.name) {
                return Err(ConfigError::SameName { name: listening.name.to_string() });
            }
        }
        // Dropping this future must end its connections, which are tasks of their own.
        let cut = CancellationToken::new();
        let guard = cut.clone().drop_guard();
        let (tasks, connections) = (TaskTracker::new(), TaskTracker::new());
        for listening in listeners {
            let accepting =
                accept(self.shared.clone(), listening, stop.clone(), cut.clone(), connections.clone());
            // A dropped `serve` must not leave listeners open either.
            let cut = cut.clone();
            tasks.spawn(async move {
                tokio::select! {
                    () = accepting => {}
                    () = cut.cancelled() => {}
                }
            });
        }
        tasks.close();
        stop.cancelled().await;
        tasks.wait().await;
        connections.close();
        let grace = self.shared.config.stop_grace;
        let left = match tokio::time::timeout(grace, connections.wait()).await {
            Ok(()) => 0,
            Err(_) => connections.len(),
        };
        drop(guard);
        connections.wait().await;
        if left > 0 {
            tracing::warn!(
                connections = left,
                ?grace,
                "requests still in flight after the grace, connections cut"
            );
        }
        Ok(left)
    }
}

async fn accept<B: Backend>(
    shared: Arc<Shared<B>>,
    listening: Listening,
    stop: CancellationToken,
    cut: CancellationToken,
    connections: TaskTracker,
) {
    let Listening { name, listener } = listening;
    let mut failures = 0_u32;
    loop {
        let accepted = async {
            let (stream, peer) = listener.accept().await?;
            // Over the bound it waits here, and those behind it in the kernel's queue. Not before `accept`: a quiet
            // listener would hold a place that another one needs.
            let permit = shared.permits.clone().acquire_owned().await.ok();
            io::Result::Ok((stream, peer, permit))
        };
        let result = tokio::select! {
            () = stop.cancelled() => return,
            result = accepted => result,
        };
        match result {
            Ok((stream, peer, permit)) => {
                failures = 0;
                shared.metrics.accepted.inc();
                let Some(place) = Place::take(&shared, peer.ip(), permit) else {
                    shared.metrics.refused.inc();
                    tracing::info!(%peer, listener = &*name, "connection refused, its address has too many");
                    continue;
                };
                let info = Arc::new(ConnectionInfo {
                    id: shared.next_id.fetch_add(1, Ordering::Relaxed),
                    peer,
                    listener: name.clone(),
                });
                connections.spawn(serve_one(shared.clone(), stream, info, stop.clone(), cut.clone(), place));
            }
            Err(error) if is_connection_error(&error) => {}
            Err(error) => {
                failures = failures.saturating_add(1);
                if failures == 1 {
                    tracing::warn!(%error, listener = &*name, "cannot accept connections");
                }
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(accept_backoff(failures)) => {}
                }
            }
        }
    }
}

async fn serve_one<B: Backend>(
    shared: Arc<Shared<B>>,
    stream: TcpStream,
    info: Arc<ConnectionInfo>,
    stop: CancellationToken,
    cut: CancellationToken,
    place: Place<B>,
) {
    // Answers are written whole; Nagle's algorithm would only hold back their last packet.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(peer = %info.peer, %error, "cannot set TCP_NODELAY");
    }
    tracing::debug!(connection = info.id, peer = %info.peer, listener = &*info.listener, "connected");
    let mut connection = Connection::new(shared.clone(), stream, info.clone(), stop, cut);
    let closed = std::future::poll_fn(|cx| connection.poll(cx)).await;
    if let Closed::Stopped = closed {
        connection.linger().await;
    }
    drop(connection);
    drop(place);
    shared.metrics.closed.with_label_values(&[closed.label()]).inc();
    closed.log(&info);
}

/// A connection's place among all, and among those of its address; free again when dropped.
struct Place<B> {
    shared: Arc<Shared<B>>,
    ip: IpAddr,
    _permit: Option<OwnedSemaphorePermit>,
}

impl<B> Place<B> {
    fn take(shared: &Arc<Shared<B>>, ip: IpAddr, permit: Option<OwnedSemaphorePermit>) -> Option<Self> {
        let mut per_ip = shared.per_ip.lock().unwrap_or_else(PoisonError::into_inner);
        let count = per_ip.entry(ip).or_default();
        if *count >= shared.config.connections_per_ip_max {
            return None;
        }
        *count += 1;
        shared.metrics.connections.inc();
        Some(Self { shared: shared.clone(), ip, _permit: permit })
    }
}

impl<B> Drop for Place<B> {
    fn drop(&mut self) {
        self.shared.metrics.connections.dec();
        let mut per_ip = self.shared.per_ip.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = per_ip.get_mut(&self.ip) {
            *count -= 1;
            if *count == 0 {
                per_ip.remove(&self.ip);
            }
        }
    }
}
