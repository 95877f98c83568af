//! Live entries by age, the newest first, for filling RAM from disk.
//!
//! An index is in the order of keys. So a walk reads it and picks the newest entries that it has
//! not returned yet, as many as a fixed memory takes. It reads a generation with more of them
//! again. It holds no generation between two pages, so one may be dropped or compacted meanwhile.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fonn_base::entry::Space;
use fonn_proto::Version;

use super::error::DiskError;
use super::generation::Generation;
use super::index::IndexError;
use super::record::{Fact, index_key, split_index_key};
use super::{DiskTier, Shared};

/// Entries that are picked at once. More of them, fewer laps over an index; fewer, less memory.
const PICKED_MAX: usize = 1 << 16;

/// Bytes of their keys at most.
const PICKED_BYTES_MAX: usize = 16 << 20;

/// An entry by its version and its key in the index.
type Aged = (Version, Vec<u8>);

/// A live entry on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewestEntry {
    /// Whose key.
    pub space: Space,
    /// The key.
    pub key: Vec<u8>,
    /// Length of its record in bytes.
    pub stored_len: u64,
}

/// A walk over the live entries on disk, generation by generation, the newest first in each.
pub struct Newest {
    disk: DiskTier,
    namespace: Option<u32>,
    /// The generation that is gone over; None before the first.
    generation: Option<u64>,
    /// Entries of it at least as new as this were given out.
    below: Option<Aged>,
    /// Those to be given out next, the newest last.
    picked: Vec<Aged>,
    /// The generation has more than those.
    has_more: bool,
}

impl DiskTier {
    /// A walk over the live entries of a namespace, or of all, the newest first.
    #[must_use]
    pub fn newest_entries(&self, namespace: Option<u32>) -> Newest {
        Newest {
            disk: self.clone(),
            namespace,
            generation: None,
            below: None,
            picked: Vec::new(),
            has_more: false,
        }
    }
}

impl Newest {
    /// The next entries that have neither expired at `now_ms` nor been flushed, at most `limit`;
    /// none at the end. Blocks on the disk; values are not read.
    ///
    /// # Errors
    /// [`DiskError::Index`] if an index cannot be read.
    pub fn page(&mut self, limit: usize, now_ms: u64) -> Result<Vec<NewestEntry>, DiskError> {
        let disk = self.disk.clone();
        let shared = &*disk.handle.shared;
        let mut page = Vec::new();
        while page.len() < limit {
            let Some((version, key)) = self.picked.pop() else {
                if self.pick(shared, now_ms)? {
                    continue;
                }
                break;
            };
            let found = shared.generations.find(&key)?;
            // Else it was written again since, or deleted: a newer generation has that.
            let is_newest = |fact: Fact| matches!(fact, Fact::Put(meta) if meta.version == version);
            if let Some(found) = found.filter(|found| is_newest(found.entry.fact)) {
                let named = found.generation.key_of(&key, &found.entry);
                let named = named.map_err(|error| found.generation.unreadable(error.into()))?;
                page.extend(named.map(|(space, key)| NewestEntry {
                    space,
                    key: key.into_owned(),
                    stored_len: u64::from(found.entry.record_len),
                }));
            }
            self.below = Some((version, key));
        }
        Ok(page)
    }

    /// Picks the next entries; false if there are none any more.
    fn pick(&mut self, shared: &Shared, now_ms: u64) -> Result<bool, DiskError> {
        loop {
            let snapshot = shared.generations.snapshot();
            // The one it is at, if that has more, else the next older one.
            let next = snapshot.iter().find(|it| match self.generation {
                None => true,
                Some(at) if self.has_more => it.id <= at,
                Some(at) => it.id < at,
            });
            let Some(next) = next else {
                return Ok(false);
            };
            if self.generation != Some(next.id) {
                self.generation = Some(next.id);
                self.below = None;
            }
            let picked = self.pick_of(shared, next, now_ms);
            picked.map_err(|error| next.unreadable(error))?;
            if !self.picked.is_empty() {
                return Ok(true);
            }
        }
    }

    fn pick_of(
        &mut self,
        shared: &Shared,
        generation: &Generation,
        now_ms: u64,
    ) -> Result<(), IndexError> {
        let state = shared.state();
        let mut heap: BinaryHeap<Reverse<Aged>> = BinaryHeap::new();
        let mut bytes = 0;
        self.has_more = false;
        let start = index_key(Space::new(self.namespace.unwrap_or(0), 0), &[]);
        for item in generation.index.entries_from(&start) {
            let (key, entry) = item?;
            let is_wanted = |space: &Space| {
                self.namespace
                    .is_none_or(|namespace| space.namespace() == namespace)
            };
            let Some(space) = split_index_key(&key).map(|(it, _)| it).filter(is_wanted) else {
                // The index's own facts are before the first entry: this is the end of the
                // namespace.
                break;
            };
            let Fact::Put(meta) = entry.fact else {
                continue;
            };
            let aged = (meta.version, key);
            if self.below.as_ref().is_some_and(|below| aged >= *below)
                || meta.is_expired(now_ms)
                || state.is_hidden(space, &meta, now_ms)
            {
                continue;
            }
            bytes += aged.1.len();
            heap.push(Reverse(aged));
            while heap.len() > PICKED_MAX || bytes > PICKED_BYTES_MAX {
                let oldest = heap.pop();
                bytes -= oldest.map_or(0, |Reverse((_, key))| key.len());
                self.has_more = true;
            }
        }
        self.picked = heap.into_iter().map(|Reverse(aged)| aged).collect();
        self.picked.sort_unstable();
        Ok(())
    }
}
