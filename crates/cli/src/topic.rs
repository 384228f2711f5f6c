//! `semel topic …`

use clap::{Args, Subcommand};
use semel_client::{At, Cluster, ConfigChange, Isolation, OffsetQuery, Resource, v1};
use semel_model::{Offset, PartitionIndex};
use serde_json::{Value, json};

use crate::{
    Global, Output,
    failure::Failure,
    output::{Io, Table, count, list, many, size, span},
    position::Position,
    time,
};

/// What to do with topics.
#[derive(Subcommand, Debug)]
pub enum TopicCommand {
    /// Create topics
    Create(CreateArgs),
    /// List topics
    #[command(visible_alias = "ls")]
    List {
        /// Also Semel's own topics
        #[arg(long)]
        internal: bool,
    },
    /// Show partitions, leaders and replicas
    Describe {
        /// The topics; all if none is named
        #[arg(value_name = "TOPIC")]
        topics: Vec<String>,
    },
    /// Delete topics with all their records
    #[command(visible_alias = "rm")]
    Delete {
        /// The topics
        #[arg(value_name = "TOPIC", required = true)]
        topics: Vec<String>,
        /// A topic that isn't there is no error
        #[arg(long)]
        if_exists: bool,
    },
    /// Change a topic's configuration
    Alter(AlterArgs),
    /// Raise the number of partitions
    AddPartitions {
        /// The topic
        topic: String,
        /// How many it shall have altogether
        #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(i32).range(1..))]
        total: i32,
        /// Brokers of a new partition, the preferred leader first: 3=1,2
        #[arg(long, value_name = "PARTITION=BROKER,…", value_parser = assignment)]
        assign: Vec<Assignment>,
        /// Only check whether it would work
        #[arg(long)]
        validate_only: bool,
    },
    /// Show a topic's configuration and where each value comes from
    Configs {
        /// The topic
        topic: String,
        /// Only entries that aren't at their default
        #[arg(long)]
        changed: bool,
        /// With what each entry does
        #[arg(short, long)]
        verbose: bool,
    },
    /// Show the first and last offsets, or look offsets up
    Offsets {
        /// The topic
        topic: String,
        /// Only these partitions
        #[arg(short, long, value_name = "N", value_delimiter = ',')]
        partition: Vec<i32>,
        /// Look this up instead: beginning, end, -N, @TIME
        #[arg(long, value_name = "POSITION", allow_hyphen_values = true)]
        at: Option<Position>,
        /// What the end is: the high watermark, or the last stable offset
        #[arg(long, value_enum, default_value_t)]
        isolation: IsolationArg,
    },
    /// Drop the oldest records of partitions
    DeleteRecords {
        /// The topic
        topic: String,
        /// Of these partitions
        #[arg(
            short,
            long,
            value_name = "N",
            value_delimiter = ',',
            required_unless_present = "all_partitions"
        )]
        partition: Vec<i32>,
        /// Of all partitions
        #[arg(long, conflicts_with = "partition")]
        all_partitions: bool,
        /// Up to here, exclusive: an offset, end, -N to keep the last N, @TIME
        #[arg(long, value_name = "POSITION", allow_hyphen_values = true)]
        before: Position,
    },
}

/// What `create` takes.
#[derive(Args, Debug)]
pub struct CreateArgs {
    /// The new topics' names
    #[arg(value_name = "TOPIC", required = true)]
    topics: Vec<String>,
    /// How many partitions; the cluster's default if not given
    #[arg(short, long, value_name = "COUNT", value_parser = clap::value_parser!(i32).range(1..))]
    partitions: Option<i32>,
    /// How many replicas of each; the cluster's default if not given
    #[arg(short, long, value_name = "COUNT", value_parser = clap::value_parser!(i32).range(1..))]
    replication_factor: Option<i32>,
    /// A configuration entry, e.g. retention.ms=3600000
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    set: Vec<(String, String)>,
    /// Brokers of a partition, the preferred leader first: 0=1,2 (then for each partition)
    #[arg(
        long,
        value_name = "PARTITION=BROKER,…",
        value_parser = assignment,
        conflicts_with_all = ["partitions", "replication_factor"]
    )]
    assign: Vec<Assignment>,
    /// A topic that is there already is no error
    #[arg(long)]
    if_not_exists: bool,
    /// Only check whether it would work
    #[arg(long)]
    validate_only: bool,
}

