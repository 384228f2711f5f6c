//! The harness under Semel's end-to-end tests: it starts real binaries as processes, speaks to them as a client would,
//! and kills only what it started.
//!
//! It must never link a Semel crate: the point of these tests is that nothing is shared with what they test. The small
//! encoder in [`wire`] is therefore written against Kafka's protocol alone, and it can write what a decent client can't.
//!
//! Invariants: loopback only; every wait has a limit and names what it waited for; every node, folder and port belongs
//! to one test.
//!
//! Start reading at [`node::Dev`], then `e2e/main.rs`. With `SEMEL_TEST_PEER=kafka` the same tests run against Apache
//! Kafka, which is how they are calibrated.

pub mod batch;
pub mod clock;
pub mod dataset;
pub mod node;
pub mod rng;
pub mod tools;
pub mod wait;
pub mod wire;
