//! How many requests may be made beyond those that clients made, for hedges and for retries: pure.
//!
//! Each read earns a part of an extra request, up to a bound: whatever is slow and however long,
//! extra requests are a small share of all, and a burst of them ends.

use parking_lot::Mutex;

/// What one read earns, in thousandths of an extra request: 5 of 100.
const EARNED: u32 = 50;

/// What one extra request costs, in the same unit.
const COST: u32 = 1000;

/// Extra requests that may be saved up.
const SAVED_MAX: u32 = 32 * COST;

/// What there is to spend.
#[derive(Clone, Debug)]
pub struct Budget(u32);

impl Default for Budget {
    /// As much as can be saved: a process that has just started is not slower to help.
    fn default() -> Self {
        Self(SAVED_MAX)
    }
}

impl Budget {
    /// A read was made that another one might help.
    #[inline]
    pub fn earn(&mut self) {
        self.0 = self.0.saturating_add(EARNED).min(SAVED_MAX);
    }

    /// Whether an extra request may be made; it is paid for then.
    pub fn spend(&mut self) -> bool {
        match self.0.checked_sub(COST) {
            Some(left) => {
                self.0 = left;
                true
            }
            None => false,
        }
    }
}

/// How many requests may be sent once more that were sent already, by all reactors: one of ten that
/// were made lately, and a burst. So what is under way at a member when it ends is tried elsewhere,
/// but where all are slow, or end their connections, again and again, load grows by a tenth and not
/// twofold. What was never sent costs nothing.
#[derive(Debug)]
pub struct Retries {
    tenths_max: u64,
    left: Mutex<Left>,
}

#[derive(Debug)]
struct Left {
    /// In tenths of a request.
    tenths: u64,
    /// The requests that were made when that was so.
    made: u64,
}

impl Default for Retries {
    /// With a burst of as many as are under way on one connection at most.
    fn default() -> Self {
        Self::new(8192)
    }
}

impl Retries {
    /// With a burst of that many, which there is from the start.
    #[must_use]
    pub fn new(burst: u32) -> Self {
        let tenths_max = 10 * u64::from(burst);
        Self {
            tenths_max,
            left: Mutex::new(Left {
                tenths: tenths_max,
                made: 0,
            }),
        }
    }

    /// Whether a request may be sent once more; it is paid for then. `made` is how many were made
    /// in all, retries not counted: what they earn is found here, so that it costs them nothing.
    pub fn spend(&self, made: u64) -> bool {
        let mut left = self.left.lock();
        // Concurrent callers have counted one before the other, or not.
        let earned = made.saturating_sub(left.made);
        left.made = left.made.max(made);
        left.tenths = left.tenths.saturating_add(earned).min(self.tenths_max);
        match left.tenths.checked_sub(10) {
            Some(rest) => {
                left.tenths = rest;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn retries_are_a_tenth_of_all_requests_but_for_a_burst(
            steps in vec((0_u64..5000, 0_u32..3000), 1..60),
        ) {
            let retries = Retries::new(1024);
            let (mut made, mut retried) = (0_u64, 0_u64);
            for (more, wanted) in steps {
                made += more;
                let got = (0..wanted).filter(|_| retries.spend(made)).count() as u64;
                retried += got;
                prop_assert!(retried <= 1024 + made / 10, "{} of {}", retried, made);
                prop_assert!(got >= u64::from(wanted).min(more.min(10_240) / 10));
            }
        }

        #[test]
        fn extra_requests_are_a_twentieth_of_all_but_for_a_burst(
            steps in vec((0_u32..200, 0_u32..200), 1..100),
        ) {
            let mut budget = Budget::default();
            let (mut reads, mut extra) = (0_u32, 0_u32);
            for (more, wanted) in steps {
                (0..more).for_each(|_| budget.earn());
                reads += more;
                let got = (0..wanted).filter(|_| budget.spend()).count() as u32;
                extra += got;
                prop_assert!(extra <= 32 + reads / 20, "{} of {}", extra, reads);
                // And what was earned lately can be spent.
                prop_assert!(got >= wanted.min(more.min(640) / 20));
            }
        }
    }
}
