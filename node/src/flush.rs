//! Which entries a flush has made invisible.
//!
//! A flush removes nothing: it notes, for a space, the version below which no entry counts any more.
//! That is one number, takes no time however large the store is, and is persisted before the flush is
//! acknowledged, so that what was flushed stays gone after a restart. A flush with a delay is noted by
//! its wall-clock time, and becomes such a number when the time has come, also when it came while the
//! node was down: then it hides what there was at that time, not what others have written since.
//!
//! Invariant: what is made from a flushed entry is flushed too. A command that found an entry and then
//! got its version above the cutoff learns from [`FlushTable::is_visible_after`] that the entry is gone.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use fonn_proto::Version;
use fonn_runtime::hlc;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::entry::Space;

/// The flushes of every space.
#[derive(Debug)]
pub struct FlushTable {
    cutoffs: Box<[AtomicU64]>,
    /// Held while a cutoff changes: one that comes from elsewhere meanwhile is not lost.
    later: Mutex<Later>,
    fell_due: Notify,
    /// Somebody waits for what falls due.
    is_shared: AtomicBool,
}

#[derive(Debug, Default)]
struct Later {
    to_come: Vec<Pending>,
    /// What was carried out at its time, until it is asked for.
    fell_due: Vec<Space>,
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
            later: Mutex::default(),
            fell_due: Notify::new(),
            is_shared: AtomicBool::new(false),
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
    /// next version, which is returned: nothing below it is visible.
    pub fn flush(&self, spaces: &[Space], fresh: impl FnOnce() -> Version) -> Version {
        let slots = || {
            let indexes = spaces.iter().map(|space| usize::from(space.0));
            indexes.filter_map(|index| self.cutoffs.get(index))
        };
        let mut later = self.later.lock();
        // For the moment that it takes to draw the cutoff nothing is visible: so nobody finds an old
        // entry who draws a higher version.
        slots().for_each(|cutoff| cutoff.store(Version::MAX, Ordering::Relaxed));
        fence(Ordering::Release);
        let version = fresh();
        slots().for_each(|cutoff| cutoff.store(version, Ordering::Release));
        later.forget(spaces);
        version
    }

    /// Carries out the flushes whose time has come; `fresh` draws the next version. What falls due so is told to who waits
    /// for it.
    pub fn flush_due(&self, now_ms: u64, fresh: impl FnOnce() -> Version) {
        let due = self.due(now_ms);
        if due.is_empty() {
            return;
        }
        self.flush(&due, fresh);
        let mut later = self.later.lock();
        later.fell_due.retain(|space| !due.contains(space));
        later.fell_due.extend(due);
        drop(later);
        self.fell_due.notify_one();
    }

    /// Carries out the flushes whose time had come at `until_ms`, when nobody was there to do it. They hide what was written
    /// by then: elsewhere, by its version, and here, where all that was written is below `known`. What others wrote since then stays.
    pub fn flush_missed(&self, until_ms: u64, known: Version) {
        let mut later = self.later.lock();
        for flush in later.due(until_ms) {
            let cutoff = hlc::at_ms(flush.at_ms).max(known);
            self.raise(flush.space, cutoff);
            later.forget(&[flush.space]);
        }
    }

    /// Waits for flushes that fall due while this node runs: what they are about.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn fell_due(&self) -> Vec<Space> {
        self.is_shared.store(true, Ordering::Relaxed);
        loop {
            let told = self.fell_due.notified();
            let spaces = std::mem::take(&mut self.later.lock().fell_due);
            if !spaces.is_empty() {
                return spaces;
            }
            told.await;
        }
    }

    /// Whether others carry out what falls due, too: somebody has waited for it.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.is_shared.load(Ordering::Relaxed)
    }

    /// Puts back what was persisted, or takes over what was flushed elsewhere.
    pub fn restore(&self, space: Space, cutoff: Version) {
        let _held = self.later.lock();
        self.raise(space, cutoff);
    }

    fn raise(&self, space: Space, cutoff: Version) {
        if let Some(slot) = self.cutoffs.get(usize::from(space.0)) {
            slot.fetch_max(cutoff, Ordering::AcqRel);
        }
    }

    /// Notes a flush for later; it replaces one that was noted for the space before.
    pub fn flush_at(&self, space: Space, at_ms: u64) {
        let mut later = self.later.lock();
        later.forget(&[space]);
        // 0 is how a flush that has happened is told from one to come when it is persisted.
        let at_ms = at_ms.max(1);
        later.to_come.push(Pending { space, at_ms });
    }

    /// Forgets a flush that was noted for later.
    pub fn cancel(&self, space: Space) {
        self.later.lock().forget(&[space]);
    }

    /// The flushes whose time has come.
    #[must_use]
    pub fn due(&self, now_ms: u64) -> Vec<Space> {
        let due = self.later.lock().due(now_ms);
        due.into_iter().map(|flush| flush.space).collect()
    }

    /// Everything there is to persist: cutoffs above 0, and flushes noted for later.
    #[must_use]
    pub fn snapshot(&self) -> (Vec<(Space, Version)>, Vec<Pending>) {
        // While a cutoff is drawn there is none to tell.
        let later = self.later.lock();
        let cutoffs = self
            .cutoffs
            .iter()
            .enumerate()
            .filter_map(|(index, cutoff)| {
                let cutoff = cutoff.load(Ordering::Acquire);
                (cutoff > 0).then_some((Space(index as u16), cutoff))
            });
        (cutoffs.collect(), later.to_come.clone())
    }
}

impl Later {
    fn due(&self, now_ms: u64) -> Vec<Pending> {
        let is_due = |flush: &&Pending| flush.at_ms <= now_ms;
        self.to_come.iter().filter(is_due).copied().collect()
    }

    fn forget(&mut self, spaces: &[Space]) {
        self.to_come.retain(|flush| !spaces.contains(&flush.space));
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

    #[test]
    fn what_nobody_was_there_to_flush_hides_what_was_known_and_what_was_written_by_its_time() {
        let table = FlushTable::new(16);
        let known = hlc::at_ms(5_000) + 3;
        table.flush_at(Space(0), 4_000);
        table.flush_at(Space(1), 6_000);
        table.flush_at(Space(2), 9_000);
        table.flush_missed(8_000, known);
        assert_eq!(table.cutoff(Space(0)), known);
        assert_eq!(table.cutoff(Space(1)), hlc::at_ms(6_000));
        assert_eq!(table.cutoff(Space(2)), 0);
        assert!(table.due(8_000).is_empty());
        assert_eq!(table.due(9_000), [Space(2)]);
    }

    #[tokio::test]
    async fn who_waits_is_told_what_falls_due_and_not_what_was_missed() {
        let table = FlushTable::new(16);
        table.flush_at(Space(0), 1_000);
        table.flush_at(Space(1), 2_000);
        table.flush_missed(1_000, 5);
        let told = futures_util::future::join(table.fell_due(), async {
            table.flush_due(1_999, || unreachable!("nothing is due"));
            table.flush_due(2_000, || 7);
        });
        assert_eq!(told.await.0, [Space(1)]);
        // Told once.
        table.flush_at(Space(2), 3_000);
        table.flush_due(3_000, || 8);
        assert_eq!(table.fell_due().await, [Space(2)]);
    }
}
