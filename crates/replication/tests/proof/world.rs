//! The event loop of the simulation: time, messages, clients, and the shell around each core.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use fonn_replication::{
    Attempt, Body, Change, Command, Core, Event, MemberId, Message, Page, Saved, Slot, SlotSet,
};

use super::bucket::Bucket;
use super::clients::{Admitted, Executed, ReadFrom, Request};
use super::cluster::{Cluster, NO_QUORUM, TICK_MS};
use super::flush::{Flush, Flushing, is_last_page};
use super::raft::{Agreed, lost_slots};
use super::random::Random;
use super::setup::{Fault, Setup};
use super::store::{Clearing, Entry};

/// Where an action happens: a cluster and a member.
pub type At = (usize, usize);

#[derive(Clone, Debug)]
pub enum Action {
    Deliver(At, Message<Entry>),
    Timer(At, u64),
    Lease(At, u64, u64),
    PageRead(At, u64, MemberId, Page<Entry>),
    Cleared(At, u64, Attempt),
    Request(At, Request),
    Execute(At, u64, Admitted),
    Report(At, u64, Executed),
    Flush(Flushing),
    Propose(usize, Change),
    Resume(At),
    Start(At),
    Beat(usize),
    Client,
    Upload,
    Fault,
    Probe,
}

pub struct World {
    pub setup: Setup,
    pub random: Random,
    pub now: u64,
    pub clusters: Vec<Cluster>,
    pub bucket: Bucket,
    pub flushes: BTreeMap<u64, Flush>,
    /// When the last request of a flush arrives, by cluster, sender and member.
    pub flush_arrivals: HashMap<(usize, Option<usize>, usize), u64>,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    actions: BTreeMap<u64, Action>,
    sequence: u64,
    pub next_id: u32,
    pub next_request: u64,
    pub last_fault: u64,
    pub chaos: bool,
    pub trace: bool,
    /// A violation that was noticed outside of a read.
    pub error: Option<String>,
}

impl World {
    pub fn new(setup: Setup) -> Self {
        let mut random = Random::new(setup.seed ^ 0xf0_11);
        let clusters = (0..setup.regions)
            .map(|_| Cluster::new(&setup, &mut random))
            .collect();
        Self {
            bucket: Bucket::new(setup.slots),
            random,
            now: 0,
            clusters,
            flushes: BTreeMap::new(),
            flush_arrivals: HashMap::new(),
            queue: BinaryHeap::new(),
            actions: BTreeMap::new(),
            sequence: 0,
            next_id: 1,
            next_request: 1,
            last_fault: 0,
            chaos: true,
            trace: std::env::var_os("FONN_REPLICATION_TRACE").is_some(),
            error: None,
            setup,
        }
    }

    pub fn schedule(&mut self, after_ms: u64, action: Action) {
        self.sequence += 1;
        self.queue
            .push(Reverse((self.now + after_ms, self.sequence)));
        self.actions.insert(self.sequence, action);
    }

    pub fn log(&self, text: impl FnOnce() -> String) {
        if self.trace {
            println!("{:>6} {}", self.now, text());
        }
    }

    /// Runs until a time.
    pub fn run_until(&mut self, end: u64) -> Result<(), String> {
        while let Some(&Reverse((at, sequence))) = self.queue.peek() {
            if at > end {
                break;
            }
            self.queue.pop();
            self.now = self.now.max(at);
            let action = self.actions.remove(&sequence).expect("it is scheduled");
            self.act(action)?;
            if let Some(error) = self.error.take() {
                return Err(error);
            }
        }
        self.now = end;
        Ok(())
    }

