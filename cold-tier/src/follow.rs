//! Following what other writers put into the bucket, and what earlier runs of this node did.
//!
//! A writer's segments are read in the order of their numbers; the first that is missing ends it
//! for now. A missing one is passed only if a list or an announcement has shown later ones *before*
//! it was found missing: then it was deleted. The full comparison ([`reconcile`]) turns whatever
//! was overlooked into a delay.
//!
//! Members of this cluster announce their segments ([`announced`]); other regions are asked, by
//! [`schedule`]. What is asked runs beside the follower's own loop, so that a takeover waits for no
//! other request.

pub(crate) mod announced;
mod discover;
pub(crate) mod reconcile;
mod repeated;
mod schedule;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fonn_base::causes::with_causes;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use crate::error::ColdError;
use crate::footers;
use crate::index::{Arrival, Cursor};
use crate::names::{SegmentName, WriterKey};
use crate::segment::Footer;
use crate::shared::Shared;
use crate::status::Counters;
use repeated::Repeated;
use schedule::{Asked, Candidate, Listing, Outcome, RETRY, Step};

/// How long the bucket is not listed again for a footer that it refuses, and how often it is asked
/// for that footer meanwhile: a list of a large bucket is many requests.
const REFUSED_MAX: Duration = Duration::from_secs(300);
const REFUSED_RETRY: Duration = Duration::from_secs(5);

/// The shortest wait of the follower.
const WAIT_MIN: Duration = Duration::from_millis(10);

/// The follower.
pub(crate) struct Follower {
    shared: Arc<Shared>,
    /// How writers were asked last.
    asked: HashMap<WriterKey, Asked>,
    /// Writers that were found, and have nothing merged yet.
    fresh: HashMap<WriterKey, Cursor>,
    /// The highest number that a list or an announcement has shown.
    listed: HashMap<WriterKey, u64>,
    listing: Listing,
    is_found: bool,
    jobs: JoinSet<Done>,
    /// Writers that are being asked, as they were then.
    asking: HashMap<WriterKey, Candidate>,
}

/// What a request that ran beside the loop came to.
enum Done {
    Asked {
        key: WriterKey,
        began: Instant,
        followed: Result<Cursor, ColdError>,
    },
    Listed {
        began: Instant,
        names: Result<Vec<SegmentName>, ColdError>,
    },
}

/// Merges a segment of another writer.
pub(crate) async fn merge(
    shared: &Arc<Shared>,
    (footer, size): (Footer, u64),
    cursor: Option<Cursor>,
) -> Result<(), ColdError> {
    shared
        .blocking(move |shared| {
            let arrival = Arrival {
                size,
                footer: &footer,
                cursor,
                spilled: None,
            };
            let observer = shared.observer.as_ref();
            Ok(shared.index.merge(&arrival, Some(observer))?)
        })
        .await?;
    Counters::add(&shared.counters.followed_segments, 1);
    shared.crash_point("followed").await;
    Ok(())
}

