//! Programs that no one here wrote: clients and Kafka's own tools, run to their end within a limit.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::wait;

/// The top of the work tree.
///
/// # Panics
/// Never: a package's folder has a parent.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the work tree").to_owned()
}

/// What a program said.
#[derive(Debug, Clone)]
pub struct Output {
    /// Its exit code, or none if a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Output {
    /// Standard output of a program that must succeed.
    ///
    /// # Errors
    /// It exited with another code than 0.
    pub fn ok(self) -> Result<String> {
        if self.code != Some(0) {
            bail!("exit code {:?}\n{}\n{}", self.code, tail(&self.stdout), tail(&self.stderr));
        }
        Ok(self.stdout)
    }
}

fn tail(text: &str) -> &str {
    let start = text.len().saturating_sub(4000);
    &text[text.ceil_char_boundary(start)..]
}

/// Runs `command` to its end, with `input` as its standard input, and kills it after `limit`.
///
/// # Errors
/// It can't be started, or does not end in time.
pub fn run(mut command: Command, input: Option<&Path>, limit: Duration) -> Result<Output> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("{:?}", command.get_program());
    // Files, not pipes: no thread is needed to keep a talkative program going.
    let dir = std::env::temp_dir();
    let id = format!("semel-run-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let paths = [dir.join(format!("{id}.out")), dir.join(format!("{id}.err"))];
    command.stdin(input.map_or_else(|| Ok(Stdio::null()), |p| File::open(p).map(Stdio::from))?);
    command.stdout(File::create(&paths[0])?).stderr(File::create(&paths[1])?);
    let mut child = command.spawn().with_context(|| format!("starting {name}"))?;
    let ended = wait::until(format!("the end of {command:?}"), limit, || Ok(child.try_wait()?));
    if ended.is_err() {
        child.kill()?;
        child.wait()?;
    }
    let read = |path: &Path| -> io::Result<String> {
        let mut bytes = Vec::new();
        File::open(path)?.read_to_end(&mut bytes)?;
        fs::remove_file(path)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let (stdout, stderr) = (read(&paths[0])?, read(&paths[1])?);
    let status = ended.with_context(|| format!("{}\n{}", tail(&stdout), tail(&stderr)))?;
    Ok(Output { code: status.code(), stdout, stderr })
}

/// A tool of Apache Kafka's by its class, with arguments.
#[must_use]
pub fn kafka_tool(class: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(root().join("scripts/kafka"));
    command.arg("tool").arg(class).args(arguments);
    command
}

/// The test client on librdkafka's Python binding.
#[must_use]
pub fn python_client(arguments: &[&str]) -> Command {
    let mut command = Command::new(root().join(".tools/clients/bin/python"));
    command.arg("-u").arg(root().join("tests/clients/python/client.py")).args(arguments);
    command
}

/// The test client on franz-go.
#[must_use]
pub fn go_client(arguments: &[&str]) -> Command {
    let mut command = Command::new(root().join(".tools/bin/semel-test-go"));
    command.args(arguments);
    command
}

/// kcat, as Debian ships it.
#[must_use]
pub fn kcat(arguments: &[&str]) -> Command {
    let mut command = Command::new("kcat");
    command.args(arguments);
    command
}

/// The SHA-256 of a file in hexadecimal, by coreutils.
///
/// # Errors
/// The file can't be read.
pub fn sha256(path: &Path) -> Result<String> {
    let mut command = Command::new("sha256sum");
    command.arg(path);
    let line = run(command, None, Duration::from_secs(60))?.ok()?;
    Ok(line.split_whitespace().next().context("sha256sum prints a sum")?.to_owned())
}
