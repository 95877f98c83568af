//! Several steps as one: under the locks of all shards that they concern (ADR 0003).
//!
//! What RAM does not know is fetched before, as for a single command; then the locks are taken, the
//! watched keys compared, and the steps carried out. No other client sees the keys in between.
//!
//! Invariants:
//! - Nothing is changed before everything is known: a batch is not begun and then given up.
//! - What a batch holds is bounded: in steps, in bytes that were fetched, in bytes that it returns.
//! - A batch that holds many or long values has a turn ([`turn`]), and few batches have one.
//! - A step that fails changes nothing, and stops none behind it.
//! - Of a batch that stores all its keys or none (`MSETNX`), a step that fails takes back all that
//!   were carried out before it.

mod absent;
mod ahead;
mod growth;
mod plan;
mod turn;

pub(super) use self::absent::LOOKUPS_AT_ONCE;
pub(super) use self::turn::TURNS;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fonn_base::entry::{Meta, Space};
use fonn_base::hlc;
use fonn_proto::batch::{ABSENT_STEPS_MAX, BATCH_STEPS_MAX, BATCH_VALUES_LEN_MAX};
use fonn_proto::outcome::Value;
use fonn_proto::request::ServerOutcome;
use fonn_proto::{
    Batch, BatchStep, Command, Failure, Outcome, Seen, Store, Stored, Transfer, Version,
};
use fonn_ram_tier::{ManyGuard, ShardGuard, SlotId};
use tokio::time::timeout_at;

use self::growth::{Growth, KeyIndex};
use self::plan::{KeyPlan, Plan, StepKeys};
use self::turn::{FREE_LEN_MAX, Turn};
use super::commit::{Content, Refused};
use super::fetch::Need;
use super::prepare::{Prepared, SHORT_LEN_MAX};
use super::{
    Acks, Attempt, Effects, Engine, FETCHES_MAX, Job, ROOM_WAIT, Ticket, hit_in_scratch, semantics,
};

/// Versions are reserved for so long ahead that they last while the locks are held.
const VERSIONS_MARGIN_MS: u64 = 1_000;

/// Versions that are left for these steps and those of other clients at that time.
const VERSIONS_LEFT_MIN: u64 = 1 << hlc::COUNTER_BITS;

/// How often a step is tried again because a flush came between, or a long value had to be
/// prepared.
const TRIES_MAX: usize = 8;

/// Steps that are carried out without a pause for other connections.
const SHORT_STEPS_MAX: usize = 128;

/// Fetches of a batch for each of its keys, in the mean.
const FETCHES_BY_KEY_MAX: usize = 4;

/// How long a batch waits for its turn and for what lies below RAM before it is refused as busy.
const LOOKUP_WAIT: Duration = Duration::from_secs(5);

/// Why a batch was not carried out. Nothing was changed, or it was taken back.
enum Blocked {
    /// What lies below RAM must be known of these keys.
    Fetch(Vec<(KeyIndex, Ticket)>),
    /// Long values that were fetched must be prepared.
    Prepare,
    /// The steps return so much that the batch must have a turn.
    Turn,
    /// Versions must be reserved first.
    Ceiling,
    /// Another range of versions was entered since the batch was admitted.
    Late,
    /// A watched key is another one, or a key that has to be absent has an entry.
    Changed,
    /// The steps would make too many bytes of long values under the locks.
    TooMuch,
    /// A step failed of a batch that stores all or none.
    Failed(Failure),
}

/// What carrying out the steps changes besides the entries.
struct Progress<'e> {
    acks: &'e mut Acks,
    scratch: Vec<u8>,
    /// Bytes of values that are returned.
    values_len: usize,
    values_len_max: usize,
    /// Keys by whose shards RAM may have grown.
    grown: &'e mut Vec<(u64, Space)>,
    /// Long values that steps have made, by the version of their entry: RAM may have them encoded.
    made: HashMap<Version, Bytes>,
}

