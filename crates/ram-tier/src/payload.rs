//! The bytes of an entry, in one block: its key, its small value, and the facts that most entries
//! lack.
//!
//! Invariant: the key and space never change while an entry keeps its slot, so that its hash does
//! not either.
//!
//! | offset | size in bytes | type | meaning |
//! |---|---|---|---|
//! | 0 | 4 | u32 | seconds of the last use, in the clock that the caller gives |
//! | 4 | 1 | u8 | length of the key in space 0, or 255 |
//! | 5 | 0 or 2 | u16 | behind 255: length of the key |
//! | | 0 or 4 | u32 | behind 255: space |
//! | | key length | bytes | key |
//! | | 0 or 4 | u32 | client flags |
//! | | 0 or 4 | u32 | number of the writer |
//! | | 0 or 8 | u64 | chosen CAS token |
//! | | 0 or 8 | u64 | expiry, Unix time in milliseconds |
//! | | the rest | bytes | body: the stored value, or the index (u32) of a shared one |
//!
//! All numbers are little-endian; the layout never leaves the process. The slot's state says which
//! facts there are, and how much longer the block is than the payload. The length itself is kept
//! nowhere. The facts lie before the body, so that a lookup that leaves the value alone reads the
//! same lines as one that compares the key. Most keys are short, and of the first space.

use fonn_base::entry::Space;
use fonn_proto::WriterId;

use super::state::{self, HAS_CAS, HAS_EXPIRY, HAS_FLAGS, HAS_WRITER};

/// Bytes before a short key of space 0.
const SHORT_HEAD: usize = 5;

/// Bytes before any other key.
const LONG_HEAD: usize = SHORT_HEAD + 6;

/// What stands for the length of a key that has a long head.
const IS_LONG: u8 = u8::MAX;

/// The facts of an entry that most entries lack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Extras {
    /// Absent if 0.
    pub flags: u32,
    pub writer: WriterId,
    pub cas: Option<u64>,
    /// Absent if 0.
    pub expires_at_ms: u64,
}

impl Extras {
    /// The bits of the state that say which of the facts there are.
    pub fn bits(self) -> u32 {
        let facts = [
            (HAS_FLAGS, self.flags != 0),
            (HAS_WRITER, self.writer.is_known()),
            (HAS_CAS, self.cas.is_some()),
            (HAS_EXPIRY, self.expires_at_ms != 0),
        ];
        let with = |word, (bit, on)| state::with_bits(word, bit, on);
        facts.into_iter().fold(0, with)
    }

    fn len(self) -> usize {
        let facts = [
            (HAS_FLAGS, 4),
            (HAS_WRITER, 4),
            (HAS_CAS, 8),
            (HAS_EXPIRY, 8),
        ];
        let bits = self.bits();
        let there = facts.into_iter().filter(|&(bit, _)| state::has(bits, bit));
        there.map(|(_, len)| len).sum()
    }
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
        self.head_len() + self.key.len() + self.extras.len() + self.body.len()
    }

    fn head_len(&self) -> usize {
        let is_short = self.space == Space(0) && self.key.len() < usize::from(IS_LONG);
        if is_short { SHORT_HEAD } else { LONG_HEAD }
    }

    /// Writes the payload into a block, which must be long enough.
    pub fn write(&self, block: &mut [u8]) {
        let (head, rest) = block.split_at_mut(self.head_len());
        set_last_used_s(head, self.last_used_s);
        match head {
            [_, _, _, _, key_len] => *key_len = self.key.len() as u8,
            long => {
                let key_len = u16::try_from(self.key.len()).unwrap_or(u16::MAX);
                long[4] = IS_LONG;
                long[5..7].copy_from_slice(&key_len.to_le_bytes());
                long[7..].copy_from_slice(&self.space.0.to_le_bytes());
            }
        }
        let (key, rest) = rest.split_at_mut(self.key.len());
        key.copy_from_slice(self.key);
        let rest = write_extras(rest, self.extras);
        rest[..self.body.len()].copy_from_slice(self.body);
    }
}

/// Writes the facts that there are and returns what lies behind them.
fn write_extras(rest: &mut [u8], extras: Extras) -> &mut [u8] {
    let bits = extras.bits();
    let rest = put(rest, bits, HAS_FLAGS, extras.flags.to_le_bytes());
    let rest = put(rest, bits, HAS_WRITER, extras.writer.number().to_le_bytes());
    let rest = put(rest, bits, HAS_CAS, extras.cas.unwrap_or(0).to_le_bytes());
    put(rest, bits, HAS_EXPIRY, extras.expires_at_ms.to_le_bytes())
}

/// Writes a number, if `bits` has its bit, and returns what lies behind it.
fn put<const N: usize>(rest: &mut [u8], bits: u32, bit: u32, number: [u8; N]) -> &mut [u8] {
    if !state::has(bits, bit) {
        return rest;
    }
    let (place, rest) = rest.split_at_mut(N);
    place.copy_from_slice(&number);
    rest
}

/// Takes a number from the beginning of `rest`, if `bits` has its bit.
fn take<const N: usize>(rest: &mut &[u8], bits: u32, bit: u32) -> Option<[u8; N]> {
    if !state::has(bits, bit) {
        return None;
    }
    let (number, behind) = rest.split_first_chunk()?;
    *rest = behind;
    Some(*number)
}

