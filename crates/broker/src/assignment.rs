//! What a change of the metadata asks of this broker's logs. Pure: a list of steps.

use std::collections::BTreeSet;

use imbl::OrdMap;
use semel_metadata::{Change, ClusterImage};
use semel_model::{BrokerId, PartitionIndex, TopicId, TopicPartition};

/// One thing to do, in the order given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// This broker is a replica and may not know it yet: open or create the log.
    Host(TopicPartition),
    /// Take the role that the image says.
    TakeRole(TopicPartition),
    /// This broker is no replica any more: let the log go.
    Drop(TopicPartition),
    /// Put the topic's settings in force in all its partitions here.
    Reconfigure(TopicId),
}

/// The steps from the changes to `after`. `hosted`: what this broker has open.
pub(crate) fn steps<P: Clone>(
    me: BrokerId,
    changes: &[Change],
    after: &ClusterImage,
    hosted: &OrdMap<TopicPartition, P>,
) -> Vec<Step> {
    let mut steps = Vec::new();
    for change in changes {
        match change {
            Change::TopicRemoved { id, .. } => {
                let first = TopicPartition { topic: *id, partition: PartitionIndex(0) };
                let of_topic = hosted.range(first..).map(|(one, _)| *one).take_while(|one| one.topic == *id);
                steps.extend(of_topic.map(Step::Drop));
            }
            Change::Partition(id) => match after.partition(*id) {
                Some(state) if state.replicas.contains(&me) => {
                    if !hosted.contains_key(id) {
                        steps.push(Step::Host(*id));
                    }
                    steps.push(Step::TakeRole(*id));
                }
                Some(_) | None => {
                    if hosted.contains_key(id) {
                        steps.push(Step::Drop(*id));
                    }
                }
            },
            Change::TopicConfigs(id) => steps.push(Step::Reconfigure(*id)),
            // These are the defaults of every topic.
            Change::BrokerConfigs(id) if *id == me => reconfigure_all(hosted, &mut steps),
            Change::ClusterConfigs => reconfigure_all(hosted, &mut steps),
            Change::BrokerConfigs(_)
            | Change::TopicCreated(_)
            | Change::ClusterCreated
            | Change::Broker(_)
            | Change::BrokerRemoved(_)
            | Change::ProducerIds => {}
        }
    }
    steps
}

fn reconfigure_all<P: Clone>(hosted: &OrdMap<TopicPartition, P>, steps: &mut Vec<Step>) {
    let topics: BTreeSet<TopicId> = hosted.keys().map(|partition| partition.topic).collect();
    steps.extend(topics.into_iter().map(Step::Reconfigure));
}

#[cfg(test)]
mod tests {
    use semel_metadata::{PartitionState, Record, changes_between};
    use semel_model::{LeaderEpoch, MetadataIndex, PartitionEpoch, TopicName};

    use super::*;

    const ME: BrokerId = BrokerId(1);

    fn id(partition: i32) -> TopicPartition {
        TopicPartition { topic: TopicId::from_bytes([7; 16]), partition: PartitionIndex(partition) }
    }

    fn place(partition: i32, replicas: &[BrokerId], epoch: i32) -> Record {
        Record::PartitionState(PartitionState {
            partition: id(partition),
            replicas: replicas.into(),
            isr: replicas.into(),
            leader: replicas.first().copied(),
            leader_epoch: LeaderEpoch(epoch),
            partition_epoch: PartitionEpoch(epoch),
        })
    }

    #[test]
    fn a_broker_hosts_what_it_is_a_replica_of_and_nothing_else() {
        let old = ClusterImage::new();
        let mut new = old.clone();
        let topic = Record::TopicCreated { name: TopicName::new("t").unwrap(), id: id(0).topic };
        for record in [topic, place(0, &[ME], 0), place(1, &[BrokerId(2)], 0)] {
            new.apply(MetadataIndex(1), &record);
        }
        let mut hosted = OrdMap::new();
        let first = steps(ME, &changes_between(&old, &new), &new, &hosted);
        assert_eq!(first, [Step::Host(id(0)), Step::TakeRole(id(0))]);
        hosted.insert(id(0), ());

        let mut moved = new.clone();
        moved.apply(MetadataIndex(2), &place(0, &[BrokerId(2)], 1));
        assert_eq!(steps(ME, &changes_between(&new, &moved), &moved, &hosted), [Step::Drop(id(0))]);

        let mut gone = new.clone();
        gone.apply(MetadataIndex(2), &Record::TopicRemoved { id: id(0).topic });
        assert_eq!(steps(ME, &changes_between(&new, &gone), &gone, &hosted), [Step::Drop(id(0))]);
    }
}
