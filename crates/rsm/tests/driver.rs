//! The driver's properties, on a machine small enough to check by hand: a register with waiters.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proptest::prelude::*;
use semel_model::{Millis, Timestamp};
use semel_rsm::{
    Answer, BatchNumber, Busy, Ctx, Draft, Driver, DriverError, Ended, Limits, Outcome, Phase, StateMachine,
    Step, TimerOp,
};

/// Adds numbers; `Wait(n)` is answered when the sum has passed `n`.
#[derive(Clone, Debug, Default, PartialEq)]
struct Sum {
    total: u64,
    waits: BTreeSet<u64>,
}

#[derive(Clone, Debug, PartialEq)]
enum Record {
    Added(u64),
    Waiting(u64),
    Woken(u64),
}

#[derive(Clone, Debug)]
enum Request {
    Add(u64),
    Wait(u64),
    Read,
    Fail,
}

impl StateMachine for Sum {
    type Request = Request;
    type Reply = u64;
    type Error = u64;
    type Record = Record;
    type Wait = u64;
    type Timer = u64;
    type Effect = u64;

    fn handle(&self, _: &Ctx, request: Request) -> Result<Outcome<Self>, u64> {
        match request {
            Request::Add(n) => {
                let mut draft = Draft::on(self);
                draft.push(Record::Added(n));
                let total = draft.total;
                let woken: Vec<u64> = draft.waits.iter().copied().filter(|wait| *wait < total).collect();
                woken.iter().for_each(|wait| draft.push(Record::Woken(*wait)));
                let outcome = Outcome::write(draft.into_records(), total);
                Ok(woken.into_iter().fold(outcome, |outcome, wait| outcome.waking(wait, total)))
            }
            Request::Wait(n) if self.total > n => Ok(Outcome::read(self.total)),
            Request::Wait(n) => {
                Ok(Outcome::park(vec![Record::Waiting(n)], n).timing(TimerOp::Set(n, Millis(5))))
            }
            Request::Read => Ok(Outcome::read(self.total)),
            Request::Fail => Err(self.total),
        }
    }

    fn apply(&mut self, record: &Record) {
        match record {
            Record::Added(n) => self.total += n,
            Record::Waiting(n) => drop(self.waits.insert(*n)),
            Record::Woken(n) => drop(self.waits.remove(n)),
        }
    }

    fn effects(&self) -> BTreeSet<u64> {
        self.waits.clone()
    }
}

const CTX: Ctx = Ctx { now: Timestamp(0), position: 0, entropy: 0 };
const LIMITS: Limits = Limits { in_flight: 4, parked: 3 };

fn active() -> Driver<Sum, u32> {
    let mut driver = Driver::new(Sum::default(), LIMITS);
    driver.activate().unwrap();
    driver
}

type Answers = Vec<(u32, Ended<u64, u64>)>;

fn ask(driver: &mut Driver<Sum, u32>, request: Request, token: u32) -> (Option<BatchNumber>, Answers) {
    let (batch, step) = driver.handle(&CTX, request, token);
    (batch.map(|batch| batch.number), step.ended)
}

#[test]
fn answers_wait_for_what_they_were_decided_on() {
    let mut driver = active();
    let (batch, ended) = ask(&mut driver, Request::Add(5), 1);
    assert!(ended.is_empty());
    assert_eq!(ask(&mut driver, Request::Read, 2), (None, Vec::new()));
    assert_eq!(ask(&mut driver, Request::Fail, 3), (None, Vec::new()));
    assert_eq!((driver.committed_state().total, driver.latest_state().total), (0, 5));
    let step = driver.committed(batch.unwrap()).unwrap();
    let answers =
        vec![(1, Ended::Answered(Ok(5))), (2, Ended::Answered(Ok(5))), (3, Ended::Answered(Err(5)))];
    assert_eq!(step.ended, answers);
    assert_eq!(ask(&mut driver, Request::Read, 4).1, vec![(4, Ended::Answered(Ok(5)))]);
}

#[test]
fn a_refused_batch_takes_later_ones_with_it() {
    let mut driver = active();
    let first = ask(&mut driver, Request::Add(1), 1).0.unwrap();
    let second = ask(&mut driver, Request::Add(2), 2).0.unwrap();
    ask(&mut driver, Request::Wait(9), 3);
    ask(&mut driver, Request::Read, 4);
    assert_eq!(driver.committed(second).unwrap_err(), DriverError::NotNext(second));
    let step = driver.rejected(second).unwrap();
    assert_eq!(step.ended, [2, 3, 4].map(|token| (token, Ended::Rejected)));
    assert_eq!(driver.latest_state().total, 1);
    assert_eq!(driver.committed(first).unwrap().ended, vec![(1, Ended::Answered(Ok(1)))]);
    assert_eq!(driver.parked(), 0);
}

#[test]
fn an_unknown_batch_is_never_taken_back() {
    let mut driver = active();
    let first = ask(&mut driver, Request::Add(1), 1).0.unwrap();
    assert_eq!(driver.unknown(first).unwrap().records, [Record::Added(1)]);
    assert_eq!(driver.rejected(first).unwrap_err(), DriverError::UnknownFate(first));
    assert_eq!(driver.fence().ended, vec![(1, Ended::Unknown)]);
    assert_eq!((driver.phase(), driver.latest_state().total), (Phase::Following, 0));
    // It had been written after all.
    driver.replay(&[Record::Added(1)]).unwrap();
    driver.activate().unwrap();
    assert_eq!(ask(&mut driver, Request::Read, 2).1, vec![(2, Ended::Answered(Ok(1)))]);
}

