//! How long a source of wrong passwords waits for its next try.
//!
//! Pure: time is passed in. Who fails is kept by source, not by user name: else anybody could lock
//! out a user by guessing under that name. A right password does not clear a source: whoever has one
//! user's could go on guessing another's.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

/// Failures that cost nothing: a runner with an old password in one of its variables.
const FREE_FAILURES: u32 = 3;
/// The wait after the first failure that costs; it doubles with each.
const FIRST_WAIT: Duration = Duration::from_millis(250);
/// No wait is longer.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// A source is forgotten after so long without a failure.
const MEMORY: Duration = Duration::from_secs(600);
/// Sources remembered at most.
const SOURCES_MAX: usize = 16 * 1024;

/// Where an attempt comes from. One IPv6 customer has a /64, so that is one source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Source {
    /// A Unix socket or an unknown peer.
    Local,
    /// An IPv4 address.
    V4([u8; 4]),
    /// The first 64 bits of an IPv6 address.
    V6([u8; 8]),
}

impl Source {
    pub(super) fn of(address: Option<IpAddr>) -> Self {
        match address.map(|address| address.to_canonical()) {
            None => Self::Local,
            Some(IpAddr::V4(address)) => Self::V4(address.octets()),
            Some(IpAddr::V6(address)) => {
                let mut prefix = [0; 8];
                prefix.copy_from_slice(&address.octets()[..8]);
                Self::V6(prefix)
            }
        }
    }
}

struct Record {
    failures: u32,
    last: Duration,
}

/// The failures of all sources.
#[derive(Default)]
pub(super) struct Slowdown {
    records: HashMap<Source, Record>,
}

impl Slowdown {
    /// How long an attempt at `now` has to wait (zero: not at all). `now` counts from any origin.
    pub(super) fn wait(&self, source: Source, now: Duration) -> Duration {
        let Some(record) = self.records.get(&source) else {
            return Duration::ZERO;
        };
        (record.last + penalty(record.failures)).saturating_sub(now)
    }

    /// A wrong password came from `source`.
    pub(super) fn failed(&mut self, source: Source, now: Duration) {
        if self.records.len() >= SOURCES_MAX && !self.records.contains_key(&source) {
            self.forget(now);
        }
        let record = self.records.entry(source).or_insert(Record {
            failures: 0,
            last: now,
        });
        if now.saturating_sub(record.last) > MEMORY {
            record.failures = 0;
        }
        record.failures = record.failures.saturating_add(1);
        record.last = now;
    }

    /// Makes room: what is old goes, and if nothing is, whoever failed least.
    fn forget(&mut self, now: Duration) {
        self.records
            .retain(|_, record| now.saturating_sub(record.last) <= MEMORY);
        while self.records.len() >= SOURCES_MAX {
            let Some(least) = self.records.values().map(|record| record.failures).min() else {
                return;
            };
            self.records.retain(|_, record| record.failures > least);
        }
    }
}

fn penalty(failures: u32) -> Duration {
    let Some(costly) = failures.checked_sub(FREE_FAILURES + 1) else {
        return Duration::ZERO;
    };
    FIRST_WAIT
        .saturating_mul(1u32.checked_shl(costly).unwrap_or(u32::MAX))
        .min(WAIT_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Source = Source::V4([10, 0, 0, 1]);
    const THERE: Source = Source::V4([10, 0, 0, 2]);

    #[test]
    fn a_day_of_guessing_from_one_source_is_a_few_thousand_guesses() {
        let mut slowdown = Slowdown::default();
        let (mut now, mut guesses) = (Duration::ZERO, 0);
        while now < Duration::from_secs(86_400) {
            now += slowdown.wait(HERE, now) + Duration::from_millis(20);
            slowdown.failed(HERE, now);
            guesses += 1;
        }
        assert!(guesses < 3_000, "{guesses}");
        assert_eq!(slowdown.wait(THERE, now), Duration::ZERO);
    }

    #[test]
    fn a_few_mistakes_cost_nothing_and_are_forgotten() {
        let mut slowdown = Slowdown::default();
        for _ in 0..FREE_FAILURES {
            slowdown.failed(HERE, Duration::ZERO);
            assert_eq!(slowdown.wait(HERE, Duration::ZERO), Duration::ZERO);
        }
        slowdown.failed(HERE, Duration::ZERO);
        assert_eq!(slowdown.wait(HERE, Duration::ZERO), FIRST_WAIT);
        assert_eq!(slowdown.wait(HERE, FIRST_WAIT), Duration::ZERO);
        let later = MEMORY + Duration::from_secs(1);
        slowdown.failed(HERE, later);
        assert_eq!(slowdown.wait(HERE, later), Duration::ZERO);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut slowdown = Slowdown::default();
        for _ in 0..10 {
            slowdown.failed(HERE, Duration::ZERO);
        }
        for index in 0..2 * SOURCES_MAX as u32 {
            slowdown.failed(Source::V4(index.to_be_bytes()), Duration::from_secs(1));
        }
        assert!(slowdown.records.len() <= SOURCES_MAX);
        assert!(slowdown.wait(HERE, Duration::from_secs(1)) > Duration::ZERO);
    }

    #[test]
    fn one_ipv6_network_is_one_source() {
        let of = |text: &str| Source::of(Some(text.parse().unwrap()));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), HERE);
    }
}
