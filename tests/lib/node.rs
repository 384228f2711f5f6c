//! Semel's binaries (or Apache Kafka) as processes: start, ready, stop, `kill -9`, and what they cost.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::{clock, tools, wait};

/// How long a stop by SIGTERM may take.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// What the tests run against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `semel dev`.
    Semel,
    /// Apache Kafka, one combined broker and controller: the tests' own test.
    Kafka,
}

impl Kind {
    /// `SEMEL_TEST_PEER`: `kafka`, or Semel.
    #[must_use]
    pub fn from_env() -> Self {
        match std::env::var("SEMEL_TEST_PEER").as_deref() {
            Ok("kafka") => Self::Kafka,
            _ => Self::Semel,
        }
    }

    fn ready_limit(self) -> Duration {
        match self {
            // Far above the 0.5 s that the benchmark asks for: a busy test machine is no fault.
            Self::Semel => Duration::from_secs(30),
            Self::Kafka => Duration::from_secs(120),
        }
    }
}

/// The path of a Semel binary: in `SEMEL_BIN_DIR`, or `target/release`.
///
/// # Errors
/// The binary is not there.
pub fn binary(name: &str) -> Result<PathBuf> {
    let dir =
        std::env::var_os("SEMEL_BIN_DIR").map_or_else(|| tools::root().join("target/release"), PathBuf::from);
    let path = dir.join(name);
    ensure!(path.is_file(), "{} is missing: build it with `cargo build --release`", path.display());
    Ok(path)
}

/// A port of 127.0.0.1 that was free a moment ago. For servers that can't be given port 0, and for restarts.
///
/// # Errors
/// The system has none.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

/// One running process. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    child: Child,
    name: String,
    log: PathBuf,
    lines: Receiver<String>,
}

impl Process {
    /// Starts `command` with its output in `log` (appended), each line of stdout also kept for [`Process::line`].
    ///
    /// # Errors
    /// The program can't be started.
    pub fn spawn(name: &str, mut command: Command, log: &Path) -> Result<Self> {
        let file = File::options().create(true).append(true).open(log).context("opening the log")?;
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::from(file.try_clone()?))
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        let stdout = child.stdout.take().context("stdout was piped")?;
        let (send, lines) = mpsc::channel();
        thread::Builder::new().name(format!("{name} stdout")).spawn(move || {
            let mut file = file;
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                // Neither a full disk nor a test that has ended may stop the process by a full pipe.
                drop(writeln!(file, "{line}"));
                drop(send.send(line));
            }
        })?;
        Ok(Self { child, name: name.to_owned(), log: log.to_owned(), lines })
    }

    /// The first new line of stdout that `pick` takes, at most `limit` from now.
    ///
    /// # Errors
    /// The process ended or stayed silent; the end of its log is part of the message.
    pub fn line<T>(
        &mut self,
        what: &str,
        limit: Duration,
        mut pick: impl FnMut(&str) -> Option<T>,
    ) -> Result<T> {
        let start = clock::now();
        while let Some(left) = limit.checked_sub(start.elapsed()) {
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    if let Some(found) = pick(&line) {
                        return Ok(found);
                    }
                }
                Err(mpsc::RecvTimeoutError::Timeout) => break,
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    let status = self.child.wait()?;
                    bail!("{} ended ({status}) before {what}:\n{}", self.name, self.tail());
                }
            }
        }
        bail!("{}: waited {limit:?} for {what}:\n{}", self.name, self.tail())
    }

    /// The last lines of the log.
    #[must_use]
    pub fn tail(&self) -> String {
        let Ok(file) = File::open(&self.log) else { return String::new() };
        let mut last = VecDeque::new();
        for line in BufReader::new(file).lines().map_while(Result::ok) {
            if last.len() == 40 {
                last.pop_front();
            }
            last.push_back(line);
        }
        last.make_contiguous().join("\n")
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it still runs.
    ///
    /// # Errors
    /// Asking the system failed.
    pub fn alive(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// `kill -9`, and waits until the process is gone.
    ///
    /// # Errors
    /// The signal could not be sent.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// SIGTERM, and the exit status.
    ///
    /// # Errors
    /// The process did not end in 30 s.
    pub fn stop(&mut self) -> Result<ExitStatus> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM).context("sending SIGTERM")?;
        self.wait("end after SIGTERM", STOP_LIMIT)
    }

    /// Waits for the process to end by itself.
    ///
    /// # Errors
    /// It did not in `limit`.
    pub fn wait(&mut self, what: &str, limit: Duration) -> Result<ExitStatus> {
        let status = wait::until(format!("{} to {what}", self.name), limit, || Ok(self.child.try_wait()?));
        status.with_context(|| self.tail())
    }

    /// A size from `/proc/PID/status`, such as `VmRSS` or `VmHWM`, in bytes.
    ///
    /// # Errors
    /// The process is gone.
    pub fn memory(&self, field: &str) -> Result<u64> {
        let path = format!("/proc/{}/status", self.pid());
        let status = fs::read_to_string(&path).with_context(|| path.clone())?;
        let line = status.lines().find_map(|l| l.strip_prefix(field)?.strip_prefix(':'));
        let kib =
            line.and_then(|l| l.split_whitespace().next()).with_context(|| format!("{field} in {path}"))?;
        Ok(kib.parse::<u64>()? * 1024)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already; there is no one left to tell.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The addresses of a ready node. Kafka has one only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// Kafka clients.
    pub kafka: SocketAddr,
    /// gRPC clients.
    pub grpc: SocketAddr,
    /// Metrics and health.
    pub http: SocketAddr,
}

