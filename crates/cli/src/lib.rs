//! Semel's command line over gRPC: topics, producing, consuming, the cluster.
//!
//! This crate reads arguments, calls [`semel_client`] and prints. It must never decide anything about the protocol,
//! and never print anything but the asked-for data on standard output: progress, summaries and errors go to
//! standard error.
//!
//! Invariants:
//! - exit code 0: all that was asked for was done; 1: it was not, and standard error says why and what to do next;
//!   2: the command itself makes no sense;
//! - text is for people (aligned, sizes and times rounded), JSON for programs (exact, stable names);
//! - a reader that goes away (`| head`) ends the command quietly.
//!
//! Start with [`Command`] and [`run`]; each subcommand has its file. The binary that joins these subcommands to its
//! own does so with `#[command(flatten)]`.

mod base64;
mod cluster;
mod consume;
mod failure;
mod format;
mod input;
mod json;
mod output;
mod position;
mod produce;
mod time;
mod topic;
mod watch;

#[cfg(test)]
mod tests;

use std::{process::ExitCode, time::Duration};

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use semel_client::{Cluster, Config};

pub use cluster::ClusterCommand;
pub use consume::ConsumeArgs;
use failure::Failure;
use output::Io;
pub use produce::ProduceArgs;
pub use topic::TopicCommand;

/// Where a node started without other orders serves gRPC.
pub const DEFAULT_SERVER: &str = "127.0.0.1:9190";

/// The whole command line without what a binary adds to it.
#[derive(Parser, Debug)]
#[command(name = "semel", version, about = "Talk to a Semel cluster")]
pub struct Cli {
    /// What holds for each subcommand.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What holds for each subcommand.
#[derive(Args, Clone, Debug)]
pub struct Global {
    /// Brokers to start from (their gRPC addresses); one that answers is enough
    #[arg(
        long,
        value_name = "HOST:PORT,…",
        env = "SEMEL_SERVER",
        default_value = DEFAULT_SERVER,
        value_delimiter = ',',
        global = true
    )]
    pub server: Vec<String>,
    /// Text for people or JSON for programs
    #[arg(long, value_enum, default_value_t, global = true)]
    pub output: Output,
    /// How long an operation may take with all its retries, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30, global = true,
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout: u64,
}

/// How results are printed.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    /// Aligned tables, rounded sizes and times.
    #[default]
    Text,
    /// Exact values under stable names.
    Json,
}

/// The subcommands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Create, list, describe, change and delete topics
    #[command(subcommand)]
    Topic(TopicCommand),
    /// Append records: lines of standard input or files, whole files, or JSON
    Produce(Box<ProduceArgs>),
    /// Print records
    Consume(Box<ConsumeArgs>),
    /// Look at brokers, controllers, leaders and disks
    #[command(subcommand)]
    Cluster(ClusterCommand),
}

/// The command line as clap sees it, for completions and tests.
#[must_use]
pub fn command() -> clap::Command {
    Cli::command()
}

/// Does what `command` says with the process's own standard streams.
///
/// Returns 0, or 1 after the reason was printed to standard error.
pub async fn run(command: Command, global: Global) -> ExitCode {
    ExitCode::from(run_with(command, global, Io::real()).await)
}

async fn run_with(command: Command, global: Global, mut io: Io) -> u8 {
    let topic = command.topic().map(str::to_owned);
    let result = match command {
        Command::Topic(command) => topic::run(command, &global, &mut io).await,
        Command::Produce(args) => produce::run(*args, &global, &mut io).await,
        Command::Consume(args) => consume::run(*args, &global, &mut io).await,
        Command::Cluster(command) => cluster::run(command, &global, &mut io).await,
    };
    match result.and_then(|()| io.flush()) {
        // Whoever read the output has seen enough.
        Ok(()) | Err(Failure::BrokenPipe) => 0,
        Err(failure) => {
            io.tell(&failure.explain(&global, topic.as_deref()));
            1
        }
    }
}

impl Command {
    /// The topic it is about, for advice.
    fn topic(&self) -> Option<&str> {
        match self {
            Self::Topic(command) => command.topic(),
            Self::Produce(args) => Some(&args.topic),
            Self::Consume(args) => Some(&args.topic),
            Self::Cluster(_) => None,
        }
    }
}

impl Global {
    fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    async fn connect(&self) -> Result<Cluster, Failure> {
        let defaults = Config::default();
        let config = Config {
            operation_timeout: self.timeout(),
            request_timeout: defaults.request_timeout.min(self.timeout()),
            connect_timeout: defaults.connect_timeout.min(self.timeout()),
            user_agent: concat!("semel-cli/", env!("CARGO_PKG_VERSION")).to_owned(),
            ..defaults
        };
        Ok(Cluster::connect(&self.server, config).await?)
    }
}
