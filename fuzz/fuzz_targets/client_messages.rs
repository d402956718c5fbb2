//! Hands the engine's bytes to `client_messages::check`, which says what must hold. Decides nothing itself.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fencepost_fuzz::client_messages::check(bytes));
