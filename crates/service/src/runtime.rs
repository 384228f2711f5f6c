//! The async runtime of a Semel process, kept small.

use std::{io, num::NonZeroUsize, time::Duration};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
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

/// Raises how many files and sockets this process may have open to the most that it may ask for, and answers how many
/// that is. The usual 1024 is for programs that use `select`; a server meets it long before its other bounds.
///
/// Where the system refuses, what holds already is the answer.
pub fn raise_open_files() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    let in_force =
        if raised == limit || setrlimit(Resource::Nofile, raised).is_ok() { raised } else { limit };
    in_force.current.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_open_files_is_raised_once_and_for_all() {
        let raised = raise_open_files();
        assert!(raised >= 256, "{raised}");
        assert_eq!(raise_open_files(), raised);
        assert_eq!(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX), raised);
    }
}
