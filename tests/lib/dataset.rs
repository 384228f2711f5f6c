//! A real data set that every machine that builds Semel already has: the source text of its dependencies.

use std::env;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// Writes at least `size` bytes of text to `path`: Rust, C and Markdown files of the Cargo registry in the order of
/// their paths, from the start again when they are not enough. Every line ends with a line feed.
///
/// The same registry gives the same bytes. Real text matters: its lines have real lengths (many of them empty), real
/// letters beyond ASCII, and compress as real text does.
///
/// # Errors
/// There is no registry, or a file can't be read or written.
pub fn write(path: &Path, size: u64) -> Result<()> {
    let files = sources()?;
    let mut out = BufWriter::new(File::create(path)?);
    let mut written = 0;
    while written < size {
        let before = written;
        for file in &files {
            let mut bytes = fs::read(file).with_context(|| file.display().to_string())?;
            if bytes.last().is_some_and(|&b| b != b'\n') {
                bytes.push(b'\n');
            }
            out.write_all(&bytes)?;
            written += bytes.len() as u64;
            if written >= size {
                break;
            }
        }
        ensure!(written > before, "the registry holds no text");
    }
    out.flush()?;
    Ok(())
}

fn sources() -> Result<Vec<PathBuf>> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| env::var_os("HOME").map(|h| PathBuf::from(h).join(".cargo")));
    let top = home.context("neither CARGO_HOME nor HOME is set")?.join("registry/src");
    let (mut todo, mut files) = (vec![top.clone()], Vec::new());
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir).with_context(|| format!("listing {}", dir.display()))? {
            let entry = entry?;
            let (kind, path) = (entry.file_type()?, entry.path());
            if kind.is_dir() {
                todo.push(path);
            } else if kind.is_file()
                && path.extension().is_some_and(|e| e == "rs" || e == "c" || e == "h" || e == "md")
            {
                files.push(path);
            }
        }
    }
    files.sort();
    ensure!(!files.is_empty(), "no source text under {}", top.display());
    Ok(files)
}
