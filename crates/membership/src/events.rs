//! What changes from one map to the next, for the log and the events of every member.

use std::sync::Arc;

use fonn_base::events::{Level, Topic};
use fonn_proto::member::MemberState;

use super::map::Map;
use super::participant::Participant;

/// What happened between two maps, a sentence each, by the names of the members.
pub(super) fn between(old: &Map, new: &Map) -> Vec<(Level, String)> {
    let mut events = Vec::new();
    let (from, to) = (old.replicas, new.replicas);
    if old.epoch > 0 && from != to {
        events.push((
            Level::Info,
            format!("each slot has {to} owners, had {from}"),
        ));
    }
    for member in &new.members {
        let (id, to) = (&member.id, member.state.name());
        let Some(before) = old.member(id) else {
            events.push((Level::Info, format!("member {id} is there, {to}")));
            continue;
        };
        if before.state != member.state {
            let level = match member.state {
                MemberState::Down => Level::Warning,
                _ => Level::Info,
            };
            let from = before.state.name();
            events.push((level, format!("member {id} is {to}, was {from}")));
        }
        let (from, to) = (before.weight, member.weight);
        if from != to {
            events.push((
                Level::Info,
                format!("member {id} has weight {to}, had {from}"),
            ));
        }
    }
    let gone = old.members.iter().filter(|it| new.member(&it.id).is_none());
    events.extend(gone.map(|it| (Level::Info, format!("member {} was removed", it.id))));
    events
}

/// Tells what changes.
pub(super) async fn run(participant: Arc<Participant>) {
    let mut maps = participant.maps.clone();
    let mut old = Arc::clone(&maps.borrow_and_update());
    while maps.changed().await.is_ok() {
        let new = Arc::clone(&maps.borrow_and_update());
        for (level, message) in between(&old, &new) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self as maps, map};

    #[test]
    fn every_difference_is_a_sentence_and_a_fall_is_a_warning() {
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
        let expected = [
            (Level::Info, "each slot has 2 owners, had 1"),
            (Level::Info, "member a has weight 50, had 100"),
            (Level::Warning, "member b is down, was active"),
            (Level::Info, "member d is there, joining"),
            (Level::Info, "member c was removed"),
        ];
        let events = between(&old, &new);
        let events: Vec<_> = events.iter().map(|(it, text)| (*it, &**text)).collect();
        assert_eq!(events, expected);
        let back = between(&new, &old);
        assert!(back.contains(&(Level::Info, "member b is active, was down".to_owned())));
    }
}
