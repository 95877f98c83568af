//! Counters of what clients asked for and what came of it: one stripe a thread, summed when read.

use fonn_base::metrics::Label as _;
use fonn_base::metrics::striped::Counters;
use fonn_server::Event;

pub use fonn_base::metrics::striped::Latency;

fonn_base::label! {
    /// What is counted, with the names of memcached's `stats` where it has them.
    pub enum Counter: "counter" {
        /// Gets of one key each.
        CmdGet = "cmd_get",
        /// Stores of any kind.
        CmdSet = "cmd_set",
        /// Flushes.
        CmdFlush = "cmd_flush",
        /// Touches, and gets that touch.
        CmdTouch = "cmd_touch",
        /// Gets that found an entry in RAM.
        HitsRam = "get_hits_ram",
        /// Gets that found an entry on disk.
        HitsDisk = "get_hits_disk",
        /// Gets that found an entry in the bucket.
        HitsCold = "get_hits_cold",
        /// Gets of keys that no tier holds.
        MissesAbsent = "get_misses_absent",
        /// Gets of entries that had expired.
        MissesExpired = "get_expired",
        /// Gets of entries that had been flushed.
        MissesFlushed = "get_flushed",
        /// Gets that the disk failed to answer.
        MissesError = "get_misses_error",
        /// Gets that the bucket did not answer in time.
        MissesDeadline = "get_misses_deadline",
        /// Gets that the bucket failed to answer.
        MissesUnavailable = "get_misses_unavailable",
        /// Deletes that found an entry.
        DeleteHits = "delete_hits",
        /// Deletes that found none.
        DeleteMisses = "delete_misses",
        /// Increments that found a number.
        IncrHits = "incr_hits",
        /// Increments that found nothing.
        IncrMisses = "incr_misses",
        /// Decrements that found a number.
        DecrHits = "decr_hits",
        /// Decrements that found nothing.
        DecrMisses = "decr_misses",
        /// Compare-and-stores that stored.
        CasHits = "cas_hits",
        /// Compare-and-stores of keys that were not there.
        CasMisses = "cas_misses",
        /// Compare-and-stores whose token was out of date.
        CasBadval = "cas_badval",
        /// Touches that found an entry.
        TouchHits = "touch_hits",
        /// Touches that found none.
        TouchMisses = "touch_misses",
        /// Values refused as too large.
        StoreTooLarge = "store_too_large",
        /// Writes refused for want of memory or disk space.
        StoreNoSpace = "store_no_memory",
        /// Requests refused because a queue was full.
        Busy = "busy",
        /// Requests refused because a tier was out of reach.
        Unavailable = "unavailable",
        /// Writes refused because their user may only read.
        ReadOnly = "read_only",
        /// Requests refused for want of a login.
        AuthRequired = "auth_required",
        /// User names or passwords that were wrong.
        AuthErrors = "auth_errors",
        /// Bytes received from clients.
        BytesRead = "bytes_read",
        /// Bytes sent to clients.
        BytesWritten = "bytes_written",
        /// Connections accepted.
        Connections = "total_connections",
        /// Connections refused because there were too many.
        ConnectionsRejected = "rejected_connections",
        /// Connections closed because a client stopped in the middle of a request, or did not read.
        ConnectionsStalled = "stalled_connections",
        /// Requests that broke their protocol.
        ProtocolErrors = "protocol_errors",
        /// Connections closed because serving them panicked.
        ConnectionPanics = "connection_panics",
    }
}

impl Counter {
    /// Gets of one key that found an entry, by the tier that had it.
    pub const HITS: [(&'static str, Self); 3] = [
        ("ram", Self::HitsRam),
        ("disk", Self::HitsDisk),
        ("cold", Self::HitsCold),
    ];

    /// Gets of one key that found no entry, by reason.
    pub const MISSES: [(&'static str, Self); 6] = [
        ("absent", Self::MissesAbsent),
        ("expired", Self::MissesExpired),
        ("flushed", Self::MissesFlushed),
        ("error", Self::MissesError),
        ("deadline", Self::MissesDeadline),
        ("unavailable", Self::MissesUnavailable),
    ];
}

impl From<Event> for Counter {
    #[inline]
    fn from(event: Event) -> Self {
        match event {
            Event::Accepted => Self::Connections,
            Event::Rejected => Self::ConnectionsRejected,
            Event::Stalled => Self::ConnectionsStalled,
            Event::Panicked => Self::ConnectionPanics,
            Event::ProtocolError => Self::ProtocolErrors,
            Event::BytesRead => Self::BytesRead,
            Event::BytesWritten => Self::BytesWritten,
            Event::TooLarge => Self::StoreTooLarge,
            Event::Busy => Self::Busy,
            Event::OutOfSpace => Self::StoreNoSpace,
            Event::Unavailable => Self::Unavailable,
            Event::ReadOnly => Self::ReadOnly,
            Event::AuthRequired => Self::AuthRequired,
            Event::AuthFailed => Self::AuthErrors,
        }
    }
}

/// The counters of one node.
#[derive(Debug, Default)]
pub struct Stats {
    counters: Counters<{ Counter::ALL.len() }>,
    /// What `stats reset` subtracts. Prometheus counters never go back.
    baseline: parking_lot::Mutex<Vec<u64>>,
}

impl Stats {
    /// Counts one.
    #[inline]
    pub fn count(&self, counter: Counter) {
        self.add(counter, 1);
    }

    /// Counts `n`.
    #[inline]
    pub fn add(&self, counter: Counter, n: u64) {
        self.counters.add(counter as usize, n);
    }

    /// The total since the start.
    #[must_use]
    pub fn total(&self, counter: Counter) -> u64 {
        self.counters.total(counter as usize)
    }

    /// The total since the last [`Stats::reset`].
    #[must_use]
    pub fn since_reset(&self, counter: Counter) -> u64 {
        let baseline = self.baseline.lock().get(counter as usize).copied();
        self.total(counter).saturating_sub(baseline.unwrap_or(0))
    }

    /// Lets [`Stats::since_reset`] start again from 0.
    pub fn reset(&self) {
        let totals = Counter::ALL
            .iter()
            .map(|counter| self.total(*counter))
            .collect();
        *self.baseline.lock() = totals;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_hides_the_past() {
        let stats = Stats::default();
        stats.add(Counter::CmdGet, 1000);
        stats.reset();
        stats.add(Counter::CmdGet, 2);
        assert_eq!(stats.since_reset(Counter::CmdGet), 2);
        assert_eq!(stats.total(Counter::CmdGet), 1002);
    }
}
