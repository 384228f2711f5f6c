//! Case 22: torn tails and bad indexes. And damage in the middle.

use semel_env::{Disk, DiskFile, Open};
use semel_model::{Offset, Timestamp};

use super::*;
use crate::ReadError;

/// A log of several segments, closed properly.
fn closed_log() -> (SimDisk, Vec<(i64, Bytes)>, Offset) {
    let disk = disk(1);
    let mut log = fresh(&disk, small());
    fill(&mut log, 30);
    log.close(&[]).unwrap();
    let end = log.log_end_offset();
    (disk, contents(&log), end)
}

fn last_base(log: &PartitionLog<SimDisk>) -> i64 {
    log.segments().last().unwrap().get()
}

/// Time and offset look-ups of all records.
fn check_lookups(log: &PartitionLog<SimDisk>) {
    for batch in read_all(log, log.log_start_offset(), 1) {
        let base = batch.header.base_offset;
        let found = log.offset_for_timestamp(Timestamp(NOW.get() + base.get())).unwrap().unwrap();
        assert_eq!(found.offset, base);
        assert_eq!(log.read(base.next(), 1, log.log_end_offset(), true).unwrap().start_offset, base);
    }
}

#[test]
fn a_torn_tail_is_cut_at_the_last_whole_batch() {
    let (disk, all, end) = closed_log();
    let (log, _) = open(&disk, small(), clean(end));
    let base = last_base(&log);
    drop(log);
    let whole = file(&disk, &path(base, "log"));
    let last = whole.len() - all[all.len() - 1].1.len();
    for known in [unclean(end.plus(-2)), unclean(Offset(0)), Known::default()] {
        for cut in 1..=90 {
            let mut torn = whole.clone();
            match cut {
                // The file has its full length: a bit of the payload, of the magic, of the length did not get there.
                81..=86 => torn[last + 70 + cut - 81] ^= 4,
                87 => torn[last + 16] ^= 4,
                88..=90 => torn[last + 11] ^= 1 << (cut - 88),
                _ => torn.truncate(whole.len() - cut),
            }
            overwrite(&disk, &path(base, "log"), &torn);
            let (mut log, recovery) = open(&disk, small(), known);
            assert_eq!(contents(&log), all[..all.len() - 1], "cut {cut} {known:?}");
            assert!(recovery.truncated_bytes > 0);
            assert!(recovery.corrupt.is_empty());
            assert_eq!(log.log_end_offset(), Offset(end.get() - 2));
            assert_eq!(recovery.lost, None);
            fill(&mut log, 1);
            assert_eq!(log.log_end_offset(), end);
        }
    }
}

