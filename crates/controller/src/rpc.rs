//! The gRPC services: they carry requests to the loop and its answers back.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use semel_control::{Error, Request, node::Status as NodeStatus};
use semel_model::{BrokerEpoch, BrokerId, ControllerEpoch, ControllerId, MetadataIndex};
use semel_proto::{
    internal::v1::{
        self as pb, controller_service_server::ControllerService, raft_service_server::RaftService,
    },
    v1::{self, ErrorCode},
};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request as Rpc, Response, Status, Streaming};

use crate::{
    LEADER_TRAILER,
    convert::{self, malformed},
    event_loop::{Answered, Event, Refused},
    inbox::{Inbox, NotTaken},
    watchers,
};

/// `semel.internal.v1.ControllerService` of one controller.
#[derive(Clone)]
pub struct ControllerRpc {
    pub(crate) inbox: Inbox<Event>,
    pub(crate) own_id: ControllerId,
    pub(crate) voters: Arc<BTreeMap<ControllerId, String>>,
}

/// `semel.internal.v1.RaftService` of one controller.
#[derive(Clone)]
pub struct RaftRpc {
    pub(crate) inbox: Inbox<Event>,
    pub(crate) own_id: ControllerId,
    pub(crate) cluster_id: Arc<OnceLock<String>>,
}

impl ControllerRpc {
    /// Asks the loop and waits until the answer may be given.
    async fn ask(&self, request: Request) -> Result<Answered, Status> {
        let (caller, answer) = oneshot::channel();
        self.put(Event::Call(request, caller))?;
        // A dropped caller: the loop ended with the request under way.
        let answer = answer.await.map_err(|_| refusal(Error::RequestTimedOut, None))?;
        answer.map_err(|Refused { error, leader }| refusal(error, leader.as_deref()))
    }

    async fn call<T>(
        &self,
        request: Request,
        convert: impl FnOnce(semel_control::Reply, ControllerEpoch) -> Result<T, Status>,
    ) -> Result<Response<T>, Status> {
        let Answered { reply, controller_epoch, .. } = self.ask(request).await?;
        convert(reply, controller_epoch).map(Response::new)
    }

    fn put(&self, event: Event) -> Result<(), Status> {
        self.inbox.offer(event).map_err(|not_taken| match not_taken {
            NotTaken::Full => refusal(
                Error::ThrottlingQuotaExceeded("the controller has too many requests waiting".to_owned()),
                None,
            ),
            NotTaken::Closed => stopped(),
        })
    }

    async fn describe(&self) -> Result<NodeStatus, Status> {
        let (asker, answer) = oneshot::channel();
        self.put(Event::Describe(asker))?;
        answer.await.map_err(|_| stopped())
    }
}

/// A refusal as a status; whoever does not lead names the leader.
fn refusal(error: Error, leader: Option<&str>) -> Status {
    let is_redirect = matches!(error, Error::NotController(_));
    let mut status = convert::error(&error).into_status();
    if let Some(leader) = leader.filter(|_| is_redirect).and_then(|leader| leader.parse().ok()) {
        status.metadata_mut().insert(LEADER_TRAILER, leader);
    }
    status
}

fn stopped() -> Status {
    v1::Error::new(ErrorCode::NotController, "this controller is stopping").into_status()
}

#[tonic::async_trait]
impl ControllerService for ControllerRpc {
    type HeartbeatStream = ReceiverStream<Result<pb::HeartbeatResponse, Status>>;
    type WatchMetadataStream = ReceiverStream<Result<pb::WatchMetadataResponse, Status>>;

    async fn register_broker(
        &self,
        request: Rpc<pb::RegisterBrokerRequest>,
    ) -> Result<Response<pb::RegisterBrokerResponse>, Status> {
        let request = convert::register_broker(request.into_inner()).map_err(malformed)?;
        self.call(request, convert::registered).await
    }

