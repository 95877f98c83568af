//! Batches: several steps on keys of one slot, carried out by its primary (ADR 0003).
//!
//! The primary carries the steps out as one. The other owners get the entries side by side,
//! before the client has its answer; a read of a replica may meet some of them before the others.
//! A batch that stores all its keys or none (`MSETNX`) may have keys of several slots, if one
//! member is the primary of all.

use std::sync::Arc;

use fonn_proto::peer::Entry;
use fonn_proto::request::ServerOutcome;
use fonn_proto::{Batch, BatchStep, Command, Failure, Outcome, Space, Version};

use super::{Replication, is_unchanged, removes};
use crate::engine::{Acks, Engine};

/// A key that the other owners have to hear of.
struct Changed<'b> {
    space: Space,
    key: &'b [u8],
    /// Nothing was found, from this version on: the other owners may have something.
    absent_at: Option<Version>,
}

impl Replication {
    /// Carries out a batch on keys of these slots, if this member is the primary of all. None if it
    /// is not; nothing was done then. Nor is a write carried out that another process sent by an
    /// earlier epoch (ADR 0048).
    pub(crate) async fn execute_batch(
        self: &Arc<Self>,
        engine: &Arc<Engine>,
        (space, routed_by): (Space, Option<u64>),
        (slots, batch): (&[u16], &Batch<'_>),
        acks: &mut Acks,
    ) -> Option<ServerOutcome> {
        let (since, base) = self.epoch_and_base()?;
        if batch.is_write() && routed_by.is_some_and(|epoch| epoch < since) {
            return None;
        }
        if !slots.iter().all(|slot| self.serves(*slot, true)) {
            return None;
        }
        if slots.iter().any(|slot| self.rights.floor(*slot).is_some()) {
            for (space, key) in spaces(space, batch) {
                if let Err(failure) = self.hide_key(engine, space, key).await {
                    return Some(ServerOutcome::Failed(failure));
                }
            }
        }
        // Another member may own the slot after a long wait.
        if since != self.epoch() || !self.holds_lease() {
            return None;
        }
        acks.admit(base);
        // Drawn before, so that what another client stores meanwhile is newer.
        // Another member may have the keys, also if it is away or owns the slots no more.
        let absent_at = (!self.is_alone()).then(|| engine.versions().next());
        let outcome = engine.execute_batch(space, batch, acks).await;
        let ServerOutcome::Outcomes(outcomes) = &outcome else {
            let is_late = outcome == ServerOutcome::Failed(Failure::Busy) && engine.is_late(acks);
            // Nothing was done: another epoch came between.
            return (!is_late).then_some(outcome);
        };
        // It was carried out, and may be lost: the client must not take it for refused.
        let failed = Some(ServerOutcome::Failed(Failure::Unavailable));
        let changed = changed(space, batch, outcomes, absent_at);
        let mut keys = Vec::with_capacity(changed.len());
        for it in &changed {
            if let Some(version) = it.absent_at {
                let gone = Entry::tombstone(it.space.0, it.key, version);
                if engine.is_late(acks) || engine.put_of_peer(&gone, acks).await.is_err() {
                    continue;
                }
            }
            keys.push((it.space, it.key));
        }
        // What was changed is told either way.
        let is_kept = keys.len() == changed.len();
        match self.replicate_all(engine, keys, since).await {
            Ok(()) if is_kept => Some(outcome),
            _ => failed,
        }
    }
}

/// The keys of a batch with their spaces, and what lies below the keys that it reads.
fn spaces<'b>(space: Space, batch: &Batch<'b>) -> Vec<(Space, &'b [u8])> {
    let database = |number| Space::new(space.namespace(), number);
    let below = |space: Space, key: &'b [u8]| {
        let base = batch.base?;
        let database = space.database() as u8;
        Some((Space::new(base.space.namespace(), database), base.key(key)))
    };
    let mut keys = Vec::with_capacity(batch.watched.len() + batch.steps.len());
    for watched in &batch.watched {
        let space = database(watched.database);
        keys.push((space, watched.key));
        keys.extend(below(space, watched.key));
    }
    for step in &batch.steps {
        match step {
            BatchStep::Command(command) => {
                keys.push((space, command.key()));
                if let Command::Get(get) = command {
                    keys.extend(below(space, get.key));
                }
            }
            BatchStep::Transfer(transfer) => {
                keys.push((space, transfer.from));
                keys.push((database(transfer.database), transfer.to));
            }
        }
    }
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// What the steps changed, each key once.
fn changed<'b>(
    space: Space,
    batch: &Batch<'b>,
    outcomes: &[Outcome<'_>],
    absent_at: Option<Version>,
) -> Vec<Changed<'b>> {
    let mut changed: Vec<Changed<'b>> = Vec::new();
    let mut add = |space, key, absent_at: Option<Version>| {
        match changed
            .iter_mut()
            .find(|it| it.space == space && it.key == key)
        {
            // What is there now is given, whatever was found missing before.
            Some(known) => known.absent_at = known.absent_at.and(absent_at),
            None => changed.push(Changed {
                space,
                key,
                absent_at,
            }),
        }
    };
    for (step, outcome) in batch.steps.iter().zip(outcomes) {
        match step {
            BatchStep::Command(command) => {
                let is_absent = matches!(outcome, Outcome::NotFound | Outcome::Miss);
                if removes(command) && is_absent {
                    if absent_at.is_some() {
                        add(space, command.key(), absent_at);
                    }
                } else if command.is_write() && !is_unchanged(outcome) {
                    add(space, command.key(), None);
                }
            }
            BatchStep::Transfer(transfer) if !is_unchanged(outcome) => {
                add(
                    Space::new(space.namespace(), transfer.database),
                    transfer.to,
                    None,
                );
                if transfer.removes {
                    add(space, transfer.from, None);
                }
            }
            BatchStep::Transfer(_) => {}
        }
    }
    changed
}
