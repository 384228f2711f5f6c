//! Every request kind in every version that the node advertises, with a topic that exists and with one that doesn't:
//! each gets an answer that decodes, in the version asked, with nothing left over. (A field that a version can't carry
//! once closed the connection.)

use std::{
    io::Write as _,
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use semel_kafka_wire::{ApiKey, KString, Request, Response, decode_response, encode_request, messages as m};
use semel_model::TopicId;
use semel_tests::{batch::Batch, clock, node::Dev, wire};

struct Client {
    stream: TcpStream,
    correlation: i32,
}

impl Client {
    fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(Self { stream, correlation: 0 })
    }

    fn call(&mut self, key: ApiKey, version: i16, request: &Request) -> Result<Response> {
        self.correlation += 1;
        let name = Some(KString::from_static("versions"));
        let frame = encode_request(self.correlation, name, version, request)?
            .assemble(|_| Bytes::new())
            .context("no external parts")?;
        self.stream.write_all(&frame)?;
        let answer = wire::read_frame(&mut self.stream).context("no answer")?;
        let (correlation, response) = decode_response(answer.into(), key, version)?;
        ensure!(correlation == self.correlation, "answer to another request");
        Ok(response)
    }
}

/// A request of this kind about `topic`, in a form that `version` can carry.
fn request(key: ApiKey, version: i16, topic: &str, id: TopicId, fresh: &str) -> Result<Request> {
    let name = || KString::from(topic);
    Ok(match key {
        ApiKey::ApiVersions => m::ApiVersionsRequest {
            client_software_name: KString::from_static("versions"),
            client_software_version: KString::from_static("1"),
            ..Default::default()
        }
        .into(),
        ApiKey::Produce => m::ProduceRequest {
            acks: -1,
            timeout_ms: 10_000,
            topic_data: vec![m::produce::TopicProduceData {
                name: if version < 13 { name() } else { KString::default() },
                topic_id: if version < 13 { TopicId::ZERO } else { id },
                partition_data: vec![m::produce::PartitionProduceData {
                    index: 0,
                    records: Some(Batch::of(clock::unix_ms(), &[(None, Some(b"x"))]).encode().into()),
                }],
            }],
            ..Default::default()
        }
        .into(),
        ApiKey::Fetch => m::FetchRequest {
            max_wait_ms: 10,
            min_bytes: 1,
            max_bytes: 1 << 20,
            session_epoch: if version < 7 { -1 } else { 0 },
            topics: vec![m::fetch::FetchTopic {
                topic: if version < 13 { name() } else { KString::default() },
                topic_id: if version < 13 { TopicId::ZERO } else { id },
                partitions: vec![m::fetch::FetchPartition {
                    partition_max_bytes: 1 << 20,
                    ..Default::default()
                }],
            }],
            ..Default::default()
        }
        .into(),
        ApiKey::ListOffsets => m::ListOffsetsRequest {
            replica_id: -1,
            topics: vec![m::list_offsets::ListOffsetsTopic {
                name: name(),
                partitions: [-1, -2, -3, 1]
                    .map(|timestamp| m::list_offsets::ListOffsetsPartition {
                        timestamp,
                        ..Default::default()
                    })
                    .to_vec(),
            }],
            ..Default::default()
        }
        .into(),
        ApiKey::Metadata => m::MetadataRequest {
            topics: Some(vec![m::metadata::MetadataRequestTopic {
                name: Some(name()),
                ..Default::default()
            }]),
            allow_auto_topic_creation: version < 4,
            include_topic_authorized_operations: version >= 8,
            include_cluster_authorized_operations: (8..=10).contains(&version),
        }
        .into(),
        ApiKey::FindCoordinator => m::FindCoordinatorRequest {
            key: if version < 4 { name() } else { KString::default() },
            coordinator_keys: if version < 4 { Vec::new() } else { vec![name()] },
            ..Default::default()
        }
        .into(),
        ApiKey::CreateTopics => m::CreateTopicsRequest {
            topics: vec![m::create_topics::CreatableTopic {
                name: KString::from(fresh),
                num_partitions: 1,
                replication_factor: 1,
                ..Default::default()
            }],
            timeout_ms: 10_000,
            ..Default::default()
        }
        .into(),
        ApiKey::DeleteTopics => m::DeleteTopicsRequest {
            topics: if version < 6 {
                Vec::new()
            } else {
                vec![m::delete_topics::DeleteTopicState {
                    name: Some(KString::from(fresh)),
                    ..Default::default()
                }]
            },
            topic_names: if version < 6 { vec![KString::from(fresh)] } else { Vec::new() },
            timeout_ms: 10_000,
        }
        .into(),
        ApiKey::DeleteRecords => m::DeleteRecordsRequest {
            topics: vec![m::delete_records::DeleteRecordsTopic {
                name: name(),
                partitions: vec![m::delete_records::DeleteRecordsPartition { partition_index: 0, offset: 0 }],
            }],
            timeout_ms: 10_000,
        }
        .into(),
        ApiKey::InitProducerId => {
            m::InitProducerIdRequest { transaction_timeout_ms: 60_000, ..Default::default() }.into()
        }
        ApiKey::OffsetForLeaderEpoch => m::OffsetForLeaderEpochRequest {
            topics: vec![m::offset_for_leader_epoch::OffsetForLeaderTopic {
                topic: name(),
                partitions: vec![m::offset_for_leader_epoch::OffsetForLeaderPartition::default()],
            }],
            ..Default::default()
        }
        .into(),
        ApiKey::CreatePartitions => m::CreatePartitionsRequest {
            topics: vec![m::create_partitions::CreatePartitionsTopic {
                name: name(),
                count: 2,
                ..Default::default()
            }],
            timeout_ms: 10_000,
            validate_only: true,
        }
        .into(),
        ApiKey::DescribeConfigs => m::DescribeConfigsRequest {
            resources: vec![m::describe_configs::DescribeConfigsResource {
                resource_type: 2,
                resource_name: name(),
                configuration_keys: None,
            }],
            include_synonyms: true,
            include_documentation: version >= 3,
        }
        .into(),
        ApiKey::AlterConfigs => m::AlterConfigsRequest {
            resources: vec![m::alter_configs::AlterConfigsResource {
                resource_type: 2,
                resource_name: name(),
                configs: Vec::new(),
            }],
            validate_only: true,
        }
        .into(),
        ApiKey::IncrementalAlterConfigs => m::IncrementalAlterConfigsRequest {
            resources: vec![m::incremental_alter_configs::AlterConfigsResource {
                resource_type: 2,
                resource_name: name(),
                configs: Vec::new(),
            }],
            validate_only: true,
        }
        .into(),
        ApiKey::DescribeLogDirs => m::DescribeLogDirsRequest { topics: None }.into(),
        ApiKey::DescribeCluster => {
            m::DescribeClusterRequest { include_fenced_brokers: version >= 2, ..Default::default() }.into()
        }
        ApiKey::DescribeProducers => m::DescribeProducersRequest {
            topics: vec![m::describe_producers::TopicRequest { name: name(), partition_indexes: vec![0] }],
        }
        .into(),
        ApiKey::DescribeTopicPartitions => m::DescribeTopicPartitionsRequest {
            topics: vec![m::describe_topic_partitions::TopicRequest { name: name() }],
            ..Default::default()
        }
        .into(),
        other => bail!("this test has no request for {other:?}, which the node advertises"),
    })
}

