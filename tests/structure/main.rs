//! The crate map, checked: which Semel crate may depend on which, and what the cores must never link.
//!
//! The map's text is `crates/ARCHITECTURE.md`; a new arrow changes both, on its own, with its reason.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use semel_tests::tools;
use serde_json::Value;

/// `model` and `record` are open to all but each other's order; the rest as listed.
const ARROWS: &[(&str, &[&str])] = &[
    // Vocabulary
    ("model", &[]),
    ("record", &["model"]),
    ("kafka-wire", &["model", "record"]),
    // Cores
    ("rsm", &[]),
    ("metadata", &[]),
    ("control", &["metadata", "rsm"]),
    ("partition", &["metadata"]),
    ("group", &["metadata", "rsm"]),
    ("txn", &["metadata", "rsm"]),
    ("client-core", &[]),
    // Storage
    ("env", &[]),
    ("log", &["env"]),
    // Shells
    ("proto", &["metadata"]),
    ("service", &["proto", "env"]),
    ("coordinator-runtime", &["rsm", "metadata", "proto", "env", "service"]),
    ("kafka-gateway", &["kafka-wire", "service"]),
    ("client", &["client-core", "proto", "env"]),
    // Roles
    ("broker", &["partition", "log", "kafka-wire", "metadata", "kafka-gateway", "service", "proto", "env"]),
    ("controller", &["control", "metadata", "rsm", "service", "proto", "env"]),
    ("transaction-coordinator", &["txn", "coordinator-runtime", "service"]),
    ("group-coordinator", &["group", "coordinator-runtime", "service"]),
    // Products
    ("cli", &["client", "proto"]),
    ("console", &["client"]),
    (
        "semel",
        &[
            "broker",
            "controller",
            "transaction-coordinator",
            "group-coordinator",
            "console",
            "cli",
            "service",
            "env",
        ],
    ),
    (
        "sim",
        &[
            "rsm",
            "metadata",
            "control",
            "partition",
            "group",
            "txn",
            "client-core",
            "env",
            "log",
            "kafka-wire",
        ],
    ),
    // The tests share nothing with what they test, but for the codec, which is held against an oracle of its own.
    ("tests", &["model", "kafka-wire"]),
];

/// No I/O, no async, no clock, no entropy: one thread can run a whole cluster of these from one seed.
const CORES: &[&str] = &[
    "model",
    "record",
    "kafka-wire",
    "rsm",
    "metadata",
    "control",
    "partition",
    "group",
    "txn",
    "client-core",
];

/// What no core links, directly or through another crate.
const BANNED: &[&str] = &[
    "tokio",
    "tonic",
    "sled",
    "rand",
    "async-trait",
    "futures",
    "hyper",
    "axum",
    "mio",
    "socket2",
    "chrono",
    "opentelemetry",
    "figment",
    "semel-env",
    "semel-log",
];

/// Crates whose own dependencies are excused, by core, with the reason.
const EXCUSED: &[(&str, &str)] = &[
    // raft-rs draws election timeouts from thread entropy; `control` alone holds it, and the simulator gives each node
    // a range of one tick.
    ("control", "raft"),
];

struct Package {
    name: String,
    /// Names of normal and build dependencies, one step.
    direct: BTreeSet<String>,
}

/// What links what, by package id; not for tests.
type Edges = BTreeMap<String, Vec<String>>;

/// All packages of the resolved graph by id, with the edges between them.
fn graph() -> Result<(BTreeMap<String, Package>, Edges)> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked", "--offline"])
        .current_dir(tools::root())
        .output()?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut packages = BTreeMap::new();
    for package in list(&metadata["packages"]) {
        let kept = list(&package["dependencies"]).into_iter().filter(|d| d["kind"].as_str() != Some("dev"));
        let direct = kept.map(|d| text(&d["name"])).collect();
        packages.insert(text(&package["id"]), Package { name: text(&package["name"]), direct });
    }
    let mut edges = BTreeMap::new();
    for node in list(&metadata["resolve"]["nodes"]) {
        let linked = list(&node["deps"])
            .into_iter()
            .filter(|d| list(&d["dep_kinds"]).iter().any(|k| k["kind"].is_null()));
        edges.insert(text(&node["id"]), linked.map(|d| text(&d["pkg"])).collect());
    }
    Ok((packages, edges))
}

#[test]
fn arrows_are_those_of_the_map() -> Result<()> {
    let (packages, _) = graph()?;
    let map: BTreeMap<_, _> = ARROWS.iter().copied().collect();
    let mut wrong = Vec::new();
    for package in packages.values() {
        let Some(name) = package.name.strip_prefix("semel-").or((package.name == "semel").then_some("semel"))
        else {
            continue;
        };
        let allowed = map.get(name).with_context(|| format!("{name} is not in the map"))?;
        for target in package.direct.iter().filter_map(|d| d.strip_prefix("semel-")) {
            let vocabulary = target == "model" || (target == "record" && name != "model");
            if !(allowed.contains(&target) || vocabulary && name != "tests") {
                wrong.push(format!("{name} -> {target}"));
            }
        }
    }
    ensure!(wrong.is_empty(), "arrows that are not in the map: {wrong:#?}");
    Ok(())
}

#[test]
fn the_map_has_no_arrow_upwards() -> Result<()> {
    for (row, (name, targets)) in ARROWS.iter().enumerate() {
        for target in *targets {
            let at = ARROWS.iter().position(|(n, _)| n == target).context("an arrow to nowhere")?;
            ensure!(at < row, "{name} -> {target} points upwards");
        }
    }
    Ok(())
}

#[test]
fn cores_link_nothing_that_is_banned() -> Result<()> {
    let (packages, edges) = graph()?;
    let mut wrong = Vec::new();
    for core in CORES {
        let Some(start) = packages.iter().find(|(_, p)| p.name.strip_prefix("semel-") == Some(core)) else {
            // A crate that a later part of Semel brings.
            continue;
        };
        let (mut todo, mut seen) = (vec![start.0], BTreeSet::new());
        while let Some(id) = todo.pop() {
            let name = packages.get(id).context("a package")?.name.as_str();
            if BANNED.contains(&name) {
                wrong.push(format!("{core} links {name}"));
            }
            if seen.insert(id) && !EXCUSED.contains(&(*core, name)) {
                todo.extend(edges.get(id).context("a node of the graph")?);
            }
        }
    }
    ensure!(wrong.is_empty(), "{wrong:#?}");
    Ok(())
}

/// The work tree's top level is part of the design: nothing else may settle there.
#[test]
fn the_top_level_holds_what_the_design_names() -> Result<()> {
    let allowed = ["crates", "proto", "deploy", "helm", "scripts", "tests"];
    let files = [
        "Cargo.toml",
        "Cargo.lock",
        "README.md",
        "CHANGELOG.md",
        "LICENSE",
        "rust-toolchain.toml",
        "rustfmt.toml",
        "clippy.toml",
        "deny.toml",
    ];
    let output = Command::new("git").args(["ls-files"]).current_dir(tools::root()).output()?;
    if !output.status.success() {
        // An unpacked archive has no index to ask.
        return Ok(());
    }
    let listed = String::from_utf8(output.stdout)?;
    let wrong: BTreeSet<_> = listed
        .lines()
        .map(|l| l.split_once('/').map_or((l, false), |(top, _)| (top, true)))
        .filter(|(top, dir)| {
            !top.starts_with('.') && !if *dir { allowed.contains(top) } else { files.contains(top) }
        })
        .map(|(top, _)| top)
        .collect();
    ensure!(wrong.is_empty(), "the design has no place for {wrong:?}");
    Ok(())
}
