//! The core: the state of a member, and the dispatch of events.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::rights::Revision;
use crate::slot::{Step, Transition};
use crate::sync::Copying;
use crate::write::{Pending, WriteId};
use crate::{
    Body, Change, Command, Disk, Epoch, Event, MemberId, Message, Role, Rule, Rules, Saved, Slot,
    SlotSet, SlotState, Status, Topology,
};

/// Limits and periods.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// The member itself.
    pub me: MemberId,
    /// How many slots there are.
    pub slots_len: u16,
    /// Most groups of slots that are copied at a time.
    pub copies_max: usize,
    /// How often the member tells its epoch and repeats what was not answered. The shell delivers
    /// [`Event::Timer`] as often.
    pub tick: Duration,
    /// A write that is not acknowledged within this time is refused.
    pub refuse_after: Duration,
    /// The rules in force.
    pub rules: Rules,
}

/// The replication state of a member.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Core<E> {
    pub(crate) config: Config,
    pub(crate) incarnation: u64,
    /// R5: whether the member has everything that it acknowledged, or the members know that it has
    /// not. A member that is not fit must not go on in an epoch of its earlier life: it has lost
    /// writes and versions of that epoch. It is saved, so that a further start does not make it
    /// fit.
    fit: bool,
    pub(crate) applied: Epoch,
    pub(crate) topology: Option<Arc<Topology>>,
    pub(crate) slots: Vec<SlotState>,
    /// R6: up to this time the member may answer.
    pub(crate) lease: Duration,
    /// The epoch that each member has told to have applied.
    told: Vec<Epoch>,
    /// The lowest epoch that a member that is up has told to have applied.
    pub(crate) applied_by_all: Epoch,
    /// The log misses changes of this epoch and of earlier ones.
    pub(crate) evicted: Epoch,
    pub(crate) pending: BTreeMap<WriteId, Pending<E>>,
    pub(crate) copying: Vec<Copying>,
    pub(crate) attempts: u64,
    pub(crate) revision: Revision,
}

