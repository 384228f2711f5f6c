//! The client against a cluster that misbehaves.

use std::{fmt::Write as _, time::Duration};

use bytes::Bytes;
use semel_model::{BrokerId, Offset, PartitionIndex, Timestamp};
use semel_proto::v1::{self, ErrorCode};

use crate::{
    Acks, Appender, AppenderConfig, At, Cluster, Codec, Config, ConfigChange, Error, Isolation, NewRecord,
    OffsetQuery, ReadOptions, Receipt, Resource,
    fake::{CallFault, FakeCluster, Fault},
};

fn quick() -> Config {
    Config {
        connect_timeout: Duration::from_secs(10),
        backoff_first: Duration::from_millis(2),
        backoff_max: Duration::from_millis(20),
        ..Config::default()
    }
}

async fn connect(fake: &FakeCluster) -> Cluster {
    Cluster::connect(&fake.addresses()[..1], quick()).await.unwrap()
}

fn text(value: &str) -> NewRecord {
    NewRecord { value: Some(Bytes::copy_from_slice(value.as_bytes())), ..NewRecord::default() }
}

async fn send(appender: &Appender, partition: i32, values: std::ops::Range<usize>) -> Vec<Receipt> {
    let mut receipts = Vec::new();
    for value in values {
        let record = text(&value.to_string());
        receipts.push(appender.send("t", Some(PartitionIndex(partition)), record).await.unwrap());
    }
    receipts
}

fn values(fake: &FakeCluster, partition: usize) -> Vec<String> {
    let text = |record: v1::Record| String::from_utf8(record.value.unwrap().to_vec()).unwrap();
    fake.records("t", partition).into_iter().map(text).collect()
}

fn numbers(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}

/// Small batches, so that a test's few records are several.
fn small() -> AppenderConfig {
    AppenderConfig { batch_bytes: 80, linger: Duration::from_millis(1), ..AppenderConfig::default() }
}

#[tokio::test]
async fn records_arrive_once_and_in_order_whatever_befalls_the_answers() {
    let faults = [
        vec![Fault::DropAnswer],
        vec![Fault::DropRequest],
        vec![Fault::DropAnswer, Fault::DropAnswer, Fault::DropRequest],
        vec![Fault::Move(1)],
        vec![Fault::Refuse(ErrorCode::NotEnoughReplicas), Fault::Move(2), Fault::DropAnswer],
        vec![Fault::AppendAndRefuse(ErrorCode::RequestTimedOut)],
        vec![Fault::AppendAndRefuse(ErrorCode::NotEnoughReplicasAfterAppend), Fault::DropRequest],
    ];
    for faults in faults {
        let fake = FakeCluster::start(3).await;
        fake.create_topic("t", 1);
        let cluster = connect(&fake).await;
        let appender = cluster.appender(small()).await.unwrap();
        let mut receipts = send(&appender, 0, 0..7).await;
        appender.flush().await.unwrap();
        for fault in &faults {
            fake.fault("t", 0, *fault);
        }
        receipts.extend(send(&appender, 0, 7..40).await);
        for (at, receipt) in receipts.into_iter().enumerate() {
            assert_eq!(receipt.await.unwrap().offset, Some(Offset(at as i64)), "{faults:?}");
        }
        assert_eq!(values(&fake, 0), numbers(0..40), "{faults:?}");
    }
}

#[tokio::test]
async fn faults_from_the_first_batch_on_do_no_harm_either() {
    let fake = FakeCluster::start(2).await;
    fake.create_topic("t", 2);
    for partition in 0..2 {
        fake.fault("t", partition, Fault::DropAnswer);
        fake.fault("t", partition, Fault::Move(1));
        fake.fault("t", partition, Fault::Refuse(ErrorCode::LeaderNotAvailable));
    }
    let appender = connect(&fake).await.appender(small()).await.unwrap();
    let mut receipts = send(&appender, 0, 0..30).await;
    receipts.extend(send(&appender, 1, 0..30).await);
    appender.flush().await.unwrap();
    for receipt in receipts {
        receipt.await.unwrap();
    }
    assert_eq!(values(&fake, 0), numbers(0..30));
    assert_eq!(values(&fake, 1), numbers(0..30));
}

