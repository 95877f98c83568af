//! What was flushed.

use crate::Version;
use crate::peer::DecodeError;

/// Bytes of one flush.
const LEN: usize = 18;

/// A flush of one space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush {
    /// What is flushed.
    pub space: u16,
    /// The version below which nothing counts any more; 0 of one that is still to come.
    pub cutoff: Version,
    /// When one that is still to come takes effect, in Unix milliseconds; 0 of one that has.
    pub at_ms: u64,
}

/// The flushes that a member knows of, those to come among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flushes<'a> {
    /// Each: space in 16 bits, cutoff and time in 64.
    bytes: &'a [u8],
}

impl<'a> Flushes<'a> {
    pub(super) fn from_bytes(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        match bytes.chunks_exact(LEN).remainder() {
            [] => Ok(Self { bytes }),
            _ => Err(DecodeError::Truncated("flushes")),
        }
    }

    pub(super) const fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The flushes.
    pub fn iter(&self) -> impl Iterator<Item = Flush> + use<'a> {
        let u64_of = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
        self.bytes.chunks_exact(LEN).map(move |row| {
            let (space, rest) = row.split_at(2);
            let (cutoff, at_ms) = rest.split_at(8);
            Flush {
                space: space.try_into().map_or(0, u16::from_le_bytes),
                cutoff: u64_of(cutoff),
                at_ms: u64_of(at_ms),
            }
        })
    }
}

/// Gathers [`Flushes`].
#[derive(Debug, Default)]
pub struct FlushesBuilder {
    bytes: Vec<u8>,
}

impl FlushesBuilder {
    /// The flushes that were added.
    #[must_use]
    pub fn flushes(&self) -> Flushes<'_> {
        Flushes { bytes: &self.bytes }
    }
}

impl FromIterator<Flush> for FlushesBuilder {
    fn from_iter<T: IntoIterator<Item = Flush>>(flushes: T) -> Self {
        let mut bytes = Vec::new();
        for flush in flushes {
            bytes.extend_from_slice(&flush.space.to_le_bytes());
            bytes.extend_from_slice(&flush.cutoff.to_le_bytes());
            bytes.extend_from_slice(&flush.at_ms.to_le_bytes());
        }
        Self { bytes }
    }
}
