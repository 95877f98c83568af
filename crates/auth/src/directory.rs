//! What a users file says, and what members agreed on, looked up.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use argon2::password_hash::phc::PasswordHash;
use fonn_base::size::ByteCount;
use fonn_proto::hash::fnv1a;
use fonn_proto::{Overlay, Space, WriterId};
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use super::oidc::{Exchange, OidcIssuer};
use super::placeholders::has_placeholders;
use super::token::Expiry;
use super::tokens::{ListedToken, Tokens};

/// The namespace of users that name none, and of every client where there are no users.
pub const DEFAULT_NAMESPACE: &str = "default";

/// What a user may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Read entries and statistics.
    Read,
    /// Change entries too.
    ReadWrite,
    /// Everything: the admin services, all namespaces' facts, flushing.
    Admin,
}

impl Role {
    /// Whether entries may be changed.
    #[must_use]
    pub const fn may_write(self) -> bool {
        !matches!(self, Self::Read)
    }

    /// Whether the admin services may be used to change something.
    #[must_use]
    pub const fn may_administer(self) -> bool {
        matches!(self, Self::Admin)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::ReadWrite => "read-write",
            Self::Admin => "admin",
        })
    }
}

/// A namespace as its users see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Its name.
    pub name: Arc<str>,
    /// Its number, from its name: 0 for `default`.
    pub number: u32,
    /// The namespace under it, whose entries are read where the overlay has none, and never
    /// changed.
    pub base: Option<u32>,
    /// Bytes that its entries may take.
    pub quota: Option<ByteCount>,
    /// Whether its entries keep their first value.
    pub is_write_once: bool,
    /// How long an entry lives at most.
    pub ttl: Option<Duration>,
}

impl Namespace {
    /// Whether it has many overlays, one for each set of values of the placeholders in its name.
    #[must_use]
    pub fn has_overlays(&self) -> bool {
        has_placeholders(&self.name)
    }
}

/// By what a client proved its identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CredentialKind {
    /// The password of a user.
    Password,
    /// A token of the file.
    Token,
    /// A signed token, which an identity of an OIDC issuer was exchanged for.
    Exchanged,
}

/// The user of a connection.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The name of the user or token; of an OIDC identity that of the issuer, a colon, and its
    /// subject.
    pub user: Arc<str>,
    /// What it may do.
    pub role: Role,
    /// Where its keys live.
    pub namespace: Arc<Namespace>,
    /// Which overlay of the namespace it is in, if that has many.
    pub overlay: Option<Overlay>,
    /// By what it was proved.
    pub kind: CredentialKind,
    /// When it expires; never without one.
    pub expiry: Option<Expiry>,
    /// Whether its builds are told that they may store results. Only a reader can be told that it
    /// may not.
    pub update_enabled: bool,
    /// Tells this identity from another one, also with the same name.
    pub(super) stamp: u64,
}

impl Identity {
    /// The number that entries name it by as their writer.
    #[must_use]
    pub fn writer(&self) -> WriterId {
        writer_id(&self.user)
    }

    /// Whether it has expired at `now_ms`.
    #[must_use]
    pub fn has_expired(&self, now_ms: u64) -> bool {
        self.expiry.is_some_and(|expiry| expiry.has_passed(now_ms))
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            CredentialKind::Password => "user",
            CredentialKind::Token => "token",
            CredentialKind::Exchanged => "identity",
        };
        write!(f, "{kind} `{}`", self.user)
    }
}

/// A user with a password.
#[derive(Clone)]
pub(super) struct User {
    pub identity: Identity,
    pub hash: PasswordHash,
}

impl User {
    /// A user whose stamp is of all that a connection goes by; what others may take is none of it.
    pub fn new(name: Arc<str>, hash: PasswordHash, role: Role, namespace: Arc<Namespace>) -> Self {
        let Namespace {
            name: namespace_name,
            base,
            ..
        } = &*namespace;
        let stamp = fnv1a(format!("{name}\0{hash}\0{role}\0{namespace_name}\0{base:?}").as_bytes());
        Self {
            hash,
            identity: Identity {
                user: name,
                role,
                namespace,
                overlay: None,
                kind: CredentialKind::Password,
                expiry: None,
                update_enabled: true,
                stamp,
            },
        }
    }
}

/// The users and tokens of one version of the file, and the users of the cluster.
pub struct Directory {
    pub(super) users: HashMap<Arc<str>, User>,
    pub(super) tokens: Tokens,
    pub(super) namespaces: Vec<Arc<Namespace>>,
    pub(super) exchange: Arc<Exchange>,
}

impl fmt::Debug for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Directory")
            .field("users", &self.users.len())
            .field("tokens", &self.tokens.len())
            .field("namespaces", &self.namespaces)
            .finish()
    }
}

impl Directory {
    pub(super) fn user(&self, name: &str) -> Option<&User> {
        self.users.get(name)
    }

    /// The hash of the user whose check stands in for that of a user that does not exist. `seed` is
    /// of the name, so that a name always costs the same; the cost is that of some user, as it
    /// would be if the name were one.
    pub(super) fn decoy(&self, seed: &[u8]) -> Option<&PasswordHash> {
        let rank = |user: &&User| fnv1a(&[seed, user.identity.user.as_bytes()].concat());
        let user = self.users.values().min_by_key(rank)?;
        Some(&user.hash)
    }

