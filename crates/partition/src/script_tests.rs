//! What a replica answers, as scripts.
//!
//! A line is a command; its answer is printed behind it, then log start, LSO, HW and LEO. Commands:
//!
//! - `lead E P isr=1,2 of=1,2,3`, `follow E P LEADER`: what the controller decides; this broker is 1
//! - `send PID/EPOCH SEQ xN [txn] [v1|v2] [acks=all] [epoch=E] [coordinator]`, `send - - xN plain`
//! - `marker PID/EPOCH commit|abort coord=E v1|v2`
//! - `flush` to the log's end, `fetched BROKER END FLUSHED`, `hw N` as a follower hears it
//! - `isr NOW LAG` asks for a change, `refused`; `acked END EPOCH`; `latest`
//! - `start N` deletes records, `cut N` truncates, `expire NOW`, `producers`
//! - `restart [recall]` loads a snapshot of the log's end, `kill` replays the whole log

use std::{collections::BTreeSet, fmt::Write};

use expect_test::{Expect, expect};
use semel_model::{
    BrokerId, CoordinatorEpoch, LeaderEpoch, Millis, Offset, PartitionEpoch, ProducerEpoch, ProducerId,
    Sequence, Timestamp,
};
use semel_record::{
    BatchBuilder, BatchHeader, EndTransactionMarker, Outcome, ProducerSnapshotEntry, control::end_txn_marker,
};

use crate::{
    Acks, AppendContext, Config, Durability, FollowerPosition, FollowerState, Isolation, IsrChange,
    LeaderState, MarkerVerdict, Origin, RecoveredLog, Replica, TransactionVerification, TransactionVersion,
    Verdict,
};

const ME: BrokerId = BrokerId(1);

struct Script {
    replica: Replica,
    /// The log: what was appended.
    log: Vec<(BatchHeader, Option<EndTransactionMarker>)>,
    asked: Option<IsrChange>,
    now: Timestamp,
}

fn os() -> Config {
    Config { durability: Durability::Os, ..Config::default() }
}

fn check(config: Config, script: &str, expected: Expect) {
    let log = RecoveredLog {
        log_start_offset: Offset(0),
        log_end_offset: Offset(0),
        high_watermark: Offset(0),
        flushed_end: Offset(0),
    };
    let replica = Replica::recovered(ME, config, log, &[], Timestamp(0));
    let mut state = Script { replica, log: Vec::new(), asked: None, now: Timestamp(1000) };
    let mut out = String::new();
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let answer = state.run(line);
        let replica = &state.replica;
        writeln!(
            out,
            "{line:<34} {answer:<44} {} {} {} {}",
            replica.log_start_offset(),
            replica.last_stable_offset(),
            replica.high_watermark(),
            replica.log_end_offset()
        )
        .unwrap();
        replica.invariants().unwrap();
    }
    expected.assert_eq(&out);
}

fn number(word: &str) -> i64 {
    word.trim_start_matches(|c: char| !c.is_ascii_digit() && c != '-').parse().unwrap()
}

fn brokers(words: &[&str], name: &str) -> BTreeSet<BrokerId> {
    let word = words.iter().find_map(|word| word.strip_prefix(name)).unwrap();
    word.split(',').map(|id| BrokerId(id.parse().unwrap())).collect()
}

fn moved(high_watermark: Option<Offset>) -> String {
    high_watermark.map_or(String::new(), |to| format!("hw {to}"))
}

