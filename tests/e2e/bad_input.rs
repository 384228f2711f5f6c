//! Bytes that are not Kafka, or that only pretend to be: the node answers or closes that connection, stays small, and
//! serves everybody else.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use semel_tests::batch::{self, Batch, zstd_bomb};
use semel_tests::clock;
use semel_tests::node::{Dev, Kind};
use semel_tests::rng::Rng;
use semel_tests::wire::{Body, Conn, Fate, code, fetch_body, frame, produce_body};

const AT: i64 = 1_750_000_000_000;
const MIB: u64 = 1 << 20;
/// A node that has not closed a bad connection by now will not.
const CLOSE: Duration = Duration::from_secs(10);

/// Memory that may be in use above what was in use before. A JVM's heap says nothing, so only Semel is held to it.
fn check_memory(node: &mut Dev, before: u64, allowed: u64) -> Result<()> {
    let now = node.process()?.memory("VmHWM")?;
    let grown = now.saturating_sub(before) / MIB;
    println!("memory: {} MiB before, peak {} MiB since the start", before / MIB, now / MIB);
    ensure!(node.kind() == Kind::Kafka || grown <= allowed / MIB, "memory grew by {grown} MiB");
    Ok(())
}

#[test]
fn other_protocols_and_wrong_lengths_are_closed() -> Result<()> {
    let mut node = Dev::start()?;
    let before = node.process()?.memory("VmRSS")?;
    let length = |n: i32| n.to_be_bytes().to_vec();
    let tls = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".iter().copied().chain([7; 200]).collect();
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("TLS ClientHello", tls),
        ("HTTP", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec()),
        ("length 2 GiB", length(0x7fff_ffff)),
        ("length 100 MiB + 1", length(104_857_601)),
        ("length -1", length(-1)),
        ("length -2 GiB", length(i32::MIN)),
        ("length 0", length(0)),
        ("length 3", [length(3), vec![0, 18, 0]].concat()),
    ];
    for (name, bytes) in cases {
        let fate = Conn::open(node.kafka())?.provoke(&bytes, CLOSE)?;
        ensure!(fate == Fate::Closed, "{name}: {fate:?}");
    }
    // Exactly the limit is no offence: the node waits, and has not yet set the memory aside.
    let fate = Conn::open(node.kafka())?.provoke(&length(104_857_600), Duration::from_secs(1))?;
    ensure!(fate == Fate::Silent, "length 100 MiB: {fate:?}");

    // A slow but honest client gets its answer, and two requests in one write get theirs in order.
    let mut slow = Conn::open(node.kafka())?;
    for byte in frame(18, 0, 1, &Body::new()) {
        slow.stream.write_all(&[byte])?;
    }
    ensure!(matches!(slow.fate(CLOSE)?, Fate::Answered(_)), "one byte at a time");
    let both = [frame(18, 0, 1, &Body::new()), frame(18, 0, 2, &Body::new())].concat();
    slow.stream.write_all(&both)?;
    for correlation in [1, 2] {
        let answer = semel_tests::wire::read_frame(&mut slow.stream)?;
        ensure!(answer[..4] == i32::to_be_bytes(correlation), "answers in order");
    }
    node.check_alive()?;
    check_memory(&mut node, before, 64 * MIB)
}

#[test]
fn crowds_of_idle_and_half_sent_connections() -> Result<()> {
    let mut node = Dev::start()?;
    Conn::open(node.kafka())?.api_versions()?;
    let before = node.process()?.memory("VmRSS")?;
    let mut crowd = Vec::new();
    for i in 0..3_000 {
        let mut conn = Conn::open(node.kafka())?;
        match i % 3 {
            0 => {}
            1 => conn.stream.write_all(&[0, 0, 1])?,
            // Kafka sets the claimed memory aside at once, and would run out of it.
            _ if node.kind() == Kind::Kafka => {}
            _ => conn.stream.write_all(&[&104_857_600i32.to_be_bytes()[..], &[0]].concat())?,
        }
        crowd.push(conn);
    }
    let mut worst = Duration::ZERO;
    for _ in 0..200 {
        let start = clock::now();
        Conn::open(node.kafka())?.api_versions()?;
        worst = worst.max(start.elapsed());
    }
    println!("slowest of 200 new clients beside the crowd: {worst:?}");
    ensure!(worst < Duration::from_secs(2), "another client waited {worst:?}");
    check_memory(&mut node, before, 128 * MIB)?;
    drop(crowd);
    node.stop()
}

