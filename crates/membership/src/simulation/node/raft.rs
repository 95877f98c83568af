//! Raft as a model of it: elections with a pre-vote, a log that followers take over, and what is
//! agreed on by that.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use super::{Leading, Node, Role};
use crate::election::{LEASE, Turn, Voter, is_majority};
use crate::simulation::log::{Config, Entry, Payload};
use crate::simulation::message::{Append, Message};
use crate::types::{LogId, RaftId};

impl Node {
    /// The election timer.
    pub(in crate::simulation) fn campaign(&mut self, now: Instant) {
        let heard = self.heard(now);
        let voters = self.voters();
        let may_stand = voters.contains(&self.id()) && !matches!(self.role, Role::Leader(_));
        let turn = Turn::of(self.id(), &voters);
        if self.timer.is_due(heard, turn, now) && may_stand {
            self.role = Role::Asking(BTreeSet::from([self.id()]));
            let last = self.log_id(self.disk.log.len());
            self.tell_voters(|| Message::PreVote { last });
            self.stand(now);
        }
    }

    /// Goes on when a majority has said yes.
    fn stand(&mut self, now: Instant) {
        let config = self.config();
        match &self.role {
            Role::Asking(yes) if is_majority(&config.voters, yes) => {
                self.disk.term += 1;
                self.disk.voted = Some(self.id());
                self.role = Role::Candidate(BTreeSet::from([self.id()]));
                let (term, last) = (self.disk.term, self.log_id(self.disk.log.len()));
                self.tell_voters(|| Message::Vote { term, last });
                self.stand(now);
            }
            Role::Candidate(yes) if is_majority(&config.voters, yes) => {
                self.role = Role::Leader(Leading::default());
                self.append(Payload::Blank, now);
                self.heartbeat(now);
            }
            _ => {}
        }
    }

    fn tell_voters(&mut self, message: impl Fn() -> Message) {
        for id in self.voters() {
            if id != self.id() {
                self.out.push((id, message()));
            }
        }
    }

    pub(in crate::simulation) fn append(&mut self, payload: Payload, made: Instant) -> usize {
        let (term, leader) = (self.disk.term, self.id());
        self.disk.log.push(Entry {
            term,
            made,
            leader,
            payload,
        });
        self.disk.log.len()
    }

    /// As a leader, lets hear from it, with all that is missing.
    pub(in crate::simulation) fn heartbeat(&mut self, now: Instant) {
        let Role::Leader(leading) = &mut self.role else {
            return;
        };
        let log = &self.disk.log;
        let config = log.iter().rev().find_map(Entry::config);
        let nodes = config.into_iter().flat_map(|config| config.nodes.keys());
        for id in nodes.filter(|id| **id != self.info.raft_id) {
            let next = *leading.next.entry(*id).or_insert(log.len());
            self.out.push((
                *id,
                Message::Append(Append {
                    term: self.disk.term,
                    previous: next,
                    previous_term: next.checked_sub(1).map_or(0, |at| log[at].term),
                    entries: log[next..].to_vec(),
                    commit: self.commit,
                }),
            ));
        }
        self.advance(now);
    }

    /// As a leader, commits what a majority has.
    fn advance(&mut self, now: Instant) {
        let Role::Leader(leading) = &self.role else {
            return;
        };
        if self.commit == self.disk.log.len() {
            return;
        }
        let config = self.config();
        let committed = (self.commit + 1..=self.disk.log.len()).rev().find(|at| {
            let have = leading.matched.iter().filter(|(_, matched)| *matched >= at);
            let yes = have.map(|(id, _)| *id).chain([self.id()]).collect();
            self.disk.log[at - 1].term == self.disk.term && is_majority(&config.voters, &yes)
        });
        let Some(committed) = committed else { return };
        self.commit = committed;
        self.apply();
        // A change of voters in two steps: the second follows when the first is agreed on.
        if let [_, new] = config.voters.as_slice()
            && !self.disk.log[committed..]
                .iter()
                .any(|it| it.config().is_some())
        {
            let config = Config {
                voters: vec![new.clone()],
                nodes: config.nodes.clone(),
            };
            self.append(Payload::Config(Arc::new(config)), now);
        }
        // Followers learn of it at once.
        self.heartbeat(now);
    }