impl Script {
    fn run(&mut self, line: &str) -> String {
        let words: Vec<_> = line.split_whitespace().collect();
        let n = |at: usize| number(words[at]);
        match words[0] {
            "lead" => {
                let state = LeaderState {
                    leader_epoch: LeaderEpoch(n(1) as i32),
                    partition_epoch: PartitionEpoch(n(2) as i32),
                    isr: brokers(&words, "isr="),
                    replicas: brokers(&words, "of="),
                };
                self.replica.become_leader(state, self.now).map_or_else(|e| e.kafka_name().into(), moved)
            }
            "follow" => {
                let state = FollowerState {
                    leader_epoch: LeaderEpoch(n(1) as i32),
                    partition_epoch: PartitionEpoch(n(2) as i32),
                    leader: BrokerId(n(3) as i32),
                };
                self.replica.become_follower(state).map_or_else(|e| e.kafka_name().into(), |()| String::new())
            }
            "send" => self.send(&words),
            "marker" => self.marker(&words),
            "flush" => moved(self.replica.flushed(self.replica.log_end_offset())),
            "fetched" => {
                let position = FollowerPosition {
                    leader_epoch: self.replica.leader_epoch(),
                    log_end_offset: Offset(n(2)),
                    flushed_end: Offset(n(3)),
                };
                self.replica
                    .follower_fetched(BrokerId(n(1) as i32), position, self.now)
                    .map_or_else(|e| e.kafka_name().into(), moved)
            }
            "hw" => moved(self.replica.leader_high_watermark(Offset(n(1)))),
            "start" => {
                self.replica.log_start_moved(Offset(n(1)));
                String::new()
            }
            "cut" => {
                let to = Offset(n(1));
                self.log.retain(|(header, _)| header.next_offset() <= to);
                self.replica.truncated(to);
                self.replica.reload(&[], self.now);
                self.replay_from(Offset(0));
                String::new()
            }
            "isr" => {
                self.now = Timestamp(n(1));
                match self.replica.isr_change(self.now, Millis(n(2))) {
                    None => "no change".into(),
                    Some(change) => {
                        self.replica.isr_asked(&change);
                        let ids: Vec<_> = change.isr.iter().map(BrokerId::to_string).collect();
                        self.asked = Some(change);
                        format!("ask {}", ids.join(","))
                    }
                }
            }
            "refused" => moved(self.replica.isr_refused()),
            "expire" => format!("{} forgotten", self.replica.expire_producers(Timestamp(n(1)))),
            "acked" => match self.replica.acknowledged(Offset(n(1)), LeaderEpoch(n(2) as i32)) {
                None => "not yet".into(),
                Some(Ok(())) => "yes".into(),
                Some(Err(error)) => error.kafka_name().into(),
            },
            "latest" => match self.replica.latest_offset(Isolation::ReadUncommitted, None) {
                Ok(offset) => offset.to_string(),
                Err(error) => error.kafka_name().into(),
            },
            // A clean stop: the snapshot is of the log's end. With `recall` the last batches are read back.
            "restart" => {
                let snapshot = self.replica.snapshot_producers();
                self.recover(&snapshot);
                if words.get(1) == Some(&"recall") {
                    for (header, _) in self.log.iter().rev() {
                        self.replica.recall(header);
                    }
                }
                String::new()
            }
            // A kill: everything comes from the log.
            "kill" => {
                self.recover(&[]);
                self.replay_from(Offset(0));
                String::new()
            }
            "producers" => {
                let rows = self.replica.active_producers().map(|row| {
                    format!(
                        "{}/{} seq {} end {} c{} txn {}",
                        row.producer_id,
                        row.producer_epoch,
                        row.last_sequence,
                        row.last_offset,
                        row.coordinator_epoch,
                        row.current_txn_first_offset.map_or("-".into(), |first| first.to_string())
                    )
                });
                rows.collect::<Vec<_>>().join("; ")
            }
            other => panic!("no such command: {other}"),
        }
    }

    fn recover(&mut self, snapshot: &[ProducerSnapshotEntry]) {
        let log = RecoveredLog {
            log_start_offset: self.replica.log_start_offset(),
            log_end_offset: self.replica.log_end_offset(),
            high_watermark: self.replica.high_watermark(),
            flushed_end: self.replica.log_end_offset(),
        };
        self.replica = Replica::recovered(ME, *self.replica.config(), log, snapshot, self.now);
    }

    fn replay_from(&mut self, from: Offset) {
        for (header, marker) in self.log.iter().filter(|(header, _)| header.base_offset >= from) {
            self.replica.replay(header, marker.as_ref(), self.now);
        }
    }

    fn producer(word: &str) -> (ProducerId, ProducerEpoch) {
        let (id, epoch) = word.split_once('/').unwrap();
        (ProducerId(id.parse().unwrap()), ProducerEpoch(epoch.parse().unwrap()))
    }

    fn send(&mut self, words: &[&str]) -> String {
        let has = |flag: &str| words.contains(&flag);
        let mut builder = BatchBuilder::new();
        if has("txn") {
            builder = builder.transactional();
        }
        if !has("plain") {
            let (id, epoch) = Self::producer(words[1]);
            builder = builder.producer(id, epoch, Sequence(number(words[2]) as i32));
        }
        for _ in 0..number(words[3]) {
            builder.push(self.now, None, None, &[]);
        }
        let header = builder.build().unwrap().header;
        let context = AppendContext {
            acks: if has("acks=all") { Acks::All } else { Acks::Leader },
            origin: if has("coordinator") { Origin::Coordinator } else { Origin::Client },
            current_leader_epoch: words
                .iter()
                .find_map(|word| word.strip_prefix("epoch="))
                .map(|epoch| LeaderEpoch(epoch.parse().unwrap())),
            verification: if has("v1") {
                TransactionVerification::Verified
            } else if has("v2") {
                TransactionVerification::VerifiedWithEpochBump
            } else {
                TransactionVerification::Missing
            },
        };
        match self.replica.check_append(&header, &context) {
            Err(crate::Error::TransactionNotVerified { .. }) => "ask the coordinator".into(),
            Err(error) => error.kafka_name().into(),
            Ok(Verdict::Duplicate { base_offset, last_offset, .. }) => {
                format!("duplicate of {base_offset}..={last_offset}")
            }
            Ok(Verdict::Append { base_offset, leader_epoch }) => {
                let header = header.stamped(base_offset, leader_epoch);
                let applied = self.replica.apply(&header, None, self.now);
                self.log.push((header, None));
                format!("{}..={} {}", base_offset, applied.last_offset, moved(applied.high_watermark))
            }
        }
    }

