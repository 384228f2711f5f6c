use std::path::Path;

use semel_env::{Disk, sim::SimDisk};
use semel_model::{LeaderEpoch, Millis, Offset, Timestamp};

use super::*;
use crate::{AppendError, CleanupPolicy, EpochEnd, ReadError};

#[test]
fn what_is_appended_is_read_back_stamped() {
    let disk = disk(1);
    let mut log = fresh(&disk, small());
    let first = log.append(&batch(5, 2, 10), Offset(0), LeaderEpoch(3), NOW, &no_producers).unwrap();
    assert_eq!((first.base_offset, first.log_end_offset, first.position), (Offset(0), Offset(2), 0));
    let second = log.append(&batch(6, 1, 10), Offset(2), LeaderEpoch(3), NOW, &no_producers).unwrap();
    assert_eq!((second.base_offset, second.log_end_offset), (Offset(2), Offset(3)));
    let batches = read_all(&log, Offset(0), 1 << 20);
    assert_eq!(batches.len(), 2);
    assert_eq!(batches[1].header.base_offset, Offset(2));
    assert_eq!(batches[1].header.leader_epoch, LeaderEpoch(3));
    assert_eq!(u64::from(second.position) + batches[1].bytes.len() as u64, log.size_in_bytes());
}

#[test]
fn a_batch_that_does_not_follow_is_refused() {
    let disk = disk(1);
    let mut log = fresh(&disk, small());
    fill(&mut log, 1);
    let gap = log.append(&batch(5, 2, 10), Offset(5), LeaderEpoch(0), NOW, &no_producers);
    assert!(matches!(gap, Err(AppendError::Discontiguous { log_end_offset: Offset(2), found: Offset(5) })));
    log.append(&batch(5, 2, 10), Offset(2), LeaderEpoch(4), NOW, &no_producers).unwrap();
    let old = log.append(&batch(5, 2, 10), Offset(4), LeaderEpoch(3), NOW, &no_producers);
    assert!(matches!(old, Err(AppendError::FencedLeaderEpoch { latest: LeaderEpoch(4), .. })));
    let large = append(&mut log, &batch(5, 1, 1000));
    assert!(matches!(large, Err(AppendError::RecordListTooLarge { segment_bytes: 1000, .. })));
}

#[test]
fn segments_roll_by_size_age_and_full_index() {
    let by = |change: fn(&mut Config), later: i64| {
        let disk = disk(1);
        let mut config = small();
        change(&mut config);
        let mut log = fresh(&disk, config);
        for at in 0..6 {
            let now = NOW.plus(Millis(at * later));
            append_at(&mut log, &batch(now.get(), 2, 20), now).unwrap();
        }
        log.segments().map(Offset::get).collect::<Vec<_>>()
    };
    assert_eq!(by(|_| (), 0), [0], "small enough for one");
    assert_eq!(by(|c| c.segment_bytes = 300, 0), [0, 4, 8]);
    assert_eq!(by(|c| c.segment_ms = Millis(100), 40), [0, 6], "age counts from the first batch");
    assert_eq!(
        by(
            |c| {
                c.segment_ms = Millis(100);
                c.segment_jitter_ms = Millis(50);
            },
            40
        ),
        [0, 4, 8]
    );
    assert_eq!(by(|c| c.segment_index_bytes = 24, 0), [0, 4, 8]);
}

#[test]
fn a_record_from_the_future_does_not_roll_with_each_batch() {
    let disk = disk(1);
    let mut log = fresh(&disk, small());
    for _ in 0..4 {
        append(&mut log, &batch(NOW.get() + 1_000_000_000_000, 1, 10)).unwrap();
    }
    assert_eq!(log.segment_count(), 1);
}

#[test]
fn reads_keep_their_bounds() {
    let disk = disk(1);
    let mut log = fresh(&disk, small());
    fill(&mut log, 40);
    assert!(log.segment_count() > 3);
    let one = read_all(&log, Offset(0), 1).len();
    assert_eq!(one, 40, "a small buffer gets one batch at a time");
    for offset in 0..80 {
        for max_bytes in [0, 100, 131, 250, 400, 5000] {
            for bound in [offset, offset + 1, offset + 2, offset + 7, 80] {
                let slice = log.read(Offset(offset), max_bytes, Offset(bound), false).unwrap();
                assert!(slice.len <= max_bytes);
                if slice.is_empty() {
                    assert_eq!(slice.next_offset, Offset(offset));
                    continue;
                }
                assert!(slice.start_offset <= Offset(offset));
                assert!(slice.next_offset <= Offset(bound));
                let batches: Vec<_> = Batches::new(slice.read().unwrap()).map(Result::unwrap).collect();
                assert_eq!(batches.last().unwrap().header.next_offset(), slice.next_offset);
                assert_eq!(batches[0].header.base_offset, slice.start_offset);
                // As much as fits: one more batch would break a bound or leave the segment.
                let size = batches[0].bytes.len() as u32;
                let more =
                    slice.len + size <= max_bytes && slice.next_offset.plus(2) <= Offset(bound.min(80));
                let segment_goes_on = !log.segments().any(|base| base == slice.next_offset);
                assert!(!(more && segment_goes_on), "{offset} {max_bytes} {bound}");
            }
        }
    }
    assert!(matches!(log.read(Offset(81), 1, Offset(81), true), Err(ReadError::OffsetOutOfRange { .. })));
    assert!(log.read(Offset(80), 1, Offset(80), true).unwrap().is_empty());
}

