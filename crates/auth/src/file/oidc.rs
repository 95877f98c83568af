//! The `[[oidc]]` tables of a users file, and the file of the keys that sign tokens.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fonn_base::duration::Span;
use fonn_base::file::read_text;
use serde::Deserialize;
use toml::Spanned;

use super::namespaces::Inhabitant;
use super::{Fault, checked_name, checked_update_enabled};
use crate::checks::check_user_name;
use crate::directory::{Namespace, Role};
use crate::oidc::{Condition, Exchange, OidcIssuer, Rule};
use crate::placeholders::claims_of;
use crate::signed::SigningKey;

/// Issuers of a file at most, and rules of an issuer.
const ISSUERS_MAX: usize = 64;
const RULES_MAX: usize = 1024;

/// Keys that sign tokens at most: the one in use, and earlier ones.
const KEYS_MAX: usize = 8;

/// A longer file has no keys.
const KEY_FILE_LEN_MAX: usize = 64 << 10;

/// How long a token lives, unless its rule says otherwise.
const TTL: Duration = Duration::from_secs(60 * 60);

/// Bounds of that: a build is longer than the one, and the other is a day.
const TTL_MIN: Duration = Duration::from_secs(1);
const TTL_MAX: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ExchangeRow {
    key_file: Spanned<PathBuf>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct IssuerRow {
    name: Spanned<String>,
    issuer: Spanned<String>,
    audience: Spanned<OneOrMore>,
    jwks: Option<PathBuf>,
    ca: Option<PathBuf>,
    #[serde(default)]
    rule: Vec<RuleRow>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleRow {
    pub(super) name: Spanned<String>,
    when: Spanned<BTreeMap<String, OneOrMore>>,
    role: Spanned<Role>,
    update_enabled: Option<Spanned<bool>>,
    pub(super) namespace: Option<Spanned<String>>,
    ttl: Option<Spanned<Span>>,
}

impl IssuerRow {
    /// The rules, as inhabitants of their namespaces.
    pub(super) fn inhabitants(&self) -> impl Iterator<Item = Inhabitant<'_>> {
        self.rule.iter().map(Inhabitant::rule)
    }
}

/// A value, or several.
#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(Scalar),
    More(Vec<Scalar>),
}

/// A text, or what is one in a token.
#[derive(Deserialize)]
#[serde(untagged)]
enum Scalar {
    Text(String),
    Number(i64),
    Truth(bool),
}

impl OneOrMore {
    fn texts(&self) -> Vec<String> {
        let text = |it: &Scalar| match it {
            Scalar::Text(text) => text.clone(),
            Scalar::Number(number) => number.to_string(),
            Scalar::Truth(truth) => truth.to_string(),
        };
        match self {
            Self::One(one) => vec![text(one)],
            Self::More(more) => more.iter().map(text).collect(),
        }
    }
}

/// The issuers and keys of a file. Paths are relative to `folder`; without one no key is read.
pub(super) fn exchange(
    settings: Option<&ExchangeRow>,
    rows: &[IssuerRow],
    namespaces: &HashMap<&str, Arc<Namespace>>,
    folder: Option<&Path>,
) -> Result<Exchange, Fault> {
    let at = |path: &Path| folder.map_or_else(|| path.to_owned(), |folder| folder.join(path));
    if let Some(row) = rows.get(ISSUERS_MAX) {
        let message = format!("expected at most {ISSUERS_MAX} [[oidc]] tables");
        return Err(Fault::at(&row.name, message));
    }
    let (mut names, mut urls) = (HashSet::new(), HashSet::new());
    let mut issuers = Vec::new();
    for row in rows {
        let name = checked_name(check_user_name, &row.name)?;
        let url = checked_url(&row.issuer)?;
        if !names.insert(name) {
            let message = format!("the issuer `{name}` is there twice; names are unique");
            return Err(Fault::at(&row.name, message));
        }
        if !urls.insert(url) {
            let message = format!("the issuer {url} has a table already: add its rules there");
            return Err(Fault::at(&row.issuer, message));
        }
        let audiences = row.audience.get_ref().texts();
        if audiences.is_empty() || audiences.iter().any(String::is_empty) {
            let message = "`audience` is empty: name the one that jobs ask the issuer for";
            return Err(Fault::at(&row.audience, message));
        }
        let mut issuer = OidcIssuer {
            name: name.into(),
            url: url.to_owned(),
            audiences,
            jwks: row.jwks.as_deref().map(at),
            ca: row.ca.as_deref().map(at),
            rules: rules(row, namespaces)?,
        };
        issuer.stamp_rules();
        issuers.push(issuer);
    }
    let keys = match (settings, rows.first()) {
        (None, Some(row)) => {
            let message = "tokens of an issuer are exchanged for tokens that are signed: name the file of the key with \
                           `key_file` in a table [exchange]";
            return Err(Fault::at(&row.name, message));
        }
        (Some(settings), _) if folder.is_some() => {
            let path = at(settings.key_file.get_ref());
            read_keys(&path).map_err(|why| {
                let message = format!("`key_file` {}: {why}", path.display());
                Fault::at(&settings.key_file, message)
            })?
        }
        _ => Vec::new(),
    };
    Ok(Exchange { issuers, keys })
}

