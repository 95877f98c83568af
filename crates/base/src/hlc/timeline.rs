//! When versions were given that are ahead of the wall clock: pure.
//!
//! Versions are compared, and are near the time at which they were given. A version may be ahead of
//! the wall clock, because another member's is, or because this member stands in for a failed one.
//! Then it does not tell that time. A version above the one of a mark was given after it. Marks are
//! kept while versions are ahead, and thinned out when there are many. The time that they tell may
//! be a little early, never late.

use super::wall_ms;

/// Marks at most; an hour ahead of the clock keeps one every second or two.
const MARKS_MAX: usize = 4096;

/// How far apart marks are at least once some had to go; doubles each time.
const SPACING_MS: u64 = 100;

/// How far the versions were at one time.
#[derive(Clone, Copy, Debug)]
struct Mark {
    version: u64,
    monotonic_ms: u64,
    is_ahead: bool,
}

/// The marks, by version and time.
#[derive(Debug)]
pub(super) struct Timeline {
    marks: Vec<Mark>,
    /// Marks that come sooner are left out, so that all are equally far apart.
    spacing_ms: u64,
}

impl Timeline {
    /// The timeline of a clock that begins above `version` now.
    pub(super) fn new(version: u64, wall: u64, monotonic_ms: u64) -> Self {
        let first = Mark {
            version,
            monotonic_ms,
            is_ahead: wall_ms(version) > wall,
        };
        Self {
            marks: vec![first],
            spacing_ms: 0,
        }
    }

    /// Notes that `version` is the last one by now.
    pub(super) fn mark(&mut self, version: u64, wall: u64, monotonic_ms: u64) {
        let mark = Mark {
            version,
            monotonic_ms,
            is_ahead: wall_ms(version) > wall,
        };
        let spacing_ms = self.spacing_ms;
        let is_soon =
            |last: &Mark| mark.monotonic_ms < last.monotonic_ms.saturating_add(spacing_ms);
        match self.marks.as_mut_slice() {
            // Versions that are not ahead tell their time themselves; the last mark is for those
            // that come next.
            [.., last] if !last.is_ahead && !mark.is_ahead => *last = mark,
            // The first of these is for those before, the last one for those that come next.
            [.., before, last] if before.version == version && last.version == version => {
                *last = mark;
            }
            [.., last] if last.is_ahead && mark.is_ahead && is_soon(last) => {}
            _ => self.marks.push(mark),
        }
        if self.marks.len() > MARKS_MAX {
            let mut index = 0;
            self.marks.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.spacing_ms = (2 * self.spacing_ms).max(2 * SPACING_MS);
        }
    }

    /// How long ago the version was given, by what the marks tell: at least since then, if all
    /// versions up to the last mark were given here. Zero for one that is not ahead of the wall
    /// clock, and tells it itself.
    pub(super) fn age_min_ms(&self, version: u64, monotonic_ms: u64) -> u64 {
        // The first mark that has it: it was given before, and behind the one before that.
        let at = self.marks.partition_point(|mark| mark.version < version);
        if self.marks.get(at).is_some_and(|mark| !mark.is_ahead) {
            return 0;
        }
        let since = match at.checked_sub(1) {
            Some(before) => self.marks.get(before),
            None => self.marks.first(),
        };
        since.map_or(0, |mark| monotonic_ms.saturating_sub(mark.monotonic_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hlc::at_ms;

    #[test]
    fn what_is_ahead_was_given_behind_the_mark_before() {
        let mut timeline = Timeline::new(at_ms(1000), 1000, 0);
        timeline.mark(at_ms(1100), 1100, 100);
        // A jump by a minute.
        timeline.mark(at_ms(61_000), 1200, 200);
        timeline.mark(at_ms(61_000) + 5, 1300, 300);
        timeline.mark(at_ms(61_000) + 5, 1400, 400);
        timeline.mark(at_ms(61_000) + 9, 1500, 500);
        let age = |version| timeline.age_min_ms(version, 1000);
        assert_eq!(age(at_ms(61_000)), 900, "between the first two");
        assert_eq!(age(at_ms(61_000) + 3), 800);
        assert_eq!(
            age(at_ms(61_000) + 6),
            600,
            "nothing was given between 300 and 400"
        );
        assert_eq!(age(at_ms(61_000) + 10), 500, "behind the last mark");
        assert_eq!(age(at_ms(900)), 0, "it tells its time itself");
    }

    #[test]
    fn many_marks_are_thinned_out_and_tell_no_later_time() {
        let mut timeline = Timeline::new(at_ms(0), 0, 0);
        let version = |at: u64| at_ms(1_000_000_000) + at;
        for at in 1..40_000 {
            timeline.mark(version(at), at * 100, at * 100);
        }
        assert!(timeline.marks.len() <= MARKS_MAX);
        for at in (2..40_000).step_by(7) {
            let age_ms = timeline.age_min_ms(version(at), 4_000_000);
            let true_age_ms = 4_000_000 - at * 100;
            assert!(age_ms >= true_age_ms, "{at}: {age_ms}");
            assert!(age_ms <= true_age_ms + 5000, "{at}: {age_ms}");
        }
    }

    #[test]
    fn versions_that_are_not_ahead_leave_one_mark() {
        let mut timeline = Timeline::new(at_ms(0), 0, 0);
        for at in 1..1000 {
            timeline.mark(at_ms(at), at, at);
        }
        assert_eq!(timeline.marks.len(), 1);
    }
}
