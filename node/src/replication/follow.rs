//! The task that drives the core: it follows what the members agree on, keeps the lease, and
//! executes commands in their order.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fonn_base::clock::Clock;
use fonn_base::hlc::VersionRange;
use fonn_base::tasks::{OnShutdown, Tasks};
use fonn_disk_tier::Mark;
use fonn_forward::{self as route, Forwarder, Topology, Upstreams};
use fonn_proto::peer::SlotSet;
use fonn_proto::placement::SLOT_COUNT;
use fonn_replication::{
    Attempt, Body, Change as SlotChange, Command as CoreCommand, Config, Core, Disk, Epoch,
    Event as CoreEvent, MemberId, Message, Page, Record, Rules, Saved, SavedSlot, Slot,
    SlotSet as CoreSlots,
};
use fonn_rpc::{Options, PeerMetrics};

use super::beat::{self, BEAT};
use super::copying::Removal;
use super::saved::{self, MARKS_MAX, SavedSlots};
use super::{COPIES_MAX, Entry, Replication, Task, flushes, kept};
use crate::engine::Engine;
use fonn_membership::Cluster;
use fonn_membership::map::Map;
use fonn_membership::state::{Change, State};

/// How long an agreement on a proposal of the core may take. The core repeats it.
const PROPOSAL_DEADLINE: Duration = Duration::from_secs(2);

/// How other members are talked to.
#[derive(Debug)]
pub struct Peers {
    /// The newest version of the protocol that they are told.
    pub version: u16,
    /// Where it is counted.
    pub metrics: PeerMetrics,
}

/// Starts a member's part in the replication of its cluster, until the tasks end.
pub fn start(
    cluster: &Cluster,
    engine: &Arc<Engine>,
    clock: Clock,
    peers: Peers,
    tasks: &Tasks,
) -> Arc<Replication> {
    engine.keep_tombstones();
    // It gives versions when it has applied an epoch.
    engine.versions().enter(VersionRange::default());
    let own = cluster.node_id();
    let options = Options {
        tls: cluster.tls(),
        version: peers.version,
        ..Options::new("", own)
    };
    let upstreams = Upstreams::new(Arc::new(route::Map::default()), options, peers.metrics);
    // A member that is silent is down by then, and another one executes the command.
    let owners_wait = 2 * cluster.down_after();
    let forwarder = Forwarder::new(upstreams.of_member(own), 2 * owners_wait);
    let replication = Replication::new(
        (own, cluster.belonging()),
        forwarder,
        owners_wait,
        clock,
        (cluster.dir().to_owned(), tasks.clone()),
    );
    let replication = Arc::new(replication);
    let driver = Driver::new(&replication, engine, cluster);
    let shared = || (Arc::clone(&replication), Arc::clone(engine));
    tasks.spawn("replication", OnShutdown::Abort, driver.run());
    let (member, store) = shared();
    let beat = beat::run(member, store, cluster.clone());
    tasks.spawn("replication-beat", OnShutdown::Abort, beat);
    let (member, store) = shared();
    let removals = member.run_removals(store);
    tasks.spawn("replication-removals", OnShutdown::Abort, removals);
    let (member, store) = shared();
    let flush = flushes::run(member, store);
    tasks.spawn("replication-flushes", OnShutdown::Abort, flush);
    replication
}

/// What drives the core.
struct Driver {
    replication: Arc<Replication>,
    engine: Arc<Engine>,
    cluster: Cluster,
    saved: SavedSlots,
    /// The base of the applied epoch.
    base: u64,
    /// Whether a proposal of the core is under way.
    proposing: Arc<tokio::sync::Semaphore>,
}

impl Driver {
    fn new(replication: &Arc<Replication>, engine: &Arc<Engine>, cluster: &Cluster) -> Self {
        let saved = saved::load(cluster.dir()).unwrap_or_else(|| SavedSlots {
            incarnation: 0,
            boot: kept::BootId::default(),
            marks: VecDeque::new(),
            core: Saved {
                applied: Epoch(0),
                is_fit: false,
                slots: vec![SavedSlot::default(); usize::from(SLOT_COUNT)],
            },
            hidden: vec![0; usize::from(SLOT_COUNT)],
        });
        Self {
            replication: Arc::clone(replication),
            engine: Arc::clone(engine),
            cluster: cluster.clone(),
            saved,
            base: 0,
            proposing: Arc::new(tokio::sync::Semaphore::new(1)),
        }
    }

