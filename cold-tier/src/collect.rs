//! Collecting garbage: carrying out what [`crate::plan`] plans.
//!
//! One node of a region does it, as the lease says; two at once copy some records twice and harm
//! nothing. Whatever is cut off is planned again: a segment is doomed only after everything that
//! counts in it is in the bucket elsewhere and in the index, and its row goes only after the bucket
//! has confirmed its deletion.

mod lease;
mod news;
mod rewrite;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::checkpoint::{SegmentFacts, SegmentState};
use crate::checkpointer;
use crate::error::ColdError;
use crate::follow::reconcile;
use crate::footers;
use crate::names::WriterId;
use crate::plan::{Plan, PlanInput, PlanLimits, Step, plan, tombstone_needed};
use crate::segment::{SegmentBuilder, Version};
use crate::shared::Shared;
use crate::status::Counters;
use crate::store::{StoreError, StoreErrorKind};
use crate::upload::{Names, upload};
use lease::Lease;
use news::News;
use rewrite::Rewriter;

/// What was read within this time is kept longer under a budget.
const HOT: Duration = Duration::from_secs(24 * 3600);
/// Rounds in a row while there is more to do than fits into one.
const ROUNDS_MAX: u32 = 16;
/// How often it is looked whether the budget is exceeded: a look at RAM alone.
const LOOK: Duration = Duration::from_secs(5);
/// A round begins early once the budget is exceeded by this part of it (1/20).
const EXCESS_PART: u64 = 20;
/// How old an unfinished upload is before it is given up.
const UPLOAD_AGE_MS: u64 = 86_400_000;
/// What is below every key of ours.
const ALL: &str = "v1/";

/// The collector.
pub(crate) struct Collector {
    shared: Arc<Shared>,
    names: Mutex<Names>,
    lease: Lease,
    /// Names its checkpoints, and itself in the lease.
    writer: WriterId,
    checkpoints: u64,
    /// A segment that carries all flushes, and how many marks there were.
    marks_in: Option<(u32, Vec<crate::segment::FlushMark>)>,
    /// There may be checkpoints to remove: of a former self, too, that was stopped before it had
    /// removed them.
    has_old_checkpoints: bool,
    /// Bytes of expired entries, by segment, and when they were counted.
    expired: Option<(Instant, HashMap<u32, u64>)>,
    /// When unfinished uploads were looked for.
    uploads_looked_at: Option<Instant>,
    news: News,
}

