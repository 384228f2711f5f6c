//! Which brokers hold a new partition: evenly, and in different racks as long as there are any.

use std::collections::BTreeMap;

use semel_metadata::ClusterImage;
use semel_model::BrokerId;

use crate::{election::is_eligible, error::Error, random::Random};

/// Places the partitions `first..first + count` of a topic. The preferred leader is first in each list.
///
/// Brokers that may lead come before those that are fenced, which are used only to reach `factor`.
/// Errors: [`Error::InvalidReplicationFactor`] if there are too few brokers or none that may lead.
pub(crate) fn place(
    image: &ClusterImage,
    first: usize,
    count: usize,
    factor: usize,
    random: &mut Random,
) -> Result<Vec<Vec<BrokerId>>, Error> {
    let registered = image.brokers().count();
    if factor > registered {
        return Err(Error::InvalidReplicationFactor(format!(
            "replication factor {factor} is larger than the number of registered brokers, {registered}"
        )));
    }
    let racks = |eligible: bool| {
        let mut racks: BTreeMap<Option<&str>, Vec<BrokerId>> = BTreeMap::new();
        for broker in image.brokers().filter(|broker| is_eligible(image, broker.id) == eligible) {
            racks.entry(broker.rack.as_deref()).or_default().push(broker.id);
        }
        racks
    };
    let leading = Ring::new(&racks(true));
    if leading.brokers.is_empty() {
        return Err(Error::InvalidReplicationFactor("no broker is alive to hold the partition".to_owned()));
    }
    let spare = Ring::new(&racks(false));
    let start = random.below(leading.brokers.len());
    let shift = random.below(leading.brokers.len());
    let spare_start = random.below(spare.brokers.len());
    let placed = (first..first + count).map(|partition| {
        let mut replicas = leading.pick(partition, start, shift, factor);
        let missing = factor - replicas.len();
        replicas.extend(spare.pick(partition, spare_start, shift, missing));
        replicas
    });
    Ok(placed.collect())
}

/// Brokers in an order in which neighbours stand in different racks as far as possible.
struct Ring {
    brokers: Vec<(BrokerId, usize)>,
    rack_count: usize,
}

impl Ring {
    fn new(racks: &BTreeMap<Option<&str>, Vec<BrokerId>>) -> Self {
        let mut brokers = Vec::new();
        let longest = racks.values().map(Vec::len).max().unwrap_or(0);
        for at in 0..longest {
            for (rack, members) in racks.values().enumerate() {
                brokers.extend(members.get(at).map(|broker| (*broker, rack)));
            }
        }
        Self { brokers, rack_count: racks.len() }
    }

    /// Up to `factor` brokers. The first moves on by one with each partition, so leaders are even; the distance
    /// of the others grows by one with each round, so that the same brokers do not always meet.
    fn pick(&self, partition: usize, start: usize, shift: usize, factor: usize) -> Vec<BrokerId> {
        let size = self.brokers.len();
        if size == 0 || factor == 0 {
            return Vec::new();
        }
        let leader = (start + partition) % size;
        let mut chosen = vec![leader];
        let mut racks_used = vec![self.brokers[leader].1];
        if size > 1 {
            // Every other broker once, from a distance of 1 + (shift + round) on, around the ring.
            let distance = (shift + partition / size) % (size - 1);
            let others: Vec<usize> =
                (0..size - 1).map(|step| (leader + 1 + (distance + step) % (size - 1)) % size).collect();
            while chosen.len() < factor.min(size) {
                let is_free = |at: &&usize| !chosen.contains(*at);
                let is_new_rack = |at: &&usize| !racks_used.contains(&self.brokers[**at].1);
                let next = others
                    .iter()
                    .filter(is_free)
                    .find(|at| racks_used.len() >= self.rack_count || is_new_rack(at))
                    .or_else(|| others.iter().find(is_free));
                let Some(next) = next else { break };
                chosen.push(*next);
                if !racks_used.contains(&self.brokers[*next].1) {
                    racks_used.push(self.brokers[*next].1);
                }
            }
        }
        chosen.into_iter().take(factor).map(|at| self.brokers[at].0).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use semel_metadata::{IncarnationId, Record, RegisterBroker};
    use semel_model::{BrokerEpoch, MetadataIndex};

    use super::*;

    /// Brokers by rack; ids count up from 0.
    fn cluster(racks: &[usize], fenced: &[i32]) -> ClusterImage {
        let mut image = ClusterImage::new();
        let mut id = 0;
        for (rack, count) in racks.iter().enumerate() {
            for _ in 0..*count {
                let broker = BrokerId(id);
                image.apply(
                    MetadataIndex(1),
                    &Record::RegisterBroker(RegisterBroker {
                        broker,
                        incarnation: IncarnationId([0; 16]),
                        kafka_host: "h".into(),
                        kafka_port: 1,
                        grpc_address: "h:2".into(),
                        rack: Some(format!("r{rack}").into()),
                        directories: [].into(),
                    }),
                );
                let fenced = fenced.contains(&id);
                let epoch = BrokerEpoch(1);
                image.apply(
                    MetadataIndex(2),
                    &Record::BrokerFence { broker, epoch, fenced, shutting_down: false },
                );
                id += 1;
            }
        }
        image
    }

    proptest! {
        #[test]
        fn replicas_are_distinct_even_and_spread(
            racks in prop::collection::vec(1..4_usize, 1..5),
            count in 1..60_usize,
            factor in 1..5_usize,
            entropy in any::<u128>(),
        ) {
            let image = cluster(&racks, &[]);
            let brokers: usize = racks.iter().sum();
            let placed = place(&image, 0, count, factor, &mut Random::new(entropy));
            if factor > brokers {
                prop_assert!(matches!(placed, Err(Error::InvalidReplicationFactor(_))));
                return Ok(());
            }
            let placed = placed.unwrap();
            prop_assert_eq!(placed.len(), count);
            let mut leads: BTreeMap<BrokerId, usize> = image.brokers().map(|b| (b.id, 0)).collect();
            for replicas in &placed {
                let distinct: BTreeSet<_> = replicas.iter().collect();
                prop_assert_eq!(distinct.len(), factor);
                let spread: BTreeSet<_> =
                    replicas.iter().map(|id| image.broker(*id).unwrap().rack.clone()).collect();
                prop_assert_eq!(spread.len(), factor.min(racks.len()));
                *leads.get_mut(&replicas[0]).unwrap() += 1;
            }
            let (least, most) = (leads.values().min().unwrap(), leads.values().max().unwrap());
            prop_assert!(most - least <= 1, "{:?}", leads);
            // The same inputs, the same places.
            prop_assert_eq!(place(&image, 0, count, factor, &mut Random::new(entropy)).unwrap(), placed);
        }
    }

    #[test]
    fn fenced_brokers_only_fill_up() {
        let image = cluster(&[1, 1, 1], &[1, 2]);
        let placed = place(&image, 0, 4, 2, &mut Random::new(7)).unwrap();
        assert!(placed.iter().all(|replicas| replicas[0] == BrokerId(0) && replicas.len() == 2));
        let image = cluster(&[2], &[0, 1]);
        assert!(matches!(
            place(&image, 0, 1, 1, &mut Random::new(7)),
            Err(Error::InvalidReplicationFactor(_))
        ));
    }
}
