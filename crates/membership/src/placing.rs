//! The members on which a layout places the slots, and the layout that follows from them.

use std::sync::{Arc, OnceLock};

use fonn_proto::placement::{Placed, SLOT_COUNT, Table};
use fonn_replication::{Layout, MemberId};
use serde::{Deserialize, Serialize};

/// A member of a layout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The number of the member ([`Member::number`](super::member::Member::number)).
    pub number: u8,
    /// Its name, on which its slots depend.
    pub id: String,
    /// Its failure zone.
    pub zone: String,
    /// Its share of the slots relative to others; above 0.
    pub weight: u16,
}

/// What a layout follows from. The layout is a pure function of it, computed when it is first asked
/// for, and not a part of snapshots.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Placing {
    /// Owners of each slot, 1 to 3.
    pub replicas: u8,
    /// The members, by name.
    pub places: Vec<Place>,
    #[serde(skip)]
    layout: OnceLock<Arc<Layout>>,
}

impl PartialEq for Placing {
    fn eq(&self, other: &Self) -> bool {
        (self.replicas, &self.places) == (other.replicas, &other.places)
    }
}

impl Eq for Placing {}

impl Placing {
    /// Places the slots on these members, in the order of their names.
    #[must_use]
    pub fn new(replicas: u8, places: Vec<Place>) -> Self {
        Self {
            replicas,
            places,
            layout: OnceLock::new(),
        }
    }

    /// The weight of a member; 0 if the layout does not have it.
    #[must_use]
    pub fn weight(&self, number: u8) -> u16 {
        let place = self.places.iter().find(|place| place.number == number);
        place.map_or(0, |place| place.weight)
    }

    /// The layout. The first call takes milliseconds.
    #[must_use]
    pub fn layout(&self) -> Arc<Layout> {
        Arc::clone(self.layout.get_or_init(|| Arc::new(self.compute())))
    }

    fn compute(&self) -> Layout {
        let placed: Vec<Placed<'_>> = self
            .places
            .iter()
            .map(|place| Placed {
                id: &place.id,
                zone: &place.zone,
                weight: place.weight,
            })
            .collect();
        let table = Table::new(&placed, usize::from(self.replicas));
        let number = |position: &u16| {
            let place = self.places.get(usize::from(*position));
            place.map(|place| MemberId(place.number))
        };
        let rows: Vec<Vec<MemberId>> = (0..SLOT_COUNT)
            .map(|slot| {
                let owners = table.as_ref().map(|table| table.owners(slot));
                let positions = owners.iter().flat_map(|owners| owners.positions());
                positions.filter_map(number).collect()
            })
            .collect();
        let members = self.places.iter().map(|it| MemberId(it.number)).collect();
        Layout::new(&rows, members).unwrap_or_default()
    }
}
