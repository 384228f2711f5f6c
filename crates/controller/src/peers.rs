//! Raft messages to the other controllers: one stream to each, opened again whenever it breaks.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
    time::Duration,
};

use semel_control::node::Outgoing;
use semel_model::ControllerId;
use semel_proto::internal::v1::{ExchangeRequest, raft_service_client::RaftServiceClient};
use semel_service::grpc::{self, ChannelConfig};
use tokio::{runtime::Handle, sync::mpsc};
use tokio_stream::wrappers::ReceiverStream;

use crate::{event_loop::Event, inbox::Inbox};

/// How many messages may wait for one peer: more are dropped, and Raft sends again what matters.
const QUEUE: usize = 512;
/// Between a broken stream and the next try.
const RECONNECT_PAUSE: Duration = Duration::from_millis(50);

/// The other controllers.
pub(crate) struct Peers {
    queues: BTreeMap<ControllerId, mpsc::Sender<Outgoing>>,
}

/// Why a peer's address is not one.
pub(crate) type AddressError = grpc::ChannelError;

impl Peers {
    /// Starts a task for each peer; they end when this is dropped.
    pub(crate) fn connect(
        runtime: &Handle,
        peers: impl IntoIterator<Item = (ControllerId, String)>,
        cluster_id: &Arc<OnceLock<String>>,
        inbox: &Inbox<Event>,
    ) -> Result<Self, AddressError> {
        let config = ChannelConfig {
            connect_timeout: Duration::from_millis(500),
            keepalive_interval: Duration::from_secs(2),
            keepalive_timeout: Duration::from_secs(2),
        };
        let mut queues = BTreeMap::new();
        for (id, address) in peers {
            let _runtime = runtime.enter();
            let client = RaftServiceClient::new(grpc::channel(&address, &config)?);
            let (sender, receiver) = mpsc::channel(QUEUE);
            let peer = Peer {
                id,
                client,
                queue: receiver,
                cluster_id: Arc::clone(cluster_id),
                inbox: inbox.clone(),
            };
            runtime.spawn(peer.run());
            queues.insert(id, sender);
        }
        Ok(Self { queues })
    }

    /// Whether the message was taken for sending.
    pub(crate) fn send(&self, message: Outgoing) -> bool {
        self.queues.get(&message.to).is_some_and(|queue| queue.try_send(message).is_ok())
    }
}

/// Owns the connection to one peer.
struct Peer {
    id: ControllerId,
    client: RaftServiceClient<grpc::Channel>,
    queue: mpsc::Receiver<Outgoing>,
    cluster_id: Arc<OnceLock<String>>,
    inbox: Inbox<Event>,
}

impl Peer {
    async fn run(mut self) {
        let mut was_reached = true;
        loop {
            // No stream without a message: an idle single voter opens none.
            let Some(first) = self.queue.recv().await else { return };
            match self.stream(first).await {
                Ended::Stopped => return,
                Ended::Broken { error, reached } => {
                    if reached || was_reached {
                        tracing::info!(peer = %self.id, %error, "controller not reachable");
                    }
                    was_reached = reached;
                }
            }
            self.inbox.note(Event::Unreachable(self.id));
            // What piled up is stale: Raft asks anew.
            while let Ok(message) = self.queue.try_recv() {
                self.lost(&message);
            }
            tokio::time::sleep(RECONNECT_PAUSE).await;
        }
    }

    /// Sends until the stream breaks.
    async fn stream(&mut self, first: Outgoing) -> Ended {
        let (sender, receiver) = mpsc::channel(64);
        let mut client = self.client.clone();
        let call = async move { client.exchange(ReceiverStream::new(receiver)).await };
        tokio::pin!(call);
        let mut next = Some(first);
        let mut sent = 0_u64;
        loop {
            let message = match next.take() {
                Some(message) => message,
                None => tokio::select! {
                    // The answer comes only when the stream is over.
                    result = &mut call => return Ended::of(result.err(), sent > 1),
                    message = self.queue.recv() => match message {
                        Some(message) => message,
                        None => return Ended::Stopped,
                    },
                },
            };
            let request = ExchangeRequest {
                to: self.id.0,
                cluster_id: self.cluster_id.get().cloned().unwrap_or_default(),
                message: message.bytes.clone(),
            };
            let result = tokio::select! {
                result = &mut call => {
                    self.lost(&message);
                    return Ended::of(result.err(), sent > 1);
                }
                result = sender.send(request) => result,
            };
            if result.is_err() {
                self.lost(&message);
                return Ended::of(None, sent > 1);
            }
            sent += 1;
            if message.is_snapshot {
                // Handed to the network; if it is lost there, the follower's next answer tells.
                self.inbox.note(Event::SnapshotSent(self.id, true));
            }
        }
    }

    fn lost(&self, message: &Outgoing) {
        if message.is_snapshot {
            self.inbox.note(Event::SnapshotSent(self.id, false));
        }
    }
}

enum Ended {
    Stopped,
    Broken { error: String, reached: bool },
}

impl Ended {
    fn of(status: Option<tonic::Status>, reached: bool) -> Self {
        let error = status.map_or_else(|| "stream closed".to_owned(), |status| status.message().to_owned());
        Self::Broken { error, reached }
    }
}
