//! Slots of fixed size in chunks that are allocated one by one: the tier never copies its slots to
//! grow, and gives back a chunk when its last entry leaves.
//!
//! Invariant: a slot keeps its id as long as it is taken. Entries that came together lie in the
//! same chunks and mostly leave together, so that eviction frees whole chunks.

use std::mem::size_of;

use super::arena::NO_BLOCK;
use super::cost;

/// The id of no slot: the end of a list.
pub(super) const NIL: u32 = u32::MAX;

/// Bits of an id that number the slot inside its chunk.
const SLOT_BITS: u32 = 6;

/// Slots in a chunk: few, because most slots of a shard's last chunk are free.
const CHUNK_SLOTS: usize = 1 << SLOT_BITS;

/// Most chunks that ids can name, one less so that no id is a sentinel.
const CHUNKS_MAX: usize = (1 << (32 - SLOT_BITS)) - 1;

/// What the tier keeps of an entry beside its payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub version: u64,
    /// See `state.rs`.
    pub state: u32,
    /// Where the payload is, see `arena.rs`; `NO_BLOCK` in a free slot.
    pub block: u32,
    /// The neighbor nearer to the head of the recency list.
    pub prev: u32,
    /// The neighbor nearer to its tail; in a free slot the next free one of the chunk.
    pub next: u32,
}

const _: () = assert!(
    size_of::<Slot>() == 24,
    "the memory bar counts on slots of 24 bytes"
);

#[derive(Debug)]
struct Chunk {
    slots: [Slot; CHUNK_SLOTS],
    taken: u8,
    /// Index of the first free slot, `CHUNK_SLOTS` if none.
    free: u8,
    /// Whether `Slab::open` lists the chunk.
    is_open: bool,
}

impl Slot {
    /// A slot that is free, before the free slot `next`.
    const fn free(next: u32) -> Self {
        Self {
            version: 0,
            state: 0,
            block: NO_BLOCK,
            prev: NIL,
            next,
        }
    }
}

impl Chunk {
    fn new() -> Box<Self> {
        let slots = std::array::from_fn(|i| Slot::free(i as u32 + 1));
        Box::new(Self {
            slots,
            taken: 0,
            free: 0,
            is_open: true,
        })
    }
}

/// The slots of a shard.
#[derive(Debug, Default)]
pub(super) struct Slab {
    chunks: Vec<Option<Box<Chunk>>>,
    /// Every chunk with a free slot, once; also chunks that have filled up since, until they are
    /// met.
    open: Vec<u32>,
    /// Places in `chunks` that hold none.
    vacant: Vec<u32>,
    live_chunks: usize,
    /// Live chunks without a taken slot: at most one is kept, so that an entry that comes and goes
    /// does not allocate each time.
    empty_chunks: usize,
}

fn id_of(chunk: u32, slot: u32) -> u32 {
    chunk << SLOT_BITS | slot
}

fn chunk_index(id: u32) -> usize {
    (id >> SLOT_BITS) as usize
}

fn slot_index(id: u32) -> usize {
    (id & ((1 << SLOT_BITS) - 1)) as usize
}

impl Slab {
    /// Takes a free slot. None when ids have run out, at more than three billion entries.
    pub fn take(&mut self) -> Option<u32> {
        loop {
            let Some(&at) = self.open.last() else {
                self.add_chunk()?;
                continue;
            };
            let Some(chunk) = &mut self.chunks[at as usize] else {
                self.open.pop();
                continue;
            };
            let slot = usize::from(chunk.free);
            if slot == CHUNK_SLOTS {
                chunk.is_open = false;
                self.open.pop();
                continue;
            }
            chunk.free = chunk.slots[slot].next as u8;
            if chunk.taken == 0 {
                self.empty_chunks -= 1;
            }
            chunk.taken += 1;
            return Some(id_of(at, slot as u32));
        }
    }

    fn add_chunk(&mut self) -> Option<()> {
        let at = match self.vacant.pop() {
            Some(at) => at,
            None if self.chunks.len() >= CHUNKS_MAX => return None,
            None => {
                self.chunks.push(None);
                self.chunks.len() as u32 - 1
            }
        };
        self.chunks[at as usize] = Some(Chunk::new());
        self.live_chunks += 1;
        self.empty_chunks += 1;
        self.open.push(at);
        Some(())
    }

    /// Frees a taken slot.
    pub fn free(&mut self, id: u32) {
        let at = chunk_index(id);
        let Some(chunk) = &mut self.chunks[at] else {
            return;
        };
        let slot = slot_index(id);
        chunk.slots[slot] = Slot::free(u32::from(chunk.free));
        chunk.free = slot as u8;
        chunk.taken -= 1;
        if !chunk.is_open {
            chunk.is_open = true;
            self.open.push(at as u32);
        }
        if chunk.taken > 0 {
            return;
        }
        if self.empty_chunks == 0 {
            self.empty_chunks = 1;
            return;
        }
        self.live_chunks -= 1;
        self.chunks[at] = None;
        self.vacant.push(at as u32);
        // A place that is used again is listed again, so the stale listing must not stay.
        if self.open.last() == Some(&(at as u32)) {
            self.open.pop();
        } else {
            self.open.retain(|&listed| listed != at as u32);
        }
    }

