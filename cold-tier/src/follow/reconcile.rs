//! Comparing the whole bucket with the index.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::checkpoint::{IndexEntry, SegmentFacts, SegmentState};
use crate::error::ColdError;
use crate::footers;
use crate::index::Cursor;
use crate::names::{SEGMENTS, SegmentName, WriterKey};
use crate::plan::{is_young, tombstone_needed};
use crate::shared::Shared;
use crate::status::Counters;

/// Writers without segments are forgotten this long after their last one.
const WRITER_FORGOTTEN_MS: u64 = 7 * 86_400_000;

/// So many missing segments are forgotten even if they are most of all.
const MISSING_FEW: usize = 16;

/// How often a long reading of footers says how far it is.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// How long the first comparison with the bucket waits at most.
const FIRST_MAX: Duration = Duration::from_secs(60);

/// When the bucket is compared with the index for the first time: soon, as nothing is collected
/// before. Not at once, as all nodes of a cluster may just have started.
fn first(interval: Duration, random: u64) -> Duration {
    let longest = (interval / 10).min(FIRST_MAX);
    longest / 2 + (longest / 2).mul_f64((random % 1024) as f64 / 1024.0)
}

/// Compares again and again, from when the index is complete on, for ever.
pub(crate) async fn repeat(shared: Arc<Shared>) {
    let mut progress = shared.progress.subscribe();
    if progress
        .wait_for(|progress| progress.is_ready)
        .await
        .is_err()
    {
        return;
    }
    let interval = shared.options.reconcile_interval;
    let mut wait = first(interval, shared.random_u64());
    loop {
        tokio::time::sleep(wait).await;
        if shared.index_failed() {
            return;
        }
        wait = match run(&shared).await {
            Ok(()) => interval,
            Err(error) => {
                tracing::warn!(%error, "the bucket cannot be compared with the index");
                interval / 10
            }
        };
    }
}

/// Merges what the index does not know, marks what the bucket does not have, and forgets what has
/// been missing for long.
pub(crate) async fn run(shared: &Arc<Shared>) -> Result<(), ColdError> {
    let is_collector = || shared.is_collector.load(Ordering::Relaxed);
    let was_collector = is_collector();
    let known_before: BTreeMap<SegmentName, (u32, SegmentState)> = {
        let table = shared.index.table();
        let all = table.all().into_iter();
        all.map(|(id, facts)| (facts.name, (id, facts.state)))
            .collect()
    };
    let listed = names(shared).await?;
    shared.crash_point("listed").await;
    adopt(shared, &listed).await?;
    find_lost(shared, &known_before, &listed).await?;
    forget_unreadable(shared, &listed).await?;
    forget_missing(shared, &listed).await?;
    forget_writers(shared, &listed).await?;
    let compared = &shared.compared_as_collector;
    compared.store(was_collector && is_collector(), Ordering::Relaxed);
    shared
        .progress
        .send_modify(|progress| progress.is_compared = true);
    Ok(())
}

/// The names of all segments in the bucket, in their order.
pub(crate) async fn names(shared: &Shared) -> Result<Vec<SegmentName>, ColdError> {
    let listed = list(shared).await?;
    Ok(listed.into_iter().map(|(name, _)| name).collect())
}

/// All segments in the bucket with their lengths in bytes, in the order of their names.
pub(crate) async fn list(shared: &Shared) -> Result<Vec<(SegmentName, u64)>, ColdError> {
    let listed = shared.list_all(SEGMENTS, |object| {
        let name = SegmentName::parse(object.key.as_str())?;
        Some((name, object.size_bytes))
    });
    Ok(listed.await?)
}

