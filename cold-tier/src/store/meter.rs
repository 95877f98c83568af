//! Counts what is asked of a store, what comes of it, and what it costs. Notes whether the store
//! answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use fonn_base::clock::Clock;
use fonn_base::metrics::Snapshot;
use fonn_base::metrics::cells::{HistogramSum, LocalCounter, LocalHistogram};
use parking_lot::Mutex;

use super::around::{Answer, Around, Call};
use super::health::BucketHealth;
use super::{ObjectStore, Operation, StoreError, StoreErrorKind, StoreFuture};

/// What a store takes for a million requests, in US dollars. Deletes are free.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prices {
    /// PUT and LIST.
    pub write_dollars: f64,
    /// GET and HEAD, those that find nothing too.
    pub read_dollars: f64,
}

impl Default for Prices {
    /// S3 Standard in us-east-1, 2026.
    fn default() -> Self {
        Self {
            write_dollars: 5.0,
            read_dollars: 0.4,
        }
    }
}

impl Prices {
    /// A store that takes nothing, as a directory does.
    pub const FREE: Self = Self {
        write_dollars: 0.0,
        read_dollars: 0.0,
    };

    fn of(&self, operation: Operation) -> f64 {
        let per_million = match operation {
            Operation::Put | Operation::PutIfAbsent | Operation::List => self.write_dollars,
            Operation::Get | Operation::GetRange | Operation::GetSuffix => self.read_dollars,
            Operation::Head => self.read_dollars,
            Operation::Delete => 0.0,
        };
        per_million / 1e6
    }
}

/// A store whose calls are counted.
#[derive(Debug)]
pub struct MeterStore {
    inner: Arc<dyn ObjectStore>,
    stats: Arc<MeterStats>,
}

impl MeterStore {
    /// Counts the calls to `inner`, each of which is one request at these prices.
    #[must_use]
    pub fn new(inner: Arc<dyn ObjectStore>, prices: Prices, clock: Clock) -> Self {
        let stats = MeterStats {
            prices,
            clock,
            health: Arc::default(),
            in_flight: AtomicU64::new(0),
            operations: std::array::from_fn(|_| Mutex::default()),
        };
        Self {
            inner,
            stats: Arc::new(stats),
        }
    }

    /// The counters.
    #[must_use]
    pub fn stats(&self) -> Arc<MeterStats> {
        Arc::clone(&self.stats)
    }
}

/// The counters of a store, all of them since it was opened.
#[derive(Debug)]
pub struct MeterStats {
    prices: Prices,
    clock: Clock,
    health: Arc<BucketHealth>,
    in_flight: AtomicU64,
    /// A lock each, since cells have one writer at a time; a call costs far more.
    operations: [Mutex<Cells>; Operation::ALL.len()],
}

#[derive(Debug, Default)]
struct Cells {
    calls: LocalCounter,
    errors: [LocalCounter; StoreErrorKind::ALL.len()],
    sent_bytes: LocalCounter,
    received_bytes: LocalCounter,
    latency: LocalHistogram,
}

/// What was counted for an operation.
#[derive(Clone, Debug)]
pub struct OperationStats {
    /// Calls that began.
    pub calls: u64,
    /// What they cost, in US dollars: an estimate by the prices that were configured.
    pub cost_dollars: f64,
    /// Calls that failed, in the order of [`StoreErrorKind::ALL`].
    pub errors: [u64; StoreErrorKind::ALL.len()],
    /// Bytes of bodies in calls to the store.
    pub sent_bytes: u64,
    /// Bytes of objects in answers.
    pub received_bytes: u64,
    /// How long calls took that had an answer, be it an error.
    pub latency: HistogramSum,
}

impl OperationStats {
    /// Calls that failed in that way.
    #[must_use]
    pub fn errors_of(&self, kind: StoreErrorKind) -> u64 {
        self.errors[kind.index()]
    }
}

