//! The broker: joins the partition core to the log, and serves both front doors.
//!
//! It holds sockets, threads and files, and decides nothing about offsets, epochs or the cluster: that is
//! [`semel_partition`], [`semel_metadata`] and the controller. Everything that answers a request works on one
//! `Node`; the Kafka door (`kafka/`) and the gRPC door (`grpc/`) are two ways into the same operations (`ops/`,
//! `partition.rs`).
//!
//! Invariants:
//! - an acknowledgement leaves only when the replica's high watermark has passed the batch (acks=all), and under
//!   `semel.durability=fsync` that is only after it is on stable storage;
//! - no lock is held across an await or a sync, and nothing is copied or allocated per record;
//! - a directory that fails takes its partitions offline, not the broker; a full disk refuses appends and nothing else.
//!
//! Start with [`Broker::start`], then `node.rs` and `partition.rs`. Deliberately absent: replication between brokers,
//! transactions and groups.

mod assignment;
mod cleaner;
mod config;
mod controller_client;
mod directory;
mod failure;
mod flusher;
mod grpc;
mod housekeeping;
mod kafka;
mod lifecycle;
mod metadata_cache;
mod metrics;
mod node;
mod ops;
mod partition;
mod partitions;
mod producer_ids;
mod topic_settings;
mod waiters;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use semel_env::{Clock, Entropy, RealClock, RealDisk, RealEntropy};
use semel_kafka_gateway::{
    Config as GatewayConfig, Gateway, Listening, bind,
    fetch_session::{SessionCache, SessionConfig},
};
use semel_log::{DirectoryId, Identity as DirectoryIdentity, LogDir, LogDirError, Opened};
use semel_metadata::{ClusterImage, config::resolve_broker};
use semel_service::{
    health::{Health, Reporter},
    metrics::Registry,
    shutdown::ShutdownTracker,
};
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

pub use config::{Config, ConfigError, File, Listener};
pub use grpc::FrontDoor;
pub use semel_kafka_gateway::ListenerConfig;

use crate::{
    cleaner::Cleaner,
    controller_client::ControllerClient,
    directory::{Attention, Directory},
    flusher::Flusher,
    housekeeping::Housekeeping,
    kafka::backend::KafkaBackend,
    lifecycle::{Identity, Registration, Wish},
    metadata_cache::MetadataCache,
    metrics::PartitionMetrics,
    node::Node,
    partitions::{Partitions, Parts},
    producer_ids::ProducerIds,
};

/// How long tasks may take to end.
const STOP_GRACE: Duration = Duration::from_secs(10);

