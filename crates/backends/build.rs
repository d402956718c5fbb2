//! Generates what the etcd backend speaks, from `proto/etcd.proto`, if that backend is wanted. The schema is compiled by a library
//! (`protox`): nobody has to install `protoc`.

#[cfg(feature = "etcd")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let schema = protox::compile(["etcd.proto"], ["proto"])?;
    // The channels are made in one place of our own.
    let stubs = tonic_prost_build::configure().build_transport(false).build_server(false).disable_comments(["."]);
    stubs.compile_fds(schema)?;
    Ok(())
}

#[cfg(not(feature = "etcd"))]
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
}
