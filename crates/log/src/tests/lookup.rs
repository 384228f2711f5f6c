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
