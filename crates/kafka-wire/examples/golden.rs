//! Prints one value of every message and version, as lines `Api version request|response hex`.
//!
//! `tests/golden/messages.txt` is such an output, after Kafka's own client has read each line and written the same
//! bytes again (`tests/golden/Verify.java`). An argument sets the number of values for each message (default 1); the
//! seed is their index.

use bytes::Bytes;
use semel_kafka_wire::testing::TestRng;
use semel_kafka_wire::{Chunk, EncodeError, Request, Response, SUPPORTED, Writer};

/// One golden value is kept short; more than one are not.
const SHORT: usize = 240;

fn main() {
    let rounds: u64 = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(1);
    for api in &SUPPORTED {
        for version in api.min..=api.max {
            for round in 0..rounds {
                let request = pick(rounds, round, |g| {
                    let body =
                        Request::arbitrary(api.key, g, version).expect("every supported API has values");
                    bytes(|w| body.encode(w, version))
                });
                println!("{} {version} request {}", api.key, hex(&request));
                let response = pick(rounds, round, |g| {
                    let body =
                        Response::arbitrary(api.key, g, version).expect("every supported API has values");
                    bytes(|w| body.encode(w, version))
                });
                println!("{} {version} response {}", api.key, hex(&response));
            }
        }
    }
}

/// The longest of a few values that is still short, or the value of this round.
fn pick(rounds: u64, round: u64, value: impl Fn(&mut TestRng) -> Bytes) -> Bytes {
    if rounds > 1 {
        return value(&mut TestRng::new(round));
    }
    let tries = (0..200).map(|seed| value(&mut TestRng::new(seed)));
    tries
        .filter(|bytes| bytes.len() <= SHORT)
        .max_by_key(Bytes::len)
        .expect("one of two hundred values is short")
}

fn bytes(write: impl FnOnce(&mut Writer) -> Result<(), EncodeError>) -> Bytes {
    let mut w = Writer::new();
    write(&mut w).expect("arbitrary values fit their version");
    w.into_chunks()
        .into_iter()
        .flat_map(|chunk| match chunk {
            Chunk::Bytes(bytes) => bytes,
            Chunk::External(_) => Bytes::new(),
        })
        .collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
