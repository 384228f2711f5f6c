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

use bytes::Bytes;
use parking_lot::Mutex;
use semel_metadata::{ClusterImage, Session, SessionError};
use semel_model::{BrokerEpoch, BrokerId, ControllerEpoch, MetadataIndex};
use semel_proto::{
    internal::v1::{HeartbeatRequest, HeartbeatResponse, RegisterBrokerRequest, WatchMetadataRequest},
    metadata::watch_message,
    v1::{Error, ErrorCode},
};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::{controller_client::ControllerClient, node::Node};

/// How long one attempt to register may take before it is logged and tried again.
const REGISTER_ATTEMPT: Duration = Duration::from_secs(5);
/// Between two tries to reach a controller.
const RECONNECT_PAUSE: Duration = Duration::from_millis(50);
/// How long a controller may take to answer a heartbeat, or to begin a stream, before another one is asked.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// How long the metadata stream may be silent before somebody is asked whether there is news; and, if there is, how
/// long it may still take.
const SILENCE: Duration = Duration::from_secs(2);
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

/// When the controller last answered a heartbeat, and said that this broker is not fenced.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pulse(Arc<Mutex<Option<Instant>>>);

impl Pulse {
    fn beat(&self, fenced: bool) {
        *self.0.lock() = (!fenced).then(Instant::now);
    }

    /// Whether the last such answer is at most `timeout` old.
    pub(crate) fn is_felt(&self, timeout: Duration) -> bool {
        self.was_felt(Instant::now(), timeout)
    }

