//! How long the slow ones of a member's replies take: pure.
//!
//! A moving estimate of the 95th percentile. Each sample above it moves it up by a share of itself,
//! each one below it down by a nineteenth of that share, so it rests where one of twenty samples is
//! above. It needs one number, and forgets what was long ago.

/// One of so many samples is above the estimate.
const ONE_OF: u64 = 20;

/// A sample above it moves the estimate up by one part of so many.
const STEP: u64 = 16;

/// The estimate is not below this many nanoseconds, so that the steps are not rounded away.
const LEAST_NS: u64 = 10_000;

/// The estimate after one more sample; 0 is none yet. Nanoseconds.
#[inline]
#[must_use]
pub(super) fn next(estimate_ns: u64, sample_ns: u64) -> u64 {
    let next = match estimate_ns {
        0 => sample_ns,
        estimate if sample_ns > estimate => estimate.saturating_add(estimate / STEP),
        estimate => estimate - estimate / (STEP * (ONE_OF - 1)),
    };
    next.max(LEAST_NS)
}

#[cfg(test)]
mod tests {
    use fonn_base::random::SplitMix64;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever the samples are like, about one of twenty is above the estimate.
        #[test]
        fn one_of_twenty_is_above(seed: u64, base in 20_000_u64..5_000_000, spread in 1_u64..8) {
            let mut random = SplitMix64::new(seed);
            // A long tail: products of uniform numbers.
            let mut sample = || (0..spread).fold(base, |it, _| it + it * random.below(1000) / 1000);
            let mut estimate = sample();
            for _ in 0..4000 {
                estimate = next(estimate, sample());
            }
            let mut above = 0;
            for _ in 0..20_000 {
                let sample = sample();
                above += u32::from(sample > estimate);
                estimate = next(estimate, sample);
            }
            prop_assert!((600..1600).contains(&above), "{} of 20000", above);
        }

        #[test]
        fn it_follows_what_changes(from in 10_000_u64..1_000_000_000, to in 10_000_u64..1_000_000_000) {
            let mut estimate = from;
            for _ in 0..5000 {
                estimate = next(estimate, to);
            }
            let range = to - to / 4..=to + to / 4 + LEAST_NS;
            prop_assert!(range.contains(&estimate), "{} for {}", estimate, to);
        }
    }

    #[test]
    fn the_first_sample_is_believed() {
        assert_eq!(next(0, 3_000_000), 3_000_000);
        assert_eq!(next(0, 1), LEAST_NS);
    }
}
