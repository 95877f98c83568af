//! What a member has to do with each slot, and what changes from one map to the next: pure.
//!
//! A member that owned a slot before goes on with its copy. A new owner, or one that was away, may
//! have stale copies and lack entries. Until it has copied all that the slot's *sources* know, it
//! asks them about each key first. The sources are the previous owners. If such an owner had not
//! copied all from its own sources, these are sources too.
//!
//! The previous primary has to know that it is no longer the primary before the new one answers. It
//! is a source too, of which only that confirmation is wanted.
//!
//! Sources survive a restart ([`super::notes`]). From the maps alone follows the member that stands
//! in for another one. It need not be the one that had the slots before.

use std::collections::BTreeMap;
use std::sync::Arc;

use fonn_forward::{Member, Topology};
use fonn_proto::peer::SlotSet;
use fonn_proto::placement::{Placed, SLOT_COUNT, Table};

/// A member's part in a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// None.
    #[default]
    None,
    /// It keeps copies for the primary.
    Replica,
    /// It gives versions, and answers.
    Primary,
}

/// What a member has to do with a slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holding {
    /// Its part.
    pub part: Part,
    /// Whether others own the slot too, and are there.
    pub is_shared: bool,
    /// The members that know what it may not know. Kept when it loses the slot, for the next owner.
    pub sources: Vec<Source>,
}

/// A member that knows of a slot what another may not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The name.
    pub id: Arc<str>,
    /// Whether it has applied the map by which it is a source, and has said which sources it had
    /// itself.
    pub is_asked: bool,
    /// What it knows is here already: its word suffices.
    pub is_known: bool,
}

/// Sources of a slot at most: so often it has moved on before it was taken over.
const SOURCES_MAX: usize = 8;

/// The slots of each source, by its name and whether what it knows of them is here already.
pub type BySource = BTreeMap<(Arc<str>, bool), SlotSet>;

/// What a member has to do with all slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holdings {
    slots: Vec<Holding>,
    /// Of the map that they follow from; 0 before the first.
    epoch: u64,
    /// Sources for which a slot had no room, since the last map.
    left_out: u64,
}

/// One map after another, as seen by one member.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// The name of the member.
    pub own: &'a str,
    /// The map that it went by, if any; after a start the one that is noted.
    pub old: Option<&'a Topology>,
    /// Whether it was there by all maps since.
    pub is_unbroken: bool,
    /// The map that it goes by from now on.
    pub new: &'a Topology,
}

impl Default for Holdings {
    fn default() -> Self {
        Self {
            slots: vec![Holding::default(); usize::from(SLOT_COUNT)],
            epoch: 0,
            left_out: 0,
        }
    }
}

impl Holdings {
    /// What is known before the first map: the sources by the map of `epoch`, all of which have to
    /// be asked again, and what the member of that name did with slots by it, if it is known.
    #[must_use]
    pub fn of_sources(epoch: u64, map: Option<&Topology>, own: &str, sources: &BySource) -> Self {
        let mut holdings = Self {
            epoch,
            ..Self::default()
        };
        // By a map by which it was down it may have been an owner before.
        let serves = |map: &&Topology| map.member(own).is_some_and(|it| it.state.is_serving());
        let map = map.filter(serves);
        for (slot, holding) in (0..SLOT_COUNT).zip(&mut holdings.slots) {
            holding.part = map.map_or(Part::Primary, |map| part(map, slot, own));
        }
        for ((id, is_known), slots) in sources {
            let all = (0..SLOT_COUNT).zip(&mut holdings.slots);
            for (_, holding) in all.filter(|(slot, _)| slots.contains(*slot)) {
                holdings.left_out += u64::from(!holding.add(id, *is_known));
            }
        }
        holdings
    }

    /// The epoch of the map that they follow from; 0 before the first.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The sources, each with its slots.
    #[must_use]
    pub fn sources(&self) -> BySource {
        let mut all = BySource::new();
        for (slot, holding) in self.iter() {
            for source in &holding.sources {
                let of = (Arc::clone(&source.id), source.is_known);
                all.entry(of).or_default().insert(slot);
            }
        }
        all
    }

