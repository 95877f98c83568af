//! The bytes of an entry, in one block: its key, its small value, and the facts that most entries
//! lack.
//!
//! Invariant: the key and space never change while an entry keeps its slot, so that its hash does
//! not either.
//!
//! | offset | size in bytes | type | meaning |
//! |---|---|---|---|
//! | 0 | 4 | u32 | seconds of the last use, in the clock that the caller gives |
//! | 4 | 2 | u16 | length of the key |
//! | 6 | 2 | u16 | space |
//! | 8 | key length | bytes | key |
//! | | the rest | bytes | body: the stored value, or the index (u32) of a shared one |
//! | | 0 or 4 | u32 | client flags, if the mask says so |
//! | | 0 or 4 | u32 | number of the writer, if the mask says so |
//! | | 0 or 8 | u64 | chosen CAS token, if the slot says so |
//! | len − 1 | 0 or 1 | u8 | mask of facts, if the slot says so: 1 client flags, 2 writer |
//!
//! All numbers are little-endian; the layout never leaves the process. Where the block is longer
//! than the payload, which the slot says too, the block's last byte holds the number of bytes too
//! many; if they are 255 or more it holds 255 and the two bytes (u16) before it the number. The
//! length itself is kept nowhere.

use fonn_base::entry::Space;
use fonn_proto::WriterId;

/// Bytes before the key.
pub(super) const HEADER: usize = 8;

const FLAGS: usize = 4;
const WRITER: usize = 4;
const CAS: usize = 8;
const MASK: usize = 1;

const MASK_FLAGS: u8 = 1;
const MASK_WRITER: u8 = 2;

/// The optional facts of an entry, kept behind its body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Extras {
    pub flags: Option<u32>,
    pub writer: WriterId,
    pub cas: Option<u64>,
}

impl Extras {
    /// Which of the facts under the mask there are.
    fn mask(self) -> u8 {
        let flags = if self.flags.is_some() { MASK_FLAGS } else { 0 };
        let writer = if self.writer.is_known() {
            MASK_WRITER
        } else {
            0
        };
        flags | writer
    }

    /// Whether the payload has a mask.
    pub fn has_facts(self) -> bool {
        self.mask() != 0
    }

    /// Whether others of the same presence take the same place.
    pub fn is_shaped_as(self, other: Self) -> bool {
        self.mask() == other.mask() && self.cas.is_some() == other.cas.is_some()
    }

    fn len(self) -> usize {
        extras_len(self.mask(), self.cas.is_some())
    }
}

/// Bytes of the extras behind a body; a mask of 0 is not there.
const fn extras_len(mask: u8, has_cas: bool) -> usize {
    let flags = if mask & MASK_FLAGS != 0 { FLAGS } else { 0 };
    let writer = if mask & MASK_WRITER != 0 { WRITER } else { 0 };
    let cas = if has_cas { CAS } else { 0 };
    flags + writer + cas + if mask != 0 { MASK } else { 0 }
}

/// Everything a payload is made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts<'a> {
    pub last_used_s: u32,
    pub space: Space,
    /// At most `u16::MAX` bytes.
    pub key: &'a [u8],
    pub body: &'a [u8],
    pub extras: Extras,
}

impl Parts<'_> {
    /// Bytes of the payload.
    pub fn len(&self) -> usize {
        HEADER + self.key.len() + self.body.len() + self.extras.len()
    }

    /// Writes the payload into a block, which must be long enough and less than 64 KiB longer.
    /// Returns whether the block is longer than the payload.
    pub fn write(&self, block: &mut [u8]) -> bool {
        let key_len = u16::try_from(self.key.len()).unwrap_or(u16::MAX);
        let key_end = HEADER + self.key.len();
        let body_end = key_end + self.body.len();
        let len = self.len();
        block[0..4].copy_from_slice(&self.last_used_s.to_le_bytes());
        block[4..6].copy_from_slice(&key_len.to_le_bytes());
        block[6..8].copy_from_slice(&self.space.0.to_le_bytes());
        block[HEADER..key_end].copy_from_slice(self.key);
        block[key_end..body_end].copy_from_slice(self.body);
        write_extras(&mut block[body_end..len], self.extras);
        write_slack(&mut block[len..])
    }
}

/// Notes in the bytes behind a payload how many they are. Returns whether there are any.
fn write_slack(slack: &mut [u8]) -> bool {
    let len = slack.len();
    let Some((last, before)) = slack.split_last_mut() else {
        return false;
    };
    *last = u8::try_from(len).unwrap_or(u8::MAX);
    if *last == u8::MAX {
        let at = before.len() - 2;
        before[at..].copy_from_slice(&(len as u16).to_le_bytes());
    }
    true
}

/// The length of the payload in a block; `has_slack` is what the slot says.
pub(super) fn len_in(block: &[u8], has_slack: bool) -> usize {
    if !has_slack {
        return block.len();
    }
    let last = block.len() - 1;
    let slack = match block[last] {
        u8::MAX => usize::from(u16::from_le_bytes([block[last - 2], block[last - 1]])),
        slack => usize::from(slack),
    };
    block.len() - slack
}

