//! Limits how many calls a store has to serve at once, and finds out how many that are.
//!
//! The limit grows by about one for each round of answers while it is used up, and is halved when
//! the store throttles or does not answer in time: additive increase, multiplicative decrease
//! (Chiu, Jain: "Analysis of the Increase and Decrease Algorithms", 1989). It is halved once for
//! all calls that were on their way together. Calls that were dropped before their answer say
//! nothing.
//!
//! Reads have a limit of their own, apart from writes, lists and deletes: neither waits for the
//! other, so that spilling never starves a client. What does not fit waits, first come, first
//! served. The queue is bounded: a full one answers [`StoreErrorKind::Throttled`].

mod gate;

use std::sync::Arc;

use super::around::{Answer, Around, Call};
use super::{ObjectStore, StoreError, StoreErrorKind, StoreFuture};
use gate::Verdict;

pub use gate::{Gate, LimitSnapshot};

/// Bounds of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitOptions {
    /// Calls at once, to begin with; at least 1.
    pub initial: u32,
    /// Most calls at once.
    pub max: u32,
    /// Most calls that wait.
    pub queue_max: usize,
}

impl Default for LimitOptions {
    fn default() -> Self {
        Self {
            initial: 16,
            max: 128,
            queue_max: 4096,
        }
    }
}

/// A store with limits.
#[derive(Debug)]
pub struct LimitStore {
    inner: Arc<dyn ObjectStore>,
    reads: Arc<Gate>,
    others: Arc<Gate>,
}

impl LimitStore {
    /// Limits the calls to `inner`, reads and all others with these bounds each.
    #[must_use]
    pub fn new(inner: Arc<dyn ObjectStore>, options: LimitOptions) -> Self {
        Self {
            inner,
            reads: Arc::new(Gate::new(options)),
            others: Arc::new(Gate::new(options)),
        }
    }

    /// The limits and their counters, each with the name of its class.
    #[must_use]
    pub fn limits(&self) -> [(&'static str, Arc<Gate>); 2] {
        let (reads, others) = (Arc::clone(&self.reads), Arc::clone(&self.others));
        [("read", reads), ("write", others)]
    }
}

impl Around for LimitStore {
    fn inner(&self) -> &dyn ObjectStore {
        self.inner.as_ref()
    }

    fn around<'a, T: Answer>(
        &'a self,
        call: Call<'a>,
        start: impl Fn() -> StoreFuture<'a, T> + Send + Sync + 'a,
    ) -> StoreFuture<'a, T> {
        Box::pin(async move {
            let gate = if call.operation.is_read() {
                &self.reads
            } else {
                &self.others
            };
            let permit = gate::enter(gate).await.map_err(|full| {
                let kind = StoreErrorKind::Throttled;
                StoreError::new(call.operation, call.subject, kind).with_source(full)
            })?;
            let result = start().await;
            permit.leave(match &result {
                Err(error) => match error.kind {
                    StoreErrorKind::Throttled | StoreErrorKind::Timeout => Verdict::Overloaded,
                    StoreErrorKind::Unavailable => Verdict::Unknown,
                    _ => Verdict::Served,
                },
                Ok(_) => Verdict::Served,
            });
            result
        })
    }
}

#[cfg(test)]
mod tests;
