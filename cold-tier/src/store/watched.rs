//! The bucket for work in the background: each call has a deadline, and tells how the bucket is
//! doing.

use std::sync::Arc;
use std::time::Duration;

use fonn_base::clock::Clock;
use parking_lot::Mutex;
use tokio::time::timeout;

use super::around::{Answer, Around, Call};
use super::health::BucketHealth;
use super::{ObjectStore, StoreError, StoreErrorKind, StoreFuture};

/// How long a call may take with all of its retries, besides its bytes.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// A store whose calls end in time.
#[derive(Debug)]
pub(crate) struct WatchedStore {
    inner: Arc<dyn ObjectStore>,
    clock: Clock,
    health: Arc<BucketHealth>,
    last_error: Mutex<Option<String>>,
}

impl WatchedStore {
    /// Notes in `health` how calls end, also those that are left without an answer, of which no
    /// attempt tells.
    pub(crate) fn new(
        inner: Arc<dyn ObjectStore>,
        clock: Clock,
        health: Arc<BucketHealth>,
    ) -> Self {
        Self {
            inner,
            clock,
            health,
            last_error: Mutex::default(),
        }
    }

    pub(crate) fn note_error(&self, error: &StoreError) {
        // Followers and collectors ask for what may not be there.
        if !error.kind.is_answer() {
            self.note(error.to_string());
        }
    }

    /// Notes a failure for the status.
    pub(crate) fn note(&self, message: String) {
        *self.last_error.lock() = Some(message);
    }

    pub(crate) fn last_error(&self) -> Option<String> {
        self.last_error.lock().clone()
    }
}

impl Around for WatchedStore {
    fn inner(&self) -> &dyn ObjectStore {
        self.inner.as_ref()
    }

    fn around<'a, T: Answer>(
        &'a self,
        call: Call<'a>,
        start: impl Fn() -> StoreFuture<'a, T> + Send + Sync + 'a,
    ) -> StoreFuture<'a, T> {
        Box::pin(async move {
            let limit = CALL_TIMEOUT + call.time_of_bytes();
            let result = timeout(limit, start()).await.unwrap_or_else(|_| {
                let kind = StoreErrorKind::Timeout;
                Err(StoreError::new(call.operation, call.subject, kind))
            });
            let now_ms = self.clock.monotonic_ms();
            self.health.note(call.operation, &result, now_ms);
            if let Err(error) = &result {
                self.note_error(error);
            }
            result
        })
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use fonn_base::random::SplitMix64;
    use tokio::time::{Instant, sleep};

    use super::*;
    use crate::store::fault::{Fault, Rule};
    use crate::store::retry::RetryOptions;
    use crate::store::{Body, FaultStore, MemoryStore, ObjectKey, Operation, RetryStore};

    /// A store behind the slowest line that is waited for, which has every object already.
    #[derive(Debug)]
    struct SlowLine(MemoryStore);

    impl Around for SlowLine {
        fn inner(&self) -> &dyn ObjectStore {
            &self.0
        }

        fn around<'a, T: Answer>(
            &'a self,
            call: Call<'a>,
            _start: impl Fn() -> StoreFuture<'a, T> + Send + Sync + 'a,
        ) -> StoreFuture<'a, T> {
            Box::pin(async move {
                sleep(call.time_of_bytes()).await;
                let kind = StoreErrorKind::AlreadyExists;
                Err(StoreError::new(call.operation, call.subject, kind))
            })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_largest_object_is_waited_for_over_the_slowest_line() {
        let line = Arc::new(SlowLine(MemoryStore::default()));
        let random = SplitMix64::new(1);
        let retried = RetryStore::new(line, RetryOptions::default(), random);
        let store = WatchedStore::new(Arc::new(retried), Clock::system(), Arc::default());
        let chunk = Bytes::from(vec![0; 1 << 20]);
        let body: Body = vec![chunk; 1024].into();
        let key = ObjectKey::new("a").unwrap();
        let error = store.put(&key, body).await.unwrap_err();
        assert_eq!(error.kind, StoreErrorKind::AlreadyExists, "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_hanging_store_is_left_at_the_deadline() {
        let faulty = Arc::new(FaultStore::new(Arc::new(MemoryStore::default()), 7));
        faulty.add(Rule::new(Fault::Hang));
        let random = SplitMix64::new(1);
        let retried = RetryStore::new(faulty, RetryOptions::default(), random);
        let store = WatchedStore::new(Arc::new(retried), Clock::system(), Arc::default());
        let key = ObjectKey::new("a").unwrap();
        // An object that is read as a whole has the time of 64 MiB besides.
        for (operation, deadline) in [
            (Operation::Head, 30),
            (Operation::Get, 95),
            (Operation::Put, 30),
        ] {
            let begun = Instant::now();
            let error = match operation {
                Operation::Head => store.head(&key).await.map(drop).unwrap_err(),
                Operation::Get => store.get(&key).await.map(drop).unwrap_err(),
                _ => store.put(&key, "body".into()).await.unwrap_err(),
            };
            let (kind, of) = (error.kind, error.operation);
            assert_eq!((kind, of), (StoreErrorKind::Timeout, operation));
            assert_eq!(begun.elapsed().as_secs(), deadline);
        }
    }
}
