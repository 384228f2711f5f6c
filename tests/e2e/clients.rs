//! Four clients, each through the same tour: create, produce idempotently with every codec, consume by assignment, look
//! up by time, delete.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use semel_tests::node::Dev;
use semel_tests::tools::{self, go_client, kafka_tool, kcat, python_client};

const LIMIT: Duration = Duration::from_secs(180);
const CODECS: [&str; 5] = ["none", "gzip", "snappy", "lz4", "zstd"];
const TOOLS: &str = "org.apache.kafka.tools";

fn run(command: Command) -> Result<String> {
    tools::run(command, None, LIMIT)?.ok()
}

#[test]
fn python_tour() -> Result<()> {
    let mut node = Dev::start()?;
    run(python_client(&["tour", &node.kafka().to_string()]))?;
    node.check_alive()
}

#[test]
fn go_tour() -> Result<()> {
    let mut node = Dev::start()?;
    run(go_client(&[&node.kafka().to_string()]))?;
    node.check_alive()
}

/// Apache Kafka's console tools.
#[test]
fn java_tour() -> Result<()> {
    let mut node = Dev::start()?;
    let boot = node.kafka().to_string();
    let java = |class: &str, arguments: &[&str]| {
        let class = format!("{TOOLS}.{class}");
        kafka_tool(&class, &[&["--bootstrap-server", &boot], arguments].concat())
    };
    run(java(
        "TopicCommand",
        &["--create", "--topic", "java", "--partitions", "2", "--config", "retention.ms=-1"],
    ))?;
    let described = run(java("TopicCommand", &["--describe", "--topic", "java"]))?;
    ensure!(described.contains("PartitionCount: 2") && described.contains("retention.ms=-1"), "{described}");

    let mut written = BTreeSet::new();
    for codec in CODECS {
        let lines: Vec<String> =
            (0..40).map(|i| format!("{codec}-{i}:value {i} of {codec} {}", "é".repeat(i))).collect();
        let file = node.scratch().join(codec);
        fs::write(&file, lines.join("\n") + "\n")?;
        let command = java(
            "ConsoleProducer",
            &[
                &[
                    "--topic",
                    "java",
                    "--compression-codec",
                    codec,
                    "--command-property",
                    "enable.idempotence=true",
                ],
                &["--reader-property", "parse.key=true", "--reader-property", "key.separator=:"][..],
            ]
            .concat(),
        );
        let output = tools::run(command, Some(&file), LIMIT)?;
        // The console producer logs what fails and still ends with 0.
        ensure!(output.code == Some(0) && !output.stderr.contains("ERROR"), "{codec}: {}", output.stderr);
        written.extend(lines);
    }

    let mut ends = Vec::new();
    for partition in ["0", "1"] {
        let end =
            offset(&run(java("GetOffsetShell", &["--topic-partitions", &format!("java:{partition}")]))?)?;
        ends.push(end);
    }
    ensure!(ends.iter().sum::<i64>() == 200 && ends.iter().all(|&e| e > 0), "ends {ends:?}");

    let mut read = BTreeSet::new();
    let mut first_stamps = Vec::new();
    for (partition, end) in ends.iter().enumerate() {
        let (partition, end) = (partition.to_string(), end.to_string());
        let arguments = [
            &["--topic", "java", "--partition", &partition, "--offset", "earliest"],
            &["--max-messages", &end, "--timeout-ms", "60000"][..],
            &["--formatter-property", "print.key=true", "--formatter-property", "key.separator=:"],
            &["--formatter-property", "print.timestamp=true", "--formatter-property", "print.offset=true"],
        ];
        let shown = run(java("consumer.ConsoleConsumer", &arguments.concat()))?;
        let mut stamps = Vec::new();
        for (index, line) in shown.lines().enumerate() {
            // CreateTime:1750000000000:Offset:0:key:value
            let mut parts = line.splitn(5, ':');
            let (_, stamp, _, at) = (parts.next(), parts.next(), parts.next(), parts.next());
            ensure!(at == Some(index.to_string().as_str()), "offset {at:?} at line {index}");
            stamps.push(stamp.context("a timestamp")?.parse::<i64>()?);
            read.insert(parts.next().context("key and value")?.to_owned());
        }
        first_stamps.push(stamps);
    }
    ensure!(read == written, "what was read is not what was written");

    // By time: the first record that is not older.
    for (partition, stamps) in first_stamps.iter().enumerate() {
        let newest = stamps.iter().max().context("records")?;
        let expected = stamps.iter().position(|s| s >= newest).context("an index")?;
        let topic = format!("java:{partition}");
        let found = offset(&run(java(
            "GetOffsetShell",
            &["--topic-partitions", &topic, "--time", &newest.to_string()],
        ))?)?;
        ensure!(found == i64::try_from(expected)?, "at {newest}: {found} and not {expected}");
        let latest =
            offset(&run(java("GetOffsetShell", &["--topic-partitions", &topic, "--time", "latest"]))?)?;
        ensure!(latest == i64::try_from(stamps.len())?, "latest {latest}");
    }

    // Configs, log folders, records, the topic.
    let topic = ["--entity-type", "topics", "--entity-name", "java"];
    run(java(
        "ConfigCommand",
        &[&["--alter", "--add-config", "retention.ms=86400000"][..], &topic].concat(),
    ))?;
    let shown = run(java("ConfigCommand", &[&["--describe"][..], &topic].concat()))?;
    ensure!(shown.contains("retention.ms=86400000"), "{shown}");
    let dirs = run(java("LogDirsCommand", &["--describe", "--topic-list", "java"]))?;
    ensure!(dirs.contains("\"java-0\"") && dirs.contains("\"java-1\""), "{dirs}");
    let plan = node.scratch().join("delete.json");
    fs::write(&plan, r#"{"version":1,"partitions":[{"topic":"java","partition":0,"offset":7}]}"#)?;
    let plan = plan.to_str().context("a UTF-8 path")?;
    let cut = run(java("DeleteRecordsCommand", &["--offset-json-file", plan]))?;
    ensure!(cut.contains("low_watermark: 7"), "{cut}");
    let earliest = ["--topic-partitions", "java:0", "--time", "earliest"];
    ensure!(offset(&run(java("GetOffsetShell", &earliest))?)? == 7);
    run(java("TopicCommand", &["--delete", "--topic", "java"]))?;
    let listed = run(java("TopicCommand", &["--list"]))?;
    ensure!(!listed.lines().any(|l| l == "java"), "{listed}");
    node.check_alive()
}

/// `topic:partition:offset` of GetOffsetShell.
fn offset(line: &str) -> Result<i64> {
    let number = line.trim().rsplit(':').next().context("an offset")?;
    number.parse().with_context(|| format!("offset in {line:?}"))
}

/// kcat has no command to create or delete a topic: its first record creates it, and the Python client, on the same
/// library, deletes it.
#[test]
fn kcat_tour() -> Result<()> {
    let mut node = Dev::start()?;
    let boot = node.kafka().to_string();
    let mut written = Vec::new();
    for codec in CODECS {
        let lines: Vec<String> = (0..40).map(|i| format!("{codec}-{i}|value {i} of {codec}")).collect();
        let file = node.scratch().join(codec);
        fs::write(&file, lines.join("\n") + "\n")?;
        let settings = ["-X", "enable.idempotence=true", "-K", "|", "-z", codec];
        let command = kcat(&[&["-P", "-b", &boot, "-t", "kcat", "-p", "0"][..], &settings].concat());
        tools::run(command, Some(&file), LIMIT)?.ok().with_context(|| codec.to_owned())?;
        written.extend(lines);
    }
    let read = |from: &str| {
        run(kcat(&[
            "-C",
            "-b",
            &boot,
            "-t",
            "kcat",
            "-p",
            "0",
            "-o",
            from,
            "-e",
            "-q",
            "-f",
            "%T %o %k|%s\n",
        ]))
    };
    let shown = read("beginning")?;
    let mut stamps = Vec::new();
    let mut got = Vec::new();
    for (index, line) in shown.lines().enumerate() {
        let mut parts = line.splitn(3, ' ');
        stamps.push(parts.next().context("a timestamp")?.parse::<i64>()?);
        ensure!(parts.next() == Some(index.to_string().as_str()), "offset of line {index}: {line}");
        got.push(parts.next().context("key and value")?.to_owned());
    }
    ensure!(got == written, "what was read is not what was written");
    ensure!(read("195")?.lines().count() == 5, "reading from offset 195");

    for index in [0, 39, 40, 100, 199] {
        let expected = stamps.iter().position(|&s| s >= stamps[index]).context("an index")?;
        let answer = run(kcat(&["-Q", "-b", &boot, "-t", &format!("kcat:0:{}", stamps[index])]))?;
        ensure!(answer.trim() == format!("kcat [0] offset {expected}"), "{answer} and not {expected}");
    }
    let listed = run(kcat(&["-L", "-b", &boot]))?;
    ensure!(listed.contains("topic \"kcat\" with 1 partitions"), "{listed}");
    run(python_client(&["delete", &boot, "kcat"]))?;
    node.check_alive()
}
