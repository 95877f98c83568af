//! Counters and histograms that many threads write: one stripe a thread, summed when read.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::cells::{HistogramSum, LocalHistogram};

const STRIPES: usize = 64;

/// All threads share the last stripe that came when the others had been given out.
const SHARED_STRIPE: usize = STRIPES - 1;

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

#[repr(align(128))]
#[derive(Debug)]
struct Stripe<const COUNT: usize>([AtomicU64; COUNT]);

/// `COUNT` counters.
#[derive(Debug)]
pub struct Counters<const COUNT: usize> {
    stripes: Box<[Stripe<COUNT>]>,
}

impl<const COUNT: usize> Default for Counters<COUNT> {
    fn default() -> Self {
        let stripe = || Stripe(std::array::from_fn(|_| AtomicU64::new(0)));
        Self {
            stripes: (0..STRIPES).map(|_| stripe()).collect(),
        }
    }
}

impl<const COUNT: usize> Counters<COUNT> {
    /// Counts `n` more of counter `index`.
    ///
    /// # Panics
    /// If there is no such counter.
    #[inline]
    pub fn add(&self, index: usize, n: u64) {
        let stripe = stripe();
        let cell = &self.stripes[stripe].0[index];
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

    /// The sum of counter `index` over all threads.
    ///
    /// # Panics
    /// If there is no such counter.
    #[must_use]
    pub fn total(&self, index: usize) -> u64 {
        let cell = |stripe: &Stripe<COUNT>| stripe.0[index].load(Ordering::Relaxed);
        self.stripes.iter().map(cell).sum()
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
        let stripe = stripe();
        let histogram = &self.stripes[stripe].0;
        if stripe == SHARED_STRIPE {
            histogram.record_many_ns_shared(nanos, count);
        } else {
            histogram.record_many_ns(nanos, count);
        }
    }

    /// Records one event that took so long.
    pub fn took(&self, time: Duration) {
        self.record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), 1);
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
    fn totals_sum_all_threads() {
        let counters = Counters::<2>::default();
        // More than there are stripes, so that some share one.
        let threads = 2 * STRIPES as u64;
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| (0..1000).for_each(|_| counters.add(1, 1)));
            }
        });
        assert_eq!((counters.total(0), counters.total(1)), (0, threads * 1000));
    }

    #[test]
    fn a_latency_loses_no_event_of_threads_that_share_a_stripe() {
        let latency = Latency::default();
        let threads = 2 * STRIPES as u64;
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| (0..10_000).for_each(|_| latency.record(1_000, 2)));
            }
        });
        let sum = latency.sum();
        assert_eq!(sum.count(), threads * 20_000);
        let seconds = sum.count() as f64 * 1e-6;
        assert!((sum.sum_seconds() - seconds).abs() < 1e-9);
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
