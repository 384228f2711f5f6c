//! Compaction against a map.

use std::collections::BTreeMap;

use proptest::prelude::*;
use semel_env::{Disk, sim::SimDisk};
use semel_model::{CoordinatorEpoch, Millis, Offset, ProducerEpoch, ProducerId, Sequence, Timestamp};
use semel_record::{
    Codec, Compression, DecodeLimits, EndTransactionMarker, Outcome, ProducerSnapshotEntry,
    control::end_txn_marker,
};

use super::*;
use crate::{AbortedTransaction, CleanError, CleanRequest, CleanupPolicy};

fn config() -> Config {
    Config {
        cleanup_policy: CleanupPolicy { delete: false, compact: true },
        min_cleanable_dirty_ratio: 0.0,
        delete_retention_ms: Millis(1000),
        ..small()
    }
}

fn request(log: &PartitionLog<SimDisk>, now: Timestamp) -> CleanRequest {
    CleanRequest {
        now,
        last_stable_offset: log.log_end_offset(),
        producers: Vec::new(),
        map_bytes_max: 1 << 20,
        hash_seed: [1, 2],
        force: false,
    }
}

fn clean(log: &mut PartitionLog<SimDisk>, request: CleanRequest) -> bool {
    match log.plan_cleaning(request).unwrap() {
        Some(plan) => {
            let cleaned = plan.run(&mut || true).unwrap();
            log.install_cleaned(cleaned).unwrap();
            true
        }
        None => false,
    }
}

fn keyed(records: &[(&str, Option<&str>)], codec: Codec) -> Batch {
    let mut builder = BatchBuilder::new().compression(Compression::of(codec));
    for (key, value) in records {
        builder.push(NOW, Some(key.as_bytes()), value.map(str::as_bytes), &[]);
    }
    builder.build().unwrap()
}

/// All records: offset, key, value.
fn records(log: &PartitionLog<SimDisk>) -> Vec<(i64, String, Option<String>)> {
    let text = |bytes: Option<Bytes>| bytes.map(|bytes| String::from_utf8(bytes.to_vec()).unwrap());
    let mut found = Vec::new();
    for batch in read_all(log, log.log_start_offset(), 500) {
        if batch.header.attributes.is_control() {
            continue;
        }
        for record in batch.records(&DecodeLimits::default()).unwrap() {
            let record = record.unwrap();
            let offset = batch.header.base_offset.get() + i64::from(record.offset_delta);
            found.push((offset, text(record.key).unwrap_or_default(), text(record.value)));
        }
    }
    assert!(found.is_sorted_by(|a, b| a.0 < b.0));
    found
}

fn latest(records: &[(i64, String, Option<String>)]) -> BTreeMap<String, (i64, Option<String>)> {
    records.iter().map(|(offset, key, value)| (key.clone(), (*offset, value.clone()))).collect()
}

fn fill_keys(log: &mut PartitionLog<SimDisk>, count: usize, keys: usize) {
    for at in 0..count {
        let (one, two) = (format!("k{}", at % keys), format!("k{}", (at * 7 + 3) % keys));
        let value = format!("value-{at}");
        let codec = [Codec::None, Codec::Lz4, Codec::None, Codec::Zstd][at % 4];
        append(log, &keyed(&[(&one, Some(&value)), (&two, Some(&value))], codec)).unwrap();
    }
}

#[test]
fn of_each_key_the_last_value_stays() {
    let disk = disk(1);
    let mut log = fresh(&disk, config());
    fill_keys(&mut log, 100, 10);
    log.flush().unwrap();
    let before = records(&log);
    let (segments, size) = (log.segment_count(), log.size_in_bytes());
    let request = request(&log, NOW);
    assert!(log.dirty_ratio(&request).unwrap() > 0.9);
    assert!(clean(&mut log, request.clone()));
    let after = records(&log);
    assert_eq!(latest(&after), latest(&before));
    assert!(log.size_in_bytes() < size / 2);
    let below: Vec<_> = after.iter().filter(|(offset, ..)| Offset(*offset) < log.cleaned_to()).collect();
    assert!(below.iter().all(|(offset, key, _)| latest(&after)[key].0 >= *offset));
    // Again: nothing is dirty.
    assert!(!clean(&mut log, request.clone()));
    // With the next run what has become small is put together.
    fill_keys(&mut log, 20, 10);
    log.flush().unwrap();
    let before = latest(&records(&log));
    let last_stable_offset = log.log_end_offset();
    assert!(clean(&mut log, CleanRequest { last_stable_offset, ..request }));
    let after = records(&log);
    assert_eq!(latest(&after), before);
    assert!(log.segment_count() < segments);
    // A start finds it as it is, indexes and all.
    let end = log.log_end_offset();
    log.close(&[]).unwrap();
    let (log, recovery) = open(&disk, config(), super::clean(end));
    assert_eq!((recovery.rebuilt_indexes, recovery.truncated_bytes), (0, 0));
    assert_eq!(records(&log), after);
    let (log, recovery) = open(&disk, config(), unclean(Offset(0)));
    assert_eq!((recovery.dropped_segments, recovery.truncated_bytes), (0, 0), "a gap is no tear");
    assert_eq!(records(&log), after);
}

