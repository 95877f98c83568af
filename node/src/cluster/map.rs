//! The map: the members and the owners of slots, a pure function of the [`State`].
//!
//! Members and routers serve by the last map that they have, also while no agreement is possible.

use fonn_base::hlc::VersionRange;
use fonn_proto::placement::{Placed, Table};

use super::member::{Member, MemberState, Phase};
use super::state::State;

/// The members and the owners of every slot at one epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Map {
    /// Which cluster; 0 before this member knows any.
    pub cluster: u64,
    /// The version; a higher one is newer.
    pub epoch: u64,
    /// The versions that members may give, as far as this was known when the map was made.
    pub versions: VersionRange,
    /// Owners that each slot should have.
    pub replicas: u8,
    /// All members but those removed, by name. The positions in [`Map::table`] are positions here.
    pub members: Vec<MapMember>,
    /// The owners; none before the cluster is formed and where no member has a weight.
    pub table: Option<Table>,
}

/// A member in a [`Map`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapMember {
    /// The name.
    pub id: String,
    /// Host and port for clients.
    pub client_address: String,
    /// Host and port for other members.
    pub cluster_address: String,
    /// Failure zone.
    pub zone: String,
    /// The weight it was given.
    pub weight: u16,
    /// The weight by which slots are placed at this epoch; 0 owns none.
    pub share: u16,
    /// How it is.
    pub state: MemberState,
    /// The epoch since which it has been active and reachable without a break.
    pub since: u64,
    /// Which of its disks it runs on.
    pub incarnation: u64,
    /// The version of its software.
    pub version: String,
}

impl Map {
    /// The map of a state. The owners of 16,384 slots are computed: milliseconds, not for a
    /// reactor.
    #[must_use]
    pub fn new(state: &State) -> Self {
        let members = members(state);
        let placed: Vec<Placed<'_>> = members
            .iter()
            .map(|member| Placed {
                id: &member.id,
                zone: &member.zone,
                weight: member.share,
            })
            .collect();
        let table = Table::new(&placed, usize::from(state.replicas));
        Self {
            cluster: state.cluster,
            epoch: state.epoch,
            versions: state.versions,
            replicas: state.replicas,
            members,
            table,
        }
    }

    /// The owners of a slot by rank; none before the cluster is formed.
    pub fn owners(&self, slot: u16) -> impl Iterator<Item = &MapMember> {
        let owners = self.table.as_ref().map(|table| table.owners(slot));
        let count = owners.map_or(0, |owners| owners.positions().len());
        (0..count).filter_map(move |rank| {
            let position = *owners.as_ref()?.positions().get(rank)?;
            self.members.get(usize::from(position))
        })
    }

    /// The member of that name.
    #[must_use]
    pub fn member(&self, id: &str) -> Option<&MapMember> {
        self.members.iter().find(|member| member.id == id)
    }
}

/// What the map shows of the members, by name.
pub(super) fn members(state: &State) -> Vec<MapMember> {
    let is_active = |member: &Member| member.phase == Phase::Active && member.info.weight > 0;
    let any_up = state.live().any(|it| is_active(it) && !it.is_down);
    // With no member up the slots stay where they are: a map without owners would serve no client
    // when the first of them returns.
    let owns = |member: &Member| is_active(member) && (!member.is_down || !any_up);
    let shown = |member: &Member| MapMember {
        id: member.info.id.clone(),
        client_address: member.info.client_address.clone(),
        cluster_address: member.info.cluster_address.clone(),
        zone: member.info.zone.clone(),
        weight: member.info.weight,
        share: if owns(member) { member.info.weight } else { 0 },
        state: member.state(),
        since: member.since,
        incarnation: member.incarnation,
        version: member.info.version.clone(),
    };
    state.live().map(shown).collect()
}
