//! Cells that one thread writes and a scrape reads.
//!
//! A cell costs its writer a plain load and store: it is an atomic without read-modify-write, so
//! there is no locked instruction and no shared cache line when each thread has its own. The rule
//! for that is one writer per cell; a second one would lose counts, nothing worse.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A number that its one writer adds to.
#[derive(Debug, Default)]
pub struct LocalCounter(AtomicU64);

impl LocalCounter {
    /// Adds `count`. For the one writer.
    #[inline]
    pub fn add(&self, count: u64) {
        self.0.store(
            self.0.load(Ordering::Relaxed).wrapping_add(count),
            Ordering::Relaxed,
        );
    }

    /// The same, for several writers.
    fn add_shared(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    /// Adds one. For the one writer.
    #[inline]
    pub fn inc(&self) {
        self.add(1);
    }

    /// The number; any thread may read it.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that its one writer sets.
#[derive(Debug, Default)]
pub struct LocalGauge(AtomicU64);

impl LocalGauge {
    /// Sets it. For the one writer.
    #[inline]
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// The number; any thread may read it.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Exponent of the lowest bucket's upper bound, 2^10 ns.
const BOUND_MIN_LOG2: u32 = 10;
/// Exponent of the highest bound, 2^36 ns (69 s).
const BOUND_MAX_LOG2: u32 = 36;
/// Buckets with a bound: one at each power of two and one halfway to the next. A quantile read from
/// them is off by at most half.
const BOUNDED: usize = ((BOUND_MAX_LOG2 - BOUND_MIN_LOG2) * 2 + 1) as usize;
/// And one for what is longer.
const BUCKETS: usize = BOUNDED + 1;

/// The index of the bucket that `ns` falls into: the first whose upper bound is not below it.
#[inline]
fn bucket_of(ns: u64) -> usize {
    // Bounds belong to their bucket, so count from the value below.
    let below = ns.saturating_sub(1);
    if below >> BOUND_MIN_LOG2 == 0 {
        return 0;
    }
    let log2 = below.ilog2();
    let upper_half = (below >> (log2 - 1)) & 1;
    let index = (log2 - BOUND_MIN_LOG2) * 2 + 1 + upper_half as u32;
    (index as usize).min(BUCKETS - 1)
}

/// The upper bound of a bucket in nanoseconds.
fn bound_ns(bucket: usize) -> u64 {
    let power = 1u64 << (BOUND_MIN_LOG2 as usize + bucket / 2);
    if bucket % 2 == 1 {
        power + power / 2
    } else {
        power
    }
}

/// A histogram of durations that its one writer records, from 1 µs to 69 s.
pub struct LocalHistogram {
    buckets: [LocalCounter; BUCKETS],
    sum_ns: LocalCounter,
}

impl Default for LocalHistogram {
    fn default() -> Self {
        Self {
            buckets: std::array::from_fn(|_| LocalCounter::default()),
            sum_ns: LocalCounter::default(),
        }
    }
}

impl fmt::Debug for LocalHistogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sum = HistogramSum::default();
        sum.merge(self);
        sum.fmt(f)
    }
}

impl LocalHistogram {
    /// Records a duration in nanoseconds. For the one writer.
    #[inline]
    pub fn record_ns(&self, ns: u64) {
        self.buckets[bucket_of(ns)].inc();
        self.sum_ns.add(ns);
    }

    /// Records `count` durations of `ns` nanoseconds each. For the one writer.
    #[inline]
    pub fn record_many_ns(&self, ns: u64, count: u64) {
        self.buckets[bucket_of(ns)].add(count);
        self.sum_ns.add(ns.wrapping_mul(count));
    }

    /// The same, for several writers.
    pub(super) fn record_many_ns_shared(&self, ns: u64, count: u64) {
        self.buckets[bucket_of(ns)].add_shared(count);
        self.sum_ns.add_shared(ns.wrapping_mul(count));
    }

