//! What was flushed or purged.

use crate::peer::DecodeError;
use crate::{PurgeScope, Version, WriterId};

/// Bytes of one flush.
const LEN: usize = 22;

/// A flush of one space, or a purge of a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush {
    /// What is flushed.
    pub space: u16,
    /// The version below which nothing counts any more; 0 of one that is still to come.
    pub cutoff: Version,
    /// When one that is still to come takes effect, in Unix milliseconds; 0 of one that has.
    pub at_ms: u64,
    /// Of a purge: what of the writer is hidden. `space` says where, as [`PurgeScope::place`] does.
    pub purge: Option<PurgeScope>,
}

/// The flushes that a member knows of, those to come among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flushes<'a> {
    /// Each: space in 16 bits, cutoff and time in 64, writer in 32; of a purge the first version
    /// stands in the place of the time.
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
            let (cutoff, rest) = rest.split_at(8);
            let (at_ms, writer) = rest.split_at(8);
            let space = space.try_into().map_or(0, u16::from_le_bytes);
            let writer = WriterId::new(writer.try_into().map_or(0, u32::from_le_bytes));
            let purge = PurgeScope::new(writer, space, u64_of(at_ms));
            Flush {
                space,
                cutoff: u64_of(cutoff),
                at_ms: if purge.is_some() { 0 } else { u64_of(at_ms) },
                purge,
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
            let (writer, at_ms) = match flush.purge {
                Some(purge) => (purge.writer.number(), purge.since),
                None => (0, flush.at_ms),
            };
            bytes.extend_from_slice(&at_ms.to_le_bytes());
            bytes.extend_from_slice(&writer.to_le_bytes());
        }
        Self { bytes }
    }
}
