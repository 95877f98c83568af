//! What tests of the tiers above do with a disk tier.

#![allow(clippy::unwrap_used, reason = "only tests are built with it")]

use std::time::{Duration, Instant};

use crate::queue::Order;
use crate::{DiskTier, compaction};

/// How long something that another thread does may take.
const GRACE: Duration = Duration::from_secs(120);

impl DiskTier {
    /// Begins a new generation and compacts all before it: for tests of the tiers above, whose
    /// compaction thread does not run.
    pub async fn compact_all(&self) {
        let shared = &self.handle.shared;
        let newest = || shared.generations.newest().unwrap();
        if newest().log.end() > 0 {
            within(|| shared.has_spare()).await;
            let id = newest().id;
            shared.queue.push_order(Order::Roll);
            self.barrier().await;
            assert_ne!(newest().id, id);
        }
        for source in shared.generations.snapshot().iter().skip(1) {
            within(|| source.is_sealed()).await;
            if !source.has_been_compacted() {
                assert!(compaction::compact(shared, source));
            }
        }
    }
}

/// Waits until something that another thread does has happened.
pub(crate) async fn within(mut has_happened: impl FnMut() -> bool) {
    let deadline = Instant::now() + GRACE;
    while !has_happened() {
        assert!(Instant::now() < deadline, "did not happen");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
