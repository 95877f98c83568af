//! Turns of batches that hold much: no budget counts the values that a batch fetches, decodes or
//! returns.
//!
//! A batch fetches [`FREE_LEN_MAX`] bytes of values without a turn, decodes and makes as many
//! before the locks are taken, and returns as many. With a turn it may do so with up to
//! [`BATCH_VALUES_LEN_MAX`] bytes, or with one longer value. The outcomes keep the turn if
//! they are long, until they are worded. A client that reads slowly keeps no turn, because its
//! unsent replies count by themselves.
//!
//! A batch takes one turn at most, so no batch waits for a turn while it has one.

use std::sync::Arc;
use std::time::Instant;

use fonn_proto::batch::BATCH_VALUES_LEN_MAX;
use fonn_proto::{Failure, Outcome, StepOutcomes};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout_at;

/// Batches of a node that have a turn at a time.
pub(in super::super) const TURNS: usize = 4;

/// Bytes of values that a batch without a turn holds at most, of each kind.
pub(super) const FREE_LEN_MAX: usize = 64 * 1024;

/// The turn of a batch, once it has one, and what the batch may hold by that.
pub(super) struct Turn {
    permit: Option<OwnedSemaphorePermit>,
    /// Bytes of values that may be decoded and made before the locks are taken.
    left: usize,
    /// Whether one value of any size may be, as by a single command.
    takes_any: bool,
}

impl Turn {
    /// A batch has none at first.
    pub(super) fn none() -> Self {
        Self {
            permit: None,
            left: FREE_LEN_MAX,
            takes_any: false,
        }
    }

    pub(super) fn is_held(&self) -> bool {
        self.permit.is_some()
    }

    /// Charges `len` bytes that are decoded or made before the locks are taken. False if they are
    /// too many; nothing is charged then.
    pub(super) fn may_make(&mut self, len: usize) -> bool {
        let fits = len <= self.left || self.takes_any;
        if fits {
            self.left = self.left.saturating_sub(len);
            self.takes_any &= len == 0;
        }
        fits
    }

    fn begin(&mut self, permit: OwnedSemaphorePermit) {
        *self = Self {
            permit: Some(permit),
            left: BATCH_VALUES_LEN_MAX,
            takes_any: true,
        };
    }

    /// Takes a turn if the batch has none and one is free. False if the batch still has none.
    pub(super) fn try_take(&mut self, turns: &Arc<Semaphore>) -> bool {
        if !self.is_held()
            && let Ok(permit) = Arc::clone(turns).try_acquire_owned()
        {
            self.begin(permit);
        }
        self.is_held()
    }

    /// Waits for a turn, in the order of the calls.
    ///
    /// # Cancel safety
    /// Cancelled, no turn is taken.
    pub(super) async fn wait(&mut self, turns: &Arc<Semaphore>) {
        // It is never closed.
        if !self.is_held()
            && let Ok(permit) = Arc::clone(turns).acquire_owned().await
        {
            self.begin(permit);
        }
    }

    /// Waits for a turn until a deadline.
    ///
    /// # Errors
    /// [`Failure::Busy`] at the deadline.
    pub(super) async fn take(
        &mut self,
        turns: &Arc<Semaphore>,
        deadline: Instant,
    ) -> Result<(), Failure> {
        let taken = timeout_at(deadline.into(), self.wait(turns)).await;
        taken.map_err(|_| Failure::Busy)
    }

    /// The outcomes of a batch. They keep the turn if they are long.
    pub(super) fn given_with(self, outcomes: Vec<Outcome<'static>>) -> StepOutcomes {
        let len: usize = outcomes.iter().map(returned_len).sum();
        let outcomes = StepOutcomes::from(outcomes);
        match self.permit {
            Some(permit) if len > FREE_LEN_MAX => outcomes.holding(permit),
            _ => outcomes,
        }
    }
}

/// Bytes of the value that a step returned.
fn returned_len(outcome: &Outcome<'_>) -> usize {
    match outcome {
        Outcome::Hit(hit) => hit.value.as_slice().len(),
        Outcome::Stored(stored) => stored.previous.as_ref().map_or(0, |it| it.len()),
        Outcome::NotStored(previous) => previous.as_ref().map_or(0, |it| it.len()),
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
