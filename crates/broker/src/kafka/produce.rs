//! Produce: each partition's batch is checked and appended while the request is read, so that the order of requests
//! is the order in the log; what then waits is only the acknowledgement.

use std::{sync::Arc, time::Duration};

use semel_kafka_gateway::Reply;
use semel_kafka_wire::{
    ErrorCode, KString,
    messages::produce::{
        LeaderIdAndEpoch, NodeEndpoint, PartitionProduceData, PartitionProduceResponse, ProduceRequest,
        ProduceResponse, TopicProduceResponse,
    },
};
use semel_model::{BrokerId, PartitionIndex, Timestamp, TopicPartition};
use tokio::time::Instant;

use super::backend::Range;
use crate::{
    failure::Failure,
    node::Node,
    partition::{AckResult, Acks, Appended},
    waiters::AckWait,
};

/// An acknowledgement that a response waits for: which of its partitions, and until when.
struct Waiting {
    topic: usize,
    partition: usize,
    ack: AckWait,
}

/// From this version on a refusal says who leads (KIP-951).
const CURRENT_LEADER_FROM: i16 = 10;
/// From this version on topics are named by their ids.
const TOPIC_IDS_FROM: i16 = 13;

/// How a request names a topic.
pub(super) enum TopicRef<'a> {
    Name(&'a str),
    Id(semel_model::TopicId),
}

pub(crate) fn produce(node: &Arc<Node>, request: ProduceRequest, version: i16) -> Reply<Range> {
    let acks = match request.acks {
        0 => Acks::None,
        1 => Acks::Leader,
        -1 => Acks::All,
        other => {
            let failure =
                Failure::new(ErrorCode::InvalidRequiredAcks, format!("acks must be 0, 1 or -1, not {other}"));
            return Reply::now(refuse_all(&request, &failure));
        }
    };
    let now = node.clock.now();
    let mut response = ProduceResponse::default();
    let mut waiting = Vec::new();
    let mut first_failure = None;
    for topic in request.topic_data {
        let mut answers = Vec::with_capacity(topic.partition_data.len());
        for data in topic.partition_data {
            let reference = if version >= TOPIC_IDS_FROM {
                TopicRef::Id(topic.topic_id)
            } else {
                TopicRef::Name(&topic.name)
            };
            let index = data.index;
            match append(node, &reference, data, acks, now) {
                Ok(appended) => {
                    answers.push(acknowledged(index, &appended));
                    if let Some(ack) = appended.ack {
                        waiting.push(Waiting {
                            topic: response.responses.len(),
                            partition: answers.len() - 1,
                            ack,
                        });
                    }
                }
                Err(failure) => {
                    answers.push(refused(node, &reference, index, &failure, version));
                    first_failure.get_or_insert(failure);
                }
            }
        }
        response.responses.push(TopicProduceResponse {
            name: topic.name,
            topic_id: topic.topic_id,
            partition_responses: answers,
        });
    }
    node_endpoints(node, &mut response);
    if acks == Acks::None {
        return match first_failure {
            None => Reply::Silent,
            // There is no other way to tell such a producer that it must look at its metadata again.
            Some(failure) => Reply::Close { reason: format!("produce with acks=0 failed: {failure}") },
        };
    }
    if waiting.is_empty() {
        return Reply::now(response);
    }
    let timeout = Duration::from_millis(u64::try_from(request.timeout_ms).unwrap_or(0));
    Reply::later(acknowledge(response, waiting, Instant::now() + timeout))
}

/// Waits for every acknowledgement, all against one deadline.
async fn acknowledge(
    mut response: ProduceResponse,
    waiting: Vec<Waiting>,
    deadline: Instant,
) -> Reply<Range> {
    for mut one in waiting {
        let outcome = match tokio::time::timeout_at(deadline, one.ack.done()).await {
            Ok(outcome) => AckResult::from(outcome).into_result(),
            Err(_) => Err(Failure::new(ErrorCode::RequestTimedOut, "appended, but not acknowledged in time")),
        };
        if let Err(failure) = outcome {
            let answer = &mut response.responses[one.topic].partition_responses[one.partition];
            *answer = failed(answer.index, &failure);
        }
    }
    Reply::now(response)
}