    pub fn act(&mut self, action: Action) -> Result<(), String> {
        let (at, incarnation) = match &action {
            Action::Deliver(at, _) | Action::Request(at, _) => (*at, None),
            Action::Flush(Flushing::Ask(at, _) | Flushing::Tell(at, ..)) => (*at, None),
            Action::Flush(Flushing::Learn(at, i, ..)) => (*at, Some(*i)),
            Action::Timer(at, i)
            | Action::Lease(at, i, _)
            | Action::PageRead(at, i, _, _)
            | Action::Cleared(at, i, _)
            | Action::Execute(at, i, _)
            | Action::Report(at, i, _) => (*at, Some(*i)),
            _ => return self.act_outside(action),
        };
        let node = &mut self.clusters[at.0].nodes[at.1];
        if !node.alive || incarnation.is_some_and(|i| i != node.incarnation) {
            return Ok(());
        }
        if node.paused_until.is_some() {
            node.backlog.push(action);
            return Ok(());
        }
        let event = match action {
            Action::Deliver(_, message) if self.setup.flushes && is_last_page(&message) => {
                self.ask_for_flushes(at, message);
                return Ok(());
            }
            Action::Deliver(_, message) => {
                self.deliver(at, message);
                return Ok(());
            }
            Action::Request(_, request) => {
                self.admit(at, request);
                return Ok(());
            }
            Action::Execute(_, _, admitted) => {
                self.execute_write(at, admitted);
                return Ok(());
            }
            Action::Report(_, _, executed) => {
                self.report(at, executed);
                return Ok(());
            }
            Action::Flush(step) => {
                self.flush(step);
                return Ok(());
            }
            Action::Cleared(_, _, attempt) => {
                node.store.end_clear(attempt);
                Event::Cleared(attempt)
            }
            Action::Timer(..) => Event::Timer,
            Action::Lease(_, _, until) => {
                node.lease = Duration::from_millis(until);
                Event::Lease(node.lease)
            }
            Action::PageRead(_, _, to, page) => {
                let answer = page_answer(&node.core, page);
                self.answer_page_request(at, to, answer);
                return Ok(());
            }
            _ => return Ok(()),
        };
        self.handle(at, event);
        Ok(())
    }

    fn act_outside(&mut self, action: Action) -> Result<(), String> {
        match action {
            Action::Propose(c, change) => {
                let now = self.now;
                self.clusters[c].raft.propose(&change, now);
                self.note_topologies(c);
            }
            Action::Resume(at) => self.resume(at)?,
            Action::Start(at) => self.start(at),
            Action::Beat(c) => self.beat(c),
            Action::Client => {
                self.client()?;
                let pause = self.random.between(2, 25);
                self.schedule(pause, Action::Client);
            }
            Action::Upload => {
                self.upload();
                let pause = self.random.between(200, 1_500);
                self.schedule(pause, Action::Upload);
            }
            Action::Flush(step) => self.flush(step),
            Action::Fault => self.inject(),
            Action::Probe => {
                self.probe()?;
                self.schedule(200, Action::Probe);
            }
            _ => {}
        }
        Ok(())
    }

    pub fn moment(&self) -> Duration {
        Duration::from_millis(self.now)
    }

    pub fn wall_ms(&self, at: At) -> u64 {
        self.now + self.clusters[at.0].nodes[at.1].wall_offset_ms
    }

    /// The shell: hands an event to a core and executes its commands. Sometimes it crashes between
    /// two of them.
    pub fn handle(&mut self, at: At, event: Event<Entry>) {
        let now = self.moment();
        let mut out = Vec::new();
        let node = &mut self.clusters[at.0].nodes[at.1];
        if !node.alive {
            return;
        }
        if !matches!(&event, Event::Timer) && !is_beat(&event) {
            self.log(|| format!("{at:?} {event:?}"));
        }
        let is_timed = matches!(&event, Event::Timer | Event::Start { .. });
        let node = &mut self.clusters[at.0].nodes[at.1];
        node.core.handle(now, event, &mut out);
        let incarnation = node.incarnation;
        if is_timed {
            self.schedule(TICK_MS, Action::Timer(at, incarnation));
        }
        let removes = |c: &Command<_>| matches!(c, Command::Clear { .. } | Command::RaiseFloor(_));
        let one_in = if out.iter().any(removes) { 30 } else { 4_000 };
        let may_crash = self.chaos && self.setup.has(Fault::Crash);
        let crashes = may_crash && self.random.below(one_in) == 0;
        let executed = match crashes {
            true => self.random.index(out.len() + 1),
            false => out.len(),
        };
        for command in out.into_iter().take(executed) {
            self.execute(at, command);
        }
        if crashes {
            self.crash_for_a_while(at);
        }
    }

