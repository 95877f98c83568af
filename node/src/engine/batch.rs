//! Several steps as one: under the locks of all shards that they concern (ADR 0003).
//!
//! What RAM does not know is fetched before, as for a single command; then the locks are taken, the
//! watched keys compared, and the steps carried out. No other client sees the keys in between.
//!
//! Invariants:
//! - Nothing is changed before everything is known: a batch is not begun and then given up.
//! - What a batch holds is bounded: in steps, in bytes that were fetched, in bytes that it returns.
//! - A step that fails changes nothing, and stops none behind it.

mod ahead;
mod growth;

use std::collections::HashMap;
use std::time::Instant;

use bytes::Bytes;
use fonn_proto::batch::{BATCH_STEPS_MAX, BATCH_VALUES_LEN_MAX};
use fonn_proto::outcome::Value;
use fonn_proto::request::ServerOutcome;
use fonn_proto::{
    Batch, BatchStep, Command, Failure, Outcome, Redirects, Seen, Store, Stored, Transfer, Version,
};
use fonn_runtime::hlc;

use self::ahead::STEP_SHORT_LEN_MAX;
use self::growth::Growth;
use super::commit::{Content, Refused};
use super::fetch::{Fetched, Need};
use super::prepare::{Prepared, SHORT_LEN_MAX};
use super::{
    Acks, Attempt, Effects, Engine, FETCHES_MAX, Job, ROOM_WAIT, Ticket, ValueAt, semantics,
};
use crate::entry::{Meta, Space};
use crate::ram::{ManyGuard, SlotId};

/// What one write costs in the disk's queue besides key and value, about.
const WRITE_COST: usize = 256;

/// Versions are reserved for so long ahead that they last while the locks are held.
const VERSIONS_MARGIN_MS: u64 = 1_000;

/// How often a step is tried again because a flush came between, or a long value had to be prepared.
const TRIES_MAX: usize = 8;

/// Why a batch was not carried out. Nothing was changed.
enum Blocked {
    /// What lies below RAM must be known of this key.
    Fetch(usize, Ticket),
    /// Long values that were fetched must be prepared.
    Prepare,
    /// Versions must be reserved first.
    Ceiling,
    /// A watched key is another one.
    Changed,
    /// The steps would make too many bytes of long values under the locks.
    TooMuch,
}

/// A key of the batch.
struct KeyPlan<'a> {
    space: Space,
    key: &'a [u8],
    hash: u64,
    /// What must be known before the batch begins.
    need: Option<Need>,
    /// Whether a step makes the key known to those behind it, whatever was there.
    is_made: bool,
    fetched: Option<Fetched>,
}

/// What a batch will do, and what is known for it.
struct Plan<'a> {
    space: Space,
    base: Option<Space>,
    keys: Vec<KeyPlan<'a>>,
    index: HashMap<(Space, &'a [u8]), usize>,
    /// Bytes that the disk's queue takes, about.
    write_cost: usize,
    /// Bytes of values that were fetched.
    fetched_len: usize,
    /// Whether a long value was fetched that is not prepared.
    has_long: bool,
}

impl<'a> Plan<'a> {
    fn new(engine: &Engine, space: Space, batch: &Batch<'a>) -> Self {
        let mut plan = Self {
            space,
            base: batch.base,
            keys: Vec::new(),
            index: HashMap::new(),
            write_cost: 0,
            fetched_len: 0,
            has_long: false,
        };
        for watched in &batch.watched {
            let space = plan.database(watched.database);
            plan.add_read(engine, space, watched.key, Need::Value);
        }
        for step in &batch.steps {
            match step {
                BatchStep::Command(command) if semantics::is_blind(command) => {
                    plan.add(engine, space, command.key(), None);
                    plan.make(space, command.key());
                }
                BatchStep::Command(command @ Command::Get(_)) => {
                    plan.add_read(engine, space, command.key(), Need::of(command));
                }
                BatchStep::Command(command) => {
                    plan.add(engine, space, command.key(), Some(Need::Value));
                }
                BatchStep::Transfer(transfer) => {
                    plan.add(engine, space, transfer.from, Some(Need::Value));
                    let target = plan.database(transfer.database);
                    let need = (!transfer.replaces).then_some(Need::Existence);
                    plan.add(engine, target, transfer.to, need);
                }
            }
            plan.write_cost += write_cost(step);
        }
        plan
    }

    fn database(&self, database: u8) -> Space {
        Space::new(self.space.namespace(), database)
    }

