//! Tests of whole logs on a simulated disk.

mod append;
mod cleaning;
mod damage;
mod lookup;
mod model;
mod real;
mod retention;
mod rot;
mod rubbish;

use std::path::{Path, PathBuf};

use bytes::Bytes;
use semel_env::{Disk, Open, sim::SimDisk};
use semel_model::{LeaderEpoch, Millis, Offset, Timestamp};
use semel_record::{Batch, BatchBuilder, Batches, ProducerSnapshotEntry};

use crate::{AppendError, Appended, Config, Known, PartitionLog, Recovery};

pub(crate) const DIR: &str = "/data/t-0";
pub(crate) const NOW: Timestamp = Timestamp(1_000_000);

/// Small segments and a dense index, so that few batches reach every path.
pub(crate) fn small() -> Config {
    Config {
        segment_bytes: 1000,
        index_interval_bytes: 100,
        file_delete_delay_ms: Millis(0),
        ..Config::default()
    }
}

pub(crate) fn disk(seed: u64) -> SimDisk {
    let disk = SimDisk::new(seed);
    disk.set_now(NOW);
    disk.create_dir_all(Path::new(DIR)).unwrap();
    disk.sync_dir(Path::new("/")).unwrap();
    disk.sync_dir(Path::new("/data")).unwrap();
    disk
}

pub(crate) fn open(disk: &SimDisk, config: Config, known: Known) -> (PartitionLog<SimDisk>, Recovery) {
    PartitionLog::open(disk.clone(), PathBuf::from(DIR), config, known, NOW).unwrap()
}

pub(crate) fn fresh(disk: &SimDisk, config: Config) -> PartitionLog<SimDisk> {
    open(disk, config, Known::default()).0
}

pub(crate) fn clean(point: Offset) -> Known {
    Known { recovery_point: Some(point), log_start_offset: Offset(0), clean: true }
}

pub(crate) fn unclean(point: Offset) -> Known {
    Known { recovery_point: Some(point), log_start_offset: Offset(0), clean: false }
}

/// A batch of `count` records with a value of `size` bytes each.
pub(crate) fn batch(timestamp: i64, count: usize, size: usize) -> Batch {
    let mut builder = BatchBuilder::new();
    for at in 0..count {
        builder.push(
            Timestamp(timestamp + at as i64),
            Some(format!("k{at}").as_bytes()),
            Some(&vec![at as u8; size]),
            &[],
        );
    }
    builder.build().unwrap()
}

pub(crate) fn no_producers() -> Vec<ProducerSnapshotEntry> {
    Vec::new()
}

pub(crate) fn append(log: &mut PartitionLog<SimDisk>, batch: &Batch) -> Result<Appended, AppendError> {
    append_at(log, batch, NOW)
}

pub(crate) fn append_at(
    log: &mut PartitionLog<SimDisk>,
    batch: &Batch,
    now: Timestamp,
) -> Result<Appended, AppendError> {
    let end = log.log_end_offset();
    let epoch = log.latest_epoch().max(LeaderEpoch(0));
    log.append(batch, end, epoch, now, &no_producers)
}

/// Appends `count` batches of two records of 20 bytes, one millisecond apart.
pub(crate) fn fill(log: &mut PartitionLog<SimDisk>, count: usize) {
    for _ in 0..count {
        let at = log.log_end_offset().get();
        append(log, &batch(NOW.get() + at, 2, 20)).unwrap();
    }
}

/// All batches from `offset` on, read in steps of `max_bytes`.
pub(crate) fn read_all(log: &PartitionLog<SimDisk>, offset: Offset, max_bytes: u32) -> Vec<Batch> {
    let mut found = Vec::new();
    let mut at = offset;
    for _ in 0..100_000 {
        let slice = log.read(at, max_bytes, log.log_end_offset(), true).unwrap();
        if slice.is_empty() {
            return found;
        }
        let bytes = slice.read().unwrap();
        let mut walk = Batches::new(bytes);
        for batch in walk.by_ref() {
            let batch = batch.unwrap();
            batch.verify_crc().unwrap();
            found.push(batch);
        }
        assert!(walk.remainder().is_empty(), "a slice held a partial batch");
        assert!(slice.next_offset > at);
        at = slice.next_offset;
    }
    panic!("reading does not end");
}

/// The values of a log's batches, for comparing: base offset, bytes.
pub(crate) fn contents(log: &PartitionLog<SimDisk>) -> Vec<(i64, Bytes)> {
    read_all(log, log.log_start_offset(), 300)
        .into_iter()
        .map(|b| (b.header.base_offset.get(), b.bytes))
        .collect()
}

pub(crate) fn path(base: i64, kind: &str) -> PathBuf {
    Path::new(DIR).join(format!("{base:020}.{kind}"))
}

pub(crate) fn overwrite(disk: &SimDisk, path: &Path, bytes: &[u8]) {
    let file = disk.open(path, Open::Truncate).unwrap();
    semel_env::DiskFile::write_all_at(&file, bytes, 0).unwrap();
}

pub(crate) fn file(disk: &SimDisk, path: &Path) -> Vec<u8> {
    disk.read(path, 1 << 30).unwrap()
}
