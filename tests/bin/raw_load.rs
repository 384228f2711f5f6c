//! A load generator that costs little itself, so that what is measured is the broker: pre-encoded batches over one
//! connection, fetches that only skip from batch to batch, and a fixed rate whose latency counts from the moment a
//! request was due. Prints one line of JSON.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{self, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Args, Parser, Subcommand};
use hdrhistogram::Histogram;
use semel_tests::batch::{self, Batch, KeyValue};
use semel_tests::clock;
use semel_tests::wire::{self, Conn, Reader, code};
use serde_json::{Value, json};

#[derive(Parser)]
#[command(name = "raw-load", about = "Raw Kafka load over one connection; loopback only")]
struct Cli {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Creates a topic with one replica.
    Create {
        #[command(flatten)]
        target: Target,
        /// Topic settings.
        #[arg(long = "config", value_parser = setting)]
        configs: Vec<(String, String)>,
    },
    /// Deletes a topic.
    Delete {
        #[command(flatten)]
        target: Target,
    },
    /// Sends the same encoded batches until `--bytes` have been acknowledged.
    Produce {
        #[command(flatten)]
        target: Target,
        /// Bytes of each record's value.
        #[arg(long, default_value_t = 1024)]
        record: usize,
        /// Bytes of each batch, at most (one record at least).
        #[arg(long, default_value_t = 1_000_000)]
        batch: usize,
        /// Bytes of batches in all.
        #[arg(long)]
        bytes: u64,
        /// 1, or -1 for all.
        #[arg(long, default_value_t = -1, allow_hyphen_values = true)]
        acks: i16,
        /// Requests in flight.
        #[arg(long, default_value_t = 5)]
        inflight: usize,
        /// Partitions in each request, one batch each.
        #[arg(long, default_value_t = 1)]
        per_request: i32,
    },
    /// Reads all partitions from their start until `--bytes` have come or all is read.
    Fetch {
        #[command(flatten)]
        target: Target,
        /// Bytes in all.
        #[arg(long)]
        bytes: u64,
        /// Bytes of one answer.
        #[arg(long, default_value_t = 8 << 20)]
        max: i32,
        /// Bytes of one partition in an answer.
        #[arg(long, default_value_t = 1 << 20)]
        partition_max: i32,
    },
    /// An idempotent producer at a fixed rate with acks=all; latencies in microseconds.
    Latency {
        #[command(flatten)]
        target: Target,
        /// Bytes of each record's value.
        #[arg(long, default_value_t = 1024)]
        record: usize,
        /// Records in each request.
        #[arg(long, default_value_t = 1)]
        records: usize,
        /// Requests per second.
        #[arg(long, default_value_t = 1000)]
        rate: u32,
        /// Measured seconds.
        #[arg(long, default_value_t = 10)]
        seconds: u32,
        /// Seconds before that.
        #[arg(long, default_value_t = 2)]
        warmup: u32,
    },
}

#[derive(Args, Clone)]
struct Target {
    /// 127.0.0.1:PORT
    address: SocketAddr,
    /// The topic.
    topic: String,
    /// Its partitions.
    #[arg(long, default_value_t = 1)]
    partitions: i32,
}

fn setting(text: &str) -> Result<(String, String)> {
    let (key, value) = text.split_once('=').context("key=value")?;
    Ok((key.to_owned(), value.to_owned()))
}

fn main() -> Result<()> {
    let value = match Cli::parse().command {
        Task::Create { target, configs } => {
            let configs: Vec<_> = configs.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
            Conn::open(target.address)?.create_topic(&target.topic, target.partitions, &configs)?;
            json!({})
        }
        Task::Delete { target } => {
            Conn::open(target.address)?.delete_topic(&target.topic)?;
            json!({})
        }
        Task::Produce { target, record, batch, bytes, acks, inflight, per_request } => {
            produce(&target, Produce { record, batch, bytes, acks, inflight, per_request })?
        }
        Task::Fetch { target, bytes, max, partition_max } => fetch(&target, bytes, max, partition_max)?,
        Task::Latency { target, record, records, rate, seconds, warmup } => {
            latency(&target, Latency { record, records, rate, seconds, warmup })?
        }
    };
    println!("{value}");
    Ok(())
}

