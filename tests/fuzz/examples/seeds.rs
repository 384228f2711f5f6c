//! Writes the seeds into `corpus/`, one folder a target. Files that are no seeds stay: inputs that once broke something.

use std::{fs, io, path::Path};

fn main() -> io::Result<()> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let golden = fs::read_to_string(here.join("../../crates/kafka-wire/tests/golden/messages.txt"))?;
    for seed in semel_fuzz::seeds::all(&golden) {
        let dir = here.join("corpus").join(seed.target);
        fs::create_dir_all(&dir)?;
        fs::write(dir.join(&seed.name), &seed.bytes)?;
    }
    Ok(())
}
