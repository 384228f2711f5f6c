//! `semel produce`: lines, files or JSON in, records out.

use std::{
    collections::BTreeMap,
    fs::File,
    io::Read,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use semel_client::{Acks, Appended, AppenderConfig, Codec, Header, NewRecord, Receipt};
use semel_model::PartitionIndex;
use serde_json::{Value, json};
use tokio::{sync::mpsc, time::Instant};

use crate::{
    Global, Output,
    failure::Failure,
    format::{TemplateError, unescape},
    input::{Splitter, find},
    json,
    output::{Io, count, many, size},
    topic::pair,
};

/// Receipts waited for at once; the appender's buffer is the tighter bound unless records are tiny.
const RECEIPTS_MAX: usize = 1 << 16;

/// What `produce` takes.
#[derive(Args, Debug)]
pub struct ProduceArgs {
    /// The topic
    pub(crate) topic: String,
    /// To this partition; else the key decides, or the partitions take turns
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(i32).range(0..))]
    partition: Option<i32>,
    /// What stands between key and value on a line (\t, \x00 and so on work); a line without it has no key
    #[arg(short, long, value_name = "DELIMITER", conflicts_with_all = ["key", "json"])]
    key_delimiter: Option<Delimiter>,
    /// The key of every record
    #[arg(long, conflicts_with = "json")]
    key: Option<String>,
    /// A header of every record; may be given again
    #[arg(short = 'H', long, value_name = "NAME=VALUE", value_parser = pair)]
    header: Vec<(String, String)>,
    /// Compression: none, gzip, snappy, lz4, zstd
    #[arg(short = 'z', long, default_value = "none", value_parser = codec)]
    codec: Codec,
    /// The compression's level, for gzip and zstd
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    level: Option<i32>,
    /// When a record counts as written
    #[arg(long, value_enum, default_value_t)]
    acks: AcksArg,
    /// Read this file instead of standard input (which is `-`); may be given again
    #[arg(short = 'l', long, value_name = "PATH")]
    file: Vec<PathBuf>,
    /// Each file is one record
    #[arg(long, requires = "file", conflicts_with_all = ["key_delimiter", "json", "delimiter"])]
    whole: bool,
    /// What ends a record
    #[arg(short = 'D', long, value_name = "DELIMITER", default_value = "\\n")]
    delimiter: Delimiter,
    /// Each line is {"key","value","headers","partition","timestamp"}; null is null, {"base64":…} is binary
    #[arg(long)]
    json: bool,
    /// A key or value of exactly this text is null
    #[arg(long, value_name = "TEXT", conflicts_with = "json")]
    null: Option<String>,
    /// Bytes of a batch before compression
    #[arg(long, value_name = "BYTES", default_value_t = 256 << 10, value_parser = clap::value_parser!(u32).range(1..))]
    batch_bytes: u32,
    /// How long a batch waits for more records, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(..=60_000))]
    linger_ms: u64,
    /// No progress and no summary
    #[arg(short, long)]
    quiet: bool,
}

/// When a record counts as written.
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum AcksArg {
    /// When all in-sync replicas have it; each record once.
    #[default]
    All,
    /// When the leader has it; a retry may double it.
    Leader,
}

/// Bytes between things, written with escapes; not empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Delimiter(pub(crate) Vec<u8>);

impl std::str::FromStr for Delimiter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match unescape(text).map_err(|error: TemplateError| error.to_string())? {
            bytes if bytes.is_empty() => Err("it is empty".to_owned()),
            bytes => Ok(Self(bytes)),
        }
    }
}

pub(crate) fn codec(name: &str) -> Result<Codec, String> {
    Codec::from_name(name).ok_or_else(|| "it is none of none, gzip, snappy, lz4, zstd".to_owned())
}

/// Records as they were read, with how many bytes that took.
type Chunk = (Vec<Bytes>, u64);

