//! Generates the gRPC stubs of the services in `proto/`.
//!
//! The messages come from `fencepost-wire`, so that each message type exists once. A library (`protox`) compiles the schema, so
//! `protoc` need not be installed.

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=../../proto");
    let files = ["lock", "observe", "admin"].map(|file| format!("fencepost/v1/{file}.proto"));
    let schema = protox::compile(files, ["../../proto"])?;
    // `driver::endpoint` creates all channels. The generated shortcut would also clash with the method `Connect`.
    let stubs = || {
        tonic_prost_build::configure()
            .build_transport(false)
            .extern_path(".fencepost.v1", "::fencepost_wire::v1")
            .disable_comments(["."])
    };
    stubs().build_server(false).compile_fds(schema.clone())?;
    // For the small server of the tests. Its stubs are not part of the library.
    let for_tests = PathBuf::from(std::env::var("OUT_DIR")?).join("server");
    std::fs::create_dir_all(&for_tests)?;
    stubs().build_client(false).out_dir(for_tests).compile_fds(schema)?;
    Ok(())
}
