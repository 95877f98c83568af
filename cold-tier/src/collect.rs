//! Collecting garbage: carrying out what [`crate::plan`] plans.
//!
//! One node of a region does it, as the lease says; two at once copy some records twice and harm
//! nothing. Whatever is cut off is planned again: a segment is doomed only after everything that
//! counts in it is in the bucket elsewhere and in the index, and its row goes only after the bucket
//! has confirmed its deletion.

mod lease;
mod news;
mod rewrite;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use crate::checkpoint::{IndexEntry, SegmentFacts, SegmentState};
use crate::checkpointer;
use crate::error::ColdError;
use crate::follow::reconcile;
use crate::footers;
use crate::plan::{Plan, PlanInput, PlanLimits, Step, plan};
use crate::segment::{FlushMark, SegmentBuilder};
use crate::shared::Shared;
use crate::status::Counters;
use crate::upload::{Names, upload};
use lease::Lease;
use news::News;
use rewrite::Rewriter;

/// What was read within this time is kept longer under a budget.
const HOT_MS: u64 = 24 * 3_600_000;
/// Rounds in a row while there is more to do than fits into one.
const ROUNDS_MAX: u32 = 16;
/// How often it is looked whether the budget is exceeded: a look at RAM alone.
const LOOK: Duration = Duration::from_secs(5);
/// A round begins early once the budget is exceeded by this part of it (1/20).
const EXCESS_PART: u64 = 20;

/// The collector.
pub(crate) struct Collector {
    shared: Arc<Shared>,
    names: Names,
    lease: Lease,
    /// A segment that carries all flushes, and the flushes.
    marks_in: Option<(u32, Vec<FlushMark>)>,
    /// There may be checkpoints to remove: of a former self, too, that was stopped before it had
    /// removed them.
    has_old_checkpoints: bool,
    /// Bytes of expired and flushed entries, by segment, and when they were counted.
    dead: Option<(Instant, HashMap<u32, u64>)>,
    news: News,
}

