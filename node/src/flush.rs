//! Which entries a flush or a purge has made invisible.
//!
//! A flush removes nothing: it notes, for a space, the version below which no entry counts any
//! more. That is one number, takes no time however large the store is, and is persisted before the
//! flush is acknowledged, so that what was flushed stays gone after a restart. A flush with a delay
//! is noted by its wall-clock time, and becomes such a number when the time has come, also when it
//! came while the node was down: then it hides what there was at that time, not what others have
//! written since.
//!
//! A purge does the same to what one identity wrote. It is about few entries of a space, so each
//! purge is kept by itself, and their number is bounded.
//!
//! Invariant: what is made from a flushed entry is flushed too. A command that found an entry and
//! then got its version above the cutoff learns from [`FlushTable::is_visible_after`] that the
//! entry is gone.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicBool, Ordering, fence};

use arc_swap::ArcSwap;
use fonn_base::entry::{Meta, Space};
use fonn_base::hlc;
use fonn_proto::{PurgeScope, Version};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

/// Purges that are kept at once.
pub const PURGES_MAX: usize = 256;

/// Spaces whose flushes are kept at once. Of more, the oldest flushes give way, and what is as old
/// as they are is hidden in all spaces. Formats of the bucket have room for as many.
const CUTOFFS_MAX: usize = 1 << 16;

/// The versions below which nothing is visible.
#[derive(Debug, Default)]
struct Cutoffs {
    /// Spaces in increasing order, each with its own.
    of: Vec<(Space, Version)>,
    /// That of all other spaces. It is above 0 if a flush of one of them may have given way.
    others: Version,
}

/// The flushes of every space, and the purges.
#[derive(Debug, Default)]
pub struct FlushTable {
    /// Changed only while `later` is held.
    cutoffs: ArcSwap<Cutoffs>,
    has_cutoffs: AtomicBool,
    /// Each with its cutoff.
    purges: RwLock<Vec<(PurgeScope, Version)>>,
    has_purges: AtomicBool,
    /// Held while a cutoff changes: one that comes from elsewhere meanwhile is not lost.
    later: Mutex<Later>,
    fell_due: Notify,
    /// A task waits for what falls due.
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
    /// Whether an entry of this version is still visible.
    #[inline]
    #[must_use]
    pub fn is_visible(&self, space: Space, version: Version) -> bool {
        self.cutoff(space) <= version
    }

    /// The version below which nothing is visible.
    #[inline]
    #[must_use]
    pub fn cutoff(&self, space: Space) -> Version {
        if !self.has_cutoffs.load(Ordering::Acquire) {
            return 0;
        }
        let cutoffs = self.cutoffs.load();
        let found = cutoffs.of.binary_search_by_key(&space, |it| it.0);
        let found = found.ok().and_then(|at| cutoffs.of.get(at));
        found.map_or(cutoffs.others, |it| it.1)
    }

    /// Whether an entry with these facts is still visible.
    #[inline]
    #[must_use]
    pub fn shows(&self, space: Space, meta: &Meta) -> bool {
        self.is_visible(space, meta.version) && !self.is_purged(space, meta)
    }

    /// Whether what these facts are of was purged.
    #[inline]
    #[must_use]
    pub fn is_purged(&self, space: Space, meta: &Meta) -> bool {
        meta.writer.is_known() && self.has_purges() && self.is_among_purged(space, meta)
    }

    fn is_among_purged(&self, space: Space, meta: &Meta) -> bool {
        let purges = self.purges.read();
        purges.iter().any(|(purge, cutoff)| {
            meta.version < *cutoff && purge.covers(space, meta.writer, meta.version)
        })
    }

    /// Whether anything was purged.
    #[inline]
    #[must_use]
    pub fn has_purges(&self) -> bool {
        self.has_purges.load(Ordering::Acquire)
    }

    /// As [`FlushTable::shows`], to be asked again by a caller that found an entry and then drew a
    /// version: a flush or purge that drew its cutoff before that version is seen here.
    #[inline]
    #[must_use]
    pub fn is_visible_after(&self, space: Space, meta: &Meta) -> bool {
        fence(Ordering::Acquire);
        self.shows(space, meta)
    }

    /// Makes everything that `purge` is about invisible whose version was given before now. `fresh`
    /// draws the next version, which is returned.
    pub fn purge(&self, purge: PurgeScope, fresh: impl FnOnce() -> Version) -> Version {
        let _held = self.later.lock();
        // As in a flush: nothing of it is visible while the cutoff is drawn.
        self.hide(purge, Version::MAX);
        fence(Ordering::Release);
        let version = fresh();
        let mut purges = self.purges.write();
        for (known, cutoff) in purges.iter_mut() {
            if *known == purge {
                *cutoff = version;
            }
        }
        purges.retain(|it| it.0 == purge || !covers(&(purge, version), it));
        version
    }

