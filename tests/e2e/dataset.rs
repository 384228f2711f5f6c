//! A real data set of 200 MB goes in and comes out the same.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use semel_tests::node::Dev;
use semel_tests::tools::{self, python_client, sha256};
use semel_tests::wire::Conn;

const SIZE: u64 = 200 << 20;
const PARTITIONS: i32 = 4;

/// In, out, and once more out after `kill -9`: three equal SHA-256.
#[test]
fn two_hundred_megabytes_come_back_equal() -> Result<()> {
    let mut node = Dev::start()?;
    let boot = node.kafka().to_string();
    let corpus = node.scratch().join("corpus");
    semel_tests::dataset::write(&corpus, SIZE)?;
    // Small enough to roll several times.
    Conn::open(node.kafka())?.create_topic("corpus", PARTITIONS, &[("segment.bytes", "16777216")])?;
    let client = |command: &str, file: &str| {
        let run = python_client(&[command, &boot, "corpus", file, &PARTITIONS.to_string()]);
        tools::run(run, None, Duration::from_secs(300))?.ok()
    };
    let sent = client("put", corpus.to_str().context("a UTF-8 path")?)?;
    let before = node.scratch().join("before");
    let received = client("get", before.to_str().context("a UTF-8 path")?)?;
    ensure!(sent == received, "sent {sent}, received {received}");
    let hash = sha256(&corpus)?;
    ensure!(sha256(&before)? == hash, "other bytes came back");

    node.kill()?;
    node.launch()?;
    let after = node.scratch().join("after");
    ensure!(client("get", after.to_str().context("a UTF-8 path")?)? == sent);
    ensure!(sha256(&after)? == hash, "other bytes came back after kill -9");
    node.stop()
}
