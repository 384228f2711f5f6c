//! Answers that change nothing, held back until the leader knows that it still led when they were asked for.
//!
//! A leader that was cut off goes on for up to an election timeout. What it would write never commits, but what it
//! reads may be older than what its successor has acknowledged. So a majority is asked once more (the read index of
//! the Raft thesis, 6.4): whoever they confirm had nobody above them when they were asked.

use std::collections::VecDeque;

use crate::{error::Error, machine::Reply};

/// The most answers that are held back; beyond it callers are told to come back. As many as a shell keeps waiting.
const HELD_MAX: usize = 8192;

/// The answers held back, and the question that is under way: one at a time, for all that came before it.
#[derive(Debug)]
pub(crate) struct Reads<T> {
    held: VecDeque<Held<T>>,
    /// The last question that was asked of the majority.
    asked: u64,
    /// Whether it has no answer yet.
    is_waiting: bool,
}

#[derive(Debug)]
struct Held<T> {
    /// The question that must be answered first.
    question: u64,
    token: T,
    answer: Result<Reply, Error>,
}

impl<T> Reads<T> {
    pub(crate) fn new() -> Self {
        Self { held: VecDeque::new(), asked: 0, is_waiting: false }
    }

    /// Holds an answer back. Given back if there is no room.
    pub(crate) fn hold(&mut self, token: T, answer: Result<Reply, Error>) -> Result<(), T> {
        if self.held.len() >= HELD_MAX {
            return Err(token);
        }
        // A question that is under way may have been answered by some before this was decided.
        self.held.push_back(Held { question: self.asked + 1, token, answer });
        Ok(())
    }

    /// The question to ask now, if there is one.
    pub(crate) fn next_question(&mut self) -> Option<u64> {
        let is_needed = self.held.back().is_some_and(|held| held.question > self.asked);
        if self.is_waiting || !is_needed {
            return None;
        }
        self.asked += 1;
        self.is_waiting = true;
        Some(self.asked)
    }

    /// A majority has answered a question: what waited for it may go. One of an earlier leadership frees nothing.
    pub(crate) fn confirmed(&mut self, question: u64) -> Vec<(T, Result<Reply, Error>)> {
        self.is_waiting &= question < self.asked;
        let ready = self.held.iter().take_while(|held| held.question <= question).count();
        self.held.drain(..ready).map(|held| (held.token, held.answer)).collect()
    }

    /// Leadership is lost: nothing that was held back may be told.
    pub(crate) fn fail(&mut self) -> Vec<T> {
        self.is_waiting = false;
        self.held.drain(..).map(|held| held.token).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(confirmed: Vec<(u32, Result<Reply, Error>)>) -> Vec<u32> {
        confirmed.into_iter().map(|(token, _)| token).collect()
    }

    #[test]
    fn one_question_serves_all_that_came_before_it() {
        let mut reads = Reads::new();
        assert_eq!(reads.next_question(), None);
        for token in 1..=3_u32 {
            reads.hold(token, Ok(Reply::Done)).unwrap();
        }
        assert_eq!((reads.next_question(), reads.next_question()), (Some(1), None));
        // Too late for the question under way.
        reads.hold(4, Ok(Reply::Done)).unwrap();
        assert_eq!(reads.next_question(), None);
        assert_eq!(tokens(reads.confirmed(1)), [1, 2, 3]);
        assert_eq!(reads.next_question(), Some(2));
        assert_eq!(tokens(reads.confirmed(1)), []);
        assert_eq!(reads.next_question(), None);
        assert_eq!(tokens(reads.confirmed(2)), [4]);
        assert_eq!(reads.next_question(), None);
    }

    #[test]
    fn a_lost_leadership_confirms_nothing() {
        let mut reads = Reads::new();
        reads.hold(1_u32, Ok(Reply::Done)).unwrap();
        assert_eq!(reads.next_question(), Some(1));
        reads.hold(2, Ok(Reply::Done)).unwrap();
        assert_eq!(reads.fail(), [1, 2]);
        reads.hold(3, Ok(Reply::Done)).unwrap();
        assert_eq!(reads.next_question(), Some(2));
        assert_eq!(tokens(reads.confirmed(1)), []);
        assert_eq!(tokens(reads.confirmed(2)), [3]);
    }

    #[test]
    fn what_is_held_is_bounded() {
        let mut reads = Reads::new();
        for token in 0..HELD_MAX {
            reads.hold(token, Ok(Reply::Done)).unwrap();
        }
        assert_eq!(reads.hold(HELD_MAX, Ok(Reply::Done)), Err(HELD_MAX));
    }
}
