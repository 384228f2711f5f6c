//! The one door to the operating system: disks, clocks and entropy, as traits, with the real ones beside them.
//!
//! Everything in Semel that touches a file, reads the time or draws a random number does it through this crate,
//! so that a simulated disk or clock runs under the same code. This crate must never decide anything: it has no
//! retry (but for an interrupted system call), no cache, no policy.
//!
//! Invariants:
//! - A write that returns an error may have written any part of its bytes; one that returns `Ok` wrote all.
//! - Nothing is promised to survive a power cut before `sync_data`/`sync_all` (a file's bytes and length) or
//!   [`Disk::sync_dir`] (a directory's names) returned `Ok`. After a failed sync nothing may be assumed synced,
//!   even if a later sync succeeds.
//! - Traits are synchronous: whoever must not block calls them from a thread that may.
//!
//! Start with [`Disk`] and [`DiskFile`] (what the log is written on), [`RealDisk`] (the file system), and
//! [`sim::SimDisk`] (a disk that loses what was not synced, tears writes and fails on demand).

mod clock;
mod disk;
mod entropy;
mod real;
pub mod sim;

pub use clock::{Clock, RealClock};
pub use disk::{DirEntry, Disk, DiskFile, Open, Space};
pub use entropy::{Entropy, RealEntropy};
pub use real::{RealDisk, RealFile, RealLock};
