//! Whether the bucket answers at all.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How long everything must have failed before the bucket counts as failing: eviction waits until
/// then.
const PATIENCE_MS: u64 = 2_000;

/// The time since which every call has failed.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// Monotonic milliseconds plus one; 0 while calls work.
    failing_since: AtomicU64,
    has_worked: AtomicBool,
}

impl Health {
    /// A call was answered.
    pub(crate) fn worked(&self) {
        self.failing_since.store(0, Ordering::Relaxed);
        self.has_worked.store(true, Ordering::Relaxed);
    }

    /// Whether any call was answered yet.
    pub(crate) fn has_worked(&self) -> bool {
        self.has_worked.load(Ordering::Relaxed)
    }

    /// A call was not.
    pub(crate) fn failed(&self, now_ms: u64) {
        let first = self.failing_since.compare_exchange(
            0,
            now_ms.saturating_add(1),
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        // It has failed before as well.
        let _ = first;
    }

    /// Whether nothing has worked for a while.
    pub(crate) fn is_failing(&self, now_ms: u64) -> bool {
        match self.failing_since.load(Ordering::Relaxed) {
            0 => false,
            since => now_ms.saturating_add(1).saturating_sub(since) >= PATIENCE_MS,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_answer_ends_it_and_one_failure_is_not_enough() {
        let health = Health::default();
        assert!(!health.is_failing(10) && !health.has_worked());
        health.failed(10);
        assert!(!health.is_failing(10 + PATIENCE_MS - 1));
        health.failed(10 + PATIENCE_MS - 1);
        assert!(health.is_failing(10 + PATIENCE_MS));
        assert!(!health.has_worked());
        health.worked();
        assert!(!health.is_failing(u64::MAX) && health.has_worked());
        health.failed(0);
        assert!(!health.is_failing(PATIENCE_MS - 1));
        assert!(health.is_failing(PATIENCE_MS));
    }
}
