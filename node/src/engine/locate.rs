//! Where the copies of a key are: for the operator. Nothing is promoted, counted or refreshed.

use fonn_base::entry::{Meta, Space};
use fonn_codec::{Encoding, Frame};
use fonn_disk_tier::{DiskError, Fact};
use fonn_proto::Version;

use super::Engine;

/// A copy of a key in one tier.
#[derive(Clone, Debug, PartialEq)]
pub struct Located {
    /// Orders the copies: the highest wins.
    pub version: Version,
    /// The tier remembers that the key was deleted; there are no facts and no form then.
    pub tombstone: bool,
    /// The facts beside the value.
    pub meta: Option<Meta>,
    /// How the value is stored; None for a tombstone, and for a damaged copy.
    pub form: Option<Form>,
    /// The next tier does not have it yet.
    pub dirty: bool,
    /// Where in the tier, in words.
    pub place: String,
}

/// How a value is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Form {
    /// The codec with its level, or why the bytes are as they are.
    pub codec: String,
    /// Length of the value.
    pub value_len: usize,
    /// Length of what is stored for it.
    pub stored_len: usize,
}

fn name(encoding: Encoding) -> String {
    match encoding {
        Encoding::Verbatim(why) => why.name().to_owned(),
        Encoding::Compressed(spec) => spec.to_string(),
    }
}

impl Engine {
    /// The copy in RAM.
    #[must_use]
    pub fn locate_in_ram(&self, space: Space, key: &[u8]) -> Option<Located> {
        let ram = &self.hot.ram;
        let hash = ram.hash(space, key);
        let shard = ram.lock(hash);
        let found = shard.get(shard.find(hash, space, key)?);
        let stored_len = found.stored.as_slice().len();
        let form = match found.framed {
            true => Frame::parse(found.stored.as_slice(), self.settings.value_len_max)
                .ok()
                .map(|frame| Form {
                    codec: name(frame.encoding()),
                    value_len: frame.original_len(),
                    stored_len,
                }),
            false => Some(Form {
                codec: "none".to_owned(),
                value_len: stored_len,
                stored_len,
            }),
        };
        Some(Located {
            version: found.meta.version,
            tombstone: found.tombstone,
            meta: (!found.tombstone).then_some(found.meta),
            form: form.filter(|_| !found.tombstone),
            dirty: found.dirty,
            place: String::new(),
        })
    }

    /// The newest copy on disk. Blocks on the disk.
    ///
    /// # Errors
    /// If the disk tier cannot be read.
    pub fn locate_on_disk(&self, space: Space, key: &[u8]) -> Result<Option<Located>, DiskError> {
        let Some(disk) = &self.disk else {
            return Ok(None);
        };
        let location = disk.locate(space, key)?;
        Ok(location.map(|it| {
            let meta = match it.fact {
                Fact::Tombstone(_) => None,
                Fact::Put(meta) => Some(meta),
            };
            Located {
                version: it.fact.version(),
                tombstone: meta.is_none(),
                meta,
                form: it.frame.map(|facts| Form {
                    codec: name(facts.encoding),
                    value_len: facts.value_len,
                    stored_len: facts.frame_len,
                }),
                dirty: false,
                place: format!("generation {} at {}", it.generation, it.offset),
            }
        }))
    }

    /// The version below which everything of a space was flushed; 0 if nothing was.
    #[must_use]
    pub fn flushed_below(&self, space: Space) -> Version {
        self.hot.flushes.cutoff(space)
    }

    /// The wall clock in Unix milliseconds, as expiries are compared with it.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.hot.clock.wall_ms()
    }
}
