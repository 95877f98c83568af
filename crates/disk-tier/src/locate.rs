//! Where an entry is on disk: for the operator, not for requests. It counts as no read and carries
//! nothing over.

use fonn_base::entry::Space;
use fonn_codec::{Encoding, Frame};

use super::DiskTier;
use super::error::DiskError;
use super::reader::{Looked, look};
use super::record::{Fact, index_key};

/// A record on disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiskLocation {
    /// The generation it is in.
    pub generation: u64,
    /// Where its record begins in the value log, in bytes.
    pub offset: u64,
    /// What it is about.
    pub fact: Fact,
    /// How its value is stored; None for a tombstone, and if the record is damaged.
    pub frame: Option<FrameFacts>,
}

/// How a value rests in its frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FrameFacts {
    /// Its form.
    pub encoding: Encoding,
    /// Length of the value.
    pub value_len: usize,
    /// Length of the frame.
    pub frame_len: usize,
}

impl DiskTier {
    /// The newest record of a key. Blocks on the disk: an index lookup and a read of the record.
    ///
    /// # Errors
    /// [`DiskError::Index`] if index or value log cannot be read.
    pub fn locate(&self, space: Space, key: &[u8]) -> Result<Option<DiskLocation>, DiskError> {
        let shared = &self.handle.shared;
        let Some(found) = shared.generations.find(&index_key(space, key))? else {
            return Ok(None);
        };
        let generation = found.generation.id;
        let frame = match found.entry.fact {
            Fact::Tombstone(_) => None,
            Fact::Put(_) => match look(&found.generation.log, &found.entry, (space, key)) {
                Looked::Whole { frame, .. } => {
                    let parsed = Frame::parse(&frame, shared.options.value_len_max);
                    let intact = parsed.ok().filter(|frame| frame.verify().is_ok());
                    intact.map(|parsed| FrameFacts {
                        encoding: parsed.encoding(),
                        value_len: parsed.original_len(),
                        frame_len: frame.len(),
                    })
                }
                Looked::Damaged => None,
                Looked::Refused => {
                    let reason = "its value log cannot be read".to_owned();
                    return Err(DiskError::Index { generation, reason });
                }
            },
        };
        Ok(Some(DiskLocation {
            generation,
            offset: found.entry.offset,
            fact: found.entry.fact,
            frame,
        }))
    }
}
