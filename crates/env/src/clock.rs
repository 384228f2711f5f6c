//! Time.

use std::{
    fmt,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use semel_model::Timestamp;

/// Reads the time. Shared by reference: `Arc<dyn Clock>` is the usual form.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The wall clock. It may jump in either direction.
    fn now(&self) -> Timestamp;

    /// Time since some fixed moment of this process; never goes back. For measuring and for timeouts.
    fn monotonic(&self) -> Duration;
}

impl<C: Clock + ?Sized> Clock for std::sync::Arc<C> {
    fn now(&self) -> Timestamp {
        (**self).now()
    }

    fn monotonic(&self) -> Duration {
        (**self).monotonic()
    }
}

/// The operating system's clocks.
#[derive(Clone, Copy, Debug)]
pub struct RealClock {
    start: Instant,
}

impl RealClock {
    /// A clock whose monotonic time starts now.
    #[must_use]
    pub fn new() -> Self {
        Self { start: Instant::now() }
    }
}

impl Default for RealClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for RealClock {
    fn now(&self) -> Timestamp {
        timestamp(SystemTime::now())
    }

    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }
}

/// Whole milliseconds since the Unix epoch; negative before it.
pub(crate) fn timestamp(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => Timestamp(i64::try_from(since.as_millis()).unwrap_or(i64::MAX)),
        Err(before) => Timestamp(-i64::try_from(before.duration().as_millis()).unwrap_or(i64::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_real_clock_moves_on() {
        let clock = RealClock::new();
        let before = clock.monotonic();
        assert!(clock.now() > Timestamp(1_600_000_000_000));
        assert!(clock.monotonic() >= before);
    }
}
