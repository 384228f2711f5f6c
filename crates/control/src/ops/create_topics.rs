//! New topics: names, counts, places and configurations, each with Kafka's rules and errors.

use std::sync::Arc;

use semel_metadata::{
    ConfigResource, PartitionState, Record, Topic,
    config::{validate_topic, validate_topic_together},
};
use semel_model::{
    BrokerId, LeaderEpoch, MetadataIndex, PartitionEpoch, PartitionIndex, TopicId, TopicName, TopicPartition,
};
use semel_rsm::{Ctx, Outcome};

use crate::{
    election::is_eligible,
    error::Error,
    machine::{Changes, Control, Reply},
    ops::{alter_configs::CONFIG_VALUE_LENGTH_MAX, repeated},
    placement::place,
    random::Random,
};

/// Topics to create: each succeeds or fails on its own, and those that succeed are created together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateTopics {
    /// No name twice.
    pub topics: Vec<NewTopic>,
    /// Only check.
    pub validate_only: bool,
}

/// A topic as it is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewTopic {
    /// Not yet checked.
    pub name: String,
    /// `None`: the cluster's default, or as many as there are assignments.
    pub partitions: Option<i32>,
    /// `None`: the cluster's default, or as the assignments have it. At most `Config::replication_factor_max`.
    pub replication_factor: Option<i32>,
    /// By Kafka's names.
    pub configs: Vec<(String, String)>,
    /// Empty: the controller places the partitions.
    pub assignments: Vec<Assignment>,
}

/// Who is to hold a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Which partition.
    pub partition: i32,
    /// The preferred leader first.
    pub brokers: Vec<BrokerId>,
}

/// What became of each topic, in the order asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedTopics {
    /// By the name asked for.
    pub results: Vec<(String, Result<CreatedTopic, Error>)>,
    /// A node that has applied this has the topics.
    pub index: MetadataIndex,
}

/// A topic as it was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreatedTopic {
    /// [`TopicId::ZERO`] if it was only checked.
    pub id: TopicId,
    /// How many.
    pub partitions: i32,
    /// Of the first partition.
    pub replication_factor: i32,
}

impl Control {
    pub(crate) fn create_topics(&self, ctx: &Ctx, request: &CreateTopics) -> Result<Outcome<Self>, Error> {
        let mut random = Random::new(ctx.entropy);
        let mut changes = Changes::on(self, ctx);
        let mut budget = self.partition_budget();
        let mut results = Vec::with_capacity(request.topics.len());
        for topic in &request.topics {
            let is_repeated = request.topics.iter().filter(|other| other.name == topic.name).count() > 1;
            let result = if is_repeated {
                Err(Error::InvalidRequest(format!("topic '{}' is in the request twice", topic.name)))
            } else {
                self.create_topic(&mut changes, &mut random, &mut budget, topic)
            };
            let result = result.map(|mut created| {
                if request.validate_only {
                    created.id = TopicId::ZERO;
                }
                created
            });
            results.push((topic.name.clone(), result));
        }
        let index = if request.validate_only { self.image.index() } else { changes.index() };
        Ok(changes.finish(request.validate_only, Reply::CreatedTopics(CreatedTopics { results, index })))
    }

    /// How many partitions this request may still add.
    pub(crate) fn partition_budget(&self) -> usize {
        let free = self.config.partitions_max.saturating_sub(self.image.partition_count());
        free.min(self.config.partitions_per_request_max)
    }

    fn create_topic(
        &self,
        changes: &mut Changes<'_>,
        random: &mut Random,
        budget: &mut usize,
        topic: &NewTopic,
    ) -> Result<CreatedTopic, Error> {
        let name = TopicName::new(&topic.name)?;
        if changes.image().topic_by_name(name.as_str()).is_some() {
            return Err(Error::TopicAlreadyExists(topic.name.clone()));
        }
        if let Some(other) = colliding(changes, &name) {
            return Err(Error::InvalidTopicException(format!(
                "topic '{name}' collides with topic '{other}'"
            )));
        }
        check_configs(&topic.configs)?;
        let placed = if topic.assignments.is_empty() {
            let count = topic.partitions.unwrap_or(self.config.num_partitions);
            if count < 1 {
                return Err(Error::InvalidPartitions(format!("{count} partitions: must be at least 1")));
            }
            let factor = topic.replication_factor.unwrap_or(self.config.default_replication_factor);
            if !(1..=i32::from(i16::MAX)).contains(&factor) {
                return Err(Error::InvalidReplicationFactor(format!(
                    "replication factor {factor}: must be from 1 to {}",
                    i16::MAX
                )));
            }
            let (count, factor) = (as_size(count), as_size(factor));
            self.check_factor(factor)?;
            spend(budget, count)?;
            place(changes.image(), 0, count, factor, random)?
        } else {
            if topic.partitions.is_some() || topic.replication_factor.is_some() {
                return Err(Error::InvalidRequest(format!(
                    "topic '{name}' has assignments as well as a number of partitions or replicas"
                )));
            }
            spend(budget, topic.assignments.len())?;
            let placed = assigned(changes, 0, &topic.assignments)?;
            // As many in each list as in the first.
            self.check_factor(placed.first().map_or(0, Vec::len))?;
            placed
        };
        let id = new_id(changes, random);
        changes.push(Record::TopicCreated { name: name.clone(), id });
        let created = CreatedTopic {
            id,
            partitions: i32::try_from(placed.len()).unwrap_or(i32::MAX),
            replication_factor: placed.first().map_or(0, |r| i32::try_from(r.len()).unwrap_or(i32::MAX)),
        };
        push_partitions(changes, id, 0, placed);
        for (key, value) in &topic.configs {
            changes.push(Record::ConfigChange {
                resource: ConfigResource::Topic(name.clone()),
                key: key.as_str().into(),
                value: Some(value.as_str().into()),
            });
        }
        Ok(created)
    }

