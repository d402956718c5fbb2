//! Generates the Rust types of `proto/`. The schema compiler is a library (`protox`), so that a build needs no installed `protoc` and
//! always uses the version in `Cargo.lock`.

const FILES: [&str; 8] = ["log", "snapshot", "member", "peer", "transport", "lock", "observe", "admin"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=../../proto");
    let files = FILES.map(|file| format!("fencepost/v1/{file}.proto"));
    let schema = protox::compile(files, ["../../proto"])?;
    // The schema's comments are for readers of the schema. The generated types need no Rust documentation.
    let mut config = prost_build::Config::new();
    // Messages with a secret have a `Debug` of their own that leaves it out: src/secret.rs.
    config.disable_comments(["."]).skip_debug([".fencepost.v1.OpenSession", ".fencepost.v1.AttachSession"]);
    config.compile_fds(schema)?;
    Ok(())
}
