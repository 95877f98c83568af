//! Holding the process, not just the entries, within the RAM budget.
//!
//! The RAM tier counts what its entries take from the allocator. What the allocator loses between
//! them when sizes change, and what other parts of the process hold for a while, it cannot see. So
//! the resident memory of the process is looked at now and then, and what is too much is taken from
//! the entries' budget until it is gone.

/// Beyond the budget, a process may be this share of it larger…
const SHARE_OVER: usize = 15;

/// …and this many bytes: the program itself, its threads and buffers.
const BYTES_OVER: usize = 64 << 20;

/// The resident memory up to which large requests are received without a look at the size of the
/// process between them: what is allowed, less what reading from disk and compressing may take
/// meanwhile.
#[must_use]
pub fn receive_limit(budget: usize) -> usize {
    budget + budget / 100 * SHARE_OVER + BYTES_OVER / 2
}

/// The resident memory above which something is done about it: a little less than what is allowed,
/// so that it is not passed between two looks.
#[must_use]
pub fn target(budget: usize) -> usize {
    budget + budget / 100 * (SHARE_OVER - 5) + BYTES_OVER / 2
}

/// What to withhold from the entries, given the resident memory now and what is withheld already.
///
/// Grows by the whole excess at once, since memory is short, and shrinks by a quarter of the slack,
/// so that it does not swing. At most half of the budget is withheld: a process whose memory is
/// elsewhere must not lose its cache over it.
#[must_use]
pub fn withhold(resident: usize, budget: usize, withheld: usize) -> usize {
    let target = target(budget);
    let next = if resident > target {
        withheld.saturating_add(resident - target)
    } else {
        withheld.saturating_sub((target - resident) / 4)
    };
    next.min(budget / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: usize = 512 << 20;

    #[test]
    fn nothing_is_withheld_while_the_process_is_small_enough() {
        assert_eq!(withhold(0, BUDGET, 0), 0);
        assert_eq!(withhold(BUDGET, BUDGET, 0), 0);
    }

    #[test]
    fn an_excess_is_withheld_and_given_back_when_it_is_gone() {
        let resident = BUDGET + (200 << 20);
        let withheld = withhold(resident, BUDGET, 0);
        assert!(withheld > 110 << 20 && withheld < 125 << 20, "{withheld}");
        let mut left = withheld;
        for _ in 0..30 {
            left = withhold(BUDGET - withheld, BUDGET, left);
        }
        assert_eq!(left, 0);
    }

    #[test]
    fn at_most_half_of_the_budget_is_withheld() {
        assert_eq!(withhold(10 * BUDGET, BUDGET, 0), BUDGET / 2);
    }

    #[test]
    fn the_allowance_is_not_passed_in_a_process_that_follows_at_once() {
        // A process whose memory is half as much again as its entries.
        let mut withheld = 0;
        for _ in 0..20 {
            let resident = (BUDGET - withheld) / 2 * 3 + (30 << 20);
            withheld = withhold(resident, BUDGET, withheld);
        }
        let resident = (BUDGET - withheld) / 2 * 3 + (30 << 20);
        assert!(resident <= BUDGET / 100 * 115 + BYTES_OVER, "{resident}");
    }
}
