//! Requests and replies of `semel.internal.v1`, to and from the controller's own.

use std::sync::Arc;

use semel_control::{
    Error, Reply, Request,
    ops::{
        alter_configs::{AlterConfigs, AlterResource, ConfigOperation, ResourceRef},
        alter_partition::{AlterPartition, IsrChange},
        create_partitions::{CreatePartitions, WiderTopic},
        create_topics::{Assignment, CreateTopics, NewTopic},
        delete_topics::{DeleteTopics, TopicRef},
        heartbeat::Heartbeat,
        producer_ids::AllocateProducerIds,
        register_broker::RegisterBroker,
    },
};
use semel_model::{
    BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, MetadataIndex, PartitionEpoch, PartitionIndex,
    TopicPartition,
};
use semel_proto::{
    internal::v1 as pb,
    metadata::{MalformedMetadata, directory_ids, incarnation_id, port, topic_id, topic_id_bytes},
    v1::{self, ErrorCode},
};
use tonic::Status;

/// Kafka's code of a refusal.
pub(crate) fn code(error: &Error) -> ErrorCode {
    match error {
        Error::NotController(_) => ErrorCode::NotController,
        Error::RequestTimedOut => ErrorCode::RequestTimedOut,
        Error::ThrottlingQuotaExceeded(_) => ErrorCode::ThrottlingQuotaExceeded,
        Error::DuplicateBrokerRegistration(_) => ErrorCode::DuplicateBrokerRegistration,
        Error::InconsistentClusterId(_) => ErrorCode::InconsistentClusterId,
        Error::InvalidRegistration(_) => ErrorCode::InvalidRegistration,
        Error::StaleBrokerEpoch(_) => ErrorCode::StaleBrokerEpoch,
        Error::BrokerIdNotRegistered(_) => ErrorCode::BrokerIdNotRegistered,
        Error::InvalidRequest(_) => ErrorCode::InvalidRequest,
        Error::InvalidTopicException(_) => ErrorCode::InvalidTopicException,
        Error::TopicAlreadyExists(_) => ErrorCode::TopicAlreadyExists,
        Error::UnknownTopicOrPartition(_) => ErrorCode::UnknownTopicOrPartition,
        Error::UnknownTopicId(_) => ErrorCode::UnknownTopicId,
        Error::InvalidPartitions(_) => ErrorCode::InvalidPartitions,
        Error::InvalidReplicationFactor(_) => ErrorCode::InvalidReplicationFactor,
        Error::InvalidReplicaAssignment(_) => ErrorCode::InvalidReplicaAssignment,
        Error::InvalidConfig(_) => ErrorCode::InvalidConfig,
        Error::PolicyViolation(_) => ErrorCode::PolicyViolation,
        Error::FencedLeaderEpoch(_) => ErrorCode::FencedLeaderEpoch,
        Error::InvalidUpdateVersion(_) => ErrorCode::InvalidUpdateVersion,
        Error::IneligibleReplica(_) => ErrorCode::IneligibleReplica,
    }
}

/// A refusal as a message.
pub(crate) fn error(error: &Error) -> v1::Error {
    v1::Error::new(code(error), error.to_string())
}

/// A request that cannot be read.
#[allow(clippy::needless_pass_by_value)] // the shape of map_err
pub(crate) fn malformed(cause: MalformedMetadata) -> Status {
    v1::Error::new(ErrorCode::InvalidRequest, cause.to_string()).into_status()
}

/// A reply to another request than was asked: a fault in Semel.
pub(crate) fn mismatched(reply: &Reply) -> Status {
    tracing::error!(?reply, "reply does not belong to its request");
    v1::Error::new(ErrorCode::UnknownServerError, "the controller answered another request").into_status()
}

pub(crate) fn register_broker(request: pb::RegisterBrokerRequest) -> Result<Request, MalformedMetadata> {
    Ok(Request::RegisterBroker(RegisterBroker {
        broker: semel_metadata::RegisterBroker {
            broker: BrokerId(request.broker_id),
            incarnation: incarnation_id(&request.incarnation_id)?,
            kafka_host: request.kafka_host.into(),
            kafka_port: port(request.kafka_port)?,
            grpc_address: request.grpc_address.into(),
            rack: request.rack.filter(|rack| !rack.is_empty()).map(Arc::from),
            directories: directory_ids(&request.directory_ids)?,
        },
        cluster_id: Some(request.cluster_id).filter(|id| !id.is_empty()),
        earlier_life_is_gone: false,
    }))
}

pub(crate) fn registered(reply: Reply, epoch: ControllerEpoch) -> Result<pb::RegisterBrokerResponse, Status> {
    let Reply::Registered(registered) = reply else { return Err(mismatched(&reply)) };
    Ok(pb::RegisterBrokerResponse {
        broker_epoch: registered.broker_epoch.0,
        cluster_id: registered.cluster_id,
        controller_epoch: epoch.0,
    })
}

