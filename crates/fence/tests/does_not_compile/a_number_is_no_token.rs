//! A number from somewhere else is no token.

use fencepost_fence::Access;

fn main() {
    let made_up: u64 = 42;
    let _ = Access::write("wallet:7", made_up);
}
