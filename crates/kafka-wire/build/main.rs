//! Turns the schemas in `schema/` into the Rust modules that `src/messages.rs` includes.
//!
//! `parse` reads the text form (its grammar is in `schema/README.md`), `emit` writes Rust. A schema that
//! contradicts itself stops the build with the file and line.

mod emit;
mod parse;

use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let schema = root.join("schema");
    println!("cargo::rerun-if-changed={}", schema.display());
    println!("cargo::rerun-if-changed={}", root.join("build").display());

    let glossary = parse::glossary(&read(&schema.join("glossary.txt")));
    let mut files: Vec<PathBuf> = fs::read_dir(&schema)
        .expect("the schema folder exists")
        .map(|entry| entry.expect("the schema folder is readable").path())
        .filter(|path| path.extension().is_some_and(|e| e == "txt") && !path.ends_with("glossary.txt"))
        .collect();
    files.sort();

    let mut schemas: Vec<parse::Schema> = files
        .iter()
        .map(|path| {
            let name = path.file_stem().and_then(|s| s.to_str()).expect("schema names are UTF-8");
            parse::schema(name, &read(path))
        })
        .collect();
    schemas.sort_by_key(|s| (s.key.unwrap_or(i16::MAX), s.module.clone()));
    fs::write(out.join("messages.rs"), emit::messages(&schemas, &glossary)).expect("OUT_DIR is writable");
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("cannot read {}: {e}", path.display()))
}