#[test]
fn null_and_empty_are_two_things_and_null_keys_go() {
    let disk = disk(1);
    let mut log = fresh(&disk, Config { delete_retention_ms: Millis(0), ..config() });
    append(&mut log, &keyed(&[("k", Some("1")), ("j", Some("1"))], Codec::None)).unwrap();
    append(&mut log, &keyed(&[("k", None), ("j", Some(""))], Codec::None)).unwrap();
    let mut no_key = BatchBuilder::new();
    no_key.push(NOW, None, Some(b"v"), &[]);
    append(&mut log, &no_key.build().unwrap()).unwrap();
    log.roll(NOW, &no_producers).unwrap();
    append(&mut log, &keyed(&[("x", Some("1"))], Codec::None)).unwrap();
    log.flush().unwrap();
    let asked = request(&log, NOW);
    assert!(clean(&mut log, asked));
    // The tombstone stays until its horizon, which is now; the next run that has anything to do drops it.
    log.roll(NOW, &no_producers).unwrap();
    append(&mut log, &keyed(&[("y", Some("1"))], Codec::None)).unwrap();
    log.flush().unwrap();
    let asked = request(&log, NOW);
    assert!(clean(&mut log, asked));
    let found: Vec<_> = records(&log).into_iter().map(|(_, key, value)| (key, value)).collect();
    let expected =
        [("j", ""), ("x", "1"), ("y", "1")].map(|(key, value)| (key.to_owned(), Some(value.to_owned())));
    assert_eq!(found, expected);
}

#[test]
fn tombstones_stay_for_their_time() {
    let disk = disk(1);
    let mut log = fresh(&disk, config());
    append(&mut log, &keyed(&[("gone", Some("1")), ("kept", Some("1"))], Codec::None)).unwrap();
    append(&mut log, &keyed(&[("gone", None)], Codec::None)).unwrap();
    let round = |log: &mut PartitionLog<SimDisk>, now: Timestamp| {
        log.roll(now, &no_producers).unwrap();
        append(log, &keyed(&[("other", Some("1"))], Codec::None)).unwrap();
        log.roll(now, &no_producers).unwrap();
        append(log, &keyed(&[("last", Some("1"))], Codec::None)).unwrap();
        log.flush().unwrap();
        let asked = request(log, now);
        assert!(clean(log, asked));
        records(log).iter().any(|(_, key, _)| key == "gone")
    };
    assert!(round(&mut log, NOW), "the horizon is set by the first run");
    let horizon = read_all(&log, Offset(0), 500).iter().find_map(|batch| batch.header.delete_horizon());
    assert_eq!(horizon, Some(NOW.plus(Millis(1000))));
    assert!(round(&mut log, NOW.plus(Millis(999))));
    assert!(!round(&mut log, NOW.plus(Millis(1000))));
}

