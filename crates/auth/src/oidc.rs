//! OIDC issuers of the users file, and the rules that map their identities to a role and a
//! namespace.
//!
//! Invariants:
//! - A rule has at least one condition: otherwise every customer of a public CI system would be let
//!   in.
//! - The first rule of the issuer whose conditions all hold decides.
//! - A rule has a stamp of all that it says. Tokens name it, so they end when the rule changes or
//!   goes.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fonn_base::glob;
use fonn_proto::Overlay;
use fonn_proto::hash::fnv1a;

use super::directory::{CredentialKind, Identity, Namespace, Role};
use super::placeholders::{OverlayId, overlay_id};
use super::signed::{self, KeyId, SUBJECT_LEN_MAX, SigningKey, Statement};
use super::token::Expiry;

/// A claim, and the patterns one of which it has to match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Condition {
    pub claim: String,
    pub patterns: Vec<String>,
}

impl Condition {
    fn holds(&self, texts: &[String]) -> bool {
        let is_one = |text: &String| self.patterns.iter().any(|it| matches(it, text));
        texts.iter().any(is_one)
    }
}

/// Whether a text is what a pattern says: `*` is any run of characters, all others are themselves.
fn matches(pattern: &str, text: &str) -> bool {
    if !pattern.contains('*') {
        return pattern == text;
    }
    let mut literal = Vec::with_capacity(pattern.len());
    for byte in pattern.bytes() {
        if matches!(byte, b'?' | b'[' | b'\\') {
            literal.push(b'\\');
        }
        literal.push(byte);
    }
    glob::matches(&literal, text.as_bytes())
}

/// Which identities of an issuer may do what.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub name: Arc<str>,
    pub conditions: Vec<Condition>,
    pub role: Role,
    /// Whether builds are told that they may store results.
    pub update_enabled: bool,
    pub namespace: Arc<Namespace>,
    /// The claims that the name of the namespace has placeholders for.
    pub placeholders: Vec<String>,
    /// How long tokens live.
    pub ttl: Duration,
    /// Of all above, and of the issuer.
    pub stamp: u64,
}

impl Rule {
    /// The overlay of an identity; `None` if the namespace has not many.
    fn overlay_id<'c>(
        &self,
        issuer: &str,
        claims: impl Fn(&str) -> &'c [String],
    ) -> Result<Option<OverlayId>, ExchangeError> {
        if !self.namespace.has_overlays() {
            return Ok(None);
        }
        let values = self.placeholders.iter().map(|claim| match claims(claim) {
            // Issuers leave claims empty that mean nothing for a job: these jobs have no overlay in
            // common.
            [value] if !value.is_empty() => Ok(value.as_str()),
            _ => Err(ExchangeError::Claim(claim.as_str().into())),
        });
        let values = values.collect::<Result<Vec<_>, _>>()?;
        Ok(Some(overlay_id(issuer, &self.namespace.name, &values)))
    }
}

/// An issuer of identity tokens.
#[derive(Clone, Debug)]
pub struct OidcIssuer {
    /// Its name in the file.
    pub name: Arc<str>,
    /// Its name in tokens.
    pub url: String,
    /// The audiences of tokens that are accepted.
    pub audiences: Vec<String>,
    /// The file of its keys; by discovery if none.
    pub jwks: Option<PathBuf>,
    /// The file of the authority of its certificate; those of the machine if none.
    pub ca: Option<PathBuf>,
    pub(super) rules: Vec<Rule>,
}

impl OidcIssuer {
    /// Gives each rule its stamp, once all is known.
    pub(super) fn stamp_rules(&mut self) {
        for rule in &mut self.rules {
            let Rule {
                name,
                conditions,
                role,
                update_enabled,
                namespace,
                ttl,
                ..
            } = rule;
            let Namespace {
                name: namespace,
                base,
                ttl: entry_ttl,
                ..
            } = &**namespace;
            let issuer = (&self.name, &self.url, &self.audiences);
            let text = format!(
                "rule\0{issuer:?}\0{name}\0{conditions:?}\0{role}\0{update_enabled}\0{namespace}\0{base:?}\0{ttl:?}\0\
                 {entry_ttl:?}"
            );
            rule.stamp = fnv1a(text.as_bytes());
        }
    }
}

/// Why an identity that was proved gets no token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExchangeError {
    /// No rule is for it.
    #[error(
        "no rule of the issuer is for this identity: compare its claims with `when` in the [[oidc.rule]] tables"
    )]
    NoRule,
    /// Its subject cannot be a name.
    #[error(
        "the claim `sub` is not accepted; expected 1 to {SUBJECT_LEN_MAX} visible ASCII characters, with the name of the issuer"
    )]
    Subject,
    /// The overlay of the identity cannot be told.
    #[error(
        "the claim `{0}` has no value or several, and the namespace of the rule has a placeholder for it: name another claim in \
         the users file"
    )]
    Claim(Arc<str>),
    /// The issuer or the key is gone since.
    #[error("the users file has changed: try again")]
    Changed,
}