pub(crate) fn heartbeat(request: &pb::HeartbeatRequest) -> Heartbeat {
    Heartbeat {
        broker: BrokerId(request.broker_id),
        epoch: BrokerEpoch(request.broker_epoch),
        metadata_index: MetadataIndex(request.metadata_index),
        want_fence: request.want_fence,
        want_shutdown: request.want_shutdown,
    }
}

pub(crate) fn heartbeat_answer(
    reply: Reply,
    epoch: ControllerEpoch,
    committed: MetadataIndex,
) -> Result<pb::HeartbeatResponse, Status> {
    let Reply::Heartbeat(answer) = reply else { return Err(mismatched(&reply)) };
    Ok(pb::HeartbeatResponse {
        controller_epoch: epoch.0,
        fenced: answer.fenced,
        may_shutdown: answer.may_shutdown,
        committed_index: committed.0,
    })
}

pub(crate) fn create_topics(request: pb::CreateTopicsRequest) -> Request {
    // Protobuf's 0 is "not said".
    let said = |count: i32| (count != 0).then_some(count);
    let topics = request.topics.into_iter().map(|topic| NewTopic {
        name: topic.name,
        partitions: said(topic.partitions),
        replication_factor: said(topic.replication_factor),
        // A map's order differs from call to call; the records' must not.
        configs: topic
            .configs
            .into_iter()
            .collect::<std::collections::BTreeMap<_, _>>()
            .into_iter()
            .collect(),
        assignments: assignments(topic.assignments),
    });
    Request::CreateTopics(CreateTopics { topics: topics.collect(), validate_only: request.validate_only })
}

fn assignments(assignments: Vec<v1::ReplicaAssignment>) -> Vec<Assignment> {
    let assignment = |assignment: v1::ReplicaAssignment| Assignment {
        partition: assignment.partition,
        brokers: assignment.brokers.into_iter().map(BrokerId).collect(),
    };
    assignments.into_iter().map(assignment).collect()
}

pub(crate) fn created_topics(reply: Reply, _: ControllerEpoch) -> Result<pb::CreateTopicsResponse, Status> {
    use v1::create_topics_response::Result as Item;
    let Reply::CreatedTopics(created) = reply else { return Err(mismatched(&reply)) };
    let results = created.results.into_iter().map(|(name, result)| match result {
        Ok(topic) => Item {
            name,
            topic_id: if topic.id.is_zero() { String::new() } else { topic.id.to_string() },
            partitions: topic.partitions,
            replication_factor: topic.replication_factor,
            error: None,
        },
        Err(cause) => Item { name, error: Some(error(&cause)), ..Item::default() },
    });
    Ok(pb::CreateTopicsResponse { results: results.collect(), metadata_index: created.index.0 })
}

pub(crate) fn delete_topics(request: pb::DeleteTopicsRequest) -> Result<Request, MalformedMetadata> {
    use pb::delete_topics_request::topic::By;
    let topics = request.topics.into_iter().map(|topic| match topic.by {
        Some(By::Name(name)) => Ok(TopicRef::Name(name)),
        Some(By::TopicId(id)) => topic_id(&id).map(TopicRef::Id),
        None => Err(MalformedMetadata::Missing { message: "DeleteTopicsRequest.Topic", field: "by" }),
    });
    Ok(Request::DeleteTopics(DeleteTopics { topics: topics.collect::<Result<_, _>>()? }))
}

pub(crate) fn deleted_topics(reply: Reply, _: ControllerEpoch) -> Result<pb::DeleteTopicsResponse, Status> {
    let Reply::DeletedTopics(deleted) = reply else { return Err(mismatched(&reply)) };
    let results = deleted.results.into_iter().map(|topic| pb::delete_topics_response::Result {
        name: topic.name.unwrap_or_default(),
        topic_id: topic_id_bytes(topic.id),
        error: topic.error.as_ref().map(error),
    });
    Ok(pb::DeleteTopicsResponse { results: results.collect(), metadata_index: deleted.index.0 })
}

pub(crate) fn create_partitions(request: pb::CreatePartitionsRequest) -> Request {
    let topics = request.topics.into_iter().map(|topic| WiderTopic {
        name: topic.name,
        count: topic.count,
        assignments: assignments(topic.assignments),
    });
    let topics = topics.collect();
    Request::CreatePartitions(CreatePartitions { topics, validate_only: request.validate_only })
}

