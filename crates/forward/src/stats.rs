//! What happens to commands on their way.

use fonn_base::metrics::striped::Counters;
use fonn_base::metrics::{Label as _, Snapshot};

fonn_base::label! {
    /// What happens to commands on their way.
    pub enum Event: "event" {
        /// Sent to the owner of its key.
        Forwarded = "forwarded",
        /// Answered by the router itself: the check of sccache.
        Local = "local",
        /// The member answered that it has another map.
        WrongOwner = "wrong_owner",
        /// A read went to the next owner in rank.
        ReplicaRead = "replica_read",
        /// A read that an owner was slow to answer was asked of another one too.
        Hedged = "hedged",
        /// The other one answered it.
        HedgeWon = "hedge_won",
        /// A slow read was not asked of another owner: there were too many.
        HedgeDenied = "hedge_denied",
        /// A command that was sent and not answered was not sent again: there were too many.
        RetryDenied = "retry_denied",
        /// A write waited for another map.
        MapWait = "map_wait",
        /// Refused because too much is under way to its owner.
        Busy = "busy",
        /// No member answered: a read was a miss, a write refused.
        Unanswered = "unanswered",
    }
}

/// Counters of all events.
#[derive(Debug, Default)]
pub struct Events(Counters<{ Event::ALL.len() }>);

impl Events {
    /// Counts one.
    #[inline]
    pub fn count(&self, event: Event) {
        self.0.add(event as usize, 1);
    }

    /// The total since the start.
    #[must_use]
    pub fn total(&self, event: Event) -> u64 {
        self.0.total(event as usize)
    }

    /// Publishes the totals as the metric `name`, but for those of `without`.
    pub fn publish(&self, snapshot: &mut Snapshot, name: &'static str, without: &[Event]) {
        let help = "Commands by what happened to them on their way; one may count several times.";
        for event in Event::ALL.iter().filter(|event| !without.contains(event)) {
            let labels = [(Event::NAME, event.as_str())];
            snapshot.counter(name, help, &labels, self.total(*event));
        }
    }
}
