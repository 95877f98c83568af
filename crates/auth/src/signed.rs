//! Signed tokens: what an identity of an OIDC issuer is exchanged for, and the keys that sign them.
//!
//! Every member and router has the keys, so each verifies a token without a call. A token names the
//! rule that let its identity in, by a stamp of all that the rule says. It grants nothing by
//! itself: role and namespace are those of the rule in force.
//!
//! A token is `fonnx_` and the lower-case hex digits of:
//!
//! | offset | bytes | field |
//! |--------|-------|-------|
//! | 0 | 1 | version: 2 with an overlay, else 1 |
//! | 1 | 4 | id of the key |
//! | 5 | 8 | stamp of the rule, little endian |
//! | 13 | 8 | when it expires, Unix time in milliseconds, little endian |
//! | 21 | 16 | of version 2 alone: the id of the overlay |
//! | 21 or 37 | 1 | length of the subject |
//! | | | the subject, then HMAC-SHA-256 of all before it, 32 bytes |
//!
//! Invariant: neither a token nor a key is in a `Debug` text or an error.

use std::fmt;

use fonn_proto::overlay::OVERLAY_ID_LEN;
use ring::digest::{SHA256, digest};
use ring::hmac;
use zeroize::Zeroizing;

use super::placeholders::OverlayId;
use super::token::{Expiry, push_hex};

/// How each token begins, so that scanners of repositories and logs find one.
const PREFIX: &str = "fonnx_";

/// Versions of the form.
const PLAIN: u8 = 1;
const IN_OVERLAY: u8 = 2;

/// Bytes before the overlay, or before the length of the subject.
const HEAD_LEN: usize = 21;

/// Bytes between the head and the subject at most.
const MIDDLE_LEN_MAX: usize = OVERLAY_ID_LEN + 1;

/// Bytes of the signature.
const TAG_LEN: usize = 32;

/// Bytes of a key.
pub(super) const KEY_LEN: usize = 32;

/// Longest subject in bytes.
pub const SUBJECT_LEN_MAX: usize = 255;

/// Identifies a key, in each token that it signs.
pub(super) type KeyId = [u8; 4];

/// A key that signs tokens.
#[derive(Clone)]
pub(super) struct SigningKey {
    id: KeyId,
    key: hmac::Key,
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKey").finish_non_exhaustive()
    }
}

impl SigningKey {
    pub fn new(secret: &[u8; KEY_LEN]) -> Self {
        let mut id = KeyId::default();
        let named = Zeroizing::new([&b"fonn token key id\0"[..], secret].concat());
        id.copy_from_slice(&digest(&SHA256, &named).as_ref()[..4]);
        Self {
            id,
            key: hmac::Key::new(hmac::HMAC_SHA256, secret),
        }
    }

    /// The key of a line of 64 hex digits.
    pub fn parse(line: &str) -> Option<Self> {
        let bytes = Zeroizing::new(from_hex(line.as_bytes())?);
        let secret: &[u8; KEY_LEN] = bytes.as_slice().try_into().ok()?;
        Some(Self::new(secret))
    }

    pub const fn id(&self) -> KeyId {
        self.id
    }
}

/// What a token says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Statement {
    pub key: KeyId,
    /// Stamp of the rule.
    pub rule: u64,
    pub expiry: Expiry,
    /// The overlay, of a rule whose namespace has many.
    pub overlay: Option<OverlayId>,
    /// The identity, as the issuer names it.
    pub subject: String,
}

/// Whether a text has the form of a signed token, and so is never a password.
pub(super) fn is_signed(secret: &[u8]) -> bool {
    secret.starts_with(PREFIX.as_bytes())
}

/// The token that says so; `None` if the subject is too long.
pub(super) fn sign(key: &SigningKey, statement: &Statement) -> Option<String> {
    let Statement {
        rule,
        expiry,
        overlay,
        subject,
        ..
    } = statement;
    let subject_len = u8::try_from(subject.len()).ok()?;
    let mut bytes = vec![if overlay.is_some() { IN_OVERLAY } else { PLAIN }];
    bytes.extend_from_slice(&key.id);
    bytes.extend_from_slice(&rule.to_le_bytes());
    bytes.extend_from_slice(&expiry.unix_ms().to_le_bytes());
    bytes.extend_from_slice(overlay.as_ref().map_or(&[][..], |id| id));
    bytes.push(subject_len);
    bytes.extend_from_slice(subject.as_bytes());
    let tag = hmac::sign(&key.key, &bytes);
    bytes.extend_from_slice(tag.as_ref());
    let mut text = PREFIX.to_owned();
    push_hex(&mut text, &bytes);
    Some(text)
}

