//! Generates Rust from `proto/`: the messages always, and the gRPC stubs of the services behind the features `grpc-client` and
//! `grpc-server`. A library (`protox`) compiles the schema, so that no user has to install `protoc`, and every build uses the version in
//! `Cargo.lock`.

#![allow(clippy::disallowed_methods, reason = "a build script reads and writes files; the crate itself may not")]

const FILES: [&str; 8] = ["log", "snapshot", "member", "peer", "transport", "lock", "observe", "admin"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files = FILES.map(|file| format!("fencepost/v1/{file}.proto"));
    let schema = protox::compile(files, ["proto"])?;
    #[cfg(any(feature = "grpc-client", feature = "grpc-server"))]
    grpc_stubs(&schema)?;
    let mut config = prost_build::Config::new();
    // The comments of the schema are for readers of the schema. Messages that carry a secret have a `Debug` of their own, which leaves it
    // out: src/secret.rs.
    config.disable_comments(["."]).skip_debug([".fencepost.v1.OpenSession", ".fencepost.v1.AttachSession"]);
    config.compile_fds(schema)?;
    Ok(())
}

#[cfg(any(feature = "grpc-client", feature = "grpc-server"))]
fn grpc_stubs(schema: &prost_types::FileDescriptorSet) -> Result<(), Box<dyn std::error::Error>> {
    use prost::Message;

    let out = std::path::PathBuf::from(std::env::var("OUT_DIR")?).join("grpc");
    std::fs::create_dir_all(&out)?;
    // For reflection: tools ask a running server for it.
    std::fs::write(out.join("schema.bin"), schema.encode_to_vec())?;
    tonic_prost_build::configure()
        .build_client(cfg!(feature = "grpc-client"))
        .build_server(cfg!(feature = "grpc-server"))
        // The library and the server make their channels themselves. The generated `connect` would also clash with the call `Connect`.
        .build_transport(false)
        .extern_path(".fencepost.v1", "crate::v1")
        .disable_comments(["."])
        .out_dir(out)
        .compile_fds(schema.clone())?;
    Ok(())
}
