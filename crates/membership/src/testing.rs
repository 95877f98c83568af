//! Maps made by hand, as members have them.

use fonn_base::hlc::VersionRange;
use fonn_proto::placement::{Placed, SLOT_COUNT, Table};

use crate::map::{Map, MapMember};
use crate::member::MemberState;

/// A member of that weight, by which it owns slots whatever its state is.
pub fn member(id: &str, client_address: &str, state: MemberState, weight: u16) -> MapMember {
    MapMember {
        id: id.to_owned(),
        client_address: client_address.to_owned(),
        cluster_address: String::new(),
        zone: String::new(),
        weight,
        share: weight,
        state,
        since: 1,
        incarnation: 1,
        version: String::new(),
    }
}

/// A map of members, with the owners that follow from their shares.
pub fn map(epoch: u64, replicas: u8, members: Vec<MapMember>) -> Map {
    let placed: Vec<Placed<'_>> = members
        .iter()
        .map(|member| Placed {
            id: &member.id,
            zone: &member.zone,
            weight: member.share,
        })
        .collect();
    Map {
        cluster: 1,
        epoch,
        versions: VersionRange::default(),
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
