//! The fuzzer of tensors as JSON.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| native_fuzz::http_json_check::check(input));
