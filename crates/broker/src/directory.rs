//! One log directory in use: its lock and checkpoints, its flusher, and what happens when its disk refuses.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use parking_lot::{Condvar, Mutex};
use semel_env::RealDisk;
use semel_log::{LogDir, Offsets, Opened, PartitionName, Reach, StorageError};

use crate::{failure::chain, flusher::Flusher};

/// A log directory that is in use.
pub(crate) struct Directory {
    pub(crate) dir: LogDir<RealDisk>,
    pub(crate) flusher: Flusher,
    pub(crate) attention: Arc<Attention>,
    /// What the checkpoint files say. The lock is held while they are collected and written: two writers at once would
    /// tear them, and the later one might say the older thing.
    pub(crate) checkpoints: Mutex<Checkpoints>,
    /// Whether the last write found the disk full: told once when it begins and once when it ends.
    full: AtomicBool,
}

impl Directory {
    pub(crate) fn new(
        dir: LogDir<RealDisk>,
        flusher: Flusher,
        attention: Arc<Attention>,
        found: Checkpoints,
    ) -> Self {
        Self { dir, flusher, attention, checkpoints: Mutex::new(found), full: AtomicBool::new(false) }
    }

    /// The disk refused. What that spoils is told by the error's reach: a full disk refuses appends until there is
    /// room again, a drive that fails takes the directory's partitions offline, and a lack of descriptors or memory
    /// nothing but the operation. May be called under a partition's lock.
    pub(crate) fn trouble(&self, error: &StorageError) {
        let path = self.dir.path().display();
        match error.reach() {
            Reach::Directory => self.fail(error),
            Reach::DiskFull => {
                if !self.full.swap(true, Ordering::Relaxed) {
                    tracing::error!(directory = %path, error = chain(error), "disk is full, appends are refused");
                }
            }
            Reach::Operation => tracing::warn!(directory = %path, error = chain(error), "short of resources"),
            Reach::Log => tracing::error!(directory = %path, error = chain(error), "a log's file is damaged"),
        }
        // A log that failed on the way is opened again, or goes offline with its directory.
        self.attention.call(Call::Heal);
    }

    /// A sync failed, or something as bad: nothing in the directory can be trusted to become durable any more,
    /// whatever the error says, since the system reports a lost page once.
    pub(crate) fn fail(&self, error: &StorageError) {
        if self.dir.mark_failed() {
            tracing::error!(
                directory = %self.dir.path().display(), error = chain(error),
                "log directory failed, its partitions go offline"
            );
        }
        // Not here: the caller may hold the lock of one of the partitions.
        self.attention.call(Call::Heal);
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

/// A directory's checkpoint files.
#[derive(Default)]
pub(crate) struct Checkpoints {
    /// Whether a write failed, so that the files may say something older.
    unsure: bool,
    pub(crate) recovery_points: Offsets,
    pub(crate) log_starts: Offsets,
    pub(crate) high_watermarks: Offsets,
    pub(crate) cleaned: Offsets,
}

impl Checkpoints {
    /// As they were found at the start.
    pub(crate) fn found(opened: &Opened) -> Self {
        Self {
            unsure: false,
            recovery_points: opened.recovery_points.clone(),
            log_starts: opened.log_starts.clone(),
            high_watermarks: opened.high_watermarks.clone(),
            cleaned: opened.cleaned.clone(),
        }
    }

    /// Whether the files may speak of this partition. While they do, no other of its name may be made: a start after a
    /// crash would take the earlier one's offsets for promises of the new one.
    pub(crate) fn may_name(&self, name: &PartitionName) -> bool {
        self.recovery_points.contains_key(name) || self.log_starts.contains_key(name)
    }

    /// Writes the files whose content differs from `written`, the last that was.
    pub(crate) fn write(self, dir: &LogDir<RealDisk>, written: &mut Self) -> Result<(), StorageError> {
        let unsure = std::mem::replace(&mut written.unsure, true);
        // The log's start goes first: a start that is behind only keeps what could go, a recovery point that is
        // ahead of nothing costs nothing.
        if unsure || self.log_starts != written.log_starts {
            dir.write_log_starts(&self.log_starts)?;
        }
        if unsure || self.recovery_points != written.recovery_points {
            dir.write_recovery_points(&self.recovery_points)?;
        }
        if unsure || self.high_watermarks != written.high_watermarks {
            dir.write_high_watermarks(&self.high_watermarks)?;
        }
        if unsure || self.cleaned != written.cleaned {
            dir.write_cleaned(&self.cleaned)?;
        }
        *written = self;
        Ok(())
    }
}

/// Why housekeeping is called before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// A log or a directory has failed.
    Heal,
    Checkpoint,
    Stop,
}

/// What housekeeping was called for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Calls {
    pub(crate) heal: bool,
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
            Call::Heal => calls.heal = true,
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
