//! The memory that clients may make the server hold.

/// What requests on their way in and replies on their way out are counted against.
pub trait Budget: Send + Sync {
    /// Bytes at most, of requests and replies together.
    fn bytes_max(&self) -> usize;

    /// Counts bytes of a request that are about to come. False, and nothing is counted, if the
    /// memory for them is not there yet.
    fn try_hold(&self, bytes: usize) -> bool;

    /// Counts bytes that are there already: of replies that their client does not read, or of what
    /// a connection keeps.
    fn hold(&self, bytes: usize);

    /// Takes back what [`Budget::try_hold`] or [`Budget::hold`] counted.
    fn let_go(&self, bytes: usize);
}

/// A fixed number of bytes that no other user has.
#[derive(Debug)]
pub struct FixedBudget {
    bytes_max: usize,
}

impl FixedBudget {
    /// A budget of so many bytes.
    #[must_use]
    pub const fn new(bytes_max: usize) -> Self {
        Self { bytes_max }
    }
}

impl Budget for FixedBudget {
    fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    fn try_hold(&self, _: usize) -> bool {
        true
    }

    fn hold(&self, _: usize) {}

    fn let_go(&self, _: usize) {}
}
