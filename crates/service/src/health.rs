//! Health of a process: the state of its parts, and the three questions an orchestrator asks.

use std::{collections::BTreeMap, fmt, sync::Arc};

use tokio::sync::watch;

/// The state of one part of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Component {
    /// It has not been ready yet; `0` says what it waits for.
    Starting(String),
    /// It does its work.
    Ready,
    /// It was ready and isn't now, and will be again by itself.
    NotReady(String),
    /// It can't work again without a restart of the process.
    Failed(String),
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Starting(why) => write!(f, "starting: {why}"),
            Self::Ready => f.write_str("ready"),
            Self::NotReady(why) => write!(f, "not ready: {why}"),
            Self::Failed(why) => write!(f, "failed: {why}"),
        }
    }
}

/// What is known of the whole process at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// By name.
    pub components: BTreeMap<String, Component>,
    /// Whether each component was ready at one moment; never goes back.
    pub started: bool,
    /// Whether the process was told to stop.
    pub stopping: bool,
}

impl Snapshot {
    /// Whether traffic should come here: every component is ready and the process isn't stopping. A process
    /// without components isn't ready: it has not got as far as naming them.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        !self.stopping
            && !self.components.is_empty()
            && self.components.values().all(|c| *c == Component::Ready)
    }

    /// Whether the process is worth keeping: no component failed.
    #[must_use]
    pub fn is_live(&self) -> bool {
        !self.components.values().any(|c| matches!(c, Component::Failed(_)))
    }

    /// What isn't ready, one `name: state` a line.
    #[must_use]
    pub fn report(&self) -> String {
        let mut text = String::new();
        if self.stopping {
            text.push_str("process: stopping\n");
        }
        if self.components.is_empty() {
            text.push_str("process: starting\n");
        }
        for (name, component) in self.components.iter().filter(|(_, c)| **c != Component::Ready) {
            text.push_str(&format!("{name}: {component}\n"));
        }
        text
    }
}

/// The health of this process. Cheap to clone; all clones are one.
#[derive(Clone, Debug)]
pub struct Health {
    state: Arc<watch::Sender<Snapshot>>,
}

impl Default for Health {
    fn default() -> Self {
        Self::new()
    }
}

impl Health {
    /// With no components yet: live, not ready, not started.
    #[must_use]
    pub fn new() -> Self {
        Self { state: Arc::new(watch::Sender::new(Snapshot::default())) }
    }

    /// Adds a part by its name (a second call with one name is the same part), [`Component::Starting`].
    #[must_use]
    pub fn component(&self, name: &str) -> Reporter {
        let reporter = Reporter { name: name.into(), health: self.clone() };
        reporter.set(Component::Starting("not begun".to_owned()));
        reporter
    }

    /// From now on the process is not ready, whatever its parts say.
    pub fn set_stopping(&self) {
        self.state.send_modify(|state| state.stopping = true);
    }

    /// The state now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.state.borrow().clone()
    }

    /// A receiver that sees each change.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Snapshot> {
        self.state.subscribe()
    }
}

/// The handle by which one part reports its state. Dropping it changes nothing.
#[derive(Clone, Debug)]
pub struct Reporter {
    name: Arc<str>,
    health: Health,
}

impl Reporter {
    /// Replaces this part's state.
    pub fn set(&self, component: Component) {
        self.health.state.send_if_modified(|state| {
            if state.components.get(&*self.name) == Some(&component) {
                return false;
            }
            state.components.insert(self.name.to_string(), component);
            state.started |= state.components.values().all(|c| *c == Component::Ready);
            true
        });
    }

    /// [`Component::Ready`].
    pub fn ready(&self) {
        self.set(Component::Ready);
    }

    /// [`Component::NotReady`].
    pub fn not_ready(&self, why: impl Into<String>) {
        self.set(Component::NotReady(why.into()));
    }

    /// [`Component::Failed`].
    pub fn failed(&self, why: impl Into<String>) {
        self.set(Component::Failed(why.into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_ready_when_all_its_parts_are() {
        let health = Health::new();
        assert!(!health.snapshot().is_ready() && health.snapshot().is_live());
        let (log, network) = (health.component("log"), health.component("network"));
        log.ready();
        assert!(!health.snapshot().is_ready() && !health.snapshot().started);
        assert_eq!(health.snapshot().report(), "network: starting: not begun\n");
        network.ready();
        assert!(health.snapshot().is_ready() && health.snapshot().started);
        log.not_ready("disk full");
        assert!(!health.snapshot().is_ready() && health.snapshot().started && health.snapshot().is_live());
        log.failed("all directories offline");
        assert!(!health.snapshot().is_live());
        assert_eq!(health.snapshot().report(), "log: failed: all directories offline\n");
        log.ready();
        health.set_stopping();
        assert_eq!(health.snapshot().report(), "process: stopping\n");
    }
}
