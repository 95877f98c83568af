//! The users file: TOML with `[[user]]`, `[[token]]`, `[[namespace]]` and `[[oidc]]` tables.

mod namespaces;
mod oidc;

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use argon2::password_hash::phc::PasswordHash;
use fonn_base::duration::Span;
use fonn_base::file::read_text;
use fonn_base::size::ByteCount;
use serde::Deserialize;
use toml::Spanned;

use self::namespaces::{Inhabitant, namespaces};
use self::oidc::{ExchangeRow, IssuerRow, exchange};
use super::checks::{check_user_name, parse_hash};
use super::directory::{Directory, Namespace, Role, User};
use super::token::Expiry;
use super::tokens::{Token, Tokens};

/// A larger file is none of users.
const FILE_LEN_MAX: usize = 16 << 20;

/// Tokens of a file at most.
const TOKENS_MAX: usize = 4096;

/// A users file that cannot be used. No variant holds a hash.
#[derive(Debug, thiserror::Error)]
pub enum UsersError {
    /// The file could not be read.
    #[error("--users-file {}: cannot read the file: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Something in it is not accepted.
    #[error("--users-file {}, line {line}: {message}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// Line in it, from 1.
        line: usize,
        /// What, and what would be accepted.
        message: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    user: Vec<UserRow>,
    #[serde(default)]
    token: Vec<TokenRow>,
    #[serde(default)]
    namespace: Vec<NamespaceRow>,
    #[serde(default)]
    oidc: Vec<IssuerRow>,
    exchange: Option<ExchangeRow>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UserRow {
    name: Spanned<String>,
    hash: Spanned<String>,
    namespace: Option<Spanned<String>>,
    role: Role,
    update_enabled: Option<Spanned<bool>>,
    quota: Option<Spanned<ByteCount>>,
    base: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenRow {
    name: Spanned<String>,
    hash: Spanned<String>,
    namespace: Option<Spanned<String>>,
    role: Spanned<Role>,
    update_enabled: Option<Spanned<bool>>,
    expires: Option<Spanned<toml::value::Datetime>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NamespaceRow {
    name: Spanned<String>,
    quota: Option<Spanned<ByteCount>>,
    base: Option<Spanned<String>>,
    #[serde(default)]
    write_once: bool,
    ttl: Option<Spanned<Span>>,
}

impl Directory {
    /// Reads a users file, and the file of keys that it names.
    ///
    /// # Errors
    /// One sentence that names file, line and remedy, never a hash.
    pub fn load(path: &Path) -> Result<Self, UsersError> {
        let read = |source| UsersError::Read {
            path: path.to_owned(),
            source,
        };
        let text = read_text(path, FILE_LEN_MAX).map_err(read)?;
        let folder = path.parent().unwrap_or(Path::new(""));
        Self::parse(&text, Some(folder)).map_err(|fault| fault.of(&text, path))
    }

    /// What a users file with this text says; errors name `path`. No other file is read, so tokens
    /// that are signed are neither made nor accepted by it.
    ///
    /// # Errors
    /// As [`Directory::load`].
    pub fn of_text(text: &str, path: &Path) -> Result<Self, UsersError> {
        Self::parse(text, None).map_err(|fault| fault.of(text, path))
    }

    fn parse(text: &str, folder: Option<&Path>) -> Result<Self, Fault> {
        let file: File = toml::from_str(text).map_err(|error| Fault {
            at: error.span().map_or(0, |span| span.start),
            // Only the first line: the others quote the file.
            message: error.message().lines().next().unwrap_or("").to_owned(),
        })?;
        let of_users = file.user.iter().map(Inhabitant::user);
        let of_tokens = file.token.iter().map(Inhabitant::token);
        let of_rules = file.oidc.iter().flat_map(IssuerRow::inhabitants);
        let inhabitants: Vec<_> = of_users.chain(of_tokens).chain(of_rules).collect();
        let namespaces = namespaces(&file.namespace, &inhabitants)?;
        let mut users = HashMap::new();
        for row in &file.user {
            let user = user(row, &namespaces)?;
            if users
                .insert(Arc::clone(&user.identity.user), user)
                .is_some()
            {
                let name = row.name.get_ref();
                let message = format!("the user `{name}` is there twice; names are unique");
                return Err(Fault::at(&row.name, message));
            }
        }
        let tokens = tokens(&file.token, &users, &namespaces)?;
        let exchange = exchange(file.exchange.as_ref(), &file.oidc, &namespaces, folder)?;
        let mut namespaces: Vec<_> = namespaces.into_values().collect();
        namespaces.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Self {
            users,
            tokens,
            namespaces,
            exchange: Arc::new(exchange),
        })
    }
}

fn user(row: &UserRow, namespaces: &HashMap<&str, Arc<Namespace>>) -> Result<User, Fault> {
    let namespace = Inhabitant::user(row).namespace_name();
    let mut user = User::new(
        checked_name(check_user_name, &row.name)?.into(),
        checked_hash(&row.hash)?,
        row.role,
        Arc::clone(&namespaces[namespace]),
    );
    user.identity.update_enabled = checked_update_enabled(row.role, row.update_enabled.as_ref())?;
    Ok(user)
}

fn tokens(
    rows: &[TokenRow],
    users: &HashMap<Arc<str>, User>,
    namespaces: &HashMap<&str, Arc<Namespace>>,
) -> Result<Tokens, Fault> {
    if let Some(row) = rows.get(TOKENS_MAX) {
        let message =
            format!("expected at most {TOKENS_MAX} tokens: revoke those that have expired");
        return Err(Fault::at(&row.name, message));
    }
    let mut tokens = Tokens::default();
    for row in rows {
        let name = checked_name(check_user_name, &row.name)?;
        if users.contains_key(name) {
            let message = format!("the token `{name}` has the name of a user; take another name");
            return Err(Fault::at(&row.name, message));
        }
        if row.role.get_ref().may_administer() {
            let message =
                format!("the token `{name}` cannot be an admin; expected `read` or `read-write`");
            return Err(Fault::at(&row.role, message));
        }
        let hash = row.hash.get_ref().parse();
        let hash = hash.map_err(|error| Fault::at(&row.hash, format!("{error}")))?;
        let mut token = Token::new(
            name.into(),
            hash,
            *row.role.get_ref(),
            Arc::clone(&namespaces[Inhabitant::token(row).namespace_name()]),
            row.expires.as_ref().map(expiry).transpose()?,
        );
        token.identity.update_enabled =
            checked_update_enabled(*row.role.get_ref(), row.update_enabled.as_ref())?;
        tokens.insert(token).map_err(|what| {
            let message =
                format!("another token has the {what} of the token `{name}` too; it is unique");
            Fault::at(&row.name, message)
        })?;
    }
    Ok(tokens)
}

fn expiry(told: &Spanned<toml::value::Datetime>) -> Result<Expiry, Fault> {
    let parsed = told.get_ref().to_string().parse();
    parsed.map_err(|error| Fault::at(told, format!("`expires`: {error}")))
}

/// What is wrong, and the byte where.
#[derive(Debug)]
struct Fault {
    at: usize,
    message: String,
}

impl Fault {
    fn new(at: usize, message: impl Into<String>) -> Self {
        Self {
            at,
            message: message.into(),
        }
    }

    fn at<T>(spanned: &Spanned<T>, message: impl Into<String>) -> Self {
        Self::new(spanned.span().start, message)
    }

    fn of(self, text: &str, path: &Path) -> UsersError {
        UsersError::Content {
            path: path.to_owned(),
            line: line_of(text, self.at),
            message: self.message,
        }
    }
}

fn line_of(text: &str, at: usize) -> usize {
    1 + text.as_bytes()[..at.min(text.len())]
        .iter()
        .filter(|&&byte| byte == b'\n')
        .count()
}

fn checked_name(
    check: impl FnOnce(&str) -> Result<(), String>,
    name: &Spanned<String>,
) -> Result<&str, Fault> {
    let text = name.get_ref().as_str();
    match check(text) {
        Ok(()) => Ok(text),
        Err(message) => Err(Fault::at(name, message)),
    }
}

/// Whether the builds of an identity are told that they may store results.
fn checked_update_enabled(role: Role, told: Option<&Spanned<bool>>) -> Result<bool, Fault> {
    match told {
        Some(told) if !told.get_ref() && role.may_write() => Err(Fault::at(
            told,
            format!(
                "`update_enabled = false` is for the role `read`: the role `{role}` may store results"
            ),
        )),
        told => Ok(told.is_none_or(|it| *it.get_ref())),
    }
}

fn checked_hash(hash: &Spanned<String>) -> Result<PasswordHash, Fault> {
    parse_hash(hash.get_ref()).map_err(|message| Fault::at(hash, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace_number;
    use crate::testing::{HASH, row};

    fn parse(text: &str) -> Result<Directory, String> {
        Directory::parse(text, None)
            .map_err(|fault| format!("line {}: {}", line_of(text, fault.at), fault.message))
    }

    fn refused(text: &str, part: &str) {
        let error = parse(text).expect_err(part);
        assert!(error.contains(part), "{error}");
        assert!(!error.contains("$argon2"), "a hash in an error: {error}");
    }

    #[test]
    fn users_have_a_role_and_a_namespace() {
        let text = [
            row("ci", "read-write", "namespace = 'main'\nquota = '20g'"),
            row("pr", "read-write", "namespace = 'pull'\nbase = 'main'"),
            row("dev", "read", "namespace = 'main'"),
            row("root", "admin", ""),
        ]
        .concat();
        let directory = parse(&text).unwrap();
        let names: Vec<_> = directory
            .identities()
            .iter()
            .map(|who| {
                (
                    who.user.to_string(),
                    who.role,
                    who.namespace.name.to_string(),
                )
            })
            .collect();
        let expected = [
            ("ci", Role::ReadWrite, "main"),
            ("dev", Role::Read, "main"),
            ("pr", Role::ReadWrite, "pull"),
            ("root", Role::Admin, "default"),
        ];
        assert_eq!(names, expected.map(|(u, r, n)| (u.into(), r, n.into())));
        let pull = &directory.user("pr").unwrap().identity.namespace;
        assert_eq!(pull.base, Some(namespace_number("main")));
        let main = &directory.user("dev").unwrap().identity.namespace;
        assert_eq!(main.quota, Some(ByteCount::new(20 << 30)));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line_and_never_shows_a_hash() {
        refused(&row("a b", "read", ""), "line 2: the name `a b`");
        refused(&row("", "read", ""), "expected 1 to 64");
        refused(&row("a:b", "read", ""), "line 2: the name `a:b`");
        refused(&row("a", "owner", ""), "unknown variant `owner`");
        refused(&row("a", "read", "colour = 1"), "unknown field `colour`");
        refused(
            &[row("a", "read", ""), row("a", "admin", "")].concat(),
            "twice",
        );
        let plain = "[[user]]\nname = 'a'\nrole = 'read'\nhash = 'secret'\n";
        refused(plain, "line 4: `hash` is no password hash");
        assert!(!parse(plain).unwrap_err().contains("secret"));
        let bcrypt = HASH.replace("argon2id", "bcrypt");
        refused(
            &format!("[[user]]\nname = 'a'\nrole = 'read'\nhash = '{bcrypt}'\n"),
            "is not of argon2",
        );
        let huge = HASH.replace("m=64", "m=4194304");
        refused(
            &format!("[[user]]\nname = 'a'\nrole = 'read'\nhash = '{huge}'\n"),
            "too much memory",
        );
    }

    const TOKEN_HASH: &str =
        "sha256:0000000000000000000000000000000000000000000000000000000000000001";

    fn token_row(name: &str, more: &str) -> String {
        format!("[[token]]\nname = '{name}'\nhash = '{TOKEN_HASH}'\n{more}\n")
    }

    #[test]
    fn tokens_have_a_role_a_namespace_and_an_expiry() {
        let text = [
            token_row(
                "nightly",
                "role = 'read-write'\nnamespace = 'pull'\nexpires = 2026-12-24T17:00:00Z",
            ),
            row("ci", "read", "namespace = 'main'"),
            "[[namespace]]\nname = 'pull'\nbase = 'main'\nquota = '5g'\n".to_owned(),
        ];
        let directory = parse(&text.concat()).unwrap();
        let tokens = directory.tokens();
        let token = &tokens[0].identity;
        assert_eq!(token.to_string(), "token `nightly`");
        assert_eq!(token.role, Role::ReadWrite);
        assert_eq!(token.namespace.base, Some(namespace_number("main")));
        assert_eq!(token.namespace.quota, Some(ByteCount::new(5 << 30)));
        let expiry = token.expiry.unwrap().unix_ms();
        assert!(directory.holds(token, expiry - 1) && !directory.holds(token, expiry));
        // Tokens alone let clients in too.
        let alone = parse(&token_row("a", "role = 'read'")).unwrap();
        assert!(alone.holds(&alone.tokens()[0].identity, u64::MAX));
    }

    #[test]
    fn a_wrong_token_is_named_with_its_line_and_never_shows_a_hash() {
        let refused = |text: &str, part: &str| {
            refused(text, part);
            assert!(!parse(text).unwrap_err().contains("000001"), "{part}");
        };
        refused(
            &token_row("a", "role = 'admin'"),
            "line 4: the token `a` cannot be an admin",
        );
        refused(&token_row("a b", "role = 'read'"), "line 2: the name `a b`");
        refused(&token_row("a", ""), "missing field `role`");
        refused(
            &token_row("a", "role = 'read'\nexpires = 2026-12-24"),
            "line 5: `expires`: expected a date and time",
        );
        refused(
            &[
                token_row("a", "role = 'read'"),
                token_row("b", "role = 'read'"),
            ]
            .concat(),
            "another token has the hash",
        );
        refused(
            &[token_row("a", "role = 'read'"), row("a", "read", "")].concat(),
            "has the name of a user",
        );
        let plain = "[[token]]\nname = 'a'\nrole = 'read'\nhash = 'secret'\n";
        refused(plain, "line 4: `hash` is no hash of a token");
        assert!(!parse(plain).unwrap_err().contains("secret"));
    }

    #[test]
    fn a_reader_alone_is_told_to_store_no_results() {
        let told = "update_enabled = false";
        let directory = parse(&(row("u", "read", told) + &row("v", "read", ""))).unwrap();
        let is_told = |name| directory.user(name).unwrap().identity.update_enabled;
        assert_eq!(["u", "v"].map(is_told), [false, true]);
        refused(
            &row("u", "read-write", told),
            "`update_enabled = false` is for the role `read`",
        );
        let token = token_row("t", &format!("role = 'read-write'\n{told}"));
        refused(&token, "is for the role `read`");
    }

    #[test]
    fn a_namespace_that_is_declared_decides_for_all_in_it() {
        let declared = |more: &str| format!("[[namespace]]\nname = 'p'\n{more}\n");
        let once = declared("write_once = true") + &row("u", "read", "namespace = 'p'");
        assert!(parse(&once).unwrap().namespace("p").unwrap().is_write_once);
        let main = row("m", "read", "namespace = 'main'");
        let user = row("u", "read", "namespace = 'p'\nbase = 'main'\nquota = '1g'");
        let silent = row("v", "read", "namespace = 'p'");
        let base = "base = 'main'\nquota = '1g'";
        let all = [main.clone(), user.clone(), silent, declared(base)].concat();
        let directory = parse(&all).unwrap();
        let namespace = &directory.user("v").unwrap().identity.namespace;
        assert_eq!(namespace.base, Some(namespace_number("main")));
        assert_eq!(namespace.quota, Some(ByteCount::new(1 << 30)));
        assert!(!namespace.is_write_once);
        let differing = |more: &str| [main.clone(), user.clone(), declared(more)].concat();
        refused(&differing("quota = '1g'"), "differ in `base`");
        refused(
            &differing("base = 'main'\nquota = '2g'"),
            "differ in `quota`",
        );
        refused(
            &[main.clone(), declared(""), declared("")].concat(),
            "is declared twice",
        );
        let nobody = [main, declared("base = 'none'")].concat();
        refused(&nobody, "no user is in namespace `none`");
    }

    #[test]
    fn overlays_lie_on_a_namespace_that_is_there_and_is_none_itself() {
        let overlay = |base: &str| {
            row(
                "p",
                "read-write",
                &format!("namespace = 'p'\nbase = '{base}'"),
            )
        };
        refused(&overlay("main"), "no user is in namespace `main`");
        refused(&overlay("p"), "itself");
        let third = row("q", "read", "namespace = 'q'\nbase = 'p'");
        let base = row("m", "read", "namespace = 'm'");
        refused(
            &[base, overlay("m"), third].concat(),
            "overlays have one level",
        );
        let differs = row("p2", "read", "namespace = 'p'");
        let base = row("m", "read", "namespace = 'm'");
        refused(&[base, overlay("m"), differs].concat(), "differ in `base`");
        let quotas = [
            row("a", "read", "quota = '1g'"),
            row("b", "read", "quota = '2g'"),
        ];
        refused(&quotas.concat(), "differ in `quota`");
    }

    #[test]
    fn namespaces_with_the_same_number_are_refused() {
        let mut seen = HashMap::new();
        let (one, two) = (0..)
            .map(|n| format!("n{n}"))
            .find_map(|name| {
                let number = namespace_number(&name);
                seen.insert(number, name.clone()).map(|other| (other, name))
            })
            .unwrap();
        let rows = [
            row("a", "read", &format!("namespace = '{one}'")),
            row("b", "read", &format!("namespace = '{two}'")),
        ];
        refused(&rows.concat(), "have the same number; rename one");
    }

    #[test]
    fn a_file_without_an_end_is_refused() {
        let error = Directory::load(Path::new("/dev/zero")).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("expected at most 16777216 bytes"), "{text}");
    }

    #[test]
    fn a_file_that_is_missing_is_named() {
        let error = Directory::load(Path::new("/nonexistent/users.toml")).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("--users-file /nonexistent/users.toml: cannot read")
        );
    }
}
