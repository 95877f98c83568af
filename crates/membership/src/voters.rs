//! Which members vote: one, three or five, in as many zones as there are, those that answer first.
//!
//! A pure function of what the leader sees. It changes as little as it can. A voter stays unless it
//! left, is leaving, or has been silent for long while another member could take its place. It also
//! goes if it shares its zone while a zone with an eligible member has no voter.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use super::types::RaftId;

/// A member that takes part, as the planner sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate<'a> {
    /// The member.
    pub(super) raft_id: RaftId,
    /// In which failure zone.
    pub(super) zone: &'a str,
    /// Active: neither joining nor draining.
    pub(super) is_active: bool,
    /// Draining, so not to vote if another can.
    pub(super) is_draining: bool,
    /// It answers now, and its log is near the end of the leader's.
    pub(super) is_ready: bool,
    /// It has not answered for so long that another should take its place.
    pub(super) is_lost: bool,
}

/// How many of `members` vote. An even number tolerates no more losses than the odd one below it.
#[must_use]
pub(super) const fn voter_count(members: usize) -> usize {
    match members {
        0..=2 => 1,
        3..=6 => 3,
        _ => 5,
    }
}

/// The voters that there should be. `leader` stays one if it can.
pub(super) fn plan(
    candidates: &[Candidate<'_>],
    current: &BTreeSet<RaftId>,
    leader: RaftId,
) -> BTreeSet<RaftId> {
    let staying = candidates.iter().filter(|it| !it.is_draining);
    let target = voter_count(staying.count());
    let is_voter = |it: &Candidate<'_>| current.contains(&it.raft_id);
    let mut seats = Seats::default();

    // Voters keep their seats, the best of them first.
    let mut voters: Vec<&Candidate<'_>> = candidates.iter().filter(|it| is_voter(it)).collect();
    voters.sort_by_key(|it| {
        let is_leader = it.raft_id == leader;
        (
            it.is_draining,
            it.is_lost,
            !is_leader,
            !it.is_ready,
            it.raft_id,
        )
    });
    let keeps = |it: &&&Candidate<'_>| !it.is_draining && !it.is_lost;
    while seats.len() < target
        && let Some(next) = seats
            .most_spread(voters.iter().copied().filter(|it| keeps(&it)), |it| {
                (it.raft_id != leader, !it.is_ready)
            })
    {
        seats.take(next);
    }
    // Free seats go to those that are able, in zones with the fewest voters.
    let able = candidates
        .iter()
        .filter(|it| it.is_active && it.is_ready && !it.is_lost && !is_voter(it));
    while seats.len() < target
        && let Some(next) = seats.most_spread(able.clone(), |_| ())
    {
        seats.take(next);
    }
    // Where no member is able, a voter that is silent or leaves is better than none.
    for voter in voters.iter().filter(|it| !keeps(it)) {
        if seats.len() < target {
            seats.take(voter);
        }
    }
    // Growing to an even number would only add a member whose loss hurts.
    if seats.len() > current.len() && seats.len() % 2 == 0 {
        let newest = able.clone().rfind(|it| seats.ids.contains(&it.raft_id));
        if let Some(newest) = newest {
            seats.leave(newest);
        }
    }
    seats.spread(&able.collect::<Vec<_>>(), &voters, leader);
    seats.ids
}

/// The seats that are taken.
#[derive(Debug, Default)]
struct Seats<'a> {
    ids: BTreeSet<RaftId>,
    zones: BTreeMap<&'a str, usize>,
}

impl<'a> Seats<'a> {
    fn len(&self) -> usize {
        self.ids.len()
    }

    fn in_zone(&self, zone: &str) -> usize {
        self.zones.get(zone).copied().unwrap_or(0)
    }

    fn take(&mut self, candidate: &Candidate<'a>) {
        if self.ids.insert(candidate.raft_id) {
            *self.zones.entry(candidate.zone).or_default() += 1;
        }
    }

    fn leave(&mut self, candidate: &Candidate<'a>) {
        if self.ids.remove(&candidate.raft_id)
            && let Some(count) = self.zones.get_mut(candidate.zone)
        {
            *count -= 1;
        }
    }

    /// Of those without a seat, the one that `rank` puts first, in the zone with the fewest seats.
    fn most_spread<'c, R: Ord>(
        &self,
        candidates: impl Iterator<Item = &'c Candidate<'a>>,
        rank: impl Fn(&Candidate<'a>) -> R,
    ) -> Option<&'c Candidate<'a>>
    where
        'a: 'c,
    {
        candidates
            .filter(|it| !self.ids.contains(&it.raft_id))
            .min_by_key(|it| (rank(it), self.in_zone(it.zone), it.raft_id))
    }

    /// Gives one seat of a crowded zone to a zone that has none.
    fn spread(&mut self, able: &[&Candidate<'a>], voters: &[&Candidate<'a>], leader: RaftId) {
        let lonely = able
            .iter()
            .find(|it| self.in_zone(it.zone) == 0 && !self.ids.contains(&it.raft_id));
        let crowded = voters.iter().rev().find(|it| {
            self.ids.contains(&it.raft_id) && it.raft_id != leader && self.in_zone(it.zone) > 1
        });
        if let (Some(lonely), Some(crowded)) = (lonely, crowded) {
            self.leave(crowded);
            self.take(lonely);
        }
    }
}
