//! A circuit breaker: after failures in a row, calls are refused at once for a while.
//!
//! Pure: time is an argument, in milliseconds of a clock that never goes back.

/// Failures in a row that open it.
const FAILURES_MAX: u32 = 5;
/// How long it stays open the first time; each failed probe doubles it.
const OPEN_MS_MIN: u64 = 1_000;
/// The longest it stays open.
const OPEN_MS_MAX: u64 = 30_000;

/// What the breaker does with calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// Calls pass.
    Closed,
    /// Calls are refused.
    Open,
    /// One call is trying whether it works again.
    Probing,
}

/// A breaker that begins closed.
#[derive(Debug, Default)]
pub(crate) struct Breaker {
    failures: u32,
    /// While it is not closed: until when it refuses, and how long that was.
    open: Option<Open>,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    until_ms: u64,
    for_ms: u64,
    is_probing: bool,
}

impl Breaker {
    /// Whether a call may be made. Its result must be reported.
    pub(crate) fn admit(&mut self, now_ms: u64) -> bool {
        let Some(open) = &mut self.open else {
            return true;
        };
        if now_ms < open.until_ms {
            return false;
        }
        // A probe that never reports would keep it shut: after the same time another may try.
        open.is_probing = true;
        open.until_ms = now_ms + open.for_ms;
        true
    }

    /// A call worked.
    pub(crate) fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// A call failed for reasons that would fail others too.
    pub(crate) fn failed(&mut self, now_ms: u64) {
        self.failures = self.failures.saturating_add(1);
        match &mut self.open {
            // Calls that were on their way when it opened say nothing new.
            Some(open) if !open.is_probing => {}
            Some(open) => {
                let for_ms = (open.for_ms * 2).min(OPEN_MS_MAX);
                *open = Open {
                    until_ms: now_ms + for_ms,
                    for_ms,
                    is_probing: false,
                };
            }
            None if self.failures >= FAILURES_MAX => {
                self.open = Some(Open {
                    until_ms: now_ms + OPEN_MS_MIN,
                    for_ms: OPEN_MS_MIN,
                    is_probing: false,
                });
            }
            None => {}
        }
    }

    /// What it does with calls now.
    pub(crate) fn state(&self) -> BreakerState {
        match self.open {
            None => BreakerState::Closed,
            Some(open) if open.is_probing => BreakerState::Probing,
            Some(_) => BreakerState::Open,
        }
    }

    /// How long a call is refused from now on.
    #[cfg(test)]
    fn refuses_for(&self, now_ms: u64) -> std::time::Duration {
        let until_ms = self.open.map_or(0, |open| open.until_ms);
        std::time::Duration::from_millis(until_ms.saturating_sub(now_ms))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn opened() -> Breaker {
        let mut breaker = Breaker::default();
        for _ in 0..FAILURES_MAX {
            assert!(breaker.admit(0));
            breaker.failed(0);
        }
        breaker
    }

    #[test]
    fn only_failures_in_a_row_open_it() {
        let mut breaker = Breaker::default();
        for _ in 0..100 {
            for _ in 1..FAILURES_MAX {
                breaker.failed(0);
            }
            breaker.succeeded();
        }
        assert_eq!(breaker.state(), BreakerState::Closed);
        let mut breaker = opened();
        assert_eq!(breaker.state(), BreakerState::Open);
        assert!(!breaker.admit(OPEN_MS_MIN - 1));
        assert_eq!(breaker.refuses_for(400), Duration::from_millis(600));
    }

    #[test]
    fn one_probe_at_a_time_decides() {
        let mut breaker = opened();
        assert!(breaker.admit(1_000));
        assert_eq!(breaker.state(), BreakerState::Probing);
        assert!(!breaker.admit(1_000));
        breaker.failed(1_500);
        // Twice as long now.
        assert!(!breaker.admit(3_499));
        assert!(breaker.admit(3_500));
        breaker.succeeded();
        assert!(breaker.admit(3_500) && breaker.admit(3_500));
    }

    #[test]
    fn a_probe_that_is_never_reported_does_not_shut_it_for_ever() {
        let mut breaker = opened();
        assert!(breaker.admit(1_000));
        assert!(!breaker.admit(1_999));
        assert!(breaker.admit(2_000));
    }

    #[test]
    fn waits_are_bounded() {
        let mut breaker = opened();
        let mut now_ms = 0;
        for _ in 0..20 {
            now_ms += breaker.refuses_for(now_ms).as_millis() as u64;
            assert!(breaker.admit(now_ms));
            breaker.failed(now_ms);
        }
        assert_eq!(
            breaker.refuses_for(now_ms),
            Duration::from_millis(OPEN_MS_MAX)
        );
    }
}