#[tokio::test]
async fn a_refused_batch_fails_alone_and_the_rest_goes_on_in_order() {
    let fake = FakeCluster::start(1).await;
    fake.create_topic("t", 1);
    let appender = connect(&fake).await.appender(small()).await.unwrap();
    for receipt in send(&appender, 0, 0..2).await {
        receipt.await.unwrap();
    }
    fake.fault("t", 0, Fault::Refuse(ErrorCode::InvalidRecord));
    let mut failed = 0;
    for receipt in send(&appender, 0, 2..40).await {
        if let Err(error) = receipt.await {
            failed += 1;
            assert_eq!((error.code(), error.is_uncertain()), (Some(ErrorCode::InvalidRecord), false));
        }
    }
    assert!((1..=3).contains(&failed), "{failed} records were in the refused batch");
    let mut expected = numbers(0..2);
    expected.extend(numbers(2 + failed..40));
    assert_eq!(values(&fake, 0), expected);
}

#[tokio::test]
async fn a_batch_that_is_too_large_is_split_and_a_record_that_is_fails() {
    let fake = FakeCluster::start(1).await;
    fake.create_topic("t", 1);
    fake.set_batch_bytes_max("t", 200);
    let appender = connect(&fake).await.appender(AppenderConfig::default()).await.unwrap();
    let mut receipts = send(&appender, 0, 0..60).await;
    let large = text(&"x".repeat(500));
    let refused = appender.send("t", Some(PartitionIndex(0)), large).await.unwrap();
    receipts.extend(send(&appender, 0, 60..90).await);
    assert_eq!(refused.await.unwrap_err().code(), Some(ErrorCode::MessageTooLarge));
    for receipt in receipts {
        receipt.await.unwrap();
    }
    assert_eq!(values(&fake, 0), numbers(0..90));
}

#[tokio::test]
async fn a_batch_without_a_verdict_fails_as_uncertain_when_its_time_is_over() {
    let fake = FakeCluster::start(1).await;
    fake.create_topic("t", 1);
    for _ in 0..100_000 {
        fake.fault("t", 0, Fault::DropRequest);
    }
    let config = AppenderConfig { delivery_timeout: Duration::from_millis(200), ..small() };
    let appender = connect(&fake).await.appender(config).await.unwrap();
    for receipt in send(&appender, 0, 0..10).await {
        let error = receipt.await.unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::NetworkException));
    }
    appender.flush().await.unwrap();
}

#[tokio::test]
async fn a_fresh_identity_follows_a_batch_that_ran_out_of_time() {
    let fake = FakeCluster::start(1).await;
    fake.create_topic("t", 1);
    let config = AppenderConfig { delivery_timeout: Duration::from_millis(150), ..small() };
    let appender = connect(&fake).await.appender(config).await.unwrap();
    for receipt in send(&appender, 0, 0..1).await {
        receipt.await.unwrap();
    }
    for _ in 0..100_000 {
        fake.fault("t", 0, Fault::Refuse(ErrorCode::NotEnoughReplicas));
    }
    for receipt in send(&appender, 0, 1..2).await {
        let error = receipt.await.unwrap_err();
        assert_eq!((error.code(), error.is_uncertain()), (Some(ErrorCode::NotEnoughReplicas), false));
    }
    fake.heal("t", 0);
    for receipt in send(&appender, 0, 2..5).await {
        receipt.await.unwrap();
    }
    assert_eq!(values(&fake, 0), ["0", "2", "3", "4"]);
}

