//! The tiers as one store: executes commands over RAM and disk.
//!
//! What is in RAM is answered on the spot, under the lock of one shard. What may be on disk only is
//! fetched by the disk tier's own threads, and the command is tried again with what they found. A
//! write changes RAM and enters the disk's queue under the same shard lock, so both see writes of a
//! key in the same order; its acknowledgement comes through an [`AckGroup`] when the disk has it.
//!
//! Invariants:
//! - RAM, where it knows a key, knows its newest version: an entry or a tombstone is *dirty*, and
//!   not evicted, until the disk has it. So a miss in RAM may always be answered from disk.
//! - What was fetched from disk enters RAM, or is acted upon, only if no write of that key came
//!   between: writes count up a stripe of `mutations`, whose value a fetch carries as its
//!   [`Ticket`]. A read is answered all the same ([`Engine::answer_voided`]).
//! - A version is used only below a ceiling that is on disk, so that a restart never gives out a
//!   lower one, wherever the clock is then.

mod batch;
mod commit;
mod counts;
mod fetch;
mod flush;
mod hit;
mod iterate;
mod locate;
mod newest;
mod number;
mod peer;
mod prepare;
mod pressure;
mod quota;
mod store;

pub mod semantics;
#[cfg(test)]
mod tests;
mod unsettled;
mod upkeep;
mod warm;
mod write_once;
mod written;

pub use self::hit::Moment;
pub use self::locate::{Form, Located};
pub use self::peer::feed::FeedError;
pub use self::peer::{Framing, PutError, SlotEntries, Transfer};
#[cfg(test)]
pub(crate) use self::upkeep::CEILING_AHEAD_MS;
pub use self::upkeep::{EngineOptions, OpenError};
pub use self::warm::Warmed;
pub use self::written::{WrittenCursor, WrittenStep};

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fonn_base::ack::{Ack, AckGroup};
use fonn_base::clock::Clock;
use fonn_base::entry::{Meta, Space};
use fonn_base::prefetch::prefetch;
use fonn_disk_tier::levels::LevelCodec;
use fonn_disk_tier::{DiskEntry, DiskFacts, DiskTier, Durability, Fact};
use fonn_proto::outcome::Value;
use fonn_proto::{Command, Failure, Hit, Outcome, Version};
use fonn_ram_tier::{RamTier, ShardGuard, SlotId};
pub use fonn_server::Job;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use self::commit::{Content, Refused};
use self::fetch::{Fetched, From, Need, Unknown};
use self::prepare::{Long, LongStored, Prepared, Read, SHORT_LEN_MAX, read};
use self::semantics::{Change, Present};
use self::unsettled::Unsettled;
use self::upkeep::Ledger;
use self::write_once::Ruling;
use crate::cold::Cold;
use crate::flush::FlushTable;
use crate::namespaces::Namespaces;
use crate::stats::{Latency, Stats};

/// Counters of writes, a stripe of keys each. More stripes, fewer fetches repeated in vain.
const MUTATION_STRIPES: usize = 4096;

/// Stripes of keys with a floor each. More stripes, fewer entries of other members are looked up in
/// vain, or refused in vain without a disk.
const FLOOR_STRIPES: usize = 1 << 16;

/// How long a write waits for room in the disk's queue before it is refused as busy.
const ROOM_WAIT: Duration = Duration::from_secs(5);

/// Entries that one request evicts at most; a larger excess is left to the next ones and to upkeep.
const EVICTIONS_MAX: usize = 64;

/// How often a command is tried again because other writes of its stripe came between.
const FETCHES_MAX: usize = 64;

/// What the node and the disk tier's threads both touch.
pub struct Hot {
    pub(crate) ram: RamTier,
    pub(crate) flushes: FlushTable,
    pub(crate) clock: Clock,
    pub(crate) stats: Stats,
    pub(crate) namespaces: Namespaces,
    mutations: Box<[AtomicU64]>,
    /// No version that this node knows of a key is above the floor of the key's stripe: neither in
    /// RAM, nor on disk, nor in the index of the bucket.
    floors: Box<[AtomicU64]>,
    unsettled: Unsettled,
}

