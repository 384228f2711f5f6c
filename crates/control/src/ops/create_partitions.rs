//! More partitions for topics.

use semel_model::MetadataIndex;
use semel_rsm::{Ctx, Outcome};

use crate::{
    error::Error,
    machine::{Changes, Control, Reply},
    ops::create_topics::{Assignment, assigned, push_partitions, spend},
    placement::place,
    random::Random,
};

/// Topics to widen: each succeeds or fails on its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatePartitions {
    /// No name twice.
    pub topics: Vec<WiderTopic>,
    /// Only check.
    pub validate_only: bool,
}

/// A topic and its new width.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WiderTopic {
    /// Which.
    pub name: String,
    /// The new total.
    pub count: i32,
    /// For the new partitions only; empty: the controller places them.
    pub assignments: Vec<Assignment>,
}

/// What became of each topic, in the order asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatedPartitions {
    /// By name.
    pub results: Vec<(String, Result<(), Error>)>,
    /// A node that has applied this has the partitions.
    pub index: MetadataIndex,
}

impl Control {
    pub(crate) fn create_partitions(
        &self,
        ctx: &Ctx,
        request: &CreatePartitions,
    ) -> Result<Outcome<Self>, Error> {
        let mut random = Random::new(ctx.entropy);
        let mut changes = Changes::on(self, ctx);
        let mut budget = self.partition_budget();
        let mut results = Vec::with_capacity(request.topics.len());
        for topic in &request.topics {
            let is_repeated = request.topics.iter().filter(|other| other.name == topic.name).count() > 1;
            let result = if is_repeated {
                Err(Error::InvalidRequest(format!("topic '{}' is in the request twice", topic.name)))
            } else {
                widen(&mut changes, &mut random, &mut budget, topic)
            };
            results.push((topic.name.clone(), result));
        }
        let index = if request.validate_only { self.image.index() } else { changes.index() };
        let reply = Reply::CreatedPartitions(CreatedPartitions { results, index });
        Ok(changes.finish(request.validate_only, reply))
    }
}

fn widen(
    changes: &mut Changes<'_>,
    random: &mut Random,
    budget: &mut usize,
    request: &WiderTopic,
) -> Result<(), Error> {
    let name = &request.name;
    let topic = changes
        .image()
        .topic_by_name(name)
        .ok_or_else(|| Error::UnknownTopicOrPartition(format!("there is no topic '{name}'")))?;
    let (id, now) = (topic.id, topic.partitions.len());
    let factor = topic.partitions.front().map_or(1, |partition| partition.replicas.len());
    let wanted = usize::try_from(request.count).unwrap_or(0);
    if wanted <= now {
        return Err(Error::InvalidPartitions(if wanted == now {
            format!("topic '{name}' already has {now} partitions")
        } else {
            format!("topic '{name}' has {now} partitions, more than the {} asked for", request.count)
        }));
    }
    let more = wanted - now;
    spend(budget, more)?;
    let placed = if request.assignments.is_empty() {
        place(changes.image(), now, more, factor, random)?
    } else {
        if request.assignments.len() != more {
            return Err(Error::InvalidReplicaAssignment(format!(
                "{more} new partitions with {} assignments",
                request.assignments.len()
            )));
        }
        let placed = assigned(changes, now, &request.assignments)?;
        if let Some(other) = placed.iter().map(Vec::len).find(|length| *length != factor) {
            return Err(Error::InvalidReplicaAssignment(format!(
                "topic '{name}' has {factor} replicas of each partition, not {other}"
            )));
        }
        placed
    };
    push_partitions(changes, id, now, placed);
    Ok(())
}