impl Collector {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let me = shared.mint_id(shared.wall_ms());
        Self {
            lease: Lease::new(shared.options.region.lease_key(), me),
            names: Names::default(),
            has_old_checkpoints: true,
            marks_in: None,
            dead: None,
            news: News::new(shared.wall_ms()),
            shared,
        }
    }

    /// Collects for ever.
    pub(crate) async fn run(mut self) {
        let interval = self.interval();
        // Until when being over the budget waits: longer after each round that did not help.
        let mut patience = LOOK.min(interval);
        loop {
            let began = Instant::now();
            loop {
                tokio::time::sleep(LOOK.min(interval)).await;
                let is_late = began.elapsed() >= patience && self.exceeds_budget();
                if is_late || began.elapsed() >= interval {
                    break;
                }
            }
            if self.shared.index_failed() {
                return;
            }
            if let Err(error) = self.round().await {
                tracing::warn!(%error, "collection of the cold tier was cut off");
            }
            patience = if self.exceeds_budget() {
                (patience * 2).min(interval)
            } else {
                LOOK.min(interval)
            };
        }
    }

    /// The time between two rounds.
    fn interval(&self) -> Duration {
        self.shared.options.collect_interval.min(lease::TTL / 3)
    }

    /// Whether it is this node's turn to make room, by what it knows without a request.
    fn exceeds_budget(&self) -> bool {
        if !self.shared.is_collector.load(Ordering::Relaxed) {
            return false;
        }
        let (own, part) = self.shared.budget_part();
        part.is_some_and(|part| own > part.saturating_add(part / EXCESS_PART))
    }

    /// One round, if it is this node's turn.
    pub(crate) async fn round(&mut self) -> Result<(), ColdError> {
        let progress = *self.shared.progress.borrow();
        if !progress.is_ready || !progress.is_caught_up || !progress.is_compared {
            return Ok(());
        }
        let interval = self.interval();
        self.news.tell(&self.shared, self.lease.me, interval).await;
        let holds = self.lease.hold(&self.shared).await?;
        self.shared.is_collector.store(holds, Ordering::Relaxed);
        if !holds {
            // Another node may delete from now on.
            let compared = &self.shared.compared_as_collector;
            compared.store(false, Ordering::Relaxed);
            return Ok(());
        }
        if checkpointer::is_due(&self.shared) {
            self.has_old_checkpoints = true;
            checkpointer::run(&self.shared).await?;
        }
        if self.has_old_checkpoints {
            match checkpointer::remove_old(&self.shared).await {
                Ok(()) => self.has_old_checkpoints = false,
                Err(error) => tracing::warn!(%error, "old checkpoints are left in the bucket"),
            }
        }
        self.count_dead().await?;
        let (own, part) = self.shared.budget_part();
        if part.is_some_and(|part| own > part) {
            self.news.hear(&self.shared, self.lease.me).await;
        }
        for _ in 0..ROUNDS_MAX {
            self.carry_marks().await?;
            let planned = self.plan();
            if !self.carry_out(&planned).await? || !planned.is_cut {
                break;
            }
        }
        Ok(())
    }

    /// Entries expire without an event, and a flush looks at none: both are counted now and then.
    async fn count_dead(&mut self) -> Result<(), ColdError> {
        let interval = self.shared.options.reconcile_interval;
        let is_fresh = |(at, _): &(Instant, _)| at.elapsed() < interval;
        if !self.dead.as_ref().is_some_and(is_fresh) {
            let now_ms = self.shared.wall_ms();
            let count = self.shared.blocking(move |shared| {
                let is_dead = |entry: &IndexEntry| {
                    entry.is_expired(now_ms) || !shared.is_visible(entry.space, entry.at)
                };
                Ok(shared.index.bytes_of(is_dead)?)
            });
            self.dead = Some((Instant::now(), count.await?));
        }
        Ok(())
    }

    /// Makes sure that a segment that stays carries all flushes.
    async fn carry_marks(&mut self) -> Result<(), ColdError> {
        let marks = self.shared.index.marks();
        if marks.is_empty() {
            return Ok(());
        }
        if let Some((id, carried)) = &self.marks_in
            && *carried == marks
            && self.shared.index.table().state(*id) == Some(SegmentState::Live)
        {
            return Ok(());
        }
        let name = upload(&self.shared, &mut self.names, SegmentBuilder::new(), 0).await?;
        let id = self.shared.index.table().number(&name);
        self.marks_in = id.map(|id| (id, marks));
        Ok(())
    }

    fn plan(&self) -> Plan {
        let now_ms = self.shared.wall_ms();
        let region = &self.shared.options.region;
        let mut segments = self.shared.index.table().all();
        segments.retain(|(_, facts)| facts.name.region == *region);
        for (id, facts) in &mut segments {
            let counted = self.dead.as_ref();
            let dead = counted.and_then(|(_, bytes)| bytes.get(&*id).copied());
            let dead = dead.unwrap_or(0);
            facts.live_bytes = facts.live_bytes.saturating_sub(dead);
        }
        let (_, budget) = self.shared.budget_part();
        let limits = PlanLimits::default();
        let segment_bytes = self.shared.options.segment_bytes();
        plan(&PlanInput {
            now_ms,
            segments: &segments,
            oldest: self.shared.oldest_values(&BTreeSet::new()),
            budget,
            grace_ms: self.shared.options.grace_ms(),
            tombstone_age_min_ms: self.shared.options.tombstone_age_min_ms(),
            hot_since_ms: now_ms.saturating_sub(HOT_MS),
            marks_in: self.marks_in.as_ref().map(|(id, _)| *id),
            limits: PlanLimits {
                copy_bytes_max: limits.copy_bytes_max.max(segment_bytes * 4),
                // Small segments have garbage too.
                garbage_bytes_min: limits.garbage_bytes_min.min(segment_bytes / 4),
                segment_bytes,
                ..limits
            },
        })
    }

    /// Carries out a plan. Returns whether anything was done.
    async fn carry_out(&mut self, planned: &Plan) -> Result<bool, ColdError> {
        let mut rewriter = Rewriter::new(&self.shared, &mut self.names);
        for step in &planned.steps {
            let id = step.segment();
            let Some(facts) = self.shared.index.table().facts(id) else {
                continue;
            };
            let done = match *step {
                Step::Delete(_) => delete(&self.shared, id, &facts).await,
                Step::Rewrite { keep, .. } => rewriter.add(id, &facts, keep).await,
            };
            match done {
                Ok(()) => {}
                Err(error) if error.is_not_found() => reconcile::gone(&self.shared, id).await?,
                Err(error @ ColdError::Segment { .. }) => {
                    tracing::error!(%error, "a segment can be neither rewritten nor deleted");
                }
                Err(error) => return Err(error),
            }
        }
        rewriter.finish().await?;
        Ok(!planned.steps.is_empty())
    }
}

/// Deletes a segment: its object, then what leads to it, then its row.
async fn delete(shared: &Arc<Shared>, id: u32, facts: &SegmentFacts) -> Result<(), ColdError> {
    let mut hashes = Vec::new();
    if facts.live_entries > 0 {
        // Only the footer tells which entries lead there.
        let (footer, _) = footers::read(shared, &facts.name).await?;
        hashes = footer.entries.iter().map(|entry| entry.hash()).collect();
    }
    let since_ms = shared.wall_ms();
    if facts.state == SegmentState::Live {
        let doomed = SegmentState::Doomed { since_ms };
        reconcile::set_state(shared, id, doomed).await?;
    }
    shared.crash_point("before-delete").await;
    shared.bucket().delete(&facts.name.key()).await?;
    shared.crash_point("deleted").await;
    shared
        .blocking(move |shared| {
            shared.index.forget(id, hashes)?;
            Ok(shared.index.remove_segment(id)?)
        })
        .await?;
    shared.crash_point("forgotten").await;
    Counters::add(&shared.counters.collected_bytes, facts.size);
    Ok(())
}
