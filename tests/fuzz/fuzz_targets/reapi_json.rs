//! Action results as JSON: no input panics, and a result is the same after it was written as JSON
//! and read again.
#![no_main]

use fonn_reapi::{result_of_json, result_to_json};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    if let Some(result) = result_of_json(input) {
        let text = result_to_json(&result).expect("a result that JSON stood for");
        let again = result_of_json(text.as_bytes()).expect("JSON that was written");
        assert_eq!(again, result);
    }
    // Any message: fields that are not known are left out, so the texts are compared.
    if let Some(text) = result_to_json(input) {
        let result = result_of_json(text.as_bytes()).expect("JSON that was written");
        let again = result_to_json(&result).expect("a result that JSON stood for");
        assert_eq!(again, text);
    }
});