#[tokio::test]
async fn every_codec_nulls_and_headers_arrive() {
    for codec in Codec::ALL {
        for acks in [Acks::All, Acks::Leader] {
            let fake = FakeCluster::start(1).await;
            fake.create_topic("t", 1);
            let config = AppenderConfig { codec, acks, ..AppenderConfig::default() };
            let appender = connect(&fake).await.appender(config).await.unwrap();
            let header = |value: Option<&'static [u8]>| crate::Header {
                key: Bytes::from_static(b"h"),
                value: value.map(Bytes::from_static),
            };
            let record = NewRecord {
                key: Some(Bytes::new()),
                value: None,
                headers: vec![header(None), header(Some(b"")), header(Some(b"\xff"))],
                timestamp: Some(Timestamp(77)),
            };
            let receipt = appender.send("t", None, record).await.unwrap();
            appender.flush().await.unwrap();
            assert_eq!(receipt.await.unwrap().timestamp, Timestamp(77));
            let found = fake.records("t", 0).remove(0);
            let header = |value: Option<&'static [u8]>| v1::Header {
                key: "h".to_owned(),
                value: value.map(Bytes::from_static),
            };
            assert_eq!(found.key, Some(Bytes::new()));
            assert_eq!(found.value, None);
            assert_eq!(found.headers, [header(None), header(Some(b"")), header(Some(b"\xff"))]);
        }
    }
}

#[tokio::test]
async fn keys_decide_and_keyless_records_take_turns_by_batch() {
    let fake = FakeCluster::start(2).await;
    fake.create_topic("t", 4);
    let appender = connect(&fake).await.appender(small()).await.unwrap();
    let mut used = std::collections::BTreeSet::new();
    for number in 0..20 {
        let receipt = appender.send("t", None, text(&number.to_string())).await.unwrap();
        used.insert(receipt.await.unwrap().partition);
    }
    assert_eq!(used.len(), 4);
    let record = NewRecord { key: Some(Bytes::from_static(b"foobar")), ..text("v") };
    let receipt = appender.send("t", None, record).await.unwrap();
    assert_eq!(receipt.await.unwrap().partition, crate::partition_for_key(b"foobar", 4));
    let error = appender.send("t", Some(PartitionIndex(4)), text("v")).await.unwrap_err();
    assert_eq!(error.to_string(), "topic t has partitions 0 to 3, not 4");
    let error = appender.send("absent", None, text("v")).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::UnknownTopicOrPartition));
}

#[tokio::test]
async fn a_small_buffer_slows_the_sender_and_loses_nothing() {
    let fake = FakeCluster::start(1).await;
    fake.create_topic("t", 1);
    let config = AppenderConfig { buffer_bytes: 200, ..small() };
    let appender = connect(&fake).await.appender(config).await.unwrap();
    let receipts = send(&appender, 0, 0..200).await;
    appender.flush().await.unwrap();
    drop(receipts);
    assert_eq!(values(&fake, 0), numbers(0..200));
    let error = appender.send("t", None, text(&"x".repeat(300))).await.unwrap_err();
    assert!(matches!(error, Error::RecordTooLarge { bound: 200, .. }), "{error}");
}

fn record(value: usize) -> v1::Record {
    v1::Record {
        value: Some(value.to_string().into()),
        timestamp_ms: Some(1000 + value as i64),
        ..v1::Record::default()
    }
}

async fn read_all(cluster: &Cluster, options: ReadOptions) -> Result<Vec<i64>, Error> {
    let mut reader = cluster.read(options);
    let mut offsets = Vec::new();
    while let Some(answer) = reader.next().await {
        offsets.extend(answer?.records.unwrap_or_default().records.iter().map(|record| record.offset));
    }
    Ok(offsets)
}

#[tokio::test]
async fn reading_goes_on_where_it_was_when_streams_break_and_leaders_move() {
    let fake = FakeCluster::start(3).await;
    fake.create_topic("t", 1);
    fake.put("t", 0, (0..50).map(record));
    for after in [0, 1, 5, 0, 7] {
        fake.break_fetch("t", 0, after);
    }
    let cluster = connect(&fake).await;
    let options = ReadOptions { stop_at_end: true, ..ReadOptions::new("t", PartitionIndex(0), Offset(3)) };
    assert_eq!(read_all(&cluster, options.clone()).await.unwrap(), (3..50).collect::<Vec<_>>());
    assert_eq!(fake.fetches(), 6);

    fake.move_leader("t", 0, 2);
    let options = ReadOptions { until: Some(Offset(20)), ..options };
    assert_eq!(read_all(&cluster, options.clone()).await.unwrap(), (3..20).collect::<Vec<_>>());

    fake.stop(0);
    fake.move_leader("t", 0, 1);
    assert_eq!(read_all(&cluster, options).await.unwrap(), (3..20).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_reader_waits_for_more_and_says_when_the_offset_is_gone() {
    let fake = FakeCluster::start(1).await;
    fake.create_topic("t", 1);
    let cluster = connect(&fake).await;
    let mut reader = cluster.read(ReadOptions::new("t", PartitionIndex(0), Offset(0)));
    fake.put("t", 0, [record(1)]);
    assert_eq!(reader.next().await.unwrap().unwrap().next_offset, 1);
    fake.put("t", 0, [record(2)]);
    assert_eq!(reader.next().await.unwrap().unwrap().next_offset, 2);
    let error = read_all(&cluster, ReadOptions::new("t", PartitionIndex(0), Offset(9))).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::OffsetOutOfRange));
    assert_eq!(error.to_string(), format!("cannot read t-0 at offset 9 at {}", fake.addresses()[0]));
}

