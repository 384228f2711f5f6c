//! Between requests and a log, without I/O.
//!
//! ```text
//!   committed ──▶ batch 7 ──▶ batch 8 ──▶ latest        handle() reads latest and adds a batch
//!       ▲           │            │                      committed(7) moves the committed state to 7 and lets
//!       └───────────┘            └ each keeps the       its answers go; rejected(7) drops 7 and 8
//!                                  state after it
//! ```

use std::collections::{BTreeMap, VecDeque};

use crate::machine::{Answer, Ctx, Outcome, StateMachine, TimerOp};

/// Counts the batches of one driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchNumber(pub u64);

/// How much a driver holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Batches the log has not decided, at the most.
    pub in_flight: usize,
    /// Requests parked, or about to be when a batch in flight commits, at the most.
    pub parked: usize,
}

/// Where a driver is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Follows the log: replay, no requests. The start, a follower's life, and where a lost lease leads.
    Following,
    /// Owns the log: requests, no replay.
    Active,
}

/// The driver is at a bound: the caller waits and asks again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Busy {
    /// Too many batches are in flight.
    #[error("too many changes in flight")]
    InFlight,
    /// Too many requests are parked.
    #[error("too many requests waiting")]
    Parked,
}

/// The shell told the driver something that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// The batch is not the oldest in flight (`committed`), or not in flight at all.
    #[error("batch {} is not the one the log decides next", .0.0)]
    NotNext(BatchNumber),
    /// Its fate is not known, so it can't be taken back: fence and load again.
    #[error("the fate of batch {} is unknown: it cannot be taken back", .0.0)]
    UnknownFate(BatchNumber),
    /// Not in this phase.
    #[error("not possible while {0:?}")]
    WrongPhase(Phase),
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended<R, E> {
    /// It was decided, and what it was decided on is committed.
    Answered(Result<R, E>),
    /// The driver was full: nothing happened.
    Busy(Busy),
    /// The log refused the change, or one that the decision was based on: nothing happened.
    Rejected,
    /// The log was lost with the change under way: it may happen or not.
    Unknown,
    /// The driver does not own the log, or lost it while the request was parked: nothing more will come.
    NotOwner,
    /// Another request took its place.
    Superseded,
}

/// A batch for the log.
#[derive(Debug)]
pub struct Appending<'a, M: StateMachine> {
    /// What `committed`, `rejected` and `unknown` will be told.
    pub number: BatchNumber,
    /// To be appended atomically, after every earlier batch.
    pub records: &'a [M::Record],
}

/// What a step brought: callers to answer and timers to change.
#[derive(Debug)]
pub struct Step<M: StateMachine, T> {
    /// Callers with their answers, in the order they were decided.
    #[allow(clippy::type_complexity)] // an alias would hide the bounds that Debug needs
    pub ended: Vec<(T, Ended<M::Reply, M::Error>)>,
    /// To change now.
    pub timers: Vec<TimerOp<M::Timer>>,
}

impl<M: StateMachine, T> Default for Step<M, T> {
    fn default() -> Self {
        Self { ended: Vec::new(), timers: Vec::new() }
    }
}

/// Runs a state machine against a log. `T` is the shell's handle of a caller: a channel, a connection's number.
pub struct Driver<M: StateMachine, T> {
    limits: Limits,
    phase: Phase,
    committed: M,
    in_flight: VecDeque<Batch<M, T>>,
    next_number: BatchNumber,
    parked: BTreeMap<M::Wait, T>,
    /// Parks among the answers held back, so that the bound counts them.
    parking: usize,
}

struct Batch<M: StateMachine, T> {
    number: BatchNumber,
    records: Vec<M::Record>,
    after: M,
    /// The decision that made it, and those that read its state and changed nothing.
    held: Vec<Held<M, T>>,
    is_unknown: bool,
}

struct Held<M: StateMachine, T> {
    token: T,
    answer: Result<Answer<M::Reply, M::Wait>, M::Error>,
    wake: Vec<(M::Wait, M::Reply)>,
    timers: Vec<TimerOp<M::Timer>>,
}

impl<M: StateMachine, T> Driver<M, T> {
    /// A driver that follows, from a state (empty, or a snapshot's).
    #[must_use]
    pub fn new(state: M, limits: Limits) -> Self {
        Self {
            limits,
            phase: Phase::Following,
            committed: state,
            in_flight: VecDeque::new(),
            next_number: BatchNumber(0),
            parked: BTreeMap::new(),
            parking: 0,
        }
    }

    /// Where it is in its life.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// What the log has: for queries, effects and snapshots.
    #[must_use]
    pub fn committed_state(&self) -> &M {
        &self.committed
    }

    /// With everything in flight: what the next decision reads.
    #[must_use]
    pub fn latest_state(&self) -> &M {
        self.in_flight.back().map_or(&self.committed, |batch| &batch.after)
    }

    /// How many batches are in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// How many requests are parked.
    #[must_use]
    pub fn parked(&self) -> usize {
        self.parked.len()
    }

    /// Work that committed state calls for.
    #[must_use]
    pub fn effects(&self) -> std::collections::BTreeSet<M::Effect> {
        self.committed.effects()
    }