/// What `alter` takes.
#[derive(Args, Debug)]
pub struct AlterArgs {
    /// The topic
    topic: String,
    /// Give an entry a value
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair, required_unless_present_any = ["unset", "append", "subtract"])]
    set: Vec<(String, String)>,
    /// Let an entry go back to its default
    #[arg(long, value_name = "NAME")]
    unset: Vec<String>,
    /// Add a value to an entry that is a list
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    append: Vec<(String, String)>,
    /// Take a value out of an entry that is a list
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    subtract: Vec<(String, String)>,
    /// Only check whether it would work
    #[arg(long)]
    validate_only: bool,
}

/// Which records count.
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IsolationArg {
    /// Only decided ones: none of open or aborted transactions.
    Committed,
    /// All that are replicated.
    #[default]
    Uncommitted,
}

impl From<IsolationArg> for Isolation {
    fn from(arg: IsolationArg) -> Self {
        match arg {
            IsolationArg::Committed => Self::ReadCommitted,
            IsolationArg::Uncommitted => Self::ReadUncommitted,
        }
    }
}

/// A partition's replicas.
#[derive(Clone, Debug)]
pub struct Assignment(v1::ReplicaAssignment);

pub(crate) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("NAME=VALUE is needed".to_owned()),
    }
}

fn assignment(text: &str) -> Result<Assignment, String> {
    let wrong = || "PARTITION=BROKER,BROKER is needed, e.g. 0=1,2".to_owned();
    let (partition, brokers) = text.split_once('=').ok_or_else(wrong)?;
    let partition = partition.parse().ok().filter(|&partition| partition >= 0).ok_or_else(wrong)?;
    let brokers: Option<Vec<i32>> = brokers.split(',').map(|one| one.parse().ok()).collect();
    Ok(Assignment(v1::ReplicaAssignment { partition, brokers: brokers.ok_or_else(wrong)? }))
}

impl TopicCommand {
    pub(crate) fn topic(&self) -> Option<&str> {
        match self {
            Self::Create(CreateArgs { topics, .. })
            | Self::Delete { topics, .. }
            | Self::Describe { topics } => match topics.as_slice() {
                [topic] => Some(topic),
                _ => None,
            },
            Self::List { .. } => None,
            Self::Alter(AlterArgs { topic, .. })
            | Self::AddPartitions { topic, .. }
            | Self::Configs { topic, .. }
            | Self::Offsets { topic, .. }
            | Self::DeleteRecords { topic, .. } => Some(topic),
        }
    }
}

pub(crate) async fn run(command: TopicCommand, global: &Global, io: &mut Io) -> Result<(), Failure> {
    let cluster = global.connect().await?;
    let json = global.output == Output::Json;
    match command {
        TopicCommand::Create(args) => create(&cluster, args, json, io).await,
        TopicCommand::List { internal } => print_topics(&cluster, internal, json, io).await,
        TopicCommand::Describe { topics } => describe(&cluster, &topics, json, io).await,
        TopicCommand::Delete { topics, if_exists } => delete(&cluster, &topics, if_exists, json, io).await,
        TopicCommand::Alter(args) => alter(&cluster, args, json, io).await,
        TopicCommand::AddPartitions { topic, total, assign, validate_only } => {
            let request = v1::CreatePartitionsRequest {
                topic: topic.clone(),
                count: total,
                assignments: assign.into_iter().map(|one| one.0).collect(),
                validate_only,
            };
            cluster.admin().create_partitions(request).await?;
            if json {
                return io
                    .json(&json!({"topic": topic, "partitions": total, "validated_only": validate_only}));
            }
            let verb = if validate_only { "could have" } else { "has" };
            io.print(&format!("topic {topic} {verb} {}\n", many(i64::from(total), "partition")))
        }
        TopicCommand::Configs { topic, changed, verbose } => {
            configs(&cluster, topic, changed, verbose, json, io).await
        }
        TopicCommand::Offsets { topic, partition, at, isolation } => {
            let partitions = chosen(&cluster, &topic, &partition).await?;
            match at {
                None => offsets(&cluster, &topic, &partitions, isolation.into(), json, io).await,
                Some(at) => look_up(&cluster, &topic, &partitions, at, isolation.into(), json, io).await,
            }
        }
        TopicCommand::DeleteRecords { topic, partition, all_partitions: _, before } => {
            // No partition is named exactly if all are meant.
            let partitions = chosen(&cluster, &topic, &partition).await?;
            delete_records(&cluster, &topic, &partitions, before, json, io).await
        }
    }
}

