//! The cluster at one index.

use std::sync::{Arc, LazyLock};

use imbl::{OrdMap, Vector};
use semel_model::{
    BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, MetadataIndex, PartitionEpoch, PartitionIndex,
    ProducerId, TopicId, TopicName, TopicPartition,
};

use crate::record::{
    ConfigResource, Delta, DirectoryId, IncarnationId, PartitionState, Record, RegisterBroker,
};

/// Configuration entries that were set, by Kafka's name.
pub type Configs = OrdMap<Arc<str>, Arc<str>>;

/// For resources that have no entries.
static NO_CONFIGS: LazyLock<Configs> = LazyLock::new(Configs::new);

/// All metadata at one index of the log. A clone costs a few reference counts and shares everything with its
/// original, so a reader keeps one while the next is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterImage {
    pub(crate) index: MetadataIndex,
    pub(crate) controller_epoch: ControllerEpoch,
    pub(crate) cluster_id: Option<Arc<str>>,
    pub(crate) cluster_index: MetadataIndex,
    pub(crate) brokers: OrdMap<BrokerId, Arc<Broker>>,
    pub(crate) topics: OrdMap<TopicId, Arc<Topic>>,
    pub(crate) names: OrdMap<TopicName, TopicId>,
    pub(crate) broker_configs: OrdMap<BrokerId, Configs>,
    pub(crate) cluster_configs: Configs,
    pub(crate) next_producer_id: ProducerId,
}

/// A registered broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broker {
    /// Its id.
    pub id: BrokerId,
    /// Which of its lives: the index of its registration.
    pub epoch: BrokerEpoch,
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
    /// Whether it may not lead or be in sync.
    pub fenced: bool,
    /// Whether it is handing its leaderships over before it stops.
    pub shutting_down: bool,
}

/// A topic with its partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    /// Its name.
    pub name: TopicName,
    /// Its identity.
    pub id: TopicId,
    /// By partition index, without gaps.
    pub partitions: Vector<Partition>,
    /// What was set for it.
    pub configs: Configs,
}

/// A partition's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Who holds it, the preferred leader first.
    pub replicas: Arc<[BrokerId]>,
    /// Who is in sync.
    pub isr: Arc<[BrokerId]>,
    /// Who leads, if anyone can.
    pub leader: Option<BrokerId>,
    /// Of this leadership.
    pub leader_epoch: LeaderEpoch,
    /// Of this state.
    pub partition_epoch: PartitionEpoch,
}

impl Broker {
    /// Whether it may lead and be in sync.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        !self.fenced
    }
}

impl Topic {
    /// How many partitions it has.
    #[must_use]
    pub fn partition_count(&self) -> i32 {
        i32::try_from(self.partitions.len()).unwrap_or(i32::MAX)
    }

    /// One partition.
    #[must_use]
    pub fn partition(&self, index: PartitionIndex) -> Option<&Partition> {
        usize::try_from(index.0).ok().and_then(|at| self.partitions.get(at))
    }

    /// Every partition with its identity, in order.
    pub fn iter(&self) -> impl Iterator<Item = (TopicPartition, &Partition)> {
        let topic = self.id;
        (0_i32..)
            .zip(&self.partitions)
            .map(move |(at, partition)| (TopicPartition { topic, partition: PartitionIndex(at) }, partition))
    }
}

impl Partition {
    /// This state as the record that sets it.
    #[must_use]
    pub fn to_state(&self, partition: TopicPartition) -> PartitionState {
        PartitionState {
            partition,
            replicas: Arc::clone(&self.replicas),
            isr: Arc::clone(&self.isr),
            leader: self.leader,
            leader_epoch: self.leader_epoch,
            partition_epoch: self.partition_epoch,
        }
    }
}

impl Default for ClusterImage {
    fn default() -> Self {
        Self::new()
    }
}

impl ClusterImage {
    /// Before every record.
    #[must_use]
    pub fn new() -> Self {
        Self {
            index: MetadataIndex::ZERO,
            controller_epoch: ControllerEpoch(0),
            cluster_id: None,
            cluster_index: MetadataIndex::ZERO,
            brokers: OrdMap::new(),
            topics: OrdMap::new(),
            names: OrdMap::new(),
            broker_configs: OrdMap::new(),
            cluster_configs: Configs::new(),
            next_producer_id: ProducerId(0),
        }
    }

