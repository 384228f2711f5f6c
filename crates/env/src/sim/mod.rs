//! The simulated world: a disk, a clock and entropy that one seed replays.

mod disk;

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use semel_model::{Millis, Timestamp};

pub use disk::{SimDisk, SimFile, SimLock};

use crate::{clock::Clock, entropy::Entropy};

/// A clock that stands still until it is moved. Clones are the same clock.
#[derive(Clone, Debug)]
pub struct SimClock(Arc<SimTime>);

#[derive(Debug)]
struct SimTime {
    wall_ms: AtomicI64,
    monotonic_ms: AtomicU64,
}

impl SimClock {
    /// A clock that shows `now`, with a monotonic time of zero.
    #[must_use]
    pub fn new(now: Timestamp) -> Self {
        Self(Arc::new(SimTime { wall_ms: AtomicI64::new(now.get()), monotonic_ms: AtomicU64::new(0) }))
    }

    /// Time passes: both clocks move. A negative span does nothing.
    pub fn advance(&self, span: Millis) {
        let span = span.get().max(0);
        self.0.wall_ms.fetch_add(span, Ordering::SeqCst);
        self.0.monotonic_ms.fetch_add(span.unsigned_abs(), Ordering::SeqCst);
    }

    /// Somebody sets the wall clock; no time passes.
    pub fn set_wall(&self, now: Timestamp) {
        self.0.wall_ms.store(now.get(), Ordering::SeqCst);
    }
}

impl Clock for SimClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.wall_ms.load(Ordering::SeqCst))
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.0.monotonic_ms.load(Ordering::SeqCst))
    }
}

/// A generator that one seed replays (splitmix64). Not for secrets. Clones draw from the same stream.
#[derive(Clone, Debug)]
pub struct SeededEntropy(Arc<Mutex<Random>>);

impl SeededEntropy {
    /// The stream of `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(Random(seed))))
    }
}

impl Entropy for SeededEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        let mut random = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for chunk in bytes.chunks_mut(8) {
            let drawn = random.next().to_le_bytes();
            chunk.copy_from_slice(&drawn[..chunk.len()]);
        }
    }
}

/// splitmix64: tiny, and good enough to choose faults.
#[derive(Clone, Copy, Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In `0..bound`; 0 for a bound of 0.
    fn below(&mut self, bound: u64) -> u64 {
        self.next().checked_rem(bound).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_replays() {
        let draw = |seed| {
            let entropy = SeededEntropy::new(seed);
            (entropy.next_u64(), entropy.uuid(), entropy.next_u64())
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn setting_the_wall_clock_back_does_not_move_the_monotonic_one() {
        let clock = SimClock::new(Timestamp(1000));
        clock.advance(Millis(5));
        clock.set_wall(Timestamp(10));
        assert_eq!((clock.now(), clock.monotonic()), (Timestamp(10), Duration::from_millis(5)));
    }
}