/// Every request kind and version with bodies that claim more than they hold.
#[test]
fn hostile_lengths_in_every_request() -> Result<()> {
    let mut node = Dev::start()?;
    let before = node.process()?.memory("VmRSS")?;
    let bodies: [&[u8]; 5] = [
        b"",
        &[0x7f, 0xff, 0xff, 0xff],
        &[0xff; 64],
        &[0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0, 0, 0],
        &[0x80; 64],
    ];
    for key in 0..96 {
        for version in 0..19 {
            for body in bodies {
                let mut conn = Conn::open(node.kafka())?;
                // Some are honest by chance and wait for data, so silence is no fault; what counts comes below.
                conn.stream.write_all(&frame(key, version, 1, &Body(body.to_vec()))).ok();
                conn.fate(Duration::from_millis(20))?;
            }
        }
        Conn::open(node.kafka())?.api_versions().with_context(|| format!("after request kind {key}"))?;
    }
    node.check_alive()?;
    check_memory(&mut node, before, 128 * MIB)
}

/// Good requests with a few bytes changed, from one seed.
#[test]
fn mutated_requests() -> Result<()> {
    let mut rng = Rng::from_env(35);
    let mut node = Dev::start()?;
    let mut conn = Conn::open(node.kafka())?;
    conn.create_topic("mutated", 1, &[])?;
    let good = Batch::of(AT, &[(Some(b"key"), Some(b"value")), (None, Some(&[7; 500]))]).encode();
    ensure!(conn.produce("mutated", 0, &good)?.code == code::NONE);
    let before = node.process()?.memory("VmRSS")?;
    let offsets = Body::new().i32(-1).i8(0).i32(1).str("mutated").i32(1).i32(0).i32(-1).i64(-1);
    let templates = [
        frame(0, 7, 1, &produce_body("mutated", -1, &[(0, &good)])),
        frame(1, 11, 1, &fetch_body("mutated", &[(0, 0)], 1 << 20, 1 << 20)),
        frame(2, 5, 1, &offsets),
        frame(3, 4, 1, &Body::new().i32(1).str("mutated").i8(0)),
        frame(22, 1, 1, &Body::new().i16(-1).i32(60_000)),
        frame(32, 1, 1, &Body::new().i32(1).i8(2).str("mutated").i32(-1).i8(0)),
        frame(21, 1, 1, &Body::new().i32(1).str("mutated").i32(1).i32(0).i64(0).i32(1000)),
        frame(23, 3, 1, &Body::new().i32(-1).i32(1).str("mutated").i32(1).i32(0).i32(-1).i32(0)),
    ];
    for i in 0..4_000 {
        let mut bytes = templates[usize::try_from(rng.below(templates.len() as u64))?].clone();
        match rng.below(4) {
            0 => bytes.truncate(usize::try_from(4 + rng.below(bytes.len() as u64 - 4))?),
            1 => bytes.extend(std::iter::repeat_n(0xff, usize::try_from(rng.below(64))?)),
            _ => {}
        }
        for _ in 0..=rng.below(4) {
            let at = usize::try_from(rng.below(bytes.len() as u64))?;
            bytes[at] = [0, 0x7f, 0x80, 0xff, (rng.bits() & 0xff) as u8][usize::try_from(rng.below(5))?];
        }
        if rng.below(8) > 0 {
            let length = i32::try_from(bytes.len() - 4)?;
            bytes[..4].copy_from_slice(&length.to_be_bytes());
        }
        let mut conn = Conn::open(node.kafka())?;
        conn.stream.write_all(&bytes).ok();
        conn.fate(Duration::from_millis(5))?;
        if i % 100 == 0 {
            Conn::open(node.kafka())?.api_versions().with_context(|| format!("after {i} mutations"))?;
        }
    }
    node.check_alive()?;
    let mut conn = Conn::open(node.kafka())?;
    ensure!(
        conn.read_all("mutated", 0)?.starts_with(&conn.fetch("mutated", 0, 0, 1)?.records[..batch::HEADER])
    );
    check_memory(&mut node, before, 128 * MIB)
}

