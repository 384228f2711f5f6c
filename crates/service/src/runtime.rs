//! The async runtime of a Semel process, kept small.

use std::{io, num::NonZeroUsize, time::Duration};

use tokio::runtime::{Builder, Runtime};

/// The stack of each runtime thread, in bytes. Only touched pages count as resident; this bounds the rest.
pub const THREAD_STACK_BYTES: usize = 1 << 20;

/// The most threads for blocking calls. They end after ten idle seconds.
pub const BLOCKING_THREADS_MAX: usize = 32;

/// A multi-threaded runtime whose threads carry `name`, with `threads` workers, at most one per core; `None` is one
/// per core.
///
/// Errors: the system refused the threads or the poller.
pub fn build(threads: Option<NonZeroUsize>, name: &str) -> io::Result<Runtime> {
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let workers = threads.map_or(cores, |threads| threads.get().min(cores));
    Builder::new_multi_thread()
        .worker_threads(workers)
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .thread_keep_alive(Duration::from_secs(10))
        .thread_stack_size(THREAD_STACK_BYTES)
        .thread_name(name)
        .enable_all()
        .build()
}
