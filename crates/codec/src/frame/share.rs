//! The work on the blocks of a large value, shared among threads.
//!
//! Threads are started for one value and end with it: nothing is left running, and nothing has to
//! be configured. That costs some 0.1 ms a thread (its stack, and the codec's context, which is the
//! thread's own), so a part of less than [`PART_LEN`] is not worth one.

use std::sync::Mutex;
use std::thread;

use crate::frame::BLOCK_LEN;

/// Bytes of the value in one part: whole blocks.
pub(super) const PART_LEN: usize = 8 * BLOCK_LEN;

/// Bytes of the value whose parts are made before they are put together: enough work that threads
/// are worth starting.
pub(super) fn window_len(threads: usize) -> usize {
    threads.saturating_mul(4 * PART_LEN)
}

/// How many threads to use for a value of `len` bytes, if `threads` are to be had.
pub(super) fn thread_count(threads: usize, len: usize) -> usize {
    threads.min(len / PART_LEN).max(1)
}

/// What `work` made of each of `parts`, in their order. The caller's thread works too, with up to
/// `threads - 1` others: fewer if the system has no more. None if `work` panicked.
pub(super) fn share<P: Send, T: Send>(
    threads: usize,
    parts: impl Iterator<Item = P> + Send,
    work: impl Fn(P) -> T + Sync,
) -> Option<Vec<T>> {
    let queue = Mutex::new(parts.enumerate());
    let next = || queue.lock().ok()?.next();
    let worker = || {
        let mut done = Vec::new();
        while let Some((index, part)) = next() {
            done.push((index, work(part)));
        }
        done
    };
    let mut done = thread::scope(|scope| {
        let start = |_| {
            let builder = thread::Builder::new().name("codec".to_owned());
            builder.spawn_scoped(scope, worker).ok()
        };
        let others: Vec<_> = (1..threads).map_while(start).collect();
        let own = worker();
        // All of them, before the first that panicked: the scope would panic for the rest.
        let joined: Vec<_> = others
            .into_iter()
            .map(thread::ScopedJoinHandle::join)
            .collect();
        let mut done = own;
        for other in joined {
            done.extend(other.ok()?);
        }
        Some(done)
    })?;
    done.sort_unstable_by_key(|(index, _)| *index);
    Some(done.into_iter().map(|(_, made)| made).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_parts() {
        for threads in [1, 2, 5] {
            let made = share(threads, 0..100, |part| part * 2).unwrap();
            assert_eq!(made, (0..100).map(|part| part * 2).collect::<Vec<_>>());
        }
    }

    #[test]
    fn threads_are_for_large_values() {
        assert_eq!(thread_count(8, 0), 1);
        assert_eq!(thread_count(8, 2 * PART_LEN - 1), 1);
        assert_eq!(thread_count(8, 3 * PART_LEN), 3);
        assert_eq!(thread_count(2, 30 * PART_LEN), 2);
        assert_eq!(thread_count(0, 30 * PART_LEN), 1);
    }
}
