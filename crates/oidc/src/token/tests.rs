use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jsonwebtoken::Header;
use proptest::prelude::*;
use ring::hmac;
use serde_json::json;

use super::*;
use crate::keys::{KeySet, Named};
use crate::tests_support::{AUDIENCE, Signer, URL, claims, set};

fn verified(token: &str, keys: &KeySet) -> Result<Claims, Rejection> {
    let presented = Presented::read(token)?;
    let issuer = Issuer {
        url: URL.to_owned(),
        audiences: vec!["other".to_owned(), AUDIENCE.to_owned()],
        jwks: None,
        ca: None,
    };
    match keys.named(presented.key_id.as_deref(), presented.algorithm) {
        Named::Key(key) => presented.verify(key, &issuer),
        Named::Mismatch => Err(Rejection::KeyMismatch),
        Named::Unknown => Err(Rejection::UnknownKey),
    }
}

fn keys(signers: &[&Signer]) -> KeySet {
    KeySet::parse(set(signers).as_bytes()).unwrap()
}

#[test]
fn a_token_is_believed_for_all_of_signature_issuer_audience_and_time() {
    let now = jsonwebtoken::get_current_timestamp();
    for algorithm in [
        jsonwebtoken::Algorithm::ES256,
        jsonwebtoken::Algorithm::EdDSA,
    ] {
        let signer = Signer::new("a", algorithm);
        let keys = keys(&[&signer]);
        let outcome = |others| verified(&signer.token(&claims(&others)), &keys);
        let good = outcome(json!({})).unwrap();
        assert_eq!(good.text("ref"), Some("refs/heads/main"));
        assert!(outcome(json!({"aud": ["x", AUDIENCE]})).is_ok());
        for (others, rejection) in [
            (json!({"iss": "https://evil.test"}), Rejection::Issuer),
            (json!({"aud": "https://evil.test"}), Rejection::Audience),
            (json!({"aud": []}), Rejection::Audience),
            (json!({"aud": null}), Rejection::Audience),
            (json!({"exp": now - 2 * LEEWAY_S}), Rejection::Expired),
            (json!({"exp": null}), Rejection::Malformed),
            (json!({"exp": "soon"}), Rejection::Malformed),
            (json!({"nbf": now + 5 * LEEWAY_S}), Rejection::NotYetValid),
            (json!({"nbf": "soon"}), Rejection::Malformed),
            (json!({"iss": 7}), Rejection::Malformed),
            (json!({"iss": [URL]}), Rejection::Malformed),
        ] {
            assert_eq!(outcome(others.clone()).err(), Some(rejection), "{others}");
        }
    }
}

#[test]
fn a_signature_of_another_key_is_wrong() {
    let [right, wrong] = ["a", "a"].map(|id| Signer::new(id, jsonwebtoken::Algorithm::ES256));
    let token = wrong.token(&claims(&json!({})));
    assert_eq!(
        verified(&token, &keys(&[&right])).err(),
        Some(Rejection::Signature)
    );
    // The signature of one token under the claims of another.
    let [token, other] = ["a", "b"].map(|sub| right.token(&claims(&json!({"sub": sub}))));
    let (said, _) = token.rsplit_once('.').unwrap();
    let (_, signature) = other.rsplit_once('.').unwrap();
    let mixed = format!("{said}.{signature}");
    assert_eq!(
        verified(&mixed, &keys(&[&right])).err(),
        Some(Rejection::Signature)
    );
}

#[test]
fn no_algorithm_but_three_is_accepted_and_a_key_is_for_one() {
    let signer = Signer::new("a", jsonwebtoken::Algorithm::EdDSA);
    let keys = keys(&[&signer]);
    let good = signer.token(&claims(&json!({})));
    let mut parts = good.split('.');
    let (_, body) = (parts.next().unwrap(), parts.next().unwrap());
    // {"alg":"none","kid":"a"}, with and without a signature.
    let none = "eyJhbGciOiJub25lIiwia2lkIjoiYSJ9";
    for token in [format!("{none}.{body}."), format!("{none}.{body}.AAAA")] {
        assert_eq!(verified(&token, &keys).err(), Some(Rejection::Algorithm));
    }
    // A public key is no shared secret.
    let mut header = Header::new(jsonwebtoken::Algorithm::HS256);
    header.kid = Some("a".to_owned());
    let header = serde_json::to_vec(&header).unwrap();
    let signed = format!("{}.{body}", BASE64_URL_SAFE_NO_PAD.encode(header));
    let public = signer.jwk()["x"].as_str().unwrap().to_owned();
    let secret = hmac::Key::new(hmac::HMAC_SHA256, public.as_bytes());
    let tag = BASE64_URL_SAFE_NO_PAD.encode(hmac::sign(&secret, signed.as_bytes()));
    let token = format!("{signed}.{tag}");
    assert_eq!(verified(&token, &keys).err(), Some(Rejection::Algorithm));
    // {"alg":"ES256","kid":"a"}: of the right form, for another key.
    let other = format!("eyJhbGciOiJFUzI1NiIsImtpZCI6ImEifQ.{body}.AAAA");
    assert_eq!(verified(&other, &keys).err(), Some(Rejection::KeyMismatch));
}

#[test]
fn critical_extensions_are_not_understood() {
    let mut signer = Signer::new("a", jsonwebtoken::Algorithm::EdDSA);
    signer.header.crit = Some(vec!["exp".to_owned()]);
    let token = signer.token(&claims(&json!({})));
    assert_eq!(
        verified(&token, &keys(&[&signer])).err(),
        Some(Rejection::Malformed)
    );
}

#[test]
fn what_is_no_token_is_malformed() {
    let long = format!("{}.b.c", "a".repeat(TOKEN_LEN_MAX));
    for text in ["", "a", "a.b", "a.b.c", "a.b.c.d.e", "..", &long, "fonn_00"] {
        let rejection = Presented::read(text).err();
        assert!(
            matches!(rejection, Some(Rejection::Malformed | Rejection::Algorithm)),
            "{text}: {rejection:?}"
        );
    }
}

proptest! {
    #[test]
    fn anything_may_be_presented(text in "[A-Za-z0-9_.=-]{0,200}") {
        let _ = Presented::read(&text);
    }

    #[test]
    fn any_header_and_claims_may_be_presented(header in "\\PC{0,60}", body in "\\PC{0,60}") {
        use std::fmt::Write as _;
        let hex = |text: &str| text.bytes().fold(String::new(), |mut out, byte| {
            let _ = write!(out, "{byte:02x}");
            out
        });
        let _ = Presented::read(&format!("{}.{}.{}", hex(&header), hex(&body), header.len()));
    }
}
