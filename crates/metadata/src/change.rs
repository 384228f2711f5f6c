//! What differs between two images, so that a node acts on that alone.

use imbl::ordmap::DiffItem;
use semel_model::{BrokerId, PartitionIndex, TopicId, TopicName, TopicPartition};

use crate::image::{ClusterImage, Topic};

/// One difference between an earlier and a later image; look the details up in either.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The cluster has its id.
    ClusterCreated,
    /// A broker registered (again), was fenced or unfenced, or is shutting down.
    Broker(BrokerId),
    /// A broker was unregistered.
    BrokerRemoved(BrokerId),
    /// A topic is gone, with its partitions and configuration.
    TopicRemoved {
        /// Its identity.
        id: TopicId,
        /// The name it had.
        name: TopicName,
    },
    /// A topic is new. Each of its partitions is told as well.
    TopicCreated(TopicId),
    /// A partition is new or its state changed.
    Partition(TopicPartition),
    /// A topic's configuration changed. Not told for a new topic that has none.
    TopicConfigs(TopicId),
    /// One broker's configuration changed.
    BrokerConfigs(BrokerId),
    /// The cluster-wide configuration changed.
    ClusterConfigs,
    /// Producer ids were handed out.
    ProducerIds,
}

/// Everything that differs, in an order that can be acted on: removed topics, brokers, new topics before their
/// partitions, configurations.
///
/// Costs what changed if `new` was made from a clone of `old`, and the size of both if they are unrelated.
#[must_use]
pub fn changes_between(old: &ClusterImage, new: &ClusterImage) -> Vec<Change> {
    let mut changes = Vec::new();
    if old.cluster_id != new.cluster_id {
        changes.push(Change::ClusterCreated);
    }
    let mut later = Vec::new();
    for item in old.topics.diff(&new.topics) {
        match item {
            DiffItem::Remove(_, topic) => changes.push(removed(topic)),
            DiffItem::Add(_, topic) => created(topic, &mut later),
            DiffItem::Update { old: (_, before), new: (_, after) } if !is_same(before, after) => {
                changes.push(removed(before));
                created(after, &mut later);
            }
            DiffItem::Update { old: (id, before), new: (_, after) } => {
                changed_partitions(before, after, &mut later);
                if before.configs != after.configs {
                    later.push(Change::TopicConfigs(*id));
                }
            }
        }
    }
    for item in old.brokers.diff(&new.brokers) {
        changes.push(match item {
            DiffItem::Add(id, _) | DiffItem::Update { new: (id, _), .. } => Change::Broker(*id),
            DiffItem::Remove(id, _) => Change::BrokerRemoved(*id),
        });
    }
    changes.append(&mut later);
    for item in old.broker_configs.diff(&new.broker_configs) {
        let (DiffItem::Add(id, _) | DiffItem::Update { new: (id, _), .. } | DiffItem::Remove(id, _)) = item;
        changes.push(Change::BrokerConfigs(*id));
    }
    if old.cluster_configs != new.cluster_configs {
        changes.push(Change::ClusterConfigs);
    }
    if old.next_producer_id != new.next_producer_id {
        changes.push(Change::ProducerIds);
    }
    changes
}

/// Whether `after` is a later state of `before`. The controller never gives an id twice, but an image is total.
fn is_same(before: &Topic, after: &Topic) -> bool {
    before.name == after.name && before.partitions.len() <= after.partitions.len()
}

fn removed(topic: &Topic) -> Change {
    Change::TopicRemoved { id: topic.id, name: topic.name.clone() }
}

fn created(topic: &Topic, changes: &mut Vec<Change>) {
    changes.push(Change::TopicCreated(topic.id));
    changes.extend(topic.iter().map(|(partition, _)| Change::Partition(partition)));
    if !topic.configs.is_empty() {
        changes.push(Change::TopicConfigs(topic.id));
    }
}

fn changed_partitions(before: &Topic, after: &Topic, changes: &mut Vec<Change>) {
    if before.partitions.ptr_eq(&after.partitions) {
        return;
    }
    let mut earlier = before.partitions.iter();
    for (at, now) in (0_i32..).zip(&after.partitions) {
        if earlier.next() != Some(now) {
            let partition = TopicPartition { topic: after.id, partition: PartitionIndex(at) };
            changes.push(Change::Partition(partition));
        }
    }
}
