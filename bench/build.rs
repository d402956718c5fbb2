//! Generates what the benchmark says to etcd, from `proto/`. The schema is compiled by a library (`protox`): nobody has to install
//! `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let schema = protox::compile(["lease.proto", "lock.proto"], ["proto"])?;
    // The channel is made in one place of our own.
    let stubs = tonic_prost_build::configure().build_transport(false).build_server(false).disable_comments(["."]);
    stubs.compile_fds(schema)?;
    Ok(())
}
