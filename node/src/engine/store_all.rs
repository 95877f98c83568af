//! `MSETNX`: stores several pairs if none of their keys has an entry.
//!
//! The disk is asked about all keys first, a bounded number at a time and without any lock. One
//! pass under the locks of the shards then decides and stores. A lookup that a write voided
//! meanwhile is repeated alone, so the work grows with the number of pairs and not with its square.

use std::time::{Duration, Instant};

use bytes::Bytes;
use fonn_base::entry::{Meta, Space};
use fonn_proto::command::STORE_ALL_PAIRS_MAX;
use fonn_proto::request::ServerOutcome;
use fonn_proto::{ExpirySpec, Failure, Version, WriterId};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::Semaphore;

use super::commit::{Content, Refused};
use super::fetch::{Need, Unknown};
use super::{Acks, Engine, Ticket};

/// Lookups that are under way at a time, of all commands of the node. The lookup of another client
/// waits behind so many, however many pairs wait for theirs.
const LOOKUPS_AT_ONCE: usize = 2;

/// Whose turn it is to look a pair up.
pub(super) struct Turns(Semaphore);

impl Default for Turns {
    fn default() -> Self {
        Self(Semaphore::new(LOOKUPS_AT_ONCE))
    }
}

/// Rounds of lookups: the first one, and those for what writes voided.
const ROUNDS_MAX: usize = 64;

/// How long a command looks its keys up before it is refused as busy.
const LOOKUP_WAIT: Duration = Duration::from_secs(5);

/// What the tiers below RAM have of one key. It holds while its ticket does.
pub(super) struct PairLookup {
    pub(super) ticket: Ticket,
    pub(super) meta: Option<Meta>,
}

/// The pairs of a command, with all that can be made of them before a shard is locked.
pub(super) struct Pairs<'a> {
    pairs: &'a [(&'a [u8], &'a [u8])],
    hashes: Vec<u64>,
    contents: Vec<Content>,
    /// The identity that stores them.
    writer: WriterId,
}

/// Why an all-or-nothing store did not get through.
pub(super) enum Blocked {
    /// What the tiers below RAM have of these pairs' keys must be known.
    Lookup(Vec<(usize, Ticket)>),
    /// The disk's queue has no room for writes of this cost. Nothing was changed.
    Room(usize),
    /// Versions must be reserved first. Nothing was changed.
    Ceiling,
    /// It is refused.
    Failed(Failure),
}

impl Engine {
    /// Stores all pairs if none of the keys has an entry; no other client sees a part of it. At
    /// most [`STORE_ALL_PAIRS_MAX`] pairs are taken.
    ///
    /// # Cancel safety
    /// Cancelled, nothing was stored.
    pub async fn store_all_if_none(
        &self,
        (space, writer): (Space, WriterId),
        pairs: &[(&[u8], &[u8])],
        acks: &mut Acks,
    ) -> ServerOutcome {
        match self.store_all((space, writer), pairs, acks).await {
            Ok(is_stored) => ServerOutcome::Integer(i64::from(is_stored)),
            Err(failure) => ServerOutcome::Failed(failure),
        }
    }

    async fn store_all(
        &self,
        (space, writer): (Space, WriterId),
        pairs: &[(&[u8], &[u8])],
        acks: &mut Acks,
    ) -> Result<bool, Failure> {
        let pairs = Pairs {
            writer,
            ..self.pairs(space, pairs)?
        };
        let mut lookups: Vec<Option<PairLookup>> = pairs.pairs.iter().map(|_| None).collect();
        let room_deadline = Instant::now() + super::ROOM_WAIT;
        let lookup_deadline = Instant::now() + LOOKUP_WAIT;
        let mut rounds_left = ROUNDS_MAX;
        loop {
            match self.try_store_all_if_none(space, &pairs, &lookups, acks) {
                Ok(is_stored) => return Ok(is_stored),
                Err(Blocked::Failed(failure)) => return Err(failure),
                Err(Blocked::Lookup(wanted)) => {
                    rounds_left = rounds_left.checked_sub(1).ok_or(Failure::Busy)?;
                    let left = lookup_deadline.saturating_duration_since(Instant::now());
                    let looked_up = self.look_up(space, &pairs, wanted, &mut lookups);
                    match tokio::time::timeout(left, looked_up).await {
                        Ok(Ok(())) => {}
                        Ok(Err(_)) => return Err(Failure::Unavailable),
                        Err(_) => return Err(Failure::Busy),
                    }
                }
                Err(Blocked::Room(cost)) => {
                    if !self.wait_for_room(cost, room_deadline).await {
                        return Err(Failure::Busy);
                    }
                }
                Err(Blocked::Ceiling) => self.reserve_versions().await?,
            }
        }
    }

