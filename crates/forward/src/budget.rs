//! How many requests may be made beyond those that clients made, for hedges and for retries: pure.
//!
//! The requests of clients earn extra ones, up to a bound: whatever is slow and however long, extra
//! requests are a small share of all, and a burst of them ends.

use parking_lot::Mutex;

/// The extra requests that all reactors may make: one of so many that were made lately, and a
/// burst, which there is from the start.
#[derive(Debug)]
pub struct Budget {
    /// Requests of clients that earn an extra one.
    price: u64,
    saved_max: u64,
    left: Mutex<Left>,
}

#[derive(Debug)]
struct Left {
    /// Requests of clients that are not used up.
    saved: u64,
    /// The requests that were made when that was so.
    made: u64,
}

impl Budget {
    /// One extra request for `price` of clients, and a burst of `burst`.
    #[must_use]
    pub fn new(price: u64, burst: u64) -> Self {
        let saved_max = price * burst;
        Self {
            price,
            saved_max,
            left: Mutex::new(Left {
                saved: saved_max,
                made: 0,
            }),
        }
    }

    /// Whether an extra request may be made; it is paid for then. `made` is how many requests of
    /// clients were made in all. What they earn is found here, so that it costs them nothing.
    pub fn spend(&self, made: u64) -> bool {
        let mut left = self.left.lock();
        // Concurrent callers have counted one before the other, or not.
        let earned = made.saturating_sub(left.made);
        left.made = left.made.max(made);
        left.saved = left.saved.saturating_add(earned).min(self.saved_max);
        match left.saved.checked_sub(self.price) {
            Some(rest) => {
                left.saved = rest;
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
        fn extra_requests_are_a_share_of_all_but_for_a_burst(
            price in 2_u64..30,
            steps in vec((0_u64..5000, 0_u64..3000), 1..60),
        ) {
            let budget = Budget::new(price, 1024);
            let (mut made, mut extra) = (0, 0);
            for (more, wanted) in steps {
                made += more;
                let got = (0..wanted).filter(|_| budget.spend(made)).count() as u64;
                extra += got;
                prop_assert!(extra <= 1024 + made / price, "{} of {}", extra, made);
                // And what was earned lately can be spent.
                prop_assert!(got >= wanted.min(more.min(1024 * price) / price));
            }
        }
    }
}