    fn add_read(&mut self, engine: &Engine, space: Space, key: &'a [u8], need: Need) {
        self.add(engine, space, key, Some(need));
        if let Some(base) = self.base_of(space) {
            self.add(engine, base, key, Some(need));
        }
    }

    /// Where a read of this space looks that finds nothing there.
    fn base_of(&self, space: Space) -> Option<Space> {
        let base = self.base?;
        Some(Space::new(base.namespace(), space.database() as u8))
    }

    /// Adds a key with what a step needs of it, unless a step before makes it known. A transfer does not: it does
    /// nothing to its target if there is no source.
    fn add(&mut self, engine: &Engine, space: Space, key: &'a [u8], need: Option<Need>) {
        let index = *self.index.entry((space, key)).or_insert_with(|| {
            self.keys.push(KeyPlan {
                space,
                key,
                hash: engine.hot.ram.hash(space, key),
                need: None,
                is_made: false,
                fetched: None,
            });
            self.keys.len() - 1
        });
        if let Some(plan) = self.keys.get_mut(index)
            && !plan.is_made
            && plan.need != Some(Need::Value)
        {
            plan.need = need.or(plan.need);
        }
    }

    /// Notes that a step makes a key known.
    fn make(&mut self, space: Space, key: &[u8]) {
        let index = self.index.get(&(space, key)).copied();
        if let Some(plan) = index.and_then(|index| self.keys.get_mut(index)) {
            plan.is_made = true;
        }
    }

    /// Notes what was fetched. False if that is too much.
    fn know(&mut self, index: usize, known: Fetched) -> bool {
        let len = |known: &Fetched| known.entry.as_ref().map_or(0, |entry| entry.value.len());
        let Some(plan) = self.keys.get_mut(index) else {
            return true;
        };
        let before = plan.fetched.as_ref().map_or(0, len);
        let others = self.fetched_len - before;
        let more = len(&known);
        self.has_long |= more > SHORT_LEN_MAX;
        self.fetched_len = others + more;
        plan.fetched = Some(known);
        // One value of any size is taken, as by a single command.
        others == 0 || more == 0 || self.fetched_len <= BATCH_VALUES_LEN_MAX
    }

    fn known(&self, space: Space, key: &[u8]) -> Option<&KeyPlan<'a>> {
        self.keys.get(*self.index.get(&(space, key))?)
    }
}

fn write_cost(step: &BatchStep<'_>) -> usize {
    match step {
        BatchStep::Command(command) if !command.is_write() => 0,
        BatchStep::Command(Command::Store(store)) => {
            WRITE_COST + store.key.len() + store.value.len()
        }
        BatchStep::Command(Command::SetRange(range)) => {
            WRITE_COST + range.key.len() + range.value.len()
        }
        BatchStep::Command(command) => WRITE_COST + command.key().len(),
        BatchStep::Transfer(transfer) => 2 * WRITE_COST + transfer.from.len() + transfer.to.len(),
    }
}

/// What carrying out the steps changes besides the entries.
struct Progress<'e> {
    acks: &'e mut Acks,
    scratch: Vec<u8>,
    /// Bytes of values that are returned.
    values_len: usize,
    values_len_max: usize,
    /// Keys by whose shards RAM may have grown.
    grown: Vec<(u64, Space)>,
    /// Long values that steps have made, by the version of their entry: RAM may have them encoded.
    made: HashMap<Version, Bytes>,
}

