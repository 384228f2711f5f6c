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
//! - once a door is closed nothing that came through it changes a log, and logs are closed only after both doors;
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
mod startup;
mod topic_settings;
mod waiters;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use semel_env::{Clock, Entropy, RealClock, RealEntropy};
use semel_kafka_gateway::{Gateway, Listening, bind, fetch_session::SessionCache};
use semel_metadata::{
    ClusterImage,
    config::{Effective, resolve_broker},
};
use semel_model::BrokerEpoch;
use semel_service::{
    health::{Health, Reporter},
    metrics::Registry,
    runtime,
    shutdown::ShutdownTracker,
};
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

pub use config::{Config, ConfigError, File, Listener};
pub use grpc::{FrontDoor, Limits};
pub use semel_kafka_gateway::ListenerConfig;
pub use startup::StartError;

use crate::{
    cleaner::Cleaner,
    controller_client::ControllerClient,
    directory::Attention,
    housekeeping::Housekeeping,
    kafka::backend::KafkaBackend,
    lifecycle::{Identity, NotRegistered, Pulse, Registration, Wish},
    metadata_cache::MetadataCache,
    metrics::PartitionMetrics,
    node::Node,
    partitions::{Partitions, Parts},
    producer_ids::ProducerIds,
    startup::LogDirs,
};

/// How long tasks may take to end.
const STOP_GRACE: Duration = Duration::from_secs(10);

/// A broker that serves. Dropping it without [`Broker::stop`] is a crash as far as its logs are concerned.
pub struct Broker {
    tasks: Tasks,
    door: FrontDoor,
    kafka: SocketAddr,
    housekeeping: Housekeeping,
    cleaner: Cleaner,
    wish: watch::Sender<Wish>,
    released: watch::Receiver<bool>,
    stop_kafka: CancellationToken,
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
    /// serves Kafka clients. When this returns the controller has unfenced the broker. Raises the process's limit of
    /// open files.
    ///
    /// `door` answers gRPC from here on; its server may run already. Must be called within a runtime.
    /// Errors: [`StartError`]; a controller that can't be reached is waited for until `surroundings.stop`, which ends
    /// the start with [`StartError::Stopped`].
    pub async fn start(
        config: Config,
        surroundings: Surroundings,
        door: &FrontDoor,
    ) -> Result<Self, StartError> {
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
        let (kafka_host, kafka_port) =
            config.kafka.advertised(kafka).ok_or_else(|| StartError::Advertised {
                setting: "kafka.advertised",
                address: config.kafka.advertised.clone().unwrap_or_default(),
            })?;
        let grpc_address = startup::grpc_address(&config, grpc)?;

        let clock: Arc<dyn Clock> = Arc::new(RealClock::new());
        let entropy: Arc<dyn Entropy> = Arc::new(RealEntropy);
        let metrics = Arc::new(PartitionMetrics::new(&registry));
        let statics = Arc::new(config.settings.clone());
        // Only settings from the file count before the first metadata is there; these can't change at run time.
        let effective = resolve_broker(&ClusterImage::new(), config.id, &statics);
        let gateway_config = startup::gateway_config(&effective, runtime::raise_open_files());
        gateway_config.validate()?;

        let mut dirs = LogDirs::open(&config, &*entropy)?;
        let metadata = Arc::new(MetadataCache::new());
        let registration = Registration::none();
        let controller = ControllerClient::new(config.controllers.clone());
        let mut identity = Identity {
            incarnation_id: entropy.uuid().into_bytes(),
            kafka_host,
            kafka_port,
            grpc_address,
            rack: config.rack.clone(),
            cluster_id: String::new(),
            directory_ids: dirs.ids(),
            heartbeat_interval: millis(&effective, "broker.heartbeat.interval.ms", 2000),
        };
        ready.not_ready("waiting for a controller");
        if let Err(error) = join(&config, &controller, &registration, &mut identity, &mut dirs, &stop).await {
            dirs.give_back();
            return Err(error);
        }

        let clean_marks = dirs.clean_marks();
        let unusable = std::mem::take(&mut dirs.unusable);
        let attention = Arc::new(Attention::default());
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
                incomplete: !unusable.is_empty(),
                directories: dirs.in_use(&metrics, &attention)?,
            }),
            unusable,
            producer_ids: ProducerIds::new(config.id, controller.clone(), registration.clone()),
            fetch_sessions: SessionCache::new(startup::session_config(&effective), entropy.next_u64()),
            clock,
            statics,
            metadata,
            controller,
            registration,
            pulse: Pulse::default(),
        });
        metrics::on_scrape(&registry, &node);

        let (wish, wishes) = watch::channel(Wish::Serve);
        let (release, released) = watch::channel(false);
        let tasks = Tasks::start(&node, identity, wishes, release);
        ready.not_ready("recovering logs");
        let stopped = tokio::select! {
            () = lifecycle::until_unfenced(&node) => false,
            () = stop.cancelled() => true,
        };
        if stopped {
            tasks.abandon(clean_marks).await;
            return Err(StartError::Stopped);
        }
        let gateway = Gateway::new(gateway_config, KafkaBackend { node: node.clone() }, &registry)?;
        let housekeeping =
            Housekeeping::start(node.clone(), metrics.clone(), attention).map_err(StartError::Thread)?;
        let cleaner = Cleaner::start(node.clone(), metrics, entropy).map_err(StartError::Thread)?;

        door.open(node.clone());
        let stop_kafka = CancellationToken::new();
        let kafka_task = tokio::spawn(serve_kafka(gateway, listening, stop_kafka.clone()));
        let session_timeout = millis(&effective, "broker.session.timeout.ms", 9000);
        tasks.tracker.spawn("readiness", report_readiness(node, ready, session_timeout, tasks.stop.clone()));
        Ok(Self {
            tasks,
            door: door.clone(),
            kafka,
            housekeeping,
            cleaner,
            wish,
            released,
            stop_kafka,
            kafka_task,
        })
    }

    /// Where Kafka clients are served.
    #[must_use]
    pub fn kafka_address(&self) -> SocketAddr {
        self.kafka
    }

    /// Stops in order: leaderships are handed over while clients are still served, then both doors are closed and
    /// requests in flight are answered, then every log is synced and closed, so that the next start has nothing to
    /// recover.
    pub async fn stop(self) {
        lifecycle::hand_over(&self.wish, self.released).await;
        self.stop_kafka.cancel();
        let (kafka, ()) = tokio::join!(self.kafka_task, self.door.close());
        if kafka.is_err() {
            tracing::error!("the kafka listener had panicked");
        }
        let node = self.tasks.end().await;
        let (housekeeping, cleaner) = (self.housekeeping, self.cleaner);
        close(move || {
            cleaner.stop();
            housekeeping.stop();
            for directory in node.partitions.directories() {
                directory.flusher.stop();
            }
            node.partitions.close(node.registration.epoch());
        })
        .await;
        tracing::info!("broker stopped");
    }
}