/// Reads `semel ready kafka=H:P grpc=H:P http=H:P`.
#[must_use]
pub fn parse_ready(line: &str) -> Option<Addresses> {
    let rest = line.strip_prefix("semel ready ")?;
    let address = |name: &str| {
        rest.split(' ')
            .find_map(|part| part.strip_prefix(name)?.strip_prefix('=')?.parse::<SocketAddr>().ok())
    };
    Some(Addresses { kafka: address("kafka")?, grpc: address("grpc")?, http: address("http")? })
}

/// A single-process node with a data folder of its own that outlives kills and restarts on the same addresses.
#[derive(Debug)]
pub struct Dev {
    // Fields drop in this order: the process ends before its folder goes.
    process: Option<Process>,
    kind: Kind,
    settings: Vec<String>,
    addresses: Option<Addresses>,
    dir: TempDir,
}

impl Dev {
    /// A fresh node, ready.
    ///
    /// # Errors
    /// It does not become ready.
    pub fn start() -> Result<Self> {
        Self::start_with(&[])
    }

    /// A fresh node with extra arguments for `semel dev`, or settings `key=value` for Kafka.
    ///
    /// # Errors
    /// It does not become ready.
    pub fn start_with(settings: &[&str]) -> Result<Self> {
        let mut dev = Self {
            kind: Kind::from_env(),
            dir: tempfile::Builder::new().prefix("semel-e2e-").tempdir()?,
            settings: settings.iter().map(|&s| s.to_owned()).collect(),
            addresses: None,
            process: None,
        };
        dev.launch()?;
        Ok(dev)
    }

