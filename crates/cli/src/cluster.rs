//! `semel cluster …`

use clap::Subcommand;
use semel_client::{Cluster, v1};
use semel_model::BrokerId;
use serde_json::{Value, json};

use crate::{
    Global, Output,
    failure::Failure,
    output::{Io, Table, count, many, size},
    topic::Health,
    watch,
};

/// What to look at in the cluster.
#[derive(Subcommand, Debug)]
pub enum ClusterCommand {
    /// The whole at a glance
    Status,
    /// Brokers and their addresses
    Brokers,
    /// Controllers and who leads them
    Quorum,
    /// Changes as they happen, until interrupted
    Watch {
        /// End after this many messages
        #[arg(short, long, value_name = "COUNT")]
        count: Option<u64>,
    },
    /// Log directories, their space and the replicas in them
    LogDirs {
        /// Only of these brokers
        #[arg(short, long, value_name = "ID", value_delimiter = ',')]
        broker: Vec<i32>,
        /// With every replica
        #[arg(short, long)]
        verbose: bool,
    },
}

pub(crate) async fn run(command: ClusterCommand, global: &Global, io: &mut Io) -> Result<(), Failure> {
    let cluster = global.connect().await?;
    let json = global.output == Output::Json;
    match command {
        ClusterCommand::Status => status(&cluster, json, io).await,
        ClusterCommand::Brokers => brokers(&cluster, json, io).await,
        ClusterCommand::Quorum => quorum(&cluster, json, io).await,
        ClusterCommand::Watch { count } => watch::run(&cluster, count, json, io).await,
        ClusterCommand::LogDirs { broker, verbose } => log_dirs(&cluster, &broker, verbose, json, io).await,
    }
}

async fn status(cluster: &Cluster, json: bool, io: &mut Io) -> Result<(), Failure> {
    let admin = cluster.admin();
    let described = admin.describe_cluster().await?;
    let topics = admin.list_topics().await?;
    let (mut leaderless, mut under_replicated) = (0, 0);
    for health in topics.iter().map(Health::of) {
        leaderless += health.leaderless;
        under_replicated += health.under_replicated;
    }
    let fenced = described.brokers.iter().filter(|broker| broker.fenced).count();
    let leader = described.controllers.iter().find(|controller| controller.leader);
    if json {
        return io.json(&json!({
            "cluster_id": described.cluster_id,
            "brokers": described.brokers.len(),
            "fenced_brokers": fenced,
            "controllers": described.controllers.len(),
            "controller_leader": leader.map(|controller| controller.id),
            "controller_epoch": described.controller_epoch,
            "metadata_index": described.metadata_index,
            "topics": described.topics,
            "partitions": described.partitions,
            "leaderless_partitions": leaderless,
            "under_replicated_partitions": under_replicated,
        }));
    }
    let fenced = if fenced == 0 { String::new() } else { format!(", {fenced} of them fenced") };
    let leader = match leader {
        Some(leader) => format!("{} leads in epoch {}", leader.id, described.controller_epoch),
        None => "none leads now".to_owned(),
    };
    io.print(&format!(
        "cluster      {}\nbrokers      {}{fenced}\ncontrollers  {}, {leader}\ntopics       {} with {}\nhealth       {}\nmetadata     index {}\n",
        described.cluster_id,
        described.brokers.len(),
        described.controllers.len(),
        count(described.topics.into()),
        many(described.partitions.into(), "partition"),
        Health { leaderless, under_replicated },
        count(i64::try_from(described.metadata_index).unwrap_or(i64::MAX)),
    ))
}

async fn brokers(cluster: &Cluster, json: bool, io: &mut Io) -> Result<(), Failure> {
    let mut brokers = cluster.admin().describe_cluster().await?.brokers;
    brokers.sort_by_key(|broker| broker.id);
    if json {
        return io.json(&brokers.iter().map(broker_json).collect());
    }
    let mut table = Table::new(&[">ID", "KAFKA", "GRPC", "RACK", "STATE"]);
    for broker in &brokers {
        table.row([
            broker.id.to_string(),
            format!("{}:{}", broker.kafka_host, broker.kafka_port),
            broker.grpc_address.clone(),
            if broker.rack.is_empty() { "-".to_owned() } else { broker.rack.clone() },
            if broker.fenced { "fenced" } else { "serving" }.to_owned(),
        ]);
    }
    io.print(&table.render())
}

