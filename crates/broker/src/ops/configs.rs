//! Which configuration counts for a topic or broker, as a client may ask.

use semel_kafka_wire::ErrorCode;
use semel_metadata::{
    Configs,
    config::{Change, Effective, Resolved, Source, resolve_broker, resolve_topic},
};
use semel_model::BrokerId;
use semel_proto::v1::describe_configs_response::Source as GrpcSource;

use crate::{failure::Failure, node::Node};

/// One entry for a client.
pub(crate) struct Entry {
    pub(crate) resolved: Resolved,
    pub(crate) read_only: bool,
}

impl Entry {
    fn all(effective: &Effective) -> Vec<Self> {
        effective
            .iter()
            .map(|resolved| Self {
                read_only: matches!(resolved.def.change, Change::ReadOnly | Change::DefaultOnly),
                resolved: resolved.clone(),
            })
            .collect()
    }

    pub(crate) fn grpc_source(&self) -> GrpcSource {
        match self.resolved.source {
            Source::Topic => GrpcSource::Topic,
            Source::DynamicBroker => GrpcSource::Broker,
            Source::DynamicDefaultBroker => GrpcSource::ClusterDefault,
            Source::StaticBroker => GrpcSource::Static,
            Source::Default => GrpcSource::Default,
        }
    }
}

impl Node {
    /// The entries of a topic with these settings of its own, whether it exists or is about to.
    pub(crate) fn entries_with(&self, own: &Configs) -> Vec<Entry> {
        let image = self.metadata.image();
        Entry::all(&resolve_topic(&image, self.id, &self.statics, own))
    }

    pub(crate) fn topic_config_entries(&self, name: &str) -> Result<Vec<Entry>, Failure> {
        let image = self.metadata.image();
        let topic = image.topic_by_name(name).ok_or_else(|| Failure::unknown_topic(name))?;
        Ok(self.entries_with(&topic.configs))
    }

    /// `name`: this broker's id, or empty for what was set for all brokers.
    pub(crate) fn broker_config_entries(&self, name: &str) -> Result<Vec<Entry>, Failure> {
        let image = self.metadata.image();
        if name.is_empty() {
            // Kafka lists only what was set here, without the built-in defaults.
            let mut entries = Entry::all(&semel_metadata::config::resolve::resolve_cluster_default(&image));
            entries.retain(|entry| entry.resolved.source == Source::DynamicDefaultBroker);
            return Ok(entries);
        }
        let id = name.parse().map(BrokerId).map_err(|_| {
            Failure::new(ErrorCode::InvalidRequest, format!("broker id {name:?} is not a whole number"))
        })?;
        if id != self.id {
            return Err(Failure::new(
                ErrorCode::InvalidRequest,
                format!(
                    "broker {id}'s configuration must be asked of broker {id}; this is broker {}",
                    self.id
                ),
            ));
        }
        Ok(Entry::all(&resolve_broker(&image, self.id, &self.statics)))
    }
}