    /// Whether there is room for a purge.
    #[must_use]
    pub fn takes(&self, purge: PurgeScope) -> bool {
        let purges = self.purges.read();
        let is_kept = |it: &&(PurgeScope, Version)| !covers(&(purge, Version::MAX), it);
        purges.iter().filter(is_kept).count() < PURGES_MAX
    }

    /// Puts back a purge that was persisted, or takes over one of elsewhere.
    pub fn restore_purge(&self, purge: PurgeScope, cutoff: Version) {
        let _held = self.later.lock();
        self.hide(purge, cutoff);
    }

    /// Everything that was purged, with the cutoffs.
    #[must_use]
    pub fn purges(&self) -> Vec<(PurgeScope, Version)> {
        // While a cutoff is drawn there is none to tell.
        let _held = self.later.lock();
        self.purges.read().clone()
    }

    fn hide(&self, purge: PurgeScope, cutoff: Version) {
        let mut purges = self.purges.write();
        if purges.iter().any(|it| covers(it, &(purge, cutoff))) {
            return;
        }
        match purges.iter_mut().find(|(known, _)| *known == purge) {
            Some(known) => known.1 = cutoff,
            None => purges.push((purge, cutoff)),
        }
        self.has_purges.store(true, Ordering::Release);
    }

    /// Makes everything in `spaces` invisible whose version was given before now. `fresh` draws the
    /// next version, which is returned: nothing below it is visible.
    pub fn flush(&self, spaces: &[Space], fresh: impl FnOnce() -> Version) -> Version {
        let mut later = self.later.lock();
        let before = self.cutoffs.load_full();
        let below = |version| spaces.iter().map(move |&space| (space, version));
        // For the moment that it takes to draw the cutoff nothing is visible: so no caller finds an
        // old entry and draws a higher version.
        self.set_cutoffs(&before, below(Version::MAX));
        fence(Ordering::Release);
        let version = fresh();
        self.set_cutoffs(&before, below(version));
        later.forget(spaces);
        version
    }

    /// Carries out the flushes whose time has come; `fresh` draws the next version. What falls due
    /// so is told to the waiting task.
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

