//! Time as an argument: a clock that is the machine's, or one that a test moves by hand.
//!
//! Wall-clock time (Unix milliseconds) can jump either way and is for expiry; monotonic time
//! (milliseconds since some moment before the process started) never goes back and is for waits
//! and deadlines. The `coarse` forms are for hot paths: they read the time of the kernel's last
//! timer tick (`CLOCK_REALTIME_COARSE`, `clock_gettime(2)`), at most some milliseconds old, without
//! a system call and without a ticking thread that would wake an idle machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Where time is read from; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Clock(Source);

#[derive(Clone, Debug, Default)]
enum Source {
    #[default]
    System,
    Manual(Arc<ManualTime>),
}

#[derive(Debug)]
struct ManualTime {
    wall_ms: AtomicU64,
    monotonic_ms: AtomicU64,
}

impl Clock {
    /// The machine's clock.
    #[must_use]
    pub const fn system() -> Self {
        Self(Source::System)
    }

    /// Unix time in milliseconds; below 1000 on a machine that believes to be before 1970.
    #[must_use]
    pub fn wall_ms(&self) -> u64 {
        self.read(ClockId::Realtime, |time| &time.wall_ms)
    }

    /// [`Clock::wall_ms`], at most some milliseconds behind it, for hot paths.
    #[must_use]
    pub fn coarse_wall_ms(&self) -> u64 {
        self.read(ClockId::RealtimeCoarse, |time| &time.wall_ms)
    }

    /// Milliseconds since some fixed moment. Never goes back.
    #[must_use]
    pub fn monotonic_ms(&self) -> u64 {
        self.read(ClockId::Monotonic, |time| &time.monotonic_ms)
    }

    /// [`Clock::monotonic_ms`], at most some milliseconds behind it, for hot paths. Do not compare
    /// it with the exact one.
    #[must_use]
    pub fn coarse_monotonic_ms(&self) -> u64 {
        self.read(ClockId::MonotonicCoarse, |time| &time.monotonic_ms)
    }

    #[inline]
    fn read(&self, id: ClockId, cell: impl Fn(&ManualTime) -> &AtomicU64) -> u64 {
        match &self.0 {
            Source::System => millis(clock_gettime(id)),
            Source::Manual(time) => cell(time).load(Ordering::Acquire),
        }
    }
}

fn millis(time: Timespec) -> u64 {
    let secs = u64::try_from(time.tv_sec).unwrap_or(0);
    let sub_ms = u64::try_from(time.tv_nsec / 1_000_000).unwrap_or(0);
    secs.saturating_mul(1000).saturating_add(sub_ms)
}

/// A clock that stands still until it is moved: for tests.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<ManualTime>);

impl ManualClock {
    /// A clock that shows `wall_ms`; its monotonic time starts at 0.
    #[must_use]
    pub fn new(wall_ms: u64) -> Self {
        Self(Arc::new(ManualTime {
            wall_ms: AtomicU64::new(wall_ms),
            monotonic_ms: AtomicU64::new(0),
        }))
    }

    /// The view of it to hand to what is tested.
    #[must_use]
    pub fn clock(&self) -> Clock {
        Clock(Source::Manual(Arc::clone(&self.0)))
    }

    /// Lets time pass: both clocks move on.
    pub fn advance(&self, by: Duration) {
        let by_ms = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        for cell in [&self.0.wall_ms, &self.0.monotonic_ms] {
            // Only this handle's owners write, and a lost race between two of them is their test's.
            cell.store(
                cell.load(Ordering::Acquire).saturating_add(by_ms),
                Ordering::Release,
            );
        }
    }

    /// Sets the wall clock, as an administrator or NTP would; monotonic time does not notice.
    pub fn set_wall_ms(&self, wall_ms: u64) {
        self.0.wall_ms.store(wall_ms, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn system_clock_agrees_with_the_standard_library() {
        let clock = Clock::system();
        let std_ms = || {
            let since = SystemTime::now()
                .duration_since(SystemTime::UNIX_EPOCH)
                .unwrap();
            u64::try_from(since.as_millis()).unwrap()
        };
        let (before, now, after) = (std_ms(), clock.wall_ms(), std_ms());
        assert!(before <= now && now <= after, "{before} {now} {after}");
    }

    #[test]
    fn coarse_time_is_close_behind_and_never_ahead() {
        let clock = Clock::system();
        let is_close = |before: u64, coarse: u64, after: u64| {
            // The slowest tick of a supported kernel is 10 ms; the rest is for a machine whose
            // ticks are late. Between the reads the thread may stand still for any time.
            let is_so = coarse + 1000 > before && coarse <= after;
            assert!(is_so, "{before} {coarse} {after}");
        };
        let wall = || clock.wall_ms();
        is_close(wall(), clock.coarse_wall_ms(), wall());
        let monotonic = || clock.monotonic_ms();
        is_close(monotonic(), clock.coarse_monotonic_ms(), monotonic());
    }

    #[test]
    fn monotonic_time_never_goes_back() {
        let clock = Clock::system();
        let mut last = (0, 0);
        for _ in 0..10_000 {
            let now = (clock.monotonic_ms(), clock.coarse_monotonic_ms());
            assert!(now.0 >= last.0 && now.1 >= last.1);
            last = now;
        }
    }

    #[test]
    fn manual_clock_moves_only_by_hand() {
        let manual = ManualClock::new(1_000_000);
        let clock = manual.clock();
        assert_eq!(
            (clock.wall_ms(), clock.coarse_wall_ms()),
            (1_000_000, 1_000_000)
        );
        manual.advance(Duration::from_secs(2));
        assert_eq!((clock.wall_ms(), clock.monotonic_ms()), (1_002_000, 2000));
        manual.set_wall_ms(500);
        assert_eq!(
            (clock.coarse_wall_ms(), clock.coarse_monotonic_ms()),
            (500, 2000)
        );
    }

    #[test]
    fn a_clock_before_1970_reads_as_the_first_second() {
        assert_eq!(
            millis(Timespec {
                tv_sec: -5,
                tv_nsec: 999_000_000
            }),
            999
        );
        assert_eq!(
            millis(Timespec {
                tv_sec: 7,
                tv_nsec: 999_999_999
            }),
            7999
        );
    }
}