impl Collector {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let writer = shared.mint_writer();
        Self {
            lease: Lease::new(shared.options.region.lease_key(), writer),
            names: Mutex::default(),
            writer,
            checkpoints: 0,
            has_old_checkpoints: true,
            marks_in: None,
            expired: None,
            uploads_looked_at: None,
            news: News::default(),
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
        self.news.tell(&self.shared, self.writer, interval).await;
        let holds = self.lease.hold(&self.shared).await?;
        self.shared.is_collector.store(holds, Ordering::Relaxed);
        if !holds {
            return Ok(());
        }
        if checkpointer::is_due(&self.shared, false) {
            self.checkpoint().await?;
        }
        if self.has_old_checkpoints {
            match checkpointer::remove_old(&self.shared).await {
                Ok(()) => self.has_old_checkpoints = false,
                Err(error) => tracing::warn!(%error, "old checkpoints are left in the bucket"),
            }
        }
        self.abort_uploads().await;
        self.count_expired().await?;
        let (own, part) = self.shared.budget_part();
        if part.is_some_and(|part| own > part) {
            self.news.hear(&self.shared, self.writer).await;
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

    /// Entries expire without an event, so they are counted now and then.
    async fn count_expired(&mut self) -> Result<(), ColdError> {
        let interval = self.shared.options.reconcile_interval;
        let is_fresh = |(at, _): &(Instant, _)| at.elapsed() < interval;
        if !self.expired.as_ref().is_some_and(is_fresh) {
            let now_ms = self.shared.wall_ms();
            let expired = self
                .shared
                .blocking(move |shared| Ok(shared.index.expired_bytes(now_ms)?))
                .await?;
            self.expired = Some((Instant::now(), expired));
        }
        Ok(())
    }

    /// Writes a checkpoint.
    pub(crate) async fn checkpoint(&mut self) -> Result<(), ColdError> {
        let n = self.checkpoints;
        // A number is not used twice, even if it was not finished.
        self.checkpoints += 1;
        self.has_old_checkpoints = true;
        checkpointer::run(&self.shared, self.writer, n).await?;
        self.has_old_checkpoints = false;
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
        let name = upload(&self.shared, &self.names, SegmentBuilder::new(), 0).await?;
        let id = self.shared.index.table().number(&name);
        self.marks_in = id.map(|id| (id, marks));
        Ok(())
    }

    fn plan(&self) -> Plan {
        let now_ms = self.shared.wall_ms();
        let segments: Vec<(u32, SegmentFacts)> = self
            .segments()
            .into_iter()
            .map(|(id, mut facts)| {
                let expired = self.expired.as_ref().and_then(|(_, bytes)| bytes.get(&id));
                facts.live_bytes = facts
                    .live_bytes
                    .saturating_sub(expired.copied().unwrap_or(0));
                if facts.name.region == self.shared.options.region {
                    (id, facts)
                } else {
                    (id, bystander(facts, now_ms))
                }
            })
            .collect();
        let (_, budget) = self.shared.budget_part();
        let limits = PlanLimits::default();
        let segment_bytes = self.shared.options.segment_bytes();
        let mut planned = plan(&PlanInput {
            now_ms,
            segments: &segments,
            budget,
            grace_ms: millis(self.shared.options.grace),
            tombstone_age_min_ms: millis(self.shared.options.tombstone_age_min),
            hot_since_ms: now_ms.saturating_sub(millis(HOT)),
            marks_in: self.marks_in.as_ref().map(|(id, _)| *id),
            limits: PlanLimits {
                copy_bytes_max: limits.copy_bytes_max.max(segment_bytes * 4),
                // Small segments have garbage too.
                garbage_bytes_min: limits.garbage_bytes_min.min(segment_bytes / 4),
                segment_bytes,
                ..limits
            },
        });
        let table = self.shared.index.table();
        planned.steps.retain(|step| {
            let name = table.name(step.segment());
            name.is_some_and(|name| name.region == self.shared.options.region)
        });
        planned
    }

    /// Everything that may be in the bucket: also what could not be read, in which any version may
    /// be.
    fn segments(&self) -> Vec<(u32, SegmentFacts)> {
        let mut segments = self.shared.index.table().all();
        let unreadable = self.shared.unreadable.lock();
        let unknown = unreadable.iter().enumerate().map(|(index, name)| {
            // Numbers from the end, where none are given out yet.
            let id = u32::MAX - u32::try_from(index).unwrap_or(0);
            let facts = SegmentFacts {
                name: name.clone(),
                size: 0,
                data_len: 0,
                live_bytes: 0,
                entries: 1,
                live_entries: 1,
                tombstones: 0,
                min_version: 0,
                max_version: Version::MAX,
                expires_max_ms: u64::MAX,
                created_ms: u64::MAX,
                last_read_ms: u64::MAX,
                state: SegmentState::Live,
            };
            (id, facts)
        });
        segments.extend(unknown);
        segments
    }

    /// Carries out a plan. Returns whether anything was done.
    async fn carry_out(&mut self, planned: &Plan) -> Result<bool, ColdError> {
        let mut rewriter = Rewriter::new(&self.shared, &self.names);
        let mut has_forgotten = false;
        for step in &planned.steps {
            match *step {
                Step::Delete(id) => has_forgotten |= self.delete(id).await?,
                Step::Rewrite { segment, keep } => {
                    let segments = self.segments();
                    let Some((_, facts)) = segments.iter().find(|(id, _)| *id == segment) else {
                        continue;
                    };
                    match rewriter.add(segment, facts, keep, &segments).await {
                        Ok(()) => {}
                        Err(error) if error.is_not_found() => {
                            reconcile::gone(&self.shared, segment).await?;
                        }
                        Err(error @ ColdError::Segment { .. }) => {
                            tracing::error!(%error, "a segment cannot be rewritten");
                        }
                        Err(error) => return Err(error),
                    }
                }
            }
        }
        rewriter.finish().await?;
        if has_forgotten {
            self.sweep().await?;
        }
        Ok(!planned.steps.is_empty())
    }

    /// Deletes a segment: its object, then what leads to it, then its row. Returns whether entries
    /// may be left that lead nowhere.
    async fn delete(&self, id: u32) -> Result<bool, ColdError> {
        let Some(facts) = self.shared.index.table().facts(id) else {
            return Ok(false);
        };
        let is_lost = matches!(facts.state, SegmentState::Lost { .. });
        if is_lost && self.shared.exists(&facts.name.key()).await? {
            // It may have been asked for where it never was, as in another bucket.
            reconcile::set_state(&self.shared, id, SegmentState::Live).await?;
            return Ok(false);
        }
        let mut hashes = Vec::new();
        if facts.live_entries > 0 && !is_lost {
            // Only the footer tells which entries lead there.
            match footers::read(&self.shared, &facts.name).await {
                Ok((footer, _)) => {
                    hashes = footer.entries.iter().map(|entry| entry.hash()).collect();
                }
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        let since_ms = self.shared.wall_ms();
        if facts.state == SegmentState::Live {
            let doomed = SegmentState::Doomed { since_ms };
            reconcile::set_state(&self.shared, id, doomed).await?;
        }
        self.shared.crash_point("before-delete").await;
        self.shared.bucket().delete(&facts.name.key()).await?;
        self.shared.crash_point("deleted").await;
        let is_known = !hashes.is_empty() || facts.live_entries == 0;
        self.shared
            .blocking(move |shared| {
                shared.index.forget(id, hashes)?;
                Ok(shared.index.remove_segment(id)?)
            })
            .await?;
        self.shared.crash_point("forgotten").await;
        Counters::add(&self.shared.counters.collected_segments, 1);
        Counters::add(&self.shared.counters.collected_bytes, facts.size);
        Ok(!is_known)
    }

    /// Removes entries that lead nowhere and hide nothing.
    async fn sweep(&self) -> Result<(), ColdError> {
        let segments = self.segments();
        let removed = self
            .shared
            .blocking(move |shared| {
                let others = || segments.iter().map(|(_, facts)| facts);
                Ok(shared
                    .index
                    .sweep(|entry| !tombstone_needed(entry.at, entry.shadows, others()))?)
            })
            .await?;
        Counters::add(&self.shared.counters.dropped_entries, removed);
        Ok(())
    }

    /// Gives up what crashes left of uploads. It costs money and nothing else, so a node that may
    /// not do this still collects.
    async fn abort_uploads(&mut self) {
        // Rounds that only make room come often.
        let interval = self.interval();
        let is_fresh = |at: Instant| at.elapsed() < interval;
        if self.uploads_looked_at.is_some_and(is_fresh) {
            return;
        }
        self.uploads_looked_at = Some(Instant::now());
        match self.abort_old_uploads().await {
            Ok(()) => {}
            Err(error) if error.kind == StoreErrorKind::Unsupported => {}
            Err(error) => tracing::warn!(%error, "unfinished uploads are not given up"),
        }
    }

    async fn abort_old_uploads(&self) -> Result<(), StoreError> {
        let uploads = self.shared.bucket().list_uploads(ALL).await?;
        let now_ms = self.shared.wall_ms();
        for unfinished in uploads {
            if unfinished.started_ms.saturating_add(UPLOAD_AGE_MS) < now_ms {
                self.shared.bucket().abort_upload(&unfinished).await?;
            }
        }
        Ok(())
    }
}

/// A segment of another region: its collector takes care of it. What is in it still counts for what
/// must be hidden.
fn bystander(facts: SegmentFacts, now_ms: u64) -> SegmentFacts {
    SegmentFacts {
        size: 0,
        data_len: 0,
        live_bytes: 0,
        live_entries: 1,
        created_ms: now_ms,
        last_read_ms: u64::MAX,
        expires_max_ms: u64::MAX,
        state: match facts.state {
            lost @ SegmentState::Lost { .. } => lost,
            SegmentState::Live | SegmentState::Doomed { .. } => SegmentState::Live,
        },
        ..facts
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
