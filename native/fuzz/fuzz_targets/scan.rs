//! The fuzzer of the request scanner.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| native_fuzz::scan_check::check(input));
