//! Generates the Rust code of `proto/` with protox, so that nobody needs `protoc`.

use std::{error::Error, path::PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?).join("../../proto");
    let files = [
        "semel/v1/error.proto",
        "semel/v1/log.proto",
        "semel/v1/admin.proto",
        "semel/v1/cluster.proto",
        "semel/internal/v1/metadata.proto",
        "semel/internal/v1/controller.proto",
        "semel/internal/v1/raft.proto",
    ];
    println!("cargo::rerun-if-changed={}", root.display());
    let descriptors = protox::compile(files, [&root])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), prost_message_bytes(&descriptors))?;
    // Payloads are `Bytes`: slices of the frame they came in, never copies. Maps keep one order in every run.
    tonic_prost_build::configure().bytes(".").btree_map(".").compile_fds(descriptors)?;
    Ok(())
}

/// The descriptor set as bytes, for gRPC reflection.
fn prost_message_bytes(descriptors: &impl prost::Message) -> Vec<u8> {
    descriptors.encode_to_vec()
}
