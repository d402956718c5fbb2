//! The token of a shared lock reads, and does not write.

use fencepost_fence::{Access, ReadToken};

fn main() {
    let token: ReadToken = "42".parse().unwrap();
    let _ = Access::write("wallet:7", token);
}