/// What must become of a bad batch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Must {
    /// An error code or a closed connection, and nothing appended.
    Refuse,
    /// Whatever: the fault lies inside the records, which a log may keep as they came.
    Survive,
}

#[test]
fn bad_batches() -> Result<()> {
    let mut node = Dev::start()?;
    let mut conn = Conn::open(node.kafka())?;
    conn.create_topic("bad", 1, &[])?;
    let before = node.process()?.memory("VmRSS")?;
    let good = Batch::of(AT, &[(Some(b"k"), Some(b"v")), (Some(b"k"), Some(b"w"))]);
    let bytes = good.encode();
    let change = |f: &dyn Fn(&mut Batch)| {
        let mut b = good.clone();
        f(&mut b);
        b.encode()
    };
    let patch = |at: usize, with: &[u8]| {
        let mut b = bytes.clone();
        b[at..at + with.len()].copy_from_slice(with);
        b
    };
    let sealed = |at: usize, with: &[u8]| {
        let mut b = patch(at, with);
        batch::seal(&mut b);
        b
    };
    let mut cases: Vec<(String, Must, Vec<u8>)> = vec![
        ("wrong CRC".into(), Must::Refuse, patch(17, &[1, 2, 3, 4])),
        ("magic 0".into(), Must::Refuse, patch(16, &[0])),
        ("magic 3".into(), Must::Refuse, patch(16, &[3])),
        ("magic -1".into(), Must::Refuse, patch(16, &[0xff])),
        ("length -1".into(), Must::Refuse, patch(8, &[0xff; 4])),
        ("length 2 GiB".into(), Must::Refuse, patch(8, &[0x7f, 0xff, 0xff, 0xff])),
        ("length 0".into(), Must::Refuse, patch(8, &[0; 4])),
        ("length below the header".into(), Must::Refuse, patch(8, &48i32.to_be_bytes())),
        ("cut off".into(), Must::Refuse, bytes[..bytes.len() - 1].to_vec()),
        ("only a header".into(), Must::Refuse, bytes[..batch::HEADER].to_vec()),
        ("12 bytes".into(), Must::Refuse, bytes[..12].to_vec()),
        ("count -1".into(), Must::Refuse, change(&|b| b.count = -1)),
        ("count 0 with records".into(), Must::Refuse, change(&|b| b.count = 0)),
        ("count 2 G".into(), Must::Refuse, change(&|b| b.count = i32::MAX)),
        ("count 1 of 2".into(), Must::Refuse, change(&|b| b.count = 1)),
        ("last offset delta -1".into(), Must::Refuse, change(&|b| b.last_offset_delta = -1)),
        ("last offset delta 2 G".into(), Must::Refuse, change(&|b| b.last_offset_delta = i32::MAX)),
        ("last offset delta 7".into(), Must::Refuse, change(&|b| b.last_offset_delta = 7)),
        ("control batch".into(), Must::Refuse, change(&|b| b.attributes = 0x20)),
        ("codec 5".into(), Must::Refuse, change(&|b| b.attributes = 5)),
        ("codec 7".into(), Must::Refuse, change(&|b| b.attributes = 7)),
        ("record length -1".into(), Must::Survive, sealed(61, &[1])),
        ("record length 2 G".into(), Must::Survive, sealed(61, &[0xfe, 0xff, 0xff, 0xff, 0x0f])),
        ("varint without end".into(), Must::Survive, sealed(61, &[0xff; 11])),
        ("key length -3".into(), Must::Survive, sealed(65, &[5])),
        ("header count -1".into(), Must::Survive, sealed(69, &[1])),
        ("base timestamp -1".into(), Must::Survive, change(&|b| b.timestamps = (-1, -1))),
        ("timestamps i64::MIN".into(), Must::Survive, change(&|b| b.timestamps = (i64::MIN, i64::MAX))),
    ];
    for (codec, name) in [(1, "gzip"), (2, "snappy"), (3, "lz4"), (4, "zstd")] {
        cases.push((format!("{name} garbage"), Must::Survive, change(&|b| b.attributes = codec)));
    }
    for (name, must, bytes) in cases {
        let (_, _, end) = conn.list_offset("bad", 0, -1)?;
        let mut other = Conn::open(node.kafka())?;
        // A connection that is closed is an answer too.
        let answer = other.produce("bad", 0, &bytes);
        node.check_alive().with_context(|| name.clone())?;
        if must == Must::Refuse {
            ensure!(answer.as_ref().map_or(true, |a| a.code != code::NONE), "{name}: {answer:?}");
            let (_, _, now) = conn.list_offset("bad", 0, -1)?;
            ensure!(now == end, "{name}: {} records were appended", now - end);
        }
    }
    ensure!(conn.produce("bad", 0, &good.encode())?.code == code::NONE, "a good batch after the bad ones");
    node.stop()?;
    node.launch()?;
    let mut conn = Conn::open(node.kafka())?;
    conn.await_topic("bad", 1)?;
    conn.read_all("bad", 0).context("reading all after a start")?;
    check_memory(&mut node, before, 64 * MIB)
}

