//! What a member counts about replication, and its metrics.

use std::sync::Arc;

use fonn_base::metrics::striped::Counters;
use fonn_base::metrics::{Label as _, Metrics};
use fonn_forward::Event as Sent;

use super::Replication;

fonn_base::label! {
    /// What happens between members.
    pub enum Event: "event" {
        /// A command was sent to the owner of its key.
        Forwarded = "forwarded",
        /// An entry or tombstone of a slot that is copied was new.
        Taken = "taken",
        /// It was known already.
        Known = "known",
        /// It could not be kept.
        NotTaken = "not_taken",
        /// Another owner or learner took a write.
        Replicated = "replicated",
        /// A write that was executed is not acknowledged: another owner that is up did not take
        /// it, or another member may have led the slot meanwhile.
        NotReplicated = "not_replicated",
        /// Such a write was executed again by the member that leads the slot now.
        Repeated = "repeated",
        /// A hedged read was answered from the copy of an owner.
        CopyRead = "copy_read",
        /// A copy was not shown: there is none, or the member may be cut off.
        CopyDenied = "copy_denied",
    }
}

/// Counters of all events.
#[derive(Debug, Default)]
pub struct Events(Counters<{ Event::ALL.len() }>);

impl Events {
    /// Counts some.
    pub fn add(&self, event: Event, count: u64) {
        self.0.add(event as usize, count);
    }

    /// The total since the start.
    #[must_use]
    pub fn total(&self, event: Event) -> u64 {
        self.0.total(event as usize)
    }
}

/// Publishes what a member does for its cluster.
pub fn register(metrics: &Metrics, replication: &Arc<Replication>) {
    let replication = Arc::clone(replication);
    metrics.on_scrape(move |snapshot| {
        let help = "Slots by what this member does with them; it copies those that it learns.";
        for (part, count) in ["primary", "owner", "learner"].iter().zip(replication.counts()) {
            let labels = [("part", *part)];
            snapshot.gauge("fonn_cluster_slots", help, &labels, count as f64);
        }
        let help = "1 while this node answers for its slots: it holds a lease, or has heard no leader for so long that it goes on by its last topology.";
        let has_lease = f64::from(u8::from(replication.holds_lease()));
        snapshot.gauge("fonn_cluster_has_lease", help, &[], has_lease);
        let help = "What members did for each other, by kind.";
        for event in Event::ALL {
            let labels = [(Event::NAME, event.as_str())];
            let total = replication.events.total(*event);
            snapshot.counter("fonn_cluster_replication_total", help, &labels, total);
        }
        // What routers alone count.
        let without = [Sent::Forwarded, Sent::Local];
        let events = replication.forwarder.events();
        events.publish(snapshot, "fonn_cluster_commands_total", &without);
    });
}