    /// Checks and prepares pairs: hashes them, copies their values and gives them the form of the
    /// RAM level.
    pub(super) fn pairs<'a>(
        &self,
        space: Space,
        pairs: &'a [(&'a [u8], &'a [u8])],
    ) -> Result<Pairs<'a>, Failure> {
        let is_too_large = |(key, value): &(&[u8], &[u8])| {
            value.len() > self.settings.value_len_max || !self.fits_ram(key.len(), value.len())
        };
        if pairs.len() > STORE_ALL_PAIRS_MAX || pairs.iter().any(is_too_large) {
            return Err(Failure::TooLarge);
        }
        let hash = |(key, _): &(&[u8], &[u8])| self.hot.ram.hash(space, key);
        let content = |(_, value): &(&[u8], &[u8])| {
            let value = Bytes::copy_from_slice(value);
            let form = self.ram_form(value.clone(), None);
            Content::Formed { value, form }
        };
        Ok(Pairs {
            writer: WriterId::NONE,
            pairs,
            hashes: pairs.iter().map(hash).collect(),
            contents: pairs.iter().map(content).collect(),
        })
    }

    /// Asks the tiers below RAM about keys, and stops early at one that has an entry: that decides
    /// already.
    async fn look_up(
        &self,
        space: Space,
        pairs: &Pairs<'_>,
        wanted: Vec<(usize, Ticket)>,
        lookups: &mut [Option<PairLookup>],
    ) -> Result<(), Unknown> {
        let mut rest = wanted.into_iter();
        let mut begun = FuturesUnordered::new();
        loop {
            while begun.len() < LOOKUPS_AT_ONCE
                && let Some((index, ticket)) = rest.next()
            {
                begun.push(self.look_up_pair(space, pairs, index, ticket));
            }
            let Some((index, found)) = begun.next().await else {
                return Ok(());
            };
            let found = found?;
            let is_there = found.meta.is_some_and(|meta| {
                let now_ms = self.hot.clock.wall_ms();
                self.hot.absence(space, &meta, now_ms).is_none()
            });
            lookups[index] = Some(found);
            if is_there {
                return Ok(());
            }
        }
    }

    async fn look_up_pair(
        &self,
        space: Space,
        pairs: &Pairs<'_>,
        index: usize,
        ticket: Ticket,
    ) -> (usize, Result<PairLookup, Unknown>) {
        let (key, _) = pairs.pairs[index];
        // It is never closed.
        let _turn = self.pair_turns.0.acquire().await;
        let found = self.fetch(space, key, Need::Existence, ticket).await;
        // The value is of no use, and is given back at once.
        let lookup = found.map(|found| PairLookup {
            ticket: found.ticket,
            meta: found.entry.map(|entry| entry.meta),
        });
        (index, lookup)
    }

    /// One pass under the locks of all shards concerned. Nothing waits in it.
    pub(super) fn try_store_all_if_none(
        &self,
        space: Space,
        pairs: &Pairs<'_>,
        lookups: &[Option<PairLookup>],
        acks: &mut Acks,
    ) -> Result<bool, Blocked> {
        let hot = &*self.hot;
        let Pairs {
            pairs,
            hashes,
            contents,
            writer,
        } = pairs;
        let now_ms = hot.clock.wall_ms();
        let _stays = self.ledger.entering.read();
        if self.is_late(acks) {
            return Err(Blocked::Failed(Failure::Busy));
        }
        let mut shards = hot.ram.lock_many(hashes.iter().copied());
        let mut wanted = Vec::new();
        for (index, (key, _)) in pairs.iter().enumerate() {
            let hash = hashes[index];
            let shard = shards.shard(hash);
            let is_there = match shard.find(hash, space, key) {
                Some(slot) => {
                    let found = shard.get(slot);
                    !found.tombstone && hot.absence(space, &found.meta, now_ms).is_none()
                }
                None if self.disk.is_none() => false,
                None => match &lookups[index] {
                    Some(known) if known.ticket == hot.ticket(hash) => known
                        .meta
                        .is_some_and(|meta| hot.absence(space, &meta, now_ms).is_none()),
                    _ => {
                        wanted.push((index, hot.ticket(hash)));
                        false
                    }
                },
            };
            if is_there {
                return Ok(false);
            }
        }
        if !wanted.is_empty() {
            return Err(Blocked::Lookup(wanted));
        }
        let len = pairs.iter().map(|(key, value)| key.len() + value.len());
        let admitted = hot.namespaces.admit(space, len.sum());
        admitted.map_err(Blocked::Failed)?;
        // As many again to take all of it back.
        let draw = || pairs.iter().map(|_| self.ledger.hlc.next()).collect();
        let (versions, versions_back): (Vec<Version>, Vec<Version>) = (draw(), draw());
        if versions_back
            .last()
            .is_some_and(|last| *last >= self.ledger.ceiling())
        {
            return Err(Blocked::Ceiling);
        }
        let now_s = hot.now_s();
        let rules = self.rules_at(space, now_ms);
        let expires_at_ms = rules.expires_at_ms(ExpirySpec::Never, None);
        for (index, (key, _)) in pairs.iter().enumerate() {
            let meta = Meta {
                writer: *writer,
                ..Meta::new(versions[index], 0, expires_at_ms)
            };
            let (hash, content) = (hashes[index], contents[index].clone());
            let shard = shards.shard(hash);
            let fresh = self.fresh(hash, space, key, meta);
            let put = self.put_entry(shard, fresh, content, now_s, acks);
            let refused = match put {
                Ok(()) => continue,
                Err(refused) => refused,
            };
            // The disk's queue filled up halfway. There is no room for tombstones either, so what
            // went in is hidden by RAM, until the disk takes them.
            for ((&hash, (key, _)), &version) in
                hashes.iter().zip(&pairs[..index]).zip(&versions_back)
            {
                hot.bury_unsettled(shards.shard(hash), hash, space, key, version);
            }
            return Err(match refused {
                Refused::Full(cost) if index == 0 => {
                    let len = pairs.iter().map(|(key, value)| key.len() + value.len());
                    Blocked::Room(cost.saturating_mul(pairs.len()).max(len.sum()))
                }
                Refused::Full(_) => Blocked::Failed(Failure::Busy),
                Refused::Failed(failure) => Blocked::Failed(failure),
            });
        }
        drop(shards);
        for hash in hashes {
            hot.ram
                .evict_to_budget(Some(*hash), now_s, super::EVICTIONS_MAX);
            self.evict_to_quota(*hash, space);
        }
        Ok(true)
    }
}
