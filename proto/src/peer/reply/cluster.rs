//! The owners of slots, field by field.

use crate::cluster::{ClusterMember, ClusterView, Health, NODE_ID_LEN, NodeId, SlotRange};
use crate::peer::field::{Reader, Writer, text};
use crate::peer::{DecodeError, TooLong};
use crate::placement::Owners;

/// The number of each on the wire.
const HEALTHS: [(u8, Health); 3] = [
    (0, Health::Online),
    (1, Health::Loading),
    (2, Health::Failed),
];

pub(super) fn write(view: &ClusterView, writer: &mut Writer<'_>) -> Result<(), TooLong> {
    writer.u64(view.epoch());
    writer.u16(view.me());
    // A view has at most so many members.
    writer.u16(u16::try_from(view.members().len()).unwrap_or(u16::MAX));
    for member in view.members() {
        let row = HEALTHS.iter().find(|(_, it)| *it == member.health);
        writer.put(member.id.as_bytes());
        writer.u8(row.map_or(0, |(number, _)| *number));
        writer.u16(member.port);
        writer.short(member.host.as_bytes(), "a host")?;
    }
    for range in view.ranges() {
        let owners = range.owners.positions();
        writer.u16(range.first);
        writer.u16(range.last);
        // Up to three.
        writer.u8(owners.len() as u8);
        owners.iter().for_each(|owner| writer.u16(*owner));
    }
    Ok(())
}

pub(super) fn read(reader: &mut Reader<'_>) -> Result<ClusterView, DecodeError> {
    let epoch = reader.u64("epoch")?;
    let me = reader.u16("who tells it")?;
    let count = reader.u16("members")?;
    // Grown as members are found: the count would be a promise.
    let mut members = Vec::new();
    for _ in 0..count {
        members.push(member(reader)?);
    }
    let ranges = reader.list(range)?;
    ClusterView::new(epoch, me, members, ranges).ok_or(DecodeError::Meaningless {
        field: "view",
        value: epoch,
    })
}

fn member(reader: &mut Reader<'_>) -> Result<ClusterMember, DecodeError> {
    let mut id = [0; NODE_ID_LEN];
    let bytes = reader.take(NODE_ID_LEN, "id")?;
    id.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    let number = reader.u8("health")?;
    let row = HEALTHS.iter().find(|(it, _)| *it == number);
    let (_, health) = row.ok_or(DecodeError::Meaningless {
        field: "health",
        value: u64::from(number),
    })?;
    Ok(ClusterMember {
        id: NodeId::from_bytes(id),
        health: *health,
        port: reader.u16("port")?,
        host: text(reader.short("host")?, "host")?,
    })
}

fn range(reader: &mut Reader<'_>) -> Result<SlotRange, DecodeError> {
    let (first, last) = (reader.u16("first slot")?, reader.u16("last slot")?);
    let count = reader.u8("owners")?;
    let meaningless = DecodeError::Meaningless {
        field: "owners",
        value: u64::from(count),
    };
    let mut owners = [0; Owners::COUNT_MAX];
    let owners = owners.get_mut(..usize::from(count)).ok_or(meaningless)?;
    for owner in owners.iter_mut() {
        *owner = reader.u16("owner")?;
    }
    let owners = Owners::new(owners).ok_or(meaningless)?;
    Ok(SlotRange {
        first,
        last,
        owners,
    })
}
