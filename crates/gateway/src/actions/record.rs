//! What is stored of an archive.
//!
//! An archive is a list of blocks; it is the value of an entry, and of an upload that is complete.
//! Integers are little endian.
//!
//! | offset | size | meaning |
//! |---|---|---|
//! | 0 | 8 | `fonngha1` |
//! | 8 + 28 n | 16 | random name of block n |
//! | 24 + 28 n | 8 | its length in bytes |
//! | 32 + 28 n | 4 | length of its parts in bytes; the last one may be shorter |
//!
//! The index of a version lists the keys of its entries, the newest first: `fonnghi1`, and for each
//! key its length (u16) and its bytes.

use super::{ARCHIVE_LEN_MAX, BLOCKS_MAX, KEY_LEN_MAX, PARTS_MAX, hex};

const ARCHIVE: &[u8; 8] = b"fonngha1";
const INDEX: &[u8; 8] = b"fonnghi1";

/// Longest part in bytes.
pub(crate) const PART_LEN_MAX: usize = 4 << 20;

/// Keys of an index at most.
const KEYS_MAX: usize = 1000;

/// Longest index in bytes.
const INDEX_LEN_MAX: usize = 256 << 10;

const ROW_LEN: usize = 28;

/// A block that was uploaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) name: [u8; 16],
    pub(crate) len: u64,
    pub(crate) part_len: u32,
}

/// A part of a block, and which bytes of the archive it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) key: String,
    /// Offset of its first byte in the archive.
    pub(crate) offset: u64,
    pub(crate) len: usize,
}

/// The blocks of an archive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Archive(Vec<Block>);

impl Block {
    /// The key of its part of this number.
    pub(crate) fn part_key(&self, number: u64) -> String {
        format!("actions/part/{}/{number}", hex(&self.name))
    }

    fn parts_count(&self) -> u64 {
        self.len.div_ceil(self.part_len.into())
    }
}

impl Archive {
    /// An archive of blocks. `None` if it would be too long.
    pub(crate) fn new(blocks: Vec<Block>) -> Option<Self> {
        let is_valid = |it: &Block| (1..=PART_LEN_MAX).contains(&(it.part_len as usize));
        if blocks.len() > BLOCKS_MAX || !blocks.iter().all(is_valid) {
            return None;
        }
        let sum = |of: fn(&Block) -> u64| {
            let mut all = blocks.iter().map(of);
            all.try_fold(0, u64::checked_add)
        };
        let is_short =
            sum(|it| it.len)? <= ARCHIVE_LEN_MAX && sum(Block::parts_count)? <= PARTS_MAX;
        is_short.then_some(Self(blocks))
    }

    pub(crate) fn blocks(&self) -> &[Block] {
        &self.0
    }

    /// Its length in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.0.iter().map(|it| it.len).sum()
    }

    /// Its parts, in order.
    pub(crate) fn parts(self) -> impl Iterator<Item = Part> + Send + 'static {
        let mut offset = 0;
        self.0.into_iter().flat_map(move |block| {
            let start = offset;
            offset += block.len;
            let part_len = u64::from(block.part_len);
            (0..block.parts_count()).map(move |number| {
                let before = number * part_len;
                Part {
                    key: block.part_key(number),
                    offset: start + before,
                    // At most 4 MiB.
                    len: (block.len - before).min(part_len) as usize,
                }
            })
        })
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = ARCHIVE.to_vec();
        for block in &self.0 {
            bytes.extend_from_slice(&block.name);
            bytes.extend_from_slice(&block.len.to_le_bytes());
            bytes.extend_from_slice(&block.part_len.to_le_bytes());
        }
        bytes
    }

    /// `None` if the bytes are no archive.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let rows = bytes.strip_prefix(ARCHIVE.as_slice())?;
        if !rows.len().is_multiple_of(ROW_LEN) || rows.len() / ROW_LEN > BLOCKS_MAX {
            return None;
        }
        let blocks = rows.chunks_exact(ROW_LEN).map(|row| {
            let (name, row) = row.split_first_chunk()?;
            let (len, row) = row.split_first_chunk()?;
            let (part_len, _) = row.split_first_chunk()?;
            Some(Block {
                name: *name,
                len: u64::from_le_bytes(*len),
                part_len: u32::from_le_bytes(*part_len),
            })
        });
        Self::new(blocks.collect::<Option<_>>()?)
    }
}

/// The keys of a version, the newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Index(Vec<String>);

impl Index {
    /// Adds a key, or makes it the newest. The oldest ones go when there are too many.
    pub(crate) fn add(&mut self, key: &str) {
        self.0.retain(|it| it != key);
        self.0.insert(0, key.to_owned());
        let mut len = INDEX.len();
        let fits = self.0.iter().take(KEYS_MAX).take_while(|it| {
            len += 2 + it.len();
            len <= INDEX_LEN_MAX
        });
        let count = fits.count();
        self.0.truncate(count);
    }

