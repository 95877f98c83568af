//! The memory that clients may make the server hold.

use std::sync::atomic::{AtomicUsize, Ordering};

/// What requests on their way in and replies on their way out are counted against.
pub trait Budget: Send + Sync {
    /// Bytes at most, of requests and replies together.
    fn bytes_max(&self) -> usize;

    /// Bytes reserved for requests that are arriving.
    fn reserved(&self) -> usize;

    /// Reserves bytes for a request. False if more than `reserved_max` would be reserved then, or
    /// if the memory is not there yet.
    fn reserve(&self, bytes: usize, reserved_max: usize) -> bool;

    /// Gives back what [`Budget::reserve`] took.
    fn release(&self, bytes: usize);

    /// Counts bytes of replies that their client does not read, which are there already.
    fn hold(&self, bytes: usize);

    /// Takes back what [`Budget::hold`] counted.
    fn let_go(&self, bytes: usize);
}

/// A fixed number of bytes that no other user has.
#[derive(Debug)]
pub struct FixedBudget {
    bytes_max: usize,
    reserved: AtomicUsize,
}

impl FixedBudget {
    /// A budget of so many bytes.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            reserved: AtomicUsize::new(0),
        }
    }
}

impl Budget for FixedBudget {
    fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    fn reserved(&self) -> usize {
        self.reserved.load(Ordering::Acquire)
    }

    fn reserve(&self, bytes: usize, reserved_max: usize) -> bool {
        let reserve = |now: usize| {
            // One request always goes, however small the budget.
            (now == 0 || now.saturating_add(bytes) <= reserved_max)
                .then(|| now.saturating_add(bytes))
        };
        let reserved = self
            .reserved
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, reserve);
        reserved.is_ok()
    }

    fn release(&self, bytes: usize) {
        self.reserved.fetch_sub(bytes, Ordering::AcqRel);
    }

    fn hold(&self, _: usize) {}

    fn let_go(&self, _: usize) {}
}
