//! Numbers of writers as people read them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use fonn_proto::WriterId;

use super::authenticator::Authenticator;
use super::directory::writer_id;

/// The names of writers at one time. Making it hashes each user and token once, so one of it serves
/// a whole answer.
#[derive(Debug, Default)]
pub struct NamesOfWriters<'a> {
    users: Option<&'a Authenticator>,
    /// Of users and tokens, which may not have logged in.
    listed: HashMap<WriterId, Vec<Arc<str>>>,
}

impl<'a> NamesOfWriters<'a> {
    /// Names as `users` know them; numbers alone without users.
    #[must_use]
    pub fn new(users: Option<&'a Authenticator>) -> Self {
        let mut listed: HashMap<_, Vec<_>> = HashMap::new();
        let directory = users.map(Authenticator::directory);
        for directory in directory.iter() {
            let users = directory.identities().into_iter().map(|it| it.user);
            let tokens = directory.tokens().into_iter().map(|it| it.identity.user);
            for name in users.chain(tokens) {
                listed.entry(writer_id(&name)).or_default().push(name);
            }
        }
        Self { users, listed }
    }

    /// The name of a writer; several where names share its number, and the number where none is
    /// known. Empty of none.
    #[must_use]
    pub fn name(&self, writer: WriterId) -> String {
        if !writer.is_known() {
            return String::new();
        }
        let learned = self.users.map(|users| users.writers().of(writer));
        let mut names: BTreeSet<Arc<str>> = learned.unwrap_or_default().into_iter().collect();
        names.extend(self.listed.get(&writer).into_iter().flatten().cloned());
        match names.is_empty() {
            true => format!("#{:08x}", writer.number()),
            false => Vec::from_iter(names).join(" or "),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::directory;

    #[test]
    fn without_users_a_writer_is_its_number_and_none_is_empty() {
        let names = NamesOfWriters::new(None);
        assert_eq!(names.name(WriterId::new(0x1f)), "#0000001f");
        assert_eq!(names.name(WriterId::NONE), "");
    }

    #[test]
    fn a_name_is_told_once_whether_it_has_logged_in_or_not() {
        let users = directory(&[("ci", "read"), ("dev", "read")]);
        let users = Authenticator::new(users).unwrap();
        for name in ["ci", "issuer:subject"] {
            users.writers().learn(name);
        }
        let names = NamesOfWriters::new(Some(&users));
        for name in ["ci", "dev", "issuer:subject"] {
            assert_eq!(names.name(writer_id(name)), name);
        }
        assert!(names.name(writer_id("stranger")).starts_with('#'));
    }
}