    fn execute(&mut self, at: At, command: Command<Entry>) {
        let (now, incarnation) = (self.now, self.clusters[at.0].nodes[at.1].incarnation);
        if !is_status(&command) {
            self.log(|| format!("  {at:?} -> {command:?}"));
        }
        if matches!(command, Command::Persist(_) | Command::Save(_)) {
            self.clusters[at.0].nodes[at.1].volatile.clear();
        }
        match command {
            Command::Send(to, message) => self.send(at, usize::from(to.0), message),
            Command::Persist(record) => {
                let node = &mut self.clusters[at.0].nodes[at.1];
                node.store.persist(record, now);
            }
            Command::RaiseFloor(slots) => self.raise_floor(at, &slots),
            Command::Clear { attempt, slots } => {
                let how = match self.random.percent(50) {
                    true => Clearing::Listed,
                    false => Clearing::UpToBase,
                };
                let delay = match self.random.percent(20) {
                    true => self.random.between(100, 2_000),
                    false => self.random.between(1, 60),
                };
                let node = &mut self.clusters[at.0].nodes[at.1];
                node.store.clear(attempt, &slots, how);
                self.schedule(delay, Action::Cleared(at, incarnation, attempt));
            }
            Command::Save(slots) => {
                let node = &mut self.clusters[at.0].nodes[at.1];
                node.lost_writes &= slots.is_some();
                if slots.is_none() {
                    node.store.enter();
                }
                save(&mut node.saved, &node.core, slots);
            }
            Command::Answer(request, reply) => self.answered(at, request, reply),
            Command::Propose(change) => {
                let lost = self.clusters[at.0].cut_to_leader[at.1] > now;
                if !lost && !self.random.percent(1) {
                    let delay = self.random.between(1, 30);
                    self.schedule(delay, Action::Propose(at.0, change));
                }
            }
        }
    }

    /// A message arrives. The shell answers a request for a page if both members have applied one
    /// epoch.
    fn deliver(&mut self, at: At, message: Message<Entry>) {
        let (from, epoch) = (message.from, message.epoch);
        let asked = match &message.body {
            Body::PageRequest(request) => Some(request.clone()),
            _ => None,
        };
        self.handle(at, Event::Message(message));
        let node = &self.clusters[at.0].nodes[at.1];
        let Some(request) = asked.filter(|_| node.alive && epoch == node.core.applied()) else {
            return;
        };
        match page_answer(&node.core, node.store.page(request)) {
            // It takes a while to read it.
            Some(Body::Page(page)) => {
                let (incarnation, delay) = (node.incarnation, self.random.between(1, 40));
                self.schedule(delay, Action::PageRead(at, incarnation, from, page));
            }
            answer => self.answer_page_request(at, from, answer),
        }
    }

    fn answer_page_request(&mut self, at: At, to: MemberId, answer: Option<Body<Entry>>) {
        if let Some(body) = answer {
            let epoch = self.clusters[at.0].nodes[at.1].core.applied();
            let from = MemberId(at.1 as u8);
            self.execute(at, Command::Send(to, Message { from, epoch, body }));
        }
    }

