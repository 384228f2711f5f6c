use semel_model::{CoordinatorEpoch, Offset, ProducerEpoch, ProducerId, Sequence, Timestamp};
use semel_record::{Codec, Compression, EndTransactionMarker, Outcome, control::end_txn_marker};

use super::*;
use crate::AbortedTransaction;

#[test]
fn times_are_found_also_out_of_order_and_inside_batches() {
    let disk = disk(1);
    let mut log = fresh(&disk, small());
    let times = [100, 50, 300, 200, 250, 900, 10, 400, 1000, 1001];
    let mut records = Vec::new();
    for time in times {
        for _ in 0..3 {
            let at = log.log_end_offset().get();
            append(&mut log, &batch(time, 3, 20)).unwrap();
            records.extend((0..3).map(|delta| (at + delta, time + delta)));
        }
    }
    assert!(log.segment_count() > 4);
    let check = |log: &PartitionLog<SimDisk>, start: i64| {
        for target in (0..1100).step_by(7).chain(times) {
            let expected = records.iter().find(|(offset, time)| *offset >= start && *time >= target);
            let found = log.offset_for_timestamp(Timestamp(target)).unwrap();
            assert_eq!(found.map(|at| (at.offset.get(), at.timestamp.get())), expected.copied(), "{target}");
        }
        let largest = records.iter().filter(|(at, _)| *at >= start).map(|(_, time)| *time).max().unwrap();
        let expected = records.iter().find(|(_, time)| *time == largest).unwrap();
        let found = log.max_timestamp().unwrap().unwrap();
        assert_eq!((found.offset.get(), found.timestamp.get()), *expected);
    };
    check(&log, 0);
    log.delete_before(Offset(31), log.log_end_offset()).unwrap();
    check(&log, 31);
    let end = log.log_end_offset();
    log.close(&[]).unwrap();
    let (log, _) = open(&disk, small(), Known { log_start_offset: Offset(31), ..clean(end) });
    check(&log, 31);
}

#[test]
fn times_are_found_in_compressed_batches() {
    let disk = disk(1);
    let mut log = fresh(&disk, small());
    for codec in [Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd] {
        let mut builder = BatchBuilder::new().compression(Compression::of(codec));
        let base = log.log_end_offset().get();
        for at in 0..5 {
            builder.push(Timestamp(base + at), None, Some(&[7; 50]), &[]);
        }
        append(&mut log, &builder.build().unwrap()).unwrap();
    }
    for at in 0..20 {
        assert_eq!(log.offset_for_timestamp(Timestamp(at)).unwrap().unwrap().offset, Offset(at));
    }
    assert_eq!(log.offset_for_timestamp(Timestamp(20)).unwrap(), None);
}

#[test]
fn an_empty_log_has_no_times() {
    let disk = disk(1);
    let log = fresh(&disk, small());
    assert_eq!(log.max_timestamp().unwrap(), None);
    assert_eq!(log.offset_for_timestamp(Timestamp(0)).unwrap(), None);
}

fn transactional(producer: i64) -> Batch {
    let mut builder =
        BatchBuilder::new().producer(ProducerId(producer), ProducerEpoch(0), Sequence(0)).transactional();
    builder.push(NOW, Some(b"k"), Some(&[1; 30]), &[]);
    builder.build().unwrap()
}

fn marker(producer: i64, outcome: Outcome) -> Batch {
    let marker = EndTransactionMarker { outcome, coordinator_epoch: CoordinatorEpoch(0) };
    end_txn_marker(marker, ProducerId(producer), ProducerEpoch(0), NOW)
}

/// Transactions of two producers over several segments, half of them aborted.
fn transactions(log: &mut PartitionLog<SimDisk>) -> Vec<AbortedTransaction> {
    let mut aborted = Vec::new();
    let mut open: Vec<(i64, Offset)> = Vec::new();
    let put = |log: &mut PartitionLog<SimDisk>, batch: &Batch, open: &[(i64, Offset)]| {
        let at = log.log_end_offset();
        let producers = || open.iter().map(|(producer, first)| in_transaction(*producer, *first)).collect();
        log.append(batch, at, LeaderEpoch(0), NOW, &producers).unwrap();
        at
    };
    for round in 0..12 {
        for producer in [1, 2] {
            let first = put(log, &transactional(producer), &open);
            open.push((producer, first));
        }
        let outcome = if round % 2 == 0 { Outcome::Abort } else { Outcome::Commit };
        while let Some((producer, first_offset)) = open.last().copied() {
            let last_offset = put(log, &marker(producer, outcome), &open);
            open.pop();
            if outcome == Outcome::Abort {
                let last_stable_offset = open.first().map_or(last_offset.next(), |(_, first)| *first);
                let producer_id = ProducerId(producer);
                let entry = AbortedTransaction { producer_id, first_offset, last_offset, last_stable_offset };
                log.append_aborted(&entry).unwrap();
                aborted.push(entry);
            }
        }
    }
    aborted
}

