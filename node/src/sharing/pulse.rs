//! Whether the process has been running without a break.
//!
//! A member that was stopped for a while (SIGSTOP, a frozen machine) wakes up with an earlier map:
//! other members may own its slots by now. So after a break it answers for none until it has heard
//! the cluster's leader. It also goes on once it is clear that there is no leader, because then no
//! other member can own its slots either.
//!
//! A member that did not hear the leader for that long, and then does, learns what changed
//! meanwhile. Until it has applied that, it answers for no slot either.
//!
//! A member that hears the leader answers for its slots as long as its lease lasts. A member
//! without a lease that does not hear the leader either waits for a while. Then there may be no
//! leader, and it applies its last map.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::cluster::Standing;

/// How often the process proves that it runs.
pub const BEAT: Duration = Duration::from_millis(100);

/// A break that is none yet: less than the time after which a member counts as down.
const BREAK_MIN: Duration = Duration::from_millis(1500);

/// Silence of the leader after which this member may be the one that is cut off. Others hold it for
/// down later than that ([`BREAK_MIN`]).
const SILENCE_MAX: Duration = Duration::from_millis(1000);

/// From the leader's first word after a break until what it said is known to be gone by.
const MAP_WAIT: Duration = Duration::from_millis(300);

/// A promise is taken to end earlier by this: two clocks are read, one of which stands still
/// between ticks of the kernel, and what was found out by the first is done a moment later.
const PROMISE_GUARD: Duration = Duration::from_millis(50);

/// How long the leader is waited for after a break, and after the last promise.
pub(super) const LEADER_WAIT: Duration = Duration::from_secs(3);

/// The process's pulse; times are milliseconds of one monotonic clock.
#[derive(Debug)]
pub struct Pulse {
    beat_ms: AtomicU64,
    /// When the last break was noticed; 0 if that is resolved.
    woke_ms: AtomicU64,
    /// When the leader was heard first since then; 0 if it was not.
    heard_ms: AtomicU64,
    is_sound: AtomicBool,
    /// How long ago the leader was heard, as of the last beat.
    silence_ms: AtomicU64,
    /// Whether the leader has been silent for [`SILENCE_MAX`].
    is_leaderless: AtomicBool,
    /// Whether it has been silent for [`BREAK_MIN`].
    is_cut_off: AtomicBool,
    /// Until when it is promised, or not asked for, that this member does not count as down.
    promised_ms: AtomicU64,
}

impl Pulse {
    /// A process that runs since now.
    #[must_use]
    pub fn new(now_ms: u64) -> Self {
        Self {
            beat_ms: AtomicU64::new(now_ms),
            woke_ms: AtomicU64::new(0),
            heard_ms: AtomicU64::new(0),
            is_sound: AtomicBool::new(true),
            silence_ms: AtomicU64::new(u64::MAX),
            is_leaderless: AtomicBool::new(false),
            is_cut_off: AtomicBool::new(false),
            promised_ms: AtomicU64::new(u64::MAX),
        }
    }

    /// Whether its map may be gone by.
    #[inline]
    #[must_use]
    pub fn is_sound(&self, now_ms: u64) -> bool {
        self.is_sound.load(Ordering::Acquire)
            && !is_break(self.beat_ms.load(Ordering::Acquire), now_ms)
            && now_ms < self.promised_ms.load(Ordering::Acquire)
    }

    /// Whether the leader was heard lately: it would have to miss this member for longer before
    /// others go on without it.
    #[must_use]
    pub fn is_led(&self) -> bool {
        self.silence_ms.load(Ordering::Acquire) < as_ms(SILENCE_MAX)
    }

    /// Whether the leader has been silent for so long that others may hold this member for down in
    /// a moment.
    #[must_use]
    pub fn is_leaderless(&self) -> bool {
        self.is_leaderless.load(Ordering::Acquire)
    }