#[tokio::test]
async fn offsets_are_found_and_records_deleted_at_the_leader() {
    let fake = FakeCluster::start(2).await;
    fake.create_topic("t", 2);
    fake.put("t", 1, (0..10).map(record));
    let cluster = connect(&fake).await;
    let find = |at| {
        let query = OffsetQuery { topic: "t".to_owned(), partition: PartitionIndex(1), at };
        let cluster = cluster.clone();
        async move { cluster.find_offset(&query, Isolation::ReadUncommitted).await.unwrap().offset }
    };
    assert_eq!(find(At::Earliest).await, Some(Offset(0)));
    assert_eq!(find(At::Latest).await, Some(Offset(10)));
    assert_eq!(find(At::Time(Timestamp(1004))).await, Some(Offset(4)));
    assert_eq!(find(At::Time(Timestamp(5000))).await, None);
    fake.move_leader("t", 1, 0);
    assert_eq!(cluster.delete_records("t", PartitionIndex(1), Some(Offset(6))).await.unwrap(), Offset(6));
    assert_eq!(find(At::Earliest).await, Some(Offset(6)));
    assert_eq!(cluster.delete_records("t", PartitionIndex(1), None).await.unwrap(), Offset(10));
    let error = cluster.delete_records("t", PartitionIndex(1), Some(Offset(99))).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::OffsetOutOfRange));
}

#[tokio::test]
async fn topics_are_made_changed_and_deleted() {
    let fake = FakeCluster::start(2).await;
    let admin = connect(&fake).await.admin();
    let new = v1::NewTopic { name: "a".to_owned(), partitions: 3, ..v1::NewTopic::default() };
    admin.create_topic(new.clone(), true).await.unwrap();
    assert!(admin.list_topics().await.unwrap().is_empty());
    assert_eq!(admin.create_topic(new.clone(), false).await.unwrap().partitions, 3);
    let error = admin.create_topic(new, false).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::TopicAlreadyExists));
    let more = v1::CreatePartitionsRequest { topic: "a".to_owned(), count: 5, ..Default::default() };
    admin.create_partitions(more).await.unwrap();
    assert_eq!(admin.describe_topic("a").await.unwrap().partitions.len(), 5);
    let topic = Resource::Topic("a".to_owned());
    let set = ConfigChange::Set("retention.ms".to_owned(), "5".to_owned());
    admin.alter_configs(&topic, &[set], false).await.unwrap();
    let mut seen = String::new();
    for entry in admin.describe_configs(&topic).await.unwrap() {
        writeln!(seen, "{}={}", entry.name, entry.value).unwrap();
    }
    assert_eq!(seen, "retention.ms=5\n");
    assert_eq!(admin.describe_log_dirs(BrokerId(1)).await.unwrap()[0].path, "/data/1");
    let error = admin.describe_log_dirs(BrokerId(7)).await.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::BrokerIdNotRegistered));
    admin.delete_topic("a").await.unwrap();
    assert_eq!(admin.delete_topic("a").await.unwrap_err().code(), Some(ErrorCode::UnknownTopicOrPartition));
}

