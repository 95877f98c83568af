//! Maps made by hand, as routers have them.

use fonn_forward::{Member, MemberState, Topology};
use fonn_proto::placement::{Placed, SLOT_COUNT, Table};

/// A member of that weight, which owns slots by it while it is active.
pub fn member(id: &str, state: MemberState, weight: u32) -> Member {
    Member {
        id: id.to_owned(),
        address: format!("{id}:1"),
        cluster_address: String::new(),
        zone: "z".to_owned(),
        weight,
        share: match state {
            MemberState::Active => weight,
            _ => 0,
        },
        state,
    }
}

/// A map of members, with the owners that follow from their shares; none where no member has one.
pub fn placed(epoch: u64, replicas: usize, members: Vec<Member>) -> Option<Topology> {
    let placed: Vec<Placed<'_>> = members
        .iter()
        .map(|member| Placed {
            id: &member.id,
            zone: &member.zone,
            weight: member.share as u16,
        })
        .collect();
    let table = Table::new(&placed, replicas)?;
    let owners = (0..SLOT_COUNT).map(|slot| table.owners(slot)).collect();
    Some(Topology::new(epoch, members, owners).unwrap())
}

/// A map of members of one weight, by name and state.
pub fn map(epoch: u64, replicas: usize, rows: &[(&str, MemberState)]) -> Topology {
    let members = rows.iter().map(|&(id, state)| member(id, state, 100));
    placed(epoch, replicas, members.collect()).unwrap()
}
