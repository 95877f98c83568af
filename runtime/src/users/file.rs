//! The users file: TOML with `[[user]]` tables.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use argon2::password_hash::phc::PasswordHash;
use serde::Deserialize;
use toml::Spanned;

use super::checks::{check_name, check_user_name, parse_hash};
use super::directory::{DEFAULT_NAMESPACE, Directory, Namespace, Role, User, namespace_number};
use crate::size::ByteCount;

/// A larger file is none of users.
const FILE_LEN_MAX: u64 = 16 << 20;

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
    user: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: Spanned<String>,
    hash: Spanned<String>,
    namespace: Option<Spanned<String>>,
    role: Role,
    quota: Option<Spanned<ByteCount>>,
    base: Option<Spanned<String>>,
}

impl Directory {
    /// Reads a users file.
    ///
    /// # Errors
    /// One sentence that names file, line and remedy, never a hash.
    pub fn load(path: &Path) -> Result<Self, UsersError> {
        let read = |source| UsersError::Read {
            path: path.to_owned(),
            source,
        };
        let len = std::fs::metadata(path).map_err(read)?.len();
        if len > FILE_LEN_MAX {
            return Err(read(io::Error::other(format!(
                "it has {len} bytes; expected a users file of at most {FILE_LEN_MAX}"
            ))));
        }
        let text = std::fs::read_to_string(path).map_err(read)?;
        Self::parse(&text).map_err(|Fault { at, message }| UsersError::Content {
            path: path.to_owned(),
            line: line_of(&text, at),
            message,
        })
    }

    fn parse(text: &str) -> Result<Self, Fault> {
        let file: File = toml::from_str(text).map_err(|error| Fault {
            at: error.span().map_or(0, |span| span.start),
            // Only the first line: the others quote the file.
            message: error.message().lines().next().unwrap_or("").to_owned(),
        })?;
        if file.user.is_empty() {
            return Err(Fault::new(
                0,
                "no [[user]] in it: nobody could log in; make a hash with `fonnctl user hash`",
            ));
        }
        let namespaces = namespaces(&file.user)?;
        let mut users = HashMap::new();
        for row in &file.user {
            let name: Arc<str> = checked_name(check_user_name, &row.name)?.into();
            let user = User::new(
                Arc::clone(&name),
                checked_hash(&row.hash)?,
                row.role,
                Arc::clone(&namespaces[namespace_name(row)]),
            );
            if users.insert(name, user).is_some() {
                return Err(Fault::at(
                    &row.name,
                    format!(
                        "the user `{}` is there twice; names are unique",
                        row.name.get_ref()
                    ),
                ));
            }
        }
        let mut namespaces: Vec<_> = namespaces.into_values().collect();
        namespaces.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Self { users, namespaces })
    }
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
}

fn line_of(text: &str, at: usize) -> usize {
    1 + text.as_bytes()[..at.min(text.len())]
        .iter()
        .filter(|&&byte| byte == b'\n')
        .count()
}

fn namespace_name(row: &Row) -> &str {
    row.namespace
        .as_ref()
        .map_or(DEFAULT_NAMESPACE, |name| name.get_ref())
}

/// The namespaces that the rows are in, with what their rows agree on.
fn namespaces(rows: &[Row]) -> Result<HashMap<&str, Arc<Namespace>>, Fault> {
    let mut bases: HashMap<&str, Option<&str>> = HashMap::new();
    let mut quotas: HashMap<&str, ByteCount> = HashMap::new();
    let mut numbers: HashMap<u16, &str> = HashMap::new();
    for row in rows {
        let name = namespace_name(row);
        if let Some(spanned) = &row.namespace {
            checked_name(|name| check_name("namespace", name), spanned)?;
        }
        let other = *numbers.entry(namespace_number(name)).or_insert(name);
        if other != name {
            return Err(Fault::new(
                row.namespace.as_ref().map_or(0, |name| name.span().start),
                format!(
                    "the namespaces `{other}` and `{name}` have the same number; rename one of them"
                ),
            ));
        }
        let base = row.base.as_ref().map(|base| base.get_ref().as_str());
        if *bases.entry(name).or_insert(base) != base {
            return Err(Fault::at(
                &row.name,
                format!(
                    "the users of namespace `{name}` differ in `base`; it belongs to the namespace, so say the same in each"
                ),
            ));
        }
        if let Some(quota) = &row.quota {
            let first = *quotas.entry(name).or_insert(*quota.get_ref());
            if first != *quota.get_ref() {
                return Err(Fault::at(
                    quota,
                    format!(
                        "the users of namespace `{name}` differ in `quota`; it belongs to the namespace, so say it once"
                    ),
                ));
            }
        }
    }
    for row in rows {
        if let Some(base) = &row.base {
            check_base(namespace_name(row), base, &bases)?;
        }
    }
    Ok(bases
        .iter()
        .map(|(&name, base)| {
            let namespace = Namespace {
                name: name.into(),
                number: namespace_number(name),
                base: base.map(namespace_number),
                quota: quotas.get(name).copied(),
            };
            (name, Arc::new(namespace))
        })
        .collect())
}

/// An overlay lies on one namespace that is none itself.
fn check_base(
    name: &str,
    base: &Spanned<String>,
    bases: &HashMap<&str, Option<&str>>,
) -> Result<(), Fault> {
    let under = base.get_ref().as_str();
    let message = match bases.get(under) {
        _ if under == name => format!("the namespace `{name}` has itself as its `base`"),
        None => format!("no user is in namespace `{under}`, the `base` of `{name}`"),
        Some(Some(third)) => format!(
            "`{under}`, the `base` of `{name}`, has a base itself (`{third}`); overlays have one level"
        ),
        Some(None) => return Ok(()),
    };
    Err(Fault::at(base, message))
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

fn checked_hash(hash: &Spanned<String>) -> Result<PasswordHash, Fault> {
    parse_hash(hash.get_ref()).map_err(|message| Fault::at(hash, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::users::tests_support::{HASH, row};

    fn parse(text: &str) -> Result<Directory, String> {
        Directory::parse(text)
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
        refused("", "no [[user]]");
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
    fn a_file_that_is_missing_is_named() {
        let error = Directory::load(Path::new("/nonexistent/users.toml")).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("--users-file /nonexistent/users.toml: cannot read")
        );
    }
}
