//! What a router counts, and its metrics: read from their cells at each scrape.

use std::sync::Arc;
use std::time::SystemTime;

use fonn_base::metrics::striped::Counters;
use fonn_base::metrics::{Label as _, Metrics, Snapshot};
use fonn_server::Event;

use crate::follow::Follower;
use crate::service::{Router, Shared};

/// Counters of what happens on connections of clients.
#[derive(Debug, Default)]
pub struct ConnectionEvents(Counters<{ Event::ALL.len() }>);

impl ConnectionEvents {
    /// Counts an event, or its bytes.
    #[inline]
    pub fn count(&self, event: Event, n: u64) {
        self.0.add(event as usize, n);
    }

    /// The total since the start.
    #[must_use]
    pub fn total(&self, event: Event) -> u64 {
        self.0.total(event as usize)
    }
}

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
    let events = shared.service.connection_events();
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
        snapshot.counter(name, help, &[], events.total(event));
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
        snapshot.counter(
            "fonn_router_refusals_total",
            help,
            &labels,
            events.total(event),
        );
    }
    let help = "Time from the arrival of a request to its reply; requests that arrived together count \
                with the mean of their batch.";
    for (protocol, latency) in ["text", "binary", "resp"].iter().zip(&shared.latency) {
        let labels = [("protocol", *protocol)];
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
    let topology = router.map().topology();
    let topology = topology.as_deref();
    snapshot.gauge(
        "fonn_router_map_epoch",
        "Epoch of the map that requests are sent by; 0 before there is one.",
        &[],
        topology.map_or(0.0, |topology| topology.epoch() as f64),
    );
    let members = topology.map_or(&[][..], |topology| topology.members());
    let serving = members.iter().filter(|it| it.state.is_serving()).count();
    for (state, count) in [("serving", serving), ("other", members.len() - serving)] {
        snapshot.gauge(
            "fonn_router_map_members",
            "Members in the map, by whether requests are sent to them.",
            &[("state", state)],
            count as f64,
        );
    }
}
