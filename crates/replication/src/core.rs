//! The core: the state of a member, and the dispatch of events.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::slot::{Step, Transition};
use crate::sync::Copying;
use crate::write::{FlushProgress, Pending};
use crate::{
    Body, Change, Command, Disk, Epoch, Event, Hlc, Lease, MemberId, Message, Now, Reply, Role,
    Rule, Rules, Slot, SlotState, Status, Topology,
};

/// Limits and periods.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// The member itself.
    pub me: MemberId,
    /// The region of its cluster.
    pub region: u16,
    /// How many slots there are.
    pub slots_len: u16,
    /// Most writes that wait for acknowledgements. More are answered as busy.
    pub pending_max: usize,
    /// Most slots that are copied at a time.
    pub copies_max: usize,
    /// How often the member tells its epoch and repeats what was not answered.
    pub tick: Duration,
    /// A member that has not taken a write for so long is proposed as down.
    pub suspect_after: Duration,
    /// A write that is not acknowledged within this time is refused.
    pub refuse_after: Duration,
    /// How wrong the clocks of members may be without a loss of order between regions.
    pub clock_error_ms_max: u64,
    /// The rules in force.
    pub rules: Rules,
}

/// What another member told last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct MemberReport {
    pub(crate) epoch: Epoch,
    clock: Hlc,
    at: Duration,
}

