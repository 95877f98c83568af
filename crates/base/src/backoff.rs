//! How long to wait before trying again: exponential, with full jitter.
//!
//! Pure: it neither sleeps nor reads a clock, and randomness is passed in. Full jitter (the wait is
//! uniform between zero and the exponential bound) spreads clients that failed together best, see
//! "Exponential Backoff And Jitter", AWS Architecture Blog, 2015.

use std::time::Duration;

use crate::random::SplitMix64;

/// The shape of the waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Upper bound of the first wait; it doubles with each attempt.
    pub base: Duration,
    /// No wait is longer.
    pub cap: Duration,
    /// How many waits there are before giving up.
    pub attempts_max: u32,
}

impl Backoff {
    /// The longest wait after `attempt` earlier failures (0 for the first failure).
    #[must_use]
    pub fn bound(&self, attempt: u32) -> Duration {
        let factor = 1u32.checked_shl(attempt).unwrap_or(u32::MAX);
        self.base.saturating_mul(factor).min(self.cap)
    }

    /// The wait after `attempt` earlier failures, uniform from zero to
    /// [`Backoff::bound`]; `None` when it is time to give up.
    #[must_use]
    pub fn delay(&self, attempt: u32, random: &mut SplitMix64) -> Option<Duration> {
        if attempt >= self.attempts_max {
            return None;
        }
        let bound_ns = u64::try_from(self.bound(attempt).as_nanos()).unwrap_or(u64::MAX);
        Some(Duration::from_nanos(
            random.below(bound_ns.saturating_add(1)),
        ))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BACKOFF: Backoff = Backoff {
        base: Duration::from_millis(10),
        cap: Duration::from_secs(1),
        attempts_max: 12,
    };

    #[test]
    fn bound_doubles_up_to_the_cap() {
        let bounds: Vec<u128> = (0..9)
            .map(|attempt| BACKOFF.bound(attempt).as_millis())
            .collect();
        assert_eq!(bounds, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        assert_eq!(BACKOFF.bound(u32::MAX), Duration::from_secs(1));
    }

    #[test]
    fn gives_up_after_the_attempts() {
        let mut random = SplitMix64::new(3);
        let mut is_over = |attempt| BACKOFF.delay(attempt, &mut random).is_none();
        assert!(!is_over(0) && !is_over(11));
        assert!(is_over(12) && is_over(u32::MAX));
    }

    #[test]
    fn waits_are_spread_over_the_whole_range() {
        let mut random = SplitMix64::new(9);
        let mut quarters = [0u32; 4];
        for _ in 0..4000 {
            let delay = BACKOFF.delay(3, &mut random).unwrap();
            quarters[(delay.as_nanos() * 4 / 80_000_001) as usize] += 1;
        }
        assert!(
            quarters.iter().all(|&count| (850..1150).contains(&count)),
            "{quarters:?}"
        );
    }

    proptest! {
        #[test]
        fn never_longer_than_the_bound(
            base_ms in 0u64..u64::MAX / 2_000_000, cap_ms: u64, attempt: u32, seed: u64,
        ) {
            let backoff = Backoff {
                base: Duration::from_millis(base_ms),
                cap: Duration::from_millis(cap_ms),
                attempts_max: u32::MAX,
            };
            if let Some(delay) = backoff.delay(attempt, &mut SplitMix64::new(seed)) {
                prop_assert!(delay <= backoff.bound(attempt));
                prop_assert!(delay <= backoff.cap);
            }
        }
    }
}
