//! Random runs of a leader, with a model of what its log may hold.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use semel_model::{
    BrokerId, CoordinatorEpoch, LeaderEpoch, Offset, PartitionEpoch, ProducerEpoch, ProducerId, Sequence,
    Timestamp,
};
use semel_record::{
    BatchBuilder, BatchHeader, EndTransactionMarker, Outcome, ProducerSnapshotEntry, control::end_txn_marker,
};

use crate::{
    Acks, AppendContext, Config, Durability, Error, FollowerPosition, LeaderState, MarkerVerdict, Origin,
    RecoveredLog, Replica, TransactionVerification, TransactionVersion, Verdict,
};

const NOW: Timestamp = Timestamp(1_000_000);

#[derive(Clone, Debug)]
enum Action {
    /// The next batch of a producer.
    Send {
        producer: usize,
        count: i32,
        transactional: bool,
    },
    /// One of the last batches again, `back` from the newest.
    Retry {
        producer: usize,
        back: usize,
    },
    /// A batch that leaves out some sequences.
    Gap {
        producer: usize,
        by: i32,
    },
    End {
        producer: usize,
        commit: bool,
    },
    Bump {
        producer: usize,
    },
    Plain {
        count: i32,
    },
    Flush {
        part: u8,
    },
    Fetch {
        part: u8,
        flushed: u8,
    },
    DeleteRecords {
        part: u8,
    },
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let producer = 0_usize..4;
    let action = prop_oneof![
        6 => (producer.clone(), 1..4, any::<bool>())
            .prop_map(|(producer, count, transactional)| Action::Send { producer, count, transactional }),
        3 => (producer.clone(), 0_usize..8).prop_map(|(producer, back)| Action::Retry { producer, back }),
        1 => (producer.clone(), 1..5).prop_map(|(producer, by)| Action::Gap { producer, by }),
        2 => (producer.clone(), any::<bool>()).prop_map(|(producer, commit)| Action::End { producer, commit }),
        1 => producer.prop_map(|producer| Action::Bump { producer }),
        2 => (1..4).prop_map(|count| Action::Plain { count }),
        2 => any::<u8>().prop_map(|part| Action::Flush { part }),
        3 => (any::<u8>(), any::<u8>()).prop_map(|(part, flushed)| Action::Fetch { part, flushed }),
        1 => any::<u8>().prop_map(|part| Action::DeleteRecords { part }),
    ];
    proptest::collection::vec(action, 1..120)
}

type Entry = (BatchHeader, Option<EndTransactionMarker>);

/// A producer as its client knows it.
#[derive(Clone, Debug)]
struct Client {
    epoch: ProducerEpoch,
    next: Sequence,
    /// This epoch's batches: first sequence, count, offset, transactional.
    sent: Vec<(Sequence, i32, Offset, bool)>,
    in_transaction: bool,
}

struct Run {
    replica: Replica,
    log: Vec<Entry>,
    clients: Vec<Client>,
    // What consumers have seen, which never goes back.
    log_start_offset: Offset,
    last_stable_offset: Offset,
    high_watermark: Offset,
}

const FOLLOWER: BrokerId = BrokerId(2);

impl Run {
    fn new(durability: Durability, first: Sequence) -> Self {
        let config = Config { durability, ..Config::default() };
        let mut replica = Replica::recovered(BrokerId(1), config, log_of(Offset(0), Offset(0)), &[], NOW);
        let isr = BTreeSet::from([BrokerId(1), FOLLOWER]);
        let state = LeaderState {
            leader_epoch: LeaderEpoch(0),
            partition_epoch: PartitionEpoch(0),
            isr: isr.clone(),
            replicas: isr,
        };
        replica.become_leader(state, NOW).unwrap();
        let client = Client { epoch: ProducerEpoch(0), next: first, sent: Vec::new(), in_transaction: false };
        Self {
            replica,
            log: Vec::new(),
            clients: vec![client; 4],
            log_start_offset: Offset(0),
            last_stable_offset: Offset(0),
            high_watermark: Offset(0),
        }
    }

    fn batch(&self, producer: usize, sequence: Sequence, count: i32, transactional: bool) -> BatchHeader {
        let mut builder =
            BatchBuilder::new().producer(ProducerId(producer as i64), self.clients[producer].epoch, sequence);
        if transactional {
            builder = builder.transactional();
        }
        for _ in 0..count {
            builder.push(NOW, None, None, &[]);
        }
        builder.build().unwrap().header
    }

    fn append(&mut self, header: BatchHeader, marker: Option<EndTransactionMarker>, at: Offset) {
        assert_eq!(at, self.replica.log_end_offset());
        let header = header.stamped(at, LeaderEpoch(0));
        let applied = self.replica.apply(&header, marker.as_ref(), NOW);
        assert_eq!(applied.last_offset, header.last_offset());
        self.log.push((header, marker));
    }

    fn check(&self, header: &BatchHeader) -> Result<Verdict, Error> {
        let context = AppendContext {
            acks: Acks::All,
            origin: Origin::Client,
            current_leader_epoch: Some(LeaderEpoch(0)),
            verification: TransactionVerification::Verified,
        };
        self.replica.check_append(header, &context)
    }

