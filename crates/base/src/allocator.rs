//! The allocator of the programs: glibc's for what is small, blocks of pages for what is large.
//!
//! A large value has pages of its own, because in glibc's heaps its gap would stay resident: with
//! values of 4 to 16 MiB a node of 64 MiB had 230 MiB resident. New pages are dear. The kernel
//! clears each, and each page of 4 KiB costs a fault as well: 64 MiB took 45 to 70 ms to fill. So
//! the kernel is asked for huge pages, which takes 14 ms, and blocks that are given back are kept
//! for the next value of their size. A full cache frees one for each that it stores.
//!
//! glibc maps large allocations by itself too, and moves that border upwards to the largest that
//! was ever freed (mallopt(3), `M_MMAP_THRESHOLD`). [`configure`] ends its moving. It also lets
//! glibc keep more at the end of a heap than 128 KiB: a router took 200 faults for each value of
//! 1 MiB that it passed on.

#![allow(unsafe_code)]

mod blocks;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use self::blocks::{BLOCK_ALIGN, BLOCK_LEN_MIN, Blocks};

/// The part of the RAM budget that a single allocation may be and still lie in a heap: a gap of
/// that length is well within what the process may be larger than its budget.
const HEAP_PART: usize = 64;

/// The lowest border of what lies in a heap.
const BORDER_MIN: usize = 512 << 10;

/// The part of the RAM budget that the end of a heap may be before glibc gives it back.
const TRIM_PART: usize = 32;
/// The highest such part, in bytes.
const TRIM_MAX: usize = 64 << 20;

/// The part of the RAM budget that kept blocks may be…
const KEPT_PART: usize = 3;
/// …and the most bytes that they may be.
const KEPT_MAX: usize = 256 << 20;

/// The blocks that were given back.
static BLOCKS: Blocks = Blocks::new();

/// Bytes of blocks that may be kept. None before [`configure`].
static KEPT: AtomicUsize = AtomicUsize::new(0);

/// Allocates the large from blocks of pages and the rest from glibc.
#[derive(Clone, Copy, Debug)]
pub struct Allocator;

/// Sets the allocator up for a RAM budget.
pub fn configure(ram_budget: usize) {
    let border = (ram_budget / HEAP_PART).clamp(BORDER_MIN, BLOCK_LEN_MIN);
    let trim = (ram_budget / TRIM_PART).clamp(2 * border, TRIM_MAX);
    // SAFETY: `mallopt` takes two integers by value and changes parameters of malloc under malloc's
    // own lock; it has no other precondition. A value that it refuses leaves the default.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, border as libc::c_int);
        libc::mallopt(libc::M_TRIM_THRESHOLD, trim as libc::c_int);
    }
    KEPT.store((ram_budget / KEPT_PART).min(KEPT_MAX), Ordering::Relaxed);
}

/// Gives the kernel what is free inside the heaps, and the kept blocks. Takes each heap's lock
/// while it walks it, some milliseconds for each 100 MiB, so it is for when memory is short.
pub fn release_free() {
    BLOCKS.release();
    // SAFETY: `malloc_trim` takes an integer by value and touches only memory that malloc knows to
    // be free, under malloc's own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Gives the kernel the kept blocks if none was taken or given back since the last call. Call it
/// now and then.
pub fn release_idle() {
    BLOCKS.release_idle();
}

/// Whether an allocation is a block. Depends on its layout alone, so that what frees it knows.
fn is_block(len: usize, align: usize) -> bool {
    len >= BLOCK_LEN_MIN && align <= BLOCK_ALIGN
}

// SAFETY: `is_block` divides layouts between two allocators, each of which gets back exactly what
// it gave, by the same layout. `System` meets the contract of `GlobalAlloc`. A block is a mapping
// of its own of at least the layout's length, begins at a page (so at `BLOCK_ALIGN`), and nothing
// else uses it until it is given back. A mapping of no length is never asked for: blocks have
// `BLOCK_LEN_MIN` or more. Nothing here panics or allocates.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_block(layout.size(), layout.align()) {
            return BLOCKS.take(layout.size());
        }
        // SAFETY: the caller's promise about `layout`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_block(layout.size(), layout.align()) {
            return blocks::map(layout.size());
        }
        // SAFETY: the caller's promise about `layout`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if is_block(layout.size(), layout.align()) {
            // SAFETY: by the caller's promise `at` is what this allocator gave for `layout`, so it
            // is a block of that length, and the caller does not use it any more.
            unsafe { BLOCKS.give_back(at, layout.size(), KEPT.load(Ordering::Relaxed)) }
        } else {
            // SAFETY: the caller's promise; the layout is `System`'s by `is_block`.
            unsafe { System.dealloc(at, layout) }
        }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, new_len: usize) -> *mut u8 {
        let align = layout.align();
        match (is_block(layout.size(), align), is_block(new_len, align)) {
            // SAFETY: the caller's promise; both layouts are `System`'s by `is_block`.
            (false, false) => unsafe { System.realloc(at, layout, new_len) },
            // SAFETY: `at` is a block of that length by the caller's promise.
            (true, true) => unsafe { blocks::resize(at, layout.size(), new_len) },
            // SAFETY: `new_len` is not zero and does not overflow with `align`, by the caller's
            // promise. The two ranges are different allocations, each at least as long as what is
            // copied. `at` is freed by the layout that it was allocated by.
            _ => unsafe {
                let new = self.alloc(Layout::from_size_align_unchecked(new_len, align));
                if !new.is_null() {
                    std::ptr::copy_nonoverlapping(at, new, layout.size().min(new_len));
                    self.dealloc(at, layout);
                }
                new
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn filled(buffer: &[u8]) -> bool {
        buffer
            .iter()
            .enumerate()
            .all(|(at, byte)| *byte == at as u8)
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, 1).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn an_allocation_keeps_its_bytes_through_changes_of_its_length(
            lens in prop::collection::vec(1_usize..3 * BLOCK_LEN_MIN, 1..6),
        ) {
            let mut len = lens[0];
            // SAFETY: each allocation is used within its length and freed once, by its layout.
            unsafe {
                let mut at = Allocator.alloc(layout(len));
                for (index, next) in lens.iter().enumerate() {
                    let bytes = std::slice::from_raw_parts_mut(at, len);
                    if index > 0 {
                        // The bytes of the shorter of two lengths are still there.
                        prop_assert!(filled(&bytes[..len.min(lens[index - 1])]));
                    }
                    bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = at as u8);
                    at = Allocator.realloc(at, layout(len), *next);
                    let kept = len.min(*next);
                    prop_assert!(filled(std::slice::from_raw_parts(at, kept)));
                    std::slice::from_raw_parts_mut(at, *next)
                        .iter_mut()
                        .enumerate()
                        .for_each(|(at, byte)| *byte = at as u8);
                    len = *next;
                }
                Allocator.dealloc(at, layout(len));
            }
        }
    }

    #[test]
    fn zeroed_memory_is_zero_after_a_block_of_its_length_was_used() {
        configure(1 << 30);
        let len = 2 * BLOCK_LEN_MIN;
        // SAFETY: as above.
        unsafe {
            let at = Allocator.alloc(layout(len));
            at.write_bytes(7, len);
            Allocator.dealloc(at, layout(len));
            let at = Allocator.alloc_zeroed(layout(len));
            let bytes = std::slice::from_raw_parts(at, len);
            assert!(bytes.iter().all(|byte| *byte == 0));
            Allocator.dealloc(at, layout(len));
        }
    }
}