/// Why a broker can't start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration contradicts itself.
    #[error("broker configuration is not valid")]
    Config(#[from] ConfigError),
    /// The Kafka listener can't be bound.
    #[error("cannot listen for Kafka clients on {address}")]
    Listen {
        /// As configured.
        address: String,
        /// What the system said.
        #[source]
        cause: std::io::Error,
    },
    /// `kafka.advertised` is not `host:port`.
    #[error("kafka.advertised {0:?} is not host:port")]
    Advertised(String),
    /// The limits of connections contradict each other.
    #[error("kafka listener settings are not valid")]
    Gateway(#[from] semel_kafka_gateway::ConfigError),
    /// A log directory is not usable.
    #[error("cannot use log directory")]
    LogDir(#[from] LogDirError),
    /// Two directories hold different clusters' data.
    #[error("log directories belong to different clusters: {0:?} and {1:?}")]
    TwoClusters(String, String),
    /// The system refused a thread.
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
    /// The controller refused this broker, for a reason that no retry mends.
    #[error("the controller refused this broker")]
    Refused(#[source] semel_proto::v1::Error),
}

/// A broker that serves. Dropping it without [`Broker::stop`] is a crash as far as its logs are concerned.
pub struct Broker {
    node: Arc<Node>,
    kafka: SocketAddr,
    housekeeping: Housekeeping,
    cleaner: Cleaner,
    wish: watch::Sender<Wish>,
    released: watch::Receiver<bool>,
    stop_kafka: CancellationToken,
    stop_tasks: CancellationToken,
    tracker: ShutdownTracker,
    kafka_task: JoinHandle<()>,
}

/// What surrounds a broker in its process.
pub struct Surroundings {
    /// Where its metrics go.
    pub registry: Registry,
    /// Where it says whether it is ready.
    pub health: Health,
    /// Where its gRPC services are reached: what it tells the cluster unless the configuration names an address.
    pub grpc: SocketAddr,
    /// Ends a start that waits for a controller.
    pub stop: CancellationToken,
}

impl Broker {
    /// Opens the log directories, registers, applies the cluster's metadata (which opens and recovers the logs), and
    /// serves Kafka clients. When this returns the controller has unfenced the broker.
    ///
    /// `door` answers gRPC from here on; its server may run already. Must be called within a runtime.
    /// Errors: [`StartError`]; a controller that can't be reached is waited for until `surroundings.stop`.
    pub async fn start(config: Config, surroundings: Surroundings, door: &FrontDoor) -> Result<Self, StartError> {
        config.validate()?;
        let Surroundings { registry, health, grpc, stop } = surroundings;
        let ready = health.component("broker");
        ready.not_ready("opening log directories");
        let listening = bind(&config.kafka)
            .await
            .map_err(|cause| StartError::Listen { address: config.kafka.bind.clone(), cause })?;
        let kafka = listening
            .local_addr()
            .map_err(|cause| StartError::Listen { address: config.kafka.bind.clone(), cause })?;
        let (kafka_host, kafka_port) = config
            .kafka
            .advertised(kafka)
            .ok_or_else(|| StartError::Advertised(config.kafka.advertised.clone().unwrap_or_default()))?;

        let clock: Arc<dyn Clock> = Arc::new(RealClock::new());
        let entropy: Arc<dyn Entropy> = Arc::new(RealEntropy);
        let metrics = Arc::new(PartitionMetrics::new(&registry));
        let statics = Arc::new(config.settings.clone());
        // Only settings from the file count before the first metadata is there; these can't change at run time.
        let effective = resolve_broker(&ClusterImage::new(), config.id, &statics);
        let gateway_config = gateway_config(&effective);
        gateway_config.validate()?;

        let mut opened = open_log_dirs(&config, &*entropy)?;
        let cluster_id = agreed_cluster_id(&opened)?;
        let metadata = Arc::new(MetadataCache::new());
        let registration = Registration::none();
        let controller = ControllerClient::new(config.controllers.clone());
        let identity = Identity {
            incarnation_id: entropy.uuid().into_bytes(),
            kafka_host,
            kafka_port,
            grpc_address: config.grpc_advertised.clone().unwrap_or_else(|| grpc.to_string()),
            rack: config.rack.clone(),
            cluster_id,
            heartbeat_interval: Duration::from_millis(
                effective.long("broker.heartbeat.interval.ms").and_then(|ms| u64::try_from(ms).ok()).unwrap_or(2000),
            ),
        };
        ready.not_ready("waiting for a controller");
        let cluster_id = lifecycle::register(config.id, &controller, &registration, &identity, &stop)
            .await
            .map_err(StartError::Refused)?;
        for (dir, _) in &mut opened {
            dir.bind_cluster(&cluster_id)?;
        }
        let identity = Identity { cluster_id, ..identity };

        let attention = Arc::new(Attention::default());
        let directories = in_use(opened, &metrics, &attention)?;
        let node = Arc::new(Node {
            id: config.id,
            auto_create_topics: effective.boolean("auto.create.topics.enable").unwrap_or(true),
            fetch_bytes_max: effective
                .long("fetch.max.bytes")
                .and_then(|bytes| u32::try_from(bytes).ok())
                .unwrap_or(u32::MAX),
            partitions: Partitions::new(Parts {
                me: config.id,
                clock: clock.clone(),
                entropy: entropy.clone(),
                statics: statics.clone(),
                metadata: metadata.clone(),
                metrics: metrics.clone(),
                producer_id_expiration: semel_model::Millis(
                    effective.long("producer.id.expiration.ms").unwrap_or(86_400_000).max(1),
                ),
                registration: registration.clone(),
                directories,
            }),
            producer_ids: ProducerIds::new(config.id, controller.clone(), registration.clone()),
            fetch_sessions: SessionCache::new(SessionConfig::default(), entropy.next_u64()),
            clock,
            statics,
            metadata,
            controller,
            registration,
        });
        metrics::on_scrape(&registry, &node);

        let tracker = ShutdownTracker::new();
        let stop_tasks = CancellationToken::new();
        let (wish, wishes) = watch::channel(Wish::Serve);
        let (release, released) = watch::channel(false);
        tracker.spawn("metadata", lifecycle::follow_metadata(node.clone(), stop_tasks.clone()));
        tracker
            .spawn("heartbeat", lifecycle::heartbeats(node.clone(), identity, wishes, release, stop_tasks.clone()));
        ready.not_ready("recovering logs");
        tokio::select! {
            () = lifecycle::until_unfenced(&node) => {}
            () = stop.cancelled() => {}
        }
        let housekeeping =
            Housekeeping::start(node.clone(), metrics.clone(), attention).map_err(StartError::Thread)?;
        let cleaner = Cleaner::start(node.clone(), metrics, entropy).map_err(StartError::Thread)?;

        door.open(node.clone());
        let stop_kafka = CancellationToken::new();
        let gateway = Gateway::new(gateway_config, KafkaBackend { node: node.clone() }, &registry)?;
        let kafka_task = tokio::spawn(serve_kafka(gateway, listening, stop_kafka.clone()));
        tracker.spawn("readiness", report_readiness(node.clone(), ready, stop_tasks.clone()));
        Ok(Self {
            node,
            kafka,
            housekeeping,
            cleaner,
            wish,
            released,
            stop_kafka,
            stop_tasks,
            tracker,
            kafka_task,
        })
    }

    /// Where Kafka clients are served.
    #[must_use]
    pub fn kafka_address(&self) -> SocketAddr {
        self.kafka
    }

    /// Stops in order: leaderships are handed over while clients are still served, then requests in flight are
    /// answered, then every log is synced and closed, so that the next start has nothing to recover.
    pub async fn stop(self) {
        lifecycle::hand_over(&self.wish, self.released).await;
        self.stop_kafka.cancel();
        if self.kafka_task.await.is_err() {
            tracing::error!("the kafka listener had panicked");
        }
        self.stop_tasks.cancel();
        if let Err(error) = self.tracker.wait(STOP_GRACE).await {
            tracing::warn!(%error, "stopping all the same");
        }
        let node = self.node.clone();
        let (housekeeping, cleaner) = (self.housekeeping, self.cleaner);
        let closed = tokio::task::spawn_blocking(move || {
            cleaner.stop();
            housekeeping.stop();
            for directory in node.partitions.directories() {
                directory.flusher.stop();
            }
            node.partitions.close(node.registration.epoch());
        });
        if closed.await.is_err() {
            tracing::error!("closing the logs had panicked");
        }
        tracing::info!("broker stopped");
    }
}

async fn serve_kafka(gateway: Gateway<KafkaBackend>, listening: Listening, stop: CancellationToken) {
    match gateway.serve(vec![listening], stop).await {
        Ok(0) => {}
        Ok(cut) => tracing::warn!(connections = cut, "connections with requests in flight were cut"),
        Err(error) => tracing::error!(%error, "kafka listener failed"),
    }
}

/// A broker is ready while the controller has it unfenced and not every log directory has failed.
async fn report_readiness(node: Arc<Node>, ready: Reporter, stop: CancellationToken) {
    let mut applied = node.metadata.follow();
    loop {
        let unfenced = node.metadata.image().is_alive(node.id);
        if node.partitions.directories().iter().all(|directory| directory.dir.has_failed()) {
            ready.failed("every log directory has failed");
        } else if unfenced {
            ready.ready();
        } else {
            ready.not_ready("fenced by the controller");
        }
        tokio::select! {
            changed = applied.changed() => if changed.is_err() { return },
            // A failed directory shows in no metadata.
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
            () = stop.cancelled() => return,
        }
    }
}

fn gateway_config(effective: &semel_metadata::config::Effective) -> GatewayConfig {
    let defaults = GatewayConfig::default();
    let size = |name: &str, default: usize| {
        effective.long(name).and_then(|value| usize::try_from(value).ok()).unwrap_or(default)
    };
    GatewayConfig {
        frame_bytes_max: size("socket.request.max.bytes", defaults.frame_bytes_max),
        connections_max: size("max.connections", defaults.connections_max).min(defaults.connections_max),
        connections_per_ip_max: size("max.connections.per.ip", defaults.connections_per_ip_max),
        idle_max: effective
            .long("connections.max.idle.ms")
            .and_then(|ms| u64::try_from(ms).ok())
            .map_or(defaults.idle_max, Duration::from_millis),
        ..defaults
    }
}

fn open_log_dirs(
    config: &Config,
    entropy: &dyn Entropy,
) -> Result<Vec<(LogDir<RealDisk>, Opened)>, StartError> {
    let mut opened = Vec::new();
    for path in &config.log_dirs {
        let identity = DirectoryIdentity {
            cluster_id: None,
            node_id: config.id,
            new_directory_id: DirectoryId::from_bytes(entropy.uuid().into_bytes()),
        };
        let (dir, found) = LogDir::open(RealDisk, path.clone(), &identity)?;
        for name in &found.damaged_checkpoints {
            tracing::warn!(directory = %path.display(), checkpoint = name, "checkpoint is damaged, logs are read instead");
        }
        if !found.clean && !found.partitions.is_empty() {
            tracing::info!(directory = %path.display(), "was not closed properly, recovering");
        }
        opened.push((dir, found));
    }
    Ok(opened)
}

/// The cluster that the directories belong to; empty if all are new.
fn agreed_cluster_id(opened: &[(LogDir<RealDisk>, Opened)]) -> Result<String, StartError> {
    let mut agreed = String::new();
    for (dir, _) in opened {
        let id = &dir.meta().cluster_id;
        if agreed.is_empty() {
            agreed.clone_from(id);
        } else if !id.is_empty() && *id != agreed {
            return Err(StartError::TwoClusters(agreed, id.clone()));
        }
    }
    Ok(agreed)
}

/// Gives each directory its flusher.
fn in_use(
    opened: Vec<(LogDir<RealDisk>, Opened)>,
    metrics: &PartitionMetrics,
    attention: &Arc<Attention>,
) -> Result<Vec<(Arc<Directory>, Opened)>, StartError> {
    opened
        .into_iter()
        .enumerate()
        .map(|(number, (dir, found))| {
            let flusher = Flusher::start(number, &metrics.fsync_seconds).map_err(StartError::Thread)?;
            Ok((Arc::new(Directory::new(dir, flusher, attention.clone())), found))
        })
        .collect()
}
