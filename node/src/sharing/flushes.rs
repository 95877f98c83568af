//! What was flushed while this member was away.
//!
//! A flush goes to all members that are there. One that was not, and comes back with its disk, is told by its
//! sources, before it answers for a slot of theirs, and then by all others, since it may get slots from none of them later;
//! what they have not heard of themselves others tell them. A flush that is under way when it comes is made by all of
//! them by the new map, or begun again.

use std::sync::Arc;

use fonn_proto::peer::{Flush, Refusal, Reply, Request};
use fonn_runtime::route::{Target, envelope};

use super::{Held, OWNERS_WAIT, Sharing};
use crate::engine::Engine;
use crate::entry::Space;

impl Sharing {
    /// Takes over what a member knows to be flushed, if this one was away and may not know it. False if it does not
    /// say yet.
    pub(super) async fn learn_flushes(
        &self,
        engine: &Engine,
        source: &str,
        target: &Target,
        generation: u64,
    ) -> bool {
        let is_wanted = |held: &Held| {
            let told = held.told_flushes.as_ref();
            told.is_some_and(|told| !told.contains(source))
        };
        if !is_wanted(&self.held.lock()) {
            return true;
        }
        let envelope = envelope(0, Space::default(), self.epoch());
        let call = target
            .client
            .call(&Request::Flushes, envelope, None, OWNERS_WAIT);
        let Ok(answer) = call.await else { return false };
        let Some(flushes) = answer.reply().ok().and_then(|reply| told(&reply)) else {
            return false;
        };
        if let Err(failure) = engine.adopt_flushes(flushes).await {
            tracing::warn!(
                source,
                ?failure,
                "what was flushed meanwhile could not be kept"
            );
            return false;
        }
        let mut held = self.held.lock();
        let is_current = *self.changes.borrow() == generation;
        if let Some(told) = held.told_flushes.as_mut().filter(|_| is_current) {
            told.insert(Arc::from(source));
        }
        is_current
    }

    /// As [`Self::learn_flushes`], of all members that serve. False if one does not say yet.
    pub(super) async fn learn_all_flushes(&self, engine: &Engine, generation: u64) -> bool {
        if self.held.lock().told_flushes.is_none() {
            return true;
        }
        let upstreams = self.forwarder.upstreams();
        let Some(topology) = upstreams.map().topology() else {
            return true;
        };
        for other in topology.members().iter().filter(|it| it.id != *self.own) {
            // Those that do not serve are none.
            let Some(target) = upstreams.member(&other.id) else {
                continue;
            };
            if !self
                .learn_flushes(engine, &other.id, &target, generation)
                .await
            {
                return false;
            }
        }
        true
    }

    /// Nothing is lacked any more: what is flushed from now on this member is told.
    pub(super) fn know_all_flushes(&self, generation: u64) {
        let mut held = self.held.lock();
        if *self.changes.borrow() == generation {
            held.told_flushes = None;
        }
    }
}

/// The flushes that an answer tells; None if it tells nothing.
fn told(reply: &Reply<'_>) -> Option<Vec<Flush>> {
    match reply {
        Reply::Flushes(flushes) => Some(flushes.iter().collect()),
        // An older version does not know of it.
        Reply::Refused(Refusal::Unsupported) => Some(Vec::new()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use fonn_proto::{Failure, Outcome};

    use super::*;

    #[test]
    fn only_who_does_not_know_the_question_has_nothing_to_tell() {
        let unsupported = Reply::Refused(Refusal::Unsupported);
        assert_eq!(told(&unsupported), Some(Vec::new()));
        for refusal in [Refusal::TooLong, Refusal::Malformed, Refusal::Damaged] {
            assert_eq!(told(&Reply::Refused(refusal)), None, "{refusal:?}");
        }
        let busy = Reply::Outcome(Outcome::Failed(Failure::Busy));
        assert_eq!(told(&busy), None);
    }
}
