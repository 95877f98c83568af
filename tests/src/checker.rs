//! Judges what a store shows after a crash against what it acknowledged before.
//!
//! A key has one writer, so its operations have an order. What was acknowledged last must be
//! there. An operation that was sent and not answered when the process died may have happened
//! or not; once a state was seen it stays, so that nothing comes back later.

use std::time::{Duration, SystemTime};

use anyhow::{Result, bail};

use crate::values::ValuePool;

/// Protocols give expiry in whole seconds and round it; the two clocks are one.
const EXPIRY_SLACK: Duration = Duration::from_millis(1500);

/// Longer than any test looks ahead.
const NEVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// When an entry ends: not before `earliest`, and it is gone after `latest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expiry {
    earliest: SystemTime,
    latest: SystemTime,
}

impl Expiry {
    /// The end of an entry that got `ttl` seconds by a request sent at `sent`, answered now at
    /// the latest at `answered`.
    #[must_use]
    pub fn new(ttl: u32, sent: SystemTime, answered: SystemTime) -> Self {
        let ttl = Duration::from_secs(u64::from(ttl));
        let earliest = (sent + ttl).checked_sub(EXPIRY_SLACK).unwrap_or(sent);
        Self {
            earliest,
            latest: answered + ttl + EXPIRY_SLACK,
        }
    }

    /// The end of an entry that has one of two, of which None is never, and it is unknown which.
    fn either(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        let (one, other) = match (one, other) {
            (None, None) => return None,
            (Some(known), None) | (None, Some(known)) => {
                let latest = known.latest + NEVER;
                return Some(Self { latest, ..known });
            }
            (Some(one), Some(other)) => (one, other),
        };
        Some(Self {
            earliest: one.earliest.min(other.earliest),
            latest: one.latest.max(other.latest),
        })
    }

    /// Whether the entry may have ended at `now`.
    #[must_use]
    pub fn may_be_over(&self, now: SystemTime) -> bool {
        now >= self.earliest
    }
}

/// What a key may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// The value of this number and length.
    Value {
        /// Number in the [`ValuePool`].
        number: u64,
        /// Length in bytes.
        len: usize,
    },
    /// A decimal number.
    Counter(u64),
}

/// A state of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Never set, deleted or flushed.
    Absent,
    /// There, until it expires.
    Present {
        /// Its value.
        content: Content,
        /// Its end, `None` for none.
        expiry: Option<Expiry>,
    },
}

impl State {
    /// Whether a read at `now` that gave `seen` agrees with this state.
    fn allows(&self, seen: Option<&[u8]>, now: SystemTime, pool: &ValuePool) -> bool {
        match (self, seen) {
            (Self::Absent, seen) => seen.is_none(),
            (Self::Present { expiry, .. }, None) => {
                expiry.is_some_and(|expiry| expiry.may_be_over(now))
            }
            (Self::Present { content, expiry }, Some(bytes)) => {
                expiry.is_none_or(|expiry| now <= expiry.latest) && content.is(bytes, pool)
            }
        }
    }
}

impl Content {
    fn is(&self, bytes: &[u8], pool: &ValuePool) -> bool {
        match *self {
            Self::Value { number, len } => pool.value(number, len).check(bytes).is_ok(),
            // memcached keeps the width of a decremented number; digits decide.
            Self::Counter(count) => {
                std::str::from_utf8(bytes).is_ok_and(|text| text.trim().parse() == Ok(count))
            }
        }
    }
}

/// What is known of one key.
#[derive(Clone, Debug)]
pub struct History {
    key: String,
    acknowledged: State,
    unanswered: Option<State>,
    operations: u64,
}

