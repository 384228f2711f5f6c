//! Bit rot: what of a log is still served, and that no offset is given twice.

use proptest::prelude::*;
use semel_env::{Disk, DiskFile, Open};
use semel_model::{Offset, OffsetRange};
use semel_record::BatchHeader;

use super::*;
use crate::ReadError;

/// A batch as it was written: its segment, where it stands there, its base and end offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Written {
    segment: i64,
    position: u64,
    base: i64,
    end: i64,
}

fn written(disk: &SimDisk, log: &PartitionLog<SimDisk>) -> Vec<Written> {
    let mut found = Vec::new();
    for segment in log.segments().map(Offset::get) {
        let bytes = file(disk, &path(segment, "log"));
        let mut position = 0;
        while position < bytes.len() {
            let header = BatchHeader::parse(&bytes[position..]).unwrap();
            let (base, end) = (header.base_offset.get(), header.next_offset().get());
            found.push(Written { segment, position: position as u64, base, end });
            position += header.size_in_bytes();
        }
    }
    found
}

/// Small segments with an index entry for every fourth batch.
fn sparse() -> Config {
    Config { index_interval_bytes: 300, ..small() }
}

/// A log of several segments, all of it promised.
fn closed_log(count: usize) -> (SimDisk, Vec<Written>, Offset) {
    let disk = disk(1);
    let mut log = fresh(&disk, sparse());
    fill(&mut log, count);
    log.close(&[]).unwrap();
    let all = written(&disk, &log);
    (disk, all, log.log_end_offset())
}

/// The base offsets of all batches that are served, in order.
fn served(log: &PartitionLog<SimDisk>) -> Vec<i64> {
    let (mut found, mut at) = (Vec::new(), log.log_start_offset());
    for _ in 0..10_000 {
        match log.read(at, 1, log.log_end_offset(), true) {
            Ok(slice) if slice.is_empty() => return found,
            Ok(slice) => {
                let header = BatchHeader::parse(&slice.read().unwrap()).unwrap();
                found.push(header.base_offset.get());
                assert!(slice.next_offset > at);
                at = slice.next_offset;
            }
            Err(ReadError::Corrupt { from, to }) => {
                assert!(from <= at && at < to, "{from}..{to} at {at}");
                at = to;
            }
            Err(error) => panic!("{error:?}"),
        }
    }
    panic!("reading does not end");
}

fn bases(all: &[Written]) -> Vec<i64> {
    all.iter().map(|batch| batch.base).collect()
}

fn range(batch: Written) -> OffsetRange {
    OffsetRange { start: Offset(batch.base), end: Offset(batch.end) }
}

/// Appends, stops badly and starts again: what was there stays, and no offset is given twice.
fn goes_on(disk: &SimDisk, mut log: PartitionLog<SimDisk>, end: Offset) {
    assert!(log.log_end_offset() >= end, "offsets repeat: {} after {end}", log.log_end_offset());
    fill(&mut log, 12);
    log.flush().unwrap();
    let (before, point) = (served(&log), log.log_end_offset());
    assert!(before.is_sorted_by(|a, b| a < b));
    drop(log);
    disk.crash();
    for known in [unclean(end), unclean(point), Known::default()] {
        let (log, recovery) = open(disk, sparse(), known);
        assert_eq!((served(&log), log.log_end_offset()), (before.clone(), point), "{known:?} {recovery:?}");
        assert_eq!((recovery.truncated_bytes, recovery.dropped_segments), (0, 0));
    }
}

fn last_indexed(disk: &SimDisk, all: &[Written]) -> usize {
    let segment = all.last().unwrap().segment;
    let index = file(disk, &path(segment, "index"));
    let position = index.last_chunk::<4>().map_or(0, |four| u32::from_be_bytes(*four));
    all.iter().position(|b| b.segment == segment && b.position == u64::from(position)).unwrap()
}