impl Follower {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            asked: HashMap::new(),
            fresh: HashMap::new(),
            listed: HashMap::new(),
            listing: Listing {
                due: Instant::now(),
                is_wanted: false,
                failed: None,
                is_under_way: false,
            },
            is_found: false,
            jobs: JoinSet::new(),
            asking: HashMap::new(),
        }
    }

    /// Follows for ever.
    pub(crate) async fn run(mut self) {
        let mut failures = crate::restore::Failures::new();
        let mut repeated = Repeated::default();
        while !self.shared.is_ready() {
            match crate::restore::run(&self.shared, &mut failures).await {
                Ok(()) => {}
                Err(error) if self.shared.index_failed() => {
                    tracing::error!(%error, "the index of the cold tier cannot be restored");
                    return;
                }
                Err(error) => {
                    let why = with_causes(&error);
                    if repeated.tell(&why, Instant::now()) {
                        tracing::warn!(
                            error = why,
                            "the index of the cold tier is not restored yet; trying again: \
                             fonnctl doctor says how to cure it"
                        );
                    }
                    tokio::time::sleep(RETRY).await;
                    wait_for_refused(&self.shared).await;
                }
            }
        }
        while !self.shared.index_failed() {
            let now = Instant::now();
            let (candidates, step) = self.plan(now);
            match step {
                Step::Ask(writers) => self.ask(writers, now),
                Step::List => self.list(now),
                Step::Wait(until) => {
                    if self.is_found
                        && self.asking.is_empty()
                        && schedule::is_caught_up(&candidates)
                    {
                        self.note_caught_up();
                    }
                    self.wait(until.max(now + WAIT_MIN)).await;
                }
            }
        }
    }

    /// Every other writer that is not being asked at present, and what is to be done next.
    fn plan(&mut self, now: Instant) -> (Vec<Candidate>, Step) {
        let mut cursors = self.shared.index.cursors();
        self.fresh.retain(|key, _| !cursors.contains_key(key));
        let announced = self.shared.announced.lock();
        let mut heard = HashMap::new();
        for (key, told) in announced.writers() {
            if let Some(last) = told.segments.checked_sub(1) {
                let listed = self.listed.entry(key.clone()).or_default();
                *listed = last.max(*listed);
            }
            heard.insert(key.clone(), told);
        }
        let taken_over = announced.taken_over();
        let unknown = heard.keys().chain(taken_over.iter().copied());
        for key in unknown.filter(|key| !cursors.contains_key(key)) {
            let cursor = self.first_cursor();
            self.fresh.entry(key.clone()).or_insert(cursor);
        }
        cursors.extend(self.fresh.clone());
        cursors.retain(|key, _| !self.shared.is_own(key));
        self.fresh.retain(|key, _| !self.shared.is_own(key));
        self.asked.retain(|key, _| cursors.contains_key(key));
        self.listed.retain(|key, _| cursors.contains_key(key));
        let idle = cursors
            .into_iter()
            .filter(|(key, _)| !self.asking.contains_key(key));
        let candidates = idle.map(|(key, cursor)| Candidate {
            cursor,
            asked: self.asked.get(&key).copied(),
            heard: heard.get(&key).copied(),
            is_taken_over: taken_over.contains(&key),
            key,
        });
        let candidates: Vec<Candidate> = candidates.collect();
        let listing = Listing {
            is_wanted: announced.wants_list(),
            ..self.listing
        };
        let interval = self.shared.options.follow_interval;
        let step = schedule::next(&candidates, self.asking.len(), listing, interval, now);
        (candidates, step)
    }

    /// Where a writer is followed from of which nothing is merged yet.
    fn first_cursor(&self) -> Cursor {
        Cursor {
            next_seq: 0,
            last_new_ms: self.shared.wall_ms(),
        }
    }

    fn ask(&mut self, writers: Vec<Candidate>, began: Instant) {
        for candidate in writers {
            let (shared, key) = (Arc::clone(&self.shared), candidate.key.clone());
            let (cursor, end) = (candidate.cursor, candidate.end());
            let listed = self.listed.get(&key).copied();
            self.asking.insert(key.clone(), candidate);
            self.jobs.spawn(async move {
                let followed = follow(&shared, &key, cursor, (listed, end)).await;
                Done::Asked {
                    key,
                    began,
                    followed,
                }
            });
        }
    }

    fn list(&mut self, began: Instant) {
        self.listing.is_under_way = true;
        let shared = Arc::clone(&self.shared);
        self.jobs.spawn(async move {
            let known = shared.index.cursors();
            let names = discover::writers(&shared, known.keys()).await;
            Done::Listed { began, names }
        });
    }

    /// Waits until something is to be planned anew: what was asked is answered, there are
    /// announcements, or a writer is due.
    async fn wait(&mut self, until: Instant) {
        let shared = Arc::clone(&self.shared);
        loop {
            // All are cancel-safe: a job that is not joined is joined later, and a notice is kept.
            tokio::select! {
                Some(done) = self.jobs.join_next() => {
                    if self.note(done) || self.asking.is_empty() {
                        return;
                    }
                }
                () = shared.has_news.notified() => return,
                () = tokio::time::sleep_until(until) => return,
            }
        }
    }

    /// Returns whether the plan may be another one because of it, though more is being asked.
    fn note(&mut self, done: Result<Done, JoinError>) -> bool {
        match done {
            Ok(Done::Asked {
                key,
                began,
                followed,
            }) => self.note_asked(key, began, followed),
            Ok(Done::Listed { began, names }) => {
                self.note_listed(began, names);
                true
            }
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(error) => {
                    tracing::debug!(%error, "a request of the follower was cancelled");
                    true
                }
            },
        }
    }

    fn note_asked(
        &mut self,
        key: WriterKey,
        began: Instant,
        followed: Result<Cursor, ColdError>,
    ) -> bool {
        let Some(before) = self.asking.remove(&key) else {
            return true;
        };
        let asked = match followed {
            Ok(cursor) => {
                if before.is_ahead() {
                    let count = cursor.next_seq.saturating_sub(before.cursor.next_seq);
                    Counters::add(&self.shared.counters.announced_segments, count);
                }
                if before.is_taken_over {
                    self.shared.announced.lock().followed(&key, began);
                    self.finish_takeovers();
                }
                let idle_ms = self.shared.wall_ms().saturating_sub(cursor.last_new_ms);
                Asked {
                    // What is announced meanwhile is news.
                    at: began,
                    outcome: Outcome::Ended(Duration::from_millis(idle_ms)),
                }
            }
            Err(error) => {
                tracing::debug!(%error, "a writer cannot be followed");
                Asked {
                    at: Instant::now(),
                    outcome: Outcome::Failed,
                }
            }
        };
        self.asked.insert(key, asked);
        before.heard.is_some() || before.is_taken_over || asked.outcome == Outcome::Failed
    }

    fn note_listed(&mut self, began: Instant, names: Result<Vec<SegmentName>, ColdError>) {
        self.listing.is_under_way = false;
        let names = match names {
            Ok(names) => names,
            Err(error) => {
                tracing::debug!(%error, "writers cannot be listed");
                self.listing.failed = Some(Instant::now());
                self.listing.due = Instant::now() + RETRY;
                return;
            }
        };
        let known = self.shared.index.cursors();
        let mut found = Vec::new();
        for name in names {
            let key = name.writer_key();
            if self.shared.is_own(&key) {
                continue;
            }
            let listed = self.listed.entry(key.clone()).or_default();
            *listed = name.seq.max(*listed);
            if !known.contains_key(&key) {
                // It may have been asked before it had a segment.
                self.asked.remove(&key);
                let cursor = self.first_cursor();
                self.fresh.entry(key.clone()).or_insert(cursor);
                found.push(key);
            }
        }
        self.is_found = true;
        self.listing.failed = None;
        self.listing.due = Instant::now() + self.shared.options.follow_interval * 6;
        self.shared.announced.lock().listed(&found, began);
        self.finish_takeovers();
    }

    fn finish_takeovers(&self) {
        let finished = self.shared.announced.lock().finish();
        for begun in finished {
            let took = begun.elapsed();
            tracing::info!(
                ?took,
                "the segments of a lost member are followed to their end"
            );
        }
    }

    fn note_caught_up(&self) {
        self.shared
            .progress
            .send_if_modified(|progress| !std::mem::replace(&mut progress.is_caught_up, true));
    }
}

