//! Which members own which slot: a pure function of the list of members.
//!
//! Every slot wants the members in the order of [`score`](super::score). No member takes more than
//! its share of the slots and a bit ([`LOAD_MAX_PERMILLE`]): a slot that wants a full member goes
//! to the next. The same scores decide which slots a full member keeps, so the outcome is the one
//! stable assignment (Gale and Shapley, 1962), whatever the order of the list; and where a member
//! comes or goes, only its own slots move and the few that it thereby pushes over a limit.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::score::{Score, score, seed};
use super::{Owners, Placed, SLOT_COUNT};

/// The most slots that a member gets, of what its weight entitles it to, in thousandths. A tighter
/// limit makes more slots of others move when a member comes or goes: at 100 members, of the least
/// that has to move, 1.11 times with 1,080, 1.35 times with 1,020.
const LOAD_MAX_PERMILLE: u64 = 1_100;

/// The owners of every slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    owners: Vec<Owners>,
}

impl Table {
    /// Places the slots on members, each on `replicas` (1 to 3) of them as far as there are so many
    /// with a weight. Replicas stand in different zones as far as there are zones.
    ///
    /// None if no member has a weight, or if there are more than `u16::MAX` of them.
    #[must_use]
    pub fn new(members: &[Placed<'_>], replicas: usize) -> Option<Self> {
        let able = members.iter().filter(|member| member.weight > 0).count();
        if able == 0 || u16::try_from(members.len()).is_err() {
            return None;
        }
        let mut names: Vec<&str> = members.iter().map(|member| member.zone).collect();
        names.sort_unstable();
        names.dedup();
        let zone = |member: &Placed<'_>| names.binary_search(&member.zone).unwrap_or(0);
        let mut placing = Placing {
            zones: members.iter().map(zone).collect(),
            seeds: members.iter().map(|member| seed(member.id)).collect(),
            members,
            owners: vec![Vec::with_capacity(Owners::COUNT_MAX); usize::from(SLOT_COUNT)],
            loads: vec![0; members.len()],
        };
        for rank in 1..=replicas.clamp(1, Owners::COUNT_MAX).min(able) {
            placing.place(rank);
        }
        let owners = placing.owners.iter().map(|ranked| Owners::new(ranked));
        Some(Self {
            owners: owners.collect::<Option<_>>()?,
        })
    }

    /// The owners of a slot, as positions in the list of members, by rank.
    ///
    /// # Panics
    /// If the slot is not below [`SLOT_COUNT`].
    #[must_use]
    pub fn owners(&self, slot: u16) -> Owners {
        self.owners[usize::from(slot)]
    }
}

struct Placing<'a> {
    members: &'a [Placed<'a>],
    seeds: Vec<u64>,
    /// Zone of each member, as a number.
    zones: Vec<usize>,
    /// By rank, so far.
    owners: Vec<Vec<u16>>,
    /// Slots of each member, of all ranks so far.
    loads: Vec<u64>,
}

impl Placing<'_> {
    /// Gives each slot one more owner. The pairs of slots and members are taken from the best score
    /// on, which is how a stable assignment is found when both sides go by the same scores.
    fn place(&mut self, rank: usize) {
        let limits = self.limits(rank as u64);
        let mut wishes: BinaryHeap<Reverse<(Score, u16, u16)>> = (0..SLOT_COUNT)
            .filter_map(|slot| self.next_wish(slot, None))
            .map(Reverse)
            .collect();
        while let Some(Reverse((score, slot, member))) = wishes.pop() {
            let at = usize::from(member);
            if self.loads[at] < limits[at] {
                self.loads[at] += 1;
                self.owners[usize::from(slot)].push(member);
            } else if let Some(next) = self.next_wish(slot, Some(score)) {
                wishes.push(Reverse(next));
            } else if let Some(any) = self.least_loaded(slot, &limits) {
                self.loads[usize::from(any)] += 1;
                self.owners[usize::from(slot)].push(any);
            }
        }
    }

    /// How many slots each member may own of the ranks up to `rank`.
    fn limits(&self, rank: u64) -> Vec<u64> {
        let total: u64 = self.members.iter().map(|it| u64::from(it.weight)).sum();
        let slots = u64::from(SLOT_COUNT);
        let limit = |member: &Placed<'_>| {
            let entitled = slots * rank * u64::from(member.weight) * LOAD_MAX_PERMILLE;
            // No member can own a slot twice.
            (entitled / (total * 1000)).clamp(1, slots)
        };
        self.members.iter().map(limit).collect()
    }

    /// The member that the slot wants most, of those with a score behind `after`.
    fn next_wish(&self, slot: u16, after: Option<Score>) -> Option<(Score, u16, u16)> {
        let mut best: Option<(Score, u16, u16)> = None;
        for member in self.candidates(slot) {
            let at = usize::from(member);
            let score = score(slot, self.seeds[at], &self.members[at]);
            if after.is_none_or(|after| score > after) && best.is_none_or(|(best, ..)| score < best)
            {
                best = Some((score, slot, member));
            }
        }
        best
    }

    /// The members that may own the slot too: members that do not, and of these only those in zones
    /// where it has no owner, unless it has one in every zone.
    fn candidates(&self, slot: u16) -> impl Iterator<Item = u16> {
        let owners = &self.owners[usize::from(slot)];
        let is_able =
            move |it: &u16| self.members[usize::from(*it)].weight > 0 && !owners.contains(it);
        let zone = |it: u16| self.zones[usize::from(it)];
        let is_apart = move |it: &u16| owners.iter().all(|&owner| zone(owner) != zone(*it));
        let all = 0..self.members.len() as u16;
        let any_apart = all.clone().any(|it| is_able(&it) && is_apart(&it));
        all.filter(move |it| is_able(it) && (!any_apart || is_apart(it)))
    }

    /// Where all members that the slot may have are full (zones of unequal weight): the one that is
    /// so least.
    fn least_loaded(&self, slot: u16, limits: &[u64]) -> Option<u16> {
        self.candidates(slot).min_by_key(|&it| {
            let at = usize::from(it);
            (
                self.loads[at] * 1_000_000 / limits[at].max(1),
                self.seeds[at],
            )
        })
    }
}
