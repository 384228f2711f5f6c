//! `semel consume`: records out, in kcat's manner.

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use semel_client::{Cluster, Isolation, ReadOptions};
use semel_model::{Offset, PartitionIndex};
use tokio_stream::{StreamExt as _, StreamMap};

use crate::{
    Global, Output,
    failure::Failure,
    format::Template,
    json,
    output::{Io, many},
    position::Position,
    produce::Delimiter,
    topic::{IsolationArg, chosen},
};

/// Printed text gathered before it is written.
const WRITE_AT: usize = 128 << 10;

/// What `consume` takes.
#[derive(Args, Debug)]
pub struct ConsumeArgs {
    /// The topic
    pub(crate) topic: String,
    /// Only these partitions
    #[arg(short, long, value_name = "N", value_delimiter = ',')]
    partition: Vec<i32>,
    /// Where to begin in each partition: beginning, end, OFFSET, -N (the last N), @TIME
    #[arg(
        short = 'o',
        long,
        value_name = "POSITION",
        default_value = "beginning",
        allow_hyphen_values = true
    )]
    from: Position,
    /// Where to end in each partition, exclusive: end (of now), OFFSET, -N, @TIME
    #[arg(long, value_name = "POSITION", allow_hyphen_values = true)]
    to: Option<Position>,
    /// End after this many records
    #[arg(short, long, value_name = "COUNT")]
    count: Option<u64>,
    /// End when all partitions have been read to their ends
    #[arg(short, long)]
    exit_at_end: bool,
    /// How a record is printed: %t topic, %p partition, %o offset, %k key, %s value, %K %S their lengths (-1 for
    /// null), %R value's length as 4 bytes, %T time in ms, %h headers, %% percent; \n \r \t \xHH
    #[arg(short, long, value_name = "FORMAT", conflicts_with_all = ["json", "key_delimiter", "delimiter"], value_parser = Template::parse)]
    format: Option<Template>,
    /// A line of JSON for each record, as `produce --json` reads it
    #[arg(long, conflicts_with_all = ["key_delimiter", "delimiter", "null"])]
    json: bool,
    /// Print the key and this before the value
    #[arg(short, long, value_name = "DELIMITER")]
    key_delimiter: Option<Delimiter>,
    /// Print this after each record
    #[arg(short = 'D', long, value_name = "DELIMITER", default_value = "\\n")]
    delimiter: Delimiter,
    /// Print this for a null key or value
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    null: String,
    /// Which records are seen
    #[arg(long, value_enum, default_value_t)]
    isolation: IsolationArg,
    /// No progress and no summary
    #[arg(short, long)]
    quiet: bool,
}

enum Printer {
    Json,
    Template(Template),
}

pub(crate) async fn run(args: ConsumeArgs, global: &Global, io: &mut Io) -> Result<(), Failure> {
    let cluster = global.connect().await?;
    let partitions = chosen(&cluster, &args.topic, &args.partition).await?;
    let (mut readers, bounded) = start(&cluster, &args, &partitions).await?;
    let printer = if args.json || (global.output == Output::Json && args.format.is_none()) {
        Printer::Json
    } else {
        let plain = || Template::plain(args.key_delimiter.as_ref().map(|one| &*one.0), &args.delimiter.0);
        Printer::Template(args.format.clone().unwrap_or_else(plain))
    };
    let expected = match (bounded, args.count) {
        (Some(bounded), Some(count)) => Some(bounded.min(count)),
        (bounded, count) => bounded.or(count),
    };
    let bar = progress(&args, expected, io);
    let limit = args.count.unwrap_or(u64::MAX);
    let mut printed = 0;
    let mut text = Vec::new();
    // One future for the whole command: a signal between two looks is not missed.
    let interrupted = tokio::signal::ctrl_c();
    tokio::pin!(interrupted);
    while printed < limit {
        let next = tokio::select! {
            biased;
            next = readers.next() => next,
            // Nothing is there just now, so nobody should wait for what already came.
            () = std::future::ready(()), if !text.is_empty() => {
                io.write(&text)?;
                io.flush()?;
                text.clear();
                continue;
            }
            _ = &mut interrupted => break,
        };
        let Some((partition, answer)) = next else { break };
        let records = match answer {
            Ok(answer) => answer.records.unwrap_or_default().records,
            Err(error) => {
                // What came before it is not withheld.
                io.write(&text)?;
                io.flush()?;
                return Err(error.into());
            }
        };
        let before = printed;
        for record in &records {
            if printed == limit {
                break;
            }
            match &printer {
                Printer::Json => json::write(&args.topic, partition, record, &mut text),
                Printer::Template(template) => {
                    template.write(&args.topic, partition, record, &args.null, &mut text);
                }
            }
            printed += 1;
        }
        bar.inc(printed - before);
        if text.len() >= WRITE_AT {
            io.write(&text)?;
            text.clear();
        }
    }
    io.write(&text)?;
    io.flush()?;
    bar.finish_and_clear();
    if io.watched && !args.quiet {
        let printed = i64::try_from(printed).unwrap_or(i64::MAX);
        io.tell(&format!("{} from {}\n", many(printed, "record"), args.topic));
    }
    Ok(())
}

type Readers = StreamMap<i32, semel_client::Reader>;

/// A reader for each partition that has something to read, and how many offsets lie ahead if that is known.
async fn start(
    cluster: &Cluster,
    args: &ConsumeArgs,
    partitions: &[PartitionIndex],
) -> Result<(Readers, Option<u64>), Failure> {
    let isolation = Isolation::from(args.isolation);
    let ends = args.exit_at_end || args.to.is_some();
    let mut readers = StreamMap::new();
    let mut ahead = 0_u64;
    for &partition in partitions {
        let resolve = async |position: Position| -> Result<Offset, Failure> {
            Ok(position.resolve(cluster, &args.topic, partition, isolation).await?)
        };
        let from = resolve(args.from).await?;
        let until = match args.to {
            None => None,
            Some(to) => Some(resolve(to).await?),
        };
        if ends {
            let end = match until {
                Some(until) => until,
                None => resolve(Position::End).await?,
            };
            ahead = ahead.saturating_add(u64::try_from(end.since(from)).unwrap_or(0));
        }
        let options = ReadOptions {
            until,
            stop_at_end: args.exit_at_end,
            isolation,
            ..ReadOptions::new(&args.topic, partition, from)
        };
        readers.insert(partition.get(), cluster.read(options));
    }
    Ok((readers, ends.then_some(ahead)))
}

fn progress(args: &ConsumeArgs, expected: Option<u64>, io: &Io) -> ProgressBar {
    // On a terminal the records themselves are the progress.
    let Some(expected) = expected.filter(|_| io.watched && !io.shown && !args.quiet) else {
        return ProgressBar::hidden();
    };
    let bar = ProgressBar::with_draw_target(Some(expected), ProgressDrawTarget::stderr());
    match ProgressStyle::with_template("{bar:40} {human_pos}/{human_len} {per_sec} {eta}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