impl MeterStats {
    /// What was counted for an operation.
    #[must_use]
    pub fn of(&self, operation: Operation) -> OperationStats {
        let cells = self.operations[operation.index()].lock();
        let mut latency = HistogramSum::default();
        latency.merge(&cells.latency);
        OperationStats {
            calls: cells.calls.get(),
            cost_dollars: cells.calls.get() as f64 * self.prices.of(operation),
            errors: std::array::from_fn(|kind| cells.errors[kind].get()),
            sent_bytes: cells.sent_bytes.get(),
            received_bytes: cells.received_bytes.get(),
            latency,
        }
    }

    /// Whether calls are answered.
    #[must_use]
    pub fn health(&self) -> Arc<BucketHealth> {
        Arc::clone(&self.health)
    }

    /// Calls that wait for their answer.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// What all requests cost, in US dollars: an estimate by the prices that were configured.
    #[must_use]
    pub fn cost_dollars(&self) -> f64 {
        let costs = Operation::ALL.iter().map(|&it| self.of(it).cost_dollars);
        costs.sum()
    }

    /// Adds the samples of a scrape.
    pub fn collect(&self, out: &mut Snapshot) {
        for operation in Operation::ALL {
            let stats = self.of(operation);
            let op = [("op", operation.as_str())];
            out.counter(
                "fonn_cold_store_requests_total",
                "Calls to the object store, each attempt counted.",
                &op,
                stats.calls,
            );
            out.counter(
                "fonn_cold_store_sent_bytes_total",
                "Bytes of objects sent to the object store.",
                &op,
                stats.sent_bytes,
            );
            out.counter(
                "fonn_cold_store_received_bytes_total",
                "Bytes of objects received from the object store.",
                &op,
                stats.received_bytes,
            );
            out.histogram(
                "fonn_cold_store_request_duration_seconds",
                "How long the object store took to answer.",
                &op,
                &stats.latency,
            );
            for kind in StoreErrorKind::ALL {
                out.counter(
                    "fonn_cold_store_errors_total",
                    "Failed calls to the object store.",
                    &[("op", operation.as_str()), ("kind", kind.label())],
                    stats.errors_of(kind),
                );
            }
        }
        out.gauge(
            "fonn_cold_store_in_flight_requests",
            "Calls to the object store that wait for their answer.",
            &[],
            self.in_flight() as f64,
        );
        out.counter_f64(
            "fonn_cold_store_cost_dollars_total",
            "What the requests to the object store cost, by the configured prices.",
            &[],
            self.cost_dollars(),
        );
    }

    fn begin(&self, call: &Call<'_>) -> Running<'_> {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        let cells = self.operations[call.operation.index()].lock();
        cells.calls.inc();
        if matches!(call.operation, Operation::Put | Operation::PutIfAbsent) {
            cells.sent_bytes.add(call.bytes);
        }
        Running {
            stats: self,
            operation: call.operation,
            begun: Instant::now(),
        }
    }
}

/// A call that waits for its answer.
struct Running<'a> {
    stats: &'a MeterStats,
    operation: Operation,
    begun: Instant,
}

