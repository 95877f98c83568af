//! An issuer for the tests: keys and tokens signed by them.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair};
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};

pub const URL: &str = "https://issuer.test";
pub const AUDIENCE: &str = "https://cache.test";

/// A key of the issuer.
pub struct Signer {
    pub header: Header,
    key: EncodingKey,
}

impl Signer {
    pub fn new(id: &str, algorithm: Algorithm) -> Self {
        let random = SystemRandom::new();
        let key = match algorithm {
            Algorithm::ES256 => {
                let document =
                    EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random);
                EncodingKey::from_ec_der(document.unwrap().as_ref())
            }
            _ => {
                let document = Ed25519KeyPair::generate_pkcs8v1(&random).unwrap();
                EncodingKey::from_ed_der(document.as_ref())
            }
        };
        let mut header = Header::new(algorithm);
        header.kid = Some(id.to_owned());
        Self { header, key }
    }

    /// The public key as issuers publish it.
    pub fn jwk(&self) -> Value {
        let mut jwk = Jwk::from_encoding_key(&self.key, self.header.alg).unwrap();
        jwk.common.key_id = self.header.kid.clone();
        serde_json::to_value(jwk).unwrap()
    }

    pub fn token(&self, claims: &Value) -> String {
        encode(&self.header, claims, &self.key).unwrap()
    }
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
