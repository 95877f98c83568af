//! Flushes of a cluster: those that begin here, and those that ran while this member was down.
//!
//! A flush goes to all members that are up, and all of them agree on its cutoff ([`Flush`]).
//! So later writes are above the cutoff of each member. A member that was down learns of the flush
//! from the primary of each slot when it has copied the slot. A flush during which the epoch
//! changes begins again.
//!
//! Each member notes a delayed flush, and executes it at its time, by its own clock. The first one
//! makes all others do it too, with one cutoff.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fonn_base::entry::Space;
use fonn_forward::{Flush, Hidden, Target, envelope};
use fonn_proto::peer::{Reply, Request};
use fonn_proto::{Failure, PurgeScope, Version};
use fonn_replication::Epoch;

use super::Replication;
use crate::engine::Engine;

/// How long a flush may take, unless writes wait longer for other owners.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// Between tries while another member goes by another map.
const FLUSH_RETRY: Duration = Duration::from_millis(100);

/// Has all members carry out what falls due at one of them, for ever.
pub async fn run(replication: Arc<Replication>, engine: Arc<Engine>) {
    loop {
        for space in engine.fell_due().await {
            if let Err(failure) = replication.flush(&engine, space, false).await {
                tracing::warn!(
                    space = space.0,
                    ?failure,
                    "a flush that fell due is not carried out by all members yet: each does it by its own clock"
                );
            }
        }
    }
}

impl Replication {
    /// Flushes a space, or all databases of its namespace, at all members that are up, and returns
    /// once that survives a restart of any. One that goes by another map, or does not answer, is
    /// asked again, if it is still there by the next map.
    ///
    /// # Errors
    /// [`Failure::Busy`] or [`Failure::Unavailable`] if not all of them did it in time; some may
    /// have.
    pub async fn flush(
        &self,
        engine: &Engine,
        space: Space,
        all_databases: bool,
    ) -> Result<(), Failure> {
        let deadline = Instant::now() + FLUSH_TIMEOUT.max(self.owners_wait);
        let flush = Flush::new(space, all_databases, deadline);
        self.flush_until(engine, flush, deadline).await
    }

    /// Purges what an identity wrote, as [`Self::flush`] flushes.
    ///
    /// # Errors
    /// As [`Self::flush`]; [`Failure::OutOfSpace`] if a member keeps too many purges.
    pub async fn purge(&self, engine: &Engine, purge: PurgeScope) -> Result<(), Failure> {
        let deadline = Instant::now() + FLUSH_TIMEOUT.max(self.owners_wait);
        let flush = Flush::of_purge(purge, deadline);
        self.flush_until(engine, flush, deadline).await
    }

    async fn flush_until(
        &self,
        engine: &Engine,
        flush: Flush,
        deadline: Instant,
    ) -> Result<(), Failure> {
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
    pub(super) async fn try_flush(&self, engine: &Engine, flush: Flush) -> Result<(), Failure> {
        let since = self.epoch();
        if since == 0 {
            // It does not know yet the other members.
            return Err(Failure::Busy);
        }
        let hidden = flush.hidden();
        // First here: a member that joins after that is told by this member or is among the others.
        let own = self.flush_own(engine, &hidden, None).await?;
        let others = self.others();
        let cutoff = flush.begin(&others).await?.max(own);
        self.flush_own(engine, &hidden, Some(cutoff)).await?;
        flush.end(&others, cutoff).await?;
        // By a newer map there may be others.
        match self.epoch() == since {
            true => Ok(()),
            false => Err(Failure::Busy),
        }
    }

    /// This member's part in a flush: hides what is here, or, once all have done that, takes their
    /// cutoff over. Returns its cutoff.
    ///
    /// # Errors
    /// [`Failure::Busy`] if it is not known whether this member is still one by the newest map:
    /// others may have flushed without it, and what was written since then has to stay. Or if it
    /// has lost writes of this epoch: its clock may be below them, and the bucket may have them.
    /// [`Failure::Unavailable`] if it could not be persisted, or is malformed.
    pub async fn flush_own(
        &self,
        engine: &Engine,
        hidden: &Hidden,
        cutoff: Option<Version>,
    ) -> Result<Version, Failure> {
        match (cutoff, hidden) {
            (Some(cutoff), Hidden::Spaces(spaces)) => {
                engine.flush_below(spaces, cutoff).await.map(|()| cutoff)
            }
            (Some(cutoff), Hidden::Written(purge)) => {
                engine.purge_below(*purge, cutoff).await.map(|()| cutoff)
            }
            (None, _) if !self.holds_lease() || !self.is_fit() => Err(Failure::Busy),
            (None, Hidden::Spaces(spaces)) => engine.flush_now(spaces).await,
            (None, Hidden::Written(purge)) => engine.purge_now(*purge).await,
        }
    }

    /// Takes over what the primary of copied slots knows to be flushed. False if it does not say
    /// yet. Flushes that begin later reach this member too: it is up by the applied epoch.
    pub(super) async fn learn_flushes(
        &self,
        engine: &Engine,
        primary: &Target,
        epoch: Epoch,
    ) -> bool {
        let envelope = envelope(0, Space::default(), epoch.0);
        let call = primary
            .client
            .call(&Request::Flushes, envelope, None, self.owners_wait);
        let Ok(answer) = call.await else { return false };
        if answer.head().envelope.epoch != epoch.0 {
            return false;
        }
        let Ok(Reply::Flushes(flushes)) = answer.reply() else {
            return false;
        };
        let adopted = engine.adopt_flushes(flushes.iter().collect()).await;
        if let Err(failure) = adopted {
            tracing::warn!(?failure, "what was flushed meanwhile could not be kept");
        }
        adopted.is_ok()
    }
}
