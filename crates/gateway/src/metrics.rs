//! What the gateway counts.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use fonn_base::metrics::striped::Latency;
use fonn_base::metrics::{Label as _, Snapshot};
use fonn_proto::Failure;
use hyper::{Method, StatusCode};

use crate::events::TurborepoEvent;
use crate::exchange::ExchangeOutcome;
use crate::remote_metrics::RemoteFigures;
use crate::route::Dialect;
use crate::usage::Usage;

/// The statuses of responses by which requests are counted. The last one stands for all others.
const STATUSES: [&str; 20] = [
    "200", "201", "204", "206", "207", "400", "401", "403", "404", "405", "408", "409", "413",
    "414", "415", "416", "421", "503", "507", "other",
];

fn status_index(status: StatusCode) -> usize {
    let index = STATUSES.iter().position(|it| *it == status.as_str());
    index.unwrap_or(STATUSES.len() - 1)
}

fonn_base::label! {
    /// Why a read was answered as a miss although it is not known to be one.
    pub(crate) enum LostRead: "reason" {
        /// It was not answered within the deadline.
        Deadline = "deadline",
        /// A queue is full.
        Busy = "busy",
        /// The owner of the key cannot be reached.
        Unavailable = "unavailable",
        /// The value is longer than what can be sent.
        TooLarge = "too_large",
        /// The value is not of the form that the dialect stores.
        Malformed = "malformed",
        /// A chunk of a long value is missing.
        Incomplete = "incomplete",
        /// Other clients leave so much unread that there is no room for the value.
        Unread = "unread",
        /// Any other failure.
        Other = "other",
    }
}

impl From<Failure> for LostRead {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Busy => Self::Busy,
            Failure::Unavailable => Self::Unavailable,
            Failure::TooLarge => Self::TooLarge,
            Failure::OutOfSpace | Failure::ReadOnly | Failure::AuthRequired => Self::Other,
        }
    }
}

fonn_base::label! {
    /// What became of a chunk of a long value that a client sent.
    pub(crate) enum ChunkOutcome: "outcome" {
        /// It was stored.
        Stored = "stored",
        /// It was there: another value has the same bytes.
        Shared = "shared",
    }
}

fonn_base::label! {
    /// What a request does.
    pub(crate) enum Operation: "operation" {
        /// It asks for a value, or whether there is one.
        Read = "read",
        /// It stores, removes or asks for a token.
        Write = "write",
    }
}

impl Operation {
    /// What a request by this method does.
    pub(crate) fn of(method: &Method) -> Self {
        match method.is_safe() {
            true => Self::Read,
            false => Self::Write,
        }
    }
}

#[derive(Debug, Default)]
struct OfDialect {
    requests: [AtomicU64; STATUSES.len()],
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
}

/// All figures.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    dialects: [OfDialect; Dialect::ALL.len()],
    latency: [Latency; Operation::ALL.len()],
    lost_reads: [AtomicU64; LostRead::ALL.len()],
    events: [AtomicU64; TurborepoEvent::ALL.len()],
    exchanges: [AtomicU64; ExchangeOutcome::ALL.len()],
    chunk_bytes: [AtomicU64; ChunkOutcome::ALL.len()],
    pub(crate) remote: RemoteFigures,
    pub(crate) usage: Usage,
    pub(crate) connections: AtomicUsize,
    pub(crate) accepted: AtomicU64,
    pub(crate) rejected: AtomicU64,
    pub(crate) stalled: AtomicU64,
}

fn add(cells: &[AtomicU64], index: usize, n: u64) {
    if let Some(cell) = cells.get(index) {
        cell.fetch_add(n, Ordering::Relaxed);
    }
}

impl Figures {
    /// Counts a response with a body of `sent` bytes.
    pub(crate) fn answered(&self, dialect: Dialect, status: StatusCode, sent: usize) {
        if let Some(of) = self.dialects.get(dialect.index()) {
            add(&of.requests, status_index(status), 1);
            of.sent_bytes.fetch_add(sent as u64, Ordering::Relaxed);
        }
    }

    /// Counts the time from the head of a request to the head of its response.
    pub(crate) fn took(&self, operation: Operation, time: Duration) {
        if let Some(of) = self.latency.get(operation.index()) {
            of.took(time);
        }
    }

    /// Counts the bytes of a value that arrived.
    pub(crate) fn received(&self, dialect: Dialect, len: usize) {
        if let Some(of) = self.dialects.get(dialect.index()) {
            of.received_bytes.fetch_add(len as u64, Ordering::Relaxed);
        }
    }

