//! The parsers of tokens and key sets, as the fuzz target reaches them. It is no part of the
//! interface.
//!
//! Each function takes what an issuer or a client sends, and returns whether the invariant of the
//! parser holds.

use std::sync::LazyLock;

use serde_json::{Map, Value};

use crate::claims::Claims;
use crate::issuer::Issuer;
use crate::keys::{KEYS_MAX, KeySet, Named};
use crate::token::{Presented, TOKEN_LEN_MAX};

/// Public keys of RFC 8037 (appendix A.2) and RFC 7517 (appendix A.1), without an id.
const KEYS: &str = r#"{"keys":[
    {"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"},
    {"kty":"EC","crv":"P-256","x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4","y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"}
]}"#;

static KNOWN: LazyLock<KeySet> =
    LazyLock::new(|| KeySet::parse(KEYS.as_bytes()).unwrap_or_default());

/// A token that the keys of the RFCs did not sign is not believed, and a long one is not read.
#[must_use]
pub fn token_is_not_believed(text: &str) -> bool {
    let Ok(presented) = Presented::read(text) else {
        return true;
    };
    let issuer = Issuer {
        url: presented.issuer().to_owned(),
        audiences: vec!["audience".to_owned()],
        jwks: None,
        ca: None,
    };
    let believed = match KNOWN.named(None, presented.algorithm) {
        Named::Key(key) => presented.verify(key, &issuer).is_ok(),
        _ => false,
    };
    text.len() <= TOKEN_LEN_MAX && !believed
}

/// A set has as many keys as are kept at most, whatever its document says.
#[must_use]
pub fn keys_are_bounded(document: &[u8]) -> bool {
    KeySet::parse(document).is_none_or(|keys| keys.len() <= KEYS_MAX)
}

/// Each claim that is kept has a text, and exactly one if it is told as one.
#[must_use]
pub fn claims_are_texts(object: &[u8]) -> bool {
    let Ok(object) = serde_json::from_slice::<Map<String, Value>>(object) else {
        return true;
    };
    let names: Vec<String> = object.keys().cloned().collect();
    let claims = Claims::of(object);
    names.iter().all(|name| match claims.text(name) {
        Some(text) => claims.texts(name) == [text],
        None => claims.texts(name).len() != 1,
    })
}