#[test]
fn every_advertised_version_is_answered() -> Result<()> {
    let mut node = Dev::start()?;
    let mut conn = wire::Conn::open(node.kafka())?;
    conn.create_topic("known", 1, &[])?;
    let mut client = Client::open(node.kafka())?;
    let Response::ApiVersions(apis) =
        client.call(ApiKey::ApiVersions, 0, &m::ApiVersionsRequest::default().into())?
    else {
        bail!("not ApiVersions");
    };
    let metadata = request(ApiKey::Metadata, 12, "known", TopicId::ZERO, "")?;
    let Response::Metadata(metadata) = client.call(ApiKey::Metadata, 12, &metadata)? else {
        bail!("not Metadata");
    };
    let known = metadata.topics.first().context("no topic")?.topic_id;
    let unknown = TopicId::from_bytes([9; 16]);
    let mut asked = 0;
    for api in apis.api_keys {
        let key = ApiKey::from_code(api.api_key).context("unknown key")?;
        // Produce is advertised from 0 for old librdkafka (KAFKA-18659) and served from 3.
        let min = if key == ApiKey::Produce { 3 } else { api.min_version };
        for version in min..=api.max_version {
            for (topic, id) in [("known", known), ("unknown", unknown)] {
                let fresh = format!("fresh-{topic}-{version}");
                let request = request(key, version, topic, id, &fresh)?;
                let response = client
                    .call(key, version, &request)
                    .with_context(|| format!("{key:?} version {version} of topic {topic}"))?;
                ensure!(response.key() == key);
                asked += 1;
            }
        }
    }
    ensure!(asked > 150, "only {asked} requests were asked");
    node.stop()
}
