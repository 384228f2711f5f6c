//! The changes a cluster's metadata is made of.

use std::sync::Arc;

use semel_model::{
    BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, MetadataIndex, PartitionEpoch, PartitionIndex,
    ProducerId, TopicId, TopicName, TopicPartition,
};

/// One change of the cluster's metadata. Its stored form is `semel.internal.v1.MetadataRecord`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// The first record of every cluster.
    ClusterCreated {
        /// Kafka's form: a UUID as 22 letters of URL-safe base64.
        cluster_id: Arc<str>,
    },
    /// A broker's life begins, fenced. Its epoch is the index of this record.
    RegisterBroker(RegisterBroker),
    /// A broker may lead and be in sync (`fenced: false`), or may not. Ignored unless `epoch` is the broker's.
    BrokerFence {
        /// Which broker.
        broker: BrokerId,
        /// Which of its lives.
        epoch: BrokerEpoch,
        /// Whether it is fenced from here on.
        fenced: bool,
        /// Whether it is handing its leaderships over before it stops.
        shutting_down: bool,
    },
    /// A broker is gone for good. Ignored unless `epoch` is the broker's.
    UnregisterBroker {
        /// Which broker.
        broker: BrokerId,
        /// Which of its lives.
        epoch: BrokerEpoch,
    },
    /// A topic without partitions; they follow as [`Record::PartitionState`].
    TopicCreated {
        /// Its name.
        name: TopicName,
        /// Its identity.
        id: TopicId,
    },
    /// A topic, its partitions and its configuration are gone.
    TopicRemoved {
        /// Which topic.
        id: TopicId,
    },
    /// The whole state of one partition after a change.
    PartitionState(PartitionState),
    /// One entry of a configuration.
    ConfigChange {
        /// Of what.
        resource: ConfigResource,
        /// Kafka's name of the setting.
        key: Arc<str>,
        /// `None`: back to the default.
        value: Option<Arc<str>>,
    },
    /// A block of producer ids was handed out.
    ProducerIdBlock {
        /// To which broker.
        broker: BrokerId,
        /// In which of its lives.
        epoch: BrokerEpoch,
        /// The first id that has not been handed out: the block ends before it.
        next_producer_id: ProducerId,
    },
}

/// A broker as it registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisterBroker {
    /// Its id.
    pub broker: BrokerId,
    /// Which process it is.
    pub incarnation: IncarnationId,
    /// Where Kafka clients reach it.
    pub kafka_host: Arc<str>,
    /// Where Kafka clients reach it.
    pub kafka_port: u16,
    /// Where nodes and gRPC clients reach it, `host:port`.
    pub grpc_address: Arc<str>,
    /// Where it stands, for placement.
    pub rack: Option<Arc<str>>,
    /// The log directories it has locked; none if its registration named none.
    pub directories: Arc<[DirectoryId]>,
}

/// One partition's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionState {
    /// Which partition.
    pub partition: TopicPartition,
    /// Who holds it, the preferred leader first.
    pub replicas: Arc<[BrokerId]>,
    /// Who is in sync. Never empty once created.
    pub isr: Arc<[BrokerId]>,
    /// Who leads, if anyone can.
    pub leader: Option<BrokerId>,
    /// Of this leadership.
    pub leader_epoch: LeaderEpoch,
    /// Of this state.
    pub partition_epoch: PartitionEpoch,
}

/// What a configuration entry belongs to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConfigResource {
    /// One topic.
    Topic(TopicName),
    /// One broker.
    Broker(BrokerId),
    /// Every broker that has no value of its own.
    Cluster,
}

/// Drawn by a process at its start: tells the retry of a registration from another process with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IncarnationId(pub [u8; 16]);

/// A log directory's identity, from its `meta.properties`: Kafka's `directory.id` (KIP-858). One process at a time has
/// the directory locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DirectoryId(pub [u8; 16]);

/// What was committed at one index of the metadata log: one atomic change. Deltas are contiguous; one without
/// records tells of a new controller epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delta {
    /// The Raft index.
    pub index: MetadataIndex,
    /// The Raft term under which it was proposed.
    pub controller_epoch: ControllerEpoch,
    /// Applied together.
    pub records: Vec<Record>,
}

impl DirectoryId {
    /// Whether it is one of the first hundred, which Kafka keeps for "unassigned", "lost" and the like: no directory
    /// has such an id.
    #[must_use]
    pub fn is_reserved(self) -> bool {
        u128::from_be_bytes(self.0) < 100
    }
}

impl PartitionState {
    /// The position of the partition in its topic.
    #[must_use]
    pub fn index(&self) -> PartitionIndex {
        self.partition.partition
    }
}
