//! Start, ready, stop, and what must outlive them.

use anyhow::{Result, ensure};
use semel_tests::batch::Batch;
use semel_tests::node::Dev;
use semel_tests::wire::{Conn, code};

/// The time of the tests' records.
const AT: i64 = 1_750_000_000_000;

#[test]
fn a_stop_and_a_start_lose_nothing() -> Result<()> {
    let mut node = Dev::start()?;
    let mut conn = Conn::open(node.kafka())?;
    conn.create_topic("kept", 3, &[])?;
    for partition in 0..3 {
        let batch = Batch::of(AT, &[(Some(b"key"), Some(b"value"))]).encode();
        ensure!(conn.produce("kept", partition, &batch)?.code == code::NONE);
    }
    let before: Vec<_> = (0..3).map(|p| conn.read_all("kept", p)).collect::<Result<_>>()?;
    for _ in 0..3 {
        node.stop()?;
        node.launch()?;
    }
    let mut conn = Conn::open(node.kafka())?;
    conn.await_topic("kept", 3)?;
    let after: Vec<_> = (0..3).map(|p| conn.read_all("kept", p)).collect::<Result<_>>()?;
    ensure!(before == after, "the bytes changed");
    // The producer table and the metadata live on too: a deleted topic stays deleted.
    conn.delete_topic("kept")?;
    node.stop()?;
    node.launch()?;
    let mut conn = Conn::open(node.kafka())?;
    let (code, ..) = conn.list_offset("kept", 0, -1)?;
    ensure!(code == code::UNKNOWN_TOPIC_OR_PARTITION, "the deleted topic answers {code}");
    Ok(())
}
