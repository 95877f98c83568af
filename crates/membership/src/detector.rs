//! Which members are up: a decision from the times of their answers, without a clock or a socket.
//!
//! A member is down after the silence of its cluster without an answer. It is up again only after
//! it has answered without a gap for a while. Each failure soon after the last one doubles that
//! while, so that a bad link makes one change and not a hundred. A pause of this process itself (it
//! was stopped, or its machine slept) does not count as silence of a member.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::types::RaftId;

/// How long a member has for its answer: two fit into the silence after which it is down.
pub(super) const ANSWER_DEADLINE: Duration = Duration::from_millis(500);

/// How often all members are asked.
pub(super) const PERIOD: Duration = Duration::from_millis(250);
/// Silence after which a member is down, unless the cluster was formed with another one.
pub(super) const DOWN_AFTER: Duration = Duration::from_millis(1500);

/// When a member that was down is up again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Options {
    /// How long a member must answer before it is up again, after a first fall.
    pub(super) stable: Duration,
    /// The longest such time, after many falls.
    pub(super) stable_max: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            stable: Duration::from_secs(5),
            stable_max: Duration::from_secs(60),
        }
    }
}

/// What is known of all members.
#[derive(Debug)]
pub(super) struct Detector {
    options: Options,
    silence: Duration,
    watched: BTreeMap<RaftId, Watched>,
    last_tick: Option<Instant>,
}

#[derive(Debug)]
struct Watched {
    last_answer: Instant,
    /// Since when the answers came without a gap; none before the first.
    answering_since: Option<Instant>,
    was_down: bool,
    /// Falls that came soon one after the other, and the time of the last.
    falls: u32,
    last_fall: Option<Instant>,
}

impl Detector {
    pub(super) const fn new(options: Options) -> Self {
        Self {
            options,
            silence: DOWN_AFTER,
            watched: BTreeMap::new(),
            last_tick: None,
        }
    }

    /// Sets the watched members, and the silence after which one is down. A new one has the whole
    /// silence before the first answer is due.
    pub(super) fn watch(&mut self, ids: &BTreeSet<RaftId>, silence: Duration, now: Instant) {
        self.silence = silence;
        self.watched.retain(|id, _| ids.contains(id));
        for id in ids {
            self.watched.entry(*id).or_insert(Watched {
                last_answer: now,
                answering_since: None,
                was_down: false,
                falls: 0,
                last_fall: None,
            });
        }
    }

    /// Notes an answer.
    pub(super) fn answered(&mut self, id: RaftId, now: Instant) {
        let silence = self.silence;
        let Some(watched) = self.watched.get_mut(&id) else {
            return;
        };
        let gap = now.saturating_duration_since(watched.last_answer);
        if watched.answering_since.is_none() || gap >= silence {
            watched.answering_since = Some(now);
        }
        watched.last_answer = watched.last_answer.max(now);
    }

    /// To be called each [`PERIOD`] at least: a longer time between two calls was a pause
    /// of our own.
    pub(super) fn tick(&mut self, now: Instant) {
        let last = self.last_tick.replace(now).unwrap_or(now);
        let pause = now
            .saturating_duration_since(last)
            .saturating_sub(2 * PERIOD);
        for watched in self.watched.values_mut() {
            // An answer that came during the pause is not moved into the future.
            watched.last_answer = (watched.last_answer + pause).min(now.max(watched.last_answer));
        }
    }

    /// Whether a member is to be held for down, by what it is held for now. `is_down` comes from
    /// the agreed state, so that the next leader goes on where the last one was.
    pub(super) fn is_down(&mut self, id: RaftId, is_down: bool, now: Instant) -> bool {
        let options = self.options;
        let Some(watched) = self.watched.get_mut(&id) else {
            return is_down;
        };
        if is_down && !watched.was_down {
            let soon = |last: Instant| now.saturating_duration_since(last) < 4 * options.stable_max;
            let is_soon = watched.last_fall.is_some_and(soon);
            watched.falls = if is_soon { watched.falls + 1 } else { 1 };
            watched.last_fall = Some(now);
        }
        watched.was_down = is_down;
        let silence = now.saturating_duration_since(watched.last_answer);
        if silence >= self.silence {
            return true;
        }
        let doublings = watched.falls.saturating_sub(1).min(16);
        let stable = (options.stable * (1 << doublings)).min(options.stable_max);
        let answering = watched.answering_since;
        let is_stable =
            answering.is_some_and(|since| now.saturating_duration_since(since) >= stable);
        is_down && !is_stable
    }

    /// For how long a member has not answered.
    pub(super) fn silence(&self, id: RaftId, now: Instant) -> Option<Duration> {
        let watched = self.watched.get(&id)?;
        Some(now.saturating_duration_since(watched.last_answer))
    }
}
