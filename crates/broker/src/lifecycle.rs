//! A broker's life in the cluster: it registers, follows the metadata, sends heartbeats, and leaves in order.
//!
//! What a message means is decided by [`semel_metadata::Session`] and by the controller; this only carries.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use semel_metadata::{ClusterImage, Session, SessionError};
use semel_model::{BrokerEpoch, BrokerId, MetadataIndex};
use semel_proto::{
    internal::v1::{HeartbeatRequest, HeartbeatResponse, RegisterBrokerRequest, WatchMetadataRequest},
    metadata::watch_message,
    v1::{Error, ErrorCode},
};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::{
    controller_client::{ControllerClient, Repeat},
    node::Node,
};

/// How long one attempt to register may take before it is logged and tried again.
const REGISTER_ATTEMPT: Duration = Duration::from_secs(5);
/// Between two tries to reach a controller.
const RECONNECT_PAUSE: Duration = Duration::from_millis(50);
/// How long a stopping broker waits for the controller to move its leaderships away.
const HANDOVER_WAIT: Duration = Duration::from_secs(5);

/// Which life of this broker the controller knows. Shared by everyone who must name it.
#[derive(Clone, Debug)]
pub(crate) struct Registration(Arc<AtomicI64>);

impl Registration {
    pub(crate) fn none() -> Self {
        Self(Arc::new(AtomicI64::new(BrokerEpoch::NONE.get())))
    }

    pub(crate) fn epoch(&self) -> BrokerEpoch {
        BrokerEpoch(self.0.load(Ordering::Acquire))
    }

    fn set(&self, epoch: BrokerEpoch) {
        self.0.store(epoch.get(), Ordering::Release);
    }
}

/// How the broker presents itself.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) incarnation_id: [u8; 16],
    pub(crate) kafka_host: String,
    pub(crate) kafka_port: u16,
    pub(crate) grpc_address: String,
    pub(crate) rack: Option<String>,
    /// From `meta.properties`; empty at a first start.
    pub(crate) cluster_id: String,
    pub(crate) heartbeat_interval: Duration,
}

/// Registers, trying until it works or `stop`. Returns the cluster's id.
///
/// Errors: what no retry can mend: another live process with this id is retried, a wrong cluster id isn't.
pub(crate) async fn register(
    id: BrokerId,
    controller: &ControllerClient,
    registration: &Registration,
    identity: &Identity,
    stop: &CancellationToken,
) -> Result<String, Error> {
    loop {
        let request = RegisterBrokerRequest {
            broker_id: id.get(),
            incarnation_id: identity.incarnation_id.to_vec().into(),
            cluster_id: identity.cluster_id.clone(),
            kafka_host: identity.kafka_host.clone(),
            kafka_port: i32::from(identity.kafka_port),
            grpc_address: identity.grpc_address.clone(),
            rack: identity.rack.clone(),
        };
        let call = controller.call(REGISTER_ATTEMPT, Repeat::Safe, |mut client| {
            let request = request.clone();
            async move { client.register_broker(request).await }
        });
        let answer = tokio::select! {
            answer = call => answer,
            () = stop.cancelled() => return Err(Error::new(ErrorCode::OperationNotAttempted, "stopped before registering")),
        };
        match answer {
            Ok(response) => {
                registration.set(BrokerEpoch(response.broker_epoch));
                info!(broker_epoch = response.broker_epoch, cluster_id = response.cluster_id, "registered");
                return Ok(response.cluster_id);
            }
            Err(error) => match error.error_code() {
                ErrorCode::InconsistentClusterId | ErrorCode::InvalidRegistration | ErrorCode::InvalidRequest => {
                    return Err(error);
                }
                _ => warn!(%error, "cannot register yet"),
            },
        }
        tokio::select! {
            () = tokio::time::sleep(RECONNECT_PAUSE) => {}
            () = stop.cancelled() => {}
        }
    }
}

/// Follows the metadata until `stop`: applies each change on this broker, then publishes the image.
pub(crate) async fn follow_metadata(node: Arc<Node>, stop: CancellationToken) {
    let mut session = Session::new();
    while !stop.is_cancelled() {
        let followed = tokio::select! {
            followed = watch_once(&node, &mut session) => followed,
            () = stop.cancelled() => return,
        };
        if let Err(error) = followed {
            debug!(%error, "metadata stream ended");
        }
        tokio::select! {
            () = tokio::time::sleep(RECONNECT_PAUSE) => {}
            () = stop.cancelled() => return,
        }
    }
}

/// One stream, from the index this broker is at to the stream's end.
async fn watch_once(node: &Arc<Node>, session: &mut Session) -> Result<(), anyhow::Error> {
    let (address, mut client) = node.controller.candidate()?;
    let request = WatchMetadataRequest { after_index: session.subscribe_from().get() };
    let mut stream = match client.watch_metadata(request).await {
        Ok(stream) => stream.into_inner(),
        Err(status) => {
            node.controller.learn(&address, &status);
            return Err(status.into());
        }
    };
    loop {
        let message = match stream.message().await {
            Ok(Some(message)) => message,
            Ok(None) => return Ok(()),
            Err(status) => {
                node.controller.learn(&address, &status);
                return Err(status.into());
            }
        };
        let before = session.image().clone();
        match session.receive(watch_message(message)?) {
            Ok(_) => apply(node, before, session.image().clone()).await?,
            // The controller we asked lags behind: another one, or the same a little later, has it.
            Err(error @ (SessionError::StaleControllerEpoch { .. } | SessionError::Gap { .. })) => {
                return Err(error.into());
            }
            Err(error) => {
                warn!(%error, controller = address, "metadata refused");
                return Err(error.into());
            }
        }
    }
}

