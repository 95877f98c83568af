//! What an entry has of a blob that came compressed (ADR 0036). Integers are little endian.
//!
//! | offset | size | meaning |
//! |---|---|---|
//! | 0 | 8 | `fonnpck1` |
//! | 8 | 8 | length of the blob in bytes |
//! | 16 | | a stream of zstd, of one or more frames, that makes the blob |

use bytes::Bytes;

const MARK: &[u8; 8] = b"fonnpck1";

/// Bytes before the stream.
pub(crate) const HEAD_LEN: usize = 16;

/// A blob as a stream of zstd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Packed {
    len: u64,
    stream: Bytes,
}

impl Packed {
    /// What stands before the stream of a blob of `len` bytes.
    pub(crate) fn head(len: u64) -> [u8; HEAD_LEN] {
        let mut head = [0; HEAD_LEN];
        let (mark, told) = head.split_at_mut(MARK.len());
        mark.copy_from_slice(MARK);
        told.copy_from_slice(&len.to_le_bytes());
        head
    }

    /// Reads an entry; `None` if it is none. The stream has not been looked at.
    pub(crate) fn parse(bytes: &Bytes) -> Option<Self> {
        let told = bytes.strip_prefix(MARK)?.first_chunk()?;
        Some(Self {
            len: u64::from_le_bytes(*told),
            stream: bytes.slice(HEAD_LEN..),
        })
    }

    /// Length of the blob in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The stream, as the client sent it.
    pub(crate) fn stream(&self) -> &Bytes {
        &self.stream
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_entry_has_its_length_and_its_stream(len: u64, stream: Vec<u8>) {
            let entry = Bytes::from([&Packed::head(len)[..], &stream].concat());
            let packed = Packed::parse(&entry).unwrap();
            prop_assert_eq!(packed.len(), len);
            prop_assert_eq!(packed.stream(), &stream);
        }

        #[test]
        fn bytes_without_the_mark_or_the_length_are_no_entry(bytes: Vec<u8>, cut in 0..HEAD_LEN) {
            prop_assert_eq!(Packed::parse(&Bytes::from(bytes)), None);
            let head = Bytes::copy_from_slice(&Packed::head(7)[..cut]);
            prop_assert_eq!(Packed::parse(&head), None);
        }
    }
}