    fn marker(&mut self, words: &[&str]) -> String {
        let (id, epoch) = Self::producer(words[1]);
        let marker = EndTransactionMarker {
            outcome: if words[2] == "abort" { Outcome::Abort } else { Outcome::Commit },
            coordinator_epoch: CoordinatorEpoch(number(words[3]) as i32),
        };
        let version = if words[4] == "v2" { TransactionVersion::V2 } else { TransactionVersion::V1 };
        let header = end_txn_marker(marker, id, epoch, self.now).header;
        match self.replica.check_marker(&header, &marker, version) {
            Err(error) => error.kafka_name().into(),
            Ok(MarkerVerdict::AlreadyEnded) => "already ended".into(),
            Ok(MarkerVerdict::Append { base_offset, leader_epoch }) => {
                let header = header.stamped(base_offset, leader_epoch);
                let applied = self.replica.apply(&header, Some(&marker), self.now);
                self.log.push((header, Some(marker)));
                match applied.completed {
                    None => format!("{base_offset} ends nothing"),
                    Some(done) => format!(
                        "{} {}..={} lso {}",
                        if done.aborted { "aborted" } else { "committed" },
                        done.first_offset,
                        done.last_offset,
                        done.last_stable_offset
                    ),
                }
            }
        }
    }
}

