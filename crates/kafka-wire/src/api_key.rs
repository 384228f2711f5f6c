//! Kafka's API keys, and which versions of them have a schema here.

use std::fmt;
use std::ops::RangeInclusive;

use crate::messages::SUPPORTED;

macro_rules! api_keys {
    ($($code:literal $variant:ident;)*) => {
        /// An API of the protocol, by its key. All of Kafka's are here, so that logs and metrics can name what a
        /// client asked for; only those in [`SUPPORTED`] have a schema.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(i16)]
        pub enum ApiKey {
            $(
                #[doc = concat!("Key ", stringify!($code), ".")]
                $variant = $code,
            )*
        }

        impl ApiKey {
            /// Every key, ascending and without a gap.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The API of a key, if Kafka has it.
            #[must_use]
            pub const fn from_code(code: i16) -> Option<Self> {
                match code {
                    $($code => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// Kafka's name of the API, such as `Fetch`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => stringify!($variant),)*
                }
            }
        }
    };
}

impl ApiKey {
    /// The number on the wire.
    #[must_use]
    pub const fn code(self) -> i16 {
        self as i16
    }
}

impl fmt::Display for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The versions of one API that have a schema here: those that Apache Kafka 4.4 serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApiSupport {
    /// The API.
    pub key: ApiKey,
    /// The oldest version, inclusive.
    pub min: i16,
    /// The newest version, inclusive.
    pub max: i16,
    /// The newest version that Kafka advertises by default, inclusive; `max`, or one less where it calls its
    /// newest unstable.
    pub stable_max: i16,
    /// The first version with compact encodings and tagged fields.
    pub flexible_from: Option<i16>,
}

/// What is known of an API; `None` without a schema.
#[must_use]
pub fn support(key: ApiKey) -> Option<&'static ApiSupport> {
    let index = SUPPORTED.binary_search_by_key(&key, |api| api.key).ok()?;
    SUPPORTED.get(index)
}

/// The versions of an API that have a schema; `None` without one.
#[must_use]
pub fn versions(key: ApiKey) -> Option<RangeInclusive<i16>> {
    support(key).map(|api| api.min..=api.max)
}

/// Whether a version of an API uses flexible encodings, and so request header 2. Also right for versions
/// outside the schema's range. False for an API without a schema.
#[must_use]
pub fn flexible(key: ApiKey, version: i16) -> bool {
    support(key).and_then(|api| api.flexible_from).is_some_and(|from| version >= from)
}

api_keys! {
    0 Produce;
    1 Fetch;
    2 ListOffsets;
    3 Metadata;
    4 LeaderAndIsr;
    5 StopReplica;
    6 UpdateMetadata;
    7 ControlledShutdown;
    8 OffsetCommit;
    9 OffsetFetch;
    10 FindCoordinator;
    11 JoinGroup;
    12 Heartbeat;
    13 LeaveGroup;
    14 SyncGroup;
    15 DescribeGroups;
    16 ListGroups;
    17 SaslHandshake;
    18 ApiVersions;
    19 CreateTopics;
    20 DeleteTopics;
    21 DeleteRecords;
    22 InitProducerId;
    23 OffsetForLeaderEpoch;
    24 AddPartitionsToTxn;
    25 AddOffsetsToTxn;
    26 EndTxn;
    27 WriteTxnMarkers;
    28 TxnOffsetCommit;
    29 DescribeAcls;
    30 CreateAcls;
    31 DeleteAcls;
    32 DescribeConfigs;
    33 AlterConfigs;
    34 AlterReplicaLogDirs;
    35 DescribeLogDirs;
    36 SaslAuthenticate;
    37 CreatePartitions;
    38 CreateDelegationToken;
    39 RenewDelegationToken;
    40 ExpireDelegationToken;
    41 DescribeDelegationToken;
    42 DeleteGroups;
    43 ElectLeaders;
    44 IncrementalAlterConfigs;
    45 AlterPartitionReassignments;
    46 ListPartitionReassignments;
    47 OffsetDelete;
    48 DescribeClientQuotas;
    49 AlterClientQuotas;
    50 DescribeUserScramCredentials;
    51 AlterUserScramCredentials;
    52 Vote;
    53 BeginQuorumEpoch;
    54 EndQuorumEpoch;
    55 DescribeQuorum;
    56 AlterPartition;
    57 UpdateFeatures;
    58 Envelope;
    59 FetchSnapshot;
    60 DescribeCluster;
    61 DescribeProducers;
    62 BrokerRegistration;
    63 BrokerHeartbeat;
    64 UnregisterBroker;
    65 DescribeTransactions;
    66 ListTransactions;
    67 AllocateProducerIds;
    68 ConsumerGroupHeartbeat;
    69 ConsumerGroupDescribe;
    70 ControllerRegistration;
    71 GetTelemetrySubscriptions;
    72 PushTelemetry;
    73 AssignReplicasToDirs;
    74 ListConfigResources;
    75 DescribeTopicPartitions;
    76 ShareGroupHeartbeat;
    77 ShareGroupDescribe;
    78 ShareFetch;
    79 ShareAcknowledge;
    80 AddRaftVoter;
    81 RemoveRaftVoter;
    82 UpdateRaftVoter;
    83 InitializeShareGroupState;
    84 ReadShareGroupState;
    85 WriteShareGroupState;
    86 DeleteShareGroupState;
    87 ReadShareGroupStateSummary;
    88 StreamsGroupHeartbeat;
    89 StreamsGroupDescribe;
    90 DescribeShareGroupOffsets;
    91 AlterShareGroupOffsets;
    92 DeleteShareGroupOffsets;
    93 StreamsGroupTopologyDescriptionUpdate;
    94 UnregisterController;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_the_table_are_in_order() {
        for (index, key) in ApiKey::ALL.iter().enumerate() {
            assert_eq!(usize::try_from(key.code()), Ok(index));
            assert_eq!(ApiKey::from_code(key.code()), Some(*key));
        }
        assert!(SUPPORTED.windows(2).all(|pair| pair[0].key < pair[1].key));
        assert_eq!(ApiKey::from_code(-1), None);
    }

    #[test]
    fn versions_and_flexibility() {
        assert_eq!(versions(ApiKey::Produce), Some(3..=13));
        assert_eq!(versions(ApiKey::LeaderAndIsr), None);
        assert!(!flexible(ApiKey::Fetch, 11) && flexible(ApiKey::Fetch, 12));
        assert!(flexible(ApiKey::ApiVersions, 99), "the header of a future version must be readable");
        assert!(!flexible(ApiKey::SaslHandshake, 1));
        assert_eq!(support(ApiKey::InitProducerId).map(|api| (api.max, api.stable_max)), Some((6, 5)));
    }
}
