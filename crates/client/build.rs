//! Generates the gRPC stubs of the services in `proto/`. The messages are `fencepost-wire`'s, so that there is one of each.
//! The schema is compiled by a library (`protox`): nobody has to install `protoc`.

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=../../proto");
    let files = ["lock", "observe", "admin"].map(|file| format!("fencepost/v1/{file}.proto"));
    let schema = protox::compile(files, ["../../proto"])?;
    // The channels are made in one place of our own; the generated short cut would also clash with the method `Connect`.
    let stubs = || {
        tonic_prost_build::configure()
            .build_transport(false)
            .extern_path(".fencepost.v1", "::fencepost_wire::v1")
            .disable_comments(["."])
    };
    stubs().build_server(false).compile_fds(schema.clone())?;
    // The tests talk to a small server on the loopback; its stubs are no part of the library.
    let for_tests = PathBuf::from(std::env::var("OUT_DIR")?).join("server");
    std::fs::create_dir_all(&for_tests)?;
    stubs().build_client(false).out_dir(for_tests).compile_fds(schema)?;
    Ok(())
}