    /// The image that [`records`](Self::records) came from.
    #[must_use]
    pub fn from_records(
        index: MetadataIndex,
        controller_epoch: ControllerEpoch,
        records: impl IntoIterator<Item = (MetadataIndex, Record)>,
    ) -> Self {
        let mut image = Self::new();
        for (at, record) in records {
            image.apply(at, &record);
        }
        image.advance(index, controller_epoch);
        image
    }

    /// The index of the last change applied.
    #[must_use]
    pub fn index(&self) -> MetadataIndex {
        self.index
    }

    /// The newest controller epoch applied.
    #[must_use]
    pub fn controller_epoch(&self) -> ControllerEpoch {
        self.controller_epoch
    }

    /// Kafka's cluster id; `None` before the cluster's first record.
    #[must_use]
    pub fn cluster_id(&self) -> Option<&str> {
        self.cluster_id.as_deref()
    }

    /// Every registered broker, by id.
    pub fn brokers(&self) -> impl Iterator<Item = &Broker> {
        self.brokers.values().map(|broker| &**broker)
    }

    /// Every broker that is not fenced, by id.
    pub fn alive_brokers(&self) -> impl Iterator<Item = &Broker> {
        self.brokers().filter(|broker| broker.is_alive())
    }

    /// One broker.
    #[must_use]
    pub fn broker(&self, id: BrokerId) -> Option<&Broker> {
        self.brokers.get(&id).map(|broker| &**broker)
    }

    /// Whether a broker is registered and not fenced.
    #[must_use]
    pub fn is_alive(&self, id: BrokerId) -> bool {
        self.broker(id).is_some_and(Broker::is_alive)
    }

    /// Every topic, by name.
    pub fn topics(&self) -> impl Iterator<Item = &Topic> {
        self.names.values().filter_map(|id| self.topic(*id))
    }

    /// How many topics there are.
    #[must_use]
    pub fn topic_count(&self) -> usize {
        self.topics.len()
    }

    /// How many partitions there are. Visits every topic.
    #[must_use]
    pub fn partition_count(&self) -> usize {
        self.topics.values().map(|topic| topic.partitions.len()).sum()
    }

    /// One topic by name.
    #[must_use]
    pub fn topic_by_name(&self, name: &str) -> Option<&Topic> {
        self.topic(*self.names.get(name)?)
    }

    /// One topic by identity.
    #[must_use]
    pub fn topic(&self, id: TopicId) -> Option<&Topic> {
        self.topics.get(&id).map(|topic| &**topic)
    }

    /// One partition.
    #[must_use]
    pub fn partition(&self, of: TopicPartition) -> Option<&Partition> {
        self.topic(of.topic)?.partition(of.partition)
    }

    /// The topics whose names start with or follow `from`, by name: for paging through many.
    pub fn topics_from(&self, from: &str) -> impl Iterator<Item = &Topic> {
        use std::ops::Bound;
        self.names
            .range::<_, str>((Bound::Included(from), Bound::Unbounded))
            .filter_map(|(_, id)| self.topic(*id))
    }

    /// What was set for a topic; empty if nothing was or there is no such topic.
    #[must_use]
    pub fn topic_configs(&self, name: &str) -> &Configs {
        self.topic_by_name(name).map_or(&NO_CONFIGS, |topic| &topic.configs)
    }

    /// What was set for one broker.
    #[must_use]
    pub fn broker_configs(&self, id: BrokerId) -> &Configs {
        self.broker_configs.get(&id).unwrap_or(&NO_CONFIGS)
    }

    /// What was set for every broker without a value of its own.
    #[must_use]
    pub fn cluster_configs(&self) -> &Configs {
        &self.cluster_configs
    }

    /// The first producer id that was never handed out.
    #[must_use]
    pub fn next_producer_id(&self) -> ProducerId {
        self.next_producer_id
    }

