//! A running controller.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
    thread,
};

use semel_control::{Node, NodeError, node::Leadership};
use semel_env::{Clock, Entropy, RealClock, RealEntropy};
use semel_model::{ControllerEpoch, ControllerId};
use semel_proto::internal::v1::{
    controller_service_server::ControllerServiceServer, raft_service_server::RaftServiceServer,
};
use semel_service::{
    grpc,
    health::{Component, Health},
    metrics::Registry,
};
use tokio::{runtime::Handle, sync::watch};

use crate::{
    MESSAGE_BYTES_MAX,
    config::{Config, ConfigError},
    event_loop::{Event, EventLoop, INBOX, ProtoCodec, View},
    inbox::Inbox,
    metrics::Metrics,
    peers::{AddressError, Peers},
    rpc::{ControllerRpc, RaftRpc},
    store::{SledStore, StoreError},
    watchers::Watchers,
};

/// In bytes: the loop's stack. Deciding recurses nowhere; sled reads and writes on it.
const STACK_BYTES: usize = 1 << 20;

/// What a controller takes from the process it runs in.
#[derive(Clone)]
pub struct Environment {
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub entropy: Arc<dyn Entropy>,
    /// Where its metrics go.
    pub registry: Registry,
    /// Where its state goes, as component `controller`.
    pub health: Health,
}

impl Environment {
    /// The real clock and entropy.
    #[must_use]
    pub fn real(registry: Registry, health: Health) -> Self {
        Self { clock: Arc::new(RealClock::new()), entropy: Arc::new(RealEntropy), registry, health }
    }
}