#[test]
fn rubbish_behind_the_last_batch_is_cut() {
    let (disk, all, end) = closed_log();
    let (log, _) = open(&disk, small(), clean(end));
    let base = last_base(&log);
    drop(log);
    let whole = file(&disk, &path(base, "log"));
    let random: Vec<u8> = (0..4096_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for rubbish in [vec![0; 4096], random, vec![0xff; 13], vec![2; 61]] {
        for known in [clean(end), unclean(end), unclean(Offset(3)), Known::default()] {
            overwrite(&disk, &path(base, "log"), &[whole.clone(), rubbish.clone()].concat());
            let (mut log, recovery) = open(&disk, small(), known);
            assert_eq!(contents(&log), all);
            assert_eq!(recovery.truncated_bytes, rubbish.len() as u64);
            assert_eq!((recovery.lost, &recovery.corrupt[..]), (None, &[][..]));
            check_lookups(&log);
            fill(&mut log, 1);
            assert_eq!(log.log_end_offset(), end.plus(2));
            overwrite(&disk, &path(base, "log"), &whole);
        }
    }
}

#[test]
fn bad_indexes_are_built_again() {
    for kind in ["index", "timeindex", "txnindex"] {
        for damage in 0..6 {
            let (disk, all, end) = closed_log();
            let (log, _) = open(&disk, small(), clean(end));
            let bases: Vec<i64> = log.segments().map(Offset::get).collect();
            let right: Vec<Vec<u8>> = bases.iter().map(|base| file(&disk, &path(*base, kind))).collect();
            drop(log);
            for (base, right) in bases.iter().zip(&right) {
                let at = path(*base, kind);
                let random: Vec<u8> = (0..right.len() as u32 + 24)
                    .map(|at| (at.wrapping_mul(2_654_435_761) >> 11) as u8)
                    .collect();
                match damage {
                    0 => disk.remove_file(&at).unwrap(),
                    1 => overwrite(&disk, &at, &[]),
                    2 => overwrite(&disk, &at, &right[..right.len() / 2]),
                    3 => overwrite(&disk, &at, &random),
                    4 => overwrite(&disk, &at, &random[..right.len()]),
                    _ => overwrite(&disk, &at, &[right.clone(), vec![0; 4096]].concat()),
                }
            }
            for known in [clean(end), unclean(end), unclean(Offset(0))] {
                let (mut log, recovery) = open(&disk, small(), known);
                assert_eq!((recovery.truncated_bytes, recovery.lost), (0, None));
                assert_eq!(contents(&log), all);
                check_lookups(&log);
                assert_eq!(log.max_timestamp().unwrap().unwrap().offset, end.plus(-1));
                assert!(log.aborted_transactions(Offset(0), end, 10).unwrap().is_empty());
                log.close(&[]).unwrap();
                for (base, right) in bases.iter().zip(&right) {
                    assert_eq!(&file(&disk, &path(*base, kind)), right, "{kind} of {base}, damage {damage}");
                }
            }
        }
    }
}

#[test]
fn what_is_served_after_a_start_survives_the_next_cut() {
    for seed in 0..20 {
        let disk = disk(seed);
        let mut log = fresh(&disk, small());
        fill(&mut log, 10);
        log.flush().unwrap();
        let point = log.log_end_offset();
        fill(&mut log, 10);
        drop(log);
        disk.crash();
        let (log, _) = open(&disk, small(), unclean(point));
        let served = contents(&log);
        assert!(log.log_end_offset() >= point);
        assert_eq!(log.flushed_end(), log.log_end_offset());
        drop(log);
        disk.crash_losing_all();
        let (log, _) = open(&disk, small(), unclean(point));
        assert_eq!(contents(&log), served);
    }
}

#[test]
fn only_what_follows_the_recovery_point_is_read() {
    let disk = disk(1);
    let mut log = fresh(&disk, small());
    fill(&mut log, 30);
    // As the owner does from time to time: the index entries that wait are written.
    log.flush().unwrap();
    let point = log.log_end_offset();
    fill(&mut log, 2);
    drop(log);
    disk.kill();
    let (log, recovery) = open(&disk, small(), unclean(point));
    let two: u64 = read_all(&log, point, 1).iter().map(|batch| batch.bytes.len() as u64).sum();
    assert_eq!(recovery.checked_bytes, two);
    drop(log);
    disk.kill();
    let (_, recovery) = open(&disk, small(), Known::default());
    assert!(recovery.checked_bytes > 10 * two);
}

#[test]
fn damage_below_the_recovery_point_is_reported_and_never_served() {
    let (disk, all, end) = closed_log();
    let (log, _) = open(&disk, small(), clean(end));
    let bases: Vec<Offset> = log.segments().collect();
    drop(log);
    // The second batch of the second segment.
    let victim = all.iter().position(|(base, _)| *base == bases[1].get()).unwrap() + 1;
    let from = Offset(all[victim].0);
    let at = all[victim - 1].1.len() as u64;
    disk.rot(&path(bases[1].get(), "log"), at + 70, 1).unwrap();
    // Nothing is known of what was on stable storage, so all is read.
    let (log, recovery) = open(&disk, small(), Known::default());
    assert_eq!(recovery.corrupt, [semel_model::OffsetRange { start: from, end: from.plus(2) }]);
    assert_eq!((recovery.truncated_bytes, recovery.dropped_segments), (0, 0));
    let before = log.read(bases[1], 10_000, end, true).unwrap();
    assert_eq!(before.next_offset, from, "what lies before the damage is served");
    assert!(matches!(log.read(from, 10_000, end, true), Err(ReadError::Corrupt { .. })));
    assert!(!log.read(bases[2], 10_000, end, true).unwrap().is_empty());
    assert_eq!(log.log_end_offset(), end);
    drop(log);
    // The next start, clean or not, still knows, without reading.
    for known in [clean(end), unclean(end)] {
        let (log, recovery) = open(&disk, small(), known);
        assert_eq!(recovery.corrupt.len(), 1);
        assert!(matches!(log.read(from, 10_000, end, true), Err(ReadError::Corrupt { .. })));
    }
    // Gone with the segment.
    let (mut log, _) = open(&disk, small(), clean(end));
    log.delete_before(bases[2], end).unwrap();
    assert!(log.corrupt_ranges().is_empty());
    assert!(
        !disk.read_dir(std::path::Path::new(DIR)).unwrap().iter().any(|e| e.name == "semel-corrupt-ranges")
    );
}

#[test]
fn damage_in_the_last_segment_is_not_taken_for_a_torn_tail() {
    let (disk, all, end) = closed_log();
    let (log, _) = open(&disk, small(), clean(end));
    let base = last_base(&log);
    drop(log);
    let first = all.iter().position(|(at, _)| *at == base).unwrap();
    let sizes: Vec<u64> = all[first..].iter().map(|(_, bytes)| bytes.len() as u64).collect();
    assert!(sizes.len() >= 3);
    disk.rot(&path(base, "log"), sizes[0] + 65, 0x40).unwrap();
    // Without its index the segment is read from its start.
    disk.remove_file(&path(base, "index")).unwrap();
    let known = Known { recovery_point: Some(end), log_start_offset: Offset(0), clean: true };
    let (mut log, recovery) = open(&disk, small(), known);
    let from = Offset(all[first + 1].0);
    assert_eq!(recovery.corrupt, [semel_model::OffsetRange { start: from, end: from.plus(2) }]);
    assert_eq!(read_all(&log, from.plus(2), 100).len(), sizes.len() - 2, "what stands behind it is served");
    assert_eq!(recovery.truncated_bytes, 0);
    assert_eq!(log.log_end_offset(), end);
    fill(&mut log, 2);
    assert!(matches!(log.read(from, 1000, end, true), Err(ReadError::Corrupt { .. })));
    assert_eq!(read_all(&log, end, 100).len(), 2);
    log.close(&[]).unwrap();
    let now_end = log.log_end_offset();
    drop(log);
    let (log, _) = open(&disk, small(), clean(now_end));
    assert_eq!(read_all(&log, end, 100).len(), 2);
    assert!(matches!(log.read(from, 1000, end, true), Err(ReadError::Corrupt { .. })));
}

#[test]
fn a_log_without_checkpoints_or_history_is_found_again() {
    let (disk, all, end) = closed_log();
    disk.remove_file(&std::path::Path::new(DIR).join("leader-epoch-checkpoint")).unwrap();
    let (log, _) = open(&disk, small(), Known::default());
    assert_eq!((contents(&log), log.log_end_offset()), (all, end));
    assert_eq!(log.latest_epoch(), LeaderEpoch(0));
}

#[test]
fn a_hole_between_segments_that_were_not_promised_ends_the_log() {
    let disk = disk(1);
    let mut log = fresh(&disk, small());
    fill(&mut log, 30);
    let bases: Vec<Offset> = log.segments().collect();
    let all = contents(&log);
    drop(log);
    disk.kill();
    // The last batch of the second segment never reached the disk, a later segment did.
    let victim = all.iter().position(|(base, _)| *base == bases[2].get()).unwrap() - 1;
    let at = path(bases[1].get(), "log");
    let size = disk.file_len(&at).unwrap();
    disk.open(&at, Open::Write).unwrap().set_len(size - all[victim].1.len() as u64).unwrap();
    let (mut log, recovery) = open(&disk, small(), unclean(Offset(0)));
    assert_eq!(recovery.dropped_segments, bases.len() - 2);
    assert_eq!(contents(&log), all[..victim]);
    fill(&mut log, 3);
    drop(log);
    disk.kill();
    let (log, _) = open(&disk, small(), unclean(Offset(0)));
    assert_eq!(contents(&log).len(), victim + 3);
}

#[test]
fn a_start_below_a_deleted_start_begins_there() {
    let (disk, _, end) = closed_log();
    let known = Known { recovery_point: Some(end), log_start_offset: Offset(100), clean: true };
    let (mut log, _) = open(&disk, small(), known);
    assert_eq!((log.log_start_offset(), log.log_end_offset()), (Offset(100), Offset(100)));
    fill(&mut log, 1);
    assert_eq!(read_all(&log, Offset(100), 1000).len(), 1);
}

#[test]
fn a_scrub_finds_what_no_start_reads() {
    let (disk, all, end) = closed_log();
    let (mut log, _) = open(&disk, small(), clean(end));
    let bases: Vec<Offset> = log.segments().collect();
    let scrub = log.scrub(bases[0]).unwrap().unwrap();
    assert_eq!(scrub.run(&mut || true).unwrap(), None);
    assert!(!log.scrubbed(&scrub, None));
    disk.rot(&path(0, "log"), all[0].1.len() as u64 + 63, 8).unwrap();
    let damaged = scrub.run(&mut || true).unwrap();
    assert_eq!(damaged, Some(semel_model::OffsetRange { start: Offset(2), end: Offset(4) }));
    assert!(log.scrubbed(&scrub, damaged));
    assert!(matches!(log.read(Offset(3), 100, end, true), Err(ReadError::Corrupt { .. })));
    assert_eq!(log.read(Offset(0), 1000, end, true).unwrap().next_offset, Offset(2));
    assert!(log.scrub(*bases.last().unwrap()).unwrap().is_none(), "the active segment is checked by a start");
}

#[test]
fn damage_that_a_read_finds_in_the_active_segment_closes_it() {
    let disk = disk(1);
    let mut log = fresh(&disk, Config { index_interval_bytes: 1 << 20, ..small() });
    fill(&mut log, 3);
    let size = log.size_in_bytes() / 3;
    // The magic of the second batch.
    disk.rot(&path(0, "log"), size + 16, 8).unwrap();
    assert!(matches!(
        log.read(Offset(2), 100, Offset(6), true),
        Err(ReadError::Corrupt { from: Offset(2), .. })
    ));
    fill(&mut log, 2);
    assert_eq!(log.segments().collect::<Vec<_>>(), [Offset(0), Offset(6)]);
    assert_eq!(read_all(&log, Offset(6), 100).len(), 2);
    assert_eq!(log.read(Offset(0), 1000, Offset(6), true).unwrap().next_offset, Offset(2));
}

#[test]
fn a_damaged_base_offset_leads_no_reader_past_the_end() {
    let (disk, all, end) = closed_log();
    let (log, _) = open(&disk, small(), clean(end));
    let base = last_base(&log);
    drop(log);
    let first = all.iter().position(|(at, _)| *at == base).unwrap();
    let from = Offset(all[first + 1].0);
    // The base offset stands outside the checksum: here it becomes larger by 2^40.
    disk.rot(&path(base, "log"), all[first].1.len() as u64 + 2, 1).unwrap();
    disk.remove_file(&path(base, "index")).unwrap();
    let (log, recovery) = open(&disk, small(), clean(end));
    assert_eq!(recovery.corrupt, [semel_model::OffsetRange { start: from, end: from.plus(2) }]);
    let before = log.read(Offset(base), 10_000, log.log_end_offset(), true).unwrap();
    assert_eq!(before.next_offset, from);
}

#[test]
fn rubbish_at_the_end_of_a_closed_segment_is_not_served() {
    let (disk, all, end) = closed_log();
    let whole = file(&disk, &path(0, "log"));
    overwrite(&disk, &path(0, "log"), &[whole, vec![2; 100]].concat());
    let (log, recovery) = open(&disk, small(), Known::default());
    assert_eq!((recovery.truncated_bytes, &recovery.corrupt[..]), (100, &[][..]));
    assert_eq!((contents(&log), log.log_end_offset()), (all, end));
}

#[test]
fn an_index_of_an_emptied_segment_is_built_again() {
    let (disk, all, end) = closed_log();
    assert!(!file(&disk, &path(0, "index")).is_empty());
    overwrite(&disk, &path(0, "log"), &[]);
    let (log, _) = open(&disk, small(), clean(end));
    let next = log.segments().nth(1).unwrap();
    assert_eq!(log.read(Offset(0), 1000, end, true).unwrap().start_offset, next);
    assert!(file(&disk, &path(0, "index")).is_empty());
    let left = all.iter().filter(|(base, _)| *base >= next.get()).count();
    assert_eq!(read_all(&log, next, 300).len(), left);
}

#[test]
fn an_index_leads_no_reader_behind_damage() {
    let (disk, all, end) = closed_log();
    let (log, _) = open(&disk, small(), clean(end));
    let bases: Vec<Offset> = log.segments().collect();
    drop(log);
    // A base offset that became larger, but not beyond the segment: the batches behind it seem to go back.
    let size = all[0].1.len() as u64;
    assert_eq!((all[0].0, all[1].0), (0, 2));
    disk.rot(&path(0, "log"), size + 7, 4).unwrap();
    let (log, recovery) = open(&disk, small(), Known::default());
    let from = Offset(8);
    assert_eq!(recovery.corrupt, [semel_model::OffsetRange { start: from, end: bases[1] }]);
    for max_bytes in [1, 300, 100_000] {
        let mut at = Offset(0);
        while at < from {
            let slice = log.read(at, max_bytes, end, true).unwrap();
            for batch in Batches::new(slice.read().unwrap()) {
                let header = batch.unwrap().header;
                assert_eq!(header.base_offset, if at == Offset(0) { at } else { Offset(6) });
                at = header.next_offset();
            }
            assert_eq!(slice.next_offset, at);
        }
    }
}

#[test]
fn a_segment_whose_batches_lie_below_its_name_hides_no_other_segment() {
    let (disk, all, end) = closed_log();
    let (log, _) = open(&disk, small(), clean(end));
    let bases: Vec<Offset> = log.segments().collect();
    drop(log);
    // The third segment holds what the first does, and then rubbish.
    overwrite(&disk, &path(bases[2].get(), "log"), &[file(&disk, &path(0, "log")), vec![2; 100]].concat());
    for known in [clean(end), Known::default()] {
        let (log, _) = open(&disk, small(), known);
        assert!(matches!(log.read(bases[2], 1000, end, true), Err(ReadError::Corrupt { .. })));
        assert!(
            log.corrupt_ranges().iter().all(|range| range.start == bases[2]),
            "{:?}",
            log.corrupt_ranges()
        );
        let healthy = all.iter().filter(|(base, _)| *base < bases[2].get()).count();
        let bound = bases[2];
        let mut found = 0;
        let mut at = Offset(0);
        while at < bound {
            let slice = log.read(at, 300, end, true).unwrap();
            found += Batches::new(slice.read().unwrap()).count();
            at = slice.next_offset;
        }
        assert_eq!(found, healthy);
    }
}
