//! Flushes, which the shell carries out without the core (`node/src/replication/flushes.rs`).
//!
//! A flush is about all slots. A member or a router begins it. All members that are up hide what
//! they have behind a version of their own clocks, and then agree on the highest of them. A learner
//! takes over what its primary has flushed.

use std::collections::BTreeSet;
use std::time::Duration;

use fonn_replication::{Body, Core, Epoch, Event, Message, Status, Version};

use super::setup::Shell;
use super::store::Entry;
use super::world::{Action, At, World};

/// How long a flush may take.
const TIMEOUT_MS: u64 = 5_000;
/// How long a member may take to answer.
const ANSWER_MS: u64 = 3_000;
/// Between two tries.
const RETRY_MS: u64 = 100;

/// A flush that is not answered.
pub struct Flush {
    cluster: usize,
    /// The member and its incarnation. `None` if a router begins the flush.
    by: Option<(usize, u64)>,
    /// When it began, as the judge counts.
    began: u64,
    deadline: u64,
    attempt: u64,
    epoch: Epoch,
    waiting: BTreeSet<usize>,
    highest: Version,
    /// What all members have to agree to.
    cutoff: Option<Version>,
}

/// What a member is asked.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    flush: u64,
    attempt: u64,
    epoch: Epoch,
    cutoff: Option<Version>,
}

/// A step of a flush.
#[derive(Clone, Debug)]
pub enum Flushing {
    /// Begins a flush, and schedules the next one.
    Begin,
    /// Begins a try.
    Try(u64),
    /// A member is asked.
    Ask(At, Ask),
    /// A member has answered.
    Answer(Ask, usize, Option<Version>),
    /// A member has not answered an attempt in time.
    Limit(u64, u64),
    /// A primary is asked for its flushes by a learner of an incarnation that has its last page.
    Tell(At, (usize, u64), Message<Entry>),
    /// A learner of an incarnation is told the flushes, before it takes the last page.
    Learn(At, u64, Version, Message<Entry>),
}

impl World {
    /// Carries out a step. Members that it is about are running.
    pub fn flush(&mut self, step: Flushing) {
        match step {
            Flushing::Begin => self.begin_flush(),
            Flushing::Try(id) => self.try_flush(id),
            Flushing::Ask(at, ask) => self.take_flush(at, ask),
            Flushing::Answer(ask, member, taken) => self.take_flush_answer(ask, member, taken),
            Flushing::Limit(id, attempt) => self.limit_flush(id, attempt),
            Flushing::Tell(at, to, page) => self.tell_flushes(at, to, page),
            Flushing::Learn(at, _, flushed, page) => self.learn_flushes(at, flushed, page),
        }
    }

    fn schedule_flush(&mut self, after_ms: u64, step: Flushing) {
        self.schedule(after_ms, Action::Flush(step));
    }

    fn begin_flush(&mut self) {
        let pause = self.random.between(200, 3_000);
        self.schedule_flush(pause, Flushing::Begin);
        let cluster = self.random.index(self.clusters.len());
        let n = self.random.index(self.setup.members);
        let is_by_router = self.random.percent(30);
        let node = &self.clusters[cluster].nodes[n];
        if !node.runs() || node.core.applied() == Epoch(0) {
            return;
        }
        let by = (!is_by_router).then_some((n, node.incarnation));
        let epoch = node.core.applied();
        self.next_request += 1;
        let flush = Flush {
            cluster,
            by,
            began: self.clusters[cluster].judge.begin_flush(),
            deadline: self.now + TIMEOUT_MS,
            attempt: 0,
            epoch,
            waiting: BTreeSet::new(),
            highest: Version(0),
            cutoff: None,
        };
        self.flushes.insert(self.next_request, flush);
        self.try_flush(self.next_request);
    }

    /// Whether the process that began a flush goes on with it now. If it has ended, so has the
    /// flush.
    fn goes_on(&mut self, id: u64) -> bool {
        let Some(flush) = self.flushes.get(&id) else {
            return false;
        };
        let Some((n, incarnation)) = flush.by else {
            return true;
        };
        let node = &self.clusters[flush.cluster].nodes[n];
        if !node.alive || node.incarnation != incarnation {
            self.end_flush(id, false);
            return false;
        }
        node.paused_until.is_none()
    }

