//! The upkeep thread: seals generations, watches the bytes, drops the oldest generation. And two
//! threads for what it would have to wait for: one makes generations, one syncs.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::{info, warn};

use super::directory::free_bytes;
use super::generation::Generation;
use super::queue::Order;
use super::stats::add;
use super::{Shared, carry};

/// How often it looks, when nobody wakes it; and how often logs are synced.
const TICK: Duration = Duration::from_millis(100);

/// How often the bytes of indexes are counted on disk; in between they are estimated.
const MEASURE_INTERVAL: Duration = Duration::from_millis(500);

/// How long after a failed attempt to make a generation the next one follows.
const SPARE_RETRY: Duration = Duration::from_secs(1);

/// Body of the upkeep thread.
pub(crate) fn run(shared: &Shared) {
    let mut upkeep = Upkeep {
        shared,
        buried: Vec::new(),
        settled: HashSet::new(),
        measured_at: Instant::now(),
    };
    while !shared.is_closing() {
        upkeep.tick();
        shared.wait_for_wake(TICK);
    }
    upkeep.bury();
}

/// Body of the thread that keeps the next generation ready: making one takes several syncs, for which
/// nothing else should wait.
pub(crate) fn run_spare(shared: &Shared, mut next_id: u64) {
    let mut has_failed = false;
    while shared.wait_for_missing_spare(if has_failed {
        SPARE_RETRY
    } else {
        Duration::ZERO
    }) {
        let spare = shared.create_generation(next_id);
        next_id += 1;
        if let (Err(error), false) = (&spare, has_failed) {
            warn!(%error, "cannot make a new generation");
        }
        has_failed = spare.is_err();
        shared.put_spare(spare.ok());
    }
}

/// Body of the sync thread: bounds what a loss of power costs.
pub(crate) fn run_sync(shared: &Shared) {
    while !shared.wait_for_close(TICK) {
        for generation in shared.generations.snapshot().iter() {
            if !generation.log.is_dirty() {
                continue;
            }
            add(&shared.stats.syncs, 1);
            if let Err(error) = generation.log.sync() {
                // What the kernel could not write it has forgotten: this log is not to be trusted with
                // more.
                add(&shared.stats.syncs_failed, 1);
                if generation.set_failed() {
                    add(&shared.stats.generations_failed, 1);
                    warn!(generation = generation.id, %error, "cannot sync a value log: going on in a new generation");
                }
            }
        }
    }
}

struct Upkeep<'a> {
    shared: &'a Shared,
    /// Dropped, but perhaps still read by somebody.
    buried: Vec<Arc<Generation>>,
    /// Generations whose bytes on disk change no more.
    settled: HashSet<u64>,
    measured_at: Instant,
}

impl Upkeep<'_> {
    fn tick(&mut self) {
        self.look_at_free_space();
        self.seal();
        self.measure();
        self.relieve();
        self.bury();
    }

    fn look_at_free_space(&self) {
        if let Ok(free) = free_bytes(&self.shared.options.dir) {
            self.shared.set_free(free);
        }
    }

    /// Everything but the newest is only read from now on.
    fn seal(&self) {
        for generation in self.shared.generations.snapshot().iter().skip(1) {
            if let Err(error) = generation.seal() {
                warn!(generation = generation.id, %error, "cannot seal a generation: a restart has to read its log");
            }
        }
    }

    fn measure(&mut self) {
        if self.measured_at.elapsed() < MEASURE_INTERVAL {
            return;
        }
        self.measured_at = Instant::now();
        let generations = self.shared.generations.snapshot();
        for generation in generations.iter() {
            if self.settled.contains(&generation.id) {
                continue;
            }
            let is_settled = generation.is_settled();
            generation.measure();
            if is_settled {
                self.settled.insert(generation.id);
            }
        }
        self.settled
            .retain(|id| generations.iter().any(|generation| generation.id == *id));
    }

    /// Drops oldest generations until the bytes are within the budget, and the file system has its
    /// reserve.
    fn relieve(&mut self) {
        while !self.shared.is_closing() {
            let limits = self.shared.limits();
            // What is dropped and not removed yet will be.
            let total = self.shared.disk_bytes() - self.shared.buried_bytes();
            let is_full = self.shared.is_reserve_touched();
            if total <= limits.total_high && !is_full {
                break;
            }
            let generations = self.shared.generations.snapshot();
            let [_, .., oldest] = &*generations else {
                // Only the newest is left. It is dropped too if the budget has become smaller than it.
                let is_too_large = generations.iter().any(|newest| newest.log.end() > 0);
                if total > limits.total_max && is_too_large {
                    self.shared.queue.push_order(Order::Roll);
                }
                break;
            };
            let oldest = Arc::clone(oldest);
            drop(generations);
            if !is_full && total <= limits.total_max {
                carry::run(self.shared, &oldest);
            }
            self.drop_generation(oldest);
            self.bury();
            self.look_at_free_space();
        }
    }

    fn drop_generation(&mut self, oldest: Arc<Generation>) {
        // A restart must not find it again when the writer has begun to leave out tombstones for it.
        if let Err(error) = oldest.mark_dropped() {
            warn!(generation = oldest.id, %error, "cannot mark a generation as dropped: a restart before its removal would find it again");
        }
        info!(
            generation = oldest.id,
            bytes = oldest.disk_bytes(),
            "dropping the oldest generation"
        );
        self.shared.bury(oldest.disk_bytes());
        self.shared.generations.remove(oldest.id);
        add(&self.shared.stats.generations_dropped, 1);
        self.buried.push(oldest);
    }

    /// Removes dropped generations that nobody reads any more.
    fn bury(&mut self) {
        for generation in std::mem::take(&mut self.buried) {
            match Arc::try_unwrap(generation) {
                Ok(generation) => {
                    let bytes = generation.disk_bytes();
                    if let Err(error) = generation.remove() {
                        warn!(%error, "cannot remove a dropped generation: the next start tries again");
                        self.shared.add_other_bytes(bytes);
                    }
                    self.shared.unbury(bytes);
                }
                Err(generation) => self.buried.push(generation),
            }
        }
    }
}