    /// Errors: [`Error::InvalidReplicationFactor`] if it is more than brokers can do.
    fn check_factor(&self, factor: usize) -> Result<(), Error> {
        let max = self.config.replication_factor_max;
        if factor > as_size(max) {
            return Err(Error::InvalidReplicationFactor(format!(
                "replication factor {factor} is larger than {max}: brokers do not replicate partitions yet"
            )));
        }
        Ok(())
    }
}

/// Takes `count` partitions off the budget.
///
/// Errors: [`Error::PolicyViolation`] if it does not have them.
pub(crate) fn spend(budget: &mut usize, count: usize) -> Result<(), Error> {
    *budget = budget.checked_sub(count).ok_or_else(|| {
        Error::PolicyViolation(format!("{count} partitions are more than the {budget} that may be added"))
    })?;
    Ok(())
}

/// Adds partitions `first..` whose replicas have been chosen and checked.
pub(crate) fn push_partitions(
    changes: &mut Changes<'_>,
    topic: TopicId,
    first: usize,
    placed: Vec<Vec<BrokerId>>,
) {
    for (at, replicas) in placed.into_iter().enumerate() {
        let partition = PartitionIndex(i32::try_from(first + at).unwrap_or(i32::MAX));
        let replicas: Arc<[BrokerId]> = replicas.into();
        // A fenced broker joins the ISR like any other follower: when it has caught up.
        let isr: Arc<[BrokerId]> =
            replicas.iter().copied().filter(|id| is_eligible(changes.image(), *id)).collect();
        let isr = if isr.is_empty() { Arc::clone(&replicas) } else { isr };
        changes.push(Record::PartitionState(PartitionState {
            partition: TopicPartition { topic, partition },
            leader: isr.iter().copied().find(|id| is_eligible(changes.image(), *id)),
            isr,
            replicas,
            leader_epoch: LeaderEpoch::FIRST,
            partition_epoch: PartitionEpoch::FIRST,
        }));
    }
}

/// The lists of brokers for partitions `first..`, checked.
///
/// Errors: [`Error::InvalidReplicaAssignment`].
pub(crate) fn assigned(
    changes: &Changes<'_>,
    first: usize,
    assignments: &[Assignment],
) -> Result<Vec<Vec<BrokerId>>, Error> {
    let refuse = |text: String| Err(Error::InvalidReplicaAssignment(text));
    let mut sorted: Vec<&Assignment> = assignments.iter().collect();
    sorted.sort_by_key(|assignment| assignment.partition);
    let factor = sorted.first().map_or(0, |assignment| assignment.brokers.len());
    for (at, assignment) in sorted.iter().enumerate() {
        let partition = assignment.partition;
        if usize::try_from(partition).ok() != Some(first + at) {
            return refuse(format!("partitions must be consecutive from {first}, not {partition}"));
        }
        if assignment.brokers.is_empty() {
            return refuse(format!("partition {partition} has no replica"));
        }
        if assignment.brokers.len() != factor {
            return refuse(format!(
                "partition {partition} has {} replicas, others {factor}",
                assignment.brokers.len()
            ));
        }
        if let Some(broker) = repeated(assignment.brokers.iter()) {
            return refuse(format!("partition {partition} names broker {broker} twice"));
        }
        if let Some(broker) = assignment.brokers.iter().find(|id| changes.image().broker(**id).is_none()) {
            return refuse(format!("partition {partition} names broker {broker}, which is not registered"));
        }
        if !assignment.brokers.iter().any(|id| is_eligible(changes.image(), *id)) {
            return refuse(format!("every broker named for partition {partition} is fenced or stopping"));
        }
    }
    Ok(sorted.into_iter().map(|assignment| assignment.brokers.clone()).collect())
}

fn check_configs(configs: &[(String, String)]) -> Result<(), Error> {
    if let Some(name) = repeated(configs.iter().map(|(name, _)| name)) {
        return Err(Error::InvalidConfig(format!("configuration {name} is given twice")));
    }
    for (name, value) in configs {
        if value.len() > CONFIG_VALUE_LENGTH_MAX {
            return Err(Error::InvalidConfig(format!("the value of configuration {name} is too long")));
        }
        validate_topic(name, value)?;
    }
    validate_topic_together(|name| {
        configs.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    })?;
    Ok(())
}

/// A topic whose name differs only in dots and underscores: their metrics would be the same (Kafka's rule).
fn colliding(changes: &Changes<'_>, name: &TopicName) -> Option<TopicName> {
    let folded = |name: &str| name.replace('.', "_");
    if !name.as_str().contains(['.', '_']) {
        return None;
    }
    let ours = folded(name.as_str());
    // Names that fold alike are alike up to the first dot or underscore: only those are visited.
    let stem: &str = name.as_str().split(['.', '_']).next().unwrap_or_default();
    let of_stem = |topic: &&Topic| topic.name.as_str().starts_with(stem);
    changes
        .image()
        .topics_from(stem)
        .take_while(of_stem)
        .map(|topic| &topic.name)
        .find(|other| other.as_str().len() == ours.len() && folded(other.as_str()) == ours)
        .cloned()
}

fn new_id(changes: &Changes<'_>, random: &mut Random) -> TopicId {
    loop {
        let id = random.id();
        if changes.image().topic(id).is_none() {
            return id;
        }
    }
}

fn as_size(positive: i32) -> usize {
    usize::try_from(positive).unwrap_or(0)
}
