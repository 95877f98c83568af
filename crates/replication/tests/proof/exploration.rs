//! Visits every state of small clusters within bounds, with the core that ships.
//!
//! Messages wait in a set and arrive in any order or never. Each member learns topologies one by
//! one, at any time. The clock stands still, so timers only repeat what was not answered. A lease
//! ends when its member is declared down. Three things are simpler than in the simulation:
//! proposals of members about themselves take effect at once, a member hears at once which epoch
//! another one has applied, and messages carry no clock but that of their write.

use std::sync::Arc;
use std::time::Duration;

use fonn_replication::{
    Body, Change, Command, Config, Core, Disk, Epoch, Event, Hlc, Layout, Lease, MemberId, Message,
    Now, ReadFrom, Reply, Rule, Rules, Saved, Slot, Status, Topology,
};
use stateright::util::HashableHashSet;
use stateright::{Checker, Model, Property};

use super::store::{Entry, Key, Store, StoreLookup};

const NOW: Now = Now {
    elapsed: Duration::ZERO,
    wall_ms: 0,
};

/// A small cluster, and how much may happen in it.
#[derive(Clone, Debug)]
struct Small {
    members: u8,
    replicas: usize,
    slots: u16,
    keys_per_slot: u8,
    rules: Rules,
    writes_max: u8,
    downs_max: u8,
    crashes_max: u8,
    evictions_max: u8,
    layouts_max: u8,
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
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    log: Vec<Arc<Topology>>,
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
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Action {
    Deliver(MemberId, Message<Entry>),
    Learn(usize),
    Repeat(usize),
    Write(usize, u16, Key),
    Down(usize),
    Crash(usize, Kept),
    Start(usize),
    Evict(usize),
    ProposeLayout,
    ReplaceLayout,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kept {
    Disk,
    Nothing,
}

impl Small {
    fn layout(&self, turn: u8) -> Arc<Layout> {
        let row = |slot: u8| {
            let rank = |rank: u8| MemberId((slot + turn + rank) % self.members);
            (0..self.members).map(rank).collect()
        };
        let rows: Vec<Vec<MemberId>> = (0..self.slots as u8).map(row).collect();
        Arc::new(Layout::new(&rows).expect("rows of equal length"))
    }

    fn core(&self, me: u8) -> Core<Entry> {
        Core::new(Config {
            me: MemberId(me),
            region: 0,
            slots_len: self.slots,
            pending_max: 8,
            copies_max: 2,
            tick: Duration::ZERO,
            suspect_after: Duration::from_secs(1),
            refuse_after: Duration::from_secs(3),
            clock_error_ms_max: 0,
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
        });
        let keys = usize::from(self.slots) * usize::from(self.keys_per_slot);
        let members_len = usize::from(self.members);
        let first = Topology::first(self.replicas, members_len, self.layout(0));
        let mut state = State {
            log: vec![Arc::new(first)],
            members: members.collect(),
            network: HashableHashSet::new(),
            open: vec![None; keys],
            acknowledged: vec![0; keys],
            writes: 0,
            downs: 0,
            crashes: 0,
            evictions: 0,
            layouts: 0,
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
                self.handle(&mut state, usize::from(to.0), Event::Message(message));
            }
        }
        let in_sync = |m: &fonn_replication::Member| m.status == Status::InSync;
        assert!(state.topology().members.iter().all(in_sync));
        state.log = vec![Arc::clone(state.topology())];
        state.members.iter_mut().for_each(|m| m.learned = 1);
        state
    }

    fn start(&self, state: &mut State, index: usize) {
        let member = &mut state.members[index];
        let clock = member.core.clock().next();
        member.core = self.core(index as u8);
        member.alive = true;
        member.starts += 1;
        let saved = member.saved.clone();
        let event = Event::Start {
            disk: saved.map_or(Disk::Empty, Disk::Clean),
            incarnation: member.starts,
            clock: if member.saved.is_some() {
                clock
            } else {
                Hlc(0)
            },
        };
        let through = member.evicted;
        self.handle(state, index, event);
        self.handle(state, index, Event::Evicted { through });
        // It knows the last topology that it applied, or begins with the latest one.
        let applied = state.members[index].core.applied();
        let known = state.log.iter().position(|t| t.epoch == applied);
        state.members[index].learned = known.unwrap_or(state.log.len() - 1);
        self.learn(state, index);
    }

    fn learn(&self, state: &mut State, index: usize) {
        let topology = Arc::clone(&state.log[state.members[index].learned]);
        state.members[index].learned += 1;
        let latest = state.members[index].learned == state.log.len();
        let up = topology.status(MemberId(index as u8)) != Status::Down;
        self.handle(state, index, Event::Topology(topology));
        if latest && up {
            let forever = Lease::Until(Duration::from_secs(1));
            self.handle(state, index, Event::Lease(forever));
        }
    }

    fn handle(&self, state: &mut State, index: usize, event: Event<Entry>) {
        let mut out = Vec::new();
        state.members[index].core.handle(NOW, event, &mut out);
        for command in out {
            self.execute(state, index, command);
        }
    }

    fn execute(&self, state: &mut State, index: usize, command: Command<Entry>) {
        let member = &mut state.members[index];
        match command {
            Command::Send(to, message) => self.send(state, to, message),
            Command::Persist { slot, record } => member.store.persist(slot, record, 0),
            Command::RaiseFloor(slot) => member.store.raise_floor(slot),
            Command::Save(_) => {
                member.saved = Some(Saved {
                    applied: member.core.applied(),
                    slots: member.core.slots().to_vec(),
                });
            }
            Command::ReadPage { to, request } => {
                let page = member.store.page(request);
                self.handle(state, index, Event::PageRead { to, page });
            }
            Command::Answer(id, reply) => {
                let key = state
                    .open
                    .iter()
                    .position(|o| o.is_some_and(|(i, _)| u64::from(i) == id));
                if let Some(key) = key {
                    state.open[key] = None;
                    if reply == Reply::Written {
                        state.acknowledged[key] = id as u32;
                    }
                }
            }
            Command::Propose(change @ (Change::Sync { .. } | Change::InSync { .. })) => {
                state.commit(&change);
            }
            Command::Propose(_) | Command::Wake(_) => {}
        }
    }

    /// Puts a message into the network. Messages of epochs that the receiver has left are dropped,
    /// since it ignores them.
    fn send(&self, state: &mut State, to: MemberId, mut message: Message<Entry>) {
        let index = usize::from(to.0);
        if !state.members[index].alive {
            return;
        }
        message.clock = Hlc(0);
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
        let read = Event::Read {
            request: 0,
            slot,
            from: ReadFrom::AnyOwner,
        };
        let mut out = Vec::new();
        member.core.clone().handle(NOW, read, &mut out);
        if out != [Command::Answer(0, Reply::ReadLocally)] {
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
    fn topology(&self) -> &Arc<Topology> {
        self.log.last().expect("there is a first topology")
    }

    fn commit(&mut self, change: &Change) {
        if let Some(next) = self.topology().after(change) {
            self.log.push(Arc::new(next));
        }
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
                let leads = member.core.slots()[usize::from(slot.0)].role
                    == fonn_replication::Role::Primary;
                let free = state.open[key_index].is_none() && state.writes < self.writes_max;
                if leads && free {
                    actions.push(Action::Write(index, slot.0, key));
                }
            }
        }
        if state.layouts < self.layouts_max {
            actions.push(Action::ProposeLayout);
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
                self.handle(&mut state, usize::from(to.0), Event::Message(message));
            }
            Action::Learn(index) => self.learn(&mut state, index),
            Action::Repeat(index) => self.handle(&mut state, index, Event::Timer),
            Action::Write(index, slot, key) => {
                state.writes += 1;
                let id = u32::from(state.writes);
                let key_index =
                    usize::from(slot) * usize::from(self.keys_per_slot) + usize::from(key);
                state.open[key_index] = Some((id, index));
                let event = Event::Write {
                    request: u64::from(id),
                    slot: Slot(slot),
                    entry: Entry::Value { key, id },
                };
                self.handle(&mut state, index, event);
            }
            Action::Down(index) => {
                state.downs += 1;
                // The lease is over before the change is agreed on.
                if state.members[index].alive {
                    self.handle(&mut state, index, Event::Lease(Lease::None));
                }
                state.commit(&Change::Down(MemberId(index as u8)));
            }
            Action::Crash(index, kept) => {
                state.crashes += 1;
                let member = &mut state.members[index];
                member.alive = false;
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

/// Three members, of which two own the slot.
const TWO_OWNERS: Small = Small {
    members: 3,
    replicas: 2,
    slots: 1,
    keys_per_slot: 2,
    rules: Rules::ALL,
    writes_max: 2,
    downs_max: 1,
    crashes_max: 0,
    evictions_max: 0,
    layouts_max: 0,
};

/// Three members with one owner a slot.
const ONE_OWNER: Small = Small {
    replicas: 1,
    slots: 2,
    keys_per_slot: 1,
    ..TWO_OWNERS
};

/// A slot that falls to a stand-in, returns, and falls to the stand-in again.
const TWO_FALLS: Small = Small {
    replicas: 1,
    keys_per_slot: 1,
    downs_max: 2,
    ..TWO_OWNERS
};

/// A layout that gives the slot to the next member, and evictions meanwhile.
const NEW_LAYOUT: Small = Small {
    replicas: 1,
    keys_per_slot: 1,
    downs_max: 0,
    evictions_max: 1,
    layouts_max: 1,
    ..TWO_OWNERS
};

/// A member that crashes, with or without its disk.
const CRASH: Small = Small {
    keys_per_slot: 1,
    crashes_max: 1,
    ..TWO_OWNERS
};

/// Visits all states up to a number of steps, and returns the path to a stale value if there is
/// one.
fn explore(name: &str, model: Small, steps_max: usize) -> Option<Vec<Action>> {
    let checker = model
        .checker()
        .target_max_depth(steps_max)
        .threads(2)
        .spawn_bfs()
        .join();
    println!(
        "{name}: {} states, {} steps deep",
        checker.unique_state_count(),
        checker.max_depth()
    );
    let path = checker.discovery("nothing stale");
    assert!(path.is_some() || steps_max < ALL_STEPS || checker.max_depth() < ALL_STEPS);
    path.map(|path| path.into_actions())
}

/// No run of these two clusters is longer. So all their states are visited.
const ALL_STEPS: usize = 40;

#[test]
fn no_state_with_two_owners_shows_a_stale_value() {
    assert_eq!(explore("two owners", TWO_OWNERS, ALL_STEPS), None);
}

#[test]
fn no_state_with_one_owner_shows_a_stale_value() {
    assert_eq!(explore("one owner", ONE_OWNER, ALL_STEPS), None);
}

#[test]
fn no_state_within_steps_of_two_falls_shows_a_stale_value() {
    assert_eq!(explore("two falls", TWO_FALLS, 18), None);
}

#[test]
fn no_state_within_steps_of_a_new_layout_shows_a_stale_value() {
    assert_eq!(explore("new layout", NEW_LAYOUT, 15), None);
}

#[test]
fn no_state_within_steps_of_a_crash_shows_a_stale_value() {
    assert_eq!(explore("crash", CRASH, 11), None);
}

/// Expects that a rule is needed in a small cluster, and prints how it is violated without the
/// rule.
fn needs(rule: Rule, model: Small) {
    let mutant = Small {
        rules: Rules::without(rule),
        ..model
    };
    let path = explore(&format!("without {rule:?}"), mutant, ALL_STEPS);
    println!("{:#?}", path.expect("a stale value is reachable"));
}

#[test]
fn without_all_owners_an_owner_is_behind() {
    needs(Rule::AllOwners, TWO_OWNERS);
}

#[test]
fn without_leases_a_failed_owner_is_behind() {
    needs(Rule::Lease, TWO_OWNERS);
}

#[test]
fn without_floors_a_stand_in_is_behind() {
    needs(Rule::Floor, TWO_FALLS);
}
