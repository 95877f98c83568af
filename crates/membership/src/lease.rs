//! Leases: what a leader grants, and for how long a member may answer for its slots. Pure.
//!
//! A member is down when its answers do not reach the leader, although it may hear the leader. So
//! each probe of a leader names the last probe whose answer it has. A member goes on until the
//! [silence](super::state::State::down_after) after it *received* that earlier probe. The leader
//! noticed the silence later than that, whatever becomes of the answers since.
//!
//! The leader grants no lease to a member between the proposal that it is down and its return. It
//! grants none before it has applied the proposals of earlier leaders. A new leader does not know
//! the leases of the last one, so it waits until they are over ([`Grants::may_fall`]). The previous
//! leader itself has no lease. It goes on until another member can be elected, and a moment longer.
//!
//! A member that is to be removed gets no new lease, and its answers do not count. So it is
//! declared down like a silent member, and other members own its slots when its last lease is over.
//! A leader that is to be removed grants itself nothing.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use fonn_proto::grpc::v1::PingRequest;
use openraft::ServerState;

use super::election::LEASE;
use super::participant::QUORUM_FRESH;
use super::types::{Metrics, RaftId};

/// Beyond the silence: how long a new leader waits for promises of the last one. Those are about a
/// question that was got at most [`QUORUM_FRESH`] and the
/// [deadline](super::detector::ANSWER_DEADLINE) of answers after a majority had answered it, and no
/// leader is elected before the [`LEASE`] is over that this gave it.
const NEW_LEADER_EXTRA: Duration = Duration::from_secs(1);
/// How long a new leader waits for the one before it: that goes on for as long beyond the time at
/// which another member can be elected.
const OLD_LEADER_EXTRA: Duration = Duration::from_millis(400);
/// Questions of one member whose receipt is remembered.
const ASKED_MAX: usize = 8;
/// Members that ask, at most; voters do.
const ASKING_MAX: usize = 64;
/// Promises by different maps that are remembered.
const PROMISES_MAX: usize = 16;

/// What a member was promised.
#[derive(Debug, Default)]
pub(super) struct Lease {
    asked: BTreeMap<RaftId, VecDeque<(u64, Instant)>>,
    promises: VecDeque<(u64, Instant)>,
    /// When a leader was heard that promises.
    promising: Option<Instant>,
}

impl Lease {
    /// Takes a question in. A question without a number is malformed and counts for nothing.
    pub(super) fn hear(&mut self, question: &PingRequest, silence: Duration, now: Instant) {
        if question.sequence == 0 {
            return;
        }
        let from = question.ends.map_or(0, |ends| ends.source);
        if self.asked.len() >= ASKING_MAX && !self.asked.contains_key(&from) {
            self.asked.clear();
        }
        let asked = self.asked.entry(from).or_default();
        let got = asked.iter().find(|(of, _)| *of == question.granted);
        let got = got.map(|(_, at)| *at);
        asked.push_back((question.sequence, now));
        if asked.len() > ASKED_MAX {
            asked.pop_front();
        }
        if question.is_leading {
            self.promising = Some(now);
            if let Some(got) = got {
                self.promise(question.epoch, got + silence, now);
            }
        }
    }

    /// It may go on until then, by the map of `epoch` or a newer one: promised by the leader, or
    /// known by itself if it is that.
    pub(super) fn promise(&mut self, epoch: u64, until: Instant, now: Instant) {
        self.promising = Some(now);
        self.promises.retain(|(_, end)| *end > now);
        match self.promises.iter_mut().find(|(of, _)| *of == epoch) {
            Some((_, end)) => *end = until.max(*end),
            None => self.promises.push_back((epoch, until)),
        }
        if self.promises.len() > PROMISES_MAX {
            self.promises.pop_front();
        }
    }

    /// It leads: the one that leads next takes it for no more than that, so what others promised it
    /// before is over.
    pub(super) fn lead(&mut self) {
        self.promises.clear();
    }

    /// For how long a member may go on that has applied the map of `epoch`.
    pub(super) fn left(&self, epoch: u64, now: Instant) -> Duration {
        let known = self.promises.iter().filter(|(of, _)| *of <= epoch);
        let end = known.map(|(_, end)| *end).max();
        end.map_or(Duration::ZERO, |end| end.saturating_duration_since(now))
    }

