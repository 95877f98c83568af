//! What an allocation really takes: the allocator rounds a request up to a size class, and a budget
//! that counted only the bytes asked for would be a fifth too low.

use std::mem::size_of;

use bytes::Bytes;

/// Requests above this may come from the kernel in whole pages (see `fonn_base::allocator`).
const CLASSED_MAX: usize = 512 * 1024;

/// The rounding of larger requests.
const PAGE: usize = 4096;

/// What glibc's malloc puts before each allocation, and the least it hands out with it.
const CHUNK_HEAD: usize = 8;
const CHUNK_MIN: usize = 32;

/// Memory that a shared value takes beside its bytes: the handle in the side slab and its place in
/// the free list, and the reference count that `Bytes` allocates.
const SHARED_OVERHEAD: usize = size_of::<Option<Bytes>>() + size_of::<u32>() + 48;

/// Bytes that an allocation of `len` bytes takes from glibc's malloc: with its head, rounded up to
/// a multiple of 16; large ones in whole pages, with a head of two words.
pub(super) const fn allocation(len: usize) -> usize {
    match len {
        0 => 0,
        1..=CLASSED_MAX => {
            let chunk = (len + CHUNK_HEAD).next_multiple_of(16);
            if chunk < CHUNK_MIN { CHUNK_MIN } else { chunk }
        }
        _ => len.saturating_add(2 * CHUNK_HEAD + PAGE - 1) & !(PAGE - 1),
    }
}

/// Bytes that a shared value of `len` bytes takes, its handle included.
pub(super) const fn shared_value(len: usize) -> usize {
    allocation(len).saturating_add(SHARED_OVERHEAD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_are_rounded_as_by_malloc() {
        let expected = [
            (0, 0),
            (1, 32),
            (24, 32),
            (25, 48),
            (120, 128),
            (121, 144),
            (1000, 1008),
            (4096, 4112),
            (524_288, 524_304),
            (524_289, 528_384),
        ];
        for (len, bytes) in expected {
            assert_eq!(allocation(len), bytes, "{len}");
        }
        assert!(allocation(usize::MAX) >= usize::MAX - PAGE);
    }
}
