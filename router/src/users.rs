//! The users that members agreed on, as a stream of the topology tells them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use fonn_auth::{Authenticator, Records};
use fonn_proto::grpc::v1::ClusterUsers;
use serde::de::DeserializeOwned;

/// Puts users in force that a member told, unless newer ones are known.
pub async fn replicate(users: &Arc<Authenticator>, told: ClusterUsers) {
    let (users, revision) = (Arc::clone(users), told.revision);
    // Thousands of users are read and checked.
    let put = tokio::task::spawn_blocking(move || {
        revision > users.records().revision && users.replicate(records(told))
    });
    if put.await.unwrap_or(false) {
        tracing::info!(revision, "users changed");
    }
}

/// What a message says.
fn records(told: ClusterUsers) -> Records {
    Records {
        revision: told.revision,
        users: parsed(told.users),
        namespaces: parsed(told.namespaces),
    }
}

/// The records by name. A record in a form of a newer version is left out: a half understood record
/// admits no user.
fn parsed<T: DeserializeOwned>(texts: HashMap<String, String>) -> BTreeMap<String, T> {
    let parsed = |(name, text): (_, String)| Some((name, serde_json::from_str(&text).ok()?));
    texts.into_iter().filter_map(parsed).collect()
}

#[cfg(test)]
mod tests {
    use fonn_auth::Role;
    use fonn_base::size::ByteCount;

    use super::*;

    #[test]
    fn what_members_tell_is_what_they_agreed_on() {
        let of = |pairs: &[(&str, &str)]| {
            let owned = |&(name, text): &(&str, &str)| (name.to_owned(), text.to_owned());
            pairs.iter().map(owned).collect()
        };
        let told = ClusterUsers {
            revision: 4,
            users: of(&[
                (
                    "ci",
                    r#"{"hash":"h","role":"read-write","namespace":"main"}"#,
                ),
                (
                    "newer",
                    r#"{"hash":"h","role":"read","namespace":"main","until":5}"#,
                ),
                ("none", "x"),
            ]),
            namespaces: of(&[("main", r#"{"quota":5}"#)]),
        };
        let records = records(told);
        assert_eq!(records.revision, 4);
        assert_eq!(records.users.keys().collect::<Vec<_>>(), ["ci"]);
        assert_eq!(records.users["ci"].role, Role::ReadWrite);
        let main = &records.namespaces["main"];
        assert_eq!((&main.base, main.quota), (&None, Some(ByteCount::new(5))));
    }
}
