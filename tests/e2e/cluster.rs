//! Separate processes: controllers with a quorum, and a broker beside them.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use semel_tests::batch::Batch;
use semel_tests::clock;
use semel_tests::node::{Process, binary, free_port};
use semel_tests::tools::{self, python_client};
use semel_tests::wait;
use semel_tests::wire::{Conn, code};
use serde_json::Value;
use tempfile::TempDir;

const READY: Duration = Duration::from_secs(30);
const LIMIT: Duration = Duration::from_secs(60);

struct Cluster {
    // Fields drop in this order: the processes end before their folder goes.
    controllers: Vec<Option<Process>>,
    broker: Option<Process>,
    /// gRPC ports of the voters, whose ids are 1, 2, ...
    voters: Vec<u16>,
    /// Kafka and gRPC ports of the broker.
    ports: (u16, u16),
    dir: TempDir,
}

impl Cluster {
    fn start(voters: usize) -> Result<Self> {
        let mut cluster = Self {
            dir: tempfile::Builder::new().prefix("semel-cluster-").tempdir()?,
            voters: (0..voters).map(|_| free_port()).collect::<Result<_>>()?,
            controllers: (0..voters).map(|_| None).collect(),
            broker: None,
            ports: (free_port()?, free_port()?),
        };
        for index in 0..voters {
            cluster.start_controller(index)?;
        }
        for index in 0..voters {
            cluster.await_controller(index)?;
        }
        cluster.start_broker()?;
        Ok(cluster)
    }

    fn start_controller(&mut self, index: usize) -> Result<()> {
        let id = index + 1;
        let voters = self.voters.iter().zip(1..).map(|(port, id)| format!("{id}=127.0.0.1:{port}"));
        let voters = voters.collect::<Vec<_>>().join(",");
        let mut command = Command::new(binary("semel-controller")?);
        command
            .arg("--node-id")
            .arg(id.to_string())
            .arg("--data")
            .arg(self.dir.path().join(format!("c{id}")));
        command
            .arg("--grpc")
            .arg(format!("127.0.0.1:{}", self.voters[index]))
            .arg("--http")
            .arg("127.0.0.1:0");
        command.arg("--voters").arg(voters);
        let log = self.dir.path().join(format!("c{id}.log"));
        self.controllers[index] = Some(Process::spawn(&format!("controller {id}"), command, &log)?);
        Ok(())
    }

    fn await_controller(&mut self, index: usize) -> Result<()> {
        let process = self.controllers[index].as_mut().context("a controller that was started")?;
        process.line("the ready line", READY, |l| l.starts_with("semel-controller ready ").then_some(()))
    }

    fn start_broker(&mut self) -> Result<()> {
        let controllers: Vec<_> = self.voters.iter().map(|p| format!("\"127.0.0.1:{p}\"")).collect();
        let config = self.path("broker.toml");
        let text = format!(
            "node-id = 1\nlog-dirs = [\"{}\"]\ncontrollers = [{}]\n\
             [kafka]\nlisten = \"127.0.0.1:{}\"\n[grpc]\nlisten = \"127.0.0.1:{}\"\n[http]\nlisten = \"127.0.0.1:0\"\n",
            self.path("b1").display(),
            controllers.join(", "),
            self.ports.0,
            self.ports.1,
        );
        fs::write(&config, text)?;
        let mut command = Command::new(binary("semel-broker")?);
        command.arg("--config").arg(&config);
        let mut process = Process::spawn("broker 1", command, &self.path("b1.log"))?;
        process.line("the ready line", READY, |l| l.starts_with("semel-broker ready ").then_some(()))?;
        self.broker = Some(process);
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn kafka(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.ports.0))
    }

    fn semel(&self, timeout_s: u32, arguments: &[&str]) -> Result<tools::Output> {
        let mut command = Command::new(binary("semel")?);
        command.args(arguments).arg("--server").arg(format!("127.0.0.1:{}", self.ports.1));
        command.arg("--output").arg("json").arg("--timeout").arg(timeout_s.to_string());
        tools::run(command, None, LIMIT)
    }

    fn json(&self, arguments: &[&str]) -> Result<Value> {
        Ok(serde_json::from_str(&self.semel(30, arguments)?.ok()?)?)
    }

    /// The index of the controller that leads.
    fn leader(&self) -> Result<usize> {
        wait::until("a controller that leads", LIMIT, || {
            let Ok(status) = self.json(&["cluster", "status"]) else { return Ok(None) };
            let id = status["controller_leader"].as_u64().and_then(|id| usize::try_from(id).ok());
            Ok(id.and_then(|id| id.checked_sub(1)))
        })
    }

    fn stop(mut self) -> Result<()> {
        for process in self.broker.iter_mut().chain(self.controllers.iter_mut().flatten()) {
            let status = process.stop()?;
            ensure!(status.success(), "{status}:\n{}", process.tail());
        }
        Ok(())
    }
}

