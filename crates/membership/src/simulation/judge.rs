//! What has to hold of simulated members at every moment, and what once all faults have ended.

use std::time::{Duration, Instant};

use super::log::Payload;
use super::node::detector_options;
use super::world::{FAIR, World};
use super::{AGREEMENT_MAX, FAULTS, RESTLESS};
use crate::map::members;
use crate::state::Change;
use crate::types::RaftId;

/// What a leader made of a member.
#[derive(Clone, Debug)]
pub(super) struct Verdict {
    pub(super) raft_id: RaftId,
    pub(super) is_down: bool,
    pub(super) term: u64,
    /// When it was proposed.
    pub(super) made: Instant,
    /// When it was agreed on, as far as any member knows.
    pub(super) agreed: Instant,
}

impl World {
    /// What has to hold at every moment.
    pub(super) fn judge(&mut self, at: usize) {
        let (seed, now) = (self.seed, self.now);
        let slot = &mut self.nodes[at];
        let Some(node) = &slot.node else { return };
        if node.is_leader() {
            let leader = *self.leaders.entry(node.term()).or_insert(node.info.raft_id);
            let (own, term) = (node.info.raft_id, node.term());
            assert_eq!(leader, own, "seed {seed}: two leaders of term {term}");
        }
        if node.applied == slot.looked {
            return;
        }
        slot.looked = node.applied;
        if node.state.epoch > 0 {
            // The owners of slots are a function of this alone.
            let (epoch, map) = (node.state.epoch, members(&node.state));
            let known = self.maps.entry(epoch).or_insert_with(|| map.clone());
            assert_eq!(*known, map, "seed {seed}: two maps of epoch {epoch}");
        }
        for entry in node.disk.log.iter().take(node.applied).skip(self.judged) {
            self.judged += 1;
            let (term, made) = (entry.term, entry.made);
            let (raft_id, is_down) = match entry.payload {
                Payload::Change(Change::Down(raft_id)) => (raft_id, true),
                Payload::Change(Change::Sync { raft_id, .. }) => (raft_id, false),
                _ => continue,
            };
            let last = self.verdicts.iter().rev().find(|it| it.raft_id == raft_id);
            // Another leader has its own view; the same one does not change its mind so soon.
            if let Some(last) = last.filter(|it| it.term == term && it.is_down && !is_down) {
                let stood = made - last.made;
                let is_stable = stood >= detector_options().stable;
                assert!(is_stable, "seed {seed}: {raft_id} was down for {stood:?}");
            }
            self.verdicts.push(Verdict {
                raft_id,
                is_down,
                term,
                made,
                agreed: now,
            });
        }
    }

    /// How long after `since` it was agreed on that a member is down.
    pub(super) fn fall(&self, raft_id: RaftId, since: Instant) -> Option<Duration> {
        let mut falls = self.verdicts.iter().filter(|it| it.raft_id == raft_id);
        let fall = falls.find(|it| it.is_down && it.agreed >= since);
        fall.map(|it| it.agreed - since)
    }

    /// All links are whole and all members run: then all agree, and go on.
    pub(super) fn settle(&mut self) {
        self.cut.clear();
        self.weather = FAIR;
        (0..self.nodes.len()).for_each(|at| self.wake(at));
        self.run_until(FAULTS + AGREEMENT_MAX);
        let (seed, count) = (self.seed, self.nodes.len());
        assert!(
            self.leader().is_some(),
            "seed {seed}: no leader in the end: {}",
            self.describe()
        );
        let late = self.start + FAULTS + RESTLESS;
        // A member that lost its disk is missed under its old id as soon as there is a leader.
        let runs = |it: &&Verdict| self.place(it.raft_id).is_some();
        let mut falls = self.verdicts.iter().filter(|it| it.is_down).filter(runs);
        let late = falls.find(|it| it.made > late);
        assert!(late.is_none(), "seed {seed}: {late:?} with all links whole");
        let first = self.running().map(|node| &node.state).next().cloned();
        for node in self.running() {
            assert_eq!(
                Some(&node.state),
                first.as_ref(),
                "seed {seed}: {}",
                self.describe()
            );
            assert_eq!(
                node.active().len(),
                count,
                "seed {seed}: {}",
                self.describe()
            );
        }
    }
}