#[tokio::test]
async fn a_change_whose_answer_is_lost_is_not_made_twice() {
    let fake = FakeCluster::start(1).await;
    let admin = connect(&fake).await.admin();
    fake.call_fault(CallFault::Refuse(ErrorCode::NotController));
    fake.call_fault(CallFault::DropAnswer);
    let new = v1::NewTopic { name: "a".to_owned(), partitions: 1, ..v1::NewTopic::default() };
    let error = admin.create_topic(new, false).await.unwrap_err();
    assert!(error.is_uncertain(), "{error}");
    assert_eq!(admin.list_topics().await.unwrap().len(), 1);
    fake.call_fault(CallFault::DropAnswer);
    assert_eq!(admin.list_topics().await.unwrap().len(), 1);
}

#[tokio::test]
async fn every_server_is_tried_and_named() {
    let fake = FakeCluster::start(1).await;
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let servers = [nobody.clone(), fake.addresses()[0].clone()];
    let cluster = Cluster::connect(&servers, quick()).await.unwrap();
    assert_eq!(cluster.brokers().len(), 1);
    let error = Cluster::connect(&servers[..1], quick()).await.unwrap_err().to_string();
    assert_eq!(error, format!("no server answers: tried {nobody} (Connection refused (os error 111))"));
    let error = Cluster::connect(&["nonsense".to_owned()], quick()).await.unwrap_err().to_string();
    assert_eq!(error, "\"nonsense\" is not an address of the form HOST:PORT");
}

#[tokio::test]
async fn the_watch_shows_changes_in_order() {
    let fake = FakeCluster::start(1).await;
    let mut watch = connect(&fake).await.watch(0).await.unwrap();
    let first = watch.message().await.unwrap().unwrap();
    assert!(first.full && first.topics.is_empty());
    fake.create_topic("t", 1);
    let second = watch.message().await.unwrap().unwrap();
    assert!(second.index > first.index && second.topics.len() == 1);
}

/// One of the things that can befall a produce request; the last two are for good.
fn some_fault() -> impl proptest::strategy::Strategy<Value = Fault> {
    proptest::sample::select(vec![
        Fault::DropAnswer,
        Fault::DropRequest,
        Fault::Move(0),
        Fault::Move(1),
        Fault::Refuse(ErrorCode::NotEnoughReplicas),
        Fault::Refuse(ErrorCode::KafkaStorageError),
        Fault::AppendAndRefuse(ErrorCode::RequestTimedOut),
        Fault::AppendAndRefuse(ErrorCode::NotEnoughReplicasAfterAppend),
        Fault::Refuse(ErrorCode::InvalidRecord),
        Fault::Refuse(ErrorCode::PolicyViolation),
    ])
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: 48, ..Default::default() })]

    /// Invariant 4 as a client sees it: what is acknowledged is there once at its offset, what certainly failed is
    /// not there, and the order is that of sending.
    #[test]
    fn any_run_of_faults_leaves_each_record_once_and_in_order(
        warm in proptest::prelude::any::<bool>(),
        in_flight_max in 1..6_usize,
        batch_bytes in 40..300_usize,
        faults in proptest::collection::vec(some_fault(), 0..12),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let fake = FakeCluster::start(2).await;
            fake.create_topic("t", 1);
            let config = AppenderConfig { in_flight_max, batch_bytes, ..small() };
            let appender = connect(&fake).await.appender(config).await.unwrap();
            let mut receipts = Vec::new();
            if warm {
                receipts.extend(send(&appender, 0, 0..3).await);
                appender.flush().await.unwrap();
            }
            for fault in &faults {
                fake.fault("t", 0, *fault);
            }
            receipts.extend(send(&appender, 0, receipts.len()..60).await);
            appender.flush().await.unwrap();
            let log: Vec<usize> = values(&fake, 0).iter().map(|value| value.parse().unwrap()).collect();
            assert!(log.is_sorted_by(|a, b| a < b), "{faults:?}: {log:?}");
            for (value, receipt) in receipts.into_iter().enumerate() {
                match receipt.await {
                    Ok(appended) => {
                        let at = usize::try_from(appended.offset.unwrap().get()).unwrap();
                        assert_eq!(log.get(at), Some(&value), "{faults:?}");
                    }
                    Err(error) => {
                        assert!(error.is_uncertain() || !log.contains(&value), "{faults:?}: {value}: {error}");
                    }
                }
            }
        });
    }
}
