//! What the gateway must know of responses: how to refuse an API, and which error to count.

use semel_kafka_wire::{ApiKey, ErrorCode, Response, messages};

/// A response of one error for an API that isn't served, if its response can carry one in this version; `None` if it
/// can't, and then the connection is closed, as Kafka does.
pub(crate) fn unsupported(key: ApiKey, version: i16) -> Option<Response> {
    if !semel_kafka_wire::versions(key)?.contains(&version) {
        return None;
    }
    /// Each API with the versions whose response has an error of its own.
    macro_rules! by_api {
        ($($api:ident($versions:pat) => $response:ident),* $(,)?) => {
            match (key, version) {
                $((ApiKey::$api, $versions) => Response::$api(messages::$response {
                    error_code: ErrorCode::UnsupportedVersion,
                    ..Default::default()
                }),)*
                _ => return None,
            }
        };
    }
    Some(by_api! {
        FindCoordinator(0..=3) => FindCoordinatorResponse,
        JoinGroup(_) => JoinGroupResponse,
        SyncGroup(_) => SyncGroupResponse,
        Heartbeat(_) => HeartbeatResponse,
        LeaveGroup(_) => LeaveGroupResponse,
        ListGroups(_) => ListGroupsResponse,
        OffsetDelete(_) => OffsetDeleteResponse,
        ConsumerGroupHeartbeat(_) => ConsumerGroupHeartbeatResponse,
        InitProducerId(_) => InitProducerIdResponse,
        AddPartitionsToTxn(4..) => AddPartitionsToTxnResponse,
        AddOffsetsToTxn(_) => AddOffsetsToTxnResponse,
        EndTxn(_) => EndTxnResponse,
        ListTransactions(_) => ListTransactionsResponse,
        SaslHandshake(_) => SaslHandshakeResponse,
        SaslAuthenticate(_) => SaslAuthenticateResponse,
        DescribeAcls(_) => DescribeAclsResponse,
        ElectLeaders(1..) => ElectLeadersResponse,
        AlterPartitionReassignments(_) => AlterPartitionReassignmentsResponse,
        ListPartitionReassignments(_) => ListPartitionReassignmentsResponse,
        DescribeClientQuotas(_) => DescribeClientQuotasResponse,
        DescribeUserScramCredentials(_) => DescribeUserScramCredentialsResponse,
        DescribeQuorum(_) => DescribeQuorumResponse,
        DescribeCluster(_) => DescribeClusterResponse,
        DescribeLogDirs(3..) => DescribeLogDirsResponse,
        UpdateFeatures(_) => UpdateFeaturesResponse,
        UnregisterBroker(_) => UnregisterBrokerResponse,
        ListConfigResources(_) => ListConfigResourcesResponse,
        AddRaftVoter(_) => AddRaftVoterResponse,
        RemoveRaftVoter(_) => RemoveRaftVoterResponse,
    })
}