    fn was_felt(&self, now: Instant, timeout: Duration) -> bool {
        self.0.lock().is_some_and(|last| now.saturating_duration_since(last) <= timeout)
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
    /// Of the log directories this process has locked: who names one of an earlier life has outlived it.
    pub(crate) directory_ids: Vec<Bytes>,
    pub(crate) heartbeat_interval: Duration,
}

/// Why a broker did not register.
#[derive(Debug)]
pub(crate) enum NotRegistered {
    /// It was told to stop before a controller answered.
    Stopped,
    /// No retry can mend it.
    Refused(Error),
}

/// Registers, trying until it works or `stop`. Returns the cluster's id.
///
/// Errors: [`NotRegistered`]: another live process with this id is waited for, a wrong cluster id isn't.
pub(crate) async fn register(
    id: BrokerId,
    controller: &ControllerClient,
    registration: &Registration,
    identity: &Identity,
    stop: &CancellationToken,
) -> Result<String, NotRegistered> {
    loop {
        let request = RegisterBrokerRequest {
            broker_id: id.get(),
            incarnation_id: identity.incarnation_id.to_vec().into(),
            cluster_id: identity.cluster_id.clone(),
            kafka_host: identity.kafka_host.clone(),
            kafka_port: i32::from(identity.kafka_port),
            grpc_address: identity.grpc_address.clone(),
            rack: identity.rack.clone(),
            directory_ids: identity.directory_ids.clone(),
        };
        let call = controller.call_in_epoch(
            REGISTER_ATTEMPT,
            |mut client| {
                let request = request.clone();
                async move { client.register_broker(request).await }
            },
            |answer| ControllerEpoch(answer.controller_epoch),
        );
        let answer = tokio::select! {
            answer = call => answer,
            () = stop.cancelled() => return Err(NotRegistered::Stopped),
        };
        match answer {
            Ok(response) => {
                registration.set(BrokerEpoch(response.broker_epoch));
                info!(broker_epoch = response.broker_epoch, cluster_id = response.cluster_id, "registered");
                return Ok(response.cluster_id);
            }
            Err(error) => match error.error_code() {
                ErrorCode::InconsistentClusterId
                | ErrorCode::InvalidRegistration
                | ErrorCode::InvalidRequest => {
                    return Err(NotRegistered::Refused(error));
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

/// Follows the metadata until `stop`: applies each change on this broker, then publishes the image. A change that is
/// being applied at the stop is applied to its end: the logs must not be closed while some are opened.
pub(crate) async fn follow_metadata(node: Arc<Node>, stop: CancellationToken) {
    let mut session = Session::new();
    while !stop.is_cancelled() {
        if let Err(error) = watch_once(&node, &mut session, &stop).await {
            debug!(error = format!("{error:#}"), "metadata stream ended");
        }
        tokio::select! {
            () = tokio::time::sleep(RECONNECT_PAUSE) => {}
            () = stop.cancelled() => return,
        }
    }
}

/// One stream, from the index this broker is at to the stream's end, or until it is no longer to be trusted.
async fn watch_once(
    node: &Arc<Node>,
    session: &mut Session,
    stop: &CancellationToken,
) -> Result<(), anyhow::Error> {
    let (address, mut client) = node.controller.candidate()?;
    let request = WatchMetadataRequest { after_index: session.subscribe_from().get() };
    let opened = tokio::select! {
        opened = tokio::time::timeout(ANSWER_WITHIN, client.watch_metadata(request)) => opened,
        () = stop.cancelled() => return Ok(()),
    };
    let mut stream = match opened {
        Ok(Ok(stream)) => stream.into_inner(),
        Ok(Err(status)) => {
            node.controller.learn(&address, &status);
            return Err(status.into());
        }
        Err(_) => {
            node.controller.forget(&address);
            anyhow::bail!("controller {address} did not begin a stream within {ANSWER_WITHIN:?}");
        }
    };
    let mut lead = node.controller.lead();
    loop {
        let message = tokio::select! {
            message = stream.message() => message,
            // Any controller serves this, but one that was cut off from the others sends nothing, and does not know
            // that it should: we are where the leader is, once one is known.
            _ = lead.wait_for(|lead| lead.address.as_ref().is_some_and(|leader| *leader != address)) => {
                debug!(controller = address, "another controller leads");
                return Ok(());
            }
            committed = committed_past(node, session.subscribe_from()) => {
                node.controller.forget(&address);
                anyhow::bail!("controller {address} sends nothing although index {committed} is committed");
            }
            () = stop.cancelled() => return Ok(()),
        };
        let message = match message {
            Ok(Some(message)) => message,
            Ok(None) => return Ok(()),
            Err(status) => {
                node.controller.learn(&address, &status);
                return Err(status.into());
            }
        };
        match session.receive(watch_message(message)?) {
            Ok(_) => {
                node.controller.observe(session.controller_epoch());
                apply(node, session.image().clone()).await?;
            }
            // The controller we asked lags behind or was deposed: another one, or the same a little later, has it.
            Err(
                error @ (SessionError::StaleControllerEpoch { .. }
                | SessionError::Gap { .. }
                | SessionError::BehindUs { .. }),
            ) => {
                node.controller.forget(&address);
                return Err(error.into());
            }
            Err(error @ SessionError::InconsistentClusterId { .. }) => {
                warn!(%error, controller = address, "metadata refused");
                node.controller.forget(&address);
                return Err(error.into());
            }
        }
    }
}

/// Ends when something after `applied` is known to be committed and has had time to arrive; says what. To be dropped
/// when it arrives.
async fn committed_past(node: &Node, applied: MetadataIndex) -> MetadataIndex {
    let mut committed = node.controller.follow_committed();
    // The sender lives in the node: this can't end early.
    let past = committed.wait_for(|committed| *committed > applied).await.map_or(applied, |index| *index);
    tokio::time::sleep(SILENCE).await;
    past
}

/// Opens, changes and removes what the new image asks of this broker, then publishes it. Logs are opened on a
/// blocking thread: recovery may read a lot.
async fn apply(node: &Arc<Node>, after: ClusterImage) -> Result<(), anyhow::Error> {
    let applying = node.clone();
    let image = after.clone();
    tokio::task::spawn_blocking(move || {
        // From what was applied last, which after a panic is not what was received last.
        let before = applying.metadata.image();
        applying.partitions.follow(&before, &image);
    })
    .await?;
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
                node.pulse.beat(true);
                match register(node.id, &node.controller, &node.registration, &identity, &stop).await {
                    Ok(_) => {}
                    Err(NotRegistered::Stopped) => return,
                    Err(NotRegistered::Refused(error)) => warn!(%error, "cannot register again"),
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
    let silent = || {
        node.controller.forget(&address);
        Error::new(ErrorCode::NetworkException, format!("controller {address} does not answer heartbeats"))
    };
    let opened = tokio::time::timeout(ANSWER_WITHIN, client.heartbeat(ReceiverStream::new(receiver))).await;
    let mut answers = opened.map_err(|_| silent())?.map_err(failed)?.into_inner();
    let mut fenced = true;
    let mut unanswered = 1_usize;
    let mut answer_due = Instant::now() + ANSWER_WITHIN;
    let mut interval = tokio::time::interval(identity.heartbeat_interval);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    interval.tick().await;
    loop {
        let due = tokio::select! {
            answer = answers.message() => match answer.map_err(failed)? {
                None => return Err(Error::new(ErrorCode::NetworkException, "the controller closed the stream")),
                Some(HeartbeatResponse { fenced: now, may_shutdown, controller_epoch, committed_index }) => {
                    node.controller.heard(&address, ControllerEpoch(controller_epoch))?;
                    node.controller.committed(MetadataIndex(committed_index));
                    node.pulse.beat(now);
                    if now != fenced {
                        info!(fenced = now, "the controller changed this broker's state");
                    }
                    fenced = now;
                    unanswered = unanswered.saturating_sub(1);
                    answer_due = Instant::now() + ANSWER_WITHIN;
                    released.send_replace(may_shutdown);
                    continue;
                }
            },
            () = tokio::time::sleep_until(answer_due), if unanswered > 0 => return Err(silent()),
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
        if sender.try_send(message).is_ok() {
            if unanswered == 0 {
                answer_due = Instant::now() + ANSWER_WITHIN;
            }
            unanswered += 1;
        } else if due {
            return Err(silent());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pulse_is_felt_while_unfenced_answers_come() {
        let pulse = Pulse::default();
        let timeout = Duration::from_secs(9);
        assert!(!pulse.is_felt(timeout));
        pulse.beat(false);
        assert!(pulse.is_felt(timeout));
        assert!(!pulse.was_felt(Instant::now() + timeout + Duration::from_millis(1), timeout));
        pulse.beat(true);
        assert!(!pulse.is_felt(timeout));
    }

    #[tokio::test]
    async fn a_stop_ends_the_wait_for_a_controller() {
        // Nothing listens on port 1.
        let controller = ControllerClient::new(vec!["127.0.0.1:1".to_owned()]);
        let identity = Identity {
            incarnation_id: [1; 16],
            kafka_host: "localhost".to_owned(),
            kafka_port: 1,
            grpc_address: "localhost:1".to_owned(),
            rack: None,
            cluster_id: String::new(),
            directory_ids: Vec::new(),
            heartbeat_interval: Duration::from_secs(2),
        };
        let stop = CancellationToken::new();
        let registration = Registration::none();
        let registering = register(BrokerId(1), &controller, &registration, &identity, &stop);
        let stopping = async {
            tokio::task::yield_now().await;
            stop.cancel();
        };
        let (ended, ()) = tokio::join!(registering, stopping);
        assert!(matches!(ended, Err(NotRegistered::Stopped)), "{ended:?}");
    }
}
