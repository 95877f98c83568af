//! Replication of slots between the members of a cluster.
//!
//! The primary of a key's slot executes each command, whichever member received it. Before a write
//! is answered, all other owners that are up have its result. So the next member in rank knows all
//! acknowledged writes. A new primary asks for each requested key of the slot, and copies the rest
//! in the background ([`handover`]).
//!
//! Two primaries never answer differently. A new primary asks the previous one about each key, and
//! uses its reply only once it has applied the new map too ([`Sharing::confirm`]). After each
//! write, the previous primary checks whether it still is the primary ([`Sharing::spread`]). If
//! not, it gives the write to the new one before it answers. A member that is down is not asked.
//! When it returns, it asks first ([`holdings`]), and does not answer by its earlier map
//! ([`pulse`]). A member that is cut off and does not know that it is down acknowledges no write
//! that another owner would have to accept ([`spread`]).

mod batch;
pub mod copies;
mod doubts;
mod execute;
mod flushes;
pub mod follow;
pub mod handover;
pub mod holdings;
pub mod metrics;
mod missing;
mod notes;
pub mod pulse;
pub mod repair;
mod spread;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use fonn_proto::peer::{Content, Entry, Reply, Request, SlotSet, SourcesBuilder};
use fonn_proto::placement::{self, SLOT_COUNT};

use fonn_base::clock::Clock;
use fonn_base::entry::Space;
use fonn_forward::{Forwarder, Target, Topology, envelope};
use fonn_proto::{Command, Failure, Outcome, Version};
use fonn_server::Job;
use parking_lot::Mutex;
use tokio::sync::watch;

use self::doubts::Doubts;
pub use self::execute::Later;
use self::holdings::{Holding, Holdings, Part, Source, Step};
use self::metrics::{Event, Events};
use self::missing::Missing;
use self::notes::Notes;
use self::pulse::Pulse;
use self::repair::Repairs;
use crate::engine::{Acks, Engine, PutError};

/// How long a write waits for the other owners, and a command for the member that had its slot
/// before. Longer than it takes until one that fell is known to be down.
const OWNERS_WAIT: Duration = Duration::from_secs(3);

/// So many times as long a write waits for a member that had its slot before and answers, but is
/// slow to go by the new map: it would be refused where a read is a miss. Routers wait for as long
/// as they are told to.
const WRITE_WAITS: u32 = 3;

/// Between tries while another member goes by an older map, or is not reached.
const RETRY: Duration = Duration::from_millis(20);

const PRIMARY: u8 = 1;
const REPLICA: u8 = 2;
const FILLING: u8 = 4;
const SHARED: u8 = 8;
/// Some copies that are here are not shown.
const DOUBTED: u8 = 16;

/// A member's part in its cluster, as far as data is concerned.
#[derive(Debug)]
pub struct Sharing {
    own: String,
    forwarder: Forwarder,
    clock: Clock,
    /// [`OWNERS_WAIT`], which tests change.
    owners_wait: Duration,
    pulse: Pulse,
    /// What there is to do with each slot, in a form for the request path.
    slots: Box<[AtomicU8]>,
    /// Versions up to which those that owned a slot before may have forgotten what they knew.
    floors: Box<[AtomicU64]>,
    epoch: AtomicU64,
    /// The newest map by which this member is not there, or was not all the time: what it executed
    /// by older ones the primary by this map did not wait for.
    broken: AtomicU64,
    held: Mutex<Held>,
    /// Held by a task that asks for sources of sources: it is done once for all that wait.
    resolving: tokio::sync::Mutex<()>,
    /// Counts up with each map.
    changes: watch::Sender<u64>,
    doubts: Doubts,
    notes: Notes,
    repairs: Repairs,
    events: Events,
}

#[derive(Debug, Default)]
struct Held {
    holdings: Holdings,
    missing: Missing,
    topology: Option<Arc<Topology>>,
    /// After an absence, until nothing is lacked any more: the sources that have told what was
    /// flushed meanwhile.
    told_flushes: Option<BTreeSet<Arc<str>>>,
}

/// Why a key could not be confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unconfirmed {
    /// The member that knows does not answer.
    Silent,
    /// What it says could not be kept.
    Kept(Failure),
}

/// What a member said about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// All that it knows.
    All,
    /// Nothing yet.
    NotYet,
    /// That it cannot read what it has.
    Unreadable,
}

