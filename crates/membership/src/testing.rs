//! Maps made by hand, as members have them.

use fonn_proto::member::{Member, MemberState};
use fonn_proto::placement::{Placed, SLOT_COUNT, Table};

use crate::map::Map;

/// A member of that weight, by which it owns slots whatever its state is.
pub fn member(id: &str, client_address: &str, state: MemberState, weight: u16) -> Member {
    Member {
        id: id.to_owned(),
        client_address: client_address.to_owned(),
        weight: weight.into(),
        share: weight.into(),
        state,
        ..Member::default()
    }
}

/// A map of members, with the owners that follow from their shares.
pub fn map(epoch: u64, replicas: u8, members: Vec<Member>) -> Map {
    let placed: Vec<Placed<'_>> = members
        .iter()
        .map(|member| Placed {
            id: &member.id,
            zone: &member.zone,
            weight: u16::try_from(member.share).unwrap_or(u16::MAX),
        })
        .collect();
    Map {
        cluster: 1,
        epoch,
        replicas,
        is_moving: false,
        owners: match Table::new(&placed, usize::from(replicas)) {
            Some(table) => (0..SLOT_COUNT)
                .map(|slot| Some(table.owners(slot)))
                .collect(),
            None => Vec::new(),
        },
        members,
    }
}
