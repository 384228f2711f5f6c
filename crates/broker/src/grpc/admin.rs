//! `AdminService`: topics, configurations, the cluster.

use std::time::Duration;

use semel_kafka_wire::ErrorCode;
use semel_metadata::{ClusterImage, Topic};
use semel_model::BrokerId;
use semel_proto::{
    internal::v1 as internal,
    v1::{self, admin_service_server::AdminService},
};
use tonic::{Request, Response, Status};

use super::FrontDoor;
use crate::{
    failure::Failure,
    kafka::metadata::{ids, offline},
};

/// How long a change may take when the caller gave no deadline.
const WITHIN: Duration = Duration::from_secs(30);

/// Answers for one broker.
#[derive(Clone)]
pub(super) struct Admin {
    pub(super) door: FrontDoor,
}

/// A topic as clients see it.
pub(crate) fn describe_topic(image: &ClusterImage, topic: &Topic) -> v1::Topic {
    v1::Topic {
        name: topic.name.as_str().to_owned(),
        topic_id: topic.id.to_string(),
        internal: topic.name.is_internal(),
        partitions: topic
            .iter()
            .map(|(id, partition)| v1::Partition {
                partition: id.partition.get(),
                leader: partition.leader.unwrap_or(BrokerId::NONE).get(),
                leader_epoch: partition.leader_epoch.get(),
                replicas: ids(&partition.replicas),
                isr: ids(&partition.isr),
                offline_replicas: offline(image, partition),
            })
            .collect(),
        error: None,
    }
}

/// A broker as clients see it.
pub(crate) fn describe_broker(broker: &semel_metadata::Broker) -> v1::describe_cluster_response::Broker {
    v1::describe_cluster_response::Broker {
        id: broker.id.get(),
        kafka_host: broker.kafka_host.to_string(),
        kafka_port: i32::from(broker.kafka_port),
        grpc_address: broker.grpc_address.to_string(),
        rack: broker.rack.as_deref().unwrap_or_default().to_owned(),
        fenced: broker.fenced,
        broker_epoch: broker.epoch.get(),
    }
}

/// The one result that a request of one item must have.
fn only<T>(mut results: Vec<T>) -> Result<T, Failure> {
    match results.pop() {
        Some(result) if results.is_empty() => Ok(result),
        _ => Err(Failure::new(
            ErrorCode::UnknownServerError,
            "the controller did not answer for the one item asked",
        )),
    }
}

#[tonic::async_trait]
impl AdminService for Admin {
    async fn create_topics(
        &self,
        request: Request<v1::CreateTopicsRequest>,
    ) -> Result<Response<v1::CreateTopicsResponse>, Status> {
        let v1::CreateTopicsRequest { topics, validate_only } = request.into_inner();
        let carried = internal::CreateTopicsRequest { topics, validate_only };
        let response = self.door.node()?.create_topics(carried, WITHIN).await?;
        Ok(Response::new(v1::CreateTopicsResponse { results: response.results }))
    }

    async fn delete_topics(
        &self,
        request: Request<v1::DeleteTopicsRequest>,
    ) -> Result<Response<v1::DeleteTopicsResponse>, Status> {
        use internal::delete_topics_request::{Topic, topic::By};
        let topics =
            request.into_inner().names.into_iter().map(|name| Topic { by: Some(By::Name(name)) }).collect();
        let response =
            self.door.node()?.delete_topics(internal::DeleteTopicsRequest { topics }, WITHIN).await?;
        let results = response
            .results
            .into_iter()
            .map(|result| v1::delete_topics_response::Result { name: result.name, error: result.error })
            .collect();
        Ok(Response::new(v1::DeleteTopicsResponse { results }))
    }

    async fn create_partitions(
        &self,
        request: Request<v1::CreatePartitionsRequest>,
    ) -> Result<Response<v1::CreatePartitionsResponse>, Status> {
        let v1::CreatePartitionsRequest { topic, count, assignments, validate_only } = request.into_inner();
        let topic = internal::create_partitions_request::Topic { name: topic, count, assignments };
        let carried = internal::CreatePartitionsRequest { topics: vec![topic], validate_only };
        let result = only(self.door.node()?.create_partitions(carried, WITHIN).await?.results)?;
        match result.error {
            Some(error) => Err(error.into_status()),
            None => Ok(Response::new(v1::CreatePartitionsResponse {})),
        }
    }

