//! Flushes of a cluster: begun here, and those of the time in which this member was away.
//!
//! A flush goes to all members that are there, and all of them agree on its cutoff ([`route::Flush`]), so that what is written behind it
//! is above the cutoff of each. One that was not there, and comes back with its disk, is told by its
//! sources, before it answers for a slot of theirs, and then by all others, since it may get slots from none of them later;
//! what they have not heard of themselves others tell them. A flush that is under way when it comes is made by all of
//! them by the new map, or begun again.
//!
//! A flush with a delay is noted by each member, and carried out by each at its time, by its own clock; who does it first has all others do
//! it too, with one cutoff.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fonn_proto::peer::{self, Refusal, Reply, Request};
use fonn_proto::{Failure, Version};
use fonn_runtime::route::{self, Target, envelope};

use super::{Held, Sharing};
use crate::engine::Engine;
use crate::entry::Space;

/// How long a flush may take, or an owner is waited for, if that is longer.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// Between tries while another member goes by another map.
const FLUSH_RETRY: Duration = Duration::from_millis(100);

/// Has all members carry out what falls due at one of them, for ever.
pub async fn run(sharing: Arc<Sharing>, engine: Arc<Engine>) {
    loop {
        for space in engine.fell_due().await {
            if let Err(failure) = sharing.flush(&engine, space, false).await {
                tracing::warn!(
                    space = space.0,
                    ?failure,
                    "a flush that fell due is not carried out by all members yet: each does it by its own clock"
                );
            }
        }
    }
}

impl Sharing {
    /// Flushes a space, or all databases of its namespace, at all members that are up, and returns once that survives a restart of any.
    /// One that goes by another map, or does not answer, is asked again, if it is still there by the next map.
    ///
    /// # Errors
    /// [`Failure::Busy`] or [`Failure::Unavailable`] if not all of them did it in time; some may have.
    pub async fn flush(
        &self,
        engine: &Engine,
        space: Space,
        all_databases: bool,
    ) -> Result<(), Failure> {
        let deadline = Instant::now() + FLUSH_TIMEOUT.max(self.owners_wait);
        let flush = route::Flush::new(space, all_databases, deadline);
        loop {
            match self.try_flush(engine, flush).await {
                Err(Failure::Busy | Failure::Unavailable) if Instant::now() < deadline => {
                    tokio::time::sleep(FLUSH_RETRY).await;
                }
                flushed => return flushed,
            }
        }
    }

    /// One try of [`Self::flush`].
    pub(super) async fn try_flush(
        &self,
        engine: &Engine,
        flush: route::Flush,
    ) -> Result<(), Failure> {
        let since = self.epoch();
        if since == 0 {
            // It does not know yet who the others are.
            return Err(Failure::Busy);
        }
        let spaces = flush.spaces();
        // First here: who comes in after that is told by this member or is among the others.
        let own = self.flush_own(engine, &spaces, None).await?;
        let others = self.others();
        let cutoff = flush.begin(&others).await?.max(own);
        self.flush_own(engine, &spaces, Some(cutoff)).await?;
        flush.end(&others, cutoff).await?;
        // By a newer map there may be others.
        match self.epoch() == since {
            true => Ok(()),
            false => Err(Failure::Busy),
        }
    }

    /// This member's part in a flush: hides what is here, or, once all have done that, takes their cutoff over. Returns its cutoff.
    ///
    /// # Errors
    /// [`Failure::Busy`] if it is not known whether this member is still one by the newest map: others may have flushed without it, and what was
    /// written since then has to stay. [`Failure::Unavailable`] if it could not be persisted, or makes no sense.
    pub async fn flush_own(
        &self,
        engine: &Engine,
        spaces: &[Space],
        cutoff: Option<Version>,
    ) -> Result<Version, Failure> {
        match cutoff {
            Some(cutoff) => engine.flush_below(spaces, cutoff).await.map(|()| cutoff),
            None if self.is_sound() => engine.flush_now(spaces).await,
            None => Err(Failure::Busy),
        }
    }

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
            .call(&Request::Flushes, envelope, None, self.owners_wait);
        let Ok(answer) = call.await else { return false };
        // By an older map it may still be asked for a flush by who does not know of this member.
        if answer.head().envelope.epoch < self.epoch() {
            return false;
        }
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
fn told(reply: &Reply<'_>) -> Option<Vec<peer::Flush>> {
    match reply {
        Reply::Flushes(flushes) => Some(flushes.iter().collect()),
        // An older version does not know of it.
        Reply::Refused(Refusal::Unsupported) => Some(Vec::new()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use fonn_proto::Outcome;

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
