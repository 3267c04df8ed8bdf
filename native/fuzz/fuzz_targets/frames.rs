//! The fuzzer of the HTTP/2 frame walker.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| native_fuzz::frames_check::check(input));