    async fn describe_topics(
        &self,
        request: Request<v1::DescribeTopicsRequest>,
    ) -> Result<Response<v1::DescribeTopicsResponse>, Status> {
        let names = request.into_inner().names;
        let image = self.door.node()?.metadata.image();
        let topics = if names.is_empty() {
            image.topics().map(|topic| describe_topic(&image, topic)).collect()
        } else {
            let describe = |name: String| match image.topic_by_name(&name) {
                Some(topic) => describe_topic(&image, topic),
                None => {
                    let error = Some(Failure::unknown_topic(&name).to_grpc());
                    v1::Topic { name, error, ..Default::default() }
                }
            };
            names.into_iter().map(describe).collect()
        };
        Ok(Response::new(v1::DescribeTopicsResponse { topics }))
    }

    async fn describe_configs(
        &self,
        request: Request<v1::DescribeConfigsRequest>,
    ) -> Result<Response<v1::DescribeConfigsResponse>, Status> {
        let request = request.into_inner();
        let entries = match request.r#type() {
            v1::ResourceType::Topic => self.door.node()?.topic_config_entries(&request.name)?,
            v1::ResourceType::Broker => self.door.node()?.broker_config_entries(&request.name)?,
            v1::ResourceType::Unspecified => {
                return Err(
                    Failure::new(ErrorCode::InvalidRequest, "name a resource type: topic or broker").into()
                );
            }
        };
        let entries = entries
            .into_iter()
            .map(|entry| v1::describe_configs_response::Entry {
                name: entry.resolved.def.name.to_owned(),
                source: entry.grpc_source().into(),
                read_only: entry.read_only,
                documentation: entry.resolved.def.doc.to_owned(),
                value: entry.resolved.value,
            })
            .collect();
        Ok(Response::new(v1::DescribeConfigsResponse { entries }))
    }

    async fn alter_configs(
        &self,
        request: Request<v1::AlterConfigsRequest>,
    ) -> Result<Response<v1::AlterConfigsResponse>, Status> {
        let v1::AlterConfigsRequest { r#type, name, changes, validate_only } = request.into_inner();
        let resource = internal::alter_configs_request::Resource { r#type, name, changes, replace: false };
        let carried = internal::AlterConfigsRequest { resources: vec![resource], validate_only };
        let result = only(self.door.node()?.alter_configs(carried, WITHIN).await?.results)?;
        match result.error {
            Some(error) => Err(error.into_status()),
            None => Ok(Response::new(v1::AlterConfigsResponse {})),
        }
    }

    async fn describe_cluster(
        &self,
        _: Request<v1::DescribeClusterRequest>,
    ) -> Result<Response<v1::DescribeClusterResponse>, Status> {
        let quorum = self.door.node()?.describe_quorum().await?;
        let image = self.door.node()?.metadata.image();
        Ok(Response::new(v1::DescribeClusterResponse {
            cluster_id: image.cluster_id().unwrap_or_default().to_owned(),
            brokers: image.brokers().map(describe_broker).collect(),
            controllers: quorum
                .voters
                .into_iter()
                .map(|voter| v1::describe_cluster_response::Controller {
                    leader: voter.id == quorum.leader_id,
                    id: voter.id,
                    grpc_address: voter.grpc_address,
                })
                .collect(),
            controller_epoch: quorum.controller_epoch,
            metadata_index: image.index().get(),
            topics: i32::try_from(image.topic_count()).unwrap_or(i32::MAX),
            partitions: i32::try_from(image.partition_count()).unwrap_or(i32::MAX),
        }))
    }

    async fn describe_log_dirs(
        &self,
        _: Request<v1::DescribeLogDirsRequest>,
    ) -> Result<Response<v1::DescribeLogDirsResponse>, Status> {
        let directories = self
            .door
            .node()?
            .describe_log_dirs()
            .into_iter()
            .map(|directory| v1::describe_log_dirs_response::Directory {
                path: directory.path.display().to_string(),
                total_bytes: i64::try_from(directory.total_bytes).unwrap_or(i64::MAX),
                usable_bytes: i64::try_from(directory.usable_bytes).unwrap_or(i64::MAX),
                error: directory.failure.map(|failure| failure.to_grpc()),
                replicas: directory
                    .replicas
                    .into_iter()
                    .map(|replica| v1::describe_log_dirs_response::Replica {
                        topic: replica.topic.as_str().to_owned(),
                        partition: replica.partition.get(),
                        size_bytes: i64::try_from(replica.size_bytes).unwrap_or(i64::MAX),
                        log_start_offset: replica.log_start_offset.get(),
                        log_end_offset: replica.log_end_offset.get(),
                    })
                    .collect(),
            })
            .collect();
        Ok(Response::new(v1::DescribeLogDirsResponse { directories }))
    }
}
