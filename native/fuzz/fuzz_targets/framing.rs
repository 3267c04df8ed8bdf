//! The fuzzer of gRPC framing.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| native_fuzz::framing_check::check(input));
