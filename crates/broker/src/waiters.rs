//! Who waits for a partition to move: producers for the high watermark, consumers for something to read.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use semel_model::Offset;
use tokio::sync::{Notify, oneshot};

/// Why a wait for the high watermark ended without reaching it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitError {
    /// This broker stopped leading the partition: what was appended may or may not stay.
    NoLongerLeader,
    /// The log directory failed.
    Storage,
}

type Outcome = Result<(), WaitError>;

/// The producers and consumers that wait for one partition. Locks nothing across an await.
#[derive(Default)]
pub(crate) struct Waiters {
    acks: Mutex<AckWaiters>,
    readers: Mutex<ReadWaiters>,
}

#[derive(Default)]
struct AckWaiters {
    next: u64,
    /// By the high watermark waited for (exclusive), so that one advance pops a prefix.
    by_offset: BTreeMap<(Offset, u64), oneshot::Sender<Outcome>>,
}

#[derive(Default)]
struct ReadWaiters {
    waiting: Vec<Weak<Notify>>,
    /// At this length those who gave up are swept out, so that idle long polls don't pile up.
    sweep_at: usize,
}

impl Waiters {
    /// Registers a producer for `high_watermark >= until`. The caller checks, under the partition's lock, that it
    /// has not been reached yet.
    pub(crate) fn until_high_watermark(self: &Arc<Self>, until: Offset) -> AckWait {
        let (sender, receiver) = oneshot::channel();
        let mut acks = self.acks.lock();
        let key = (until, acks.next);
        acks.next += 1;
        acks.by_offset.insert(key, sender);
        AckWait { waiters: self.clone(), key, receiver, ended: false }
    }

    /// Registers a consumer for the next change. It registers first and reads then, so no change is missed.
    pub(crate) fn on_change(&self, notify: &Arc<Notify>) {
        let mut readers = self.readers.lock();
        if readers.waiting.len() >= readers.sweep_at {
            readers.waiting.retain(|waiting| waiting.strong_count() > 0);
            readers.sweep_at = readers.waiting.len() * 2 + 8;
        }
        readers.waiting.push(Arc::downgrade(notify));
    }

    /// The high watermark or the last stable offset moved.
    pub(crate) fn moved(&self, high_watermark: Offset) {
        let mut acks = self.acks.lock();
        while let Some(first) = acks.by_offset.first_entry()
            && first.key().0 <= high_watermark
        {
            // A producer that gave up has dropped its end.
            let _ = first.remove().send(Ok(()));
        }
        drop(acks);
        self.changed();
    }

    /// Something a reader may want to see changed: watermarks, log start, leadership.
    pub(crate) fn changed(&self) {
        let waiting = {
            let mut readers = self.readers.lock();
            if readers.waiting.is_empty() {
                return;
            }
            std::mem::take(&mut readers.waiting)
        };
        for notify in waiting.iter().filter_map(Weak::upgrade) {
            notify.notify_one();
        }
    }

    /// Ends every wait: the partition can't move here any more.
    pub(crate) fn fail(&self, error: WaitError) {
        let acks = std::mem::take(&mut self.acks.lock().by_offset);
        for (_, sender) in acks {
            let _ = sender.send(Err(error));
        }
        self.changed();
    }

    #[cfg(test)]
    fn producers_waiting(&self) -> usize {
        self.acks.lock().by_offset.len()
    }
}

/// One producer's wait. Dropping it (a time-out, a closed connection) takes it out of the list.
pub(crate) struct AckWait {
    waiters: Arc<Waiters>,
    key: (Offset, u64),
    receiver: oneshot::Receiver<Outcome>,
    /// Taken out of the list by whoever ended the wait.
    ended: bool,
}

impl AckWait {
    /// Ends when the high watermark has passed, or can't any more.
    pub(crate) async fn done(&mut self) -> Outcome {
        let outcome = (&mut self.receiver).await.unwrap_or(Err(WaitError::NoLongerLeader));
        self.ended = true;
        outcome
    }
}

impl Drop for AckWait {
    fn drop(&mut self) {
        if !self.ended {
            self.waiters.acks.lock().by_offset.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn producers_are_answered_in_offset_order_and_never_early() {
        let waiters = Arc::new(Waiters::default());
        let mut five = waiters.until_high_watermark(Offset(5));
        let mut three = waiters.until_high_watermark(Offset(3));
        waiters.moved(Offset(4));
        assert_eq!(three.done().await, Ok(()));
        assert!(five.receiver.try_recv().is_err());
        waiters.fail(WaitError::Storage);
        assert_eq!(five.done().await, Err(WaitError::Storage));
    }

    #[tokio::test]
    async fn a_wait_that_is_given_up_leaves_nothing_behind() {
        let waiters = Arc::new(Waiters::default());
        for offset in 0..1000 {
            drop(waiters.until_high_watermark(Offset(offset)));
            waiters.on_change(&Arc::new(Notify::new()));
        }
        assert_eq!(waiters.producers_waiting(), 0);
        assert!(waiters.readers.lock().waiting.len() < 20);
    }

    #[tokio::test]
    async fn a_reader_that_registered_before_the_change_is_woken() {
        let waiters = Waiters::default();
        let notify = Arc::new(Notify::new());
        waiters.on_change(&notify);
        waiters.changed();
        notify.notified().await;
    }
}
