//! The Rust SDK of Fencepost.

pub mod anchor;
pub mod machine;

mod clock;

/// The gRPC stubs.
#[allow(missing_docs, clippy::all, unreachable_pub, dead_code, reason = "generated")]
mod rpc {
    include!(concat!(env!("OUT_DIR"), "/fencepost.v1.rs"));
}
