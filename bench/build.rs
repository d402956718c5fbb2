//! Generates the gRPC messages and clients for etcd from `proto/`. The library `protox` compiles the schema, so `protoc` need not be
//! installed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let schema = protox::compile(["lease.proto", "lock.proto"], ["proto"])?;
    // `systems/etcd.rs` makes the channel.
    let stubs = tonic_prost_build::configure().build_transport(false).build_server(false).disable_comments(["."]);
    stubs.compile_fds(schema)?;
    Ok(())
}