impl Engine {
    /// Carries out a batch; no other client sees a part of it.
    ///
    /// # Cancel safety
    /// Of a batch that stores all or none, nothing was stored if it is cancelled.
    pub async fn execute_batch(
        &self,
        space: Space,
        batch: &Batch<'_>,
        acks: &mut Acks,
    ) -> ServerOutcome {
        let steps_max = match batch.all_absent {
            true => ABSENT_STEPS_MAX,
            false => BATCH_STEPS_MAX,
        };
        if batch.steps.len() > steps_max || batch.watched.len() > BATCH_STEPS_MAX {
            return ServerOutcome::Failed(Failure::TooLarge);
        }
        // A batch on absent keys replaces no value.
        let may_replace = batch.is_write() && !batch.all_absent;
        if may_replace && self.hot.namespaces.is_write_once(space.namespace()) {
            return ServerOutcome::Failed(Failure::ReadOnly);
        }
        // Dropped after what it is for.
        let mut turn = Turn::none();
        let mut plan = Plan::new(self, space, batch);
        // Values are copied before the locks are taken, not under them.
        let sources: Vec<Option<Bytes>> = batch.steps.iter().map(source).collect();
        let (room_deadline, lookup_deadline) = {
            let now = Instant::now();
            (now + ROOM_WAIT, now + LOOKUP_WAIT)
        };
        if plan.write_cost > 0
            && self.disk.is_some()
            && !self.wait_for_room(plan.write_cost, room_deadline).await
        {
            return ServerOutcome::Failed(Failure::Busy);
        }
        let mut ahead: Vec<Prepared> = batch.steps.iter().map(|_| Prepared::default()).collect();
        // Each key may have to be fetched. Writes of other clients void some fetches meanwhile.
        let mut fetches_left = FETCHES_BY_KEY_MAX * plan.keys.len() + FETCHES_MAX;
        let mut is_ahead = false;
        let is_long = batch.steps.len() > SHORT_STEPS_MAX;
        loop {
            if is_long {
                // The plan took its time. Other connections have their turn before the locks are
                // taken.
                tokio::task::yield_now().await;
            }
            if !is_ahead {
                is_ahead = self.prepare_ahead(&plan, batch, &sources, &mut ahead, &mut turn);
                if !is_ahead && !turn.is_held() {
                    if let Err(failure) = turn.take(&self.batch_turns, lookup_deadline).await {
                        return ServerOutcome::Failed(failure);
                    }
                    continue;
                }
                if !is_ahead && plan.grows {
                    return ServerOutcome::Failed(Failure::TooLarge);
                }
                // What is left is decoded under the locks, if it is returned at all.
                is_ahead = true;
                plan.has_long = false;
            }
            let mut grown = Vec::new();
            let given = (&sources[..], &ahead[..]);
            let tried = self.try_batch(&plan, batch, given, (&mut *acks, &turn), &mut grown);
            match tried {
                Ok(outcomes) => {
                    let pause_after = match batch.all_absent {
                        // It ends with its client. Nothing waits between here and replication.
                        true => ABSENT_STEPS_MAX + 1,
                        false => SHORT_STEPS_MAX,
                    };
                    self.make_room(&grown, pause_after).await;
                    for (step, outcome) in batch.steps.iter().zip(&outcomes) {
                        if let BatchStep::Command(command) = step {
                            self.count(space, command, outcome);
                        }
                    }
                    return ServerOutcome::Outcomes(turn.given_with(outcomes));
                }
                Err(Blocked::Late) => return ServerOutcome::Failed(Failure::Busy),
                Err(Blocked::Changed) => return ServerOutcome::Changed,
                Err(Blocked::TooMuch) => return ServerOutcome::Failed(Failure::TooLarge),
                Err(Blocked::Failed(failure)) => return ServerOutcome::Failed(failure),
                Err(Blocked::Prepare) => is_ahead = false,
                Err(Blocked::Turn) => {
                    if let Err(failure) = turn.take(&self.batch_turns, lookup_deadline).await {
                        return ServerOutcome::Failed(failure);
                    }
                }
                Err(Blocked::Ceiling) => {
                    if let Err(failure) = self.reserve_versions().await {
                        return ServerOutcome::Failed(failure);
                    }
                }
                Err(Blocked::Fetch(wanted)) => {
                    let left = fetches_left.checked_sub(wanted.len());
                    let Some(left) = left else {
                        return ServerOutcome::Failed(Failure::Busy);
                    };
                    fetches_left = left;
                    let fetched = match batch.all_absent {
                        true => self.look_up(&mut plan, wanted, lookup_deadline).await,
                        false => {
                            let fetched = self.fetch_keys(&mut plan, wanted, &mut turn);
                            let fetched = timeout_at(lookup_deadline.into(), fetched).await;
                            fetched.unwrap_or(Err(Failure::Busy))
                        }
                    };
                    if let Err(failure) = fetched {
                        return ServerOutcome::Failed(failure);
                    }
                }
            }
        }
    }

