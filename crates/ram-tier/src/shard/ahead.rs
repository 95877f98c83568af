//! What the processor fetches before a lookup. All of it is a hint, without an effect on what is
//! found.

use fonn_base::prefetch::prefetch;

use super::{Shard, parts_of, shared_index};
use crate::state::{self, SHARED};

/// A line of the processor's cache, and how many of a payload are fetched ahead: its head, the key
/// and a short value.
const LINE_LEN: usize = 64;
const PREFETCHED_LINES: usize = 4;

impl Shard {
    /// Has the processor fetch what [`Shard::find`] reads in the table.
    pub fn prefetch_place(&self, hash: u64) {
        self.table.prefetch(hash);
    }

    /// The slot that [`Shard::find`] looks at first, which the processor fetches.
    pub fn prefetch_slot(&self, hash: u64) -> Option<u32> {
        let id = self.table.first(hash)?;
        let slot = self.slab.place(id)?;
        // It may lie in two lines.
        prefetch(slot);
        prefetch(&slot.next);
        Some(id)
    }

    /// Has the processor fetch the beginning of the payload of a slot, if it is taken, and what a
    /// write changes in the recency list.
    pub fn prefetch_payload(&self, id: u32) {
        let Some(slot) = self.slab.get(id) else {
            return;
        };
        let lines = self.arena.block(slot.block).chunks(LINE_LEN);
        lines.take(PREFETCHED_LINES).for_each(prefetch);
        for neighbor in [slot.prev, slot.next] {
            if let Some(slot) = self.slab.place(neighbor) {
                prefetch(&slot.prev);
            }
        }
    }

    /// Has the processor fetch what leads to the value of a slot that shares one.
    pub fn prefetch_shared(&self, id: u32) {
        let slot = self.slab.get(id);
        if let Some(slot) = slot.filter(|slot| state::has(slot.state, SHARED)) {
            let index = shared_index(parts_of(&self.arena, slot).body);
            self.shared.prefetch(index);
        }
    }
}
