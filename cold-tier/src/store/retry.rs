//! Tries again what may succeed the next time.
//!
//! Throttling, timeouts and failures of the store are retried
//! ([`StoreErrorKind::is_retryable`](super::StoreErrorKind::is_retryable)), after a wait with full
//! jitter, up to a number of attempts. The deadline of the whole call is the caller's. All calls
//! share a budget: each retry takes from it and each answer of a working store gives a part back,
//! so a store that is down gets hardly more requests than one that works, instead of a multiple of
//! them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fonn_base::backoff::Backoff;
use fonn_base::random::SplitMix64;
use parking_lot::Mutex;
use tokio::time::sleep;

use super::around::{Answer, Around, Call};
use super::{ObjectStore, StoreFuture};

/// How often is retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryOptions {
    /// The waits between attempts.
    pub backoff: Backoff,
    /// Retries that may be spent without any success in between.
    pub budget_max: u32,
    /// Answers of the store that pay for one retry.
    pub answers_per_retry: u32,
}

impl Default for RetryOptions {
    fn default() -> Self {
        Self {
            backoff: Backoff {
                base: Duration::from_millis(50),
                cap: Duration::from_secs(5),
                attempts_max: 8,
            },
            budget_max: 64,
            answers_per_retry: 8,
        }
    }
}

/// A store whose calls are tried again.
#[derive(Debug)]
pub struct RetryStore {
    inner: Arc<dyn ObjectStore>,
    options: RetryOptions,
    random: Mutex<SplitMix64>,
    budget: Budget,
    retries: Arc<AtomicU64>,
}

impl RetryStore {
    /// Retries around `inner`; `random` spreads the waits.
    #[must_use]
    pub fn new(inner: Arc<dyn ObjectStore>, options: RetryOptions, random: SplitMix64) -> Self {
        Self {
            inner,
            options,
            random: Mutex::new(random),
            budget: Budget::new(options.budget_max, options.answers_per_retry),
            retries: Arc::default(),
        }
    }

    /// Counts the attempts after the first.
    #[must_use]
    pub fn retries(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.retries)
    }

    /// The wait before the next attempt, or `None` when there is to be none.
    fn delay(&self, attempt: u32) -> Option<Duration> {
        let delay = self
            .options
            .backoff
            .delay(attempt, &mut self.random.lock())?;
        self.budget.take().then_some(delay)
    }
}

impl Around for RetryStore {
    fn inner(&self) -> &dyn ObjectStore {
        self.inner.as_ref()
    }

    fn around<'a, T: Answer>(
        &'a self,
        _call: Call<'a>,
        start: impl Fn() -> StoreFuture<'a, T> + Send + Sync + 'a,
    ) -> StoreFuture<'a, T> {
        Box::pin(async move {
            let mut attempt = 0;
            loop {
                let error = match start().await {
                    Err(error) if error.is_retryable() => error,
                    answered => {
                        self.budget.give_back();
                        return answered;
                    }
                };
                let Some(delay) = self.delay(attempt) else {
                    return Err(error);
                };
                self.retries.fetch_add(1, Ordering::Relaxed);
                sleep(delay).await;
                attempt += 1;
            }
        })
    }
}

/// A bucket of tokens, counted in parts of a retry.
#[derive(Debug)]
struct Budget {
    parts: AtomicU64,
    parts_max: u64,
    parts_per_retry: u64,
}

impl Budget {
    fn new(retries_max: u32, answers_per_retry: u32) -> Self {
        let parts_per_retry = u64::from(answers_per_retry.max(1));
        let parts_max = u64::from(retries_max) * parts_per_retry;
        Self {
            parts: AtomicU64::new(parts_max),
            parts_max,
            parts_per_retry,
        }
    }

    fn take(&self) -> bool {
        self.change(|parts| parts.checked_sub(self.parts_per_retry))
    }

    fn give_back(&self) {
        self.change(|parts| (parts < self.parts_max).then_some(parts + 1));
    }

    fn change(&self, to: impl Fn(u64) -> Option<u64>) -> bool {
        let relaxed = Ordering::Relaxed;
        self.parts.fetch_update(relaxed, relaxed, to).is_ok()
    }
}

#[cfg(test)]
mod tests;