#[test]
fn a_rotten_batch_that_the_last_index_entry_names_takes_nothing_with_it() {
    let (mut as_last, mut as_middle) = (0, 0);
    for count in 20..36 {
        // A bit of the payload, one of the magic, one of the length.
        for at in [70, 16, 10] {
            let (disk, all, end) = closed_log(count);
            let victim = last_indexed(&disk, &all);
            let is_last = victim + 1 == all.len();
            if all[victim].position == 0 {
                continue;
            }
            let others: Vec<i64> = bases(&all).into_iter().filter(|base| *base != all[victim].base).collect();
            disk.rot(&path(all[victim].segment, "log"), all[victim].position + at, 8).unwrap();
            let (log, recovery) = open(&disk, sparse(), clean(end));
            assert_eq!(recovery.truncated_bytes, 0);
            assert_eq!(recovery.corrupt[0].start, Offset(all[victim].base));
            if at == 70 || is_last {
                assert_eq!((recovery.corrupt.clone(), served(&log)), (vec![range(all[victim])], others));
            }
            if is_last {
                as_last += 1
            } else {
                as_middle += 1
            }
            goes_on(&disk, log, end);
        }
        // Above the recovery point the log ends there, and no earlier.
        for back in [1000, 3, 1] {
            let (disk, all, _) = closed_log(count);
            let victim = last_indexed(&disk, &all);
            disk.rot(&path(all[victim].segment, "log"), all[victim].position + 70, 8).unwrap();
            let point = Offset(all[victim.saturating_sub(back)].base);
            let (log, recovery) = open(&disk, sparse(), unclean(point));
            assert_eq!(log.log_end_offset(), Offset(all[victim].base));
            assert_eq!(served(&log), bases(&all[..victim]));
            assert!(recovery.corrupt.is_empty() && recovery.truncated_bytes > 0);
        }
    }
    assert!(as_last > 0 && as_middle > 0, "{as_last} {as_middle}");
}

#[test]
fn a_promised_end_is_never_cut_and_its_offsets_are_not_given_again() {
    for known in [clean, unclean] {
        // Torn in the batch, or gone with it.
        for cut in [1, 40, 80, usize::MAX] {
            let (disk, all, end) = closed_log(25);
            let last = *all.last().unwrap();
            let at = path(last.segment, "log");
            let size = disk.file_len(&at).unwrap();
            let left = size.saturating_sub(cut as u64).max(last.position);
            disk.open(&at, Open::Write).unwrap().set_len(left).unwrap();
            let (log, recovery) = open(&disk, sparse(), known(end));
            assert_eq!((recovery.corrupt.clone(), recovery.truncated_bytes), (vec![range(last)], 0));
            assert_eq!(recovery.lost, (cut == usize::MAX).then_some(range(last)));
            assert_eq!(file(&disk, &at).len() as u64, left);
            assert_eq!(served(&log), bases(&all[..all.len() - 1]));
            assert!(matches!(log.read(Offset(last.base), 1, end, true), Err(ReadError::Corrupt { .. })));
            assert_eq!(log.flushed_end(), end);
            goes_on(&disk, log, end);
        }
    }
}

#[test]
fn damage_that_a_read_noted_above_the_recovery_point_dooms_nothing_behind_it() {
    for flush in [false, true] {
        let disk = disk(1);
        let mut log = fresh(&disk, sparse());
        fill(&mut log, 14);
        let all = written(&disk, &log);
        let victim = all.iter().rposition(|batch| batch.position > 0).unwrap() - usize::from(flush);
        let victim = all[victim];
        disk.rot(&path(victim.segment, "log"), victim.position + 16, 8).unwrap();
        let error = log.read(Offset(victim.base), 1, log.log_end_offset(), true);
        assert!(matches!(error, Err(ReadError::Corrupt { .. })));
        fill(&mut log, 20);
        if flush {
            log.flush().unwrap();
        }
        let (before, end) = (served(&log), log.log_end_offset());
        assert!(before.iter().filter(|base| **base > victim.base).count() >= 20);
        drop(log);
        disk.kill();
        for known in [unclean(Offset(0)), unclean(Offset(victim.base))] {
            let (log, recovery) = open(&disk, sparse(), known);
            assert_eq!((recovery.truncated_bytes, recovery.dropped_segments), (0, 0), "{recovery:?}");
            assert_eq!((served(&log), log.log_end_offset()), (before.clone(), end));
        }
    }
}

#[test]
fn a_read_and_a_scrub_go_on_behind_a_bad_batch() {
    for at in [16, 70] {
        let (disk, all, end) = closed_log(30);
        let (mut log, _) = open(&disk, sparse(), clean(end));
        // The header of the second and the payload of the fourth batch of a closed segment.
        for batch in [all[1], all[3]] {
            assert_eq!(batch.segment, 0);
            disk.rot(&path(0, "log"), batch.position + at, 8).unwrap();
        }
        let mut noted = 0;
        while let Some(scrub) = log.scrub(Offset(0)).unwrap()
            && let Some(damaged) = scrub.run(&mut || true).unwrap()
        {
            assert!(log.scrubbed(&scrub, Some(damaged)));
            noted += 1;
            assert!(noted <= 2, "{:?}", log.corrupt_ranges());
        }
        let missing: Vec<i64> = bases(&all)
            .into_iter()
            .filter(|base| log.corrupt_ranges().iter().any(|range| range.contains(Offset(*base))))
            .collect();
        assert!(missing.contains(&all[1].base) && missing.contains(&all[3].base));
        assert_eq!(missing.len(), 2, "{missing:?}");
        let others: Vec<i64> = bases(&all).into_iter().filter(|base| !missing.contains(base)).collect();
        assert_eq!(served(&log), others);
        goes_on(&disk, log, end);
    }
}

