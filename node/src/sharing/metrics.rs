//! What a member counts about sharing, and its metrics.

use std::sync::Arc;

use fonn_base::metrics::Metrics;
use fonn_base::metrics::striped::Counters;
use fonn_forward::Event as Sent;

use super::Sharing;

/// What happens between members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Event {
    /// A command was sent to the owner of its key.
    Forwarded,
    /// A key was asked for where its slot was before.
    Asked,
    /// An entry or tombstone of a slot that is taken over was new.
    Taken,
    /// It was known already.
    Known,
    /// A write was given to another owner.
    Replicated,
    /// A write was refused because another owner that is up did not take it.
    NotReplicated,
    /// A hedged read was answered from the copy of an owner.
    CopyRead,
    /// A copy was not shown: there is none, or the member may be cut off.
    CopyDenied,
    /// Owners had different versions of a key, and have the newer one now.
    Repaired,
    /// They may still have: there were too many such keys, or one of the owners did not take it for
    /// too long.
    NotRepaired,
    /// A member may know of a slot what this member does not, and is not asked: there are too many
    /// such members.
    SourceLeftOut,
}

const EVENTS: [(Event, &str); 11] = [
    (Event::Forwarded, "forwarded"),
    (Event::Asked, "asked"),
    (Event::Taken, "taken"),
    (Event::Known, "known"),
    (Event::Replicated, "replicated"),
    (Event::NotReplicated, "not_replicated"),
    (Event::CopyRead, "copy_read"),
    (Event::CopyDenied, "copy_denied"),
    (Event::Repaired, "repaired"),
    (Event::NotRepaired, "not_repaired"),
    (Event::SourceLeftOut, "source_left_out"),
];

/// Counters of all events.
#[derive(Debug, Default)]
pub struct Events(Counters<{ EVENTS.len() }>);

impl Events {
    /// Counts one.
    pub fn count(&self, event: Event) {
        self.add(event, 1);
    }

    /// Counts several.
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
pub fn register(metrics: &Metrics, sharing: &Arc<Sharing>) {
    let sharing = Arc::clone(sharing);
    metrics.on_scrape(move |snapshot| {
        let help = "Slots by this member's part in them; of those that are filling it lacks something yet.";
        for (part, count) in ["primary", "replica", "filling"].iter().zip(sharing.counts()) {
            let labels = [("part", *part)];
            snapshot.gauge("fonn_cluster_slots", help, &labels, count as f64);
        }
        let help = "1 while this node answers for its slots: it is promised not to be held for down, or has heard no leader for so long that it goes by its last map.";
        let is_sound = f64::from(u8::from(sharing.is_sound()));
        snapshot.gauge("fonn_cluster_has_lease", help, &[], is_sound);
        let help = "What members did for each other, by kind.";
        for (event, label) in EVENTS {
            let labels = [("event", label)];
            let total = sharing.events.total(event);
            snapshot.counter("fonn_cluster_sharing_total", help, &labels, total);
        }
        // What routers alone count.
        let without = [Sent::Forwarded, Sent::Local];
        let events = sharing.forwarder.events();
        events.publish(snapshot, "fonn_cluster_commands_total", &without);
    });
}
