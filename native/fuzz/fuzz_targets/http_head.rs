//! The fuzzer of HTTP heads.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| native_fuzz::http_head_check::check(input));
