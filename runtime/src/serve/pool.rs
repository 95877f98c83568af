//! Buffers that the connections of a reactor lend each other.
//!
//! Only a connection that works on requests needs buffers; one that waits for its client gives them
//! back, so that ten thousand idle ones cost next to nothing.

use std::cell::RefCell;

use bytes::BytesMut;

/// Capacity of pooled buffers. What of a large request's head is read into one is copied once more, so
/// it is not larger; a hundred small requests fit.
pub const POOLED_LEN: usize = 16 * 1024;

/// Buffers of a kind that a reactor keeps.
const POOL_MAX: usize = 64;

struct Pool {
    buffers: Vec<BytesMut>,
    scratch: Vec<Vec<u8>>,
}

thread_local! {
    static POOL: RefCell<Pool> = const {
        RefCell::new(Pool { buffers: Vec::new(), scratch: Vec::new() })
    };
}

/// An empty buffer with room for [`POOLED_LEN`] bytes at least.
pub fn take() -> BytesMut {
    POOL.with_borrow_mut(|pool| pool.buffers.pop())
        .unwrap_or_else(|| BytesMut::with_capacity(POOLED_LEN))
}

/// Takes a buffer back. What it holds is of no interest.
pub fn give_back(mut buf: BytesMut) {
    buf.clear();
    // An allocation that shrank to a tail of itself, or that grew, is not worth keeping.
    let is_whole = buf.capacity() >= POOLED_LEN || buf.try_reclaim(POOLED_LEN);
    if is_whole && buf.capacity() <= 2 * POOLED_LEN {
        POOL.with_borrow_mut(|pool| {
            if pool.buffers.len() < POOL_MAX {
                pool.buffers.push(buf);
            }
        });
    }
}

/// An empty vector to decode values into.
pub fn take_scratch() -> Vec<u8> {
    POOL.with_borrow_mut(|pool| pool.scratch.pop())
        .unwrap_or_default()
}

/// Takes a vector back.
pub fn give_back_scratch(mut scratch: Vec<u8>) {
    if (1..=2 * POOLED_LEN).contains(&scratch.capacity()) {
        scratch.clear();
        POOL.with_borrow_mut(|pool| {
            if pool.scratch.len() < POOL_MAX {
                pool.scratch.push(scratch);
            }
        });
    }
}
