//! An issuer for the tests: keys and tokens signed by them.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, Header};
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _,
};
use serde_json::{Value, json};

pub const URL: &str = "https://issuer.test";
pub const AUDIENCE: &str = "https://cache.test";

enum Key {
    P256(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

/// A key of the issuer.
pub struct Signer {
    pub header: Header,
    key: Key,
}

impl Signer {
    pub fn new(id: &str, algorithm: Algorithm) -> Self {
        let random = SystemRandom::new();
        let key = if algorithm == Algorithm::ES256 {
            let kind = &ECDSA_P256_SHA256_FIXED_SIGNING;
            let document = EcdsaKeyPair::generate_pkcs8(kind, &random).unwrap();
            Key::P256(EcdsaKeyPair::from_pkcs8(kind, document.as_ref(), &random).unwrap())
        } else {
            let document = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
            Key::Ed25519(Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap())
        };
        let mut header = Header::new(algorithm);
        header.kid = Some(id.to_owned());
        Self { header, key }
    }

    /// The public key as issuers publish it.
    pub fn jwk(&self) -> Value {
        let mut jwk = match &self.key {
            Key::P256(key) => {
                let point = key.public_key().as_ref();
                json!({"kty": "EC", "crv": "P-256", "x": text(&point[1..33]), "y": text(&point[33..])})
            }
            Key::Ed25519(key) => {
                json!({"kty": "OKP", "crv": "Ed25519", "x": text(key.public_key().as_ref())})
            }
        };
        jwk["alg"] = json!(self.header.alg);
        jwk["kid"] = json!(self.header.kid);
        jwk
    }

    pub fn token(&self, claims: &Value) -> String {
        let header = serde_json::to_vec(&self.header).unwrap();
        let signed = format!("{}.{}", text(&header), text(claims.to_string().as_bytes()));
        let signature = match &self.key {
            Key::P256(key) => {
                let signature = key.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
                text(signature.as_ref())
            }
            Key::Ed25519(key) => text(key.sign(signed.as_bytes()).as_ref()),
        };
        format!("{signed}.{signature}")
    }
}

/// Bytes as they stand in tokens and keys.
fn text(bytes: &[u8]) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

/// The key set of these keys.
pub fn set(signers: &[&Signer]) -> String {
    let keys: Vec<Value> = signers.iter().map(|signer| signer.jwk()).collect();
    json!({ "keys": keys }).to_string()
}

/// Good claims, with others in the place of some.
pub fn claims(others: &Value) -> Value {
    let now = jsonwebtoken::get_current_timestamp();
    let mut claims = json!({
        "iss": URL, "aud": AUDIENCE, "sub": "repo:acme/app", "iat": now, "nbf": now - 5, "exp": now + 300,
        "repository_id": "123", "ref": "refs/heads/main",
    });
    for (name, value) in others.as_object().unwrap() {
        claims[name] = value.clone();
    }
    claims
}
