//! Compaction: one thread that cleans the log with the largest dirty part, then looks again.
//!
//! What to keep is [`semel_log`]'s decision; a partition's lock is held only to look and to put the result in place.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use semel_env::{Entropy, RealDisk};
use semel_log::{CleanError, CleanPlan, CleanRequest};
use semel_model::{Millis, Timestamp, TopicPartition};

use crate::{
    directory::{Attention, Call},
    failure::chain,
    metrics::PartitionMetrics,
    node::Node,
    partition::Partition,
};

/// Kafka's `log.cleaner.backoff.ms`: how long the thread rests when nothing is worth cleaning.
const BACKOFF: Duration = Duration::from_secs(15);
/// Memory for keys: at 24 bytes each, a million and more in one run. Kafka's default is 128 MiB, held for ever; this
/// is allocated for the length of a run.
const MAP_BYTES_MAX: usize = 32 << 20;

/// How long a log that could not be cleaned is left alone.
const REST_AFTER_ERROR: Millis = Millis(3_600_000);

/// The thread.
pub(crate) struct Cleaner {
    attention: Arc<Attention>,
    stopping: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Cleaner {
    pub(crate) fn start(
        node: Arc<Node>,
        metrics: Arc<PartitionMetrics>,
        entropy: Arc<dyn Entropy>,
    ) -> io::Result<Self> {
        let attention = Arc::new(Attention::default());
        let stopping = Arc::new(AtomicBool::new(false));
        let (called, stop) = (attention.clone(), stopping.clone());
        let thread = std::thread::Builder::new().name("cleaner".to_owned()).spawn(move || {
            let mut resting = BTreeMap::new();
            loop {
                let cleaned = clean_one(&node, &metrics, &*entropy, &stop, &mut resting);
                if !cleaned && called.wait(BACKOFF).stop {
                    return;
                }
                if stop.load(Ordering::Relaxed) {
                    return;
                }
            }
        })?;
        Ok(Self { attention, stopping, thread })
    }

    /// Ends the thread; a run that is under way is given up, and nothing has changed.
    pub(crate) fn stop(self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.attention.call(Call::Stop);
        if self.thread.join().is_err() {
            tracing::error!("the cleaner thread had panicked");
        }
    }
}

/// Whether anything was cleaned.
fn clean_one(
    node: &Node,
    metrics: &PartitionMetrics,
    entropy: &dyn Entropy,
    stop: &AtomicBool,
    resting: &mut BTreeMap<TopicPartition, Timestamp>,
) -> bool {
    let now = node.clock.now();
    resting.retain(|_, until| *until > now);
    let mut best: Option<(Arc<Partition>, CleanPlan<RealDisk>)> = None;
    for partition in node.partitions.all() {
        let settings = partition.settings();
        if !settings.log.cleanup_policy.compact
            || partition.directory.dir.has_failed()
            || resting.contains_key(&partition.id)
        {
            continue;
        }
        // Most logs have nothing new in a closed segment: that is told without a look at their producers.
        let closed =
            partition.tend(|_, log| log.segments().last().is_some_and(|active| active > log.cleaned_to()));
        // Only what is on stable storage is cleaned, whatever the topic's durability.
        if closed != Some(true) || partition.flush().is_err() {
            continue;
        }
        let plan = partition.tend(|replica, log| {
            log.plan_cleaning(CleanRequest {
                now: node.clock.now(),
                last_stable_offset: replica.last_stable_offset(),
                producers: replica.snapshot_producers(),
                map_bytes_max: MAP_BYTES_MAX,
                hash_seed: [entropy.next_u64(), entropy.next_u64()],
                force: false,
            })
        });
        let Some(plan) = plan else { continue };
        match plan {
            Ok(Some(plan))
                if best.as_ref().is_none_or(|(_, other)| plan.dirty_ratio() > other.dirty_ratio()) =>
            {
                best = Some((partition, plan));
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(
                partition = partition.name(),
                error = chain(&error),
                "cannot look for what to compact"
            ),
        }
    }
    let Some((partition, plan)) = best else { return false };
    let cleaned = match plan.run(&mut || !stop.load(Ordering::Relaxed) && !partition.is_retired()) {
        Ok(cleaned) => cleaned,
        Err(CleanError::Stopped) => return false,
        Err(_) if partition.is_retired() => return true,
        Err(error) => {
            if let CleanError::Storage(cause) = &error {
                partition.directory.trouble(cause);
            }
            tracing::warn!(
                partition = partition.name(),
                error = chain(&error),
                "compaction gave up, tried again later"
            );
            // It would be the dirtiest again, and no other log would ever be cleaned.
            resting.insert(partition.id, now.plus(REST_AFTER_ERROR));
            return true;
        }
    };
    match partition.tend(|_, log| log.install_cleaned(cleaned)) {
        None => true,
        Some(Ok(stats)) => {
            metrics.compacted_bytes.inc_by(stats.bytes_read.saturating_sub(stats.bytes_written));
            tracing::info!(
                partition = partition.name(),
                bytes_before = stats.bytes_read,
                bytes_after = stats.bytes_written,
                keys = stats.keys,
                "compacted"
            );
            partition.directory.checkpoint_soon();
            true
        }
        Some(Err(error)) => {
            partition.directory.trouble(&error);
            false
        }
    }
}
