//! Who leads a partition, and who is in sync, when brokers come and go.

use std::sync::Arc;

use semel_metadata::{
    ClusterImage, Partition, Record,
    config::{StaticConfigs, resolve_topic},
};
use semel_model::{BrokerId, TopicPartition};

use crate::machine::Changes;

/// Whether a broker may be given leaderships and be in sync.
pub(crate) fn is_eligible(image: &ClusterImage, broker: BrokerId) -> bool {
    image.broker(broker).is_some_and(|broker| broker.is_alive() && !broker.shutting_down)
}

/// The state a partition must have now, if that is another than it has.
///
/// The ISR loses whoever may not be in it, but never its last member: with it would go the knowledge of who has
/// every acknowledged record (KIP-966). The leader stays if it may; else the first assigned replica in the ISR
/// leads; else one that is about to stop, as long as it lives; else, where the topic allows it, any that lives.
pub(crate) fn next_state(image: &ClusterImage, current: &Partition, unclean: bool) -> Option<Partition> {
    let eligible = |id: &BrokerId| is_eligible(image, *id);
    let alive = |id: &BrokerId| image.is_alive(*id);
    let keep = |keep: &dyn Fn(&BrokerId) -> bool| -> Vec<BrokerId> {
        current.isr.iter().copied().filter(|id| keep(id)).collect()
    };
    let mut isr = keep(&eligible);
    if isr.is_empty() {
        isr = keep(&alive);
    }
    if isr.is_empty() {
        isr = current.isr.to_vec();
    }
    let in_order = || current.leader.iter().chain(current.replicas.iter());
    let mut leader = in_order().find(|id| isr.contains(id) && eligible(id)).copied();
    if leader.is_none() {
        leader = in_order().find(|id| isr.contains(id) && alive(id)).copied();
    }
    if leader.is_none() && unclean {
        leader = current.replicas.iter().find(|id| eligible(id)).copied();
        // What the old ISR had and this replica lacks is lost: it alone says what the partition holds.
        if let Some(leader) = leader {
            isr = vec![leader];
        }
    }
    if leader == current.leader && isr[..] == current.isr[..] {
        return None;
    }
    let leader_epoch =
        if leader == current.leader { current.leader_epoch } else { current.leader_epoch.next() };
    Some(Partition {
        replicas: Arc::clone(&current.replicas),
        isr: isr.into(),
        leader,
        leader_epoch,
        partition_epoch: current.partition_epoch.next(),
    })
}

/// Moves leaderships and ISRs of everything a broker holds after its state changed.
pub(crate) fn reelect_replicas_of(changes: &mut Changes<'_>, broker: BrokerId) {
    let image = changes.image().clone();
    let moved = image.replicas_of(broker).filter_map(|(id, partition)| reelected(&image, id, partition));
    push_all(changes, moved.collect());
}

/// The same for one topic after its configuration changed.
pub(crate) fn reelect_topic(changes: &mut Changes<'_>, name: &str) {
    let image = changes.image().clone();
    let Some(topic) = image.topic_by_name(name) else { return };
    let moved = topic.iter().filter_map(|(id, partition)| reelected(&image, id, partition));
    push_all(changes, moved.collect());
}

fn reelected(
    image: &ClusterImage,
    id: TopicPartition,
    partition: &Partition,
) -> Option<(TopicPartition, Partition)> {
    let clean = next_state(image, partition, false);
    let leader = clean.as_ref().map_or(partition.leader, |state| state.leader);
    // Asked only when it matters: resolving a topic's settings is slow.
    let next = if leader.is_none() && allows_unclean(image, id) {
        next_state(image, partition, true)
    } else {
        clean
    };
    next.map(|state| (id, state))
}

fn allows_unclean(image: &ClusterImage, id: TopicPartition) -> bool {
    let Some(topic) = image.topic(id.topic) else { return false };
    let settings = resolve_topic(image, BrokerId::NONE, &StaticConfigs::new(), &topic.configs);
    settings.boolean("unclean.leader.election.enable").unwrap_or(false)
}

fn push_all(changes: &mut Changes<'_>, moved: Vec<(TopicPartition, Partition)>) {
    for (id, state) in moved {
        changes.push(Record::PartitionState(state.to_state(id)));
    }
}
