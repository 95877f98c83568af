//! Following what other writers put into the bucket, and what earlier runs of this node did.
//!
//! A writer's segments are read in the order of their numbers; the first that is missing ends it for
//! now. A missing one is passed only if a list has shown later ones *before* it was found missing:
//! then it was deleted. The full comparison ([`reconcile`]) turns whatever was overlooked into a delay.

mod discover;
pub(crate) mod reconcile;
mod schedule;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::error::ColdError;
use crate::footers;
use crate::index::{Arrival, Cursor, Witness, WriterKey};
use crate::names::SegmentName;
use crate::observer::ColdObserver;
use crate::segment::{FlushMark, Footer, FooterEntry};
use crate::shared::{Progress, Shared};
use crate::status::Counters;
use crate::store::{Continuation, Operation};

/// How long to wait after the bucket failed.
const RETRY: Duration = Duration::from_secs(2);

/// How long the first comparison with the bucket waits at most.
const FIRST_COMPARISON_MAX: Duration = Duration::from_secs(60);

/// When writers were asked for news last; shown in the status.
pub(crate) type Asked = Arc<Mutex<HashMap<WriterKey, Instant>>>;

/// The follower.
pub(crate) struct Follower {
    shared: Arc<Shared>,
    asked: Asked,
    /// When each writer is to be asked, for those that are not to be asked at once.
    due: HashMap<WriterKey, Instant>,
    /// Writers that were found, and have nothing merged yet.
    fresh: HashMap<WriterKey, Cursor>,
    /// The highest number that a list has shown.
    listed: HashMap<WriterKey, u64>,
}

/// Tells the node, and counts.
struct Announcer<'a> {
    shared: &'a Shared,
    observer: &'a dyn ColdObserver,
}

impl Witness for Announcer<'_> {
    fn superseded(&self, entry: &FooterEntry) {
        Counters::add(&self.shared.counters.superseded, 1);
        self.observer
            .superseded(entry.space, &entry.key, entry.at, entry.tombstone);
    }

    fn flushed(&self, mark: &FlushMark) {
        self.observer.flushed(mark.space, mark.cutoff);
    }
}

/// Merges a segment of another writer.
pub(crate) async fn merge(
    shared: &Arc<Shared>,
    name: SegmentName,
    (footer, size): (Footer, u64),
    cursor: Option<Cursor>,
) -> Result<(), ColdError> {
    shared
        .blocking(move |shared| {
            let arrival = Arrival {
                name: &name,
                size,
                footer: &footer,
                cursor,
                spilled: None,
            };
            let announcer = Announcer {
                shared,
                observer: shared.observer.as_ref(),
            };
            Ok(shared.index.merge(&arrival, &announcer)?)
        })
        .await?;
    Counters::add(&shared.counters.followed_segments, 1);
    shared.crash_point("followed").await;
    Ok(())
}

/// When the bucket is compared with the index for the first time: soon, as nothing is collected before. Not
/// at once, as all nodes of a cluster may just have started.
fn first_comparison(interval: Duration, random: u64) -> Duration {
    let longest = (interval / 10).min(FIRST_COMPARISON_MAX);
    longest / 2 + (longest / 2).mul_f64((random % 1024) as f64 / 1024.0)
}

impl Follower {
    pub(crate) fn new(shared: Arc<Shared>, asked: Asked) -> Self {
        Self {
            shared,
            asked,
            due: HashMap::new(),
            fresh: HashMap::new(),
            listed: HashMap::new(),
        }
    }

