//! Random histories against a simple model: a list of batches.

use bytes::Bytes;
use proptest::prelude::*;
use semel_env::sim::SimDisk;
use semel_model::{Offset, Timestamp};

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Append {
        records: usize,
        size: usize,
    },
    Flush,
    /// A ticket is synced while others append.
    FlushLate {
        appends: usize,
    },
    /// The owner writes its checkpoints.
    Checkpoint,
    Roll,
    DeleteBefore {
        percent: i64,
    },
    Retention,
    Truncate {
        percent: i64,
    },
    /// The power goes.
    Crash,
    /// The process dies.
    Kill,
    CleanStop,
    /// The next changing disk operation but so many fails.
    Fault {
        skip: u64,
    },
    Full,
    Room,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => (1..4_usize, 0..200_usize).prop_map(|(records, size)| Step::Append { records, size }),
        3 => Just(Step::Flush),
        2 => (0..4_usize).prop_map(|appends| Step::FlushLate { appends }),
        2 => Just(Step::Checkpoint),
        1 => Just(Step::Roll),
        1 => (0..=100_i64).prop_map(|percent| Step::DeleteBefore { percent }),
        1 => Just(Step::Retention),
        1 => (0..=100_i64).prop_map(|percent| Step::Truncate { percent }),
        2 => Just(Step::Crash),
        1 => Just(Step::Kill),
        1 => Just(Step::CleanStop),
        1 => (0..6_u64).prop_map(|skip| Step::Fault { skip }),
        1 => Just(Step::Full),
        1 => Just(Step::Room),
    ];
    prop::collection::vec(step, 1..80)
}

struct World {
    disk: SimDisk,
    log: PartitionLog<SimDisk>,
    /// Base offset, end offset, bytes.
    batches: Vec<(i64, i64, Bytes)>,
    start: i64,
    flushed: i64,
    point: Offset,
    start_checkpoint: Offset,
    /// A sync failed in this life: the page cache may hold what the disk will never.
    sync_failed: bool,
    was_full: bool,
    clock: i64,
}

impl World {
    fn new(seed: u64) -> Self {
        let disk = disk(seed);
        let log = fresh(&disk, config());
        Self {
            disk,
            log,
            batches: Vec::new(),
            start: 0,
            flushed: 0,
            point: Offset(0),
            start_checkpoint: Offset(0),
            sync_failed: false,
            was_full: false,
            clock: NOW.get(),
        }
    }