    async fn run(mut self) {
        let mut states = self.cluster.state();
        let replication = Arc::clone(&self.replication);
        loop {
            let newest = Arc::clone(&states.borrow_and_update());
            // In order, so that no epoch is skipped that is known. After a start the epoch that was
            // applied last is the first.
            let applied = self.replication.epoch().max(self.saved.core.applied.0);
            for state in self.cluster.states_between(applied, newest.epoch) {
                self.apply(&state).await;
            }
            self.apply(&newest).await;
            tokio::select! {
                changed = states.changed() => if changed.is_err() { return },
                task = replication.tasks.next() => self.do_task(task).await,
            }
        }
    }

    async fn do_task(&mut self, task: Task) {
        match task {
            Task::Commands(commands) => self.execute(commands).await,
            Task::Page(from, epoch, page) => self.take_page(from, epoch, page).await,
        }
    }

    /// Stores the records of a page, and passes it on to the core without them. A page that could
    /// not be stored is asked for again.
    async fn take_page(&mut self, from: MemberId, epoch: Epoch, mut page: Page<Entry>) {
        let replication = &self.replication;
        // No other epoch is applied before this returns.
        if !replication.wants_page(epoch, &page) {
            return;
        }
        let mut records = std::mem::take(&mut page.records);
        records.retain(|record| page.request.slots.contains(&record.slot));
        if !replication
            .store(&self.engine, &records, Some(self.base))
            .await
        {
            return;
        }
        let body = Body::Page(page);
        replication.handle(CoreEvent::Message(Message { from, epoch, body }));
    }

    /// Applies a state of the cluster: the core first, then the log is marked and the states of
    /// slots are saved. Then the request path uses the new epoch.
    async fn apply(&mut self, state: &Arc<State>) {
        if state.epoch <= self.replication.epoch() || state.cluster == 0 {
            return;
        }
        let map = {
            let state = Arc::clone(state);
            match tokio::task::spawn_blocking(move || (Map::new(&state), state.topology())).await {
                Ok(made) => made,
                Err(_) => return,
            }
        };
        let (map, slots) = map;
        // What was decided by the epoch before is done before the log is marked.
        for task in self.replication.tasks.take_all() {
            self.do_task(task).await;
        }
        let topology = match Topology::new(map.epoch, map.members, map.owners) {
            Ok(topology) => topology.of_cluster(map.cluster),
            Err(error) => {
                tracing::error!(%error, epoch = map.epoch, "the map of the cluster is not applied");
                return;
            }
        };
        // What is written by this epoch is behind the mark, and all before it may be as well.
        let mark = self.engine.mark().await.ok();
        let range = state.versions;
        let own = state.members.get(&self.replication.own);
        let me = own.map(|it| MemberId(it.number));
        let lost = self.lost(&topology);
        let mut commands = Vec::new();
        let is_started = self.replication.core.lock().core.is_some();
        let started = me
            .filter(|_| !is_started)
            .map(|me| self.core(me, state, &mut commands));
        {
            let mut cell = self.replication.core.lock();
            cell.is_applying = true;
            cell.core = started.or(cell.core.take());
            if let Some(core) = cell.core.as_mut() {
                let event = CoreEvent::Topology(Arc::new(slots));
                core.handle(self.replication.now(), event, &mut commands);
                self.saved.core = core.saved();
            }
        }
        self.note_mark(Epoch(state.epoch), mark);
        self.engine.take_over(lost);
        self.base = range.base;
        // Floors are raised before the rights are published.
        for command in &commands {
            if let CoreCommand::RaiseFloor(slots) = command {
                for slot in slots {
                    self.replication.rights.raise_floor(slot.0, range.base);
                }
            }
        }
        self.save().await;
        if self.replication.saved_incarnation.load(Ordering::SeqCst) != 0 {
            // That was all that the core wants saved.
            commands.retain(|command| !matches!(command, CoreCommand::Save(_)));
        }
        // By the epoch before, no version of this range is given: a start may be one of that.
        let engine = Arc::clone(&self.engine);
        // It blocks on the disk.
        let reserved = tokio::task::spawn_blocking(move || engine.reserve_range(range));
        let _ = reserved.await;
        self.publish(state, topology);
        self.execute(commands).await;
    }

    /// Publishes an epoch, and passes the deferred events to the core.
    fn publish(&self, state: &State, topology: Topology) {
        let replication = &self.replication;
        let mut names = vec![None; usize::from(u8::MAX) + 1];
        for member in state.members.values() {
            if let Some(name) = names.get_mut(usize::from(member.number)) {
                *name = Some(member.info.id.clone());
            }
        }
        *replication.names.lock() = names.into();
        replication.forwarder.upstreams().map().offer(topology);
        let deferred = {
            let mut cell = replication.core.lock();
            cell.is_applying = false;
            if let Some(core) = &cell.core {
                replication.rights.publish(core);
            }
            replication.publish_epoch(state.epoch, state.versions, &self.engine);
            std::mem::take(&mut cell.deferred)
        };
        for event in deferred {
            replication.handle(event);
        }
    }

