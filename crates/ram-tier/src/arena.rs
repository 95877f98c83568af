//! The blocks that payloads lie in: pages of 16 KiB, each cut into blocks of one size.
//!
//! A block is named by 4 bytes where a boxed slice takes 16, and sizes are as fine as a page
//! divides: together that is a tenth of what a small entry takes. A page is written block by block,
//! so that the kernel gives memory only for the part in use: a shard has a page begun in each
//! class. A page whose last block is freed serves any other size. Payloads longer than a quarter of
//! a page get a page of their own, of just their length.
//!
//! Blocks are freed in the order of eviction, not of memory, so a class that shrinks would keep all
//! of its pages until the last entries go. [`Arena::free`] therefore names a page to move the rest
//! out of as soon as more than an eighth of a class is free, which bounds the memory that no entry
//! accounts for.
//!
//! Invariant: each page with both taken and free blocks is in its class's list, and no other page
//! is, but for the time between [`Arena::detach`] and [`Arena::attach`].

use super::cost;
use super::state::SLACK_MAX;

/// Bytes of a page that is cut into blocks; a size class of the allocator.
const PAGE: usize = 16 * 1024;

/// Payloads longer than this get a page of their own.
const SHARED_PAGE_MAX: usize = PAGE / 4;

/// Smaller payloads take this, so that block numbers fit their bits.
const BLOCK_MIN: usize = 32;

/// Bits of a name that number the block inside its page.
const BLOCK_BITS: u32 = 9;

/// A class may have one part in so many of its blocks free before pages are emptied.
const FREE_PART: usize = 8;

/// Pages that are looked at to find one with few taken blocks.
const SPARSE_SAMPLE: usize = 8;

const _: () = assert!(PAGE / BLOCK_MIN <= 1 << BLOCK_BITS);
const _: () = assert!(
    SHARED_PAGE_MAX <= SLACK_MAX,
    "a slot must be able to say how much longer a block is than its payload"
);

/// The name of no block.
pub(super) const NO_BLOCK: u32 = u32::MAX;

/// Most pages that names can tell apart: 128 GiB of small entries for each shard.
const PAGES_MAX: usize = (1 << (32 - BLOCK_BITS)) - 1;

/// The end of a class's list.
const NO_PAGE: u32 = u32::MAX;

/// The end of a page's list of free blocks.
const NO_FREE: u16 = u16::MAX;

#[derive(Debug)]
struct Page {
    /// The blocks that were ever taken. Without capacity if the page is vacant.
    data: Vec<u8>,
    block_len: u32,
    taken: u16,
    /// The block freed last; each free block begins with the number of the next.
    free: u16,
    /// Neighbors in the class's list.
    prev: u32,
    next: u32,
}

impl Page {
    /// The number that a free block begins with.
    fn next_free(&self, free: u16) -> u16 {
        let start = usize::from(free) * self.block_len as usize;
        u16::from_le_bytes([self.data[start], self.data[start + 1]])
    }

    /// How many blocks were ever taken: the number of the next one.
    fn begun(&self) -> u16 {
        (self.data.len() / self.block_len as usize) as u16
    }
}

/// The pages that have the same number of blocks.
#[derive(Debug)]
struct Class {
    blocks: u16,
    /// The first page with a free block, or `NO_PAGE`.
    head: u32,
    pages: usize,
    /// Taken blocks in all of them.
    taken: usize,
}

impl Class {
    /// Whether so much is free that a page can be emptied into the others, and should be.
    fn is_sparse(&self) -> bool {
        let blocks = usize::from(self.blocks);
        self.pages * blocks - self.taken > (blocks + blocks / 4).max(self.taken / FREE_PART)
    }
}

/// The pages of a shard.
#[derive(Debug, Default)]
pub(super) struct Arena {
    pages: Vec<Page>,
    /// Indexes of vacant pages.
    vacant: Vec<u32>,
    /// Sorted by the number of blocks in a page.
    classes: Vec<Class>,
    /// The memory of one page, kept so that an entry that comes and goes does not allocate each
    /// time.
    spare: Option<Vec<u8>>,
}

fn page_index(block: u32) -> usize {
    (block >> BLOCK_BITS) as usize
}

fn block_index(block: u32) -> usize {
    (block & ((1 << BLOCK_BITS) - 1)) as usize
}