#[test]
fn a_failed_write_leaves_nothing_behind() {
    let disk = disk(3);
    let mut log = fresh(&disk, small());
    fill(&mut log, 3);
    let before = contents(&log);
    for _ in 0..20 {
        disk.fail_after(0);
        let refused = append(&mut log, &batch(5, 2, 100));
        assert!(
            matches!(refused, Err(AppendError::Storage(ref error)) if !error.is_disk_full()),
            "{refused:?}"
        );
        assert_eq!(contents(&log), before);
        assert!(!log.has_failed());
    }
    fill(&mut log, 1);
    assert_eq!(contents(&log).len(), 4);
}

#[test]
fn a_log_that_cannot_be_cut_back_takes_no_more() {
    let disk = disk(3);
    let mut log = fresh(&disk, small());
    fill(&mut log, 3);
    disk.fail_after(0);
    disk.fail_after(1);
    assert!(append(&mut log, &batch(5, 2, 100)).is_err());
    assert!(matches!(append(&mut log, &batch(5, 2, 100)), Err(AppendError::LogFailed)));
    assert_eq!(contents(&log).len(), 3, "it is still read");
}

#[test]
fn a_full_disk_refuses_serves_and_recovers() {
    let disk = disk(3);
    let mut log = fresh(&disk, small());
    fill(&mut log, 20);
    disk.set_capacity(Some(disk.used() + 60));
    let before = contents(&log);
    for _ in 0..5 {
        let refused = append(&mut log, &batch(5, 2, 20));
        assert!(
            matches!(refused, Err(AppendError::Storage(ref error)) if error.is_disk_full()),
            "{refused:?}"
        );
        assert_eq!(contents(&log), before);
    }
    // A process that starts on the full disk reads all the same.
    disk.kill();
    disk.set_capacity(Some(disk.used()));
    let (mut log, _) = open(&disk, small(), unclean(Offset(0)));
    assert_eq!(contents(&log), before);
    assert!(append(&mut log, &batch(5, 2, 20)).is_err());
    // Room comes back by deleting, and nobody has to help.
    assert!(log.delete_before(Offset(20), Offset(40)).unwrap());
    assert!(log.enforce_retention(NOW, Offset(40), &no_producers).unwrap().segments > 0);
    log.remove_due(NOW).unwrap();
    append(&mut log, &batch(5, 2, 20)).unwrap();
}

#[test]
fn a_follower_takes_what_the_leader_stamped() {
    let leader_disk = disk(1);
    let mut leader = fresh(&leader_disk, small());
    leader.append(&batch(5, 2, 20), Offset(0), LeaderEpoch(1), NOW, &no_producers).unwrap();
    leader.append(&batch(6, 3, 20), Offset(2), LeaderEpoch(2), NOW, &no_producers).unwrap();
    let bytes = leader.read(Offset(0), 10_000, Offset(5), true).unwrap().read().unwrap();
    let disk = disk(2);
    let mut follower = fresh(&disk, small());
    let mut seen = Vec::new();
    follower
        .append_as_follower(&bytes, NOW, &no_producers, &mut |batch, _| {
            seen.push(batch.header.leader_epoch.get())
        })
        .unwrap();
    assert_eq!(seen, [1, 2]);
    assert_eq!(contents(&follower), contents(&leader));
    assert_eq!(follower.epoch_history(), leader.epoch_history());
    let again = follower.append_as_follower(&bytes, NOW, &no_producers, &mut |_, _| ());
    assert!(matches!(again, Err(AppendError::Discontiguous { .. })));
    let torn =
        follower.append_as_follower(&bytes.slice(..bytes.len() - 1), NOW, &no_producers, &mut |_, _| ());
    assert!(torn.is_err());
}

#[test]
fn a_new_epoch_is_on_disk_before_its_first_batch() {
    let disk = disk(1);
    let mut log = fresh(&disk, small());
    fill(&mut log, 2);
    log.append(&batch(5, 1, 10), Offset(4), LeaderEpoch(7), NOW, &no_producers).unwrap();
    assert_eq!(file(&disk, &Path::new(DIR).join("leader-epoch-checkpoint")), b"0\n2\n0 0\n7 4\n");
    assert_eq!(
        log.end_offset_for_epoch(LeaderEpoch(3)),
        Some(EpochEnd { leader_epoch: LeaderEpoch(0), end_offset: Offset(4) })
    );
}

#[test]
fn a_roll_writes_the_producers_and_drops_older_strays() {
    let disk = disk(1);
    let mut log = fresh(&disk, small());
    fill(&mut log, 2);
    log.close(&[]).unwrap();
    let (mut log, _) = open(&disk, small(), clean(Offset(4)));
    fill(&mut log, 10);
    let snapshots: Vec<String> = disk
        .read_dir(Path::new(DIR))
        .unwrap()
        .into_iter()
        .filter_map(|entry| entry.name.strip_suffix(".snapshot").map(str::to_owned))
        .collect();
    let bases: Vec<String> = log.segments().skip(1).map(|base| format!("{:020}", base.get())).collect();
    assert_eq!(snapshots, bases);
}

#[test]
fn slices_outlive_deletion() {
    let disk: SimDisk = disk(1);
    let mut config = small();
    config.cleanup_policy = CleanupPolicy { delete: true, compact: false };
    let mut log = fresh(&disk, config);
    fill(&mut log, 20);
    let slice = log.read(Offset(0), 300, Offset(40), true).unwrap();
    let before = slice.read().unwrap();
    log.delete_before(Offset(30), Offset(40)).unwrap();
    log.enforce_retention(NOW, Offset(40), &no_producers).unwrap();
    log.remove_due(Timestamp(i64::MAX)).unwrap();
    assert_eq!(slice.read().unwrap(), before);
    assert!(log.read(Offset(0), 300, Offset(40), true).is_err());
}