impl Engine {
    /// Carries out a batch; no other client sees a part of it.
    pub async fn execute_batch(
        &self,
        space: Space,
        batch: &Batch<'_>,
        acks: &mut Acks,
    ) -> ServerOutcome {
        if batch.steps.len() > BATCH_STEPS_MAX || batch.watched.len() > BATCH_STEPS_MAX {
            return ServerOutcome::Failed(Failure::TooLarge);
        }
        let mut plan = Plan::new(self, space, batch);
        // Values are copied before the locks are taken, not under them.
        let sources: Vec<Option<Bytes>> = batch.steps.iter().map(source).collect();
        let room_deadline = Instant::now() + ROOM_WAIT;
        if plan.write_cost > 0
            && self.disk.is_some()
            && !self.wait_for_room(plan.write_cost, room_deadline).await
        {
            return ServerOutcome::Failed(Failure::Busy);
        }
        let mut ahead: Vec<Prepared> = batch.steps.iter().map(|_| Prepared::default()).collect();
        // Each key may have to be fetched, and each of these fetches may come in vain.
        let mut fetches_left = plan.keys.len() + FETCHES_MAX;
        self.prepare_ahead(&plan, batch, &sources, &mut ahead);
        loop {
            match self.try_batch(&plan, batch, (&sources, &ahead), acks) {
                Ok(outcomes) => {
                    for (step, outcome) in batch.steps.iter().zip(&outcomes) {
                        if let BatchStep::Command(command) = step {
                            self.count(space, command, outcome);
                        }
                    }
                    return ServerOutcome::Outcomes(outcomes);
                }
                Err(Blocked::Changed) => return ServerOutcome::Changed,
                Err(Blocked::TooMuch) => return ServerOutcome::Failed(Failure::TooLarge),
                Err(Blocked::Prepare) => {
                    self.prepare_ahead(&plan, batch, &sources, &mut ahead);
                    plan.has_long = false;
                }
                Err(Blocked::Ceiling) => {
                    if let Err(failure) = self.reserve_versions().await {
                        return ServerOutcome::Failed(failure);
                    }
                }
                Err(Blocked::Fetch(index, ticket)) => {
                    let Some(left) = fetches_left.checked_sub(1) else {
                        return ServerOutcome::Failed(Failure::Busy);
                    };
                    fetches_left = left;
                    let (space, key) = (plan.keys[index].space, plan.keys[index].key);
                    let need = plan.keys[index].need.unwrap_or(Need::Value);
                    match self.fetch(space, key, need, ticket).await {
                        Ok(known) => {
                            if !plan.know(index, known) {
                                return ServerOutcome::Failed(Failure::TooLarge);
                            }
                        }
                        Err(_) => return ServerOutcome::Failed(Failure::Unavailable),
                    }
                }
            }
        }
    }

