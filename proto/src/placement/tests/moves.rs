//! What has to move when one map follows another.

use super::super::{SLOT_COUNT, Table};

/// A slot whose owners change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// The slot.
    pub slot: u16,
    /// Owners before, by rank, by name.
    pub from: Vec<String>,
    /// Owners from now on, by rank, by name.
    pub to: Vec<String>,
}

impl Move {
    /// Whether another member becomes the primary owner.
    #[must_use]
    pub fn moves_primary(&self) -> bool {
        self.from.first() != self.to.first()
    }

    /// The members that need the slot's entries and lack them.
    pub fn receivers(&self) -> impl Iterator<Item = &str> {
        let is_new = |id: &&String| !self.from.contains(id);
        self.to.iter().filter(is_new).map(String::as_str)
    }
}

/// The slots whose owners differ, in order. Each map comes with the names of its members in the
/// order in which it was made: positions mean nothing across maps.
///
/// A name that is missing counts as an empty one.
#[must_use]
pub fn moves((old, old_ids): (&Table, &[&str]), (new, new_ids): (&Table, &[&str])) -> Vec<Move> {
    let names = |table: &Table, ids: &[&str], slot| {
        let owners = table.owners(slot);
        let name = |&at: &u16| {
            ids.get(usize::from(at))
                .copied()
                .unwrap_or_default()
                .to_owned()
        };
        owners.positions().iter().map(name).collect::<Vec<_>>()
    };
    (0..SLOT_COUNT)
        .filter_map(|slot| {
            let (from, to) = (names(old, old_ids, slot), names(new, new_ids, slot));
            (from != to).then_some(Move { slot, from, to })
        })
        .collect()
}