impl<E: Clone> Core<E> {
    /// The core of a member that has not started yet.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            incarnation: 0,
            fit: false,
            applied: Epoch(0),
            topology: None,
            slots: vec![SlotState::default(); usize::from(config.slots_len)],
            lease: Duration::ZERO,
            told: Vec::new(),
            applied_by_all: Epoch(0),
            evicted: Epoch(0),
            pending: BTreeMap::new(),
            copying: Vec::new(),
            attempts: 0,
            revision: Revision::default(),
            config,
        }
    }

    /// Handles an event and appends to `out` what the shell has to do. `now` is the time of a
    /// monotonic clock that also runs while the process is stopped.
    pub fn handle(&mut self, now: Duration, event: Event<E>, out: &mut Vec<Command<E>>) {
        match event {
            Event::Start { disk, incarnation } => self.start(disk, incarnation),
            Event::Topology(topology) => self.apply(now, &topology, out),
            Event::Lease(lease) => {
                self.lease = lease;
                self.answer_pending(now, out);
            }
            Event::Message(message) => self.receive(now, message, out),
            Event::Write { request, record } => self.write(now, request, record, out),
            Event::Cleared(attempt) => self.take_cleared(now, attempt, out),
            Event::Evicted { through } => self.evicted = self.evicted.max(through),
            Event::Timer => self.tick(now, out),
        }
    }

    /// R5: a member that kept everything goes on where it was. Every other member syncs.
    fn start(&mut self, disk: Disk, incarnation: u64) {
        self.incarnation = incarnation;
        let rules = self.config.rules;
        let (saved, is_clean) = match disk {
            Disk::Clean(saved) => (saved, true),
            Disk::Unclean(saved) => (saved, !rules.hold(Rule::CleanStart)),
            Disk::Empty => return,
        };
        if saved.slots.len() == self.slots.len() {
            self.applied = saved.applied;
            self.slots = saved.slots.into_iter().map(SlotState::restored).collect();
        }
        self.fit = is_clean && (saved.is_fit || !rules.hold(Rule::SavedFitness));
        if !self.fit {
            self.slots.iter_mut().for_each(SlotState::forget_sync);
        }
    }

    /// Applies a topology of a later epoch: first the slots, then what was pending under the old
    /// one. After a start it may be the topology that the member had applied before.
    fn apply(&mut self, now: Duration, topology: &Arc<Topology>, out: &mut Vec<Command<E>>) {
        let is_known = self.topology.is_some() && topology.epoch == self.applied;
        if topology.epoch < self.applied || is_known {
            return;
        }
        let me = topology.members.get(usize::from(self.config.me.0));
        self.fit |= me.is_some_and(|me| me.incarnation == self.incarnation);
        self.fit |= !self.config.rules.hold(Rule::Agreed);
        let before = self.topology.take();
        let step = Step {
            me: self.config.me,
            rules: self.config.rules,
            from: self.applied,
            before: before.as_deref(),
            to: topology,
            fit: self.fit,
        };
        let mut transitions = vec![Transition::default(); self.slots.len()];
        for ((index, state), transition) in (0u16..).zip(&mut self.slots).zip(&mut transitions) {
            *transition = state.step(Slot(index), &step);
        }
        self.applied = topology.epoch;
        self.topology = Some(Arc::clone(topology));
        self.told.resize(topology.members.len(), Epoch(0));
        let numbered = (0u16..).map(Slot).zip(&transitions);
        let emptied: SlotSet = numbered
            .filter(|(_, transition)| transition.raise_floor)
            .map(|(slot, _)| slot)
            .collect();
        if !emptied.is_empty() {
            out.push(Command::RaiseFloor(emptied));
        }
        out.push(Command::Save(None));
        self.revision.0 += 1;
        self.note_applied_by_all();
        self.resend_pending(now, out);
        self.continue_copies(now, &transitions, out);
        self.tell_status(out);
        self.propose_own_status(out);
    }

    fn receive(&mut self, now: Duration, message: Message<E>, out: &mut Vec<Command<E>>) {
        let Message { from, epoch, body } = message;
        let Some(told) = self.told.get_mut(usize::from(from.0)) else {
            return;
        };
        if epoch > *told {
            *told = epoch;
            self.note_applied_by_all();
            self.resend_pending_to(from, out);
            self.answer_pending(now, out);
        }
        // R1: the sender and this member have to mean the same topology. The sender repeats what it
        // sent when both have applied one epoch.
        let takes_writes = epoch == self.applied || !self.config.rules.hold(Rule::SameEpoch);
        match body {
            Body::Status => {}
            Body::Write(record) if takes_writes => self.take_write(from, record, out),
            Body::Ack { slot, version } if takes_writes => {
                self.take_ack(now, from, (version, slot), out);
            }
            Body::Page(page) if epoch == self.applied => self.take_page(now, page, out),
            Body::Incomplete { request, slots } if epoch == self.applied => {
                self.copy_in_full(now, &request, &slots, out);
            }
            _ => {}
        }
    }

    /// Repeats what was not answered.
    fn tick(&mut self, now: Duration, out: &mut Vec<Command<E>>) {
        self.tell_status(out);
        self.propose_own_status(out);
        self.repeat_pending(now, out);
        self.repeat_copies(now, out);
    }

    fn tell_status(&self, out: &mut Vec<Command<E>>) {
        let members = self.topology.as_ref().map_or(0, |t| t.members.len());
        for member in (0u8..).take(members).map(MemberId) {
            if member != self.config.me {
                self.send(member, Body::Status, out);
            }
        }
    }

    /// Asks the leader to note what this member knows about itself.
    pub(crate) fn propose_own_status(&self, out: &mut Vec<Command<E>>) {
        let Some(topology) = &self.topology else {
            return;
        };
        let me = topology.members.get(usize::from(self.config.me.0));
        let Some(member) = me else { return };
        let unfit = |state: &SlotState| state.role.owns() && !state.in_sync;
        let behind = |state: &SlotState| state.role != Role::None && !state.in_sync;
        let (member_id, applied) = (self.config.me, self.applied);
        let asks_to_sync = match member.status {
            Status::Down => true,
            Status::InSync => !self.fit || self.slots.iter().any(unfit),
            Status::Syncing => !self.fit,
        };
        let waits = topology.next_layout.is_some() && !member.ready;
        if asks_to_sync {
            out.push(Command::Propose(Change::Sync {
                member: member_id,
                applied,
                incarnation: self.incarnation,
            }));
        } else if (member.status == Status::Syncing || waits) && !self.slots.iter().any(behind) {
            out.push(Command::Propose(Change::InSync {
                member: member_id,
                applied,
            }));
        }
    }

    /// Changes the states of some slots.
    pub(crate) fn change_slots(&mut self, slots: &SlotSet, change: impl Fn(&mut SlotState)) {
        for slot in slots {
            if let Some(state) = self.slots.get_mut(slot.index()) {
                change(state);
            }
        }
    }

    fn note_applied_by_all(&mut self) {
        let Some(topology) = &self.topology else {
            return;
        };
        let others = topology.up().filter(|&member| member != self.config.me);
        let told = others.map(|member| self.told_epoch(member));
        let by_all = told.min().unwrap_or(self.applied).min(self.applied);
        if by_all != self.applied_by_all {
            self.applied_by_all = by_all;
            self.revision.0 += 1;
        }
    }

    pub(crate) fn send(&self, to: MemberId, body: Body<E>, out: &mut Vec<Command<E>>) {
        let message = Message {
            from: self.config.me,
            epoch: self.applied,
            body,
        };
        out.push(Command::Send(to, message));
    }
}

impl<E> Core<E> {
    /// The epoch that the member has applied.
    #[must_use]
    pub fn applied(&self) -> Epoch {
        self.applied
    }

    /// R5: whether the member has everything that it acknowledged, or the members know that it has
    /// not. [`Command::Save`] makes it durable.
    #[must_use]
    pub fn is_fit(&self) -> bool {
        self.fit
    }

    /// The states of all slots. [`Command::Save`] makes durable what is saved of them.
    #[must_use]
    pub fn slots(&self) -> &[SlotState] {
        &self.slots
    }

    /// What [`Command::Save`] of all slots makes durable.
    #[must_use]
    pub fn saved(&self) -> Saved {
        Saved {
            applied: self.applied,
            is_fit: self.fit,
            slots: self.slots.iter().map(SlotState::saved).collect(),
        }
    }

    /// The slots with their states.
    pub(crate) fn numbered(&self) -> impl Iterator<Item = (Slot, &SlotState)> {
        (0u16..).map(Slot).zip(&self.slots)
    }

    /// The epoch that a member has told to have applied.
    #[must_use]
    pub fn told_epoch(&self, member: MemberId) -> Epoch {
        let told = self.told.get(usize::from(member.0));
        told.copied().unwrap_or_default()
    }
}
