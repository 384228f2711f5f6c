//! What the controller decides, one operation at a time, on its state machine alone.

use std::sync::Arc;

use expect_test::{Expect, expect};
use semel_control::{
    Config, Control, Error, Reply, Request,
    machine::Entry,
    ops::{
        alter_configs::{AlterConfigs, AlterResource, ConfigOperation, ResourceRef},
        alter_partition::{AlterPartition, IsrChange},
        create_cluster::CreateCluster,
        create_partitions::{CreatePartitions, WiderTopic},
        create_topics::{Assignment, CreateTopics, NewTopic},
        delete_topics::{DeleteTopics, TopicRef},
        heartbeat::{Fence, Heartbeat},
        producer_ids::AllocateProducerIds,
        register_broker::RegisterBroker,
    },
};
use semel_metadata::{ClusterImage, DirectoryId, IncarnationId};
use semel_model::{
    BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, MetadataIndex, PartitionEpoch, PartitionIndex,
    Timestamp, TopicId, TopicPartition,
};
use semel_rsm::{Answer, Ctx, StateMachine};

/// A controller whose every decision is committed at once.
struct Bench {
    control: Control,
    index: u64,
}

impl Bench {
    /// Partitions may have replicas: what brokers will be able to do is decided already.
    fn new() -> Self {
        Self::with_config(Config { replication_factor_max: 10, ..Config::default() })
    }

    fn with_config(config: Config) -> Self {
        let mut bench = Self { control: Control::new(Arc::new(config)), index: 0 };
        bench.control.apply(&Entry {
            index: MetadataIndex(0),
            controller_epoch: ControllerEpoch(1),
            record: None,
        });
        let cluster_id = Some("semel-test-cluster-id1".to_owned());
        bench.ask(Request::CreateCluster(CreateCluster { cluster_id })).unwrap();
        bench
    }

    /// With brokers 1, 2, … registered and unfenced.
    fn with_brokers(count: i32) -> Self {
        let mut bench = Self::new();
        for id in 1..=count {
            bench.start(id);
        }
        bench
    }

    fn ask(&mut self, request: Request) -> Result<Reply, Error> {
        let ctx =
            Ctx { now: Timestamp(0), position: self.index + 1, entropy: u128::from(self.index) * 7 + 1 };
        let outcome = self.control.handle(&ctx, request)?;
        if !outcome.records.is_empty() {
            self.index += 1;
        }
        for entry in &outcome.records {
            assert_eq!(entry.index, MetadataIndex(self.index));
            self.control.apply(entry);
        }
        for topic in self.image().topics() {
            for (_, partition) in topic.iter() {
                assert!(!partition.isr.is_empty());
                assert!(partition.isr.iter().all(|id| partition.replicas.contains(id)));
                assert!(partition.leader.is_none_or(|id| partition.isr.contains(&id)));
            }
        }
        match outcome.answer {
            Answer::Now(reply) => Ok(reply),
            Answer::Park(_) => panic!("the controller parks nothing"),
        }
    }

    fn image(&self) -> &ClusterImage {
        self.control.image()
    }

    fn registration(id: i32, incarnation: u8) -> RegisterBroker {
        RegisterBroker {
            broker: semel_metadata::RegisterBroker {
                broker: BrokerId(id),
                incarnation: IncarnationId([incarnation; 16]),
                kafka_host: format!("b{id}").into(),
                kafka_port: 9092,
                grpc_address: format!("b{id}:9190").into(),
                rack: None,
                directories: [].into(),
            },
            cluster_id: None,
            earlier_life_is_gone: false,
        }
    }

    fn epoch(&self, id: i32) -> BrokerEpoch {
        self.image().broker(BrokerId(id)).unwrap().epoch
    }

    fn heartbeat(&mut self, id: i32, change: impl FnOnce(&mut Heartbeat)) -> Result<Reply, Error> {
        let mut heartbeat = Heartbeat {
            broker: BrokerId(id),
            epoch: self.epoch(id),
            metadata_index: MetadataIndex(self.index),
            want_fence: false,
            want_shutdown: false,
        };
        change(&mut heartbeat);
        self.ask(Request::Heartbeat(heartbeat))
    }

    fn start(&mut self, id: i32) {
        self.ask(Request::RegisterBroker(Self::registration(id, u8::try_from(id).unwrap()))).unwrap();
        self.heartbeat(id, |_| {}).unwrap();
    }

