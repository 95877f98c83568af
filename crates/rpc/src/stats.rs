//! What the clients of a process count.

use std::sync::Arc;

use fonn_base::metrics::cells::{HistogramSum, LocalCounter, LocalGauge, LocalHistogram};
use fonn_base::metrics::{Metrics, Snapshot};
use parking_lot::Mutex;

use super::{CallError, quantile};

/// Cells of one client, written on its reactor.
#[derive(Debug, Default)]
pub struct Stats {
    /// Requests written down.
    pub(super) requests: LocalCounter,
    /// Replies that callers got.
    pub(super) replies: LocalCounter,
    /// Replies without a waiting caller.
    pub(super) late: LocalCounter,
    /// Requests refused as [`CallError::Busy`].
    pub(super) busy: LocalCounter,
    /// Requests refused because of the breaker.
    pub(super) unavailable: LocalCounter,
    /// Requests given up at their deadline.
    pub(super) timed_out: LocalCounter,
    /// Connections made.
    pub(super) connections: LocalCounter,
    /// Connections that failed or could not be made.
    pub(super) failures: LocalCounter,
    /// Writes to sockets.
    pub(super) writes: LocalCounter,
    /// Reads of sockets, those that found nothing among them.
    pub(super) reads: LocalCounter,
    /// Bytes sent.
    pub(super) sent_bytes: LocalCounter,
    /// Bytes received.
    pub(super) received_bytes: LocalCounter,
    /// Replies owed on the connection for small requests, and on the one for large values.
    pub(super) in_flight: [LocalGauge; 2],
    /// Time from request to reply.
    pub(super) latency: LocalHistogram,
    /// About what 19 of 20 replies stay below lately, in nanoseconds; 0 before the first one.
    pub(super) latency_high_ns: LocalGauge,
}

impl Stats {
    pub(super) fn refused(&self, error: CallError) {
        match error {
            CallError::Busy => self.busy.inc(),
            CallError::Unavailable => self.unavailable.inc(),
            CallError::Closed
            | CallError::Down
            | CallError::Lost
            | CallError::TimedOut
            | CallError::TooLong => {}
        }
    }

    /// Replies owed on all connections.
    pub(super) fn in_flight(&self) -> u64 {
        self.in_flight.iter().map(LocalGauge::get).sum()
    }

    /// Takes in the latency of one reply, with or without a waiting caller.
    #[inline]
    pub(super) fn replied(&self, ns: u64) {
        let before = self.latency_high_ns.get();
        self.latency_high_ns.set(quantile::next(before, ns));
    }
}

/// Publishes the sums over all clients that are alive.
#[derive(Clone, Debug, Default)]
pub struct PeerMetrics(Arc<Mutex<Clients>>);

#[derive(Debug, Default)]
struct Clients {
    alive: Vec<Arc<Stats>>,
    /// What clients counted that are gone: counters never go back.
    gone: Sums,
}

#[derive(Clone, Debug, Default)]
struct Sums {
    counters: [u64; COUNTERS.len()],
    latency: HistogramSum,
}

type Cell = fn(&Stats) -> &LocalCounter;

/// Name, help and cell of each counter.
const COUNTERS: [(&str, &str, Cell); 12] = [
    (
        "fonn_peer_requests_total",
        "Requests to other members.",
        |it| &it.requests,
    ),
    (
        "fonn_peer_replies_total",
        "Replies of other members that arrived in time.",
        |it| &it.replies,
    ),
    (
        "fonn_peer_late_replies_total",
        "Replies without a waiting caller.",
        |it| &it.late,
    ),
    (
        "fonn_peer_busy_total",
        "Requests refused because too many were under way.",
        |it| &it.busy,
    ),
    (
        "fonn_peer_unavailable_total",
        "Requests refused because the member failed before.",
        |it| &it.unavailable,
    ),
    (
        "fonn_peer_timeouts_total",
        "Requests given up at their deadline.",
        |it| &it.timed_out,
    ),
    (
        "fonn_peer_connections_total",
        "Connections made to other members.",
        |it| &it.connections,
    ),
    (
        "fonn_peer_connection_failures_total",
        "Connections that failed or could not be made.",
        |it| &it.failures,
    ),
    (
        "fonn_peer_writes_total",
        "Writes to the sockets of other members.",
        |it| &it.writes,
    ),
    (
        "fonn_peer_reads_total",
        "Reads of the sockets of other members, those that found nothing among them.",
        |it| &it.reads,
    ),
    (
        "fonn_peer_sent_bytes_total",
        "Bytes sent to other members.",
        |it| &it.sent_bytes,
    ),
    (
        "fonn_peer_received_bytes_total",
        "Bytes received from other members.",
        |it| &it.received_bytes,
    ),
];

impl PeerMetrics {
    /// Registers the metrics.
    #[must_use]
    pub fn register(metrics: &Metrics) -> Self {
        let all = Self::default();
        let source = all.clone();
        metrics.on_scrape(move |snapshot| source.publish(snapshot));
        all
    }

    /// Cells for one more client.
    #[must_use]
    pub fn stats(&self) -> Arc<Stats> {
        let stats = Arc::new(Stats::default());
        self.0.lock().alive.push(Arc::clone(&stats));
        stats
    }

    fn publish(&self, snapshot: &mut Snapshot) {
        let mut clients = self.0.lock();
        clients.sweep();
        let mut sums = clients.gone.clone();
        let mut in_flight = 0;
        for stats in &clients.alive {
            sums.add(stats);
            in_flight += stats.in_flight();
        }
        drop(clients);
        for ((name, help, _), sum) in COUNTERS.iter().zip(sums.counters) {
            snapshot.counter(name, help, &[], sum);
        }
        snapshot.gauge(
            "fonn_peer_requests_in_flight",
            "Requests to other members that are not answered.",
            &[],
            in_flight as f64,
        );
        snapshot.histogram(
            "fonn_peer_request_duration_seconds",
            "Time from request to reply of another member.",
            &[],
            &sums.latency,
        );
    }
}

impl Clients {
    /// Lets go of the cells that no client has any more, and keeps what they counted.
    fn sweep(&mut self) {
        let gone = &mut self.gone;
        self.alive.retain(|stats| {
            let is_alive = Arc::strong_count(stats) > 1;
            if !is_alive {
                gone.add(stats);
            }
            is_alive
        });
    }
}

impl Sums {
    fn add(&mut self, stats: &Stats) {
        for (sum, (_, _, cell)) in self.counters.iter_mut().zip(&COUNTERS) {
            *sum = sum.wrapping_add(cell(stats).get());
        }
        self.latency.merge(&stats.latency);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_counted_stays_when_it_is_gone() {
        let metrics = Metrics::new();
        let all = PeerMetrics::register(&metrics);
        let (first, second) = (all.stats(), all.stats());
        first.requests.add(3);
        second.requests.add(4);
        drop(first);
        for _ in 0..2 {
            let text = metrics.render().unwrap();
            assert!(text.contains("fonn_peer_requests_total 7"), "{text}");
        }
        assert_eq!(all.0.lock().alive.len(), 1);
    }
}