/// Finds the cluster and becomes a member of it.
async fn join(
    config: &Config,
    controller: &ControllerClient,
    registration: &Registration,
    identity: &mut Identity,
    dirs: &mut LogDirs,
    stop: &CancellationToken,
) -> Result<(), StartError> {
    identity.cluster_id = dirs.cluster_id()?;
    let registered = lifecycle::register(config.id, controller, registration, identity, stop).await;
    identity.cluster_id = registered.map_err(|error| match error {
        NotRegistered::Stopped => StartError::Stopped,
        NotRegistered::Refused(cause) => StartError::Refused(cause),
    })?;
    dirs.bind_cluster(&identity.cluster_id)
}

/// What runs from the registration on.
struct Tasks {
    node: Arc<Node>,
    tracker: ShutdownTracker,
    stop: CancellationToken,
    metadata: JoinHandle<()>,
}

impl Tasks {
    fn start(
        node: &Arc<Node>,
        identity: Identity,
        wishes: watch::Receiver<Wish>,
        release: watch::Sender<bool>,
    ) -> Self {
        let (tracker, stop) = (ShutdownTracker::new(), CancellationToken::new());
        let metadata = tracker.spawn("metadata", lifecycle::follow_metadata(node.clone(), stop.clone()));
        tracker
            .spawn("heartbeat", lifecycle::heartbeats(node.clone(), identity, wishes, release, stop.clone()));
        Self { node: node.clone(), tracker, stop, metadata }
    }

    /// Ends them. The one that opens logs is waited for without a bound: a log that is being recovered must not be
    /// closed, and the directory not be marked as cleanly ended.
    async fn end(self) -> Arc<Node> {
        self.stop.cancel();
        if let Err(error) = self.tracker.wait(STOP_GRACE).await {
            tracing::warn!(%error, "waiting for logs that are being recovered");
        }
        if self.metadata.await.is_err() {
            tracing::error!("the task that follows the metadata had panicked");
        }
        self.node
    }

    /// Ends a start that was told to stop. `clean_marks` are those of the directories when they were opened.
    async fn abandon(self, clean_marks: Vec<Option<BrokerEpoch>>) {
        let node = self.end().await;
        close(move || {
            let directories = node.partitions.directories();
            for directory in directories {
                directory.flusher.stop();
            }
            if node.metadata.image().index() > ClusterImage::new().index() {
                node.partitions.close(node.registration.epoch());
                return;
            }
            // No log was opened: all is as it was found.
            for (directory, mark) in directories.iter().zip(clean_marks) {
                startup::mark_again(&directory.dir, mark);
            }
        })
        .await;
    }
}

/// Closes logs, off the network's threads.
async fn close(closing: impl FnOnce() + Send + 'static) {
    if tokio::task::spawn_blocking(closing).await.is_err() {
        tracing::error!("closing the logs had panicked");
    }
}

fn millis(effective: &Effective, name: &str, default: u64) -> Duration {
    Duration::from_millis(effective.long(name).and_then(|ms| u64::try_from(ms).ok()).unwrap_or(default))
}

async fn serve_kafka(gateway: Gateway<KafkaBackend>, listening: Listening, stop: CancellationToken) {
    match gateway.serve(vec![listening], stop).await {
        Ok(0) => {}
        Ok(cut) => tracing::warn!(connections = cut, "connections with requests in flight were cut"),
        Err(error) => tracing::error!(%error, "kafka listener failed"),
    }
}

/// A broker is ready while the controller has it unfenced and says so (`session_timeout`, after which a broker that is
/// not heard of is fenced, and may not know it), and not every log directory has failed.
async fn report_readiness(
    node: Arc<Node>,
    ready: Reporter,
    session_timeout: Duration,
    stop: CancellationToken,
) {
    let mut applied = node.metadata.follow();
    loop {
        let unfenced = node.metadata.image().is_alive(node.id);
        if node.partitions.directories().iter().all(|directory| directory.dir.has_failed()) {
            ready.failed("every log directory has failed");
        } else if !unfenced {
            ready.not_ready("fenced by the controller");
        } else if !node.pulse.is_felt(session_timeout) {
            ready.not_ready("no controller answers heartbeats");
        } else {
            ready.ready();
        }
        tokio::select! {
            changed = applied.changed() => if changed.is_err() { return },
            // Neither a failed directory nor a silent controller shows in the metadata.
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
            () = stop.cancelled() => return,
        }
    }
}