/// The first error in a response, for the metrics.
pub(crate) fn first_error(response: &Response) -> Option<ErrorCode> {
    use Response as R;
    let one = |code: ErrorCode| (!code.is_none()).then_some(code);
    match response {
        R::Produce(r) => {
            first(r.responses.iter().flat_map(|topic| &topic.partition_responses).map(|p| p.error_code))
        }
        R::Fetch(r) => one(r.error_code)
            .or_else(|| first(r.responses.iter().flat_map(|topic| &topic.partitions).map(|p| p.error_code))),
        R::ListOffsets(r) => first(r.topics.iter().flat_map(|topic| &topic.partitions).map(|p| p.error_code)),
        R::Metadata(r) => one(r.error_code).or_else(|| first(r.topics.iter().map(|topic| topic.error_code))),
        R::OffsetForLeaderEpoch(r) => {
            first(r.topics.iter().flat_map(|topic| &topic.partitions).map(|p| p.error_code))
        }
        R::CreateTopics(r) => first(r.topics.iter().map(|topic| topic.error_code)),
        R::DeleteTopics(r) => first(r.responses.iter().map(|topic| topic.error_code)),
        R::DeleteRecords(r) => {
            first(r.topics.iter().flat_map(|topic| &topic.partitions).map(|p| p.error_code))
        }
        R::CreatePartitions(r) => first(r.results.iter().map(|result| result.error_code)),
        R::DescribeConfigs(r) => first(r.results.iter().map(|result| result.error_code)),
        R::AlterConfigs(r) => first(r.responses.iter().map(|result| result.error_code)),
        R::IncrementalAlterConfigs(r) => first(r.responses.iter().map(|result| result.error_code)),
        R::OffsetCommit(r) => {
            first(r.topics.iter().flat_map(|topic| &topic.partitions).map(|p| p.error_code))
        }
        R::TxnOffsetCommit(r) => {
            first(r.topics.iter().flat_map(|topic| &topic.partitions).map(|p| p.error_code))
        }
        R::InitProducerId(r) => one(r.error_code),
        R::DescribeCluster(r) => one(r.error_code),
        R::DescribeLogDirs(r) => one(r.error_code),
        R::FindCoordinator(r) => {
            one(r.error_code).or_else(|| first(r.coordinators.iter().map(|c| c.error_code)))
        }
        R::JoinGroup(r) => one(r.error_code),
        R::SyncGroup(r) => one(r.error_code),
        R::Heartbeat(r) => one(r.error_code),
        R::LeaveGroup(r) => one(r.error_code),
        R::OffsetFetch(r) => one(r.error_code),
        R::ListGroups(r) => one(r.error_code),
        R::ConsumerGroupHeartbeat(r) => one(r.error_code),
        R::AddPartitionsToTxn(r) => one(r.error_code),
        R::AddOffsetsToTxn(r) => one(r.error_code),
        R::EndTxn(r) => one(r.error_code),
        R::ApiVersions(r) => one(r.error_code),
        R::SaslHandshake(r) => one(r.error_code),
        R::SaslAuthenticate(r) => one(r.error_code),
        // Rare, and their clients print what went wrong: counted as requests only.
        R::OffsetDelete(_)
        | R::DescribeGroups(_)
        | R::DeleteGroups(_)
        | R::WriteTxnMarkers(_)
        | R::DescribeAcls(_)
        | R::CreateAcls(_)
        | R::DeleteAcls(_)
        | R::AlterReplicaLogDirs(_)
        | R::ElectLeaders(_)
        | R::AlterPartitionReassignments(_)
        | R::ListPartitionReassignments(_)
        | R::DescribeClientQuotas(_)
        | R::AlterClientQuotas(_)
        | R::DescribeUserScramCredentials(_)
        | R::AlterUserScramCredentials(_)
        | R::DescribeQuorum(_)
        | R::UpdateFeatures(_)
        | R::DescribeProducers(_)
        | R::UnregisterBroker(_)
        | R::DescribeTransactions(_)
        | R::ListTransactions(_)
        | R::ConsumerGroupDescribe(_)
        | R::ListConfigResources(_)
        | R::DescribeTopicPartitions(_)
        | R::AddRaftVoter(_)
        | R::RemoveRaftVoter(_) => None,
    }
}

fn first(mut codes: impl Iterator<Item = ErrorCode>) -> Option<ErrorCode> {
    codes.find(|code| !code.is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_can_be_sent_in_each_version_and_says_what_it_is() {
        let mut refused = 0;
        for &key in ApiKey::ALL {
            for version in semel_kafka_wire::versions(key).into_iter().flatten() {
                let Some(response) = unsupported(key, version) else { continue };
                let frame = semel_kafka_wire::encode_response(1, version, &response).unwrap();
                let bytes = frame.assemble(|_| unreachable!()).unwrap().slice(4..);
                let (_, back) = semel_kafka_wire::decode_response(bytes, key, version).unwrap();
                // The error must survive the version, or an empty success would be read.
                let code = format!("{back:?}");
                assert!(code.contains("UnsupportedVersion"), "{key} {version}: {code}");
                refused += 1;
            }
        }
        assert!(refused > 60, "{refused}");
    }
}