    fn fence(&mut self, id: i32) {
        let (broker, epoch) = (BrokerId(id), self.epoch(id));
        self.ask(Request::Fence(Fence { broker, epoch })).unwrap();
    }

    fn create(&mut self, topics: Vec<NewTopic>) -> String {
        match self.ask(Request::CreateTopics(CreateTopics { topics, validate_only: false })) {
            Ok(Reply::CreatedTopics(created)) => {
                let line = |(name, result): &(String, Result<_, Error>)| match result {
                    Ok(_) => format!("{name}: ok\n"),
                    Err(error) => format!("{name}: {}\n", say(error)),
                };
                created.results.iter().map(line).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    /// A topic with one partition on these brokers.
    fn topic_on(&mut self, name: &str, brokers: &[i32]) {
        let topic = NewTopic {
            assignments: vec![Assignment {
                partition: 0,
                brokers: brokers.iter().copied().map(BrokerId).collect(),
            }],
            ..named(name)
        };
        assert_eq!(self.create(vec![topic]), format!("{name}: ok\n"));
    }

    fn first(&self, name: &str) -> TopicPartition {
        let topic = self.image().topic_by_name(name).unwrap().id;
        TopicPartition { topic, partition: PartitionIndex(0) }
    }

    /// `leader epoch-of-leader isr`.
    fn state(&self, name: &str) -> String {
        let partition = self.image().partition(self.first(name)).unwrap();
        let isr: Vec<i32> = partition.isr.iter().map(|id| id.0).collect();
        let leader = partition.leader.map_or("-".to_owned(), |id| id.to_string());
        format!("{leader} {} {isr:?}", partition.leader_epoch)
    }

    fn alter(&mut self, resource: ResourceRef, replace: bool, changes: &[(&str, ConfigOperation)]) -> String {
        let changes = changes.iter().map(|(name, op)| ((*name).to_owned(), op.clone())).collect();
        let resources = vec![AlterResource { resource, changes, replace }];
        match self.ask(Request::AlterConfigs(AlterConfigs { resources, validate_only: false })) {
            Ok(Reply::AlteredConfigs(altered)) => {
                altered.results[0].1.as_ref().map_or_else(say, |()| "ok".to_owned())
            }
            other => panic!("{other:?}"),
        }
    }
}

fn named(name: &str) -> NewTopic {
    NewTopic { name: name.to_owned(), ..NewTopic::default() }
}

/// The error's name and text.
fn say(error: &Error) -> String {
    let name = format!("{error:?}");
    let name = name.split(['(', ' ']).next().unwrap_or_default().to_owned();
    format!("{name}: {error}")
}

fn check(actual: &str, expected: &Expect) {
    expected.assert_eq(actual);
}

#[test]
fn a_broker_registers_catches_up_and_is_unfenced() {
    let mut bench = Bench::new();
    let first = bench.ask(Request::RegisterBroker(Bench::registration(1, 1))).unwrap();
    let Reply::Registered(registered) = first.clone() else { panic!("{first:?}") };
    assert_eq!(
        (registered.broker_epoch, registered.cluster_id.as_str()),
        (BrokerEpoch(2), "semel-test-cluster-id1")
    );
    assert!(!bench.image().is_alive(BrokerId(1)));
    // The answer was lost.
    assert_eq!(bench.ask(Request::RegisterBroker(Bench::registration(1, 1))), Ok(first));
    let Ok(Reply::Heartbeat(answer)) = bench.heartbeat(1, |beat| beat.metadata_index = MetadataIndex(1))
    else {
        panic!()
    };
    assert!(answer.fenced, "it has not seen its registration");
    let Ok(Reply::Heartbeat(answer)) = bench.heartbeat(1, |_| {}) else { panic!() };
    assert!(!answer.fenced && bench.image().is_alive(BrokerId(1)));
    // Another process with the same id, while the first is alive; then when its stream has broken.
    let again = bench.ask(Request::RegisterBroker(Bench::registration(1, 9)));
    assert!(matches!(again, Err(Error::DuplicateBrokerRegistration(_))));
    let mut gone = Bench::registration(1, 9);
    gone.earlier_life_is_gone = true;
    bench.ask(Request::RegisterBroker(gone)).unwrap();
    assert_eq!(bench.epoch(1), BrokerEpoch(4));
    let stale = bench.heartbeat(1, |beat| beat.epoch = BrokerEpoch(2));
    assert!(matches!(stale, Err(Error::StaleBrokerEpoch(_))));
    let mut other = Bench::registration(2, 2);
    other.cluster_id = Some("another".to_owned());
    assert!(matches!(bench.ask(Request::RegisterBroker(other)), Err(Error::InconsistentClusterId(_))));
    let mut nameless = Bench::registration(2, 2);
    nameless.broker.kafka_host = "".into();
    assert!(matches!(bench.ask(Request::RegisterBroker(nameless)), Err(Error::InvalidRegistration(_))));
}

#[test]
fn a_restarted_broker_shows_its_directories_and_need_not_wait() {
    let with = |id: i32, incarnation: u8, directories: &[u8]| {
        let mut registration = Bench::registration(id, incarnation);
        registration.broker.directories =
            directories.iter().map(|directory| DirectoryId([*directory; 16])).collect();
        Request::RegisterBroker(registration)
    };
    let mut bench = Bench::new();
    bench.ask(with(1, 1, &[11, 12])).unwrap();
    bench.heartbeat(1, |_| {}).unwrap();
    bench.topic_on("t", &[1]);
    let first = bench.epoch(1);
    let refused =
        |bench: &mut Bench, request| matches!(bench.ask(request), Err(Error::DuplicateBrokerRegistration(_)));
    // Another disk, or none: perhaps another process with the same id.
    assert!(refused(&mut bench, with(1, 2, &[13])) && refused(&mut bench, with(1, 2, &[])));
    assert_eq!((bench.epoch(1), bench.state("t").as_str()), (first, "1 0 [1]"));
    // One of the two disks came back: that life is over, and the next starts fenced.
    bench.ask(with(1, 2, &[12])).unwrap();
    assert!(bench.epoch(1) > first && !bench.image().is_alive(BrokerId(1)));
    assert_eq!(bench.state("t"), "- 1 [1]");
    assert!(matches!(bench.heartbeat(1, |beat| beat.epoch = first), Err(Error::StaleBrokerEpoch(_))));
    bench.heartbeat(1, |_| {}).unwrap();
    assert_eq!(bench.state("t"), "1 2 [1]");
    // Only the last life's directories count, and only those of the broker itself.
    assert!(refused(&mut bench, with(1, 3, &[11])));
    bench.ask(with(2, 4, &[12])).unwrap();
    assert!(refused(&mut bench, with(1, 5, &[])));
}

#[test]
fn directories_are_checked() {
    let mut bench = Bench::new();
    let mut ask = |ids: Vec<[u8; 16]>| {
        let mut registration = Bench::registration(1, 1);
        registration.broker.directories = ids.into_iter().map(DirectoryId).collect();
        bench.ask(Request::RegisterBroker(registration)).map_or_else(|error| say(&error), |_| "ok".to_owned())
    };
    let many = (0..257_u16).map(|id| u128::from(id + 100).to_be_bytes()).collect();
    let told = [ask(vec![[0; 16]]), ask(vec![[7; 16]; 2]), ask(many), ask(vec![[7; 16], [8; 16]])];
    check(
        &told.join("\n"),
        &expect![[r#"
            InvalidRegistration: broker 1: it names a reserved directory id
            InvalidRegistration: broker 1: it names a log directory twice
            InvalidRegistration: broker 1: it names more than 256 log directories
            ok"#]],
    );
}

#[test]
fn brokers_do_not_replicate_yet() {
    let mut bench = Bench::with_config(Config::default());
    for id in 1..=3 {
        bench.start(id);
    }
    let factor = |name: &str, n| NewTopic { replication_factor: Some(n), ..named(name) };
    let assigned = |name: &str, list: &[i32]| NewTopic {
        assignments: vec![Assignment { partition: 0, brokers: list.iter().copied().map(BrokerId).collect() }],
        ..named(name)
    };
    let told = bench.create(vec![
        named("default"),
        factor("one", 1),
        factor("three", 3),
        assigned("on2", &[2]),
        assigned("on12", &[1, 2]),
    ]);
    check(
        &told,
        &expect![[r#"
            default: ok
            one: ok
            three: InvalidReplicationFactor: replication factor 3 is larger than 1: brokers do not replicate partitions yet
            on2: ok
            on12: InvalidReplicationFactor: replication factor 2 is larger than 1: brokers do not replicate partitions yet
        "#]],
    );
    // A default that is too large is refused where it is used, should it get past the check of the settings.
    let mut bench = Bench::with_config(Config { default_replication_factor: 2, ..Config::default() });
    bench.start(1);
    bench.start(2);
    assert!(bench.create(vec![named("t")]).contains("InvalidReplicationFactor: replication factor 2"));
}

#[test]
fn leaders_move_and_the_last_in_sync_is_kept() {
    let mut bench = Bench::with_brokers(3);
    bench.topic_on("t", &[1, 2, 3]);
    let mut told = vec![bench.state("t")];
    for step in [-1, -2, -3, 1, 2, 3] {
        if step < 0 {
            bench.fence(-step);
        } else {
            bench.heartbeat(step, |_| {}).unwrap();
        }
        told.push(format!("{step:+}: {}", bench.state("t")));
    }
    check(
        &told.join("\n"),
        &expect![[r#"
            1 0 [1, 2, 3]
            -1: 2 1 [2, 3]
            -2: 3 2 [3]
            -3: - 3 [3]
            +1: - 3 [3]
            +2: - 3 [3]
            +3: 3 4 [3]"#]],
    );
}

#[test]
fn a_topic_may_choose_an_unclean_leader() {
    let mut bench = Bench::with_brokers(2);
    bench.topic_on("t", &[1, 2]);
    bench.fence(2);
    bench.fence(1);
    bench.heartbeat(2, |_| {}).unwrap();
    assert_eq!(bench.state("t"), "- 1 [1]");
    let on = ConfigOperation::Set("true".to_owned());
    let topic = ResourceRef::Topic("t".to_owned());
    assert_eq!(bench.alter(topic, false, &[("unclean.leader.election.enable", on)]), "ok");
    assert_eq!(bench.state("t"), "2 2 [2]");
}

#[test]
fn a_broker_hands_over_before_it_stops() {
    let mut bench = Bench::with_brokers(2);
    bench.topic_on("both", &[1, 2]);
    bench.topic_on("alone", &[1]);
    let Ok(Reply::Heartbeat(answer)) = bench.heartbeat(1, |beat| beat.want_shutdown = true) else { panic!() };
    assert!(answer.may_shutdown && !answer.fenced);
    assert_eq!((bench.state("both").as_str(), bench.state("alone").as_str()), ("2 1 [2]", "1 0 [1]"));
    // A late heartbeat does not bring it back, and it gets nothing new.
    bench.heartbeat(1, |_| {}).unwrap();
    assert!(bench.image().broker(BrokerId(1)).unwrap().shutting_down);
    assert_eq!(bench.create(vec![named("next")]), "next: ok\n");
    assert_eq!(bench.state("next"), "2 0 [2]");
    bench.fence(1);
    assert_eq!(bench.state("alone"), "- 1 [1]");
    // Its next life has its old data.
    bench.ask(Request::RegisterBroker(Bench::registration(1, 9))).unwrap();
    bench.heartbeat(1, |_| {}).unwrap();
    assert_eq!(bench.state("alone"), "1 2 [1]");
}

#[test]
fn topics_are_checked_as_kafka_checks_them() {
    let mut bench = Bench::with_brokers(2);
    let partitions = |name: &str, n| NewTopic { partitions: Some(n), ..named(name) };
    let factor = |name: &str, n| NewTopic { replication_factor: Some(n), ..named(name) };
    let config = |name: &str, key: &str, value: &str| NewTopic {
        configs: vec![(key.to_owned(), value.to_owned())],
        ..named(name)
    };
    let assigned = |name: &str, lists: &[&[i32]]| NewTopic {
        assignments: (0..)
            .zip(lists)
            .map(|(partition, list)| Assignment {
                partition,
                brokers: list.iter().copied().map(BrokerId).collect(),
            })
            .collect(),
        ..named(name)
    };
    let told = bench.create(vec![
        named("a.b"),
        named("a_b"),
        named(".."),
        named("bad/name"),
        named("twice"),
        named("twice"),
        partitions("p0", 0),
        partitions("many", 10_001),
        factor("f0", 0),
        factor("f3", 3),
        config("c1", "retention.ms", "soon"),
        config("c2", "nonsense", "1"),
        config("c3", "retention.ms", "1000"),
        assigned("m1", &[&[1, 2], &[2, 1]]),
        assigned("m2", &[&[1, 1]]),
        assigned("m3", &[&[1], &[1, 2]]),
        assigned("m4", &[&[7]]),
        assigned("m5", &[&[]]),
        NewTopic { partitions: Some(1), ..assigned("m6", &[&[1]]) },
        NewTopic { partitions: Some(3), replication_factor: Some(2), ..named("wide") },
    ]);
    check(
        &told,
        &expect![[r#"
            a.b: ok
            a_b: InvalidTopicException: topic 'a_b' collides with topic 'a.b'
            ..: InvalidTopicException: topic name is '.' or '..'
            bad/name: InvalidTopicException: topic name has a character other than a-z, A-Z, 0-9, '.', '_' and '-'
            twice: InvalidRequest: topic 'twice' is in the request twice
            twice: InvalidRequest: topic 'twice' is in the request twice
            p0: InvalidPartitions: 0 partitions: must be at least 1
            many: PolicyViolation: 10001 partitions are more than the 9999 that may be added
            f0: InvalidReplicationFactor: replication factor 0: must be from 1 to 32767
            f3: InvalidReplicationFactor: replication factor 3 is larger than the number of registered brokers, 2
            c1: InvalidConfig: invalid value soon for configuration retention.ms: not a 64-bit number
            c2: InvalidConfig: unknown topic config name: nonsense
            c3: ok
            m1: ok
            m2: InvalidReplicaAssignment: partition 0 names broker 1 twice
            m3: InvalidReplicaAssignment: partition 1 has 2 replicas, others 1
            m4: InvalidReplicaAssignment: partition 0 names broker 7, which is not registered
            m5: InvalidReplicaAssignment: partition 0 has no replica
            m6: InvalidRequest: topic 'm6' has assignments as well as a number of partitions or replicas
            wide: ok
        "#]],
    );
    assert_eq!(bench.create(vec![named("wide")]), "wide: TopicAlreadyExists: topic 'wide' already exists\n");
    assert_eq!(bench.image().topic_configs("c3").get("retention.ms").unwrap().as_ref(), "1000");
    let wide = bench.image().topic_by_name("wide").unwrap();
    assert_eq!(wide.partition_count(), 3);
    assert_eq!((wide.id.0.get_version_num(), wide.id.to_string().starts_with('-')), (4, false));
    // Only checked: nothing is there.
    let before = bench.index;
    let request = CreateTopics { topics: vec![named("ghost")], validate_only: true };
    let Ok(Reply::CreatedTopics(created)) = bench.ask(Request::CreateTopics(request)) else { panic!() };
    assert_eq!(created.results[0].1.as_ref().unwrap().id, TopicId::ZERO);
    assert!(bench.index == before && bench.image().topic_by_name("ghost").is_none());
}

#[test]
fn no_broker_no_topic() {
    let mut bench = Bench::new();
    assert!(bench.create(vec![named("t")]).contains("InvalidReplicationFactor"));
    bench.start(1);
    bench.fence(1);
    assert!(bench.create(vec![named("t")]).contains("no broker is alive"));
}

#[test]
fn topics_go_by_name_and_by_id() {
    let mut bench = Bench::with_brokers(1);
    bench.create(vec![named("a"), named("b"), named("c")]);
    let b = bench.image().topic_by_name("b").unwrap().id;
    let topics = vec![
        TopicRef::Name("a".into()),
        TopicRef::Id(b),
        TopicRef::Name("b".into()),
        TopicRef::Name("x".into()),
        TopicRef::Id(TopicId::from_bytes([9; 16])),
    ];
    let Ok(Reply::DeletedTopics(deleted)) = bench.ask(Request::DeleteTopics(DeleteTopics { topics })) else {
        panic!()
    };
    let told: Vec<String> = deleted
        .results
        .iter()
        .map(|topic| topic.error.as_ref().map_or_else(|| "ok".to_owned(), say))
        .collect();
    check(
        &told.join("\n"),
        &expect![[r#"
            ok
            ok
            InvalidRequest: topic 'b' is in the request twice
            UnknownTopicOrPartition: there is no topic 'x'
            UnknownTopicId: there is no topic with id CQkJCQkJCQkJCQkJCQkJCQ"#]],
    );
    let names: Vec<&str> = bench.image().topics().map(|topic| topic.name.as_str()).collect();
    assert_eq!(names, ["c"]);
    // A name that was freed is another topic.
    bench.create(vec![named("b")]);
    assert_ne!(bench.image().topic_by_name("b").unwrap().id, b);
}

#[test]
fn topics_grow_and_never_shrink() {
    let mut bench = Bench::with_brokers(2);
    bench.create(vec![NewTopic { partitions: Some(2), ..named("t") }]);
    let mut ask = |name: &str, count: i32, lists: &[(i32, &[i32])]| {
        let assignments = lists
            .iter()
            .map(|(partition, list)| Assignment {
                partition: *partition,
                brokers: list.iter().copied().map(BrokerId).collect(),
            })
            .collect();
        let topics = vec![WiderTopic { name: name.to_owned(), count, assignments }];
        let request = CreatePartitions { topics, validate_only: false };
        match bench.ask(Request::CreatePartitions(request)) {
            Ok(Reply::CreatedPartitions(created)) => {
                created.results[0].1.as_ref().map_or_else(say, |()| "ok".to_owned())
            }
            other => panic!("{other:?}"),
        }
    };
    let told = [
        ask("x", 3, &[]),
        ask("t", 1, &[]),
        ask("t", 2, &[]),
        ask("t", 4, &[(2, &[1])]),
        ask("t", 3, &[(3, &[1])]),
        ask("t", 3, &[(2, &[1, 2])]),
        ask("t", 4, &[(3, &[2]), (2, &[1])]),
        ask("t", 5, &[]),
    ];
    check(
        &told.join("\n"),
        &expect![[r#"
            UnknownTopicOrPartition: there is no topic 'x'
            InvalidPartitions: topic 't' has 2 partitions, more than the 1 asked for
            InvalidPartitions: topic 't' already has 2 partitions
            InvalidReplicaAssignment: 2 new partitions with 1 assignments
            InvalidReplicaAssignment: partitions must be consecutive from 2, not 3
            InvalidReplicaAssignment: topic 't' has 1 replicas of each partition, not 2
            ok
            ok"#]],
    );
    assert_eq!(bench.image().topic_by_name("t").unwrap().partition_count(), 5);
}

#[test]
fn configurations_change_entry_by_entry_or_as_a_whole() {
    use ConfigOperation::{Append, Delete, Set, Subtract};
    let mut bench = Bench::with_brokers(1);
    bench.create(vec![named("t")]);
    let topic = || ResourceRef::Topic("t".to_owned());
    let broker = |id: &str| ResourceRef::Broker(id.to_owned());
    let set = |value: &str| Set(value.to_owned());
    let told = [
        bench.alter(topic(), false, &[("retention.ms", set("5")), ("segment.ms", set("6"))]),
        bench.alter(topic(), false, &[("cleanup.policy", Append("compact".to_owned()))]),
        bench.alter(
            topic(),
            false,
            &[("cleanup.policy", Subtract("delete".to_owned())), ("segment.ms", Delete)],
        ),
        bench.alter(topic(), false, &[("retention.ms", Append("1".to_owned()))]),
        bench.alter(topic(), false, &[("retention.ms", set("-9"))]),
        bench.alter(topic(), false, &[("retention.ms", set("1")), ("retention.ms", Delete)]),
        bench.alter(
            topic(),
            false,
            &[("min.compaction.lag.ms", set("9")), ("max.compaction.lag.ms", set("8"))],
        ),
        bench.alter(ResourceRef::Topic("x".to_owned()), false, &[]),
        bench.alter(broker("1"), false, &[("log.retention.ms", set("77"))]),
        bench.alter(broker(""), false, &[("log.retention.ms", set("88"))]),
        bench.alter(broker("2"), false, &[]),
        bench.alter(broker("one"), false, &[]),
        bench.alter(broker("1"), false, &[("log.dirs", set("/x"))]),
    ];
    check(
        &told.join("\n"),
        &expect![[r#"
            ok
            ok
            ok
            InvalidConfig: configuration retention.ms is not a list
            InvalidConfig: invalid value -9 for configuration retention.ms: must be at least -1
            InvalidRequest: configuration retention.ms is given twice
            InvalidConfig: configurations min.compaction.lag.ms and max.compaction.lag.ms disagree: the smallest lag exceeds the largest
            UnknownTopicOrPartition: there is no topic 'x'
            ok
            ok
            BrokerIdNotRegistered: there is no broker 2
            InvalidRequest: 'one' is not a broker id
            InvalidRequest: cannot update configuration log.dirs dynamically: set it in the broker's file and restart"#]],
    );
    let entries = |bench: &Bench| -> String {
        let configs = bench.image().topic_configs("t");
        configs.iter().map(|(key, value)| format!("{key}={value} ")).collect()
    };
    assert_eq!(entries(&bench), "cleanup.policy=compact retention.ms=5 ");
    assert_eq!(bench.alter(topic(), true, &[("segment.bytes", set("2000000"))]), "ok");
    assert_eq!(entries(&bench), "segment.bytes=2000000 ");
    let before = bench.index;
    assert_eq!(bench.alter(topic(), false, &[("segment.bytes", set("2000000"))]), "ok");
    assert_eq!(bench.index, before, "no change, no record");
}

#[test]
fn isr_changes_are_compare_and_set() {
    let mut bench = Bench::with_brokers(3);
    bench.topic_on("t", &[1, 2, 3]);
    let partition = bench.first("t");
    let ask = |bench: &mut Bench, from: i32, leader: i32, epoch: i32, isr: &[i32]| {
        let change = IsrChange {
            partition,
            leader_epoch: LeaderEpoch(leader),
            partition_epoch: PartitionEpoch(epoch),
            new_isr: isr.iter().copied().map(BrokerId).collect(),
        };
        let request =
            AlterPartition { broker: BrokerId(from), epoch: bench.epoch(from), partitions: vec![change] };
        match bench.ask(Request::AlterPartition(request)) {
            Ok(Reply::AlteredPartitions(altered)) => altered.results[0]
                .1
                .as_ref()
                .map_or_else(|error| say(error).split(':').next().unwrap().to_owned(), |()| "ok".to_owned()),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(ask(&mut bench, 1, 0, 0, &[1, 2]), "ok");
    assert_eq!(bench.state("t"), "1 0 [1, 2]");
    assert_eq!(ask(&mut bench, 1, 0, 0, &[1, 2, 3]), "InvalidUpdateVersion");
    assert_eq!(ask(&mut bench, 1, 0, 2, &[1, 2, 3]), "NotController");
    assert_eq!(ask(&mut bench, 1, 1, 1, &[1, 2, 3]), "NotController");
    assert_eq!(ask(&mut bench, 2, 0, 1, &[2, 3]), "InvalidRequest");
    assert_eq!(ask(&mut bench, 1, 0, 1, &[2, 3]), "InvalidRequest");
    assert_eq!(ask(&mut bench, 1, 0, 1, &[1, 1]), "InvalidRequest");
    assert_eq!(ask(&mut bench, 1, 0, 1, &[1, 9]), "InvalidRequest");
    bench.fence(3);
    assert_eq!(ask(&mut bench, 1, 0, 1, &[1, 2, 3]), "IneligibleReplica");
    bench.heartbeat(3, |_| {}).unwrap();
    assert_eq!(ask(&mut bench, 1, 0, 1, &[1, 2, 3]), "ok");
    bench.fence(1);
    assert_eq!(bench.state("t"), "2 1 [2, 3]");
    let stale = AlterPartition { broker: BrokerId(2), epoch: BrokerEpoch(1), partitions: Vec::new() };
    assert!(matches!(bench.ask(Request::AlterPartition(stale)), Err(Error::StaleBrokerEpoch(_))));
    assert_eq!(ask(&mut bench, 2, 0, 3, &[2]), "FencedLeaderEpoch");
}

#[test]
fn producer_ids_come_in_blocks() {
    let mut bench = Bench::with_brokers(1);
    let (broker, epoch) = (BrokerId(1), bench.epoch(1));
    for block in 0..3 {
        let reply = bench.ask(Request::AllocateProducerIds(AllocateProducerIds { broker, epoch })).unwrap();
        let Reply::ProducerIds(ids) = reply else { panic!("{reply:?}") };
        assert_eq!((ids.first.0, ids.count), (block * 1000, 1000));
    }
    let stale = AllocateProducerIds { broker, epoch: BrokerEpoch(1) };
    assert!(matches!(bench.ask(Request::AllocateProducerIds(stale)), Err(Error::StaleBrokerEpoch(_))));
}