impl Running<'_> {
    fn end<T: Answer>(self, result: &Result<T, StoreError>) {
        let now_ms = self.stats.clock.monotonic_ms();
        self.stats.health.note(self.operation, result, now_ms);
        let cells = self.stats.operations[self.operation.index()].lock();
        cells.latency.record(self.begun.elapsed());
        match result {
            Ok(answer) => {
                cells.received_bytes.add(answer.received_bytes());
            }
            Err(error) => cells.errors[error.kind.index()].inc(),
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.stats.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Around for MeterStore {
    fn inner(&self) -> &dyn ObjectStore {
        self.inner.as_ref()
    }

    fn around<'a, T: Answer>(
        &'a self,
        call: Call<'a>,
        start: impl Fn() -> StoreFuture<'a, T> + Send + Sync + 'a,
    ) -> StoreFuture<'a, T> {
        Box::pin(async move {
            let running = self.stats.begin(&call);
            let result = start().await;
            running.end(&result);
            result
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fonn_base::metrics::Metrics;
    use tokio::time::timeout;

    use super::*;
    use crate::store::fault::{Fault, Rule};
    use crate::store::{FaultStore, MemoryStore, ObjectKey, suite};

    fn metered() -> (Arc<FaultStore>, MeterStore) {
        let faulty = Arc::new(FaultStore::new(Arc::new(MemoryStore::default()), 1));
        let inner: Arc<dyn ObjectStore> = faulty.clone();
        let store = MeterStore::new(inner, Prices::default(), Clock::system());
        (faulty, store)
    }

    fn key(text: &str) -> ObjectKey {
        ObjectKey::new(text).unwrap()
    }

    #[tokio::test]
    async fn keeps_the_contract_of_stores() {
        let (_, store) = metered();
        let stats = store.stats();
        suite::run(Arc::new(store)).await;
        assert_eq!(stats.in_flight(), 0);
        assert!(
            stats
                .of(Operation::GetSuffix)
                .errors_of(StoreErrorKind::OutOfRange)
                > 0
        );
    }

    #[tokio::test(start_paused = true)]
    async fn calls_bytes_and_failures_are_counted() {
        let (faulty, store) = metered();
        store.put(&key("a"), "12345".into()).await.unwrap();
        store.get(&key("a")).await.unwrap();
        store.get(&key("a")).await.unwrap();
        store.get_suffix(&key("a"), 2).await.unwrap();
        store.get(&key("b")).await.unwrap_err();
        faulty.add(Rule::new(Fault::Hang).times(1));
        let hour = Duration::from_secs(3600);
        timeout(hour, store.get(&key("a"))).await.unwrap_err();
        let stats = store.stats();
        let put = stats.of(Operation::Put);
        assert_eq!((put.calls, put.sent_bytes, put.received_bytes), (1, 5, 0));
        let get = stats.of(Operation::Get);
        assert_eq!((get.calls, get.sent_bytes, get.received_bytes), (4, 0, 10));
        assert_eq!(get.latency.count(), 3);
        assert_eq!(get.errors_of(StoreErrorKind::NotFound), 1);
        assert_eq!(get.errors.iter().sum::<u64>(), 1);
        assert_eq!(stats.of(Operation::GetSuffix).received_bytes, 2);
        assert_eq!(stats.in_flight(), 0);
    }

    #[tokio::test]
    async fn cost_is_that_of_the_requests_that_are_billed() {
        let (_, store) = metered();
        store.put(&key("a"), "1".into()).await.unwrap();
        store
            .put_if_absent(&key("b"), "12345".into())
            .await
            .unwrap();
        store.list("", None, 10).await.unwrap();
        store.get(&key("none")).await.unwrap_err();
        store.head(&key("a")).await.unwrap();
        store.delete(&key("a")).await.unwrap();
        let cost = store.stats().cost_dollars();
        let expected = (3.0 * 5.0 + 2.0 * 0.4) / 1e6;
        assert!(
            (cost - expected).abs() < 1e-12,
            "{cost} instead of {expected}"
        );
    }

    #[tokio::test]
    async fn everything_is_published() {
        let (_, store) = metered();
        store.put(&key("a"), "12345".into()).await.unwrap();
        store.get(&key("none")).await.unwrap_err();
        let (metrics, stats) = (Metrics::new(), store.stats());
        metrics.on_scrape(move |out| stats.collect(out));
        let text = metrics.render().unwrap();
        for line in [
            "fonn_cold_store_requests_total{op=\"put\"} 1",
            "fonn_cold_store_sent_bytes_total{op=\"put\"} 5",
            "fonn_cold_store_errors_total{op=\"get\",kind=\"not_found\"} 1",
            "fonn_cold_store_errors_total{op=\"list\",kind=\"throttled\"} 0",
            "fonn_cold_store_request_duration_seconds_count{op=\"get\"} 1",
            "fonn_cold_store_in_flight_requests 0",
            "fonn_cold_store_cost_dollars_total 0.0000054",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
    }
}
