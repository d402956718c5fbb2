//! A lock for efficiency, or a permit, knows who holds it and has no fencing token. What it has does not fit.

use fencepost_fence::{Access, Token};

struct EfficiencyGuard {
    grant: Token,
}

fn main() {
    let lock = EfficiencyGuard { grant: Token(42) };
    let _ = Access::write("wallet:7", lock.grant);
}
