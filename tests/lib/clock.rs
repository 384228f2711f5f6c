//! The one place in the harness that reads the clock.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The monotonic clock. Tests judge real processes in real time, so here (unlike in Semel) time is no input.
#[expect(clippy::disallowed_methods, reason = "the harness measures processes and shares no crate with them")]
#[must_use]
pub fn now() -> Instant {
    Instant::now()
}

/// Milliseconds since 1970, for records whose age matters to the node: it forgets producers by it.
#[expect(clippy::disallowed_methods, reason = "the node under test reads the real clock too")]
#[must_use]
pub fn unix_ms() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX))
}
