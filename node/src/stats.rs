//! Counters of what clients asked for and what came of it: one stripe a thread, summed when read.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use fonn_runtime::metrics::cells::{HistogramSum, LocalHistogram};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident => $label:literal,)*) => {
        /// What is counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Counter { $($(#[$doc])* $name,)* }

        impl Counter {
            /// All counters, in order.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The name of a counter, as memcached's `stats` has it where it has one.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self { $(Self::$name => $label,)* }
            }
        }
    };
}

counters! {
    /// Gets of one key each.
    CmdGet => "cmd_get",
    /// Stores of any kind.
    CmdSet => "cmd_set",
    /// Flushes.
    CmdFlush => "cmd_flush",
    /// Touches, and gets that touch.
    CmdTouch => "cmd_touch",
    /// Gets that found an entry in RAM.
    HitsRam => "get_hits_ram",
    /// Gets that found an entry on disk.
    HitsDisk => "get_hits_disk",
    /// Gets that found an entry in the bucket.
    HitsCold => "get_hits_cold",
    /// Gets of keys that no tier holds.
    MissesAbsent => "get_misses_absent",
    /// Gets of entries that had expired.
    MissesExpired => "get_expired",
    /// Gets of entries that had been flushed.
    MissesFlushed => "get_flushed",
    /// Gets that the disk failed to answer.
    MissesError => "get_misses_error",
    /// Gets that the bucket did not answer in time.
    MissesDeadline => "get_misses_deadline",
    /// Gets that the bucket failed to answer.
    MissesUnavailable => "get_misses_unavailable",
    /// Deletes that found an entry.
    DeleteHits => "delete_hits",
    /// Deletes that found none.
    DeleteMisses => "delete_misses",
    /// Increments that found a number.
    IncrHits => "incr_hits",
    /// Increments that found nothing.
    IncrMisses => "incr_misses",
    /// Decrements that found a number.
    DecrHits => "decr_hits",
    /// Decrements that found nothing.
    DecrMisses => "decr_misses",
    /// Compare-and-stores that stored.
    CasHits => "cas_hits",
    /// Compare-and-stores of keys that were not there.
    CasMisses => "cas_misses",
    /// Compare-and-stores whose token was out of date.
    CasBadval => "cas_badval",
    /// Touches that found an entry.
    TouchHits => "touch_hits",
    /// Touches that found none.
    TouchMisses => "touch_misses",
    /// Values refused as too large.
    StoreTooLarge => "store_too_large",
    /// Writes refused for want of memory or disk space.
    StoreNoSpace => "store_no_memory",
    /// Requests refused because a queue was full.
    Busy => "busy",
    /// Requests refused because a tier was out of reach.
    Unavailable => "unavailable",
    /// Bytes received from clients.
    BytesRead => "bytes_read",
    /// Bytes sent to clients.
    BytesWritten => "bytes_written",
    /// Connections accepted.
    Connections => "total_connections",
    /// Connections refused because there were too many.
    ConnectionsRejected => "rejected_connections",
    /// Connections closed because a client stopped in the middle of a request, or did not read.
    ConnectionsStalled => "stalled_connections",
    /// Requests that broke their protocol.
    ProtocolErrors => "protocol_errors",
    /// Connections closed because serving them panicked.
    ConnectionPanics => "connection_panics",
}

const STRIPES: usize = 64;

/// All threads share the last stripe that came when the others had been given out.
const SHARED_STRIPE: usize = STRIPES - 1;

#[repr(align(128))]
#[derive(Debug)]
struct Stripe([AtomicU64; Counter::ALL.len()]);

/// The counters of one node.
#[derive(Debug)]
pub struct Stats {
    stripes: Box<[Stripe]>,
    /// What `stats reset` subtracts. Prometheus counters never go back.
    baseline: parking_lot::Mutex<Vec<u64>>,
}

thread_local! {
    static STRIPE: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// The stripe of the calling thread.
fn stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    STRIPE.with(|cell| {
        if cell.get() == usize::MAX {
            cell.set(NEXT.fetch_add(1, Ordering::Relaxed).min(SHARED_STRIPE));
        }
        cell.get()
    })
}

impl Default for Stats {
    fn default() -> Self {
        let stripe = || Stripe(std::array::from_fn(|_| AtomicU64::new(0)));
        Self {
            stripes: (0..STRIPES).map(|_| stripe()).collect(),
            baseline: parking_lot::Mutex::new(vec![0; Counter::ALL.len()]),
        }
    }
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
        let stripe = stripe();
        let cell = &self.stripes[stripe].0[counter as usize];
        if stripe == SHARED_STRIPE {
            cell.fetch_add(n, Ordering::Relaxed);
        } else {
            // No other thread writes it, so it need not be locked in between.
            cell.store(
                cell.load(Ordering::Relaxed).wrapping_add(n),
                Ordering::Relaxed,
            );
        }
    }

    /// The total since the start.
    #[must_use]
    pub fn total(&self, counter: Counter) -> u64 {
        let cell = |stripe: &Stripe| stripe.0[counter as usize].load(Ordering::Relaxed);
        self.stripes.iter().map(cell).sum()
    }

    /// The total since the last [`Stats::reset`].
    #[must_use]
    pub fn since_reset(&self, counter: Counter) -> u64 {
        let baseline = self.baseline.lock()[counter as usize];
        self.total(counter).saturating_sub(baseline)
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

/// A latency histogram that many threads record into, a stripe each.
#[derive(Debug)]
pub struct Latency {
    stripes: Box<[LatencyStripe]>,
}

#[repr(align(128))]
#[derive(Debug, Default)]
struct LatencyStripe(LocalHistogram);

impl Default for Latency {
    fn default() -> Self {
        Self {
            stripes: (0..STRIPES).map(|_| LatencyStripe::default()).collect(),
        }
    }
}

impl Latency {
    /// Records `count` events of `nanos` each.
    #[inline]
    pub fn record(&self, nanos: u64, count: u64) {
        self.stripes[stripe()].0.record_many_ns(nanos, count);
    }

    /// What was recorded since the start.
    #[must_use]
    pub fn sum(&self) -> HistogramSum {
        let mut sum = HistogramSum::default();
        self.stripes.iter().for_each(|stripe| sum.merge(&stripe.0));
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_sum_all_threads_and_a_reset_hides_the_past() {
        let stats = Stats::default();
        // More than there are stripes, so that some share one.
        let threads = 2 * STRIPES as u64;
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| (0..1000).for_each(|_| stats.count(Counter::CmdGet)));
            }
        });
        assert_eq!(stats.total(Counter::CmdGet), threads * 1000);
        stats.reset();
        stats.add(Counter::CmdGet, 2);
        assert_eq!(stats.since_reset(Counter::CmdGet), 2);
        assert_eq!(stats.total(Counter::CmdGet), threads * 1000 + 2);
    }

    #[test]
    fn a_batch_counts_as_many_events_of_its_mean() {
        let latency = Latency::default();
        latency.record(2_000, 3);
        latency.record(10_000, 1);
        let sum = latency.sum();
        assert_eq!(sum.count(), 4);
        assert!((sum.sum_seconds() - 16e-6).abs() < 1e-12);
    }
}
