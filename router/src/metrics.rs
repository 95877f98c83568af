//! What a router counts, and its metrics: read from their cells whenever somebody scrapes.

use std::sync::Arc;

use fonn_runtime::metrics::striped::Counters;
use fonn_runtime::metrics::{Metrics, Snapshot};
use fonn_runtime::serve;

use crate::service::{Router, Shared};

macro_rules! events {
    ($($(#[$doc:meta])* $name:ident => $label:literal,)*) => {
        /// What happens to commands on their way.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Event { $($(#[$doc])* $name,)* }

        impl Event {
            /// All of them, in order.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The name it has in metrics.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self { $(Self::$name => $label,)* }
            }
        }
    };
}

events! {
    /// Sent to the owner of its key.
    Forwarded => "forwarded",
    /// Answered by the router itself: the check of sccache.
    Local => "local",
    /// Answered by a member that goes by another map.
    WrongOwner => "wrong_owner",
    /// A read went to the next owner in rank.
    ReplicaRead => "replica_read",
    /// A write waited for another map.
    MapWait => "map_wait",
    /// Refused because too much is under way to its owner.
    Busy => "busy",
    /// Nobody answered: a read was a miss, a write refused.
    Unanswered => "unanswered",
}

/// Counters of all events.
#[derive(Debug, Default)]
pub struct Events {
    commands: Counters<{ Event::ALL.len() }>,
    connections: Counters<{ serve::Event::ALL.len() }>,
}

impl Events {
    /// Counts one.
    #[inline]
    pub fn count(&self, event: Event) {
        self.commands.add(event as usize, 1);
    }

    /// The total since the start.
    #[must_use]
    pub fn total(&self, event: Event) -> u64 {
        self.commands.total(event as usize)
    }

    /// Counts what happens on connections.
    #[inline]
    pub fn count_connection(&self, event: serve::Event, n: u64) {
        self.connections.add(event as usize, n);
    }

    /// As [`Events::total`], of what happens on connections.
    #[must_use]
    pub fn total_connection(&self, event: serve::Event) -> u64 {
        self.connections.total(event as usize)
    }
}

/// Publishes everything about a router but its connections to members.
pub fn register(metrics: &Metrics, shared: &Arc<Shared>) {
    let shared = Arc::clone(shared);
    metrics.on_scrape(move |snapshot| {
        commands(snapshot, &shared.service);
        connections(snapshot, &shared);
        map(snapshot, &shared.service);
    });
}

fn commands(snapshot: &mut Snapshot, router: &Router) {
    let help = "Commands by what happened to them on their way; one may count several times.";
    for event in Event::ALL {
        let labels = [("event", event.label())];
        let total = router.events().total(*event);
        snapshot.counter("fonn_router_commands_total", help, &labels, total);
    }
}

fn connections(snapshot: &mut Snapshot, shared: &Shared) {
    let events = shared.service.events();
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
        snapshot.counter(name, help, &[], events.total_connection(event));
    };
    counter(
        "fonn_router_connections_total",
        "Client connections accepted.",
        serve::Event::Accepted,
    );
    counter(
        "fonn_router_connections_rejected_total",
        "Client connections closed at once because there were too many.",
        serve::Event::Rejected,
    );
    counter(
        "fonn_router_connections_stalled_total",
        "Client connections closed because the client stopped in the middle of a request or did not read.",
        serve::Event::Stalled,
    );
    counter(
        "fonn_router_connection_panics_total",
        "Client connections closed because serving them panicked: a bug.",
        serve::Event::Panicked,
    );
    counter(
        "fonn_router_protocol_errors_total",
        "Client connections closed because of what they sent.",
        serve::Event::ProtocolError,
    );
    counter(
        "fonn_router_received_bytes_total",
        "Bytes received from clients.",
        serve::Event::BytesRead,
    );
    counter(
        "fonn_router_sent_bytes_total",
        "Bytes sent to clients.",
        serve::Event::BytesWritten,
    );
    counter(
        "fonn_router_too_large_total",
        "Values refused because they are longer than --max-value.",
        serve::Event::TooLarge,
    );
    counter(
        "fonn_router_busy_total",
        "Requests refused because there was no memory to receive them.",
        serve::Event::Busy,
    );
    let help = "Time from the arrival of a request to its reply; requests that arrived together count \
                with the mean of their batch.";
    for (protocol, latency) in ["text", "binary", "resp"].iter().zip(&shared.latency) {
        let labels = [("protocol", *protocol)];
        let name = "fonn_router_request_duration_seconds";
        snapshot.histogram(name, help, &labels, &latency.sum());
    }
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
