use semel_env::Disk;
use semel_model::{LeaderEpoch, Millis, Offset, Timestamp};

use super::*;
use crate::{CleanupPolicy, ReadError, RetentionError, TruncateError};

fn bases(log: &PartitionLog<SimDisk>) -> Vec<i64> {
    log.segments().map(Offset::get).collect()
}

#[test]
fn old_segments_go_and_the_active_one_is_rolled_first() {
    let disk = disk(1);
    let config = Config { retention_ms: Some(Millis(1000)), ..small() };
    let mut log = fresh(&disk, config);
    fill(&mut log, 20);
    let end = log.log_end_offset();
    assert!(log.expired_segments(NOW, end).unwrap().segments.is_empty());
    let later = NOW.plus(Millis(1019));
    let some = log.expired_segments(later, end).unwrap();
    assert_eq!((some.segments.len(), some.active_too), (1, false));
    let all = log.expired_segments(NOW.plus(Millis(10_000)), end).unwrap();
    assert_eq!((all.segments.len(), all.active_too), (log.segment_count() - 1, true));
    let below = log.expired_segments(NOW.plus(Millis(10_000)), Offset(15)).unwrap();
    assert!(!below.active_too && below.segments.iter().all(|base| log.segment_end(*base) <= Offset(15)));
    let deleted = log.enforce_retention(NOW.plus(Millis(10_000)), end, &no_producers).unwrap();
    assert_eq!(deleted.segments, all.segments.len() + 1);
    assert_eq!((log.log_start_offset(), log.log_end_offset(), bases(&log)), (end, end, vec![end.get()]));
    log.remove_due(Timestamp(i64::MAX)).unwrap();
    let names = disk.read_dir(std::path::Path::new(DIR)).unwrap();
    assert!(names.iter().all(|entry| !entry.name.ends_with(".deleted")));
    assert_eq!(names.iter().filter(|entry| entry.name.ends_with(".log")).count(), 1);
    let (log, _) = open(&disk, small(), clean(end));
    assert_eq!((log.log_start_offset(), log.log_end_offset()), (end, end));
}

#[test]
fn too_large_a_log_loses_its_oldest() {
    let disk = disk(1);
    let mut log = fresh(&disk, Config { retention_bytes: Some(2000), ..small() });
    fill(&mut log, 40);
    let end = log.log_end_offset();
    log.enforce_retention(NOW, end, &no_producers).unwrap();
    assert!((2000..3000).contains(&log.size_in_bytes()), "{}", log.size_in_bytes());
    log.set_config(Config {
        retention_bytes: Some(0),
        cleanup_policy: CleanupPolicy { delete: false, compact: true },
        ..small()
    });
    assert_eq!(
        log.enforce_retention(NOW, end, &no_producers).unwrap().segments,
        0,
        "only with the delete policy"
    );
}

#[test]
fn a_record_from_the_future_does_not_keep_the_log() {
    let disk = disk(1);
    let config = Config { retention_ms: Some(Millis(60_000)), ..small() };
    let mut log = fresh(&disk, config);
    append(&mut log, &batch(NOW.get() + 10 * 365 * 24 * 3_600_000, 1, 20)).unwrap();
    fill(&mut log, 30);
    let end = log.log_end_offset();
    let later = NOW.plus(Millis(180_000));
    let deleted = log.enforce_retention(later, end, &no_producers).unwrap();
    assert!(deleted.segments > 3);
    assert_eq!(log.log_start_offset(), end);
}

#[test]
fn deleting_records_moves_the_start() {
    let disk = disk(1);
    let mut log = fresh(&disk, small());
    fill(&mut log, 20);
    let end = log.log_end_offset();
    assert!(matches!(
        log.delete_before(end.next(), end.next()),
        Err(RetentionError::OffsetOutOfRange { .. })
    ));
    assert!(matches!(log.delete_before(Offset(10), Offset(9)), Err(RetentionError::OffsetOutOfRange { .. })));
    assert!(log.delete_before(Offset(21), end).unwrap());
    assert!(!log.delete_before(Offset(3), end).unwrap());
    assert!(matches!(log.read(Offset(20), 100, end, true), Err(ReadError::OffsetOutOfRange { .. })));
    let slice = log.read(Offset(21), 1, end, true).unwrap();
    assert_eq!(slice.start_offset, Offset(20), "the batch that holds the start is given whole");
    log.enforce_retention(NOW, end, &no_producers).unwrap();
    assert!(bases(&log)[0] <= 21 && bases(&log)[1] > 21);
    log.delete_before(end, end).unwrap();
    log.enforce_retention(NOW, end, &no_producers).unwrap();
    assert_eq!(log.segment_count(), 1);
    fill(&mut log, 1);
    assert_eq!(log.log_end_offset(), end.plus(2));
}

