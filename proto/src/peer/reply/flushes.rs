//! What was flushed or purged.

use crate::peer::DecodeError;
use crate::peer::field::{Reader, Writer};
use crate::{PurgeScope, Version, WriterId};

/// A flush of one space, or a purge of a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush {
    /// What is flushed.
    pub space: u32,
    /// The version below which nothing counts any more; 0 of one that is still to come.
    pub cutoff: Version,
    /// When one that is still to come takes effect, in Unix milliseconds; 0 of one that has.
    pub at_ms: u64,
    /// Of a purge: what of the writer is hidden. `space` says where, as [`PurgeScope::place`] does.
    pub purge: Option<PurgeScope>,
}

impl Flush {
    /// Space, cutoff, time and writer; of a purge the first version stands in the place of the
    /// time.
    pub(super) fn write(&self, writer: &mut Writer<'_>) {
        let (number, at_ms) = match self.purge {
            Some(purge) => (purge.writer.number(), purge.since),
            None => (0, self.at_ms),
        };
        writer.u32(self.space);
        writer.u64(self.cutoff);
        writer.u64(at_ms);
        writer.u32(number);
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let space = reader.u32("space")?;
        let cutoff = reader.u64("cutoff")?;
        let at_ms = reader.u64("time")?;
        let writer = WriterId::new(reader.u32("writer")?);
        let purge = PurgeScope::new(writer, space, at_ms);
        Ok(Self {
            space,
            cutoff,
            at_ms: if purge.is_some() { 0 } else { at_ms },
            purge,
        })
    }
}