    /// Every partition that a broker holds, by topic id and partition. Visits every partition of the cluster:
    /// for a broker's start and for its fencing, not for each request.
    pub fn replicas_of(&self, broker: BrokerId) -> impl Iterator<Item = (TopicPartition, &Partition)> {
        self.topics
            .values()
            .flat_map(|topic| topic.iter())
            .filter(move |(_, partition)| partition.replicas.contains(&broker))
    }

    /// Applies one atomic change.
    pub fn apply_delta(&mut self, delta: &Delta) {
        for record in &delta.records {
            self.apply(delta.index, record);
        }
        self.advance(delta.index, delta.controller_epoch);
    }

    /// Notes that everything up to `index` has been applied; never goes back.
    pub fn advance(&mut self, index: MetadataIndex, controller_epoch: ControllerEpoch) {
        self.index = self.index.max(index);
        self.controller_epoch = self.controller_epoch.max(controller_epoch);
    }

    /// Applies one record committed at `index`.
    ///
    /// Total: a record that refers to what is not there (a partition of a topic that was removed, a broker's
    /// earlier life, a gap in the partitions) changes nothing but the index.
    pub fn apply(&mut self, index: MetadataIndex, record: &Record) {
        self.index = self.index.max(index);
        match record {
            Record::ClusterCreated { cluster_id } => {
                if self.cluster_id.is_none() {
                    self.cluster_id = Some(Arc::clone(cluster_id));
                    self.cluster_index = index;
                }
            }
            Record::RegisterBroker(registration) => self.register(index, registration),
            Record::BrokerFence { broker, epoch, fenced, shutting_down } => {
                if let Some(known) = self.brokers.get_mut(broker)
                    && known.epoch == *epoch
                {
                    let known = Arc::make_mut(known);
                    known.fenced = *fenced;
                    known.shutting_down = *shutting_down;
                }
            }
            Record::UnregisterBroker { broker, epoch } => {
                if self.brokers.get(broker).is_some_and(|known| known.epoch == *epoch) {
                    self.brokers.remove(broker);
                }
            }
            Record::TopicCreated { name, id } => self.create_topic(name, *id),
            Record::TopicRemoved { id } => {
                if let Some(topic) = self.topics.remove(id) {
                    self.names.remove(&topic.name);
                }
            }
            Record::PartitionState(state) => self.set_partition(state),
            Record::ConfigChange { resource, key, value } => self.set_config(resource, key, value.as_ref()),
            Record::ProducerIdBlock { next_producer_id, .. } => {
                self.next_producer_id = self.next_producer_id.max(*next_producer_id);
            }
        }
    }

    /// Records that rebuild this image on an empty one, each with the index it must be applied at.
    ///
    /// See [`from_records`](Self::from_records), which also needs this image's index and controller epoch.
    #[must_use]
    pub fn records(&self) -> Vec<(MetadataIndex, Record)> {
        let mut records = Vec::new();
        let at = self.index;
        if let Some(cluster_id) = &self.cluster_id {
            records.push((self.cluster_index, Record::ClusterCreated { cluster_id: Arc::clone(cluster_id) }));
        }
        for broker in self.brokers() {
            let registered = MetadataIndex(u64::try_from(broker.epoch.0).unwrap_or(0));
            records.push((registered, Record::RegisterBroker(broker.registration())));
            if !broker.fenced || broker.shutting_down {
                records.push((
                    at,
                    Record::BrokerFence {
                        broker: broker.id,
                        epoch: broker.epoch,
                        fenced: broker.fenced,
                        shutting_down: broker.shutting_down,
                    },
                ));
            }
        }
        for topic in self.topics() {
            records.push((at, Record::TopicCreated { name: topic.name.clone(), id: topic.id }));
            for (partition, state) in topic.iter() {
                records.push((at, Record::PartitionState(state.to_state(partition))));
            }
            push_configs(&mut records, at, &ConfigResource::Topic(topic.name.clone()), &topic.configs);
        }
        for (broker, configs) in &self.broker_configs {
            push_configs(&mut records, at, &ConfigResource::Broker(*broker), configs);
        }
        push_configs(&mut records, at, &ConfigResource::Cluster, &self.cluster_configs);
        if self.next_producer_id > ProducerId(0) {
            records.push((
                at,
                Record::ProducerIdBlock {
                    broker: BrokerId::NONE,
                    epoch: BrokerEpoch::NONE,
                    next_producer_id: self.next_producer_id,
                },
            ));
        }
        records
    }

