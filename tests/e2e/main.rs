//! End to end: real binaries, clients that no one here wrote, real signals.
//!
//! One binary, so that a change links once; the test runner gives each test its process and runs them one at a time
//! (`.config/nextest.toml`). `SEMEL_TEST_PEER=kafka` runs the same tests on Apache Kafka, which tells a wrong test from
//! a wrong Semel.

mod bad_input;
mod cli;
mod clients;
mod cluster;
mod dataset;
mod dump_log;
mod kill;
mod lifecycle;
mod protocol;
mod versions;
