//! Topics, configurations and the cluster.

use semel_model::BrokerId;
use semel_proto::v1::{self, ErrorCode, alter_configs_request::change::Operation};

use crate::{
    Cluster, Error,
    error::{Failed, Safety},
};

/// The administrative calls. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Admin {
    cluster: Cluster,
}

/// What a configuration belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resource {
    /// A topic, by name.
    Topic(String),
    /// One broker.
    Broker(BrokerId),
    /// All brokers, where they have no entry of their own.
    ClusterDefault,
}

/// One change of one entry; the other entries stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigChange {
    /// `name` = `value`.
    Set(String, String),
    /// `name` goes back to its default.
    Delete(String),
    /// Adds `value` to the list `name`.
    Append(String, String),
    /// Takes `value` out of the list `name`.
    Subtract(String, String),
}

impl Admin {
    pub(crate) fn new(cluster: Cluster) -> Self {
        Self { cluster }
    }

    /// Creates a topic, or only checks whether that would work.
    ///
    /// Errors: as Kafka's `CreateTopics`; an answer that got lost is not asked for again, because the second answer
    /// would be `TOPIC_ALREADY_EXISTS`: see [`Error::is_uncertain`].
    pub async fn create_topic(
        &self,
        topic: v1::NewTopic,
        validate_only: bool,
    ) -> Result<v1::create_topics_response::Result, Error> {
        let name = topic.name.clone();
        let request = v1::CreateTopicsRequest { topics: vec![topic], validate_only };
        let (cluster, request) = (&self.cluster, &request);
        let safety = if validate_only { Safety::Repeatable } else { Safety::Once };
        let result = cluster
            .retry(&format!("create topic {name}"), safety, || async move {
                let address = cluster.any();
                let mut client = cluster.admin_client(&address)?;
                let response = cluster.settle(&address, client.create_topics(request.clone())).await?;
                let result = only(&address, response.results)?;
                match result.error.clone() {
                    Some(error) => Err(Failed::answered(&address, error)),
                    None => Ok(result),
                }
            })
            .await;
        self.cluster.forget_topic(&name);
        result
    }

    /// Deletes a topic with all its records. Errors: as Kafka's `DeleteTopics`, and see [`Error::is_uncertain`].
    pub async fn delete_topic(&self, name: &str) -> Result<(), Error> {
        let cluster = &self.cluster;
        let result = cluster
            .retry(&format!("delete topic {name}"), Safety::Once, || async move {
                let address = cluster.any();
                let mut client = cluster.admin_client(&address)?;
                let request = v1::DeleteTopicsRequest { names: vec![name.to_owned()] };
                let response = cluster.settle(&address, client.delete_topics(request)).await?;
                match only(&address, response.results)?.error {
                    Some(error) => Err(Failed::answered(&address, error)),
                    None => Ok(()),
                }
            })
            .await;
        self.cluster.forget_topic(name);
        result
    }

    /// Raises a topic's number of partitions to `request.count`.
    pub async fn create_partitions(&self, request: v1::CreatePartitionsRequest) -> Result<(), Error> {
        let (cluster, request) = (&self.cluster, &request);
        let safety = if request.validate_only { Safety::Repeatable } else { Safety::Once };
        let result = cluster
            .retry(&format!("add partitions to topic {}", request.topic), safety, || async move {
                let address = cluster.any();
                let mut client = cluster.admin_client(&address)?;
                cluster.settle(&address, client.create_partitions(request.clone())).await
            })
            .await;
        self.cluster.forget_topic(&request.topic);
        result.map(|_| ())
    }

    /// All topics, in the order of their names.
    pub async fn list_topics(&self) -> Result<Vec<v1::Topic>, Error> {
        let cluster = &self.cluster;
        let mut topics = cluster
            .retry("list topics", Safety::Repeatable, || async move {
                let address = cluster.any();
                let mut client = cluster.admin_client(&address)?;
                let request = v1::DescribeTopicsRequest::default();
                Ok(cluster.settle(&address, client.describe_topics(request)).await?.topics)
            })
            .await?;
        topics.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(topics)
    }

    /// One topic. Errors: [`ErrorCode::UnknownTopicOrPartition`].
    pub async fn describe_topic(&self, name: &str) -> Result<v1::Topic, Error> {
        let cluster = &self.cluster;
        cluster
            .retry(&format!("describe topic {name}"), Safety::Repeatable, || async move {
                let address = cluster.any();
                let mut client = cluster.admin_client(&address)?;
                let request = v1::DescribeTopicsRequest { names: vec![name.to_owned()] };
                let response = cluster.settle(&address, client.describe_topics(request)).await?;
                let Some(topic) = response.topics.into_iter().find(|topic| topic.name == name) else {
                    let text = format!("topic {name} does not exist");
                    let error = v1::Error::new(ErrorCode::UnknownTopicOrPartition, text);
                    return Err(Failed::answered(&address, error));
                };
                match topic.error.clone() {
                    Some(error) => Err(Failed::answered(&address, error)),
                    None => Ok(topic),
                }
            })
            .await
    }

