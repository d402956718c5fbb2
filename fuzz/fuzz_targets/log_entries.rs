//! Hands the engine's bytes to `log_entries::check`, which says what must hold. Decides nothing itself.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fencepost_fuzz::log_entries::check(bytes));
