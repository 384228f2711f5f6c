//! Topics to delete, by name or by id.

use std::collections::BTreeSet;

use semel_metadata::Record;
use semel_model::{MetadataIndex, TopicId};
use semel_rsm::{Ctx, Outcome};

use crate::{
    error::Error,
    machine::{Changes, Control, Reply},
};

/// Topics to delete: each succeeds or fails on its own, and those that succeed are deleted together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeleteTopics {
    /// No topic twice.
    pub topics: Vec<TopicRef>,
}

/// A topic, by either of what tells it from others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TopicRef {
    /// Whatever has the name now.
    Name(String),
    /// That one and no other.
    Id(TopicId),
}

/// What became of each topic, in the order asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletedTopics {
    /// One for each topic asked for.
    pub results: Vec<DeletedTopic>,
    /// A node that has applied this no longer has the topics.
    pub index: MetadataIndex,
}

/// What became of one topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletedTopic {
    /// Its name; `None` if it was asked for by an id that no topic has.
    pub name: Option<String>,
    /// Its id; [`TopicId::ZERO`] if it was asked for by a name that no topic has.
    pub id: TopicId,
    /// Why it is still there.
    pub error: Option<Error>,
}

impl Control {
    pub(crate) fn delete_topics(&self, ctx: &Ctx, request: &DeleteTopics) -> Result<Outcome<Self>, Error> {
        let mut changes = Changes::on(self, ctx);
        let mut deleted = BTreeSet::new();
        let mut results = Vec::with_capacity(request.topics.len());
        for topic in &request.topics {
            // Looked up before any was deleted, so that naming one twice is told as that.
            let found = match topic {
                TopicRef::Name(name) => self.image.topic_by_name(name),
                TopicRef::Id(id) => self.image.topic(*id),
            };
            results.push(match (found, topic) {
                (Some(found), _) if !deleted.insert(found.id) => DeletedTopic {
                    name: Some(found.name.to_string()),
                    id: found.id,
                    error: Some(Error::InvalidRequest(format!(
                        "topic '{}' is in the request twice",
                        found.name
                    ))),
                },
                (Some(found), _) => {
                    changes.push(Record::TopicRemoved { id: found.id });
                    DeletedTopic { name: Some(found.name.to_string()), id: found.id, error: None }
                }
                (None, TopicRef::Name(name)) => DeletedTopic {
                    name: Some(name.clone()),
                    id: TopicId::ZERO,
                    error: Some(Error::UnknownTopicOrPartition(format!("there is no topic '{name}'"))),
                },
                (None, TopicRef::Id(id)) => DeletedTopic {
                    name: None,
                    id: *id,
                    error: Some(Error::UnknownTopicId(format!("there is no topic with id {id}"))),
                },
            });
        }
        let index = changes.index();
        Ok(changes.finish(false, Reply::DeletedTopics(DeletedTopics { results, index })))
    }
}