    /// All entries of a resource, with where each value comes from, in the order of their names.
    pub async fn describe_configs(
        &self,
        resource: &Resource,
    ) -> Result<Vec<v1::describe_configs_response::Entry>, Error> {
        let cluster = &self.cluster;
        let mut entries = cluster
            .retry(&format!("describe the configuration of {resource}"), Safety::Repeatable, || async move {
                let address = cluster.any();
                let mut client = cluster.admin_client(&address)?;
                let request =
                    v1::DescribeConfigsRequest { r#type: resource.kind().into(), name: resource.name() };
                Ok(cluster.settle(&address, client.describe_configs(request)).await?.entries)
            })
            .await?;
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    /// Changes entries of a resource, all or none.
    pub async fn alter_configs(
        &self,
        resource: &Resource,
        changes: &[ConfigChange],
        validate_only: bool,
    ) -> Result<(), Error> {
        let cluster = &self.cluster;
        let request = v1::AlterConfigsRequest {
            r#type: resource.kind().into(),
            name: resource.name(),
            changes: changes.iter().map(ConfigChange::to_proto).collect(),
            validate_only,
        };
        let request = &request;
        // To set, delete, append or subtract a value twice leaves what once leaves.
        cluster
            .retry(&format!("change the configuration of {resource}"), Safety::Repeatable, || async move {
                let address = cluster.any();
                let mut client = cluster.admin_client(&address)?;
                cluster.settle(&address, client.alter_configs(request.clone())).await
            })
            .await
            .map(|_| ())
    }

    /// Brokers, controllers and totals.
    pub async fn describe_cluster(&self) -> Result<v1::DescribeClusterResponse, Error> {
        let cluster = &self.cluster;
        cluster
            .retry("describe the cluster", Safety::Repeatable, || async move {
                cluster.describe_at(&cluster.any()).await
            })
            .await
    }

    /// The log directories of one broker. Errors: [`ErrorCode::BrokerIdNotRegistered`] if there is no such broker.
    pub async fn describe_log_dirs(
        &self,
        broker: BrokerId,
    ) -> Result<Vec<v1::describe_log_dirs_response::Directory>, Error> {
        let cluster = &self.cluster;
        let doing = format!("describe the log directories of broker {broker}");
        let Some(view) = cluster.brokers().into_iter().find(|one| one.id == broker) else {
            let error =
                v1::Error::new(ErrorCode::BrokerIdNotRegistered, format!("there is no broker {broker}"));
            return Err(Failed::answered(&cluster.any(), error).into_error(&doing, 1, false));
        };
        let address = &view.address;
        cluster
            .retry(&doing, Safety::Repeatable, || async move {
                let mut client = cluster.admin_client(address)?;
                let request = v1::DescribeLogDirsRequest::default();
                Ok(cluster.settle(address, client.describe_log_dirs(request)).await?.directories)
            })
            .await
    }
}

/// The answer for the one item asked about.
fn only<T>(address: &str, results: Vec<T>) -> Result<T, Failed> {
    results.into_iter().next().ok_or_else(|| {
        let error = v1::Error::new(ErrorCode::UnknownServerError, "the broker answered without a result");
        Failed::answered(address, error)
    })
}

impl Resource {
    fn kind(&self) -> v1::ResourceType {
        match self {
            Self::Topic(_) => v1::ResourceType::Topic,
            Self::Broker(_) | Self::ClusterDefault => v1::ResourceType::Broker,
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Topic(name) => name.clone(),
            Self::Broker(id) => id.to_string(),
            Self::ClusterDefault => String::new(),
        }
    }
}

impl std::fmt::Display for Resource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Topic(name) => write!(f, "topic {name}"),
            Self::Broker(id) => write!(f, "broker {id}"),
            Self::ClusterDefault => f.write_str("all brokers"),
        }
    }
}

impl ConfigChange {
    fn to_proto(&self) -> v1::alter_configs_request::Change {
        let (operation, name, value) = match self {
            Self::Set(name, value) => (Operation::Set, name, value.clone()),
            Self::Delete(name) => (Operation::Delete, name, String::new()),
            Self::Append(name, value) => (Operation::Append, name, value.clone()),
            Self::Subtract(name, value) => (Operation::Subtract, name, value.clone()),
        };
        v1::alter_configs_request::Change { name: name.clone(), operation: operation.into(), value }
    }
}
