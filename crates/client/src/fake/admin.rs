//! The fake brokers' admin and cluster services.

use semel_proto::v1::{
    self, ErrorCode, ResourceType, admin_service_server::AdminService,
    alter_configs_request::change::Operation, cluster_service_server::ClusterService,
    describe_configs_response::Source,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::{FakeTopic, Node, World};

impl World {
    fn describe_brokers(&self) -> Vec<v1::describe_cluster_response::Broker> {
        let describe = |(id, broker): (usize, &super::FakeBroker)| v1::describe_cluster_response::Broker {
            id: id as i32,
            kafka_host: "127.0.0.1".to_owned(),
            kafka_port: 9092 + id as i32,
            grpc_address: broker.address.clone(),
            rack: String::new(),
            fenced: broker.down,
            broker_epoch: 10 + id as i64,
        };
        self.brokers.iter().enumerate().map(describe).collect()
    }
}

fn describe(name: &str, topic: &FakeTopic) -> v1::Topic {
    let partitions = topic.partitions.iter().enumerate().map(|(at, partition)| v1::Partition {
        partition: at as i32,
        leader: partition.leader,
        leader_epoch: partition.leader_epoch,
        replicas: vec![partition.leader],
        isr: vec![partition.leader],
        offline_replicas: Vec::new(),
    });
    v1::Topic {
        name: name.to_owned(),
        topic_id: topic.id.clone(),
        internal: false,
        partitions: partitions.collect(),
        error: None,
    }
}

fn unknown(name: &str) -> v1::Error {
    v1::Error::new(ErrorCode::UnknownTopicOrPartition, format!("topic {name} does not exist"))
}

#[tonic::async_trait]
impl AdminService for Node {
    async fn create_topics(
        &self,
        request: Request<v1::CreateTopicsRequest>,
    ) -> Result<Response<v1::CreateTopicsResponse>, Status> {
        let request = request.into_inner();
        self.call(|world| {
            let results = request.topics.into_iter().map(|new| {
                let mut result = v1::create_topics_response::Result {
                    name: new.name.clone(),
                    topic_id: String::new(),
                    partitions: new.partitions.max(1),
                    replication_factor: new.replication_factor.max(1),
                    error: None,
                };
                if world.topics.contains_key(&new.name) {
                    let text = format!("topic {} already exists", new.name);
                    result.error = Some(v1::Error::new(ErrorCode::TopicAlreadyExists, text));
                } else if !request.validate_only {
                    result.topic_id = world.create_topic(&new.name, new.partitions.max(1) as usize);
                    if let Some(topic) = world.topics.get_mut(&new.name) {
                        topic.configs = new.configs.into_iter().collect();
                    }
                }
                result
            });
            Ok(v1::CreateTopicsResponse { results: results.collect() })
        })
    }

    async fn delete_topics(
        &self,
        request: Request<v1::DeleteTopicsRequest>,
    ) -> Result<Response<v1::DeleteTopicsResponse>, Status> {
        let request = request.into_inner();
        self.call(|world| {
            let results = request.names.into_iter().map(|name| {
                let error = world.topics.remove(&name).is_none().then(|| unknown(&name));
                v1::delete_topics_response::Result { name, error }
            });
            Ok(v1::DeleteTopicsResponse { results: results.collect() })
        })
    }

    async fn create_partitions(
        &self,
        request: Request<v1::CreatePartitionsRequest>,
    ) -> Result<Response<v1::CreatePartitionsResponse>, Status> {
        let request = request.into_inner();
        self.call(|world| {
            let brokers = world.brokers.len();
            let topic = world.topics.get_mut(&request.topic).ok_or_else(|| unknown(&request.topic))?;
            let (have, want) = (topic.partitions.len(), request.count as usize);
            if want <= have {
                let text = format!("topic {} has {have} partitions already", request.topic);
                return Err(v1::Error::new(ErrorCode::InvalidPartitions, text));
            }
            topic.partitions.extend((have..want).map(|at| super::FakePartition {
                leader: (at % brokers) as i32,
                ..super::FakePartition::default()
            }));
            Ok(v1::CreatePartitionsResponse {})
        })
    }

    async fn describe_topics(
        &self,
        request: Request<v1::DescribeTopicsRequest>,
    ) -> Result<Response<v1::DescribeTopicsResponse>, Status> {
        let names = request.into_inner().names;
        self.call(|world| {
            let topics = if names.is_empty() {
                world.topics.iter().map(|(name, topic)| describe(name, topic)).collect()
            } else {
                let one = |name: &String| match world.topics.get(name) {
                    Some(topic) => describe(name, topic),
                    None => {
                        v1::Topic { name: name.clone(), error: Some(unknown(name)), ..v1::Topic::default() }
                    }
                };
                names.iter().map(one).collect()
            };
            Ok(v1::DescribeTopicsResponse { topics })
        })
    }

    async fn describe_configs(
        &self,
        request: Request<v1::DescribeConfigsRequest>,
    ) -> Result<Response<v1::DescribeConfigsResponse>, Status> {
        let request = request.into_inner();
        self.call(|world| {
            let (own, source) = if request.r#type == ResourceType::Topic as i32 {
                let topic = world.topics.get(&request.name).ok_or_else(|| unknown(&request.name))?;
                (topic.configs.clone(), Source::Topic)
            } else {
                (world.broker_configs.get(&request.name).cloned().unwrap_or_default(), Source::Broker)
            };
            let entry = |name: &str, value: &str, source: Source| v1::describe_configs_response::Entry {
                name: name.to_owned(),
                value: value.to_owned(),
                source: source.into(),
                read_only: false,
                documentation: format!("What {name} does."),
            };
            let mut entries: Vec<_> = own.iter().map(|(name, value)| entry(name, value, source)).collect();
            if !own.contains_key("retention.ms") {
                entries.push(entry("retention.ms", "604800000", Source::Default));
            }
            Ok(v1::DescribeConfigsResponse { entries })
        })
    }

    async fn alter_configs(
        &self,
        request: Request<v1::AlterConfigsRequest>,
    ) -> Result<Response<v1::AlterConfigsResponse>, Status> {
        let request = request.into_inner();
        self.call(|world| {
            let configs = if request.r#type == ResourceType::Topic as i32 {
                &mut world.topics.get_mut(&request.name).ok_or_else(|| unknown(&request.name))?.configs
            } else {
                world.broker_configs.entry(request.name.clone()).or_default()
            };
            for change in request.changes {
                match Operation::try_from(change.operation) {
                    Ok(Operation::Set) => {
                        configs.insert(change.name, change.value);
                    }
                    Ok(Operation::Delete) => {
                        configs.remove(&change.name);
                    }
                    _ => {
                        return Err(v1::Error::new(
                            ErrorCode::InvalidConfig,
                            "the fake sets and deletes only",
                        ));
                    }
                }
            }
            Ok(v1::AlterConfigsResponse {})
        })
    }

    async fn describe_cluster(
        &self,
        _: Request<v1::DescribeClusterRequest>,
    ) -> Result<Response<v1::DescribeClusterResponse>, Status> {
        // Not through `call`: clients ask this by the way, and a test's fault is for the call it makes.
        self.up()?;
        let world = self.shared.lock();
        let partitions: usize = world.topics.values().map(|topic| topic.partitions.len()).sum();
        Ok(Response::new(v1::DescribeClusterResponse {
            cluster_id: "AAAAAAAAAAAAAAAAAAAAKg".to_owned(),
            brokers: world.describe_brokers(),
            controllers: vec![v1::describe_cluster_response::Controller {
                id: 1,
                grpc_address: "127.0.0.1:9191".to_owned(),
                leader: true,
            }],
            controller_epoch: 3,
            metadata_index: 42,
            topics: world.topics.len() as i32,
            partitions: partitions as i32,
        }))
    }

    async fn describe_log_dirs(
        &self,
        _: Request<v1::DescribeLogDirsRequest>,
    ) -> Result<Response<v1::DescribeLogDirsResponse>, Status> {
        let id = self.id;
        self.call(|world| {
            let mut replicas = Vec::new();
            for (name, topic) in &world.topics {
                for (at, partition) in topic.partitions.iter().enumerate().filter(|(_, one)| one.leader == id)
                {
                    replicas.push(v1::describe_log_dirs_response::Replica {
                        topic: name.clone(),
                        partition: at as i32,
                        size_bytes: 100 * partition.records.len() as i64,
                        log_start_offset: partition.log_start,
                        log_end_offset: partition.end(),
                    });
                }
            }
            let directory = v1::describe_log_dirs_response::Directory {
                path: format!("/data/{id}"),
                replicas,
                total_bytes: 10 << 30,
                usable_bytes: 4 << 30,
                error: None,
            };
            Ok(v1::DescribeLogDirsResponse { directories: vec![directory] })
        })
    }
}

#[tonic::async_trait]
impl ClusterService for Node {
    type WatchClusterStream = ReceiverStream<Result<v1::WatchClusterResponse, Status>>;

    async fn watch_cluster(
        &self,
        _: Request<v1::WatchClusterRequest>,
    ) -> Result<Response<Self::WatchClusterStream>, Status> {
        self.up()?;
        let (to, answers) = mpsc::channel(4);
        let node = self.clone();
        let mut changed = self.shared.changed.subscribe();
        tokio::spawn(async move {
            loop {
                let index = *changed.borrow_and_update();
                if node.up().is_err() {
                    return;
                }
                let picture = {
                    let world = node.shared.lock();
                    v1::WatchClusterResponse {
                        index: index + 1,
                        controller_epoch: 3,
                        full: true,
                        brokers: world.describe_brokers(),
                        topics: world.topics.iter().map(|(name, topic)| describe(name, topic)).collect(),
                        deleted_topic_ids: Vec::new(),
                        removed_brokers: Vec::new(),
                    }
                };
                if to.send(Ok(picture)).await.is_err() || changed.changed().await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(answers)))
    }
}