fn rules(
    issuer: &IssuerRow,
    namespaces: &HashMap<&str, Arc<Namespace>>,
) -> Result<Vec<Rule>, Fault> {
    if let Some(row) = issuer.rule.get(RULES_MAX) {
        let message = format!("expected at most {RULES_MAX} rules of an issuer");
        return Err(Fault::at(&row.name, message));
    }
    let mut names = HashSet::new();
    let rules = issuer.rule.iter().map(|row| {
        let name = checked_name(check_user_name, &row.name)?;
        if !names.insert(name) {
            let message = format!("the rule `{name}` is there twice; names are unique");
            return Err(Fault::at(&row.name, message));
        }
        if row.role.get_ref().may_administer() {
            let message =
                format!("the rule `{name}` cannot make admins; expected `read` or `read-write`");
            return Err(Fault::at(&row.role, message));
        }
        let conditions = row.when.get_ref().iter().map(|(claim, texts)| Condition {
            claim: claim.clone(),
            patterns: texts.texts(),
        });
        let conditions: Vec<_> = conditions.collect();
        if conditions.is_empty() || conditions.iter().any(|it| it.patterns.is_empty()) {
            let message = format!(
                "`when` of the rule `{name}` is empty: it would let in every identity of the issuer"
            );
            return Err(Fault::at(&row.when, message));
        }
        let ttl = row.ttl.as_ref().map_or(TTL, |ttl| ttl.get_ref().get());
        if !(TTL_MIN..=TTL_MAX).contains(&ttl) {
            let at = row.ttl.as_ref().map_or(0, |ttl| ttl.span().start);
            return Err(Fault::new(at, "`ttl`: expected 1s to 24h"));
        }
        let namespace = &namespaces[Inhabitant::rule(row).namespace_name()];
        let claims = claims_of(&namespace.name).map_err(|why| Fault::at(&row.name, why))?;
        Ok(Rule {
            name: name.into(),
            conditions,
            role: *row.role.get_ref(),
            update_enabled: checked_update_enabled(
                *row.role.get_ref(),
                row.update_enabled.as_ref(),
            )?,
            namespace: Arc::clone(namespace),
            placeholders: claims.into_iter().map(str::to_owned).collect(),
            ttl,
            stamp: 0,
        })
    });
    rules.collect()
}

/// The keys of an issuer open the cache. So the node fetches them over TLS, or from its own
/// machine.
fn checked_url(url: &Spanned<String>) -> Result<&str, Fault> {
    let text = url.get_ref().as_str();
    let is_local = |rest: &str| {
        let host = rest.split(['/', '?', '#']).next().unwrap_or("");
        let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
        ["127.0.0.1", "localhost", "[::1]"].iter().any(|local| {
            let port = host.strip_prefix(local);
            port.is_some_and(|it| it.is_empty() || it.strip_prefix(':').is_some_and(is_port))
        })
    };
    let is_good = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
        (Some(rest), _) => !rest.is_empty(),
        (None, Some(rest)) => is_local(rest),
        (None, None) => false,
    };
    match is_good && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(text),
        false => Err(Fault::at(
            url,
            "`issuer`: expected the https URL in the claim `iss`, like https://token.actions.githubusercontent.com",
        )),
    }
}

/// The keys of a file: one a line, the first signs.
fn read_keys(path: &Path) -> Result<Vec<SigningKey>, String> {
    let text = read_text(path, KEY_FILE_LEN_MAX).map_err(|error| error.to_string())?;
    let text = zeroize::Zeroizing::new(text);
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let keys: Option<Vec<_>> = lines.map(SigningKey::parse).collect();
    let keys = keys.filter(|keys| (1..=KEYS_MAX).contains(&keys.len()));
    keys.ok_or_else(|| {
        format!("expected 1 to {KEYS_MAX} lines of 64 lower-case hex digits, as `openssl rand -hex 32` prints one")
    })
}

#[cfg(test)]
mod tests;