fn names(listed: &Value) -> Result<Vec<String>> {
    let topics = listed.as_array().or_else(|| listed["topics"].as_array()).context("a list of topics")?;
    topics.iter().map(|t| Ok(t["name"].as_str().context("a name")?.to_owned())).collect()
}

/// The leader dies again and again while topics are made: none is lost, none is there twice.
#[test]
fn controllers_lose_no_topic_when_their_leader_dies() -> Result<()> {
    let mut cluster = Cluster::start(3)?;
    let mut acknowledged = BTreeSet::new();
    let mut gaps = Vec::new();
    for round in 0..10 {
        for i in 0..5 {
            let name = format!("before-{round}-{i}");
            cluster.semel(30, &["topic", "create", &name, "--partitions", "1"])?.ok()?;
            acknowledged.insert(name);
        }
        let leader = cluster.leader()?;
        let mut dead = cluster.controllers[leader].take().context("a leader that runs")?;
        let killed = clock::now();
        dead.kill()?;
        // One request, whose own retries find the new leader: the gap is how long it took.
        let name = format!("after-{round}");
        let answer =
            cluster.semel(30, &["topic", "create", &name, "--partitions", "1", "--if-not-exists"])?;
        gaps.push(killed.elapsed());
        answer.ok().with_context(|| format!("the first topic after kill {round}"))?;
        acknowledged.insert(name);
        cluster.start_controller(leader)?;
        cluster.await_controller(leader)?;
    }
    gaps.sort();
    println!("from kill -9 of the leader to the next topic: {gaps:?}");
    ensure!(gaps[gaps.len() / 2] < Duration::from_millis(1500), "median gap {:?}", gaps[gaps.len() / 2]);

    let check = |cluster: &Cluster| {
        let listed = names(&cluster.json(&["topic", "list"])?)?;
        let unique: BTreeSet<_> = listed.iter().cloned().collect();
        ensure!(unique.len() == listed.len(), "a topic is there twice: {listed:?}");
        let lost: Vec<_> = acknowledged.difference(&unique).collect();
        ensure!(lost.is_empty(), "lost: {lost:?}");
        Ok(())
    };
    check(&cluster)?;
    // All at once, as when the power fails.
    for controller in &mut cluster.controllers {
        controller.take().context("a controller that runs")?.kill()?;
    }
    for index in 0..3 {
        cluster.start_controller(index)?;
    }
    for index in 0..3 {
        cluster.await_controller(index)?;
    }
    cluster.leader()?;
    check(&cluster)?;
    // Each of them can be written.
    let mut conn = Conn::open(cluster.kafka())?;
    let batch = Batch::of(1_750_000_000_000, &[(None, Some(b"x"))]).encode();
    for topic in acknowledged.iter().take(10) {
        wait::until(format!("a leader of {topic}"), LIMIT, || {
            Ok((conn.produce(topic, 0, &batch)?.code == code::NONE).then_some(()))
        })?;
    }
    cluster.stop()
}

/// Clients work with separate processes as with one, before and after `kill -9` of each.
#[test]
fn separate_processes_survive_kill_9() -> Result<()> {
    let mut cluster = Cluster::start(1)?;
    let boot = cluster.kafka().to_string();
    let tour = || tools::run(python_client(&["tour", &boot]), None, Duration::from_secs(180))?.ok();
    tour()?;
    let corpus = cluster.path("corpus");
    semel_tests::dataset::write(&corpus, 20 << 20)?;
    cluster.semel(30, &["topic", "create", "corpus", "--partitions", "3"])?.ok()?;
    let text = |p: &Path| p.to_str().context("a UTF-8 path").map(str::to_owned);
    let client = |command: &str, file: &str| {
        let run = python_client(&[command, &boot, "corpus", file, "3"]);
        tools::run(run, None, Duration::from_secs(120))?.ok()
    };
    let sent = client("put", &text(&corpus)?)?;
    for round in 0..3 {
        if round != 1 {
            cluster.broker.take().context("a broker")?.kill()?;
            cluster.start_broker()?;
        }
        if round != 0 {
            cluster.controllers[0].take().context("a controller")?.kill()?;
            cluster.start_controller(0)?;
            cluster.await_controller(0)?;
        }
        cluster.leader()?;
        let back = cluster.path(&format!("back-{round}"));
        ensure!(client("get", &text(&back)?)? == sent, "round {round}");
        ensure!(tools::sha256(&back)? == tools::sha256(&corpus)?, "other bytes in round {round}");
    }
    tour()?;
    cluster.stop()
}
