//! Generates the gRPC services of `proto/`, and the schema for reflection. The messages are those of `fencepost-wire`.

use prost::Message;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=../../proto");
    let files = ["lock", "observe", "admin", "transport"].map(|file| format!("fencepost/v1/{file}.proto"));
    let schema = protox::compile(files, ["../../proto"])?;
    // For gRPC reflection.
    let output = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(output.join("schema.bin"), schema.encode_to_vec())?;
    tonic_prost_build::configure()
        .extern_path(".fencepost.v1", "::fencepost_wire::v1")
        .disable_comments(["."])
        // The generated `connect` would clash with the service's own call `Connect`.
        .build_transport(false)
        .compile_fds(schema)?;
    Ok(())
}
