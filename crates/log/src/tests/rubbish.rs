//! Whatever stands in the files, nothing panics, and what is served is whole batches.

use std::path::Path;

use proptest::prelude::*;
use semel_env::{Disk, DiskFile, Open, sim::SimDisk};
use semel_model::{Millis, Offset, Timestamp};

use super::*;
use crate::{CleanRequest, CleanupPolicy};

#[derive(Clone, Debug)]
enum Change {
    Flip { at: u64, mask: u8 },
    Cut { at: u64 },
    Fill { at: u64, bytes: Vec<u8> },
    Remove,
    Rename { to: String },
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => (any::<u64>(), 1..=255_u8).prop_map(|(at, mask)| Change::Flip { at, mask }),
        2 => any::<u64>().prop_map(|at| Change::Cut { at }),
        2 => (any::<u64>(), prop::collection::vec(any::<u8>(), 1..100)).prop_map(|(at, bytes)| Change::Fill { at, bytes }),
        1 => Just(Change::Remove),
        1 => prop_oneof![
            Just("00000000000000000003.log".to_owned()),
            Just("semel-compaction-swap".to_owned()),
            Just("leader-epoch-checkpoint".to_owned()),
            Just("99999999999999999999.index".to_owned()),
        ].prop_map(|to| Change::Rename { to }),
    ]
}

fn damage(disk: &SimDisk, which: usize, change: &Change) {
    let names = disk.read_dir(Path::new(DIR)).unwrap();
    let path = Path::new(DIR).join(&names[which % names.len()].name);
    let len = disk.file_len(&path).unwrap();
    match change {
        Change::Flip { at, mask } if len > 0 => disk.rot(&path, at % len, *mask).unwrap(),
        Change::Flip { .. } => {}
        Change::Cut { at } => disk.open(&path, Open::Write).unwrap().set_len(at % (len + 1)).unwrap(),
        Change::Fill { at, bytes } => {
            disk.open(&path, Open::Write).unwrap().write_all_at(bytes, at % (len + 1)).unwrap();
        }
        Change::Remove => disk.remove_file(&path).unwrap(),
        Change::Rename { to } => disk.rename(&path, &Path::new(DIR).join(to)).unwrap(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn nothing_in_the_files_makes_it_panic(
        changes in prop::collection::vec((any::<usize>(), change()), 1..5),
        point in prop::option::of(0..80_i64),
        clean: bool,
        start in 0..70_i64,
    ) {
        let disk = disk(1);
        let config = Config { cleanup_policy: CleanupPolicy { delete: true, compact: true }, ..small() };
        let mut log = fresh(&disk, config.clone());
        fill(&mut log, 30);
        log.close(&[]).unwrap();
        drop(log);
        for (which, change) in &changes {
            damage(&disk, *which, change);
        }
        let known = Known { recovery_point: point.map(Offset), log_start_offset: Offset(start), clean };
        let opened = PartitionLog::open(disk.clone(), DIR.into(), config, known, NOW);
        let Ok((mut log, _)) = opened else { return Ok(()) };
        let exercise = |log: &PartitionLog<SimDisk>| {
            let (start, end) = (log.log_start_offset(), log.log_end_offset());
            assert!(start <= end);
            let mut at = start;
            for _ in 0..200 {
                let Ok(slice) = log.read(at, 400, end, true) else { break };
                if slice.is_empty() {
                    break;
                }
                // Damage further on is for the reader's checksums to find, or for a scrub.
                let first = Batches::new(slice.read().unwrap()).next().unwrap().unwrap();
                assert_eq!(first.header.base_offset, slice.start_offset);
                assert!(slice.next_offset > at);
                at = slice.next_offset;
            }
            let _ = log.offset_for_timestamp(Timestamp(NOW.get() + 31));
            let _ = log.max_timestamp();
            let _ = log.aborted_transactions(start, end, 100);
            let producers = log.producers();
            let _ = log.replay(producers.offset, &mut |_, _| ());
            let _ = log.replay(start, &mut |_, _| ());
            for base in log.segments() {
                if let Ok(Some(scrub)) = log.scrub(base) {
                    let _ = scrub.run(&mut || true);
                }
            }
        };
        exercise(&log);
        for _ in 0..8 {
            let _ = append(&mut log, &batch(NOW.get(), 2, 50));
        }
        exercise(&log);
        let _ = log.flush();
        let request = CleanRequest {
            now: NOW,
            last_stable_offset: log.log_end_offset(),
            producers: Vec::new(),
            map_bytes_max: 1 << 16,
            hash_seed: [1, 2],
            force: true,
        };
        if let Ok(Some(plan)) = log.plan_cleaning(request)
            && let Ok(cleaned) = plan.run(&mut || true)
        {
            let _ = log.install_cleaned(cleaned);
        }
        exercise(&log);
        let _ = log.truncate_to(Offset(log.log_end_offset().get() / 2), NOW);
        exercise(&log);
        let end = log.log_end_offset();
        let _ = log.enforce_retention(NOW.plus(Millis(1 << 40)), end, &no_producers);
        exercise(&log);
        let _ = log.close(&[]);
    }
}
