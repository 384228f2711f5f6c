#![no_main]
#![allow(missing_docs, reason = "see the function in the library")]
libfuzzer_sys::fuzz_target!(|data: &[u8]| semel_fuzz::consumer_protocol(data));
