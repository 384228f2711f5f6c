//! Group commit: a few threads for each log directory, and one queue of partitions that wait for a sync.
//!
//! A partition stands in the queue once, however many appends wait for it; while it is synced, appends go on and
//! queue it again. So under load one sync serves everything that arrived during the one before. More than one thread,
//! because a file system merges the syncs that several files ask for at once.

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Weak},
    thread::JoinHandle,
};

use parking_lot::{Condvar, Mutex};
use semel_service::metrics::Histogram;

use crate::partition::Partition;

/// Threads for each directory.
const THREADS: usize = 4;
/// A thread only syncs: it needs little stack.
const STACK_BYTES: usize = 128 << 10;

/// The queue of one directory, and the threads that empty it.
pub(crate) struct Flusher {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    queue: Mutex<Queue>,
    filled: Condvar,
}

#[derive(Default)]
struct Queue {
    partitions: VecDeque<Weak<Partition>>,
    stopped: bool,
}

impl Flusher {
    /// Starts the threads of the `number`th directory.
    pub(crate) fn start(number: usize, seconds: &Histogram) -> io::Result<Self> {
        let shared = Arc::new(Shared { queue: Mutex::default(), filled: Condvar::new() });
        let threads = (0..THREADS)
            .map(|thread| {
                let (shared, seconds) = (shared.clone(), seconds.clone());
                std::thread::Builder::new()
                    .name(format!("flush-{number}-{thread}"))
                    .stack_size(STACK_BYTES)
                    .spawn(move || shared.run(&seconds))
            })
            .collect::<io::Result<_>>()?;
        Ok(Self { shared, threads: Mutex::new(threads) })
    }

    /// Puts a partition into the queue, unless it stands there.
    pub(crate) fn enqueue(&self, partition: &Arc<Partition>) {
        if partition.claim_queueing() {
            self.shared.queue.lock().partitions.push_back(Arc::downgrade(partition));
            self.shared.filled.notify_one();
        }
    }

    /// Syncs what is queued, then ends the threads.
    pub(crate) fn stop(&self) {
        self.shared.queue.lock().stopped = true;
        self.shared.filled.notify_all();
        for thread in std::mem::take(&mut *self.threads.lock()) {
            if thread.join().is_err() {
                tracing::error!("a flusher thread had panicked");
            }
        }
    }
}

impl Shared {
    fn run(&self, seconds: &Histogram) {
        loop {
            let partition = {
                let mut queue = self.queue.lock();
                loop {
                    if let Some(partition) = queue.partitions.pop_front() {
                        break partition;
                    }
                    if queue.stopped {
                        return;
                    }
                    self.filled.wait(&mut queue);
                }
            };
            let Some(partition) = partition.upgrade() else { continue };
            let timer = seconds.start_timer();
            match partition.flush() {
                Ok(()) => timer.observe_duration(),
                Err(error) => {
                    timer.stop_and_discard();
                    tracing::debug!(partition = partition.name(), %error, "sync failed");
                }
            }
        }
    }
}
