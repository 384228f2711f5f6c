//! Stopping: the signals that ask for it, and waiting for what runs.

use std::{
    collections::BTreeMap,
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Waker},
    time::Duration,
};

use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    task::JoinHandle,
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tracing::Instrument as _;

/// A token that is cancelled by the first SIGTERM or SIGINT. A second signal ends the process at once with 128 plus
/// the signal's number, as a shell would report it: whoever sends two doesn't want to wait.
///
/// Must be called within a runtime. Errors: the signal handlers can't be installed.
pub fn on_signal() -> io::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let token = CancellationToken::new();
    let stop = token.clone();
    tokio::spawn(async move {
        loop {
            let (name, number) = tokio::select! {
                _ = terminate.recv() => ("SIGTERM", 15),
                _ = interrupt.recv() => ("SIGINT", 2),
            };
            if stop.is_cancelled() {
                tracing::warn!(signal = name, "second signal, exiting without a clean stop");
                std::process::exit(128 + number);
            }
            tracing::info!(signal = name, "stopping");
            stop.cancel();
        }
    });
    Ok(token)
}

/// A cancellation as a task polls it: cheap enough to be asked at every poll of a connection.
#[derive(Debug)]
pub struct Watcher {
    token: CancellationToken,
    wait: Pin<Box<WaitForCancellationFutureOwned>>,
    /// The waker that `wait` wakes. Polling `wait` at each turn would take the lock of a list that all watchers
    /// share, at each turn.
    registered: Option<Waker>,
}

impl Watcher {
    /// Watches `token`.
    #[must_use]
    pub fn new(token: CancellationToken) -> Self {
        Self { wait: Box::pin(token.clone().cancelled_owned()), token, registered: None }
    }

    /// Whether the token is cancelled; if not, the task of `cx` is woken when it is.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> bool {
        if self.registered.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            return self.token.is_cancelled();
        }
        self.registered = Some(cx.waker().clone());
        self.wait.as_mut().poll(cx).is_ready() || self.token.is_cancelled()
    }
}

/// Tasks that must end before the process does. Cheap to clone; all clones are one.
#[derive(Clone, Debug, Default)]
pub struct ShutdownTracker {
    running: Arc<watch::Sender<BTreeMap<&'static str, usize>>>,
}

/// Tasks that did not end in time.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("still running after {waited:?}: {}", .tasks.join(", "))]
pub struct StillRunning {
    /// How long they were waited for.
    pub waited: Duration,
    /// Their names, sorted, each once.
    pub tasks: Vec<&'static str>,
}

impl ShutdownTracker {
    /// With no tasks.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Spawns `task` under `name`, in a span of that name, and counts it until it ends (also by a panic).
    pub fn spawn<F>(&self, name: &'static str, task: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let guard = self.track(name);
        tokio::spawn(
            async move {
                let _guard = guard;
                task.await
            }
            .instrument(tracing::debug_span!("task", name)),
        )
    }

    /// Counts `name` as running until the guard is dropped.
    #[must_use]
    pub fn track(&self, name: &'static str) -> Running {
        self.running.send_modify(|running| *running.entry(name).or_default() += 1);
        Running { name, running: self.running.clone() }
    }

    /// Waits until nothing runs, at most `bound`.
    ///
    /// Errors: [`StillRunning`] names what did not end.
    pub async fn wait(&self, bound: Duration) -> Result<(), StillRunning> {
        let mut changes = self.running.subscribe();
        let done = changes.wait_for(BTreeMap::is_empty);
        match tokio::time::timeout(bound, done).await {
            Ok(_) => Ok(()),
            Err(_) => {
                Err(StillRunning { waited: bound, tasks: self.running.borrow().keys().copied().collect() })
            }
        }
    }
}

/// Something that [`ShutdownTracker::wait`] waits for, until dropped.
#[derive(Debug)]
pub struct Running {
    name: &'static str,
    running: Arc<watch::Sender<BTreeMap<&'static str, usize>>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.running.send_modify(|running| {
            if let Some(count) = running.get_mut(self.name) {
                *count -= 1;
                if *count == 0 {
                    running.remove(self.name);
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waiting_ends_when_the_last_task_does() {
        let tracker = ShutdownTracker::new();
        assert_eq!(tracker.wait(Duration::ZERO).await, Ok(()));
        let stop = CancellationToken::new();
        for name in ["flush", "accept", "flush"] {
            tracker.spawn(name, stop.clone().cancelled_owned());
        }
        let late = tracker.wait(Duration::from_millis(1)).await.unwrap_err();
        assert_eq!(late.tasks, ["accept", "flush"]);
        stop.cancel();
        assert_eq!(tracker.wait(Duration::from_secs(30)).await, Ok(()));
    }

    #[tokio::test]
    async fn a_task_that_panics_counts_as_ended() {
        let tracker = ShutdownTracker::new();
        let task = tracker.spawn("bad", async { panic!("on purpose") });
        assert!(task.await.is_err());
        assert_eq!(tracker.wait(Duration::from_secs(30)).await, Ok(()));
    }
}
