//! Buffers that the connections of a reactor lend each other.
//!
//! Only a connection that works on requests needs buffers; one that waits for its client gives them
//! back, so that ten thousand idle ones cost next to nothing.

use std::cell::RefCell;

use bytes::BytesMut;
use fonn_proto::Out;

/// Capacity of pooled buffers. A value of 16 KiB fits in with its request: one read and a copy
/// within the processor's cache take less than two reads. Somewhat more than a power of two, so
/// that the beginnings of buffers do not compete for the same lines of that cache.
pub const POOLED_LEN: usize = 32 * 1024 + 5 * 64;

/// Buffers of a kind that a reactor keeps.
const POOL_MAX: usize = 64;

/// Bytes of scratch vectors that a reactor keeps, and of one of these.
const SCRATCH_BYTES_MAX: usize = 2 << 20;
const SCRATCH_LEN_MAX: usize = 1 << 20;

struct Pool {
    buffers: Vec<BytesMut>,
    scratch: Vec<Vec<u8>>,
    /// The capacity of all of these.
    scratch_bytes: usize,
}

thread_local! {
    static POOL: RefCell<Pool> = const {
        RefCell::new(Pool { buffers: Vec::new(), scratch: Vec::new(), scratch_bytes: 0 })
    };
}

/// Lends buffers to a connection that has none.
pub fn lend(out: &mut Out, scratch: &mut Vec<u8>) {
    if out.capacity() == 0 {
        out.lend(take());
        *scratch = take_scratch();
    }
}

/// Takes the buffers of a connection back, unless bytes are left to send.
pub fn reclaim(out: &mut Out, scratch: &mut Vec<u8>) {
    if let Some(buf) = out.take_back() {
        give_back(buf);
        give_back_scratch(std::mem::take(scratch));
    }
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

/// A vector to decode values into. What it holds is of no interest, but that it is initialized:
/// decoders that need that do not have it filled with zeros first.
pub fn take_scratch() -> Vec<u8> {
    POOL.with_borrow_mut(|pool| {
        let scratch = pool.scratch.pop().unwrap_or_default();
        pool.scratch_bytes = pool.scratch_bytes.saturating_sub(scratch.capacity());
        scratch
    })
}

/// Takes a vector back.
pub fn give_back_scratch(scratch: Vec<u8>) {
    let bytes = scratch.capacity();
    if !(1..=SCRATCH_LEN_MAX).contains(&bytes) {
        return;
    }
    POOL.with_borrow_mut(|pool| {
        if pool.scratch.len() < POOL_MAX && pool.scratch_bytes + bytes <= SCRATCH_BYTES_MAX {
            pool.scratch_bytes += bytes;
            pool.scratch.push(scratch);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_come_back_as_they_were_within_a_bound() {
        let all = || {
            let taken: Vec<Vec<u8>> = std::iter::repeat_with(take_scratch)
                .take_while(|it| it.capacity() > 0)
                .collect();
            taken
        };
        // Other tests may have used this thread.
        all();
        give_back_scratch(vec![7; 100_000]);
        assert_eq!(take_scratch(), vec![7; 100_000]);
        assert_eq!(take_scratch(), Vec::<u8>::new());
        give_back_scratch(Vec::with_capacity(SCRATCH_LEN_MAX + 1));
        assert_eq!(all(), Vec::<Vec<u8>>::new());
        for _ in 0..10 {
            give_back_scratch(vec![1; SCRATCH_LEN_MAX]);
        }
        assert_eq!(all().len(), SCRATCH_BYTES_MAX / SCRATCH_LEN_MAX);
        for _ in 0..1000 {
            give_back_scratch(vec![1; 10]);
        }
        assert_eq!(all().len(), POOL_MAX);
    }
}