impl Sharing {
    /// The part of the member `own`, which sends to others through `forwarder`. Without a map it
    /// owns nothing.
    #[must_use]
    pub fn new(own: &str, forwarder: Forwarder, clock: Clock) -> Self {
        Self {
            own: own.to_owned(),
            forwarder,
            pulse: Pulse::new(clock.coarse_monotonic_ms()),
            clock,
            owners_wait: OWNERS_WAIT,
            slots: (0..SLOT_COUNT).map(|_| AtomicU8::new(0)).collect(),
            floors: (0..SLOT_COUNT).map(|_| AtomicU64::new(0)).collect(),
            epoch: AtomicU64::new(0),
            broken: AtomicU64::new(0),
            held: Mutex::default(),
            resolving: tokio::sync::Mutex::default(),
            changes: watch::Sender::new(0),
            doubts: Doubts::default(),
            notes: Notes::default(),
            repairs: Repairs::default(),
            events: Events::default(),
        }
    }

    /// Goes by a newer map from now on; one at a time. `is_unbroken` says that the member was up by
    /// all maps between the last one and this; a member that has not seen one of these maps may
    /// have been without a slot by it all the same, and is taken for one that was away.
    /// Milliseconds, not for a reactor.
    pub fn go_by(&self, topology: Topology, is_unbroken: bool) {
        self.go_by_since(topology, is_unbroken, &|_| u64::MAX);
    }

    /// As [`Self::go_by`]; `since` tells since which epoch a member is up, or was when it fell.
    /// Writes to the disk.
    fn go_by_since(&self, topology: Topology, is_unbroken: bool, since: &dyn Fn(&str) -> u64) {
        let (old, before, missing) = {
            let held = self.held.lock();
            let (holdings, missing) = (held.holdings.clone(), held.missing.clone());
            (held.topology.clone(), holdings, missing)
        };
        let is_newer = |old: Option<&Topology>| old.is_none_or(|old| topology.is_newer_than(old));
        if !is_newer(old.as_deref()) {
            return;
        }
        let is_next = old
            .as_ref()
            .is_none_or(|old| topology.epoch() == old.epoch().saturating_add(1));
        let is_unbroken = is_unbroken && is_next;
        // Reactors wait for the lock, so it is not held for this. What is resolved meanwhile is
        // resolved again.
        let step = Step {
            own: &self.own,
            is_unbroken: is_unbroken && old.is_some(),
            old: old.as_deref(),
            new: &topology,
        };
        // Nothing is gone on with behind the map of before the start, but it tells the owners of
        // slots. What became of others until then is guessed, by what is noted of those that are
        // missing.
        let noted = Step {
            old: old.as_deref().or(self.notes.before()),
            ..step
        };
        let mut holdings = before.follow(noted);
        let missing = (&missing, &before);
        let missing = self.doubts.follow(missing, step, since, &mut holdings);
        self.note(&topology, (&before, &holdings), &missing);
        let mut held = self.held.lock();
        if !is_newer(held.topology.as_deref()) {
            return;
        }
        self.note_left_out(holdings.left_out());
        self.doubts.set(&missing);
        (held.holdings, held.missing) = (holdings, missing);
        if !is_unbroken {
            held.told_flushes = Some(BTreeSet::new());
        }
        let own = topology.member(&self.own);
        if !is_unbroken || !own.is_some_and(|own| own.state.is_serving()) {
            self.broken.store(topology.epoch(), Ordering::SeqCst);
        }
        // Writes that end from here on are given to the owners by the new map…
        self.forwarder.upstreams().map().offer(topology.clone());
        // …which all do that find themselves not to be the primary any more…
        for (slot, holding) in held.holdings.iter() {
            self.store(slot, holding);
        }
        // …and only then others may rely on it.
        self.epoch.store(topology.epoch(), Ordering::SeqCst);
        held.topology = Some(Arc::new(topology));
        self.changes.send_modify(|count| *count += 1);
    }

    /// Notes that members are not asked of which slots may know something.
    fn note_left_out(&self, count: u64) {
        if count > 0 {
            self.events.add(Event::SourceLeftOut, count);
            tracing::warn!(
                count,
                "more members may know of a slot than are asked: what they alone know is missed"
            );
        }
    }