    fn end(&self) -> i64 {
        self.batches.last().map_or(self.start, |(_, end, _)| *end)
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Append { records, size } => self.append(records, size),
            Step::Flush => self.flush(0),
            Step::FlushLate { appends } => self.flush(appends),
            Step::Checkpoint => {
                self.point = self.log.flushed_end();
                self.start_checkpoint = self.log.log_start_offset();
            }
            Step::Roll => {
                let _ = self.log.roll(Timestamp(self.clock), &no_producers);
            }
            Step::DeleteBefore { percent } => {
                let to = self.start + (self.end() - self.start) * percent / 100;
                if self.log.delete_before(Offset(to), Offset(self.end())).is_ok() {
                    self.start = self.start.max(to);
                }
            }
            Step::Retention => {
                let now = Timestamp(self.clock);
                let _ = self.log.enforce_retention(now, Offset(self.end()), &no_producers);
                self.start = self.log.log_start_offset().get().max(self.start);
                let _ = self.log.remove_due(now);
            }
            Step::Truncate { percent } => self.truncate(percent),
            Step::Crash => {
                self.disk.crash();
                self.reopen(true);
            }
            Step::Kill => {
                if self.sync_failed {
                    self.disk.crash();
                    self.reopen(true);
                } else {
                    self.disk.kill();
                    self.reopen(false);
                }
            }
            Step::CleanStop => self.clean_stop(),
            Step::Fault { skip } => self.disk.fail_after(skip),
            Step::Full => {
                self.disk.set_capacity(Some(self.disk.used() + 100));
                self.was_full = true;
            }
            Step::Room => self.disk.set_capacity(None),
        }
        self.batches.retain(|(_, end, _)| *end > self.start);
        if self.log.has_failed() {
            self.disk.set_capacity(None);
            self.disk.crash();
            self.reopen(true);
        }
    }

    fn append(&mut self, records: usize, size: usize) {
        self.clock += 1;
        let batch = batch(self.clock, records, size);
        let base = self.log.log_end_offset();
        if let Ok(appended) = append_at(&mut self.log, &batch, Timestamp(self.clock)) {
            assert_eq!(appended.base_offset, base);
            let stamped = batch.stamped(base, self.log.latest_epoch());
            self.batches.push((base.get(), appended.log_end_offset.get(), stamped.bytes));
        }
    }

    fn flush(&mut self, appends: usize) {
        let ticket = self.log.flush_ticket();
        for _ in 0..appends {
            self.append(1, 50);
        }
        match ticket.sync() {
            Ok(()) => {
                self.log.flushed(&ticket);
                self.flushed = self.flushed.max(ticket.upto().get());
            }
            Err(_) => {
                self.sync_failed = true;
                self.log.mark_failed();
            }
        }
        assert!(self.log.flushed_end().get() >= self.flushed);
    }

    fn truncate(&mut self, percent: i64) {
        let to = self.start + (self.end() - self.start) * percent / 100;
        match self.log.truncate_to(Offset(to), Timestamp(self.clock)) {
            Ok(()) => {
                self.batches.retain(|(_, end, _)| *end <= to);
                self.flushed = self.flushed.min(self.log.log_end_offset().get());
                // The owner's checkpoint is as it was: the log knows better.
            }
            // Cut or not: what a start finds is what counts.
            Err(_) => {
                self.sync_failed = true;
                let batch =
                    self.batches.iter().find(|(_, end, _)| *end > to).map_or(to, |(base, _, _)| *base);
                self.flushed = self.flushed.min(batch);
                if batch < self.start {
                    // Nothing would be left, so the log was to begin anew; it may begin where the last start knew.
                    self.flushed = self.flushed.min(self.start_checkpoint.get());
                }
                self.point = self.point.min(Offset(self.flushed));
            }
        }
    }

    fn clean_stop(&mut self) {
        if self.log.close(&[]).is_err() {
            self.sync_failed = true;
            self.log.mark_failed();
            return;
        }
        let end = self.log.log_end_offset();
        self.flushed = end.get();
        self.point = end;
        self.start_checkpoint = self.log.log_start_offset();
        self.disk.kill();
        let known = Known { recovery_point: Some(end), log_start_offset: self.start_checkpoint, clean: true };
        self.disk.heal();
        let (log, recovery) = open(&self.disk, config(), known);
        assert_eq!((recovery.truncated_bytes, recovery.lost), (0, None));
        // An index that could not be written on a full disk is written by a later start.
        assert!(self.was_full || recovery.rebuilt_indexes == 0);
        assert_eq!(log.log_end_offset(), end);
        self.log = log;
    }

    /// Opens the log after a bad end. What was flushed must be there, and what is there must be what was written.
    fn reopen(&mut self, power_lost: bool) {
        self.disk.heal();
        self.sync_failed = false;
        let known =
            Known { recovery_point: Some(self.point), log_start_offset: self.start_checkpoint, clean: false };
        let (log, recovery) = open(&self.disk, config(), known);
        assert!(recovery.corrupt.is_empty(), "{recovery:?}");
        let end = log.log_end_offset().get();
        assert!(end >= self.flushed, "flushed up to {} but only {end} is there: {recovery:?}", self.flushed);
        assert!(power_lost || end >= self.end());
        let start = log.log_start_offset().get();
        assert!(self.start_checkpoint.get() <= start);
        assert!(start <= self.start.max(self.start_checkpoint.get()));
        for (base, bytes) in contents(&log) {
            if let Some((_, _, expected)) = self.batches.iter().find(|(at, _, _)| *at == base) {
                assert_eq!(bytes, expected);
            } else {
                assert!(base < self.start, "a batch nobody wrote at {base}");
            }
        }
        self.batches.retain(|(_, batch_end, _)| *batch_end <= end);
        // Records that were deleted, but not for good, are back: the model no longer has their bytes.
        let known: Vec<_> = contents(&log)
            .into_iter()
            .filter(|(base, _)| *base < self.start)
            .map(|(base, bytes)| {
                let header = semel_record::BatchHeader::parse(&bytes).unwrap();
                (base, header.next_offset().get(), bytes)
            })
            .collect();
        self.batches.retain(|(base, _, _)| *base >= self.start);
        self.batches.splice(0..0, known);
        self.start = start;
        self.flushed = end;
        self.log = log;
    }

    fn check(&self) {
        assert_eq!(self.log.log_start_offset().get(), self.start);
        assert_eq!(self.log.log_end_offset().get(), self.end());
        let found = contents(&self.log);
        let expected: Vec<_> = self.batches.iter().map(|(base, _, bytes)| (*base, bytes.clone())).collect();
        assert_eq!(found, expected);
        let mut at = None;
        for (base, end, _) in &self.batches {
            assert!(at.is_none_or(|at| at == *base), "offsets have a gap at {base}");
            at = Some(*end);
        }
    }
}

fn config() -> Config {
    Config { retention_bytes: Some(2500), ..small() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn histories(seed: u64, steps in steps()) {
        let mut world = World::new(seed);
        for step in &steps {
            world.step(step);
            world.check();
        }
    }
}
