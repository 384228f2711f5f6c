//! The loop's inbox: many senders, one receiver that also wakes for its ticks.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::Duration,
};

/// Why an event was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotTaken {
    /// As many wait as may.
    Full,
    /// The loop has ended.
    Closed,
}

/// The sending and the receiving side in one. Cheap to clone.
pub(crate) struct Inbox<E>(Arc<Shared<E>>);

struct Shared<E> {
    state: Mutex<State<E>>,
    arrived: Condvar,
    bound: usize,
}

struct State<E> {
    events: VecDeque<E>,
    is_closed: bool,
}

impl<E> Clone for Inbox<E> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<E> Inbox<E> {
    pub(crate) fn new(bound: usize) -> Self {
        let state = Mutex::new(State { events: VecDeque::new(), is_closed: false });
        Self(Arc::new(Shared { state, arrived: Condvar::new(), bound }))
    }

    /// Adds an event unless the inbox is full.
    pub(crate) fn offer(&self, event: E) -> Result<(), NotTaken> {
        self.add(event, self.0.bound)
    }

    /// Adds an event that must not be lost. Only for those that are bounded elsewhere: one for each stream or
    /// peer.
    pub(crate) fn note(&self, event: E) {
        // A loop that has ended needs no notes.
        let _ = self.add(event, usize::MAX);
    }

    /// From now on nothing is taken; what waits is dropped, and with it the callers' answers.
    pub(crate) fn close(&self) {
        let waiting = {
            let mut state = self.lock();
            state.is_closed = true;
            std::mem::take(&mut state.events)
        };
        drop(waiting);
    }

    /// Waits for events, at most this long; takes up to `count_max`.
    pub(crate) fn take(&self, within: Duration, count_max: usize) -> Vec<E> {
        let state = self.lock();
        let is_idle = |state: &mut State<E>| state.events.is_empty();
        let waited = self.0.arrived.wait_timeout_while(state, within, is_idle);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let count = state.events.len().min(count_max);
        state.events.drain(..count).collect()
    }

    fn add(&self, event: E, bound: usize) -> Result<(), NotTaken> {
        let mut state = self.lock();
        if state.is_closed {
            return Err(NotTaken::Closed);
        }
        if state.events.len() >= bound {
            return Err(NotTaken::Full);
        }
        state.events.push_back(event);
        drop(state);
        self.0.arrived.notify_one();
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State<E>> {
        // No code that can panic runs under the lock.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_bounded_and_notes_are_not_lost() {
        let inbox = Inbox::new(2);
        assert_eq!((inbox.offer(1), inbox.offer(2), inbox.offer(3)), (Ok(()), Ok(()), Err(NotTaken::Full)));
        inbox.note(4);
        assert_eq!(inbox.take(Duration::ZERO, 2), [1, 2]);
        assert_eq!(inbox.take(Duration::ZERO, 9), [4]);
        assert_eq!(inbox.take(Duration::from_millis(1), 9), [0; 0]);
        inbox.offer(5).unwrap();
        inbox.close();
        assert_eq!((inbox.offer(6), inbox.take(Duration::ZERO, 9)), (Err(NotTaken::Closed), vec![]));
    }
}