    /// Applies what the log has. Only while following.
    pub fn replay<'a>(&mut self, records: impl IntoIterator<Item = &'a M::Record>) -> Result<(), DriverError>
    where
        M::Record: 'a,
    {
        self.expect(Phase::Following)?;
        records.into_iter().for_each(|record| self.committed.apply(record));
        Ok(())
    }

    /// Replaces the state by a snapshot's. Only while following.
    pub fn install(&mut self, state: M) -> Result<(), DriverError> {
        self.expect(Phase::Following)?;
        self.committed = state;
        Ok(())
    }

    /// Everything in the log has been replayed and the log is ours: takes requests from here on.
    pub fn activate(&mut self) -> Result<(), DriverError> {
        self.expect(Phase::Following)?;
        self.phase = Phase::Active;
        Ok(())
    }

    /// The log is no longer ours. Ends every request; the state goes back to what is committed, and following
    /// begins: what was in flight may still come by replay.
    pub fn fence(&mut self) -> Step<M, T> {
        let mut step = Step::default();
        self.phase = Phase::Following;
        self.parking = 0;
        for batch in self.in_flight.drain(..) {
            step.ended.extend(batch.held.into_iter().map(|held| (held.token, Ended::Unknown)));
        }
        let parked = std::mem::take(&mut self.parked);
        step.ended.extend(parked.into_values().map(|token| (token, Ended::NotOwner)));
        step
    }

    /// Decides on a request.
    ///
    /// Returns the batch to append, if the decision changes anything, and the callers that are answered at once:
    /// this one, if nothing it depends on is still in flight.
    pub fn handle(
        &mut self,
        ctx: &Ctx,
        request: M::Request,
        token: T,
    ) -> (Option<Appending<'_, M>>, Step<M, T>) {
        let mut step = Step::default();
        if self.phase != Phase::Active {
            step.ended.push((token, Ended::NotOwner));
            return (None, step);
        }
        // Asked before the decision: a batch that could not be kept must not be decided.
        if self.in_flight.len() >= self.limits.in_flight {
            step.ended.push((token, Ended::Busy(Busy::InFlight)));
            return (None, step);
        }
        let (records, held) = match self.latest_state().handle(ctx, request) {
            Ok(Outcome { records, answer, wake, timers }) => {
                if matches!(answer, Answer::Park(_)) {
                    if self.parked.len() + self.parking >= self.limits.parked {
                        step.ended.push((token, Ended::Busy(Busy::Parked)));
                        return (None, step);
                    }
                    self.parking += 1;
                }
                (records, Held { token, answer: Ok(answer), wake, timers })
            }
            Err(error) => {
                (Vec::new(), Held { token, answer: Err(error), wake: Vec::new(), timers: Vec::new() })
            }
        };
        if records.is_empty() {
            // What was read may still be refused, and then so is what was concluded from it.
            match self.in_flight.back_mut() {
                Some(batch) => batch.held.push(held),
                None => self.release(held, &mut step),
            }
            return (None, step);
        }
        let mut after = self.latest_state().clone();
        records.iter().for_each(|record| after.apply(record));
        let number = self.next_number;
        self.next_number = BatchNumber(number.0 + 1);
        self.in_flight.push_back(Batch { number, records, after, held: vec![held], is_unknown: false });
        let batch = self.in_flight.back().map(|batch| Appending { number, records: &batch.records });
        (batch, step)
    }

    /// The log has the oldest batch in flight.
    pub fn committed(&mut self, number: BatchNumber) -> Result<Step<M, T>, DriverError> {
        if self.in_flight.front().is_none_or(|batch| batch.number != number) {
            return Err(DriverError::NotNext(number));
        }
        let mut step = Step::default();
        if let Some(batch) = self.in_flight.pop_front() {
            self.committed = batch.after;
            for held in batch.held {
                self.release(held, &mut step);
            }
        }
        Ok(step)
    }

    /// The log refused a batch and so every later one.
    pub fn rejected(&mut self, number: BatchNumber) -> Result<Step<M, T>, DriverError> {
        let at = self.position(number)?;
        if let Some(unknown) = self.in_flight.iter().skip(at).find(|batch| batch.is_unknown) {
            return Err(DriverError::UnknownFate(unknown.number));
        }
        let mut step = Step::default();
        for held in self.in_flight.drain(at..).flat_map(|batch| batch.held) {
            self.parking -= usize::from(matches!(held.answer, Ok(Answer::Park(_))));
            step.ended.push((held.token, Ended::Rejected));
        }
        Ok(step)
    }

    /// Nobody can say whether the log has this batch. It stays in flight: append the same again, until it is
    /// decided or the log is lost.
    pub fn unknown(&mut self, number: BatchNumber) -> Result<Appending<'_, M>, DriverError> {
        let at = self.position(number)?;
        let batch = &mut self.in_flight[at];
        batch.is_unknown = true;
        Ok(Appending { number, records: &batch.records })
    }

    fn release(&mut self, held: Held<M, T>, step: &mut Step<M, T>) {
        match held.answer {
            Ok(Answer::Now(reply)) => step.ended.push((held.token, Ended::Answered(Ok(reply)))),
            Ok(Answer::Park(key)) => {
                self.parking -= 1;
                if let Some(earlier) = self.parked.insert(key, held.token) {
                    step.ended.push((earlier, Ended::Superseded));
                }
            }
            Err(error) => step.ended.push((held.token, Ended::Answered(Err(error)))),
        }
        for (key, reply) in held.wake {
            if let Some(token) = self.parked.remove(&key) {
                step.ended.push((token, Ended::Answered(Ok(reply))));
            }
        }
        step.timers.extend(held.timers);
    }

    fn position(&self, number: BatchNumber) -> Result<usize, DriverError> {
        self.in_flight.iter().position(|batch| batch.number == number).ok_or(DriverError::NotNext(number))
    }

    fn expect(&self, phase: Phase) -> Result<(), DriverError> {
        if self.phase == phase { Ok(()) } else { Err(DriverError::WrongPhase(self.phase)) }
    }
}
