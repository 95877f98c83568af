//! What is remembered of each source of logins, and how long it waits for its next check.
//!
//! Pure: time is passed in. Failures are kept by source, not by user name: otherwise guesses under
//! a name would lock its user out. A right password does not clear a source: an attacker with one
//! account could go on guessing another.
//!
//! A failure is a *distinct* guess. A runner that repeats an old password is refused each time, and
//! counts once: it learns nothing new, and must not slow down the others behind the same address.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::networks::Source;

/// Failures that cost nothing: a runner with an old password in one of its variables.
const FREE_FAILURES: u32 = 3;
/// The wait after the first failure that costs; it doubles with each.
const FIRST_WAIT: Duration = Duration::from_millis(250);
/// No wait is longer.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// A source is forgotten after so long without an attempt.
const MEMORY: Duration = Duration::from_secs(600);
/// Sources remembered at most.
const SOURCES_MAX: usize = 16 * 1024;
/// Wrong guesses that are remembered of a source.
const GUESSES_MAX: usize = 8;
/// Users that are remembered to have logged in from a source.
const USERS_MAX: usize = 8;
/// Comparisons that a source under a penalty has in stock, for users that logged in from there
/// before.
const TOKENS_MAX: u32 = 4;
/// The time in which a spent one comes back. One that found a right password comes back at once.
const TOKEN_PERIOD: Duration = Duration::from_secs(1);
/// Attempts that were refused without a check are logged so often by source.
const LOG_PERIOD: Duration = Duration::from_secs(60);

/// The keyed digest of a user and a password.
pub(super) type Digest = [u8; 32];
/// The part of it that is kept of a wrong guess.
type Guess = [u8; 16];

struct Record {
    /// Distinct wrong guesses.
    failures: u32,
    /// When the last of them was made.
    failed_at: Duration,
    /// The last of them.
    guesses: VecDeque<Guess>,
    /// The stamps of users that logged in from there, the last one at the end.
    users: VecDeque<u64>,
    tokens: u32,
    /// From when on the next token is on its way.
    tokens_at: Duration,
    /// When its refusals were logged, and how many were not since.
    logged_at: Option<Duration>,
    unlogged: u64,
    used_at: Duration,
}

impl Record {
    fn new(now: Duration) -> Self {
        Self {
            failures: 0,
            failed_at: now,
            guesses: VecDeque::new(),
            users: VecDeque::new(),
            tokens: TOKENS_MAX,
            tokens_at: now,
            logged_at: None,
            unlogged: 0,
            used_at: now,
        }
    }
}

/// The records of all sources.
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
        (record.failed_at + penalty(record.failures)).saturating_sub(now)
    }

    /// Whether `source` was told before that this guess is wrong.
    pub(super) fn knows(&self, source: Source, digest: &Digest) -> bool {
        let record = self.records.get(&source);
        record.is_some_and(|record| record.guesses.contains(&guess(digest)))
    }

    /// `source` made a guess that is wrong, or that was compared and got no other answer (then
    /// without a digest).
    pub(super) fn failed(&mut self, source: Source, digest: Option<&Digest>, now: Duration) {
        let record = self.record(source, now);
        if now.saturating_sub(record.failed_at) > MEMORY {
            record.failures = 0;
        }
        if let Some(digest) = digest {
            let guess = guess(digest);
            if record.guesses.contains(&guess) {
                return;
            }
            push(&mut record.guesses, guess, GUESSES_MAX);
        }
        record.failures = record.failures.saturating_add(1);
        record.failed_at = now;
    }

    /// The user with this stamp logged in from `source`.
    pub(super) fn succeeded(&mut self, source: Source, stamp: u64, now: Duration) {
        let record = self.record(source, now);
        if !record.users.contains(&stamp) {
            push(&mut record.users, stamp, USERS_MAX);
        }
    }

    /// Whether a password of this user may be compared for `source` though it has to wait, since
    /// the user has logged in from there. Such comparisons are few a second: an attacker behind the
    /// same address may make them too.
    pub(super) fn take_token(&mut self, source: Source, stamp: u64, now: Duration) -> bool {
        let Some(record) = self.records.get_mut(&source) else {
            return false;
        };
        if !record.users.contains(&stamp) {
            return false;
        }
        while record.tokens < TOKENS_MAX && record.tokens_at + TOKEN_PERIOD <= now {
            record.tokens += 1;
            record.tokens_at += TOKEN_PERIOD;
        }
        if record.tokens == TOKENS_MAX {
            record.tokens_at = now;
        }
        let is_there = record.tokens > 0;
        record.tokens -= u32::from(is_there);
        is_there
    }

    /// The comparison for which a token was taken found a right password.
    pub(super) fn give_token(&mut self, source: Source) {
        if let Some(record) = self.records.get_mut(&source) {
            record.tokens = (record.tokens + 1).min(TOKENS_MAX);
        }
    }

    /// Counts an attempt that was refused without a check. Returns how many were since the last
    /// line of the log, if it is time for one.
    pub(super) fn refused(&mut self, source: Source, now: Duration) -> Option<u64> {
        let record = self.record(source, now);
        record.unlogged += 1;
        let logged_at = record.logged_at;
        if logged_at.is_some_and(|logged_at| now.saturating_sub(logged_at) < LOG_PERIOD) {
            return None;
        }
        record.logged_at = Some(now);
        Some(std::mem::take(&mut record.unlogged))
    }

    fn record(&mut self, source: Source, now: Duration) -> &mut Record {
        if self.records.len() >= SOURCES_MAX && !self.records.contains_key(&source) {
            self.forget(now);
        }
        let record = self.records.entry(source);
        let record = record.or_insert_with(|| Record::new(now));
        record.used_at = now;
        record
    }

    /// Makes room: what is old goes, and if nothing is, the sources with the fewest failures.
    fn forget(&mut self, now: Duration) {
        self.records
            .retain(|_, record| now.saturating_sub(record.used_at) <= MEMORY);
        while self.records.len() >= SOURCES_MAX {
            let Some(least) = self.records.values().map(|record| record.failures).min() else {
                return;
            };
            self.records.retain(|_, record| record.failures > least);
        }
    }
}