/// How many blocks a page for payloads of `len` bytes has; 1 for those that get their own.
fn blocks_for(len: usize) -> usize {
    if len > SHARED_PAGE_MAX {
        1
    } else {
        PAGE / len.max(BLOCK_MIN)
    }
}

/// The length of a block for a payload of `len` bytes.
fn block_len_for(len: usize) -> usize {
    match blocks_for(len) {
        1 => len,
        blocks => PAGE / blocks,
    }
}

/// What a block for a payload of `len` bytes takes from the budget, with its share of the page.
pub(super) fn cost_of(len: usize) -> usize {
    match blocks_for(len) {
        1 => cost::allocation(len) + size_of::<Page>(),
        blocks => (PAGE + size_of::<Page>()).div_ceil(blocks),
    }
}

impl Arena {
    /// Takes a block of at least `len` bytes, whose contents are anything. None when names have run
    /// out.
    pub fn take(&mut self, len: usize) -> Option<u32> {
        let blocks = blocks_for(len);
        if blocks == 1 {
            let at = self.add_page(vec![0; len], len)?;
            self.pages[at as usize].taken = 1;
            return Some(at << BLOCK_BITS);
        }
        let class = self.class(blocks);
        let mut at = self.classes[class].head;
        if at == NO_PAGE {
            let spare = self.spare.take();
            let data = spare.unwrap_or_else(|| Vec::with_capacity(PAGE));
            at = self.add_page(data, block_len_for(len))?;
            self.classes[class].pages += 1;
            self.list(class, at);
        }
        let page = &mut self.pages[at as usize];
        let block = match page.free {
            NO_FREE => {
                let fresh = page.begun();
                let len = page.data.len() + page.block_len as usize;
                page.data.resize(len, 0);
                fresh
            }
            free => {
                page.free = page.next_free(free);
                free
            }
        };
        page.taken += 1;
        self.classes[class].taken += 1;
        if usize::from(page.taken) == blocks {
            self.unlist(class, at);
        }
        Some(at << BLOCK_BITS | u32::from(block))
    }

    /// Frees a taken block. May answer a page that should be emptied: [`Arena::detach`] it, move
    /// its blocks with [`Arena::relocate`], and [`Arena::attach`] it again.
    pub fn free(&mut self, block: u32) -> Option<u32> {
        let at = page_index(block);
        let page = &mut self.pages[at];
        page.taken -= 1;
        if page.block_len as usize > SHARED_PAGE_MAX {
            page.data = Vec::new();
            self.vacant.push(at as u32);
            return None;
        }
        let start = block_index(block) * page.block_len as usize;
        page.data[start..start + 2].copy_from_slice(&page.free.to_le_bytes());
        page.free = block_index(block) as u16;
        let taken = usize::from(page.taken);
        let class = self.class_of(at as u32);
        self.classes[class].taken -= 1;
        if taken + 1 == usize::from(self.classes[class].blocks) {
            self.list(class, at as u32);
        }
        if taken == 0 {
            self.unlist(class, at as u32);
            self.vacate(class, at as u32);
        }
        self.classes[class]
            .is_sparse()
            .then(|| self.sparsest(class))
    }

    /// One of the pages of a class with few taken blocks.
    fn sparsest(&self, class: usize) -> u32 {
        let head = self.classes[class].head;
        let next = |&at: &u32| Some(self.pages[at as usize].next).filter(|&next| next != NO_PAGE);
        std::iter::successors(Some(head), next)
            .take(SPARSE_SAMPLE)
            .min_by_key(|&at| self.pages[at as usize].taken)
            .unwrap_or(head)
    }

    /// Takes a page that [`Arena::free`] named out of its class's list, so that it gets no new
    /// blocks, and returns its taken blocks.
    pub fn detach(&mut self, at: u32) -> Vec<u32> {
        let class = self.class_of(at);
        self.unlist(class, at);
        let page = &self.pages[at as usize];
        let mut is_free = vec![false; usize::from(page.begun())];
        let mut free = page.free;
        while free != NO_FREE {
            is_free[usize::from(free)] = true;
            free = page.next_free(free);
        }
        let taken = is_free
            .iter()
            .zip(0_u32..)
            .filter(|&(&is_free, _)| !is_free);
        taken.map(|(_, index)| at << BLOCK_BITS | index).collect()
    }