#[test]
fn what_may_not_be_touched_is_not() {
    let disk = disk(1);
    let mut log = fresh(&disk, config());
    fill_keys(&mut log, 60, 3);
    let asked = request(&log, NOW);
    assert!(log.plan_cleaning(asked.clone()).unwrap().is_none(), "not flushed");
    log.flush().unwrap();
    let bound = Offset(30);
    assert!(clean(&mut log, CleanRequest { last_stable_offset: bound, ..asked.clone() }));
    assert!(log.cleaned_to() <= bound && log.cleaned_to() > Offset(0));
    log.set_config(Config { min_cleanable_dirty_ratio: 0.99, ..config() });
    assert!(!clean(&mut log, asked.clone()), "it does not pay");
    log.set_config(Config {
        min_cleanable_dirty_ratio: 0.99,
        max_compaction_lag_ms: Millis(10),
        min_compaction_lag_ms: Millis(5),
        ..config()
    });
    assert!(!clean(&mut log, CleanRequest { now: NOW.plus(Millis(4)), ..asked.clone() }), "too young");
    assert!(!clean(&mut log, CleanRequest { now: NOW.plus(Millis(10)), ..asked.clone() }));
    assert!(clean(&mut log, CleanRequest { now: NOW.plus(Millis(11)), ..asked.clone() }), "overdue");
    assert_eq!(log.cleaned_to(), log.segments().last().unwrap(), "all but the active segment");
    log.set_config(small());
    fill_keys(&mut log, 30, 3);
    log.flush().unwrap();
    let last_stable_offset = log.log_end_offset();
    assert!(!clean(&mut log, CleanRequest { last_stable_offset, ..asked }), "delete only");
}

#[test]
fn a_small_map_cleans_in_several_runs() {
    let disk = disk(1);
    let mut log = fresh(&disk, config());
    fill_keys(&mut log, 200, 50);
    log.flush().unwrap();
    let before = latest(&records(&log));
    let mut runs = 0;
    while runs < 100 {
        let asked = CleanRequest { map_bytes_max: 24 * 32, ..request(&log, NOW) };
        if !clean(&mut log, asked) {
            break;
        }
        runs += 1;
        assert_eq!(latest(&records(&log)), before);
    }
    assert!((2..100).contains(&runs));
    let many: Vec<String> = (0..20).map(|at| format!("m{at}")).collect();
    let many: Vec<_> = many.iter().map(|key| (key.as_str(), Some("1"))).collect();
    append(&mut log, &keyed(&many, Codec::None)).unwrap();
    log.roll(NOW, &no_producers).unwrap();
    append(&mut log, &keyed(&[("x", None)], Codec::None)).unwrap();
    log.flush().unwrap();
    let asked = CleanRequest { map_bytes_max: 24 * 8, ..request(&log, NOW) };
    for _ in 0..100 {
        let plan = log.plan_cleaning(asked.clone()).unwrap().unwrap();
        match plan.run(&mut || true) {
            Err(CleanError::MapTooSmall { .. }) => return,
            cleaned => log.install_cleaned(cleaned.unwrap()).map(|_| ()).unwrap(),
        }
    }
    panic!("a batch of twenty keys fitted a map of six");
}

#[test]
fn it_stops_when_told_and_leaves_no_trace() {
    let disk = disk(1);
    let mut log = fresh(&disk, config());
    fill_keys(&mut log, 60, 3);
    log.flush().unwrap();
    let before = contents(&log);
    let plan = log.plan_cleaning(request(&log, NOW)).unwrap().unwrap();
    let mut left = 70;
    let stopped = plan.run(&mut || {
        left -= 1;
        left > 0
    });
    assert!(matches!(stopped, Err(CleanError::Stopped)));
    assert_eq!(contents(&log), before);
    let end = log.log_end_offset();
    log.close(&[]).unwrap();
    let (log, _) = open(&disk, config(), super::clean(end));
    assert_eq!(contents(&log), before);
    assert!(disk.read_dir(std::path::Path::new(DIR)).unwrap().iter().all(|e| !e.name.ends_with(".cleaned")));
}

#[test]
fn deletion_and_truncation_meanwhile_win() {
    let start = || {
        let disk = disk(1);
        let mut log = fresh(&disk, config());
        fill_keys(&mut log, 60, 3);
        log.flush().unwrap();
        let cleaned = log.plan_cleaning(request(&log, NOW)).unwrap().unwrap().run(&mut || true).unwrap();
        (disk, log, cleaned)
    };
    let (_disk, mut log, cleaned) = start();
    let end = log.log_end_offset();
    log.delete_before(Offset(40), end).unwrap();
    log.enforce_retention(NOW, end, &no_producers).unwrap();
    let before = latest(&records(&log));
    log.install_cleaned(cleaned).unwrap();
    assert_eq!(latest(&records(&log)), before);
    assert!(log.segments().next().unwrap() > Offset(0));

    let (_disk, mut log, cleaned) = start();
    log.truncate_to(Offset(50), NOW).unwrap();
    let before = contents(&log);
    log.install_cleaned(cleaned).unwrap();
    assert_eq!(contents(&log), before);
    assert_eq!(log.cleaned_to(), Offset(0));
}

