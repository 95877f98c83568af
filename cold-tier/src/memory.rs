//! A bound on the bytes that are on their way.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Granularity: a semaphore counts in 32 bits.
const UNIT: u64 = 1024;

/// Bytes that may be held at a time. What is larger than all of it passes when nothing else is
/// held: one large value at a time.
#[derive(Clone, Debug)]
pub(crate) struct MemoryGate {
    units: Arc<Semaphore>,
    units_max: u32,
}

/// Bytes held; given back on drop.
#[derive(Debug)]
#[must_use = "the bytes are given back when it is dropped"]
pub(crate) struct Held {
    permit: OwnedSemaphorePermit,
    gate: MemoryGate,
}

impl Held {
    /// Gives back what is beyond `bytes`.
    pub(crate) fn shrink(&mut self, bytes: u64) {
        let units = usize::try_from(bytes.div_ceil(UNIT))
            .unwrap_or(usize::MAX)
            .max(1);
        // None if it is not more than that.
        let beyond = self.permit.num_permits().saturating_sub(units);
        drop(self.permit.split(beyond));
    }

    /// Holds `bytes` together, if it does so or more may be held at once; else nothing changes. A
    /// caller that waited for more while holding some could wait for another caller that does the
    /// same.
    #[must_use]
    pub(crate) fn try_extend(&mut self, bytes: u64) -> bool {
        let missing = self.gate.units_for(bytes) as usize;
        let missing = missing.saturating_sub(self.permit.num_permits());
        let more = u32::try_from(missing).ok().and_then(|missing| {
            let units = Arc::clone(&self.gate.units);
            units.try_acquire_many_owned(missing).ok()
        });
        match more {
            Some(more) => {
                self.permit.merge(more);
                true
            }
            None => false,
        }
    }
}

impl MemoryGate {
    pub(crate) fn new(bytes: u64) -> Self {
        let units_max = u32::try_from(bytes / UNIT).unwrap_or(u32::MAX >> 4).max(1);
        // The semaphore's own limit is far above on 64-bit machines.
        let units = Arc::new(Semaphore::new(units_max as usize));
        Self { units, units_max }
    }

    /// Waits until `bytes` may be held; the callers that came first go first.
    ///
    /// # Cancel safety
    /// Cancelling it gives up the place in the queue.
    pub(crate) async fn hold(&self, bytes: u64) -> Held {
        let held = Arc::clone(&self.units).acquire_many_owned(self.units_for(bytes));
        self.held(held.await.expect("the semaphore is never closed"))
    }

    /// Holds `bytes` if that is possible at once.
    pub(crate) fn try_hold(&self, bytes: u64) -> Option<Held> {
        let held = Arc::clone(&self.units).try_acquire_many_owned(self.units_for(bytes));
        held.ok().map(|permit| self.held(permit))
    }

    fn held(&self, permit: OwnedSemaphorePermit) -> Held {
        let gate = self.clone();
        Held { permit, gate }
    }

    /// Bytes that may be held together.
    pub(crate) fn capacity_bytes(&self) -> u64 {
        u64::from(self.units_max) * UNIT
    }

    fn units_for(&self, bytes: u64) -> u32 {
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
        units.clamp(1, self.units_max)
    }

    /// Bytes held now.
    pub(crate) fn used_bytes(&self) -> u64 {
        let free = self.units.available_permits() as u64;
        (u64::from(self.units_max)).saturating_sub(free) * UNIT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_larger_than_everything_passes_alone() {
        let gate = MemoryGate::new(8 << 10);
        let small = gate.hold(1).await;
        let large = gate.hold(1 << 40);
        tokio::pin!(large);
        assert!(futures_are_pending(&mut large).await);
        drop(small);
        let large = large.await;
        assert_eq!(gate.used_bytes(), 8 << 10);
        drop(large);
        assert_eq!(gate.used_bytes(), 0);
    }

    #[tokio::test]
    async fn what_is_not_needed_is_given_back() {
        let gate = MemoryGate::new(8 << 10);
        let mut held = gate.hold(8 << 10).await;
        held.shrink(3000);
        assert_eq!(gate.used_bytes(), 3 << 10);
        held.shrink(1 << 30);
        assert_eq!(gate.used_bytes(), 3 << 10);
        held.shrink(0);
        assert_eq!(gate.used_bytes(), 1 << 10);
    }

    #[tokio::test]
    async fn more_is_held_at_once_or_not_at_all() {
        let gate = MemoryGate::new(8 << 10);
        let mut held = gate.hold(3 << 10).await;
        assert!(held.try_extend(2 << 10));
        assert_eq!(gate.used_bytes(), 3 << 10);
        assert!(held.try_extend(5 << 10));
        assert_eq!(gate.used_bytes(), 5 << 10);
        let other = gate.hold(2 << 10).await;
        assert!(!held.try_extend(7 << 10));
        assert_eq!(gate.used_bytes(), 7 << 10);
        drop(other);
        // What is larger than all of it passes alone.
        assert!(held.try_extend(1 << 40));
        assert_eq!(gate.used_bytes(), gate.capacity_bytes());
        drop(held);
        assert_eq!(gate.used_bytes(), 0);
    }

    async fn futures_are_pending<F: Future + Unpin>(future: &mut F) -> bool {
        tokio::select! {
            biased;
            _ = future => false,
            () = tokio::task::yield_now() => true,
        }
    }
}