    fn register(&mut self, index: MetadataIndex, registration: &RegisterBroker) {
        let broker = Broker {
            id: registration.broker,
            epoch: BrokerEpoch(i64::try_from(index.0).unwrap_or(i64::MAX)),
            incarnation: registration.incarnation,
            kafka_host: Arc::clone(&registration.kafka_host),
            kafka_port: registration.kafka_port,
            grpc_address: Arc::clone(&registration.grpc_address),
            rack: registration.rack.clone(),
            directories: Arc::clone(&registration.directories),
            fenced: true,
            shutting_down: false,
        };
        self.brokers.insert(registration.broker, Arc::new(broker));
    }

    fn create_topic(&mut self, name: &TopicName, id: TopicId) {
        // A name or an id that is taken keeps its topic: names and ids stay one to one whatever comes.
        if self.names.contains_key(name.as_str()) || self.topics.contains_key(&id) {
            return;
        }
        let topic = Topic { name: name.clone(), id, partitions: Vector::new(), configs: Configs::new() };
        self.topics.insert(id, Arc::new(topic));
        self.names.insert(name.clone(), id);
    }

    fn set_partition(&mut self, state: &PartitionState) {
        let Some(topic) = self.topics.get_mut(&state.partition.topic) else { return };
        let Ok(at) = usize::try_from(state.partition.partition.0) else { return };
        if at > topic.partitions.len() {
            return;
        }
        let partition = Partition {
            replicas: Arc::clone(&state.replicas),
            isr: if state.isr == state.replicas {
                Arc::clone(&state.replicas)
            } else {
                Arc::clone(&state.isr)
            },
            leader: state.leader,
            leader_epoch: state.leader_epoch,
            partition_epoch: state.partition_epoch,
        };
        let topic = Arc::make_mut(topic);
        if at == topic.partitions.len() {
            topic.partitions.push_back(partition);
        } else {
            topic.partitions.set(at, partition);
        }
    }

    fn set_config(&mut self, resource: &ConfigResource, key: &Arc<str>, value: Option<&Arc<str>>) {
        match resource {
            ConfigResource::Topic(name) => {
                if let Some(id) = self.names.get(name.as_str())
                    && let Some(topic) = self.topics.get_mut(id)
                {
                    set(&mut Arc::make_mut(topic).configs, key, value);
                }
            }
            ConfigResource::Broker(broker) => {
                let configs = self.broker_configs.entry(*broker).or_default();
                set(configs, key, value);
                if configs.is_empty() {
                    self.broker_configs.remove(broker);
                }
            }
            ConfigResource::Cluster => set(&mut self.cluster_configs, key, value),
        }
    }
}

impl Broker {
    /// The record that registered it.
    #[must_use]
    pub fn registration(&self) -> RegisterBroker {
        RegisterBroker {
            broker: self.id,
            incarnation: self.incarnation,
            kafka_host: Arc::clone(&self.kafka_host),
            kafka_port: self.kafka_port,
            grpc_address: Arc::clone(&self.grpc_address),
            rack: self.rack.clone(),
            directories: Arc::clone(&self.directories),
        }
    }
}

fn set(configs: &mut Configs, key: &Arc<str>, value: Option<&Arc<str>>) {
    match value {
        Some(value) => drop(configs.insert(Arc::clone(key), Arc::clone(value))),
        None => drop(configs.remove(key)),
    }
}

fn push_configs(
    records: &mut Vec<(MetadataIndex, Record)>,
    at: MetadataIndex,
    resource: &ConfigResource,
    configs: &Configs,
) {
    records.extend(configs.iter().map(|(key, value)| {
        let record = Record::ConfigChange {
            resource: resource.clone(),
            key: Arc::clone(key),
            value: Some(Arc::clone(value)),
        };
        (at, record)
    }));
}
