//! A broker's start and stop, against a controller that does only what the test tells it.

mod fake;

use std::{
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use semel_broker::{Broker, Config, FrontDoor, Limits, ListenerConfig, StartError, Surroundings};
use semel_model::BrokerId;
use semel_proto::v1::{
    self, ErrorCode, admin_service_client::AdminServiceClient, log_service_client::LogServiceClient,
    produce_request::Payload,
};
use semel_service::{
    grpc::{ChannelConfig, Server, ServerConfig, channel},
    health::Health,
    metrics::Registry,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::fake::{Fake, TOPIC};

/// Far above what anything here takes.
const LIMIT: Duration = Duration::from_secs(60);
const CLEAN_MARK: &str = ".kafka_cleanshutdown";

fn config(log_dir: &Path, controller: &str) -> Config {
    Config {
        id: BrokerId(fake::BROKER),
        log_dirs: vec![log_dir.to_owned()],
        kafka: ListenerConfig {
            name: "PLAINTEXT".to_owned(),
            bind: "127.0.0.1:0".to_owned(),
            advertised: None,
        },
        grpc_advertised: None,
        controllers: vec![controller.to_owned()],
        rack: None,
        settings: [("semel.durability".to_owned(), "fsync".to_owned())].into(),
    }
}

/// A served front door, and its address.
async fn serve(door: &FrontDoor, health: &Health) -> (std::net::SocketAddr, CancellationToken) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let server = door.add_to(Server::new(ServerConfig::default(), &Registry::new(), health));
    tokio::spawn(server.serve(listener, stop.clone()));
    (address, stop)
}

fn code(status: &tonic::Status) -> ErrorCode {
    v1::Error::from_status(status).error_code()
}

fn record(value: &'static [u8]) -> v1::ProduceRequest {
    v1::ProduceRequest {
        topic: TOPIC.to_owned(),
        payload: Some(Payload::Records(v1::Records {
            records: vec![v1::Record { value: Some(value.into()), ..Default::default() }],
        })),
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_metadata_stream_is_left_and_a_stop_closes_the_grpc_door() {
    let temporary = tempfile::tempdir().unwrap();
    let (fake, controller) = Fake::start().await;
    let health = Health::new();
    let door = FrontDoor::with_limits(Limits { message_bytes_max: 1 << 20, produce_bytes_max: 1 << 20 });
    let (grpc, stop_server) = serve(&door, &health).await;
    let mut client = LogServiceClient::new(channel(&grpc.to_string(), &ChannelConfig::default()).unwrap())
        .max_encoding_message_size(usize::MAX);
    let early = client.produce(record(b"early")).await.unwrap_err();
    assert_eq!(code(&early), ErrorCode::BrokerNotAvailable);

    // The first stream ends its news before the broker is unfenced; the start is done only if it is left for another.
    let stop = CancellationToken::new();
    let surroundings =
        Surroundings { registry: Registry::new(), health: health.clone(), grpc, stop: stop.clone() };
    let start = Broker::start(config(temporary.path(), &controller), surroundings, &door);
    let broker = tokio::time::timeout(LIMIT, start).await.unwrap().unwrap();
    assert!(fake.watches() >= 2);
    let mut states = health.subscribe();
    tokio::time::timeout(LIMIT, states.wait_for(semel_service::health::Snapshot::is_ready))
        .await
        .unwrap()
        .unwrap();

    let done = client.produce(record(b"value")).await.unwrap().into_inner();
    assert_eq!(done.base_offset, 0);
    // Refused by its length, before it is in memory.
    let too_large =
        v1::ProduceRequest { payload: Some(Payload::Batch(vec![0; 2 << 20].into())), ..record(b"") };
    assert_eq!(client.produce(too_large).await.unwrap_err().code(), tonic::Code::OutOfRange);
    let request = v1::FetchRequest { topic: TOPIC.to_owned(), ..Default::default() };
    let mut stream = client.fetch(request).await.unwrap().into_inner();
    let first = stream.message().await.unwrap().unwrap();
    assert_eq!((first.next_offset, first.records.unwrap().records.len()), (1, 1));

    let (ended, ()) = tokio::join!(stream.message(), broker.stop());
    assert_eq!(code(&ended.unwrap_err()), ErrorCode::BrokerNotAvailable);
    let late = client.produce(record(b"late")).await.unwrap_err();
    assert_eq!(code(&late), ErrorCode::BrokerNotAvailable);
    assert!(temporary.path().join(CLEAN_MARK).is_file());
    stop_server.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_that_is_stopped_before_the_broker_is_unfenced_serves_nothing() {
    let temporary = tempfile::tempdir().unwrap();
    let (fake, controller) = Fake::start().await;
    fake.never_unfence();
    let health = Health::new();
    let door = FrontDoor::new();
    let stop = CancellationToken::new();
    let surroundings = Surroundings {
        registry: Registry::new(),
        health: health.clone(),
        grpc: "127.0.0.1:1".parse().unwrap(),
        stop: stop.clone(),
    };
    let start = Broker::start(config(temporary.path(), &controller), surroundings, &door);
    let stopping = async {
        fake.first_heartbeat().await;
        stop.cancel();
    };
    let (started, ()) = tokio::time::timeout(LIMIT, async { tokio::join!(start, stopping) }).await.unwrap();
    assert!(matches!(started, Err(StartError::Stopped)));
    assert!(!health.snapshot().started);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_one_of_its_directories_a_broker_serves_what_is_not_in_it() {
    let temporary = tempfile::tempdir().unwrap();
    let bad = temporary.path().join("bad");
    std::fs::write(&bad, "a file where a directory should be").unwrap();
    let good = temporary.path().join("good");
    let (_fake, controller) = Fake::start().await;
    let (health, door) = (Health::new(), FrontDoor::new());
    let (grpc, stop_server) = serve(&door, &health).await;
    let surroundings =
        Surroundings { registry: Registry::new(), health, grpc, stop: CancellationToken::new() };
    let config = Config { log_dirs: vec![good.clone(), bad.clone()], ..config(&good, &controller) };
    let start = Broker::start(config, surroundings, &door);
    let broker = tokio::time::timeout(LIMIT, start).await.unwrap().unwrap();

    // The partition was there before this start and is not in the good directory: it must not begin anew in it.
    let grpc = grpc.to_string();
    let mut client = LogServiceClient::new(channel(&grpc, &ChannelConfig::default()).unwrap());
    let refused = client.produce(record(b"value")).await.unwrap_err();
    assert_eq!(code(&refused), ErrorCode::KafkaStorageError);
    assert!(!good.join(format!("{TOPIC}-0")).exists());
    let mut admin = AdminServiceClient::new(channel(&grpc, &ChannelConfig::default()).unwrap());
    let described = admin.describe_log_dirs(v1::DescribeLogDirsRequest {}).await.unwrap().into_inner();
    let failed: Vec<_> = described.directories.iter().filter(|dir| dir.error.is_some()).collect();
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0].path, bad.display().to_string());
    broker.stop().await;
    assert!(good.join(CLEAN_MARK).is_file());
    stop_server.cancel();
}

/// Waits until `condition` holds.
fn until(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..6000 {
        if condition() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("{what} did not happen");
}

#[test]
fn a_signal_while_no_controller_is_there_ends_the_process_cleanly() {
    let temporary = tempfile::tempdir().unwrap();
    let logs = temporary.path().join("logs");
    let file = temporary.path().join("broker.toml");
    // Nothing listens on port 1.
    let text = format!(
        "node-id = 0\nlog-dirs = [{logs:?}]\ncontrollers = [\"127.0.0.1:1\"]\n\
         kafka.listen = \"127.0.0.1:0\"\ngrpc.listen = \"127.0.0.1:0\"\nhttp.listen = \"127.0.0.1:0\"\n"
    );
    std::fs::write(&file, text).unwrap();
    let mark = logs.join(CLEAN_MARK);
    for run in 0..2 {
        let mut broker = Command::new(env!("CARGO_BIN_EXE_semel-broker"))
            .arg("--config")
            .arg(&file)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        match run {
            0 => until("the first opening", || logs.join("meta.properties").is_file()),
            _ => until("the mark's removal", || !mark.exists()),
        }
        kill_process(Pid::from_child(&broker), Signal::TERM).unwrap();
        until("the end", || broker.try_wait().unwrap().is_some());
        let output = broker.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0));
        assert!(output.stdout.is_empty(), "it said that it is ready");
        if run == 0 {
            assert!(!mark.exists(), "a new directory was never properly ended");
            std::fs::write(&mark, "{\"version\":\"0\",\"broker_epoch\":\"7\"}").unwrap();
        } else {
            assert_eq!(std::fs::read_to_string(&mark).unwrap(), "{\"version\":\"0\",\"broker_epoch\":\"7\"}");
        }
    }
}
