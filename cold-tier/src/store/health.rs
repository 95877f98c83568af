//! Whether the bucket answers, as each attempt of a call finds it.
//!
//! The meter, which tells it, lies below the retries: a call that is tried again for minutes says
//! nothing until its end, and a single failed attempt of a slow bucket says nothing at all.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use super::{Operation, StoreError};

/// How far apart two failures are, with no success between them, when the bucket counts as failing.
/// Eviction waits until then, and writes wait longer than that for room.
const PATIENCE_MS: u64 = 1_500;

/// How a bucket is doing, by kinds of calls.
#[derive(Debug, Default)]
pub struct BucketHealth {
    /// Whether objects can be put.
    pub(crate) puts: Health,
    /// Whether anything else works.
    pub(crate) others: Health,
}

impl BucketHealth {
    /// Notes how a call ended at `now_ms`, in monotonic milliseconds.
    pub(super) fn note<T>(
        &self,
        operation: Operation,
        result: &Result<T, StoreError>,
        now_ms: u64,
    ) {
        let is_put = matches!(operation, Operation::Put | Operation::PutIfAbsent);
        let health = if is_put { &self.puts } else { &self.others };
        match result {
            Err(error) if !error.kind.is_answer() => health.failed(now_ms),
            _ => health.worked(),
        }
    }
}

/// Whether calls of one kind are answered.
#[derive(Debug, Default)]
pub(crate) struct Health {
    /// When the first and the last call failed since one was answered: monotonic milliseconds.
    failed: Mutex<Option<(u64, u64)>>,
    has_worked: AtomicBool,
}

impl Health {
    fn worked(&self) {
        *self.failed.lock() = None;
        self.has_worked.store(true, Ordering::Relaxed);
    }

    fn failed(&self, now_ms: u64) {
        let mut failed = self.failed.lock();
        let first_ms = failed.map_or(now_ms, |(first_ms, _)| first_ms);
        *failed = Some((first_ms, now_ms));
    }

    /// Whether any call was answered yet.
    pub(crate) fn has_worked(&self) -> bool {
        self.has_worked.load(Ordering::Relaxed)
    }

    /// Whether calls have failed again and again for a while, and none was answered.
    pub(crate) fn is_failing(&self) -> bool {
        let failed = *self.failed.lock();
        failed.is_some_and(|(first_ms, last_ms)| last_ms.saturating_sub(first_ms) >= PATIENCE_MS)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use fonn_base::clock::{Clock, ManualClock};
    use fonn_base::random::SplitMix64;
    use tokio::time::timeout;

    use super::*;
    use crate::store::fault::{Fault, Rule};
    use crate::store::meter::Prices;
    use crate::store::retry::RetryOptions;
    use crate::store::{
        Body, FaultStore, MemoryStore, MeterStore, ObjectKey, ObjectStore, RetryStore,
        StoreErrorKind,
    };

    fn store(clock: Clock) -> (Arc<FaultStore>, Arc<BucketHealth>, MeterStore) {
        let faulty = Arc::new(FaultStore::new(Arc::new(MemoryStore::default()), 1));
        let store = MeterStore::new(Arc::clone(&faulty) as _, Prices::FREE, clock);
        (faulty, store.stats().health(), store)
    }

    #[tokio::test]
    async fn a_slow_bucket_of_which_one_attempt_fails_is_not_a_failing_one() {
        let manual = ManualClock::new(0);
        let (faulty, health, store) = store(manual.clock());
        let key = ObjectKey::new("a").unwrap();
        let put = || store.put(&key, Body::default());
        assert!(!health.puts.has_worked());
        faulty.go_down();
        put().await.unwrap_err();
        // The next attempt takes its time.
        manual.advance(Duration::from_secs(60));
        assert!(!health.puts.is_failing());
        faulty.come_up();
        put().await.unwrap();
        assert!(!health.puts.is_failing() && health.puts.has_worked());
        faulty.go_down();
        put().await.unwrap_err();
        manual.advance(Duration::from_millis(PATIENCE_MS - 1));
        put().await.unwrap_err();
        assert!(!health.puts.is_failing());
        manual.advance(Duration::from_millis(1));
        put().await.unwrap_err();
        assert!(health.puts.is_failing());
        // That there is no such object is an answer, and says nothing of puts.
        faulty.come_up();
        store.head(&ObjectKey::new("b").unwrap()).await.unwrap_err();
        assert!(health.others.has_worked() && health.puts.is_failing());
        put().await.unwrap();
        assert!(!health.puts.is_failing());
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_succeeds_in_the_end_tells_of_its_failed_attempts() {
        let manual = ManualClock::new(0);
        let (faulty, health, store) = store(manual.clock());
        faulty.add(Rule::new(Fault::Error(StoreErrorKind::Throttled)).times(2));
        let random = SplitMix64::new(1);
        let store = RetryStore::new(Arc::new(store), RetryOptions::default(), random);
        let key = ObjectKey::new("a").unwrap();
        let mut put = store.put(&key, Body::default());
        // An attempt has failed, and the next one waits.
        let pause = timeout(Duration::from_millis(1), &mut put).await;
        assert!(pause.is_err(), "{pause:?}");
        assert_eq!(*health.puts.failed.lock(), Some((0, 0)));
        manual.advance(Duration::from_secs(3));
        put.await.unwrap();
        assert_eq!(*health.puts.failed.lock(), None);
        assert_eq!(faulty.injected(), 2);
    }
}
