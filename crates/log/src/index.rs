//! The sparse indexes of a segment, as Kafka lays them out, big-endian:
//!
//! ```text
//! .index      last offset of a batch - base (4) | position of that batch (4)
//! .timeindex  largest timestamp so far (8)      | last offset of its batch - base (4)
//! ```
//!
//! No checksum guards them: they say only what the log says, and one that makes no sense is built again from it.

use std::path::{Path, PathBuf};

use semel_env::{Disk, DiskFile, Open};
use semel_model::{Offset, Timestamp};

use crate::error::{Doing, StorageError};

/// An entry of either index.
pub(crate) trait Entry: Copy + std::fmt::Debug {
    const SIZE: usize;
    fn read(bytes: &[u8]) -> Self;
    fn write(&self, out: &mut Vec<u8>);
    /// Whether `self` may stand right before `next`.
    fn precedes(&self, next: &Self) -> bool;
}

/// The batch at `position` ends with offset `base + relative` (inclusive).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OffsetEntry {
    pub relative: u32,
    pub position: u32,
}

/// No batch up to the one that ends with offset `base + relative` has a larger timestamp, and that one has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeEntry {
    pub timestamp: Timestamp,
    pub relative: u32,
}

impl Entry for OffsetEntry {
    const SIZE: usize = 8;

    fn read(bytes: &[u8]) -> Self {
        Self { relative: u32_at(bytes, 0), position: u32_at(bytes, 4) }
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.relative.to_be_bytes());
        out.extend_from_slice(&self.position.to_be_bytes());
    }

    fn precedes(&self, next: &Self) -> bool {
        self.relative < next.relative && self.position < next.position
    }
}

impl Entry for TimeEntry {
    const SIZE: usize = 12;

    fn read(bytes: &[u8]) -> Self {
        let timestamp = (i64::from(u32_at(bytes, 0)) << 32) | i64::from(u32_at(bytes, 4));
        Self { timestamp: Timestamp(timestamp), relative: u32_at(bytes, 8) }
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.timestamp.get().to_be_bytes());
        out.extend_from_slice(&self.relative.to_be_bytes());
    }

    fn precedes(&self, next: &Self) -> bool {
        self.timestamp < next.timestamp && self.relative < next.relative
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map_or(0, u32::from_be_bytes)
}

/// An entry's offset relative to its segment's base; `None` if it is out of the index's reach.
pub(crate) fn relative(base_offset: Offset, offset: Offset) -> Option<u32> {
    u32::try_from(offset.since(base_offset)).ok().filter(|relative| *relative <= i32::MAX as u32)
}

/// Reads a whole index file and refuses one that can't be right: no whole number of entries, or out of order.
pub(crate) fn load<D: Disk, E: Entry>(disk: &D, path: &Path, bytes_max: u64) -> Option<Vec<E>> {
    // Whatever is wrong with an index, the cure is the same: build it again.
    let bytes = disk.read(path, bytes_max).ok()?;
    let entries: Vec<E> = decode(&bytes)?;
    Some(entries)
}

fn decode<E: Entry>(bytes: &[u8]) -> Option<Vec<E>> {
    if !bytes.len().is_multiple_of(E::SIZE) {
        return None;
    }
    let entries: Vec<E> = bytes.chunks_exact(E::SIZE).map(E::read).collect();
    entries.is_sorted_by(E::precedes).then_some(entries)
}

/// Adds an entry if it may stand after the last one: a damaged batch must not spoil what is found through the others.
pub(crate) fn push<E: Entry>(entries: &mut Vec<E>, entry: E) {
    if entries.last().is_none_or(|last| last.precedes(&entry)) {
        entries.push(entry);
    }
}

pub(crate) fn encode<E: Entry>(entries: &[E]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(entries.len() * E::SIZE);
    for entry in entries {
        entry.write(&mut bytes);
    }
    bytes
}

/// The index of a segment that is written to: whole in memory, and on disk up to `written` entries.
#[derive(Debug)]
pub(crate) struct Growing<E> {
    path: PathBuf,
    entries: Vec<E>,
    /// How many entries the file begins with.
    written: usize,
    /// Whether the file holds nothing else. A failed write leaves it in doubt until it is written anew.
    exact: bool,
}

/// How many entries may wait in memory: 4 KiB of offset entries, so about 2 MiB of batches.
const PENDING_MAX: usize = 512;

impl<E: Entry> Growing<E> {
    /// Of a file that holds exactly these entries.
    pub(crate) fn stored(path: PathBuf, entries: Vec<E>) -> Self {
        Self { path, written: entries.len(), entries, exact: true }
    }

    /// Of a file that must be written anew.
    pub(crate) fn unstored(path: PathBuf, entries: Vec<E>) -> Self {
        Self { path, entries, written: 0, exact: false }
    }

    pub(crate) fn entries(&self) -> &[E] {
        &self.entries
    }

    pub(crate) fn last(&self) -> Option<E> {
        self.entries.last().copied()
    }

    pub(crate) fn size_in_bytes(&self) -> usize {
        self.entries.len() * E::SIZE
    }

    pub(crate) fn push(&mut self, entry: E) {
        push(&mut self.entries, entry);
    }

    pub(crate) fn has_many_pending(&self) -> bool {
        self.entries.len() - self.written >= PENDING_MAX
    }