/// The named partitions, or all.
pub(crate) async fn chosen(
    cluster: &Cluster,
    topic: &str,
    named: &[i32],
) -> Result<Vec<PartitionIndex>, Failure> {
    let view = cluster.topic(topic).await?;
    let count = view.partitions.len();
    if named.is_empty() {
        return Ok((0..count).filter_map(|at| i32::try_from(at).ok()).map(PartitionIndex).collect());
    }
    let mut partitions = named.to_vec();
    partitions.sort_unstable();
    partitions.dedup();
    if let Some(&partition) =
        partitions.iter().find(|&&one| usize::try_from(one).map_or(true, |at| at >= count))
    {
        let topic = topic.to_owned();
        return Err(semel_client::Error::NoSuchPartition { topic, partition, count }.into());
    }
    Ok(partitions.into_iter().map(PartitionIndex).collect())
}

async fn create(cluster: &Cluster, args: CreateArgs, json: bool, io: &mut Io) -> Result<(), Failure> {
    let mut made = Vec::new();
    for name in &args.topics {
        let new = v1::NewTopic {
            name: name.clone(),
            partitions: args.partitions.unwrap_or(0),
            replication_factor: args.replication_factor.unwrap_or(0),
            configs: args.set.iter().cloned().collect(),
            assignments: args.assign.iter().map(|one| one.0.clone()).collect(),
        };
        match cluster.admin().create_topic(new, args.validate_only).await {
            Ok(result) => {
                if !json {
                    let verb = if args.validate_only { "could be created" } else { "created" };
                    io.print(&format!(
                        "topic {name} {verb}: {}, {} of each\n",
                        many(result.partitions.into(), "partition"),
                        many(result.replication_factor.into(), "replica")
                    ))?;
                }
                made.push(json!({
                    "name": name,
                    "topic_id": result.topic_id,
                    "partitions": result.partitions,
                    "replication_factor": result.replication_factor,
                    "created": !args.validate_only,
                }));
            }
            Err(error) if args.if_not_exists && error.code() == Some(v1::ErrorCode::TopicAlreadyExists) => {
                if !json {
                    io.print(&format!("topic {name} exists already\n"))?;
                }
                made.push(json!({"name": name, "created": false}));
            }
            Err(error) => return Err(error.into()),
        }
    }
    if json { io.json(&Value::Array(made)) } else { Ok(()) }
}

async fn print_topics(cluster: &Cluster, internal: bool, json: bool, io: &mut Io) -> Result<(), Failure> {
    let topics = cluster.admin().list_topics().await?;
    let topics: Vec<&v1::Topic> = topics.iter().filter(|topic| internal || !topic.internal).collect();
    if json {
        return io.json(&topics.iter().copied().map(topic_json).collect());
    }
    if topics.is_empty() {
        io.tell("no topics; make one with: semel topic create NAME\n");
        return Ok(());
    }
    let mut table = Table::new(&["TOPIC", ">PARTITIONS", ">REPLICAS", "HEALTH"]);
    for topic in topics {
        let replicas = topic.partitions.iter().map(|one| one.replicas.len()).max().unwrap_or(0);
        table.row([
            topic.name.clone(),
            topic.partitions.len().to_string(),
            replicas.to_string(),
            Health::of(topic).to_string(),
        ]);
    }
    io.print(&table.render())
}

/// How many partitions of a topic are not as they should be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Health {
    pub(crate) leaderless: usize,
    pub(crate) under_replicated: usize,
}

impl Health {
    pub(crate) fn of(topic: &v1::Topic) -> Self {
        let leaderless = topic.partitions.iter().filter(|one| one.leader < 0).count();
        let under_replicated =
            topic.partitions.iter().filter(|one| one.isr.len() < one.replicas.len()).count();
        Self { leaderless, under_replicated }
    }
}

impl std::fmt::Display for Health {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.leaderless, self.under_replicated) {
            (0, 0) => f.write_str("ok"),
            (0, under) => write!(f, "{under} under-replicated"),
            (leaderless, 0) => write!(f, "{leaderless} without a leader"),
            (leaderless, under) => write!(f, "{leaderless} without a leader, {under} under-replicated"),
        }
    }
}

pub(crate) fn topic_json(topic: &v1::Topic) -> Value {
    let partition = |one: &v1::Partition| {
        json!({
            "partition": one.partition,
            "leader": (one.leader >= 0).then_some(one.leader),
            "leader_epoch": one.leader_epoch,
            "replicas": one.replicas,
            "isr": one.isr,
            "offline_replicas": one.offline_replicas,
        })
    };
    json!({
        "name": topic.name,
        "topic_id": topic.topic_id,
        "internal": topic.internal,
        "partitions": topic.partitions.iter().map(partition).collect::<Value>(),
    })
}

