//! The same on the file system of this machine.

use semel_env::{Disk, DiskFile, RealDisk};
use semel_model::{LeaderEpoch, Offset};

use super::*;

#[test]
fn a_log_on_a_real_disk() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("t-0");
    RealDisk.create_dir_all(&dir).unwrap();
    let open = |known| PartitionLog::open(RealDisk, dir.clone(), small(), known, NOW).unwrap();
    let (mut log, _) = open(Known::default());
    for at in 0..30 {
        log.append(&batch(NOW.get() + at, 1, 100), Offset(at), LeaderEpoch(0), NOW, &no_producers).unwrap();
    }
    let ticket = log.flush_ticket();
    ticket.sync().unwrap();
    log.flushed(&ticket);
    assert_eq!((log.flushed_end(), log.unflushed()), (Offset(30), 0));
    drop(log);
    let (mut log, recovery) = open(unclean(Offset(30)));
    assert_eq!((log.log_end_offset(), recovery.truncated_bytes), (Offset(30), 0));
    let slice = log.read(Offset(7), 1000, Offset(30), true).unwrap();
    assert!(slice.file.as_fd().is_some());
    let first = Batches::new(slice.read().unwrap()).next().unwrap().unwrap();
    assert_eq!(first.header.base_offset, Offset(7));
    log.close(&[]).unwrap();
    drop(log);
    let (log, recovery) = open(clean(Offset(30)));
    assert_eq!((log.log_end_offset(), recovery.rebuilt_indexes), (Offset(30), 0));
    assert_eq!(
        log.offset_for_timestamp(NOW.plus(semel_model::Millis(11))).unwrap().unwrap().offset,
        Offset(11)
    );
}

#[test]
fn a_clean_start_writes_nothing() {
    let disk = disk(1);
    let mut log = fresh(&disk, small());
    fill(&mut log, 33);
    log.close(&[]).unwrap();
    let end = log.log_end_offset();
    drop(log);
    disk.kill();
    let before = disk.operations();
    let (log, recovery) = super::open(&disk, small(), clean(end));
    assert_eq!(disk.operations(), before);
    assert!(recovery.checked_bytes < 400, "{}", recovery.checked_bytes);
    assert_eq!(log.log_end_offset(), end);
}

#[test]
fn a_snapshot_in_the_middle_shortens_the_next_start() {
    let disk = disk(1);
    let mut log = fresh(&disk, Config::default());
    fill(&mut log, 10);
    log.flush().unwrap();
    log.snapshot_producers(&[]).unwrap();
    let point = log.flushed_end();
    fill(&mut log, 3);
    drop(log);
    disk.kill();
    let (log, _) = super::open(&disk, Config::default(), unclean(point));
    assert_eq!(log.producers().offset, point);
    let mut replayed = 0;
    log.replay(point, &mut |_, _| replayed += 1).unwrap();
    assert_eq!(replayed, 3);
}

#[test]
fn a_new_leader_notes_its_epoch_before_it_writes() {
    let disk = disk(1);
    let mut log = fresh(&disk, small());
    fill(&mut log, 2);
    log.assign_epoch(LeaderEpoch(5)).unwrap();
    log.assign_epoch(LeaderEpoch(4)).unwrap();
    assert_eq!(log.latest_epoch(), LeaderEpoch(5));
    assert_eq!(log.end_offset_for_epoch(LeaderEpoch(0)).unwrap().end_offset, Offset(4));
}