/// The tiers as one store.
pub struct Engine {
    hot: Arc<Hot>,
    disk: Option<DiskTier>,
    cold: Option<Cold>,
    ledger: Arc<Ledger>,
    settings: Settings,
    ram_codec: LevelCodec,
    iterations: iterate::Iterations,
    /// Of batches that store all their keys or none.
    lookup_turns: Semaphore,
    /// Of batches that hold much.
    batch_turns: Arc<Semaphore>,
    /// Latency of gets that the disk answered, queue included.
    pub disk_get_latency: Latency,
    /// Latency of gets that the bucket answered, after the disk had none.
    pub cold_get_latency: Latency,
    /// Bytes of the RAM budget that entries may not use, because the process is too large.
    withheld: AtomicUsize,
    /// How large the process was at the last look, and what was received since then.
    resident: AtomicUsize,
    received: AtomicUsize,
    /// Held while the namespaces and quotas of users are taken over.
    taking_over: Mutex<()>,
}

/// What does not change while the node runs.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Longest value in bytes.
    pub value_len_max: usize,
    /// When a write is acknowledged.
    pub durability: Durability,
}

/// The writes of one batch of requests that wait for the disk.
#[derive(Default)]
pub struct Acks {
    group: Option<Arc<AckGroup>>,
    count: usize,
    /// The base of the range of versions by which the command was admitted, in a cluster.
    admitted: Option<Version>,
}

impl Acks {
    /// How many writes wait.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Has commands refused from now on as soon as versions are not given by this range any more:
    /// another member may order the writes of their keys then.
    pub fn admit(&mut self, base: Version) {
        self.admitted = Some(base);
    }

    fn next(&mut self) -> Ack {
        let ack = self.group.get_or_insert_with(AckGroup::new).ack(self.count);
        self.count += 1;
        ack
    }

    /// Waits for all of them, and returns which failed. Afterwards the list is empty.
    pub async fn wait(&mut self) -> Vec<(usize, Failure)> {
        self.count = 0;
        match self.group.take() {
            Some(group) => group.wait().await,
            None => Vec::new(),
        }
    }
}

/// A fetch from disk is good while this has not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticket(u64);

impl Ticket {
    /// One that was never good.
    const VOID: Self = Self(u64::MAX);
}

/// What one try of a command did besides.
#[derive(Default)]
struct Effects {
    /// Whether RAM may have grown.
    has_grown: bool,
    /// The long value that the entry got, with its new version.
    made: Option<(Version, Bytes)>,
}

/// How far one try of a command got.
enum Attempt {
    /// It was carried out. The value of a hit may be in the scratch buffer: [`hit_in_scratch`].
    Done(Outcome<'static>),
    /// Only the disk knows about the key.
    Fetch(Ticket),
    /// The disk's queue has no room for a write of this cost. Nothing was changed.
    Room(usize),
    /// Versions must be reserved first. Nothing was changed.
    Ceiling,
    /// A flush came between. Nothing was changed.
    Flushed,
    /// A long value has to be decoded, made or encoded first, for which no shard is locked. Nothing
    /// was changed.
    Prepare(Long),
}

/// The hit of a command whose value is not in the outcome: it is in the scratch buffer.
fn hit_in_scratch<'o, 'v>(
    command: &Command<'_>,
    outcome: &'o mut Outcome<'v>,
) -> Option<&'o mut Hit<'v>> {
    let Outcome::Hit(hit) = outcome else {
        return None;
    };
    let is_missing = hit.value_len > 0 && hit.value.as_slice().is_empty();
    (semantics::needs_value(command) && is_missing).then_some(hit)
}

/// The entry that a command meets.
enum There<'a> {
    Slot(SlotId),
    Fetched(&'a DiskEntry, From),
    /// The disk has it, and its value was not read.
    Facts(DiskFacts),
    Nothing(Absence),
}

/// Why there is no entry, for the metrics.
#[derive(Clone, Copy)]
enum Absence {
    Absent,
    Expired,
    Flushed,
}

impl Hot {
    fn stripe(&self, hash: u64) -> &AtomicU64 {
        &self.mutations[hash as usize % MUTATION_STRIPES]
    }