/// Merges segments that the index does not know.
async fn adopt(shared: &Arc<Shared>, listed: &[SegmentName]) -> Result<(), ColdError> {
    let unknown: Vec<SegmentName> = {
        let table = shared.index.table();
        let is_unknown = |name: &&SegmentName| {
            table.number(name).is_none() && !shared.is_own(&name.writer_key())
        };
        listed.iter().filter(is_unknown).cloned().collect()
    };
    let (mut done, total, mut told) = (0, unknown.len(), Instant::now());
    // What one of them lacks stays to be followed.
    let torn = Mutex::new(HashSet::new());
    let failure = Mutex::new(None);
    footers::read_many(shared, unknown, |name, read| {
        let (torn, failure) = (&torn, &failure);
        done += 1;
        if told.elapsed() >= PROGRESS_EVERY {
            told = Instant::now();
            tracing::info!(done, total, "reading footers of segments");
        }
        shared.note_footer(&name, &read);
        async move {
            let key = name.writer_key();
            let read = match read {
                Ok(read) => read,
                // Deleted since it was listed.
                Err(error) if error.is_not_found() => return Ok(()),
                Err(error @ ColdError::Segment { .. }) => {
                    super::note_unreadable(shared, &name, &error);
                    return Ok(());
                }
                Err(error) => {
                    torn.lock().insert(key);
                    *failure.lock() = Some(error);
                    return Ok(());
                }
            };
            shared.unreadable.lock().remove(&name);
            let cursor = (!torn.lock().contains(&key)).then(|| Cursor {
                next_seq: name.seq + 1,
                last_new_ms: shared.wall_ms().min(read.0.header.created_ms),
            });
            super::merge(shared, read, cursor).await
        }
    })
    .await?;
    match failure.into_inner() {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// Marks segments as lost that were known before the list and are not in it, and lost ones as there
/// again that are.
async fn find_lost(
    shared: &Arc<Shared>,
    known: &BTreeMap<SegmentName, (u32, SegmentState)>,
    listed: &[SegmentName],
) -> Result<(), ColdError> {
    let listed: HashSet<&SegmentName> = listed.iter().collect();
    for (name, &(id, state)) in known {
        let is_lost = matches!(state, SegmentState::Lost { .. });
        match (listed.contains(name), is_lost) {
            (true, false) | (false, true) => {}
            // It may have been asked for where it never was, as in another bucket.
            (true, true) => set_state(shared, id, SegmentState::Live).await?,
            // A list may be behind.
            (false, false) => {
                if !shared.exists(&name.key()).await? {
                    gone(shared, id).await?;
                }
            }
        }
    }
    Ok(())
}

/// Forgets segments that have been missing for longer than the grace, and entries that lead to them
/// or nowhere, unless these hide older copies. The collector of a region has deleted most of them:
/// what it drops without a tombstone stays in the indexes of all other nodes. Nothing is forgotten
/// while most segments are missing.
async fn forget_missing(shared: &Arc<Shared>, listed: &[SegmentName]) -> Result<(), ColdError> {
    // A late upload must find what has replaced or deleted its entries.
    if shared.late_uploads.load(Ordering::Relaxed) > 0 {
        return Ok(());
    }
    let now_ms = shared.wall_ms();
    let over_ms = now_ms.saturating_sub(shared.options.grace_ms());
    let is_missing = |facts: &SegmentFacts| match facts.state {
        SegmentState::Lost { since_ms } => since_ms <= over_ms,
        SegmentState::Live | SegmentState::Doomed { .. } => false,
    };
    let segments = shared.index.table().all();
    let half = segments.len() / 2;
    let missing = segments.into_iter().filter(|(_, facts)| is_missing(facts));
    let missing: BTreeSet<u32> = missing.map(|(id, _)| id).collect();
    // A bucket that lost most segments at once may be away, and come back as it was. What hides
    // older copies in it must be known by then.
    let is_away = listed.is_empty() || missing.len() > half.max(MISSING_FEW);
    if missing.is_empty() || is_away {
        return Ok(());
    }
    shared
        .blocking(move |shared| {
            let age_min_ms = shared.options.tombstone_age_min_ms();
            // Two of them do not keep each other.
            let oldest = shared.oldest_values(&missing);
            let may_go = |entry: &IndexEntry| {
                // A flush hides older copies itself.
                if !shared.is_visible(entry.space, entry.at) {
                    return true;
                }
                let is_kept = entry.tombstone && is_young(entry.at, now_ms, age_min_ms);
                let oldest_other = oldest.besides(entry.segment);
                !is_kept && !tombstone_needed(entry.at, entry.shadows, oldest_other)
            };
            let entries = shared.index.sweep(&missing, may_go)?;
            tracing::debug!(entries, "entries of segments that are gone are forgotten");
            for id in missing {
                let facts = shared.index.table().facts(id);
                if facts.is_some_and(|facts| facts.live_entries == 0) {
                    shared.index.remove_segment(id)?;
                }
            }
            Ok(())
        })
        .await
}

/// Forgets unreadable segments that the bucket no longer lists. They delay no read any more.
async fn forget_unreadable(shared: &Arc<Shared>, listed: &[SegmentName]) -> Result<(), ColdError> {
    let unreadable: Vec<SegmentName> = shared.unreadable.lock().iter().cloned().collect();
    for name in unreadable.iter().filter(|name| !listed.contains(name)) {
        if !shared.exists(&name.key()).await? {
            shared.unreadable.lock().remove(name);
        }
    }
    Ok(())
}

/// The bucket does not have a segment any more. The operator is told if this node knows that no
/// other node has deleted it.
pub(crate) async fn gone(shared: &Arc<Shared>, id: u32) -> Result<(), ColdError> {
    let since_ms = shared.wall_ms();
    shared
        .blocking(move |shared| {
            let Some(facts) = shared.index.table().facts(id) else {
                return Ok(());
            };
            if facts.live_entries == 0 {
                return Ok(shared.index.remove_segment(id)?);
            }
            if matches!(facts.state, SegmentState::Lost { .. }) {
                return Ok(());
            }
            let (name, entries) = (&facts.name, facts.live_entries);
            let is_deleter = shared.compared_as_collector.load(Ordering::Relaxed);
            if is_deleter && name.region == shared.options.region {
                Counters::add(&shared.counters.lost_segments, 1);
                tracing::warn!(%name, entries, "a segment has vanished from the bucket");
            } else {
                tracing::debug!(%name, entries, "a segment is gone");
            }
            Ok(shared
                .index
                .set_state(id, SegmentState::Lost { since_ms })?)
        })
        .await
}

pub(crate) async fn set_state(
    shared: &Arc<Shared>,
    id: u32,
    state: SegmentState,
) -> Result<(), ColdError> {
    shared
        .blocking(move |shared| Ok(shared.index.set_state(id, state)?))
        .await
}

/// Follows writers no more that have no segments and were silent for long.
async fn forget_writers(shared: &Arc<Shared>, listed: &[SegmentName]) -> Result<(), ColdError> {
    let alive: HashSet<WriterKey> = listed.iter().map(SegmentName::writer_key).collect();
    let now_ms = shared.wall_ms();
    for (key, cursor) in shared.index.cursors() {
        let is_old = cursor.last_new_ms.saturating_add(WRITER_FORGOTTEN_MS) < now_ms;
        if is_old && !alive.contains(&key) && !shared.is_own(&key) {
            shared
                .blocking(move |shared| Ok(shared.index.remove_cursor(&key)?))
                .await?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_comparison_is_within_a_minute_and_not_at_the_same_time_everywhere() {
        let hour = Duration::from_secs(3600);
        let times: Vec<Duration> = (0..1024).map(|random| first(hour, random)).collect();
        assert_eq!(times[0], FIRST_MAX / 2);
        assert!(times.is_sorted() && times[1023] > FIRST_MAX * 9 / 10);
        assert!(times[1023] < FIRST_MAX);
        let short = first(Duration::from_secs(60), u64::MAX);
        assert!(short <= Duration::from_secs(6));
    }
}
