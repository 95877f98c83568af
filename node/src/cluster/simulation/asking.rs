//! Questions and answers between simulated members, and what a leader makes of them.

use std::collections::{BTreeSet, btree_map};
use std::time::Instant;

use super::log::Payload;
use super::message::Message;
use super::node::{CHANGE_DEADLINE, Node, detector_options};
use crate::cluster::detector::ANSWER_DEADLINE;
use crate::cluster::health::fall_or_return;
use crate::cluster::lease::{Question, Role};
use crate::cluster::types::RaftId;

impl Node {
    /// Asks all members, as each voter does.
    pub(super) fn ask(&mut self, now: Instant) {
        let votes = self.voters().contains(&self.id());
        let targets: BTreeSet<RaftId> = match votes || self.is_leader() {
            true => self
                .state
                .live()
                .map(|it| it.info.raft_id)
                .filter(|id| *id != self.id())
                .collect(),
            false => BTreeSet::new(),
        };
        self.detector.watch(&targets, now);
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
            let is_down = member.is_none_or(|member| member.is_down);
            let granted = role.promises().then(|| self.grants.granted(id, is_down));
            let question = Question {
                from: self.id(),
                sequence: self.grants.question(),
                granted: granted.unwrap_or(0),
                is_leading: role.promises(),
                epoch: member.map_or(self.state.epoch, |member| member.since),
            };
            let message = Message::Ping {
                sent: now,
                question,
                version: self.data.newest_here(),
            };
            self.out.push((id, message));
        }
        self.ask_for_slot();
    }

    /// Answers a question.
    pub(super) fn answer(&mut self, sent: Instant, question: Question, version: u64, now: Instant) {
        self.data.hear(version);
        let silence = detector_options().silence;
        self.lease.hear(question, self.leader, silence, now);
        let answer = Message::Pong {
            sent,
            sequence: question.sequence,
            version: self.data.newest_here(),
        };
        self.out.push((question.from, answer));
    }

    /// Takes an answer in.
    pub(super) fn answered(
        &mut self,
        from: RaftId,
        (sent, sequence, version): (Instant, u64, u64),
        now: Instant,
    ) {
        if self.asked.get(&from) == Some(&sent) && now - sent < ANSWER_DEADLINE {
            self.asked.remove(&from);
            self.data.hear(version);
            self.grants.answered(from, sequence);
            self.detector.answered(from, now);
        }
    }

    /// Decides which members are down, as the leader.
    pub(super) fn decide(&mut self, now: Instant) {
        let last = self.disk.log.last().map(|entry| entry.leader);
        let role = Role::of(&self.metrics(now));
        self.grants.look(role, (self.id(), last), now);
        self.go_on_with_removal(now);
        if !self.is_leading(now) || self.is_waiting(now, CHANGE_DEADLINE, |it| &mut it.deciding) {
            return;
        }
        if let Some(change) = self.state.extension(self.data.wanted()) {
            let at = self.append(Payload::Change(change), now);
            return self.wait_for(at, now, |it| &mut it.deciding);
        }
        let own = self.id();
        let watched = (&mut self.detector, &mut self.grants);
        if let Some(change) = fall_or_return(&self.state, own, watched, now) {
            let at = self.append(Payload::Change(change), now);
            self.wait_for(at, now, |it| &mut it.deciding);
        }
    }
}
