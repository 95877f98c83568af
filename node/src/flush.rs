//! Which entries a flush has made invisible.
//!
//! A flush removes nothing: it notes, for a space, the version below which no entry counts any more.
//! That is one number, takes no time however large the store is, and is persisted before the flush is
//! acknowledged, so that what was flushed stays gone after a restart. A flush with a delay is noted by
//! its wall-clock time, and becomes such a number when the time has come, also when it came while the
//! node was down.
//!
//! Invariant: what is made from a flushed entry is flushed too. A command that found an entry and then
//! got its version above the cutoff learns from [`FlushTable::is_visible_after`] that the entry is gone.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use fonn_proto::Version;
use parking_lot::Mutex;

use crate::entry::Space;

/// The flushes of every space.
#[derive(Debug)]
pub struct FlushTable {
    cutoffs: Box<[AtomicU64]>,
    pending: Mutex<Vec<Pending>>,
}

/// A flush that takes effect later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// What is flushed.
    pub space: Space,
    /// Unix time in milliseconds at which it takes effect.
    pub at_ms: u64,
}

impl FlushTable {
    /// A table for `spaces` spaces with nothing flushed.
    #[must_use]
    pub fn new(spaces: u32) -> Self {
        Self {
            cutoffs: (0..spaces).map(|_| AtomicU64::new(0)).collect(),
            pending: Mutex::default(),
        }
    }

    /// Spaces in the table.
    #[must_use]
    pub fn spaces(&self) -> u32 {
        self.cutoffs.len() as u32
    }

    /// Whether an entry of this version is still visible.
    #[inline]
    #[must_use]
    pub fn is_visible(&self, space: Space, version: Version) -> bool {
        self.cutoff(space) <= version
    }

    /// The version below which nothing is visible.
    #[must_use]
    pub fn cutoff(&self, space: Space) -> Version {
        self.cutoffs
            .get(usize::from(space.0))
            .map_or(0, |cutoff| cutoff.load(Ordering::Acquire))
    }

    /// As [`FlushTable::is_visible`], to be asked again by whoever found an entry and then drew a
    /// version: a flush that drew its cutoff before that version is seen here.
    #[inline]
    #[must_use]
    pub fn is_visible_after(&self, space: Space, version: Version) -> bool {
        fence(Ordering::Acquire);
        self.is_visible(space, version)
    }

    /// Makes everything in `spaces` invisible whose version was given before now. `fresh` draws the
    /// next version.
    pub fn flush(&self, spaces: &[Space], fresh: impl FnOnce() -> Version) {
        let slots = || {
            let indexes = spaces.iter().map(|space| usize::from(space.0));
            indexes.filter_map(|index| self.cutoffs.get(index))
        };
        // For the moment that it takes to draw the cutoff nothing is visible: so nobody finds an old
        // entry who draws a higher version.
        slots().for_each(|cutoff| cutoff.store(Version::MAX, Ordering::Relaxed));
        fence(Ordering::Release);
        let version = fresh();
        slots().for_each(|cutoff| cutoff.store(version, Ordering::Release));
        let mut pending = self.pending.lock();
        pending.retain(|pending| !spaces.contains(&pending.space));
    }

    /// Carries out the flushes whose time has come; `fresh` draws the next version.
    pub fn flush_due(&self, now_ms: u64, fresh: impl FnOnce() -> Version) {
        let due = self.due(now_ms);
        if !due.is_empty() {
            self.flush(&due, fresh);
        }
    }

    /// Puts back what was persisted.
    pub fn restore(&self, space: Space, cutoff: Version) {
        if let Some(slot) = self.cutoffs.get(usize::from(space.0)) {
            slot.fetch_max(cutoff, Ordering::AcqRel);
        }
    }

    /// Notes a flush for later; it replaces one that was noted for the space before.
    pub fn flush_at(&self, space: Space, at_ms: u64) {
        let mut pending = self.pending.lock();
        pending.retain(|other| other.space != space);
        // 0 is how a flush that has happened is told from one to come when it is persisted.
        let at_ms = at_ms.max(1);
        pending.push(Pending { space, at_ms });
    }

    /// Forgets a flush that was noted for later.
    pub fn cancel(&self, space: Space) {
        self.pending.lock().retain(|other| other.space != space);
    }

    /// The flushes whose time has come.
    #[must_use]
    pub fn due(&self, now_ms: u64) -> Vec<Space> {
        let pending = self.pending.lock();
        pending
            .iter()
            .filter(|flush| flush.at_ms <= now_ms)
            .map(|flush| flush.space)
            .collect()
    }

    /// Everything there is to persist: cutoffs above 0, and flushes noted for later.
    #[must_use]
    pub fn snapshot(&self) -> (Vec<(Space, Version)>, Vec<Pending>) {
        let cutoffs = self
            .cutoffs
            .iter()
            .enumerate()
            .filter_map(|(index, cutoff)| {
                let cutoff = cutoff.load(Ordering::Acquire);
                (cutoff > 0).then_some((Space(index as u16), cutoff))
            });
        (cutoffs.collect(), self.pending.lock().clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_hides_older_versions_of_its_space_only() {
        let table = FlushTable::new(16);
        table.flush(&[Space(3)], || 100);
        assert!(!table.is_visible(Space(3), 99));
        assert!(table.is_visible(Space(3), 100));
        assert!(table.is_visible(Space(4), 1));
        table.restore(Space(3), 50);
        assert_eq!(
            table.cutoff(Space(3)),
            100,
            "what is restored never goes back"
        );
    }

    #[test]
    fn while_a_flush_draws_its_cutoff_nothing_of_its_space_is_visible() {
        let table = FlushTable::new(16);
        table.flush(&[Space(3)], || {
            assert!(!table.is_visible_after(Space(3), 100));
            assert!(table.is_visible_after(Space(4), 100));
            100
        });
        assert!(table.is_visible_after(Space(3), 100));
    }

    #[test]
    fn a_delayed_flush_is_due_at_its_time_and_replaced_by_a_later_one() {
        let table = FlushTable::new(16);
        table.flush_at(Space(0), 1_000);
        table.flush_at(Space(0), 2_000);
        assert!(table.due(1_999).is_empty());
        assert_eq!(table.due(2_000), [Space(0)]);
        table.flush(&[Space(0)], || 7);
        assert!(
            table.due(9_999).is_empty(),
            "a flush that happened is no longer pending"
        );
        assert_eq!(table.snapshot(), (vec![(Space(0), 7)], vec![]));
    }
}
