//! The users that members agreed on, as the state machine has them: a text each, in JSON.
//!
//! A record in an unknown form of a newer version is skipped: a half understood record admits no
//! user.

use serde::Serialize;
use serde::de::DeserializeOwned;

use std::collections::BTreeMap;

use fonn_auth::{Records, Role};
use fonn_proto::grpc::v1;

use super::state::{Change, Put, Record, RecordKind, State};

/// Users and namespaces of a state, and the names of the records that could not be read.
#[must_use]
pub fn records(state: &State) -> (Records, Vec<String>) {
    let mut unreadable = Vec::new();
    let records = Records {
        revision: state.users_revision,
        users: parsed(&state.users, &mut unreadable),
        namespaces: parsed(&state.namespaces, &mut unreadable),
    };
    (records, unreadable)
}

fn parsed<T: DeserializeOwned>(
    records: &BTreeMap<String, Record>,
    unreadable: &mut Vec<String>,
) -> BTreeMap<String, T> {
    let mut all = BTreeMap::new();
    for (name, record) in records {
        match serde_json::from_str(&record.0) {
            Ok(value) => {
                all.insert(name.clone(), value);
            }
            // What the error says may quote the record.
            Err(_) => unreadable.push(name.clone()),
        }
    }
    all
}

/// The change from one version to another; none if they are the same.
#[must_use]
pub fn change(now: &Records, then: &Records) -> Option<Change> {
    let mut puts = differing(RecordKind::User, &now.users, &then.users);
    puts.extend(differing(
        RecordKind::Namespace,
        &now.namespaces,
        &then.namespaces,
    ));
    (!puts.is_empty()).then_some(Change::PutTogether {
        revision: now.revision,
        puts,
    })
}

fn differing<T: Serialize + PartialEq>(
    kind: RecordKind,
    now: &BTreeMap<String, T>,
    then: &BTreeMap<String, T>,
) -> Vec<Put> {
    let gone = now.keys().filter(|name| !then.contains_key(*name));
    let gone = gone.map(|name| (name, None));
    let put = then
        .iter()
        .filter(|(name, value)| now.get(*name) != Some(value));
    let put = put.map(|(name, value)| {
        let text = serde_json::to_string(value).expect("a record has a JSON form");
        (name, Some(Record(text)))
    });
    gone.chain(put)
        .map(|(name, record)| Put {
            kind,
            name: name.clone(),
            record,
        })
        .collect()
}

/// The users as they are sent to routers.
pub(super) fn message(state: &State) -> v1::ClusterUsers {
    let texts = |records: &BTreeMap<String, Record>| {
        let records = records.iter();
        records
            .map(|(name, record)| (name.clone(), record.0.clone()))
            .collect()
    };
    v1::ClusterUsers {
        revision: state.users_revision,
        users: texts(&state.users),
        namespaces: texts(&state.namespaces),
    }
}

/// A role as it is sent.
#[must_use]
pub const fn role(role: Role) -> v1::Role {
    match role {
        Role::Read => v1::Role::Read,
        Role::ReadWrite => v1::Role::ReadWrite,
        Role::Admin => v1::Role::Admin,
    }
}

#[cfg(test)]
mod tests {
    use fonn_auth::{NamespaceRecord, UserRecord};
    use fonn_base::size::ByteCount;

    use super::*;
    use crate::member::MemberInfo;
    use crate::state::Outcome;

    fn formed() -> State {
        let mut state = State::default();
        let founder = MemberInfo {
            id: "a".to_owned(),
            raft_id: 1,
            client_address: "a:1".to_owned(),
            cluster_address: "a:2".to_owned(),
            zone: "z".to_owned(),
            weight: 1,
            version: String::new(),
        };
        state.apply(Change::Form {
            cluster: 7,
            founder,
            version: 0,
            down_after_ms: 1500,
        });
        state
    }

    fn user(role: Role) -> UserRecord {
        UserRecord {
            hash: "$argon2id$x".to_owned(),
            role,
            namespace: "pull".to_owned(),
        }
    }

    #[test]
    fn what_is_agreed_on_is_what_was_wanted_and_reaches_routers() {
        let mut state = formed();
        let (mut then, _) = records(&state);
        let now = then.clone();
        assert_eq!(change(&now, &then), None);
        then.users.insert("ci".to_owned(), user(Role::ReadWrite));
        let namespace = NamespaceRecord {
            base: Some("main".to_owned()),
            quota: Some(ByteCount::new(5)),
        };
        then.namespaces.insert("pull".to_owned(), namespace);
        let outcome = state.apply(change(&now, &then).unwrap());
        assert!(matches!(outcome, Outcome::Applied { .. }));
        let (found, unreadable) = records(&state);
        assert!(unreadable.is_empty());
        then.revision = found.revision;
        assert_eq!(found, then);
        let told = message(&state);
        assert_eq!(told.revision, found.revision);
        let ci: UserRecord = serde_json::from_str(&told.users["ci"]).unwrap();
        assert_eq!(ci, then.users["ci"]);
        let pull: NamespaceRecord = serde_json::from_str(&told.namespaces["pull"]).unwrap();
        assert_eq!(pull, then.namespaces["pull"]);
        let gone = Records {
            revision: found.revision,
            ..Records::default()
        };
        state.apply(change(&found, &gone).unwrap());
        assert!(state.users.is_empty() && state.namespaces.is_empty());
    }

    #[test]
    fn a_record_of_another_form_is_skipped_and_named() {
        let mut state = formed();
        let text = |text: &str| Record(text.to_owned());
        let known = r#"{"hash":"h","role":"read","namespace":"n"}"#;
        let newer = r#"{"hash":"h","role":"read","namespace":"n","until":5}"#;
        state.users.insert("known".to_owned(), text(known));
        state.users.insert("newer".to_owned(), text(newer));
        state.users.insert("none".to_owned(), text("x"));
        let (found, unreadable) = records(&state);
        assert_eq!(found.users.keys().collect::<Vec<_>>(), ["known"]);
        assert_eq!(unreadable, ["newer", "none"]);
    }
}