/// The replication state of a member.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Core<E> {
    pub(crate) config: Config,
    pub(crate) incarnation: u64,
    /// R5: whether the process started with everything that it had acknowledged, or the members
    /// know that it did not. A member that is not fit must not go on in an epoch of its earlier
    /// life: it has lost writes and versions of that epoch.
    fit: bool,
    pub(crate) applied: Epoch,
    pub(crate) topology: Option<Arc<Topology>>,
    pub(crate) slots: Vec<SlotState>,
    pub(crate) lease: Lease,
    pub(crate) clock: Clock,
    pub(crate) heard: Vec<MemberReport>,
    /// The lowest epoch that a member that is up has told to have applied.
    pub(crate) applied_by_all: Epoch,
    /// The log misses changes of this epoch and of earlier ones.
    pub(crate) evicted: Epoch,
    /// In the order of their clocks.
    pub(crate) pending: VecDeque<Pending<E>>,
    pub(crate) flushes: Vec<FlushProgress>,
    pub(crate) copying: Vec<Copying>,
    pub(crate) attempts: u64,
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
            lease: Lease::None,
            clock: Clock::new(Hlc(0)),
            heard: Vec::new(),
            applied_by_all: Epoch(0),
            evicted: Epoch(0),
            pending: VecDeque::new(),
            flushes: Vec::new(),
            copying: Vec::new(),
            attempts: 0,
            config,
        }
    }

    /// Handles an event and appends to `out` what the shell has to do.
    pub fn handle(&mut self, now: Now, event: Event<E>, out: &mut Vec<Command<E>>) {
        match event {
            Event::Start {
                disk,
                incarnation,
                clock,
            } => self.start(now, disk, incarnation, clock, out),
            Event::Topology(topology) => self.apply(now, &topology, out),
            Event::Lease(lease) => self.change_lease(now, lease, out),
            Event::Message(message) => self.receive(now, message, out),
            Event::Write {
                request,
                slot,
                entry,
            } => self.write(now, request, slot, entry, out),
            Event::Flush { request, entry } => self.flush(now, request, &entry, out),
            Event::Read {
                request,
                slot,
                from,
            } => out.push(Command::Answer(request, self.read(now, slot, from))),
            Event::PageRead { to, page } => self.send_page(to, page, out),
            Event::Evicted { through } => self.evicted = self.evicted.max(through),
            Event::Timer => self.tick(now, out),
        }
    }

    /// R5: a member that kept its disk goes on where it was. Every other member syncs.
    fn start(
        &mut self,
        now: Now,
        disk: Disk,
        incarnation: u64,
        clock: Hlc,
        out: &mut Vec<Command<E>>,
    ) {
        self.incarnation = incarnation;
        self.clock = Clock::new(clock);
        let (saved, clean) = match disk {
            Disk::Clean(saved) => (saved, true),
            Disk::Unclean(saved) => (saved, !self.config.rules.hold(Rule::CleanStart)),
            Disk::Empty => return out.push(Command::Wake(now.elapsed + self.config.tick)),
        };
        if saved.slots.len() == self.slots.len() {
            self.applied = saved.applied;
            self.slots = saved.slots;
        }
        self.fit = clean;
        if !clean {
            self.slots.iter_mut().for_each(SlotState::forget_sync);
        }
        out.push(Command::Wake(now.elapsed + self.config.tick));
    }

    /// Applies a topology: first the slots, then what was pending under the old one.
    fn apply(&mut self, now: Now, topology: &Arc<Topology>, out: &mut Vec<Command<E>>) {
        let known = self.topology.is_some();
        if topology.epoch < self.applied || (known && topology.epoch == self.applied) {
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
        let mut begins_tenure = false;
        let mut transitions = vec![Transition::default(); self.slots.len()];
        for ((index, state), transition) in (0u16..).zip(&mut self.slots).zip(&mut transitions) {
            *transition = state.step(Slot(index), &step);
            if transition.raise_floor {
                out.push(Command::RaiseFloor(Slot(index)));
            }
            begins_tenure |= transition.begins_tenure;
        }
        self.applied = topology.epoch;
        self.topology = Some(Arc::clone(topology));
        self.heard
            .resize(topology.members.len(), MemberReport::default());
        out.push(Command::Save(None));
        if begins_tenure && self.config.rules.hold(Rule::PassClocks) {
            let heard = self.heard.iter().map(|heard| (heard.clock, heard.at));
            self.clock.pass(now, self.config.clock_error_ms_max, heard);
        }
        self.note_applied_by_all();
        self.resend_pending(now, out);
        self.continue_copies(now, &transitions, out);
        self.tell_status(out);
        self.propose_own_status(out);
    }

    fn change_lease(&mut self, now: Now, lease: Lease, out: &mut Vec<Command<E>>) {
        self.lease = lease;
        if let Lease::Until(end) = lease {
            let left_ms = end.saturating_sub(now.elapsed).as_millis();
            let left_ms = u64::try_from(left_ms).unwrap_or_default();
            self.clock.allow_until(now.wall_ms.saturating_add(left_ms));
        }
        self.answer_pending(now, out);
    }

    fn receive(&mut self, now: Now, message: Message<E>, out: &mut Vec<Command<E>>) {
        let Message {
            from,
            epoch,
            clock,
            body,
        } = message;
        self.clock.observe(clock);
        let Some(heard) = self.heard.get_mut(usize::from(from.0)) else {
            return;
        };
        let advanced = epoch > heard.epoch;
        *heard = MemberReport {
            epoch: heard.epoch.max(epoch),
            clock: heard.clock.max(clock),
            at: now.elapsed,
        };
        if advanced {
            self.note_applied_by_all();
            self.resend_pending_to(from, out);
            self.answer_pending(now, out);
        }
        // R1: the sender and this member have to mean the same topology. The sender repeats what it
        // sent when both have applied one epoch.
        let takes_writes = epoch == self.applied || !self.config.rules.hold(Rule::SameEpoch);
        match body {
            Body::Status => {}
            Body::Write {
                slot,
                version,
                entry,
            } if takes_writes => self.take_write(from, epoch, slot, version, entry, out),
            Body::Ack { clock } if takes_writes => self.take_ack(now, from, clock, out),
            Body::PageRequest(request) if epoch == self.applied => {
                self.answer_page_request(from, request, out);
            }
            Body::Page(page) if epoch == self.applied => self.take_page(now, page, out),
            Body::Incomplete(request) if epoch == self.applied => {
                self.copy_in_full(now, request, out);
            }
            _ => {}
        }
    }

    /// Repeats what was not answered.
    fn tick(&mut self, now: Now, out: &mut Vec<Command<E>>) {
        self.tell_status(out);
        self.propose_own_status(out);
        self.repeat_pending(now, out);
        self.repeat_copies(now, out);
        out.push(Command::Wake(now.elapsed + self.config.tick));
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

    fn note_applied_by_all(&mut self) {
        let Some(topology) = &self.topology else {
            return;
        };
        let others = topology.up().filter(|&member| member != self.config.me);
        let told = others.map(|member| self.told_epoch(member));
        self.applied_by_all = told.min().unwrap_or(self.applied).min(self.applied);
    }

    /// The epoch that a member has told to have applied.
    pub(crate) fn told_epoch(&self, member: MemberId) -> Epoch {
        let heard = self.heard.get(usize::from(member.0));
        heard.map_or(Epoch(0), |heard| heard.epoch)
    }

    pub(crate) fn send(&self, to: MemberId, body: Body<E>, out: &mut Vec<Command<E>>) {
        let message = Message {
            from: self.config.me,
            epoch: self.applied,
            clock: self.clock.last(),
            body,
        };
        out.push(Command::Send(to, message));
    }

    pub(crate) fn answer(request: u64, reply: Reply, out: &mut Vec<Command<E>>) {
        out.push(Command::Answer(request, reply));
    }
}

impl<E> Core<E> {
    /// The epoch that the member has applied.
    #[must_use]
    pub fn applied(&self) -> Epoch {
        self.applied
    }

    /// The states of all slots, which [`Command::Save`] makes durable.
    #[must_use]
    pub fn slots(&self) -> &[SlotState] {
        &self.slots
    }

    /// The last clock that the member assigned or observed.
    #[must_use]
    pub fn clock(&self) -> Hlc {
        self.clock.last()
    }

    /// The primary of a slot by the applied topology.
    pub(crate) fn primary(&self, slot: Slot) -> Option<MemberId> {
        self.topology.as_ref()?.primary(slot)
    }
}