    /// Whether `identity` is still what it says at `now_ms`.
    #[must_use]
    pub fn holds(&self, identity: &Identity, now_ms: u64) -> bool {
        let is_it = |known: &Identity| known.stamp == identity.stamp;
        let is_known = match identity.kind {
            CredentialKind::Password => {
                let user = self.user(&identity.user);
                user.is_some_and(|user| is_it(&user.identity))
            }
            CredentialKind::Token => {
                let token = self.tokens.named(&identity.user);
                token.is_some_and(|token| is_it(&token.identity))
            }
            CredentialKind::Exchanged => self.exchange.holds(identity),
        };
        is_known && !identity.has_expired(now_ms)
    }

    /// The OIDC issuer with this URL.
    #[must_use]
    pub fn issuer(&self, url: &str) -> Option<&OidcIssuer> {
        self.exchange.issuers.iter().find(|it| it.url == url)
    }

    /// Whether it has no user, no token and no issuer. No client can log in by it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.users.is_empty() && self.tokens.len() == 0 && !self.has_issuers()
    }

    /// Whether identities of OIDC issuers may be exchanged for tokens.
    #[must_use]
    pub fn has_issuers(&self) -> bool {
        !self.exchange.issuers.is_empty()
    }

    /// The tokens, by name.
    #[must_use]
    pub fn tokens(&self) -> Vec<ListedToken> {
        self.tokens.list()
    }

    /// The namespace of that name, if it has a user.
    #[must_use]
    pub fn namespace(&self, name: &str) -> Option<&Arc<Namespace>> {
        let found = self.namespaces.binary_search_by(|it| (*it.name).cmp(name));
        self.namespaces.get(found.ok()?)
    }

    /// Whether a user may do everything.
    #[must_use]
    pub fn has_admin(&self) -> bool {
        let mut users = self.users.values();
        users.any(|user| user.identity.role.may_administer())
    }

    /// The namespaces, by name.
    #[must_use]
    pub fn namespaces(&self) -> &[Arc<Namespace>] {
        &self.namespaces
    }

    /// The users' names with their roles and namespaces, by name.
    #[must_use]
    pub fn identities(&self) -> Vec<Identity> {
        let mut all: Vec<_> = self.users.values().map(|u| u.identity.clone()).collect();
        all.sort_by(|a, b| a.user.cmp(&b.user));
        all
    }
}

/// The number of a namespace: the same on every node and in every region, since a bucket is shared.
///
/// 0 for `default`; else the first 28 bits of the name's SHA-256, little-endian, or 1 if these are
/// 0. Two names may have the same number; the users file is refused then.
#[must_use]
pub fn namespace_number(name: &str) -> u32 {
    if name == DEFAULT_NAMESPACE {
        return 0;
    }
    (first_bits(name) & Space::NAMESPACE_MAX).max(1)
}

/// The number of the identity with this name as a writer: the same on every node and for ever,
/// since entries in buckets have it. The first 32 bits of the name's SHA-256, little-endian, or 1
/// if these are 0.
#[must_use]
pub fn writer_id(name: &str) -> WriterId {
    WriterId::new(first_bits(name).max(1))
}

fn first_bits(name: &str) -> u32 {
    let hash = digest(&SHA256, name.as_bytes());
    let bits = hash.as_ref().first_chunk();
    bits.map_or(0, |it| u32::from_le_bytes(*it))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{parsed, row};

    #[test]
    fn a_namespace_has_the_same_number_everywhere_and_for_ever() {
        // Data in buckets depends on these.
        for (name, number) in [
            ("default", 0),
            ("main", 155_217_421),
            ("pull-requests", 213_050_096),
        ] {
            assert_eq!(namespace_number(name), number, "{name}");
        }
        for name in ["pr", "a", "zzz", ""] {
            let number = namespace_number(name);
            assert!(
                (1..=Space::NAMESPACE_MAX).contains(&number),
                "{name}: {number}"
            );
        }
    }

    #[test]
    fn a_writer_has_the_same_number_everywhere_and_for_ever() {
        // Entries in buckets have these.
        let numbers = ["ci", "github:repo:acme/app:ref:refs/heads/main"].map(writer_id);
        assert_eq!(numbers.map(WriterId::number), [965_219_611, 3_657_782_953]);
        assert!(writer_id("").is_known());
    }

    #[test]
    fn a_name_that_is_no_user_costs_what_some_user_costs_and_always_the_same() {
        let users = [row("ci", "read", ""), row("dev", "read", "")].concat();
        let users = users.replacen("m=64,t=1", "m=128,t=2", 1);
        let directory = parsed(&users);
        let decoy = |seed: u32| directory.decoy(&seed.to_be_bytes()).unwrap().to_string();
        let mut counts = HashMap::<String, u32>::new();
        for seed in 0..100 {
            *counts.entry(decoy(seed)).or_default() += 1;
            assert_eq!(decoy(seed), decoy(seed));
        }
        assert_eq!(counts.len(), 2, "{counts:?}");
        assert!(counts.values().all(|&count| count > 20), "{counts:?}");
    }

    #[test]
    fn roles_allow_what_they_say() {
        assert!(!Role::Read.may_write() && !Role::Read.may_administer());
        assert!(Role::ReadWrite.may_write() && !Role::ReadWrite.may_administer());
        assert!(Role::Admin.may_write() && Role::Admin.may_administer());
    }
}
