//! What the disk tier must know of the bucket: what is in it, and what may be dropped.

use fonn_base::entry::Space;
use fonn_cold_tier::{ColdTier, CopyRef, Found};
use fonn_disk_tier::{Below, Leave, Leaving, TailPosition};
use parking_lot::Mutex;

/// The cold tier as the disk tier sees it.
pub(super) struct Gate {
    tier: ColdTier,
    /// Everything before it is in the bucket, or need not be.
    passed: Mutex<TailPosition>,
}

impl Gate {
    pub(super) fn new(tier: ColdTier) -> Self {
        let passed = TailPosition::from_bytes(tier.spill_cursor().as_bytes());
        Self {
            tier,
            passed: Mutex::new(passed),
        }
    }

    /// Notes how far the bucket has got.
    pub(super) fn pass(&self, position: TailPosition) {
        let mut passed = self.passed.lock();
        *passed = position.max(*passed);
    }
}

impl Below for Gate {
    fn find(&self, space: Space, key: &[u8]) -> Found {
        self.tier.find(space.0, key)
    }

    fn may_have(&self, space: Space, key: &[u8]) -> bool {
        self.tier.may_have(space.0, key)
    }

    fn passed(&self) -> TailPosition {
        *self.passed.lock()
    }

    fn leave(&self, end: TailPosition) -> Leave {
        if self.has_passed(end) {
            Leave::Now
        } else if self.tier.is_failing() {
            Leave::Lossy
        } else {
            self.tier.hurry();
            Leave::Wait
        }
    }

    fn lost(&self, records: &[Leaving]) -> bool {
        let copies: Vec<CopyRef<'_>> = records
            .iter()
            .map(|record| CopyRef {
                space: record.space.0,
                key: &record.key,
                at: record.version,
            })
            .collect();
        // A failure of the index is logged where it happens.
        self.tier.lost(&copies).is_ok()
    }
}
