//! The metrics of a router: read from their cells at each scrape.

use std::sync::Arc;
use std::time::SystemTime;

use fonn_base::metrics::{Metrics, Snapshot};
use fonn_proto::session::Dialect;
use fonn_server::Event;

use crate::follow::Follower;
use crate::service::{Router, Shared};

/// Publishes everything about a router but its connections to members.
pub fn register(metrics: &Metrics, shared: &Arc<Shared>, follower: &Arc<Follower>) {
    let (shared, follower) = (Arc::clone(shared), Arc::clone(follower));
    metrics.on_scrape(move |snapshot| {
        freshness(snapshot, &follower);
        shared
            .service
            .events()
            .publish(snapshot, "fonn_router_commands_total", &[]);
        connections(snapshot, &shared);
        map(snapshot, &shared.service);
    });
}

fn connections(snapshot: &mut Snapshot, shared: &Shared) {
    let total = |event| shared.service.connection_total(event);
    let mut gauge = |name, help, value: usize| snapshot.gauge(name, help, &[], value as f64);
    gauge(
        "fonn_router_connections",
        "Client connections.",
        shared.registry.len(),
    );
    gauge(
        "fonn_router_connections_limit",
        "Client connections at most.",
        shared.connections_max,
    );
    gauge(
        "fonn_router_unsent_bytes",
        "Bytes of replies that clients do not read yet.",
        shared.unsent_bytes(),
    );
    let mut counter = |name, help, event| {
        snapshot.counter(name, help, &[], total(event));
    };
    counter(
        "fonn_router_connections_total",
        "Client connections accepted.",
        Event::Accepted,
    );
    counter(
        "fonn_router_connections_rejected_total",
        "Client connections closed because there were too many, or too many that had not logged in.",
        Event::Rejected,
    );
    counter(
        "fonn_router_connections_stalled_total",
        "Client connections closed because the client stopped in the middle of a request, did not read, or did not finish its TLS handshake and login in time.",
        Event::Stalled,
    );
    counter(
        "fonn_router_connection_panics_total",
        "Client connections closed because serving them panicked: a bug.",
        Event::Panicked,
    );
    counter(
        "fonn_router_protocol_errors_total",
        "Client connections closed because of what they sent.",
        Event::ProtocolError,
    );
    counter(
        "fonn_router_received_bytes_total",
        "Bytes received from clients.",
        Event::BytesRead,
    );
    counter(
        "fonn_router_sent_bytes_total",
        "Bytes sent to clients.",
        Event::BytesWritten,
    );
    counter(
        "fonn_router_too_large_total",
        "Values refused because they are longer than --max-value.",
        Event::TooLarge,
    );
    counter(
        "fonn_router_busy_total",
        "Requests refused because there was no memory to receive them.",
        Event::Busy,
    );
    counter(
        "fonn_router_authentication_failures_total",
        "Attempts to log in that were refused: a wrong user name or password, an unknown or expired token, or too many that wait.",
        Event::AuthFailed,
    );
    for (reason, event) in [
        ("auth_required", Event::AuthRequired),
        ("read_only", Event::ReadOnly),
    ] {
        let help = "Commands that were refused because of their client, by reason.";
        let labels = [("reason", reason)];
        snapshot.counter("fonn_router_refusals_total", help, &labels, total(event));
    }
    let help = "Time from the arrival of a request to its reply; requests that arrived together count \
                with the mean of their batch.";
    for (dialect, latency) in Dialect::ALL.iter().zip(&shared.latency) {
        let labels = [("protocol", dialect.name())];
        let name = "fonn_router_request_duration_seconds";
        snapshot.histogram(name, help, &labels, &latency.sum());
    }
}

fn freshness(snapshot: &mut Snapshot, follower: &Follower) {
    let freshness = follower.freshness();
    let mut gauge = |name, help, value| snapshot.gauge(name, help, &[], value);
    gauge(
        "fonn_router_topology_behind_seconds",
        "For how long the router may have applied an older topology than the members: no member is heard, or one told of a \
         newer epoch. 0 if it is up to date.",
        freshness.behind.as_secs_f64(),
    );
    gauge(
        "fonn_router_topology_streams",
        "Members that the router follows the topology at; 2 where there are as many.",
        freshness.followed.len() as f64,
    );
    let applied_at = follower.map().applied_at();
    let since_epoch = applied_at.and_then(|it| it.duration_since(SystemTime::UNIX_EPOCH).ok());
    gauge(
        "fonn_router_topology_applied_timestamp_seconds",
        "When the topology in force was applied, in seconds since 1970; 0 before there is one.",
        since_epoch.map_or(0.0, |it| it.as_secs_f64()),
    );
}

fn map(snapshot: &mut Snapshot, router: &Router) {
    snapshot.gauge(
        "fonn_router_map_epoch",
        "Epoch of the map that requests are sent by; 0 before there is one.",
        &[],
        router.map().epoch() as f64,
    );
}