#[test]
fn truncation_takes_whole_batches_epochs_and_segments() {
    let disk = disk(1);
    let mut log = fresh(&disk, small());
    fill(&mut log, 10);
    for epoch in [3, 5] {
        let end = log.log_end_offset();
        log.append(&batch(NOW.get() + end.get(), 2, 20), end, LeaderEpoch(epoch), NOW, &no_producers)
            .unwrap();
        fill(&mut log, 9);
    }
    let all = contents(&log);
    for target in (0..60).rev() {
        log.truncate_to(Offset(target), NOW).unwrap();
        let keep = all.iter().filter(|(base, _)| base + 2 <= target).count();
        assert_eq!(contents(&log), all[..keep], "{target}");
        assert_eq!(log.log_end_offset(), Offset(keep as i64 * 2));
        assert!(log.flushed_end() <= log.log_end_offset());
        if target % 7 == 0 {
            // What follows is indexed as if nothing had been cut.
            let epoch = log.latest_epoch();
            log.flush().unwrap();
            fill(&mut log, 3);
            for batch in read_all(&log, Offset(0), 1) {
                let at = Timestamp(NOW.get() + batch.header.base_offset.get());
                assert_eq!(log.offset_for_timestamp(at).unwrap().unwrap().offset, batch.header.base_offset);
            }
            disk.crash();
            let (reopened, _) = open(&disk, small(), unclean(Offset(0)));
            log = reopened;
            assert!(log.log_end_offset() >= Offset(keep as i64 * 2), "the cut itself is safe");
            assert_eq!(contents(&log)[..keep], all[..keep]);
            assert!(keep == 0 || log.latest_epoch() == epoch);
        }
    }
    assert_eq!(log.epoch_history().len(), 0);
}

#[test]
fn truncation_stops_at_the_start() {
    let disk = disk(1);
    let mut log = fresh(&disk, small());
    fill(&mut log, 10);
    log.delete_before(Offset(10), Offset(20)).unwrap();
    assert!(matches!(log.truncate_to(Offset(9), NOW), Err(TruncateError::BelowLogStart { .. })));
    log.truncate_fully_and_start_at(Offset(50), NOW).unwrap();
    assert_eq!(
        (log.log_start_offset(), log.log_end_offset(), log.flushed_end()),
        (Offset(50), Offset(50), Offset(50))
    );
    fill(&mut log, 2);
    assert_eq!(contents(&log).len(), 2);
    log.flush().unwrap();
    disk.crash_losing_all();
    let (log, _) = open(&disk, small(), unclean(Offset(54)));
    assert_eq!((log.log_start_offset(), log.log_end_offset()), (Offset(50), Offset(54)));
}

#[test]
fn a_flush_that_began_before_a_truncation_says_nothing() {
    let disk = disk(1);
    let mut log = fresh(&disk, small());
    fill(&mut log, 4);
    let ticket = log.flush_ticket();
    ticket.sync().unwrap();
    log.truncate_to(Offset(4), NOW).unwrap();
    fill(&mut log, 4);
    log.flushed(&ticket);
    assert!(log.flushed_end() <= Offset(4));
    log.flush().unwrap();
    assert_eq!((log.flushed_end(), log.needs_flush()), (Offset(12), false));
}

#[test]
fn tickets_cover_rolled_segments() {
    for seed in 0..20 {
        let disk = disk(seed);
        let mut log = fresh(&disk, small());
        fill(&mut log, 5);
        let ticket = log.flush_ticket();
        fill(&mut log, 25);
        ticket.sync().unwrap();
        log.flushed(&ticket);
        assert_eq!(log.flushed_end(), Offset(10));
        let ticket = log.flush_ticket();
        fill(&mut log, 3);
        ticket.sync().unwrap();
        log.flushed(&ticket);
        assert_eq!(log.flushed_end(), Offset(60));
        let promised: Vec<_> = contents(&log).into_iter().take(30).collect();
        drop(log);
        disk.crash_losing_all();
        let (log, _) = open(&disk, small(), unclean(Offset(10)));
        assert_eq!(contents(&log)[..30], promised);
    }
}

#[test]
fn a_failed_sync_ends_the_log() {
    let disk = disk(1);
    let mut log = fresh(&disk, small());
    fill(&mut log, 3);
    disk.fail_after(0);
    assert!(log.flush().is_err());
    assert!(log.has_failed());
    assert!(append(&mut log, &batch(1, 1, 1)).is_err());
    assert_eq!(log.flushed_end(), Offset(0));
}