fn append(
    node: &Node,
    topic: &TopicRef<'_>,
    data: PartitionProduceData,
    acks: Acks,
    now: Timestamp,
) -> Result<Appended, Failure> {
    let partition = match *topic {
        TopicRef::Name(name) => node.partitions.by_name(name, data.index)?,
        TopicRef::Id(topic) => {
            node.partitions.by_id(TopicPartition { topic, partition: PartitionIndex(data.index) })?
        }
    };
    if partition.topic.is_internal() {
        return Err(Failure::new(
            ErrorCode::InvalidTopicException,
            format!("clients can't write to the internal topic {}", partition.topic),
        ));
    }
    let records = data.records.ok_or_else(|| Failure::new(ErrorCode::InvalidRecord, "no records"))?;
    partition.append(records, acks, now)
}

fn acknowledged(index: i32, appended: &Appended) -> PartitionProduceResponse {
    PartitionProduceResponse {
        index,
        base_offset: appended.base_offset.get(),
        log_append_time_ms: appended.append_time.get(),
        log_start_offset: appended.log_start_offset.get(),
        ..Default::default()
    }
}

fn failed(index: i32, failure: &Failure) -> PartitionProduceResponse {
    PartitionProduceResponse {
        index,
        error_code: failure.code,
        base_offset: -1,
        error_message: Some(KString::from(&*failure.message)),
        ..Default::default()
    }
}

/// A refusal; one that a look at the metadata would cure says who leads (KIP-951).
fn refused(
    node: &Node,
    topic: &TopicRef<'_>,
    index: i32,
    failure: &Failure,
    version: i16,
) -> PartitionProduceResponse {
    let mut answer = failed(index, failure);
    if version >= CURRENT_LEADER_FROM
        && matches!(failure.code, ErrorCode::NotLeaderOrFollower | ErrorCode::FencedLeaderEpoch)
        && let Some((leader_id, leader_epoch)) = current_leader(node, topic, index)
    {
        answer.current_leader = LeaderIdAndEpoch { leader_id, leader_epoch };
    }
    answer
}

pub(super) fn current_leader(node: &Node, topic: &TopicRef<'_>, index: i32) -> Option<(i32, i32)> {
    let image = node.metadata.image();
    let topic = match *topic {
        TopicRef::Name(name) => image.topic_by_name(name),
        TopicRef::Id(id) => image.topic(id),
    };
    let partition = topic?.partition(PartitionIndex(index))?;
    Some((partition.leader.unwrap_or(BrokerId::NONE).get(), partition.leader_epoch.get()))
}

/// The addresses of the leaders that the response names.
fn node_endpoints(node: &Node, response: &mut ProduceResponse) {
    let named: Vec<i32> = response
        .responses
        .iter()
        .flat_map(|topic| &topic.partition_responses)
        .map(|answer| answer.current_leader.leader_id)
        .filter(|id| *id >= 0)
        .collect();
    response.node_endpoints = leaders(node, named, |broker| NodeEndpoint {
        node_id: broker.id.get(),
        host: KString::from(&*broker.kafka_host),
        port: i32::from(broker.kafka_port),
        rack: broker.rack.as_deref().map(KString::from),
    });
}

/// The brokers of these ids, each once, as `endpoint` shows them.
pub(super) fn leaders<T>(
    node: &Node,
    mut ids: Vec<i32>,
    endpoint: impl Fn(&semel_metadata::Broker) -> T,
) -> Vec<T> {
    if ids.is_empty() {
        return Vec::new();
    }
    ids.sort_unstable();
    ids.dedup();
    let image = node.metadata.image();
    ids.into_iter().filter_map(|id| image.broker(BrokerId(id))).map(endpoint).collect()
}

fn refuse_all(request: &ProduceRequest, failure: &Failure) -> ProduceResponse {
    let responses = request
        .topic_data
        .iter()
        .map(|topic| TopicProduceResponse {
            name: topic.name.clone(),
            topic_id: topic.topic_id,
            partition_responses: topic
                .partition_data
                .iter()
                .map(|data| failed(data.index, failure))
                .collect(),
        })
        .collect();
    ProduceResponse { responses, ..Default::default() }
}