    pub fn send(&mut self, at: At, to: usize, message: Message<Entry>) {
        if to >= self.setup.members || self.clusters[at.0].cut[at.1][to] > self.now {
            return;
        }
        let lossy = self.chaos && self.setup.has(Fault::Loss);
        let copies = match self.random.below(100) {
            0..=2 if lossy => 0,
            3..=5 if lossy => 2,
            _ => 1,
        };
        for _ in 0..copies {
            let delay = match self.random.below(100) {
                0..=3 if lossy => self.random.between(100, 2_000),
                4..=9 => self.random.between(10, 80),
                _ => self.random.between(1, 6),
            };
            self.schedule(delay, Action::Deliver((at.0, to), message.clone()));
        }
    }

    fn raise_floor(&mut self, at: At, slots: &SlotSet) {
        let node = &mut self.clusters[at.0].nodes[at.1];
        node.store.raise_floor(slots);
        // Until here, the former owner could acknowledge writes that only it had.
        let applied = node.core.applied();
        let position = self.clusters[at.0].raft.position(applied);
        for &slot in slots {
            let cluster = &mut self.clusters[at.0];
            let chosen = cluster.raft.log[position]
                .topology
                .stand_ins
                .get(&slot)
                .copied();
            if let Some(chosen) = chosen.filter(|c| usize::from(c.member.0) == at.1)
                && !cluster.losses.contains_key(&(slot, chosen.since))
            {
                cluster.losses.insert((slot, chosen.since), false);
                self.note_loss(at.0, slot);
            }
        }
    }

    /// The leader: leases, topologies, and the members that are down.
    fn beat(&mut self, c: usize) {
        let now = self.now;
        let quorum = self.clusters[c].has_quorum(now);
        self.clusters[c].raft.follow_quorum(quorum, now);
        let wall_ms = self.clusters[c].leader_wall_ms(now);
        self.clusters[c].raft.tick(now, wall_ms);
        self.note_topologies(c);
        for n in 0..self.setup.members {
            let at = (c, n);
            if !self.clusters[c].nodes[n].runs() {
                continue;
            }
            let hears = quorum && self.clusters[c].cut_from_leader[n] <= now;
            let is_heard = quorum && self.clusters[c].cut_to_leader[n] <= now;
            if hears {
                self.hear_leader(at);
            } else {
                let node = &mut self.clusters[c].nodes[n];
                let silent = now.saturating_sub(node.heard_leader) > 3_000;
                if silent && node.lease != NO_QUORUM && node.core.applied().0 > 0 {
                    node.lease = NO_QUORUM;
                    self.handle(at, Event::Lease(NO_QUORUM));
                }
            }
            if is_heard {
                let noted = self.clusters[c].nodes[n].store.clock.wanted();
                let granted = self.clusters[c].raft.grant(MemberId(n as u8), noted, now);
                let incarnation = self.clusters[c].nodes[n].incarnation;
                if let Some(until) = granted.filter(|_| hears) {
                    let delay = self.random.between(1, 40);
                    self.schedule(delay, Action::Lease(at, incarnation, until));
                }
            }
        }
        self.schedule(100, Action::Beat(c));
    }

    /// A member hears the leader: it learns topologies.
    fn hear_leader(&mut self, at: At) {
        let node = &mut self.clusters[at.0].nodes[at.1];
        node.heard_leader = self.now;
        if node.lease == NO_QUORUM {
            node.lease = Duration::ZERO;
            self.handle(at, Event::Lease(Duration::ZERO));
        }
        if self.random.percent(20) {
            return; // learned with a later beat
        }
        let behind = self.clusters[at.0].raft.log.len() - self.clusters[at.0].nodes[at.1].learned;
        if behind > 1 && self.setup.has(Fault::SkipEpochs) && self.random.percent(30) {
            let node = &mut self.clusters[at.0].nodes[at.1];
            node.learned += behind - 1;
        }
        for _ in 0..behind {
            let cluster = &mut self.clusters[at.0];
            let node = &mut cluster.nodes[at.1];
            let Some(agreed) = cluster.raft.log.get(node.learned) else {
                break;
            };
            node.learned += 1;
            let agreed = agreed.clone();
            self.learn(at, agreed);
        }
    }

