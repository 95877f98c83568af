//! Recent events, for people: a bounded log of sentences.
//!
//! A component records what an operator would want to know: members that join and leave, settings
//! that change, uploads that fail. It is no replacement for the log: nothing is written anywhere,
//! and only the newest events are kept. No keys, values or secrets belong in it.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::clock::Clock;

/// Longest message, in bytes; what is longer is cut.
const MESSAGE_LEN_MAX: usize = 500;

/// How much an event matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Good to know.
    Info,
    /// Something works worse than it should.
    Warning,
    /// Something is lost or does not work.
    Error,
}

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topic {
    /// The process: start, readiness, stop.
    Process,
    /// Settings that were changed or reloaded.
    Settings,
    /// The disk tier.
    Disk,
    /// The cold tier.
    Cold,
    /// Members of the cluster.
    Cluster,
}

impl Topic {
    /// The word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Settings => "settings",
            Self::Disk => "disk",
            Self::Cold => "cold",
            Self::Cluster => "cluster",
        }
    }
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Counts the events of the process, from 1.
    pub sequence: u64,
    /// When, as Unix time in milliseconds.
    pub at_ms: u64,
    /// How much it matters.
    pub level: Level,
    /// What it is about.
    pub topic: Topic,
    /// What happened, in a sentence.
    pub message: String,
}

/// The log; clones are the same. Recording takes a short lock and never waits.
#[derive(Clone, Debug)]
pub struct Events(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    clock: Clock,
    capacity: usize,
    kept: Mutex<VecDeque<Arc<Event>>>,
    newest: watch::Sender<u64>,
}

impl Events {
    /// An empty log that keeps the newest `capacity` events.
    #[must_use]
    pub fn new(clock: Clock, capacity: usize) -> Self {
        Self(Arc::new(Inner {
            clock,
            capacity: capacity.max(1),
            kept: Mutex::default(),
            newest: watch::Sender::new(0),
        }))
    }

    /// Notes something good to know.
    pub fn info(&self, topic: Topic, message: impl Into<String>) {
        self.record(Level::Info, topic, message);
    }

    /// Notes something that works worse than it should.
    pub fn warning(&self, topic: Topic, message: impl Into<String>) {
        self.record(Level::Warning, topic, message);
    }

    /// Notes something that is lost or does not work.
    pub fn error(&self, topic: Topic, message: impl Into<String>) {
        self.record(Level::Error, topic, message);
    }

    /// Notes an event. The oldest one goes if there are too many.
    pub fn record(&self, level: Level, topic: Topic, message: impl Into<String>) {
        let mut message = message.into();
        message.truncate(message.floor_char_boundary(MESSAGE_LEN_MAX));
        let mut kept = self.0.kept.lock();
        let sequence = kept.back().map_or(0, |event| event.sequence) + 1;
        if kept.len() == self.0.capacity {
            kept.pop_front();
        }
        kept.push_back(Arc::new(Event {
            sequence,
            at_ms: self.0.clock.wall_ms(),
            level,
            topic,
            message,
        }));
        // Under the lock, so that the number never goes back.
        self.0.newest.send_replace(sequence);
    }

    /// The events that are kept and newer than `sequence`, oldest first.
    #[must_use]
    pub fn after(&self, sequence: u64) -> Vec<Arc<Event>> {
        let kept = self.0.kept.lock();
        let newer = kept.iter().filter(|event| event.sequence > sequence);
        newer.cloned().collect()
    }

    /// The sequence of the newest event, to wait for a newer one; 0 before the first.
    #[must_use]
    pub fn newest(&self) -> watch::Receiver<u64> {
        self.0.newest.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    #[test]
    fn the_newest_events_are_kept_in_order() {
        let clock = ManualClock::new(1000);
        let events = Events::new(clock.clock(), 3);
        for number in 1..=5 {
            events.info(Topic::Process, format!("event {number}"));
            clock.advance(std::time::Duration::from_millis(10));
        }
        let kept: Vec<_> = events.after(0).iter().map(|it| it.sequence).collect();
        assert_eq!(kept, [3, 4, 5]);
        assert_eq!(events.after(4)[0].message, "event 5");
        assert_eq!(events.after(4)[0].at_ms, 1040);
        assert!(events.after(5).is_empty());
    }

    #[test]
    fn waiters_hear_of_an_event_and_long_messages_are_cut_between_characters() {
        let events = Events::new(Clock::system(), 10);
        let newest = events.newest();
        assert!(!newest.has_changed().unwrap());
        events.error(Topic::Cold, "é".repeat(MESSAGE_LEN_MAX));
        assert!(newest.has_changed().unwrap());
        let message = &events.after(0)[0].message;
        assert_eq!(message.len(), MESSAGE_LEN_MAX);
        events.warning(Topic::Cold, format!("x{}", "é".repeat(MESSAGE_LEN_MAX)));
        assert_eq!(events.after(1)[0].message.len(), MESSAGE_LEN_MAX - 1);
    }
}
