//! One log directory in use: its lock and checkpoints, its flusher, and what happens when its disk refuses.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use parking_lot::{Condvar, Mutex};
use semel_env::RealDisk;
use semel_log::{LogDir, StorageError};

use crate::flusher::Flusher;

/// A log directory that is in use.
pub(crate) struct Directory {
    pub(crate) dir: LogDir<RealDisk>,
    pub(crate) flusher: Flusher,
    pub(crate) attention: Arc<Attention>,
    /// Whether the last write found the disk full: told once when it begins and once when it ends.
    full: AtomicBool,
}

impl Directory {
    pub(crate) fn new(
        dir: LogDir<RealDisk>,
        flusher: Flusher,
        attention: Arc<Attention>,
    ) -> Self {
        Self { dir, flusher, attention, full: AtomicBool::new(false) }
    }

    /// The disk refused. A full disk refuses appends until there is room again; anything else fails the directory:
    /// its partitions go offline, the broker doesn't. May be called under a partition's lock.
    pub(crate) fn trouble(&self, error: &StorageError) {
        let path = self.dir.path().display();
        if error.is_disk_full() {
            if !self.full.swap(true, Ordering::Relaxed) {
                tracing::error!(directory = %path, error = crate::failure::chain(error), "disk is full, appends are refused");
            }
            return;
        }
        if self.dir.mark_failed() {
            tracing::error!(directory = %path, error = crate::failure::chain(error), "log directory failed, its partitions go offline");
        }
        // Not here: the caller may hold the lock of one of the partitions.
        self.attention.call(Call::DirectoryFailed);
    }

    /// A write went through again.
    pub(crate) fn fine(&self) {
        if self.full.load(Ordering::Relaxed) && self.full.swap(false, Ordering::Relaxed) {
            tracing::info!(directory = %self.dir.path().display(), "disk has room again");
        }
    }

    /// Something that is only in the checkpoints changed.
    pub(crate) fn checkpoint_soon(&self) {
        self.attention.call(Call::Checkpoint);
    }
}

/// Why housekeeping is called before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    DirectoryFailed,
    Checkpoint,
    Stop,
}

/// What housekeeping was called for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Calls {
    pub(crate) directory_failed: bool,
    pub(crate) checkpoint: bool,
    pub(crate) stop: bool,
}

/// Wakes the housekeeping thread. Calls while it works are kept.
#[derive(Default)]
pub(crate) struct Attention {
    calls: Mutex<Calls>,
    called: Condvar,
}

impl Attention {
    pub(crate) fn call(&self, call: Call) {
        let mut calls = self.calls.lock();
        match call {
            Call::DirectoryFailed => calls.directory_failed = true,
            Call::Checkpoint => calls.checkpoint = true,
            Call::Stop => calls.stop = true,
        }
        drop(calls);
        self.called.notify_one();
    }

    /// What came in, waiting for it at most `within`.
    pub(crate) fn wait(&self, within: std::time::Duration) -> Calls {
        let mut calls = self.calls.lock();
        if *calls == Calls::default() {
            self.called.wait_for(&mut calls, within);
        }
        std::mem::take(&mut calls)
    }
}
