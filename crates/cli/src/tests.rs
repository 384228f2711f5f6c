//! The commands against a fake cluster.

use std::{
    io::{self, Cursor, Write},
    sync::{Arc, Mutex},
};

use clap::Parser as _;
use expect_test::{Expect, expect};
use semel_client::{
    fake::{CallFault, FakeCluster, Fault},
    v1::{self, ErrorCode},
};

use crate::{Cli, output::Io, run_with};

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn text(&self) -> String {
        self.0
            .lock()
            .unwrap()
            .escape_ascii()
            .to_string()
            .replace("\\n", "\n")
            .replace("\\\"", "\"")
            .replace("\\'", "'")
    }
}

struct Ran {
    code: u8,
    out: String,
    err: String,
}

async fn semel_with(servers: &[String], args: &[&str], stdin: &[u8]) -> Ran {
    let servers = servers.join(",");
    let line = ["semel", "--server", &servers].into_iter().chain(args.iter().copied());
    let cli = Cli::try_parse_from(line).unwrap_or_else(|error| panic!("{error}"));
    let (out, err) = (Shared::default(), Shared::default());
    let io = Io::fake(Cursor::new(stdin.to_vec()), out.clone(), err.clone());
    let code = run_with(cli.command, cli.global, io).await;
    Ran { code, out: out.text(), err: err.text() }
}

async fn semel(fake: &FakeCluster, args: &str, stdin: &str) -> Ran {
    let args: Vec<&str> = args.split_whitespace().collect();
    let mut ran = semel_with(&fake.addresses(), &args, stdin.as_bytes()).await;
    for (id, address) in fake.addresses().iter().enumerate() {
        for text in [&mut ran.out, &mut ran.err] {
            *text = text.replace(address, &format!("BROKER{id}"));
        }
    }
    ran
}

/// Runs commands one after the other and compares what they print.
async fn check(fake: &FakeCluster, commands: &[(&str, &str)], expected: Expect) {
    let mut all = String::new();
    for (args, stdin) in commands {
        let ran = semel(fake, args, stdin).await;
        all.push_str(&format!("$ semel {args}\n{}", ran.out));
        for line in ran.err.lines().filter(|line| !line.contains("records/s")) {
            all.push_str(&format!("! {line}\n"));
        }
        if ran.code != 0 {
            all.push_str(&format!("exit {}\n", ran.code));
        }
    }
    expected.assert_eq(&all);
}

fn record(value: &str, timestamp: i64) -> v1::Record {
    v1::Record {
        key: Some("k".into()),
        value: Some(value.to_owned().into()),
        timestamp_ms: Some(timestamp),
        ..v1::Record::default()
    }
}