    /// The slot of an id, or None if it is free or was never given out.
    pub fn get(&self, id: u32) -> Option<&Slot> {
        self.place(id).filter(|slot| slot.block != NO_BLOCK)
    }

    /// The slot of an id, free or not, of which nothing is read.
    pub fn place(&self, id: u32) -> Option<&Slot> {
        let chunk = self.chunks.get(chunk_index(id))?.as_ref()?;
        Some(&chunk.slots[slot_index(id)])
    }

    /// The slot of an id that the shard's own structures hold.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn at(&self, id: u32) -> &Slot {
        match &self.chunks[chunk_index(id)] {
            Some(chunk) => &chunk.slots[slot_index(id)],
            None => unreachable!("slot {id} is in no chunk"),
        }
    }

    /// As [`Slab::at`], to change it.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn at_mut(&mut self, id: u32) -> &mut Slot {
        match &mut self.chunks[chunk_index(id)] {
            Some(chunk) => &mut chunk.slots[slot_index(id)],
            None => unreachable!("slot {id} is in no chunk"),
        }
    }

    /// The first id that may be taken and is not below `id`; None past the end.
    pub fn next_id(&self, id: u32) -> Option<u32> {
        let mut at = chunk_index(id);
        if self.chunks.get(at)?.is_some() {
            return Some(id);
        }
        loop {
            at += 1;
            if self.chunks.get(at)?.is_some() {
                return Some(id_of(at as u32, 0));
            }
        }
    }

    /// An id picked by `seed`, which may be of a free slot.
    pub fn any_id(&self, seed: u64) -> u32 {
        let chunks = self.chunks.len().max(1) as u64;
        id_of((seed % chunks) as u32, (seed >> (64 - SLOT_BITS)) as u32)
    }

    /// Bytes that the slots take, free ones included.
    pub fn bytes(&self) -> usize {
        let lists = self.chunks.capacity() * size_of::<Option<Box<Chunk>>>()
            + (self.open.capacity() + self.vacant.capacity()) * size_of::<u32>();
        self.live_chunks * cost::allocation(size_of::<Chunk>()) + lists
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(slab: &mut Slab, count: usize) -> Vec<u32> {
        (0..count)
            .map(|_| {
                let id = slab.take().unwrap();
                slab.at_mut(id).block = 0;
                id
            })
            .collect()
    }

    #[test]
    fn freed_slots_are_used_again() {
        let mut slab = Slab::default();
        let ids = fill(&mut slab, 200);
        let bytes = slab.bytes();
        for &id in &ids[50..150] {
            slab.free(id);
        }
        let mut again = fill(&mut slab, 100);
        again.sort_unstable();
        let mut freed = ids[50..150].to_vec();
        freed.sort_unstable();
        assert_eq!(again, freed);
        assert!(slab.bytes() <= bytes + 64, "only the lists may have grown");
    }

    #[test]
    fn empty_chunks_are_given_back_but_for_one() {
        let mut slab = Slab::default();
        let ids = fill(&mut slab, CHUNK_SLOTS * 10);
        assert_eq!(slab.live_chunks, 10);
        for &id in &ids {
            slab.free(id);
        }
        assert_eq!((slab.live_chunks, slab.empty_chunks), (1, 1));
        let ids = fill(&mut slab, CHUNK_SLOTS * 10);
        assert_eq!((slab.live_chunks, slab.empty_chunks), (10, 0));
        assert_eq!(slab.chunks.len(), 10, "vacant places are used again");
        let distinct: std::collections::HashSet<u32> = ids.into_iter().collect();
        assert_eq!(distinct.len(), CHUNK_SLOTS * 10);
    }

    #[test]
    fn a_walk_meets_every_taken_slot_once() {
        let mut slab = Slab::default();
        let ids = fill(&mut slab, CHUNK_SLOTS * 4);
        for &id in &ids[CHUNK_SLOTS..CHUNK_SLOTS * 3] {
            slab.free(id);
        }
        let mut met = Vec::new();
        let mut at = slab.next_id(0);
        while let Some(id) = at {
            if slab.get(id).is_some() {
                met.push(id);
            }
            at = slab.next_id(id + 1);
        }
        let mut expected = [&ids[..CHUNK_SLOTS], &ids[CHUNK_SLOTS * 3..]].concat();
        expected.sort_unstable();
        assert_eq!(met, expected);
    }
}
