//! An OIDC issuer for the tests. It has no server: nodes read its keys from a file.

use std::fmt;
use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client::HttpClient;

const URL: &str = "https://issuer.test";
const AUDIENCE: &str = "https://cache.test";

/// The namespace `acme`, and one over it with an overlay for each ref. All overlays together have
/// a quota of [`QUOTA_BYTES`] on each node.
pub const NAMESPACES: &str = "
[[namespace]]
name = 'acme'

[[namespace]]
name = 'acme-pr-{ref}'
base = 'acme'
ttl = '7d'
quota = '8m'
";

/// The quota of the namespace of all overlays.
pub const QUOTA_BYTES: u64 = 8 << 20;

/// The rules of the main branch and of pull requests, in these namespaces.
const RULES: &str = "
[[oidc.rule]]
name = 'main'
when = { repository_id = '123', ref = 'refs/heads/main' }
role = 'read-write'
namespace = 'acme'

[[oidc.rule]]
name = 'pull-requests'
when = { repository_id = '123', ref = 'refs/pull/*' }
role = 'read-write'
namespace = 'acme-pr-{ref}'
";

/// The issuer of a CI system, with a file of its keys, and one of the key that signs exchanged
/// tokens.
pub struct Issuer {
    dir: TempDir,
    key: Ed25519KeyPair,
}

impl fmt::Debug for Issuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issuer").finish_non_exhaustive()
    }
}

impl Issuer {
    /// One with a new key.
    ///
    /// # Errors
    /// When its files cannot be written.
    pub fn new() -> Result<Self> {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new());
        let document = document.ok().context("no random number")?;
        let key = Ed25519KeyPair::from_pkcs8(document.as_ref()).ok();
        let key = key.context("a key that was just made")?;
        let public = text(key.public_key().as_ref());
        let jwk = json!({"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "x": public});
        let dir = tempfile::tempdir()?;
        fs::write(dir.path().join("jwks"), json!({"keys": [jwk]}).to_string())?;
        fs::write(dir.path().join("token.key"), "5a".repeat(32))?;
        Ok(Self { dir, key })
    }

    /// The tables of a users file: namespaces, issuer and rules.
    #[must_use]
    pub fn tables(&self) -> String {
        let dir = self.dir.path().display();
        format!(
            "{NAMESPACES}\n[exchange]\nkey_file = '{dir}/token.key'\n\n\
             [[oidc]]\nname = 'ci'\nissuer = '{URL}'\naudience = '{AUDIENCE}'\njwks = '{dir}/jwks'\n{RULES}"
        )
    }

    /// The identity token of a job on `reference`, like `refs/pull/7/merge`.
    ///
    /// # Errors
    /// When the clock is before 1970.
    pub fn identity(&self, reference: &str) -> Result<String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let claims = json!({
            "iss": URL, "aud": AUDIENCE, "sub": format!("repo:acme/app:{reference}"),
            "exp": (now + Duration::from_secs(600)).as_secs(),
            "repository_id": 123, "ref": reference,
        });
        let header = text(br#"{"typ":"JWT","alg":"EdDSA"}"#);
        let signed = format!("{header}.{}", text(claims.to_string().as_bytes()));
        let signature = text(self.key.sign(signed.as_bytes()).as_ref());
        Ok(format!("{signed}.{signature}"))
    }

    /// The token that `door`, the HTTP port of a node or a router, gives for that identity.
    ///
    /// # Errors
    /// When it gives none.
    pub fn token(&self, door: SocketAddr, reference: &str) -> Result<String> {
        let body = format!(
            "grant_type=urn:ietf:params:oauth:grant-type:token-exchange&subject_token={}&\
             subject_token_type=urn:ietf:params:oauth:token-type:jwt",
            self.identity(reference)?
        );
        let form = [("content-type", "application/x-www-form-urlencoded")];
        let mut client = HttpClient::connect(door)?;
        let answer = client.request("POST", "/v1/token", &form, body.as_bytes())?;
        let text = String::from_utf8(answer.body)?;
        ensure!(
            answer.status == 200,
            "{reference}: {} {text}",
            answer.status
        );
        let granted: Value = serde_json::from_str(&text)?;
        let token = granted["access_token"].as_str().context("no token")?;
        Ok(token.to_owned())
    }
}

/// Bytes as they stand in tokens and keys.
fn text(bytes: &[u8]) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}
