//! The budget: what is in the data directory, and what is on its way there.
//!
//! Invariant: counted and reserved bytes are within the budget together. A thread that writes
//! values reserves their bytes before, under one lock, and gives them back when the written bytes
//! count. Only deletions are written without a reservation, and the little that a new generation
//! takes.

use std::sync::atomic::Ordering;

use super::Shared;
use super::generation::Generation;
use super::options::Limits;

/// Bytes of the budget that are about to be written. They are given back when it is dropped: by
/// then what was written is counted.
#[must_use]
pub(crate) struct Reservation<'a> {
    shared: &'a Shared,
    bytes: u64,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let mut reserved = self.shared.reserved.lock();
        *reserved = reserved.saturating_sub(self.bytes);
    }
}

impl Shared {
    /// Reserves bytes, if what is on disk and all that is reserved do not exceed `ceiling` with
    /// them.
    pub(crate) fn reserve(&self, bytes: u64, ceiling: u64) -> Option<Reservation<'_>> {
        let mut reserved = self.reserved.lock();
        if self.disk_bytes() + *reserved + bytes > ceiling {
            return None;
        }
        *reserved += bytes;
        Some(Reservation {
            shared: self,
            bytes,
        })
    }

    /// Bytes on disk of everything in the directory. What moves from one part to the next counts in
    /// the next before it ceases to count where it was, and parts are read in that order: so what
    /// moves meanwhile counts twice, and never not at all.
    pub(crate) fn disk_bytes(&self) -> u64 {
        let compacting = self.compaction_bytes.load(Ordering::Acquire);
        let spare = self.spare_bytes();
        let listed = self.generations.disk_bytes();
        let buried = self.buried_bytes();
        compacting + spare + listed + buried + self.other_bytes.load(Ordering::Acquire)
    }

    /// As [`Shared::disk_bytes`], without what is dropped and not removed yet: it will be.
    pub(crate) fn kept_bytes(&self) -> u64 {
        let compacting = self.compaction_bytes.load(Ordering::Acquire);
        let spare = self.spare_bytes();
        let listed = self.generations.disk_bytes();
        compacting + spare + listed + self.other_bytes.load(Ordering::Acquire)
    }

    /// Up to where writes may lead. As long as room is asked for, and not begun to be made, what
    /// that takes for a while is kept free for it.
    pub(crate) fn writes_max(&self, limits: &Limits) -> u64 {
        let is_begun = self.compaction_bytes.load(Ordering::Acquire) > 0;
        if self.reclaim.is_urgent() && !is_begun {
            limits.total_high
        } else {
            limits.writes_max
        }
    }

    /// Says how many bytes the generation takes that is being written anew, or is going to take.
    pub(crate) fn set_compaction_bytes(&self, bytes: u64) {
        self.compaction_bytes.store(bytes, Ordering::Release);
    }

    fn spare_bytes(&self) -> u64 {
        let spare = self.spare.lock();
        spare.ready.as_ref().map_or(0, Generation::disk_bytes)
    }

    /// Says that the writer waits for room for so many bytes.
    pub(crate) fn press(&self, bytes: u64) {
        self.wanted_bytes.store(bytes, Ordering::Release);
        self.is_pressed.store(true, Ordering::Release);
        self.wake_upkeep();
    }

    /// Says that the writer goes on.
    pub(crate) fn unpress(&self) {
        self.is_pressed.store(false, Ordering::Release);
        self.wanted_bytes.store(0, Ordering::Release);
    }

    /// Whether the writer waits for room: there is no time to carry anything over.
    pub(crate) fn is_pressed(&self) -> bool {
        self.is_pressed.load(Ordering::Acquire)
    }

    /// Bytes that the writer waits for.
    pub(crate) fn wanted_bytes(&self) -> u64 {
        self.wanted_bytes.load(Ordering::Acquire)
    }
}