pub(crate) async fn run(args: ProduceArgs, global: &Global, io: &mut Io) -> Result<(), Failure> {
    let cluster = global.connect().await?;
    // A topic that isn't there should not cost a read of the input.
    cluster.topic(&args.topic).await?;
    let config = AppenderConfig {
        acks: match args.acks {
            AcksArg::All => Acks::All,
            AcksArg::Leader => Acks::Leader,
        },
        codec: args.codec,
        level: args.level,
        batch_bytes: args.batch_bytes as usize,
        linger: Duration::from_millis(args.linger_ms),
        delivery_timeout: global.timeout(),
        ..AppenderConfig::default()
    };
    let appender = cluster.appender(config).await?;
    let sources = Sources::open(&args, io)?;
    let bar = progress(&args, sources.bytes, io);
    let started = Instant::now();

    let (receipts, inbox) = mpsc::channel(RECEIPTS_MAX);
    let stop = Arc::new(AtomicBool::new(false));
    let tally = tokio::spawn(gather(inbox, Arc::clone(&stop)));
    let mut chunks = sources.start();
    let mut reading = Ok(());
    let mut line = 0_u64;
    // One future for the whole input: a signal between two chunks is not missed.
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(interrupted);
    'input: while !stop.load(Ordering::Relaxed) {
        let chunk = tokio::select! {
            chunk = chunks.recv() => chunk,
            _ = &mut interrupted => {
                reading = Err(Failure::other("interrupted"));
                break;
            }
        };
        let (records, bytes) = match chunk {
            None => break,
            Some(Ok(chunk)) => chunk,
            Some(Err(failure)) => {
                reading = Err(failure);
                break;
            }
        };
        bar.inc(bytes);
        for bytes in records {
            line += 1;
            let (partition, record) = match args.record(bytes, line) {
                Ok(Some(record)) => record,
                Ok(None) => continue,
                Err(failure) => {
                    reading = Err(failure);
                    break 'input;
                }
            };
            let size =
                record.key.as_ref().map_or(0, Bytes::len) + record.value.as_ref().map_or(0, Bytes::len);
            let receipt = match appender.send(&args.topic, partition, record).await {
                Ok(receipt) => receipt,
                Err(error) => {
                    reading = Err(error.into());
                    break 'input;
                }
            };
            if receipts.send((receipt, size)).await.is_err() || stop.load(Ordering::Relaxed) {
                break 'input;
            }
        }
    }
    drop(receipts);
    tokio::select! {
        flushed = appender.flush() => flushed?,
        _ = tokio::signal::ctrl_c() => {
            return Err(Failure::other("interrupted while records were on their way"));
        }
    }
    let tally = tally.await.map_err(|cause| Failure::other(format!("the counting task failed: {cause}")))?;
    bar.finish_and_clear();
    finish(&args, tally, reading, started.elapsed(), global, io)
}

fn finish(
    args: &ProduceArgs,
    tally: Tally,
    reading: Result<(), Failure>,
    took: Duration,
    global: &Global,
    io: &mut Io,
) -> Result<(), Failure> {
    let seconds = took.as_secs_f64().max(1e-6);
    if global.output == Output::Json {
        io.json(&tally.json(&args.topic, seconds))?;
    } else if !args.quiet {
        let rate = |amount: i64| (amount as f64 / seconds) as i64;
        io.tell(&format!(
            "{} ({}) to {} in {:.1} s: {} records/s, {}/s\n",
            many(tally.records, "record"),
            size(tally.bytes),
            args.topic,
            seconds,
            count(rate(tally.records)),
            size(rate(tally.bytes)),
        ));
    }
    let acknowledged = many(tally.records, "record");
    match (tally.error, reading) {
        (None, Ok(())) => Ok(()),
        (None, Err(cause)) => {
            let done = format!("not all of the input was produced ({acknowledged} acknowledged)");
            Err(Failure::Partly { done, cause: Box::new(cause) })
        }
        (Some(error), _) => {
            let done = format!("{} failed ({acknowledged} acknowledged)", many(tally.failed, "record"));
            Err(Failure::Partly { done, cause: Box::new(error.into()) })
        }
    }
}

/// What became of the records.
#[derive(Default)]
struct Tally {
    records: i64,
    bytes: i64,
    failed: i64,
    /// The first.
    error: Option<semel_client::Error>,
    /// By partition: records, first and last offset.
    partitions: BTreeMap<i32, (i64, Option<i64>, Option<i64>)>,
}

impl Tally {
    fn add(&mut self, appended: Appended, bytes: usize) {
        self.records += 1;
        self.bytes = self.bytes.saturating_add(i64::try_from(bytes).unwrap_or(i64::MAX));
        let (records, first, last) = self.partitions.entry(appended.partition.get()).or_default();
        *records += 1;
        if let Some(offset) = appended.offset {
            *first = Some(first.map_or(offset.get(), |first| first.min(offset.get())));
            *last = Some(last.map_or(offset.get(), |last| last.max(offset.get())));
        }
    }

    fn json(&self, topic: &str, seconds: f64) -> Value {
        let partition = |(partition, (records, first, last)): (&i32, &(i64, Option<i64>, Option<i64>))| json!({"partition": partition, "records": records, "first_offset": first, "last_offset": last});
        json!({
            "topic": topic,
            "records": self.records,
            "bytes": self.bytes,
            "failed": self.failed,
            "seconds": seconds,
            "partitions": self.partitions.iter().map(partition).collect::<Value>(),
        })
    }
}

/// Waits for each receipt; the first failure stops the reading of more input.
async fn gather(mut receipts: mpsc::Receiver<(Receipt, usize)>, stop: Arc<AtomicBool>) -> Tally {
    let mut tally = Tally::default();
    while let Some((receipt, bytes)) = receipts.recv().await {
        match receipt.await {
            Ok(appended) => tally.add(appended, bytes),
            Err(error) => {
                stop.store(true, Ordering::Relaxed);
                tally.failed += 1;
                tally.error.get_or_insert(error);
            }
        }
    }
    tally
}