    /// The keys that begin with `prefix`, the newest first.
    pub(crate) fn matching<'i>(&'i self, prefix: &'i str) -> impl Iterator<Item = &'i str> {
        let keys = self.0.iter().map(String::as_str);
        keys.filter(move |it| it.starts_with(prefix))
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = INDEX.to_vec();
        for key in &self.0 {
            // Keys are shorter than 64 KiB.
            bytes.extend_from_slice(&(key.len() as u16).to_le_bytes());
            bytes.extend_from_slice(key.as_bytes());
        }
        bytes
    }

    /// `None` if the bytes are no index.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes.strip_prefix(INDEX.as_slice())?;
        let mut keys = Vec::new();
        while !rest.is_empty() {
            let (len, behind) = rest.split_first_chunk()?;
            let len = usize::from(u16::from_le_bytes(*len));
            let (key, behind) = behind.split_at_checked(len)?;
            if len > KEY_LEN_MAX || keys.len() == KEYS_MAX {
                return None;
            }
            keys.push(String::from_utf8(key.to_vec()).ok()?);
            rest = behind;
        }
        Some(Self(keys))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn block(name: u8, len: u64, part_len: u32) -> Block {
        Block {
            name: [name; 16],
            len,
            part_len,
        }
    }

    #[test]
    fn parts_follow_each_other() {
        let archive = Archive::new(vec![block(1, 5, 2), block(2, 0, 4), block(3, 4, 4)]).unwrap();
        assert_eq!(archive.len(), 9);
        let parts: Vec<_> = archive.parts().map(|it| (it.offset, it.len)).collect();
        assert_eq!(parts, [(0, 2), (2, 2), (4, 1), (5, 4)]);
    }

    #[test]
    fn archives_beyond_the_limits_are_none() {
        let is_one = |blocks| Archive::new(blocks).is_some();
        let part_len = PART_LEN_MAX as u32;
        assert!(is_one(vec![block(1, ARCHIVE_LEN_MAX, part_len)]));
        assert!(!is_one(vec![block(1, ARCHIVE_LEN_MAX + 1, part_len)]));
        assert!(!is_one(vec![block(1, u64::MAX, part_len); 2]));
        assert!(!is_one(vec![block(1, 1, 0)]));
        assert!(!is_one(vec![block(1, 1, part_len + 1)]));
        assert!(!is_one(vec![block(1, PARTS_MAX + 1, 1)]));
        assert!(!is_one(vec![block(1, 1, 1); BLOCKS_MAX + 1]));
    }

    #[test]
    fn the_newest_key_comes_first_and_old_ones_go() {
        let mut index = Index::default();
        for number in 0..KEYS_MAX + 5 {
            index.add(&format!("key-{number}"));
        }
        index.add("key-500");
        assert_eq!(index.matching("key-").next(), Some("key-500"));
        assert_eq!(index.matching("key-").count(), KEYS_MAX);
        assert_eq!(index.matching("key-4").next(), Some("key-499"));
        assert_eq!(index.matching("other").next(), None);
        for number in 0..200 {
            index.add(&format!("{number:02048}"));
        }
        let bytes = index.encode();
        assert!(bytes.len() <= INDEX_LEN_MAX);
        assert_eq!(Index::parse(&bytes), Some(index));
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_parsed(
            rows in prop::collection::vec((any::<[u8; 16]>(), 0u64..1 << 20, 4096u32..1 << 20), 0..9),
            keys in prop::collection::vec("[a-z]{1,9}", 0..9),
        ) {
            let block = |(name, len, part_len)| Block { name, len, part_len };
            let archive = Archive::new(rows.into_iter().map(block).collect()).unwrap();
            prop_assert_eq!(Archive::parse(&archive.encode()), Some(archive.clone()));
            let mut end = 0;
            for part in archive.clone().parts() {
                prop_assert_eq!(part.offset, end);
                prop_assert!(part.len > 0);
                end += part.len as u64;
            }
            prop_assert_eq!(end, archive.len());
            let mut index = Index::default();
            keys.iter().for_each(|key| index.add(key));
            prop_assert_eq!(Index::parse(&index.encode()), Some(index));
        }

        #[test]
        fn any_bytes_are_a_record_or_none(bytes: Vec<u8>) {
            let _ = Archive::parse(&[ARCHIVE.as_slice(), &bytes].concat());
            let _ = Index::parse(&[INDEX.as_slice(), &bytes].concat());
        }
    }
}