#[test]
fn a_crash_at_any_step_leaves_all_of_the_old_or_all_of_the_new() {
    let run = |seed: u64, halt: Option<u64>| {
        let disk = disk(seed);
        let mut log = fresh(&disk, config());
        fill_keys(&mut log, 60, 5);
        log.flush().unwrap();
        let old = contents(&log);
        let begin = disk.operations();
        if let Some(halt) = halt {
            disk.halt_after(halt);
        }
        let plan = log.plan_cleaning(request(&log, NOW)).unwrap().unwrap();
        let done = plan
            .run(&mut || true)
            .map_err(|_| ())
            .and_then(|cleaned| log.install_cleaned(cleaned).map(|_| ()).map_err(|_| ()));
        let operations = disk.operations() - begin;
        let new = done.is_ok().then(|| contents(&log));
        (disk, old, new, operations, log.flushed_end())
    };
    let (_, old, new, operations, _) = run(0, None);
    let new = new.unwrap();
    assert!(new.len() < old.len());
    let (mut found_old, mut found_new) = (0, 0);
    for halt in 0..=operations {
        for seed in 0..4 {
            let (disk, before, after, _, point) = run(seed, Some(halt));
            assert_eq!(before, old);
            disk.crash();
            let (log, recovery) = open(&disk, config(), unclean(point));
            assert_eq!((recovery.truncated_bytes, recovery.lost), (0, None));
            let found = contents(&log);
            assert!(found == old || found == new, "halted after {halt}, seed {seed}");
            assert!(after.is_none() || found == new, "an installed compaction was taken back");
            found_old += u32::from(found == old);
            found_new += u32::from(found == new);
            let left = disk.read_dir(std::path::Path::new(DIR)).unwrap();
            assert!(left.iter().all(|e| !e.name.ends_with(".cleaned") && !e.name.contains("swap")));
        }
    }
    assert!(found_old > 0 && found_new > 0);
}

fn transactional(producer: i64, sequence: i32, key: &str) -> Batch {
    let mut builder = BatchBuilder::new()
        .producer(ProducerId(producer), ProducerEpoch(0), Sequence(sequence))
        .transactional();
    builder.push(NOW, Some(key.as_bytes()), Some(b"v"), &[]);
    builder.build().unwrap()
}

fn marker(producer: i64, outcome: Outcome) -> Batch {
    let marker = EndTransactionMarker { outcome, coordinator_epoch: CoordinatorEpoch(0) };
    end_txn_marker(marker, ProducerId(producer), ProducerEpoch(0), NOW)
}

#[test]
fn aborted_records_go_and_markers_follow_later() {
    let disk = disk(1);
    let mut log = fresh(&disk, config());
    append(&mut log, &keyed(&[("k", Some("committed"))], Codec::None)).unwrap();
    append(&mut log, &transactional(7, 0, "k")).unwrap();
    append(&mut log, &transactional(8, 0, "c")).unwrap();
    append(&mut log, &marker(7, Outcome::Abort)).unwrap();
    let entry = AbortedTransaction {
        producer_id: ProducerId(7),
        first_offset: Offset(1),
        last_offset: Offset(3),
        last_stable_offset: Offset(2),
    };
    log.append_aborted(&entry).unwrap();
    append(&mut log, &marker(8, Outcome::Commit)).unwrap();
    append(&mut log, &keyed(&[("c", Some("newer"))], Codec::None)).unwrap();
    let round = |log: &mut PartitionLog<SimDisk>, now: Timestamp| {
        log.roll(now, &no_producers).unwrap();
        append(log, &keyed(&[("other", Some("1"))], Codec::None)).unwrap();
        log.roll(now, &no_producers).unwrap();
        append(log, &keyed(&[("last", Some("1"))], Codec::None)).unwrap();
        log.flush().unwrap();
        let asked = request(log, now);
        assert!(clean(log, asked));
        let markers: Vec<i64> = read_all(log, Offset(0), 500)
            .iter()
            .filter(|batch| batch.header.attributes.is_control())
            .map(|batch| batch.header.base_offset.get())
            .collect();
        let values: BTreeMap<_, _> = records(log).into_iter().map(|(_, key, value)| (key, value)).collect();
        assert_eq!(values["k"].as_deref(), Some("committed"), "an aborted record never supersedes");
        assert_eq!(values["c"].as_deref(), Some("newer"));
        markers
    };
    assert_eq!(round(&mut log, NOW), [3, 4], "the records were still there");
    assert_eq!(log.aborted_transactions(Offset(0), log.log_end_offset(), 9).unwrap(), [entry]);
    assert_eq!(round(&mut log, NOW.plus(Millis(1))), [3, 4], "now the horizon is set");
    assert!(log.aborted_transactions(Offset(0), log.log_end_offset(), 9).unwrap().is_empty());
    assert_eq!(round(&mut log, NOW.plus(Millis(1000))), [3, 4]);
    assert_eq!(round(&mut log, NOW.plus(Millis(1001))), [0_i64; 0]);
}

