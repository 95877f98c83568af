//! Compaction: a sealed generation is written anew, once, with its useful records and with the
//! codec `compacted`.
//!
//! A thread of its own does it, slower than it could and behind all other work. It makes the next
//! *incarnation* of the generation in a directory beside it. The incarnation takes its place at
//! once and whole.
//!
//! A record that is left out must not show what it hid. The newest record of a key stays as a
//! tombstone, if its value is useless, as long as an older generation has the key. A record that
//! replaces another one is durable before the other is gone.

pub(crate) mod reclaim;
mod recode;
mod rewrite;
mod survey;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{debug, info, warn};

use super::Shared;
use super::error::DiskError;
use super::generation::Generation;
use super::index::IndexError;
use super::room::Reservation;
use super::stats::add;
use super::tail::{TailPosition, end_of};
use crate::levels::thread_cpu;

pub(crate) use rewrite::rewrite;

/// How often it looks for something to do.
const INTERVAL: Duration = Duration::from_millis(250);

/// The longest rest for time in which it did not compute, but waited for the disk.
const REST_MAX: Duration = Duration::from_secs(2);

/// How often it looks up from its rest whether room is waited for.
const LOOK_UP: Duration = Duration::from_millis(250);

/// How long it waits before it looks again whether writes still wait, or the budget has room.
const BACKOFF: Duration = Duration::from_millis(20);

/// Why a generation was not written anew.
#[derive(Debug)]
pub(crate) enum Stopped {
    /// The tier is being closed.
    Closing,
    /// The generation was dropped meanwhile.
    Gone,
    /// The file system is nearly full, or the budget has no room for both incarnations.
    NoSpace,
    /// It has a record that the budget would have to lose older entries for.
    NoRoom,
    /// It cannot be done, now or later.
    Failed(String),
}

impl From<std::io::Error> for Stopped {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Self::NoSpace,
            _ => Self::Failed(error.to_string()),
        }
    }
}

impl From<IndexError> for Stopped {
    fn from(error: IndexError) -> Self {
        match error {
            IndexError::Io(error) => error.into(),
            IndexError::Broken(reason) => Self::Failed(reason),
        }
    }
}

impl From<DiskError> for Stopped {
    fn from(error: DiskError) -> Self {
        match error {
            DiskError::Io { source, .. } => source.into(),
            other => Self::Failed(other.to_string()),
        }
    }
}

/// Body of the compaction thread.
pub(crate) fn run(shared: &Shared) {
    super::stand_back(super::UPKEEP_NICENESS);
    while !shared.wait_for_close(INTERVAL) {
        reclaim::run(shared);
        while let Some(source) = candidate(shared) {
            if !compact(shared, &source) {
                break;
            }
            reclaim::run(shared);
        }
    }
}

/// The newest generation that is sealed and not compacted. The oldest is not worth it when it is
/// the next to be dropped, and one that is being read for the tier below waits until that is done:
/// its records would have other places then, and be read once more.
pub(crate) fn candidate(shared: &Shared) -> Option<Arc<Generation>> {
    let generations = shared.generations.snapshot();
    let (_newest, sealed) = generations.split_first()?;
    let limits = shared.limits();
    let is_dropping = shared.disk_bytes() + limits.generation > limits.total_high;
    let going = match sealed {
        [_, .., oldest] if is_dropping => Some(oldest.id),
        _ => None,
    };
    let mut waiting = sealed
        .iter()
        .filter(|it| it.is_sealed() && !it.has_been_compacted());
    waiting
        .find(|it| Some(it.id) != going && !is_half_passed(shared, it))
        .cloned()
}

/// Whether the tier below has read some of a generation, and not all.
fn is_half_passed(shared: &Shared, generation: &Generation) -> bool {
    let end = end_of(generation);
    let begun = TailPosition { offset: 1, ..end };
    let passed = |position| {
        shared
            .below
            .as_ref()
            .is_some_and(|it| it.has_passed(position))
    };
    passed(begun) && !passed(end)
}