    /// The core of this member, which has just become a part of the topology.
    fn core(
        &mut self,
        me: MemberId,
        state: &State,
        commands: &mut Vec<CoreCommand<Entry>>,
    ) -> Core<Entry> {
        let mut core = Core::new(Config {
            me,
            slots_len: SLOT_COUNT,
            copies_max: COPIES_MAX,
            tick: BEAT,
            refuse_after: self.replication.owners_wait,
            rules: Rules::default(),
        });
        // The founder goes on with what it had as a single node, since the first epoch.
        let own = state.members.get(&self.replication.own);
        let has_founded = own.is_some_and(|it| it.sync.since == Epoch(1));
        let founds = has_founded && self.saved.incarnation == 0;
        if founds {
            let all = SavedSlot {
                in_sync: true,
                ..SavedSlot::default()
            };
            self.saved.core = Saved {
                applied: Epoch(state.epoch.min(1)),
                is_fit: true,
                slots: vec![all; usize::from(SLOT_COUNT)],
            };
        }
        let last = self.saved.incarnation;
        let is_empty = last == 0 && !founds;
        // What was saved may be lost. The others know of later starts then.
        let known = own.map_or(0, |it| it.sync.incarnation);
        self.saved.incarnation = last.max(known) + 1;
        let boots = (self.saved.boot, kept::boot_id());
        self.saved.boot = boots.1;
        let durability = self.engine.durability();
        let was_stopped = kept::was_stopped(&self.replication.dir, last);
        let has_kept_all = durability.is_some_and(|it| kept::has_kept_all(it, was_stopped, boots));
        let saved = self.saved.core.clone();
        let disk = match (is_empty, has_kept_all || founds) {
            (true, _) => Disk::Empty,
            (false, true) => Disk::Clean(saved),
            (false, false) => Disk::Unclean(saved),
        };
        let incarnation = self.saved.incarnation;
        let start = CoreEvent::Start { disk, incarnation };
        core.handle(self.replication.now(), start, commands);
        self.hide_again();
        core
    }

    /// What a floor hid before the start is hidden until it is removed.
    fn hide_again(&self) {
        let mut groups: BTreeMap<u64, Vec<Slot>> = BTreeMap::new();
        for (slot, hidden) in (0..).zip(&self.saved.hidden) {
            if *hidden != 0 {
                self.replication.rights.raise_floor(slot, *hidden);
                groups.entry(*hidden).or_default().push(Slot(slot));
            }
        }
        for (up_to, slots) in groups {
            self.remove(slots.into_iter().collect(), up_to, None);
        }
    }

    /// Has what this member has of some slots removed up to a version.
    fn remove(&self, slots: CoreSlots, up_to: u64, attempt: Option<Attempt>) {
        self.replication.removals.put(Removal {
            slots,
            up_to,
            attempt,
        });
    }

    /// The members that are lost by a topology, each with the slots of which no owner is left: the
    /// bucket may have more of them than this member knows.
    fn lost(&self, new: &Topology) -> Vec<(String, SlotSet)> {
        let Some(old) = self.replication.topology() else {
            return Vec::new();
        };
        lost(&self.replication.own, &old, new)
    }

    fn note_mark(&mut self, epoch: Epoch, mark: Option<Mark>) {
        match mark {
            Some(mark) => self.saved.marks.push_back((epoch, mark)),
            // Without a log the feed begins nowhere.
            None => self.saved.marks.clear(),
        }
        while self.saved.marks.len() > MARKS_MAX {
            self.saved.marks.pop_front();
        }
        *self.replication.marks.lock() = self.saved.marks.clone();
    }

    /// Saves all that a member saves. If that fails, nothing is saved: what was saved before says
    /// too much of slots that are cleared next.
    async fn save(&mut self) {
        let rights = &self.replication.rights;
        let hidden = (0..SLOT_COUNT).map(|slot| rights.floor(slot).unwrap_or(0));
        self.saved.hidden = hidden.collect();
        let (dir, saved) = (self.replication.dir.clone(), self.saved.clone());
        let save = move || {
            let result = saved::save(&dir, &saved);
            let Err(error) = result else {
                return saved.incarnation;
            };
            tracing::warn!(%error, "the states of slots cannot be saved: after a restart, slots are copied again");
            if let Err(error) = saved::remove(&dir) {
                tracing::error!(%error, "the states of slots before cannot be removed: stop this member and remove `slots`");
            }
            0
        };
        let saved = tokio::task::spawn_blocking(save).await;
        let incarnation = saved.unwrap_or_default();
        let cell = &self.replication.saved_incarnation;
        cell.store(incarnation, Ordering::SeqCst);
    }

