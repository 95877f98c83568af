//! Tokens, key sets and claims: no input panics, and none is believed that no key signed.
//!
//! The first byte says which parser reads the rest.
#![no_main]

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use fonn_oidc::fuzzing::{claims_are_texts, keys_are_bounded, token_is_not_believed};
use libfuzzer_sys::fuzz_target;

/// The token of a header, claims and a signature, one a line.
fn token(lines: &[u8]) -> String {
    let parts = lines.splitn(3, |&byte| byte == b'\n');
    let parts: Vec<_> = parts.map(|part| URL_SAFE_NO_PAD.encode(part)).collect();
    parts.join(".")
}

fuzz_target!(|input: &[u8]| {
    let Some((kind, rest)) = input.split_first() else {
        return;
    };
    let holds = match (kind % 4, std::str::from_utf8(rest)) {
        (0, _) => keys_are_bounded(rest),
        (1, _) => claims_are_texts(rest),
        // Random bytes are hardly ever Base64 of a JSON object, so most tokens are made of their
        // parts.
        (2, _) => token_is_not_believed(&token(rest)),
        (_, Ok(text)) => token_is_not_believed(text),
        (_, Err(_)) => true,
    };
    assert!(holds);
});