    /// Begins with all members that are up by the applied epoch.
    fn try_flush(&mut self, id: u64) {
        if !self.goes_on(id) {
            if self.flushes.contains_key(&id) {
                self.schedule_flush(RETRY_MS, Flushing::Try(id));
            }
            return;
        }
        let now = self.moment();
        let flush = self.flushes.get_mut(&id).expect("it goes on");
        if self.now >= flush.deadline {
            return self.end_flush(id, false);
        }
        let cluster = &mut self.clusters[flush.cluster];
        flush.epoch = match flush.by {
            Some((n, _)) => cluster.nodes[n].core.applied(),
            // A router follows the topology, and may be behind.
            None => {
                let known = cluster.nodes.iter().map(|node| node.core.applied());
                let mut known: Vec<Epoch> = known.filter(|epoch| epoch.0 > 0).collect();
                known.push(flush.epoch);
                known[self.random.index(known.len())]
            }
        };
        flush.attempt += 1;
        (flush.highest, flush.cutoff) = (Version(0), None);
        if let Some((n, _)) = flush.by {
            let wall_ms = self.now + cluster.nodes[n].wall_offset_ms;
            if !may_draw(&cluster.nodes[n].core, now) {
                self.schedule_flush(RETRY_MS, Flushing::Try(id));
                return;
            }
            flush.highest = cluster.nodes[n].store.flush_now(wall_ms);
        }
        let attempt = flush.attempt;
        self.schedule_flush(ANSWER_MS, Flushing::Limit(id, attempt));
        self.ask_to_flush(id);
    }

    /// Asks all members of the epoch that are up for the next step.
    fn ask_to_flush(&mut self, id: u64) {
        let flush = self.flushes.get_mut(&id).expect("it goes on");
        let cluster = &self.clusters[flush.cluster];
        let agreed = &cluster.raft.log[cluster.raft.position(flush.epoch)];
        let own = flush.by.map(|(n, _)| n);
        let members = agreed.topology.members.iter().enumerate();
        let up = members.filter(|(_, member)| member.status != Status::Down);
        flush.waiting = up.map(|(n, _)| n).filter(|&n| Some(n) != own).collect();
        let (c, from) = (flush.cluster, own);
        let ask = Ask {
            flush: id,
            attempt: flush.attempt,
            epoch: flush.epoch,
            cutoff: flush.cutoff,
        };
        for n in flush.waiting.clone() {
            // The requests of one connection arrive in their order.
            if let Some(delay) = self.delay(c, from, Some(n)) {
                let arrives = self.flush_arrivals.entry((c, from, n)).or_default();
                *arrives = (*arrives).max(self.now + delay);
                let delay = *arrives - self.now;
                self.schedule_flush(delay, Flushing::Ask((c, n), ask));
            }
        }
        self.go_on_flushing(id);
    }

    /// How long a message of a request or an answer takes. `None` if it does not arrive. Routers
    /// have links of their own.
    fn delay(&mut self, c: usize, from: Option<usize>, to: Option<usize>) -> Option<u64> {
        if let (Some(from), Some(to)) = (from, to)
            && self.clusters[c].cut[from][to] > self.now
        {
            return None;
        }
        match self.random.below(100) {
            0..=3 if self.chaos => None,
            4..=9 if self.chaos => Some(self.random.between(100, 2_000)),
            _ => Some(self.random.between(1, 20)),
        }
    }

    /// A member does its part.
    fn take_flush(&mut self, at: At, ask: Ask) {
        let (now, wall_ms) = (self.moment(), self.wall_ms(at));
        let any_epoch = self.setup.shell == Shell::FlushesInAnyEpoch;
        let node = &mut self.clusters[at.0].nodes[at.1];
        let is_of_epoch = node.core.applied() == ask.epoch || any_epoch;
        let taken = match ask.cutoff {
            _ if !is_of_epoch => None,
            Some(cutoff) => {
                node.store.flush_below(cutoff);
                Some(cutoff)
            }
            None if !may_draw(&node.core, now) => None,
            None => Some(node.store.flush_now(wall_ms)),
        };
        self.log(|| format!("{at:?} takes {ask:?}: {taken:?}"));
        let by = self.flushes.get(&ask.flush).map(|flush| flush.by);
        let Some(by) = by else { return };
        let to = by.map(|(n, _)| n);
        if let Some(delay) = self.delay(at.0, Some(at.1), to) {
            self.schedule_flush(delay, Flushing::Answer(ask, at.1, taken));
        }
    }