pub(crate) fn created_partitions(
    reply: Reply,
    _: ControllerEpoch,
) -> Result<pb::CreatePartitionsResponse, Status> {
    let Reply::CreatedPartitions(created) = reply else { return Err(mismatched(&reply)) };
    let results = created.results.into_iter().map(|(name, result)| pb::create_partitions_response::Result {
        name,
        error: result.err().as_ref().map(error),
    });
    Ok(pb::CreatePartitionsResponse { results: results.collect(), metadata_index: created.index.0 })
}

pub(crate) fn alter_configs(request: pb::AlterConfigsRequest) -> Result<Request, MalformedMetadata> {
    let mut resources = Vec::with_capacity(request.resources.len());
    for resource in request.resources {
        let unknown = |field, value: i32| MalformedMetadata::OutOfRange { field, value: i64::from(value) };
        let reference = match v1::ResourceType::try_from(resource.r#type) {
            Ok(v1::ResourceType::Topic) => ResourceRef::Topic(resource.name),
            Ok(v1::ResourceType::Broker) => ResourceRef::Broker(resource.name),
            Ok(v1::ResourceType::Unspecified) | Err(_) => return Err(unknown("type", resource.r#type)),
        };
        let mut changes = Vec::with_capacity(resource.changes.len());
        for change in resource.changes {
            use v1::alter_configs_request::change::Operation;
            let operation = match Operation::try_from(change.operation) {
                Ok(Operation::Set) => ConfigOperation::Set(change.value),
                Ok(Operation::Delete) => ConfigOperation::Delete,
                Ok(Operation::Append) => ConfigOperation::Append(change.value),
                Ok(Operation::Subtract) => ConfigOperation::Subtract(change.value),
                Ok(Operation::Unspecified) | Err(_) => return Err(unknown("operation", change.operation)),
            };
            changes.push((change.name, operation));
        }
        resources.push(AlterResource { resource: reference, changes, replace: resource.replace });
    }
    Ok(Request::AlterConfigs(AlterConfigs { resources, validate_only: request.validate_only }))
}

pub(crate) fn altered_configs(reply: Reply, _: ControllerEpoch) -> Result<pb::AlterConfigsResponse, Status> {
    let Reply::AlteredConfigs(altered) = reply else { return Err(mismatched(&reply)) };
    let results = altered.results.into_iter().map(|(resource, result)| {
        let (kind, name) = match resource {
            ResourceRef::Topic(name) => (v1::ResourceType::Topic, name),
            ResourceRef::Broker(name) => (v1::ResourceType::Broker, name),
        };
        let error = result.err().as_ref().map(error);
        pb::alter_configs_response::Result { r#type: kind.into(), name, error }
    });
    Ok(pb::AlterConfigsResponse { results: results.collect(), metadata_index: altered.index.0 })
}

pub(crate) fn allocate_producer_ids(request: &pb::AllocateProducerIdsRequest) -> Request {
    let (broker, epoch) = (BrokerId(request.broker_id), BrokerEpoch(request.broker_epoch));
    Request::AllocateProducerIds(AllocateProducerIds { broker, epoch })
}

pub(crate) fn producer_ids(
    reply: Reply,
    _: ControllerEpoch,
) -> Result<pb::AllocateProducerIdsResponse, Status> {
    let Reply::ProducerIds(ids) = reply else { return Err(mismatched(&reply)) };
    Ok(pb::AllocateProducerIdsResponse { first_producer_id: ids.first.0, count: ids.count })
}

pub(crate) fn alter_partition(request: pb::AlterPartitionRequest) -> Result<Request, MalformedMetadata> {
    let partitions = request.partitions.into_iter().map(|partition| {
        Ok(IsrChange {
            partition: TopicPartition {
                topic: topic_id(&partition.topic_id)?,
                partition: PartitionIndex(partition.partition),
            },
            leader_epoch: LeaderEpoch(partition.leader_epoch),
            partition_epoch: PartitionEpoch(partition.partition_epoch),
            new_isr: partition.new_isr.into_iter().map(BrokerId).collect(),
        })
    });
    Ok(Request::AlterPartition(AlterPartition {
        broker: BrokerId(request.broker_id),
        epoch: BrokerEpoch(request.broker_epoch),
        partitions: partitions.collect::<Result<_, MalformedMetadata>>()?,
    }))
}

pub(crate) fn altered_partitions(
    reply: Reply,
    _: ControllerEpoch,
) -> Result<pb::AlterPartitionResponse, Status> {
    let Reply::AlteredPartitions(altered) = reply else { return Err(mismatched(&reply)) };
    let results =
        altered.results.into_iter().map(|(partition, result)| pb::alter_partition_response::Result {
            topic_id: topic_id_bytes(partition.topic),
            partition: partition.partition.0,
            error: result.err().as_ref().map(error),
        });
    Ok(pb::AlterPartitionResponse { results: results.collect(), metadata_index: altered.index.0 })
}