/// Compacts a generation, or finds that there is nothing to do; false if it is to be tried again
/// later.
pub(crate) fn compact(shared: &Shared, source: &Arc<Generation>) -> bool {
    let started = Instant::now();
    let is_broken = source.has_broken_index();
    let is_worth_it = match is_broken {
        // The new incarnation gets an index of its own.
        true => Ok(true),
        false => survey::run(shared, source).map(|survey| {
            debug!(generation = source.id, ?survey, "looked at a generation");
            survey.is_worth_it()
        }),
    };
    let compacted = is_worth_it.and_then(|is_worth_it| {
        if !is_worth_it {
            source.mark_compacted();
            return Ok(());
        }
        let target = rewrite(shared, source, 0)?;
        let bytes = target.log.end();
        switch(shared, source, target)?;
        info!(
            generation = source.id,
            bytes_before = source.log.end(),
            bytes,
            seconds = started.elapsed().as_secs(),
            "compacted a generation"
        );
        Ok(())
    });
    shared.set_compaction_bytes(0);
    match compacted {
        Ok(()) | Err(Stopped::Gone) => true,
        Err(Stopped::Closing | Stopped::NoSpace) => false,
        // The damage was not known before. The next attempt does without the index.
        Err(Stopped::Failed(_)) if !is_broken && source.has_broken_index() => false,
        Err(Stopped::NoRoom) => {
            debug!(generation = source.id, "no room to compact a generation");
            source.set_compacted();
            true
        }
        Err(Stopped::Failed(reason)) => {
            warn!(generation = source.id, %reason, "cannot compact a generation: it stays as it is");
            add(&shared.stats.compaction_failures, 1);
            source.set_compacted();
            true
        }
    }
}

/// Puts the new incarnation in the place of the old one, on disk and for readers.
pub(crate) fn switch(
    shared: &Shared,
    source: &Arc<Generation>,
    target: Generation,
) -> Result<(), Stopped> {
    if let Err(stopped) = sync_newer(shared, source) {
        discard(target);
        return Err(stopped);
    }
    let held = shared.structure.lock();
    if !is_current(shared, source) {
        drop(held);
        discard(target);
        return Err(Stopped::Gone);
    }
    if target.log.end() == 0 {
        // Nothing is of use any more, and nothing needs to be hidden.
        mark_dropped(source);
        shared.bury(Arc::clone(source));
        shared.generations.remove(source.id);
        add(&shared.stats.generations_compacted, 1);
        drop(held);
        discard(target);
        return Ok(());
    }
    if let Err(error) = target.publish() {
        drop(held);
        discard(target);
        return Err(error.into());
    }
    // Should the new incarnation be dropped and removed first, the old one must not count again.
    mark_dropped(source);
    let end = end_of(source);
    let below = shared.below.as_ref();
    if source.is_passed() || below.is_some_and(|it| it.has_passed(end)) {
        target.mark_passed();
    }
    // Each counts where it goes before it ceases to count where it was.
    shared.bury(Arc::clone(source));
    shared.generations.replace(source, Arc::new(target));
    shared.set_compaction_bytes(0);
    add(&shared.stats.generations_compacted, 1);
    Ok(())
}

/// Makes durable what outdated the records that were left out: a loss of power must not bring back
/// what these had outdated.
fn sync_newer(shared: &Shared, source: &Generation) -> Result<(), Stopped> {
    let generations = shared.generations.snapshot();
    for newer in generations.iter().take_while(|it| it.id != source.id) {
        shared.sync(newer)?;
    }
    Ok(())
}

fn mark_dropped(source: &Generation) {
    if let Err(error) = source.mark_dropped() {
        warn!(generation = source.id, %error, "cannot mark a compacted generation's former files as dropped");
    }
}

/// Removes what was not published.
fn discard(target: Generation) {
    if let Err(error) = target.remove() {
        debug!(%error, "cannot remove an unfinished generation: the next start tries again");
    }
}

fn is_current(shared: &Shared, source: &Arc<Generation>) -> bool {
    let current = shared.generations.by_id(source.id);
    current.is_some_and(|current| Arc::ptr_eq(&current, source))
}

/// Keeps compaction within its share of time, and behind writes.
struct Pace<'a> {
    shared: &'a Shared,
    source: &'a Arc<Generation>,
    worked_since: Instant,
    cpu_since: Duration,
}

