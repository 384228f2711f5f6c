//! Properties of the image: rebuilding, differences, and a node's session.

use std::{collections::BTreeMap, sync::Arc};

use proptest::prelude::*;
use semel_metadata::{
    Change, ClusterImage, ConfigResource, Delta, DirectoryId, IncarnationId, Message, PartitionState, Record,
    RegisterBroker, Session, SessionError, changes_between,
};
use semel_model::{
    BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, MetadataIndex, PartitionEpoch, PartitionIndex,
    ProducerId, TopicId, TopicName, TopicPartition,
};

fn name(n: u8) -> TopicName {
    TopicName::new(&format!("topic-{n}")).unwrap()
}

fn topic_id(n: u8) -> TopicId {
    TopicId::from_bytes([n + 1; 16])
}

fn brokers(ids: &[i32]) -> Arc<[BrokerId]> {
    ids.iter().copied().map(BrokerId).collect()
}

fn record() -> impl Strategy<Value = Record> {
    let broker = 0..4_i32;
    let resource = prop_oneof![
        (0..3_u8).prop_map(|n| ConfigResource::Topic(name(n))),
        (0..3_i32).prop_map(|n| ConfigResource::Broker(BrokerId(n))),
        Just(ConfigResource::Cluster),
    ];
    prop_oneof![
        1 => Just(Record::ClusterCreated { cluster_id: "AAAAAAAAAAAAAAAAAAAAAQ".into() }),
        3 => (broker.clone(), any::<[u8; 16]>(), prop::option::of("r[0-9]")).prop_map(|(id, incarnation, rack)| {
            Record::RegisterBroker(RegisterBroker {
                broker: BrokerId(id),
                incarnation: IncarnationId(incarnation),
                kafka_host: "localhost".into(),
                kafka_port: 9092,
                grpc_address: "localhost:9190".into(),
                rack: rack.map(Arc::from),
                directories: (0..incarnation[0] % 3).map(|id| DirectoryId([id; 16])).collect(),
            })
        }),
        3 => (broker.clone(), 0..40_i64, any::<bool>(), any::<bool>()).prop_map(|(id, epoch, fenced, down)| {
            let (broker, epoch) = (BrokerId(id), BrokerEpoch(epoch));
            Record::BrokerFence { broker, epoch, fenced, shutting_down: down }
        }),
        1 => (broker.clone(), 0..40_i64).prop_map(|(id, epoch)| {
            Record::UnregisterBroker { broker: BrokerId(id), epoch: BrokerEpoch(epoch) }
        }),
        3 => (0..4_u8, 0..4_u8).prop_map(|(n, id)| Record::TopicCreated { name: name(n), id: topic_id(id) }),
        1 => (0..4_u8).prop_map(|id| Record::TopicRemoved { id: topic_id(id) }),
        6 => (0..4_u8, -1..5_i32, prop::option::of(broker), 0..9_i32).prop_map(|(id, at, leader, epoch)| {
            Record::PartitionState(PartitionState {
                partition: TopicPartition { topic: topic_id(id), partition: PartitionIndex(at) },
                replicas: brokers(&[1, 2, 3]),
                isr: brokers(&[2, 3]),
                leader: leader.map(BrokerId),
                leader_epoch: LeaderEpoch(epoch),
                partition_epoch: PartitionEpoch(epoch),
            })
        }),
        3 => (resource, "[ab]", prop::option::of("[0-9]{1,3}")).prop_map(|(resource, key, value)| {
            Record::ConfigChange { resource, key: key.into(), value: value.map(Arc::from) }
        }),
        1 => (0..9_i64).prop_map(|block| Record::ProducerIdBlock {
            broker: BrokerId(1),
            epoch: BrokerEpoch(1),
            next_producer_id: ProducerId(block * 1000),
        }),
    ]
}

fn history() -> impl Strategy<Value = Vec<Delta>> {
    prop::collection::vec((prop::collection::vec(record(), 0..4), any::<bool>()), 0..60).prop_map(|batches| {
        let mut epoch = 1;
        let deltas = (1_u64..).zip(batches).map(|(index, (records, new_epoch))| {
            epoch += i32::from(new_epoch);
            Delta { index: MetadataIndex(index), controller_epoch: ControllerEpoch(epoch), records }
        });
        deltas.collect()
    })
}

fn replay(history: &[Delta]) -> ClusterImage {
    let mut image = ClusterImage::new();
    history.iter().for_each(|delta| image.apply_delta(delta));
    image
}

/// What a difference speaks of, read from one image.
fn look_up(image: &ClusterImage, change: &Change) -> String {
    match change {
        Change::ClusterCreated => format!("{:?}", image.cluster_id()),
        Change::Broker(id) | Change::BrokerRemoved(id) => format!("{:?}", image.broker(*id)),
        Change::TopicRemoved { id, .. } | Change::TopicCreated(id) => {
            format!("{:?}", image.topic(*id).map(|topic| &topic.name))
        }
        Change::Partition(partition) => format!("{:?}", image.partition(*partition)),
        Change::TopicConfigs(id) => format!("{:?}", image.topic(*id).map(|topic| &topic.configs)),
        Change::BrokerConfigs(id) => format!("{:?}", image.broker_configs(*id)),
        Change::ClusterConfigs => format!("{:?}", image.cluster_configs()),
        Change::ProducerIds => format!("{:?}", image.next_producer_id()),
    }
}

