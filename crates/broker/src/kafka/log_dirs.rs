//! DescribeLogDirs.

use std::collections::BTreeMap;

use semel_kafka_wire::{
    ErrorCode, KString,
    messages::describe_log_dirs::{
        DescribeLogDirsPartition, DescribeLogDirsRequest, DescribeLogDirsResponse, DescribeLogDirsResult,
        DescribeLogDirsTopic,
    },
};

use crate::node::Node;

pub(crate) fn describe_log_dirs(node: &Node, request: &DescribeLogDirsRequest) -> DescribeLogDirsResponse {
    // Null asks for all topics.
    let wanted = |topic: &str, partition: i32| {
        request.topics.as_ref().is_none_or(|topics| {
            topics.iter().any(|asked| asked.topic == topic && asked.partitions.contains(&partition))
        })
    };
    let results = node
        .describe_log_dirs()
        .into_iter()
        .map(|directory| {
            let mut topics: BTreeMap<String, Vec<DescribeLogDirsPartition>> = BTreeMap::new();
            for replica in directory.replicas {
                if wanted(replica.topic.as_str(), replica.partition.get()) {
                    topics.entry(replica.topic.as_str().to_owned()).or_default().push(
                        DescribeLogDirsPartition {
                            partition_index: replica.partition.get(),
                            partition_size: i64::try_from(replica.size_bytes).unwrap_or(i64::MAX),
                            offset_lag: replica.log_end_offset.since(replica.high_watermark).max(0),
                            is_future_key: false,
                        },
                    );
                }
            }
            DescribeLogDirsResult {
                error_code: directory.failure.map_or(ErrorCode::None, |failure| failure.code),
                log_dir: KString::from(directory.path.display().to_string()),
                topics: topics
                    .into_iter()
                    .map(|(name, partitions)| DescribeLogDirsTopic { name: KString::from(name), partitions })
                    .collect(),
                total_bytes: i64::try_from(directory.total_bytes).unwrap_or(i64::MAX),
                usable_bytes: i64::try_from(directory.usable_bytes).unwrap_or(i64::MAX),
                ..Default::default()
            }
        })
        .collect();
    DescribeLogDirsResponse { results, ..Default::default() }
}
