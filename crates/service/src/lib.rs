//! The chassis of every Semel process: what a server needs besides its purpose.
//!
//! Telemetry ([`telemetry`], [`trace_context`]), metrics ([`metrics`]), the HTTP port with metrics and health
//! ([`http`], [`health`]), the gRPC server and client channels ([`grpc`]), bounded accepting ([`net`]),
//! configuration ([`config`]), shutdown ([`shutdown`]) and the async runtime ([`runtime`]).
//!
//! This crate must never know what a broker or a controller is, hold state of theirs, or decide anything about
//! epochs, offsets or leadership.
//!
//! Invariants:
//! - every listener has a bound on its connections, and no accept error makes it spin or stop;
//! - a server that was told to stop ends within its grace: connections that are still open then are cut;
//! - nothing a client sends creates a metric series: labels come from what the process serves.
//!
//! Start with [`grpc::Server`] and [`http::serve`]; a role's `main` is [`config::load`], [`telemetry::init`],
//! [`runtime::build`], the two servers, and [`shutdown::on_signal`].

pub mod config;
pub mod grpc;
pub mod health;
pub mod http;
pub mod metrics;
pub mod net;
pub mod runtime;
pub mod shutdown;
pub mod telemetry;
pub mod trace_context;
