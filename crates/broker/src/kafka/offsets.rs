//! ListOffsets, OffsetForLeaderEpoch, DeleteRecords.

use semel_kafka_wire::{
    ErrorCode,
    messages::{
        delete_records::{
            DeleteRecordsPartitionResult, DeleteRecordsRequest, DeleteRecordsResponse,
            DeleteRecordsTopicResult,
        },
        list_offsets::{
            ListOffsetsPartition, ListOffsetsPartitionResponse, ListOffsetsRequest, ListOffsetsResponse,
            ListOffsetsTopicResponse,
        },
        offset_for_leader_epoch::{
            EpochEndOffset, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse,
            OffsetForLeaderTopicResult,
        },
    },
};
use semel_model::{LeaderEpoch, Offset, Timestamp};

use crate::{
    failure::Failure,
    node::Node,
    ops::offsets::{Found, Position},
    partition::Isolation,
};

/// Kafka's -1 is "the client told none".
pub(super) fn told(leader_epoch: i32) -> Option<LeaderEpoch> {
    (leader_epoch >= 0).then_some(LeaderEpoch(leader_epoch))
}

pub(super) fn isolation(level: i8) -> Isolation {
    if level == 1 { Isolation::ReadCommitted } else { Isolation::ReadUncommitted }
}

/// The negative timestamps with a meaning; `None` for those of tiered storage, which has no data here.
fn position(timestamp: i64) -> Result<Option<Position>, Failure> {
    const LATEST: i64 = -1;
    const EARLIEST: i64 = -2;
    const MAX_TIMESTAMP: i64 = -3;
    const EARLIEST_LOCAL: i64 = -4;
    const LATEST_TIERED: i64 = -5;
    const EARLIEST_PENDING_UPLOAD: i64 = -6;
    Ok(Some(match timestamp {
        0.. => Position::At(Timestamp(timestamp)),
        LATEST => Position::Latest,
        EARLIEST | EARLIEST_LOCAL => Position::Earliest,
        MAX_TIMESTAMP => Position::MaxTimestamp,
        LATEST_TIERED | EARLIEST_PENDING_UPLOAD => return Ok(None),
        other => {
            return Err(Failure::new(
                ErrorCode::UnsupportedVersion,
                format!("no offset is defined for timestamp {other}"),
            ));
        }
    }))
}

/// Whether batches must be looked into: a search by time decodes some, which may take a while.
pub(crate) fn needs_records(request: &ListOffsetsRequest) -> bool {
    let mut positions = request.topics.iter().flat_map(|topic| &topic.partitions);
    positions
        .any(|asked| matches!(position(asked.timestamp), Ok(Some(Position::At(_) | Position::MaxTimestamp))))
}

pub(crate) fn list_offsets(node: &Node, request: &ListOffsetsRequest, version: i16) -> ListOffsetsResponse {
    let isolation = isolation(request.isolation_level);
    let topics = request
        .topics
        .iter()
        .map(|topic| ListOffsetsTopicResponse {
            name: topic.name.clone(),
            partitions: topic
                .partitions
                .iter()
                .map(|asked| list_offset(node, &topic.name, asked, isolation, version))
                .collect(),
        })
        .collect();
    ListOffsetsResponse { topics, ..Default::default() }
}

fn list_offset(
    node: &Node,
    topic: &str,
    asked: &ListOffsetsPartition,
    isolation: Isolation,
    version: i16,
) -> ListOffsetsPartitionResponse {
    let mut answer =
        ListOffsetsPartitionResponse { partition_index: asked.partition_index, ..Default::default() };
    let found = position(asked.timestamp).and_then(|position| match position {
        None => Ok(None),
        Some(position) => node.partitions.by_name(topic, asked.partition_index)?.find_offset(
            position,
            isolation,
            told(asked.current_leader_epoch),
        ),
    });
    match found {
        Ok(Some(Found { offset, timestamp, leader_epoch })) => {
            answer.offset = offset.get();
            answer.timestamp = timestamp.get();
            // Older clients know no leader epochs, and their format has no room for them.
            if version >= 4 {
                answer.leader_epoch = leader_epoch.get();
            }
        }
        Ok(None) => {}
        Err(failure) => answer.error_code = failure.code,
    }
    answer
}

pub(crate) fn offset_for_leader_epoch(
    node: &Node,
    request: &OffsetForLeaderEpochRequest,
) -> OffsetForLeaderEpochResponse {
    let topics = request
        .topics
        .iter()
        .map(|topic| OffsetForLeaderTopicResult {
            topic: topic.topic.clone(),
            partitions: topic
                .partitions
                .iter()
                .map(|asked| {
                    let mut answer = EpochEndOffset { partition: asked.partition, ..Default::default() };
                    let end = node.partitions.by_name(&topic.topic, asked.partition).and_then(|partition| {
                        partition
                            .end_of_epoch(LeaderEpoch(asked.leader_epoch), told(asked.current_leader_epoch))
                    });
                    match end {
                        Ok(Some(end)) => {
                            answer.leader_epoch = end.leader_epoch.get();
                            answer.end_offset = end.end_offset.get();
                        }
                        // Not known here: -1 and -1, the defaults.
                        Ok(None) => {}
                        Err(failure) => answer.error_code = failure.code,
                    }
                    answer
                })
                .collect(),
        })
        .collect();
    OffsetForLeaderEpochResponse { topics, ..Default::default() }
}

pub(crate) fn delete_records(node: &Node, request: &DeleteRecordsRequest) -> DeleteRecordsResponse {
    let topics = request
        .topics
        .iter()
        .map(|topic| DeleteRecordsTopicResult {
            name: topic.name.clone(),
            partitions: topic
                .partitions
                .iter()
                .map(|asked| {
                    let deleted = node
                        .partitions
                        .by_name(&topic.name, asked.partition_index)
                        .and_then(|partition| partition.delete_records(Offset(asked.offset)));
                    let (low_watermark, error_code) = match deleted {
                        Ok(log_start_offset) => (log_start_offset.get(), ErrorCode::None),
                        Err(failure) => (-1, failure.code),
                    };
                    DeleteRecordsPartitionResult {
                        partition_index: asked.partition_index,
                        low_watermark,
                        error_code,
                    }
                })
                .collect(),
        })
        .collect();
    DeleteRecordsResponse { topics, ..Default::default() }
}
