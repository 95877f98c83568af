//! When to stop asking a member or a bucket that does not answer, and when to try again.
//!
//! Pure: it reads no clock and draws no numbers. Closed, all requests pass. After a number of
//! failures in a row it opens: no request passes until a wait is over, which grows with every
//! failure ([`Backoff`]). Then it is half open: one request passes. Its success closes the breaker,
//! its failure opens it again.

use std::ops::Add;
use std::time::{Duration, Instant};

use crate::backoff::Backoff;
use crate::random::SplitMix64;

/// How a [`Breaker`] decides.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Failures in a row that open it; 0 counts as 1.
    pub failures_max: u32,
    /// How long it stays open: the first time up to the base, each time up to twice as long, at
    /// least half of the bound.
    pub wait: Backoff,
    /// Half open, another may ask after so long: the first may have given up without a word.
    pub probe_timeout: Duration,
}

/// Whether the other side may be asked. `T` is the time of a clock that never goes back.
#[derive(Clone, Debug)]
pub struct Breaker<T = Instant> {
    options: Options,
    state: State<T>,
    /// Failures since the last success.
    failures: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State<T> {
    Closed,
    Open { until: T },
    HalfOpen { asked: T },
}

/// The state of a [`Breaker`], for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Position {
    /// All may ask.
    Closed,
    /// No request passes.
    Open,
    /// One asks.
    HalfOpen,
}

impl<T: Copy + PartialOrd + Add<Duration, Output = T>> Breaker<T> {
    /// A closed one.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            options,
            state: State::Closed,
            failures: 0,
        }
    }

    /// Whether a request may be sent at `now`. Where it may, its end has to be told.
    #[inline]
    pub fn admit(&mut self, now: T) -> bool {
        match self.state {
            State::Closed => true,
            State::Open { until } if now < until => false,
            State::HalfOpen { asked } if now < asked + self.options.probe_timeout => false,
            State::Open { .. } | State::HalfOpen { .. } => {
                self.state = State::HalfOpen { asked: now };
                true
            }
        }
    }

    /// The other side answered.
    #[inline]
    pub fn succeed(&mut self) {
        self.failures = 0;
        self.state = State::Closed;
    }

    /// The other side could not be reached, or did not answer in time. Failures that come in
    /// while it is open are those of requests sent before, and change nothing.
    pub fn fail(&mut self, now: T, random: &mut SplitMix64) {
        let failures_max = self.options.failures_max.max(1);
        match self.state {
            State::Open { .. } => return,
            State::Closed | State::HalfOpen { .. } => {
                self.failures = self.failures.saturating_add(1);
            }
        }
        let is_probe = matches!(self.state, State::HalfOpen { .. });
        if is_probe || self.failures >= failures_max {
            let attempt = self.failures.saturating_sub(failures_max);
            self.state = State::Open {
                until: now + self.wait(attempt, random),
            };
        }
    }

    /// Between half of the bound and the bound: full jitter might not wait at all.
    fn wait(&self, attempt: u32, random: &mut SplitMix64) -> Duration {
        let half = self.options.wait.bound(attempt) / 2;
        let half_ns = u64::try_from(half.as_nanos()).unwrap_or(u64::MAX);
        half + Duration::from_nanos(random.below(half_ns.saturating_add(1)))
    }

    /// The state.
    #[must_use]
    pub fn position(&self) -> Position {
        match self.state {
            State::Closed => Position::Closed,
            State::Open { .. } => Position::Open,
            State::HalfOpen { .. } => Position::HalfOpen,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const OPTIONS: Options = Options {
        failures_max: 3,
        wait: Backoff {
            base: Duration::from_millis(100),
            cap: Duration::from_secs(2),
            attempts_max: u32::MAX,
        },
        probe_timeout: Duration::from_secs(1),
    };

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn opens_after_failures_in_a_row_and_closes_with_a_probe() {
        let (start, mut random) = (Instant::now(), SplitMix64::new(1));
        let mut breaker = Breaker::new(OPTIONS);
        for _ in 0..2 {
            breaker.fail(start, &mut random);
        }
        breaker.succeed();
        for _ in 0..2 {
            breaker.fail(start, &mut random);
            assert!(breaker.admit(start));
        }
        breaker.fail(start, &mut random);
        assert!(!breaker.admit(start) && !breaker.admit(start + ms(49)));
        assert!(breaker.admit(start + ms(101)), "one may try");
        assert!(!breaker.admit(start + ms(101)), "and no other");
        breaker.succeed();
        assert_eq!(breaker.position(), Position::Closed);
        assert!(breaker.admit(start + ms(101)));
    }

    #[test]
    fn a_probe_that_says_nothing_does_not_close_the_door_for_ever() {
        let (start, mut random) = (Instant::now(), SplitMix64::new(1));
        let mut breaker = Breaker::new(OPTIONS);
        (0..3).for_each(|_| breaker.fail(start, &mut random));
        assert!(breaker.admit(start + ms(200)));
        assert!(!breaker.admit(start + ms(1199)));
        assert!(breaker.admit(start + ms(1200)));
    }

    #[test]
    fn waits_grow_to_the_cap() {
        let (mut now, mut random) = (Instant::now(), SplitMix64::new(1));
        let mut breaker = Breaker::new(OPTIONS);
        (0..3).for_each(|_| breaker.fail(now, &mut random));
        for bound in [100, 200, 400, 800, 1600, 2000, 2000] {
            assert!(!breaker.admit(now + ms(bound / 2 - 1)), "{bound}");
            now += ms(bound);
            assert!(breaker.admit(now), "{bound}");
            breaker.fail(now, &mut random);
        }
    }

    proptest! {
        /// A member that is away from time to time, asked every few milliseconds.
        #[test]
        fn a_dead_member_is_asked_seldom_and_a_live_one_again_soon(
            seed: u64, phases in vec((any::<bool>(), 1_u64..5000), 1..12),
        ) {
            let mut random = SplitMix64::new(seed);
            let mut breaker = Breaker::new(OPTIONS);
            let mut now = Instant::now();
            for (is_up, length_ms) in phases {
                let end = now + ms(length_ms);
                let start = now;
                let mut asked = 0_u64;
                while now < end {
                    if breaker.admit(now) {
                        asked += 1;
                        if is_up {
                            breaker.succeed();
                        } else {
                            breaker.fail(now, &mut random);
                        }
                    }
                    // Up again: within the longest wait all may ask.
                    if is_up && now > start + OPTIONS.wait.cap {
                        prop_assert_eq!(breaker.position(), Position::Closed);
                    }
                    now += ms(1 + random.below(5));
                }
                if !is_up {
                    prop_assert!(asked <= 4 + length_ms / 50, "{} in {} ms", asked, length_ms);
                }
            }
        }
    }
}
