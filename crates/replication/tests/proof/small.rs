//! A model of small clusters, with the core that ships. `exploration.rs` visits its states.
//!
//! Messages wait in a set and arrive in any order or never. Each member learns topologies one by
//! one, at any time. Time stands still, so timers only repeat what was not answered, and versions
//! only count. A lease ends when its member is declared down. Two things are simpler than in the
//! simulation: proposals of members about themselves take effect at once, and a member hears at
//! once which epoch another one has applied.

use std::sync::Arc;
use std::time::Duration;

use fonn_replication::{
    Attempt, Body, Change, Command, Config, Core, Disk, Epoch, Event, Layout, MemberId, Message,
    Record, Reply, Rules, Saved, Slot, Status, Topology, Version,
};
use stateright::util::HashableHashSet;
use stateright::{Model, Property};

use super::raft::{Agreed, first_topology};
use super::store::{Clearing, Entry, Key, Store, StoreLookup};
use super::world::{page_answer, save};

const NOW: Duration = Duration::ZERO;

/// A small cluster, and how much may happen in it.
#[derive(Clone, Debug)]
pub struct Small {
    pub members: u8,
    pub replicas: usize,
    pub slots: u16,
    pub keys_per_slot: u8,
    pub rules: Rules,
    pub writes_max: u8,
    pub downs_max: u8,
    pub crashes_max: u8,
    pub evictions_max: u8,
    pub layouts_max: u8,
    pub extensions_max: u8,
}

