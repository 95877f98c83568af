//! What a member has to do with each slot, and what changes about it when one map follows another: pure.
//!
//! A member that owned a slot before goes on with what it has. One that comes to own it, or that was away,
//! may have copies that others have overwritten since, and lacks what others wrote: until it has gone
//! through all that the slot's *sources* know, it asks them about each key first. A source is who owned the
//! slot before; and if that one had not gone through its own sources, these.
//!
//! Whoever answered for a slot before has to know that it does not any more, before the new primary answers:
//! these are sources too, of which nothing is wanted but that word.

use std::sync::Arc;

use fonn_proto::placement::{Placed, SLOT_COUNT, Table};
use fonn_runtime::route::Topology;

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
    /// Who knows what it may not know. Kept when it loses the slot, for who owns it next.
    pub sources: Vec<Source>,
}

/// Who knows of a slot what another may not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The name.
    pub id: Arc<str>,
    /// Whether it goes by the map by which it is a source, and has said which sources it had itself.
    pub is_asked: bool,
    /// What it knows is here already: its word suffices.
    pub is_known: bool,
}

/// Sources of a slot at most: so often it has moved on before it was taken over.
const SOURCES_MAX: usize = 8;

/// What a member has to do with all slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holdings {
    slots: Vec<Holding>,
}

/// One map after another, as seen by one member.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// The name of the member.
    pub own: &'a str,
    /// The map that it went by, if any.
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
        }
    }
}

impl Holdings {
    /// What there is about a slot.
    #[must_use]
    pub fn get(&self, slot: u16) -> Option<&Holding> {
        self.slots.get(usize::from(slot))
    }

    /// All slots, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &Holding)> {
        (0..SLOT_COUNT).zip(&self.slots)
    }

    /// All that `source` knows of a slot is here.
    pub fn settle(&mut self, slot: u16, source: &str) {
        if let Some(holding) = self.slots.get_mut(usize::from(slot)) {
            holding.sources.retain(|it| *it.id != *source);
        }
    }

    /// A source has said which sources it had itself; `own` is no source of its own.
    pub fn add_sources(&mut self, slot: u16, of: &str, more: &[Arc<str>], own: &str) {
        let Some(holding) = self.slots.get_mut(usize::from(slot)) else {
            return;
        };
        let told = holding.sources.iter_mut().find(|it| *it.id == *of);
        let Some(told) = told else { return };
        told.is_asked = true;
        if told.is_known {
            holding.sources.retain(|it| *it.id != *of);
            return;
        }
        for id in more {
            let known = holding.sources.iter().find(|it| it.id == *id);
            // One that is a source already has been asked, or will be.
            if **id != *own && known.is_none_or(|it| it.is_known) {
                holding.add(id, false);
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
        let slots = self.iter().map(|(slot, before)| {
            let mut next = Holding {
                part: part(step.new, slot, step.own),
                is_shared: step.others(slot).next().is_some(),
                sources: before.sources.clone(),
            };
            next.sources.retain(|source| step.serves(&source.id));
            if next.part != Part::None {
                step.add_sources(slot, &mut next, absent.as_ref());
            }
            next
        });
        Self {
            slots: slots.collect(),
        }
    }
}

impl Holding {
    /// Adds a source, or has it asked again.
    fn add(&mut self, id: &Arc<str>, is_known: bool) {
        let known = self.sources.iter_mut().find(|it| it.id == *id);
        if let Some(source) = known {
            source.is_asked = false;
            source.is_known &= is_known;
        } else if self.sources.len() < SOURCES_MAX {
            self.sources.push(Source {
                id: Arc::clone(id),
                is_asked: false,
                is_known,
            });
        }
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

    fn serves(self, id: &str) -> bool {
        let member = self.new.member(id);
        member.is_some_and(|member| member.state.is_serving())
    }

    /// Adds whom to ask about a slot that the member owns by the new map.
    fn add_sources(self, slot: u16, holding: &mut Holding, absent: Option<&Table>) {
        if !self.is_unbroken {
            // Whoever owns it beside the member, or owned it while the member was away.
            if let Some(beside) = self.others(slot).next() {
                holding.add(&Arc::from(beside), false);
            }
            let stand_in = absent.and_then(|table| table.owners(slot).positions().first().copied());
            if let Some(member) = stand_in.and_then(|at| self.new.members().get(usize::from(at))) {
                holding.add(&Arc::from(member.id.as_str()), false);
            }
        }
        let Some(old) = self.old else { return };
        let went_on = self.is_unbroken && part(old, slot, self.own) != Part::None;
        if !went_on && let Some(owner) = self.owner_of(old, slot) {
            holding.add(&Arc::from(owner), false);
        }
        let ids = |map: &'a Topology| map.owners(slot).map(|owner| owner.id.as_str());
        if holding.part == Part::Primary && !ids(old).eq(ids(self.new)) {
            for id in ids(old).filter(|id| *id != self.own && self.serves(id)) {
                holding.add(&Arc::from(id), true);
            }
        }
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
