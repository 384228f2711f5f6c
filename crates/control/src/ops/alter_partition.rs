//! A leader changes who is in sync: compare-and-set on the leader and partition epochs (KIP-497).

use semel_metadata::{Partition, Record};
use semel_model::{BrokerEpoch, BrokerId, LeaderEpoch, MetadataIndex, PartitionEpoch, TopicPartition};
use semel_rsm::{Ctx, Outcome};

use crate::{
    election::is_eligible,
    error::Error,
    machine::{Changes, Control, Reply},
    ops::repeated,
};

/// Partitions of one leader to change: each succeeds or fails on its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlterPartition {
    /// The leader.
    pub broker: BrokerId,
    /// In which life.
    pub epoch: BrokerEpoch,
    /// Which, and how.
    pub partitions: Vec<IsrChange>,
}

/// The ISR a leader wants, and what it believes the partition's state is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IsrChange {
    /// Which.
    pub partition: TopicPartition,
    /// What the leader believes.
    pub leader_epoch: LeaderEpoch,
    /// What the leader believes.
    pub partition_epoch: PartitionEpoch,
    /// The leader among them.
    pub new_isr: Vec<BrokerId>,
}

/// What became of each partition, in the order asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlteredPartitions {
    /// By partition.
    pub results: Vec<(TopicPartition, Result<(), Error>)>,
    /// A node that has applied this has the changes.
    pub index: MetadataIndex,
}

impl Control {
    /// Errors: [`Error::StaleBrokerEpoch`].
    pub(crate) fn alter_partition(
        &self,
        ctx: &Ctx,
        request: &AlterPartition,
    ) -> Result<Outcome<Self>, Error> {
        self.live_broker(request.broker, request.epoch)?;
        let mut changes = Changes::on(self, ctx);
        let mut results = Vec::with_capacity(request.partitions.len());
        for change in &request.partitions {
            results.push((change.partition, alter(&mut changes, request.broker, change)));
        }
        let index = changes.index();
        let reply = Reply::AlteredPartitions(AlteredPartitions { results, index });
        Ok(changes.finish(false, reply))
    }
}

fn alter(changes: &mut Changes<'_>, from: BrokerId, change: &IsrChange) -> Result<(), Error> {
    let id = change.partition;
    let image = changes.image();
    let topic = image
        .topic(id.topic)
        .ok_or_else(|| Error::UnknownTopicId(format!("there is no topic with id {}", id.topic)))?;
    let current = topic.partition(id.partition).ok_or_else(|| {
        Error::UnknownTopicOrPartition(format!("topic '{}' has no partition {}", topic.name, id.partition))
    })?;
    check_epochs(change, current)?;
    if current.leader != Some(from) {
        return Err(Error::InvalidRequest(format!("broker {from} does not lead partition {id}")));
    }
    if let Some(broker) = repeated(change.new_isr.iter()) {
        return Err(Error::InvalidRequest(format!("the ISR of {id} names broker {broker} twice")));
    }
    if !change.new_isr.contains(&from) {
        return Err(Error::InvalidRequest(format!(
            "the ISR of {id} does not have its leader, broker {from}"
        )));
    }
    if let Some(broker) = change.new_isr.iter().find(|broker| !current.replicas.contains(broker)) {
        return Err(Error::InvalidRequest(format!(
            "the ISR of {id} names broker {broker}, which does not hold it"
        )));
    }
    // Who is in it already may stay: a leader that is about to stop goes on until another leads.
    let joining = change.new_isr.iter().filter(|broker| !current.isr.contains(broker));
    if let Some(broker) = joining.into_iter().find(|broker| !is_eligible(image, **broker)) {
        return Err(Error::IneligibleReplica(format!(
            "broker {broker} is fenced or stopping and cannot join the ISR of {id}"
        )));
    }
    if current.isr[..] == change.new_isr[..] {
        return Ok(());
    }
    let next = Partition {
        isr: change.new_isr.clone().into(),
        partition_epoch: current.partition_epoch.next(),
        ..current.clone()
    };
    changes.push(Record::PartitionState(next.to_state(id)));
    Ok(())
}

fn check_epochs(change: &IsrChange, current: &Partition) -> Result<(), Error> {
    let id = change.partition;
    if change.leader_epoch < current.leader_epoch {
        return Err(Error::FencedLeaderEpoch(format!(
            "leader epoch {} of {id} is over, it is at {}",
            change.leader_epoch, current.leader_epoch
        )));
    }
    if change.partition_epoch < current.partition_epoch {
        return Err(Error::InvalidUpdateVersion(format!(
            "partition epoch {} of {id} is over, it is at {}",
            change.partition_epoch, current.partition_epoch
        )));
    }
    if change.leader_epoch > current.leader_epoch || change.partition_epoch > current.partition_epoch {
        // The broker has seen what this controller has not: another leads by now.
        return Err(Error::NotController(format!("broker is ahead of this controller on {id}")));
    }
    Ok(())
}
