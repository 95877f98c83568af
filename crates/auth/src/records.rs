//! Users that the members of a cluster agreed on, beside those of the users file.
//!
//! Both together are a [`Directory`]. [`union`] never fails, but leaves out invalid users, since
//! members agreed on them by the rules of another version or beside another file. A change that
//! would lock a user out is refused before the agreement ([`judge`]).
//!
//! Rules: a user of the file wins over one of the same name, and so does what the file says of a
//! namespace. A user whose record would give it another namespace than its name says is left out,
//! not admitted elsewhere.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use fonn_base::size::ByteCount;
use serde::{Deserialize, Serialize};

use super::checks::{check_base, check_inhabitable, check_name, check_user_name, parse_hash};
use super::directory::{DEFAULT_NAMESPACE, Directory, Namespace, Role, User, namespace_number};

/// A user that members agreed on.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserRecord {
    /// The argon2 hash of the password.
    pub hash: String,
    /// What the user may do.
    pub role: Role,
    /// The namespace it is in.
    pub namespace: String,
}

impl fmt::Debug for UserRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserRecord")
            .field("role", &self.role)
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

/// What members agreed on about a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamespaceRecord {
    /// The namespace that it lies over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// Bytes that its entries may take on each node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<ByteCount>,
}

impl NamespaceRecord {
    /// Whether it says nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// One version of what members agreed on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Records {
    /// Counts their changes; 0 before the first.
    pub revision: u64,
    /// Users by name.
    pub users: BTreeMap<String, UserRecord>,
    /// Namespaces by name; those of which something is said.
    pub namespaces: BTreeMap<String, NamespaceRecord>,
}

/// A user that members agreed on and that is left out, and why.
pub(super) type LeftOut = BTreeMap<String, String>;

/// The users of a file and those of the records that are not in it.
pub(super) fn union(file: &Directory, records: &Records) -> (Directory, LeftOut) {
    let mut left_out = LeftOut::new();
    let mut numbers: HashMap<u32, &str> = HashMap::from([(0, DEFAULT_NAMESPACE)]);
    let of_file = file.namespaces.iter();
    numbers.extend(of_file.map(|it| (it.number, &*it.name)));
    let mut candidates = Vec::new();
    for (name, record) in &records.users {
        if file.user(name).is_some() {
            continue;
        }
        let checked = check_user_name(name)
            .and_then(|()| check_name("namespace", &record.namespace))
            .and_then(|()| check_inhabitable(&record.namespace))
            .and_then(|()| parse_hash(&record.hash));
        let number = namespace_number(&record.namespace);
        match checked {
            Err(why) => {
                left_out.insert(name.clone(), why);
            }
            Ok(hash) => match *numbers.entry(number).or_insert(&record.namespace) {
                same if same == record.namespace => candidates.push((name, record, hash)),
                other => {
                    let own = &record.namespace;
                    let why = format!(
                        "the namespaces `{other}` and `{own}` have the same number; take another name"
                    );
                    left_out.insert(name.clone(), why);
                }
            },
        }
    }
    let inhabited: BTreeSet<&str> = file
        .namespaces
        .iter()
        .map(|it| &*it.name)
        .chain(candidates.iter().map(|it| it.1.namespace.as_str()))
        .collect();
    let base_of = |name: &str| match file.namespace(name) {
        Some(known) => known.base.and_then(|base| numbers.get(&base).copied()),
        None => records.namespaces.get(name)?.base.as_deref(),
    };
    let mut namespaces: BTreeMap<&str, Arc<Namespace>> = BTreeMap::new();
    for &name in &inhabited {
        let base = base_of(name);
        let third = base.and_then(|base| inhabited.contains(base).then(|| base_of(base)));
        if let Some(base) = base
            && let Err(why) = check_base(name, base, third)
        {
            let in_it = candidates.iter().filter(|it| it.1.namespace == name);
            left_out.extend(in_it.map(|it| (it.0.clone(), why.clone())));
            continue;
        }
        let said = records.namespaces.get(name).and_then(|it| it.quota);
        let of_file = file.namespace(name).and_then(|it| it.quota);
        let namespace = Namespace {
            name: name.into(),
            number: namespace_number(name),
            base: base.map(namespace_number),
            quota: of_file.or(said),
            // Members do not agree on it: it is for the file alone to say.
            is_write_once: file.namespace(name).is_some_and(|it| it.is_write_once),
            ttl: file.namespace(name).and_then(|it| it.ttl),
        };
        namespaces.insert(name, Arc::new(namespace));
    }
    let mut users = file.users.clone();
    for (name, record, hash) in candidates {
        if let Some(namespace) = namespaces.get(record.namespace.as_str()) {
            let name: Arc<str> = name.as_str().into();
            let user = User::new(Arc::clone(&name), hash, record.role, Arc::clone(namespace));
            users.insert(name, user);
        }
    }
    let directory = Directory {
        users,
        tokens: file.tokens.clone(),
        namespaces: namespaces.into_values().collect(),
        exchange: Arc::clone(&file.exchange),
    };
    (directory, left_out)
}

/// Whether members may agree on `then` in the place of `now`, beside the users of a file.
///
/// # Errors
/// The user that would be left out, or that no user could change users any more.
pub(super) fn judge(file: &Directory, now: &Records, then: &Records) -> Result<(), String> {
    let (_, before) = union(file, now);
    let (directory, after) = union(file, then);
    for (name, why) in &after {
        let is_changed = now.users.get(name) != then.users.get(name);
        if is_changed || !before.contains_key(name) {
            return Err(match is_changed {
                true => why.clone(),
                false => format!("the user `{name}` would not be let in any more: {why}"),
            });
        }
    }
    if !directory.has_admin() {
        return Err(
            "no admin would be left, and only admins change users: make another user one first"
                .to_owned(),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests;
