//! The public keys of an issuer: a JSON Web Key Set (RFC 7517).
//!
//! Keys that cannot verify one of the supported algorithms are left out: issuers publish keys for
//! encryption and for other algorithms beside them.

use std::fmt;

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;

/// Keys of a set at most; further ones are left out.
pub(crate) const KEYS_MAX: usize = 64;

/// Whether signatures by an algorithm are accepted (RFC 7518, section 3.1; RFC 8037, section 3.1).
pub(crate) const fn is_accepted(algorithm: Algorithm) -> bool {
    matches!(
        algorithm,
        Algorithm::RS256 | Algorithm::ES256 | Algorithm::EdDSA
    )
}

/// The accepted algorithm that a key of this type is for.
fn algorithm_of(parameters: &AlgorithmParameters) -> Option<Algorithm> {
    match parameters {
        AlgorithmParameters::RSA(_) => Some(Algorithm::RS256),
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => {
            Some(Algorithm::ES256)
        }
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
            Some(Algorithm::EdDSA)
        }
        _ => None,
    }
}

/// A key that verifies the signatures of one algorithm.
pub(crate) struct Key {
    id: Option<String>,
    pub algorithm: Algorithm,
    pub decoding: DecodingKey,
}

impl Key {
    fn of(jwk: &Jwk) -> Option<Self> {
        let common = &jwk.common;
        let algorithm = algorithm_of(&jwk.algorithm)?;
        let is_for_signatures =
            !matches!(&common.public_key_use, Some(it) if *it != PublicKeyUse::Signature);
        let told = common.key_algorithm;
        let is_for_algorithm = told.is_none_or(|told| told == KeyAlgorithm::from(algorithm));
        if !is_for_signatures || !is_for_algorithm {
            return None;
        }
        Some(Self {
            id: common.key_id.clone(),
            algorithm,
            decoding: DecodingKey::from_jwk(jwk).ok()?,
        })
    }
}

/// The keys of an issuer that can verify signatures.
#[derive(Default)]
pub(crate) struct KeySet(Vec<Key>);

impl fmt::Debug for KeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.0.iter().map(|key| &key.id))
            .finish()
    }
}

#[derive(Deserialize)]
struct Document {
    keys: Vec<serde_json::Value>,
}

impl KeySet {
    /// The keys of a document; `None` if it is no key set.
    pub fn parse(document: &[u8]) -> Option<Self> {
        let document: Document = serde_json::from_slice(document).ok()?;
        let keys = document.keys.into_iter();
        // A key of an unknown type does not spoil the others.
        let keys = keys.filter_map(|key| serde_json::from_value::<Jwk>(key).ok());
        let keys = keys.filter_map(|jwk| Key::of(&jwk));
        Some(Self(keys.take(KEYS_MAX).collect()))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The keys that a token names. A token that names none means the only key of its algorithm.
    pub(crate) fn named(&self, id: Option<&str>, algorithm: Algorithm) -> Named<'_> {
        let mut found = match id {
            Some(id) => self
                .0
                .iter()
                .filter(|key| key.id.as_deref() == Some(id))
                .collect(),
            None => self
                .0
                .iter()
                .filter(|key| key.algorithm == algorithm)
                .collect::<Vec<_>>(),
        };
        if found.is_empty() {
            return Named::Unknown;
        }
        found.retain(|key| key.algorithm == algorithm);
        match found[..] {
            [key] => Named::Key(key),
            [] => Named::Mismatch,
            _ => Named::Unknown,
        }
    }
}

/// What a key set knows of the key that a token names.
pub(crate) enum Named<'k> {
    Key(&'k Key),
    /// The key is of another algorithm.
    Mismatch,
    /// There is no such key, or more than one.
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8037, appendix A.2.
    const ED: &str = r#"{"kty":"OKP","crv":"Ed25519","kid":"ed","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}"#;
    /// RFC 7517, appendix A.1.
    const EC: &str = r#"{"kty":"EC","crv":"P-256","kid":"ec","x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4","y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"}"#;

    fn set(keys: &[&str]) -> KeySet {
        KeySet::parse(format!("{{\"keys\":[{}]}}", keys.join(",")).as_bytes()).unwrap()
    }

    #[test]
    fn a_key_is_found_by_its_id_and_only_for_its_algorithm() {
        let set = set(&[ED, EC]);
        assert_eq!(set.len(), 2);
        assert!(matches!(
            set.named(Some("ed"), Algorithm::EdDSA),
            Named::Key(_)
        ));
        assert!(matches!(
            set.named(Some("ec"), Algorithm::EdDSA),
            Named::Mismatch
        ));
        assert!(matches!(
            set.named(Some("ec"), Algorithm::RS256),
            Named::Mismatch
        ));
        assert!(matches!(
            set.named(Some("no"), Algorithm::ES256),
            Named::Unknown
        ));
        assert!(matches!(set.named(None, Algorithm::ES256), Named::Key(_)));
        assert!(matches!(set.named(None, Algorithm::RS256), Named::Unknown));
    }

    #[test]
    fn a_token_without_key_id_means_no_key_if_several_could_be_meant() {
        let set = set(&[EC, &EC.replace("\"ec\"", "\"other\"")]);
        assert!(matches!(set.named(None, Algorithm::ES256), Named::Unknown));
        assert!(matches!(
            set.named(Some("ec"), Algorithm::ES256),
            Named::Key(_)
        ));
    }

    #[test]
    fn keys_for_other_uses_and_unknown_types_are_left_out() {
        let with = |more: &str| EC.replace("{\"kty\"", &format!("{{{more},\"kty\""));
        let encryption = with(r#""use":"enc""#);
        let other = with(r#""alg":"ES384""#);
        let good = with(r#""use":"sig","alg":"ES256""#);
        let secret = r#"{"kty":"oct","kid":"s","k":"AAAA"}"#;
        let unknown = r#"{"kty":"PQ","kid":"p"}"#;
        let curve = r#"{"kty":"EC","crv":"P-384","kid":"c","x":"AA","y":"AA"}"#;
        let keys = [&encryption, &other, secret, unknown, curve, "7", &good];
        assert_eq!(set(&keys).len(), 1);
    }

    #[test]
    fn what_is_no_key_set_is_none() {
        for document in [&b""[..], b"[]", b"{}", b"{\"keys\":1}", b"\xff"] {
            assert!(KeySet::parse(document).is_none());
        }
        assert_eq!(KeySet::parse(b"{\"keys\":[]}").unwrap().len(), 0);
    }
}
