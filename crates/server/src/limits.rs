//! How many connections the process may have.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Most client connections, however many descriptors there are.
const CONNECTIONS_MAX: u64 = 65_536;

/// Raises the limit of descriptors as far as it goes, and says how many client connections fit
/// beside `reserved` descriptors for other purposes.
#[must_use]
pub fn connections_max(reserved: u64) -> usize {
    let limit = getrlimit(Resource::Nofile);
    // A soft limit that cannot be raised is what there is to work with.
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    );
    let now = getrlimit(Resource::Nofile)
        .current
        .unwrap_or(CONNECTIONS_MAX.saturating_add(reserved));
    now.saturating_sub(reserved).clamp(16, CONNECTIONS_MAX) as usize
}
