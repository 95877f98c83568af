//! Flushes of a cluster: those that begin here, and those that ran while this member was down.
//!
//! A flush goes to all members that are up. First each member hides its entries behind a version of
//! its own clock, and reports that version. The highest of them becomes the cutoff of all: no
//! version below it is given any more. So every write that was acknowledged before the flush is
//! below the cutoff, at each member. Writes behind the flush are above it, also for a member that
//! was away and takes the cutoff from any of the others. Writes during the flush are either.
//!
//! A member that was down learns of the flush from the primary of each slot when it has copied the
//! slot. A flush during which the epoch changes begins again.
//!
//! Each member notes a delayed flush, and executes it at its time, by its own clock. The first one
//! makes all others do it too, with one cutoff.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fonn_base::entry::Space;
use fonn_forward::{Target, envelope};
use fonn_proto::peer::{Reply, Request};
use fonn_proto::{Failure, Outcome, PurgeScope, Version};
use fonn_replication::Epoch;
use futures_util::future::join_all;

use super::Replication;
use crate::engine::Engine;

/// How long a flush may take, unless writes wait longer for other owners.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// How long another member may take: one that fell is known to be down by then, and the flush
/// begins again without it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// Between tries while another member goes by another map.
const FLUSH_RETRY: Duration = Duration::from_millis(100);

/// What a flush or purge hides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flush {
    /// The entries of this space, unless it is a purge.
    pub(crate) space: Space,
    /// Those of all databases of its namespace.
    pub(crate) all_databases: bool,
    /// What an identity wrote.
    pub(crate) purge: Option<PurgeScope>,
}

impl Flush {
    fn spaces(&self) -> Vec<Space> {
        match self.all_databases {
            true => Space::of_namespace(self.space.namespace()).collect(),
            false => vec![self.space],
        }
    }

    /// Has another member hide what it has, or keep the cutoff that all agreed on. Returns its
    /// cutoff.
    ///
    /// # Errors
    /// [`Failure::Busy`] if the map of that member is not the one of `target`.
    /// [`Failure::Unavailable`] if that member does not answer, or cannot persist the cutoff. The
    /// member may have hidden its entries in both cases.
    async fn ask(
        &self,
        target: &Target,
        cutoff: Option<Version>,
        deadline: Instant,
    ) -> Result<Version, Failure> {
        let request = Request::Flush {
            all_databases: self.all_databases,
            cutoff,
            purge: self.purge,
        };
        let left = deadline.saturating_duration_since(Instant::now());
        let envelope = envelope(0, self.space, target.epoch);
        let timeout = left.min(ANSWER_TIMEOUT);
        let call = target.client.call(&request, envelope, None, timeout);
        let answer = call.await.map_err(|_| Failure::Unavailable)?;
        // By an older map it may not have moved its clock past a failed member's.
        if answer.head().envelope.epoch < target.epoch {
            return Err(Failure::Busy);
        }
        match answer.reply() {
            Ok(Reply::Version(version)) => Ok(version),
            Ok(Reply::WrongOwner) => Err(Failure::Busy),
            Ok(Reply::Outcome(Outcome::Failed(failure))) => Err(failure),
            _ => Err(Failure::Unavailable),
        }
    }

    /// As [`Self::ask`] of all these members. Returns the highest of their cutoffs, 0 of none.
    async fn ask_all(
        &self,
        targets: &[Target],
        cutoff: Option<Version>,
        deadline: Instant,
    ) -> Result<Version, Failure> {
        let asked = targets
            .iter()
            .map(|target| self.ask(target, cutoff, deadline));
        let mut told = join_all(asked).await.into_iter();
        told.try_fold(0, |highest: Version, told| Ok(highest.max(told?)))
    }
}

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
        let flush = Flush {
            space,
            all_databases,
            purge: None,
        };
        self.flush_all(engine, flush).await
    }

    /// Purges what an identity wrote, as [`Self::flush`] flushes.
    ///
    /// # Errors
    /// As [`Self::flush`]; [`Failure::OutOfSpace`] if a member keeps too many purges.
    pub async fn purge(&self, engine: &Engine, purge: PurgeScope) -> Result<(), Failure> {
        let flush = Flush {
            purge: Some(purge),
            ..Flush::default()
        };
        self.flush_all(engine, flush).await
    }

    async fn flush_all(&self, engine: &Engine, flush: Flush) -> Result<(), Failure> {
        let deadline = Instant::now() + FLUSH_TIMEOUT.max(self.owners_wait);
        loop {
            match self.try_flush(engine, &flush, deadline).await {
                Err(Failure::Busy | Failure::Unavailable) if Instant::now() < deadline => {
                    tokio::time::sleep(FLUSH_RETRY).await;
                }
                flushed => return flushed,
            }
        }
    }

    /// One try of [`Self::flush`].
    async fn try_flush(
        &self,
        engine: &Engine,
        flush: &Flush,
        deadline: Instant,
    ) -> Result<(), Failure> {
        let since = self.epoch();
        if since == 0 {
            // It does not know yet the other members.
            return Err(Failure::Busy);
        }
        // First here: a member that joins after that is told by this member or is among the others.
        let own = self.flush_own(engine, flush, None).await?;
        let others = self.others();
        let cutoff = flush.ask_all(&others, None, deadline).await?.max(own);
        self.flush_own(engine, flush, Some(cutoff)).await?;
        flush.ask_all(&others, Some(cutoff), deadline).await?;
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
    pub(crate) async fn flush_own(
        &self,
        engine: &Engine,
        flush: &Flush,
        cutoff: Option<Version>,
    ) -> Result<Version, Failure> {
        let spaces = flush.spaces();
        match (cutoff, flush.purge) {
            (Some(cutoff), None) => engine.flush_below(&spaces, cutoff).await.map(|()| cutoff),
            (Some(cutoff), Some(purge)) => engine.purge_below(purge, cutoff).await.map(|()| cutoff),
            (None, _) if !self.holds_lease() || !self.is_fit() => Err(Failure::Busy),
            (None, None) => engine.flush_now(&spaces).await,
            (None, Some(purge)) => engine.purge_now(purge).await,
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
        let adopted = engine.adopt_flushes(flushes).await;
        if let Err(failure) = adopted {
            tracing::warn!(?failure, "what was flushed meanwhile could not be kept");
        }
        adopted.is_ok()
    }
}
