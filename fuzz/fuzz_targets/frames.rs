//! Hands the engine's bytes to `frames::check`, which says what must hold. Decides nothing itself.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fencepost_fuzz::frames::check(bytes));