/// A token that an identity was exchanged for.
pub struct ExchangedToken {
    /// What the client sends.
    pub secret: String,
    /// How long it lives.
    pub ttl: Duration,
    /// The identity that it stands for.
    pub identity: Identity,
    /// The rule that let it in.
    pub rule: Arc<str>,
}

impl fmt::Debug for ExchangedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExchangedToken")
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

/// The issuers of a users file, and the keys that sign tokens.
#[derive(Clone, Debug, Default)]
pub(super) struct Exchange {
    pub issuers: Vec<OidcIssuer>,
    /// The first one signs, all verify.
    pub keys: Vec<SigningKey>,
}

impl Exchange {
    /// The token for an identity whose claims an issuer has proved.
    pub fn exchange<'c>(
        &self,
        issuer: &str,
        claims: impl Fn(&str) -> &'c [String],
        now_ms: u64,
    ) -> Result<ExchangedToken, ExchangeError> {
        let issuer = self.issuers.iter().find(|it| &*it.name == issuer);
        let issuer = issuer.ok_or(ExchangeError::Changed)?;
        let key = self.keys.first().ok_or(ExchangeError::Changed)?;
        let applies = |rule: &&Rule| rule.conditions.iter().all(|it| it.holds(claims(&it.claim)));
        let rule = issuer
            .rules
            .iter()
            .find(applies)
            .ok_or(ExchangeError::NoRule)?;
        let [subject] = claims("sub") else {
            return Err(ExchangeError::Subject);
        };
        // Names of users and tokens have no colon, so no identity has the name of one.
        let subject = format!("{}:{subject}", issuer.name);
        let is_name = subject.len() <= SUBJECT_LEN_MAX
            && subject.len() > issuer.name.len() + 1
            && subject.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_name {
            return Err(ExchangeError::Subject);
        }
        let ttl_ms = u64::try_from(rule.ttl.as_millis()).unwrap_or(u64::MAX);
        let expiry = Expiry::from_unix_ms(now_ms.saturating_add(ttl_ms));
        let expiry = expiry.map_err(|_| ExchangeError::Changed)?;
        let statement = Statement {
            key: key.id(),
            rule: rule.stamp,
            expiry,
            overlay: rule.overlay_id(&issuer.url, claims)?,
            subject,
        };
        let secret = signed::sign(key, &statement).ok_or(ExchangeError::Subject)?;
        Ok(ExchangedToken {
            secret,
            ttl: rule.ttl,
            identity: identity(rule, &statement),
            rule: Arc::clone(&rule.name),
        })
    }

    /// The identity of a token that was signed here or elsewhere; `None` if its key or rule is not
    /// in force.
    pub fn verify(&self, token: &[u8]) -> Option<Identity> {
        let statement = signed::verify(&self.keys, token)?;
        let mut rules = self.issuers.iter().flat_map(|issuer| &issuer.rules);
        let rule = rules.find(|it| it.stamp == statement.rule)?;
        // The stamp is of the namespace. So this never differs, unless stamps collide.
        let is_consistent = rule.namespace.has_overlays() == statement.overlay.is_some();
        is_consistent.then(|| identity(rule, &statement))
    }

    /// Whether the rule and the key of an identity are in force.
    pub fn holds(&self, identity: &Identity) -> bool {
        let mut rules = self.issuers.iter().flat_map(|issuer| &issuer.rules);
        rules.any(|rule| {
            let is_it = |key: &SigningKey| stamp(rule, key.id()) == identity.stamp;
            self.keys.iter().any(is_it)
        })
    }
}

fn stamp(rule: &Rule, key: KeyId) -> u64 {
    fnv1a(&[&rule.stamp.to_le_bytes()[..], &key].concat())
}

fn identity(rule: &Rule, statement: &Statement) -> Identity {
    Identity {
        user: statement.subject.as_str().into(),
        role: rule.role,
        namespace: Arc::clone(&rule.namespace),
        overlay: statement.overlay.map(Overlay::new),
        kind: CredentialKind::Exchanged,
        expiry: Some(statement.expiry),
        update_enabled: rule.update_enabled,
        stamp: stamp(rule, statement.key),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_any_run_and_all_else_is_itself() {
        for (pattern, text) in [
            ("refs/heads/main", "refs/heads/main"),
            ("refs/pull/*", "refs/pull/7/merge"),
            ("repo:acme/*:ref:*", "repo:acme/app:ref:refs/heads/[x]"),
            ("*[x]?", "a[x]?"),
            ("*\\", "\\"),
            ("*", ""),
        ] {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("refs/heads/main", "refs/heads/main2"),
            ("refs/heads/?", "refs/heads/x"),
            ("*[x]", "x"),
            ("refs/pull/*/merge", "refs/pull/7/head"),
            ("", "x"),
        ] {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }
}