    /// Follows for ever.
    pub(crate) async fn run(mut self) {
        let options = &self.shared.options;
        let (discover_interval, reconcile_interval) =
            (options.discover_interval, options.reconcile_interval);
        let mut failures = crate::restore::Failures::new();
        while !self.shared.is_ready() {
            match crate::restore::run(&self.shared, &mut failures).await {
                Ok(()) => {}
                Err(error) if self.shared.index_failed() => {
                    tracing::error!(%error, "the index of the cold tier cannot be restored");
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, "the index of the cold tier is not restored yet");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
        let mut discover_at = Instant::now();
        let first = first_comparison(reconcile_interval, self.shared.random_u64());
        let mut reconcile_at = Instant::now() + first;
        loop {
            let now = Instant::now();
            if self.shared.index_failed() {
                return;
            }
            if now >= reconcile_at {
                match reconcile::run(&self.shared).await {
                    Ok(()) => reconcile_at = Instant::now() + reconcile_interval,
                    Err(error) => {
                        tracing::warn!(%error, "the bucket cannot be compared with the index");
                        reconcile_at = Instant::now() + reconcile_interval / 10;
                    }
                }
            }
            let mut is_found = true;
            if now >= discover_at {
                match self.discover().await {
                    Ok(()) => discover_at = Instant::now() + discover_interval,
                    Err(error) => {
                        tracing::debug!(%error, "writers cannot be listed");
                        is_found = false;
                        discover_at = Instant::now() + RETRY;
                    }
                }
            }
            let is_complete = self.follow_all().await;
            if is_complete && is_found {
                self.shared.progress.send_if_modified(|progress| {
                    let was_caught_up = progress.is_caught_up;
                    *progress = Progress {
                        is_caught_up: true,
                        ..*progress
                    };
                    !was_caught_up
                });
            }
            let next = self.due.values().copied().min();
            let wake = next
                .unwrap_or(discover_at)
                .min(discover_at)
                .min(reconcile_at);
            tokio::time::sleep_until(wake.max(now + Duration::from_millis(10))).await;
        }
    }

    /// Asks all writers that are due. Returns whether all answered.
    async fn follow_all(&mut self) -> bool {
        let now = Instant::now();
        let mut writers: HashMap<WriterKey, Cursor> = self.fresh.clone();
        writers.extend(self.shared.index.cursors());
        {
            let own = self.shared.own_writers.lock();
            writers.retain(|key, _| !own.contains(key));
        }
        self.due.retain(|key, _| writers.contains_key(key));
        let mut is_complete = true;
        for (key, cursor) in writers {
            if self.due.get(&key).is_some_and(|&due| due > now) {
                continue;
            }
            match self.follow(&key, cursor).await {
                Ok(cursor) => {
                    let now_ms = self.shared.wall_ms();
                    let idle = Duration::from_millis(now_ms.saturating_sub(cursor.last_new_ms));
                    let interval = self.shared.options.follow_interval;
                    let wait = schedule::wait(idle, interval);
                    self.asked.lock().insert(key.clone(), Instant::now());
                    self.due.insert(key, Instant::now() + wait);
                }
                Err(error) => {
                    tracing::debug!(%error, "a writer cannot be followed");
                    is_complete = false;
                    self.due.insert(key, Instant::now() + RETRY);
                }
            }
        }
        is_complete
    }

    /// Reads what a writer has that is new.
    async fn follow(&mut self, key: &WriterKey, mut cursor: Cursor) -> Result<Cursor, ColdError> {
        loop {
            let name = SegmentName {
                region: key.region.clone(),
                writer: key.writer,
                seq: cursor.next_seq,
            };
            let read = footers::read(&self.shared, &name).await;
            self.shared.note_footer(&name, &read);
            let read = match read {
                Ok(read) => read,
                Err(error) if error.is_not_found() => {
                    match self.pass_gap(key, &name).await? {
                        Some(seq) => cursor.next_seq = seq,
                        None => return Ok(cursor),
                    }
                    continue;
                }
                Err(error @ ColdError::Segment { .. }) => {
                    note_unreadable(&self.shared, &name, &error);
                    cursor.next_seq += 1;
                    self.move_on(key, cursor).await?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            cursor = Cursor {
                next_seq: cursor.next_seq + 1,
                last_new_ms: self.shared.wall_ms(),
            };
            merge(&self.shared, name, read, Some(cursor)).await?;
            self.fresh.remove(key);
        }
    }

    /// The next number after one that is missing, if a list has shown it before.
    async fn pass_gap(
        &mut self,
        key: &WriterKey,
        missing: &SegmentName,
    ) -> Result<Option<u64>, ColdError> {
        let is_later = |seq: &u64| *seq > missing.seq;
        if !self.listed.get(key).is_some_and(is_later) {
            return Ok(None);
        }
        let prefix = format!("{}{}/", key.region.segments_prefix(), key.writer);
        let from = Continuation::after(&missing.key());
        let call = self.shared.store.list(&prefix, Some(&from), 1);
        let page = self
            .shared
            .call((Operation::List, &prefix, 0), call)
            .await?;
        let found = page.objects.first();
        let next = found.and_then(|object| SegmentName::parse(object.key.as_str()));
        let Some(next) = next else {
            // What was there is gone as well.
            self.listed.remove(key);
            return Ok(None);
        };
        let cursor = Cursor {
            next_seq: next.seq,
            last_new_ms: self.shared.wall_ms(),
        };
        self.move_on(key, cursor).await?;
        Ok(Some(next.seq))
    }

    async fn move_on(&mut self, key: &WriterKey, cursor: Cursor) -> Result<(), ColdError> {
        let moved = key.clone();
        self.shared
            .blocking(move |shared| Ok(shared.index.set_cursor(&moved, cursor)?))
            .await?;
        self.fresh.remove(key);
        Ok(())
    }

    async fn discover(&mut self) -> Result<(), ColdError> {
        let known = self.shared.index.cursors();
        for name in discover::writers(&self.shared, known.keys()).await? {
            let key = WriterKey {
                region: name.region.clone(),
                writer: name.writer,
            };
            let listed = self.listed.entry(key.clone()).or_default();
            *listed = name.seq.max(*listed);
            if !known.contains_key(&key) && !self.shared.own_writers.lock().contains(&key) {
                self.due.remove(&key);
                let now_ms = self.shared.wall_ms();
                self.fresh.entry(key).or_insert(Cursor {
                    next_seq: 0,
                    last_new_ms: now_ms,
                });
            }
        }
        Ok(())
    }
}

/// Notes a segment that is there and makes no sense.
pub(crate) fn note_unreadable(shared: &Shared, name: &SegmentName, error: &ColdError) {
    if shared.unreadable.lock().insert(name.clone()) {
        tracing::error!(%error, "a segment cannot be read");
        Counters::add(&shared.counters.unreadable_segments, 1);
        shared.counters.note(error.to_string(), shared.wall_ms());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_comparison_is_within_a_minute_and_not_at_the_same_time_everywhere() {
        let hour = Duration::from_secs(3600);
        let times: Vec<Duration> = (0..1024)
            .map(|random| first_comparison(hour, random))
            .collect();
        assert_eq!(times[0], FIRST_COMPARISON_MAX / 2);
        assert!(times.is_sorted() && times[1023] > FIRST_COMPARISON_MAX * 9 / 10);
        assert!(times[1023] < FIRST_COMPARISON_MAX);
        let short = first_comparison(Duration::from_secs(60), u64::MAX);
        assert!(short <= Duration::from_secs(6));
    }
}
