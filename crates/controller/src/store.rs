//! The Raft log in sled: one tree, one atomic batch for each turn, one flush where something must be durable.
//!
//! ```text
//!   L <index, 8 bytes, big-endian>   a log entry (eraftpb.Entry)
//!   M conf | hard | snapshot | trunc what `semel_control::log_store::Key` names
//! ```

use std::{cell::Cell, fs, io, ops::Range, path::Path, path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use semel_control::log_store::{Batch, Key, LogStore};
use semel_env::Clock;
use semel_service::metrics::Histogram;

/// Why the store failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The directory cannot be prepared.
    #[error("cannot prepare directory {path}")]
    Directory {
        /// Which.
        path: PathBuf,
        /// The system's error.
        #[source]
        cause: io::Error,
    },
    /// It cannot be opened: it is in use by another process, or damaged.
    #[error("cannot open the store in {path}")]
    Open {
        /// Where.
        path: PathBuf,
        /// The store's error.
        #[source]
        cause: sled::Error,
    },
    /// A read failed.
    #[error("cannot read from the store")]
    Read(#[source] sled::Error),
    /// A write failed: the disk is full or broken.
    #[error("cannot write to the store")]
    Write(#[source] sled::Error),
    /// What was written cannot be made durable.
    #[error("cannot sync the store")]
    Sync(#[source] sled::Error),
    /// A key that Semel does not write.
    #[error("the store has a malformed key")]
    Key,
}

/// An open store.
pub(crate) struct SledStore {
    tree: sled::Db,
    /// Something has failed. sled's own drop flushes, and would wait without end for what was never written.
    has_failed: Cell<bool>,
    clock: Arc<dyn Clock>,
    sync_seconds: Histogram,
}

impl SledStore {
    pub(crate) fn open(
        dir: &Path,
        cache_bytes: u64,
        clock: Arc<dyn Clock>,
        sync_seconds: Histogram,
    ) -> Result<Self, StoreError> {
        let directory = |cause| StoreError::Directory { path: dir.to_owned(), cause };
        fs::create_dir_all(dir).map_err(directory)?;
        remove_broken_snapshots(dir).map_err(directory)?;
        let open = || {
            sled::Config::new()
                .path(dir)
                // We say when: a flush of its own would only cost.
                .flush_every_ms(None)
                .cache_capacity(cache_bytes)
                .mode(sled::Mode::LowSpace)
                .open()
        };
        // A process that was killed may hold the lock for a moment longer.
        let mut tries = 0;
        let tree = loop {
            match open() {
                Ok(tree) => break tree,
                Err(sled::Error::Io(_)) if tries < 20 => {
                    tries += 1;
                    std::thread::sleep(Duration::from_millis(25));
                }
                Err(cause) => return Err(StoreError::Open { path: dir.to_owned(), cause }),
            }
        };
        Ok(Self { tree, has_failed: Cell::new(false), clock, sync_seconds })
    }
}

impl SledStore {
    /// sled tells of a failed write in the background at whatever is asked next, a read too.
    fn unreadable(&self, cause: sled::Error) -> StoreError {
        self.has_failed.set(true);
        StoreError::Read(cause)
    }
}

/// sled keeps a summary of its pages beside its log and refuses to open on one that a crash left half-written,
/// though it needs none to open.
fn remove_broken_snapshots(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        let is_snapshot = name.starts_with("snap.");
        if is_snapshot && (name.ends_with(".generating") || entry.metadata()?.len() == 0) {
            tracing::info!(name, "removing a half-written store summary");
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

impl LogStore for SledStore {
    type Error = StoreError;

    fn get(&self, key: Key) -> Result<Option<Bytes>, StoreError> {
        let found = self.tree.get(key_bytes(key)).map_err(|cause| self.unreadable(cause))?;
        Ok(found.map(|value| Bytes::copy_from_slice(&value)))
    }

    fn entries(&self, range: Range<u64>, bytes_max: u64) -> Result<Vec<(u64, Bytes)>, StoreError> {
        let mut found = Vec::new();
        let mut size = 0_u64;
        let keys = key_bytes(Key::Entry(range.start))..key_bytes(Key::Entry(range.end));
        for entry in self.tree.range(keys) {
            let (key, value) = entry.map_err(|cause| self.unreadable(cause))?;
            size += value.len() as u64;
            if size > bytes_max && !found.is_empty() {
                break;
            }
            let index = key.get(1..9).and_then(|bytes| bytes.try_into().ok()).ok_or(StoreError::Key)?;
            found.push((u64::from_be_bytes(index), Bytes::copy_from_slice(&value)));
        }
        Ok(found)
    }

    fn write(&mut self, batch: Batch) -> Result<(), StoreError> {
        let mut changes = sled::Batch::default();
        for range in batch.remove {
            for index in range {
                changes.remove(key_bytes(Key::Entry(index)));
            }
        }
        // Within a batch the last change of a key counts: an entry that replaces a removed one stays.
        for (key, value) in batch.put {
            changes.insert(key_bytes(key), &value[..]);
        }
        // Until it has worked: a panic within sled, too, leaves a store that must not be flushed.
        self.has_failed.set(true);
        self.tree.apply_batch(changes).map_err(StoreError::Write)?;
        if batch.sync {
            let start = self.clock.monotonic();
            self.tree.flush().map_err(StoreError::Sync)?;
            self.sync_seconds.observe(self.clock.monotonic().saturating_sub(start).as_secs_f64());
        }
        self.has_failed.set(false);
        Ok(())
    }
}

impl Drop for SledStore {
    fn drop(&mut self) {
        if self.has_failed.get() {
            // One handle that is never dropped keeps the tree's own drop from running.
            std::mem::forget(self.tree.clone());
        }
    }
}

fn key_bytes(key: Key) -> Vec<u8> {
    match key {
        Key::ConfState => b"Mconf".to_vec(),
        Key::HardState => b"Mhard".to_vec(),
        Key::Snapshot => b"Msnapshot".to_vec(),
        Key::Truncated => b"Mtrunc".to_vec(),
        Key::Entry(index) => {
            let mut bytes = vec![b'L'];
            bytes.extend_from_slice(&index.to_be_bytes());
            bytes
        }
    }
}

#[cfg(test)]
mod tests {
    use semel_env::RealClock;
    use semel_service::metrics::{LATENCY_BUCKETS, Registry};

    use super::*;

    fn open(dir: &Path) -> SledStore {
        let seconds = Registry::new().histogram("test_seconds", "test", LATENCY_BUCKETS);
        SledStore::open(dir, 1 << 20, Arc::new(RealClock::new()), seconds).unwrap()
    }

    #[test]
    fn a_batch_replaces_the_tail_and_survives() {
        let dir = tempfile::tempdir().unwrap();
        let entry = |index: u64, text: &'static str| (Key::Entry(index), Bytes::from_static(text.as_bytes()));
        {
            let mut store = open(dir.path());
            let put = vec![entry(1, "a"), entry(2, "b"), entry(3, "c"), (Key::HardState, "h".into())];
            store.write(Batch { put, sync: true, ..Batch::default() }).unwrap();
            let mut batch = Batch { put: vec![entry(2, "B")], sync: true, ..Batch::default() };
            batch.remove.push(2..4);
            store.write(batch).unwrap();
        }
        // What a crash may leave behind.
        fs::write(dir.path().join("snap.0000000000000FFF"), b"").unwrap();
        fs::write(dir.path().join("snap.0000000000001FFF.generating"), b"half").unwrap();
        let store = open(dir.path());
        let all = store.entries(0..u64::MAX, u64::MAX).unwrap();
        assert_eq!(all, [(1, Bytes::from_static(b"a")), (2, Bytes::from_static(b"B"))]);
        assert_eq!(store.entries(1..9, 1).unwrap().len(), 1);
        assert_eq!(store.get(Key::HardState).unwrap().as_deref(), Some(&b"h"[..]));
        assert_eq!(store.get(Key::Snapshot).unwrap(), None);
    }
}