    fn step(&mut self, action: &Action) {
        match *action {
            Action::Send { producer, count, transactional } => {
                let client = &self.clients[producer];
                let header = self.batch(producer, client.next, count, transactional);
                match self.check(&header) {
                    Ok(Verdict::Append { base_offset, .. }) => {
                        assert!(transactional || !client.in_transaction);
                        let client = &mut self.clients[producer];
                        client.sent.push((client.next, count, base_offset, transactional));
                        client.next = client.next.plus(count);
                        client.in_transaction |= transactional;
                        self.append(header, None, base_offset);
                    }
                    refused => {
                        assert!(client.in_transaction && !transactional);
                        assert_eq!(refused, Err(Error::InvalidTxnState { producer_id: header.producer_id }));
                    }
                }
            }
            Action::Retry { producer, back } => {
                let sent = &self.clients[producer].sent;
                let Some(&(sequence, count, offset, transactional)) = sent.iter().rev().nth(back) else {
                    return;
                };
                let header = self.batch(producer, sequence, count, transactional);
                let verdict = self.check(&header);
                if back < 5 {
                    let last_offset = offset.plus(i64::from(count) - 1);
                    assert_eq!(
                        verdict,
                        Ok(Verdict::Duplicate { base_offset: offset, last_offset, append_time: NOW })
                    );
                } else {
                    assert!(matches!(verdict, Err(Error::OutOfOrderSequenceNumber { .. })), "{verdict:?}");
                }
            }
            Action::Gap { producer, by } => {
                let client = &self.clients[producer];
                let header = self.batch(producer, client.next.plus(by), 1, client.in_transaction);
                // Of a producer that is not known here, any sequence is taken.
                let known = self.log.iter().any(|(batch, _)| batch.producer_id == header.producer_id);
                if known {
                    assert!(matches!(self.check(&header), Err(Error::OutOfOrderSequenceNumber { .. })));
                }
            }
            Action::End { producer, commit } => {
                let marker = EndTransactionMarker {
                    outcome: if commit { Outcome::Commit } else { Outcome::Abort },
                    coordinator_epoch: CoordinatorEpoch(0),
                };
                let client = &self.clients[producer];
                let header = end_txn_marker(marker, ProducerId(producer as i64), client.epoch, NOW).header;
                match self.replica.check_marker(&header, &marker, TransactionVersion::V1).unwrap() {
                    MarkerVerdict::Append { base_offset, .. } => {
                        self.append(header, Some(marker), base_offset);
                        // A marker of a producer that wrote nothing leaves it with sequence 0 to begin with.
                        let client = &mut self.clients[producer];
                        if client.sent.is_empty() {
                            client.next = Sequence::FIRST;
                        }
                        client.in_transaction = false;
                    }
                    MarkerVerdict::AlreadyEnded => assert!(!client.in_transaction),
                }
            }
            Action::Bump { producer } => {
                if self.clients[producer].in_transaction {
                    return;
                }
                let old = self.clients[producer].clone();
                let client = &mut self.clients[producer];
                client.epoch.0 += 1;
                client.next = Sequence::FIRST;
                client.sent.clear();
                self.step(&Action::Send { producer, count: 1, transactional: false });
                // Fenced from now on, whatever it sends.
                let new = std::mem::replace(&mut self.clients[producer], old);
                for &(sequence, count, _, transactional) in &self.clients[producer].sent.clone() {
                    let late = self.batch(producer, sequence, count, transactional);
                    assert!(matches!(self.check(&late), Err(Error::InvalidProducerEpoch { .. })));
                }
                let late = self.batch(producer, self.clients[producer].next, 1, false);
                assert!(matches!(self.check(&late), Err(Error::InvalidProducerEpoch { .. })));
                self.clients[producer] = new;
            }
            Action::Plain { count } => {
                let mut builder = BatchBuilder::new();
                for _ in 0..count {
                    builder.push(NOW, None, None, &[]);
                }
                let header = builder.build().unwrap().header;
                let Ok(Verdict::Append { base_offset, .. }) = self.check(&header) else { panic!("refused") };
                self.append(header, None, base_offset);
            }
            Action::Flush { part } => {
                let end = share(self.replica.log_end_offset(), part);
                self.replica.flushed(end);
            }
            Action::Fetch { part, flushed } => {
                let log_end_offset = share(self.replica.log_end_offset(), part);
                let position = FollowerPosition {
                    leader_epoch: LeaderEpoch(0),
                    log_end_offset,
                    flushed_end: share(log_end_offset, flushed),
                };
                self.replica.follower_fetched(FOLLOWER, position, NOW).unwrap();
            }
            Action::DeleteRecords { part } => {
                self.replica.log_start_moved(share(self.replica.high_watermark(), part));
            }
        }
    }