#[test]
fn retries_get_their_first_offset_and_gaps_are_refused() {
    let script = "
        lead 0 0 isr=1 of=1
        send 7/0 0 x1
        send 7/0 1 x1
        send 7/0 2 x1
        send 7/0 3 x1
        send 7/0 4 x1
        send 7/0 5 x1
        send 7/0 6 x1
        send 7/0 6 x1
        send 7/0 5 x1
        send 7/0 4 x1
        send 7/0 3 x1
        send 7/0 2 x1
        send 7/0 1 x1
        send 7/0 0 x1
        send 7/0 8 x1
        send 7/0 6 x2
        send 7/1 0 x1
        send 7/0 7 x1
        send 7/2 5 x1
        producers";
    check(
        os(),
        script,
        expect![[r#"
        lead 0 0 isr=1 of=1                                                             0 0 0 0
        send 7/0 0 x1                      0..=0 hw 1                                   0 1 1 1
        send 7/0 1 x1                      1..=1 hw 2                                   0 2 2 2
        send 7/0 2 x1                      2..=2 hw 3                                   0 3 3 3
        send 7/0 3 x1                      3..=3 hw 4                                   0 4 4 4
        send 7/0 4 x1                      4..=4 hw 5                                   0 5 5 5
        send 7/0 5 x1                      5..=5 hw 6                                   0 6 6 6
        send 7/0 6 x1                      6..=6 hw 7                                   0 7 7 7
        send 7/0 6 x1                      duplicate of 6..=6                           0 7 7 7
        send 7/0 5 x1                      duplicate of 5..=5                           0 7 7 7
        send 7/0 4 x1                      duplicate of 4..=4                           0 7 7 7
        send 7/0 3 x1                      duplicate of 3..=3                           0 7 7 7
        send 7/0 2 x1                      duplicate of 2..=2                           0 7 7 7
        send 7/0 1 x1                      OUT_OF_ORDER_SEQUENCE_NUMBER                 0 7 7 7
        send 7/0 0 x1                      OUT_OF_ORDER_SEQUENCE_NUMBER                 0 7 7 7
        send 7/0 8 x1                      OUT_OF_ORDER_SEQUENCE_NUMBER                 0 7 7 7
        send 7/0 6 x2                      OUT_OF_ORDER_SEQUENCE_NUMBER                 0 7 7 7
        send 7/1 0 x1                      7..=7 hw 8                                   0 8 8 8
        send 7/0 7 x1                      INVALID_PRODUCER_EPOCH                       0 8 8 8
        send 7/2 5 x1                      OUT_OF_ORDER_SEQUENCE_NUMBER                 0 8 8 8
        producers                          7/1 seq 0 end 7 c-1 txn -                    0 8 8 8
    "#]],
    );
}

#[test]
fn retries_are_known_after_a_kill_and_a_restart() {
    check(
        os(),
        "
        lead 0 0 isr=1 of=1
        send 7/0 0 x3
        send 7/0 3 x1
        send 7/0 4 x2
        kill
        lead 1 1 isr=1 of=1
        send 7/0 3 x1
        restart
        lead 2 2 isr=1 of=1
        send 7/0 4 x2
        send 7/0 3 x1
        restart recall
        lead 3 3 isr=1 of=1
        send 7/0 3 x1
        send 7/0 0 x3
        send 7/0 6 x1",
        expect![[r#"
            lead 0 0 isr=1 of=1                                                             0 0 0 0
            send 7/0 0 x3                      0..=2 hw 3                                   0 3 3 3
            send 7/0 3 x1                      3..=3 hw 4                                   0 4 4 4
            send 7/0 4 x2                      4..=5 hw 6                                   0 6 6 6
            kill                                                                            0 6 6 6
            lead 1 1 isr=1 of=1                                                             0 6 6 6
            send 7/0 3 x1                      duplicate of 3..=3                           0 6 6 6
            restart                                                                         0 6 6 6
            lead 2 2 isr=1 of=1                                                             0 6 6 6
            send 7/0 4 x2                      duplicate of 4..=5                           0 6 6 6
            send 7/0 3 x1                      OUT_OF_ORDER_SEQUENCE_NUMBER                 0 6 6 6
            restart recall                                                                  0 6 6 6
            lead 3 3 isr=1 of=1                                                             0 6 6 6
            send 7/0 3 x1                      duplicate of 3..=3                           0 6 6 6
            send 7/0 0 x3                      duplicate of 0..=2                           0 6 6 6
            send 7/0 6 x1                      6..=6 hw 7                                   0 7 7 7
        "#]],
    );
}

#[test]
fn sequences_wrap_after_the_largest() {
    check(
        os(),
        "
        lead 0 0 isr=1 of=1
        send 7/0 2147483645 x2
        send 7/0 2147483647 x3
        send 7/0 2147483647 x3
        send 7/0 2147483645 x2
        send 7/0 1 x1
        send 7/0 2 x1
        send 8/0 2147483646 x2
        send 8/0 0 x1
        send 8/0 0 x1",
        expect![[r#"
            lead 0 0 isr=1 of=1                                                             0 0 0 0
            send 7/0 2147483645 x2             0..=1 hw 2                                   0 2 2 2
            send 7/0 2147483647 x3             2..=4 hw 5                                   0 5 5 5
            send 7/0 2147483647 x3             duplicate of 2..=4                           0 5 5 5
            send 7/0 2147483645 x2             duplicate of 0..=1                           0 5 5 5
            send 7/0 1 x1                      OUT_OF_ORDER_SEQUENCE_NUMBER                 0 5 5 5
            send 7/0 2 x1                      5..=5 hw 6                                   0 6 6 6
            send 8/0 2147483646 x2             6..=7 hw 8                                   0 8 8 8
            send 8/0 0 x1                      8..=8 hw 9                                   0 9 9 9
            send 8/0 0 x1                      duplicate of 8..=8                           0 9 9 9
        "#]],
    );
}

#[test]
fn producers_outlive_their_records_but_not_their_expiry() {
    check(
        Config { producer_id_expiration: Millis(5000), ..os() },
        "
        lead 0 0 isr=1 of=1
        send 7/0 0 x1
        send 7/0 1 x1
        send 7/0 2 x1
        start 3
        send 7/0 3 x1
        send 7/0 2 x1
        expire 5999
        expire 6000
        producers
        send 7/0 4 x1
        send 9/0 0 x1 txn v1
        expire 100000
        producers",
        expect![[r#"
            lead 0 0 isr=1 of=1                                                             0 0 0 0
            send 7/0 0 x1                      0..=0 hw 1                                   0 1 1 1
            send 7/0 1 x1                      1..=1 hw 2                                   0 2 2 2
            send 7/0 2 x1                      2..=2 hw 3                                   0 3 3 3
            start 3                                                                         3 3 3 3
            send 7/0 3 x1                      3..=3 hw 4                                   3 4 4 4
            send 7/0 2 x1                      duplicate of 2..=2                           3 4 4 4
            expire 5999                        0 forgotten                                  3 4 4 4
            expire 6000                        1 forgotten                                  3 4 4 4
            producers                                                                       3 4 4 4
            send 7/0 4 x1                      4..=4 hw 5                                   3 5 5 5
            send 9/0 0 x1 txn v1               5..=5 hw 6                                   3 5 6 6
            expire 100000                      1 forgotten                                  3 5 6 6
            producers                          9/0 seq 0 end 5 c-1 txn 5                    3 5 6 6
        "#]],
    );
}

#[test]
fn the_least_recently_used_producer_makes_room() {
    check(
        Config { producers_max: 2, ..os() },
        "
        lead 0 0 isr=1 of=1
        send 1/0 0 x1
        send 2/0 0 x1
        send 1/0 1 x1
        send 3/0 0 x1
        producers
        send 4/0 0 x1 txn v1
        send 5/0 0 x1 txn v1
        producers
        send 6/0 0 x1
        send 4/0 1 x1 txn
        send - - x1 plain
        marker 4/0 commit coord=1 v1
        send 6/0 0 x1
        producers",
        expect![[r#"
            lead 0 0 isr=1 of=1                                                             0 0 0 0
            send 1/0 0 x1                      0..=0 hw 1                                   0 1 1 1
            send 2/0 0 x1                      1..=1 hw 2                                   0 2 2 2
            send 1/0 1 x1                      2..=2 hw 3                                   0 3 3 3
            send 3/0 0 x1                      3..=3 hw 4                                   0 4 4 4
            producers                          1/0 seq 1 end 2 c-1 txn -; 3/0 seq 0 end 3 c-1 txn - 0 4 4 4
            send 4/0 0 x1 txn v1               4..=4 hw 5                                   0 4 5 5
            send 5/0 0 x1 txn v1               5..=5 hw 6                                   0 4 6 6
            producers                          4/0 seq 0 end 4 c-1 txn 4; 5/0 seq 0 end 5 c-1 txn 5 0 4 6 6
            send 6/0 0 x1                      THROTTLING_QUOTA_EXCEEDED                    0 4 6 6
            send 4/0 1 x1 txn                  6..=6 hw 7                                   0 4 7 7
            send - - x1 plain                  7..=7 hw 8                                   0 4 8 8
            marker 4/0 commit coord=1 v1       committed 4..=8 lso 5                        0 5 9 9
            send 6/0 0 x1                      9..=9 hw 10                                  0 5 10 10
            producers                          5/0 seq 0 end 5 c-1 txn 5; 6/0 seq 0 end 9 c-1 txn - 0 5 10 10
        "#]],
    );
}

#[test]
fn readers_of_committed_records_wait_for_the_first_open_transaction() {
    check(
        os(),
        "
        lead 0 0 isr=1 of=1
        send - - x1 plain
        send - - x1 plain
        send 10/0 0 x1 txn v1
        send 11/0 0 x1 txn v1
        send - - x1 plain
        marker 11/0 commit coord=0 v1
        marker 10/0 abort coord=0 v1
        producers",
        expect![[r#"
            lead 0 0 isr=1 of=1                                                             0 0 0 0
            send - - x1 plain                  0..=0 hw 1                                   0 1 1 1
            send - - x1 plain                  1..=1 hw 2                                   0 2 2 2
            send 10/0 0 x1 txn v1              2..=2 hw 3                                   0 2 3 3
            send 11/0 0 x1 txn v1              3..=3 hw 4                                   0 2 4 4
            send - - x1 plain                  4..=4 hw 5                                   0 2 5 5
            marker 11/0 commit coord=0 v1      committed 3..=5 lso 2                        0 2 6 6
            marker 10/0 abort coord=0 v1       aborted 2..=6 lso 7                          0 7 7 7
            producers                          10/0 seq 0 end 2 c0 txn -; 11/0 seq 0 end 3 c0 txn - 0 7 7 7
        "#]],
    );
}

#[test]
fn a_marker_counts_when_it_is_replicated() {
    check(
        os(),
        "
        lead 0 0 isr=1,2 of=1,2
        send 10/0 0 x1 txn v1
        send - - x1 plain
        fetched 2 2 2
        marker 10/0 commit coord=0 v1
        send - - x1 plain
        fetched 2 3 3
        fetched 2 4 4",
        expect![[r#"
            lead 0 0 isr=1,2 of=1,2                                                         0 0 0 0
            send 10/0 0 x1 txn v1              0..=0                                        0 0 0 1
            send - - x1 plain                  1..=1                                        0 0 0 2
            fetched 2 2 2                      hw 2                                         0 0 2 2
            marker 10/0 commit coord=0 v1      committed 0..=2 lso 3                        0 0 2 3
            send - - x1 plain                  3..=3                                        0 0 2 4
            fetched 2 3 3                      hw 3                                         0 3 3 4
            fetched 2 4 4                      hw 4                                         0 4 4 4
        "#]],
    );
}

#[test]
fn late_batches_of_an_ended_transaction_open_no_other() {
    check(
        os(),
        "
        lead 0 0 isr=1 of=1
        send 10/0 0 x1 txn
        send 10/0 0 x1 txn v1
        send 10/0 1 x1 txn
        send 10/0 2 x1
        marker 10/0 abort coord=0 v1
        send 10/0 2 x1 txn
        send 10/0 1 x1 txn
        send 10/0 2 x1
        send 20/0 3 x1 txn v2
        send 20/0 0 x1 txn v2
        marker 20/0 abort coord=0 v2
        marker 20/1 abort coord=0 v2
        marker 20/1 abort coord=0 v2
        send 20/0 1 x1 txn
        send 20/1 1 x1 txn v2
        send 20/1 0 x1 txn v2
        marker 20/1 abort coord=0 v2
        marker 20/2 commit coord=0 v2
        producers",
        expect![[r#"
            lead 0 0 isr=1 of=1                                                             0 0 0 0
            send 10/0 0 x1 txn                 ask the coordinator                          0 0 0 0
            send 10/0 0 x1 txn v1              0..=0 hw 1                                   0 0 1 1
            send 10/0 1 x1 txn                 1..=1 hw 2                                   0 0 2 2
            send 10/0 2 x1                     INVALID_TXN_STATE                            0 0 2 2
            marker 10/0 abort coord=0 v1       aborted 0..=2 lso 3                          0 3 3 3
            send 10/0 2 x1 txn                 ask the coordinator                          0 3 3 3
            send 10/0 1 x1 txn                 duplicate of 1..=1                           0 3 3 3
            send 10/0 2 x1                     3..=3 hw 4                                   0 4 4 4
            send 20/0 3 x1 txn v2              OUT_OF_ORDER_SEQUENCE_NUMBER                 0 4 4 4
            send 20/0 0 x1 txn v2              4..=4 hw 5                                   0 4 5 5
            marker 20/0 abort coord=0 v2       INVALID_PRODUCER_EPOCH                       0 4 5 5
            marker 20/1 abort coord=0 v2       aborted 4..=5 lso 6                          0 6 6 6
            marker 20/1 abort coord=0 v2       already ended                                0 6 6 6
            send 20/0 1 x1 txn                 INVALID_PRODUCER_EPOCH                       0 6 6 6
            send 20/1 1 x1 txn v2              OUT_OF_ORDER_SEQUENCE_NUMBER                 0 6 6 6
            send 20/1 0 x1 txn v2              6..=6 hw 7                                   0 6 7 7
            marker 20/1 abort coord=0 v2       INVALID_PRODUCER_EPOCH                       0 6 7 7
            marker 20/2 commit coord=0 v2      committed 6..=7 lso 8                        0 8 8 8
            producers                          10/0 seq 2 end 3 c0 txn -; 20/2 seq -1 end -1 c0 txn - 0 8 8 8
        "#]],
    );
}

#[test]
fn markers_of_a_replaced_coordinator_are_fenced() {
    check(
        os(),
        "
        lead 0 0 isr=1 of=1
        send 10/5 0 x1 txn v1
        marker 10/4 commit coord=3 v1
        marker 10/5 commit coord=3 v1
        marker 10/5 commit coord=3 v1
        marker 10/5 commit coord=2 v1
        marker 10/5 abort coord=4 v1
        marker 10/6 abort coord=4 v1
        send 10/5 1 x1
        marker 30/1 abort coord=4 v1
        send 30/1 5 x1
        send 30/1 0 x1
        producers",
        expect![[r#"
            lead 0 0 isr=1 of=1                                                             0 0 0 0
            send 10/5 0 x1 txn v1              0..=0 hw 1                                   0 0 1 1
            marker 10/4 commit coord=3 v1      INVALID_PRODUCER_EPOCH                       0 0 1 1
            marker 10/5 commit coord=3 v1      committed 0..=1 lso 2                        0 2 2 2
            marker 10/5 commit coord=3 v1      already ended                                0 2 2 2
            marker 10/5 commit coord=2 v1      TRANSACTION_COORDINATOR_FENCED               0 2 2 2
            marker 10/5 abort coord=4 v1       2 ends nothing                               0 3 3 3
            marker 10/6 abort coord=4 v1       3 ends nothing                               0 4 4 4
            send 10/5 1 x1                     INVALID_PRODUCER_EPOCH                       0 4 4 4
            marker 30/1 abort coord=4 v1       4 ends nothing                               0 5 5 5
            send 30/1 5 x1                     OUT_OF_ORDER_SEQUENCE_NUMBER                 0 5 5 5
            send 30/1 0 x1                     5..=5 hw 6                                   0 6 6 6
            producers                          10/6 seq -1 end -1 c4 txn -; 30/1 seq 0 end 5 c4 txn - 0 6 6 6
        "#]],
    );
}

#[test]
fn coordinators_append_without_sequences() {
    check(
        os(),
        "
        lead 0 0 isr=1 of=1
        send 10/1 -1 x1 txn v1 coordinator
        send 10/1 -1 x1 txn coordinator
        send 10/0 -1 x1 txn coordinator
        marker 10/1 commit coord=0 v1
        producers",
        expect![[r#"
            lead 0 0 isr=1 of=1                                                             0 0 0 0
            send 10/1 -1 x1 txn v1 coordinator 0..=0 hw 1                                   0 0 1 1
            send 10/1 -1 x1 txn coordinator    1..=1 hw 2                                   0 0 2 2
            send 10/0 -1 x1 txn coordinator    INVALID_PRODUCER_EPOCH                       0 0 2 2
            marker 10/1 commit coord=0 v1      committed 0..=2 lso 3                        0 3 3 3
            producers                          10/1 seq -1 end 1 c0 txn -                   0 3 3 3
        "#]],
    );
}

#[test]
fn fsynced_ends_are_what_counts_under_fsync() {
    check(
        Config::default(),
        "
        lead 0 0 isr=1,2 of=1,2
        send - - x5 plain
        fetched 2 5 5
        flush
        send - - x5 plain
        flush
        fetched 2 10 5
        fetched 2 10 7
        fetched 2 10 10
        fetched 2 11 11
        fetched 3 10 10",
        expect![[r#"
            lead 0 0 isr=1,2 of=1,2                                                         0 0 0 0
            send - - x5 plain                  0..=4                                        0 0 0 5
            fetched 2 5 5                                                                   0 0 0 5
            flush                              hw 5                                         0 5 5 5
            send - - x5 plain                  5..=9                                        0 5 5 10
            flush                                                                           0 5 5 10
            fetched 2 10 5                                                                  0 5 5 10
            fetched 2 10 7                     hw 7                                         0 7 7 10
            fetched 2 10 10                    hw 10                                        0 10 10 10
            fetched 2 11 11                    OFFSET_OUT_OF_RANGE                          0 10 10 10
            fetched 3 10 10                    NOT_LEADER_OR_FOLLOWER                       0 10 10 10
        "#]],
    );
}

#[test]
fn too_few_in_sync_replicas_stop_the_high_watermark() {
    check(
        Config { min_insync_replicas: 2, ..os() },
        "
        lead 3 0 isr=1,2,3 of=1,2,3
        send - - x2 plain acks=all
        acked 2 3
        fetched 2 2 2
        fetched 3 2 2
        acked 2 3
        lead 3 1 isr=1 of=1,2,3
        send - - x1 plain acks=all
        send - - x1 plain
        acked 2 3
        acked 3 3
        lead 3 2 isr=1,3 of=1,2,3
        fetched 3 3 3
        acked 3 3
        follow 4 3 2
        acked 3 3
        lead 5 4 isr=1 of=1
        send - - x1 plain acks=all",
        expect![[r#"
            lead 3 0 isr=1,2,3 of=1,2,3                                                     0 0 0 0
            send - - x2 plain acks=all         0..=1                                        0 0 0 2
            acked 2 3                          not yet                                      0 0 0 2
            fetched 2 2 2                                                                   0 0 0 2
            fetched 3 2 2                      hw 2                                         0 2 2 2
            acked 2 3                          yes                                          0 2 2 2
            lead 3 1 isr=1 of=1,2,3                                                         0 2 2 2
            send - - x1 plain acks=all         NOT_ENOUGH_REPLICAS                          0 2 2 2
            send - - x1 plain                  2..=2                                        0 2 2 3
            acked 2 3                          NOT_ENOUGH_REPLICAS_AFTER_APPEND             0 2 2 3
            acked 3 3                          not yet                                      0 2 2 3
            lead 3 2 isr=1,3 of=1,2,3                                                       0 2 2 3
            fetched 3 3 3                      hw 3                                         0 3 3 3
            acked 3 3                          yes                                          0 3 3 3
            follow 4 3 2                                                                    0 3 3 3
            acked 3 3                          NOT_LEADER_OR_FOLLOWER                       0 3 3 3
            lead 5 4 isr=1 of=1                                                             0 3 3 3
            send - - x1 plain acks=all         3..=3 hw 4                                   0 4 4 4
        "#]],
    );
}

#[test]
fn in_sync_replicas_shrink_and_grow_by_asking() {
    check(
        os(),
        "
        lead 0 0 isr=1,2,3 of=1,2,3,4
        send - - x4 plain
        fetched 2 4 4
        fetched 3 2 2
        isr 5000 10000
        isr 11001 10000
        isr 11002 10000
        send - - x1 plain
        fetched 3 4 4
        lead 0 1 isr=1,2 of=1,2,3,4
        fetched 2 5 5
        fetched 3 4 4
        isr 12000 10000
        fetched 3 5 5
        isr 12001 10000
        send - - x1 plain
        fetched 2 6 6
        refused
        fetched 4 1 1
        isr 12002 10000",
        expect![[r#"
            lead 0 0 isr=1,2,3 of=1,2,3,4                                                   0 0 0 0
            send - - x4 plain                  0..=3                                        0 0 0 4
            fetched 2 4 4                                                                   0 0 0 4
            fetched 3 2 2                      hw 2                                         0 2 2 4
            isr 5000 10000                     no change                                    0 2 2 4
            isr 11001 10000                    ask 1,2                                      0 2 2 4
            isr 11002 10000                    no change                                    0 2 2 4
            send - - x1 plain                  4..=4                                        0 2 2 5
            fetched 3 4 4                      hw 4                                         0 4 4 5
            lead 0 1 isr=1,2 of=1,2,3,4                                                     0 4 4 5
            fetched 2 5 5                      hw 5                                         0 5 5 5
            fetched 3 4 4                                                                   0 5 5 5
            isr 12000 10000                    no change                                    0 5 5 5
            fetched 3 5 5                                                                   0 5 5 5
            isr 12001 10000                    ask 1,2,3                                    0 5 5 5
            send - - x1 plain                  5..=5                                        0 5 5 6
            fetched 2 6 6                                                                   0 5 5 6
            refused                            hw 6                                         0 6 6 6
            fetched 4 1 1                                                                   0 6 6 6
            isr 12002 10000                    no change                                    0 6 6 6
        "#]],
    );
}

#[test]
fn epochs_fence() {
    check(
        os(),
        "
        send - - x1 plain
        lead 5 3 isr=1 of=1
        send - - x1 plain epoch=4
        send - - x1 plain epoch=6
        send - - x1 plain epoch=5
        lead 4 9 isr=1 of=1
        lead 5 2 isr=1 of=1
        follow 4 9 2
        follow 6 4 2
        send - - x1 plain
        send - - x1 plain epoch=5
        hw 9
        lead 7 5 isr=1,2 of=1,2
        latest",
        expect![[r#"
            send - - x1 plain                  NOT_LEADER_OR_FOLLOWER                       0 0 0 0
            lead 5 3 isr=1 of=1                                                             0 0 0 0
            send - - x1 plain epoch=4          FENCED_LEADER_EPOCH                          0 0 0 0
            send - - x1 plain epoch=6          UNKNOWN_LEADER_EPOCH                         0 0 0 0
            send - - x1 plain epoch=5          0..=0 hw 1                                   0 1 1 1
            lead 4 9 isr=1 of=1                FENCED_LEADER_EPOCH                          0 1 1 1
            lead 5 2 isr=1 of=1                INVALID_UPDATE_VERSION                       0 1 1 1
            follow 4 9 2                       FENCED_LEADER_EPOCH                          0 1 1 1
            follow 6 4 2                                                                    0 1 1 1
            send - - x1 plain                  NOT_LEADER_OR_FOLLOWER                       0 1 1 1
            send - - x1 plain epoch=5          FENCED_LEADER_EPOCH                          0 1 1 1
            hw 9                                                                            0 1 1 1
            lead 7 5 isr=1,2 of=1,2                                                         0 1 1 1
            latest                             1                                            0 1 1 1
        "#]],
    );
}

#[test]
fn a_new_leader_does_not_answer_the_latest_offset_too_early() {
    check(
        os(),
        "
        lead 0 0 isr=1,2 of=1,2
        send - - x3 plain
        latest
        follow 1 1 2
        lead 2 2 isr=1,2 of=1,2
        latest
        fetched 2 2 2
        latest
        fetched 2 3 3
        latest",
        expect![[r#"
            lead 0 0 isr=1,2 of=1,2                                                         0 0 0 0
            send - - x3 plain                  0..=2                                        0 0 0 3
            latest                             0                                            0 0 0 3
            follow 1 1 2                                                                    0 0 0 3
            lead 2 2 isr=1,2 of=1,2                                                         0 0 0 3
            latest                             OFFSET_NOT_AVAILABLE                         0 0 0 3
            fetched 2 2 2                      hw 2                                         0 2 2 3
            latest                             OFFSET_NOT_AVAILABLE                         0 2 2 3
            fetched 2 3 3                      hw 3                                         0 3 3 3
            latest                             3                                            0 3 3 3
        "#]],
    );
}

#[test]
fn a_cut_log_takes_its_transactions_and_producers_with_it() {
    check(
        os(),
        "
        lead 0 0 isr=1,2 of=1,2
        send 10/0 0 x2 txn v1
        send 11/0 0 x1
        fetched 2 3 3
        marker 10/0 abort coord=0 v1
        send 11/0 1 x1
        producers
        follow 1 1 2
        cut 3
        producers
        lead 2 2 isr=1 of=1,2
        marker 10/0 abort coord=0 v1
        cut 0
        producers",
        expect![[r#"
            lead 0 0 isr=1,2 of=1,2                                                         0 0 0 0
            send 10/0 0 x2 txn v1              0..=1                                        0 0 0 2
            send 11/0 0 x1                     2..=2                                        0 0 0 3
            fetched 2 3 3                      hw 3                                         0 0 3 3
            marker 10/0 abort coord=0 v1       aborted 0..=3 lso 4                          0 0 3 4
            send 11/0 1 x1                     4..=4                                        0 0 3 5
            producers                          10/0 seq 1 end 1 c0 txn -; 11/0 seq 1 end 4 c-1 txn - 0 0 3 5
            follow 1 1 2                                                                    0 0 3 5
            cut 3                                                                           0 0 3 3
            producers                          10/0 seq 1 end 1 c-1 txn 0; 11/0 seq 0 end 2 c-1 txn - 0 0 3 3
            lead 2 2 isr=1 of=1,2                                                           0 0 3 3
            marker 10/0 abort coord=0 v1       aborted 0..=3 lso 4                          0 4 4 4
            cut 0                                                                           0 0 0 0
            producers                                                                       0 0 0 0
        "#]],
    );
}

/// Under fsync the high watermark waits for flushed ends, so a follower with every byte and a disk that hangs must
/// leave the ISR like one that is gone; else acks=all would wait for ever.
#[test]
fn a_follower_whose_disk_hangs_leaves_the_isr() {
    check(
        Config::default(),
        "
        lead 1 1 isr=1,2 of=1,2
        isr 100 1000
        send - - x1 plain
        flush
        fetched 2 1 0
        isr 5000 1000",
        expect![[r#"
            lead 1 1 isr=1,2 of=1,2                                                         0 0 0 0
            isr 100 1000                       no change                                    0 0 0 0
            send - - x1 plain                  0..=0                                        0 0 0 1
            flush                                                                           0 0 0 1
            fetched 2 1 0                                                                   0 0 0 1
            isr 5000 1000                      ask 1                                        0 0 0 1
        "#]],
    );
}
