//! Replication of slots between the members of a cluster: the shell around the pure core
//! (`fonn_replication`, `docs/replication.md`).
//!
//! The core decides which member may answer for a slot, which members need a write, and what has to
//! be copied. This module passes events to it and executes its commands: it sends requests to other
//! members, marks the log, saves the states of slots, and removes what a floor hides.
//!
//! What it is not: it decides nothing about ownership. The request path reads a table of rights
//! ([`rights`]) without a lock, and locks the core for writes that other members need.
//!
//! Invariants:
//! - An epoch is published to the request path after the core has applied it, the log is marked and
//!   the states are durable ([`follow`]).
//! - What was executed by an epoch that is not the published one any more is passed to the core
//!   ([`write`]).

mod batch;
mod beat;
pub mod copies;
mod copying;
mod execute;
mod flushes;
pub mod follow;
mod inbox;
mod kept;
pub mod metrics;
mod rights;
mod saved;
mod serve;
#[cfg(test)]
mod tests;
mod write;

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fonn_base::clock::Clock;
use fonn_base::entry::Space;
use fonn_base::hlc::VersionRange;
use fonn_base::tasks::Tasks;
use fonn_disk_tier::Mark;
use fonn_forward::{Forwarder, Target, Topology};
use fonn_membership::Belonging;
use fonn_proto::{Command, Failure, Outcome};
use fonn_replication::{
    Command as CoreCommand, Core, Epoch, Event as CoreEvent, MemberId, Page, Reply, RequestId,
};
use fonn_server::Job;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use self::copying::Removal;
pub use self::execute::Later;
pub(crate) use self::flushes::Flush;
use self::inbox::Inbox;
use self::metrics::{Event, Events};
use self::rights::RightsTable;
pub(crate) use self::serve::PageAnswer;
use self::write::Sending;
use crate::engine::{Engine, PutError, Transfer};

/// Writes that wait for other members at most. Further ones are refused.
const PENDING_MAX: usize = 1 << 14;

/// Groups of slots that are copied side by side.
const COPIES_MAX: usize = 2;

/// No range of versions begins here.
const NO_BASE: u64 = u64::MAX;

/// What a write carries.
#[derive(Clone, Debug, PartialEq)]
struct Written {
    space: Space,
    key: Arc<[u8]>,
    transfer: Transfer,
}

/// What the task of [`follow`] has to do.
#[derive(Debug)]
enum Task {
    Commands(Vec<CoreCommand<Entry>>),
    /// A page that a member sent when it had applied an epoch.
    Page(MemberId, Epoch, Page<Entry>),
}

/// What the core copies of a write: cheap to clone.
type Entry = Arc<Written>;

/// A member's part in the replication of its cluster.
#[derive(Debug)]
pub struct Replication {
    /// The name of this member.
    own: String,
    belonging: Belonging,
    forwarder: Forwarder,
    clock: Clock,
    /// How long a write waits for the other owners: longer than it takes until a member that
    /// failed is down.
    owners_wait: Duration,
    rights: RightsTable,
    core: Mutex<CoreCell>,
    /// The epoch that is published to the request path.
    epoch_now: AtomicU64,
    /// The base of its versions; [`NO_BASE`] while another epoch is published.
    base_now: AtomicU64,
    /// Where the log was when each epoch was applied, the oldest first.
    marks: Mutex<VecDeque<(Epoch, Mark)>>,
    /// The names of the members, by their numbers.
    names: Mutex<Arc<[Option<String>]>>,
    /// The writes whose answers are awaited.
    waiting: Mutex<HashMap<RequestId, oneshot::Sender<Reply>>>,
    last_request: AtomicU64,
    /// What is sent and not answered.
    sending: Mutex<HashSet<Sending>>,
    /// What the task of [`follow`] has to do. It follows from writes, of which there are
    /// [`PENDING_MAX`] at most, from copies, of which there are [`COPIES_MAX`], and from the beat.
    tasks: Inbox<Task>,
    /// What this member has to remove.
    removals: Inbox<Removal>,
    /// Where the states of slots are saved.
    dir: PathBuf,
    /// The incarnation of this process, if the states of slots are saved; else 0.
    saved_incarnation: AtomicU64,
    /// The tasks that send.
    group: Tasks,
    events: Events,
}

/// The core, and what waits for it.
#[derive(Debug, Default)]
struct CoreCell {
    /// None before the first topology that has this member.
    core: Option<Core<Entry>>,
    /// Whether the core has applied an epoch that is not published yet.
    is_applying: bool,
    /// What happened meanwhile.
    deferred: Vec<CoreEvent<Entry>>,
}

