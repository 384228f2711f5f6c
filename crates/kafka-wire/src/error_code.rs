//! Kafka's error codes, as Apache Kafka 4.4 has them.

use std::fmt;

macro_rules! error_codes {
    ($($code:literal $variant:ident $name:literal $retriable:ident $message:literal;)*) => {
        /// What went wrong, in Kafka's words. Travels as an `int16`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(i16)]
        pub enum ErrorCode {
            $(
                #[doc = concat!("`", $name, "`: ", $message, ".")]
                $variant = $code,
            )*
        }

        impl ErrorCode {
            /// Every code, ascending.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The code of a number, if Kafka has it.
            #[must_use]
            pub const fn from_code(code: i16) -> Option<Self> {
                match code {
                    $($code => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// Kafka's name, such as `UNKNOWN_TOPIC_OR_PARTITION`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// Whether the same request may succeed later; clients retry these.
            #[must_use]
            pub const fn retriable(self) -> bool {
                match self {
                    $(Self::$variant => error_codes!(@ $retriable),)*
                }
            }

            /// What it means, in a few words.
            #[must_use]
            pub const fn message(self) -> &'static str {
                match self {
                    $(Self::$variant => $message,)*
                }
            }
        }
    };
    (@ retriable) => { true };
    (@ fatal) => { false };
}

impl ErrorCode {
    /// The number on the wire.
    #[must_use]
    pub const fn code(self) -> i16 {
        self as i16
    }

    /// Whether this is no error.
    #[must_use]
    pub const fn is_none(self) -> bool {
        matches!(self, Self::None)
    }

    /// The code of Kafka's name, such as `UNKNOWN_TOPIC_OR_PARTITION`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.name() == name)
    }
}

// The macro's repetition cannot mark one variant as the default.
#[allow(clippy::derivable_impls)]
impl Default for ErrorCode {
    fn default() -> Self {
        Self::None
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

error_codes! {
    -1 UnknownServerError "UNKNOWN_SERVER_ERROR" fatal "the broker failed in an unexpected way";
    0 None "NONE" fatal "no error";
    1 OffsetOutOfRange "OFFSET_OUT_OF_RANGE" fatal "the offset is outside the log";
    2 CorruptMessage "CORRUPT_MESSAGE" retriable "the records are damaged, too large, or miss a key that a compacted topic needs";
    3 UnknownTopicOrPartition "UNKNOWN_TOPIC_OR_PARTITION" retriable "this broker does not host the partition";
    4 InvalidFetchSize "INVALID_FETCH_SIZE" fatal "the fetch size is not valid";
    5 LeaderNotAvailable "LEADER_NOT_AVAILABLE" retriable "the partition has no leader for now";
    6 NotLeaderOrFollower "NOT_LEADER_OR_FOLLOWER" retriable "this broker is not the partition's leader, or not one of its replicas";
    7 RequestTimedOut "REQUEST_TIMED_OUT" retriable "the request timed out";
    8 BrokerNotAvailable "BROKER_NOT_AVAILABLE" fatal "the broker is not available";
    9 ReplicaNotAvailable "REPLICA_NOT_AVAILABLE" retriable "the replica is not available here";
    10 MessageTooLarge "MESSAGE_TOO_LARGE" fatal "the records are larger than the topic accepts";
    11 StaleControllerEpoch "STALE_CONTROLLER_EPOCH" fatal "another controller has taken over";
    12 OffsetMetadataTooLarge "OFFSET_METADATA_TOO_LARGE" fatal "the metadata beside the offset is too large";
    13 NetworkException "NETWORK_EXCEPTION" retriable "the connection broke before the answer came";
    14 CoordinatorLoadInProgress "COORDINATOR_LOAD_IN_PROGRESS" retriable "the coordinator is still loading its state";
    15 CoordinatorNotAvailable "COORDINATOR_NOT_AVAILABLE" retriable "no coordinator is available";
    16 NotCoordinator "NOT_COORDINATOR" retriable "this is not the coordinator of that id";
    17 InvalidTopicException "INVALID_TOPIC_EXCEPTION" fatal "the topic's name is not valid, or the topic does not allow this";
    18 RecordListTooLarge "RECORD_LIST_TOO_LARGE" fatal "the batch is larger than a segment";
    19 NotEnoughReplicas "NOT_ENOUGH_REPLICAS" retriable "too few replicas are in sync: nothing was written";
    20 NotEnoughReplicasAfterAppend "NOT_ENOUGH_REPLICAS_AFTER_APPEND" retriable "written, but then too few replicas were in sync";
    21 InvalidRequiredAcks "INVALID_REQUIRED_ACKS" fatal "acks must be -1, 0 or 1";
    22 IllegalGeneration "ILLEGAL_GENERATION" fatal "the group is in another generation";
    23 InconsistentGroupProtocol "INCONSISTENT_GROUP_PROTOCOL" fatal "the member shares no protocol with the group";
    24 InvalidGroupId "INVALID_GROUP_ID" fatal "the group id is not valid";
    25 UnknownMemberId "UNKNOWN_MEMBER_ID" fatal "the group has no such member";
    26 InvalidSessionTimeout "INVALID_SESSION_TIMEOUT" fatal "the session timeout is outside the limits that the broker sets";
    27 RebalanceInProgress "REBALANCE_IN_PROGRESS" fatal "the group is rebalancing: join again";
    28 InvalidCommitOffsetSize "INVALID_COMMIT_OFFSET_SIZE" fatal "the offset commit is too large";
    29 TopicAuthorizationFailed "TOPIC_AUTHORIZATION_FAILED" fatal "not authorized for the topic";
    30 GroupAuthorizationFailed "GROUP_AUTHORIZATION_FAILED" fatal "not authorized for the group";
    31 ClusterAuthorizationFailed "CLUSTER_AUTHORIZATION_FAILED" fatal "not authorized for the cluster";
    32 InvalidTimestamp "INVALID_TIMESTAMP" fatal "a record's timestamp is out of the accepted range";
    33 UnsupportedSaslMechanism "UNSUPPORTED_SASL_MECHANISM" fatal "the broker does not offer this SASL mechanism";
    34 IllegalSaslState "ILLEGAL_SASL_STATE" fatal "the request does not fit the state of the SASL exchange";
    35 UnsupportedVersion "UNSUPPORTED_VERSION" fatal "the API has no such version here";
    36 TopicAlreadyExists "TOPIC_ALREADY_EXISTS" fatal "a topic of this name exists";
    37 InvalidPartitions "INVALID_PARTITIONS" fatal "the number of partitions is not valid";
    38 InvalidReplicationFactor "INVALID_REPLICATION_FACTOR" fatal "the replication factor is below 1 or above the number of brokers";
    39 InvalidReplicaAssignment "INVALID_REPLICA_ASSIGNMENT" fatal "the assignment of replicas is not valid";
    40 InvalidConfig "INVALID_CONFIG" fatal "a configuration value is not valid";
    41 NotController "NOT_CONTROLLER" retriable "this node is not the active controller";
    42 InvalidRequest "INVALID_REQUEST" fatal "the request contradicts itself or the protocol";
    43 UnsupportedForMessageFormat "UNSUPPORTED_FOR_MESSAGE_FORMAT" fatal "the record format does not allow this";
    44 PolicyViolation "POLICY_VIOLATION" fatal "a policy of the cluster forbids this";
    45 OutOfOrderSequenceNumber "OUT_OF_ORDER_SEQUENCE_NUMBER" fatal "the producer's sequence does not follow its last";
    46 DuplicateSequenceNumber "DUPLICATE_SEQUENCE_NUMBER" fatal "the producer's sequence was written before";
    47 InvalidProducerEpoch "INVALID_PRODUCER_EPOCH" fatal "the producer's epoch is old";
    48 InvalidTxnState "INVALID_TXN_STATE" fatal "the transaction's state does not allow this";
    49 InvalidProducerIdMapping "INVALID_PRODUCER_ID_MAPPING" fatal "the producer id does not belong to this transactional id";
    50 InvalidTransactionTimeout "INVALID_TRANSACTION_TIMEOUT" fatal "the transaction timeout is above the broker's maximum";
    51 ConcurrentTransactions "CONCURRENT_TRANSACTIONS" retriable "the previous step of this transaction has not finished";
    52 TransactionCoordinatorFenced "TRANSACTION_COORDINATOR_FENCED" fatal "a newer transaction coordinator has taken over";
    53 TransactionalIdAuthorizationFailed "TRANSACTIONAL_ID_AUTHORIZATION_FAILED" fatal "not authorized for the transactional id";
    54 SecurityDisabled "SECURITY_DISABLED" fatal "no authorizer is set up";
    55 OperationNotAttempted "OPERATION_NOT_ATTEMPTED" fatal "not attempted, because another part of the request failed";
    56 KafkaStorageError "KAFKA_STORAGE_ERROR" retriable "the disk under the partition failed";
    57 LogDirNotFound "LOG_DIR_NOT_FOUND" fatal "the broker has no such log directory";
    58 SaslAuthenticationFailed "SASL_AUTHENTICATION_FAILED" fatal "the credentials were refused";
    59 UnknownProducerId "UNKNOWN_PRODUCER_ID" fatal "the partition knows nothing of this producer id";
    60 ReassignmentInProgress "REASSIGNMENT_IN_PROGRESS" fatal "the partition is being reassigned";
    61 DelegationTokenAuthDisabled "DELEGATION_TOKEN_AUTH_DISABLED" fatal "delegation tokens are not set up";
    62 DelegationTokenNotFound "DELEGATION_TOKEN_NOT_FOUND" fatal "no such delegation token";
    63 DelegationTokenOwnerMismatch "DELEGATION_TOKEN_OWNER_MISMATCH" fatal "the principal may neither own nor renew this token";
    64 DelegationTokenRequestNotAllowed "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED" fatal "delegation tokens need another kind of connection";
    65 DelegationTokenAuthorizationFailed "DELEGATION_TOKEN_AUTHORIZATION_FAILED" fatal "not authorized for the delegation token";
    66 DelegationTokenExpired "DELEGATION_TOKEN_EXPIRED" fatal "the delegation token has expired";
    67 InvalidPrincipalType "INVALID_PRINCIPAL_TYPE" fatal "the kind of principal is not supported";
    68 NonEmptyGroup "NON_EMPTY_GROUP" fatal "the group still has members";
    69 GroupIdNotFound "GROUP_ID_NOT_FOUND" fatal "no such group";
    70 FetchSessionIdNotFound "FETCH_SESSION_ID_NOT_FOUND" retriable "no such fetch session";
    71 InvalidFetchSessionEpoch "INVALID_FETCH_SESSION_EPOCH" retriable "the fetch session's epoch is not the next one";
    72 ListenerNotFound "LISTENER_NOT_FOUND" retriable "the leader lacks the listener that this request came through";
    73 TopicDeletionDisabled "TOPIC_DELETION_DISABLED" fatal "topics may not be deleted here";
    74 FencedLeaderEpoch "FENCED_LEADER_EPOCH" retriable "the leader epoch is older than the broker's";
    75 UnknownLeaderEpoch "UNKNOWN_LEADER_EPOCH" retriable "the leader epoch is newer than the broker's";
    76 UnsupportedCompressionType "UNSUPPORTED_COMPRESSION_TYPE" fatal "the client's version cannot read the codec of the partition";
    77 StaleBrokerEpoch "STALE_BROKER_EPOCH" fatal "the broker has registered again since";
    78 OffsetNotAvailable "OFFSET_NOT_AVAILABLE" retriable "a new leader does not know the high watermark yet";
    79 MemberIdRequired "MEMBER_ID_REQUIRED" fatal "join again with the member id that was given";
    80 PreferredLeaderNotAvailable "PREFERRED_LEADER_NOT_AVAILABLE" retriable "the preferred leader is not available";
    81 GroupMaxSizeReached "GROUP_MAX_SIZE_REACHED" fatal "the group is full";
    82 FencedInstanceId "FENCED_INSTANCE_ID" fatal "another member has taken this group instance id";
    83 EligibleLeadersNotAvailable "ELIGIBLE_LEADERS_NOT_AVAILABLE" retriable "no eligible leader is available";
    84 ElectionNotNeeded "ELECTION_NOT_NEEDED" retriable "the partition has the leader it should have";
    85 NoReassignmentInProgress "NO_REASSIGNMENT_IN_PROGRESS" fatal "the partition is not being reassigned";
    86 GroupSubscribedToTopic "GROUP_SUBSCRIBED_TO_TOPIC" fatal "the group still consumes the topic";
    87 InvalidRecord "INVALID_RECORD" fatal "a record failed validation";
    88 UnstableOffsetCommit "UNSTABLE_OFFSET_COMMIT" retriable "offsets wait for a transaction to end";
    89 ThrottlingQuotaExceeded "THROTTLING_QUOTA_EXCEEDED" retriable "the quota is used up";
    90 ProducerFenced "PRODUCER_FENCED" fatal "a newer producer has taken this transactional id";
    91 ResourceNotFound "RESOURCE_NOT_FOUND" fatal "no such resource";
    92 DuplicateResource "DUPLICATE_RESOURCE" fatal "the request names a resource twice";
    93 UnacceptableCredential "UNACCEPTABLE_CREDENTIAL" fatal "the credential does not meet the rules";
    94 InconsistentVoterSet "INCONSISTENT_VOTER_SET" fatal "sender and receiver disagree on the voters";
    95 InvalidUpdateVersion "INVALID_UPDATE_VERSION" fatal "the version to update to is not valid";
    96 FeatureUpdateFailed "FEATURE_UPDATE_FAILED" fatal "the features could not be updated";
    97 PrincipalDeserializationFailure "PRINCIPAL_DESERIALIZATION_FAILURE" fatal "the forwarded principal could not be read";
    98 SnapshotNotFound "SNAPSHOT_NOT_FOUND" fatal "no such snapshot";
    99 PositionOutOfRange "POSITION_OUT_OF_RANGE" fatal "the position is outside the snapshot";
    100 UnknownTopicId "UNKNOWN_TOPIC_ID" retriable "this broker does not host the topic id";
    101 DuplicateBrokerRegistration "DUPLICATE_BROKER_REGISTRATION" fatal "the broker id is in use";
    102 BrokerIdNotRegistered "BROKER_ID_NOT_REGISTERED" fatal "the broker id is not registered";
    103 InconsistentTopicId "INCONSISTENT_TOPIC_ID" retriable "the log belongs to another topic id";
    104 InconsistentClusterId "INCONSISTENT_CLUSTER_ID" fatal "the request is meant for another cluster";
    105 TransactionalIdNotFound "TRANSACTIONAL_ID_NOT_FOUND" fatal "no such transactional id";
    106 FetchSessionTopicIdError "FETCH_SESSION_TOPIC_ID_ERROR" retriable "the fetch session mixes topic ids and names";
    107 IneligibleReplica "INELIGIBLE_REPLICA" fatal "the new ISR holds a replica that may not be in it";
    108 NewLeaderElected "NEW_LEADER_ELECTED" fatal "the partition was changed and has another leader";
    109 OffsetMovedToTieredStorage "OFFSET_MOVED_TO_TIERED_STORAGE" fatal "the offset is in tiered storage";
    110 FencedMemberEpoch "FENCED_MEMBER_EPOCH" fatal "the member was fenced: give up all partitions and join again";
    111 UnreleasedInstanceId "UNRELEASED_INSTANCE_ID" fatal "another member still holds this instance id";
    112 UnsupportedAssignor "UNSUPPORTED_ASSIGNOR" fatal "the group does not support this assignor";
    113 StaleMemberEpoch "STALE_MEMBER_EPOCH" fatal "the member epoch is old: heartbeat first, then try again";
    114 MismatchedEndpointType "MISMATCHED_ENDPOINT_TYPE" fatal "this endpoint is of another type";
    115 UnsupportedEndpointType "UNSUPPORTED_ENDPOINT_TYPE" fatal "the type of endpoint is not supported";
    116 UnknownControllerId "UNKNOWN_CONTROLLER_ID" fatal "no such controller";
    117 UnknownSubscriptionId "UNKNOWN_SUBSCRIPTION_ID" fatal "the telemetry subscription is old or unknown";
    118 TelemetryTooLarge "TELEMETRY_TOO_LARGE" fatal "the telemetry is larger than the broker accepts";
    119 InvalidRegistration "INVALID_REGISTRATION" fatal "the controller refused the broker's registration";
    120 TransactionAbortable "TRANSACTION_ABORTABLE" fatal "the transaction failed: abort it and go on";
    121 InvalidRecordState "INVALID_RECORD_STATE" fatal "the record's delivery is in another state";
    122 ShareSessionNotFound "SHARE_SESSION_NOT_FOUND" retriable "no such share session";
    123 InvalidShareSessionEpoch "INVALID_SHARE_SESSION_EPOCH" retriable "the share session's epoch is not the next one";
    124 FencedStateEpoch "FENCED_STATE_EPOCH" fatal "the state epoch is old";
    125 InvalidVoterKey "INVALID_VOTER_KEY" fatal "the voter key is not the receiver's";
    126 DuplicateVoter "DUPLICATE_VOTER" fatal "the voter is in the set already";
    127 VoterNotFound "VOTER_NOT_FOUND" fatal "the voter is not in the set";
    128 InvalidRegularExpression "INVALID_REGULAR_EXPRESSION" fatal "the regular expression is not valid";
    129 RebootstrapRequired "REBOOTSTRAP_REQUIRED" fatal "the client's metadata is too old: bootstrap again";
    130 StreamsInvalidTopology "STREAMS_INVALID_TOPOLOGY" fatal "the topology is not valid";
    131 StreamsInvalidTopologyEpoch "STREAMS_INVALID_TOPOLOGY_EPOCH" fatal "the topology epoch is not valid";
    132 StreamsTopologyFenced "STREAMS_TOPOLOGY_FENCED" fatal "the topology epoch is old";
    133 ShareSessionLimitReached "SHARE_SESSION_LIMIT_REACHED" retriable "no more share sessions are allowed";
    134 GroupDeletionFailed "GROUP_DELETION_FAILED" fatal "the group could not be deleted; its message says why";
    135 StreamsTopologyDescriptionUpdateFailed "STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED" fatal "the topology description was refused; its message says why";
    136 ControllerIdNotRegistered "CONTROLLER_ID_NOT_REGISTERED" fatal "the controller id is not registered";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_whole_and_agrees_with_itself() {
        let codes: Vec<i16> = ErrorCode::ALL.iter().map(|code| code.code()).collect();
        assert_eq!(codes, (-1..=136).collect::<Vec<i16>>());
        for code in ErrorCode::ALL {
            assert_eq!(ErrorCode::from_code(code.code()), Some(*code));
            assert_eq!(ErrorCode::from_name(code.name()), Some(*code));
            assert!(!code.message().is_empty());
        }
        assert_eq!(ErrorCode::from_code(137), None);
        assert_eq!(ErrorCode::from_code(i16::MIN), None);
        assert_eq!(ErrorCode::default(), ErrorCode::None);
    }

    #[test]
    fn the_oracle_has_the_same_codes_names_and_retries() {
        use kafka_protocol::error::{ParseResponseErrorCode, ResponseError};
        for code in ErrorCode::ALL.iter().filter(|code| !code.is_none()) {
            let Some(theirs) = code.code().err() else { panic!("{code} is no error to the oracle") };
            if let ResponseError::Unknown(_) = theirs {
                // Younger than the oracle.
                assert!(code.code() > 129 || code.code() == -1, "{code}");
                continue;
            }
            assert_eq!(format!("{theirs:?}").to_lowercase(), code.name().replace('_', "").to_lowercase());
            // Kafka's own client calls it retriable; the oracle is older.
            if *code != ErrorCode::ConcurrentTransactions {
                assert_eq!(theirs.is_retriable(), code.retriable(), "{code}");
            }
        }
    }
}