    fn ticket(&self, hash: u64) -> Ticket {
        Ticket(self.stripe(hash).load(Ordering::Acquire))
    }

    /// Voids the fetches of this key that are under way. Called under the shard's lock.
    fn mutated(&self, hash: u64) {
        self.stripe(hash).fetch_add(1, Ordering::AcqRel);
    }

    /// A version above which nothing is known of the key.
    fn floor(&self, hash: u64) -> fonn_proto::Version {
        self.floors[hash as usize % FLOOR_STRIPES].load(Ordering::Acquire)
    }

    /// Has the processor fetch what [`Hot::raise_floor`] changes.
    fn prefetch_floor(&self, hash: u64) {
        prefetch(&self.floors[hash as usize % FLOOR_STRIPES]);
    }

    /// Notes that a version of a key becomes known. Called under the shard's lock.
    pub(crate) fn raise_floor(&self, hash: u64, version: fonn_proto::Version) {
        self.floors[hash as usize % FLOOR_STRIPES].fetch_max(version, Ordering::AcqRel);
    }

    /// Notes that versions of any keys up to this version are known.
    pub(crate) fn raise_floors(&self, version: fonn_proto::Version) {
        for floor in &self.floors {
            floor.fetch_max(version, Ordering::AcqRel);
        }
    }

    /// Whether an entry with these facts may be seen.
    fn absence(&self, space: Space, meta: &Meta, now_ms: u64) -> Option<Absence> {
        if meta.is_expired(now_ms) {
            return Some(Absence::Expired);
        }
        (!self.flushes.shows(space, meta)).then_some(Absence::Flushed)
    }

    /// What RAM knows of a key: its entry, or that it was deleted.
    fn fact(&self, space: Space, key: &[u8]) -> Option<Fact> {
        let hash = self.ram.hash(space, key);
        let shard = self.ram.lock(hash);
        let found = shard.get(shard.find(hash, space, key)?);
        Some(match found.tombstone {
            true => Fact::Tombstone(found.meta.version),
            false => Fact::Put(found.meta),
        })
    }

    /// The facts of a key that the disk holds with the facts `on_disk`. None if RAM knows that it
    /// was deleted.
    fn newest_meta(&self, space: Space, key: &[u8], on_disk: &Meta) -> Option<Meta> {
        match self.fact(space, key) {
            Some(Fact::Put(meta)) => Some(meta),
            Some(Fact::Tombstone(_)) => None,
            None => Some(*on_disk),
        }
    }

    fn now_s(&self) -> u32 {
        (self.clock.coarse_monotonic_ms() / 1000) as u32
    }
}

impl Engine {
    /// The limits that parsers must enforce.
    #[must_use]
    pub fn value_len_max(&self) -> usize {
        self.settings.value_len_max
    }

    /// The counters.
    #[must_use]
    pub fn stats(&self) -> &Stats {
        &self.hot.stats
    }

    /// The RAM tier.
    #[must_use]
    pub fn ram(&self) -> &RamTier {
        &self.hot.ram
    }

    /// The disk tier, if there is one.
    #[must_use]
    pub fn disk(&self) -> Option<&DiskTier> {
        self.disk.as_ref()
    }

    /// The cold tier, if there is one.
    #[must_use]
    pub fn cold(&self) -> Option<&Cold> {
        self.cold.as_ref()
    }