/// A write that the store has executed, and that the core does not know yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Executed {
    record: Record<Entry>,
    /// No other member needed the write when it was admitted, and no rights have changed since.
    complete: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Member {
    core: Core<Entry>,
    store: Store,
    saved: Option<Saved>,
    alive: bool,
    learned: usize,
    starts: u64,
    evicted: Epoch,
    executed: Option<Executed>,
    clearing: Vec<Attempt>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    log: Vec<Agreed>,
    members: Vec<Member>,
    network: HashableHashSet<(MemberId, Message<Entry>)>,
    /// The write of each key that is not answered, and its member.
    open: Vec<Option<(u32, usize)>>,
    acknowledged: Vec<u32>,
    writes: u8,
    downs: u8,
    crashes: u8,
    evictions: u8,
    layouts: u8,
    extensions: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Deliver(MemberId, Message<Entry>),
    Learn(usize),
    Repeat(usize),
    Execute(usize, u16, Key),
    Report(usize),
    Cleared(usize, Attempt),
    Down(usize),
    Crash(usize, Kept),
    Start(usize),
    Evict(usize),
    ProposeLayout,
    ReplaceLayout,
    ExtendVersions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kept {
    Disk,
    Nothing,
}

impl Small {
    fn layout(&self, turn: u8) -> Arc<Layout> {
        let row = |slot: u8| {
            let rank = |rank: u8| MemberId((slot + turn + rank) % self.members);
            (0..self.replicas as u8).map(rank).collect()
        };
        let rows: Vec<Vec<MemberId>> = (0..self.slots as u8).map(row).collect();
        let members = (0..self.members).map(MemberId).collect();
        Arc::new(Layout::new(&rows, members).expect("rows of equal length"))
    }

    fn core(&self, me: u8) -> Core<Entry> {
        Core::new(Config {
            me: MemberId(me),
            slots_len: self.slots,
            copies_max: 2,
            tick: Duration::ZERO,
            refuse_after: Duration::from_secs(3),
            rules: self.rules,
        })
    }

    /// A cluster whose members are all in sync.
    fn settled(&self) -> State {
        let members = (0..self.members).map(|me| Member {
            core: self.core(me),
            store: Store::new(self.slots),
            saved: None,
            alive: false,
            learned: 0,
            starts: 0,
            evicted: Epoch(0),
            executed: None,
            clearing: Vec::new(),
        });
        let keys = usize::from(self.slots) * usize::from(self.keys_per_slot);
        let members_len = usize::from(self.members);
        let first = first_topology(members_len, self.layout(0));
        let mut state = State {
            log: vec![Agreed::first(first)],
            members: members.collect(),
            network: HashableHashSet::new(),
            open: vec![None; keys],
            acknowledged: vec![0; keys],
            writes: 0,
            downs: 0,
            crashes: 0,
            evictions: 0,
            layouts: 0,
            extensions: 0,
        };
        for member in 0..members_len {
            self.start(&mut state, member);
        }
        for _ in 0..100 {
            for member in 0..members_len {
                if state.members[member].learned < state.log.len() {
                    self.learn(&mut state, member);
                }
            }
            for member in 0..members_len {
                self.handle(&mut state, member, Event::Timer);
            }
            let mut messages: Vec<_> = state.network.iter().cloned().collect();
            messages.sort_by_key(|message| format!("{message:?}"));
            state.network = HashableHashSet::new();
            for (to, message) in messages {
                self.deliver(&mut state, to, message);
            }
            for member in 0..members_len {
                for attempt in std::mem::take(&mut state.members[member].clearing) {
                    state.members[member].store.end_clear(attempt);
                    self.handle(&mut state, member, Event::Cleared(attempt));
                }
            }
        }
        let in_sync = |m: &fonn_replication::Member| m.status == Status::InSync;
        assert!(state.topology().members.iter().all(in_sync));
        state.log = vec![state.last().clone()];
        state.members.iter_mut().for_each(|m| m.learned = 1);
        state
    }

    fn start(&self, state: &mut State, index: usize) {
        let member = &mut state.members[index];
        member.core = self.core(index as u8);
        member.alive = true;
        member.starts += 1;
        let saved = member.saved.clone();
        let event = Event::Start {
            disk: saved.map_or(Disk::Empty, Disk::Clean),
            incarnation: member.starts,
        };
        let through = member.evicted;
        self.handle(state, index, event);
        self.handle(state, index, Event::Evicted { through });
        // It knows the last topology that it applied, or begins with the latest one.
        let applied = state.members[index].core.applied();
        let known = state
            .log
            .iter()
            .position(|agreed| agreed.topology.epoch == applied);
        state.members[index].learned = known.unwrap_or(state.log.len() - 1);
        self.learn(state, index);
    }

    fn learn(&self, state: &mut State, index: usize) {
        let agreed = state.log[state.members[index].learned].clone();
        state.members[index].learned += 1;
        state.members[index].store.follow(&agreed, self.rules);
        let topology = agreed.topology;
        let latest = state.members[index].learned == state.log.len();
        let up = topology.status(MemberId(index as u8)) != Status::Down;
        self.handle(state, index, Event::Topology(topology));
        if latest && up {
            let forever = Duration::from_secs(1);
            self.handle(state, index, Event::Lease(forever));
        }
    }

    fn handle(&self, state: &mut State, index: usize, event: Event<Entry>) {
        let mut out = Vec::new();
        let member = &mut state.members[index];
        let revision = member.core.revision();
        member.core.handle(NOW, event, &mut out);
        if let Some(executed) = &mut member.executed {
            executed.complete &= member.core.revision() == revision;
        }
        for command in out {
            self.execute(state, index, command);
        }
    }

    fn execute(&self, state: &mut State, index: usize, command: Command<Entry>) {
        let member = &mut state.members[index];
        match command {
            Command::Send(to, message) => self.send(state, to, message),
            Command::Persist(record) => member.store.persist(record, 0),
            Command::RaiseFloor(slots) => member.store.raise_floor(&slots),
            Command::Clear { attempt, slots } => {
                member.store.clear(attempt, &slots, Clearing::UpToBase);
                member.clearing.push(attempt);
            }
            Command::Save(slots) => {
                if slots.is_none() {
                    member.store.enter();
                }
                save(&mut member.saved, &member.core, slots);
            }
            Command::Answer(id, reply) => state.answered(id, reply),
            Command::Propose(change) => state.commit(&change),
        }
    }

    /// A message arrives. The shell answers a request for a page if both members have applied one
    /// epoch.
    fn deliver(&self, state: &mut State, to: MemberId, message: Message<Entry>) {
        let (from, epoch, body) = (message.from, message.epoch, message.body.clone());
        self.handle(state, usize::from(to.0), Event::Message(message));
        let Member { core, store, .. } = &state.members[usize::from(to.0)];
        if let Body::PageRequest(request) = body
            && epoch == core.applied()
            && let Some(body) = page_answer(core, store.page(request))
        {
            let answer = Message {
                from: to,
                epoch,
                body,
            };
            self.send(state, from, answer);
        }
    }

    /// Puts a message into the network. Messages of epochs that the receiver has left are dropped,
    /// since it ignores them.
    fn send(&self, state: &mut State, to: MemberId, message: Message<Entry>) {
        let index = usize::from(to.0);
        if !state.members[index].alive {
            return;
        }
        if message.body == Body::Status {
            return self.handle(state, index, Event::Message(message));
        }
        state.network.insert((to, message));
        if self.rules == Rules::ALL {
            let members = &state.members;
            state
                .network
                .retain(|(to, message)| message.epoch >= members[usize::from(to.0)].core.applied());
        }
    }

    /// What a member would show of a key to a read of the primary or to a hedged one.
    fn shown(&self, state: &State, index: usize, slot: Slot, key: Key) -> Option<u32> {
        let member = &state.members[index];
        // An owner that answers no hedged read answers no other one.
        if !member.core.rights(slot).hedged_reads || !member.core.may_answer(NOW) {
            return None;
        }
        match member.store.find(slot, key) {
            StoreLookup::Value(id) => Some(id),
            _ => None,
        }
    }

    fn keys(&self) -> impl Iterator<Item = (usize, Slot, Key)> {
        let keys_per_slot = self.keys_per_slot;
        (0..self.slots).flat_map(move |slot| {
            (0..keys_per_slot).map(move |key| {
                let index = usize::from(slot) * usize::from(keys_per_slot) + usize::from(key);
                (index, Slot(slot), key)
            })
        })
    }

    fn shows_nothing_stale(&self, state: &State) -> bool {
        self.keys().all(|(index, slot, key)| {
            (0..state.members.len())
                .filter(|&member| state.members[member].alive)
                .filter_map(|member| self.shown(state, member, slot, key))
                .all(|id| id >= state.acknowledged[index])
        })
    }
}

impl State {
    fn last(&self) -> &Agreed {
        self.log.last().expect("there is a first topology")
    }

    fn topology(&self) -> &Arc<Topology> {
        &self.last().topology
    }

    fn answered(&mut self, id: u64, reply: Reply) {
        let is_open = |open: &Option<(u32, usize)>| open.is_some_and(|(i, _)| u64::from(i) == id);
        if let Some(key) = self.open.iter().position(is_open) {
            self.open[key] = None;
            if reply == Reply::Written {
                self.acknowledged[key] = id as u32;
            }
        }
    }

    fn commit(&mut self, change: &Change) {
        self.log.extend(self.last().after(change));
    }
}

impl Model for Small {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.settled()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let delivered = state.network.iter().cloned();
        actions.extend(delivered.map(|(to, message)| Action::Deliver(to, message)));
        for (index, member) in state.members.iter().enumerate() {
            let id = MemberId(index as u8);
            let up = state.topology().status(id) != Status::Down;
            let others = (0..self.members).map(MemberId).filter(|&m| m != id);
            let others_up = others.filter(|&m| state.topology().status(m) != Status::Down);
            if up && state.downs < self.downs_max && others_up.count() > 0 {
                actions.push(Action::Down(index));
            }
            if !member.alive {
                actions.push(Action::Start(index));
                continue;
            }
            if member.learned < state.log.len() {
                actions.push(Action::Learn(index));
            }
            actions.push(Action::Repeat(index));
            if state.crashes < self.crashes_max {
                actions.push(Action::Crash(index, Kept::Disk));
                actions.push(Action::Crash(index, Kept::Nothing));
            }
            let to_member = |(to, m): &(MemberId, Message<Entry>)| {
                *to == id && matches!(m.body, Body::Write { .. } | Body::Page(_))
            };
            if state.evictions < self.evictions_max && !state.network.iter().any(to_member) {
                actions.push(Action::Evict(index));
            }
            for (key_index, slot, key) in self.keys() {
                let rights = member.core.rights(slot);
                let leads = rights.leads && member.core.may_answer(NOW);
                let free = state.open[key_index].is_none() && state.writes < self.writes_max;
                if leads && free && member.executed.is_none() {
                    actions.push(Action::Execute(index, slot.0, key));
                }
            }
            if member.executed.is_some() {
                actions.push(Action::Report(index));
            }
            let cleared = member.clearing.iter();
            actions.extend(cleared.map(|&attempt| Action::Cleared(index, attempt)));
        }
        if state.layouts < self.layouts_max {
            actions.push(Action::ProposeLayout);
        }
        if state.extensions < self.extensions_max {
            actions.push(Action::ExtendVersions);
        }
        if state.topology().next_layout_is_ready() {
            actions.push(Action::ReplaceLayout);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Deliver(to, message) => {
                state.network.remove(&(to, message.clone()));
                self.deliver(&mut state, to, message);
            }
            Action::Learn(index) => self.learn(&mut state, index),
            Action::Repeat(index) => self.handle(&mut state, index, Event::Timer),
            Action::Execute(index, slot, key) => {
                state.writes += 1;
                let id = u32::from(state.writes);
                let key_index =
                    usize::from(slot) * usize::from(self.keys_per_slot) + usize::from(key);
                state.open[key_index] = Some((id, index));
                let Member { core, store, .. } = &mut state.members[index];
                let (slot, entry) = (Slot(slot), Entry::Value { key, id });
                let record = store.execute(slot, core.applied(), entry, (0, 0))?;
                let complete = core.rights(slot).completes;
                state.members[index].executed = Some(Executed { record, complete });
            }
            Action::Report(index) => {
                let Executed { record, complete } = state.members[index].executed.take()?;
                let request = u64::from(record.entry.id());
                if complete && state.members[index].core.may_answer(NOW) {
                    state.answered(request, Reply::Written);
                } else {
                    self.handle(&mut state, index, Event::Write { request, record });
                }
            }
            Action::Cleared(index, attempt) => {
                let member = &mut state.members[index];
                member.store.end_clear(attempt);
                member.clearing.retain(|&other| other != attempt);
                self.handle(&mut state, index, Event::Cleared(attempt));
            }
            Action::ExtendVersions => {
                state.extensions += 1;
                let ceiling = state.last().versions.ceiling;
                let extended = state.last().extended(Version(ceiling + 1));
                state.log.push(extended);
            }
            Action::Down(index) => {
                state.downs += 1;
                // The lease is over before the change is agreed on.
                if state.members[index].alive {
                    self.handle(&mut state, index, Event::Lease(Duration::ZERO));
                }
                state.commit(&Change::Down(MemberId(index as u8)));
            }
            Action::Crash(index, kept) => {
                state.crashes += 1;
                let member = &mut state.members[index];
                member.alive = false;
                member.executed = None;
                member.clearing.clear();
                member.store.crash();
                if kept == Kept::Nothing {
                    member.store = Store::new(self.slots);
                    member.saved = None;
                    member.evicted = Epoch(0);
                }
                let id = MemberId(index as u8);
                state.network.retain(|(to, _)| *to != id);
                for open in &mut state.open {
                    *open = open.filter(|(_, member)| *member != index);
                }
            }
            Action::Start(index) => self.start(&mut state, index),
            Action::Evict(index) => {
                state.evictions += 1;
                let member = &mut state.members[index];
                let (through, _) = member.store.evict(1, false);
                member.evicted = member.evicted.max(through);
                self.handle(&mut state, index, Event::Evicted { through });
            }
            Action::ProposeLayout => {
                state.layouts += 1;
                state.commit(&Change::ProposeLayout(self.layout(1)));
            }
            Action::ReplaceLayout => state.commit(&Change::ReplaceLayout),
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always("nothing stale", |model: &Small, state| {
            model.shows_nothing_stale(state)
        })]
    }
}
