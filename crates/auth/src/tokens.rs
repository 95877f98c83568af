//! The tokens of one version of the users file, looked up by secret and by name.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fonn_proto::hash::fnv1a;

use super::directory::{CredentialKind, Identity, Namespace, Role};
use super::token::{Expiry, TokenHash};

/// A token that the server knows.
#[derive(Clone)]
pub(super) struct Token {
    pub identity: Identity,
    hash: TokenHash,
    /// Logins by it in this process, for as long as a token of its name is there.
    logins: Arc<AtomicU64>,
}

impl Token {
    /// A token. Its stamp covers its hash, role, namespace and expiry: a change of these ends its
    /// connections.
    pub fn new(
        name: Arc<str>,
        hash: TokenHash,
        role: Role,
        namespace: Arc<Namespace>,
        expiry: Option<Expiry>,
    ) -> Self {
        let Namespace {
            name: namespace_name,
            base,
            ..
        } = &*namespace;
        let text = format!("token\0{name}\0{role}\0{namespace_name}\0{base:?}\0{expiry:?}\0");
        let stamp = fnv1a(&[text.as_bytes(), hash.bytes()].concat());
        Self {
            hash,
            logins: Arc::default(),
            identity: Identity {
                user: name,
                role,
                namespace,
                overlay: None,
                kind: CredentialKind::Token,
                expiry,
                update_enabled: true,
                stamp,
            },
        }
    }

    /// Counts a login.
    pub fn count_login(&self) {
        self.logins.fetch_add(1, Ordering::Relaxed);
    }
}

/// A token as an operator sees it.
#[derive(Clone, Debug)]
pub struct ListedToken {
    /// What it may do, and until when.
    pub identity: Identity,
    /// Logins by it in this process.
    pub logins: u64,
}

/// Tokens, by name.
#[derive(Clone, Default)]
pub(super) struct Tokens {
    by_name: HashMap<Arc<str>, Token>,
    /// Names by a part of the hash; the rest is compared in constant time.
    names: HashMap<[u8; 8], Arc<str>>,
}

impl Tokens {
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Adds a token.
    ///
    /// # Errors
    /// With what another token has too: its name or its secret.
    pub fn insert(&mut self, token: Token) -> Result<(), &'static str> {
        let name = Arc::clone(&token.identity.user);
        if self.by_name.contains_key(&name) {
            return Err("name");
        }
        if self
            .names
            .insert(token.hash.prefix(), Arc::clone(&name))
            .is_some()
        {
            return Err("hash");
        }
        self.by_name.insert(name, token);
        Ok(())
    }

    pub fn named(&self, name: &str) -> Option<&Token> {
        self.by_name.get(name)
    }

    /// The token whose secret has this hash.
    pub fn by_hash(&self, hash: &TokenHash) -> Option<&Token> {
        let token = self.by_name.get(self.names.get(&hash.prefix())?)?;
        token.hash.is(hash).then_some(token)
    }

    /// Goes on counting what an earlier version counted.
    pub fn continue_counts(&mut self, earlier: &Self) {
        for (name, token) in &mut self.by_name {
            if let Some(known) = earlier.by_name.get(name) {
                token.logins = Arc::clone(&known.logins);
            }
        }
    }

    /// All of them, by name.
    pub fn list(&self) -> Vec<ListedToken> {
        let listed = self.by_name.values().map(|token| ListedToken {
            identity: token.identity.clone(),
            logins: token.logins.load(Ordering::Relaxed),
        });
        let mut all: Vec<_> = listed.collect();
        all.sort_by(|a, b| a.identity.user.cmp(&b.identity.user));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::super::namespace_number;
    use super::super::token::TokenSecret;
    use super::*;

    fn token(name: &str, random: u8) -> Token {
        let namespace = Namespace {
            name: "main".into(),
            number: namespace_number("main"),
            base: None,
            quota: None,
            is_write_once: false,
            ttl: None,
        };
        let hash = TokenSecret::new(&[random; 32]).hash();
        Token::new(name.into(), hash, Role::Read, namespace.into(), None)
    }

    #[test]
    fn a_token_is_found_by_its_secret_alone() {
        let mut tokens = Tokens::default();
        tokens.insert(token("a", 1)).unwrap();
        tokens.insert(token("b", 2)).unwrap();
        assert_eq!(tokens.insert(token("a", 3)), Err("name"));
        assert_eq!(tokens.insert(token("c", 2)), Err("hash"));
        let found = |random: u8| {
            let found = tokens.by_hash(&TokenSecret::new(&[random; 32]).hash());
            found.map(|it| it.identity.user.to_string())
        };
        assert_eq!(found(1).as_deref(), Some("a"));
        assert_eq!(found(3), None);
        assert_eq!(tokens.len(), 2);
    }

    #[test]
    fn logins_are_counted_on_when_the_file_is_read_again() {
        let (mut before, mut after) = (Tokens::default(), Tokens::default());
        before.insert(token("a", 1)).unwrap();
        before.named("a").unwrap().count_login();
        after.insert(token("a", 7)).unwrap();
        after.insert(token("b", 8)).unwrap();
        after.continue_counts(&before);
        after.named("a").unwrap().count_login();
        let counts: Vec<_> = after.list().into_iter().map(|it| it.logins).collect();
        assert_eq!(counts, [2, 0]);
    }
}