async fn describe(cluster: &Cluster, names: &[String], json: bool, io: &mut Io) -> Result<(), Failure> {
    let admin = cluster.admin();
    let topics = if names.is_empty() {
        admin.list_topics().await?
    } else {
        let mut topics = Vec::new();
        for name in names {
            topics.push(admin.describe_topic(name).await?);
        }
        topics
    };
    if json {
        return io.json(&topics.iter().map(topic_json).collect());
    }
    for (at, topic) in topics.iter().enumerate() {
        if at > 0 {
            io.print("\n")?;
        }
        io.print(&format!(
            "topic {}  id {}  {}  {}\n",
            topic.name,
            topic.topic_id,
            many(topic.partitions.len() as i64, "partition"),
            Health::of(topic)
        ))?;
        let mut table = Table::new(&[">PARTITION", ">LEADER", ">EPOCH", "REPLICAS", "ISR", "OFFLINE"]);
        for one in &topic.partitions {
            table.row([
                one.partition.to_string(),
                if one.leader < 0 { "-".to_owned() } else { one.leader.to_string() },
                one.leader_epoch.to_string(),
                list(&one.replicas),
                list(&one.isr),
                list(&one.offline_replicas),
            ]);
        }
        io.print(&table.render())?;
    }
    Ok(())
}

async fn delete(
    cluster: &Cluster,
    names: &[String],
    if_exists: bool,
    json: bool,
    io: &mut Io,
) -> Result<(), Failure> {
    let mut gone = Vec::new();
    for name in names {
        let deleted = match cluster.admin().delete_topic(name).await {
            Ok(()) => true,
            Err(error) if if_exists && error.code() == Some(v1::ErrorCode::UnknownTopicOrPartition) => false,
            Err(error) => return Err(error.into()),
        };
        if !json {
            io.print(&format!("topic {name} {}\n", if deleted { "deleted" } else { "was not there" }))?;
        }
        gone.push(json!({"name": name, "deleted": deleted}));
    }
    if json { io.json(&Value::Array(gone)) } else { Ok(()) }
}

async fn alter(cluster: &Cluster, args: AlterArgs, json: bool, io: &mut Io) -> Result<(), Failure> {
    let changes: Vec<ConfigChange> =
        (args.set.into_iter().map(|(name, value)| ConfigChange::Set(name, value)))
            .chain(args.unset.into_iter().map(ConfigChange::Delete))
            .chain(args.append.into_iter().map(|(name, value)| ConfigChange::Append(name, value)))
            .chain(args.subtract.into_iter().map(|(name, value)| ConfigChange::Subtract(name, value)))
            .collect();
    let resource = Resource::Topic(args.topic.clone());
    cluster.admin().alter_configs(&resource, &changes, args.validate_only).await?;
    if json {
        return io.json(&json!({
            "topic": args.topic,
            "changes": changes.len(),
            "validated_only": args.validate_only,
        }));
    }
    let verb = if args.validate_only { "could be changed" } else { "changed" };
    io.print(&format!(
        "topic {}: {} {verb}\n",
        args.topic,
        many(changes.len() as i64, "entry").replace("entrys", "entries")
    ))
}

async fn configs(
    cluster: &Cluster,
    topic: String,
    changed: bool,
    verbose: bool,
    json: bool,
    io: &mut Io,
) -> Result<(), Failure> {
    use v1::describe_configs_response::Source;
    let source = |entry: &v1::describe_configs_response::Entry| match Source::try_from(entry.source) {
        Ok(Source::Topic) => "topic",
        Ok(Source::Broker) => "broker",
        Ok(Source::ClusterDefault) => "cluster",
        Ok(Source::Static) => "file",
        Ok(Source::Default) => "default",
        Ok(Source::Unspecified) | Err(_) => "unknown",
    };
    let mut entries = cluster.admin().describe_configs(&Resource::Topic(topic)).await?;
    entries.retain(|entry| !changed || source(entry) != "default");
    if json {
        let entry = |entry: &v1::describe_configs_response::Entry| {
            json!({
                "name": entry.name,
                "value": entry.value,
                "source": source(entry),
                "read_only": entry.read_only,
                "documentation": entry.documentation,
            })
        };
        return io.json(&entries.iter().map(entry).collect());
    }
    let mut table = Table::new(if verbose {
        &["NAME", "VALUE", "SOURCE", "WHAT IT DOES"]
    } else {
        &["NAME", "VALUE", "SOURCE"]
    });
    for entry in &entries {
        table.row([
            entry.name.clone(),
            with_unit(&entry.name, &entry.value),
            source(entry).to_owned(),
            entry.documentation.clone(),
        ]);
    }
    io.print(&table.render())
}

