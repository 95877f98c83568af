//! Flushes and purges: everything in a space below a version becomes invisible at once, or of it
//! what one identity wrote.

use std::collections::{HashMap, HashSet};

use fonn_base::entry::Space;
use fonn_proto::{ExpirySpec, Failure, PurgeScope, Version, peer};

use super::Engine;
use crate::flush::FlushTable;

impl Engine {
    /// Makes everything in `spaces` invisible, now or in `delay_s` seconds (an absolute time above
    /// 30 days, as with expiries), and returns once that survives a restart.
    ///
    /// # Errors
    /// [`Failure::Unavailable`] if it could not be persisted; what was flushed may come back with a
    /// restart then.
    pub async fn flush(&self, spaces: &[Space], delay_s: u32) -> Result<(), Failure> {
        if delay_s == 0 {
            return self.flush_now(spaces).await.map(|_| ());
        }
        self.hot.stats.count(crate::stats::Counter::CmdFlush);
        let spaces = spaces.to_vec();
        let at_ms = match ExpirySpec::from_memcached_seconds(i64::from(delay_s)) {
            ExpirySpec::AtMs(at_ms) => at_ms,
            _ => self.hot.clock.wall_ms() + u64::from(delay_s) * 1000,
        };
        self.change_ledger(move |ledger| {
            let flushes = &ledger.hot.flushes;
            spaces
                .iter()
                .for_each(|space| flushes.flush_at(*space, at_ms));
        })
        .await
    }

    /// Makes everything in `spaces` invisible that was written before now, and returns once that
    /// survives a restart: the version below which nothing counts there. A flush that was to come
    /// is not any more.
    ///
    /// # Errors
    /// As [`Self::flush`].
    pub async fn flush_now(&self, spaces: &[Space]) -> Result<Version, Failure> {
        self.hot.stats.count(crate::stats::Counter::CmdFlush);
        let spaces = spaces.to_vec();
        self.change_ledger(move |ledger| ledger.hot.flushes.flush(&spaces, || ledger.hlc.next()))
            .await
    }

    /// Makes everything in `spaces` invisible that is below a version which another member has
    /// drawn, and gives no version any more that is not above it; returns once that survives a
    /// restart. For a caller that has flushed them a moment ago: what was made since then of
    /// something older is not looked for.
    ///
    /// # Errors
    /// As [`Self::flush`], or if the version is more than a year ahead of the clock.
    pub async fn flush_below(&self, spaces: &[Space], cutoff: Version) -> Result<(), Failure> {
        let spaces = spaces.to_vec();
        self.hide_below(cutoff, move |flushes| {
            flushes.restore(spaces.into_iter().map(|space| (space, cutoff)));
        })
        .await
    }

    /// Hides what another member has hidden, and gives no version any more that is not above its
    /// cutoff; returns once that survives a restart.
    async fn hide_below(
        &self,
        cutoff: Version,
        hide: impl FnOnce(&FlushTable) + Send + 'static,
    ) -> Result<(), Failure> {
        if !self.ledger.hlc.admits(cutoff) {
            return Err(Failure::Unavailable);
        }
        let observed = self.change_ledger(move |ledger| {
            // Hidden first: what is written above the cutoff is made of nothing below it.
            hide(&ledger.hot.flushes);
            ledger.hlc.observe(cutoff)
        });
        observed.await?.map_err(|_| Failure::Unavailable)
    }

    /// Makes everything invisible that `purge` is about and that was written before now. Returns
    /// once that survives a restart, with the version below which nothing of it counts.
    ///
    /// # Errors
    /// [`Failure::OutOfSpace`] if there are [`PURGES_MAX`](crate::flush::PURGES_MAX) others, or as
    /// [`Self::flush`].
    pub async fn purge_now(&self, purge: PurgeScope) -> Result<Version, Failure> {
        if !self.hot.flushes.takes(purge) {
            return Err(Failure::OutOfSpace);
        }
        self.change_ledger(move |ledger| ledger.hot.flushes.purge(purge, || ledger.hlc.next()))
            .await
    }

