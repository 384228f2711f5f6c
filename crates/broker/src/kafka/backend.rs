//! The broker as the Kafka listener's backend: one match over the requests it serves.

use std::{io, os::fd::BorrowedFd, sync::Arc};

use semel_env::DiskFile as _;
use semel_kafka_gateway::{ApiRange, Backend, FileRange, NodeInfo, Reply, RequestContext};
use semel_kafka_wire::{ApiKey, Request, Response};

use super::{configs, fetch, log_dirs, metadata, offsets, produce, producers, topics};
use crate::{node::Node, partition::Slice};

/// The APIs served, each in all versions that Kafka advertises.
const SERVED: &[ApiKey] = &[
    ApiKey::Produce,
    ApiKey::Fetch,
    ApiKey::ListOffsets,
    ApiKey::Metadata,
    ApiKey::FindCoordinator,
    ApiKey::CreateTopics,
    ApiKey::DeleteTopics,
    ApiKey::DeleteRecords,
    ApiKey::InitProducerId,
    ApiKey::OffsetForLeaderEpoch,
    ApiKey::CreatePartitions,
    ApiKey::DescribeConfigs,
    ApiKey::AlterConfigs,
    ApiKey::IncrementalAlterConfigs,
    ApiKey::DescribeLogDirs,
    ApiKey::DescribeCluster,
    ApiKey::DescribeProducers,
    ApiKey::DescribeTopicPartitions,
];

/// Whole batches that leave by `sendfile`.
pub(crate) struct Range(pub(crate) Slice);

impl FileRange for Range {
    fn position(&self) -> u64 {
        self.0.position
    }

    fn len(&self) -> u64 {
        u64::from(self.0.len)
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.file.as_fd()
    }

    fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<usize> {
        self.0.file.read_at(buffer, position)
    }
}

/// Answers Kafka requests. Cheap to clone.
#[derive(Clone)]
pub(crate) struct KafkaBackend {
    pub(crate) node: Arc<Node>,
}

impl KafkaBackend {
    /// A request that only reads what this broker knows is answered at once; one that needs the controller later.
    fn metadata(&self, request: semel_kafka_wire::messages::MetadataRequest, version: i16) -> Reply<Range> {
        let missing = metadata::topics_to_create(&self.node, &request);
        if missing.is_empty() {
            return Reply::now(metadata::metadata(&self.node, &request, version));
        }
        let node = self.node.clone();
        Reply::later(async move {
            topics::auto_create(&node, missing).await;
            Reply::now(metadata::metadata(&node, &request, version))
        })
    }

    /// For answers that read or write files for longer than a network thread may: off it.
    fn blocking<T>(&self, answer: impl FnOnce(&Node) -> T + Send + 'static) -> Reply<Range>
    where
        T: Into<Response> + Send + 'static,
    {
        let node = self.node.clone();
        Reply::later(async move {
            match tokio::task::spawn_blocking(move || answer(&node)).await {
                Ok(response) => Reply::now(response),
                Err(error) => Reply::Close { reason: format!("the answer was given up: {error}") },
            }
        })
    }

    fn later<F>(&self, answer: impl FnOnce(Arc<Node>) -> F) -> Reply<Range>
    where
        F: Future + Send + 'static,
        F::Output: Into<Response>,
    {
        let answer = answer(self.node.clone());
        Reply::later(async move { Reply::now(answer.await) })
    }
}

impl Backend for KafkaBackend {
    type Range = Range;

    fn call(&self, context: &RequestContext, request: Request) -> Reply<Range> {
        let node = &self.node;
        let version = context.version;
        match request {
            Request::Produce(request) => produce::produce(node, request, version),
            Request::Fetch(request) => fetch::fetch(node, request, version),
            Request::ListOffsets(request) if offsets::needs_records(&request) => {
                self.blocking(move |node| offsets::list_offsets(node, &request, version))
            }
            Request::ListOffsets(request) => Reply::now(offsets::list_offsets(node, &request, version)),
            Request::Metadata(request) => self.metadata(request, version),
            Request::FindCoordinator(request) => Reply::now(producers::find_coordinator(&request, version)),
            Request::CreateTopics(request) => {
                self.later(|node| async move { topics::create_topics(&node, request).await })
            }
            Request::DeleteTopics(request) => {
                self.later(move |node| async move { topics::delete_topics(&node, request, version).await })
            }
            Request::DeleteRecords(request) => {
                self.blocking(move |node| offsets::delete_records(node, &request))
            }
            Request::InitProducerId(request) => producers::init_producer_id(node, request),
            Request::OffsetForLeaderEpoch(request) => {
                Reply::now(offsets::offset_for_leader_epoch(node, &request))
            }
            Request::CreatePartitions(request) => {
                self.later(|node| async move { topics::create_partitions(&node, request).await })
            }
            Request::DescribeConfigs(request) => Reply::now(configs::describe_configs(node, &request)),
            Request::AlterConfigs(request) => {
                self.later(|node| async move { configs::alter_configs(&node, request).await })
            }
            Request::IncrementalAlterConfigs(request) => {
                self.later(|node| async move { configs::incremental_alter_configs(&node, request).await })
            }
            Request::DescribeLogDirs(request) => Reply::now(log_dirs::describe_log_dirs(node, &request)),
            Request::DescribeCluster(request) => Reply::now(metadata::describe_cluster(node, &request)),
            Request::DescribeProducers(request) => Reply::now(producers::describe_producers(node, &request)),
            Request::DescribeTopicPartitions(request) => {
                Reply::now(metadata::describe_topic_partitions(node, &request))
            }
            // The gateway lets nothing through that `apis` does not name.
            other => Reply::Close { reason: format!("{:?} is not served", other.key()) },
        }
    }

    fn apis(&self) -> Vec<ApiRange> {
        SERVED.iter().filter_map(|key| ApiRange::all(*key)).collect()
    }

    fn node(&self) -> NodeInfo {
        NodeInfo {
            cluster_id: self.node.metadata.image().cluster_id().map(str::to_owned),
            node_id: Some(self.node.id.get()),
            // `transaction.version` and `group.version` come with the coordinators that make them true.
            supported_features: Vec::new(),
            finalized_features: Vec::new(),
            finalized_features_epoch: -1,
        }
    }
}
