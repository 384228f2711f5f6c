//! What a running broker is made of. Everything that answers a request works on this.

use std::{path::PathBuf, sync::Arc};

use semel_env::Clock;
use semel_kafka_wire::ErrorCode;
use semel_metadata::config::StaticConfigs;
use semel_model::{BrokerId, Offset, PartitionIndex, TopicName};

use crate::{
    controller_client::ControllerClient,
    failure::Failure,
    lifecycle::{Pulse, Registration},
    metadata_cache::MetadataCache,
    partitions::Partitions,
    producer_ids::ProducerIds,
    startup::UnusableDir,
};

/// A running broker.
pub(crate) struct Node {
    pub(crate) id: BrokerId,
    pub(crate) clock: Arc<dyn Clock>,
    /// What the broker's file says, by Kafka's names.
    pub(crate) statics: Arc<StaticConfigs>,
    /// `auto.create.topics.enable`: only a restart changes it.
    pub(crate) auto_create_topics: bool,
    /// `fetch.max.bytes`, likewise: of one answer.
    pub(crate) fetch_bytes_max: u32,
    pub(crate) metadata: Arc<MetadataCache>,
    pub(crate) partitions: Partitions,
    /// Log directories that this start could not open.
    pub(crate) unusable: Vec<UnusableDir>,
    pub(crate) controller: ControllerClient,
    pub(crate) registration: Registration,
    pub(crate) pulse: Pulse,
    pub(crate) producer_ids: ProducerIds,
    pub(crate) fetch_sessions: crate::kafka::fetch::Sessions,
}

/// A log directory as a client may ask about it.
pub(crate) struct DirectoryInfo {
    pub(crate) path: PathBuf,
    pub(crate) total_bytes: u64,
    pub(crate) usable_bytes: u64,
    pub(crate) failure: Option<Failure>,
    pub(crate) replicas: Vec<ReplicaInfo>,
}

/// A replica in a directory.
pub(crate) struct ReplicaInfo {
    pub(crate) topic: TopicName,
    pub(crate) partition: PartitionIndex,
    pub(crate) size_bytes: u64,
    pub(crate) log_start_offset: Offset,
    pub(crate) high_watermark: Offset,
    pub(crate) log_end_offset: Offset,
}

impl Node {
    pub(crate) fn describe_log_dirs(&self) -> Vec<DirectoryInfo> {
        let mut directories = self.partitions.describe_directories();
        directories.extend(self.unusable.iter().map(|unusable| DirectoryInfo {
            path: unusable.path.clone(),
            total_bytes: 0,
            usable_bytes: 0,
            failure: Some(Failure::new(ErrorCode::KafkaStorageError, crate::failure::chain(&unusable.error))),
            replicas: Vec::new(),
        }));
        directories
    }
}
