//! What is counted of the Remote Execution API.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fonn_base::metrics::striped::Latency;
use fonn_base::metrics::{Label as _, Snapshot};
use fonn_reapi::Method;
use fonn_reapi::status::Code;

fonn_base::label! {
    /// What became of a lookup of an action result.
    pub(crate) enum ResultLookup: "outcome" {
        /// It was returned: all that it refers to is there.
        Complete = "complete",
        /// Something that it refers to is missing.
        Incomplete = "incomplete",
        /// The entry is no action result.
        Malformed = "malformed",
        /// There is no entry.
        Absent = "absent",
    }
}

const METHODS: usize = Method::ALL.len();
const CODES: usize = Code::ALL.len();

/// The figures.
#[derive(Debug, Default)]
pub(crate) struct RemoteFigures {
    calls: [[AtomicU64; CODES]; METHODS],
    latency: [Latency; METHODS],
    lookups: [AtomicU64; ResultLookup::ALL.len()],
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
    packed_bytes: AtomicU64,
    packed_blob_bytes: AtomicU64,
}

fn add(cell: Option<&AtomicU64>, n: usize) {
    if let Some(cell) = cell {
        cell.fetch_add(n as u64, Ordering::Relaxed);
    }
}

impl RemoteFigures {
    /// Counts a call that was answered with `sent` bytes after so much time.
    pub(crate) fn answered(&self, method: Option<Method>, code: Code, sent: usize, time: Duration) {
        add(Some(&self.sent_bytes), sent);
        let method = Method::ALL.iter().position(|it| Some(*it) == method);
        let of = method.and_then(|index| self.calls.get(index));
        let code = Code::ALL.iter().position(|it| *it == code);
        add(of.zip(code).and_then(|(of, index)| of.get(index)), 1);
        if let Some(latency) = method.and_then(|index| self.latency.get(index)) {
            latency.took(time);
        }
    }

    /// Counts the bytes of blobs and results that arrived.
    pub(crate) fn received(&self, len: usize) {
        add(Some(&self.received_bytes), len);
    }

    /// Counts a lookup of an action result.
    pub(crate) fn looked_up(&self, outcome: ResultLookup) {
        add(self.lookups.get(outcome.index()), 1);
    }

    /// Counts a blob of `len` bytes that was stored as a stream.
    pub(crate) fn packed(&self, stream_len: usize, len: usize) {
        add(Some(&self.packed_bytes), stream_len);
        add(Some(&self.packed_blob_bytes), len);
    }

    /// Publishes all.
    pub(crate) fn publish(&self, snapshot: &mut Snapshot) {
        let get = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        for (method, of) in Method::ALL.iter().zip(&self.calls) {
            for (code, count) in Code::ALL.iter().zip(of) {
                snapshot.counter(
                    "fonn_reapi_requests_total",
                    "Calls of the Remote Execution API, by method and status code.",
                    &[("method", method.as_str()), ("code", code.as_str())],
                    get(count),
                );
            }
        }
        for (method, latency) in Method::ALL.iter().zip(&self.latency) {
            snapshot.histogram(
                "fonn_reapi_request_duration_seconds",
                "Time from a call of the Remote Execution API to the begin of its reply; uploads have come by then.",
                &[("method", method.as_str())],
                &latency.sum(),
            );
        }
        for (outcome, count) in ResultLookup::ALL.iter().zip(&self.lookups) {
            snapshot.counter(
                "fonn_reapi_action_results_total",
                "Lookups of action results over gRPC and HTTP, by outcome.",
                &[("outcome", outcome.as_str())],
                get(count),
            );
        }
        for (name, help, count) in [
            (
                "fonn_reapi_received_bytes_total",
                "Bytes of messages that clients of the Remote Execution API sent.",
                &self.received_bytes,
            ),
            (
                "fonn_reapi_sent_bytes_total",
                "Bytes of messages to clients of the Remote Execution API.",
                &self.sent_bytes,
            ),
            (
                "fonn_reapi_packed_bytes_total",
                "Bytes of blobs that were stored compressed as they came, over gRPC and HTTP.",
                &self.packed_bytes,
            ),
            (
                "fonn_reapi_packed_blob_bytes_total",
                "Bytes of the same blobs when they are decompressed.",
                &self.packed_blob_bytes,
            ),
        ] {
            snapshot.counter(name, help, &[], get(count));
        }
    }
}
