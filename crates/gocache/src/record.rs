//! What describes an output: the beginning of the value that the server keeps under an action, and
//! the whole file that the local directory keeps for it.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | `FNGO` |
//! | 4 | 1 | layout: 1 |
//! | 5 | 1 | length of the output's name |
//! | 6 | 2 | 0 |
//! | 8 | 8 | length of the output, little-endian |
//! | 16 | 8 | when it was stored: Unix time in nanoseconds, little-endian |
//! | 24 | 32 | SHA-256 of the output |
//! | 56 | … | the output's name, as the go command gave it |

/// Bytes before the name.
pub(crate) const HEAD_LEN: usize = 56;

/// The longest name of an action or output in bytes. The go command's have 32.
pub(crate) const NAME_LEN_MAX: usize = 64;

const MAGIC: [u8; 6] = *b"FNGO\x01\0";

/// An output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Its name.
    pub(crate) output: Vec<u8>,
    /// Its length in bytes.
    pub(crate) len: u64,
    /// When it was stored: Unix time in nanoseconds.
    pub(crate) stored_at_ns: u64,
    /// Its SHA-256.
    pub(crate) digest: [u8; 32],
}

impl Record {
    /// The bytes, or none if the name is too long.
    pub(crate) fn encode(&self) -> Option<Vec<u8>> {
        let name_len = u8::try_from(self.output.len()).ok()?;
        if self.output.len() > NAME_LEN_MAX {
            return None;
        }
        let [a, b, c, d, layout, _] = MAGIC;
        let mut bytes = vec![a, b, c, d, layout, name_len, 0, 0];
        bytes.extend_from_slice(&self.len.to_le_bytes());
        bytes.extend_from_slice(&self.stored_at_ns.to_le_bytes());
        bytes.extend_from_slice(&self.digest);
        bytes.extend_from_slice(&self.output);
        Some(bytes)
    }

    /// Length of the record that begins with these bytes; none if it is no record. `bytes` has
    /// [`HEAD_LEN`] bytes or more.
    pub(crate) fn len_of(bytes: &[u8]) -> Option<usize> {
        let (&[a, b, c, d, layout, name_len, 0, 0], _) = bytes.split_first_chunk::<8>()? else {
            return None;
        };
        let is_known = [a, b, c, d, layout, 0] == MAGIC && usize::from(name_len) <= NAME_LEN_MAX;
        is_known.then_some(HEAD_LEN + usize::from(name_len))
    }

    /// Takes a whole record apart.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        if Self::len_of(bytes)? != bytes.len() {
            return None;
        }
        let (_, rest) = bytes.split_first_chunk::<8>()?;
        let (len, rest) = rest.split_first_chunk::<8>()?;
        let (stored_at_ns, rest) = rest.split_first_chunk::<8>()?;
        let (digest, output) = rest.split_first_chunk::<32>()?;
        Some(Self {
            output: output.to_vec(),
            len: u64::from_le_bytes(*len),
            stored_at_ns: u64::from_le_bytes(*stored_at_ns),
            digest: *digest,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_encoded_is_parsed(
            output in prop::collection::vec(any::<u8>(), 0..=NAME_LEN_MAX),
            len: u64,
            stored_at_ns: u64,
            digest: [u8; 32],
        ) {
            let record = Record { output, len, stored_at_ns, digest };
            let bytes = record.encode().unwrap();
            prop_assert_eq!(Record::len_of(&bytes[..HEAD_LEN]), Some(bytes.len()));
            prop_assert_eq!(Record::parse(&bytes), Some(record));
            prop_assert_eq!(Record::parse(&bytes[..bytes.len() - 1]), None);
        }

        #[test]
        fn other_bytes_are_no_record(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if !bytes.starts_with(&MAGIC[..5]) {
                prop_assert_eq!(Record::parse(&bytes), None);
            }
        }
    }

    #[test]
    fn a_name_that_is_too_long_has_no_record() {
        let record = Record {
            output: vec![0; NAME_LEN_MAX + 1],
            len: 0,
            stored_at_ns: 0,
            digest: [0; 32],
        };
        assert_eq!(record.encode(), None);
    }
}
