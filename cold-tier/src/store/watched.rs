//! The bucket for work in the background: each call has a deadline, and tells how the bucket is
//! doing.

use std::sync::Arc;
use std::time::Duration;

use fonn_base::clock::Clock;
use parking_lot::Mutex;
use tokio::time::timeout;

use super::around::{Answer, Around, Call};
use super::{ObjectStore, Operation, StoreError, StoreErrorKind, StoreFuture};
use crate::health::Health;

/// How long a call may take besides its bytes.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// A store whose calls end in time.
#[derive(Debug)]
pub(crate) struct WatchedStore {
    inner: Arc<dyn ObjectStore>,
    clock: Clock,
    /// Whether objects can be put, and whether anything else works.
    pub(crate) puts: Health,
    pub(crate) others: Health,
    last_error: Mutex<Option<String>>,
}

impl WatchedStore {
    pub(crate) fn new(inner: Arc<dyn ObjectStore>, clock: Clock) -> Self {
        Self {
            inner,
            clock,
            puts: Health::default(),
            others: Health::default(),
            last_error: Mutex::default(),
        }
    }

    pub(crate) fn note_error(&self, error: &StoreError) {
        use StoreErrorKind as Kind;
        // Followers and collectors ask for what may not be there.
        if !matches!(
            error.kind,
            Kind::NotFound | Kind::AlreadyExists | Kind::Unsupported
        ) {
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
            let is_put = matches!(call.operation, Operation::Put | Operation::PutIfAbsent);
            let health = if is_put { &self.puts } else { &self.others };
            match &result {
                Err(error) if !error.kind.is_answer() => health.failed(self.clock.monotonic_ms()),
                _ => health.worked(),
            }
            if let Err(error) = &result {
                self.note_error(error);
            }
            result
        })
    }
}
