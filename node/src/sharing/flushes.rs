//! What was flushed while this member was away.
//!
//! A flush goes to all members that are there. One that was not, and comes back with its disk, is told by its
//! sources, before it answers for a slot of theirs; what they have not heard of themselves their sources tell. A
//! flush that is under way when it comes is made by all of them by the new map, or begun again.

use std::sync::Arc;

use fonn_proto::peer::{Reply, Request};
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
            told.is_some_and(|told| told.iter().all(|id| **id != *source))
        };
        if !is_wanted(&self.held.lock()) {
            return true;
        }
        let envelope = envelope(0, Space::default(), self.epoch());
        let call = target
            .client
            .call(&Request::Flushes, envelope, None, OWNERS_WAIT);
        let Ok(answer) = call.await else { return false };
        let flushes = match answer.reply() {
            Ok(Reply::Flushes(flushes)) => flushes.iter().collect(),
            // An older version does not know of it.
            Ok(Reply::Refused(_)) => Vec::new(),
            _ => return false,
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
            told.push(Arc::from(source));
        }
        is_current
    }

    /// Nothing is lacked any more: what is flushed from now on this member is told.
    pub(super) fn know_all_flushes(&self, generation: u64) {
        let mut held = self.held.lock();
        if *self.changes.borrow() == generation {
            held.told_flushes = None;
        }
    }
}