    /// Writes the entries that wait. On an error they go on waiting.
    pub(crate) fn persist<D: Disk>(&mut self, disk: &D) -> Result<(), StorageError> {
        if self.exact && self.written == self.entries.len() {
            return Ok(());
        }
        if !self.exact {
            self.written = 0;
        }
        let how = if self.exact { Open::Create } else { Open::Truncate };
        self.exact = false;
        let file = disk.open(&self.path, how).doing("open", &self.path)?;
        let bytes = encode(&self.entries[self.written..]);
        file.write_all_at(&bytes, (self.written * E::SIZE) as u64).doing("write", &self.path)?;
        (self.written, self.exact) = (self.entries.len(), true);
        Ok(())
    }

    /// Keeps the first `keep` entries, on disk too.
    pub(crate) fn truncate<D: Disk>(&mut self, disk: &D, keep: usize) -> Result<(), StorageError> {
        self.entries.truncate(keep);
        if self.exact && self.written > keep {
            self.exact = false;
            let file = disk.open(&self.path, Open::Create).doing("open", &self.path)?;
            file.set_len((keep * E::SIZE) as u64).doing("truncate", &self.path)?;
            self.exact = true;
        }
        self.written = self.written.min(keep);
        Ok(())
    }
}

/// The index of a closed segment: searched in its file, or in memory if the file could not be written again.
#[derive(Debug)]
pub(crate) enum Lookup<D: Disk, E> {
    File { path: PathBuf, file: D::File, count: usize, entry: std::marker::PhantomData<E> },
    Memory(Vec<E>),
}

impl<D: Disk, E: Entry> Lookup<D, E> {
    pub(crate) fn file(path: PathBuf, file: D::File, count: usize) -> Self {
        Self::File { path, file, count, entry: std::marker::PhantomData }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::File { count, .. } => *count,
            Self::Memory(entries) => entries.len(),
        }
    }
}

/// Sorted entries that can be searched.
pub(crate) trait Entries<E: Entry> {
    fn count(&self) -> usize;
    fn get(&self, at: usize) -> Result<E, StorageError>;

    /// The last entry for which `holds`; those for which it does must all stand before those for which it does not.
    fn last_where(&self, holds: impl Fn(&E) -> bool) -> Result<Option<E>, StorageError> {
        let (mut low, mut high) = (0, self.count());
        let mut found = None;
        while low < high {
            let middle = low + (high - low) / 2;
            let entry = self.get(middle)?;
            if holds(&entry) {
                found = Some(entry);
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(found)
    }
}

impl<E: Entry> Entries<E> for [E] {
    fn count(&self) -> usize {
        self.len()
    }

    fn get(&self, at: usize) -> Result<E, StorageError> {
        Ok(self[at])
    }
}

impl<D: Disk, E: Entry> Entries<E> for Lookup<D, E> {
    fn count(&self) -> usize {
        self.len()
    }

    fn get(&self, at: usize) -> Result<E, StorageError> {
        match self {
            Self::Memory(entries) => Ok(entries[at]),
            Self::File { path, file, .. } => {
                let mut bytes = [0; 16];
                let bytes = &mut bytes[..E::SIZE];
                file.read_exact_at(bytes, (at * E::SIZE) as u64).doing("read", path)?;
                Ok(E::read(bytes))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use semel_env::sim::SimDisk;

    use super::*;

    #[test]
    fn the_bytes_are_kafkas() {
        let entries = [
            OffsetEntry { relative: 5, position: 4096 },
            OffsetEntry { relative: 0x01_02_03_04, position: 9000 },
        ];
        assert_eq!(encode(&entries), [0, 0, 0, 5, 0, 0, 16, 0, 1, 2, 3, 4, 0, 0, 0x23, 0x28]);
        assert_eq!(decode::<OffsetEntry>(&encode(&entries)).unwrap(), entries);
        let times = [TimeEntry { timestamp: Timestamp(0x0102_0304_0506_0708), relative: 9 }];
        assert_eq!(encode(&times), [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 9]);
        assert_eq!(decode::<TimeEntry>(&encode(&times)).unwrap(), times);
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(decode::<OffsetEntry>(&[0; 7]).is_none());
        assert!(decode::<OffsetEntry>(&[0; 16]).is_none(), "two equal entries");
        assert!(decode::<TimeEntry>(&[0; 24]).is_none());
        assert!(decode::<TimeEntry>(&[]).unwrap().is_empty());
    }

    #[test]
    fn a_growing_index_and_a_closed_one_find_the_same() {
        let disk = SimDisk::new(1);
        let path = PathBuf::from("/i");
        let mut growing = Growing::unstored(path.clone(), Vec::new());
        for at in 0..10 {
            growing.push(OffsetEntry { relative: at * 10, position: at * 100 });
            if at == 6 {
                growing.persist(&disk).unwrap();
            }
        }
        growing.truncate(&disk, 5).unwrap();
        growing.push(OffsetEntry { relative: 77, position: 777 });
        growing.persist(&disk).unwrap();
        let loaded: Vec<OffsetEntry> = load(&disk, &path, 1 << 20).unwrap();
        assert_eq!(loaded, growing.entries());
        let file = disk.open(&path, Open::Read).unwrap();
        let lookup = Lookup::<SimDisk, OffsetEntry>::file(path, file, loaded.len());
        for target in [0, 9, 10, 40, 76, 77, 1000] {
            let in_memory = growing.entries().last_where(|entry| entry.relative <= target).unwrap();
            assert_eq!(lookup.last_where(|entry| entry.relative <= target).unwrap(), in_memory);
            assert_eq!(in_memory, loaded.iter().rev().find(|entry| entry.relative <= target).copied());
        }
    }
}