    fn store(&self, slot: u16, holding: &Holding) {
        let part = match holding.part {
            Part::None => 0,
            Part::Replica => REPLICA,
            Part::Primary => PRIMARY,
        };
        let flag = |is: bool, flag| if is { flag } else { 0 };
        let byte = part
            | flag(!holding.sources.is_empty(), FILLING)
            | flag(holding.is_shared, SHARED)
            | flag(self.doubts.up_to(slot) != 0, DOUBTED);
        if let Some(cell) = self.slots.get(usize::from(slot)) {
            cell.store(byte, Ordering::SeqCst);
        }
    }

    fn flags(&self, slot: u16) -> u8 {
        let cell = self.slots.get(usize::from(slot));
        cell.map_or(0, |cell| cell.load(Ordering::SeqCst))
    }

    fn is_sound(&self) -> bool {
        self.pulse.is_sound(self.clock.coarse_monotonic_ms())
    }

    /// Whether the leader was heard so lately that the cluster cannot have gone on without this
    /// member.
    fn is_led(&self) -> bool {
        self.pulse.is_led()
    }

    /// The epoch of the map that it goes by.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// The map that it goes by.
    #[must_use]
    pub fn topology(&self) -> Option<Arc<Topology>> {
        self.held.lock().topology.clone()
    }

    /// Whether a command that another member sent is executed here.
    #[must_use]
    pub fn serves(&self, slot: u16, is_write: bool) -> bool {
        let flags = self.flags(slot);
        let serves = match is_write {
            true => flags & PRIMARY != 0,
            // A replica that lacks something leaves it to others.
            false => flags & PRIMARY != 0 || flags & (REPLICA | FILLING | DOUBTED) == REPLICA,
        };
        serves && self.is_sound()
    }

    /// Whether reads of a key may be answered from RAM.
    #[must_use]
    pub fn answers(&self, key: &[u8]) -> bool {
        let flags = self.flags(placement::slot(key));
        flags & (PRIMARY | FILLING | DOUBTED) == PRIMARY && self.is_sound()
    }

