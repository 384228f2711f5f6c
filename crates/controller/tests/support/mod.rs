//! Controllers as processes on loopback, a client that finds the leader, and a broker that only lives.

use std::{
    collections::BTreeMap,
    future::Future,
    io::BufReader,
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use semel_env::{Clock as _, RealClock};
use semel_metadata::{ClusterImage, Message, Session};
use semel_proto::{
    internal::v1::{self as pb, controller_service_client::ControllerServiceClient},
    metadata::watch_message,
    v1::{self, ErrorCode},
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Response, Status, Streaming, transport::Channel};

pub(crate) type Client = ControllerServiceClient<Channel>;

/// How long anything may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The processes of a cluster; killed when dropped.
pub(crate) struct Cluster {
    dir: tempfile::TempDir,
    pub(crate) addresses: BTreeMap<u64, String>,
    processes: BTreeMap<u64, Child>,
    environment: Vec<(&'static str, &'static str)>,
    pub(crate) clock: RealClock,
}

impl Cluster {
    pub(crate) fn new(count: u64, environment: &[(&'static str, &'static str)]) -> Self {
        let listeners: Vec<TcpListener> =
            (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let addresses = (1..).zip(listeners.iter().map(|l| l.local_addr().unwrap().to_string())).collect();
        Self {
            dir: tempfile::tempdir().unwrap(),
            addresses,
            processes: BTreeMap::new(),
            environment: environment.to_vec(),
            clock: RealClock::new(),
        }
    }

    pub(crate) fn start_all(&mut self) {
        for id in self.addresses.keys().copied().collect::<Vec<_>>() {
            drop(self.start(id));
        }
    }

    /// Starts a controller; its standard output comes back for the ready line.
    pub(crate) fn start(&mut self, id: u64) -> BufReader<std::process::ChildStdout> {
        let voters: Vec<String> = self.addresses.iter().map(|(id, at)| format!("{id}={at}")).collect();
        let mut child = Command::new(env!("CARGO_BIN_EXE_semel-controller"))
            .args(["--node-id", &id.to_string(), "--grpc", &self.addresses[&id], "--http", "127.0.0.1:0"])
            .args(["--voters", &voters.join(",")])
            .arg("--data")
            .arg(self.data(id))
            .envs(self.environment.iter().copied())
            .env("RUST_LOG", "warn")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        self.processes.insert(id, child);
        output
    }

    pub(crate) fn data(&self, id: u64) -> PathBuf {
        self.dir.path().join(id.to_string())
    }

    /// SIGKILL, and gone.
    pub(crate) fn kill(&mut self, id: u64) {
        let mut child = self.processes.remove(&id).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    pub(crate) fn pid(&self, id: u64) -> u32 {
        self.processes[&id].id()
    }

    /// Waits for a process that was told to end; its exit code.
    pub(crate) fn wait(&mut self, id: u64) -> Option<i32> {
        self.processes.remove(&id).unwrap().wait().unwrap().code()
    }

    pub(crate) fn finder(&self) -> Finder {
        Finder { addresses: self.addresses.values().cloned().collect(), clock: self.clock }
    }

    /// The leader that the controllers which answer agree on.
    pub(crate) async fn leader(&self) -> u64 {
        let deadline = self.clock.monotonic() + PATIENCE;
        loop {
            for id in self.processes.keys() {
                if let Ok(mut client) = connect(&self.addresses[id]).await
                    && let Ok(quorum) = client.describe_quorum(pb::DescribeQuorumRequest {}).await
                {
                    let quorum = quorum.into_inner();
                    if quorum.leader_id == *id {
                        return *id;
                    }
                }
            }
            assert!(self.clock.monotonic() < deadline, "no leader");
            pause().await;
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in self.processes.values_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub(crate) fn ready_line(mut output: impl std::io::BufRead) -> String {
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    line
}

/// Between two looks at a condition.
pub(crate) async fn pause() {
    tokio::time::sleep(Duration::from_millis(20)).await;
}

pub(crate) async fn connect(address: &str) -> Result<Client, tonic::transport::Error> {
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}"))
        .unwrap()
        .connect_timeout(Duration::from_millis(500))
        .timeout(Duration::from_secs(10));
    Ok(ControllerServiceClient::new(endpoint.connect().await?).max_decoding_message_size(256 << 20))
}

/// Calls whoever leads.
#[derive(Clone)]
pub(crate) struct Finder {
    addresses: Vec<String>,
    clock: RealClock,
}

impl Finder {
    /// Tries until it works or fails for a reason of its own. `Err` in the first position of the pair tells that an
    /// earlier try may have taken effect.
    pub(crate) async fn call<T, F>(&self, call: impl Fn(Client) -> F) -> (bool, Result<T, v1::Error>)
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let deadline = self.clock.monotonic() + PATIENCE;
        let mut at = 0;
        let mut hint: Option<String> = None;
        let mut may_be_done = false;
        loop {
            let address = hint.take().unwrap_or_else(|| self.addresses[at % self.addresses.len()].clone());
            at += 1;
            if let Ok(client) = connect(&address).await {
                match call(client).await {
                    Ok(response) => return (may_be_done, Ok(response.into_inner())),
                    Err(status) => {
                        let error = v1::Error::from_status(&status);
                        hint = status
                            .metadata()
                            .get(semel_controller::LEADER_TRAILER)
                            .and_then(|leader| leader.to_str().ok())
                            .map(str::to_owned);
                        match error.error_code() {
                            ErrorCode::NotController => {}
                            ErrorCode::NetworkException | ErrorCode::RequestTimedOut => may_be_done = true,
                            ErrorCode::UnknownServerError => may_be_done = true,
                            _ => return (may_be_done, Err(error)),
                        }
                    }
                }
            }
            assert!(self.clock.monotonic() < deadline, "no controller took the call");
            if hint.is_none() {
                pause().await;
            }
        }
    }

    /// Creates a topic; whether it was this call that did, or one whose answer was lost.
    pub(crate) async fn create(&self, name: &str) -> Result<String, v1::Error> {
        let deadline = self.clock.monotonic() + PATIENCE;
        loop {
            let topic = v1::NewTopic { name: name.to_owned(), partitions: 2, ..Default::default() };
            let request = pb::CreateTopicsRequest { topics: vec![topic], validate_only: false };
            let (may_be_done, response) = self
                .call(|mut client| {
                    let request = request.clone();
                    async move { client.create_topics(request).await }
                })
                .await;
            let result = response?.results.remove(0);
            match result.error {
                None => return Ok(result.topic_id),
                Some(error) if error.error_code() == ErrorCode::TopicAlreadyExists && may_be_done => {
                    return Ok(String::new());
                }
                // The broker is being fenced and unfenced while leaders change.
                Some(error) if error.error_code() == ErrorCode::InvalidReplicationFactor => {
                    assert!(self.clock.monotonic() < deadline, "{error}");
                    pause().await;
                }
                Some(error) => return Err(error),
            }
        }
    }

    pub(crate) async fn register(
        &self,
        id: i32,
        incarnation: u8,
    ) -> Result<pb::RegisterBrokerResponse, v1::Error> {
        self.register_with(id, incarnation, &[]).await
    }

    /// With directories of these ids.
    pub(crate) async fn register_with(
        &self,
        id: i32,
        incarnation: u8,
        directories: &[u8],
    ) -> Result<pb::RegisterBrokerResponse, v1::Error> {
        let request = pb::RegisterBrokerRequest {
            broker_id: id,
            incarnation_id: vec![incarnation; 16].into(),
            kafka_host: "127.0.0.1".to_owned(),
            kafka_port: 9092,
            grpc_address: "127.0.0.1:9190".to_owned(),
            directory_ids: directories.iter().map(|id| vec![*id; 16].into()).collect(),
            ..Default::default()
        };
        let register = |mut client: Client| {
            let request = request.clone();
            async move { client.register_broker(request).await }
        };
        self.call(register).await.1
    }

    /// An open heartbeat stream at whoever leads, after its first answer.
    pub(crate) async fn heartbeat(&self, id: i32, epoch: i64) -> Result<HeartbeatStream, v1::Error> {
        let open = |mut client: Client| async move {
            let (sender, receiver) = mpsc::channel(4);
            let beat = HeartbeatStream::beat(id, epoch);
            sender.send(beat).await.map_err(|_| Status::unavailable("closed"))?;
            let mut answers = client.heartbeat(ReceiverStream::new(receiver)).await?.into_inner();
            let first = answers.message().await?.ok_or_else(|| Status::unavailable("ended"))?;
            Ok(Response::new(HeartbeatStream {
                id,
                epoch,
                sender,
                answers,
                fenced: first.fenced,
                committed: first.committed_index,
            }))
        };
        self.call(open).await.1
    }
}

pub(crate) struct HeartbeatStream {
    id: i32,
    epoch: i64,
    sender: mpsc::Sender<pb::HeartbeatRequest>,
    answers: Streaming<pb::HeartbeatResponse>,
    pub(crate) fenced: bool,
    /// As the first answer told it.
    pub(crate) committed: u64,
}

impl HeartbeatStream {
    fn beat(id: i32, epoch: i64) -> pb::HeartbeatRequest {
        pb::HeartbeatRequest {
            broker_id: id,
            broker_epoch: epoch,
            // Whatever there is, this broker has it: it follows nothing.
            metadata_index: u64::MAX >> 1,
            want_fence: false,
            want_shutdown: false,
        }
    }

    /// Says that the broker is about to stop.
    pub(crate) async fn leave(&mut self) -> Result<pb::HeartbeatResponse, Status> {
        let beat = pb::HeartbeatRequest { want_shutdown: true, ..Self::beat(self.id, self.epoch) };
        self.ask(beat).await
    }

    pub(crate) async fn next(&mut self) -> Result<pb::HeartbeatResponse, Status> {
        self.ask(Self::beat(self.id, self.epoch)).await
    }

    async fn ask(&mut self, beat: pb::HeartbeatRequest) -> Result<pb::HeartbeatResponse, Status> {
        self.sender.send(beat).await.map_err(|_| Status::unavailable("closed"))?;
        self.answers.message().await?.ok_or_else(|| Status::unavailable("ended"))
    }
}

/// A broker that registers and keeps its heartbeats going, whoever leads.
pub(crate) struct FakeBroker {
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<()>,
}

impl FakeBroker {
    pub(crate) async fn start(finder: Finder, id: i32) -> Self {
        let epoch = finder.register(id, 7).await.unwrap().broker_epoch;
        let stream = finder.heartbeat(id, epoch).await.unwrap();
        assert!(!stream.fenced);
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = Arc::clone(&stop);
        let task = tokio::spawn(async move {
            let mut stream = Some(stream);
            while !stopping.load(Ordering::Relaxed) {
                match &mut stream {
                    Some(open) => {
                        if open.next().await.is_err() {
                            stream = None;
                        }
                        pause().await;
                    }
                    None => stream = finder.heartbeat(id, epoch).await.ok(),
                }
            }
        });
        Self { stop, task }
    }

    pub(crate) async fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap();
    }
}

/// Follows one controller from where `session` is, until `done`, the stream's end, or the end of patience.
pub(crate) async fn follow(
    address: &str,
    session: &mut Session,
    done: impl FnMut(&ClusterImage) -> bool,
) -> Result<bool, Status> {
    let within = tokio::time::timeout(PATIENCE, follow_stream(address, session, done));
    within.await.unwrap_or(Err(Status::deadline_exceeded("the stream does not get there")))
}

async fn follow_stream(
    address: &str,
    session: &mut Session,
    mut done: impl FnMut(&ClusterImage) -> bool,
) -> Result<bool, Status> {
    let mut client = connect(address).await.map_err(|error| Status::unavailable(error.to_string()))?;
    let request = pb::WatchMetadataRequest { after_index: session.subscribe_from().0 };
    let mut stream = client.watch_metadata(request).await?.into_inner();
    loop {
        if done(session.image()) {
            return Ok(true);
        }
        let Some(message) = stream.message().await? else { return Ok(false) };
        let message = watch_message(message).unwrap();
        if let Message::Delta(delta) = &message {
            assert_eq!(delta.index, session.subscribe_from().next(), "a gap in the stream");
        }
        session.receive(message).unwrap();
    }
}

/// The image of one controller once it satisfies `done`.
pub(crate) async fn image_at(
    cluster: &Cluster,
    id: u64,
    done: impl Fn(&ClusterImage) -> bool,
) -> ClusterImage {
    let deadline = cluster.clock.monotonic() + PATIENCE;
    loop {
        let mut session = Session::new();
        if let Ok(true) = follow(&cluster.addresses[&id], &mut session, &done).await {
            return session.image().clone();
        }
        assert!(cluster.clock.monotonic() < deadline, "controller {id} does not get there");
        pause().await;
    }
}
