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

#![allow(unsafe_code)]

/// The part of the RAM budget that a single allocation may be and still lie in a heap: a gap of
/// that length is well within what the process may be larger than its budget.
const HEAP_PART: usize = 64;

/// The lowest and the highest border; malloc takes no higher one (`DEFAULT_MMAP_THRESHOLD_MAX`).
const BORDER_MIN: usize = 512 << 10;
const BORDER_MAX: usize = 32 << 20;

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
}
