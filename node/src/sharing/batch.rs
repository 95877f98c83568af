//! Batches: several steps on keys of one slot, carried out by its primary (ADR 0003).
//!
//! The primary carries the steps out as one. The other owners get the entries one by one, before
//! the client has its answer; a read of a replica may meet some of them before the others.

use std::time::Instant;

use fonn_proto::peer::Entry;
use fonn_proto::request::ServerOutcome;
use fonn_proto::{
    Batch, BatchStep, Command, ExpireCondition, ExpirySpec, Failure, Outcome, Redirects, Space,
    Touch, Version, WriterId,
};
use fonn_server::Job;

use super::{PRIMARY, SHARED, Sharing, WRITE_WAITS, is_unchanged, removes};
use crate::engine::{Acks, Engine};

/// A key that the other owners have to hear of.
struct Changed<'b> {
    space: Space,
    key: &'b [u8],
    /// Nothing was found, from this version on: the other owners may have something.
    absent_at: Option<Version>,
}

impl Sharing {
    /// Carries out a batch on keys of a slot, if this member is the slot's primary. None if it is
    /// not; nothing was done then.
    pub(crate) async fn execute_batch(
        &self,
        engine: &Engine,
        space: Space,
        (slot, batch): (u16, &Batch<'_>),
        acks: &mut Acks,
    ) -> Option<ServerOutcome> {
        let deadline = Instant::now() + WRITE_WAITS * self.owners_wait;
        let since = self.epoch();
        let flags = self.flags(slot);
        if flags & PRIMARY == 0 || !self.is_sound() {
            return None;
        }
        for (space, key) in spaces(space, batch) {
            let command = Command::Touch(Touch {
                key,
                expiry: ExpirySpec::Keep,
                condition: ExpireCondition::Always,
            });
            let job = Job {
                space,
                command: &command,
                source: None,
                base: batch.base,
                is_routed: true,
                redirects: Redirects::Never,
                writer: WriterId::NONE,
            };
            if let Err(refused) = self.prepare(engine, &job, flags, acks).await {
                return Some(ServerOutcome::Failed(failure_of(&refused)));
            }
        }
        // Another member may own the slot after a long wait.
        if since != self.epoch() {
            return None;
        }
        // Drawn before, so that what another client stores meanwhile is newer.
        let absent_at = (self.flags(slot) & SHARED != 0).then(|| engine.versions().next());
        let outcome = engine.execute_batch(space, batch, acks).await;
        let ServerOutcome::Outcomes(outcomes) = &outcome else {
            return Some(outcome);
        };
        let stood = match self.is_sound() {
            true => Ok(()),
            false => Box::pin(self.stood(slot, since, deadline))
                .await
                .map_err(drop),
        };
        // It was carried out, and may be lost: the client must not take it for refused.
        let failed = Some(ServerOutcome::Failed(Failure::Unavailable));
        if stood.is_err() {
            return failed;
        }
        for changed in changed(space, batch, outcomes, absent_at) {
            let Changed { space, key, .. } = changed;
            let spread = match changed.absent_at {
                Some(version) => {
                    let gone = Entry::tombstone(space.0, key, version);
                    self.spread_absence(engine, &gone, acks, since).await
                }
                None => self.spread(engine, space, key, since).await,
            };
            if spread.is_err() {
                return failed;
            }
        }
        Some(outcome)
    }
}

fn failure_of(outcome: &Outcome<'_>) -> Failure {
    match outcome {
        Outcome::Failed(failure) => *failure,
        _ => Failure::Busy,
    }
}

/// The keys of a batch with their spaces.
fn spaces<'b>(space: Space, batch: &Batch<'b>) -> Vec<(Space, &'b [u8])> {
    let database = |number| Space::new(space.namespace(), number);
    let mut keys: Vec<_> = batch
        .watched
        .iter()
        .map(|it| (database(it.database), it.key))
        .collect();
    for step in &batch.steps {
        match step {
            BatchStep::Command(command) => keys.push((space, command.key())),
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