    /// What there is about a slot.
    #[must_use]
    pub fn get(&self, slot: u16) -> Option<&Holding> {
        self.slots.get(usize::from(slot))
    }

    /// All slots, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &Holding)> {
        (0..SLOT_COUNT).zip(&self.slots)
    }

    /// How often the last map made a source of a member for which the slot had no room.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// All that `source` knows of a slot is here.
    pub fn settle(&mut self, slot: u16, source: &str) {
        if let Some(holding) = self.slots.get_mut(usize::from(slot)) {
            holding.sources.retain(|it| *it.id != *source);
        }
    }

    /// The owner of a slot that is not owned here knows of its sources.
    pub fn leave(&mut self, slot: u16) {
        let holding = self.slots.get_mut(usize::from(slot));
        if let Some(holding) = holding.filter(|it| it.part == Part::None) {
            holding.sources.clear();
        }
    }

    /// A source has said which sources it had itself; `own` is no source of its own. Returns for
    /// how many there was no room.
    pub fn add_sources(&mut self, slot: u16, of: &str, more: &[Arc<str>], own: &str) -> u64 {
        let Some(holding) = self.slots.get_mut(usize::from(slot)) else {
            return 0;
        };
        let told = holding.sources.iter_mut().find(|it| *it.id == *of);
        let Some(told) = told else { return 0 };
        told.is_asked = true;
        if told.is_known {
            holding.sources.retain(|it| *it.id != *of);
            return 0;
        }
        let mut left_out = 0;
        for id in more {
            let known = holding.sources.iter().find(|it| it.id == *id);
            // One that is a source already has been asked, or will be.
            if **id != *own && known.is_none_or(|it| it.is_known) {
                left_out += u64::from(!holding.add(id, false));
            }
        }
        left_out
    }

    /// A member is back that may know of slots what no other member does: those that are owned here
    /// ask it.
    pub fn add_returned(&mut self, id: &str, slots: &SlotSet) {
        let id = Arc::from(id);
        for (slot, holding) in (0..SLOT_COUNT).zip(&mut self.slots) {
            if slots.contains(slot) && holding.part != Part::None {
                self.left_out += u64::from(!holding.add(&id, false));
            }
        }
    }

    /// What the next map makes of it. Milliseconds, not for a reactor.
    #[must_use]
    pub fn follow(&self, step: Step<'_>) -> Self {
        let absent = match step.is_unbroken {
            true => None,
            false => without(step.new, step.own),
        };
        let mut left_out = 0;
        let slots = self.iter().map(|(slot, before)| {
            let mut next = Holding {
                part: part(step.new, slot, step.own),
                is_shared: step.others(slot).next().is_some(),
                sources: before.sources.clone(),
            };
            next.sources.retain(|source| step.serves(&source.id));
            // By a map that it has not seen it may have been an owner, which the next one asks.
            if next.part != Part::None || step.has_missed() {
                left_out += step.add_sources(slot, &mut next, absent.as_ref());
                // No member has told yet what happened meanwhile: others know some of it.
                let was_asking = before.sources.iter().any(|source| !source.is_asked);
                if was_asking
                    && next.sources.is_empty()
                    && let Some(id) = step.anybody()
                {
                    next.add(&Arc::from(id), true);
                }
            }
            next
        });
        Self {
            slots: slots.collect(),
            epoch: step.new.epoch(),
            left_out,
        }
    }
}

impl Holding {
    /// Whether a member is to be asked for what it knows.
    pub(super) fn asks(&self, id: &str) -> bool {
        let mut sources = self.sources.iter();
        sources.any(|it| *it.id == *id && !it.is_known)
    }

    /// Adds a source, or has it asked again. False if there is no room for it.
    fn add(&mut self, id: &Arc<str>, is_known: bool) -> bool {
        let known = self.sources.iter_mut().find(|it| it.id == *id);
        if let Some(source) = known {
            source.is_asked = false;
            source.is_known &= is_known;
            return true;
        }
        let has_room = self.sources.len() < SOURCES_MAX;
        if has_room {
            self.sources.push(Source {
                id: Arc::clone(id),
                is_asked: false,
                is_known,
            });
        }
        has_room
    }
}

