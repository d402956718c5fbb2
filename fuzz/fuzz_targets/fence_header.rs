//! Hands the engine's bytes to `fence_header::check`, which says what must hold. Decides nothing itself.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fencepost_fuzz::fence_header::check(bytes));