    /// Records a duration. For the one writer.
    #[inline]
    pub fn record(&self, duration: Duration) {
        self.record_ns(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
    }
}

/// The histograms of several threads, added up for a scrape.
#[derive(Clone)]
pub struct HistogramSum {
    buckets: [u64; BUCKETS],
    sum_ns: u64,
}

impl Default for HistogramSum {
    fn default() -> Self {
        Self {
            buckets: [0; BUCKETS],
            sum_ns: 0,
        }
    }
}

impl fmt::Debug for HistogramSum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "HistogramSum {{ count: {}, sum_ns: {} }}",
            self.count(),
            self.sum_ns
        )
    }
}

impl HistogramSum {
    /// Adds what a thread has recorded.
    pub fn merge(&mut self, local: &LocalHistogram) {
        for (sum, cell) in self.buckets.iter_mut().zip(&local.buckets) {
            *sum = sum.wrapping_add(cell.get());
        }
        self.sum_ns = self.sum_ns.wrapping_add(local.sum_ns.get());
    }

    /// How many durations were recorded.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The sum of all durations, in seconds.
    #[must_use]
    pub fn sum_seconds(&self) -> f64 {
        self.sum_ns as f64 / 1e9
    }

    /// The upper bound in seconds, and the count, of each bucket but the last unbounded one.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let bounded = self.buckets.iter().take(BOUNDED).enumerate();
        bounded.map(|(bucket, &count)| (bound_ns(bucket) as f64 / 1e9, count))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bounds_ascend_from_a_microsecond_to_a_minute() {
        let bounds: Vec<u64> = (0..BOUNDED).map(bound_ns).collect();
        assert_eq!(bounds[..4], [1024, 1536, 2048, 3072]);
        assert_eq!(bounds.last(), Some(&(1 << 36)));
        assert!(bounds.is_sorted_by(|a, b| a < b));
    }

    proptest! {
        #[test]
        fn durations_fall_into_the_first_bucket_that_bounds_them(shift in 0u32..64, bits: u64) {
            let ns = bits >> shift;
            let bucket = bucket_of(ns);
            prop_assert!(bucket == BOUNDED || ns <= bound_ns(bucket));
            prop_assert!(bucket == 0 || ns > bound_ns(bucket - 1));
        }
    }

    #[test]
    fn a_bound_belongs_to_its_bucket() {
        for bucket in 0..BOUNDED {
            assert_eq!(bucket_of(bound_ns(bucket)), bucket);
            assert_eq!(bucket_of(bound_ns(bucket) + 1), bucket + 1);
        }
        assert_eq!((bucket_of(0), bucket_of(u64::MAX)), (0, BOUNDED));
    }

    #[test]
    fn threads_count_apart_and_are_read_together() {
        #[derive(Default)]
        struct Cells {
            requests: LocalCounter,
            open: LocalGauge,
            latency: LocalHistogram,
        }
        let threads: [Cells; 4] = Default::default();
        std::thread::scope(|scope| {
            for (thread, cells) in (1..).zip(&threads) {
                scope.spawn(move || {
                    for _ in 0..1000 {
                        cells.requests.inc();
                        cells.latency.record(Duration::from_micros(thread));
                    }
                    cells.open.set(thread);
                });
            }
        });
        let requests = threads.iter().map(|cells| cells.requests.get());
        assert_eq!(requests.sum::<u64>(), 4000);
        let open = threads.iter().map(|cells| cells.open.get());
        assert_eq!(open.sum::<u64>(), 10);
        let mut latency = HistogramSum::default();
        threads
            .iter()
            .for_each(|cells| latency.merge(&cells.latency));
        assert_eq!(latency.count(), 4000);
        assert!((latency.sum_seconds() - 0.01).abs() < 1e-9);
        let counts: Vec<u64> = latency.buckets().map(|(_, count)| count).collect();
        assert_eq!(counts[..6], [1000, 0, 1000, 1000, 1000, 0]);
    }

    #[test]
    fn a_duration_above_the_highest_bound_is_in_no_bounded_bucket() {
        let local = LocalHistogram::default();
        local.record(Duration::from_secs(3600));
        let mut sum = HistogramSum::default();
        sum.merge(&local);
        assert_eq!(sum.count(), 1);
        assert_eq!(sum.buckets().map(|(_, count)| count).sum::<u64>(), 0);
    }
}
