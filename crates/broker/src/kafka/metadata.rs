//! Metadata, DescribeCluster, DescribeTopicPartitions: the cluster as this broker last heard of it.

use semel_kafka_wire::{
    ErrorCode, KString,
    messages::{
        describe_cluster::{DescribeClusterBroker, DescribeClusterRequest, DescribeClusterResponse},
        describe_topic_partitions::{
            Cursor, DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse,
            DescribeTopicPartitionsResponsePartition, DescribeTopicPartitionsResponseTopic,
        },
        metadata::{
            MetadataRequest, MetadataResponse, MetadataResponseBroker, MetadataResponsePartition,
            MetadataResponseTopic,
        },
    },
};
use semel_metadata::{ClusterImage, Partition, Topic};
use semel_model::{BrokerId, TopicId, TopicName};

use crate::node::Node;

/// What Kafka answers as "authorized operations" where no authorizer is configured: all that apply to a topic.
const TOPIC_OPERATIONS: i32 = 0b1101_1111_1000;
/// The same for the cluster.
const CLUSTER_OPERATIONS: i32 = 0b1_1111_1010_0000;
/// DescribeTopicPartitions: partitions in one answer at the most (Kafka's `max.request.partition.size.limit`).
const PARTITIONS_MAX: i32 = 2000;

/// The topics that a Metadata request names, that don't exist, and that may be created for it.
pub(crate) fn topics_to_create(node: &Node, request: &MetadataRequest) -> Vec<TopicName> {
    if !request.allow_auto_topic_creation || !node.auto_create_topics {
        return Vec::new();
    }
    let image = node.metadata.image();
    let named = request.topics.iter().flatten().filter_map(|topic| topic.name.as_deref());
    named
        .filter(|name| image.topic_by_name(name).is_none())
        .filter_map(|name| TopicName::new(name).ok())
        .filter(|name| !name.is_internal())
        .collect()
}

pub(crate) fn metadata(node: &Node, request: &MetadataRequest, version: i16) -> MetadataResponse {
    let image = node.metadata.image();
    // Version 0 has no null: there an empty list asks for everything.
    let topics = match &request.topics {
        None => all_topics(&image),
        Some(named) if named.is_empty() && version == 0 => all_topics(&image),
        Some(named) => named
            .iter()
            .map(|wanted| match &wanted.name {
                Some(name) => by_name(&image, name),
                None => by_id(&image, wanted.topic_id),
            })
            .collect(),
    };
    let mut response = MetadataResponse {
        brokers: image
            .alive_brokers()
            .map(|broker| MetadataResponseBroker {
                node_id: broker.id.get(),
                host: KString::from(&*broker.kafka_host),
                port: i32::from(broker.kafka_port),
                rack: broker.rack.as_deref().map(KString::from),
            })
            .collect(),
        cluster_id: image.cluster_id().map(KString::from),
        controller_id: any_broker(node, &image),
        topics,
        ..Default::default()
    };
    if request.include_topic_authorized_operations {
        for topic in &mut response.topics {
            topic.topic_authorized_operations = TOPIC_OPERATIONS;
        }
    }
    if request.include_cluster_authorized_operations {
        response.cluster_authorized_operations = CLUSTER_OPERATIONS;
    }
    response
}

/// Clients may send controller requests to any broker: it carries them on. As Kafka does, name one that lives.
fn any_broker(node: &Node, image: &ClusterImage) -> i32 {
    if image.is_alive(node.id) {
        return node.id.get();
    }
    image.alive_brokers().next().map_or(BrokerId::NONE, |broker| broker.id).get()
}

fn all_topics(image: &ClusterImage) -> Vec<MetadataResponseTopic> {
    image.topics().map(|topic| known(image, topic)).collect()
}

fn by_name(image: &ClusterImage, name: &KString) -> MetadataResponseTopic {
    if let Some(topic) = image.topic_by_name(name) {
        return known(image, topic);
    }
    let error_code = match TopicName::new(name) {
        Ok(_) => ErrorCode::UnknownTopicOrPartition,
        Err(_) => ErrorCode::InvalidTopicException,
    };
    MetadataResponseTopic { error_code, name: Some(name.clone()), ..Default::default() }
}

fn by_id(image: &ClusterImage, id: TopicId) -> MetadataResponseTopic {
    match image.topic(id) {
        Some(topic) => known(image, topic),
        None => MetadataResponseTopic {
            error_code: ErrorCode::UnknownTopicId,
            // Before version 12 a name can't be null.
            name: Some(KString::default()),
            topic_id: id,
            ..Default::default()
        },
    }
}

fn known(image: &ClusterImage, topic: &Topic) -> MetadataResponseTopic {
    MetadataResponseTopic {
        name: Some(KString::from(topic.name.as_str())),
        topic_id: topic.id,
        is_internal: topic.name.is_internal(),
        partitions: topic
            .iter()
            .map(|(id, partition)| MetadataResponsePartition {
                error_code: leader_error(partition),
                partition_index: id.partition.get(),
                leader_id: partition.leader.unwrap_or(BrokerId::NONE).get(),
                leader_epoch: partition.leader_epoch.get(),
                replica_nodes: ids(&partition.replicas),
                isr_nodes: ids(&partition.isr),
                offline_replicas: offline(image, partition),
            })
            .collect(),
        ..Default::default()
    }
}

