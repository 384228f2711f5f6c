//! `kill -9` at random moments under load: every acknowledged record is there, once, in order, where it was said to be.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use semel_tests::node::{Dev, Kind, Process};
use semel_tests::rng::Rng;
use semel_tests::tools::{self, python_client};
use semel_tests::wait;
use semel_tests::wire::Conn;

const PARTITIONS: &str = "3";

/// How many acknowledgements a client has written down, counted as they come.
struct Receipt {
    path: PathBuf,
    file: Option<File>,
    lines: u64,
}

impl Receipt {
    fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), file: None, lines: 0 }
    }

    fn count(&mut self) -> Result<u64> {
        if self.file.is_none() && self.path.exists() {
            self.file = Some(File::open(&self.path)?);
        }
        if let Some(file) = &mut self.file {
            let mut new = Vec::new();
            file.read_to_end(&mut new)?;
            self.lines += new.iter().filter(|&&b| b == b'\n').count() as u64;
        }
        Ok(self.lines)
    }
}

/// `SEMEL_TEST_KILLS` says how often (50; 5 for Apache Kafka, which takes seconds to start).
fn kills(node: &Dev) -> Result<u32> {
    match std::env::var("SEMEL_TEST_KILLS") {
        Ok(text) => text.parse().context("SEMEL_TEST_KILLS"),
        Err(_) if node.kind() == Kind::Kafka => Ok(5),
        Err(_) => Ok(50),
    }
}

#[test]
fn nothing_acknowledged_is_lost_or_doubled() -> Result<()> {
    let mut rng = Rng::from_env(0x5e3e1);
    let mut node = Dev::start()?;
    let boot = node.kafka().to_string();
    // Segments as small as Kafka allows, so that kills meet rolls.
    Conn::open(node.kafka())?.create_topic("killed", 3, &[("segment.bytes", "1048576")])?;
    let path = node.scratch().join("receipt");
    let receipt_name = path.to_str().context("a UTF-8 path")?.to_owned();
    let arguments = |command| [command, boot.as_str(), "killed", PARTITIONS, receipt_name.as_str()];
    let log = node.scratch().join("client.log");
    let mut client = Process::spawn("the loading client", python_client(&arguments("load")), &log)?;
    let mut receipt = Receipt::new(&path);

    for kill in 0..kills(&node)? {
        // The moment is chosen in acknowledgements, not in time: the next kill comes only once records flow again.
        let goal = receipt.count()? + 1 + rng.below(5_000);
        wait::until(format!("{goal} acknowledgements, kill {kill}"), Duration::from_secs(60), || {
            ensure!(client.alive()?, "the client ended:\n{}", client.tail());
            Ok((receipt.count()? >= goal).then_some(()))
        })?;
        node.kill()?;
        node.launch().with_context(|| format!("starting again after kill {kill}"))?;
    }
    let status = client.stop()?;
    ensure!(status.success(), "the client: {status}\n{}", client.tail());
    let said = tools::run(python_client(&arguments("verify")), None, Duration::from_secs(300))?.ok()?;
    println!("{said}");
    // And still after one more crash without any load.
    node.kill()?;
    node.launch()?;
    ensure!(tools::run(python_client(&arguments("verify")), None, Duration::from_secs(300))?.ok()? == said);
    node.stop()
}

/// A crash leaves files that only a crash leaves; two starts on them give the same log.
#[test]
fn recovery_is_repeatable() -> Result<()> {
    let mut node = Dev::start()?;
    let mut conn = Conn::open(node.kafka())?;
    conn.create_topic("again", 1, &[("segment.bytes", "1048576")])?;
    let value = vec![b'x'; 10_000];
    for i in 0..300u32 {
        let key = i.to_be_bytes();
        let batch =
            semel_tests::batch::Batch::of(1_750_000_000_000 + i64::from(i), &[(Some(&key), Some(&value))]);
        ensure!(conn.produce("again", 0, &batch.encode())?.base_offset == i64::from(i));
    }
    let written = conn.read_all("again", 0)?;
    for _ in 0..3 {
        node.kill()?;
        // What a cut power line leaves behind a whole log: zeros that were never written.
        let dir = node.partition_dir("again", 0)?;
        let mut logs: Vec<_> = fs::read_dir(&dir)?.map(|e| Ok(e?.path())).collect::<Result<_>>()?;
        logs.retain(|p| p.extension().is_some_and(|e| e == "log"));
        logs.sort();
        let last = File::options().append(true).open(logs.last().context("a segment")?)?;
        last.set_len(last.metadata()?.len() + 4096)?;
        node.launch()?;
        let mut conn = Conn::open(node.kafka())?;
        conn.await_topic("again", 1)?;
        ensure!(conn.read_all("again", 0)? == written, "another log after a start");
        for (stamp, offset) in [(0, 0), (150, 150), (299, 299)] {
            let (code, _, found) = conn.list_offset("again", 0, 1_750_000_000_000 + stamp)?;
            ensure!((code, found) == (0, offset), "time {stamp}: error {code}, offset {found}");
        }
    }
    node.stop()
}
