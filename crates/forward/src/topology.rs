//! The map of a cluster: members, and the owners of slots.
//!
//! A router only follows the map; changing it is the members' business. A [`Topology`] is checked
//! once, when it is made, and never changes: lookups cannot fail.
//!
//! Invariants: member ids and the addresses of serving members are unique. A slot has up to three
//! different owners, all of them members. It has none while no member can stand in for its owners.

use std::collections::HashSet;

use fonn_proto::member::{Member, is_host_and_port};
use fonn_proto::placement::rows::RowsError;
use fonn_proto::placement::{Owners, SLOT_COUNT};

/// A map that breaks an invariant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// There is no member to own the slots.
    #[error("the map has no members")]
    NoMembers,
    /// A member without a name, or two of one name.
    #[error("the member id `{id}` is empty or given twice")]
    MemberId {
        /// The id.
        id: String,
    },
    /// An address that is not `HOST:PORT`, or at which two members serve.
    #[error("the address `{address}` of member `{id}` is not HOST:PORT or is given twice")]
    Address {
        /// The member.
        id: String,
        /// Its address.
        address: String,
    },
    /// The owners of slots are not told as they should be.
    #[error("the owners of slots are malformed: {0}")]
    Rows(#[from] RowsError),
    /// A slot is owned by an unknown member.
    #[error("slot {slot} is owned by member number {position}, which does not exist")]
    UnknownOwner {
        /// The slot.
        slot: u16,
        /// The owner's position in the list of members.
        position: u16,
    },
}

/// A checked map of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    cluster: u64,
    epoch: u64,
    members: Vec<Member>,
    owners: Vec<Option<Owners>>,
}

impl Topology {
    /// Checks a map. `owners` has a row for each slot, in order; slots without one have no owner.
    ///
    /// # Errors
    /// [`TopologyError`], the first breach that is found.
    pub fn new(
        epoch: u64,
        members: Vec<Member>,
        owners: Vec<Option<Owners>>,
    ) -> Result<Self, TopologyError> {
        check_members(&members)?;
        for (slot, row) in (0..SLOT_COUNT).zip(&owners) {
            let is_unknown = |position: &&u16| usize::from(**position) >= members.len();
            let positions = row.as_ref().map(Owners::positions).unwrap_or_default();
            if let Some(&position) = positions.iter().find(is_unknown) {
                return Err(TopologyError::UnknownOwner { slot, position });
            }
        }
        Ok(Self {
            cluster: 0,
            epoch,
            members,
            owners,
        })
    }

    /// The same, of the cluster with that id.
    #[must_use]
    pub fn of_cluster(self, cluster: u64) -> Self {
        Self { cluster, ..self }
    }

    /// The cluster's id; 0 if it is not known.
    #[must_use]
    pub fn cluster(&self) -> u64 {
        self.cluster
    }

    /// The number of the map; a later map has a higher one.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// All members.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// A member by its name.
    #[must_use]
    pub fn member(&self, id: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.id == id)
    }

    /// The owners of a slot by rank; none when there is no such slot.
    pub fn owners(&self, slot: u16) -> impl Iterator<Item = &Member> + '_ {
        self.positions(slot)
            .iter()
            .filter_map(|&position| self.members.get(usize::from(position)))
    }

    /// The owners of a slot by rank, as positions in the list of members.
    #[must_use]
    pub fn positions(&self, slot: u16) -> &[u16] {
        let row = self.owners.get(usize::from(slot)).and_then(Option::as_ref);
        row.map(Owners::positions).unwrap_or_default()
    }

    /// Whether requests may be sent to the member at a position.
    #[must_use]
    pub fn is_serving(&self, position: usize) -> bool {
        let member = self.members.get(position);
        member.is_some_and(|member| member.state.is_serving())
    }

    /// The member to ask about a slot: the first of its owners that serves.
    #[must_use]
    pub fn serving(&self, slot: u16) -> Option<&Member> {
        self.owners(slot).find(|member| member.state.is_serving())
    }
}

fn check_members(members: &[Member]) -> Result<(), TopologyError> {
    if members.is_empty() {
        return Err(TopologyError::NoMembers);
    }
    let (mut ids, mut addresses) = (HashSet::new(), HashSet::new());
    for member in members {
        if member.id.is_empty() || !ids.insert(member.id.as_str()) {
            return Err(TopologyError::MemberId {
                id: member.id.clone(),
            });
        }
        let address = member.client_address.as_str();
        // The address of a member that is gone may be another's by now.
        let is_taken = member.state.is_serving() && !addresses.insert(address);
        if !is_host_and_port(address) || is_taken {
            let (id, address) = (member.id.clone(), address.to_owned());
            return Err(TopologyError::Address { id, address });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
