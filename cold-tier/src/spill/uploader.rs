//! Segments on their way into the bucket, several at a time.
//!
//! A writer's segments appear in the order of their numbers, so each lane is a writer of its own. A
//! segment gets its name when its upload begins, from the lane that became free last: as long as
//! one keeps up, followers have no others to ask. Segments may reach the bucket in any order; the
//! index takes them, and the queue is acknowledged, in the order of the queue.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Pending;
use super::open::OpenSegment;
use super::source::{SpillCursor, SpillSource};
use crate::error::ColdError;
use crate::memory::Held;
use crate::segment::SealedSegment;
use crate::shared::Shared;
use crate::status::Counters;
use crate::upload::{ENDLESS, Names, enter, put_in_bucket};

/// What is to be done up to a position of the queue.
pub(super) struct Job {
    /// None: there is nothing to upload, only a position to acknowledge.
    pub(super) segment: Option<OpenSegment>,
    pub(super) cursor: SpillCursor,
    /// Tells when everything up to here is done.
    pub(super) done: Option<oneshot::Sender<()>>,
    /// One of as many as there are lanes.
    pub(super) slot: OwnedSemaphorePermit,
}

/// Uploads, and acknowledges.
pub(super) struct Uploader {
    shared: Arc<Shared>,
    source: Arc<dyn SpillSource>,
    pending: Arc<Pending>,
    /// The lanes that are free. There are as many in all as slots, and each upload has one.
    free: Arc<Mutex<Vec<Names>>>,
}

/// A job of which the bucket has its part.
struct Carried {
    number: u64,
    cursor: SpillCursor,
    uploaded: Option<Result<Uploaded, ColdError>>,
    done: Option<oneshot::Sender<()>>,
    _slot: OwnedSemaphorePermit,
}

struct Uploaded {
    /// As it was filled.
    filled: Arc<SealedSegment>,
    /// As it is in the bucket: under another name perhaps, with fewer entries if it came late.
    sealed: Arc<SealedSegment>,
    began: Instant,
    /// The memory of it.
    _held: Vec<Held>,
}

impl Uploader {
    pub(super) fn new(
        shared: Arc<Shared>,
        source: Arc<dyn SpillSource>,
        pending: Arc<Pending>,
    ) -> Self {
        Self {
            free: Arc::default(),
            shared,
            source,
            pending,
        }
    }

    pub(super) async fn run(self, mut jobs: mpsc::Receiver<Job>) {
        let mut running = JoinSet::new();
        let mut waiting = BTreeMap::new();
        let (mut begun, mut settled) = (0, 0);
        let mut is_closed = false;
        loop {
            tokio::select! {
                job = jobs.recv(), if !is_closed => match job {
                    None => is_closed = true,
                    Some(job) => {
                        running.spawn(self.carry(begun, job));
                        begun += 1;
                    }
                },
                Some(carried) = running.join_next() => {
                    // One that panicked, or was cancelled at the end.
                    let Ok(carried) = carried else { return };
                    waiting.insert(carried.number, carried);
                    while let Some(carried) = waiting.remove(&settled) {
                        settled += 1;
                        if let Err(error) = self.settle(carried).await {
                            // The index failed: what is in the queue is spilled after the next
                            // start.
                            tracing::error!(%error, "spilling has stopped");
                            return;
                        }
                    }
                }
                else => return,
            }
        }
    }

    /// Brings a job's segment into the bucket.
    fn carry(&self, number: u64, job: Job) -> impl Future<Output = Carried> + Send + use<> {
        let shared = Arc::clone(&self.shared);
        let pending = Arc::clone(&self.pending);
        let free = Arc::clone(&self.free);
        async move {
            let uploaded = match job.segment {
                None => None,
                Some(open) => {
                    let mut names = free.lock().pop().unwrap_or_default();
                    let uploaded = upload(&shared, &pending, &mut names, open).await;
                    free.lock().push(names);
                    Some(uploaded)
                }
            };
            Carried {
                number,
                cursor: job.cursor,
                uploaded,
                done: job.done,
                _slot: job.slot,
            }
        }
    }

    /// What comes after the bucket: the index, and the queue.
    async fn settle(&self, carried: Carried) -> Result<(), ColdError> {
        let shared = &self.shared;
        let cursor = carried.cursor;
        match carried.uploaded.transpose()? {
            None => {
                let passed = cursor.clone();
                shared
                    .blocking(move |shared| Ok(shared.index.set_spilled(&passed)?))
                    .await?;
            }
            Some(uploaded) => {
                let sealed = &uploaded.sealed;
                enter(shared, Arc::clone(sealed), Some(cursor.clone())).await?;
                let counters = &shared.counters;
                counters.note_upload(uploaded.began.elapsed());
                Counters::add(&counters.spilled_segments, 1);
                Counters::add(&counters.spilled_bytes, sealed.len);
                let entries = sealed.footer.entries.len() as u64;
                Counters::add(&counters.spilled_entries, entries);
                let mut pending = self.pending.lock();
                for entry in &uploaded.filled.footer.entries {
                    let hash = entry.hash();
                    // A newer one may be behind it.
                    if pending.get(&hash) == Some(&entry.at) {
                        pending.remove(&hash);
                    }
                }
            }
        }
        shared.crash_point("before-acknowledge").await;
        let source = Arc::clone(&self.source);
        let acknowledged = shared.blocking(move |shared| {
            // What is acknowledged may be dropped, durably: what the bucket has of it must not be
            // forgotten then, by a loss of power either.
            shared.index.sync()?;
            source.acknowledge(&cursor);
            Ok(())
        });
        acknowledged.await?;
        if let Some(done) = carried.done {
            // The caller may have gone away.
            let _ = done.send(());
        }
        Ok(())
    }
}

async fn upload(
    shared: &Arc<Shared>,
    pending: &Pending,
    names: &mut Names,
    open: OpenSegment,
) -> Result<Uploaded, ColdError> {
    let began = Instant::now();
    let header = names.next(shared, 0);
    let filled = Arc::new(open.builder.finish(header, &shared.index.marks()));
    // What another lane has, or waits in memory, is not in the index yet.
    let is_replaced = |hash, at| pending.lock().get(&hash).is_some_and(|newest| *newest > at);
    let sealed = Arc::clone(&filled);
    Ok(Uploaded {
        sealed: put_in_bucket(shared, names, sealed, ENDLESS, &is_replaced).await?,
        filled,
        began,
        _held: open.held,
    })
}
