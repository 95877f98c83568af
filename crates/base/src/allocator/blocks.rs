//! Blocks of pages, and those that were given back and are kept for the next.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// The shortest block: a huge page of x86-64 and of ARM64 with pages of 4 KiB.
pub(super) const BLOCK_LEN_MIN: usize = 2 << 20;
/// The alignment that each block has at least: the shortest page.
pub(super) const BLOCK_ALIGN: usize = 4 << 10;

/// The longest page that a kernel of x86-64 or ARM64 has otherwise: lengths are whole such pages.
const PAGE_LEN_MAX: usize = 64 << 10;

/// How many blocks are kept. They are looked through one by one.
const KEPT_COUNT_MAX: usize = 16;

/// Kept blocks. They are resident, and nothing refers to them.
pub(super) struct Blocks {
    kept: Mutex<Kept>,
    /// Whether a block was taken or given back since the last [`release_idle`].
    ///
    /// [`release_idle`]: Self::release_idle
    used: AtomicBool,
}

struct Kept {
    blocks: [Block; KEPT_COUNT_MAX],
    /// The sum of their lengths.
    len: usize,
}

/// A mapping; one of no length is none.
#[derive(Clone, Copy)]
struct Block {
    at: usize,
    len: usize,
}

const NONE: Block = Block { at: 0, len: 0 };

impl Blocks {
    pub(super) const fn new() -> Self {
        Self {
            kept: Mutex::new(Kept {
                blocks: [NONE; KEPT_COUNT_MAX],
                len: 0,
            }),
            used: AtomicBool::new(false),
        }
    }

    /// A block for `len` bytes, with any content; null if the kernel has no memory.
    pub(super) fn take(&self, len: usize) -> *mut u8 {
        let Some(wanted) = mapped_len(len) else {
            return std::ptr::null_mut();
        };
        self.used.store(true, Ordering::Relaxed);
        // Not worth a wait inside the allocator: a new block is only dearer.
        let found = self.kept.try_lock().and_then(|mut kept| kept.take(wanted));
        let Some(block) = found else {
            return map(len);
        };
        if block.len > wanted {
            // SAFETY: the kept block was owned by `Blocks` and is the caller's from here. Its end
            // is not handed out, and both borders are multiples of the page.
            unsafe { unmap(block.at + wanted, block.len - wanted) };
        }
        std::ptr::with_exposed_provenance_mut(block.at)
    }

    /// Takes back a block for `len` bytes, and keeps it if no more than `kept_max` bytes are kept
    /// with it.
    ///
    /// # Safety
    /// `at` is a block that was made for `len` bytes, and nothing uses it any more.
    pub(super) unsafe fn give_back(&self, at: *mut u8, len: usize, kept_max: usize) {
        let block = Block {
            at: at.expose_provenance(),
            // Was computed when it was made, so it does not overflow.
            len: mapped_len(len).unwrap_or(len),
        };
        self.used.store(true, Ordering::Relaxed);
        let is_kept = self
            .kept
            .try_lock()
            .is_some_and(|mut kept| kept.put(block, kept_max));
        if !is_kept {
            // SAFETY: the block is the caller's to give, and is not kept.
            unsafe { unmap(block.at, block.len) };
        }
    }

    /// Gives all kept blocks to the kernel.
    pub(super) fn release(&self) {
        let blocks = {
            let mut kept = self.kept.lock();
            kept.len = 0;
            std::mem::replace(&mut kept.blocks, [NONE; KEPT_COUNT_MAX])
        };
        for block in blocks.iter().filter(|block| block.len > 0) {
            // SAFETY: kept blocks are owned by `Blocks`, and these are not kept any more.
            unsafe { unmap(block.at, block.len) };
        }
    }

    /// [`release`], if no block was taken or given back since the last call.
    ///
    /// [`release`]: Self::release
    pub(super) fn release_idle(&self) {
        if !self.used.swap(false, Ordering::Relaxed) {
            self.release();
        }
    }
}

impl Kept {
    /// The shortest kept block of at least `len` bytes, unless it is more than twice as long: the
    /// end of a block that is cut is lost.
    fn take(&mut self, len: usize) -> Option<Block> {
        let found = self
            .blocks
            .iter_mut()
            .filter(|block| block.len >= len && block.len <= len.saturating_mul(2))
            .min_by_key(|block| block.len)?;
        let block = std::mem::replace(found, NONE);
        self.len -= block.len;
        Some(block)
    }

    fn put(&mut self, block: Block, len_max: usize) -> bool {
        if self.len.saturating_add(block.len) > len_max {
            return false;
        }
        let Some(place) = self.blocks.iter_mut().find(|place| place.len == 0) else {
            return false;
        };
        *place = block;
        self.len += block.len;
        true
    }
}

