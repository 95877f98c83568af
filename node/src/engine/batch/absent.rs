//! A batch that stores all its keys or none (`MSETNX`): its lookups, and how it is taken back.
//!
//! The disk is asked about all keys before a shard is locked, a bounded number at a time. A lookup
//! that a write voided meanwhile is repeated alone, so the work grows with the number of keys and
//! not with its square.

use std::time::Instant;

use bytes::Bytes;
use fonn_base::entry::Space;
use fonn_disk_tier::DiskEntry;
use fonn_proto::Failure;
use fonn_ram_tier::ManyGuard;
use futures_util::stream::{FuturesUnordered, StreamExt as _};

use super::super::fetch::{Fetched, Need, Unknown};
use super::super::{Acks, Engine, Ticket};
use super::growth::KeyIndex;
use super::plan::Plan;

/// Lookups that are under way at a time, of all such batches of the node. The lookup of another
/// client waits behind so many, however many keys wait for theirs.
pub(in super::super) const LOOKUPS_AT_ONCE: usize = 2;

impl Engine {
    /// Asks the tiers below RAM about keys, and stops early at one that has an entry: that decides
    /// already.
    ///
    /// # Errors
    /// [`Failure::Busy`] at the deadline; [`Failure::Unavailable`] if a tier cannot be read.
    pub(super) async fn look_up(
        &self,
        plan: &mut Plan<'_>,
        wanted: Vec<(KeyIndex, Ticket)>,
        deadline: Instant,
    ) -> Result<(), Failure> {
        let left = deadline.saturating_duration_since(Instant::now());
        let looked_up = tokio::time::timeout(left, self.look_up_all(plan, wanted));
        match looked_up.await {
            Ok(known) => known.map_err(|_| Failure::Unavailable),
            Err(_) => Err(Failure::Busy),
        }
    }

    async fn look_up_all(
        &self,
        plan: &mut Plan<'_>,
        wanted: Vec<(KeyIndex, Ticket)>,
    ) -> Result<(), Unknown> {
        let mut rest = wanted.into_iter();
        let mut begun = FuturesUnordered::new();
        loop {
            while begun.len() < LOOKUPS_AT_ONCE
                && let Some((index, ticket)) = rest.next()
            {
                let it = &plan.keys[index];
                let (space, key) = (it.space, it.key);
                begun.push(async move { (index, self.look_up_key(space, key, ticket).await) });
            }
            let Some((index, known)) = begun.next().await else {
                return Ok(());
            };
            let known = known?;
            let is_there = known.entry.as_ref().is_some_and(|entry| {
                let now_ms = self.hot.clock.wall_ms();
                let space = plan.keys[index].space;
                self.hot.absence(space, &entry.meta, now_ms).is_none()
            });
            plan.know(index, known);
            if is_there {
                return Ok(());
            }
        }
    }

    async fn look_up_key(
        &self,
        space: Space,
        key: &[u8],
        ticket: Ticket,
    ) -> Result<Fetched, Unknown> {
        // It is never closed.
        let _turn = self.lookup_turns.acquire().await;
        let known = self.fetch(space, key, Need::Existence, ticket).await?;
        // The value is of no use, and is given back at once.
        let entry = known.entry.map(|entry| DiskEntry {
            meta: entry.meta,
            value: Bytes::new(),
            frame: None,
        });
        Ok(Fetched {
            ticket: known.ticket,
            entry,
            facts: None,
            from: known.from,
            reading: None,
        })
    }

    /// Takes back what the first `count` steps have stored, of which no key had an entry.
    pub(super) fn take_back(
        &self,
        shards: &mut ManyGuard<'_>,
        plan: &Plan<'_>,
        count: usize,
        acks: &mut Acks,
    ) {
        for keys in plan.steps.iter().take(count) {
            let it = &plan.keys[keys.target];
            self.remove_or_bury(shards.shard(it.hash), it, acks);
        }
    }
}

#[cfg(test)]
mod tests;
