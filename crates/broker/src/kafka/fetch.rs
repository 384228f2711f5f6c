//! Fetch: file ranges at once if there is enough to read, else a long poll on the partitions that may move.

use std::{sync::Arc, time::Duration};

use semel_kafka_gateway::{
    Answer, Reply,
    fetch_session::{SessionCache, SessionFetch},
};
use semel_kafka_wire::{
    ErrorCode, External, KString, Records,
    messages::fetch::{
        AbortedTransaction, FetchPartition, FetchRequest, FetchResponse, FetchTopic, FetchableTopicResponse,
        LeaderIdAndEpoch, NodeEndpoint, PartitionData,
    },
};
use semel_model::{Offset, PartitionIndex, TopicPartition};
use tokio::{sync::Notify, time::Instant};

use super::{
    backend::Range,
    offsets::{isolation, told},
    produce::{TopicRef, current_leader, leaders},
};
use crate::{
    failure::Failure,
    node::Node,
    partition::{Isolation, Partition, ReadSpec},
};

/// The fetch sessions of this broker's clients.
pub(crate) type Sessions = SessionCache;

/// From this version on, topics are named by their ids.
const TOPIC_IDS_FROM: i16 = 13;
/// From this version on a refusal says who leads (KIP-951); from the other on, where.
const CURRENT_LEADER_FROM: i16 = 12;
const NODE_ENDPOINTS_FROM: i16 = 16;

/// The bounds of one fetch.
#[derive(Clone, Copy)]
struct Bounds {
    version: i16,
    isolation: Isolation,
    max_bytes: u32,
    min_bytes: u64,
}

/// One look at all partitions.
struct Attempt {
    response: FetchResponse,
    ranges: Vec<Range>,
    bytes: u64,
    /// Whether the answer can't wait: a partition answered with an error, or more bytes lie behind those found (a read
    /// ends with its segment), so waiting for bytes to arrive would be for nothing.
    at_once: bool,
}

pub(crate) fn fetch(node: &Arc<Node>, mut request: FetchRequest, version: i16) -> Reply<Range> {
    if request.replica_id >= 0 || request.replica_state.replica_id >= 0 {
        // Brokers replicate by gRPC; a Kafka broker that follows this one is not one of ours.
        let response =
            FetchResponse { error_code: ErrorCode::ClusterAuthorizationFailed, ..Default::default() };
        return Reply::now(response);
    }
    let session = match node.fetch_sessions.begin(&mut request, version, node.clock.now()) {
        Ok(session) => session,
        Err(error_code) => return Reply::now(FetchResponse { error_code, ..Default::default() }),
    };
    let bounds = Bounds {
        version,
        isolation: isolation(request.isolation_level),
        max_bytes: request.max_bytes.max(0).unsigned_abs().min(node.fetch_bytes_max),
        // More than may be sent can't be waited for.
        min_bytes: u64::from(request.min_bytes.max(0).min(request.max_bytes.max(0)).unsigned_abs()),
    };
    let wait = Duration::from_millis(u64::try_from(request.max_wait_ms).unwrap_or(0));
    let attempt = attempt(node, &session.topics, bounds);
    if attempt.at_once || attempt.bytes >= bounds.min_bytes || wait.is_zero() || session.topics.is_empty() {
        return finish(node, session, attempt, bounds.version);
    }
    let node = node.clone();
    let deadline = Instant::now() + wait;
    Reply::later(async move { long_poll(&node, session, bounds, deadline).await })
}

/// Looks again each time one of the partitions moves, until there is enough or the time is over.
async fn long_poll(node: &Node, session: SessionFetch, bounds: Bounds, deadline: Instant) -> Reply<Range> {
    loop {
        let changed = Arc::new(Notify::new());
        for topic in &session.topics {
            for asked in &topic.partitions {
                if let Ok(partition) = find(node, topic, asked, bounds.version) {
                    partition.waiters().on_change(&changed);
                }
            }
        }
        let attempt = attempt(node, &session.topics, bounds);
        if attempt.at_once || attempt.bytes >= bounds.min_bytes {
            return finish(node, session, attempt, bounds.version);
        }
        if tokio::time::timeout_at(deadline, changed.notified()).await.is_err() {
            return finish(node, session, attempt, bounds.version);
        }
        // Usually this is it, and nothing has to be registered again.
        let attempt = self::attempt(node, &session.topics, bounds);
        if attempt.at_once || attempt.bytes >= bounds.min_bytes {
            return finish(node, session, attempt, bounds.version);
        }
    }
}

fn finish(node: &Node, session: SessionFetch, attempt: Attempt, version: i16) -> Reply<Range> {
    let Attempt { mut response, mut ranges, .. } = attempt;
    let before = ranges.len();
    node.fetch_sessions.finish(session, &mut response, node.clock.now());
    if version >= NODE_ENDPOINTS_FROM {
        node_endpoints(node, &mut response);
    }
    // A session leaves out partitions without news, never one with records; but one that was overtaken by another
    // request loses them all.
    if response.responses.is_empty() && before > 0 {
        ranges.clear();
    }
    Reply::Now(Answer { response: response.into(), ranges })
}