    async fn execute(&mut self, commands: Vec<CoreCommand<Entry>>) {
        let mut records = Vec::new();
        for command in commands {
            if let CoreCommand::Persist(record) = command {
                records.push(record);
                continue;
            }
            self.log_again(&mut records).await;
            self.execute_one(command).await;
        }
        self.log_again(&mut records).await;
    }

    /// Logs writes once more that go on under the applied epoch. Where that fails, the log does not
    /// have what was written since the epochs before.
    async fn log_again(&mut self, records: &mut Vec<Record<Entry>>) {
        let records = std::mem::take(records);
        if records.is_empty() || self.replication.store(&self.engine, &records, None).await {
            return;
        }
        // For a later start too: a feed that begins at a mark before would lack it.
        self.saved.marks.clear();
        self.replication.marks.lock().clear();
        self.save().await;
        let through = Epoch(self.replication.epoch());
        self.replication.handle(CoreEvent::Evicted { through });
    }

    async fn execute_one(&mut self, command: CoreCommand<Entry>) {
        let replication = Arc::clone(&self.replication);
        match command {
            CoreCommand::Send(to, message) => {
                let is_told =
                    matches!(message.body, Body::Status) && replication.told(to) >= message.epoch;
                if !is_told {
                    replication.send(&self.engine, to, message);
                }
            }
            CoreCommand::Save(_) => {
                if let Some(core) = &replication.core.lock().core {
                    self.saved.core = core.saved();
                }
                self.save().await;
            }
            // It was raised before the epoch was published.
            CoreCommand::RaiseFloor(slots) => self.remove(slots, self.base, None),
            CoreCommand::Clear { attempt, slots } => {
                self.remove(slots, self.base, Some(attempt));
            }
            CoreCommand::Propose(change) => self.propose(change),
            // What was pending when an epoch was applied. Else answers are given at once.
            CoreCommand::Answer(request, reply) => replication.give(request, reply),
            // Stored by the caller.
            CoreCommand::Persist(_) => {}
        }
    }

    /// Proposes a change, unless one is under way. The core repeats what is not agreed on.
    fn propose(&self, change: SlotChange) {
        let raft_id = self.cluster.raft_id();
        let change = match change {
            SlotChange::Sync {
                applied,
                incarnation,
                ..
            } => Change::Sync {
                raft_id,
                applied: applied.0,
                started: incarnation,
            },
            SlotChange::InSync { applied, .. } => Change::InSync {
                raft_id,
                applied: applied.0,
            },
            // The core proposes nothing else.
            _ => return,
        };
        let Ok(turn) = Arc::clone(&self.proposing).try_acquire_owned() else {
            return;
        };
        let cluster = self.cluster.clone();
        let proposal = async move {
            let proposed = cluster.propose(change, PROPOSAL_DEADLINE).await;
            if let Err(error) = proposed {
                tracing::debug!(%error, "a change of this member's status is not agreed on yet");
            }
            drop(turn);
        };
        let tasks = &self.replication.group;
        tasks.spawn("replication-propose", OnShutdown::Abort, proposal);
    }
}

/// The members that cannot be asked any more by the new topology, each with the slots that it owned
/// and of which no owner is left.
fn lost(own: &str, old: &Topology, new: &Topology) -> Vec<(String, SlotSet)> {
    let is_up = |id: &str| new.member(id).is_some_and(|it| it.state.is_serving());
    let members = old.members().iter();
    let gone = members.filter(|it| it.id != own && it.state.is_serving() && !is_up(&it.id));
    let slots_of = |id: &str| -> SlotSet {
        let is_lost = |slot: &u16| {
            let mut owners = old.owners(*slot);
            let mut others = old.owners(*slot);
            owners.any(|it| it.id == id) && !others.any(|it| is_up(&it.id))
        };
        (0..SLOT_COUNT).filter(is_lost).collect()
    };
    gone.map(|it| (it.id.clone(), slots_of(&it.id))).collect()
}

/// Slots as the core names them.
pub(super) fn core_slots(slots: &SlotSet) -> CoreSlots {
    (0..SLOT_COUNT)
        .filter(|slot| slots.contains(*slot))
        .map(Slot)
        .collect()
}