impl Replication {
    /// The part of the member `own`, which sends to others through `forwarder`. Without a topology
    /// it owns nothing.
    fn new(
        (own, belonging): (&str, Belonging),
        forwarder: Forwarder,
        owners_wait: Duration,
        clock: Clock,
        (dir, group): (PathBuf, Tasks),
    ) -> Self {
        Self {
            own: own.to_owned(),
            belonging,
            forwarder,
            clock,
            owners_wait,
            rights: RightsTable::new(),
            core: Mutex::default(),
            epoch_now: AtomicU64::new(0),
            base_now: AtomicU64::new(NO_BASE),
            marks: Mutex::default(),
            names: Mutex::new(Arc::from(Vec::new())),
            waiting: Mutex::default(),
            last_request: AtomicU64::new(0),
            sending: Mutex::default(),
            tasks: Inbox::default(),
            removals: Inbox::default(),
            dir,
            saved_incarnation: AtomicU64::new(0),
            group,
            events: Events::default(),
        }
    }

    /// The id of the cluster; 0 before this member has joined one.
    #[must_use]
    pub fn cluster(&self) -> u64 {
        self.belonging.cluster()
    }

    /// The epoch by which requests are admitted; 0 before the first.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch_now.load(Ordering::SeqCst)
    }

    /// The epoch by which requests are admitted, and the base of its versions. `None` while another
    /// epoch is published, and before the first.
    pub(crate) fn epoch_and_base(&self) -> Option<(u64, u64)> {
        let epoch = self.epoch();
        let base = self.base_now.load(Ordering::SeqCst);
        // Between these two looks no other epoch was published, so the base is not another's.
        (epoch == self.epoch() && base != NO_BASE).then_some((epoch, base))
    }

    /// Publishes another epoch: requests are admitted by it from now on.
    fn publish_epoch(&self, epoch: u64, versions: VersionRange, engine: &Engine) {
        self.base_now.store(NO_BASE, Ordering::SeqCst);
        self.epoch_now.store(epoch, Ordering::SeqCst);
        engine.enter_versions(versions);
        self.base_now.store(versions.base, Ordering::SeqCst);
    }

    /// The topology by which requests are forwarded.
    #[must_use]
    pub fn topology(&self) -> Option<Arc<Topology>> {
        self.forwarder.upstreams().map().topology()
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

    /// Notes that this process ends, and that everything that it acknowledged is on the disk.
    ///
    /// # Errors
    /// What the operating system said.
    pub(crate) fn note_stop(&self) -> std::io::Result<()> {
        match self.saved_incarnation.load(Ordering::SeqCst) {
            // It has acknowledged nothing, or the next start copies all slots.
            0 => Ok(()),
            incarnation => kept::note_stop(&self.dir, incarnation),
        }
    }

    /// Whether this member is the primary of a slot by the topology.
    #[must_use]
    pub fn is_primary(&self, slot: u16) -> bool {
        self.rights.is_primary(slot)
    }

    /// Whether this member executes a command of a slot that another process sent. A read may come
    /// to any owner: its sender could not reach the primary.
    #[must_use]
    pub fn serves(&self, slot: u16, is_write: bool) -> bool {
        let has_right = match is_write {
            true => self.rights.leads(slot),
            false => self.rights.hedges(slot),
        };
        has_right && self.holds_lease()
    }

    /// Whether this member executes a command here.
    fn serves_job(&self, slot: u16, job: &Job<'_>) -> bool {
        match job.command.is_write() || job.routed_by.is_some() {
            true => self.serves(slot, job.command.is_write()),
            false => self.rights.leads(slot) && self.holds_lease(),
        }
    }

    /// Whether reads of a key may be answered from RAM.
    #[must_use]
    pub fn answers(&self, key: &[u8]) -> bool {
        self.rights.reads_at_once(fonn_proto::placement::slot(key)) && self.holds_lease()
    }

    /// Whether this member may answer for its slots now.
    fn holds_lease(&self) -> bool {
        self.rights.holds_lease(self.clock.coarse_monotonic_ms())
    }

    /// Whether this member has all that it acknowledged, or the members know that it has not.
    fn is_fit(&self) -> bool {
        self.core.lock().core.as_ref().is_some_and(Core::is_fit)
    }

    /// The time of the core's clock.
    fn now(&self) -> Duration {
        Duration::from_millis(self.clock.coarse_monotonic_ms())
    }

    /// Whether the core waits for a page.
    fn wants_page(&self, epoch: Epoch, page: &Page<Entry>) -> bool {
        let cell = self.core.lock();
        let core = cell.core.as_ref();
        core.is_some_and(|core| core.wants_page(epoch, &page.request))
    }

    /// Whether the topology has this member alone.
    fn is_alone(&self) -> bool {
        let topology = self.topology();
        topology.is_some_and(|it| it.members().iter().all(|member| member.id == self.own))
    }

    /// The epoch that a member has told to have applied.
    fn told(&self, member: MemberId) -> Epoch {
        let cell = self.core.lock();
        let core = cell.core.as_ref();
        core.map_or(Epoch(0), |core| core.told_epoch(member))
    }

    /// Where the log was when this member applied the epoch after `epoch`. `None` if that is not
    /// known any more.
    fn mark_after(&self, epoch: Epoch) -> Option<Mark> {
        let marks = self.marks.lock();
        let first = marks.front().filter(|(first, _)| *first <= epoch.next());
        first?;
        let after = marks.iter().find(|(applied, _)| *applied > epoch);
        after.map(|(_, mark)| *mark)
    }

    /// Another member, if it serves.
    fn member(&self, member: MemberId) -> Option<Target> {
        let names = Arc::clone(&self.names.lock());
        let name = names.get(usize::from(member.0))?.as_ref()?;
        self.forwarder.upstreams().member(name)
    }

    /// Passes an event to the core. What the core commands is executed by the task of [`follow`],
    /// but for answers, which are given at once.
    fn handle(&self, event: CoreEvent<Entry>) {
        let commands = self.decide(event);
        if !commands.is_empty() {
            self.tasks.put(Task::Commands(commands));
        }
    }

    /// Passes an event to the core, and returns what it commands besides answers, which are given.
    /// Nothing is done before the first topology; while an epoch is applied the event is deferred.
    fn decide(&self, event: CoreEvent<Entry>) -> Vec<CoreCommand<Entry>> {
        let mut commands = Vec::new();
        {
            let mut cell = self.core.lock();
            if cell.is_applying {
                cell.deferred.push(event);
                return commands;
            }
            let Some(core) = cell.core.as_mut() else {
                return commands;
            };
            let revision = core.revision();
            core.handle(self.now(), event, &mut commands);
            if core.revision() != revision {
                self.rights.publish(core);
            }
        }
        self.answer(&mut commands);
        commands
    }

    /// Gives the answers among the commands, and takes them out, unless something has to be stored
    /// before.
    fn answer(&self, commands: &mut Vec<CoreCommand<Entry>>) {
        let is_persist = |command: &CoreCommand<Entry>| matches!(command, CoreCommand::Persist(_));
        if commands.iter().any(is_persist) {
            return;
        }
        commands.retain(|command| {
            let CoreCommand::Answer(request, reply) = command else {
                return true;
            };
            self.give(*request, *reply);
            false
        });
    }

    /// Gives an answer to the request that waits for it.
    fn give(&self, request: RequestId, reply: Reply) {
        if let Some(waiting) = self.waiting.lock().remove(&request) {
            // The client may have gone.
            let _ = waiting.send(reply);
        }
    }

    /// Slots by what this member has to do with them: as primary, as another owner, and those that
    /// it copies.
    #[must_use]
    pub fn counts(&self) -> [u64; 3] {
        use fonn_replication::Role;
        let cell = self.core.lock();
        let mut counts = [0; 3];
        for state in cell.core.iter().flat_map(Core::slots) {
            let place = match state.role {
                Role::None => continue,
                Role::Primary => 0,
                Role::Owner => 1,
                Role::Learner => 2,
            };
            if let Some(count) = counts.get_mut(place) {
                *count += 1;
            }
        }
        counts
    }

    fn count(&self, event: Event) {
        self.events.add(event, 1);
    }
}

fn failure(error: PutError) -> Failure {
    match error {
        PutError::Failed(failure) => failure,
        PutError::Malformed(what) => {
            tracing::warn!(what, "malformed entry from another member");
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

/// Nothing changed, so no member has to be told. A set that was too large has removed what it
/// should have replaced.
fn is_unchanged(outcome: &Outcome<'_>) -> bool {
    matches!(
        outcome,
        Outcome::Miss
            | Outcome::NotStored(_)
            | Outcome::Exists
            | Outcome::NotFound
            | Outcome::NotANumber
            | Outcome::Overflow
    ) || matches!(outcome, Outcome::Failed(failure) if *failure != Failure::TooLarge)
}

/// The answer to a command that no member can execute at the moment: better no value than an old
/// one.
fn refused(command: &Command<'_>) -> Outcome<'static> {
    match command.is_write() {
        true => Outcome::Failed(Failure::Busy),
        false => Outcome::Miss,
    }
}