/// Everything there is to know, by the change that would tell of it.
fn facts(image: &ClusterImage) -> BTreeMap<String, (Change, String)> {
    let mut all = vec![Change::ClusterCreated, Change::ClusterConfigs, Change::ProducerIds];
    all.extend((-1..5).map(|id| Change::Broker(BrokerId(id))));
    all.extend((-1..5).map(|id| Change::BrokerConfigs(BrokerId(id))));
    for topic in image.topics() {
        all.push(Change::TopicCreated(topic.id));
        all.push(Change::TopicConfigs(topic.id));
        all.extend(topic.iter().map(|(partition, _)| Change::Partition(partition)));
    }
    all.into_iter().map(|change| (format!("{change:?}"), (change.clone(), look_up(image, &change)))).collect()
}

proptest! {
    #[test]
    fn records_rebuild_an_equal_image(history in history()) {
        let image = replay(&history);
        let rebuilt = ClusterImage::from_records(image.index(), image.controller_epoch(), image.records());
        prop_assert_eq!(&rebuilt, &image);
        prop_assert!(changes_between(&image, &rebuilt).is_empty());
    }

    #[test]
    fn names_and_ids_stay_one_to_one(history in history()) {
        let image = replay(&history);
        prop_assert_eq!(image.topics().count(), image.topic_count());
        for topic in image.topics() {
            prop_assert_eq!(image.topic_by_name(topic.name.as_str()).map(|t| t.id), Some(topic.id));
        }
    }

    #[test]
    fn differences_are_exactly_what_differs(history in history(), cut in 0..60_usize) {
        let old = replay(&history[..cut.min(history.len())]);
        let new = replay(&history);
        let changes = changes_between(&old, &new);
        for change in &changes {
            let replaced = |id| changes.iter().any(|c| matches!(c, Change::TopicRemoved { id: gone, .. } if *gone == id));
            let replaced = match change {
                Change::TopicCreated(id) | Change::TopicRemoved { id, .. } | Change::TopicConfigs(id) => replaced(*id),
                Change::Partition(partition) => replaced(partition.topic),
                _ => false,
            };
            if replaced {
                continue;
            }
            prop_assert_ne!(look_up(&old, change), look_up(&new, change), "{:?} did not change", change);
        }
        for (key, (change, now)) in facts(&new) {
            // A new topic's empty configuration is told with the topic.
            let told = changes.contains(&change)
                || matches!(&change, Change::Broker(id) if changes.contains(&Change::BrokerRemoved(*id)))
                || matches!(&change, Change::TopicConfigs(id) if changes.contains(&Change::TopicCreated(*id)));
            prop_assert!(told || look_up(&old, &change) == now, "{} changed unsaid", key);
        }
    }

    #[test]
    fn a_session_ends_where_the_controllers_are(history in history(), joins in prop::collection::vec(any::<u8>(), 1..8)) {
        let mut session = Session::new();
        for join in joins {
            // Each stream starts somewhere at or before the node's place, with repeats, and may break anywhere.
            let upto = usize::from(join) % (history.len() + 1);
            let from = usize::try_from(session.subscribe_from().0).unwrap().min(upto);
            for delta in &history[from.saturating_sub(usize::from(join % 3))..upto] {
                session.receive(Message::Delta(delta.clone())).unwrap();
            }
        }
        let from = usize::try_from(session.subscribe_from().0).unwrap();
        if from + 1 < history.len() {
            let gap = session.receive(Message::Delta(history[from + 1].clone()));
            let is_gap = matches!(gap, Err(SessionError::Gap { .. }));
            prop_assert!(is_gap);
        }
        session.receive(Message::Image(replay(&history))).unwrap();
        prop_assert_eq!(session.image(), &replay(&history));
    }
}

#[test]
fn an_older_controller_is_refused() {
    let delta = |index, epoch| {
        Message::Delta(Delta {
            index: MetadataIndex(index),
            controller_epoch: ControllerEpoch(epoch),
            records: Vec::new(),
        })
    };
    let mut session = Session::new();
    assert_eq!(session.receive(delta(1, 5)), Ok(Vec::new()));
    assert_eq!(
        session.receive(delta(2, 4)),
        Err(SessionError::StaleControllerEpoch { received: ControllerEpoch(4), applied: ControllerEpoch(5) })
    );
    let mut old = ClusterImage::new();
    old.advance(MetadataIndex(9), ControllerEpoch(4));
    assert!(matches!(session.receive(Message::Image(old)), Err(SessionError::StaleControllerEpoch { .. })));
    let mut behind = ClusterImage::new();
    behind.advance(MetadataIndex(0), ControllerEpoch(6));
    assert!(matches!(session.receive(Message::Image(behind)), Err(SessionError::BehindUs { .. })));
    assert_eq!(session.observe_epoch(ControllerEpoch(7)), Ok(()));
    assert!(session.observe_epoch(ControllerEpoch(6)).is_err());
    // Committed under 5 and arriving late: still what was committed.
    assert_eq!(session.receive(delta(2, 5)), Ok(Vec::new()));
}

#[test]
fn another_clusters_image_is_refused() {
    let image = |id: &str| {
        let mut image = ClusterImage::new();
        image.apply(MetadataIndex(1), &Record::ClusterCreated { cluster_id: id.into() });
        image
    };
    let mut session = Session::new();
    assert_eq!(session.receive(Message::Image(image("a"))), Ok(vec![Change::ClusterCreated]));
    assert!(matches!(
        session.receive(Message::Image(image("b"))),
        Err(SessionError::InconsistentClusterId { .. })
    ));
}