    /// A member has answered.
    fn take_flush_answer(&mut self, ask: Ask, member: usize, taken: Option<Version>) {
        if !self.goes_on(ask.flush) {
            if self.flushes.contains_key(&ask.flush) {
                self.schedule_flush(RETRY_MS, Flushing::Answer(ask, member, taken));
            }
            return;
        }
        let flush = self.flushes.get_mut(&ask.flush).expect("it goes on");
        if (flush.attempt, flush.cutoff) != (ask.attempt, ask.cutoff) {
            return;
        }
        let Some(version) = taken else {
            flush.attempt += 1;
            return self.schedule_flush(RETRY_MS, Flushing::Try(ask.flush));
        };
        flush.highest = flush.highest.max(version);
        flush.waiting.remove(&member);
        self.go_on_flushing(ask.flush);
    }

    /// Begins the next step when all members have answered.
    fn go_on_flushing(&mut self, id: u64) {
        let flush = self.flushes.get_mut(&id).expect("it goes on");
        if !flush.waiting.is_empty() {
            return;
        }
        let agrees = self.setup.shell != Shell::FlushesApart;
        if flush.cutoff.is_none() && agrees {
            flush.cutoff = Some(flush.highest);
            if let Some((n, _)) = flush.by {
                let node = &mut self.clusters[flush.cluster].nodes[n];
                node.store.flush_below(flush.highest);
            }
            return self.ask_to_flush(id);
        }
        let node = flush
            .by
            .map(|(n, _)| &self.clusters[flush.cluster].nodes[n]);
        let is_of_epoch = node.is_none_or(|node| node.core.applied() == flush.epoch);
        if is_of_epoch || self.setup.shell == Shell::FlushesInAnyEpoch {
            return self.end_flush(id, true);
        }
        flush.attempt += 1;
        self.schedule_flush(RETRY_MS, Flushing::Try(id));
    }

    /// A member has not answered in time.
    fn limit_flush(&mut self, id: u64, attempt: u64) {
        let flush = self.flushes.get_mut(&id);
        if let Some(flush) = flush.filter(|flush| flush.attempt == attempt) {
            flush.attempt += 1;
            self.try_flush(id);
        }
    }

    fn end_flush(&mut self, id: u64, is_done: bool) {
        let flush = self.flushes.remove(&id).expect("it is not answered");
        let cluster = &mut self.clusters[flush.cluster];
        let is_left_behind = flush.by.is_some_and(|(n, _)| cluster.is_left_behind(n));
        let is_done = is_done && !is_left_behind;
        if !is_done {
            // What it hides may show until members apply the next epoch, and newer writes may go.
            let ceiling = cluster.raft.ceiling(cluster.raft.topology().epoch);
            cluster.doubtful = cluster.doubtful.max(ceiling);
        }
        cluster.judge.end_flush(flush.began, is_done);
        let epoch = flush.epoch;
        self.log(|| format!("flush {id} of {epoch:?} is done: {is_done}"));
    }

    /// A learner that has the last page asks its primary for flushes: pages leave out what is
    /// hidden.
    pub fn ask_for_flushes(&mut self, at: At, page: Message<Entry>) {
        let n = usize::from(page.from.0);
        if let Some(delay) = self.delay(at.0, Some(at.1), Some(n)) {
            let incarnation = self.clusters[at.0].nodes[at.1].incarnation;
            let asked = Flushing::Tell((at.0, n), (at.1, incarnation), page);
            self.schedule_flush(delay, asked);
        }
    }

    /// The primary tells its flushes, if both go by the same epoch.
    fn tell_flushes(&mut self, at: At, to: (usize, u64), page: Message<Entry>) {
        let node = &self.clusters[at.0].nodes[at.1];
        let (applied, flushed) = (node.core.applied(), node.store.flushed());
        if applied == page.epoch
            && let Some(delay) = self.delay(at.0, Some(at.1), Some(to.0))
        {
            let told = Flushing::Learn((at.0, to.0), to.1, flushed, page);
            self.schedule_flush(delay, told);
        }
    }

    /// The learner takes them over before it takes the page.
    fn learn_flushes(&mut self, at: At, flushed: Version, page: Message<Entry>) {
        if self.setup.shell != Shell::LearnsNoFlushes {
            let node = &mut self.clusters[at.0].nodes[at.1];
            node.store.flush_below(flushed);
        }
        self.handle(at, Event::Message(page));
    }
}

/// Whether a member may draw a cutoff. Without a lease, others may have flushed without it. If it
/// is not fit, its clock may be below versions that it has assigned in the epoch.
fn may_draw(core: &Core<Entry>, now: Duration) -> bool {
    core.may_answer(now) && core.is_fit()
}

/// Whether a message has the last page of a copy.
pub fn is_last_page(message: &Message<Entry>) -> bool {
    matches!(&message.body, Body::Page(page) if page.next.is_none())
}
