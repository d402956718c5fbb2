//! Generates the services of `proto/`. Their messages are `fencepost-wire`'s.

use prost::Message;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=../../proto");
    let files = ["lock", "observe", "admin", "transport"].map(|file| format!("fencepost/v1/{file}.proto"));
    let schema = protox::compile(files, ["../../proto"])?;
    // For reflection: what tools ask a running server for.
    let output = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(output.join("schema.bin"), schema.encode_to_vec())?;
    tonic_prost_build::configure()
        .extern_path(".fencepost.v1", "::fencepost_wire::v1")
        .disable_comments(["."])
        // Its convenience would be named `connect`, as a call of ours is.
        .build_transport(false)
        .compile_fds(schema)?;
    Ok(())
}