#[test]
fn what_was_truncated_on_purpose_is_not_lost() {
    let disk = disk(1);
    let mut log = fresh(&disk, sparse());
    fill(&mut log, 30);
    log.flush().unwrap();
    let point = log.log_end_offset();
    log.truncate_to(Offset(20), NOW).unwrap();
    fill(&mut log, 2);
    let end = log.log_end_offset();
    drop(log);
    disk.kill();
    let known = unclean(point);
    let (mut log, recovery) = open(&disk, sparse(), known);
    assert_eq!((log.log_end_offset(), recovery.lost, &recovery.corrupt[..]), (end, None, &[][..]));
    // Once the log was flushed that far again, the old recovery point is right again.
    fill(&mut log, 30);
    log.flush().unwrap();
    assert!(disk.read_dir(Path::new(DIR)).unwrap().iter().all(|entry| entry.name != "semel-truncated"));
    log.truncate_fully_and_start_at(Offset(5), NOW).unwrap();
    fill(&mut log, 1);
    drop(log);
    disk.kill();
    let (log, recovery) = open(&disk, sparse(), known);
    assert_eq!((log.log_end_offset(), recovery.lost, &recovery.corrupt[..]), (Offset(7), None, &[][..]));
}

#[test]
fn a_directory_without_segments_begins_anew() {
    let (disk, _, end) = closed_log(20);
    for entry in disk.read_dir(Path::new(DIR)).unwrap() {
        disk.remove_file(&Path::new(DIR).join(entry.name)).unwrap();
    }
    let (mut log, recovery) = open(&disk, sparse(), unclean(end));
    assert_eq!(recovery.lost, Some(OffsetRange { start: Offset(0), end }));
    fill(&mut log, 3);
    assert_eq!(served(&log), [0, 2, 4]);
    drop(log);
    disk.kill();
    let (log, recovery) = open(&disk, sparse(), unclean(end));
    assert_eq!((served(&log), log.log_end_offset(), recovery.lost), (vec![0, 2, 4], Offset(6), None));
}

#[test]
fn a_batch_that_claims_offsets_of_another_segment_stops_no_reader() {
    let (disk, all, end) = closed_log(30);
    // The highest bytes of the last offset of a batch that no start reads.
    disk.rot(&path(0, "log"), all[1].position + 24, 1).unwrap();
    let (log, _) = open(&disk, sparse(), clean(end));
    let others: Vec<i64> = bases(&all).into_iter().filter(|base| *base != all[1].base).collect();
    assert_eq!(served(&log), others);
    assert_eq!(log.corrupt_ranges(), [range(all[1])]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// One rotten byte under a checksum, or in a length: every batch is served or lies in a damaged range, the log
    /// ends where it did, and goes on from there.
    #[test]
    fn one_rotten_byte(count in 5..40_usize, which: prop::sample::Index, at in 8..100_u64, bit in 0..8_u32, how in 0..3) {
        // The leader epoch is under no checksum, and a last offset that stays in its segment shows only there.
        prop_assume!(!(12..16).contains(&at) && !(23..27).contains(&at));
        let (disk, all, end) = closed_log(count);
        let victim = all[which.index(all.len())];
        disk.rot(&path(victim.segment, "log"), victim.position + at, 1 << bit).unwrap();
        let known = match how {
            0 => clean(end),
            1 => unclean(end),
            _ => unclean(Offset(victim.end)),
        };
        let (log, recovery) = open(&disk, sparse(), known);
        let served = served(&log);
        let (ranges, mut missing) = (log.corrupt_ranges(), 0);
        // Batches behind the rotten one that were never promised may go; here only the rest of a log that ends early.
        for batch in all.iter().filter(|batch| how != 2 || batch.end <= victim.end) {
            let damaged = ranges.iter().any(|range| range.contains(Offset(batch.base)));
            missing += usize::from(damaged);
            prop_assert!(*batch == victim || damaged != served.contains(&batch.base), "{batch:?} {ranges:?}");
        }
        prop_assert!(missing <= 9, "{missing} batches of a segment of nine");
        prop_assert!(log.log_end_offset() >= known.recovery_point.unwrap(), "{recovery:?}");
        prop_assert!(log.log_end_offset() <= end);
    }
}
