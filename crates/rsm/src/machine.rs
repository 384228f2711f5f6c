//! What a replicated state machine is.

use std::{collections::BTreeSet, ops::Deref};

use semel_model::{Millis, Timestamp};

/// State that changes only by records in a log: one partition of an internal topic, or the metadata log.
///
/// `Clone` must be cheap, since the [`Driver`](crate::Driver) keeps one for each batch in flight: state lives in
/// persistent ordered maps (`imbl`).
pub trait StateMachine: Clone {
    /// What callers ask.
    type Request;
    /// What they are answered.
    type Reply: Clone;
    /// Why they are refused.
    type Error;
    /// What changes the state.
    type Record;
    /// What a parked request waits for.
    type Wait: Ord + Clone;
    /// What a timer is for.
    type Timer;
    /// Work outside that committed state calls for.
    type Effect: Ord;

    /// Reads the latest state and decides. It cannot change anything: `&self` is the point.
    fn handle(&self, ctx: &Ctx, request: Self::Request) -> Result<Outcome<Self>, Self::Error>;

    /// The only way state changes. Total and deterministic; the time it needs is in the record.
    fn apply(&mut self, record: &Self::Record);

    /// Work outside that *committed* state calls for (markers to write, …). A new owner finds it again.
    fn effects(&self) -> BTreeSet<Self::Effect>;
}

/// What a decision may depend on besides state and request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ctx {
    /// The time of the request.
    pub now: Timestamp,
    /// The position the decision's batch gets in the log if it is appended next: a Raft index, an offset.
    pub position: u64,
    /// Random bits for this request alone, for ids and placement.
    pub entropy: u128,
}

/// A decision.
#[derive(Debug)]
pub struct Outcome<M: StateMachine> {
    /// One atomic batch.
    pub records: Vec<M::Record>,
    /// What the caller gets, when the records commit.
    pub answer: Answer<M::Reply, M::Wait>,
    /// Parked requests (a classic JoinGroup) answered at the same time.
    pub wake: Vec<(M::Wait, M::Reply)>,
    /// Soft state, rebuilt on load; a firing is one more request.
    pub timers: Vec<TimerOp<M::Timer>>,
}

/// When the caller is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer<R, W> {
    /// As soon as the records commit.
    Now(R),
    /// When a later decision wakes this key. A key parks one request: a second one under it ends the first as
    /// [`Ended::Superseded`](crate::Ended::Superseded).
    Park(W),
}

/// A change of the shell's timers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TimerOp<T> {
    /// Fire after this long; replaces an earlier one of the same key.
    Set(T, Millis),
    /// Do not fire.
    Cancel(T),
}

impl<M: StateMachine> Outcome<M> {
    /// An answer that changes nothing.
    #[must_use]
    pub fn read(reply: M::Reply) -> Self {
        Self::write(Vec::new(), reply)
    }

    /// Records, and an answer when they commit.
    #[must_use]
    pub fn write(records: Vec<M::Record>, reply: M::Reply) -> Self {
        Self { records, answer: Answer::Now(reply), wake: Vec::new(), timers: Vec::new() }
    }

    /// Records, and an answer when a later decision wakes `key`.
    #[must_use]
    pub fn park(records: Vec<M::Record>, key: M::Wait) -> Self {
        Self { records, answer: Answer::Park(key), wake: Vec::new(), timers: Vec::new() }
    }

    /// Also answers a parked request.
    #[must_use]
    pub fn waking(mut self, key: M::Wait, reply: M::Reply) -> Self {
        self.wake.push((key, reply));
        self
    }

    /// Also changes a timer.
    #[must_use]
    pub fn timing(mut self, timer: TimerOp<M::Timer>) -> Self {
        self.timers.push(timer);
        self
    }
}

/// A copy of the state on which a handler sees the effect of the records it is about to return.
#[derive(Clone, Debug)]
pub struct Draft<M: StateMachine> {
    state: M,
    records: Vec<M::Record>,
}

impl<M: StateMachine> Draft<M> {
    /// A draft that starts from `state`.
    #[must_use]
    pub fn on(state: &M) -> Self {
        Self { state: state.clone(), records: Vec::new() }
    }

    /// Adds a record and applies it to the draft.
    pub fn push(&mut self, record: M::Record) {
        self.state.apply(&record);
        self.records.push(record);
    }

    /// Whether nothing was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The batch.
    #[must_use]
    pub fn into_records(self) -> Vec<M::Record> {
        self.records
    }
}

/// The state with the records added so far.
impl<M: StateMachine> Deref for Draft<M> {
    type Target = M;

    fn deref(&self) -> &M {
        &self.state
    }
}
