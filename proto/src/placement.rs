//! Which slot a key belongs to, and which members own a slot: what clients, nodes and routers have
//! to agree on.
//!
//! The slot is that of Redis Cluster (Redis cluster specification, "Key distribution model" and
//! "Hash tags"), so that cluster-aware RESP clients find a key's owner by themselves. The owners
//! follow from the list of members alone; a [`Table`] of them is made once for each epoch of the
//! list.

mod owners;
pub mod rows;
mod score;
mod table;
#[cfg(test)]
mod tests;

pub use owners::Owners;
pub use table::Table;

/// A member as placement sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed<'a> {
    /// Its name; what its slots depend on.
    pub id: &'a str,
    /// The failure zone it stands in.
    pub zone: &'a str,
    /// Its share of the slots relative to others; 0 owns none.
    pub weight: u16,
}

/// How many slots there are.
pub const SLOT_COUNT: u16 = 16_384;

/// The slot of a key, below [`SLOT_COUNT`]: CRC16 of the key modulo the number of slots.
///
/// Where the key holds a `{`, and behind it a `}` with at least one byte between them, only the
/// bytes between the first `{` and the first `}` behind it count. Keys with the same tag share a
/// slot.
#[must_use]
pub fn slot(key: &[u8]) -> u16 {
    crc16(hash_tag(key)) % SLOT_COUNT
}

/// The part of a key that decides about its slot.
fn hash_tag(key: &[u8]) -> &[u8] {
    let Some(open) = memchr::memchr(b'{', key) else {
        return key;
    };
    let behind = key.get(open + 1..).unwrap_or_default();
    match memchr::memchr(b'}', behind) {
        None | Some(0) => key,
        Some(close) => behind.get(..close).unwrap_or(key),
    }
}

/// CRC16/XMODEM: polynomial 0x1021, start value 0, nothing reflected, no final exclusive or.
pub(crate) fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, &byte| {
        let [high, low] = crc.to_be_bytes();
        CRC16_TABLE[usize::from(high ^ byte)] ^ u16::from_be_bytes([low, 0])
    })
}

/// The checksum of each single byte.
const CRC16_TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 {
                crc << 1
            } else {
                (crc << 1) ^ 0x1021
            };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};
