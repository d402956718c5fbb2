//! The token of a shared lock reads, and claims nothing: others hold the same lock.

use fencepost_fence::{Access, ReadToken};

fn main() {
    let token: ReadToken = "42".parse().unwrap();
    let _ = Access::claim("wallet:7", token);
}
