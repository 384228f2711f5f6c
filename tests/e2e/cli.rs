//! `semel topic|produce|consume|cluster`: the gRPC client, and that both front doors show one log.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use semel_tests::batch::Batch;
use semel_tests::node::{Dev, binary};
use semel_tests::tools::{self, sha256};
use semel_tests::wire::{Conn, code};

const LIMIT: Duration = Duration::from_secs(300);
const SIZE: u64 = 200 << 20;

fn semel(node: &Dev, arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(binary("semel")?);
    command.args(arguments).arg("--server").arg(node.addresses().grpc.to_string());
    Ok(command)
}

fn run(node: &Dev, arguments: &[&str], input: Option<&Path>) -> Result<String> {
    tools::run(semel(node, arguments)?, input, LIMIT)?.ok().with_context(|| arguments.join(" "))
}

#[test]
fn tour() -> Result<()> {
    let mut node = Dev::start()?;
    run(&node, &["topic", "create", "cli", "--partitions", "2", "--set", "retention.ms=-1"], None)?;
    let listed = run(&node, &["topic", "list"], None)?;
    ensure!(listed.contains("cli"), "{listed}");

    let mut written = Vec::new();
    for codec in ["none", "gzip", "snappy", "lz4", "zstd"] {
        let lines: Vec<_> = (0..40).map(|i| format!("{codec}-{i}:value {i} é")).collect();
        let file = node.scratch().join(codec);
        fs::write(&file, lines.join("\n") + "\n")?;
        run(&node, &["produce", "cli", "-p", "1", "--key-delimiter", ":", "-z", codec], Some(&file))?;
        written.extend(lines);
    }
    let shown = run(&node, &["consume", "cli", "-p", "1", "-e", "-q", "-f", "%o %T %k:%s\\n"], None)?;
    let mut stamps = Vec::new();
    for (index, (line, expected)) in shown.lines().zip(&written).enumerate() {
        let mut parts = line.splitn(3, ' ');
        ensure!(parts.next() == Some(index.to_string().as_str()), "offset of line {index}: {line}");
        stamps.push(parts.next().context("a timestamp")?.to_owned());
        ensure!(parts.next() == Some(expected), "line {index}: {line} and not {expected}");
    }
    ensure!(stamps.len() == 200, "{} of 200 records", stamps.len());

    // By time, as JSON.
    let first = stamps.iter().position(|s| s == &stamps[150]).context("an index")?;
    let at = format!("@{}", stamps[150]);
    let json = run(&node, &["topic", "offsets", "cli", "-p", "1", "--at", &at, "--output", "json"], None)?;
    let found: serde_json::Value = serde_json::from_str(&json)?;
    ensure!(found[0]["offset"] == first, "{json} and not {first}");

    // What one door wrote the other one reads, with nulls and bytes that are no text.
    let mut conn = Conn::open(node.kafka())?;
    let batch = Batch::of(1_750_000_000_000, &[(None, Some(&[0, 255, 10])), (Some(b"gone"), None)]);
    ensure!(conn.produce("cli", 0, &batch.encode())?.code == code::NONE);
    let json = run(&node, &["consume", "cli", "-p", "0", "-e", "-q", "--json"], None)?;
    ensure!(json.lines().count() == 2, "{json}");
    let tombstone: serde_json::Value = serde_json::from_str(json.lines().nth(1).context("a line")?)?;
    ensure!(tombstone["key"] == "gone" && tombstone["value"].is_null(), "{json}");
    ensure!(conn.list_offset("cli", 1, -1)?.2 == 200);

    run(&node, &["topic", "delete-records", "cli", "-p", "1", "--before", "50"], None)?;
    ensure!(conn.list_offset("cli", 1, -2)?.2 == 50);
    run(&node, &["cluster", "status"], None)?;
    run(&node, &["topic", "delete", "cli"], None)?;
    // An error says what is wrong and is one to a script too.
    let missing = tools::run(semel(&node, &["consume", "cli", "-e"])?, None, LIMIT)?;
    ensure!(missing.code != Some(0) && missing.stderr.contains("cli"), "{missing:?}");
    node.stop()
}

/// The real data set over gRPC, line by line: in, out, and out again after `kill -9`.
#[test]
fn two_hundred_megabytes_over_grpc() -> Result<()> {
    let mut node = Dev::start()?;
    let corpus = node.scratch().join("corpus");
    semel_tests::dataset::write(&corpus, SIZE)?;
    let hash = sha256(&corpus)?;
    run(&node, &["topic", "create", "lines", "--partitions", "1"], None)?;
    run(&node, &["produce", "lines", "-p", "0", "-z", "lz4", "-q"], Some(&corpus))?;
    let read = |node: &Dev, name: &str| {
        let out = node.scratch().join(name);
        let mut command = semel(node, &["consume", "lines", "-p", "0", "-e", "-q", "-f", "%s\\n"])?;
        // Two hundred megabytes go to a file of their own, past the harness.
        let status = command.stdout(Stdio::from(File::create(&out)?)).status()?;
        ensure!(status.success(), "consume: {status}");
        sha256(&out)
    };
    ensure!(read(&node, "before")? == hash, "other bytes came back");
    node.kill()?;
    node.launch()?;
    ensure!(read(&node, "after")? == hash, "other bytes came back after kill -9");
    node.stop()
}
