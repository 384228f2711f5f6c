//! Replicated state machines: what a controller and a coordinator have in common.
//!
//! A [`StateMachine`] decides by reading its state and changes it only by applying records that a log has kept.
//! A [`Driver`] stands between requests and that log: it lets decisions run ahead of the log, holds their
//! answers back until the log has them, and takes them back if the log refuses. This crate must never do I/O,
//! wait, or read a clock: the log, the time and the callers are its shell's.
//!
//! Invariants:
//! - The committed state equals the replay of the committed records, on every node.
//! - No answer leaves before everything it was decided on is committed.
//! - A refused batch takes every later one with it; a batch of unknown fate is never taken back.
//! - Batches in flight and parked requests are bounded; at the bound the caller gets [`Busy`].
//!
//! Start with [`machine`], then [`driver`].

pub mod driver;
pub mod machine;

pub use driver::{Appending, BatchNumber, Busy, Driver, DriverError, Ended, Limits, Phase, Step};
pub use machine::{Answer, Ctx, Draft, Outcome, StateMachine, TimerOp};
