//! The map: the members and the owners of slots, a pure function of the [`State`].
//!
//! Members and routers serve by the last map that they have, also while no agreement is possible.

use std::collections::BTreeMap;

use fonn_proto::member::Member;
use fonn_proto::placement::{Owners, SLOT_COUNT};
use fonn_replication::Slot;

use super::state::State;

/// The members and the owners of every slot at one epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Map {
    /// Which cluster; 0 before this member knows any.
    pub cluster: u64,
    /// The version; a higher one is newer.
    pub epoch: u64,
    /// Owners that each slot should have.
    pub replicas: u8,
    /// Whether the members copy slots for another layout, or another one is due, or a member is
    /// leaving.
    pub is_moving: bool,
    /// All members, by name. The positions in [`Map::owners`] are positions here.
    pub members: Vec<Member>,
    /// The owners of each slot that are in sync, by rank. Empty before the cluster is formed; a
    /// slot has none while no member can stand in.
    pub owners: Vec<Option<Owners>>,
}

impl Map {
    /// The map of a state. The owners of 16,384 slots are computed: milliseconds, not for a
    /// reactor.
    #[must_use]
    pub fn new(state: &State) -> Self {
        let members = members(state);
        let positions: BTreeMap<u8, u16> = state
            .members
            .values()
            .map(|it| it.number)
            .zip(0..)
            .collect();
        let topology = state.topology();
        let owners = |slot| {
            let ranked = topology.ranked_owners(Slot(slot));
            let ranked = ranked.filter_map(|member| positions.get(&member.0).copied());
            Owners::new(&ranked.take(Owners::COUNT_MAX).collect::<Vec<_>>())
        };
        let owners = match state.cluster {
            0 => Vec::new(),
            _ => (0..SLOT_COUNT).map(owners).collect(),
        };
        Self {
            cluster: state.cluster,
            epoch: state.epoch,
            replicas: state.replicas,
            is_moving: state.is_moving(),
            members,
            owners,
        }
    }

    /// The owners of a slot by rank; none before the cluster is formed.
    pub fn owners(&self, slot: u16) -> impl Iterator<Item = &Member> {
        let owners = self.owners.get(usize::from(slot)).and_then(Option::as_ref);
        let positions = owners.map(Owners::positions).unwrap_or_default();
        positions
            .iter()
            .filter_map(|position| self.members.get(usize::from(*position)))
    }

    /// The names of the owners of a slot, by rank.
    #[cfg(test)]
    pub fn owner_ids(&self, slot: u16) -> Vec<&str> {
        self.owners(slot).map(|it| it.id.as_str()).collect()
    }

    /// The member of that name.
    #[must_use]
    pub fn member(&self, id: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.id == id)
    }
}

/// What the map shows of the members, by name.
pub(super) fn members(state: &State) -> Vec<Member> {
    let shown = |member: &super::member::Member| Member {
        id: member.info.id.clone(),
        client_address: member.info.client_address.clone(),
        cluster_address: member.info.cluster_address.clone(),
        zone: member.info.zone.clone(),
        weight: member.info.weight.into(),
        share: state.placing.weight(member.number).into(),
        state: member.state(),
        version: member.info.version.clone(),
    };
    state.members.values().map(shown).collect()
}
