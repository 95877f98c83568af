//! The parser of signed tokens, as the fuzz target reaches it. It is no part of the interface.
//!
//! Each function takes what a client presents, and returns whether the invariant of the parser
//! holds.

use std::sync::LazyLock;

use ring::hmac;

use crate::signed::{self, KEY_LEN, SigningKey, Statement};
use crate::token::{Expiry, push_hex};

const SECRET: [u8; KEY_LEN] = [7; KEY_LEN];

static KEYS: LazyLock<[SigningKey; 2]> =
    LazyLock::new(|| [SigningKey::new(&[1; KEY_LEN]), SigningKey::new(&SECRET)]);

/// The token of bytes, its signature included.
fn token(bytes: &[u8]) -> String {
    let mut text = "fonnx_".to_owned();
    push_hex(&mut text, bytes);
    text
}

/// A text that no key signed says nothing, as it is and as the bytes of a token.
#[must_use]
pub fn text_is_not_verified(text: &[u8]) -> bool {
    let presented = |token: &[u8]| signed::verify(&*KEYS, token).is_none();
    let encoded = token(text);
    presented(text) && presented(encoded.as_bytes())
}

/// What a key signed is malformed or a statement, which is signed as the same token.
///
/// The id of the key and the signature take their places around `bytes`.
#[must_use]
pub fn signed_bytes_are_kept(bytes: &[u8]) -> bool {
    let [_, key] = &*KEYS;
    let mut said = bytes.to_vec();
    if let Some(id) = said.get_mut(1..5) {
        id.copy_from_slice(&key.id());
    }
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &SECRET), &said);
    said.extend_from_slice(tag.as_ref());
    let token = token(&said);
    let statement = signed::verify(&*KEYS, token.as_bytes());
    statement.is_none_or(|said| signed::sign(key, &said) == Some(token))
}

/// A token says what was signed, and nothing after a change.
///
/// Each edit puts a byte at a place; `len` cuts the token, or appends zeros to it.
#[must_use]
pub fn changed_token_is_not_verified(
    (rule, expires_ms): (u64, u64),
    overlay: Option<[u8; 16]>,
    subject: &str,
    edits: &[(u16, u8)],
    len: Option<u16>,
) -> bool {
    let [_, key] = &*KEYS;
    let Ok(expiry) = Expiry::from_unix_ms(expires_ms) else {
        return true;
    };
    let statement = Statement {
        key: key.id(),
        rule,
        expiry,
        overlay,
        subject: subject.to_owned(),
    };
    let Some(token) = signed::sign(key, &statement) else {
        return subject.len() > signed::SUBJECT_LEN_MAX;
    };
    let mut changed = token.clone().into_bytes();
    changed.resize(len.map_or(token.len(), usize::from), b'0');
    for (at, to) in edits {
        if let Some(byte) = changed.get_mut(usize::from(*at)) {
            *byte = *to;
        }
    }
    let expected = (changed == token.as_bytes()).then_some(statement);
    signed::verify(&*KEYS, &changed) == expected
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_invariants_hold_for_tokens_of_both_versions() {
        let body = |version: u8, overlay: &[u8], subject: &[u8]| {
            [
                &[version][..],
                &[0; 20],
                overlay,
                &[subject.len() as u8],
                subject,
            ]
            .concat()
        };
        for bytes in [
            body(1, &[], b"s"),
            body(2, &[3; 16], b"s"),
            body(2, &[], b""),
            body(1, &[], b"\xff"),
            Vec::new(),
        ] {
            assert!(signed_bytes_are_kept(&bytes), "{bytes:?}");
            assert!(text_is_not_verified(&bytes), "{bytes:?}");
        }
        let holds = |edits: &[(u16, u8)], len| {
            changed_token_is_not_verified((1, 1 << 40), Some([3; 16]), "s", edits, len)
        };
        assert!(holds(&[], None));
        assert!(holds(&[(9, b'f'), (9, b'g')], None));
        assert!(holds(&[], Some(0)) && holds(&[], Some(1000)));
    }
}