/// A new block for `len` bytes, all zero; null if the kernel has no memory.
pub(super) fn map(len: usize) -> *mut u8 {
    let Some(mapped) = mapped_len(len) else {
        return std::ptr::null_mut();
    };
    // SAFETY: a private mapping without a file, at an address that the kernel chooses, touches
    // nothing that is there.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            mapped,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if at == libc::MAP_FAILED {
        return std::ptr::null_mut();
    }
    // SAFETY: `MADV_HUGEPAGE` is advice about the size of the new mapping's pages: it changes no
    // byte, and a kernel without huge pages refuses it.
    unsafe { libc::madvise(at, mapped, libc::MADV_HUGEPAGE) };
    at.cast()
}

/// Makes a block for `len` bytes one for `new_len`, elsewhere if need be; null, and the block is
/// as it was, if the kernel has no memory.
///
/// # Safety
/// `at` is a block that was made for `len` bytes.
pub(super) unsafe fn resize(at: *mut u8, len: usize, new_len: usize) -> *mut u8 {
    let (Some(mapped), Some(new_mapped)) = (mapped_len(len), mapped_len(new_len)) else {
        return std::ptr::null_mut();
    };
    if mapped == new_mapped {
        return at;
    }
    // SAFETY: by the caller's promise the range is one whole mapping, and the caller gives up the
    // old address for the one that is returned.
    let moved = unsafe { libc::mremap(at.cast(), mapped, new_mapped, libc::MREMAP_MAYMOVE) };
    if moved == libc::MAP_FAILED {
        return std::ptr::null_mut();
    }
    moved.cast()
}

/// # Safety
/// The range is whole pages of a mapping, and nothing uses it any more.
unsafe fn unmap(at: usize, len: usize) {
    let at = std::ptr::with_exposed_provenance_mut::<libc::c_void>(at);
    // SAFETY: the caller's promise. Unmapping part of a mapping can fail for lack of memory for the
    // kernel's records; the range then stays mapped, and is lost.
    unsafe { libc::munmap(at, len) };
}

/// The length of the mapping for `len` bytes.
fn mapped_len(len: usize) -> Option<usize> {
    len.checked_next_multiple_of(PAGE_LEN_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 3 * BLOCK_LEN_MIN;

    #[test]
    fn a_block_that_was_given_back_is_taken_for_the_next_of_its_length() {
        let blocks = Blocks::new();
        let first = blocks.take(LEN);
        // SAFETY: blocks are given back once, by the length that they were taken for.
        unsafe { blocks.give_back(first, LEN, LEN) };
        let second = blocks.take(LEN - 5);
        assert_eq!(first, second);
        assert_ne!(blocks.take(LEN), second, "a block has one user");
        // SAFETY: as above.
        unsafe { blocks.give_back(second, LEN - 5, LEN) };
        assert_eq!(blocks.take(LEN - BLOCK_LEN_MIN), first, "its end is cut");
    }

    #[test]
    fn no_more_than_the_given_bytes_are_kept() {
        let blocks = Blocks::new();
        let [first, second] = [blocks.take(LEN), blocks.take(LEN)];
        // SAFETY: as above.
        unsafe {
            blocks.give_back(first, LEN, 2 * LEN - 1);
            blocks.give_back(second, LEN, 2 * LEN - 1);
        }
        assert_eq!(blocks.kept.lock().len, LEN);
        // A much shorter value does not cut it.
        assert_ne!(blocks.take(BLOCK_LEN_MIN), first);
    }

    #[test]
    fn blocks_that_no_value_takes_go_to_the_kernel() {
        let blocks = Blocks::new();
        let block = blocks.take(LEN);
        // SAFETY: as above.
        unsafe { blocks.give_back(block, LEN, LEN) };
        blocks.release_idle();
        assert_eq!(blocks.kept.lock().len, LEN, "it was given back just now");
        blocks.release_idle();
        assert_eq!(blocks.kept.lock().len, 0);
    }

    #[test]
    fn threads_never_share_a_block() {
        let blocks = Blocks::new();
        std::thread::scope(|scope| {
            for thread in 0..4_u8 {
                let blocks = &blocks;
                scope.spawn(move || {
                    for round in 0..50 {
                        let len = LEN - usize::from(thread) * 7_000 - round;
                        let block = blocks.take(len);
                        // SAFETY: the block is this thread's until it is given back.
                        unsafe {
                            for at in (0..len).step_by(PAGE_LEN_MAX) {
                                block.add(at).write(thread);
                            }
                            for at in (0..len).step_by(PAGE_LEN_MAX) {
                                assert_eq!(block.add(at).read(), thread);
                            }
                            blocks.give_back(block, len, 2 * LEN);
                        }
                    }
                });
            }
        });
        blocks.release();
    }
}
