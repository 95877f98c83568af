//! Limits how many calls a store has to serve at once, and finds out how many that are.
//!
//! The limit grows by about one for each round of answers while it is used up, and is halved when
//! the store throttles or does not answer in time: additive increase, multiplicative decrease
//! (Chiu, Jain: "Analysis of the Increase and Decrease Algorithms", 1989). It is halved once for
//! all calls that were on their way together. Calls that were dropped before their answer say
//! nothing.
//!
//! What does not fit waits in two queues, each first come, first served, and bounded: a full one
//! answers [`StoreErrorKind::Throttled`]. Reads go before writes, lists and deletes, so that
//! spilling never starves a client:
//!
//! - a quarter of the limit is for reads alone, and a read does not wait where only writes run: it
//!   may be one call above the limit;
//! - after [`READS_IN_A_ROW_MAX`] reads that went before a waiting write, that goes next.

mod gate;

use std::sync::Arc;

use super::around::{Answer, Around, Call};
use super::{ObjectStore, StoreError, StoreErrorKind, StoreFuture};
use gate::{Class, Verdict};

pub use gate::{Gate, LimitSnapshot, READS_IN_A_ROW_MAX};

/// Bounds of the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitOptions {
    /// Calls at once, to begin with; at least 1.
    pub initial: u32,
    /// Most calls at once.
    pub max: u32,
    /// Most calls that wait, for reads and for all others.
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

/// A store with a limit.
#[derive(Debug)]
pub struct LimitStore {
    inner: Arc<dyn ObjectStore>,
    gate: Arc<Gate>,
}

impl LimitStore {
    /// Limits the calls to `inner`.
    #[must_use]
    pub fn new(inner: Arc<dyn ObjectStore>, options: LimitOptions) -> Self {
        Self {
            inner,
            gate: Arc::new(Gate::new(options)),
        }
    }

    /// The limit and its counters.
    #[must_use]
    pub fn stats(&self) -> Arc<Gate> {
        Arc::clone(&self.gate)
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
            let class = if call.operation.is_read() {
                Class::Read
            } else {
                Class::Write
            };
            let permit = gate::enter(&self.gate, class).await.map_err(|full| {
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
