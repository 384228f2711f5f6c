//! The `semel` binary: the command line over gRPC, and `semel dev`, every role in one process.

mod dev;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Semel: an exactly-once event log.
#[derive(Parser, Debug)]
#[command(name = "semel", version)]
struct Cli {
    #[command(flatten)]
    global: semel_cli::Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run a whole node in this process: controller and broker, for development
    Dev(dev::Arguments),
    #[command(flatten)]
    Client(semel_cli::Command),
}

fn main() -> ExitCode {
    let Cli { global, command } = Cli::parse();
    let ran = match command {
        Command::Dev(arguments) => dev::run(&arguments).map(|()| ExitCode::SUCCESS),
        Command::Client(command) => client(command, global),
    };
    ran.unwrap_or_else(|error| {
        eprintln!("semel: {error:#}");
        ExitCode::FAILURE
    })
}

fn client(command: semel_cli::Command, global: semel_cli::Global) -> anyhow::Result<ExitCode> {
    let runtime = semel_service::runtime::build(None, "semel")?;
    let code = runtime.block_on(semel_cli::run(command, global));
    // A reader of standard input can't be interrupted; the process must not wait for it.
    runtime.shutdown_background();
    Ok(code)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