    /// Copies a block of a detached page into another page and gives it up. Returns its new name,
    /// or None if names have run out, and then it stays.
    pub fn relocate(&mut self, block: u32) -> Option<u32> {
        let at = page_index(block);
        let new = self.take(self.pages[at].block_len as usize)?;
        let Ok([from, to]) = self.pages.get_disjoint_mut([at, page_index(new)]) else {
            unreachable!("a detached page gets no new blocks")
        };
        let len = from.block_len as usize;
        let (start, new_start) = (block_index(block) * len, block_index(new) * len);
        to.data[new_start..new_start + len].copy_from_slice(&from.data[start..start + len]);
        from.data[start..start + 2].copy_from_slice(&from.free.to_le_bytes());
        from.free = block_index(block) as u16;
        from.taken -= 1;
        let class = self.class_of(at as u32);
        self.classes[class].taken -= 1;
        Some(new)
    }

    /// Ends what [`Arena::detach`] began: the page is given up if it is empty.
    pub fn attach(&mut self, at: u32) {
        let class = self.class_of(at);
        if self.pages[at as usize].taken == 0 {
            self.vacate(class, at);
        } else {
            self.list(class, at);
        }
    }

    fn vacate(&mut self, class: usize, at: u32) {
        let mut data = std::mem::take(&mut self.pages[at as usize].data);
        data.clear();
        self.spare = Some(data);
        self.vacant.push(at);
        self.classes[class].pages -= 1;
    }

    /// Whether a taken block is just what [`Arena::take`] would give for `len` bytes.
    pub fn fits(&self, block: u32, len: usize) -> bool {
        self.pages[page_index(block)].block_len as usize == block_len_for(len)
    }

    /// The bytes of a taken block.
    pub fn block(&self, block: u32) -> &[u8] {
        let page = &self.pages[page_index(block)];
        let len = page.block_len as usize;
        &page.data[block_index(block) * len..][..len]
    }

    /// The bytes of a taken block, to change them.
    pub fn block_mut(&mut self, block: u32) -> &mut [u8] {
        let page = &mut self.pages[page_index(block)];
        let len = page.block_len as usize;
        &mut page.data[block_index(block) * len..][..len]
    }

    /// What a taken block takes from the budget.
    pub fn cost(&self, block: u32) -> usize {
        cost_of(self.pages[page_index(block)].block_len as usize)
    }

    fn add_page(&mut self, data: Vec<u8>, block_len: usize) -> Option<u32> {
        let page = Page {
            data,
            block_len: block_len as u32,
            taken: 0,
            free: NO_FREE,
            prev: NO_PAGE,
            next: NO_PAGE,
        };
        if let Some(at) = self.vacant.pop() {
            self.pages[at as usize] = page;
            return Some(at);
        }
        if self.pages.len() >= PAGES_MAX {
            return None;
        }
        self.pages.push(page);
        Some(self.pages.len() as u32 - 1)
    }

    /// The index in `classes` of a page that is cut into blocks.
    fn class_of(&mut self, at: u32) -> usize {
        self.class(PAGE / self.pages[at as usize].block_len as usize)
    }

    /// The index in `classes` for pages of `blocks` blocks.
    fn class(&mut self, blocks: usize) -> usize {
        let blocks = blocks as u16;
        self.classes
            .binary_search_by_key(&blocks, |class| class.blocks)
            .unwrap_or_else(|at| {
                self.classes.insert(
                    at,
                    Class {
                        blocks,
                        head: NO_PAGE,
                        pages: 0,
                        taken: 0,
                    },
                );
                at
            })
    }

    fn list(&mut self, class: usize, at: u32) {
        let head = std::mem::replace(&mut self.classes[class].head, at);
        let page = &mut self.pages[at as usize];
        (page.prev, page.next) = (NO_PAGE, head);
        if head != NO_PAGE {
            self.pages[head as usize].prev = at;
        }
    }

