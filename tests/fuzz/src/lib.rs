//! What fuzzing runs: one function for each parser of bytes that somebody else wrote, or that a disk gave back.
//!
//! Each function takes any bytes at all and must return: a panic, an abort or a run without end is a fault in the
//! code it calls. Beyond that each asserts what its parser promises (what was read can be written again, a
//! limit holds, no batch with a wrong checksum is served). Nothing here may depend on time, on chance or on what
//! ran before.
//!
//! A checksum stops blind changes at the door, so targets whose bytes carry one can be told, by a bit in the input,
//! to put it right first: see [`input`] for how an input is laid out.
//!
//! Start with [`TARGETS`]; `tests/replay.rs` runs them on the stable compiler, `fuzz_targets/` under libFuzzer.

pub mod input;
mod log;
mod record;
pub mod seeds;
mod wire;

pub use log::{checkpoints, log_files};
pub use record::{control_record, record_batch, record_walk};
pub use wire::{consumer_protocol, kafka_frame, kafka_response};

/// A fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// As in `fuzz_targets/` and `corpus/`.
    pub name: &'static str,
    /// Takes any bytes; panics if the code under it breaks a promise.
    pub run: fn(&[u8]),
}

/// All of them.
pub const TARGETS: [Target; 8] = [
    Target { name: "kafka_frame", run: kafka_frame },
    Target { name: "kafka_response", run: kafka_response },
    Target { name: "consumer_protocol", run: consumer_protocol },
    Target { name: "record_batch", run: record_batch },
    Target { name: "record_walk", run: record_walk },
    Target { name: "control_record", run: control_record },
    Target { name: "log_files", run: log_files },
    Target { name: "checkpoints", run: checkpoints },
];