/// Seconds of the last use.
pub(super) fn last_used_s(payload: &[u8]) -> u32 {
    u32::from_le_bytes([payload[0], payload[1], payload[2], payload[3]])
}

/// Notes a use.
pub(super) fn set_last_used_s(payload: &mut [u8], now_s: u32) {
    payload[0..4].copy_from_slice(&now_s.to_le_bytes());
}

/// Space, length of the key and what begins with the key.
fn addressed(payload: &[u8]) -> (Space, usize, &[u8]) {
    match payload[4] {
        IS_LONG => {
            let key_len = u16::from_le_bytes([payload[5], payload[6]]);
            let space = u32::from_le_bytes([payload[7], payload[8], payload[9], payload[10]]);
            (Space(space), key_len.into(), &payload[LONG_HEAD..])
        }
        key_len => (Space(0), key_len.into(), &payload[SHORT_HEAD..]),
    }
}

/// The space.
pub(super) fn space(payload: &[u8]) -> Space {
    addressed(payload).0
}

/// Space and key.
pub(super) fn address(payload: &[u8]) -> (Space, &[u8]) {
    let (space, key_len, rest) = addressed(payload);
    (space, &rest[..key_len])
}

/// The payload in a block taken apart. `word` is the state of its slot.
pub(super) fn parts(block: &[u8], word: u32) -> Parts<'_> {
    let payload = &block[..block.len() - state::slack(word)];
    let (space, key_len, rest) = addressed(payload);
    let (key, mut rest) = rest.split_at(key_len);
    let extras = Extras {
        flags: take(&mut rest, word, HAS_FLAGS).map_or(0, u32::from_le_bytes),
        writer: WriterId::new(take(&mut rest, word, HAS_WRITER).map_or(0, u32::from_le_bytes)),
        cas: take(&mut rest, word, HAS_CAS).map(u64::from_le_bytes),
        expires_at_ms: take(&mut rest, word, HAS_EXPIRY).map_or(0, u64::from_le_bytes),
    };
    Parts {
        last_used_s: last_used_s(payload),
        space,
        key,
        body: rest,
        extras,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &[u8] = b"a key";

    /// Keys and spaces with a short head and with a long one.
    fn addresses() -> [(Space, Vec<u8>); 6] {
        [
            (Space(0), KEY.to_vec()),
            (Space(0), Vec::new()),
            (Space(0), vec![7; 254]),
            (Space(0), vec![7; 255]),
            (Space(0), vec![7; 60_000]),
            (Space(513), KEY.to_vec()),
        ]
    }

    /// Each set of facts, with the lowest and the highest numbers.
    fn all_extras() -> impl Iterator<Item = Extras> {
        let of = |word: u32, high: bool| {
            let number = |bit, low, highest| match state::has(word, bit) {
                true if high => highest,
                true => low,
                false => 0,
            };
            let cas = number(HAS_CAS, 0, u64::MAX);
            Extras {
                flags: number(HAS_FLAGS, 1, u64::from(u32::MAX)) as u32,
                writer: WriterId::new(number(HAS_WRITER, 1, u64::from(u32::MAX)) as u32),
                cas: state::has(word, HAS_CAS).then_some(cas),
                expires_at_ms: number(HAS_EXPIRY, 1, u64::MAX),
            }
        };
        let words = (0..=state::FACTS).filter(|word| word & !state::FACTS == 0);
        words.flat_map(move |word| [of(word, false), of(word, true)])
    }

    fn written(parts: &Parts<'_>, slack: usize) -> (Vec<u8>, u32) {
        let mut block = vec![0xAA; parts.len() + slack];
        parts.write(&mut block);
        (block, state::with_slack(parts.extras.bits(), slack))
    }

    #[test]
    fn parts_come_back_as_they_were_written_into_any_block() {
        assert_eq!(all_extras().count(), 32);
        for (extras, (space, key)) in all_extras().flat_map(|it| addresses().map(|at| (it, at))) {
            for (body, slack) in [(&b""[..], 0), (b"value", 1), (b"v", 255), (b"", 8000)] {
                let parts = Parts {
                    last_used_s: 9,
                    space,
                    key: &key,
                    body,
                    extras,
                };
                let (mut block, word) = written(&parts, slack);
                assert_eq!(address(&block), (space, &key[..]));
                assert_eq!(super::space(&block), space);
                set_last_used_s(&mut block, 10);
                let read = super::parts(&block, word);
                assert_eq!((read.last_used_s, read.space), (10, space));
                assert_eq!((read.key, read.body, read.extras), (&key[..], body, extras));
            }
        }
    }

    #[test]
    fn a_short_key_of_the_first_space_has_a_head_of_five_bytes() {
        for (space, key) in addresses() {
            let parts = Parts {
                last_used_s: 9,
                space,
                key: &key,
                body: b"",
                extras: Extras::default(),
            };
            let is_short = space == Space(0) && key.len() < 255;
            let head = parts.len() - key.len();
            assert_eq!(
                head,
                if is_short { 5 } else { 11 },
                "{space:?}, {}",
                key.len()
            );
        }
    }

    #[test]
    fn a_fact_costs_its_number_and_an_entry_without_one_nothing() {
        let none = Extras::default();
        let writer = Extras {
            writer: WriterId::new(1),
            ..none
        };
        let expiry = Extras {
            expires_at_ms: 1,
            ..none
        };
        assert_eq!((none.len(), writer.len(), expiry.len()), (0, 4, 8));
    }
}
