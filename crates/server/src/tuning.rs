//! How patient the server is, and how it shares memory among connections.

use std::time::Duration;

/// Bounds on what a client may hold, and for how long. The defaults are what node and router run
/// with; tests shorten the times.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// A client that stops in the middle of a request, or of reading its replies, for this long is
    /// cut off.
    pub stall_max: Duration,
    /// A connection has so long for its TLS handshake and, where there are users, its login. The
    /// time that the server takes to check the password is not counted.
    pub startup_max: Duration,
    /// A request that memory is reserved for has to arrive at this rate at least, in bytes a
    /// second, in every `rate_window`, so that the memory is not held for ever.
    pub rate_min: u64,
    /// The time over which `rate_min` is measured.
    pub rate_window: Duration,
    /// As `rate_min`, while other requests wait for memory.
    pub contended_rate_min: u64,
    /// As `rate_window`, for `contended_rate_min`; shorter than `memory_wait`, so that the requests
    /// that wait profit.
    pub contended_window: Duration,
    /// How long a request waits for memory before it is refused as busy.
    pub memory_wait: Duration,
    /// A connection that is closed for what it sent reads on for this long, so that its last reply
    /// is not lost: closing with unread input resets the connection.
    pub linger: Duration,
    /// Where there are users, each answer to a client that has not logged in takes so long. The
    /// answer to a login that succeeds is not delayed.
    pub stranger_delay: Duration,
    /// A connection whose client keeps sending requests while the server drains is closed after
    /// this.
    pub drain_busy: Duration,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            stall_max: Duration::from_secs(60),
            startup_max: Duration::from_secs(10),
            rate_min: 16 * 1024,
            rate_window: Duration::from_secs(10),
            contended_rate_min: 1024 * 1024,
            contended_window: Duration::from_secs(5),
            memory_wait: Duration::from_secs(10),
            linger: Duration::from_secs(1),
            stranger_delay: Duration::from_millis(100),
            drain_busy: Duration::from_secs(1),
        }
    }
}
