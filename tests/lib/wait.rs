//! Waiting for conditions: each wait has a limit and says what it waited for.

use std::fmt::Display;
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::clock;

const PAUSE: Duration = Duration::from_millis(10);

/// Calls `condition` until it answers `Some`, at most for `limit`; an error of `condition` ends the wait.
///
/// # Errors
/// What `condition` failed with, or that `what` did not come true in time.
pub fn until<T>(
    what: impl Display,
    limit: Duration,
    mut condition: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let start = clock::now();
    loop {
        if let Some(value) = condition()? {
            return Ok(value);
        }
        if start.elapsed() > limit {
            bail!("waited {limit:?} in vain: {what}");
        }
        thread::sleep(PAUSE);
    }
}
