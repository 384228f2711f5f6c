//! The controller as a state machine over the metadata log.

use std::{collections::BTreeSet, sync::Arc};

use semel_metadata::{Broker, ClusterImage, Record};
use semel_model::{BrokerEpoch, BrokerId, ControllerEpoch, MetadataIndex};
use semel_rsm::{Ctx, Draft, Outcome, StateMachine};

use crate::{
    config::Config,
    error::Error,
    ops::{
        alter_configs::{AlterConfigs, AlteredConfigs},
        alter_partition::{AlterPartition, AlteredPartitions},
        create_cluster::CreateCluster,
        create_partitions::{CreatePartitions, CreatedPartitions},
        create_topics::{CreateTopics, CreatedTopics},
        delete_topics::{DeleteTopics, DeletedTopics},
        heartbeat::{Fence, Heartbeat, HeartbeatAnswer},
        producer_ids::{AllocateProducerIds, ProducerIds},
        register_broker::{RegisterBroker, Registered},
    },
};

/// All that controllers replicate.
#[derive(Clone, Debug)]
pub struct Control {
    pub(crate) image: ClusterImage,
    pub(crate) config: Arc<Config>,
}

/// A record with where it stands: a broker's epoch is the index of its registration. `None` is an entry without
/// records, which only moves the index and tells of a new controller epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The Raft index.
    pub index: MetadataIndex,
    /// The Raft term.
    pub controller_epoch: ControllerEpoch,
    /// What changes.
    pub record: Option<Record>,
}

/// What is asked of the controller. Each operation has its file under `ops`.
#[derive(Clone, Debug)]
pub enum Request {
    /// Begin the cluster.
    CreateCluster(CreateCluster),
    /// A broker starts.
    RegisterBroker(RegisterBroker),
    /// A broker lives.
    Heartbeat(Heartbeat),
    /// A broker does not.
    Fence(Fence),
    /// New topics.
    CreateTopics(CreateTopics),
    /// Topics to delete.
    DeleteTopics(DeleteTopics),
    /// More partitions for topics.
    CreatePartitions(CreatePartitions),
    /// Configuration changes.
    AlterConfigs(AlterConfigs),
    /// A block of producer ids.
    AllocateProducerIds(AllocateProducerIds),
    /// ISR changes.
    AlterPartition(AlterPartition),
}

/// What the controller answers, variant for variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Nothing but that it is so.
    Done,
    /// To [`Request::RegisterBroker`].
    Registered(Registered),
    /// To [`Request::Heartbeat`].
    Heartbeat(HeartbeatAnswer),
    /// To [`Request::CreateTopics`].
    CreatedTopics(CreatedTopics),
    /// To [`Request::DeleteTopics`].
    DeletedTopics(DeletedTopics),
    /// To [`Request::CreatePartitions`].
    CreatedPartitions(CreatedPartitions),
    /// To [`Request::AlterConfigs`].
    AlteredConfigs(AlteredConfigs),
    /// To [`Request::AllocateProducerIds`].
    ProducerIds(ProducerIds),
    /// To [`Request::AlterPartition`].
    AlteredPartitions(AlteredPartitions),
}

impl StateMachine for Control {
    type Request = Request;
    type Reply = Reply;
    type Error = Error;
    type Record = Entry;
    type Wait = u64;
    type Timer = u64;
    type Effect = u64;

    fn handle(&self, ctx: &Ctx, request: Request) -> Result<Outcome<Self>, Error> {
        match request {
            Request::CreateCluster(request) => Ok(self.create_cluster(ctx, &request)),
            Request::RegisterBroker(request) => self.register_broker(ctx, request),
            Request::Heartbeat(request) => self.heartbeat(ctx, &request),
            Request::Fence(request) => Ok(self.fence(ctx, &request)),
            Request::CreateTopics(request) => self.create_topics(ctx, &request),
            Request::DeleteTopics(request) => self.delete_topics(ctx, &request),
            Request::CreatePartitions(request) => self.create_partitions(ctx, &request),
            Request::AlterConfigs(request) => self.alter_configs(ctx, &request),
            Request::AllocateProducerIds(request) => self.allocate_producer_ids(ctx, &request),
            Request::AlterPartition(request) => self.alter_partition(ctx, &request),
        }
    }

    fn apply(&mut self, entry: &Entry) {
        if let Some(record) = &entry.record {
            self.image.apply(entry.index, record);
        }
        self.image.advance(entry.index, entry.controller_epoch);
    }

    fn effects(&self) -> BTreeSet<u64> {
        BTreeSet::new()
    }
}

impl Control {
    /// An empty cluster.
    #[must_use]
    pub fn new(config: Arc<Config>) -> Self {
        Self::from_image(config, ClusterImage::new())
    }

    /// From a snapshot's image.
    #[must_use]
    pub fn from_image(config: Arc<Config>, image: ClusterImage) -> Self {
        Self { image, config }
    }

    /// The cluster as this state has it.
    #[must_use]
    pub fn image(&self) -> &ClusterImage {
        &self.image
    }

    /// A registered broker in the life it claims.
    pub(crate) fn live_broker(&self, id: BrokerId, epoch: BrokerEpoch) -> Result<&Broker, Error> {
        let broker = self
            .image
            .broker(id)
            .ok_or_else(|| Error::StaleBrokerEpoch(format!("broker {id} is not registered")))?;
        if broker.epoch != epoch {
            return Err(Error::StaleBrokerEpoch(format!(
                "broker {id} says epoch {epoch}, its registration has {}",
                broker.epoch
            )));
        }
        Ok(broker)
    }
}

/// A draft of the control state that takes bare records.
pub(crate) struct Changes<'a> {
    draft: Draft<Control>,
    ctx: &'a Ctx,
}

impl<'a> Changes<'a> {
    pub(crate) fn on(state: &Control, ctx: &'a Ctx) -> Self {
        Self { draft: Draft::on(state), ctx }
    }

    pub(crate) fn push(&mut self, record: Record) {
        let entry = Entry {
            index: MetadataIndex(self.ctx.position),
            // The leader's own term: its first, empty entry was applied before it took requests.
            controller_epoch: self.draft.image.controller_epoch(),
            record: Some(record),
        };
        self.draft.push(entry);
    }

    pub(crate) fn image(&self) -> &ClusterImage {
        &self.draft.image
    }

    /// The index at which a node has seen everything: of these changes or, without any, of the state they
    /// would have been made on.
    pub(crate) fn index(&self) -> MetadataIndex {
        self.draft.image.index()
    }

    /// The outcome of a request that was only to be checked, or really done.
    pub(crate) fn finish(self, validate_only: bool, reply: Reply) -> Outcome<Control> {
        if validate_only { Outcome::read(reply) } else { Outcome::write(self.draft.into_records(), reply) }
    }
}