/// Waits until the bucket gives the footer that it refuses, or does not have it any more, for
/// [`REFUSED_MAX`] at most. Returns at once if it refuses none.
async fn wait_for_refused(shared: &Shared) {
    let until = Instant::now() + REFUSED_MAX;
    while Instant::now() < until {
        let refused = shared.refused.lock().clone();
        let Some(refused) = refused else {
            return;
        };
        tokio::time::sleep(REFUSED_RETRY).await;
        let read = footers::read(shared, &refused.name).await;
        shared.note_footer(&refused.name, &read);
    }
}

/// Reads what a writer has that is new, as far as there is any, or before the number `end`.
/// `listed` is the highest number that is known to have been there.
async fn follow(
    shared: &Arc<Shared>,
    key: &WriterKey,
    mut cursor: Cursor,
    (listed, end): (Option<u64>, Option<u64>),
) -> Result<Cursor, ColdError> {
    while end.is_none_or(|end| cursor.next_seq < end) {
        let name = SegmentName {
            region: key.region.clone(),
            writer: key.writer,
            seq: cursor.next_seq,
        };
        let read = footers::read(shared, &name).await;
        shared.note_footer(&name, &read);
        let read = match read {
            Ok(read) => read,
            Err(error) if error.is_not_found() => match listed {
                Some(last) if last > name.seq => {
                    cursor.next_seq = pass_gap(shared, key, &name, last).await?;
                    continue;
                }
                // It may be uploaded yet.
                _ => return Ok(cursor),
            },
            Err(error @ ColdError::Segment { .. }) => {
                note_unreadable(shared, &name, &error);
                cursor.next_seq += 1;
                move_on(shared, key, cursor).await?;
                continue;
            }
            Err(error) => return Err(error),
        };
        cursor = Cursor {
            next_seq: cursor.next_seq + 1,
            last_new_ms: shared.wall_ms(),
        };
        merge(shared, read, Some(cursor)).await?;
    }
    Ok(cursor)
}

/// The number of the next segment after one that was deleted; `last`, which was there too, if none
/// is left.
async fn pass_gap(
    shared: &Arc<Shared>,
    key: &WriterKey,
    missing: &SegmentName,
    last: u64,
) -> Result<u64, ColdError> {
    let prefix = format!("{}{}/", key.region.segments_prefix(), key.writer);
    let after = missing.key();
    let list = shared.bucket().list(&prefix, Some(after.as_str()), 1);
    let page = list.await?;
    let found = page.objects.first();
    let next = found.and_then(|object| SegmentName::parse(object.key.as_str()));
    let cursor = Cursor {
        next_seq: next.map_or(last, |next| next.seq),
        last_new_ms: shared.wall_ms(),
    };
    move_on(shared, key, cursor).await?;
    Ok(cursor.next_seq)
}

async fn move_on(shared: &Arc<Shared>, key: &WriterKey, cursor: Cursor) -> Result<(), ColdError> {
    let moved = key.clone();
    shared
        .blocking(move |shared| Ok(shared.index.set_cursor(&moved, cursor)?))
        .await
}

/// Notes a segment that is there and malformed.
pub(crate) fn note_unreadable(shared: &Shared, name: &SegmentName, error: &ColdError) {
    if shared.unreadable.lock().insert(name.clone()) {
        tracing::error!(%error, "a segment cannot be read");
        Counters::add(&shared.counters.unreadable_segments, 1);
        shared.watched.note(error.to_string());
    }
}
