//! A hybrid logical clock: strictly increasing versions that stay close to wall-clock time.
//!
//! A version is `wall_ms << 16 | counter`. It follows Kulkarni et al., "Logical Physical Clocks"
//! (2014), in one word: the next version is the larger of the last one plus one and the wall
//! clock's first version. When the 65,536 versions of a millisecond are used up the addition
//! carries into the next one, that is, time is borrowed ahead.
//!
//! Invariant: no version is given twice or out of order, whatever the wall clock does, also across
//! restarts as long as the floor given to [`Hlc::new`] is at least the highest version ever stored.

mod timeline;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

pub use fonn_proto::Version;

use crate::clock::Clock;

use self::timeline::Timeline;

/// Bits of a version below the millisecond.
pub const COUNTER_BITS: u32 = 16;

/// The highest version that is taken from others, reached in the year 6429. Above it half of the
/// range is left to count on, so that the counter cannot wrap.
pub const VERSION_MAX: u64 = u64::MAX >> 1;

/// How far a version from elsewhere may be ahead of the wall clock, in milliseconds: a year. A
/// machine whose clock was wrong by days and was corrected still has to believe its own entries in
/// the bucket. A version that is further ahead is hostile: without the bound it could use up the
/// range of versions.
pub const SKEW_MS_MAX: u64 = 366 * 24 * 60 * 60 * 1000;

/// The highest floor to open with. It is above [`VERSION_MAX`] so that a member that was made to
/// observe that version, and counted on, can still be opened again.
const FLOOR_MAX: u64 = VERSION_MAX + (VERSION_MAX >> 1);

/// How far below the ceiling of its range a version stops to follow the wall clock: 4 s, that is,
/// 262 million versions. A member counts on through them while it hears no leader.
pub const COUNT_RESERVE: u64 = 4_000 << COUNTER_BITS;

/// The versions that the members of a cluster may give in one epoch (ADR 0038).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct VersionRange {
    /// Every version of an earlier epoch is below it.
    pub base: u64,
    /// Every version of the epoch is below it. It only grows.
    pub ceiling: u64,
}

impl VersionRange {
    /// The range of the epoch that follows. Until the leader extends it, versions only count.
    #[must_use]
    pub const fn next_epoch(self) -> Self {
        Self {
            base: self.ceiling,
            ceiling: self.ceiling.saturating_add(COUNT_RESERVE),
        }
    }
}

/// A version from elsewhere is too far ahead of the wall clock, or beyond [`VERSION_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "version {version} is {ahead_ms} ms ahead of the wall clock, more than a year: set the clock of this machine, and \
     that of the one that wrote it"
)]
pub struct VersionOutOfRange {
    /// The version that was given.
    pub version: u64,
    /// How far ahead of the wall clock it is, in milliseconds.
    pub ahead_ms: u64,
}

/// The clock. Shared by reference between threads; lock-free.
#[derive(Debug)]
pub struct Hlc {
    clock: Clock,
    /// The base of the range; 0 for a node without a cluster.
    base: AtomicU64,
    /// The ceiling of the range; `u64::MAX` for a node without a cluster.
    ceiling: AtomicU64,
    /// The last version given or observed.
    last: AtomicU64,
    /// The newest version at or above the ceiling that was heard of.
    heard: AtomicU64,
    /// Whether one was given since [`Hlc::take_given`] was asked.
    given: AtomicBool,
    timeline: Mutex<Timeline>,
}

impl Hlc {
    /// A clock whose first version is above `floor`, the highest version in what was opened.
    ///
    /// # Errors
    /// [`VersionOutOfRange`] when the floor cannot come from such a clock.
    pub fn new(clock: Clock, floor: u64) -> Result<Self, VersionOutOfRange> {
        if floor > FLOOR_MAX {
            let ahead_ms = wall_ms(floor).saturating_sub(clock.wall_ms());
            return Err(VersionOutOfRange {
                version: floor,
                ahead_ms,
            });
        }
        let timeline = Timeline::new(floor, clock.wall_ms(), clock.monotonic_ms());
        Ok(Self {
            clock,
            base: AtomicU64::new(0),
            ceiling: AtomicU64::new(u64::MAX),
            last: AtomicU64::new(floor),
            heard: AtomicU64::new(0),
            given: AtomicBool::new(false),
            timeline: Mutex::new(timeline),
        })
    }