    /// A member learns what was agreed on. The range of versions is in force before the commands of
    /// the core are executed.
    pub fn learn(&mut self, at: At, agreed: Agreed) {
        let node = &mut self.clusters[at.0].nodes[at.1];
        if node.alive {
            node.store.follow(&agreed, self.setup.rules);
            self.handle(at, Event::Topology(agreed.topology));
        }
    }

    /// Tells the judge which slots have lost all owners.
    fn note_topologies(&mut self, c: usize) {
        while self.clusters[c].topologies_seen < self.clusters[c].raft.log.len() {
            let seen = self.clusters[c].topologies_seen;
            let log = &self.clusters[c].raft.log;
            let [before, after] = [seen - 1, seen].map(|at| Arc::clone(&log[at].topology));
            self.log(|| format!("topology {c}: {:?} {:?}", after.epoch, after.members));
            self.clusters[c].topologies_seen += 1;
            let lost = match lost_slots(&before, &after, self.setup.slots) {
                Ok(lost) => lost,
                Err(error) => {
                    self.error = Some(error);
                    Vec::new()
                }
            };
            for slot in lost {
                self.log(|| format!("all owners of {c} {slot:?} are lost"));
                self.note_loss(c, slot);
            }
        }
    }

    pub fn note_loss(&mut self, c: usize, slot: Slot) {
        for key in 0..self.setup.keys {
            let in_bucket = self.bucket.find(slot, key, &mut self.random);
            let known = self.setup.bucket.then(|| in_bucket.map(|r| r.entry.id()));
            self.clusters[c].judge.lost(slot.0, key, known);
        }
    }

    /// A slot has to be answered for within 3 s, as long as there is a quorum and no new fault.
    fn probe(&mut self) -> Result<(), String> {
        for c in 0..self.clusters.len() {
            for slot in (0..self.setup.slots).map(Slot) {
                let served =
                    (0..self.setup.members).any(|n| self.answers((c, n), slot, ReadFrom::Primary));
                let index = usize::from(slot.0);
                let Some(quorum) = self.clusters[c].raft.available_since.filter(|_| !served) else {
                    self.clusters[c].served[index] = self.now;
                    continue;
                };
                let since = self.clusters[c].served[index]
                    .max(quorum)
                    .max(self.last_fault);
                if self.now.saturating_sub(since) > 3_000 {
                    return Err(format!("slot {} of cluster {c} has no owner", slot.0));
                }
            }
        }
        Ok(())
    }
}

fn is_status(command: &Command<Entry>) -> bool {
    matches!(command, Command::Send(_, message) if matches!(message.body, Body::Status))
}

/// Makes the states of some slots durable, or all that a member saves.
pub fn save(saved: &mut Option<Saved>, core: &Core<Entry>, slots: Option<SlotSet>) {
    match (saved, slots) {
        (Some(saved), Some(slots)) => {
            for index in slots.iter().map(|slot| usize::from(slot.0)) {
                saved.slots[index] = core.slots()[index].saved();
            }
        }
        (saved, _) => *saved = Some(core.saved()),
    }
}

/// What a primary answers a request for a page. It looks when it reads the page, and when it has.
pub fn page_answer(core: &Core<Entry>, page: Page<Entry>) -> Option<Body<Entry>> {
    let slots = core.incomplete(&page.request.slots, page.request.after)?;
    Some(match slots.is_empty() {
        true => Body::Page(page),
        false => Body::Incomplete {
            request: page.request,
            slots,
        },
    })
}

fn is_beat(event: &Event<Entry>) -> bool {
    match event {
        Event::Message(message) => message.body == Body::Status,
        event => matches!(event, Event::Lease(_)),
    }
}
