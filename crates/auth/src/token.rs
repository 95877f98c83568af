//! Tokens: high-entropy secrets of machines, the hashes by which they are known, and when they
//! expire.
//!
//! A secret is `fonn_` and 64 lower-case hex digits of 32 random bytes. A text of this form is
//! always a token, never a password. The server stores its SHA-256. Guesses of 256 random bits have
//! no prospect, so a slow hash would protect nothing.
//!
//! Invariant: neither a secret nor a hash is in a `Debug` text or an error.

use std::fmt::{self, Write as _};
use std::str::FromStr;

use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom as _, SystemRandom};
use subtle::ConstantTimeEq;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use zeroize::Zeroizing;

/// How each secret begins, so that scanners of repositories and logs find one.
const PREFIX: &str = "fonn_";

/// How the text of each hash begins.
const HASH_PREFIX: &str = "sha256:";

/// Random bytes of a secret, and bytes of its hash.
const LEN: usize = 32;

/// A secret as its owner keeps it.
pub struct TokenSecret(Zeroizing<String>);

impl fmt::Debug for TokenSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenSecret").finish_non_exhaustive()
    }
}

impl TokenSecret {
    /// The secret of random bytes.
    #[must_use]
    pub fn new(random: &[u8; LEN]) -> Self {
        let mut text = Zeroizing::new(String::with_capacity(PREFIX.len() + 2 * LEN));
        text.push_str(PREFIX);
        push_hex(&mut text, random);
        Self(text)
    }

    /// The secret of random bytes that the system gives; `None` if it gives none.
    #[must_use]
    pub fn generate() -> Option<Self> {
        let mut random = Zeroizing::new([0; LEN]);
        SystemRandom::new().fill(&mut *random).ok()?;
        Some(Self::new(&random))
    }

    /// The text that a client sends.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Its hash.
    #[must_use]
    pub fn hash(&self) -> TokenHash {
        TokenHash::of_bytes(self.0.as_bytes())
    }
}

/// The SHA-256 of a secret.
#[derive(Clone, Copy)]
pub struct TokenHash([u8; LEN]);

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenHash").finish_non_exhaustive()
    }
}

impl fmt::Display for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = HASH_PREFIX.to_owned();
        push_hex(&mut text, &self.0);
        f.write_str(&text)
    }
}

/// A text that is no hash of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`hash` is no hash of a token; expected `sha256:` and 64 hex digits, as `fonnctl token create` writes it"
)]
pub struct TokenHashError;

impl FromStr for TokenHash {
    type Err = TokenHashError;

    fn from_str(text: &str) -> Result<Self, TokenHashError> {
        let digits = text.strip_prefix(HASH_PREFIX).ok_or(TokenHashError)?;
        let digits = digits.as_bytes();
        if digits.len() != 2 * LEN {
            return Err(TokenHashError);
        }
        let mut hash = [0; LEN];
        for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |at: usize| char::from(pair[at]).to_digit(16).ok_or(TokenHashError);
            *byte = (digit(0)? << 4 | digit(1)?) as u8;
        }
        Ok(Self(hash))
    }
}

impl TokenHash {
    /// The hash of what came as a secret; `None` if it has not the form of a token.
    #[must_use]
    pub fn of(secret: &[u8]) -> Option<Self> {
        let digits = secret.strip_prefix(PREFIX.as_bytes())?;
        let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let is_token = digits.len() == 2 * LEN && digits.iter().all(is_digit);
        is_token.then(|| Self::of_bytes(secret))
    }

    fn of_bytes(secret: &[u8]) -> Self {
        let mut hash = [0; LEN];
        hash.copy_from_slice(digest(&SHA256, secret).as_ref());
        Self(hash)
    }

    /// Whether both are the same, in a time that does not depend on where they differ.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }

    /// The part by which a hash is looked up.
    pub(super) fn prefix(&self) -> [u8; 8] {
        let mut prefix = [0; 8];
        prefix.copy_from_slice(&self.0[..8]);
        prefix
    }

    pub(super) const fn bytes(&self) -> &[u8; LEN] {
        &self.0
    }
}

/// Appends the lower-case hex digits of bytes.
pub(super) fn push_hex(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        // A string takes everything.
        let _ = write!(text, "{byte:02x}");
    }
}

/// The moment at which a token or a certificate expires, in Unix milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Expiry(u64);

/// A text that is no moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a date and time with an offset between 1970 and 9999, like 2026-12-24T17:00:00Z")]
pub struct ExpiryError;