    fn apply(&mut self) {
        while self.applied < self.commit {
            if let Payload::Change(change) = &self.disk.log[self.applied].payload {
                self.state.apply(change.clone());
            }
            self.applied += 1;
        }
    }

    /// A higher term ends what this member was in a lower one.
    fn follow(&mut self, term: u64) {
        if term > self.disk.term {
            self.disk.term = term;
            self.disk.voted = None;
            self.role = Role::Follower;
        }
    }

    /// A member asks whether it would be voted for.
    pub(super) fn asked_to_pre_vote(&mut self, from: RaftId, last: Option<LogId>, now: Instant) {
        let voter = Voter {
            heard: self.heard(now),
            last_log: self.defended(),
        };
        let granted = voter.would_vote(last, now);
        self.out.push((from, Message::PreVoted { granted }));
    }

    pub(super) fn pre_voted(&mut self, from: RaftId, granted: bool, now: Instant) {
        if let (Role::Asking(yes), true) = (&mut self.role, granted) {
            yes.insert(from);
            self.stand(now);
        }
    }

    /// A member stands for election.
    pub(super) fn asked_to_vote(
        &mut self,
        from: RaftId,
        term: u64,
        last: Option<LogId>,
        now: Instant,
    ) {
        // As openraft has it: a member that hears a leader has no vote against it.
        if now - self.heard(now) <= LEASE {
            let term = self.disk.term;
            let granted = false;
            self.out.push((from, Message::Voted { term, granted }));
            return;
        }
        self.follow(term);
        let is_free = self.disk.voted.is_none_or(|voted| voted == from);
        let is_near = last >= self.defended();
        let granted = term == self.disk.term && is_free && is_near;
        if granted {
            self.disk.voted = Some(from);
        }
        let term = self.disk.term;
        self.out.push((from, Message::Voted { term, granted }));
    }

    pub(super) fn voted(&mut self, from: RaftId, term: u64, granted: bool, now: Instant) {
        self.follow(term);
        if let (Role::Candidate(yes), true) = (&mut self.role, granted && term == self.disk.term) {
            yes.insert(from);
            self.stand(now);
        }
    }

    /// A leader is heard, and what it adds to the log.
    pub(super) fn append_from(&mut self, from: RaftId, append: Append, now: Instant) {
        let Append {
            term,
            previous,
            previous_term,
            entries,
            commit,
        } = append;
        self.follow(term);
        let mut matched = None;
        if term == self.disk.term {
            assert!(
                !matches!(self.role, Role::Leader(_)),
                "two leaders of term {term}"
            );
            self.role = Role::Follower;
            self.heard = now;
            self.leader = Some(from);
            matched = self.take(previous, previous_term, entries);
            if let Some(matched) = matched {
                self.commit = self.commit.max(commit.min(matched));
                self.apply();
            }
        }
        let answer = Message::Appended {
            term: self.disk.term,
            matched,
            sent: now,
        };
        self.out.push((from, answer));
    }

    /// A follower answers how far its log is the leader's.
    pub(super) fn appended(
        &mut self,
        from: RaftId,
        (term, matched, sent): (u64, Option<usize>, Instant),
        now: Instant,
    ) {
        self.follow(term);
        let len = self.disk.log.len();
        let Role::Leader(leading) = &mut self.role else {
            return;
        };
        leading.acked.insert(from, sent);
        match matched {
            Some(matched) => {
                leading.matched.insert(from, matched);
                leading.next.insert(from, matched.min(len));
                self.advance(now);
            }
            None => {
                let next = leading.next.entry(from).or_insert(len);
                *next = next.saturating_sub(8);
            }
        }
    }

    /// Keeps what follows on what is there. How far the log is the leader's then.
    fn take(&mut self, previous: usize, previous_term: u64, entries: Vec<Entry>) -> Option<usize> {
        let log = &mut self.disk.log;
        let is_there = previous == 0
            || log
                .get(previous - 1)
                .is_some_and(|it| it.term == previous_term);
        if !is_there {
            return None;
        }
        let end = previous + entries.len();
        for (at, entry) in (previous..).zip(entries) {
            match log.get(at) {
                Some(known) if known.term == entry.term => {}
                _ => {
                    assert!(at >= self.commit, "what was agreed on is overwritten");
                    log.truncate(at);
                    log.push(entry);
                }
            }
        }
        Some(end)
    }
}
