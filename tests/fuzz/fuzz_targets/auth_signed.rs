//! Signed tokens: no input panics, none verifies that no key signed, and no change to a token goes
//! unnoticed.
#![no_main]

use fonn_auth::fuzzing::{
    changed_token_is_not_verified, signed_bytes_are_kept, text_is_not_verified,
};
use libfuzzer_sys::fuzz_target;

/// Rule and expiry, overlay, subject, edits of the token and its length.
type Change = (
    (u64, u64),
    Option<[u8; 16]>,
    String,
    Vec<(u16, u8)>,
    Option<u16>,
);

fuzz_target!(|input: (Change, &[u8])| {
    let ((numbers, overlay, subject, edits, len), bytes) = input;
    let holds = text_is_not_verified(bytes)
        && signed_bytes_are_kept(bytes)
        && changed_token_is_not_verified(numbers, overlay, &subject, &edits, len);
    assert!(holds);
});
