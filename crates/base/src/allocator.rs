//! How the C library's allocator treats large values.
//!
//! glibc takes large allocations from the kernel by themselves and gives them back when they are
//! freed, but moves the border upwards to the largest that was ever freed (mallopt(3),
//! `M_MMAP_THRESHOLD`). From then on values of some megabytes lie in its heaps, whose gaps stay
//! resident: with values of 4 to 16 MiB a node of 64 MiB had 230 MiB resident. Setting the border
//! ends its moving. But mapping costs a page fault for each 4 KiB, which makes sets of 1 MiB three
//! times as dear, and so does giving back the free end of a heap, which glibc does from 128 KiB on:
//! a router took 200 faults for each value of 1 MiB that it passed on. So both borders are as high
//! as the budget can bear.

//! What is mapped by itself costs that fault for each page. So the kernel is asked for huge pages
//! there: storing a value of 64 MiB takes 14 ms of the kernel's time instead of 45 to 70.

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The part of the RAM budget that a single allocation may be and still lie in a heap: a gap of
/// that length is well within what the process may be larger than its budget.
const HEAP_PART: usize = 64;

/// The lowest and the highest border; malloc takes no higher one (`DEFAULT_MMAP_THRESHOLD_MAX`).
const BORDER_MIN: usize = 512 << 10;
const BORDER_MAX: usize = 32 << 20;

/// Length of a huge page; shorter ranges have none.
const HUGE_PAGE_LEN: usize = 2 << 20;
/// The longest page that a kernel of x86-64 or ARM64 has otherwise: ranges begin at one.
const PAGE_LEN_MAX: usize = 64 << 10;

/// Longer allocations are mapped by themselves. Not known before [`configure`].
static BORDER: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Gives the kernel what is free inside the heaps. Takes each heap's lock while it walks it, some
/// milliseconds for each 100 MiB, so it is for when memory is short.
pub fn release_free() {
    // SAFETY: `malloc_trim` takes an integer by value and touches only memory that malloc knows to
    // be free, under malloc's own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Sets the allocator up for a RAM budget. Call it before anything large is allocated.
pub fn configure(ram_budget: usize) {
    let border = (ram_budget / HEAP_PART).clamp(BORDER_MIN, BORDER_MAX) as libc::c_int;
    // SAFETY: `mallopt` takes two integers by value and changes parameters of malloc under malloc's
    // own lock; it has no other precondition. A value that it refuses leaves the default.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, border);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 2 * border);
    }
    BORDER.store(border as usize, Ordering::Relaxed);
}

/// Asks the kernel for huge pages where a buffer will be filled, if it is mapped by itself. Call it
/// when the buffer has got its memory; a kernel may have none to give.
pub fn use_huge_pages(spare: &mut [MaybeUninit<u8>]) {
    if spare.len() < BORDER.load(Ordering::Relaxed).max(HUGE_PAGE_LEN) {
        return;
    }
    let skipped = spare.as_ptr().align_offset(PAGE_LEN_MAX);
    let Some(range) = spare.get_mut(skipped..) else {
        return;
    };
    // SAFETY: the range is inside `spare`, which nothing else uses meanwhile. `MADV_HUGEPAGE` is
    // advice about the size of its pages: it changes no byte, and a range that the kernel does not
    // like stays as it is.
    unsafe {
        libc::madvise(range.as_mut_ptr().cast(), range.len(), libc::MADV_HUGEPAGE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_on_huge_pages_keeps_what_is_written() {
        BORDER.store(HUGE_PAGE_LEN, Ordering::Relaxed);
        let len = 3 * HUGE_PAGE_LEN + 5;
        let mut buffer: Vec<u8> = Vec::with_capacity(len);
        use_huge_pages(buffer.spare_capacity_mut());
        buffer.extend((0..len).map(|at| at as u8));
        assert!(
            buffer
                .iter()
                .enumerate()
                .all(|(at, byte)| *byte == at as u8)
        );
        // What is shorter than a page has no range.
        use_huge_pages(Vec::<u8>::with_capacity(10).spare_capacity_mut());
    }
}
