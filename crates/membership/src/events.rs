//! What changes from one map to the next, for the log and the events of every member.

use std::fmt;
use std::sync::Arc;

use fonn_base::events::{Level, Topic};

use super::map::Map;
use super::participant::Participant;

/// What happened to a member, or to the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// Its state is another one; none is that of a member that is not there.
    State {
        id: String,
        from: Option<&'static str>,
        to: Option<&'static str>,
    },
    /// Its share of the slots is another one.
    Weight { id: String, from: u32, to: u32 },
    /// Each slot has another number of owners.
    Replicas { from: u8, to: u8 },
}

/// The events between two maps, by the names of the members.
pub(super) fn between(old: &Map, new: &Map) -> Vec<Event> {
    let mut events = Vec::new();
    if old.epoch > 0 && old.replicas != new.replicas {
        events.push(Event::Replicas {
            from: old.replicas,
            to: new.replicas,
        });
    }
    for member in &new.members {
        let before = old.member(&member.id);
        let (from, to) = (before.map(|it| it.state.name()), Some(member.state.name()));
        if from != to {
            events.push(Event::State {
                id: member.id.clone(),
                from,
                to,
            });
        }
        if let Some(before) = before
            && before.weight != member.weight
        {
            events.push(Event::Weight {
                id: member.id.clone(),
                from: before.weight,
                to: member.weight,
            });
        }
    }
    let gone = old.members.iter().filter(|it| new.member(&it.id).is_none());
    events.extend(gone.map(|member| Event::State {
        id: member.id.clone(),
        from: Some(member.state.name()),
        to: None,
    }));
    events
}

/// Tells what changes; runs until the member stops.
pub(super) async fn run(participant: Arc<Participant>) {
    let mut maps = participant.maps.clone();
    let mut old = Arc::clone(&maps.borrow_and_update());
    loop {
        tokio::select! {
            changed = maps.changed() => if changed.is_err() { return },
            () = participant.closed() => return,
        }
        let new = Arc::clone(&maps.borrow_and_update());
        for event in between(&old, &new) {
            let (level, message) = (event.level(), event.to_string());
            match level {
                Level::Info => tracing::info!(epoch = new.epoch, "{message}"),
                _ => tracing::warn!(epoch = new.epoch, "{message}"),
            }
            if let Some(events) = &participant.options.events {
                events.record(level, Topic::Cluster, message);
            }
        }
        old = new;
    }
}

impl Event {
    fn level(&self) -> Level {
        match self {
            Self::State {
                to: Some("down"), ..
            } => Level::Warning,
            _ => Level::Info,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::State {
                id,
                from: None,
                to: Some(to),
            } => write!(f, "member {id} is there, {to}"),
            Self::State {
                id,
                from: Some(from),
                to: Some(to),
            } => {
                write!(f, "member {id} is {to}, was {from}")
            }
            Self::State { id, to: None, .. } => write!(f, "member {id} was removed"),
            Self::Weight { id, from, to } => write!(f, "member {id} has weight {to}, had {from}"),
            Self::Replicas { from, to } => write!(f, "each slot has {to} owners, had {from}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use fonn_proto::member::MemberState;

    use super::*;
    use crate::testing::{self as maps, map};

    #[test]
    fn an_event_is_a_sentence_and_a_fall_is_a_warning() {
        let state = |from, to| Event::State {
            id: "b".to_owned(),
            from,
            to,
        };
        let fall = state(Some("active"), Some("down"));
        assert_eq!(fall.to_string(), "member b is down, was active");
        assert_eq!(fall.level(), Level::Warning);
        let rise = state(Some("down"), Some("active"));
        assert_eq!(rise.level(), Level::Info);
        assert_eq!(
            state(None, Some("joining")).to_string(),
            "member b is there, joining"
        );
        assert_eq!(
            state(Some("down"), None).to_string(),
            "member b was removed"
        );
    }

    #[test]
    fn every_difference_is_an_event_and_nothing_else_is() {
        use MemberState::{Active, Down, Joining};
        let member = |id, weight, state| maps::member(id, "127.0.0.1:1", state, weight);
        let old = map(
            4,
            1,
            vec![
                member("a", 100, Active),
                member("b", 100, Active),
                member("c", 1, Active),
            ],
        );
        assert_eq!(between(&old, &old), []);
        let new = map(
            5,
            2,
            vec![
                member("a", 50, Active),
                member("b", 100, Down),
                member("d", 1, Joining),
            ],
        );
        let state = |id: &str, from, to| Event::State {
            id: id.to_owned(),
            from,
            to,
        };
        assert_eq!(
            between(&old, &new),
            [
                Event::Replicas { from: 1, to: 2 },
                Event::Weight {
                    id: "a".to_owned(),
                    from: 100,
                    to: 50
                },
                state("b", Some("active"), Some("down")),
                state("d", None, Some("joining")),
                state("c", Some("active"), None),
            ]
        );
    }
}
