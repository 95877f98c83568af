//! The clock from which versions come (R2).

use std::time::Duration;

use crate::{Hlc, Now};

/// A hybrid logical clock that never returns a value twice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Clock {
    last: Hlc,
    /// The clock follows the wall clock up to here and then only counts (ADR 0004).
    wall_ms_max: u64,
}

impl Clock {
    /// A clock that returns values after `last`.
    pub(crate) fn new(last: Hlc) -> Self {
        Self {
            last,
            wall_ms_max: 0,
        }
    }

    /// The last value that this clock returned or observed.
    pub(crate) fn last(&self) -> Hlc {
        self.last
    }

    /// The next value.
    pub(crate) fn tick(&mut self, wall_ms: u64) -> Hlc {
        let wall = Hlc::from_ms(wall_ms.min(self.wall_ms_max));
        self.last = self.last.next().max(wall);
        self.last
    }

    /// Moves past a value of another member.
    pub(crate) fn observe(&mut self, other: Hlc) {
        self.last = self.last.max(other);
    }

    /// Lets the clock follow the wall clock until a lease ends. A member that writes after its
    /// lease then has lower clocks than its successor.
    pub(crate) fn allow_until(&mut self, wall_ms: u64) {
        self.wall_ms_max = self.wall_ms_max.max(wall_ms);
    }

    /// R2: moves past every version that an earlier primary can have assigned. `heard` has what
    /// each other member told last, and when.
    pub(crate) fn pass(
        &mut self,
        now: Now,
        error_ms_max: u64,
        heard: impl Iterator<Item = (Hlc, Duration)>,
    ) {
        let mut highest = self.last.max(Hlc::from_ms(now.wall_ms));
        for (clock, at) in heard {
            let since_ms = now.elapsed.saturating_sub(at).as_millis();
            highest = highest.max(clock.plus_ms(u64::try_from(since_ms).unwrap_or(u64::MAX)));
        }
        self.last = highest.plus_ms(error_ms_max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_only_count_on_after_the_lease() {
        let mut clock = Clock::new(Hlc(0));
        clock.allow_until(10);
        assert_eq!(clock.tick(7), Hlc::from_ms(7));
        assert_eq!(clock.tick(7), Hlc::from_ms(7).next());
        assert_eq!(clock.tick(50), Hlc::from_ms(10));
        assert_eq!(clock.tick(60), Hlc::from_ms(10).next());
    }

    #[test]
    fn a_new_primary_passes_what_the_failed_one_can_have_assigned() {
        let mut clock = Clock::new(Hlc(0));
        let now = Now {
            elapsed: Duration::from_millis(2_000),
            wall_ms: 100,
        };
        let heard = (Hlc::from_ms(5_000), Duration::from_millis(500));
        clock.pass(now, 1_000, [heard].into_iter());
        assert_eq!(clock.last(), Hlc::from_ms(7_500));
    }
}