struct Produce {
    record: usize,
    batch: usize,
    bytes: u64,
    acks: i16,
    inflight: usize,
    per_request: i32,
}

/// Values that look alike but are not: no two bytes in a row repeat, and records differ.
fn values(size: usize, count: usize) -> Vec<Vec<u8>> {
    let letter = |i: usize, j: usize| b'A' + u8::try_from((i * 7 + j * 11) % 26).unwrap_or(0);
    (0..count).map(|i| (0..size).map(|j| letter(i, j)).collect()).collect()
}

fn batch_of(record: usize, count: usize) -> Batch {
    let values = values(record, count);
    let records: Vec<KeyValue<'_>> = values.iter().map(|v| (None, Some(v.as_slice()))).collect();
    // Any fixed time: brokers keep it, and the same bytes may be sent again.
    Batch::of(1_760_000_000_000, &records)
}

fn produce(target: &Target, load: Produce) -> Result<Value> {
    // A record's own bytes: length, attributes, deltas, key and value lengths, header count.
    let count = (load.batch.saturating_sub(batch::HEADER) / (load.record + 12)).max(1);
    let encoded = batch_of(load.record, count).encode();
    ensure!(
        load.per_request >= 1 && target.partitions % load.per_request == 0,
        "--per-request divides --partitions"
    );
    let frames: Vec<Vec<u8>> = (0..target.partitions / load.per_request)
        .map(|group| {
            let first = group * load.per_request;
            let parts: Vec<_> = (first..first + load.per_request).map(|p| (p, encoded.as_slice())).collect();
            wire::frame(0, 7, 0, &wire::produce_body(&target.topic, load.acks, &parts))
        })
        .collect();
    let per_frame = encoded.len() as u64 * u64::try_from(load.per_request)?;
    let wanted = load.bytes.div_ceil(per_frame).max(1);

    let mut conn = Conn::open(target.address)?;
    let mut answer = Vec::new();
    // Before the clock starts, each request once: files exist and errors show.
    for frame in &frames {
        conn.stream.write_all(frame)?;
        wire::read_frame_into(&mut conn.stream, &mut answer)?;
        check_produced(&answer)?;
    }
    let start = clock::now();
    let (mut sent, mut answered) = (0, 0);
    let mut next = frames.iter().cycle();
    while answered < wanted {
        while sent < wanted && sent - answered < load.inflight as u64 {
            conn.stream.write_all(next.next().context("there is a frame")?)?;
            sent += 1;
        }
        wire::read_frame_into(&mut conn.stream, &mut answer)?;
        check_produced(&answer)?;
        answered += 1;
    }
    let seconds = start.elapsed().as_secs_f64();
    let batches = answered * u64::try_from(load.per_request)?;
    Ok(json!({
        "seconds": seconds, "bytes": answered * per_frame, "records": batches * count as u64,
        "requests": answered, "batch_bytes": encoded.len(),
    }))
}

fn check_produced(answer: &[u8]) -> Result<()> {
    let mut r = Reader(answer);
    let (_correlation, _topics, _name) = (r.i32()?, r.i32()?, r.str()?);
    for _ in 0..r.i32()? {
        let (index, code) = (r.i32()?, r.i16()?);
        ensure!(code == code::NONE, "partition {index}: error {code}");
        r.skip(24)?;
    }
    Ok(())
}

