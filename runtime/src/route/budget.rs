//! How many requests may be made beyond those that clients made: pure.
//!
//! Each read earns a part of an extra request, up to a bound: whatever is slow and however long, extra
//! requests are a small share of all, and a burst of them ends.

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
    /// As much as can be saved: who has just started is not slower to help.
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

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
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