    /// How long ago a leader was heard that promises.
    pub(super) fn silence(&self, now: Instant) -> Option<Duration> {
        let heard = self.promising?;
        Some(now.saturating_duration_since(heard))
    }
}

/// What raft is to this member at the moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Role {
    /// The term, if it leads.
    pub(super) leads: Option<u64>,
    /// How long ago a majority had answered, if it leads and has applied what leaders before it
    /// proposed.
    pub(super) acked: Option<Duration>,
}

impl Role {
    pub(super) fn of(metrics: &Metrics) -> Self {
        let is_leader = metrics.state == ServerState::Leader;
        let applied = metrics.last_applied.map(|it| it.leader_id.term);
        let is_settled = is_leader && applied == Some(metrics.current_term);
        let acked = metrics.millis_since_quorum_ack.map(Duration::from_millis);
        Self {
            leads: is_leader.then_some(metrics.current_term),
            acked: acked.filter(|_| is_settled),
        }
    }

    /// How long it may go on itself, as a leader that others do not vote against for [`LEASE`]
    /// after they answered.
    pub(super) fn own_lease(self) -> Option<Duration> {
        let left = (LEASE + OLD_LEADER_EXTRA).checked_sub(self.acked?)?;
        (!left.is_zero()).then_some(left)
    }

    /// Whether it may promise something.
    pub(super) fn promises(self) -> bool {
        self.acked.is_some_and(|acked| acked <= QUORUM_FRESH)
    }
}

/// What a leader promises.
#[derive(Debug)]
pub(super) struct Grants {
    sequence: u64,
    answered: BTreeMap<RaftId, u64>,
    /// Proposed to be down, and not agreed on as far as is known.
    falling: BTreeSet<RaftId>,
    /// The term in which it leads, and since when.
    leads: Option<(u64, Instant)>,
    /// The last leader before it: no other one can have promised anything since.
    before: Option<RaftId>,
}

impl Grants {
    /// Counts questions from `sequence` on.
    pub(super) fn new(sequence: u64) -> Self {
        Self {
            // Half of the range is left to count on.
            sequence: sequence >> 1,
            answered: BTreeMap::new(),
            falling: BTreeSet::new(),
            leads: None,
            before: None,
        }
    }

    /// The number of the next question.
    pub(super) fn question(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    /// The answer to a question arrived in time.
    pub(super) fn answered(&mut self, id: RaftId, sequence: u64) {
        self.answered.insert(id, sequence);
    }

    /// Looks at raft, often; `last` is the leader that made the last entry of the log, `own` this
    /// member.
    pub(super) fn look(&mut self, role: Role, (own, last): (RaftId, Option<RaftId>), now: Instant) {
        match role.leads {
            Some(term) if self.leads.is_some_and(|(of, _)| of == term) => {}
            Some(term) => {
                self.leads = Some((term, now));
                self.falling.clear();
            }
            None => {
                self.leads = None;
                // Where no other leader followed, only this leader has promised
                // anything since.
                if last != Some(own) {
                    self.before = last;
                }
            }
        }
    }

    /// The question by which a member that gets leases is promised something; 0 if nothing is.
    pub(super) fn granted(&self, id: RaftId) -> u64 {
        if self.leads.is_none() || self.falling.contains(&id) {
            return 0;
        }
        self.answered.get(&id).copied().unwrap_or(0)
    }

    /// Whether a member that has been silent may be held for down: no promise of another leader can
    /// be left.
    pub(super) fn may_fall(&self, id: RaftId, silence: Duration, now: Instant) -> bool {
        self.leads.is_some_and(|(_, since)| {
            let leads = now.saturating_duration_since(since);
            let least = match self.before == Some(id) {
                true => OLD_LEADER_EXTRA,
                false => silence + NEW_LEADER_EXTRA,
            };
            leads >= least
        })
    }

    /// It is proposed that a member is down.
    pub(super) fn fall(&mut self, id: RaftId) {
        self.falling.insert(id);
    }

    /// That is agreed on by now, or never will be.
    pub(super) fn settle(&mut self, id: RaftId) {
        self.falling.remove(&id);
    }

    /// Members that are not there any more are no concern.
    pub(super) fn watch(&mut self, ids: impl Fn(RaftId) -> bool) {
        self.answered.retain(|id, _| ids(*id));
        self.falling.retain(|id| ids(*id));
    }
}