    /// Executes a command, at once if RAM suffices.
    ///
    /// The outcome may borrow from `scratch`. Writes that wait for the disk are added to `acks`;
    /// until those are waited for, the outcome is provisional.
    pub async fn execute<'s>(
        &self,
        job: &Job<'_>,
        acks: &mut Acks,
        scratch: &'s mut Vec<u8>,
    ) -> Outcome<'s> {
        let namespace = job.space.namespace();
        if job.command.is_write() && self.hot.namespaces.is_write_once(namespace) {
            // Boxed: other namespaces do not pay for it with memory.
            return Box::pin(self.execute_once(job, acks, scratch)).await;
        }
        self.execute_freely(job, acks, scratch).await
    }

    /// Executes a write of a namespace whose entries keep their first value.
    async fn execute_once<'s>(
        &self,
        job: &Job<'_>,
        acks: &mut Acks,
        scratch: &'s mut Vec<u8>,
    ) -> Outcome<'s> {
        match write_once::judge(job.command, job.writer) {
            Ruling::Allowed => self.execute_freely(job, acks, scratch).await,
            Ruling::Refused(failure) => Outcome::Failed(failure),
            Ruling::AsAdd(store) => {
                let value_len = store.value.len();
                let command = Command::Store(store);
                let add = Job {
                    command: &command,
                    ..*job
                };
                let outcome = self.execute_freely(&add, acks, scratch).await;
                write_once::as_of_set(outcome, value_len)
            }
        }
    }

    async fn execute_freely<'s>(
        &self,
        job: &Job<'_>,
        acks: &mut Acks,
        scratch: &'s mut Vec<u8>,
    ) -> Outcome<'s> {
        let first = self.attempt(job, None, &Prepared::default(), acks, scratch);
        let outcome = match first {
            Attempt::Done(outcome) => outcome,
            first => self.execute_slowly(job, first, acks, scratch).await,
        };
        self.count(job.space, job.command, &outcome);
        // Only now may the outcome borrow the scratch buffer.
        let mut outcome: Outcome<'s> = outcome;
        if let Some(hit) = hit_in_scratch(job.command, &mut outcome) {
            hit.value = Value::Copied(scratch);
        }
        outcome
    }

    /// The way through the disk tier's threads.
    async fn execute_slowly(
        &self,
        job: &Job<'_>,
        first: Attempt,
        acks: &mut Acks,
        scratch: &mut Vec<u8>,
    ) -> Outcome<'static> {
        let room_deadline = Instant::now() + ROOM_WAIT;
        let mut fetches_left = FETCHES_MAX;
        // All tries share the time that the bucket is given.
        let mut cold_deadline = None;
        let mut attempt = first;
        // What was fetched stays good as long as its ticket does, also while waiting for room.
        let mut fetched = None;
        // Boxed: connections do not pay for it with memory.
        let mut prepared = Box::<Prepared>::default();
        loop {
            match attempt {
                Attempt::Done(outcome) => return outcome,
                Attempt::Flushed => {}
                Attempt::Fetch(ticket) => {
                    let Some(left) = fetches_left.checked_sub(1) else {
                        return Outcome::Failed(Failure::Busy);
                    };
                    fetches_left = left;
                    // Its memory is not held while more is waited for.
                    drop(fetched.take());
                    let need = Need::of(job.command);
                    let at = (job.space, job.command.key());
                    match self.fetch_by(at, need, ticket, &mut cold_deadline).await {
                        Ok(known) => {
                            self.prepare_fetched(&known, &mut prepared);
                            fetched = Some(known);
                        }
                        Err(why) => return self.unreadable(job.command, why),
                    }
                }
                Attempt::Prepare(long) => {
                    let Some(left) = fetches_left.checked_sub(1) else {
                        return Outcome::Failed(Failure::Busy);
                    };
                    fetches_left = left;
                    self.prepare(job, long, &mut prepared);
                }
                Attempt::Room(cost) => {
                    if !self.wait_for_room(cost, room_deadline).await {
                        return Outcome::Failed(Failure::Busy);
                    }
                }
                Attempt::Ceiling => {
                    if let Err(failure) = self.reserve_versions().await {
                        return Outcome::Failed(failure);
                    }
                }
            }
            attempt = self.attempt(job, fetched.as_ref(), &prepared, acks, scratch);
        }
    }

    /// Waits until the disk's queue would take writes of this cost; false if it does not in time.
    async fn wait_for_room(&self, cost: usize, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        match &self.disk {
            Some(disk) if !left.is_zero() => disk.wait_for_room(cost, left).await,
            _ => false,
        }
    }

    /// One try, without waiting for anything.
    fn attempt(
        &self,
        job: &Job<'_>,
        fetched: Option<&Fetched>,
        prepared: &Prepared,
        acks: &mut Acks,
        scratch: &mut Vec<u8>,
    ) -> Attempt {
        let hot = &*self.hot;
        let hash = hot.ram.hash(job.space, job.command.key());
        let mut shard = hot.ram.lock(hash);
        let holding = fetched.filter(|it| it.ticket == hot.ticket(hash));
        let mut effects = Effects::default();
        let known = (holding, prepared);
        let mut attempt = self.attempt_locked(&mut shard, job, known, acks, scratch, &mut effects);
        if matches!(attempt, Attempt::Fetch(_))
            && let Some(voided) = fetched
            && let Some(outcome) = self.answer_voided(job, voided)
        {
            attempt = Attempt::Done(outcome);
        }
        drop(shard);
        if effects.has_grown {
            hot.ram
                .evict_to_budget(Some(hash), hot.now_s(), EVICTIONS_MAX);
            self.evict_to_quota(hash, job.space);
        }
        attempt
    }

    /// One try under the lock of the key's shard. It knows what the tiers below hold as long as RAM
    /// does not know the key, and what was prepared of long values.
    fn attempt_locked(
        &self,
        shard: &mut ShardGuard<'_>,
        job: &Job<'_>,
        (fetched, prepared): (Option<&Fetched>, &Prepared),
        acks: &mut Acks,
        scratch: &mut Vec<u8>,
        effects: &mut Effects,
    ) -> Attempt {
        let hot = &*self.hot;
        let key = job.command.key();
        let hash = hot.ram.hash(job.space, key);
        let now_ms = hot.clock.wall_ms();
        let there = match shard.find(hash, job.space, key) {
            Some(slot) => {
                let found = shard.get(slot);
                if found.tombstone {
                    There::Nothing(Absence::Absent)
                } else {
                    match hot.absence(job.space, &found.meta, now_ms) {
                        Some(absence) => There::Nothing(absence),
                        None => There::Slot(slot),
                    }
                }
            }
            None if self.disk.is_none() || semantics::is_blind(job.command) => {
                There::Nothing(Absence::Absent)
            }
            None => match fetched {
                Some(fetched) => hot.there(job.space, fetched, now_ms),
                None => return Attempt::Fetch(hot.ticket(hash)),
            },
        };
        // What is there, decoded; and the value of a hit.
        let now_s = hot.now_s();
        let mut want = semantics::needs_value(job.command);
        let read = match &there {
            There::Slot(slot) => {
                let found = shard.get(*slot);
                let value_len_max = self.settings.value_len_max;
                if matches!(job.command, Command::Arith(_)) {
                    // A value that is too long for a number is not decoded.
                    let long = LongStored::of_frame(&found, value_len_max, number::TEXT_LEN_MAX);
                    want = long.is_none();
                }
                let decoded = prepared.decoded_of(found.meta.version);
                let is_damaged = prepared.is_damaged(found.meta.version);
                if want
                    && decoded.is_none()
                    && !is_damaged
                    && let Some(long) = LongStored::of_frame(&found, value_len_max, SHORT_LEN_MAX)
                {
                    return Attempt::Prepare(Long::Stored(long));
                }
                let value = match decoded {
                    Some(value) => Some(Read::shared(value)),
                    None if is_damaged => None,
                    None => read(&found, want, value_len_max, scratch),
                };
                let Some(value) = value else {
                    // Bytes that RAM itself garbled: nothing that the disk has can be worse.
                    tracing::error!("a value in RAM does not decode; dropping it");
                    if found.dirty {
                        // It is queued for the disk, which may still have an older one.
                        let version = found.meta.version;
                        commit::bury(shard, hash, job.space, key, version);
                    } else {
                        shard.remove(*slot);
                    }
                    hot.mutated(hash);
                    return Attempt::Done(self.unreadable(job.command, Unknown::Disk));
                };
                Some((
                    found.meta,
                    value,
                    found.fetched,
                    now_s.saturating_sub(found.last_used_s),
                ))
            }
            There::Fetched(entry, _) => {
                let value = Read::shared(&entry.value);
                Some((entry.meta, value, false, 0))
            }
            There::Facts(facts) => {
                let value = Read {
                    len: facts.value_len,
                    shared: None,
                };
                Some((facts.meta, value, false, 0))
            }
            There::Nothing(_) => None,
        };
        let present = read.as_ref().map(|(meta, value, fetched, idle_s)| Present {
            meta: *meta,
            value: value
                .shared
                .as_deref()
                .unwrap_or(if want { scratch } else { &[] }),
            shared: value.shared.as_ref(),
            value_len: value.len,
            fetched: *fetched,
            idle_s: *idle_s,
        });
        let rules = self.rules_at(job.space, now_ms);
        let (mut change, mut outcome) =
            semantics::apply(job.command, present, rules, || self.ledger.hlc.next());
        change.write_as(job.writer);
        let is_hidden = match &there {
            There::Nothing(Absence::Expired) => true,
            // Another member may not have cut it off.
            There::Nothing(Absence::Flushed) => {
                hot.namespaces.quota(job.space.namespace()).is_some()
            }
            _ => false,
        };
        if let (Command::Delete(_), true) = (job.command, is_hidden) {
            // The client is told that there is nothing: so it shall be when the clock is set back.
            change = Change::Remove(self.ledger.hlc.next());
        }
        if let Some(version) = change.version() {
            if self.is_late(acks) {
                return Attempt::Done(Outcome::Failed(Failure::Busy));
            }
            if version >= self.ledger.ceiling() {
                return Attempt::Ceiling;
            }
            let flushes = &hot.flushes;
            if present.is_some_and(|it| !flushes.is_visible_after(job.space, &it.meta)) {
                return Attempt::Flushed;
            }
        }

        let made = match self.made(job, &change, present, prepared) {
            Ok(made) => made,
            Err(long) => return Attempt::Prepare(long),
        };
        if let (Some(version), Some(Content::Formed { value, .. })) = (change.version(), &made) {
            effects.made = Some((version, value.clone()));
        }
        let value = read.and_then(|(_, value, ..)| value.shared);
        let entry = commit::Target {
            hash,
            job,
            there: &there,
            made,
            fetched_form: prepared.fetched_form.as_ref(),
        };
        match self.commit(shard, &entry, change, now_s, acks) {
            Ok(has_grown) => effects.has_grown |= has_grown,
            Err(Refused::Full(cost)) => return Attempt::Room(cost),
            Err(Refused::Failed(failure)) => return Attempt::Done(Outcome::Failed(failure)),
        }
        if let Command::Get(get) = job.command {
            self.count_get(get, job.space, &there);
        }
        if let (Outcome::Hit(hit), Some(value), true) = (&mut outcome, value, want) {
            hit.value = Value::Shared(value);
        }
        Attempt::Done(outcome)
    }
}