    /// Carries out the flushes whose time had come at `until_ms`, when no process was running.
    /// They hide what was written by then: elsewhere, by its version, and here, where all that was
    /// written is below `known`. What others wrote since then stays.
    pub fn flush_missed(&self, until_ms: u64, known: Version) {
        let mut later = self.later.lock();
        let missed = later.due(until_ms);
        let cutoffs = missed
            .iter()
            .map(|it| (it.space, hlc::at_ms(it.at_ms).max(known)));
        self.set_cutoffs(&self.cutoffs.load_full(), cutoffs);
        for flush in missed {
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

    /// Whether others carry out what falls due, too: a task has waited for it.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.is_shared.load(Ordering::Relaxed)
    }

    /// Puts back what was persisted, or takes over what was flushed elsewhere.
    pub fn restore(&self, cutoffs: impl IntoIterator<Item = (Space, Version)>) {
        let _held = self.later.lock();
        let is_news = |&(space, cutoff): &(Space, Version)| cutoff > self.cutoff(space);
        let mut news = cutoffs.into_iter().filter(is_news).peekable();
        if news.peek().is_some() {
            self.set_cutoffs(&self.cutoffs.load_full(), news);
        }
    }

    /// Makes the cutoffs those of `before` and `more`; of one space the higher one counts.
    fn set_cutoffs(&self, before: &Cutoffs, more: impl IntoIterator<Item = (Space, Version)>) {
        let mut of: Vec<(Space, Version)> = before.of.iter().copied().chain(more).collect();
        // Stable: it merges runs that are in order, as that of `before` is.
        of.sort_by_key(|&(space, cutoff)| (space, Reverse(cutoff)));
        of.dedup_by_key(|it| it.0);
        if of.len() > CUTOFFS_MAX {
            of.sort_unstable_by_key(|it| Reverse(it.1));
            of.truncate(CUTOFFS_MAX);
            of.sort_unstable();
        }
        // A full table tells it after a restart, too.
        let oldest = of.iter().map(|it| it.1).min();
        let others = oldest.filter(|_| of.len() >= CUTOFFS_MAX).unwrap_or(0);
        self.cutoffs.store(Cutoffs { of, others }.into());
        self.has_cutoffs.store(true, Ordering::Release);
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
        (self.cutoffs.load().of.clone(), later.to_come.clone())
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

/// Whether one purge hides all that another one hides.
fn covers(one: &(PurgeScope, Version), other: &(PurgeScope, Version)) -> bool {
    let ((one, one_cutoff), (other, other_cutoff)) = (one, other);
    one.writer == other.writer
        && (one.namespace.is_none() || one.namespace == other.namespace)
        && one.since <= other.since
        && one_cutoff >= other_cutoff
}

#[cfg(test)]
mod tests {
    use fonn_proto::WriterId;

    use super::*;

    fn purge(namespace: Option<u32>, since: Version) -> PurgeScope {
        PurgeScope {
            writer: WriterId::new(7),
            namespace,
            since,
        }
    }

    fn meta(writer: u32, version: Version) -> Meta {
        Meta {
            writer: WriterId::new(writer),
            ..Meta::new(version, 0, 0)
        }
    }

    #[test]
    fn a_purge_hides_what_one_writer_wrote_before_it() {
        let table = FlushTable::default();
        assert!(table.shows(Space(16), &meta(7, 50)));
        let cutoff = table.purge(purge(Some(1), 10), || {
            assert!(!table.is_visible_after(Space(16), &meta(7, 100)));
            100
        });
        assert_eq!(cutoff, 100);
        assert!(!table.shows(Space(16), &meta(7, 99)));
        assert!(!table.shows(Space(31), &meta(7, 10)));
        assert!(table.shows(Space(16), &meta(7, 100)));
        assert!(table.shows(Space(16), &meta(7, 9)));
        assert!(table.shows(Space(0), &meta(7, 50)));
        assert!(table.shows(Space(16), &meta(8, 50)));
        assert!(table.shows(Space(16), &meta(0, 50)));
        assert!(
            table.is_visible(Space(16), 50),
            "a tombstone of no writer counts"
        );
    }

    #[test]
    fn a_purge_that_covers_others_stands_for_them() {
        let table = FlushTable::default();
        for since in 0..PURGES_MAX as u64 {
            assert!(table.takes(purge(Some(0), 1000 + since)));
            table.purge(purge(Some(0), 1000 + since), || 2000 + since);
        }
        assert!(!table.takes(purge(Some(0), 5000)));
        assert!(table.takes(purge(None, 0)), "it stands for all of them");
        table.purge(purge(None, 0), || 3000);
        assert_eq!(table.purges(), [(purge(None, 0), 3000)]);
        table.restore_purge(purge(Some(0), 5), 2500);
        table.restore_purge(purge(None, 0), 2500);
        assert_eq!(table.purges(), [(purge(None, 0), 3000)]);
        table.restore_purge(purge(None, 0), 3500);
        assert_eq!(table.purges(), [(purge(None, 0), 3500)]);
    }

    #[test]
    fn a_flush_hides_older_versions_of_its_space_only() {
        let table = FlushTable::default();
        table.flush(&[Space(3)], || 100);
        assert!(!table.is_visible(Space(3), 99));
        assert!(table.is_visible(Space(3), 100));
        assert!(table.is_visible(Space(4), 1));
        table.restore([(Space(3), 50)]);
        assert_eq!(
            table.cutoff(Space(3)),
            100,
            "what is restored never goes back"
        );
    }

    #[test]
    fn of_too_many_flushes_the_oldest_give_way_and_nothing_comes_back() {
        let table = FlushTable::default();
        let flushes = (0..=CUTOFFS_MAX as u32).map(|it| (Space(it), 1_000_000 - u64::from(it)));
        table.restore(flushes);
        let (kept, _) = table.snapshot();
        assert_eq!(kept.len(), CUTOFFS_MAX);
        assert_eq!(table.cutoff(Space(0)), 1_000_000);
        // It had one below the oldest that is kept.
        let oldest = 1_000_001 - CUTOFFS_MAX as u64;
        assert_eq!(table.cutoff(Space(CUTOFFS_MAX as u32)), oldest);
        table.flush(&[Space(u32::MAX)], || 2_000_000);
        assert_eq!(table.cutoff(Space(u32::MAX)), 2_000_000);
        assert_eq!(table.cutoff(Space(CUTOFFS_MAX as u32 - 1)), oldest + 1);
        let reopened = FlushTable::default();
        reopened.restore(table.snapshot().0);
        assert_eq!(reopened.cutoff(Space(CUTOFFS_MAX as u32)), oldest + 1);
    }

    #[test]
    fn while_a_flush_draws_its_cutoff_nothing_of_its_space_is_visible() {
        let table = FlushTable::default();
        table.flush(&[Space(3)], || {
            assert!(!table.is_visible_after(Space(3), &meta(0, 100)));
            assert!(table.is_visible_after(Space(4), &meta(0, 100)));
            100
        });
        assert!(table.is_visible_after(Space(3), &meta(0, 100)));
    }

    #[test]
    fn a_delayed_flush_is_due_at_its_time_and_replaced_by_a_later_one() {
        let table = FlushTable::default();
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
    fn a_missed_flush_hides_what_was_known_and_what_was_written_by_its_time() {
        let table = FlushTable::default();
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
    async fn a_waiting_task_is_told_what_falls_due_and_not_what_was_missed() {
        let table = FlushTable::default();
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