fn in_transaction(producer: i64, first: Offset) -> ProducerSnapshotEntry {
    ProducerSnapshotEntry {
        producer_id: ProducerId(producer),
        producer_epoch: ProducerEpoch(0),
        last_sequence: Sequence(0),
        last_offset: first,
        offset_delta: 0,
        timestamp: NOW,
        coordinator_epoch: CoordinatorEpoch(-1),
        current_txn_first_offset: Some(first),
    }
}

#[test]
fn aborted_transactions_are_found_by_range() {
    let disk = disk(1);
    let mut log = fresh(&disk, small());
    let aborted = transactions(&mut log);
    let end = log.log_end_offset();
    assert!(log.segment_count() > 2);
    for start in 0..end.get() {
        for until in start + 1..=end.get() {
            let found = log.aborted_transactions(Offset(start), Offset(until), 100).unwrap();
            for entry in &aborted {
                let overlaps = entry.last_offset >= Offset(start) && entry.first_offset < Offset(until);
                assert!(!overlaps || found.contains(entry), "{start}..{until} misses {entry:?}");
            }
            assert!(found.iter().all(|entry| aborted.contains(entry)));
        }
    }
    assert!(log.aborted_transactions(Offset(0), end, 1).is_err(), "a reader is never told only some");
}

#[test]
fn aborted_transactions_are_found_again_after_a_crash_and_without_their_index() {
    for seed in 0..10 {
        let disk = disk(seed);
        let mut log = fresh(&disk, small());
        let aborted = transactions(&mut log);
        let end = log.log_end_offset();
        if seed % 2 == 0 {
            log.flush().unwrap();
            disk.crash();
        } else {
            disk.kill();
        }
        drop(log);
        let (log, _) = open(&disk, small(), unclean(Offset(0)));
        assert_eq!(log.aborted_transactions(Offset(0), end, 100).unwrap(), aborted);
        let bases: Vec<i64> = log.segments().map(Offset::get).collect();
        drop(log);
        for base in bases {
            disk.remove_file(&path(base, "txnindex")).unwrap();
        }
        let (mut log, _) = open(&disk, small(), clean(end));
        assert_eq!(log.aborted_transactions(Offset(0), end, 100).unwrap(), aborted);
        let cut = log.segments().nth(1).unwrap().plus(3);
        log.truncate_to(cut, NOW).unwrap();
        let found = log.aborted_transactions(Offset(0), end, 100).unwrap();
        assert!(found.iter().all(|entry| entry.last_offset < cut));
    }
}

/// The segment that holds an offset.
fn segment_of(bases: &[i64], offset: Offset) -> i64 {
    bases[bases.partition_point(|base| *base <= offset.get()) - 1]
}

fn remove_all(disk: &SimDisk, kind: &str, keep: Option<i64>) {
    let keep = keep.map(|base| format!("{base:020}.{kind}"));
    for entry in disk.read_dir(std::path::Path::new(DIR)).unwrap() {
        if entry.name.ends_with(kind) && Some(&entry.name) != keep.as_ref() {
            disk.remove_file(&std::path::Path::new(DIR).join(&entry.name)).unwrap();
        }
    }
}

#[test]
fn a_transaction_of_an_earlier_segment_is_found_without_the_snapshot_between() {
    let disk = disk(1);
    let mut log = fresh(&disk, small());
    let aborted = transactions(&mut log);
    let end = log.log_end_offset();
    let bases: Vec<i64> = log.segments().map(Offset::get).collect();
    let over = |entry: &&AbortedTransaction| {
        segment_of(&bases, entry.first_offset) != segment_of(&bases, entry.last_offset)
    };
    assert!(aborted.iter().filter(over).count() > 1);
    log.flush().unwrap();
    drop(log);
    disk.kill();
    for keep in [Some(bases[1]), None] {
        remove_all(&disk, "snapshot", keep);
        for known in [unclean(Offset(0)), unclean(Offset(bases[bases.len() - 1])), clean(end)] {
            remove_all(&disk, "txnindex", None);
            let (log, _) = open(&disk, small(), known);
            assert_eq!(log.aborted_transactions(Offset(0), end, 100).unwrap(), aborted, "{keep:?} {known:?}");
        }
    }
}

