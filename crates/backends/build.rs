//! Generates the gRPC client of the etcd backend from `proto/etcd.proto`, if the feature `etcd` is on.
//!
//! The library `protox` compiles the schema, so a build does not need `protoc`.

#[cfg(feature = "etcd")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let schema = protox::compile(["etcd.proto"], ["proto"])?;
    // `etcd/calls.rs` creates the channels, so the generated code needs no transport.
    let stubs = tonic_prost_build::configure().build_transport(false).build_server(false).disable_comments(["."]);
    stubs.compile_fds(schema)?;
    Ok(())
}

#[cfg(not(feature = "etcd"))]
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
}
