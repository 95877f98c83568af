//! What ccache says over the socket and in variables: no input panics.
#![no_main]

use fonn_ccache_storage::fuzzing::{request_is_a_prefix, settings_are_read};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    assert!(request_is_a_prefix(input));
    if let Ok(text) = std::str::from_utf8(input) {
        let mut lines = text.splitn(3, '\n');
        let mut next = || lines.next().unwrap_or_default();
        let (key, value, url) = (next(), next(), next());
        settings_are_read(url, key, value);
        settings_are_read(&format!("fonn://{url}"), key, value);
    }
});