    /// Invariants 3 and 4, and that nothing a consumer has seen is taken back.
    fn assert_invariants(&mut self) {
        self.replica.invariants().unwrap();
        assert!(self.log_start_offset <= self.replica.log_start_offset());
        assert!(self.high_watermark <= self.replica.high_watermark());
        assert!(self.last_stable_offset <= self.replica.last_stable_offset());
        self.log_start_offset = self.replica.log_start_offset();
        self.high_watermark = self.replica.high_watermark();
        self.last_stable_offset = self.replica.last_stable_offset();

        let mut last: BTreeMap<(ProducerId, ProducerEpoch), Sequence> = BTreeMap::new();
        let mut open: BTreeMap<ProducerId, Offset> = BTreeMap::new();
        let mut undecided = self.replica.high_watermark();
        for (header, marker) in &self.log {
            if marker.is_some() {
                // Decided, but not for readers while the marker is not replicated.
                if let Some(first) = open.remove(&header.producer_id)
                    && header.base_offset >= self.replica.high_watermark()
                {
                    undecided = undecided.min(first);
                }
                continue;
            }
            if header.is_idempotent() {
                let before = last.insert((header.producer_id, header.producer_epoch), header.last_sequence());
                if let Some(before) = before {
                    assert_eq!(
                        before.next(),
                        header.base_sequence,
                        "sequences are in the log once, in order"
                    );
                }
            }
            if header.attributes.is_transactional() {
                open.entry(header.producer_id).or_insert(header.base_offset);
            }
        }
        let first_open = open.values().copied().fold(undecided, Offset::min);
        assert_eq!(self.replica.last_stable_offset(), first_open.max(self.replica.log_start_offset()));
    }
}

fn log_of(end: Offset, high_watermark: Offset) -> RecoveredLog {
    RecoveredLog { log_start_offset: Offset(0), log_end_offset: end, high_watermark, flushed_end: end }
}

fn share(of: Offset, part: u8) -> Offset {
    Offset(of.0 * i64::from(part) / 255)
}

fn recovered(run: &Run, snapshot: &[ProducerSnapshotEntry], before: usize) -> Replica {
    let log = RecoveredLog {
        log_start_offset: run.replica.log_start_offset(),
        log_end_offset: run.replica.log_end_offset(),
        high_watermark: run.replica.high_watermark(),
        flushed_end: run.replica.flushed_end(),
    };
    let mut replica = Replica::recovered(BrokerId(1), *run.replica.config(), log, snapshot, NOW);
    for (header, _) in run.log[..before].iter().rev() {
        replica.recall(header);
    }
    for (header, marker) in &run.log[before..] {
        replica.replay(header, marker.as_ref(), NOW);
    }
    replica
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn a_leader_keeps_its_promises_and_its_log_gives_its_state_back(
        actions in actions(),
        durability in prop_oneof![Just(Durability::Fsync), Just(Durability::Interval), Just(Durability::Os)],
        first in prop_oneof![Just(Sequence(0)), Just(Sequence(i32::MAX - 5)), Just(Sequence(1000))],
        snapshot_at in any::<prop::sample::Index>(),
    ) {
        let mut run = Run::new(durability, first);
        let snapshot_at = snapshot_at.index(actions.len());
        let mut snapshot = (Vec::new(), 0);
        for (at, action) in actions.iter().enumerate() {
            if at == snapshot_at {
                snapshot = (run.replica.snapshot_producers(), run.log.len());
            }
            run.step(action);
            run.assert_invariants();
        }
        // The whole log.
        let replayed = recovered(&run, &[], 0);
        prop_assert_eq!(replayed.producers.persisted(), run.replica.producers.persisted());
        prop_assert_eq!(&replayed.transactions, &run.replica.transactions);
        prop_assert_eq!(replayed.last_stable_offset(), run.replica.last_stable_offset());
        replayed.invariants().unwrap();
        // A snapshot, what it lost, and the tail.
        let loaded = recovered(&run, &snapshot.0, snapshot.1);
        prop_assert_eq!(loaded.producers.persisted(), run.replica.producers.persisted());
        loaded.invariants().unwrap();
        // A follower that gets the same batches.
        let mut follower =
            Replica::recovered(FOLLOWER, *run.replica.config(), log_of(Offset(0), Offset(0)), &[], NOW);
        for (header, marker) in &run.log {
            follower.apply(header, marker.as_ref(), NOW);
            follower.invariants().unwrap();
        }
        prop_assert_eq!(follower.producers.persisted(), run.replica.producers.persisted());
    }

    #[test]
    fn a_cut_log_is_as_if_the_rest_had_never_been(
        actions in actions(),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut run = Run::new(Durability::Os, Sequence(0));
        for action in &actions {
            run.step(action);
        }
        let kept = cut.index(run.log.len() + 1);
        let end = if kept == 0 { Offset(0) } else { run.log[kept - 1].0.next_offset() };
        run.log.truncate(kept);
        run.replica.truncated(end);
        run.replica.reload(&[], NOW);
        for (header, marker) in &run.log {
            run.replica.replay(header, marker.as_ref(), NOW);
        }
        run.replica.invariants().unwrap();
        let fresh = recovered(&run, &[], 0);
        prop_assert_eq!(fresh.producers.persisted(), run.replica.producers.persisted());
        prop_assert_eq!(fresh.last_stable_offset(), run.replica.last_stable_offset());
    }
}