/// Why a controller does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The settings are bad.
    #[error("bad controller configuration")]
    Config(#[from] ConfigError),
    /// The store cannot be opened.
    #[error("cannot open the controller's store")]
    Store(#[from] StoreError),
    /// What is stored does not fit.
    #[error("cannot start the controller's node")]
    Node(#[from] NodeError),
    /// A peer's address is none.
    #[error("bad voter address")]
    Address(#[from] AddressError),
    /// No thread.
    #[error("cannot start the controller's thread")]
    Thread(#[source] std::io::Error),
}

/// How a controller ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// It was told to.
    Cleanly,
    /// It could not go on; the text names why, with its causes.
    Failed(String),
}

/// A running controller. Dropping it does not stop it: call [`shutdown`](Self::shutdown).
pub struct Controller {
    inbox: Inbox<Event>,
    own_id: ControllerId,
    voters: Arc<BTreeMap<ControllerId, String>>,
    cluster_id: Arc<OnceLock<String>>,
    view: watch::Receiver<View>,
    stopped: watch::Receiver<Option<Stopped>>,
}

impl Controller {
    /// Opens the store and starts the loop and the connections to the other voters. Must be called within a tokio
    /// runtime; blocks while the store is opened.
    pub fn start(config: Config, environment: Environment) -> Result<Self, StartError> {
        config.validate()?;
        let Environment { clock, entropy, registry, health } = environment;
        let metrics = Metrics::new(&registry);
        let store = SledStore::open(
            &config.data_dir,
            config.store_cache_bytes,
            Arc::clone(&clock),
            metrics.sync_seconds.clone(),
        )?;
        let node = Node::new(config.node(), config.control.clone(), store, ProtoCodec)?;
        let inbox = Inbox::new(INBOX);
        let cluster_id = Arc::new(OnceLock::new());
        if let Some(known) = node.image().cluster_id() {
            cluster_id.get_or_init(|| known.to_owned());
        }
        let others = config.voters.iter().filter(|(id, _)| **id != config.node_id);
        let others = others.map(|(id, address)| (*id, address.clone()));
        let peers = Peers::connect(&Handle::current(), others, &cluster_id, &inbox)?;
        let leadership = Leadership { leader: None, controller_epoch: ControllerEpoch(0), is_active: false };
        let (view_sender, view) = watch::channel(View { leadership, has_cluster: false });
        let event_loop = EventLoop {
            node,
            inbox: inbox.clone(),
            peers,
            watchers: Watchers::default(),
            watchers_max: config.watchers_max,
            addresses: config.voters.clone(),
            own_id: config.node_id,
            cluster_id: Arc::clone(&cluster_id),
            view: view_sender,
            clock,
            entropy,
            metrics,
            tick: config.tick,
        };
        let (stopped_sender, stopped) = watch::channel(None);
        spawn(event_loop, stopped_sender)?;
        tokio::spawn(report_health(health, view.clone(), stopped.clone()));
        Ok(Self { inbox, own_id: config.node_id, voters: Arc::new(config.voters), cluster_id, view, stopped })
    }

    /// The services other nodes call, to be added to a gRPC server.
    #[must_use]
    pub fn grpc_services(&self) -> (RaftServiceServer<RaftRpc>, ControllerServiceServer<ControllerRpc>) {
        let raft = RaftRpc {
            inbox: self.inbox.clone(),
            own_id: self.own_id,
            cluster_id: Arc::clone(&self.cluster_id),
        };
        let controller = ControllerRpc {
            inbox: self.inbox.clone(),
            own_id: self.own_id,
            voters: Arc::clone(&self.voters),
        };
        (
            RaftServiceServer::new(raft).max_decoding_message_size(MESSAGE_BYTES_MAX),
            ControllerServiceServer::new(controller).max_decoding_message_size(grpc::MESSAGE_BYTES_MAX),
        )
    }

    /// [`grpc_services`](Self::grpc_services), added to `server`.
    #[must_use]
    pub fn serve_on(&self, server: grpc::Server) -> grpc::Server {
        let (raft, controller) = self.grpc_services();
        server.add_service(raft).add_service(controller)
    }

    /// Waits until there is a leader and the cluster has its id, so that brokers can register. Also ends when the
    /// controller has stopped: ask [`stopped`](Self::stopped).
    pub async fn ready(&self) {
        let is_ready = |view: &View| view.has_cluster && view.leadership.leader.is_some();
        // An error means that the loop has ended.
        let _ = self.view.clone().wait_for(is_ready).await;
    }

    /// Who leads, as this controller knows it.
    #[must_use]
    pub fn leadership(&self) -> Leadership {
        self.view.borrow().leadership
    }

    /// Waits until the controller has ended, by [`shutdown`](Self::shutdown) or because it could not go on.
    pub async fn stopped(&self) -> Stopped {
        let mut stopped = self.stopped.clone();
        let ended = stopped.wait_for(Option::is_some).await.map(|ended| ended.clone());
        // A sender that is gone without a word: the thread panicked.
        ended.ok().flatten().unwrap_or_else(|| Stopped::Failed("the controller's thread panicked".to_owned()))
    }

    /// Hands leadership over, ends the loop and closes the store. Streams to nodes end with it.
    pub async fn shutdown(&self) -> Stopped {
        self.inbox.note(Event::Stop);
        self.stopped().await
    }
}

fn spawn(event_loop: EventLoop, stopped: watch::Sender<Option<Stopped>>) -> Result<(), StartError> {
    let inbox = event_loop.inbox.clone();
    let work = move || {
        // Closed on every way out: a panic, too, must end what waits for the loop.
        let _close = CloseOnDrop(inbox);
        let end = match event_loop.run() {
            Ok(()) => Stopped::Cleanly,
            Err(error) => {
                let text = chain(&error);
                tracing::error!(error = text, "controller cannot go on");
                Stopped::Failed(text)
            }
        };
        stopped.send_replace(Some(end));
    };
    thread::Builder::new()
        .name("controller".to_owned())
        .stack_size(STACK_BYTES)
        .spawn(work)
        .map(|_| ())
        .map_err(StartError::Thread)
}

struct CloseOnDrop(Inbox<Event>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// An error with its causes in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// Ready while there is a leader: a controller without one can serve nobody.
async fn report_health(
    health: Health,
    mut view: watch::Receiver<View>,
    mut stopped: watch::Receiver<Option<Stopped>>,
) {
    let component = health.component("controller");
    let mut was_ready = false;
    loop {
        let now = view.borrow_and_update().clone();
        if now.has_cluster && now.leadership.leader.is_some() {
            was_ready = true;
            component.ready();
        } else if was_ready {
            component.not_ready("no controller leads");
        } else {
            component.set(Component::Starting("no controller leads".to_owned()));
        }
        tokio::select! {
            changed = view.changed() => if changed.is_err() { break },
            _ = stopped.wait_for(Option::is_some) => break,
        }
    }
    match stopped.wait_for(Option::is_some).await.map(|end| end.clone()) {
        Ok(Some(Stopped::Failed(why))) => component.failed(why),
        Ok(_) => component.not_ready("stopped"),
        Err(_) => component.failed("the controller's thread panicked"),
    }
}
