//! The right of a member to answer (R6).

use std::time::Duration;

/// What a member knows about its lease.
///
/// The leader declares a member down only after the last lease that it granted to the member has
/// ended. So a member that is down in a topology answers nothing any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lease {
    /// The member holds no lease.
    None,
    /// The leader promised not to declare the member down before this time of the member's
    /// monotonic clock.
    Until(Duration),
    /// The member has heard no leader for so long that the cluster has probably lost its quorum.
    /// The member goes on by its last topology.
    NoQuorum,
}

impl Lease {
    /// Whether the member may answer at this time of its monotonic clock.
    #[must_use]
    pub fn permits(self, now: Duration) -> bool {
        match self {
            Self::None => false,
            Self::Until(end) => now < end,
            Self::NoQuorum => true,
        }
    }
}
