//! Applying the users that the members of the cluster agree on.
//!
//! Only where members know each other by certificates and this member has a users file. Otherwise
//! every client that reaches the cluster's port could make itself a user, or no client is asked for
//! a login.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use fonn_auth::{Authenticator, Records};
use fonn_base::events::{Events, Topic};
use tokio::sync::watch;

use crate::engine::Engine;
use fonn_membership::state::State;
use fonn_membership::{Cluster, users};

/// Most users that one change is told of by name.
const NAMED_MAX: usize = 8;

/// The users of a node, as far as its cluster decides.
pub struct Followed {
    users: Arc<Authenticator>,
    engine: Arc<Engine>,
    events: Events,
}

impl fmt::Debug for Followed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Followed")
            .field("users", &self.users)
            .finish_non_exhaustive()
    }
}

impl Followed {
    /// Users of the file `users`, whose namespaces `engine` is told of; changes are recorded in
    /// `events`.
    #[must_use]
    pub const fn new(users: Arc<Authenticator>, engine: Arc<Engine>, events: Events) -> Self {
        Self {
            users,
            engine,
            events,
        }
    }

    /// Puts in force what the node knows at its start, so that no user is refused that was admitted
    /// before.
    pub fn begin(&self, cluster: &Cluster) {
        let state = cluster.state().borrow().clone();
        let (records, unreadable) = users::records(&state);
        warn(&unreadable);
        if self.users.replicate(records) {
            self.engine.set_users(|| Some(self.users.directory()));
        }
    }

    /// Puts each newer version in force; runs until the cluster's part of the node is gone.
    pub async fn follow(self, mut states: watch::Receiver<Arc<State>>) {
        // The first is what `begin` knew, or newer.
        states.mark_changed();
        let known = self.users.revisions();
        while states.changed().await.is_ok() {
            let state = Arc::clone(&states.borrow_and_update());
            if state.users_revision <= *known.borrow() {
                continue;
            }
            let users = Arc::clone(&self.users);
            // Thousands of users are read and checked.
            let put = tokio::task::spawn_blocking(move || {
                let before = users.records();
                let (records, unreadable) = users::records(&state);
                warn(&unreadable);
                let message = difference(&before, &records);
                users.replicate(records).then_some(message)
            });
            if let Ok(Some(message)) = put.await {
                self.engine.set_users(|| Some(self.users.directory()));
                tracing::info!(revision = *known.borrow(), "{message}");
                self.events.info(Topic::Settings, message);
            }
        }
    }
}

fn warn(unreadable: &[String]) {
    if !unreadable.is_empty() {
        tracing::warn!(
            names = unreadable.join(" "),
            "users or namespaces that a newer version agreed on are not known here: upgrade this node"
        );
    }
}

/// What changed from one version to the next, in a sentence.
fn difference(before: &Records, after: &Records) -> String {
    let names: BTreeSet<&String> = before.users.keys().chain(after.users.keys()).collect();
    let changed = names.into_iter().filter_map(|name| {
        let what = match (before.users.get(name), after.users.get(name)) {
            (None, Some(_)) => "is new",
            (Some(_), None) => "is removed",
            (Some(old), Some(new)) if old != new => "is changed",
            _ => return None,
        };
        Some(format!("`{name}` {what}"))
    });
    let changed: Vec<String> = changed.collect();
    let more = changed.len().saturating_sub(NAMED_MAX);
    let mut text = changed[..changed.len() - more].join(", ");
    if more > 0 {
        text.push_str(&format!(" and {more} more are changed"));
    }
    match text.is_empty() {
        true => "namespaces of the cluster's users are changed".to_owned(),
        false => format!("users of the cluster: {text}"),
    }
}

#[cfg(test)]
mod tests {
    use fonn_auth::{Role, UserRecord};

    use super::*;

    fn records(users: &[(&str, Role)]) -> Records {
        let record = |role| UserRecord {
            hash: "secret".to_owned(),
            role,
            namespace: "main".to_owned(),
        };
        let users = users.iter();
        Records {
            users: users
                .map(|&(name, role)| (name.to_owned(), record(role)))
                .collect(),
            ..Records::default()
        }
    }

    #[test]
    fn the_changed_user_is_told_and_no_hash() {
        let before = records(&[("a", Role::Read), ("b", Role::Read), ("c", Role::Read)]);
        let after = records(&[("a", Role::Read), ("b", Role::Admin), ("d", Role::Read)]);
        assert_eq!(
            difference(&before, &after),
            "users of the cluster: `b` is changed, `c` is removed, `d` is new"
        );
        assert_eq!(
            difference(&before, &before),
            "namespaces of the cluster's users are changed"
        );
        let names: Vec<String> = (10..30).map(|number| format!("u{number}")).collect();
        let many: Vec<(&str, Role)> = names.iter().map(|it| (it.as_str(), Role::Read)).collect();
        let text = difference(&records(&[]), &records(&many));
        assert!(
            text.ends_with("`u17` is new and 12 more are changed"),
            "{text}"
        );
    }
}