    /// Starts the node on its data and, after the first time, its addresses.
    ///
    /// # Errors
    /// It does not become ready.
    pub fn launch(&mut self) -> Result<()> {
        ensure!(self.process.is_none(), "the node is running");
        let log = self.dir.path().join("node.log");
        let limit = self.kind.ready_limit();
        let loopback = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        match self.kind {
            Kind::Semel => {
                let any = loopback(0);
                let at = self.addresses.unwrap_or(Addresses { kafka: any, grpc: any, http: any });
                let mut command = Command::new(binary("semel")?);
                command.arg("dev").arg("--data").arg(self.data());
                command.arg("--kafka").arg(at.kafka.to_string()).arg("--grpc").arg(at.grpc.to_string());
                command.arg("--http").arg(at.http.to_string()).args(&self.settings);
                let mut process = Process::spawn("semel", command, &log)?;
                self.addresses = Some(process.line("the ready line", limit, parse_ready)?);
                self.process = Some(process);
            }
            Kind::Kafka => {
                let port = self.addresses.map_or_else(free_port, |a| Ok(a.kafka.port()))?;
                let mut command = Command::new(tools::root().join("scripts/kafka"));
                command.arg("run").arg(self.data()).arg(port.to_string()).args(&self.settings);
                command.env("KAFKA_HEAP", "1g");
                let mut process = Process::spawn("kafka", command, &log)?;
                process
                    .line("the ready line", limit, |l| l.contains("Kafka Server started").then_some(()))?;
                let nowhere = loopback(1);
                self.addresses = Some(Addresses { kafka: loopback(port), grpc: nowhere, http: nowhere });
                self.process = Some(process);
            }
        }
        Ok(())
    }

    /// What is running.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The folder given to `--data`.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// A folder for a test's own files, gone with the node.
    #[must_use]
    pub fn scratch(&self) -> &Path {
        self.dir.path()
    }

    /// Each `<topic>-<partition>` folder under the data, wherever the node keeps its logs.
    ///
    /// # Errors
    /// The folder can't be read.
    pub fn partition_dir(&self, topic: &str, partition: i32) -> Result<PathBuf> {
        let name = format!("{topic}-{partition}");
        let mut todo = vec![self.data()];
        while let Some(dir) = todo.pop() {
            for entry in fs::read_dir(&dir).with_context(|| dir.display().to_string())? {
                let entry = entry?;
                if !entry.file_type()?.is_dir() {
                    continue;
                }
                if entry.file_name() == name.as_str() {
                    return Ok(entry.path());
                }
                todo.push(entry.path());
            }
        }
        bail!("no folder {name} under {}", self.data().display())
    }

    /// The Kafka address.
    ///
    /// # Panics
    /// Never after a start: a node that has not been ready is not handed out.
    #[must_use]
    pub fn kafka(&self) -> SocketAddr {
        self.addresses.expect("a Dev exists only once it was ready").kafka
    }

    /// All addresses.
    ///
    /// # Panics
    /// Never after a start.
    #[must_use]
    pub fn addresses(&self) -> Addresses {
        self.addresses.expect("a Dev exists only once it was ready")
    }

    /// The process.
    ///
    /// # Errors
    /// It was stopped or killed.
    pub fn process(&mut self) -> Result<&mut Process> {
        self.process.as_mut().context("the node is not running")
    }

    /// `kill -9`; the data stays.
    ///
    /// # Errors
    /// The node is not running.
    pub fn kill(&mut self) -> Result<()> {
        self.process()?.kill()?;
        self.process = None;
        Ok(())
    }

    /// A clean stop; fails unless Semel exits with 0.
    ///
    /// # Errors
    /// It does not end, or not with success.
    pub fn stop(&mut self) -> Result<()> {
        let status = self.process()?.stop()?;
        let tail = self.process()?.tail();
        self.process = None;
        // A JVM that ends by a signal says 143 however cleanly it stopped.
        ensure!(status.success() || self.kind == Kind::Kafka, "the node ended with {status}:\n{tail}");
        Ok(())
    }

    /// Whether the node still runs; its log's end is in the error otherwise.
    ///
    /// # Errors
    /// It has ended.
    pub fn check_alive(&mut self) -> Result<()> {
        let process = self.process()?;
        ensure!(process.alive()?, "the node died:\n{}", process.tail());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ready_line_is_read() {
        let ready =
            parse_ready("semel ready kafka=127.0.0.1:9092 grpc=127.0.0.1:9190 http=127.0.0.1:9290").unwrap();
        assert_eq!(ready.kafka.port(), 9092);
        assert_eq!(ready.http.port(), 9290);
        assert_eq!(parse_ready("semel ready kafka=127.0.0.1:9092"), None);
        assert_eq!(parse_ready("ready"), None);
    }
}