    /// Asks the tiers below RAM about keys, one after the other. Takes a turn if they have much.
    async fn fetch_keys(
        &self,
        plan: &mut Plan<'_>,
        wanted: Vec<(KeyIndex, Ticket)>,
        turn: &mut Turn,
    ) -> Result<(), Failure> {
        for (index, ticket) in wanted {
            let KeyPlan {
                space, key, need, ..
            } = plan.keys[index];
            let need = need.unwrap_or(Need::Value);
            let known = loop {
                let known = self.fetch(space, key, need, ticket).await;
                let known = known.map_err(|_| Failure::Unavailable)?;
                let len = plan.len_with(index, &known);
                if len <= FREE_LEN_MAX || turn.try_take(&self.batch_turns) {
                    break known;
                }
                // The batch does not hold the value while it waits.
                drop(known);
                turn.wait(&self.batch_turns).await;
            };
            if !plan.know(index, known) {
                return Err(Failure::TooLarge);
            }
        }
        Ok(())
    }

    fn try_batch(
        &self,
        plan: &Plan<'_>,
        batch: &Batch<'_>,
        (sources, ahead): (&[Option<Bytes>], &[Prepared]),
        (acks, turn): (&mut Acks, &Turn),
        grown: &mut Vec<(u64, Space)>,
    ) -> Result<Vec<Outcome<'static>>, Blocked> {
        let hot = &*self.hot;
        let _stays = self.ledger.entering.read();
        if self.is_late(acks) {
            return Err(Blocked::Late);
        }
        let mut shards = hot.ram.lock_many(plan.keys.iter().map(|it| it.hash));
        let mut wanted = Vec::new();
        for (index, it) in plan.keys.iter().enumerate() {
            let is_known = it.need.is_none()
                || self.disk.is_none()
                || shards
                    .shard(it.hash)
                    .find(it.hash, it.space, it.key)
                    .is_some()
                || (it.fetched.as_ref()).is_some_and(|known| known.ticket == hot.ticket(it.hash));
            if !is_known {
                wanted.push((index, hot.ticket(it.hash)));
            } else if batch.all_absent && self.present(&mut shards, it).is_some() {
                return Err(Blocked::Changed);
            }
        }
        if !wanted.is_empty() {
            return Err(Blocked::Fetch(wanted));
        }
        if plan.has_long {
            return Err(Blocked::Prepare);
        }
        let last = self.ledger.hlc.newest_within(VERSIONS_MARGIN_MS) + VERSIONS_LEFT_MIN;
        if batch.is_write() && last >= self.ledger.ceiling() {
            return Err(Blocked::Ceiling);
        }
        for watched in &batch.watched {
            let space = plan.database(watched.database);
            if self.seen(&mut shards, plan, space, watched.key) != watched.seen {
                return Err(Blocked::Changed);
            }
        }
        if plan.grows || (plan.returns && !turn.is_held()) {
            let growth = self.growth(&mut shards, plan, batch);
            if growth.is_too_much() {
                return Err(Blocked::TooMuch);
            }
            if growth.returned_len() > FREE_LEN_MAX && !turn.is_held() {
                return Err(Blocked::Turn);
            }
        }
        let mut progress = Progress {
            acks,
            scratch: Vec::new(),
            values_len: 0,
            values_len_max: BATCH_VALUES_LEN_MAX.min(self.settings.value_len_max),
            grown,
            made: HashMap::new(),
        };
        let steps = batch.steps.iter().zip(&plan.steps).zip(sources).zip(ahead);
        let mut outcomes = Vec::with_capacity(batch.steps.len());
        for (((step, keys), source), ahead) in steps {
            let outcome = match step {
                BatchStep::Command(command) => {
                    let given = (source.as_ref(), ahead);
                    self.step(&mut shards, plan, (command, *keys), given, &mut progress)
                }
                BatchStep::Transfer(transfer) => {
                    let given = (transfer, ahead);
                    self.transfer(&mut shards, plan, (given, *keys), &mut progress)
                }
            };
            if batch.all_absent && !matches!(outcome, Outcome::Stored(_)) {
                self.take_back(&mut shards, plan, outcomes.len(), progress.acks);
                return Err(Blocked::Failed(match outcome {
                    Outcome::Failed(failure) => failure,
                    _ => Failure::Unavailable,
                }));
            }
            outcomes.push(outcome);
        }
        drop(shards);
        Ok(outcomes)
    }

    /// Removes a key. If the disk takes no tombstone now, RAM hides the key until it does.
    fn remove_or_bury(&self, shard: &mut ShardGuard<'_>, it: &KeyPlan<'_>, acks: &mut Acks) {
        let (version, key) = (self.ledger.hlc.next(), (it.hash, it.space, it.key));
        if self.remove_key(shard, key, version, acks).is_err() {
            self.hot
                .bury_unsettled(shard, it.hash, it.space, it.key, version);
        }
    }

    /// Evicts what a batch has pushed out. Other connections have their turn after each
    /// `pause_after` keys.
    async fn make_room(&self, grown: &[(u64, Space)], pause_after: usize) {
        for grown in grown.chunks(pause_after) {
            let now_s = self.hot.now_s();
            for (hash, space) in grown {
                self.hot
                    .ram
                    .evict_to_budget(Some(*hash), now_s, super::EVICTIONS_MAX);
                self.evict_to_quota(*hash, *space);
            }
            if grown.len() == pause_after {
                tokio::task::yield_now().await;
            }
        }
    }

    /// What the steps would make under the locks, and what they would return.
    fn growth(&self, shards: &mut ManyGuard<'_>, plan: &Plan<'_>, batch: &Batch<'_>) -> Growth {
        let mut growth = Growth::new(self.rules(plan.space), plan.keys.len());
        for (step, keys) in batch.steps.iter().zip(&plan.steps) {
            let mut stored_len = |index: KeyIndex| {
                let known = plan.keys.get(index);
                known.map_or(0, |it| self.value_len(shards, it))
            };
            if let BatchStep::Command(command) = step
                && semantics::returns_value(command)
            {
                growth.note_returned(keys.target, &mut stored_len);
                if let Some(base) = keys.base {
                    growth.note_returned(base, &mut stored_len);
                }
            }
            growth.note(step, (keys.target, keys.from), stored_len);
        }
        growth
    }

    /// The state of an entry that a client would see.
    fn seen(
        &self,
        shards: &mut ManyGuard<'_>,
        plan: &Plan<'_>,
        space: Space,
        key: &[u8],
    ) -> Option<Seen> {
        let places = [Some((space, key)), plan.base_of(space, key)];
        let found = |(space, key)| Some(self.present(shards, plan.known(space, key)?)?.0);
        let meta: Meta = places.into_iter().flatten().find_map(found)?;
        Some(Seen {
            version: meta.cas(),
            expires_at_ms: meta.expires_at_ms,
        })
    }

    /// The facts of the visible entry of a key, and where it is in RAM.
    fn present(
        &self,
        shards: &mut ManyGuard<'_>,
        plan: &KeyPlan<'_>,
    ) -> Option<(Meta, Option<SlotId>)> {
        let now_ms = self.hot.clock.wall_ms();
        let shard = shards.shard(plan.hash);
        let (meta, slot) = match shard.find(plan.hash, plan.space, plan.key) {
            Some(slot) => {
                let found = shard.get(slot);
                ((!found.tombstone).then_some(found.meta)?, Some(slot))
            }
            None => (plan.fetched.as_ref()?.entry.as_ref()?.meta, None),
        };
        let is_there = self.hot.absence(plan.space, &meta, now_ms).is_none();
        is_there.then_some((meta, slot))
    }

    /// The value of a key that is there, decoded.
    fn value(
        &self,
        shards: &mut ManyGuard<'_>,
        plan: &KeyPlan<'_>,
        slot: Option<SlotId>,
        scratch: &mut Vec<u8>,
    ) -> Option<Bytes> {
        let Some(slot) = slot else {
            return Some(plan.fetched.as_ref()?.entry.as_ref()?.value.clone());
        };
        let found = shards.shard(plan.hash).get(slot);
        let read = super::read(&found, true, self.settings.value_len_max, scratch)?;
        Some(
            read.shared
                .unwrap_or_else(|| Bytes::copy_from_slice(scratch)),
        )
    }

    /// Whether the value that a command returns is more than a batch may return.
    fn is_too_much(
        &self,
        shards: &mut ManyGuard<'_>,
        plan: &KeyPlan<'_>,
        progress: &Progress<'_>,
    ) -> bool {
        progress.values_len > 0
            && progress
                .values_len
                .saturating_add(self.value_len(shards, plan))
                > progress.values_len_max
    }

    /// The length of the value that a key has, in bytes; 0 if there is none.
    fn value_len(&self, shards: &mut ManyGuard<'_>, plan: &KeyPlan<'_>) -> usize {
        let Some((_, slot)) = self.present(shards, plan) else {
            return 0;
        };
        let fetched = || Some(plan.fetched.as_ref()?.entry.as_ref()?.value.len());
        let Some(slot) = slot else {
            return fetched().unwrap_or(0);
        };
        let found = shards.shard(plan.hash).get(slot);
        let len_max = self.settings.value_len_max;
        // The step that reads a damaged value finds the damage.
        let read = super::read(&found, false, len_max, &mut Vec::new());
        read.map_or(0, |it| it.len)
    }

    /// Carries out one command.
    fn step(
        &self,
        shards: &mut ManyGuard<'_>,
        plan: &Plan<'_>,
        (command, keys): (&Command<'_>, StepKeys),
        (source, ahead): (Option<&Bytes>, &Prepared),
        progress: &mut Progress<'_>,
    ) -> Outcome<'static> {
        let stored;
        let command = match (command, source) {
            (Command::Store(store), Some(source)) => {
                stored = Command::Store(Store {
                    value: source,
                    ..store.clone()
                });
                &stored
            }
            _ => command,
        };
        for index in [Some(keys.target), keys.base].into_iter().flatten() {
            let Some(it) = plan.keys.get(index) else {
                return Outcome::Failed(Failure::Unavailable);
            };
            let space = it.space;
            if semantics::returns_value(command) && self.is_too_much(shards, it, progress) {
                return Outcome::Failed(Failure::TooLarge);
            }
            // Nothing is changed in a namespace that lies below.
            let plain;
            let command = match command {
                Command::Get(get) if space != plan.space => {
                    plain = Command::Get(fonn_proto::Get {
                        want_value: get.want_value,
                        bump: get.bump,
                        ..fonn_proto::Get::new(it.key)
                    });
                    &plain
                }
                command => command,
            };
            let job = Job {
                source,
                writer: plan.writer,
                ..Job::own(space, command)
            };
            // What is prepared is about the client's own space.
            let mut prepared = match space == plan.space {
                true => ahead.clone(),
                false => Prepared::default(),
            };
            if !progress.made.is_empty()
                && semantics::needs_value(command)
                && let Some((meta, _)) = self.present(shards, it)
                && let Some(value) = progress.made.get(&meta.version)
            {
                prepared.know(meta.version, value.clone());
            }
            let outcome = self.step_in(shards, (it, prepared), &job, progress);
            if !matches!(outcome, Outcome::Miss) {
                return outcome;
            }
        }
        Outcome::Miss
    }

    /// Carries out one command in one space.
    fn step_in(
        &self,
        shards: &mut ManyGuard<'_>,
        (plan, mut prepared): (&KeyPlan<'_>, Prepared),
        job: &Job<'_>,
        progress: &mut Progress<'_>,
    ) -> Outcome<'static> {
        let shard = shards.shard(plan.hash);
        for _ in 0..=TRIES_MAX {
            let mut effects = Effects::default();
            let attempt = self.attempt_locked(
                shard,
                job,
                (plan.fetched.as_ref(), &prepared),
                progress.acks,
                &mut progress.scratch,
                &mut effects,
            );
            if effects.has_grown {
                progress.grown.push((plan.hash, plan.space));
            }
            progress.made.extend(effects.made);
            match attempt {
                Attempt::Flushed => {}
                // The entry may not change between the steps, so its shard stays locked for this.
                Attempt::Prepare(long) => self.prepare(job, long, &mut prepared),
                Attempt::Done(mut outcome) => {
                    if let Some(hit) = hit_in_scratch(job.command, &mut outcome) {
                        hit.value = Value::Shared(Bytes::copy_from_slice(&progress.scratch));
                    }
                    if let Outcome::Hit(hit) = &outcome {
                        progress.values_len += hit.value.as_slice().len();
                    }
                    if let Outcome::Stored(stored) = &outcome {
                        progress.values_len += stored.previous.as_ref().map_or(0, Bytes::len);
                    }
                    return outcome.into_owned();
                }
                // The queue filled up, or the clock ran, after the batch had begun.
                Attempt::Room(_) | Attempt::Ceiling | Attempt::Fetch(_) => break,
            }
        }
        Outcome::Failed(Failure::Busy)
    }

    /// Gives an entry to another key.
    fn transfer(
        &self,
        shards: &mut ManyGuard<'_>,
        plan: &Plan<'_>,
        ((transfer, ahead), keys): ((&Transfer<'_>, &Prepared), StepKeys),
        progress: &mut Progress<'_>,
    ) -> Outcome<'static> {
        let from = keys.from.and_then(|from| plan.keys.get(from));
        let plans = (from, plan.keys.get(keys.target));
        let (Some(from), Some(to)) = plans else {
            return Outcome::Failed(Failure::Unavailable);
        };
        let Some((meta, slot)) = self.present(shards, from) else {
            return Outcome::NotFound;
        };
        let is_same = from.space == to.space && from.key == to.key;
        if !transfer.replaces && (is_same || self.present(shards, to).is_some()) {
            return Outcome::NotStored(None);
        }
        let is_ahead = ahead.decoded_of(meta.version);
        let value = is_ahead.or_else(|| progress.made.get(&meta.version));
        let value = value.cloned();
        let value = value.or_else(|| self.value(shards, from, slot, &mut progress.scratch));
        let Some(value) = value else {
            return Outcome::Failed(Failure::Unavailable);
        };
        let formed = ahead.request.clone().filter(|_| is_ahead.is_some());
        let stored = |version| {
            Outcome::Stored(Stored {
                version,
                value_len: value.len(),
                previous: None,
            })
        };
        if is_same {
            return stored(meta.cas());
        }
        let admitted = self
            .hot
            .namespaces
            .admit(to.space, to.key.len() + value.len());
        if let Err(failure) = admitted {
            return Outcome::Failed(failure);
        }
        let copy = Meta {
            version: self.ledger.hlc.next(),
            cas_override: None,
            ..meta
        };
        let flushes = &self.hot.flushes;
        if !flushes.is_visible_after(from.space, &meta) {
            return Outcome::NotFound;
        }
        let content = formed.unwrap_or_else(|| Content::Fresh(value.clone()));
        let (shard, now_s) = (shards.shard(to.hash), self.hot.now_s());
        let fresh = self.fresh(to.hash, to.space, to.key, copy);
        let put = self.put_entry(shard, fresh, content, now_s, progress.acks);
        match put {
            Ok(()) => progress.grown.push((to.hash, to.space)),
            Err(Refused::Full(_)) => return Outcome::Failed(Failure::Busy),
            Err(Refused::Failed(failure)) => return Outcome::Failed(failure),
        }
        if value.len() > SHORT_LEN_MAX {
            progress.made.insert(copy.version, value.clone());
        }
        if transfer.removes {
            self.remove_or_bury(shards.shard(from.hash), from, progress.acks);
        }
        stored(copy.version)
    }
}

/// The value of a step in an allocation of its own, if it is copied or encoded before the locks are
/// taken.
fn source(step: &BatchStep<'_>) -> Option<Bytes> {
    match step {
        BatchStep::Command(Command::Store(store)) => Some(Bytes::copy_from_slice(store.value)),
        _ => None,
    }
}