impl<'a> Step<'a> {
    /// Other owners by the new map that are there, by rank.
    fn others(self, slot: u16) -> impl Iterator<Item = &'a str> {
        let owners = self.new.owners(slot);
        owners
            .filter(move |owner| owner.id != self.own && owner.state.is_serving())
            .map(|owner| owner.id.as_str())
    }

    /// The other members that are there.
    fn others_serving(self) -> impl Iterator<Item = &'a Member> {
        let members = self.new.members().iter();
        members.filter(move |member| member.id != self.own && member.state.is_serving())
    }

    /// Another member that is there.
    fn anybody(self) -> Option<&'a str> {
        self.others_serving()
            .next()
            .map(|member| member.id.as_str())
    }

    fn serves(self, id: &str) -> bool {
        let member = self.new.member(id);
        member.is_some_and(|member| member.state.is_serving())
    }

    /// Adds the members to ask about a slot that the member owns by the new map. Returns for how
    /// many there was no room: those that matter most come first.
    fn add_sources(self, slot: u16, holding: &mut Holding, absent: Option<&Table>) -> u64 {
        let mut left_out = 0;
        let mut add = |holding: &mut Holding, id: &str, is_known| {
            left_out += u64::from(!holding.add(&Arc::from(id), is_known));
        };
        if let Some(old) = self.old {
            let went_on = self.is_unbroken && part(old, slot, self.own) != Part::None;
            if !went_on && let Some(owner) = self.owner_of(old, slot) {
                add(holding, owner, false);
            }
            let ids = |map: &'a Topology| map.owners(slot).map(|owner| owner.id.as_str());
            if holding.part == Part::Primary && !ids(old).eq(ids(self.new)) {
                for id in ids(old).filter(|id| *id != self.own && self.serves(id)) {
                    add(holding, id, true);
                }
            }
        }
        if self.is_unbroken {
            return left_out;
        }
        // The members that own it beside the member, or owned it while the member was away.
        if let Some(beside) = self.others(slot).next() {
            add(holding, beside, false);
        }
        let stand_in = absent.and_then(|table| table.owners(slot).positions().first().copied());
        if let Some(member) = stand_in.and_then(|at| self.new.members().get(usize::from(at))) {
            add(holding, &member.id, false);
        }
        // One that has no weight now may have had some then, and stood in.
        for member in self.others_serving().filter(|it| it.weight == 0) {
            add(holding, &member.id, false);
        }
        // By maps that it has not seen, any member may have owned it.
        if self.has_missed() {
            for member in self.others_serving() {
                add(holding, &member.id, false);
            }
        }
        left_out
    }

    /// Whether there were maps between the one that it went by and the new one.
    fn has_missed(self) -> bool {
        let old = self.old.map(Topology::epoch);
        old.is_some_and(|old| self.new.epoch() > old.saturating_add(1))
    }

    /// The first owner of a slot by a map that is there by the new one.
    fn owner_of(self, map: &'a Topology, slot: u16) -> Option<&'a str> {
        let others = map.owners(slot).filter(|owner| owner.id != self.own);
        others
            .map(|owner| owner.id.as_str())
            .find(|id| self.serves(id))
    }
}

fn part(map: &Topology, slot: u16, own: &str) -> Part {
    let mut serving = map.owners(slot).filter(|owner| owner.state.is_serving());
    let rank = serving.position(|owner| owner.id == own);
    match rank {
        None => Part::None,
        Some(0) => Part::Primary,
        Some(_) => Part::Replica,
    }
}

/// The first owners there would be without a member; its positions are those of the map.
fn without(map: &Topology, own: &str) -> Option<Table> {
    let placed: Vec<Placed<'_>> = map
        .members()
        .iter()
        .map(|member| Placed {
            id: &member.id,
            zone: &member.zone,
            // Those that drain count too: they had slots.
            weight: match member.id == own || !member.state.is_serving() {
                true => 0,
                false => u16::try_from(member.weight).unwrap_or(u16::MAX),
            },
        })
        .collect();
    Table::new(&placed, 1)
}

#[cfg(test)]
mod tests {
    use fonn_forward::MemberState;
    use proptest::prelude::*;