    /// The next version, above every one given or observed before. Never 0.
    #[must_use]
    pub fn next(&self) -> u64 {
        // Written once in a while, read by all: the line stays shared.
        if !self.given.load(Ordering::Relaxed) {
            self.given.store(true, Ordering::Relaxed);
        }
        // Some milliseconds of delay do not matter: the counter orders what happens in them.
        let wall = self.follow(self.clock.coarse_wall_ms());
        let mut last = self.last.load(Ordering::Relaxed);
        loop {
            // Even, so that the number below it is free: a write that the disk refuses leaves a
            // tombstone there. 2^62 versions are left above the highest floor, so this does not
            // wrap.
            let next = wall.max((last | 1).wrapping_add(1));
            // The modification order of one atomic is all the order among versions that we promise.
            // Acquire is for [`Hlc::base`].
            match self
                .last
                .compare_exchange_weak(last, next, Ordering::Acquire, Ordering::Relaxed)
            {
                Ok(_) => return next,
                Err(seen) => last = seen,
            }
        }
    }

    /// Makes every later version larger than `version`, which came from another member or a store.
    ///
    /// # Errors
    /// [`VersionOutOfRange`] when it is not [admitted](Hlc::admits); the clock is unchanged.
    pub fn observe(&self, version: u64) -> Result<(), VersionOutOfRange> {
        if !self.admits(version) {
            return Err(VersionOutOfRange {
                version,
                ahead_ms: wall_ms(version).saturating_sub(self.clock.wall_ms()),
            });
        }
        self.last.fetch_max(version, Ordering::Relaxed);
        Ok(())
    }

    /// As [`Hlc::observe`], for a version of which the writer may be in another epoch or region. A
    /// version at or above the ceiling counts only when a range contains it.
    ///
    /// A member that is cut off may read in the bucket what its successor wrote. A version that it
    /// gave above those would replace what the successor has acknowledged.
    ///
    /// # Errors
    /// As [`Hlc::observe`].
    pub fn hear(&self, version: u64) -> Result<(), VersionOutOfRange> {
        if version < self.ceiling() || !self.admits(version) {
            return self.observe(version);
        }
        self.heard.fetch_max(version, Ordering::Relaxed);
        Ok(())
    }

    /// Gives versions of a range from now on. To be called before the first write of its epoch.
    pub fn enter(&self, range: VersionRange) {
        // What is read together with a version of the range is its base, or that of a later one.
        self.base.store(range.base, Ordering::Relaxed);
        self.ceiling.store(range.ceiling, Ordering::Release);
        let heard = self.heard.load(Ordering::Relaxed);
        let heard = if heard < range.ceiling { heard } else { 0 };
        self.last
            .fetch_max(range.base.max(heard), Ordering::Release);
    }

    /// The base of the range. If it is the same before and after a version was given, that version
    /// is of this range.
    #[must_use]
    pub fn base(&self) -> u64 {
        self.base.load(Ordering::Acquire)
    }

    /// Every version that this clock gives is below it; `u64::MAX` without a cluster.
    #[must_use]
    pub fn ceiling(&self) -> u64 {
        self.ceiling.load(Ordering::Acquire)
    }

    /// What a range has to contain so that versions follow the wall clock, and are above all that
    /// was heard of.
    #[must_use]
    pub fn wanted(&self) -> u64 {
        at_ms(self.clock.wall_ms()).max(self.heard.load(Ordering::Relaxed))
    }

    /// Whether a version from elsewhere is believed: it is at most [`SKEW_MS_MAX`] ahead of the
    /// wall clock, or no higher than what was given or observed before.
    #[must_use]
    pub fn admits(&self, version: u64) -> bool {
        let latest_ms = self.clock.wall_ms().saturating_add(SKEW_MS_MAX);
        version <= self.last().max(at_ms(latest_ms))
    }

    /// Makes every later version larger than `version`, which this member made of its own versions.
    /// It is cut to [`VERSION_MAX`].
    pub fn advance(&self, version: u64) {
        self.last
            .fetch_max(version.min(VERSION_MAX), Ordering::Relaxed);
    }