/// How long to rest after work that took so much time and processor time. That of the processor is
/// the share that is promised; waiting for a slow disk counts too, within bounds: it has no more of
/// the disk than of the processor.
fn rest_after(worked: Duration, cpu: Duration, percent: u32) -> Duration {
    let percent = percent.min(100);
    if percent == 0 {
        return Duration::ZERO;
    }
    let rest = |work: Duration| work.saturating_mul(100 - percent) / percent;
    rest(cpu).max(rest(worked).min(REST_MAX))
}

impl<'a> Pace<'a> {
    fn new(shared: &'a Shared, source: &'a Arc<Generation>) -> Self {
        Self {
            shared,
            source,
            worked_since: Instant::now(),
            cpu_since: thread_cpu(),
        }
    }

    /// Reserves room for what is to be written next; waits while some is about to become free.
    fn room(&self, bytes: u64) -> Result<Reservation<'a>, Stopped> {
        let shared = self.shared;
        loop {
            let limits = shared.limits();
            if let Some(room) = shared.reserve(bytes, limits.total_max) {
                return Ok(room);
            }
            if !is_current(shared, self.source) {
                return Err(Stopped::Gone);
            }
            // What is reserved by others is soon written.
            let total = shared.kept_bytes();
            let is_too_much = total + bytes > limits.total_max;
            if is_too_much && shared.reclaim.is_urgent() {
                // Nothing is dropped while it is hoped that this makes room.
                return Err(Stopped::NoSpace);
            }
            if is_too_much && total <= limits.total_high {
                return Err(Stopped::NoRoom);
            }
            if shared.is_reserve_touched() {
                return Err(Stopped::NoSpace);
            }
            if shared.wait_for_close(BACKOFF) {
                return Err(Stopped::Closing);
            }
        }
    }

    /// Rests after a piece of work, unless room is waited for.
    fn rest(&mut self) -> Result<(), Stopped> {
        let shared = self.shared;
        let cpu = thread_cpu().saturating_sub(self.cpu_since);
        let worked = self.worked_since.elapsed();
        let until = Instant::now() + rest_after(worked, cpu, shared.options.compaction_percent);
        loop {
            let left = match shared.reclaim.is_urgent() {
                true => Duration::ZERO,
                false => until.saturating_duration_since(Instant::now()),
            };
            if shared.wait_for_close(left.min(LOOK_UP)) {
                return Err(Stopped::Closing);
            }
            if left.is_zero() {
                break;
            }
        }
        loop {
            if !is_current(shared, self.source) {
                return Err(Stopped::Gone);
            }
            if shared.is_reserve_touched() {
                return Err(Stopped::NoSpace);
            }
            // The upkeep drops the oldest generation where the budget has no room for both
            // incarnations.
            let is_over = shared.disk_bytes() >= shared.limits().writes_max;
            let writes_wait = shared.queue.in_use() > shared.options.queue_bytes_max / 4;
            let is_urgent = shared.reclaim.is_urgent();
            if is_urgent || !is_over && !writes_wait {
                break;
            }
            if shared.wait_for_close(BACKOFF) {
                return Err(Stopped::Closing);
            }
        }
        self.worked_since = Instant::now();
        self.cpu_since = thread_cpu();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The share of the time that pieces of work have which take so long each.
    fn share(pieces: impl Iterator<Item = Duration>, percent: u32) -> f64 {
        let (mut worked, mut all) = (Duration::ZERO, Duration::ZERO);
        for piece in pieces {
            worked += piece;
            all += piece + rest_after(piece, piece, percent);
        }
        worked.as_secs_f64() / all.as_secs_f64()
    }

    #[test]
    fn work_has_its_share_of_the_time_however_long_a_piece_takes() {
        // From a piece of short values to one value that takes a minute to encode.
        let pieces = || (1..=60_000).step_by(997).map(Duration::from_millis);
        for percent in [1, 25, 50, 100] {
            let share = share(pieces(), percent);
            let promised = f64::from(percent) / 100.0;
            assert!((share - promised).abs() < 0.001, "{share} of {percent} %");
        }
        let minute = Duration::from_secs(60);
        assert_eq!(rest_after(minute, minute, 0), Duration::ZERO);
    }

    #[test]
    fn waiting_for_the_disk_counts_within_bounds() {
        let (some, little) = (Duration::from_millis(400), Duration::from_millis(1));
        assert_eq!(rest_after(some, little, 25), 3 * some);
        assert_eq!(rest_after(100 * some, little, 25), REST_MAX);
    }
}