    use super::*;
    use crate::sharing::tests::maps::{self, member, placed};

    const NAMES: [&str; 4] = ["a", "b", "c", "d"];

    /// A map by the states of the members, in the order of their names.
    fn map(epoch: u64, replicas: usize, states: [MemberState; 4]) -> Option<Topology> {
        let members = NAMES.iter().zip(states);
        let members = members.map(|(id, state)| member(id, state, 100));
        placed(epoch, replicas, members.collect())
    }

    fn states() -> impl Strategy<Value = [MemberState; 4]> {
        let state = prop_oneof![
            3 => Just(MemberState::Active),
            1 => Just(MemberState::Draining),
            1 => Just(MemberState::Down),
            1 => Just(MemberState::Joining),
        ];
        [state.clone(), state.clone(), state.clone(), state]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// A member that answered for a slot before, and is there, is a source of the new primary.
        #[test]
        fn a_primary_waits_for_all_earlier_owners_of_its_slots(
            before in states(), after in states(), counts in (1..4_usize, 1..4_usize),
            own in 0..4_usize, is_unbroken: bool,
        ) {
            let (Some(old), Some(new)) = (map(1, counts.0, before), map(2, counts.1, after)) else {
                return Ok(());
            };
            let own = NAMES[own];
            let step = Step { own, old: Some(&old), is_unbroken, new: &new };
            let holdings = Holdings::default().follow(step);
            for (slot, holding) in holdings.iter() {
                prop_assert_eq!(holding.part, part(&new, slot, own));
                let is_source = |id: &str| holding.sources.iter().any(|it| *it.id == *id);
                prop_assert!(!is_source(own));
                prop_assert!(holding.sources.iter().all(|it| step.serves(&it.id) && !it.is_asked));
                let stays = old.owners(slot).map(|it| &it.id).eq(new.owners(slot).map(|it| &it.id));
                for owner in old.owners(slot).filter(|it| it.id != own && step.serves(&it.id)) {
                    let is_due = holding.part == Part::Primary && !stays;
                    prop_assert!(!is_due || is_source(&owner.id), "{} of {}", owner.id, slot);
                }
                let went_on = is_unbroken && part(&old, slot, own) != Part::None;
                if went_on {
                    prop_assert!(holding.sources.iter().all(|it| it.is_known));
                }
                if holding.part == Part::None {
                    prop_assert!(holding.sources.is_empty());
                }
            }
        }
    }

    #[test]
    fn what_a_member_lacks_stays_when_it_loses_the_slot_and_is_told_to_the_next() {
        use MemberState::{Active, Draining};
        let one = map(1, 1, [Active, Draining, Draining, Draining]).unwrap();
        let two = map(2, 1, [Draining, Active, Draining, Draining]).unwrap();
        let three = map(3, 1, [Draining, Draining, Active, Draining]).unwrap();
        let follow = |holdings: &Holdings, own, old, new| {
            let is_unbroken = true;
            holdings.follow(Step {
                own,
                old: Some(old),
                is_unbroken,
                new,
            })
        };
        let ids = |holdings: &Holdings| {
            let sources = &holdings.get(7).unwrap().sources;
            sources
                .iter()
                .map(|it| it.id.to_string())
                .collect::<Vec<_>>()
        };
        let b = follow(&Holdings::default(), "b", &one, &two);
        assert_eq!(ids(&b), ["a"]);
        let b = follow(&b, "b", &two, &three);
        assert_eq!(
            (b.get(7).unwrap().part, ids(&b)),
            (Part::None, vec!["a".to_owned()])
        );
        let mut c = follow(&Holdings::default(), "c", &two, &three);
        assert_eq!(ids(&c), ["b"]);
        c.add_sources(7, "b", &[Arc::from("a"), Arc::from("c")], "c");
        assert_eq!(ids(&c), ["b", "a"]);
        c.settle(7, "b");
        assert_eq!(ids(&c), ["a"]);
    }