impl ProduceArgs {
    /// The record that some bytes of input are; `None` for a blank line of JSON. `line` counts from 1.
    fn record(
        &self,
        bytes: Bytes,
        line: u64,
    ) -> Result<Option<(Option<PartitionIndex>, NewRecord)>, Failure> {
        let mut partition = self.partition.map(PartitionIndex);
        let mut record = if self.json {
            if bytes.iter().all(u8::is_ascii_whitespace) {
                return Ok(None);
            }
            let read = json::read(&bytes).map_err(|error| Failure::Other {
                what: format!("line {line}: {error}"),
                next: Some(
                    r#"a line looks like {"key":"k","value":"v","headers":[{"key":"h","value":"x"}]}"#
                        .to_owned(),
                ),
            })?;
            partition = read.partition.or(partition);
            read.record
        } else {
            let null = |bytes: Bytes| match &self.null {
                Some(null) if bytes == null.as_bytes() => None,
                _ => Some(bytes),
            };
            let split = self.key_delimiter.as_ref().and_then(|delimiter| {
                let at = find(&bytes, &delimiter.0)?;
                Some((bytes.slice(..at), bytes.slice(at + delimiter.0.len()..)))
            });
            let (key, value) = match split {
                Some((key, value)) => (null(key), null(value)),
                None => (self.key.clone().map(Bytes::from), null(bytes)),
            };
            NewRecord { key, value, ..NewRecord::default() }
        };
        for (key, value) in &self.header {
            record.headers.push(Header { key: key.clone().into(), value: Some(value.clone().into()) });
        }
        Ok(Some((partition, record)))
    }
}

/// Where the records are read from.
struct Sources {
    readers: Vec<(String, Box<dyn Read + Send>)>,
    /// `None`: each is one record.
    delimiter: Option<Vec<u8>>,
    /// If all are files.
    bytes: Option<u64>,
}

impl Sources {
    fn open(args: &ProduceArgs, io: &mut Io) -> Result<Self, Failure> {
        let mut readers: Vec<(String, Box<dyn Read + Send>)> = Vec::new();
        let mut bytes = (!args.file.is_empty()).then_some(0_u64);
        let mut stdin = || {
            let reader =
                io.stdin.take().ok_or_else(|| Failure::other("standard input can be read once only"))?;
            Ok::<_, Failure>(("standard input".to_owned(), reader))
        };
        if args.file.is_empty() {
            readers.push(stdin()?);
        }
        for path in &args.file {
            if path.as_os_str() == "-" {
                readers.push(stdin()?);
                bytes = None;
                continue;
            }
            let name = path.display().to_string();
            let opened = File::open(path).and_then(|file| Ok((file.metadata()?, file)));
            let (metadata, file) = opened.map_err(|cause| Failure::Read { name: name.clone(), cause })?;
            // A pipe has no length.
            bytes = bytes.filter(|_| metadata.is_file()).map(|sum| sum + metadata.len());
            readers.push((name, Box::new(file)));
        }
        let delimiter = (!args.whole).then(|| args.delimiter.0.clone());
        Ok(Self { readers, delimiter, bytes })
    }

    /// Reads on a thread of its own, because a terminal or a pipe may block for ever.
    fn start(self) -> mpsc::Receiver<Result<Chunk, Failure>> {
        let (to, chunks) = mpsc::channel(4);
        let read = move || {
            for (name, mut reader) in self.readers {
                let failed = |cause| Failure::Read { name: name.clone(), cause };
                let Some(delimiter) = &self.delimiter else {
                    let mut whole = Vec::new();
                    let result = reader.read_to_end(&mut whole).map_err(failed);
                    let chunk = result.map(|read| (vec![Bytes::from(whole)], read as u64));
                    if to.blocking_send(chunk).is_err() {
                        return;
                    }
                    continue;
                };
                let mut splitter = Splitter::new(reader, delimiter.clone());
                loop {
                    let chunk = match splitter.next() {
                        Ok(Some(chunk)) => Ok(chunk),
                        Ok(None) => break,
                        Err(cause) => Err(failed(cause)),
                    };
                    let last = chunk.is_err();
                    if to.blocking_send(chunk).is_err() || last {
                        return;
                    }
                }
            }
        };
        // Without a thread the channel closes at once, and that is told as an empty input.
        if let Err(cause) = std::thread::Builder::new().name("input".to_owned()).spawn(read) {
            let (to, chunks) = mpsc::channel(1);
            let name = "the input: no thread for it".to_owned();
            let _ = to.try_send(Err(Failure::Read { name, cause }));
            return chunks;
        }
        chunks
    }
}

fn progress(args: &ProduceArgs, bytes: Option<u64>, io: &Io) -> ProgressBar {
    if args.quiet || !io.watched {
        return ProgressBar::hidden();
    }
    let target = ProgressDrawTarget::stderr();
    let (bar, style) = match bytes {
        Some(bytes) => (
            ProgressBar::with_draw_target(Some(bytes), target),
            "{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
        ),
        None => (ProgressBar::with_draw_target(None, target), "{spinner} {bytes} {bytes_per_sec}"),
    };
    match ProgressStyle::with_template(style) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
