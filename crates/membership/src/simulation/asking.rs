//! Questions and answers between simulated members, and what a leader makes of them.

use std::collections::{BTreeSet, btree_map};
use std::time::Instant;

use fonn_replication::Status;

use super::log::Payload;
use super::message::Message;
use super::node::{CHANGE_DEADLINE, Node};
use fonn_proto::grpc::v1::{PingRequest, RaftEnds};

use crate::detector::ANSWER_DEADLINE;
use crate::health::failed;
use crate::lease::Role;
use crate::member::Member;
use crate::state::Change;
use crate::types::RaftId;

impl Node {
    /// Asks all members, as each voter does.
    pub(super) fn ask(&mut self, now: Instant) {
        let votes = self.voters().contains(&self.id());
        let targets: BTreeSet<RaftId> = match votes || self.is_leader() {
            true => self
                .state
                .members
                .values()
                .map(|it| it.info.raft_id)
                .filter(|id| *id != self.id())
                .collect(),
            false => BTreeSet::new(),
        };
        self.detector.watch(&targets, self.state.down_after(), now);
        self.detector.tick(now);
        self.grants.watch(|id| targets.contains(&id));
        self.asked.retain(|_, sent| now - *sent < ANSWER_DEADLINE);
        let role = Role::of(&self.metrics(now));
        for id in targets {
            let btree_map::Entry::Vacant(free) = self.asked.entry(id) else {
                continue;
            };
            free.insert(now);
            let member = self.state.by_raft_id(id);
            let granted = role.promises() && member.is_some_and(Member::gets_leases);
            let granted = granted.then(|| self.grants.granted(id));
            let question = PingRequest {
                ends: Some(RaftEnds {
                    cluster: 1,
                    source: self.id(),
                    target: id,
                }),
                version: 0,
                sequence: self.grants.question(),
                granted: granted.unwrap_or(0),
                is_leading: role.promises(),
                epoch: member.map_or(self.state.epoch, |member| member.sync.since.0),
            };
            let message = Message::Ping {
                sent: now,
                question,
            };
            self.out.push((id, message));
        }
        self.ask_for_status();
    }

    /// Asks the leader to note what this member knows about itself, as the replication core does.
    /// It has nothing to copy here.
    fn ask_for_status(&mut self) {
        let Some(member) = self.state.by_raft_id(self.id()) else {
            return;
        };
        let (raft_id, applied) = (self.id(), self.state.epoch);
        let change = match member.sync.status {
            Status::Down => Change::Sync {
                raft_id,
                applied,
                started: 1,
            },
            Status::InSync if self.state.next.is_none() || member.sync.ready => return,
            Status::Syncing | Status::InSync => Change::InSync { raft_id, applied },
        };
        match self.leader {
            Some(leader) if leader != raft_id && !self.is_leader() => {
                self.out.push((leader, Message::Propose(change)));
            }
            _ => self.wished = Some(change),
        }
    }

    /// Proposes, as the leader, what a member says about itself.
    pub(super) fn propose_status(&mut self, change: Change, now: Instant) {
        if !self.is_leading(now) {
            return;
        }
        if let Change::Sync { raft_id, .. } = &change {
            let is_down = |it: &Member| it.is_down();
            let is_silent = *raft_id != self.id()
                && self.state.by_raft_id(*raft_id).is_some_and(is_down)
                && self.detector.is_down(*raft_id, true, now);
            let falls =
                |it: &Payload| matches!(it, Payload::Change(Change::Down(id)) if id == raft_id);
            // A late request has no effect once the fall is applied.
            let open = &self.disk.log[self.applied..];
            if is_silent || open.iter().any(|it| falls(&it.payload)) {
                return;
            }
        }
        let change = Payload::Change(change);
        let open = self.disk.log[self.applied..].iter();
        if !open.map(|it| &it.payload).any(|it| *it == change) {
            self.append(change, now);
            self.heartbeat(now);
        }
    }

    /// Answers a question.
    pub(super) fn answer(&mut self, sent: Instant, question: &PingRequest, now: Instant) {
        let silence = self.state.down_after();
        self.lease.hear(question, silence, now);
        let answer = Message::Pong {
            sent,
            sequence: question.sequence,
        };
        let from = question.ends.map_or(0, |ends| ends.source);
        self.out.push((from, answer));
    }

    /// Takes an answer in.
    pub(super) fn answered(
        &mut self,
        from: RaftId,
        (sent, sequence): (Instant, u64),
        now: Instant,
    ) {
        if self.asked.get(&from) == Some(&sent) && now - sent < ANSWER_DEADLINE {
            self.asked.remove(&from);
            self.grants.answered(from, sequence);
            self.detector.answered(from, now);
        }
    }

    /// Decides which members are down, as the leader.
    pub(super) fn decide(&mut self, now: Instant) {
        let last = self.disk.log.last().map(|entry| entry.leader);
        let role = Role::of(&self.metrics(now));
        self.grants.look(role, (self.id(), last), now);
        if !self.is_leading(now) || self.is_waiting(now, CHANGE_DEADLINE, |it| &mut it.deciding) {
            return;
        }
        let own = self.id();
        let watched = (&mut self.detector, &mut self.grants);
        let change = failed(&self.state, own, watched, now).or_else(|| self.wished.take());
        if let Some(change) = change {
            let at = self.append(Payload::Change(change), now);
            self.wait_for(at, now, |it| &mut it.deciding);
        }
    }
}