/// What a token says, if one of the keys signed it.
pub(super) fn verify(keys: &[SigningKey], token: &[u8]) -> Option<Statement> {
    let digits = token.strip_prefix(PREFIX.as_bytes())?;
    if digits.len() > 2 * (HEAD_LEN + MIDDLE_LEN_MAX + SUBJECT_LEN_MAX + TAG_LEN) {
        return None;
    }
    let bytes = from_hex(digits)?;
    let (said, tag) = bytes.split_last_chunk::<TAG_LEN>()?;
    let (head, rest) = said.split_first_chunk::<HEAD_LEN>()?;
    let [version, k0, k1, k2, k3, facts @ ..] = head;
    let id = [*k0, *k1, *k2, *k3];
    let key = keys.iter().find(|key| key.id == id)?;
    hmac::verify(&key.key, said, tag).ok()?;
    let (rule, expiry) = facts.split_first_chunk::<8>()?;
    let expiry = expiry.first_chunk::<8>()?;
    let (overlay, rest) = match *version {
        PLAIN => (None, rest),
        IN_OVERLAY => {
            let (id, rest) = rest.split_first_chunk::<OVERLAY_ID_LEN>()?;
            (Some(*id), rest)
        }
        _ => return None,
    };
    let (subject_len, subject) = rest.split_first()?;
    if usize::from(*subject_len) != subject.len() {
        return None;
    }
    Some(Statement {
        key: id,
        rule: u64::from_le_bytes(*rule),
        expiry: Expiry::from_unix_ms(u64::from_le_bytes(*expiry)).ok()?,
        overlay,
        subject: std::str::from_utf8(subject).ok()?.to_owned(),
    })
}

/// The bytes of lower-case hex digits.
fn from_hex(digits: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    let pairs = digits.chunks_exact(2);
    pairs
        .map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?))
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn statement(key: &SigningKey, subject: &str) -> Statement {
        Statement {
            key: key.id,
            rule: 0x0102_0304_0506_0708,
            expiry: Expiry::from_unix_ms(1_800_000_000_000).unwrap(),
            overlay: None,
            subject: subject.to_owned(),
        }
    }

    #[test]
    fn a_token_has_a_fixed_form() {
        let key = SigningKey::new(&[7; KEY_LEN]);
        let plain = statement(&key, "ci:main");
        let token = sign(&key, &plain).unwrap();
        // Members of different versions verify each other's tokens.
        let head = "fonnx_01KEY0807060504030201";
        let head = head.replace("KEY", &key.id.map(|byte| format!("{byte:02x}")).concat());
        assert!(token.starts_with(&head), "{token}");
        assert_eq!(token.len(), PREFIX.len() + 2 * (HEAD_LEN + 8 + TAG_LEN));
        let verified = |token: &str| verify(std::slice::from_ref(&key), token.as_bytes());
        assert_eq!(verified(&token), Some(plain.clone()));
        let in_overlay = Statement {
            overlay: Some([0xab; OVERLAY_ID_LEN]),
            ..plain
        };
        let token = sign(&key, &in_overlay).unwrap();
        assert!(token.starts_with("fonnx_02"), "{token}");
        let middle = "ab".repeat(OVERLAY_ID_LEN) + "07";
        assert!(token[PREFIX.len() + 2 * HEAD_LEN..].starts_with(&middle));
        assert_eq!(verified(&token), Some(in_overlay));
    }

    #[test]
    fn a_key_that_is_not_known_signs_nothing() {
        let [old, new, other] = [1, 2, 3].map(|byte| SigningKey::new(&[byte; KEY_LEN]));
        let token = sign(&old, &statement(&old, "s")).unwrap();
        assert!(verify(&[new.clone(), old.clone()], token.as_bytes()).is_some());
        assert!(verify(std::slice::from_ref(&new), token.as_bytes()).is_none());
        // One that claims the id of another.
        let forged = SigningKey {
            id: new.id,
            ..other
        };
        let token = sign(&forged, &statement(&forged, "s")).unwrap();
        assert!(verify(&[new], token.as_bytes()).is_none());
        let long = "s".repeat(SUBJECT_LEN_MAX + 1);
        assert!(sign(&old, &statement(&old, &long)).is_none());
    }

    #[test]
    fn a_key_is_a_line_of_64_hex_digits() {
        assert!(SigningKey::parse(&"0a".repeat(KEY_LEN)).is_some());
        for wrong in [
            "",
            "0a",
            &"0A".repeat(KEY_LEN),
            &"0a".repeat(KEY_LEN + 1),
            &"g0".repeat(KEY_LEN),
        ] {
            assert!(SigningKey::parse(wrong).is_none(), "{wrong}");
        }
        let shown = format!("{:?}", SigningKey::new(&[7; KEY_LEN]));
        assert!(!shown.contains('7'), "{shown}");
    }

    proptest! {
        #[test]
        fn no_byte_of_a_token_can_be_changed(
            at in 0usize..1000,
            to in any::<u8>(),
            is_in_overlay in any::<bool>(),
        ) {
            let key = SigningKey::new(&[7; KEY_LEN]);
            let said = Statement {
                overlay: is_in_overlay.then_some([7; OVERLAY_ID_LEN]),
                ..statement(&key, "subject")
            };
            let mut token = sign(&key, &said).unwrap().into_bytes();
            let at = at % token.len();
            prop_assume!(token[at] != to);
            token[at] = to;
            prop_assert!(verify(&[key], &token).is_none());
        }

        #[test]
        fn anything_may_come_as_a_token(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let keys = [SigningKey::new(&[7; KEY_LEN])];
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            let token = format!("{PREFIX}{hex}");
            prop_assert!(verify(&keys, token.as_bytes()).is_none());
            let _ = verify(&keys, &bytes);
        }
    }
}