#[tokio::test]
async fn topics_live_and_die() {
    let fake = FakeCluster::start(2).await;
    check(
        &fake,
        &[
            ("topic list", ""),
            ("topic create orders -p 3 --set retention.ms=3600000", ""),
            ("topic create orders", ""),
            ("topic create orders --if-not-exists", ""),
            ("topic create other --validate-only", ""),
            ("topic ls", ""),
            ("topic describe orders", ""),
            ("topic add-partitions orders --total 4", ""),
            ("topic add-partitions orders --total 2", ""),
            ("topic alter orders --set max.message.bytes=2097152 --unset retention.ms", ""),
            ("topic configs orders", ""),
            ("topic configs orders --changed -v", ""),
            ("topic delete orders", ""),
            ("topic delete orders --if-exists", ""),
            ("topic describe orders", ""),
        ],
        expect![[r#"
            $ semel topic list
            ! no topics; make one with: semel topic create NAME
            $ semel topic create orders -p 3 --set retention.ms=3600000
            topic orders created: 3 partitions, 1 replica of each
            $ semel topic create orders
            ! semel: cannot create topic orders at BROKER0: TOPIC_ALREADY_EXISTS: topic orders already exists
            !   see it: semel topic describe orders --server BROKER0,BROKER1
            exit 1
            $ semel topic create orders --if-not-exists
            topic orders exists already
            $ semel topic create other --validate-only
            topic other could be created: 1 partition, 1 replica of each
            $ semel topic ls
            TOPIC   PARTITIONS  REPLICAS  HEALTH
            orders           3         1  ok
            $ semel topic describe orders
            topic orders  id AAAAAAAAAAAAAAAAAAAAAQ  3 partitions  ok
            PARTITION  LEADER  EPOCH  REPLICAS  ISR  OFFLINE
                    0       0      0  0         0    -
                    1       1      0  1         1    -
                    2       0      0  0         0    -
            $ semel topic add-partitions orders --total 4
            topic orders has 4 partitions
            $ semel topic add-partitions orders --total 2
            ! semel: cannot add partitions to topic orders at BROKER0: INVALID_PARTITIONS: topic orders has 4 partitions already
            !   see how many it has: semel topic describe orders --server BROKER0,BROKER1
            exit 1
            $ semel topic alter orders --set max.message.bytes=2097152 --unset retention.ms
            topic orders: 2 entries changed
            $ semel topic configs orders
            NAME               VALUE              SOURCE
            max.message.bytes  2097152 (2.0 MiB)  topic
            retention.ms       604800000 (7 d)    default
            $ semel topic configs orders --changed -v
            NAME               VALUE              SOURCE  WHAT IT DOES
            max.message.bytes  2097152 (2.0 MiB)  topic   What max.message.bytes does.
            $ semel topic delete orders
            topic orders deleted
            $ semel topic delete orders --if-exists
            topic orders was not there
            $ semel topic describe orders
            ! semel: cannot describe topic orders at BROKER0 after 5 attempts: UNKNOWN_TOPIC_OR_PARTITION: topic orders does not exist
            !   see which topics there are: semel topic list --server BROKER0,BROKER1; or make it: semel topic create orders --server BROKER0,BROKER1
            exit 1
        "#]],
    )
    .await;
}

#[tokio::test]
async fn json_is_exact() {
    let fake = FakeCluster::start(1).await;
    check(
        &fake,
        &[
            ("--output json topic create t", ""),
            ("--output json topic list", ""),
            ("--output json topic describe t", ""),
            ("--output json topic offsets t", ""),
            ("--output json topic configs t", ""),
            ("--output json cluster status", ""),
            ("--output json cluster quorum", ""),
            ("--output json cluster log-dirs", ""),
            ("--output json topic delete t", ""),
        ],
        expect![[r#"
            $ semel --output json topic create t
            [
              {
                "created": true,
                "name": "t",
                "partitions": 1,
                "replication_factor": 1,
                "topic_id": "AAAAAAAAAAAAAAAAAAAAAQ"
              }
            ]
            $ semel --output json topic list
            [
              {
                "internal": false,
                "name": "t",
                "partitions": [
                  {
                    "isr": [
                      0
                    ],
                    "leader": 0,
                    "leader_epoch": 0,
                    "offline_replicas": [],
                    "partition": 0,
                    "replicas": [
                      0
                    ]
                  }
                ],
                "topic_id": "AAAAAAAAAAAAAAAAAAAAAQ"
              }
            ]
            $ semel --output json topic describe t
            [
              {
                "internal": false,
                "name": "t",
                "partitions": [
                  {
                    "isr": [
                      0
                    ],
                    "leader": 0,
                    "leader_epoch": 0,
                    "offline_replicas": [],
                    "partition": 0,
                    "replicas": [
                      0
                    ]
                  }
                ],
                "topic_id": "AAAAAAAAAAAAAAAAAAAAAQ"
              }
            ]
            $ semel --output json topic offsets t
            [
              {
                "end": 0,
                "latest_timestamp": null,
                "partition": 0,
                "start": 0
              }
            ]
            $ semel --output json topic configs t
            [
              {
                "documentation": "What retention.ms does.",
                "name": "retention.ms",
                "read_only": false,
                "source": "default",
                "value": "604800000"
              }
            ]
            $ semel --output json cluster status
            {
              "brokers": 1,
              "cluster_id": "AAAAAAAAAAAAAAAAAAAAKg",
              "controller_epoch": 3,
              "controller_leader": 1,
              "controllers": 1,
              "fenced_brokers": 0,
              "leaderless_partitions": 0,
              "metadata_index": 42,
              "partitions": 1,
              "topics": 1,
              "under_replicated_partitions": 0
            }
            $ semel --output json cluster quorum
            {
              "controller_epoch": 3,
              "controllers": [
                {
                  "grpc_address": "127.0.0.1:9191",
                  "id": 1,
                  "leader": true
                }
              ],
              "metadata_index": 42
            }
            $ semel --output json cluster log-dirs
            [
              {
                "broker": 0,
                "error": null,
                "path": "/data/0",
                "replicas": [
                  {
                    "log_end_offset": 0,
                    "log_start_offset": 0,
                    "partition": 0,
                    "size_bytes": 0,
                    "topic": "t"
                  }
                ],
                "total_bytes": 10737418240,
                "usable_bytes": 4294967296
              }
            ]
            $ semel --output json topic delete t
            [
              {
                "deleted": true,
                "name": "t"
              }
            ]
        "#]],
    )
    .await;
}

#[tokio::test]
async fn the_cluster_is_shown() {
    let fake = FakeCluster::start(2).await;
    fake.create_topic("t", 2);
    fake.put("t", 0, (0..20).map(|at| record("v", at)));
    check(
        &fake,
        &[
            ("cluster status", ""),
            ("cluster brokers", ""),
            ("cluster quorum", ""),
            ("cluster log-dirs -v", ""),
            ("cluster log-dirs -b 7", ""),
            ("cluster watch -c 1", ""),
        ],
        expect![[r#"
            $ semel cluster status
            cluster      AAAAAAAAAAAAAAAAAAAAKg
            brokers      2
            controllers  1, 1 leads in epoch 3
            topics       1 with 2 partitions
            health       ok
            metadata     index 42
            $ semel cluster brokers
            ID  KAFKA           GRPC             RACK  STATE
             0  127.0.0.1:9092  BROKER0  -     serving
             1  127.0.0.1:9093  BROKER1  -     serving
            $ semel cluster quorum
            ID  GRPC            ROLE
             1  127.0.0.1:9191  leader
            epoch 3, metadata index 42
            $ semel cluster log-dirs -v
            BROKER  DIRECTORY  REPLICAS     SIZE     FREE     TOTAL  STATE
                 0  /data/0           1  2.0 KiB  4.0 GiB  10.0 GiB  ok
                 1  /data/1           1      0 B  4.0 GiB  10.0 GiB  ok

            BROKER  PARTITION     SIZE  START  END  DIRECTORY
                 0  t-0        2.0 KiB      0   20  /data/0
                 1  t-1            0 B      0    0  /data/1
            $ semel cluster log-dirs -b 7
            ! semel: cannot describe the log directories of broker 7 at BROKER0: BROKER_ID_NOT_REGISTERED: there is no broker 7
            !   see which brokers there are: semel cluster brokers --server BROKER0,BROKER1
            exit 1
            $ semel cluster watch -c 1
            6  controller epoch 3
            6  broker 0 serving at BROKER0
            6  broker 1 serving at BROKER1
            6  topic t with 2 partitions
        "#]],
    )
    .await;
}

#[tokio::test]
async fn offsets_are_looked_up_and_records_deleted() {
    let fake = FakeCluster::start(2).await;
    fake.create_topic("t", 2);
    fake.put("t", 0, (0..10).map(|at| record("v", 1_700_000_000_000 + at)));
    check(
        &fake,
        &[
            ("topic offsets t", ""),
            ("topic offsets t -p 0 --at @1700000000004", ""),
            ("topic offsets t --at -3", ""),
            ("topic offsets t -p 5", ""),
            ("topic delete-records t -p 0 --before 4", ""),
            ("topic delete-records t -p 0 --before 99", ""),
            ("topic delete-records t --all-partitions --before end", ""),
            ("topic offsets absent", ""),
        ],
        expect![[r#"
            $ semel topic offsets t
            PARTITION  START  END  RECORDS  LATEST TIME
                    0      0   10       10  2023-11-14T22:13:20.009Z
                    1      0    0        0  -
            10 offsets altogether
            $ semel topic offsets t -p 0 --at @1700000000004
            PARTITION  OFFSET
                    0       4
            $ semel topic offsets t --at -3
            PARTITION  OFFSET
                    0       7
                    1       0
            $ semel topic offsets t -p 5
            ! semel: topic t has partitions 0 to 1, not 5
            !   see its partitions: semel topic describe t --server BROKER0,BROKER1
            exit 1
            $ semel topic delete-records t -p 0 --before 4
            t-0 now starts at offset 4
            $ semel topic delete-records t -p 0 --before 99
            ! semel: cannot delete records of t-0 at BROKER0: OFFSET_OUT_OF_RANGE: offset 99 is past the high watermark 10
            !   see which offsets it has: semel topic offsets t --server BROKER0,BROKER1
            exit 1
            $ semel topic delete-records t --all-partitions --before end
            t-0 now starts at offset 10
            t-1 now starts at offset 0
            $ semel topic offsets absent
            ! semel: cannot find topic absent at BROKER0 after 5 attempts: UNKNOWN_TOPIC_OR_PARTITION: topic absent does not exist
            !   see which topics there are: semel topic list --server BROKER0,BROKER1; or make it: semel topic create absent --server BROKER0,BROKER1
            exit 1
        "#]],
    )
    .await;
}

#[tokio::test]
async fn lines_go_in_and_come_out() {
    let fake = FakeCluster::start(1).await;
    fake.create_topic("t", 1);
    check(
        &fake,
        &[
            ("produce t", "one\n\nthree"),
            ("produce t -k : -H trace=abc --null NULL", "a:1\nb:NULL\nno key\nc:x:y\n"),
            ("produce t --key fixed -D ;", "x;y;"),
            ("consume t -e", ""),
            ("consume t -e -o 3 -f %t-%p@%o|%k|%s|%K|%S|%h\\n", ""),
            ("consume t -e -o -2 -k =", ""),
            ("consume t -o 1 -c 2 --null NULL -D |", ""),
            ("consume t --from 1 --to 3 -f %o,", ""),
            ("consume t -o end -e", ""),
            ("consume t -o 99 -e", ""),
            ("consume t -p 1", ""),
            ("consume absent", ""),
            ("produce absent", "x"),
            ("produce t -p 3", "x"),
        ],
        expect![[r#"
            $ semel produce t
            $ semel produce t -k : -H trace=abc --null NULL
            $ semel produce t --key fixed -D ;
            $ semel consume t -e
            one

            three
            1

            no key
            x:y
            x
            y
            $ semel consume t -e -o 3 -f %t-%p@%o|%k|%s|%K|%S|%h\n
            t-0@3|a|1|1|1|trace=abc
            t-0@4|b||1|-1|trace=abc
            t-0@5||no key|-1|6|trace=abc
            t-0@6|c|x:y|1|3|trace=abc
            t-0@7|fixed|x|5|1|
            t-0@8|fixed|y|5|1|
            $ semel consume t -e -o -2 -k =
            fixed=x
            fixed=y
            $ semel consume t -o 1 -c 2 --null NULL -D |
            |three|$ semel consume t --from 1 --to 3 -f %o,
            1,2,$ semel consume t -o end -e
            $ semel consume t -o 99 -e
            ! semel: cannot read t-0 at offset 99 at BROKER0: OFFSET_OUT_OF_RANGE: the log has offsets 0 to 9
            !   see which offsets it has: semel topic offsets t --server BROKER0
            exit 1
            $ semel consume t -p 1
            ! semel: topic t has partitions 0 to 0, not 1
            !   see its partitions: semel topic describe t --server BROKER0
            exit 1
            $ semel consume absent
            ! semel: cannot find topic absent at BROKER0 after 5 attempts: UNKNOWN_TOPIC_OR_PARTITION: topic absent does not exist
            !   see which topics there are: semel topic list --server BROKER0; or make it: semel topic create absent --server BROKER0
            exit 1
            $ semel produce absent
            ! semel: cannot find topic absent at BROKER0 after 5 attempts: UNKNOWN_TOPIC_OR_PARTITION: topic absent does not exist
            !   see which topics there are: semel topic list --server BROKER0; or make it: semel topic create absent --server BROKER0
            exit 1
            $ semel produce t -p 3
            ! semel: not all of the input was produced (0 records acknowledged): topic t has partitions 0 to 0, not 3
            !   see its partitions: semel topic describe t --server BROKER0
            exit 1
        "#]],
    )
    .await;
}

#[tokio::test]
async fn what_consume_prints_as_json_produce_takes() {
    let fake = FakeCluster::start(1).await;
    fake.create_topic("a", 1);
    fake.create_topic("b", 1);
    let header =
        |value: Option<&'static str>| v1::Header { key: "h".to_owned(), value: value.map(Into::into) };
    let records = [
        record("plain", 5),
        v1::Record { key: None, value: None, timestamp_ms: Some(6), ..v1::Record::default() },
        v1::Record {
            key: Some("".into()),
            value: Some(vec![0xff, 0xfe].into()),
            headers: vec![header(None), header(Some(""))],
            timestamp_ms: Some(7),
            offset: 0,
        },
    ];
    fake.put("a", 0, records);
    let printed = semel_with(&fake.addresses(), &["consume", "a", "--json", "-e"], b"").await;
    assert_eq!(printed.out.lines().count(), 3, "{}", printed.err);
    let ran = semel_with(&fake.addresses(), &["produce", "b", "--json"], printed.out.as_bytes()).await;
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(fake.records("a", 0), fake.records("b", 0));
    check(
        &fake,
        &[
            ("produce b --json", "\n{\"value\":\"x\",\"timestamp\":9}\n{\"vaule\":\"y\"}\n"),
            ("consume b -e -o -1", ""),
            ("--output json consume b -e -o -1", ""),
            ("--output json consume b -e -o -1 -f %s,", ""),
        ],
        expect![[r#"
            $ semel produce b --json
            ! semel: not all of the input was produced (1 record acknowledged): line 3: it is no record: unknown field `vaule`, expected one of `key`, `value`, `headers`, `partition`, `timestamp`, `topic`, `offset` at line 1 column 8
            exit 1
            $ semel consume b -e -o -1
            x
            $ semel --output json consume b -e -o -1
            {"topic":"b","partition":0,"offset":3,"timestamp":9,"key":null,"value":"x","headers":[]}
            $ semel --output json consume b -e -o -1 -f %s,
            x,"#]],
    )
    .await;
}

#[tokio::test]
async fn files_are_records_or_lines() {
    let fake = FakeCluster::start(1).await;
    fake.create_topic("t", 1);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (first, second) = (path("1", "a\nb\n"), path("2", "c\n"));
    let servers = fake.addresses();
    for codec in ["none", "gzip", "snappy", "lz4", "zstd"] {
        let ran = semel_with(
            &servers,
            &["produce", "t", "-z", codec, "-l", &first, "-l", &second, "-l", "-"],
            b"d",
        )
        .await;
        assert_eq!(ran.code, 0, "{}", ran.err);
        assert!(ran.err.starts_with("4 records (4 B) to t in "), "{}", ran.err);
    }
    let ran =
        semel_with(&servers, &["produce", "t", "--whole", "-l", &first, "-l", &second, "-q"], b"").await;
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    let values: Vec<_> = fake.records("t", 0).into_iter().map(|record| record.value.unwrap()).collect();
    assert_eq!(values.len(), 22);
    assert_eq!(values[..4], ["a", "b", "c", "d"]);
    assert_eq!(values[20..], ["a\nb\n", "c\n"]);
    let absent = folder.path().join("absent");
    let ran = semel_with(&servers, &["produce", "t", "-l", absent.to_str().unwrap()], b"").await;
    let expected =
        format!("semel: cannot read {}: No such file or directory (os error 2)\n", absent.display());
    assert_eq!((ran.code, ran.err), (1, expected));
}

#[tokio::test]
async fn a_large_input_arrives_whole_through_faults_and_comes_out_equal() {
    let fake = FakeCluster::start(3).await;
    fake.create_topic("t", 1);
    for fault in [Fault::DropAnswer, Fault::Move(1), Fault::DropRequest, Fault::Move(2), Fault::DropAnswer] {
        fake.fault("t", 0, fault);
    }
    let input: String = (0..20_000).map(|number| format!("line {number}\n")).collect();
    let args = ["produce", "t", "--batch-bytes", "20000", "-z", "lz4"];
    let ran = semel_with(&fake.addresses(), &args, input.as_bytes()).await;
    assert_eq!(ran.code, 0, "{}", ran.err);
    fake.break_fetch("t", 0, 7);
    let ran = semel_with(&fake.addresses(), &["consume", "t", "-e"], b"").await;
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out == input, "{} bytes of {}", ran.out.len(), input.len());
}

#[tokio::test]
async fn a_failure_tells_how_far_it_came() {
    let fake = FakeCluster::start(1).await;
    fake.create_topic("t", 1);
    fake.set_batch_bytes_max("t", 100);
    let long = format!("short\n{}\n", "x".repeat(200));
    let ran = semel(&fake, "produce t --linger-ms 0 --batch-bytes 1", &long).await;
    assert_eq!(ran.code, 1);
    let (_, error) = ran.err.split_once('\n').unwrap();
    expect![[r#"
        semel: 1 record failed (1 record acknowledged): cannot append to t-0 at BROKER0: MESSAGE_TOO_LARGE: 270 bytes are more than 100
          to allow it: semel topic alter t --set max.message.bytes=BYTES --server BROKER0
    "#]].assert_eq(error);

    fake.call_fault(CallFault::DropAnswer);
    let ran = semel(&fake, "topic delete t", "").await;
    expect![[r#"
        semel: cannot delete topic t at BROKER0: NETWORK_EXCEPTION: ordered by the test
          it may have been done all the same: look before you repeat it
          see which brokers serve: semel cluster status --server BROKER0
    "#]]
    .assert_eq(&ran.err);

    fake.call_fault(CallFault::Refuse(ErrorCode::PolicyViolation));
    let ran = semel(&fake, "topic create u", "").await;
    expect![[r#"
        semel: cannot create topic u at BROKER0: POLICY_VIOLATION: ordered by the test
    "#]]
    .assert_eq(&ran.err);
}

#[tokio::test]
async fn nobody_there_is_said_with_what_to_do() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let ran = semel_with(std::slice::from_ref(&nobody), &["topic", "list"], b"").await;
    assert_eq!(ran.code, 1);
    expect![[r#"
        semel: no server answers: tried NOBODY (Connection refused (os error 111))
          is the node running? start one with `semel dev`, or name another with --server HOST:PORT (its gRPC port, 9190 by default; 9092 is Kafka's)
    "#]].assert_eq(&ran.err.replace(&nobody, "NOBODY"));
    let ran = semel_with(&["nonsense".to_owned()], &["topic", "list"], b"").await;
    expect![[r#"
        semel: "nonsense" is not an address of the form HOST:PORT
          write it like --server 127.0.0.1:9190
    "#]]
    .assert_eq(&ran.err);
}

#[tokio::test]
async fn a_reader_that_goes_away_ends_it_quietly() {
    struct Closed;
    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let fake = FakeCluster::start(1).await;
    fake.create_topic("t", 1);
    fake.put("t", 0, [record("v", 1)]);
    let cli = Cli::try_parse_from(["semel", "--server", &fake.addresses()[0], "consume", "t"]).unwrap();
    let err = Shared::default();
    let io = Io::fake(Cursor::new(Vec::new()), Closed, err.clone());
    assert_eq!(run_with(cli.command, cli.global, io).await, 0);
    assert_eq!(err.text(), "");
}

#[test]
fn a_command_that_makes_no_sense_is_refused_with_2() {
    crate::command().debug_assert();
    for line in [
        "topic create",
        "topic alter t",
        "topic delete-records t --before 5",
        "topic create t --set nonsense",
        "consume t -f %q",
        "consume t --from middle",
        "produce t -z brotli",
        "produce t -D",
        "produce t --json -k :",
        "produce t --whole",
        "--output yaml topic list",
        "nonsense",
    ] {
        let words = ["semel"].into_iter().chain(line.split_whitespace());
        let error = Cli::try_parse_from(words).expect_err(line);
        assert_eq!(error.exit_code(), 2, "{line}: {error}");
    }
}

#[test]
fn a_binary_joins_its_own_subcommands() {
    #[derive(clap::Parser)]
    struct Whole {
        #[command(flatten)]
        global: crate::Global,
        #[command(subcommand)]
        command: Joined,
    }
    #[derive(clap::Subcommand)]
    enum Joined {
        Dev,
        #[command(flatten)]
        Client(crate::Command),
    }
    let parse =
        |line: &str| Whole::try_parse_from(line.split_whitespace()).map_err(|error| error.to_string());
    assert!(matches!(parse("semel dev").unwrap().command, Joined::Dev));
    let whole = parse("semel topic list --server a:1,b:2 --output json").unwrap();
    assert!(matches!(whole.command, Joined::Client(crate::Command::Topic(_))));
    assert_eq!(whole.global.server, ["a:1", "b:2"]);
}