    async fn heartbeat(
        &self,
        request: Rpc<Streaming<pb::HeartbeatRequest>>,
    ) -> Result<Response<Self::HeartbeatStream>, Status> {
        let (sender, receiver) = mpsc::channel(4);
        tokio::spawn(heartbeats(self.clone(), request.into_inner(), sender));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn watch_metadata(
        &self,
        request: Rpc<pb::WatchMetadataRequest>,
    ) -> Result<Response<Self::WatchMetadataStream>, Status> {
        let (sender, receiver) = mpsc::channel(watchers::QUEUE);
        self.put(Event::Watch(MetadataIndex(request.into_inner().after_index), sender))?;
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn create_topics(
        &self,
        request: Rpc<pb::CreateTopicsRequest>,
    ) -> Result<Response<pb::CreateTopicsResponse>, Status> {
        self.call(convert::create_topics(request.into_inner()), convert::created_topics).await
    }

    async fn delete_topics(
        &self,
        request: Rpc<pb::DeleteTopicsRequest>,
    ) -> Result<Response<pb::DeleteTopicsResponse>, Status> {
        let request = convert::delete_topics(request.into_inner()).map_err(malformed)?;
        self.call(request, convert::deleted_topics).await
    }

    async fn create_partitions(
        &self,
        request: Rpc<pb::CreatePartitionsRequest>,
    ) -> Result<Response<pb::CreatePartitionsResponse>, Status> {
        self.call(convert::create_partitions(request.into_inner()), convert::created_partitions).await
    }

    async fn alter_configs(
        &self,
        request: Rpc<pb::AlterConfigsRequest>,
    ) -> Result<Response<pb::AlterConfigsResponse>, Status> {
        let request = convert::alter_configs(request.into_inner()).map_err(malformed)?;
        self.call(request, convert::altered_configs).await
    }

    async fn allocate_producer_ids(
        &self,
        request: Rpc<pb::AllocateProducerIdsRequest>,
    ) -> Result<Response<pb::AllocateProducerIdsResponse>, Status> {
        self.call(convert::allocate_producer_ids(&request.into_inner()), convert::producer_ids).await
    }

    async fn alter_partition(
        &self,
        request: Rpc<pb::AlterPartitionRequest>,
    ) -> Result<Response<pb::AlterPartitionResponse>, Status> {
        let request = convert::alter_partition(request.into_inner()).map_err(malformed)?;
        self.call(request, convert::altered_partitions).await
    }

    async fn describe_quorum(
        &self,
        _: Rpc<pb::DescribeQuorumRequest>,
    ) -> Result<Response<pb::DescribeQuorumResponse>, Status> {
        let status = self.describe().await?;
        let voters = status.voters.iter().map(|(id, matched)| pb::describe_quorum_response::Voter {
            id: id.0,
            grpc_address: self.voters.get(id).cloned().unwrap_or_default(),
            match_index: matched.map_or(0, |index| index.0),
        });
        Ok(Response::new(pb::DescribeQuorumResponse {
            leader_id: status.leadership.leader.map_or(0, |id| id.0),
            controller_epoch: status.leadership.controller_epoch.0,
            committed_index: status.committed.0,
            applied_index: status.applied.0,
            first_index: status.first.0,
            voters: voters.collect(),
            controller_id: self.own_id.0,
        }))
    }
}

/// Serves one heartbeat stream until either side ends it.
async fn heartbeats(
    rpc: ControllerRpc,
    mut requests: Streaming<pb::HeartbeatRequest>,
    sender: mpsc::Sender<Result<pb::HeartbeatResponse, Status>>,
) {
    let mut open: Option<OpenStream> = None;
    loop {
        let request = tokio::select! {
            request = requests.message() => request,
            () = sender.closed() => return,
        };
        // A broken connection is the news this stream is for; dropping `open` tells it.
        let Ok(Some(request)) = request else { return };
        let heartbeat = convert::heartbeat(&request);
        let (broker, epoch) = (heartbeat.broker, heartbeat.epoch);
        let answer = tokio::select! {
            answer = rpc.ask(Request::Heartbeat(heartbeat)) => answer,
            () = sender.closed() => return,
        };
        let answer = answer.and_then(|Answered { reply, controller_epoch, committed }| {
            convert::heartbeat_answer(reply, controller_epoch, committed)
        });
        let is_refused = answer.is_err();
        if !is_refused && open.as_ref().is_none_or(|open| (open.broker, open.epoch) != (broker, epoch)) {
            open = Some(OpenStream::new(&rpc.inbox, broker, epoch));
        }
        if sender.send(answer).await.is_err() || is_refused {
            return;
        }
    }
}

/// Tells the loop that a broker's stream is open, and when it no longer is.
struct OpenStream {
    inbox: Inbox<Event>,
    broker: BrokerId,
    epoch: BrokerEpoch,
}

impl OpenStream {
    fn new(inbox: &Inbox<Event>, broker: BrokerId, epoch: BrokerEpoch) -> Self {
        inbox.note(Event::StreamOpened(broker, epoch));
        Self { inbox: inbox.clone(), broker, epoch }
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.inbox.note(Event::StreamClosed(self.broker, self.epoch));
    }
}

#[tonic::async_trait]
impl RaftService for RaftRpc {
    async fn exchange(
        &self,
        request: Rpc<Streaming<pb::ExchangeRequest>>,
    ) -> Result<Response<pb::ExchangeResponse>, Status> {
        let mut messages = request.into_inner();
        while let Some(message) = messages.message().await? {
            if message.to != self.own_id.0 {
                let text = format!("this is controller {}, not {}", self.own_id, message.to);
                return Err(v1::Error::new(ErrorCode::UnknownControllerId, text).into_status());
            }
            let ours = self.cluster_id.get().map_or("", String::as_str);
            if !message.cluster_id.is_empty() && !ours.is_empty() && message.cluster_id != ours {
                let text = format!("this is cluster {ours}, not {}", message.cluster_id);
                return Err(v1::Error::new(ErrorCode::InconsistentClusterId, text).into_status());
            }
            // Raft stands a lost message; a dead controller must end the stream, or its peers talk to a ghost.
            if self.inbox.offer(Event::Raft(message.message)) == Err(NotTaken::Closed) {
                return Err(stopped());
            }
        }
        Ok(Response::new(pb::ExchangeResponse {}))
    }
}