fn leader_error(partition: &Partition) -> ErrorCode {
    if partition.leader.is_some() { ErrorCode::None } else { ErrorCode::LeaderNotAvailable }
}

pub(crate) fn ids(brokers: &[BrokerId]) -> Vec<i32> {
    brokers.iter().map(|broker| broker.get()).collect()
}

pub(crate) fn offline(image: &ClusterImage, partition: &Partition) -> Vec<i32> {
    partition.replicas.iter().filter(|id| !image.is_alive(**id)).map(|id| id.get()).collect()
}

pub(crate) fn describe_cluster(node: &Node, request: &DescribeClusterRequest) -> DescribeClusterResponse {
    const BROKERS: i8 = 1;
    if request.endpoint_type != BROKERS {
        return DescribeClusterResponse {
            error_code: if request.endpoint_type == 2 {
                ErrorCode::MismatchedEndpointType
            } else {
                ErrorCode::UnsupportedEndpointType
            },
            error_message: Some(KString::from_static("this is a broker's endpoint: endpoint type 1")),
            ..Default::default()
        };
    }
    let image = node.metadata.image();
    DescribeClusterResponse {
        endpoint_type: BROKERS,
        cluster_id: image.cluster_id().map(KString::from).unwrap_or_default(),
        controller_id: any_broker(node, &image),
        brokers: image
            .brokers()
            .filter(|broker| broker.is_alive() || request.include_fenced_brokers)
            .map(|broker| DescribeClusterBroker {
                broker_id: broker.id.get(),
                host: KString::from(&*broker.kafka_host),
                port: i32::from(broker.kafka_port),
                rack: broker.rack.as_deref().map(KString::from),
                is_fenced: broker.fenced,
            })
            .collect(),
        cluster_authorized_operations: if request.include_cluster_authorized_operations {
            CLUSTER_OPERATIONS
        } else {
            i32::MIN
        },
        ..Default::default()
    }
}

/// KIP-966: topics in the order of their names, cut after a number of partitions, to be continued from a cursor.
pub(crate) fn describe_topic_partitions(
    node: &Node,
    request: &DescribeTopicPartitionsRequest,
) -> DescribeTopicPartitionsResponse {
    let image = node.metadata.image();
    let (from_topic, from_partition) = match &request.cursor {
        Some(cursor) => (cursor.topic_name.as_str(), cursor.partition_index),
        None => ("", 0),
    };
    let mut names: Vec<String> = if request.topics.is_empty() {
        image.topics_from(from_topic).map(|topic| topic.name.as_str().to_owned()).collect()
    } else {
        request
            .topics
            .iter()
            .map(|topic| topic.name.to_string())
            .filter(|name| name.as_str() >= from_topic)
            .collect()
    };
    names.sort_unstable();
    names.dedup();
    let mut room = request.response_partition_limit.clamp(1, PARTITIONS_MAX);
    let mut response = DescribeTopicPartitionsResponse::default();
    for name in names {
        let cursor = |partition_index| Some(Cursor { topic_name: KString::from(&*name), partition_index });
        if room == 0 {
            response.next_cursor = cursor(0);
            break;
        }
        let Some(topic) = image.topic_by_name(&name) else {
            response.topics.push(DescribeTopicPartitionsResponseTopic {
                error_code: match TopicName::new(&name) {
                    Ok(_) => ErrorCode::UnknownTopicOrPartition,
                    Err(_) => ErrorCode::InvalidTopicException,
                },
                name: Some(KString::from(&*name)),
                ..Default::default()
            });
            continue;
        };
        let first = if name == from_topic { from_partition.max(0) } else { 0 };
        let mut described = Vec::new();
        for (id, partition) in topic.iter().skip(usize::try_from(first).unwrap_or(0)) {
            if room == 0 {
                response.next_cursor = cursor(id.partition.get());
                break;
            }
            room -= 1;
            described.push(DescribeTopicPartitionsResponsePartition {
                error_code: leader_error(partition),
                partition_index: id.partition.get(),
                leader_id: partition.leader.unwrap_or(BrokerId::NONE).get(),
                leader_epoch: partition.leader_epoch.get(),
                replica_nodes: ids(&partition.replicas),
                isr_nodes: ids(&partition.isr),
                // Null is legal here and ends Kafka's own tools with a NullPointerException.
                eligible_leader_replicas: Some(Vec::new()),
                last_known_elr: Some(Vec::new()),
                offline_replicas: offline(&image, partition),
            });
        }
        response.topics.push(DescribeTopicPartitionsResponseTopic {
            name: Some(KString::from(&*name)),
            topic_id: topic.id,
            is_internal: topic.name.is_internal(),
            topic_authorized_operations: TOPIC_OPERATIONS,
            partitions: described,
            ..Default::default()
        });
        if response.next_cursor.is_some() {
            break;
        }
    }
    response
}