    /// The last version given or observed; 0 before the first.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.last.load(Ordering::Relaxed)
    }

    /// The newest version that was given or observed, or that could be given now. Gives none.
    #[must_use]
    pub fn newest(&self) -> u64 {
        self.newest_within(0)
    }

    /// As [`Hlc::newest`], for what could be given within so many milliseconds.
    #[must_use]
    pub fn newest_within(&self, ms: u64) -> u64 {
        let wall_ms = self.clock.wall_ms().saturating_add(ms);
        self.last().max(self.follow(wall_ms))
    }

    /// The first version of that millisecond, or the highest one that may follow the clock.
    fn follow(&self, wall_ms: u64) -> u64 {
        at_ms(wall_ms).min(self.ceiling().saturating_sub(COUNT_RESERVE))
    }

    /// Whether a version was given since this was asked last.
    pub fn take_given(&self) -> bool {
        self.given.swap(false, Ordering::Relaxed)
    }

    /// Notes how far the versions are now, for [`Hlc::written_ms`]; to be called about ten times a
    /// second.
    pub fn mark(&self) {
        let (wall_ms, monotonic_ms) = (self.clock.wall_ms(), self.clock.monotonic_ms());
        // Read under the lock: marks are in order.
        let mut timeline = self.timeline.lock();
        timeline.mark(self.last(), wall_ms, monotonic_ms);
    }

    /// Unix time in milliseconds at which a version of this process was given, at the latest.
    /// Versions may be ahead of the wall clock; then it is the time of the [mark](Hlc::mark)
    /// before. A version from before the process started counts as given at its start, if it does
    /// not say an earlier time itself.
    #[must_use]
    pub fn written_ms(&self, version: u64) -> u64 {
        let (wall, monotonic_ms) = (self.clock.wall_ms(), self.clock.monotonic_ms());
        let age_min_ms = self.timeline.lock().age_min_ms(version, monotonic_ms);
        wall_ms(version).min(wall.saturating_sub(age_min_ms))
    }
}

/// The first version of millisecond `ms`: versions given before that moment are below it (unless
/// they were borrowed ahead). Moments beyond [`VERSION_MAX`] are cut to it.
#[must_use]
pub const fn at_ms(ms: u64) -> u64 {
    if ms > VERSION_MAX >> COUNTER_BITS {
        VERSION_MAX
    } else {
        ms << COUNTER_BITS
    }
}

