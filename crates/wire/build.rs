//! Generates the Rust types of `proto/`. The compiler of the schema is a library (`protox`), so that nobody has to install
//! `protoc`, and every build uses the version that `Cargo.lock` says.

const FILES: [&str; 8] = ["log", "snapshot", "member", "peer", "transport", "lock", "observe", "admin"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=../../proto");
    let files = FILES.map(|file| format!("fencepost/v1/{file}.proto"));
    let schema = protox::compile(files, ["../../proto"])?;
    // The comments of the schema are written for readers of the schema; as Rust documentation nobody would see them.
    let mut config = prost_build::Config::new();
    // What carries a secret has a `Debug` of its own, which leaves it out: src/secret.rs.
    config.disable_comments(["."]).skip_debug([".fencepost.v1.OpenSession", ".fencepost.v1.AttachSession"]);
    config.compile_fds(schema)?;
    Ok(())
}
