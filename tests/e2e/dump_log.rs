//! Apache Kafka's `DumpLogSegments` reads what the node wrote, record by record, and finds its indexes sane.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use semel_tests::batch::Batch;
use semel_tests::node::Dev;
use semel_tests::tools::{self, kafka_tool, python_client};
use semel_tests::wait;
use semel_tests::wire::{Conn, code};

const LIMIT: Duration = Duration::from_secs(120);
const AT: i64 = 1_750_000_000_000;

fn files(dir: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut files: Vec<_> = fs::read_dir(dir)?.map(|e| Ok(e?.path())).collect::<Result<_>>()?;
    files.retain(|p| p.extension().is_some_and(|e| e == extension));
    files.sort();
    Ok(files)
}

fn dump(files: &[PathBuf], options: &[&str]) -> Result<String> {
    let list: Vec<_> = files.iter().map(|p| p.to_string_lossy()).collect();
    let list = list.join(",");
    let command =
        kafka_tool("org.apache.kafka.tools.DumpLogSegments", &[&["--files", &list][..], options].concat());
    let output = tools::run(command, None, LIMIT)?;
    ensure!(!output.stderr.contains("Exception"), "{}", output.stderr);
    output.ok()
}

/// Checks one partition's folder and gives the number of its segments and of their records.
fn check(dir: &Path, compacted: bool) -> Result<(usize, usize)> {
    let logs = files(dir, "log")?;
    let shown = dump(&logs, &["--deep-iteration"])?;
    let bad: Vec<_> = shown
        .lines()
        .filter(|l| {
            l.contains("isvalid: false")
                || l.starts_with("Found ")
                || l.contains("ismatch")
                || l.contains("Exception")
                || (l.starts_with("Non-consecutive") && !compacted)
        })
        .collect();
    ensure!(bad.is_empty(), "{}: {bad:#?}", dir.display());
    let records = shown.lines().filter(|l| l.starts_with("| offset:")).count();
    for extension in ["index", "timeindex"] {
        let indexes = files(dir, extension)?;
        ensure!(indexes.len() == logs.len(), "{} {extension} files for {} logs", indexes.len(), logs.len());
        let shown = dump(&indexes, &["--index-sanity-check"])?;
        let passed = shown
            .lines()
            .filter(|l| l.ends_with(" passed sanity check.") || l.ends_with(" is empty."))
            .count();
        ensure!(passed == indexes.len(), "{passed} of {} {extension} files passed:\n{shown}", indexes.len());
        // Without the flag the tool compares each entry with the log.
        let shown = dump(&indexes, &["--verify-index-only"])?;
        let bad: Vec<_> =
            shown.lines().filter(|l| l.contains("ismatch") || l.starts_with("Found ")).collect();
        ensure!(bad.is_empty(), "{}: {bad:#?}\n{shown}", dir.display());
    }
    Ok((logs.len(), records))
}

fn fill(conn: &mut Conn, topic: &str, from: u32, count: u32, keys: u32) -> Result<()> {
    let value = vec![b'v'; 4_000];
    for i in from..from + count {
        let key = (i % keys).to_be_bytes();
        let batch =
            Batch::of(AT + i64::from(i), &[(Some(&key), Some(&value)), (Some(&key), Some(b"second"))]);
        let produced = conn.produce(topic, 0, &batch.encode())?;
        ensure!(produced.code == code::NONE, "{topic} {i}: {produced:?}");
    }
    Ok(())
}

#[test]
fn rolled_segments_and_every_codec() -> Result<()> {
    let mut node = Dev::start()?;
    let mut conn = Conn::open(node.kafka())?;
    conn.create_topic("rolled", 1, &[("segment.bytes", "1048576")])?;
    fill(&mut conn, "rolled", 0, 1000, 1000)?;
    tools::run(python_client(&["tour", &node.kafka().to_string()]), None, LIMIT)?.ok()?;
    node.stop()?;
    let (segments, records) = check(&node.partition_dir("rolled", 0)?, false)?;
    ensure!(segments >= 4, "{segments} segments");
    ensure!(records == 2000, "{records} records");
    Ok(())
}

#[test]
fn after_kill_9_and_recovery() -> Result<()> {
    let mut node = Dev::start()?;
    for round in 0..3u32 {
        let mut conn = Conn::open(node.kafka())?;
        if round == 0 {
            conn.create_topic("crashed", 1, &[("segment.bytes", "1048576")])?;
        }
        conn.await_topic("crashed", 1)?;
        fill(&mut conn, "crashed", round * 500, 500, 1500)?;
        node.kill()?;
        node.launch()?;
    }
    node.stop()?;
    let (_, records) = check(&node.partition_dir("crashed", 0)?, false)?;
    ensure!(records == 3000, "{records} records");
    Ok(())
}

#[test]
fn after_compaction() -> Result<()> {
    let mut node = Dev::start()?;
    let boot = node.kafka().to_string();
    let mut conn = Conn::open(node.kafka())?;
    let configs = [
        ("cleanup.policy", "compact"),
        ("segment.bytes", "1048576"),
        ("min.cleanable.dirty.ratio", "0.01"),
        ("delete.retention.ms", "0"),
        ("max.compaction.lag.ms", "1000"),
    ];
    conn.create_topic("compacted", 1, &configs)?;
    fill(&mut conn, "compacted", 0, 1500, 50)?;
    let counts = || {
        let shown = tools::run(python_client(&["keys", &boot, "compacted", "1"]), None, LIMIT)?.ok()?;
        let number = |name: &str| {
            let text = shown.split_whitespace().find_map(|p| p.strip_prefix(name)?.strip_prefix('='));
            text.context("a count")?.parse::<u32>().context("a number")
        };
        Ok::<_, anyhow::Error>((number("records")?, number("keys")?))
    };
    // The active segment is never compacted, so some doubles stay: it holds at most 1 MiB, about 520 records.
    let (records, keys) = wait::until("the log to be compacted", LIMIT, || {
        let (records, keys) = counts()?;
        Ok((records < 1000).then_some((records, keys)))
    })?;
    ensure!(keys == 50, "{keys} keys of 50 in {records} records");
    node.stop()?;
    check(&node.partition_dir("compacted", 0)?, true)?;
    node.launch()?;
    ensure!(counts()?.1 == 50, "keys after a start");
    node.stop()
}
