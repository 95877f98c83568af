//! The beat: whether this member may answer for its slots, looked at again and again.
//!
//! It has a task of its own, so that a slow disk does not cost the lease.

use std::sync::Arc;
use std::time::Duration;

use fonn_replication::Event as CoreEvent;

use super::Replication;
use crate::engine::Engine;
use fonn_membership::{Cluster, Standing};

/// How often the lease is looked at.
pub(super) const BEAT: Duration = Duration::from_millis(100);

/// A member that has heard no leader for so long goes on by its last topology.
const LEADER_WAIT: Duration = Duration::from_secs(3);

/// Between two beats of a process that was not stopped. It is less than the time after which a
/// member is declared down.
const BREAK_MIN: Duration = Duration::from_secs(1);

/// From the leader's first word after a break until what raft knows is of after the break too.
const MAP_WAIT: Duration = Duration::from_millis(300);

/// A lease is taken to end earlier by this: two clocks are read, one of which stands still between
/// ticks of the kernel.
const LEASE_GUARD: Duration = Duration::from_millis(50);

/// Runs until it is dropped.
pub(super) async fn run(replication: Arc<Replication>, engine: Arc<Engine>, cluster: Cluster) {
    let mut ticks = tokio::time::interval(BEAT);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut pulse = Pulse::new(replication.now());
    loop {
        ticks.tick().await;
        let epoch = replication.epoch();
        // Read before the standing: a stop in between makes the lease shorter, not longer.
        let now = replication.now();
        let standing = cluster.standing(epoch);
        let lease = match replication.is_alone() {
            // No other member could take its slots over.
            true => Duration::MAX,
            false => pulse.lease(standing, now),
        };
        replication.beat(&engine, lease, (epoch, cluster.versions_of(epoch)));
    }
}

/// Whether the process has run without a break.
///
/// A member that was stopped (SIGSTOP, a frozen machine) may have been declared down meanwhile.
/// What it knows of its lease and of raft is from before. So it answers for no slot until it has
/// heard the leader since then, and a moment longer, or has heard none for long enough.
#[derive(Debug)]
struct Pulse {
    last: Duration,
    /// When a break ended after which the member does not answer yet.
    woke: Option<Duration>,
    /// When the leader was heard first since then.
    heard: Option<Duration>,
}

impl Pulse {
    fn new(now: Duration) -> Self {
        Self {
            last: now,
            woke: None,
            heard: None,
        }
    }

    /// Up to when the member may answer.
    fn lease(&mut self, standing: Standing, now: Duration) -> Duration {
        if now.saturating_sub(self.last) >= BREAK_MIN {
            (self.woke, self.heard) = (Some(now), None);
        }
        self.last = now;
        if let Some(woke) = self.woke {
            let awake = now.saturating_sub(woke);
            if standing.leader_silence < awake {
                self.heard.get_or_insert(now);
            }
            let is_told = |heard| now.saturating_sub(heard) >= MAP_WAIT;
            if awake < LEADER_WAIT && !self.heard.is_some_and(is_told) {
                return Duration::ZERO;
            }
            self.woke = None;
        }
        match standing.lease {
            // It ends with the beats, so a process that is stopped does not go on by it. A member
            // that is refused is not cut off: others own its slots.
            _ if standing.leader_silence >= LEADER_WAIT && !standing.is_refused => now + BREAK_MIN,
            left if left > LEASE_GUARD => now + left - LEASE_GUARD,
            _ => Duration::ZERO,
        }
    }
}

impl Replication {
    /// Takes over a lease, and lets versions follow the clock as far as the range of the epoch
    /// goes.
    fn beat(
        &self,
        engine: &Engine,
        lease: Duration,
        (epoch, versions): (u64, Option<fonn_base::hlc::VersionRange>),
    ) {
        let end_ms = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
        self.rights.extend_lease(end_ms);
        {
            // No other epoch is published meanwhile.
            let _cell = self.core.lock();
            if let Some(range) = versions.filter(|_| self.epoch() == epoch) {
                engine.versions().enter(range);
            }
        }
        self.handle(CoreEvent::Lease(lease));
        self.handle(CoreEvent::Timer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn standing(silence: Duration, left: Duration) -> Standing {
        Standing {
            leader_silence: silence,
            lease: left,
            is_refused: false,
        }
    }

    #[test]
    fn a_lease_ends_before_that_of_the_leader() {
        let mut pulse = Pulse::new(Duration::ZERO);
        let lease = pulse.lease(standing(Duration::ZERO, SECOND), BEAT);
        assert_eq!(lease, BEAT + SECOND - LEASE_GUARD);
        let lease = pulse.lease(standing(Duration::ZERO, LEASE_GUARD), BEAT);
        assert_eq!(lease, Duration::ZERO);
    }

    #[test]
    fn without_a_leader_a_member_goes_on_for_as_long_as_it_runs() {
        let mut pulse = Pulse::new(Duration::ZERO);
        let lease = pulse.lease(standing(2 * SECOND, Duration::ZERO), BEAT);
        assert_eq!(lease, Duration::ZERO);
        let lease = pulse.lease(standing(LEADER_WAIT, Duration::ZERO), 2 * BEAT);
        assert_eq!(lease, 2 * BEAT + BREAK_MIN);
        // It was stopped, and may have been declared down.
        let woken = 2 * BEAT + 5 * SECOND;
        assert!(lease <= woken);
        let mut refused = 0;
        while pulse.lease(
            standing(10 * SECOND, Duration::ZERO),
            woken + refused * BEAT,
        ) == Duration::ZERO
        {
            refused += 1;
        }
        assert_eq!(refused * BEAT, LEADER_WAIT);
    }

    #[test]
    fn a_member_that_is_refused_answers_by_a_lease_alone() {
        let refused = |silence, left| Standing {
            is_refused: true,
            ..standing(silence, left)
        };
        let mut pulse = Pulse::new(Duration::ZERO);
        let lease = pulse.lease(refused(10 * SECOND, Duration::ZERO), BEAT);
        assert_eq!(lease, Duration::ZERO);
        let lease = pulse.lease(refused(Duration::ZERO, SECOND), 2 * BEAT);
        assert_eq!(lease, 2 * BEAT + SECOND - LEASE_GUARD);
        // It is admitted again, and cut off later.
        let lease = pulse.lease(standing(10 * SECOND, Duration::ZERO), 3 * BEAT);
        assert_eq!(lease, 3 * BEAT + BREAK_MIN);
    }

    #[test]
    fn after_a_break_the_leader_has_to_be_heard_before_a_lease_counts() {
        let mut pulse = Pulse::new(Duration::ZERO);
        let old = standing(Duration::ZERO, SECOND);
        assert!(pulse.lease(old, BEAT) > BEAT);
        // What is known of the lease is of before.
        let woken = BEAT + 2 * SECOND;
        assert_eq!(pulse.lease(old, woken), Duration::ZERO);
        let silent = standing(2 * SECOND, SECOND);
        assert_eq!(pulse.lease(silent, woken + 5 * BEAT), Duration::ZERO);
        let heard = woken + 6 * BEAT;
        assert_eq!(pulse.lease(old, heard), Duration::ZERO);
        assert_eq!(pulse.lease(old, heard + 2 * BEAT), Duration::ZERO);
        let told = heard + MAP_WAIT;
        assert_eq!(pulse.lease(old, told), told + SECOND - LEASE_GUARD);
    }
}