    /// How many purges are in force here; at most [`PURGES_MAX`](crate::flush::PURGES_MAX).
    #[must_use]
    pub fn purges_in_force(&self) -> usize {
        self.hot.flushes.purges().len()
    }

    /// As [`Self::flush_below`], of a purge.
    ///
    /// # Errors
    /// As [`Self::flush_below`].
    pub async fn purge_below(&self, purge: PurgeScope, cutoff: Version) -> Result<(), Failure> {
        self.hide_below(cutoff, move |flushes| flushes.restore_purge(purge, cutoff))
            .await
    }

    /// Waits for flushes with a delay that fall due here: what they are about.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn fell_due(&self) -> Vec<Space> {
        self.hot.flushes.fell_due().await
    }

    /// The flushes that this node knows of, cuts of quotas among them.
    #[must_use]
    pub fn known_flushes(&self) -> Vec<peer::Flush> {
        let (cutoffs, pending) = self.hot.flushes.snapshot();
        let done = cutoffs.iter().map(|&(space, cutoff)| peer::Flush {
            space: space.0,
            cutoff,
            at_ms: 0,
            purge: None,
        });
        let later = pending.iter().map(|flush| peer::Flush {
            space: flush.space.0,
            cutoff: 0,
            at_ms: flush.at_ms,
            purge: None,
        });
        let purged = self.hot.flushes.purges().into_iter();
        let purged = purged.map(|(purge, cutoff)| peer::Flush {
            space: purge.place(),
            cutoff,
            at_ms: 0,
            purge: Some(purge),
        });
        done.chain(later).chain(purged).collect()
    }

    /// Takes over the flushes of another member, and returns once that survives a restart. Of two
    /// to come in a space it is the earlier one that counts, and none if the other member has
    /// carried out a later one than this.
    ///
    /// # Errors
    /// [`Failure::Unavailable`] if it could not be persisted, or a version is more than a year
    /// ahead of the clock.
    pub async fn adopt_flushes(&self, flushes: Vec<peer::Flush>) -> Result<(), Failure> {
        let kind = |it: &peer::Flush| (it.space, it.at_ms == 0, it.purge);
        let known = self.known_flushes().into_iter();
        let known: HashMap<_, _> = known.map(|it| (kind(&it), it)).collect();
        let to_come: HashSet<u32> = flushes
            .iter()
            .filter(|it| it.at_ms != 0)
            .map(|it| it.space)
            .collect();
        let is_new = |flush: &peer::Flush| {
            known.get(&kind(flush)).is_none_or(|it| match flush.at_ms {
                0 => it.cutoff < flush.cutoff,
                at_ms => at_ms < it.at_ms,
            })
        };
        let flushes: Vec<peer::Flush> = flushes.into_iter().filter(is_new).collect();
        if flushes.is_empty() {
            return Ok(());
        }
        let newest = flushes.iter().map(|it| it.cutoff).max().unwrap_or(0);
        self.hide_below(newest, move |known| {
            // All at once: each change copies the table.
            let done = flushes
                .iter()
                .filter(|it| it.purge.is_none() && it.at_ms == 0);
            known.restore(done.map(|it| (Space(it.space), it.cutoff)));
            for peer::Flush {
                space,
                cutoff,
                at_ms,
                purge,
            } in flushes
            {
                match (purge, at_ms) {
                    (Some(purge), _) => known.restore_purge(purge, cutoff),
                    // What was to come it has cancelled, or carried out.
                    (None, 0) => {
                        if !to_come.contains(&space) {
                            known.cancel(Space(space));
                        }
                    }
                    (None, at_ms) => known.flush_at(Space(space), at_ms),
                }
            }
        })
        .await
    }
}