/// Writes `extras` into the end of a payload, which must have exactly their size.
fn write_extras(mut end: &mut [u8], extras: Extras) {
    if let Some(flags) = extras.flags {
        end[..FLAGS].copy_from_slice(&flags.to_le_bytes());
        end = &mut end[FLAGS..];
    }
    if extras.writer.is_known() {
        end[..WRITER].copy_from_slice(&extras.writer.number().to_le_bytes());
        end = &mut end[WRITER..];
    }
    if let Some(cas) = extras.cas {
        end[..CAS].copy_from_slice(&cas.to_le_bytes());
        end = &mut end[CAS..];
    }
    if let Some(mask) = end.first_mut() {
        *mask = extras.mask();
    }
}

/// Seconds of the last use.
pub(super) fn last_used_s(payload: &[u8]) -> u32 {
    u32::from_le_bytes([payload[0], payload[1], payload[2], payload[3]])
}

/// Notes a use.
pub(super) fn set_last_used_s(payload: &mut [u8], now_s: u32) {
    payload[0..4].copy_from_slice(&now_s.to_le_bytes());
}

fn key_len(payload: &[u8]) -> usize {
    usize::from(u16::from_le_bytes([payload[4], payload[5]]))
}

/// The space.
pub(super) fn space(payload: &[u8]) -> Space {
    Space(u16::from_le_bytes([payload[6], payload[7]]))
}

/// The key.
pub(super) fn key(payload: &[u8]) -> &[u8] {
    &payload[HEADER..HEADER + key_len(payload)]
}

/// Whether the payload belongs to this key.
pub(super) fn matches(payload: &[u8], wanted: Space, wanted_key: &[u8]) -> bool {
    space(payload) == wanted && key(payload) == wanted_key
}

/// The payload taken apart. `has_facts` and `has_cas` are what the slot says.
pub(super) fn parts(payload: &[u8], has_facts: bool, has_cas: bool) -> Parts<'_> {
    let (key, rest) = payload[HEADER..].split_at(key_len(payload));
    let mask = if has_facts { rest[rest.len() - 1] } else { 0 };
    let (body, end) = rest.split_at(rest.len() - extras_len(mask, has_cas));
    let (flags, end) = end.split_at(if mask & MASK_FLAGS != 0 { FLAGS } else { 0 });
    let (writer, end) = end.split_at(if mask & MASK_WRITER != 0 { WRITER } else { 0 });
    let (cas, _) = end.split_at(if has_cas { CAS } else { 0 });
    let extras = Extras {
        flags: flags.try_into().ok().map(u32::from_le_bytes),
        writer: WriterId::new(writer.try_into().map_or(0, u32::from_le_bytes)),
        cas: cas.try_into().ok().map(u64::from_le_bytes),
    };
    Parts {
        last_used_s: last_used_s(payload),
        space: space(payload),
        key,
        body,
        extras,
    }
}

/// Overwrites the extras of a payload, of which the same must be present.
pub(super) fn set_extras(payload: &mut [u8], extras: Extras) {
    let at = payload.len() - extras.len();
    write_extras(&mut payload[at..], extras);
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &[u8] = b"a key";

    fn all_extras() -> impl Iterator<Item = Extras> {
        let flags = [None, Some(7), Some(u32::MAX)];
        let all = move |writer, cas| {
            flags.map(|flags| Extras {
                flags,
                writer: WriterId::new(writer),
                cas,
            })
        };
        [
            all(0, None),
            all(5, None),
            all(0, Some(1)),
            all(u32::MAX, Some(u64::MAX)),
        ]
        .into_iter()
        .flatten()
    }

    #[test]
    fn parts_come_back_as_they_were_written_into_any_block() {
        for extras in all_extras() {
            for (body, more) in [
                (&b""[..], 0),
                (b"value", 1),
                (b"v", 254),
                (b"v", 255),
                (b"", 9000),
            ] {
                let parts = Parts {
                    last_used_s: 9,
                    space: Space(513),
                    key: KEY,
                    body,
                    extras,
                };
                let mut block = vec![0xAA; parts.len() + more];
                let has_slack = parts.write(&mut block);
                assert_eq!(has_slack, more > 0);
                assert!(matches(&block, Space(513), KEY));
                assert!(!matches(&block, Space(512), KEY));
                assert!(!matches(&block, Space(513), b"a kex"));
                set_last_used_s(&mut block, 10);
                let len = len_in(&block, has_slack);
                let read = parts_of(&block[..len], extras);
                assert_eq!((read.last_used_s, read.space), (10, Space(513)));
                assert_eq!((read.key, read.body, read.extras), (KEY, body, extras));
            }
        }
    }

    fn parts_of(payload: &[u8], extras: Extras) -> Parts<'_> {
        parts(payload, extras.has_facts(), extras.cas.is_some())
    }

    #[test]
    fn a_writer_costs_five_bytes_and_an_entry_without_one_nothing() {
        let none = Extras::default();
        let writer = Extras {
            writer: WriterId::new(1),
            ..none
        };
        assert_eq!((none.len(), writer.len()), (0, 5));
    }

    #[test]
    fn extras_are_overwritten_in_their_place() {
        let extras = Extras {
            flags: Some(7),
            writer: WriterId::new(5),
            cas: Some(8),
        };
        let parts = Parts {
            last_used_s: 9,
            space: Space(0),
            key: KEY,
            body: b"value",
            extras,
        };
        let mut payload = vec![0; parts.len()];
        parts.write(&mut payload);
        let extras = Extras {
            flags: Some(9),
            writer: WriterId::new(6),
            cas: Some(u64::MAX),
        };
        set_extras(&mut payload, extras);
        let read = parts_of(&payload, extras);
        assert_eq!(
            (read.key, read.body, read.extras),
            (KEY, &b"value"[..], extras)
        );
    }
}