    /// One beat. `standing` tells how long ago the leader was heard, and what it promised.
    pub fn beat(&self, now_ms: u64, standing: Standing) {
        let leader_silence = standing.leader_silence;
        let promised_ms = match standing.lease {
            Some(left) if leader_silence < LEADER_WAIT => {
                now_ms.saturating_add(as_ms(left.saturating_sub(PROMISE_GUARD)))
            }
            // By the last map: no member can declare it down, or it cannot know. Of a member that
            // promises nothing it is heard that it is there, as ever.
            _ => u64::MAX,
        };
        self.promised_ms.store(promised_ms, Ordering::Release);
        if is_break(self.beat_ms.load(Ordering::Acquire), now_ms) {
            self.is_sound.store(false, Ordering::Release);
            self.woke_ms.store(now_ms.max(1), Ordering::Release);
            self.heard_ms.store(0, Ordering::Release);
        }
        let silence_ms = u64::try_from(leader_silence.as_millis()).unwrap_or(u64::MAX);
        self.silence_ms.store(silence_ms, Ordering::Release);
        self.beat_ms.store(now_ms, Ordering::Release);
        let is_cut_off = leader_silence > BREAK_MIN;
        let was_cut_off = self.is_cut_off.swap(is_cut_off, Ordering::AcqRel);
        // After a break the leader has to be heard since that.
        let is_awake = self.woke_ms.load(Ordering::Acquire) == 0;
        if was_cut_off && !is_cut_off && is_awake {
            self.is_sound.store(false, Ordering::Release);
            self.woke_ms.store(now_ms.max(1), Ordering::Release);
            self.heard_ms.store(now_ms.max(1), Ordering::Release);
        }
        // Last: a write that waited for a leader sees that the topology may be an old one.
        self.is_leaderless
            .store(leader_silence > SILENCE_MAX, Ordering::Release);
        let woke_ms = self.woke_ms.load(Ordering::Acquire);
        if woke_ms == 0 {
            return;
        }
        let awake_ms = now_ms.saturating_sub(woke_ms);
        let mut heard_ms = self.heard_ms.load(Ordering::Acquire);
        if heard_ms == 0 && leader_silence.as_millis() < u128::from(awake_ms) {
            heard_ms = now_ms.max(1);
            self.heard_ms.store(heard_ms, Ordering::Release);
        }
        let is_told = heard_ms != 0 && now_ms.saturating_sub(heard_ms) >= as_ms(MAP_WAIT);
        if is_told || awake_ms >= as_ms(LEADER_WAIT) {
            self.woke_ms.store(0, Ordering::Release);
            self.is_sound.store(true, Ordering::Release);
        }
    }
}

fn is_break(beat_ms: u64, now_ms: u64) -> bool {
    now_ms.saturating_sub(beat_ms) > as_ms(BREAK_MIN)
}