fn fetch(target: &Target, bytes: u64, max: i32, partition_max: i32) -> Result<Value> {
    let mut conn = Conn::open(target.address)?;
    let mut offsets: BTreeMap<i32, i64> = (0..target.partitions).map(|p| (p, 0)).collect();
    let (mut total, mut records, mut requests) = (0u64, 0u64, 0u64);
    let mut answer = Vec::new();
    let start = clock::now();
    while total < bytes && !offsets.is_empty() {
        // Partitions with the least read come first, or the first few would fill every answer.
        let mut parts: Vec<_> = offsets.iter().map(|(&p, &o)| (p, o)).collect();
        parts.sort_by_key(|&(p, o)| (o, p));
        let body = wire::fetch_body(&target.topic, &parts, max, partition_max);
        conn.stream.write_all(&wire::frame(1, 11, 0, &body))?;
        wire::read_frame_into(&mut conn.stream, &mut answer)?;
        requests += 1;
        let mut r = Reader(&answer);
        let (_correlation, _throttle, code, _session, _topics) =
            (r.i32()?, r.i32()?, r.i16()?, r.i32()?, r.i32()?);
        ensure!(code == code::NONE, "error {code}");
        let _name = r.str()?;
        for _ in 0..r.i32()? {
            let part = wire::fetched_partition(&mut r)?;
            ensure!(part.code == code::NONE, "partition {}: error {}", part.partition, part.code);
            let mut at = offsets.get(&part.partition).copied().unwrap_or(0);
            for view in batch::batches(part.records) {
                ensure!(
                    view.base_offset == at,
                    "partition {}: {} after {at}",
                    part.partition,
                    view.base_offset
                );
                at = view.last_offset + 1;
                total += view.bytes.len() as u64;
                records += u64::try_from(view.count)?;
            }
            if at >= part.high_watermark {
                offsets.remove(&part.partition);
            } else {
                offsets.insert(part.partition, at);
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(json!({ "seconds": seconds, "bytes": total, "records": records, "requests": requests }))
}

struct Latency {
    record: usize,
    records: usize,
    rate: u32,
    seconds: u32,
    warmup: u32,
}

fn latency(target: &Target, load: Latency) -> Result<Value> {
    let mut conn = Conn::open(target.address)?;
    let producer = conn.init_producer_id()?;
    let writer = conn.stream.try_clone()?;
    let warm = u64::from(load.rate) * u64::from(load.warmup);
    let count = warm + u64::from(load.rate) * u64::from(load.seconds);
    let interval = Duration::from_secs(1) / load.rate.max(1);
    let target = target.clone();
    let template = batch_of(load.record, load.records);

    // The due times travel beside the requests; answers come in request order. Past the bound the sender waits for
    // answers, and what is late by then counts as late, since time runs from when a request was due.
    let (due, dues) = mpsc::sync_channel::<Instant>(100_000);
    let sender = thread::Builder::new().name("sender".into()).spawn(move || {
        send_at_rate(writer, &target, &template, producer, Schedule { count, interval, due })
    })?;
    let mut histogram = Histogram::<u64>::new_with_bounds(1, 3_600_000_000, 3)?;
    let (mut answer, mut answered) = (Vec::new(), 0u64);
    let mut late = Duration::ZERO;
    while answered < count {
        let Ok(at) = dues.recv() else { break };
        wire::read_frame_into(&mut conn.stream, &mut answer)?;
        check_produced(&answer)?;
        let took = clock::now().saturating_duration_since(at);
        if answered >= warm {
            histogram.record(u64::try_from(took.as_micros())?.max(1))?;
            late = late.max(took);
        }
        answered += 1;
    }
    sender.join().map_err(|_| anyhow::anyhow!("the sender panicked"))??;
    ensure!(answered == count, "{answered} of {count} answers");
    let q = |q: f64| histogram.value_at_quantile(q);
    Ok(json!({
        "requests": histogram.len(), "rate": load.rate, "p50_us": q(0.5), "p90_us": q(0.9), "p99_us": q(0.99),
        "p999_us": q(0.999), "max_us": histogram.max(), "mean_us": histogram.mean(),
    }))
}

struct Schedule {
    count: u64,
    interval: Duration,
    due: SyncSender<Instant>,
}

fn send_at_rate(
    mut stream: TcpStream,
    target: &Target,
    template: &Batch,
    producer: batch::Producer,
    schedule: Schedule,
) -> Result<()> {
    let partitions = u64::try_from(target.partitions.max(1))?;
    let start = clock::now();
    for i in 0..schedule.count {
        let round = i32::try_from(i / partitions)?;
        let encoded = template.clone().by(producer, round * template.count).encode();
        let parts = [(i32::try_from(i % partitions)?, encoded.as_slice())];
        let frame = wire::frame(0, 7, 0, &wire::produce_body(&target.topic, -1, &parts));
        let at = start + schedule.interval.mul_f64(i as f64);
        if let Some(early) = at.checked_duration_since(clock::now()) {
            thread::sleep(early);
        }
        schedule.due.send(at).context("the receiver is gone")?;
        stream.write_all(&frame)?;
    }
    Ok(())
}