fn topic_ref(topic: &FetchTopic, version: i16) -> TopicRef<'_> {
    if version >= TOPIC_IDS_FROM { TopicRef::Id(topic.topic_id) } else { TopicRef::Name(&topic.topic) }
}

fn find(
    node: &Node,
    topic: &FetchTopic,
    asked: &FetchPartition,
    version: i16,
) -> Result<Arc<Partition>, Failure> {
    match topic_ref(topic, version) {
        TopicRef::Name(name) => node.partitions.by_name(name, asked.partition),
        TopicRef::Id(topic) => {
            node.partitions.by_id(TopicPartition { topic, partition: PartitionIndex(asked.partition) })
        }
    }
}

fn attempt(node: &Node, topics: &[FetchTopic], bounds: Bounds) -> Attempt {
    let mut attempt =
        Attempt { response: FetchResponse::default(), ranges: Vec::new(), bytes: 0, at_once: false };
    let mut room = bounds.max_bytes;
    for topic in topics {
        let mut partitions = Vec::with_capacity(topic.partitions.len());
        for asked in &topic.partitions {
            let read = find(node, topic, asked, bounds.version).and_then(|partition| {
                partition.read(&ReadSpec {
                    offset: Offset(asked.fetch_offset),
                    max_bytes: asked.partition_max_bytes.max(0).unsigned_abs().min(room),
                    isolation: bounds.isolation,
                    // KIP-74: the first batch of the whole answer comes however large it is.
                    at_least_one: attempt.bytes == 0,
                    leader_epoch: told(asked.current_leader_epoch),
                })
            });
            partitions.push(match read {
                Ok(read) => {
                    let records = match read.slice {
                        // As Kafka: no records are empty bytes, not null.
                        None => Records::Bytes(bytes::Bytes::new()),
                        Some(slice) => {
                            attempt.at_once |= read.more_follows;
                            let token = u32::try_from(attempt.ranges.len()).unwrap_or(u32::MAX);
                            let len = slice.len;
                            attempt.bytes += u64::from(len);
                            room = room.saturating_sub(len);
                            attempt.ranges.push(Range(slice));
                            Records::External(External { token, len })
                        }
                    };
                    PartitionData {
                        partition_index: asked.partition,
                        high_watermark: read.high_watermark.get(),
                        last_stable_offset: read.last_stable_offset.get(),
                        log_start_offset: read.log_start_offset.get(),
                        aborted_transactions: (bounds.isolation == Isolation::ReadCommitted).then(|| {
                            read.aborted
                                .iter()
                                .map(|one| AbortedTransaction {
                                    producer_id: one.producer_id.get(),
                                    first_offset: one.first_offset.get(),
                                })
                                .collect()
                        }),
                        records,
                        ..Default::default()
                    }
                }
                Err(failure) => {
                    attempt.at_once = true;
                    refused(node, topic, asked, &failure, bounds.version)
                }
            });
        }
        attempt.response.responses.push(FetchableTopicResponse {
            topic: topic.topic.clone(),
            topic_id: topic.topic_id,
            partitions,
        });
    }
    attempt
}

fn refused(
    node: &Node,
    topic: &FetchTopic,
    asked: &FetchPartition,
    failure: &Failure,
    version: i16,
) -> PartitionData {
    let mut data = PartitionData {
        partition_index: asked.partition,
        error_code: failure.code,
        high_watermark: -1,
        records: Records::Bytes(bytes::Bytes::new()),
        ..Default::default()
    };
    // KIP-951: a client whose view of the leadership is wrong is told the right one.
    if version >= CURRENT_LEADER_FROM
        && matches!(failure.code, ErrorCode::NotLeaderOrFollower | ErrorCode::FencedLeaderEpoch)
        && let Some((leader_id, leader_epoch)) =
            current_leader(node, &topic_ref(topic, version), asked.partition)
    {
        data.current_leader = LeaderIdAndEpoch { leader_id, leader_epoch };
    }
    data
}

fn node_endpoints(node: &Node, response: &mut FetchResponse) {
    let named: Vec<i32> = response
        .responses
        .iter()
        .flat_map(|topic| &topic.partitions)
        .map(|data| data.current_leader.leader_id)
        .filter(|id| *id >= 0)
        .collect();
    response.node_endpoints = leaders(node, named, |broker| NodeEndpoint {
        node_id: broker.id.get(),
        host: KString::from(&*broker.kafka_host),
        port: i32::from(broker.kafka_port),
        rack: broker.rack.as_deref().map(KString::from),
    });
}