const fn as_ms(duration: Duration) -> u64 {
    duration.as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG_AGO: Duration = Duration::from_secs(60);

    /// Where nothing is promised, and not asked for.
    const fn heard(leader_silence: Duration) -> Standing {
        Standing {
            leader_silence,
            lease: None,
        }
    }

    #[test]
    fn a_member_that_hears_the_leader_goes_on_as_long_as_its_lease() {
        let pulse = Pulse::new(1000);
        let led = |silence_ms, left_ms| Standing {
            leader_silence: Duration::from_millis(silence_ms),
            lease: Some(Duration::from_millis(left_ms)),
        };
        pulse.beat(1100, led(50, 0));
        assert!(!pulse.is_sound(1100), "the leader may not get its answers");
        pulse.beat(1200, led(50, 1500));
        assert!(pulse.is_sound(2600) && !pulse.is_sound(2650));
        for now_ms in (1300..2800).step_by(100) {
            pulse.beat(now_ms, led(50, 2700_u64.saturating_sub(now_ms)));
            assert_eq!(pulse.is_sound(now_ms), now_ms < 2650, "{now_ms}");
        }
    }

    #[test]
    fn a_member_without_lease_and_leader_applies_the_last_map_after_a_while() {
        let pulse = Pulse::new(1000);
        let cut_off = |silence_ms: u64| Standing {
            leader_silence: Duration::from_millis(silence_ms),
            lease: Some(Duration::from_millis(1500_u64.saturating_sub(silence_ms))),
        };
        for silence_ms in (0..5000).step_by(100) {
            pulse.beat(1000 + silence_ms, cut_off(silence_ms));
            let is_sound = pulse.is_sound(1000 + silence_ms);
            assert_eq!(
                is_sound,
                !(1450..3000).contains(&silence_ms),
                "{silence_ms}"
            );
        }
    }

    #[test]
    fn a_process_that_beats_is_sound() {
        let pulse = Pulse::new(1000);
        for now_ms in (1000..10_000).step_by(100) {
            pulse.beat(now_ms, heard(LONG_AGO));
            assert!(pulse.is_sound(now_ms + 50));
        }
    }

    #[test]
    fn after_a_break_it_is_not_until_the_leader_was_heard() {
        let pulse = Pulse::new(1000);
        // Before anything of it ran again.
        assert!(!pulse.is_sound(9000));
        pulse.beat(9000, heard(LONG_AGO));
        assert!(!pulse.is_sound(9010));
        // What was heard before the break says nothing.
        pulse.beat(9100, heard(Duration::from_millis(200)));
        assert!(!pulse.is_sound(9110));
        pulse.beat(9200, heard(Duration::from_millis(50)));
        // It may have said more than is known yet.
        assert!(!pulse.is_sound(9210));
        for now_ms in [9300, 9400, 9500] {
            assert!(!pulse.is_sound(now_ms));
            pulse.beat(now_ms, heard(Duration::from_millis(50)));
        }
        assert!(pulse.is_sound(9510));
    }

    #[test]
    fn a_member_that_has_not_heard_the_leader_lately_may_be_cut_off() {
        let pulse = Pulse::new(1000);
        assert!(!pulse.is_led(), "it was never heard");
        for (silence_ms, is_led) in [(0, true), (999, true), (1000, false), (60_000, false)] {
            pulse.beat(1100, heard(Duration::from_millis(silence_ms)));
            assert_eq!(pulse.is_led(), is_led, "{silence_ms}");
        }
    }

    #[test]
    fn a_member_that_hears_the_leader_after_a_long_silence_waits_for_what_it_says() {
        let pulse = Pulse::new(1000);
        pulse.beat(1100, heard(Duration::from_millis(900)));
        assert!(!pulse.is_leaderless() && pulse.is_sound(1110));
        pulse.beat(1300, heard(Duration::from_millis(1100)));
        assert!(pulse.is_leaderless() && pulse.is_sound(1310));
        // A short silence changes nothing.
        pulse.beat(1400, heard(Duration::from_millis(10)));
        assert!(!pulse.is_leaderless() && pulse.is_sound(1410));
        pulse.beat(3000, heard(Duration::from_millis(1600)));
        assert!(!pulse.is_sound(3010), "the process stood still as well");
        for now_ms in (3100..9000).step_by(100) {
            pulse.beat(now_ms, heard(LONG_AGO));
        }
        assert!(pulse.is_sound(9000), "by the last map");
        pulse.beat(9000, heard(Duration::from_millis(50)));
        for now_ms in [9100, 9200] {
            assert!(!pulse.is_sound(now_ms));
            pulse.beat(now_ms, heard(Duration::from_millis(50)));
        }
        pulse.beat(9300, heard(Duration::from_millis(50)));
        assert!(pulse.is_sound(9310));
    }

    #[test]
    fn without_a_leader_it_goes_by_the_last_map_after_a_while() {
        let pulse = Pulse::new(1000);
        pulse.beat(9000, heard(LONG_AGO));
        for now_ms in (9100..11_900).step_by(100) {
            pulse.beat(now_ms, heard(LONG_AGO));
            assert!(!pulse.is_sound(now_ms));
        }
        pulse.beat(12_000, heard(LONG_AGO));
        assert!(pulse.is_sound(12_000));
    }
}