/// The millisecond that a version belongs to.
#[must_use]
pub const fn wall_ms(version: u64) -> u64 {
    version >> COUNTER_BITS
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::thread;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::clock::ManualClock;

    #[test]
    fn versions_follow_the_wall_clock() {
        let manual = ManualClock::new(1_700_000_000_000);
        let hlc = Hlc::new(manual.clock(), 0).unwrap();
        assert_eq!(hlc.next(), 1_700_000_000_000 << 16);
        assert_eq!(hlc.next(), (1_700_000_000_000 << 16) | 2);
        manual.set_wall_ms(1_700_000_000_007);
        assert_eq!(wall_ms(hlc.next()), 1_700_000_000_007);
    }

    #[test]
    fn a_full_counter_borrows_the_next_millisecond() {
        let manual = ManualClock::new(1000);
        let hlc = Hlc::new(manual.clock(), 0).unwrap();
        let versions: Vec<u64> = (0..35_000).map(|_| hlc.next()).collect();
        assert!(versions.is_sorted_by(|a, b| a < b));
        assert_eq!(wall_ms(versions[32_767]), 1000);
        assert_eq!(versions[32_768], 1001 << 16);
        assert_eq!(wall_ms(hlc.last()), 1001);
    }

    #[test]
    fn the_floor_and_what_is_observed_hold_when_the_wall_clock_is_behind() {
        let manual = ManualClock::new(1000);
        let floor = at_ms(5000) + 9;
        let hlc = Hlc::new(manual.clock(), floor).unwrap();
        assert_eq!(hlc.next(), floor + 1);
        hlc.observe(at_ms(6000)).unwrap();
        hlc.observe(at_ms(2000)).unwrap();
        assert_eq!(hlc.next(), at_ms(6000) + 2);
    }

    #[test]
    fn an_impossible_version_is_refused_and_changes_nothing() {
        let hlc = Hlc::new(ManualClock::new(1000).clock(), 0).unwrap();
        let refused = hlc.observe(u64::MAX).unwrap_err();
        assert_eq!(refused.version, u64::MAX);
        assert_eq!(hlc.next(), at_ms(1000));
        assert!(Hlc::new(Clock::system(), u64::MAX).is_err());
        hlc.advance(u64::MAX);
        assert_eq!(hlc.next(), VERSION_MAX + 1);
        assert_eq!(at_ms(u64::MAX), VERSION_MAX);
    }

    #[test]
    fn a_version_from_elsewhere_may_be_a_year_ahead_and_no_more() {
        let manual = ManualClock::new(1000);
        let hlc = Hlc::new(manual.clock(), 0).unwrap();
        let latest = at_ms(1000 + SKEW_MS_MAX);
        for version in [latest + 1, VERSION_MAX] {
            let refused = hlc.observe(version).unwrap_err();
            assert!(refused.ahead_ms >= SKEW_MS_MAX, "{refused}");
            assert_eq!(hlc.last(), 0);
        }
        hlc.observe(latest).unwrap();
        assert_eq!(hlc.next(), latest + 2);
        // The clock was set back: what this member made itself is still believed.
        manual.set_wall_ms(0);
        assert!(hlc.admits(latest + 2) && !hlc.admits(latest + 3));
        // Time goes on.
        manual.set_wall_ms(2000);
        assert!(hlc.admits(latest + 3));
    }

    #[test]
    fn a_clock_that_stands_at_zero_still_gives_no_version_zero() {
        assert_eq!(Hlc::new(ManualClock::new(0).clock(), 0).unwrap().next(), 2);
    }

    #[test]
    fn threads_never_get_the_same_version() {
        let hlc = Hlc::new(Clock::system(), 0).unwrap();
        let lists: Vec<Vec<u64>> = thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| (0..20_000).map(|_| hlc.next()).collect()))
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        });
        assert!(
            lists
                .iter()
                .all(|list: &Vec<u64>| list.is_sorted_by(|a, b| a < b))
        );
        let distinct: HashSet<u64> = lists.iter().flatten().copied().collect();
        assert_eq!(distinct.len(), 80_000);
    }

    #[test]
    fn what_others_are_told_is_no_less_than_what_is_given_next_and_gives_nothing() {
        let manual = ManualClock::new(1000);
        let hlc = Hlc::new(manual.clock(), 0).unwrap();
        assert_eq!(hlc.newest(), at_ms(1000));
        assert!(!hlc.take_given());
        manual.set_wall_ms(2000);
        assert_eq!(hlc.newest(), at_ms(2000));
        assert_eq!(hlc.next(), at_ms(2000));
        hlc.observe(at_ms(9000)).unwrap();
        assert_eq!(hlc.newest(), at_ms(9000));
        assert!(hlc.take_given());
        assert!(!hlc.take_given());
    }

    fn range(base_ms: u64, ceiling_ms: u64) -> VersionRange {
        VersionRange {
            base: at_ms(base_ms),
            ceiling: at_ms(ceiling_ms),
        }
    }

    #[test]
    fn versions_follow_the_clock_up_to_the_reserve_below_the_ceiling_and_count_on_from_there() {
        let manual = ManualClock::new(10_000);
        let hlc = Hlc::new(manual.clock(), 0).unwrap();
        hlc.enter(range(9_000, 15_000));
        assert_eq!(hlc.next(), at_ms(10_000));
        manual.set_wall_ms(99_000);
        assert_eq!(hlc.newest(), at_ms(11_000));
        assert_eq!(hlc.next(), at_ms(11_000));
        assert_eq!(hlc.next(), at_ms(11_000) + 2);
        hlc.enter(range(9_000, 200_000));
        assert_eq!(hlc.next(), at_ms(99_000));
    }

    #[test]
    fn versions_of_an_epoch_are_above_all_of_the_epoch_before_whatever_the_clocks_say() {
        let (fast, slow) = (ManualClock::new(1 << 40), ManualClock::new(1000));
        let cut_off = Hlc::new(fast.clock(), 0).unwrap();
        let successor = Hlc::new(slow.clock(), 0).unwrap();
        let before = range(20_000, 40_000);
        cut_off.enter(before);
        successor.enter(before);
        successor.enter(range(40_000, 42_000));
        let first = successor.next();
        assert!((0..1000).all(|_| cut_off.next() < first));
    }

    #[test]
    fn a_version_above_the_ceiling_counts_when_a_range_contains_it() {
        let hlc = Hlc::new(ManualClock::new(10_000).clock(), 0).unwrap();
        hlc.enter(range(0, 13_000));
        hlc.hear(at_ms(12_999)).unwrap();
        assert_eq!(hlc.next(), at_ms(12_999) + 2);
        hlc.hear(at_ms(20_000)).unwrap();
        assert!(hlc.hear(VERSION_MAX + 1).is_err());
        assert_eq!(hlc.next(), at_ms(12_999) + 4);
        assert_eq!(hlc.wanted(), at_ms(20_000));
        hlc.enter(range(0, 15_000));
        assert_eq!(hlc.next(), at_ms(12_999) + 6);
        hlc.enter(range(0, 30_000));
        assert_eq!(hlc.next(), at_ms(20_000) + 2);
    }

    #[test]
    fn a_member_that_has_entered_no_range_only_counts_on() {
        let hlc = Hlc::new(ManualClock::new(10_000).clock(), at_ms(5_000)).unwrap();
        hlc.enter(VersionRange::default());
        assert_eq!(hlc.next(), at_ms(5_000) + 2);
    }

    #[test]
    fn what_was_written_ahead_of_the_clock_is_as_old_as_it_is() {
        let manual = ManualClock::new(100_000);
        let hlc = Hlc::new(manual.clock(), 0).unwrap();
        hlc.mark();
        let before = hlc.next();
        manual.advance(Duration::from_millis(100));
        hlc.observe(at_ms(500_000)).unwrap();
        let ahead = hlc.next();
        manual.advance(Duration::from_millis(100));
        hlc.mark();
        manual.advance(Duration::from_secs(10));
        assert_eq!(hlc.written_ms(before), 100_000);
        assert_eq!(hlc.written_ms(ahead), 100_000, "when it was marked last");
        // The clock is set back; time passes all the same.
        manual.set_wall_ms(50_000);
        assert_eq!(hlc.written_ms(ahead), 39_800);
        // After a restart it was written before that.
        let hlc = Hlc::new(manual.clock(), ahead + 1).unwrap();
        manual.advance(Duration::from_secs(3));
        assert_eq!(hlc.written_ms(ahead), 50_000);
    }

    #[derive(Clone, Debug)]
    enum Event {
        SetWall(u64),
        Observe(u64),
        Next,
        Reopen,
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            (0u64..1 << 45).prop_map(Event::SetWall),
            any::<u64>().prop_map(Event::Observe),
            Just(Event::Observe(VERSION_MAX)),
            (0u64..1 << 60).prop_map(Event::Observe),
            Just(Event::Next),
            Just(Event::Next),
            Just(Event::Reopen),
        ]
    }

    proptest! {
        #[test]
        fn versions_increase_under_clock_jumps_observations_and_restarts(
            events in proptest::collection::vec(event(), 1..200),
        ) {
            let manual = ManualClock::new(1 << 40);
            let mut hlc = Hlc::new(manual.clock(), 0).unwrap();
            let mut highest = 0;
            for event in events {
                match event {
                    Event::SetWall(ms) => manual.set_wall_ms(ms),
                    Event::Observe(version) => {
                        if hlc.observe(version).is_ok() {
                            highest = highest.max(version);
                        }
                    }
                    Event::Next => {
                        let version = hlc.next();
                        prop_assert!(version > highest);
                        prop_assert!(version >= at_ms(manual.clock().wall_ms()));
                        highest = version;
                    }
                    Event::Reopen => hlc = Hlc::new(manual.clock(), highest).unwrap(),
                }
            }
        }
    }
}
