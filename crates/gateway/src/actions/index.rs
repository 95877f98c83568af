//! The index of a version: the keys of its entries, the newest first. Integers are little endian.
//!
//! | offset | size | meaning |
//! |---|---|---|
//! | 0 | 8 | `fonnghi1` |
//! | then | 2 | length of a key in bytes |
//! | then | the length | the key |

use super::KEY_LEN_MAX;

const INDEX: &[u8; 8] = b"fonnghi1";

/// Keys of an index at most.
const KEYS_MAX: usize = 1000;

/// Longest index in bytes.
const INDEX_LEN_MAX: usize = 256 << 10;

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
        fn what_is_encoded_is_parsed(keys in prop::collection::vec("[a-z]{1,9}", 0..9)) {
            let mut index = Index::default();
            keys.iter().for_each(|key| index.add(key));
            prop_assert_eq!(Index::parse(&index.encode()), Some(index));
        }

        #[test]
        fn any_bytes_are_an_index_or_none(bytes: Vec<u8>) {
            let _ = Index::parse(&[INDEX.as_slice(), &bytes].concat());
        }
    }
}