/// A few hundred kilobytes that unpack to gigabytes, on topics where the node has a reason to look inside.
#[test]
fn a_decompression_bomb() -> Result<()> {
    let mut node = Dev::start()?;
    let mut conn = Conn::open(node.kafka())?;
    conn.create_topic("plain", 1, &[])?;
    conn.create_topic("recompress", 1, &[("compression.type", "uncompressed")])?;
    conn.create_topic("compacted", 1, &[("cleanup.policy", "compact")])?;
    let before = node.process()?.memory("VmRSS")?;
    // One record whose value claims the whole size, so that a reader who trusts it sets it aside.
    let size = 1_500_000_000u64;
    let mut head = Vec::new();
    let mut inner = vec![0, 0, 0, 2, b'k'];
    batch::varint(&mut inner, i64::try_from(size)?);
    batch::varint(&mut head, i64::try_from(inner.len() as u64 + size + 1)?);
    head.extend_from_slice(&inner);
    let bomb =
        Batch { attributes: 4, records: zstd_bomb(&head, size), ..Batch::of(AT, &[(Some(b"k"), None)]) };
    let bytes = bomb.encode();
    println!("{} bytes for {size}", bytes.len());
    for topic in ["plain", "recompress", "compacted"] {
        if node.kind() == Kind::Kafka && topic != "plain" {
            // Kafka unpacks it and may run out of heap: no measure for Semel.
            continue;
        }
        let start = clock::now();
        let answer = Conn::open(node.kafka())?.produce(topic, 0, &bytes);
        println!("{topic}: {answer:?} after {:?}", start.elapsed());
        node.check_alive().context(topic)?;
        ensure!(answer.map_or(true, |a| a.code != code::NONE) || topic == "plain", "{topic} took the bomb");
        Conn::open(node.kafka())?.api_versions().context(topic)?;
    }
    check_memory(&mut node, before, 128 * MIB)
}