/// A value with what it means, if its name has a unit: `604800000 (7 d)`.
fn with_unit(name: &str, value: &str) -> String {
    match value.parse::<i64>() {
        Ok(-1) if name.ends_with(".ms") || name.ends_with(".bytes") => "-1 (no limit)".to_owned(),
        Ok(i64::MAX) => format!("{value} (no limit)"),
        Ok(ms) if name.ends_with(".ms") && ms >= 1000 => format!("{value} ({})", span(ms)),
        Ok(bytes) if name.ends_with(".bytes") && bytes >= 1024 => format!("{value} ({})", size(bytes)),
        _ => value.to_owned(),
    }
}

async fn offsets(
    cluster: &Cluster,
    topic: &str,
    partitions: &[PartitionIndex],
    isolation: Isolation,
    json: bool,
    io: &mut Io,
) -> Result<(), Failure> {
    let mut rows = Vec::new();
    let mut table = Table::new(&[">PARTITION", ">START", ">END", ">RECORDS", "LATEST TIME"]);
    let mut total = 0_i64;
    for &partition in partitions {
        let find = async |at: At| {
            let query = OffsetQuery { topic: topic.to_owned(), partition, at };
            cluster.find_offset(&query, isolation).await
        };
        let start = find(At::Earliest).await?.offset.unwrap_or(Offset::ZERO);
        let end = find(At::Latest).await?.offset.unwrap_or(start);
        let latest = find(At::MaxTimestamp).await?;
        total = total.saturating_add(end.since(start));
        table.row([
            partition.to_string(),
            start.to_string(),
            end.to_string(),
            end.since(start).to_string(),
            latest.timestamp.map_or_else(|| "-".to_owned(), time::format),
        ]);
        rows.push(json!({
            "partition": partition.get(),
            "start": start.get(),
            "end": end.get(),
            "latest_timestamp": latest.timestamp.map(|time| time.get()),
        }));
    }
    if json {
        return io.json(&Value::Array(rows));
    }
    io.print(&table.render())?;
    if partitions.len() > 1 {
        io.print(&format!("{} altogether\n", many(total, "offset")))?;
    }
    Ok(())
}

async fn look_up(
    cluster: &Cluster,
    topic: &str,
    partitions: &[PartitionIndex],
    at: Position,
    isolation: Isolation,
    json: bool,
    io: &mut Io,
) -> Result<(), Failure> {
    let mut rows = Vec::new();
    let mut table = Table::new(&[">PARTITION", ">OFFSET"]);
    for &partition in partitions {
        let offset = at.resolve(cluster, topic, partition, isolation).await?;
        table.row([partition.to_string(), offset.to_string()]);
        rows.push(json!({"partition": partition.get(), "offset": offset.get()}));
    }
    if json { io.json(&Value::Array(rows)) } else { io.print(&table.render()) }
}

async fn delete_records(
    cluster: &Cluster,
    topic: &str,
    partitions: &[PartitionIndex],
    before: Position,
    json: bool,
    io: &mut Io,
) -> Result<(), Failure> {
    let mut rows = Vec::new();
    for &partition in partitions {
        let before = match before {
            // The leader knows its own high watermark best.
            Position::End => None,
            other => Some(other.resolve(cluster, topic, partition, Isolation::ReadUncommitted).await?),
        };
        let start = cluster.delete_records(topic, partition, before).await?;
        if !json {
            io.print(&format!("{topic}-{partition} now starts at offset {}\n", count(start.get())))?;
        }
        rows.push(json!({"partition": partition.get(), "log_start_offset": start.get()}));
    }
    if json { io.json(&Value::Array(rows)) } else { Ok(()) }
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn values_with_units_say_what_they_mean() {
        for (name, value, shown) in [
            ("retention.ms", "604800000", "604800000 (7 d)"),
            ("retention.bytes", "-1", "-1 (no limit)"),
            ("segment.bytes", "1073741824", "1073741824 (1.0 GiB)"),
            ("flush.messages", "9223372036854775807", "9223372036854775807 (no limit)"),
            ("cleanup.policy", "delete", "delete"),
            ("linger.ms", "5", "5"),
        ] {
            assert_eq!(with_unit(name, value), shown);
        }
    }

    #[test]
    fn pairs_and_assignments_are_read() {
        assert_eq!(pair("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert_eq!(pair("a="), Ok(("a".to_owned(), String::new())));
        assert!(pair("a").is_err() && pair("=b").is_err());
        assert_eq!(
            assignment("3=1,2").unwrap().0,
            v1::ReplicaAssignment { partition: 3, brokers: vec![1, 2] }
        );
        assert!(assignment("3").is_err() && assignment("x=1").is_err() && assignment("0=").is_err());
    }
}