    fn unlist(&mut self, class: usize, at: u32) {
        let page = &self.pages[at as usize];
        let (prev, next) = (page.prev, page.next);
        match prev {
            NO_PAGE => self.classes[class].head = next,
            _ => self.pages[prev as usize].next = next,
        }
        if next != NO_PAGE {
            self.pages[next as usize].prev = prev;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// Page memory that the arena holds.
    fn held(arena: &Arena) -> usize {
        arena.pages.iter().map(|page| page.data.capacity()).sum()
    }

    #[test]
    fn blocks_are_hardly_longer_than_asked_for() {
        for len in 1..=SHARED_PAGE_MAX + 300 {
            let block_len = block_len_for(len);
            assert!(block_len >= len, "{len}");
            if (BLOCK_MIN..=1024).contains(&len) {
                assert!(block_len <= len + len / 15, "{len} takes {block_len}");
            }
            assert!(cost_of(len) >= block_len);
            assert_eq!(cost_of(block_len), cost_of(len), "{len}");
            assert_eq!(block_len_for(block_len), block_len, "{len}");
        }
        assert_eq!(block_len_for(121), 121);
    }

    #[test]
    fn a_page_that_is_empty_again_serves_other_sizes() {
        let mut arena = Arena::default();
        let small: Vec<u32> = (0..1000).map(|_| arena.take(100).unwrap()).collect();
        let pages = arena.pages.len();
        for block in small {
            arena.free(block);
        }
        assert_eq!(held(&arena), 0);
        for _ in 0..pages * 4 {
            arena.take(SHARED_PAGE_MAX).unwrap();
        }
        assert_eq!(arena.pages.len(), pages);
    }

    #[test]
    fn a_class_that_shrinks_does_not_keep_its_pages() {
        let mut arena = Arena::default();
        let mut taken: Vec<u32> = (0..20_000).map(|_| arena.take(124).unwrap()).collect();
        let mut state = 1_u64;
        let mut moves = 0;
        while taken.len() > 1_000 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let block = taken.swap_remove((state >> 33) as usize % taken.len());
            if let Some(page) = arena.free(block) {
                for block in arena.detach(page) {
                    let at = taken.iter().position(|&other| other == block).unwrap();
                    taken[at] = arena.relocate(block).unwrap();
                    moves += 1;
                }
                arena.attach(page);
            }
            let needed = taken.len() * 124;
            assert!(
                held(&arena) <= needed + needed / FREE_PART + 3 * PAGE,
                "{}",
                taken.len()
            );
        }
        assert!(
            moves < 19_000 * FREE_PART,
            "{moves} blocks were moved to free 19,000"
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 64,
            failure_persistence: None,
            rng_seed: proptest::test_runner::RngSeed::Fixed(1),
            ..ProptestConfig::default()
        })]

        #[test]
        fn blocks_never_overlap_and_their_memory_is_used_again(
            steps in prop::collection::vec((prop::bool::weighted(0.4), prop_oneof![1_usize..6000, Just(PAGE)], any::<u32>()), 1..600)
        ) {
            let mut arena = Arena::default();
            let mut filling = 0_u8;
            let mut taken: Vec<(u32, usize, u8)> =
                (0..800).map(|_| (arena.take(124).unwrap(), 124, 0)).collect();
            for &(block, ..) in &taken {
                arena.block_mut(block).fill(0);
            }
            for (take, len, pick) in steps {
                if take || taken.is_empty() {
                    let len = if pick % 3 == 0 { len } else { len % 200 + 1 };
                    let block = arena.take(len).unwrap();
                    prop_assert!(arena.fits(block, len));
                    filling = filling.wrapping_add(1);
                    arena.block_mut(block).fill(filling);
                    taken.push((block, len, filling));
                } else {
                    let (block, len, filling) = taken.swap_remove(pick as usize % taken.len());
                    prop_assert!(arena.block(block).len() >= len);
                    prop_assert!(arena.block(block).iter().all(|&byte| byte == filling));
                    if let Some(page) = arena.free(block) {
                        for block in arena.detach(page) {
                            let moved = arena.relocate(block).unwrap();
                            let entry = taken.iter_mut().find(|entry| entry.0 == block);
                            entry.unwrap().0 = moved;
                        }
                        arena.attach(page);
                        prop_assert_eq!(arena.pages[page as usize].data.capacity(), 0);
                    }
                }
            }
            let mut by_page: HashMap<usize, usize> = HashMap::new();
            for &(block, _, filling) in &taken {
                prop_assert!(arena.block(block).iter().all(|&byte| byte == filling));
                *by_page.entry(page_index(block)).or_default() += 1;
            }
            for (at, page) in arena.pages.iter().enumerate() {
                let count = by_page.get(&at).copied().unwrap_or(0);
                prop_assert_eq!(usize::from(page.taken), count);
                prop_assert_eq!(page.data.capacity() == 0, count == 0);
            }
            for (block, ..) in taken {
                arena.free(block);
            }
            prop_assert_eq!(held(&arena), 0);
            for class in &arena.classes {
                prop_assert_eq!((class.head, class.pages, class.taken), (NO_PAGE, 0, 0));
            }
        }
    }
}