impl History {
    /// A key that was never set.
    #[must_use]
    pub fn new(key: String) -> Self {
        Self {
            key,
            acknowledged: State::Absent,
            unanswered: None,
            operations: 0,
        }
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The state after everything that was acknowledged.
    #[must_use]
    pub const fn state(&self) -> State {
        self.acknowledged
    }

    /// A number that was never used for a value of this key, for the next one.
    pub const fn next_number(&mut self) -> u64 {
        self.operations += 1;
        self.operations
    }

    /// An operation that leads to `next` is about to be sent.
    pub const fn begin(&mut self, next: State) {
        self.unanswered = Some(next);
    }

    /// The operation was acknowledged, with the state that the answer implies.
    pub const fn acknowledge(&mut self, state: State) {
        self.acknowledged = state;
        self.unanswered = None;
    }

    /// Compares what a read at `now` gave, after which the key is known again.
    ///
    /// # Errors
    /// With the key, what is known and what was seen, when no order of events explains it.
    pub fn judge(&mut self, seen: Option<&[u8]>, now: SystemTime, pool: &ValuePool) -> Result<()> {
        let allowed = |state: &State| state.allows(seen, now, pool);
        let later = self.unanswered.filter(allowed);
        let earlier = Some(self.acknowledged).filter(allowed);
        let state = match (later, earlier) {
            // Both agree with what was seen: an unanswered touch may have happened or not.
            (
                Some(State::Present { content, expiry }),
                Some(State::Present {
                    content: same,
                    expiry: before,
                }),
            ) if content == same => {
                let expiry = Expiry::either(expiry, before);
                Some(State::Present { content, expiry })
            }
            (later, earlier) => later.or(earlier),
        };
        let Some(state) = state else {
            let start = seen.map(|bytes| {
                let digest = String::from_utf8_lossy(&bytes[..bytes.len().min(24)]).into_owned();
                (bytes.len(), digest)
            });
            bail!(
                "key {}: acknowledged {:?}, unanswered {:?}, now {now:?}, but it shows {start:?}",
                self.key,
                self.acknowledged,
                self.unanswered
            );
        };
        // An entry that was seen to be gone must not come back, whatever the clock does.
        let settled = if seen.is_none() { State::Absent } else { state };
        self.acknowledge(settled);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::Content as Bytes;

    fn value(number: u64) -> State {
        State::Present {
            content: Content::Value { number, len: 50 },
            expiry: None,
        }
    }

    fn pool() -> ValuePool {
        ValuePool::new(Bytes::Random, 100)
    }

    #[test]
    fn a_lost_acknowledged_value_is_found() {
        let (mut history, now) = (History::new("k".into()), SystemTime::now());
        history.begin(value(1));
        history.acknowledge(value(1));
        assert!(history.judge(None, now, &pool()).is_err());
        assert!(
            history
                .judge(Some(&pool().value(1, 50).to_vec()), now, &pool())
                .is_ok()
        );
    }

    #[test]
    fn an_overwritten_value_must_not_come_back() {
        let (mut history, now) = (History::new("k".into()), SystemTime::now());
        history.acknowledge(value(1));
        history.acknowledge(value(2));
        assert!(
            history
                .judge(Some(&pool().value(1, 50).to_vec()), now, &pool())
                .is_err()
        );
    }

    #[test]
    fn an_unanswered_operation_may_have_happened_but_not_twice() {
        let (mut history, now) = (History::new("k".into()), SystemTime::now());
        let (one, two) = (pool().value(1, 50).to_vec(), pool().value(2, 50).to_vec());
        history.acknowledge(value(1));
        history.begin(value(2));
        let mut other = history.clone();
        history.judge(Some(&one), now, &pool()).unwrap();
        assert!(
            history.judge(Some(&two), now, &pool()).is_err(),
            "it came back later"
        );
        other.judge(Some(&two), now, &pool()).unwrap();
        assert!(
            other.judge(Some(&one), now, &pool()).is_err(),
            "it went back"
        );
    }

    #[test]
    fn an_unanswered_touch_may_have_happened_or_not() {
        let now = SystemTime::now();
        let touched = State::Present {
            content: Content::Value { number: 1, len: 50 },
            expiry: Some(Expiry::new(100, now, now)),
        };
        let mut history = History::new("k".into());
        history.acknowledge(value(1));
        history.begin(touched);
        let one = pool().value(1, 50).to_vec();
        history.judge(Some(&one), now, &pool()).unwrap();
        let later = now + Duration::from_secs(3600);
        history.clone().judge(Some(&one), later, &pool()).unwrap();
        history.judge(None, later, &pool()).unwrap();
    }

    #[test]
    fn an_expired_value_must_be_gone_and_a_fresh_one_must_be_there() {
        let now = SystemTime::now();
        let mut history = History::new("k".into());
        let expiry = Some(Expiry::new(100, now, now));
        let content = Content::Value { number: 1, len: 50 };
        history.acknowledge(State::Present { content, expiry });
        let bytes = pool().value(1, 50).to_vec();
        let later = now + Duration::from_secs(102);
        assert!(
            history
                .clone()
                .judge(None, now + Duration::from_secs(90), &pool())
                .is_err()
        );
        assert!(history.clone().judge(Some(&bytes), later, &pool()).is_err());
        history.judge(None, later, &pool()).unwrap();
        assert!(
            history.judge(Some(&bytes), now, &pool()).is_err(),
            "back with the clock"
        );
    }

    #[test]
    fn a_counter_is_compared_as_a_number() {
        let (mut history, now) = (History::new("k".into()), SystemTime::now());
        let state = State::Present {
            content: Content::Counter(9),
            expiry: None,
        };
        history.acknowledge(state);
        assert!(history.judge(Some(b"9 "), now, &pool()).is_ok());
        assert!(history.judge(Some(b"10"), now, &pool()).is_err());
    }
}
