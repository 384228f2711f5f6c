//! What a broker does by the clock: checkpoints, retention, expiry of producers, syncs by time, and taking the
//! partitions of a failed directory offline. One thread, woken early when something calls for it.

use std::{io, sync::Arc, thread::JoinHandle, time::Duration};

use semel_log::RetentionError;
use semel_metadata::config::resolve_broker;
use semel_model::Timestamp;

use crate::{
    directory::{Attention, Call},
    failure::chain,
    metrics::PartitionMetrics,
    node::Node,
    partition::Partition,
    topic_settings::Durability,
};

/// How long the thread sleeps at the most: the resolution of `flush.ms`.
const TICK: Duration = Duration::from_millis(200);
/// How often idle producers are looked for.
const PRODUCER_EXPIRY: Duration = Duration::from_secs(600);
/// How often logs that could not be opened are tried again.
const HEAL: Duration = Duration::from_secs(5);
/// How often closed segments that were never synced are looked for.
const ROLLED: Duration = Duration::from_secs(5);
/// How often the files of deleted segments and topics are looked for.
const REMOVAL: Duration = Duration::from_secs(1);

/// A job that comes round again.
struct Periodic {
    every: Duration,
    next: Duration,
}

impl Periodic {
    fn new(every: Duration, now: Duration) -> Self {
        Self { every, next: now + every }
    }

    /// Whether it is due; if so it is next due one period from now.
    fn due(&mut self, now: Duration) -> bool {
        if now < self.next {
            return false;
        }
        self.next = now + self.every;
        true
    }
}

/// The thread that does it.
pub(crate) struct Housekeeping {
    attention: Arc<Attention>,
    thread: JoinHandle<()>,
}

impl Housekeeping {
    pub(crate) fn start(
        node: Arc<Node>,
        metrics: Arc<PartitionMetrics>,
        attention: Arc<Attention>,
    ) -> io::Result<Self> {
        let called = attention.clone();
        let thread = std::thread::Builder::new()
            .name("housekeeping".to_owned())
            .spawn(move || run(&node, &metrics, &called))?;
        Ok(Self { attention, thread })
    }

    /// Ends the thread after the job it is at.
    pub(crate) fn stop(self) {
        self.attention.call(Call::Stop);
        if self.thread.join().is_err() {
            tracing::error!("the housekeeping thread had panicked");
        }
    }
}

fn run(node: &Arc<Node>, metrics: &PartitionMetrics, attention: &Attention) {
    let effective = resolve_broker(&node.metadata.image(), node.id, &node.statics);
    let every = |name: &str, default: u64| {
        let millis = effective.long(name).and_then(|millis| u64::try_from(millis).ok()).unwrap_or(default);
        Duration::from_millis(millis.max(1))
    };
    let now = node.clock.monotonic();
    let mut checkpoints = Periodic::new(every("replica.high.watermark.checkpoint.interval.ms", 5000), now);
    let mut heal = Periodic::new(HEAL, now);
    let mut rolled = Periodic::new(ROLLED, now);
    let mut retention = Periodic::new(every("log.retention.check.interval.ms", 300_000), now);
    let mut expiry = Periodic::new(PRODUCER_EXPIRY, now);
    let mut removal = Periodic::new(REMOVAL, now);
    loop {
        let calls = attention.wait(TICK);
        if calls.stop {
            return;
        }
        let now = node.clock.monotonic();
        if calls.heal || heal.due(now) {
            node.partitions.heal(&node.metadata.image());
        }
        if rolled.due(now) {
            // Whatever the durability: a closed segment is synced some time, so that a crash never costs the reading
            // of more than the last one.
            for partition in node.partitions.all() {
                let behind = partition
                    .tend(|_, log| log.segments().last().is_some_and(|active| log.flushed_end() < active));
                if behind == Some(true) {
                    partition.directory.flusher.enqueue(&partition);
                }
            }
        }
        if checkpoints.due(now) || calls.checkpoint {
            for directory in node.partitions.directories() {
                node.partitions.checkpoint(directory);
            }
        }
        let wall = node.clock.now();
        let partitions = node.partitions.all();
        for partition in &partitions {
            flush_by_time(partition, wall);
        }
        if retention.due(now) {
            for partition in &partitions {
                enforce_retention(partition, wall, metrics);
            }
        }
        if expiry.due(now) {
            for partition in &partitions {
                partition.tend(|replica, _| replica.expire_producers(wall));
            }
        }
        if removal.due(now) {
            for partition in &partitions {
                if let Some(Err(error)) = partition.tend(|_, log| log.remove_due(wall)) {
                    partition.directory.trouble(&error);
                }
            }
            node.partitions.remove_doomed();
        }
    }
}

/// `flush.ms` under `semel.durability=interval`.
fn flush_by_time(partition: &Arc<Partition>, now: Timestamp) {
    let settings = partition.settings();
    if settings.durability == Durability::Interval && partition.unflushed_since(now, settings.flush_ms) {
        partition.directory.flusher.enqueue(partition);
    }
}

fn enforce_retention(partition: &Partition, now: Timestamp, metrics: &PartitionMetrics) {
    let outcome = partition.tend(|replica, log| {
        let high_watermark = replica.high_watermark();
        let outcome = log.enforce_retention(now, high_watermark, &|| replica.snapshot_producers());
        let log_start_offset = log.log_start_offset();
        replica.log_start_moved(log_start_offset);
        (outcome, log_start_offset)
    });
    let Some(outcome) = outcome else { return };
    match outcome {
        (Ok(deleted), log_start_offset) => {
            if deleted.segments > 0 {
                metrics.deleted_bytes.inc_by(deleted.bytes);
                tracing::info!(
                    partition = partition.name(), segments = deleted.segments, bytes = deleted.bytes, %log_start_offset,
                    "deleted old segments"
                );
                partition.waiters().changed();
            }
        }
        (Err(RetentionError::Storage(error)), _) => partition.directory.trouble(&error),
        (Err(error), _) => {
            tracing::warn!(partition = partition.name(), error = chain(&error), "cannot enforce retention");
        }
    }
}
