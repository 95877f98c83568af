//! When a node counts as ready: as soon as it serves, or, where its index of the bucket has to be
//! made first, when it has it.
//!
//! Until then what only the bucket has is a miss. A rollout that went on meanwhile would put a cold
//! cluster in the place of a warm one. Clients that come all the same are served. Whatever the
//! bucket does, the wait ends: at once where the index is on the disk or there is no bucket, soon
//! where the bucket is seen to fail, and after [`INDEX_WAIT_MAX`] in any case.
//!
//! A member that its cluster refuses is not ready: it answers for no slot.

use std::time::Duration;

use fonn_admin::Readiness;
use fonn_base::clock::Clock;
use fonn_base::events::{Events, Topic};
use fonn_cold_tier::{ColdTier, FirstReading};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

/// How long a node is not ready for want of its index.
const INDEX_WAIT_MAX: Duration = Duration::from_secs(120);

/// How long a bucket that has answered nothing yet is waited for: two tries of a request.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(10);

/// How often it is looked at how the bucket is doing.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What `/readyz` tells while the index is waited for.
const READING: &str = "reading the bucket's index";

/// What it tells where that was given up.
const FAILS: &str = "ready without the bucket's index: the bucket fails";
const IS_SILENT: &str = "ready without the bucket's index: the bucket does not answer";
const IS_REFUSED: &str = "ready without the bucket's index: the bucket refuses a segment's footer";
const IS_LOST: &str = "ready without the bucket's index: the local index failed";
const TAKES_LONG: &str =
    "ready without the bucket's index: it is still being read after two minutes";

/// What it tells while the cluster refuses the member.
const NOT_ADMITTED: &str = "the cluster refuses this member (see its log): if it was removed, or \
     the cluster was formed anew, stop it and delete DATA_DIR/raft";

/// Tells when the node is ready.
pub(super) struct Ready {
    pub readiness: Readiness,
    pub events: Events,
    pub clock: Clock,
    /// When the process began, by that clock.
    pub began_ms: u64,
}

impl Ready {
    /// The node serves, and is ready, unless there is an index to [`Ready::wait`] for.
    pub(super) fn serves<'t>(&self, cold: Option<&'t ColdTier>) -> Option<&'t ColdTier> {
        let awaited = cold.filter(|tier| !tier.is_ready());
        if awaited.is_some() {
            self.readiness.set_not_ready(READING);
            tracing::info!("clients are served, and the bucket's index is read");
        } else {
            self.readiness.set_ready();
            self.tell("");
        }
        awaited
    }

    /// Waits for the index as long as that makes sense, and notes when it is there after all. For
    /// ever: to be aborted before the node is not ready any more.
    pub(super) async fn wait(self, tier: ColdTier) {
        if let Err(words) = index(&tier).await {
            self.readiness.set_ready_as(words);
            tracing::warn!("{words}; what only the bucket has is a miss until it is there");
            self.tell(words.trim_start_matches("ready"));
            tier.ready().await;
            self.events
                .info(Topic::Cold, "the bucket's index is complete");
        } else {
            self.tell("");
        }
        self.readiness.set_ready();
        tracing::info!("ready: the bucket's index is complete");
        std::future::pending::<()>().await;
    }

    /// Records that the node is ready; `but` says what is not as it should be.
    fn tell(&self, but: &str) {
        let took_ms = self.clock.monotonic_ms().saturating_sub(self.began_ms);
        let version = env!("CARGO_PKG_VERSION");
        let message = format!("fonn-node {version} is ready after {took_ms} ms{but}");
        match but {
            "" => self.events.info(Topic::Process, message),
            _ => self.events.warning(Topic::Process, message),
        }
    }
}

/// Has the node not ready while its cluster refuses it, until the cluster stops.
pub(super) async fn follow_admission(mut refused: watch::Receiver<bool>, readiness: Readiness) {
    loop {
        let is_refused = *refused.borrow_and_update();
        readiness.set_obstacle(is_refused.then_some(NOT_ADMITTED));
        if refused.changed().await.is_err() {
            return;
        }
    }
}

/// Waits until the index is complete.
///
/// # Errors
/// Why it is not waited for any longer, in the words of `/readyz`.
async fn index(tier: &ColdTier) -> Result<(), &'static str> {
    let begun = Instant::now();
    loop {
        if let Some(end) = judge(tier.first_reading(), begun.elapsed()) {
            return end;
        }
        // Nothing but the end wakes it: the reason of a failure is looked for now and then.
        let _ = timeout(LOOK_EVERY, tier.ready()).await;
    }
}

/// Whether the wait is over, after `waited`.
fn judge(reading: FirstReading, waited: Duration) -> Option<Result<(), &'static str>> {
    Some(match reading {
        FirstReading::Done => Ok(()),
        FirstReading::IndexFailed => Err(IS_LOST),
        FirstReading::Refused => Err(IS_REFUSED),
        FirstReading::Failing => Err(FAILS),
        FirstReading::UnderWay { is_answered: false } if waited >= ANSWER_WAIT_MAX => {
            Err(IS_SILENT)
        }
        FirstReading::UnderWay { .. } if waited >= INDEX_WAIT_MAX => Err(TAKES_LONG),
        FirstReading::UnderWay { .. } => return None,
    })
}

#[cfg(test)]
mod tests;
