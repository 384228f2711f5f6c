//! Aborted transactions, `<base>.txnindex`, in the order of their markers, big-endian:
//!
//! ```text
//! version (i16, 0) | producer id (i64) | first offset (i64) | last offset, the marker's (i64) | last stable offset (i64)
//! ```

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use semel_env::{Disk, DiskFile, Open};
use semel_model::{Offset, ProducerId};
use semel_record::{BatchHeader, ControlRecord, Outcome, ProducerSnapshotEntry};

use crate::error::{Doing, StorageError};

/// A transaction that was aborted in this partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AbortedTransaction {
    /// Whose it was.
    pub producer_id: ProducerId,
    /// Its first record's offset (inclusive).
    pub first_offset: Offset,
    /// The offset of its marker (inclusive).
    pub last_offset: Offset,
    /// The last stable offset (exclusive) right after the marker: a read below it needs no later entry.
    pub last_stable_offset: Offset,
}

pub(crate) const SIZE: usize = 34;
const VERSION: i16 = 0;

impl AbortedTransaction {
    pub(crate) fn encode(&self) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        bytes[..2].copy_from_slice(&VERSION.to_be_bytes());
        bytes[2..10].copy_from_slice(&self.producer_id.get().to_be_bytes());
        bytes[10..18].copy_from_slice(&self.first_offset.get().to_be_bytes());
        bytes[18..26].copy_from_slice(&self.last_offset.get().to_be_bytes());
        bytes[26..].copy_from_slice(&self.last_stable_offset.get().to_be_bytes());
        bytes
    }

    /// `None` if the bytes can't be an entry.
    pub(crate) fn decode(bytes: &[u8; SIZE]) -> Option<Self> {
        let long = |at: usize| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&bytes[at..at + 8]);
            i64::from_be_bytes(eight)
        };
        let entry = Self {
            producer_id: ProducerId(long(2)),
            first_offset: Offset(long(10)),
            last_offset: Offset(long(18)),
            last_stable_offset: Offset(long(26)),
        };
        let sane = i16::from_be_bytes([bytes[0], bytes[1]]) == VERSION
            && entry.producer_id >= ProducerId(0)
            && Offset::ZERO <= entry.first_offset
            && entry.first_offset <= entry.last_offset
            && Offset::ZERO <= entry.last_stable_offset;
        sane.then_some(entry)
    }
}

/// The aborted transactions whose markers stand in one segment. Entries are read when asked for: their number is
/// bounded by the segment only.
#[derive(Debug)]
pub(crate) struct TxnIndex<D: Disk> {
    path: PathBuf,
    file: Option<Arc<D::File>>,
    count: u64,
}

impl<D: Disk> TxnIndex<D> {
    /// Opens the index of a segment. `None` if it is missing or makes no sense, and must be built again.
    pub(crate) fn open(disk: &D, path: PathBuf, base_offset: Offset) -> Option<Self> {
        let bytes = disk.read(&path, crate::warm::INDEX_BYTES_MAX).ok()?;
        let (entries, rest) = bytes.as_chunks::<SIZE>();
        if !rest.is_empty() {
            return None;
        }
        let mut last = base_offset.plus(-1);
        for entry in entries {
            let entry = AbortedTransaction::decode(entry)?;
            if entry.last_offset <= last {
                return None;
            }
            last = entry.last_offset;
        }
        let file = disk.open(&path, Open::Write).ok()?;
        Some(Self { path, file: Some(Arc::new(file)), count: entries.len() as u64 })
    }

    /// An empty one; its file is made anew.
    pub(crate) fn create(disk: &D, path: PathBuf) -> Result<Self, StorageError> {
        let file = disk.open(&path, Open::Truncate).doing("create", &path)?;
        Ok(Self { path, file: Some(Arc::new(file)), count: 0 })
    }

    /// Replaces a missing or damaged index by `entries`.
    pub(crate) fn rebuild(
        disk: &D,
        path: PathBuf,
        entries: &[AbortedTransaction],
    ) -> Result<Self, StorageError> {
        let mut index = Self::create(disk, path)?;
        for entry in entries {
            index.append(entry)?;
        }
        Ok(index)
    }