    #[test]
    fn a_member_that_missed_a_map_may_have_been_an_owner_by_it_and_tells_so() {
        use MemberState::{Active, Draining};
        let one = map(1, 1, [Active, Draining, Draining, Draining]).unwrap();
        let three = map(3, 1, [Draining, Draining, Active, Draining]).unwrap();
        // By the second map it owned all; the owner by the third relies on it.
        let b = Holdings::default().follow(Step {
            own: "b",
            old: Some(&one),
            is_unbroken: false,
            new: &three,
        });
        let holding = b.get(7).unwrap();
        let mut ids: Vec<_> = holding.sources.iter().map(|it| &*it.id).collect();
        ids.sort_unstable();
        assert_eq!((holding.part, ids), (Part::None, vec!["a", "c", "d"]));
    }

    #[test]
    fn a_member_that_was_away_asks_its_stand_in() {
        use MemberState::{Active, Down};
        let now = map(9, 1, [Active, Active, Active, Down]).unwrap();
        let step = Step {
            own: "a",
            old: None,
            is_unbroken: false,
            new: &now,
        };
        let holdings = Holdings::default().follow(step);
        let stood_in = map(8, 1, [Down, Active, Active, Down]).unwrap();
        let owned = holdings.iter().filter(|(_, it)| it.part == Part::Primary);
        assert!(owned.count() > 4000);
        for (slot, holding) in holdings.iter().filter(|(_, it)| it.part == Part::Primary) {
            let who = &stood_in.owners(slot).next().unwrap().id;
            let sources: Vec<_> = holding.sources.iter().map(|it| it.id.to_string()).collect();
            assert_eq!(sources, std::slice::from_ref(who), "{slot}");
        }
    }

    #[test]
    fn a_member_that_was_away_asks_possible_stand_ins_that_lost_their_weight() {
        use MemberState::{Active, Down};
        let map = |epoch| {
            let rows = [
                ("a", Active, 100),
                ("b", Active, 0),
                ("c", Down, 0),
                ("d", Active, 0),
            ];
            let members = rows.map(|(id, state, weight)| member(id, state, weight));
            placed(epoch, 1, members.into()).unwrap()
        };
        let now = map(9);
        let holdings = Holdings::default().follow(Step {
            own: "a",
            old: None,
            is_unbroken: false,
            new: &now,
        });
        for (slot, holding) in holdings.iter() {
            let ids: Vec<_> = holding.sources.iter().map(|it| &*it.id).collect();
            assert_eq!(
                (holding.part, ids),
                (Part::Primary, vec!["b", "d"]),
                "{slot}"
            );
        }
        // A member that was there all the time knows that they had nothing.
        let before = map(8);
        let unbroken = Holdings::default().follow(Step {
            own: "a",
            old: Some(&before),
            is_unbroken: true,
            new: &now,
        });
        assert!(unbroken.iter().all(|(_, it)| it.sources.is_empty()));
    }

    #[test]
    fn where_there_is_no_room_for_all_sources_the_old_owner_is_one_and_the_others_are_counted() {
        use MemberState::{Active, Draining};
        let names: Vec<String> = (0..12).map(|number| format!("m{number:02}")).collect();
        let only = |epoch, owner: usize| {
            let state = |it| if it == owner { Active } else { Draining };
            let rows: Vec<_> = (0..12).map(|it| (names[it].as_str(), state(it))).collect();
            maps::map(epoch, 1, &rows)
        };
        // The last one by name had all slots; maps in between were missed.
        let old = only(1, 11);
        let new = only(5, 0);
        let holdings = Holdings::default().follow(Step {
            own: "m00",
            old: Some(&old),
            is_unbroken: false,
            new: &new,
        });
        for (slot, holding) in holdings.iter() {
            assert_eq!(holding.sources.len(), SOURCES_MAX);
            let owner = holding.sources.iter().find(|it| *it.id == *"m11");
            assert!(owner.is_some_and(|it| !it.is_known), "{slot}");
        }
        assert_eq!(holdings.left_out(), u64::from(SLOT_COUNT) * 3);
        // The member that is told of the others has no room for them either.
        let more: Vec<Arc<str>> = names.iter().map(|name| Arc::from(name.as_str())).collect();
        assert_eq!(holdings.clone().add_sources(7, "m11", &more, "m00"), 3);
    }
}