#[test]
fn what_can_not_be_found_again_is_kept_if_its_marker_is_there() {
    let disk = disk(1);
    let mut log = fresh(&disk, small());
    let aborted = transactions(&mut log);
    let end = log.log_end_offset();
    let bases: Vec<i64> = log.segments().map(Offset::get).collect();
    let cut = aborted
        .iter()
        .rev()
        .find(|entry| segment_of(&bases, entry.first_offset) != segment_of(&bases, entry.last_offset))
        .map(|entry| Offset(segment_of(&bases, entry.last_offset)))
        .unwrap();
    log.delete_before(cut, end).unwrap();
    log.enforce_retention(NOW, end, &no_producers).unwrap();
    log.remove_due(NOW).unwrap();
    assert_eq!(log.segments().next(), Some(cut));
    log.flush().unwrap();
    drop(log);
    disk.kill();
    remove_all(&disk, "snapshot", None);
    let expected: Vec<_> = aborted.iter().filter(|entry| entry.last_offset >= cut).copied().collect();
    assert!(expected.iter().any(|entry| entry.first_offset < cut));
    for known in [unclean(cut), unclean(end), Known::default()] {
        let (log, _) = open(&disk, small(), Known { log_start_offset: cut, ..known });
        assert_eq!(log.aborted_transactions(cut, end, 100).unwrap(), expected, "{known:?}");
    }
}

#[test]
fn a_transaction_from_before_damage_at_the_end_is_aborted_behind_it() {
    for clean_stop in [true, false] {
        let disk = disk(1);
        let mut log = fresh(&disk, small());
        transactions(&mut log);
        let first = log.log_end_offset();
        let open_now = [in_transaction(1, first)];
        log.append(&transactional(1), first, LeaderEpoch(0), NOW, &no_producers).unwrap();
        log.roll(NOW, &|| open_now.to_vec()).unwrap();
        fill(&mut log, 1);
        if clean_stop {
            log.close(&open_now).unwrap()
        } else {
            log.flush().unwrap()
        }
        let (end, base) = (log.log_end_offset(), log.segments().last().unwrap());
        drop(log);
        disk.kill();
        disk.rot(&path(base.get(), "log"), 16, 8).unwrap();
        let known = if clean_stop { clean(end) } else { unclean(end) };
        let (mut log, recovery) = open(&disk, small(), known);
        assert_eq!(recovery.corrupt, [semel_model::OffsetRange { start: base, end }]);
        assert_eq!(log.segments().last(), Some(end));
        log.append(&marker(1, Outcome::Abort), end, LeaderEpoch(0), NOW, &no_producers).unwrap();
        let entry = AbortedTransaction {
            producer_id: ProducerId(1),
            first_offset: first,
            last_offset: end,
            last_stable_offset: end.next(),
        };
        log.append_aborted(&entry).unwrap();
        log.flush().unwrap();
        drop(log);
        disk.kill();
        for known in [unclean(Offset(0)), unclean(end), unclean(end.next()), Known::default()] {
            let (log, _) = open(&disk, small(), known);
            let found = log.aborted_transactions(first, end.next(), 100).unwrap();
            assert_eq!(found, [entry], "{clean_stop} {known:?}");
        }
    }
}

#[test]
fn producers_are_the_snapshot_and_what_follows() {
    let disk = disk(1);
    let mut log = fresh(&disk, small());
    transactions(&mut log);
    let at = log.producers();
    assert_eq!(at.offset, log.segments().last().unwrap());
    let mut seen = Vec::new();
    log.replay(at.offset, &mut |header, control| seen.push((header.base_offset, control.is_some()))).unwrap();
    let expected: Vec<_> = read_all(&log, at.offset, 1)
        .iter()
        .map(|batch| (batch.header.base_offset, batch.header.attributes.is_control()))
        .collect();
    assert_eq!(seen, expected);
    let mut count = 0;
    log.replay(Offset(0), &mut |_, _| count += 1).unwrap();
    assert_eq!(count, contents(&log).len());
    log.close(&[]).unwrap();
    assert_eq!(log.producers().offset, log.log_end_offset());
}
