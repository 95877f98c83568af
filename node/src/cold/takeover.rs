//! Slots of a member that is lost: what the bucket has of them may be more than is known here.
//!
//! A lookup of such a slot waits until the segments of the lost member are followed to their end,
//! all of them until one deadline. Invariant: without a takeover under way a lookup costs the
//! reading of one number.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use fonn_cold_tier::CatchUp;
use fonn_proto::peer::SlotSet;
use fonn_proto::placement::{self, SLOT_COUNT};
use parking_lot::Mutex;
use tokio::time::Instant;

/// How long lookups wait at most, from the loss on.
const WAIT_MAX: Duration = Duration::from_millis(500);

/// The takeovers that are under way.
#[derive(Debug, Default)]
pub(crate) struct Takeovers {
    /// How many there are, for the path of each lookup.
    count: AtomicUsize,
    open: Mutex<Vec<Takeover>>,
    waited: AtomicU64,
    gave_up: AtomicU64,
}

#[derive(Debug)]
struct Takeover {
    member: String,
    slots: SlotSet,
    until: Instant,
    caught_up: CatchUp,
}

/// Counts since the start, and what is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TakeoverStatus {
    /// Slots of which the bucket may have more than is known here.
    pub(crate) slots: u64,
    /// Lookups that waited until it was known.
    pub(crate) waited: u64,
    /// Lookups that went on without, since it took too long.
    pub(crate) gave_up: u64,
}

impl Takeovers {
    /// A member is lost, which was the last to own `slots`; `caught_up` tells when its segments are
    /// known.
    pub(crate) fn begin(&self, member: &str, slots: SlotSet, caught_up: CatchUp, now: Instant) {
        let mut open = self.open.lock();
        open.retain(|it| it.member != member);
        open.push(Takeover {
            member: member.to_owned(),
            slots,
            until: now + WAIT_MAX,
            caught_up,
        });
        self.count.store(open.len(), Ordering::Release);
    }

    /// Waits until what the bucket has of a key is known, or it is too late for that.
    ///
    /// # Cancel safety
    /// Cancelling it loses nothing.
    pub(crate) async fn wait(&self, key: &[u8]) {
        if self.count.load(Ordering::Acquire) > 0 {
            // Boxed: lookups do not pay for it with memory.
            Box::pin(self.wait_for(placement::slot(key))).await;
        }
    }

    async fn wait_for(&self, slot: u16) {
        while let Some((until, caught_up)) = self.next(slot, Instant::now()) {
            let waited = tokio::time::timeout_at(until, caught_up.done());
            let counter = match waited.await {
                Ok(()) => &self.waited,
                Err(_) => &self.gave_up,
            };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What a lookup of a slot has to wait for.
    fn next(&self, slot: u16, now: Instant) -> Option<(Instant, CatchUp)> {
        let mut open = self.open.lock();
        self.forget_done(&mut open);
        let mut of_slot = open.iter().filter(|it| it.slots.contains(slot));
        let next = of_slot.find(|it| it.until > now)?;
        Some((next.until, next.caught_up.clone()))
    }

    fn forget_done(&self, open: &mut Vec<Takeover>) {
        open.retain(|it| !it.caught_up.is_done());
        self.count.store(open.len(), Ordering::Release);
    }

    pub(crate) fn status(&self) -> TakeoverStatus {
        let mut open = self.open.lock();
        self.forget_done(&mut open);
        let is_open = |slot: &u16| open.iter().any(|it| it.slots.contains(*slot));
        let slots = match open.is_empty() {
            true => 0,
            false => (0..SLOT_COUNT).filter(is_open).count() as u64,
        };
        TakeoverStatus {
            slots,
            waited: self.waited.load(Ordering::Relaxed),
            gave_up: self.gave_up.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::watch;

    const KEY: &[u8] = b"key";

    fn slots(of: &[&[u8]]) -> SlotSet {
        of.iter().map(|key| placement::slot(key)).collect()
    }

    fn begin(takeovers: &Takeovers, member: &str, of: &[&[u8]]) -> watch::Sender<bool> {
        let (done, is_done) = watch::channel(false);
        takeovers.begin(member, slots(of), is_done.into(), Instant::now());
        done
    }

    async fn waits(takeovers: &Takeovers, key: &[u8]) -> Duration {
        let began = Instant::now();
        takeovers.wait(key).await;
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn lookups_wait_only_for_slots_of_a_lost_member_and_until_one_deadline() {
        let takeovers = Takeovers::default();
        assert_eq!(waits(&takeovers, KEY).await, Duration::ZERO);
        let _never = begin(&takeovers, "a", &[KEY]);
        assert_eq!(takeovers.status().slots, 1);
        assert_eq!(waits(&takeovers, b"other").await, Duration::ZERO);
        tokio::time::sleep(Duration::from_millis(300)).await;
        // The deadline is that of the takeover: later lookups wait for less.
        assert_eq!(waits(&takeovers, KEY).await, Duration::from_millis(200));
        assert_eq!(waits(&takeovers, KEY).await, Duration::ZERO);
        // It is not known yet, all the same.
        let status = takeovers.status();
        assert_eq!((status.slots, status.waited, status.gave_up), (1, 0, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn lookups_go_on_as_soon_as_the_segments_are_followed() {
        let takeovers = Takeovers::default();
        let done = begin(&takeovers, "a", &[KEY]);
        let other = begin(&takeovers, "b", &[KEY, b"other"]);
        let finish = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            done.send_replace(true);
            tokio::time::sleep(Duration::from_millis(50)).await;
            other.send_replace(true);
        };
        let (took, ()) = tokio::join!(waits(&takeovers, KEY), finish);
        assert_eq!(took, Duration::from_millis(100));
        let status = takeovers.status();
        assert_eq!((status.slots, status.waited, status.gave_up), (0, 2, 0));
        assert_eq!(takeovers.count.load(Ordering::Acquire), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_member_that_is_lost_again_and_again_is_one_takeover() {
        let takeovers = Takeovers::default();
        for _ in 0..10 {
            drop(begin(&takeovers, "a", &[KEY]));
        }
        let _last = begin(&takeovers, "a", &[KEY]);
        assert_eq!(takeovers.count.load(Ordering::Acquire), 1);
        assert_eq!(waits(&takeovers, KEY).await, WAIT_MAX);
    }
}