fn guess(digest: &Digest) -> Guess {
    let mut guess = Guess::default();
    guess.copy_from_slice(&digest[..size_of::<Guess>()]);
    guess
}

fn push<T>(kept: &mut VecDeque<T>, new: T, len_max: usize) {
    if kept.len() >= len_max {
        kept.pop_front();
    }
    kept.push_back(new);
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
    const USER: u64 = 7;

    fn digest(number: u32) -> Digest {
        let mut digest = [0; 32];
        digest[..4].copy_from_slice(&number.to_be_bytes());
        digest
    }

    #[test]
    fn a_day_of_guessing_from_one_source_is_a_few_thousand_guesses() {
        let mut slowdown = Slowdown::default();
        let (mut now, mut guesses) = (Duration::ZERO, 0);
        while now < Duration::from_secs(86_400) {
            now += slowdown.wait(HERE, now) + Duration::from_millis(20);
            slowdown.failed(HERE, Some(&digest(guesses)), now);
            guesses += 1;
        }
        assert!(guesses < 3_000, "{guesses}");
        assert_eq!(slowdown.wait(THERE, now), Duration::ZERO);
    }

    #[test]
    fn a_few_mistakes_cost_nothing_and_are_forgotten() {
        let mut slowdown = Slowdown::default();
        for _ in 0..FREE_FAILURES {
            slowdown.failed(HERE, None, Duration::ZERO);
            assert_eq!(slowdown.wait(HERE, Duration::ZERO), Duration::ZERO);
        }
        slowdown.failed(HERE, None, Duration::ZERO);
        assert_eq!(slowdown.wait(HERE, Duration::ZERO), FIRST_WAIT);
        assert_eq!(slowdown.wait(HERE, FIRST_WAIT), Duration::ZERO);
        let later = MEMORY + Duration::from_secs(1);
        slowdown.failed(HERE, None, later);
        assert_eq!(slowdown.wait(HERE, later), Duration::ZERO);
    }

    #[test]
    fn a_guess_that_is_repeated_counts_once() {
        let mut slowdown = Slowdown::default();
        for number in [1, 2, 1, 2, 1, 2, 1, 2] {
            slowdown.failed(HERE, Some(&digest(number)), Duration::ZERO);
        }
        assert_eq!(slowdown.wait(HERE, Duration::ZERO), Duration::ZERO);
        assert!(slowdown.knows(HERE, &digest(1)) && slowdown.knows(HERE, &digest(2)));
        assert!(!slowdown.knows(HERE, &digest(3)) && !slowdown.knows(THERE, &digest(1)));
        for number in 3..100 {
            slowdown.failed(HERE, Some(&digest(number)), Duration::ZERO);
        }
        assert_eq!(slowdown.wait(HERE, Duration::ZERO), WAIT_MAX);
        assert_eq!(slowdown.records[&HERE].guesses.len(), GUESSES_MAX);
    }

    #[test]
    fn tokens_are_for_users_that_logged_in_from_there_and_come_back_slowly() {
        let mut slowdown = Slowdown::default();
        assert!(!slowdown.take_token(HERE, USER, Duration::ZERO));
        slowdown.succeeded(HERE, USER, Duration::ZERO);
        assert!(!slowdown.take_token(HERE, USER + 1, Duration::ZERO));
        assert!(!slowdown.take_token(THERE, USER, Duration::ZERO));
        let mut taken = 0;
        for second in 0..100 {
            let now = Duration::from_secs(second);
            taken += (0..50)
                .filter(|_| slowdown.take_token(HERE, USER, now))
                .count();
        }
        assert_eq!(taken, TOKENS_MAX as usize + 99);
        // Right ones cost nothing.
        let now = Duration::from_secs(200);
        for _ in 0..1000 {
            assert!(slowdown.take_token(HERE, USER, now));
            slowdown.give_token(HERE);
        }
        // After a long pause there are no more than there may be.
        let now = Duration::from_secs(500);
        let taken = (0..50).filter(|_| slowdown.take_token(HERE, USER, now));
        assert_eq!(taken.count(), TOKENS_MAX as usize);
    }

    #[test]
    fn refusals_are_logged_once_a_minute_with_their_number() {
        let mut slowdown = Slowdown::default();
        assert_eq!(slowdown.refused(HERE, Duration::ZERO), Some(1));
        assert_eq!(slowdown.refused(HERE, Duration::from_secs(1)), None);
        assert_eq!(slowdown.refused(HERE, Duration::from_secs(59)), None);
        assert_eq!(slowdown.refused(THERE, Duration::from_secs(59)), Some(1));
        assert_eq!(slowdown.refused(HERE, LOG_PERIOD), Some(3));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut slowdown = Slowdown::default();
        for _ in 0..10 {
            slowdown.failed(HERE, None, Duration::ZERO);
        }
        for index in 0..2 * SOURCES_MAX as u32 {
            let source = Source::V4(index.to_be_bytes());
            slowdown.failed(source, None, Duration::from_secs(1));
        }
        assert!(slowdown.records.len() <= SOURCES_MAX);
        assert!(slowdown.wait(HERE, Duration::from_secs(1)) > Duration::ZERO);
        for stamp in 0..100 {
            slowdown.succeeded(HERE, stamp, Duration::ZERO);
        }
        assert_eq!(slowdown.records[&HERE].users.len(), USERS_MAX);
    }
}