#[test]
fn parked_requests_are_woken_superseded_or_ended() {
    let mut driver = active();
    let parks = |driver: &mut Driver<Sum, u32>, at: u64, token| {
        let batch = ask(driver, Request::Wait(at), token).0.unwrap();
        let step = driver.committed(batch).unwrap();
        assert_eq!(step.timers, vec![TimerOp::Set(at, Millis(5))]);
        step.ended
    };
    assert_eq!(parks(&mut driver, 3, 1), vec![]);
    assert_eq!(parks(&mut driver, 3, 2), vec![(1, Ended::Superseded)]);
    assert_eq!(parks(&mut driver, 9, 3), vec![]);
    assert_eq!(driver.effects(), BTreeSet::from([3, 9]));
    let batch = ask(&mut driver, Request::Add(4), 4).0.unwrap();
    let ended = driver.committed(batch).unwrap().ended;
    assert_eq!(ended, vec![(4, Ended::Answered(Ok(4))), (2, Ended::Answered(Ok(4)))]);
    assert_eq!(driver.fence().ended, vec![(3, Ended::NotOwner)]);
    assert_eq!(ask(&mut driver, Request::Read, 5).1, vec![(5, Ended::NotOwner)]);
}

#[test]
fn bounds_are_answers() {
    let mut driver = active();
    for token in 0..4 {
        assert!(ask(&mut driver, Request::Add(1), token).0.is_some());
    }
    assert_eq!(ask(&mut driver, Request::Add(1), 9).1, vec![(9, Ended::Busy(Busy::InFlight))]);
    let mut driver = active();
    for token in 0..3 {
        assert!(ask(&mut driver, Request::Wait(u64::from(token)), token).0.is_some());
    }
    assert_eq!(ask(&mut driver, Request::Wait(7), 9).1, vec![(9, Ended::Busy(Busy::Parked))]);
}

#[derive(Clone, Debug)]
enum Action {
    Ask(Request),
    Commit,
    Reject(usize),
    Unknown(usize),
    /// The log is lost; this many of the batches in flight had been written.
    Fence(usize),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => (1..5_u64).prop_map(|n| Action::Ask(Request::Add(n))),
        2 => (0..40_u64).prop_map(|n| Action::Ask(Request::Wait(n))),
        1 => Just(Action::Ask(Request::Read)),
        1 => Just(Action::Ask(Request::Fail)),
        4 => Just(Action::Commit),
        1 => (0..4_usize).prop_map(Action::Reject),
        1 => (0..4_usize).prop_map(Action::Unknown),
        1 => (0..4_usize).prop_map(Action::Fence),
    ]
}

proptest! {
    #[test]
    fn committed_state_is_the_replay_of_the_log(actions in prop::collection::vec(action(), 0..80)) {
        let mut driver = active();
        let mut log: Vec<Record> = Vec::new();
        let mut flying: VecDeque<(BatchNumber, Vec<Record>)> = VecDeque::new();
        let mut open: BTreeMap<u32, ()> = BTreeMap::new();
        let mut token = 0;
        for action in actions {
            let step = match action {
                Action::Ask(request) => {
                    token += 1;
                    open.insert(token, ());
                    let (batch, step) = driver.handle(&CTX, request, token);
                    if let Some(batch) = batch {
                        flying.push_back((batch.number, batch.records.to_vec()));
                    }
                    step
                }
                Action::Commit => match flying.pop_front() {
                    Some((number, records)) => {
                        log.extend(records);
                        driver.committed(number).unwrap()
                    }
                    None => Step::default(),
                },
                Action::Reject(at) => match flying.get(at).map(|batch| batch.0) {
                    Some(number) => match driver.rejected(number) {
                        Ok(step) => {
                            flying.truncate(at);
                            step
                        }
                        Err(error) => {
                            prop_assert!(matches!(error, DriverError::UnknownFate(_)));
                            Step::default()
                        }
                    },
                    None => Step::default(),
                },
                Action::Unknown(at) => {
                    if let Some((number, records)) = flying.get(at) {
                        prop_assert_eq!(driver.unknown(*number).unwrap().records, &records[..]);
                    }
                    Step::default()
                }
                Action::Fence(written) => {
                    let step = driver.fence();
                    let kept: Vec<Record> = flying.drain(..).take(written).flat_map(|batch| batch.1).collect();
                    driver.replay(&kept).unwrap();
                    log.extend(kept);
                    driver.activate().unwrap();
                    step
                }
            };
            for (token, _) in step.ended {
                prop_assert!(open.remove(&token).is_some(), "answered twice");
            }
            let mut replayed = Sum::default();
            log.iter().for_each(|record| replayed.apply(record));
            prop_assert_eq!(driver.committed_state(), &replayed);
            flying.iter().flat_map(|batch| &batch.1).for_each(|record| replayed.apply(record));
            prop_assert_eq!(driver.latest_state(), &replayed);
            prop_assert!(driver.in_flight() <= LIMITS.in_flight && driver.parked() <= LIMITS.parked);
        }
        for (token, _) in driver.fence().ended {
            prop_assert!(open.remove(&token).is_some());
        }
        prop_assert!(open.is_empty(), "never answered: {:?}", open);
    }

    #[test]
    fn an_outcome_with_no_records_is_a_read(n in 0..9_u64) {
        let outcome = Sum { total: n, ..Sum::default() }.handle(&CTX, Request::Read).unwrap();
        prop_assert!(outcome.records.is_empty());
        prop_assert_eq!(outcome.answer, Answer::Now(n));
    }
}