    pub(crate) fn shared_file(&self) -> Option<Arc<D::File>> {
        self.file.clone()
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn get(&self, at: u64) -> Result<AbortedTransaction, StorageError> {
        let invalid = |why| StorageError::invalid("read", &self.path, why);
        let file = self.file.as_ref().ok_or_else(|| invalid("no entries"))?;
        let mut bytes = [0; SIZE];
        file.read_exact_at(&mut bytes, at * SIZE as u64).doing("read", &self.path)?;
        AbortedTransaction::decode(&bytes).ok_or_else(|| invalid("malformed entry"))
    }

    /// On an error the file is cut back to what it was, as well as can be.
    pub(crate) fn append(&mut self, entry: &AbortedTransaction) -> Result<(), StorageError> {
        let file =
            self.file.as_ref().ok_or_else(|| StorageError::invalid("write", &self.path, "not open"))?;
        let end = self.count * SIZE as u64;
        if let Err(cause) = file.write_all_at(&entry.encode(), end) {
            let _ = file.set_len(end);
            return Err(StorageError::new("write", &self.path, cause));
        }
        self.count += 1;
        Ok(())
    }

    /// The first entry whose marker is at or after `offset`.
    pub(crate) fn first_ending_at(&self, offset: Offset) -> Result<u64, StorageError> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.get(middle)?.last_offset < offset {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    /// Forgets entries whose markers are at or after `offset`.
    pub(crate) fn truncate(&mut self, offset: Offset) -> Result<(), StorageError> {
        let keep = self.first_ending_at(offset)?;
        if let Some(file) = self.file.as_ref().filter(|_| keep < self.count) {
            file.set_len(keep * SIZE as u64).doing("truncate", &self.path)?;
            self.count = keep;
        }
        Ok(())
    }
}

/// Follows open transactions through the log to find the aborted ones again.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenTransactions(BTreeMap<ProducerId, Offset>);

impl OpenTransactions {
    /// Those that were open when the snapshot was taken.
    pub(crate) fn at_snapshot(entries: &[ProducerSnapshotEntry]) -> Self {
        Self(
            entries
                .iter()
                .filter_map(|entry| Some((entry.producer_id, entry.current_txn_first_offset?)))
                .collect(),
        )
    }

    /// Takes in the next batch; the transaction that it aborts, if any.
    pub(crate) fn add(
        &mut self,
        header: &BatchHeader,
        control: Option<ControlRecord>,
    ) -> Option<AbortedTransaction> {
        if !header.attributes.is_transactional() {
            return None;
        }
        if !header.attributes.is_control() {
            self.0.entry(header.producer_id).or_insert(header.base_offset);
            return None;
        }
        let Some(ControlRecord::EndTransaction(marker)) = control else { return None };
        let first_offset = self.0.remove(&header.producer_id)?;
        let last_offset = header.last_offset();
        let open = self.0.values().min().copied();
        (marker.outcome == Outcome::Abort).then(|| AbortedTransaction {
            producer_id: header.producer_id,
            first_offset,
            last_offset,
            last_stable_offset: open.unwrap_or(last_offset.next()),
        })
    }
}

pub(crate) fn path(dir: &Path, base_offset: Offset) -> PathBuf {
    crate::names::segment_file(dir, base_offset, crate::names::TXN_INDEX)
}

#[cfg(test)]
mod tests {
    use semel_env::sim::SimDisk;

    use super::*;

    fn aborted(producer: i64, first: i64, last: i64) -> AbortedTransaction {
        AbortedTransaction {
            producer_id: ProducerId(producer),
            first_offset: Offset(first),
            last_offset: Offset(last),
            last_stable_offset: Offset(last + 1),
        }
    }

    #[test]
    fn the_bytes_are_kafkas() {
        let bytes = aborted(258, 3, 7).encode();
        assert_eq!(
            bytes,
            [
                0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0,
                0, 0, 8
            ]
        );
        assert_eq!(AbortedTransaction::decode(&bytes), Some(aborted(258, 3, 7)));
    }

    #[test]
    fn entries_are_found_and_cut_by_their_markers() {
        let disk = SimDisk::new(1);
        let path = PathBuf::from("/t");
        let mut index = TxnIndex::create(&disk, path.clone()).unwrap();
        for entry in [aborted(1, 0, 5), aborted(2, 3, 9), aborted(1, 10, 20)] {
            index.append(&entry).unwrap();
        }
        assert_eq!(index.first_ending_at(Offset(6)).unwrap(), 1);
        index.truncate(Offset(20)).unwrap();
        drop(index);
        let index = TxnIndex::open(&disk, path.clone(), Offset(0)).unwrap();
        assert_eq!((index.count(), index.get(1).unwrap()), (2, aborted(2, 3, 9)));
        disk.open(&path, Open::Write).unwrap().set_len(33).unwrap();
        assert!(TxnIndex::open(&disk, path, Offset(0)).is_none());
    }
}