    /// Counts a read that is answered as a miss.
    pub(crate) fn lost(&self, reason: LostRead) {
        add(&self.lost_reads, reason.index(), 1);
    }

    /// Counts what Turborepo reports.
    pub(crate) fn reported(&self, events: &[TurborepoEvent]) {
        for event in events {
            add(&self.events, event.index(), 1);
        }
    }

    /// Counts a request for a token.
    pub(crate) fn exchanged(&self, outcome: ExchangeOutcome) {
        add(&self.exchanges, outcome.index(), 1);
    }

    /// Counts a chunk of `len` bytes.
    pub(crate) fn chunk(&self, outcome: ChunkOutcome, len: usize) {
        add(&self.chunk_bytes, outcome.index(), len as u64);
    }

    /// Publishes all.
    pub(crate) fn publish(&self, snapshot: &mut Snapshot) {
        let get = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        for (dialect, of) in Dialect::ALL.iter().zip(&self.dialects) {
            let name = dialect.as_str();
            for (status, count) in STATUSES.iter().zip(&of.requests) {
                snapshot.counter(
                    "fonn_http_requests_total",
                    "Requests of build tools over HTTP, by protocol and status of the response.",
                    &[("dialect", name), ("status", *status)],
                    get(count),
                );
            }
            snapshot.counter(
                "fonn_http_received_bytes_total",
                "Bytes of values that build tools sent over HTTP.",
                &[("dialect", name)],
                get(&of.received_bytes),
            );
            snapshot.counter(
                "fonn_http_sent_bytes_total",
                "Bytes of response bodies to build tools over HTTP.",
                &[("dialect", name)],
                get(&of.sent_bytes),
            );
        }
        for (operation, latency) in Operation::ALL.iter().zip(&self.latency) {
            snapshot.histogram(
                "fonn_http_request_duration_seconds",
                "Time from the head of a request over HTTP to the head of its response; a write has sent its value by then.",
                &[("operation", operation.as_str())],
                &latency.sum(),
            );
        }
        for (reason, count) in LostRead::ALL.iter().zip(&self.lost_reads) {
            snapshot.counter(
                "fonn_http_lost_reads_total",
                "Reads over HTTP answered as a miss although the entry may exist.",
                &[("reason", reason.as_str())],
                get(count),
            );
        }
        for (event, count) in TurborepoEvent::ALL.iter().zip(&self.events) {
            snapshot.counter(
                "fonn_http_turborepo_events_total",
                "Hits and misses that Turborepo reports of its own directory and of this cache.",
                &[("event", event.as_str())],
                get(count),
            );
        }
        for (outcome, count) in ExchangeOutcome::ALL.iter().zip(&self.exchanges) {
            snapshot.counter(
                "fonn_token_exchanges_total",
                "Requests to exchange an identity token of an OIDC issuer for a token, by what came of them.",
                &[("outcome", outcome.as_str())],
                get(count),
            );
        }
        for (outcome, bytes) in ChunkOutcome::ALL.iter().zip(&self.chunk_bytes) {
            snapshot.counter(
                "fonn_http_chunk_bytes_total",
                "Bytes of long values in chunks that were stored, or that another value had stored.",
                &[("outcome", outcome.as_str())],
                get(bytes),
            );
        }
        self.remote.publish(snapshot);
        self.usage.publish(snapshot);
        snapshot.gauge(
            "fonn_http_connections",
            "Connections of build tools over HTTP.",
            &[],
            self.connections.load(Ordering::Relaxed) as f64,
        );
        snapshot.counter(
            "fonn_http_connections_total",
            "Connections over HTTP accepted.",
            &[],
            get(&self.accepted),
        );
        snapshot.counter(
            "fonn_http_connections_rejected_total",
            "Connections over HTTP closed because there were too many.",
            &[],
            get(&self.rejected),
        );
        snapshot.counter(
            "fonn_http_connections_stalled_total",
            "Connections over HTTP closed because the client was too slow, idle for too long, sent too many frames, or made \
             too many requests without a login.",
            &[],
            get(&self.stalled),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_counts_as_itself_or_as_other() {
        let label = |status| STATUSES[status_index(status)];
        assert_eq!(label(StatusCode::NOT_FOUND), "404");
        assert_eq!(label(StatusCode::IM_A_TEAPOT), "other");
    }
}