impl Expiry {
    /// The moment that is so many milliseconds after 1970.
    ///
    /// # Errors
    /// After the year 9999, which no date here can tell.
    pub fn from_unix_ms(unix_ms: u64) -> Result<Self, ExpiryError> {
        moment(unix_ms).map(|_| Self(unix_ms))
    }

    /// Milliseconds since 1970.
    #[must_use]
    pub const fn unix_ms(self) -> u64 {
        self.0
    }

    /// Whether it has passed at `now_ms`.
    #[must_use]
    pub const fn has_passed(self, now_ms: u64) -> bool {
        self.0 <= now_ms
    }
}

fn moment(unix_ms: u64) -> Result<OffsetDateTime, ExpiryError> {
    let nanos = i128::from(unix_ms) * 1_000_000;
    OffsetDateTime::from_unix_timestamp_nanos(nanos).map_err(|_| ExpiryError)
}

impl FromStr for Expiry {
    type Err = ExpiryError;

    fn from_str(text: &str) -> Result<Self, ExpiryError> {
        let moment = OffsetDateTime::parse(text, &Rfc3339).map_err(|_| ExpiryError)?;
        let unix_ms = moment.unix_timestamp_nanos() / 1_000_000;
        u64::try_from(unix_ms)
            .map_err(|_| ExpiryError)
            .and_then(Self::from_unix_ms)
    }
}

impl fmt::Display for Expiry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = moment(self.0).map(|moment| moment.format(&Rfc3339));
        match text {
            Ok(Ok(text)) => f.write_str(&text),
            _ => Err(fmt::Error),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_secret_is_known_by_its_sha_256() {
        let secret = TokenSecret::new(&[0xab; LEN]);
        assert_eq!(secret.text(), format!("fonn_{}", "ab".repeat(LEN)));
        let hash = secret.hash();
        // printf fonn_abab… | sha256sum
        assert_eq!(hash.to_string().len(), HASH_PREFIX.len() + 2 * LEN);
        let told: TokenHash = hash.to_string().parse().unwrap();
        assert!(told.is(&TokenHash::of(secret.text().as_bytes()).unwrap()));
        assert!(!told.is(&TokenSecret::new(&[0xac; LEN]).hash()));
        for shown in [format!("{secret:?}"), format!("{hash:?}")] {
            assert!(!shown.contains("ab") && shown.len() < 30, "{shown}");
        }
    }

    #[test]
    fn only_a_text_of_the_form_is_a_token() {
        let right = format!("fonn_{}", "0f".repeat(LEN));
        assert!(TokenHash::of(right.as_bytes()).is_some());
        for wrong in [
            "",
            "fonn_",
            "hunter 2",
            &right[1..],
            &right[..right.len() - 1],
            &format!("{right}0"),
            &right.to_uppercase(),
            &right.replace('f', "g"),
        ] {
            assert!(TokenHash::of(wrong.as_bytes()).is_none(), "{wrong}");
            assert!(wrong.parse::<TokenHash>().is_err(), "{wrong}");
        }
        let accented = format!("sha256:{}é", "a".repeat(2 * LEN - 2));
        assert!(accented.parse::<TokenHash>().is_err());
    }

    #[test]
    fn a_moment_is_told_in_utc() {
        let moment: Expiry = "2026-12-24T19:00:00+02:00".parse().unwrap();
        assert_eq!(moment.to_string(), "2026-12-24T17:00:00Z");
        assert!(moment.has_passed(moment.unix_ms()) && !moment.has_passed(moment.unix_ms() - 1));
        for wrong in [
            "2026-12-24",
            "2026-12-24T17:00:00",
            "1969-12-31T23:59:59Z",
            "soon",
        ] {
            assert_eq!(wrong.parse::<Expiry>(), Err(ExpiryError), "{wrong}");
        }
        assert!(Expiry::from_unix_ms(u64::MAX).is_err());
    }

    proptest! {
        #[test]
        fn what_is_told_is_read_again(random: [u8; LEN], unix_ms in 0..253_402_300_800_000_u64) {
            let hash = TokenSecret::new(&random).hash();
            prop_assert!(hash.to_string().parse::<TokenHash>().unwrap().is(&hash));
            let moment = Expiry::from_unix_ms(unix_ms).unwrap();
            prop_assert_eq!(moment.to_string().parse::<Expiry>(), Ok(moment));
        }

        #[test]
        fn any_bytes_are_looked_at(bytes: Vec<u8>, text: String) {
            let _ = TokenHash::of(&bytes);
            let _ = text.parse::<TokenHash>();
            let _ = text.parse::<Expiry>();
        }
    }
}