#[test]
fn the_last_batch_of_a_living_producer_stays_as_an_empty_one() {
    let disk = disk(1);
    let mut log = fresh(&disk, config());
    for sequence in 0..3 {
        let mut builder = BatchBuilder::new().producer(ProducerId(5), ProducerEpoch(2), Sequence(sequence));
        builder.push(NOW, Some(b"k"), Some(b"v"), &[]);
        append(&mut log, &builder.build().unwrap()).unwrap();
    }
    append(&mut log, &keyed(&[("k", Some("newest"))], Codec::None)).unwrap();
    log.roll(NOW, &no_producers).unwrap();
    append(&mut log, &keyed(&[("z", Some("1"))], Codec::None)).unwrap();
    log.flush().unwrap();
    let producer = ProducerSnapshotEntry {
        producer_id: ProducerId(5),
        producer_epoch: ProducerEpoch(2),
        last_sequence: Sequence(2),
        last_offset: Offset(2),
        offset_delta: 0,
        timestamp: NOW,
        coordinator_epoch: CoordinatorEpoch(-1),
        current_txn_first_offset: None,
    };
    let asked = CleanRequest { producers: vec![producer], ..request(&log, NOW) };
    assert!(clean(&mut log, asked));
    let left = read_all(&log, Offset(0), 500);
    let of_producer: Vec<_> = left.iter().filter(|batch| batch.header.producer_id == ProducerId(5)).collect();
    assert_eq!(of_producer.len(), 1);
    let header = of_producer[0].header;
    assert_eq!(
        (header.record_count, header.last_sequence(), header.base_offset),
        (0, Sequence(2), Offset(2))
    );
    // Indexes say nothing about a batch without records.
    assert_eq!(log.max_timestamp().unwrap().unwrap().offset, Offset(3));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn compaction_never_changes_what_a_key_is(
        seed: u64,
        rounds in prop::collection::vec(
            (prop::collection::vec((0..12_u8, prop::option::of(0..40_usize), 0..5_usize), 1..40), 0..3_i64, 4..200_usize),
            1..6,
        ),
    ) {
        let disk = disk(seed);
        let mut log = fresh(&disk, config());
        let mut model: BTreeMap<String, Option<String>> = BTreeMap::new();
        let mut now = NOW;
        for (writes, later, slots) in rounds {
            for (key, value, codec) in writes {
                let (key, value) = (format!("key{key}"), value.map(|size| "v".repeat(size)));
                let codec = [Codec::None, Codec::Gzip, Codec::Snappy, Codec::Lz4, Codec::Zstd][codec];
                append(&mut log, &keyed(&[(&key, value.as_deref())], codec)).unwrap();
                model.insert(key, value);
            }
            log.flush().unwrap();
            now = now.plus(Millis(later * 600));
            let asked = CleanRequest { map_bytes_max: 24 * slots, ..request(&log, now) };
            for _ in 0..40 {
                if !clean(&mut log, asked.clone()) {
                    break;
                }
            }
            let found = records(&log);
            let last = latest(&found);
            for (key, value) in &model {
                match (last.get(key), value) {
                    (Some((_, found)), expected) => prop_assert_eq!(found, expected),
                    (None, expected) => prop_assert!(expected.is_none(), "{} is gone", key),
                }
            }
            // Below the cleaned point each key stands once.
            let mut seen = std::collections::BTreeSet::new();
            for (offset, key, _) in found {
                prop_assert!(Offset(offset) >= log.cleaned_to() || seen.insert(key));
            }
            let point = log.flushed_end();
            let cleaned_to = log.cleaned_to();
            disk.crash();
            log = open(&disk, config(), unclean(point)).0;
            log.set_cleaned_to(cleaned_to);
        }
    }
}
