//! The seeds in `corpus/`, made by this code from the formats as they are. `cargo run --example seeds` writes them.

use bytes::Bytes;
use semel_kafka_wire::SUPPORTED;
use semel_model::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, Sequence, Timestamp};
use semel_record::{Batch, BatchBuilder, Codec, Compression, Outcome, RecordHeader};

use crate::{log, record, wire};

/// A seed.
#[derive(Clone, Debug)]
pub struct Seed {
    /// Of which target.
    pub target: &'static str,
    /// Of its file.
    pub name: String,
    /// The input.
    pub bytes: Vec<u8>,
}

/// All seeds. `golden` is the text of the Kafka codec's golden messages.
#[must_use]
pub fn all(golden: &str) -> Vec<Seed> {
    let mut seeds = Vec::new();
    let mut add = |target, name: String, bytes: Vec<u8>| seeds.push(Seed { target, name, bytes });
    for line in golden.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split(' ').collect();
        let &[name, version, kind, hex] = &words[..] else { continue };
        let Some(api) = SUPPORTED.iter().position(|api| api.key.name() == name) else { continue };
        let Ok(version) = version.parse::<i16>() else { continue };
        // The oldest and the newest: what lies between takes the same branches. Large ones only slow a fuzzer down.
        if (version != SUPPORTED[api].min && version != SUPPORTED[api].max) || hex.len() > 2000 {
            continue;
        }
        let body = unhex(hex);
        let file = format!("{name}-{version}");
        if kind == "request" {
            if let Some(frame) = wire::request_frame(api, version, body) {
                add("kafka_frame", file, frame.to_vec());
            }
        } else if let Some(input) = wire::response_input(api, version, body) {
            add("kafka_response", file, input);
        }
    }
    for (at, bytes) in wire::protocol_seeds().into_iter().enumerate() {
        add("consumer_protocol", format!("message-{at}"), bytes.to_vec());
    }
    for codec in Codec::ALL {
        let batch = sample(codec);
        for (name, options) in [("raw", 0b110), ("repaired", 0b111), ("strict", 0b11_1111)] {
            add(
                "record_batch",
                format!("{codec}-{name}"),
                [&[options, 0b0101_0101], &batch.bytes[..]].concat(),
            );
        }
    }
    let some: Vec<u8> = [sample(Codec::None), record::marker(Outcome::Abort, 7), sample(Codec::Lz4)]
        .iter()
        .flat_map(|batch| batch.clone().stamped(Offset(3), LeaderEpoch(1)).bytes)
        .collect();
    add("record_walk", "three".to_owned(), [&[1], &some[..]].concat());
    add("record_walk", "cut".to_owned(), [&[0], &some[..some.len() - 9]].concat());
    for (name, outcome) in [("commit", Outcome::Commit), ("abort", Outcome::Abort)] {
        let batch = record::marker(outcome, 7);
        add("control_record", format!("{name}-batch"), batch.bytes.to_vec());
        let kind = if outcome == Outcome::Commit { 1 } else { 0 };
        add("control_record", name.to_owned(), vec![4, 0, 0, 0, kind, 0, 0, 0, 0, 0, 7]);
    }
    for (name, bytes) in log::log_seeds() {
        add("log_files", name, bytes);
    }
    for (name, bytes) in log::checkpoint_seeds() {
        add("checkpoints", name, bytes);
    }
    seeds
}

/// A batch with everything in it that a record may have.
fn sample(codec: Codec) -> Batch {
    let header = |key: &'static str, value: Option<&'static str>| RecordHeader {
        key: Bytes::from_static(key.as_bytes()),
        value: value.map(|value| Bytes::from_static(value.as_bytes())),
    };
    let mut builder = BatchBuilder::new().compression(Compression::of(codec)).producer(
        ProducerId(7),
        ProducerEpoch(2),
        Sequence(i32::MAX),
    );
    builder.push(Timestamp(1000), Some(b"k"), Some(b"first"), &[]);
    builder.push(Timestamp(1005), Some(b"key"), Some(b"v"), &[header("h", None), header("h", Some(""))]);
    builder.push(Timestamp(998), Some(b""), None, &[]);
    builder.push(Timestamp(1006), Some(b"k"), Some(&[b'a'; 70]), &[]);
    builder.build().expect("a few records make a batch")
}

fn unhex(text: &str) -> Bytes {
    let digit = |letter: u8| (letter as char).to_digit(16).map_or(0, |digit| digit as u8);
    text.as_bytes().chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}
