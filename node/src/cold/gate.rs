//! What the disk tier must know of the bucket: what is in it, and what may be dropped.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fonn_base::entry::Space;
use fonn_cold_tier::store::retry::RetryStats;
use fonn_cold_tier::{ColdTier, Found, LostCopy};
use fonn_disk_tier::{Below, Leave, Leaving, TailPosition};
use parking_lot::Mutex;

/// How long a generation waits for a bucket that makes no progress and lets requests fail. Less
/// than writes wait for room.
const PATIENCE: Duration = Duration::from_secs(2);

/// A pause in the asking after which waiting begins anew.
const PAUSE: Duration = Duration::from_secs(1);

/// The cold tier as the disk tier sees it.
pub(super) struct Gate {
    tier: ColdTier,
    /// Everything before it is in the bucket, or need not be.
    passed: Mutex<TailPosition>,
    retries: Arc<RetryStats>,
    waiting: Mutex<Option<Waiting>>,
}

/// A generation waits to be dropped.
#[derive(Clone, Copy)]
struct Waiting {
    /// How far the bucket was then.
    passed: TailPosition,
    retries: u64,
    since: Instant,
    asked: Instant,
}

impl Gate {
    pub(super) fn new(tier: ColdTier, retries: Arc<RetryStats>) -> Self {
        let passed = TailPosition::from_bytes(tier.spill_cursor().as_bytes());
        Self {
            tier,
            passed: Mutex::new(passed),
            retries,
            waiting: Mutex::default(),
        }
    }

    /// Notes how far the bucket has got.
    pub(super) fn pass(&self, position: TailPosition) {
        let mut passed = self.passed.lock();
        *passed = position.max(*passed);
    }

    /// Whether it is pointless to wait on: the bucket has failed again and again since it was first
    /// waited for, and nothing has got there.
    fn is_stuck(&self) -> bool {
        let (now, passed, retries) = (Instant::now(), self.passed(), self.retries.retries());
        let mut waiting = self.waiting.lock();
        let same = waiting.filter(|it| it.passed == passed && now - it.asked < PAUSE);
        let begun = same.unwrap_or(Waiting {
            passed,
            retries,
            since: now,
            asked: now,
        });
        *waiting = Some(Waiting {
            asked: now,
            ..begun
        });
        now - begun.since >= PATIENCE && retries > begun.retries
    }

    /// How far the bucket has got.
    pub(super) fn passed(&self) -> TailPosition {
        *self.passed.lock()
    }
}

impl Below for Gate {
    fn find(&self, space: Space, key: &[u8]) -> Found {
        self.tier.find(space.0, key)
    }

    fn may_have(&self, space: Space, key: &[u8]) -> bool {
        !self.tier.is_ready() || matches!(self.find(space, key), Found::At(_))
    }

    fn has_passed(&self, end: TailPosition) -> bool {
        self.passed() >= end
    }

    fn leave(&self, end: TailPosition) -> Leave {
        if self.has_passed(end) {
            Leave::Now
        } else if self.tier.is_failing() || self.is_stuck() {
            Leave::Lossy
        } else {
            self.tier.hurry();
            Leave::Wait
        }
    }

    fn lost(&self, records: &[Leaving]) {
        let copies: Vec<LostCopy<'_>> = records
            .iter()
            .map(|record| LostCopy {
                space: record.space.0,
                key: &record.key,
                at: record.version,
                len: record.len,
            })
            .collect();
        self.tier.lost(&copies);
    }
}
