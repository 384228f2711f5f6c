//! A controller that knows one broker and one topic. Its first metadata stream goes silent, as that of a controller
//! that was cut off from the others.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use semel_metadata::{ClusterImage, IncarnationId, PartitionState, Record, RegisterBroker};
use semel_model::{
    BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, MetadataIndex, PartitionEpoch, PartitionIndex,
    TopicId, TopicName, TopicPartition,
};
use semel_proto::{
    internal::v1::{self as pb, controller_service_server::ControllerService},
    metadata::image_message,
};
use semel_service::{
    grpc::{Server, ServerConfig},
    health::Health,
    metrics::Registry,
};
use tokio::{net::TcpListener, sync::Notify};
use tokio_stream::{Stream, StreamExt as _};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

pub(crate) const BROKER: i32 = 0;
pub(crate) const TOPIC: &str = "orders";
/// The index of the registration, and so the broker's epoch.
const EPOCH: u64 = 4;
/// The index at which the broker is unfenced.
const LAST: u64 = 5;

#[derive(Clone, Default)]
pub(crate) struct Fake(Arc<State>);

#[derive(Default)]
struct State {
    watches: AtomicUsize,
    never_unfence: AtomicBool,
    heartbeat: Notify,
}

impl Fake {
    /// Serves on an address of its own until the test ends.
    pub(crate) async fn start() -> (Self, String) {
        let fake = Self::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let service = pb::controller_service_server::ControllerServiceServer::new(fake.clone());
        let server =
            Server::new(ServerConfig::default(), &Registry::new(), &Health::new()).add_service(service);
        tokio::spawn(server.serve(listener, CancellationToken::new()));
        (fake, address)
    }

    pub(crate) fn watches(&self) -> usize {
        self.0.watches.load(Ordering::SeqCst)
    }

    pub(crate) fn never_unfence(&self) {
        self.0.never_unfence.store(true, Ordering::SeqCst);
    }

    pub(crate) async fn first_heartbeat(&self) {
        self.0.heartbeat.notified().await;
    }

    fn unfences(&self) -> bool {
        !self.0.never_unfence.load(Ordering::SeqCst) && self.watches() >= 2
    }
}

fn image(last: u64) -> ClusterImage {
    let broker = BrokerId(BROKER);
    let topic = TopicId::from_bytes([7; 16]);
    let partition = PartitionState {
        partition: TopicPartition { topic, partition: PartitionIndex(0) },
        replicas: [broker].into(),
        isr: [broker].into(),
        leader: Some(broker),
        leader_epoch: LeaderEpoch(0),
        partition_epoch: PartitionEpoch(0),
    };
    let epoch = BrokerEpoch(i64::try_from(EPOCH).unwrap());
    let records = [
        (1, Record::ClusterCreated { cluster_id: "test".into() }),
        (2, Record::TopicCreated { name: TopicName::new(TOPIC).unwrap(), id: topic }),
        (3, Record::PartitionState(partition)),
        (
            EPOCH,
            Record::RegisterBroker(RegisterBroker {
                broker,
                incarnation: IncarnationId([1; 16]),
                kafka_host: "localhost".into(),
                kafka_port: 1,
                grpc_address: "localhost:1".into(),
                rack: None,
                directories: [].into(),
            }),
        ),
        (LAST, Record::BrokerFence { broker, epoch, fenced: false, shutting_down: false }),
    ];
    let records = records
        .into_iter()
        .filter(|(index, _)| *index <= last)
        .map(|(index, record)| (MetadataIndex(index), record));
    ClusterImage::from_records(MetadataIndex(last), ControllerEpoch(1), records)
}

type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

fn unused<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("not in this test"))
}

#[tonic::async_trait]
impl ControllerService for Fake {
    type HeartbeatStream = Messages<pb::HeartbeatResponse>;
    type WatchMetadataStream = Messages<pb::WatchMetadataResponse>;

    async fn register_broker(
        &self,
        _: Request<pb::RegisterBrokerRequest>,
    ) -> Result<Response<pb::RegisterBrokerResponse>, Status> {
        Ok(Response::new(pb::RegisterBrokerResponse {
            broker_epoch: i64::try_from(EPOCH).unwrap(),
            cluster_id: "test".to_owned(),
            controller_epoch: 1,
        }))
    }

    async fn heartbeat(
        &self,
        request: Request<Streaming<pb::HeartbeatRequest>>,
    ) -> Result<Response<Self::HeartbeatStream>, Status> {
        let fake = self.clone();
        let answers = request.into_inner().map(move |beat| {
            let beat = beat?;
            fake.0.heartbeat.notify_one();
            let fenced = beat.metadata_index < EPOCH || !fake.unfences();
            Ok(pb::HeartbeatResponse {
                controller_epoch: 1,
                fenced,
                may_shutdown: beat.want_shutdown,
                committed_index: LAST,
            })
        });
        Ok(Response::new(Box::pin(answers)))
    }

    async fn watch_metadata(
        &self,
        _: Request<pb::WatchMetadataRequest>,
    ) -> Result<Response<Self::WatchMetadataStream>, Status> {
        self.0.watches.fetch_add(1, Ordering::SeqCst);
        let last = if self.unfences() { LAST } else { EPOCH };
        let message = image_message(&image(last));
        Ok(Response::new(Box::pin(tokio_stream::once(Ok(message)).chain(tokio_stream::pending()))))
    }

    async fn describe_quorum(
        &self,
        _: Request<pb::DescribeQuorumRequest>,
    ) -> Result<Response<pb::DescribeQuorumResponse>, Status> {
        let committed = LAST;
        Ok(Response::new(pb::DescribeQuorumResponse {
            leader_id: 1,
            controller_id: 1,
            controller_epoch: 1,
            committed_index: committed,
            applied_index: committed,
            ..Default::default()
        }))
    }

    async fn create_topics(
        &self,
        _: Request<pb::CreateTopicsRequest>,
    ) -> Result<Response<pb::CreateTopicsResponse>, Status> {
        unused()
    }

    async fn delete_topics(
        &self,
        _: Request<pb::DeleteTopicsRequest>,
    ) -> Result<Response<pb::DeleteTopicsResponse>, Status> {
        unused()
    }

    async fn create_partitions(
        &self,
        _: Request<pb::CreatePartitionsRequest>,
    ) -> Result<Response<pb::CreatePartitionsResponse>, Status> {
        unused()
    }

    async fn alter_configs(
        &self,
        _: Request<pb::AlterConfigsRequest>,
    ) -> Result<Response<pb::AlterConfigsResponse>, Status> {
        unused()
    }

    async fn allocate_producer_ids(
        &self,
        _: Request<pb::AllocateProducerIdsRequest>,
    ) -> Result<Response<pb::AllocateProducerIdsResponse>, Status> {
        unused()
    }

    async fn alter_partition(
        &self,
        _: Request<pb::AlterPartitionRequest>,
    ) -> Result<Response<pb::AlterPartitionResponse>, Status> {
        unused()
    }
}