    fn try_batch(
        &self,
        plan: &Plan<'_>,
        batch: &Batch<'_>,
        (sources, ahead): (&[Option<Bytes>], &[Prepared]),
        acks: &mut Acks,
    ) -> Result<Vec<Outcome<'static>>, Blocked> {
        let hot = &*self.hot;
        let mut shards = hot.ram.lock_many(plan.keys.iter().map(|it| it.hash));
        for (index, it) in plan.keys.iter().enumerate() {
            let is_known = it.need.is_none()
                || self.disk.is_none()
                || shards
                    .shard(it.hash)
                    .find(it.hash, it.space, it.key)
                    .is_some()
                || (it.fetched.as_ref()).is_some_and(|known| known.ticket == hot.ticket(it.hash));
            if !is_known {
                return Err(Blocked::Fetch(index, hot.ticket(it.hash)));
            }
        }
        if plan.has_long {
            return Err(Blocked::Prepare);
        }
        let last = hlc::at_ms(hot.clock.coarse_wall_ms() + VERSIONS_MARGIN_MS);
        if batch.is_write() && last.max(self.ledger.hlc.next()) >= self.ledger.ceiling() {
            return Err(Blocked::Ceiling);
        }
        for watched in &batch.watched {
            let space = plan.database(watched.database);
            if self.seen(&mut shards, plan, space, watched.key) != watched.seen {
                return Err(Blocked::Changed);
            }
        }
        if self.grows_too_much(&mut shards, plan, batch) {
            return Err(Blocked::TooMuch);
        }
        let mut progress = Progress {
            acks,
            scratch: Vec::new(),
            values_len: 0,
            values_len_max: BATCH_VALUES_LEN_MAX.min(self.settings.value_len_max),
            grown: Vec::new(),
            made: HashMap::new(),
        };
        let steps = batch.steps.iter().zip(sources).zip(ahead);
        let outcomes = steps
            .map(|((step, source), ahead)| match step {
                BatchStep::Command(command) => {
                    let given = (source.as_ref(), ahead);
                    self.step(&mut shards, plan, command, given, &mut progress)
                }
                BatchStep::Transfer(transfer) => {
                    self.transfer(&mut shards, plan, (transfer, ahead), &mut progress)
                }
            })
            .collect();
        drop(shards);
        let now_s = hot.now_s();
        for (hash, space) in progress.grown {
            hot.ram.evict_to_budget(hash, now_s, super::EVICTIONS_MAX);
            self.evict_to_quota(hash, space);
        }
        Ok(outcomes)
    }

    /// Whether the steps would make too many bytes of long values under the locks.
    fn grows_too_much(
        &self,
        shards: &mut ManyGuard<'_>,
        plan: &Plan<'_>,
        batch: &Batch<'_>,
    ) -> bool {
        let mut growth = Growth::new(self.rules(), plan.keys.len());
        for step in &batch.steps {
            let (target, from) = match step {
                BatchStep::Command(command) => ((plan.space, command.key()), None),
                BatchStep::Transfer(transfer) => {
                    let target = (plan.database(transfer.database), transfer.to);
                    (target, plan.index.get(&(plan.space, transfer.from)))
                }
            };
            let Some(target) = plan.index.get(&target) else {
                continue;
            };
            let keys = (*target, from.copied());
            growth.note(step, keys, |index| {
                let known = plan.keys.get(index);
                known.map_or(0, |it| self.value_len(shards, it))
            });
        }
        growth.is_too_much()
    }

    /// The state of an entry that a client would see.
    fn seen(
        &self,
        shards: &mut ManyGuard<'_>,
        plan: &Plan<'_>,
        space: Space,
        key: &[u8],
    ) -> Option<Seen> {
        let spaces = [Some(space), plan.base_of(space)];
        let found = |space| Some(self.present(shards, plan.known(space, key)?)?.0);
        let meta: Meta = spaces.into_iter().flatten().find_map(found)?;
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
        command: &Command<'_>,
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
        let base = match command {
            Command::Get(_) => plan.base_of(plan.space),
            _ => None,
        };
        for space in [Some(plan.space), base].into_iter().flatten() {
            let Some(it) = plan.known(space, command.key()) else {
                return Outcome::Failed(Failure::Unavailable);
            };
            let returns = match command {
                Command::Get(get) => get.want_value,
                Command::Store(store) => store.want_previous,
                _ => false,
            };
            if returns && self.is_too_much(shards, it, progress) {
                return Outcome::Failed(Failure::TooLarge);
            }
            // Nothing is changed in a namespace that lies below.
            let plain;
            let command = match command {
                Command::Get(get) if space != plan.space => {
                    plain = Command::Get(fonn_proto::Get {
                        want_value: get.want_value,
                        bump: get.bump,
                        ..fonn_proto::Get::new(get.key)
                    });
                    &plain
                }
                command => command,
            };
            let job = Job {
                space,
                command,
                source,
                base: None,
                is_routed: true,
                redirects: Redirects::Never,
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
                Attempt::Done(mut outcome, at) => {
                    if let Outcome::Hit(hit) = &mut outcome {
                        if at == ValueAt::Scratch {
                            hit.value = Value::Shared(Bytes::copy_from_slice(&progress.scratch));
                        }
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
        (transfer, ahead): (&Transfer<'_>, &Prepared),
        progress: &mut Progress<'_>,
    ) -> Outcome<'static> {
        let target = plan.database(transfer.database);
        let plans = (
            plan.known(plan.space, transfer.from),
            plan.known(target, transfer.to),
        );
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
        if !flushes.is_visible_after(from.space, meta.version) {
            return Outcome::NotFound;
        }
        let put = self.put_entry(
            shards.shard(to.hash),
            to.hash,
            to.space,
            to.key,
            copy,
            formed.unwrap_or_else(|| Content::Fresh(value.clone())),
            self.hot.now_s(),
            progress.acks,
        );
        match put {
            Ok(()) => progress.grown.push((to.hash, to.space)),
            Err(Refused::Full(_)) => return Outcome::Failed(Failure::Busy),
            Err(Refused::Failed(failure)) => return Outcome::Failed(failure),
        }
        if value.len() > SHORT_LEN_MAX {
            progress.made.insert(copy.version, value.clone());
        }
        if transfer.removes {
            let (version, shard) = (self.ledger.hlc.next(), shards.shard(from.hash));
            let key = (from.hash, from.space, from.key);
            if self.remove_key(shard, key, version, progress.acks).is_err() {
                // The disk gets the tombstone as soon as it takes one.
                self.hot
                    .bury_unsettled(shard, from.hash, from.space, from.key, version);
            }
        }
        stored(copy.version)
    }
}

/// The value of a step in an allocation of its own, if it is copied or encoded before the locks are taken.
fn source(step: &BatchStep<'_>) -> Option<Bytes> {
    match step {
        BatchStep::Command(Command::Store(store)) if store.value.len() > STEP_SHORT_LEN_MAX => {
            Some(Bytes::copy_from_slice(store.value))
        }
        _ => None,
    }
}
