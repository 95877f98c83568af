//! Waiting for the disk: one group of acknowledgements for all writes of one batch of requests.
//!
//! A connection executes all requests of one read from its socket. Then it waits once for the
//! group, and sends the replies. The group names refused writes by their index, so that the
//! connection can replace their replies.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fonn_proto::Failure;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::reactor::relayed;

/// The acknowledgements that one connection waits for.
#[derive(Debug, Default)]
pub struct AckGroup {
    /// Writes not yet acknowledged, and one more while the connection is still adding.
    open: AtomicUsize,
    failed: Mutex<Vec<(usize, Failure)>>,
    done: Notify,
}

impl AckGroup {
    /// A group with no writes.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            open: AtomicUsize::new(1),
            ..Self::default()
        })
    }

    /// An acknowledgement to give to the disk tier; `index` names the write to the connection.
    pub fn ack(self: &Arc<Self>, index: usize) -> Ack {
        self.open.fetch_add(1, Ordering::Relaxed);
        Ack {
            group: Arc::clone(self),
            index,
            result: Err(Failure::Unavailable),
        }
    }

    /// Waits until every acknowledgement was given, and returns the failures. Call it once.
    ///
    /// # Cancel safety
    /// Cancelling it loses nothing but the failures.
    pub async fn wait(&self) -> Vec<(usize, Failure)> {
        let notified = pin!(self.done.notified());
        if self.open.fetch_sub(1, Ordering::AcqRel) != 1 {
            relayed(notified).await;
        }
        std::mem::take(&mut *self.failed.lock())
    }
}

/// The duty to acknowledge one write. Dropped without [`Ack::complete`], it reports
/// [`Failure::Unavailable`], so that a lost write never looks like a durable one.
#[derive(Debug)]
#[must_use = "a write that is not acknowledged counts as failed"]
pub struct Ack {
    group: Arc<AckGroup>,
    index: usize,
    result: Result<(), Failure>,
}

impl Ack {
    /// Tells the result.
    pub fn complete(mut self, result: Result<(), Failure>) {
        self.result = result;
    }
}

impl Drop for Ack {
    fn drop(&mut self) {
        if let Err(failure) = self.result {
            self.group.failed.lock().push((self.index, failure));
        }
        if self.group.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.group.done.notify_one();
        }
    }
}
