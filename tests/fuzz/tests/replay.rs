//! The fuzz targets on the stable compiler: every input in `corpus/`, and many changed ones.
//!
//! `SEMEL_FUZZ_MUTATIONS` says how many changed inputs each target gets, if not [`MUTATIONS`].
//! `SEMEL_FUZZ_INPUT=<target>:<file>` runs one file instead, to look at what a fuzzer found.

use std::{fs, panic, path::Path};

use semel_fuzz::{TARGETS, Target};

const MUTATIONS: u64 = 3000;
/// A changed input is not let grow beyond this.
const INPUT_BYTES_MAX: usize = 64 << 10;

fn corpus(target: &Target) -> Vec<(String, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
    let mut inputs: Vec<(String, Vec<u8>)> = fs::read_dir(&dir)
        .unwrap_or_else(|cause| panic!("{}: {cause}", dir.display()))
        .map(|entry| {
            let entry = entry.unwrap();
            (entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path()).unwrap())
        })
        .collect();
    // The order of a directory is the file system's; a failure must come again.
    inputs.sort();
    inputs
}

/// Runs one input; a panic names it in full.
fn run(target: &Target, name: &str, input: &[u8]) {
    if let Err(cause) = panic::catch_unwind(|| (target.run)(input)) {
        eprintln!("{} failed on {name}, {} bytes:\n{}", target.name, input.len(), hex(input));
        panic::resume_unwind(cause);
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn replay(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name).expect("a target of this name");
    if let Ok(wanted) = std::env::var("SEMEL_FUZZ_INPUT") {
        let (of, file) = wanted.split_once(':').expect("SEMEL_FUZZ_INPUT=<target>:<file>");
        if of == name {
            run(target, file, &fs::read(file).unwrap());
        }
        return;
    }
    let inputs = corpus(target);
    assert!(!inputs.is_empty(), "{name} has no seeds");
    run(target, "nothing", &[]);
    for (file, input) in &inputs {
        run(target, file, input);
    }
    let mutations = std::env::var("SEMEL_FUZZ_MUTATIONS").map_or(MUTATIONS, |text| text.parse().unwrap());
    let mut random = Xorshift(0x5eed_5eed_5eed_5eed);
    for at in 0..mutations {
        let (file, seed) = &inputs[random.below(inputs.len())];
        let (_, other) = &inputs[random.below(inputs.len())];
        let mut input = seed.clone();
        for _ in 0..=random.below(4) {
            random.change(&mut input, other);
        }
        input.truncate(INPUT_BYTES_MAX);
        run(target, &format!("change {at} of {file}"), &input);
    }
}

/// Marsaglia's xorshift64: every run draws the same numbers.
struct Xorshift(u64);

impl Xorshift {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// In `0..bound`, 0 if that is empty.
    fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 16).checked_rem(bound as u64).unwrap_or(0) as usize
    }

    /// A number that parsers stumble over, in as many bytes as it is likely to have on the wire.
    fn edge(&mut self) -> Vec<u8> {
        let value =
            [0, 1, -1, 2, 49, 61, i64::MAX, i64::MIN, 0x7fff, 0x8000, 0x7fff_ffff, 0x8000_0000, 0xffff]
                [self.below(13)];
        match self.below(4) {
            0 => vec![value as u8],
            1 => (value as i16).to_be_bytes().to_vec(),
            2 => (value as i32).to_be_bytes().to_vec(),
            _ => value.to_be_bytes().to_vec(),
        }
    }

    /// One change, of the kinds that fuzzers make.
    fn change(&mut self, input: &mut Vec<u8>, other: &[u8]) {
        let at = self.below(input.len());
        let span = |random: &mut Self, len: usize| {
            let start = random.below(len);
            let count = random.below((len - start).min(200)) + 1;
            start..(start + count).min(len)
        };
        match self.below(9) {
            0 if !input.is_empty() => input[at] ^= 1 << self.below(8),
            1 if !input.is_empty() => input[at] = self.next() as u8,
            2 if !input.is_empty() => {
                input[at] = input[at].wrapping_add(if self.below(2) == 0 { 1 } else { 255 })
            }
            3 => {
                for (place, byte) in input[at..].iter_mut().zip(self.edge()) {
                    *place = byte;
                }
            }
            4 => {
                let bytes = self.edge();
                input.splice(at..at, bytes);
            }
            5 if !input.is_empty() => {
                let gone = span(self, input.len());
                input.drain(gone);
            }
            6 if !input.is_empty() => {
                let part = input[span(self, input.len())].to_vec();
                input.splice(at..at, part);
            }
            7 if !other.is_empty() => {
                let part = other[span(self, other.len())].to_vec();
                let end = (at + part.len()).min(input.len());
                input.splice(at..end, part);
            }
            _ => input.truncate(at),
        }
    }
}

macro_rules! replays {
    ($($name:ident),*) => {
        $(#[test]
        fn $name() {
            replay(stringify!($name));
        })*

        #[test]
        fn every_target_is_replayed() {
            let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
        }
    };
}

replays!(
    kafka_frame,
    kafka_response,
    consumer_protocol,
    record_batch,
    record_walk,
    control_record,
    log_files,
    checkpoints
);

#[test]
fn the_seeds_in_the_corpus_are_those_of_the_formats_as_they_are() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let golden = fs::read_to_string(here.join("../../crates/kafka-wire/tests/golden/messages.txt")).unwrap();
    for seed in semel_fuzz::seeds::all(&golden) {
        let path = here.join("corpus").join(seed.target).join(&seed.name);
        let stored = fs::read(&path).unwrap_or_default();
        assert!(stored == seed.bytes, "{} is old: cargo run --example seeds", path.display());
    }
}
