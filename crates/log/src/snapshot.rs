//! Producer snapshots, `<offset>.snapshot`: what the producers' table was when the log ended at `<offset>`.
//!
//! ```text
//! version (i16, 1) | CRC-32C of all that follows (u32) | count (i32) | count × 46 bytes:
//! producer id (i64) | epoch (i16) | last sequence (i32) | last offset (i64) | offset delta (i32) | timestamp (i64)
//! | coordinator epoch (i32) | first offset of the open transaction, or -1 (i64)
//! ```

use std::path::Path;

use semel_env::Disk;
use semel_model::{CoordinatorEpoch, Offset, ProducerEpoch, ProducerId, Sequence, Timestamp};
use semel_record::ProducerSnapshotEntry;

use crate::error::{Doing, StorageError};

const VERSION: i16 = 1;
const HEAD: usize = 10;
const ENTRY: usize = 46;
/// Room for five million producers: more than any table may hold.
const SNAPSHOT_BYTES_MAX: u64 = 256 << 20;

pub(crate) fn encode(entries: &[ProducerSnapshotEntry]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD + entries.len() * ENTRY);
    bytes.extend_from_slice(&VERSION.to_be_bytes());
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(&i32::try_from(entries.len()).unwrap_or(i32::MAX).to_be_bytes());
    for entry in entries {
        bytes.extend_from_slice(&entry.producer_id.get().to_be_bytes());
        bytes.extend_from_slice(&entry.producer_epoch.get().to_be_bytes());
        bytes.extend_from_slice(&entry.last_sequence.get().to_be_bytes());
        bytes.extend_from_slice(&entry.last_offset.get().to_be_bytes());
        bytes.extend_from_slice(&entry.offset_delta.to_be_bytes());
        bytes.extend_from_slice(&entry.timestamp.get().to_be_bytes());
        bytes.extend_from_slice(&entry.coordinator_epoch.get().to_be_bytes());
        bytes.extend_from_slice(&entry.current_txn_first_offset.map_or(-1, Offset::get).to_be_bytes());
    }
    let crc = crc32c::crc32c(&bytes[6..]);
    bytes[2..6].copy_from_slice(&crc.to_be_bytes());
    bytes
}

/// The reason if the bytes are no snapshot.
pub(crate) fn decode(bytes: &[u8]) -> Result<Vec<ProducerSnapshotEntry>, &'static str> {
    let (head, rows) = bytes.split_first_chunk::<HEAD>().ok_or("shorter than its header")?;
    if i16::from_be_bytes([head[0], head[1]]) != VERSION {
        return Err("unknown version");
    }
    if u32::from_be_bytes([head[2], head[3], head[4], head[5]]) != crc32c::crc32c(&bytes[6..]) {
        return Err("wrong checksum");
    }
    let count = i32::from_be_bytes([head[6], head[7], head[8], head[9]]);
    if usize::try_from(count).ok().and_then(|count| count.checked_mul(ENTRY)) != Some(rows.len()) {
        return Err("wrong count of entries");
    }
    Ok(rows.chunks_exact(ENTRY).map(entry).collect())
}

fn entry(row: &[u8]) -> ProducerSnapshotEntry {
    let long = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&row[at..at + 8]);
        i64::from_be_bytes(bytes)
    };
    let int = |at: usize| i32::from_be_bytes([row[at], row[at + 1], row[at + 2], row[at + 3]]);
    let first = long(38);
    ProducerSnapshotEntry {
        producer_id: ProducerId(long(0)),
        producer_epoch: ProducerEpoch(i16::from_be_bytes([row[8], row[9]])),
        last_sequence: Sequence(int(10)),
        last_offset: Offset(long(14)),
        offset_delta: int(22),
        timestamp: Timestamp(long(26)),
        coordinator_epoch: CoordinatorEpoch(int(34)),
        current_txn_first_offset: (first >= 0).then_some(Offset(first)),
    }
}

pub(crate) fn write<D: Disk>(
    disk: &D,
    path: &Path,
    entries: &[ProducerSnapshotEntry],
) -> Result<(), StorageError> {
    disk.write_atomic(path, &encode(entries)).doing("write producer snapshot", path)
}

/// `None` if the file is missing or damaged: an older snapshot, or the log itself, says the same.
pub(crate) fn read<D: Disk>(disk: &D, path: &Path) -> Option<Vec<ProducerSnapshotEntry>> {
    decode(&disk.read(path, SNAPSHOT_BYTES_MAX).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> ProducerSnapshotEntry {
        ProducerSnapshotEntry {
            producer_id: ProducerId(1000),
            producer_epoch: ProducerEpoch(2),
            last_sequence: Sequence(41),
            last_offset: Offset(99),
            offset_delta: 4,
            timestamp: Timestamp(1_700_000_000_000),
            coordinator_epoch: CoordinatorEpoch(-1),
            current_txn_first_offset: Some(Offset(95)),
        }
    }

    #[test]
    fn the_bytes_are_kafkas() {
        let bytes = encode(&[sample()]);
        let mut expected = vec![0, 1];
        expected.extend_from_slice(&crc32c::crc32c(&bytes[6..]).to_be_bytes());
        expected.extend_from_slice(&[0, 0, 0, 1]);
        expected.extend_from_slice(&[0, 0, 0, 0, 0, 0, 3, 0xe8]);
        expected.extend_from_slice(&[0, 2]);
        expected.extend_from_slice(&[0, 0, 0, 41]);
        expected.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 99]);
        expected.extend_from_slice(&[0, 0, 0, 4]);
        expected.extend_from_slice(&[0, 0, 0x01, 0x8b, 0xcf, 0xe5, 0x68, 0x00]);
        expected.extend_from_slice(&[0xff; 4]);
        expected.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 95]);
        assert_eq!(bytes, expected);
        assert_eq!(decode(&bytes), Ok(vec![sample()]));
        assert_eq!(encode(&[]), [0, 1, 0x48, 0x67, 0x4b, 0xc7, 0, 0, 0, 0]);
    }

    #[test]
    fn damage_is_noticed() {
        let bytes = encode(&[sample(), sample()]);
        for at in 0..bytes.len() {
            assert!(decode(&bytes[..at]).is_err());
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            assert!(decode(&flipped).is_err());
        }
    }
}
