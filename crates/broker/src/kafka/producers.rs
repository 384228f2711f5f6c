//! InitProducerId, DescribeProducers, FindCoordinator.

use std::sync::Arc;

use semel_kafka_gateway::Reply;
use semel_kafka_wire::{
    ErrorCode, KString,
    messages::{
        describe_producers::{
            DescribeProducersRequest, DescribeProducersResponse, PartitionResponse, ProducerState,
            TopicResponse,
        },
        find_coordinator::{Coordinator, FindCoordinatorRequest, FindCoordinatorResponse},
        init_producer_id::{InitProducerIdRequest, InitProducerIdResponse},
    },
};
use semel_model::ProducerEpoch;

use super::backend::Range;
use crate::{failure::Failure, node::Node};

/// Why a request for a coordinator can't be answered with one.
const NO_COORDINATORS: &str = "this cluster has no transaction or group coordinators";

/// Gives an idempotent producer its id. With its old id it keeps it under the next epoch, until those are used up:
/// the partitions themselves fence older epochs (KIP-360).
pub(crate) fn init_producer_id(node: &Arc<Node>, request: InitProducerIdRequest) -> Reply<Range> {
    if let Some(id) = &request.transactional_id {
        let error_code =
            if id.is_empty() { ErrorCode::InvalidRequest } else { ErrorCode::CoordinatorNotAvailable };
        return Reply::now(InitProducerIdResponse {
            error_code,
            producer_id: -1,
            producer_epoch: -1,
            ..Default::default()
        });
    }
    let node = node.clone();
    Reply::later(async move {
        let response = match node.producer_ids.next().await {
            Ok(id) => InitProducerIdResponse {
                producer_id: id.get(),
                producer_epoch: ProducerEpoch::FIRST.get(),
                ..Default::default()
            },
            Err(error) => InitProducerIdResponse {
                error_code: Failure::from(error).code,
                producer_id: -1,
                producer_epoch: -1,
                ..Default::default()
            },
        };
        Reply::now(response)
    })
}

pub(crate) fn describe_producers(
    node: &Node,
    request: &DescribeProducersRequest,
) -> DescribeProducersResponse {
    let topics = request
        .topics
        .iter()
        .map(|topic| TopicResponse {
            name: topic.name.clone(),
            partitions: topic
                .partition_indexes
                .iter()
                .map(|index| {
                    let mut answer = PartitionResponse { partition_index: *index, ..Default::default() };
                    let producers = node
                        .partitions
                        .by_name(&topic.name, *index)
                        .and_then(|partition| partition.active_producers());
                    match producers {
                        Ok(producers) => answer.active_producers = producers.into_iter().map(state).collect(),
                        Err(failure) => {
                            answer.error_code = failure.code;
                            answer.error_message = Some(KString::from(failure.message));
                        }
                    }
                    answer
                })
                .collect(),
        })
        .collect();
    DescribeProducersResponse { topics, ..Default::default() }
}

fn state(entry: semel_record::ProducerSnapshotEntry) -> ProducerState {
    ProducerState {
        producer_id: entry.producer_id.get(),
        producer_epoch: i32::from(entry.producer_epoch.get()),
        last_sequence: entry.last_sequence.get(),
        last_timestamp: entry.timestamp.get(),
        coordinator_epoch: entry.coordinator_epoch.get(),
        current_txn_start_offset: entry.current_txn_first_offset.map_or(-1, semel_model::Offset::get),
    }
}

/// There are no coordinators yet: clients are told so with an error they retry on.
pub(crate) fn find_coordinator(request: &FindCoordinatorRequest, version: i16) -> FindCoordinatorResponse {
    let message = Some(KString::from_static(NO_COORDINATORS));
    if version < 4 {
        return FindCoordinatorResponse {
            error_code: ErrorCode::CoordinatorNotAvailable,
            error_message: message,
            node_id: -1,
            port: -1,
            ..Default::default()
        };
    }
    let coordinators = request
        .coordinator_keys
        .iter()
        .map(|key| Coordinator {
            key: key.clone(),
            node_id: -1,
            port: -1,
            error_code: ErrorCode::CoordinatorNotAvailable,
            error_message: message.clone(),
            ..Default::default()
        })
        .collect();
    FindCoordinatorResponse { coordinators, ..Default::default() }
}
