//! Configuration changes of topics and brokers, entry by entry or as a whole (KIP-339).

use std::sync::Arc;

use semel_metadata::{
    ConfigResource, Configs, Record,
    config::{
        ConfigDef, Kind, broker_def, split_list, topic_def, validate_broker, validate_topic,
        validate_topic_together,
    },
};
use semel_model::{BrokerId, MetadataIndex, TopicName};
use semel_rsm::{Ctx, Outcome};

use crate::{
    election::reelect_topic,
    error::Error,
    machine::{Changes, Control, Reply},
    ops::repeated,
};

/// In bytes, as in Kafka.
pub(crate) const CONFIG_VALUE_LENGTH_MAX: usize = i16::MAX as usize;

/// Resources to configure: each succeeds or fails on its own and as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlterConfigs {
    /// No resource twice.
    pub resources: Vec<AlterResource>,
    /// Only check.
    pub validate_only: bool,
}

/// What is to become of one resource's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlterResource {
    /// Which.
    pub resource: ResourceRef,
    /// By name; no name twice.
    pub changes: Vec<(String, ConfigOperation)>,
    /// `changes` are the whole configuration: what they do not name goes back to its default.
    pub replace: bool,
}

/// A resource as it is asked for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ResourceRef {
    /// A topic's name.
    Topic(String),
    /// A broker's id as text; empty is every broker.
    Broker(String),
}

/// A change of one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigOperation {
    /// Give it a value.
    Set(String),
    /// Back to the default.
    Delete,
    /// Add entries to a list, those that are not in it.
    Append(String),
    /// Take entries out of a list.
    Subtract(String),
}

/// What became of each resource, in the order asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlteredConfigs {
    /// By resource.
    pub results: Vec<(ResourceRef, Result<(), Error>)>,
    /// A node that has applied this has the changes.
    pub index: MetadataIndex,
}

impl Control {
    pub(crate) fn alter_configs(&self, ctx: &Ctx, request: &AlterConfigs) -> Result<Outcome<Self>, Error> {
        let mut changes = Changes::on(self, ctx);
        let mut results = Vec::with_capacity(request.resources.len());
        for asked in &request.resources {
            let is_repeated =
                request.resources.iter().filter(|other| other.resource == asked.resource).count() > 1;
            let result = if is_repeated {
                Err(Error::InvalidRequest("a resource is in the request twice".to_owned()))
            } else {
                alter(&mut changes, asked)
            };
            results.push((asked.resource.clone(), result));
        }
        let index = if request.validate_only { self.image.index() } else { changes.index() };
        let reply = Reply::AlteredConfigs(AlteredConfigs { results, index });
        Ok(changes.finish(request.validate_only, reply))
    }
}

fn alter(changes: &mut Changes<'_>, asked: &AlterResource) -> Result<(), Error> {
    if let Some(name) = repeated(asked.changes.iter().map(|(name, _)| name)) {
        return Err(Error::InvalidRequest(format!("configuration {name} is given twice")));
    }
    let resource = find(changes, &asked.resource)?;
    let now = match &resource {
        ConfigResource::Topic(name) => changes.image().topic_configs(name.as_str()).clone(),
        ConfigResource::Broker(id) => changes.image().broker_configs(*id).clone(),
        ConfigResource::Cluster => changes.image().cluster_configs().clone(),
    };
    let mut next = if asked.replace { Configs::new() } else { now.clone() };
    for (name, operation) in &asked.changes {
        match value(&resource, name, operation, now.get(name.as_str()))? {
            Some(value) => {
                validate(&resource, name, &value)?;
                next.insert(name.as_str().into(), value.into());
            }
            None => drop(next.remove(name.as_str())),
        }
    }
    if let ConfigResource::Topic(_) = resource {
        validate_topic_together(|name| next.get(name).map(|value| &**value))?;
    }
    let gone = now.keys().filter(|key| !next.contains_key(*key)).map(|key| (key, None));
    let set = next.iter().filter(|(key, value)| now.get(*key) != Some(*value));
    let differing: Vec<(Arc<str>, Option<Arc<str>>)> = gone
        .chain(set.map(|(key, value)| (key, Some(value))))
        .map(|(key, value)| (Arc::clone(key), value.cloned()))
        .collect();
    let may_elect = differing.iter().any(|(key, _)| &**key == "unclean.leader.election.enable");
    for (key, value) in differing {
        changes.push(Record::ConfigChange { resource: resource.clone(), key, value });
    }
    if let (true, ConfigResource::Topic(name)) = (may_elect, &resource) {
        reelect_topic(changes, name.as_str());
    }
    Ok(())
}

fn find(changes: &Changes<'_>, resource: &ResourceRef) -> Result<ConfigResource, Error> {
    match resource {
        ResourceRef::Topic(name) => {
            let name = TopicName::new(name)?;
            if changes.image().topic_by_name(name.as_str()).is_none() {
                return Err(Error::UnknownTopicOrPartition(format!("there is no topic '{name}'")));
            }
            Ok(ConfigResource::Topic(name))
        }
        ResourceRef::Broker(name) if name.is_empty() => Ok(ConfigResource::Cluster),
        ResourceRef::Broker(name) => {
            let id = name
                .parse()
                .map(BrokerId)
                .map_err(|_| Error::InvalidRequest(format!("'{name}' is not a broker id")))?;
            if changes.image().broker(id).is_none() {
                return Err(Error::BrokerIdNotRegistered(format!("there is no broker {id}")));
            }
            Ok(ConfigResource::Broker(id))
        }
    }
}

fn definition(resource: &ConfigResource, name: &str) -> Option<&'static ConfigDef> {
    match resource {
        ConfigResource::Topic(_) => topic_def(name),
        ConfigResource::Broker(_) | ConfigResource::Cluster => broker_def(name),
    }
}

fn validate(resource: &ConfigResource, name: &str, value: &str) -> Result<(), Error> {
    if value.len() > CONFIG_VALUE_LENGTH_MAX {
        return Err(Error::InvalidConfig(format!("the value of configuration {name} is too long")));
    }
    match resource {
        ConfigResource::Topic(_) => validate_topic(name, value)?,
        ConfigResource::Broker(_) => validate_broker(name, value, false)?,
        ConfigResource::Cluster => validate_broker(name, value, true)?,
    }
    Ok(())
}

/// The entry's new value; `None`: its default.
fn value(
    resource: &ConfigResource,
    name: &str,
    operation: &ConfigOperation,
    now: Option<&Arc<str>>,
) -> Result<Option<String>, Error> {
    let list = || -> Result<Vec<String>, Error> {
        let def = definition(resource, name)
            .filter(|def| def.kind == Kind::List)
            .ok_or_else(|| Error::InvalidConfig(format!("configuration {name} is not a list")))?;
        Ok(split_list(now.map_or(def.default, |value| value)).map(str::to_owned).collect())
    };
    Ok(match operation {
        ConfigOperation::Set(value) => Some(value.clone()),
        ConfigOperation::Delete => None,
        ConfigOperation::Append(more) => {
            let mut entries = list()?;
            for entry in split_list(more) {
                if !entries.iter().any(|known| known == entry) {
                    entries.push(entry.to_owned());
                }
            }
            Some(entries.join(","))
        }
        ConfigOperation::Subtract(less) => {
            let mut entries = list()?;
            entries.retain(|entry| !split_list(less).any(|gone| gone == entry));
            Some(entries.join(","))
        }
    })
}