    /// Makes sure that a command which is executed here meets what there is, and may change it.
    async fn prepare(
        &self,
        engine: &Engine,
        job: &Job<'_>,
        flags: u8,
        acks: &mut Acks,
    ) -> Result<(), Outcome<'static>> {
        if flags & FILLING != 0 {
            let confirm = async {
                for (space, key) in places(job) {
                    self.confirm(engine, space, key, acks).await?;
                }
                Ok(())
            };
            // However many wait for the same source, each waits so long.
            let waits = if job.command.is_write() {
                WRITE_WAITS
            } else {
                1
            };
            let confirmed =
                self.wait_for_sources(placement::slot(job.command.key()), waits, confirm);
            confirmed.await.map_err(|why| refused(job.command, why))?;
        }
        // The asked members may have told the missing ones.
        if self.flags(placement::slot(job.command.key())) & DOUBTED != 0 {
            Box::pin(self.meet_none_doubted(engine, job)).await?;
        }
        if job.command.is_write() {
            let standing = self.check_standing(placement::slot(job.command.key()));
            standing.await.map_err(Outcome::Failed)?;
        }
        Ok(())
    }

    /// Makes what is here of a key as new as what the slot's sources have, however long that takes.
    async fn confirm(
        &self,
        engine: &Engine,
        space: Space,
        key: &[u8],
        acks: &mut Acks,
    ) -> Result<(), Unconfirmed> {
        let slot = placement::slot(key);
        let mut told: Vec<Arc<str>> = Vec::new();
        // What one source deleted another may still have.
        let mut gone = 0;
        loop {
            // All that they know is here, or they have told.
            let Some(source) = self.next_source(slot, &told) else {
                return Ok(());
            };
            let Some(target) = self.forwarder.upstreams().member(&source.id) else {
                // It is gone, by a map that is gone by here in a moment.
                told.push(source.id);
                continue;
            };
            if !source.is_asked {
                if self.resolve(engine, &source.id, &target).await {
                    continue;
                }
            } else {
                let asked = self.ask(engine, &target, (space, key), &mut gone, acks);
                if asked.await? == Told::All {
                    told.push(source.id);
                    continue;
                }
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// A source of a slot that has not told about a key yet; those first that have to say which
    /// sources they had.
    fn next_source(&self, slot: u16, told: &[Arc<str>]) -> Option<Source> {
        let held = self.held.lock();
        let sources = &held.holdings.get(slot)?.sources;
        let mut left = sources.iter().filter(|it| !told.contains(&it.id));
        let unasked = left.clone().find(|it| !it.is_asked);
        unasked.or_else(|| left.next()).cloned()
    }

    /// Learns which sources a source had itself, and after an absence what was flushed. False if it
    /// does not say yet.
    async fn resolve(&self, engine: &Engine, source: &str, target: &Target) -> bool {
        let _turn = self.resolving.lock().await;
        let slots: SlotSet = {
            let held = self.held.lock();
            let is_meant = |it: &Source| *it.id == *source && !it.is_asked;
            let unasked = held
                .holdings
                .iter()
                .filter(|(_, it)| it.sources.iter().any(is_meant));
            unasked.map(|(slot, _)| slot).collect()
        };
        if slots.is_empty() {
            return true;
        }
        let generation = *self.changes.borrow();
        self.events.count(Event::Asked);
        let epoch = self.epoch();
        // By an older map it may still take slots over.
        let more = match self.sources_at(target, &slots, false, epoch).await {
            Some(told) if told.epoch >= epoch => told.sources,
            _ => return false,
        };
        // Of what it has not heard of itself its sources tell.
        let is_told = self.learn_flushes(engine, source, target, generation).await;
        let mut held = self.held.lock();
        if !is_told || *self.changes.borrow() != generation {
            return false;
        }
        self.note_left_out(self.be_told(&mut held, (source, &slots), &more));
        true
    }

    /// The version up to which something about a slot may have been forgotten before it came here.
    #[must_use]
    pub fn floor(&self, slot: u16) -> Version {
        let floor = self.floors.get(usize::from(slot));
        floor.map_or(0, |floor| floor.load(Ordering::Acquire))
    }

    /// The members that may know more than this member of some slots, or of those of them that it
    /// owns.
    #[must_use]
    pub fn sources(&self, slots: &SlotSet, is_owned: bool) -> SourcesBuilder {
        let mut sources = SourcesBuilder::default();
        let is_meant = |slot, it: &Holding, _: &Source| {
            slots.contains(slot) && (!is_owned || it.part != Part::None)
        };
        for (id, of) in self.unsettled(is_meant) {
            // Names of members are short.
            let _ = sources.push(&id, &of);
        }
        if !is_owned {
            self.add_missing(&mut sources, slots);
        }
        sources
    }

    /// The slots that lack something, by the member that knows it.
    fn unsettled(
        &self,
        is_meant: impl Fn(u16, &Holding, &Source) -> bool,
    ) -> HashMap<Arc<str>, SlotSet> {
        let held = self.held.lock();
        let mut by_source: HashMap<Arc<str>, SlotSet> = HashMap::new();
        for (slot, holding) in held.holdings.iter() {
            let sources = holding.sources.iter();
            for source in sources.filter(|it| is_meant(slot, holding, it)) {
                let slots = by_source.entry(Arc::clone(&source.id)).or_default();
                slots.insert(slot);
            }
        }
        by_source
    }

    /// Asks a member about a key, and keeps what it says. `gone` is the version of the newest
    /// tombstone that was told and not kept: nothing older is.
    async fn ask(
        &self,
        engine: &Engine,
        target: &Target,
        (space, key): (Space, &[u8]),
        gone: &mut Version,
        acks: &mut Acks,
    ) -> Result<Told, Unconfirmed> {
        let epoch = self.epoch();
        let envelope = envelope(placement::slot(key), space, epoch);
        let request = Request::Fetch { key };
        self.events.count(Event::Asked);
        let call = target
            .client
            .call(&request, envelope, None, self.owners_wait);
        let Ok(answer) = call.await else {
            return Ok(Told::NotYet);
        };
        // Before it goes by our map, it may still change what it just said.
        if answer.head().envelope.epoch < epoch {
            return Ok(Told::NotYet);
        }
        match answer.reply() {
            Ok(Reply::Unknown) => Ok(Told::All),
            Ok(Reply::Outcome(Outcome::Failed(Failure::Unavailable))) => Ok(Told::Unreadable),
            Ok(Reply::Entry(entry)) => {
                if entry.content == Content::Tombstone {
                    // It may stand for all that was forgotten; and the tombstones there are come
                    // with the pages.
                    let known = engine.newest(space, key).await;
                    let known = known.map_err(Unconfirmed::Kept)?;
                    if known.is_none_or(|known| known >= entry.version) {
                        // What is written next comes behind it all the same.
                        let observed = engine.observe(entry.version).map_err(failure);
                        observed.map_err(Unconfirmed::Kept)?;
                        *gone = entry.version.max(*gone);
                        return Ok(Told::All);
                    }
                } else if entry.version < *gone {
                    return Ok(Told::All);
                }
                let kept = self.keep(engine, &entry, acks).await;
                kept.map(|()| Told::All).map_err(Unconfirmed::Kept)
            }
            _ => Ok(Told::NotYet),
        }
    }

    /// Keeps what another member knows of a key, if it is newer than what is known here.
    async fn keep(
        &self,
        engine: &Engine,
        entry: &Entry<'_>,
        acks: &mut Acks,
    ) -> Result<(), Failure> {
        match engine.put_of_peer(entry, acks).await {
            Ok(is_new) => {
                self.events
                    .count(if is_new { Event::Taken } else { Event::Known });
                Ok(())
            }
            Err(PutError::Failed(Failure::TooLarge)) => {
                // It cannot be kept here, but what it replaced is not to be seen either.
                let gone = Entry::tombstone(entry.space, entry.key, entry.version);
                let put = engine.put_of_peer(&gone, acks).await;
                put.map(|_| ()).map_err(failure)
            }
            Err(error) => Err(failure(error)),
        }
    }

    /// The other members that serve.
    #[must_use]
    pub fn others(&self) -> Vec<Target> {
        let all = self.forwarder.upstreams().all();
        all.into_iter().map(|(_, target)| target).collect()
    }

    /// The way to other members.
    #[must_use]
    pub fn forwarder(&self) -> &Forwarder {
        &self.forwarder
    }

    /// Whether this member is the primary of a slot.
    #[must_use]
    pub fn is_primary(&self, slot: u16) -> bool {
        self.flags(slot) & PRIMARY != 0
    }

    /// Whether this member is the primary of a slot, and needs to ask no other member about it.
    #[must_use]
    pub fn is_settled_primary(&self, slot: u16) -> bool {
        self.flags(slot) & (PRIMARY | FILLING | DOUBTED) == PRIMARY && self.is_sound()
    }

    /// Slots by what this member has to do with them: as primary, as replica, and those of both
    /// that are not all here yet.
    #[must_use]
    pub fn counts(&self) -> [u64; 3] {
        let mut counts = [0; 3];
        for cell in &self.slots {
            let flags = cell.load(Ordering::Relaxed);
            let is_owned = flags & (PRIMARY | REPLICA) != 0;
            for (count, flag) in counts.iter_mut().zip([PRIMARY, REPLICA, FILLING]) {
                *count += u64::from(is_owned && flags & flag != 0);
            }
        }
        counts
    }
}

fn failure(error: PutError) -> Failure {
    match error {
        PutError::Failed(failure) => failure,
        PutError::Malformed(what) => {
            tracing::warn!(what, "a member sent a malformed entry");
            Failure::Unavailable
        }
    }
}

/// Whether the client holds the key for deleted when nothing was found.
fn removes(command: &Command<'_>) -> bool {
    match command {
        Command::Delete(_) => true,
        Command::Get(get) => get.delete,
        _ => false,
    }
}

/// Where a command finds its entry: in its own space, and in the base.
fn places<'j>(job: &Job<'j>) -> impl Iterator<Item = (Space, &'j [u8])> {
    let key = job.command.key();
    let base = job.base.map(|base| (base.space, base.key(key)));
    std::iter::once((job.space, key)).chain(base)
}

/// Nothing changed, so no member has to be told.
fn is_unchanged(outcome: &Outcome<'_>) -> bool {
    matches!(
        outcome,
        Outcome::Miss
            | Outcome::NotStored(_)
            | Outcome::Exists
            | Outcome::NotFound
            | Outcome::NotANumber
            | Outcome::Overflow
            | Outcome::Failed(_)
    )
}

/// The answer to a command on a key that could not be confirmed: better no value than an old one.
fn refused(command: &Command<'_>, why: Unconfirmed) -> Outcome<'static> {
    match why {
        _ if !command.is_write() => Outcome::Miss,
        Unconfirmed::Silent => Outcome::Failed(Failure::Busy),
        Unconfirmed::Kept(failure) => Outcome::Failed(failure),
    }
}
