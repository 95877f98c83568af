//! Room from useless bytes, before anything useful is dropped for it.
//!
//! Without quotas the disk tier is a queue: new writes push out the oldest entries, which is fair
//! as long as all namespaces may fill it. A namespace that has lost its entries to its quota must
//! not push out those of other namespaces by further writes. So with quotas, when room runs out,
//! the sealed generation with the most useless bytes is written anew without these, in a hurry. A
//! generation is dropped only if none has at least a quarter of useless bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use tracing::{info, warn};

use super::survey;
use super::{Stopped, rewrite, switch};
use crate::Shared;
use crate::generation::Generation;
use crate::stats::add;

/// The share of a log that must be of no use. A smaller one would have more copied for less room.
const USELESS_SHARE_MIN: f64 = 0.25;

/// Generations above this number are merged: each costs every absent key a look.
pub(crate) const GENERATIONS_MANY: usize = 24;

/// How far room has been made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Progress {
    /// No thread asked for room.
    Idle,
    /// A thread did, and it is being made or looked for.
    Asked,
    /// There is none to be made: the oldest generation has to go.
    Nothing,
}

/// What the upkeep asks of the compaction thread.
#[derive(Debug)]
pub(crate) struct Reclaim {
    is_on: AtomicBool,
    progress: AtomicU8,
}

impl Default for Reclaim {
    fn default() -> Self {
        Self {
            is_on: AtomicBool::new(false),
            progress: AtomicU8::new(Progress::Idle as u8),
        }
    }
}

impl Reclaim {
    pub(crate) fn set_on(&self, is_on: bool) {
        self.is_on.store(is_on, Ordering::Release);
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }

    pub(crate) fn progress(&self) -> Progress {
        match self.progress.load(Ordering::Acquire) {
            1 => Progress::Asked,
            2 => Progress::Nothing,
            _ => Progress::Idle,
        }
    }

    pub(crate) fn set(&self, progress: Progress) {
        self.progress.store(progress as u8, Ordering::Release);
    }

    /// Whether room is being waited for, so that the compaction thread must not rest.
    pub(crate) fn is_urgent(&self) -> bool {
        self.progress() == Progress::Asked
    }
}

/// Makes room if it was asked for.
pub(crate) fn run(shared: &Shared) {
    if !shared.reclaim.is_urgent() {
        return;
    }
    let outcome = match candidate(shared) {
        Ok(Some((source, useful))) => reclaim(shared, &source, useful),
        Ok(None) => Ok(Progress::Nothing),
        Err(stopped) => Err(stopped),
    };
    shared.set_compaction_bytes(0);
    let progress = match outcome {
        Ok(progress) => progress,
        Err(Stopped::Closing | Stopped::Gone) => Progress::Idle,
        Err(Stopped::NoSpace | Stopped::NoRoom) => Progress::Nothing,
        Err(Stopped::Failed(reason)) => {
            warn!(%reason, "cannot make room in a generation");
            add(&shared.stats.compaction_failures, 1);
            Progress::Nothing
        }
    };
    shared.reclaim.set(progress);
    shared.wake_upkeep();
}

fn reclaim(shared: &Shared, source: &Arc<Generation>, useful: u64) -> Result<Progress, Stopped> {
    // The index, and what a sample may be wrong by.
    let side = source.disk_bytes().saturating_sub(source.log.end());
    let target = rewrite(shared, source, useful + useful / 16 + side)?;
    let (before, after) = (source.log.end(), target.log.end());
    switch(shared, source, target)?;
    add(&shared.stats.reclaimed_bytes, before.saturating_sub(after));
    info!(
        generation = source.id,
        bytes_before = before,
        bytes = after,
        "made room in a generation"
    );
    Ok(Progress::Idle)
}

/// The sealed generation with most bytes of no use, and how many of its bytes are of use.
fn candidate(shared: &Shared) -> Result<Option<(Arc<Generation>, u64)>, Stopped> {
    let generations = shared.generations.snapshot();
    let mut best = None;
    for generation in generations.iter().skip(1) {
        if !generation.is_sealed()
            || generation.has_failed()
            || generation.is_cut()
            || generation.has_broken_index()
        {
            continue;
        }
        let len = generation.log.end();
        let useless = len as f64 * (1.0 - survey::useful_share(shared, generation)?);
        let is_worth_it = useless >= len as f64 * USELESS_SHARE_MIN && useless > 0.0;
        if is_worth_it && best.as_ref().is_none_or(|(most, _)| *most < useless) {
            best = Some((useless, Arc::clone(generation)));
        }
    }
    Ok(best.map(|(useless, generation)| {
        let useful = generation.log.end() as f64 - useless;
        (generation, useful.max(0.0) as u64)
    }))
}