pub(crate) fn broker_json(broker: &v1::describe_cluster_response::Broker) -> Value {
    json!({
        "id": broker.id,
        "kafka_host": broker.kafka_host,
        "kafka_port": broker.kafka_port,
        "grpc_address": broker.grpc_address,
        "rack": (!broker.rack.is_empty()).then_some(&broker.rack),
        "fenced": broker.fenced,
        "broker_epoch": broker.broker_epoch,
    })
}

async fn quorum(cluster: &Cluster, json: bool, io: &mut Io) -> Result<(), Failure> {
    let described = cluster.admin().describe_cluster().await?;
    let mut controllers = described.controllers;
    controllers.sort_by_key(|controller| controller.id);
    if json {
        let controller = |one: &v1::describe_cluster_response::Controller| json!({"id": one.id, "grpc_address": one.grpc_address, "leader": one.leader});
        return io.json(&json!({
            "controller_epoch": described.controller_epoch,
            "metadata_index": described.metadata_index,
            "controllers": controllers.iter().map(controller).collect::<Value>(),
        }));
    }
    let mut table = Table::new(&[">ID", "GRPC", "ROLE"]);
    for one in &controllers {
        let role = if one.leader { "leader" } else { "follower" };
        table.row([one.id.to_string(), one.grpc_address.clone(), role.to_owned()]);
    }
    io.print(&table.render())?;
    let index = i64::try_from(described.metadata_index).unwrap_or(i64::MAX);
    io.print(&format!("epoch {}, metadata index {}\n", described.controller_epoch, count(index)))
}

async fn log_dirs(
    cluster: &Cluster,
    named: &[i32],
    verbose: bool,
    json: bool,
    io: &mut Io,
) -> Result<(), Failure> {
    let admin = cluster.admin();
    let ids: Vec<BrokerId> = if named.is_empty() {
        admin.describe_cluster().await?;
        cluster.brokers().iter().filter(|broker| !broker.fenced).map(|broker| broker.id).collect()
    } else {
        named.iter().copied().map(BrokerId).collect()
    };
    let mut rows = Vec::new();
    let mut table = Table::new(&[">BROKER", "DIRECTORY", ">REPLICAS", ">SIZE", ">FREE", ">TOTAL", "STATE"]);
    let mut replicas = Table::new(&[">BROKER", "PARTITION", ">SIZE", ">START", ">END", "DIRECTORY"]);
    for id in ids {
        for directory in admin.describe_log_dirs(id).await? {
            let bytes = directory.replicas.iter().map(|one| one.size_bytes).fold(0, i64::saturating_add);
            let state = match &directory.error {
                None => "ok".to_owned(),
                Some(error) => error.to_string(),
            };
            table.row([
                id.to_string(),
                directory.path.clone(),
                directory.replicas.len().to_string(),
                size(bytes),
                size(directory.usable_bytes),
                size(directory.total_bytes),
                state,
            ]);
            for one in &directory.replicas {
                replicas.row([
                    id.to_string(),
                    format!("{}-{}", one.topic, one.partition),
                    size(one.size_bytes),
                    one.log_start_offset.to_string(),
                    one.log_end_offset.to_string(),
                    directory.path.clone(),
                ]);
            }
            rows.push(directory_json(id, &directory));
        }
    }
    if json {
        return io.json(&Value::Array(rows));
    }
    io.print(&table.render())?;
    if verbose {
        io.print("\n")?;
        io.print(&replicas.render())?;
    }
    Ok(())
}

fn directory_json(broker: BrokerId, directory: &v1::describe_log_dirs_response::Directory) -> Value {
    let replica = |one: &v1::describe_log_dirs_response::Replica| {
        json!({
            "topic": one.topic,
            "partition": one.partition,
            "size_bytes": one.size_bytes,
            "log_start_offset": one.log_start_offset,
            "log_end_offset": one.log_end_offset,
        })
    };
    json!({
        "broker": broker.get(),
        "path": directory.path,
        "total_bytes": directory.total_bytes,
        "usable_bytes": directory.usable_bytes,
        "error": directory.error.as_ref().map(|error| json!({"name": error.name, "message": error.message})),
        "replicas": directory.replicas.iter().map(replica).collect::<Value>(),
    })
}
