//! The bound on the bytes of all requests in flight.

use std::{
    future::Future as _,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::Context,
};

use tokio::sync::{Notify, futures::OwnedNotified};

/// Bytes of request frames in memory, of all connections.
///
/// A frame that has arrived is always counted, so the bound can be passed by what one read brings; what it holds
/// back is reading more. When half-received frames fill it, one connection at a time may pass it, or none would ever
/// be finished.
#[derive(Debug)]
pub(crate) struct Pool {
    limit: usize,
    used: AtomicUsize,
    pass: AtomicBool,
    waiting: AtomicUsize,
    freed: Arc<Notify>,
}

impl Pool {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            used: AtomicUsize::new(0),
            pass: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
            freed: Arc::new(Notify::new()),
        }
    }

    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

/// One connection's part of the pool; gives everything back when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    pool: Arc<Pool>,
    held: usize,
    has_pass: bool,
    wait: Option<Pin<Box<OwnedNotified>>>,
}

impl Share {
    pub(crate) fn new(pool: Arc<Pool>) -> Self {
        Self { pool, held: 0, has_pass: false, wait: None }
    }

    /// Counts what is in memory already.
    pub(crate) fn take(&mut self, bytes: usize) {
        self.held += bytes;
        self.pool.used.fetch_add(bytes, Ordering::SeqCst);
    }

    pub(crate) fn give(&mut self, bytes: usize) {
        let bytes = bytes.min(self.held);
        self.held -= bytes;
        self.pool.used.fetch_sub(bytes, Ordering::SeqCst);
        self.pool.tell();
    }

    /// Asks for `bytes` (0: whether reading is allowed at all) before memory is made. `None`: not now; the task of
    /// `cx` is woken to ask again.
    ///
    /// `partial` says that part of a frame is held, and so that the connection may use the pass.
    pub(crate) fn ask(&mut self, bytes: usize, partial: bool, cx: &mut Context<'_>) -> bool {
        loop {
            if self.has_pass || self.try_take(bytes) {
                if self.has_pass {
                    self.take(bytes);
                }
                self.stop_waiting();
                return true;
            }
            if partial && !self.pool.pass.swap(true, Ordering::SeqCst) {
                self.has_pass = true;
                continue;
            }
            let registered = self.wait.is_some();
            let wait = self.wait.get_or_insert_with(|| {
                self.pool.waiting.fetch_add(1, Ordering::SeqCst);
                Box::pin(self.pool.freed.clone().notified_owned())
            });
            if wait.as_mut().poll(cx).is_ready() {
                self.stop_waiting();
                continue;
            }
            if registered {
                return false;
            }
            // What was freed before this registration woke nobody: ask once more.
        }
    }

    /// Whether a request for bytes is waiting.
    pub(crate) fn is_waiting(&self) -> bool {
        self.wait.is_some()
    }

    /// A frame is whole: others may pass now.
    pub(crate) fn return_pass(&mut self) {
        if std::mem::take(&mut self.has_pass) {
            self.pool.pass.store(false, Ordering::SeqCst);
            self.pool.tell();
        }
    }

    fn try_take(&mut self, bytes: usize) -> bool {
        let limit = self.pool.limit;
        let taken = self.pool.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |used| {
            (used.saturating_add(bytes) <= limit).then(|| used + bytes)
        });
        if taken.is_ok() {
            self.held += bytes;
        }
        taken.is_ok()
    }

    fn stop_waiting(&mut self) {
        if self.wait.take().is_some() {
            self.pool.waiting.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Pool {
    fn tell(&self) {
        // Waking takes a lock; most of the time nobody waits.
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.freed.notify_waiters();
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.stop_waiting();
        self.return_pass();
        self.give(self.held);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::AtomicUsize,
        task::{Wake, Waker},
    };

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn whoever_waits_is_woken_when_bytes_are_given_back() {
        let pool = Arc::new(Pool::new(100));
        let count = Arc::new(Count::default());
        let waker = Waker::from(count.clone());
        let mut cx = Context::from_waker(&waker);
        let (mut a, mut b) = (Share::new(pool.clone()), Share::new(pool.clone()));
        assert!(a.ask(80, false, &mut cx));
        assert!(!b.ask(30, false, &mut cx) && b.is_waiting());
        assert!(b.ask(20, false, &mut cx) && !b.is_waiting());
        assert!(!b.ask(30, false, &mut cx));
        drop(a);
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        assert!(b.ask(30, false, &mut cx));
        assert_eq!(pool.used(), 50);
        drop(b);
        assert_eq!((pool.used(), pool.waiting.load(Ordering::SeqCst)), (0, 0));
    }

    #[test]
    fn half_received_frames_do_not_block_each_other_for_ever() {
        let pool = Arc::new(Pool::new(100));
        let waker = Waker::noop();
        let mut cx = Context::from_waker(waker);
        let (mut a, mut b) = (Share::new(pool.clone()), Share::new(pool.clone()));
        assert!(a.ask(50, true, &mut cx) && b.ask(50, true, &mut cx));
        assert!(a.ask(40, true, &mut cx), "one may pass the bound");
        assert!(!b.ask(40, true, &mut cx), "but not two");
        a.return_pass();
        assert!(b.ask(40, true, &mut cx));
        drop((a, b));
        assert_eq!(pool.used(), 0);
    }
}