/// Opens, changes and removes what the new image asks of this broker, then publishes it. Logs are opened on a
/// blocking thread: recovery may read a lot.
async fn apply(node: &Arc<Node>, before: ClusterImage, after: ClusterImage) -> Result<(), anyhow::Error> {
    let applying = node.clone();
    let image = after.clone();
    tokio::task::spawn_blocking(move || applying.partitions.follow(&before, &image)).await?;
    node.metadata.publish(after);
    Ok(())
}

/// What a stopping broker asks of its heartbeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    Serve,
    Shutdown,
}

/// Sends heartbeats until `stop`; registers again when the controller has forgotten this life.
pub(crate) async fn heartbeats(
    node: Arc<Node>,
    identity: Identity,
    wish: watch::Receiver<Wish>,
    released: watch::Sender<bool>,
    stop: CancellationToken,
) {
    while !stop.is_cancelled() {
        let ended = tokio::select! {
            ended = heartbeat_stream(&node, &identity, wish.clone(), &released) => ended,
            () = stop.cancelled() => return,
        };
        let Err(error) = ended else { continue };
        match error.error_code() {
            ErrorCode::StaleBrokerEpoch | ErrorCode::BrokerIdNotRegistered => {
                warn!(%error, "the controller knows another life of this broker, registering again");
                if let Err(error) = register(node.id, &node.controller, &node.registration, &identity, &stop).await {
                    warn!(%error, "cannot register again");
                }
            }
            _ => debug!(%error, "heartbeat stream ended"),
        }
        tokio::select! {
            () = tokio::time::sleep(RECONNECT_PAUSE) => {}
            () = stop.cancelled() => return,
        }
    }
}

async fn heartbeat_stream(
    node: &Node,
    identity: &Identity,
    mut wish: watch::Receiver<Wish>,
    released: &watch::Sender<bool>,
) -> Result<(), Error> {
    let (address, mut client) = node.controller.candidate()?;
    let (sender, receiver) = mpsc::channel(4);
    let beat = |index: MetadataIndex, wish: Wish| HeartbeatRequest {
        broker_id: node.id.get(),
        broker_epoch: node.registration.epoch().get(),
        metadata_index: index.get(),
        want_fence: false,
        want_shutdown: wish == Wish::Shutdown,
    };
    let mut applied = node.metadata.follow();
    let first = beat(*applied.borrow_and_update(), *wish.borrow_and_update());
    sender.try_send(first).map_err(|_| Error::new(ErrorCode::NetworkException, "heartbeat queue is full"))?;
    let failed = |status: tonic::Status| {
        node.controller.learn(&address, &status);
        Error::from_status(&status)
    };
    let mut answers = client.heartbeat(ReceiverStream::new(receiver)).await.map_err(failed)?.into_inner();
    let mut fenced = true;
    let mut interval = tokio::time::interval(identity.heartbeat_interval);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    interval.tick().await;
    loop {
        let due = tokio::select! {
            answer = answers.message() => match answer.map_err(failed)? {
                None => return Err(Error::new(ErrorCode::NetworkException, "the controller closed the stream")),
                Some(HeartbeatResponse { fenced: now, may_shutdown, .. }) => {
                    node.controller.learned_leader(address.clone());
                    if now != fenced {
                        info!(fenced = now, "the controller changed this broker's state");
                    }
                    fenced = now;
                    released.send_replace(may_shutdown);
                    continue;
                }
            },
            // A broker that has caught up is unfenced at once, not at its next beat.
            changed = applied.changed(), if fenced => {
                if changed.is_err() { return Ok(()) }
                false
            }
            changed = wish.changed() => {
                if changed.is_err() { return Ok(()) }
                true
            }
            _ = interval.tick() => true,
        };
        let message = beat(*applied.borrow_and_update(), *wish.borrow_and_update());
        // A controller that doesn't read is as good as gone: the queue is short on purpose. Beats between the
        // regular ones may be lost to it, the next one says the same.
        if sender.try_send(message).is_err() && due {
            return Err(Error::new(ErrorCode::NetworkException, "the controller does not read heartbeats"));
        }
    }
}

/// Asks the controller to move this broker's leaderships away, and waits until it has, within bounds.
pub(crate) async fn hand_over(wish: &watch::Sender<Wish>, mut released: watch::Receiver<bool>) {
    wish.send_replace(Wish::Shutdown);
    if tokio::time::timeout(HANDOVER_WAIT, released.wait_for(|released| *released)).await.is_err() {
        warn!("the controller has not released this broker in time, stopping all the same");
    }
}

/// Waits until the controller has unfenced this life of the broker and the image here shows it.
pub(crate) async fn until_unfenced(node: &Node) {
    let mut applied = node.metadata.follow();
    loop {
        let unfenced = node
            .metadata
            .image()
            .broker(node.id)
            .is_some_and(|broker| broker.epoch == node.registration.epoch() && broker.is_alive());
        if unfenced || applied.changed().await.is_err() {
            return;
        }
    }
}

