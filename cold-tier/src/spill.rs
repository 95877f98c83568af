//! From the queue of the node into segments, and from there into the bucket.
//!
//! Two tasks: the spiller reads the queue and fills a segment; the uploader has a few on their way
//! ([`uploader`]). What does not fit into memory waits in the queue, which is on disk. A position
//! of the queue is acknowledged only after everything before it is in the bucket and in the index.

mod open;
mod recode;
mod select;
pub(crate) mod source;
mod uploader;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};
use tokio::time::Instant;

use crate::error::ColdError;
use crate::index::LostRow;
use crate::memory::Held;
use crate::names::KeyHash;
use crate::segment::Version;
use crate::shared::Shared;
use open::{Added, OpenSegment};
use select::{Candidate, Choice, Known, choose};
use source::{SpillBatch, SpillCursor, SpillFact, SpillRecord, SpillSource};
use uploader::{Job, Uploader};

/// How long to wait after the source or the index failed.
const RETRY: Duration = Duration::from_secs(1);

/// Copies on their way: in the open segment, waiting, or being uploaded.
type Pending = Mutex<HashMap<KeyHash, Version>>;

/// Asks for everything that is in the queue to be brought into the bucket now, and is told when it
/// is there.
pub(crate) type Drain = oneshot::Sender<()>;

/// What the spiller is to do besides reading the queue. To ask for it neither waits nor fails,
/// however long the spiller is held up by the bucket.
#[derive(Debug, Default)]
pub(crate) struct Wishes {
    /// There are flush marks that are in no segment yet.
    marks: AtomicBool,
    /// There may be tombstones of lost copies that are in no segment yet.
    lost: AtomicBool,
    /// The open segment is to be uploaded before it is full.
    hurry: AtomicBool,
    are_new: Notify,
}

impl Wishes {
    /// Has the flush marks brought into the bucket.
    pub(crate) fn carry_marks(&self) {
        self.wish(&self.marks);
    }

    /// Has the tombstones of lost copies brought into the bucket.
    pub(crate) fn carry_lost(&self) {
        self.wish(&self.lost);
    }

    /// Has the open segment uploaded before it is full.
    pub(crate) fn hurry(&self) {
        self.wish(&self.hurry);
    }

    fn wish(&self, flag: &AtomicBool) {
        flag.store(true, Ordering::Release);
        self.are_new.notify_one();
    }
}

/// Whether that is wished; it counts as done then.
fn take(flag: &AtomicBool) -> bool {
    flag.swap(false, Ordering::AcqRel)
}

/// Makes the two tasks; the caller spawns them.
pub(crate) fn tasks(
    shared: &Arc<Shared>,
    source: Arc<dyn SpillSource>,
) -> (
    mpsc::Sender<Drain>,
    impl Future<Output = ()> + Send + 'static,
    impl Future<Output = ()> + Send + 'static,
) {
    let (drains_tx, drains) = mpsc::channel(1);
    // Each job has a slot, so it never waits for the channel.
    let lanes = shared.options.upload_lanes();
    let (jobs, jobs_rx) = mpsc::channel(lanes);
    let pending = Arc::new(Pending::default());
    let uploader = Uploader::new(
        Arc::clone(shared),
        Arc::clone(&source),
        Arc::clone(&pending),
    );
    let cursor = shared.index.spilled();
    let spiller = Spiller {
        shared: Arc::clone(shared),
        source,
        pending,
        jobs,
        slots: Arc::new(Semaphore::new(lanes)),
        read_to: cursor.clone(),
        queued_to: cursor,
        open: None,
        held: None,
    };
    (drains_tx, spiller.run(drains), uploader.run(jobs_rx))
}

/// Reads the queue and fills segments.
struct Spiller {
    shared: Arc<Shared>,
    source: Arc<dyn SpillSource>,
    pending: Arc<Pending>,
    jobs: mpsc::Sender<Job>,
    /// One for each lane of the uploader.
    slots: Arc<Semaphore>,
    /// Read so far.
    read_to: SpillCursor,
    /// Given to the uploader so far.
    queued_to: SpillCursor,
    open: Option<OpenSegment>,
    /// The memory of the batch at hand, until a record of it is in a segment.
    held: Option<Held>,
}

/// The uploader is gone.
struct Stopped;

/// What a batch of the queue held.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Filled {
    /// It is at the queue's end.
    Nothing,
    /// Less than it has room for: the end is near.
    Some,
    /// As much as it has room for, or nearly so: there is a backlog.
    Full,
}

impl Spiller {
    async fn run(mut self, mut drains: mpsc::Receiver<Drain>) {
        let mut progress = self.shared.progress.subscribe();
        // Before that a newer copy may be in the bucket that this node does not know.
        let is_go = |progress: &crate::shared::Progress| progress.is_ready && progress.is_caught_up;
        if progress.wait_for(is_go).await.is_err() {
            return;
        }
        let shared = Arc::clone(&self.shared);
        loop {
            // With a backlog, too: the bucket has older copies meanwhile. If the index failed, they
            // are written after the next start.
            if take(&shared.wishes.lost) && self.add_lost().await.is_err() {
                return;
            }
            let (is_drained, failed) = match self.read_and_fill().await {
                // All of a backlog is due, and the next batch is there at once: full segments save
                // requests.
                Ok(Filled::Full) => continue,
                Ok(filled) => (filled == Filled::Nothing, false),
                Err(Ok(Stopped)) => return,
                Err(Err(error)) => {
                    tracing::warn!(%error, "the queue of the cold tier cannot be read, trying again");
                    if shared.index_failed() {
                        return;
                    }
                    (true, true)
                }
            };
            if !is_drained {
                if self.is_due() && self.seal().await.is_err() {
                    return;
                }
                continue;
            }
            if take(&shared.wishes.hurry) && self.seal().await.is_err() {
                return;
            }
            if self.settle().await.is_err() {
                return;
            }
            let due = self.due();
            let source = Arc::clone(&self.source);
            tokio::select! {
                () = source.wait(), if !failed => {}
                () = tokio::time::sleep(RETRY), if failed => {}
                () = sleep_until(due) => {
                    if self.seal().await.is_err() {
                        return;
                    }
                }
                () = shared.wishes.are_new.notified() => {}
                drain = drains.recv() => match drain {
                    None => return,
                    Some(done) => {
                        if self.drain(done).await.is_err() {
                            return;
                        }
                    }
                },
            }
        }
    }

    /// Reads a batch and adds its records.
    async fn read_and_fill(&mut self) -> Result<Filled, Result<Stopped, ColdError>> {
        let max_bytes = self.shared.options.segment_bytes() / 4;
        if self.held.is_none() {
            self.held = Some(self.hold(max_bytes).await.map_err(Ok)?);
        }
        let source = Arc::clone(&self.source);
        let pending = Arc::clone(&self.pending);
        let from = self.read_to.clone();
        let batch_bytes = usize::try_from(max_bytes).unwrap_or(usize::MAX);
        let read = self.shared.blocking(move |shared| {
            let batch = source.read(&from, batch_bytes)?;
            prepare(shared, &pending, batch)
        });
        let (records, end) = read.await.map_err(Err)?;
        let is_empty = records.is_empty() && end == self.read_to;
        // At the end of the queue a batch is small, and so must be what it holds.
        let bytes: u64 = records.iter().map(added_len).sum();
        if let (Some(held), 1..) = (&mut self.held, bytes) {
            held.shrink(bytes);
        }
        for record in records {
            let after = record.after.clone();
            self.add(record).await.map_err(Ok)?;
            self.read_to = after;
        }
        self.read_to = end;
        Ok(match is_empty {
            true => Filled::Nothing,
            false if bytes > max_bytes / 2 => Filled::Full,
            false => Filled::Some,
        })
    }

    /// Waits for memory. What is in the open segment cannot be waited for, so it goes first.
    async fn hold(&mut self, bytes: u64) -> Result<Held, Stopped> {
        if let Some(held) = self.shared.uploads.try_hold(bytes) {
            return Ok(held);
        }
        self.seal().await?;
        let began = Instant::now();
        let held = self.shared.uploads.hold(bytes).await;
        self.shared.counters.note_upload_wait(began.elapsed());
        Ok(held)
    }

    async fn add(&mut self, record: SpillRecord) -> Result<(), Stopped> {
        let segment_bytes = self.shared.options.segment_bytes();
        let len = record.key.len() as u64 + frame_len(&record);
        let is_large = len > segment_bytes;
        let is_full = |open: &OpenSegment| open.builder.len() + len > segment_bytes;
        if self.open.as_ref().is_some_and(is_full) {
            self.seal().await?;
        }
        if is_large {
            // A large one waits for all the memory it needs, and gives up the batch's share first.
            self.held = None;
            self.held = Some(self.hold(len).await?);
        }
        let upload = Duration::from_millis(
            self.shared
                .counters
                .upload_ms
                .load(std::sync::atomic::Ordering::Relaxed),
        );
        let due_in = open::due_in(
            self.shared.options.spill_age,
            self.shared.wall_ms(),
            record.written_ms,
            upload,
        );
        let open = self.open.get_or_insert_default();
        match open.add(&record, Instant::now() + due_in) {
            Added::Yes => {
                let hash = KeyHash::of(record.space, &record.key);
                self.pending.lock().insert(hash, record.at);
                open.held.extend(self.held.take());
            }
            Added::Unreadable => tracing::debug!("a record fits into no segment"),
            Added::Full => {
                self.seal().await?;
                return Box::pin(self.add(record)).await;
            }
        }
        if is_large {
            self.read_to = record.after;
            self.seal().await?;
        }
        Ok(())
    }

    /// Adds tombstones for copies that were lost.
    async fn add_lost(&mut self) -> Result<(), Result<Stopped, ColdError>> {
        let mut next: Option<Vec<u8>> = Some(Vec::new());
        while let Some(after) = next {
            let lost = self.shared.blocking(move |shared| {
                let is_visible = |space, at| shared.is_visible(space, at);
                Ok(shared.index.lost(&after, &is_visible)?)
            });
            let page = lost.await.map_err(Err)?;
            self.add_tombstones(page.rows).await.map_err(Ok)?;
            next = page.next;
        }
        Ok(())
    }

    /// Adds tombstones, unless they or newer copies are on their way.
    async fn add_tombstones(&mut self, rows: Vec<LostRow>) -> Result<(), Stopped> {
        for row in rows {
            let hash = KeyHash::of(row.space, &row.key);
            let pending = self.pending.lock().get(&hash).copied();
            if pending.is_some_and(|pending| pending >= row.at) {
                continue;
            }
            let record = SpillRecord {
                space: row.space,
                key: row.key.into(),
                at: row.at,
                fact: SpillFact::Tombstone,
                written_ms: self.shared.wall_ms(),
                after: self.read_to.clone(),
            };
            self.add(record).await?;
        }
        Ok(())
    }

    fn due(&self) -> Option<Instant> {
        self.open.as_ref()?.due
    }

    fn is_due(&self) -> bool {
        self.due().is_some_and(|due| due <= Instant::now())
    }

    /// Gives the open segment to the uploader, if it has anything.
    async fn seal(&mut self) -> Result<(), Stopped> {
        let Some(open) = self.open.take() else {
            return Ok(());
        };
        // It gets all that are known when its upload begins.
        take(&self.shared.wishes.marks);
        self.queue(Some(open), None).await
    }

    async fn queue(
        &mut self,
        segment: Option<OpenSegment>,
        done: Option<oneshot::Sender<()>>,
    ) -> Result<(), Stopped> {
        self.queued_to = self.read_to.clone();
        let began = Instant::now();
        let slot = tokio::select! {
            slot = Arc::clone(&self.slots).acquire_owned() => slot.map_err(|_| Stopped)?,
            () = self.jobs.closed() => return Err(Stopped),
        };
        self.shared.counters.note_upload_wait(began.elapsed());
        let job = Job {
            segment,
            cursor: self.read_to.clone(),
            done,
            slot,
        };
        self.jobs.send(job).await.map_err(|_| Stopped)
    }

    /// There is nothing to read: what was skipped needs no segment to be acknowledged, and memory
    /// is given back.
    async fn settle(&mut self) -> Result<(), Stopped> {
        self.held = None;
        if self.open.is_none() && self.shared.wishes.marks.load(Ordering::Acquire) {
            self.open = Some(OpenSegment::default());
            return self.seal().await;
        }
        if self.open.is_none() && self.queued_to != self.read_to {
            return self.queue(None, None).await;
        }
        Ok(())
    }

    async fn drain(&mut self, done: Drain) -> Result<(), Stopped> {
        if take(&self.shared.wishes.lost)
            && let Err(Ok(stopped)) = self.add_lost().await
        {
            return Err(stopped);
        }
        loop {
            match self.read_and_fill().await {
                Ok(Filled::Full | Filled::Some) => {}
                Ok(Filled::Nothing) => break,
                Err(Ok(Stopped)) => return Err(Stopped),
                Err(Err(error)) => {
                    tracing::warn!(%error, "the queue of the cold tier cannot be drained");
                    break;
                }
            }
        }
        self.seal().await?;
        self.settle().await?;
        self.queue(None, Some(done)).await
    }
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

fn frame_len(record: &SpillRecord) -> u64 {
    match &record.fact {
        SpillFact::Put { frame, .. } => frame.len() as u64,
        SpillFact::Tombstone => 0,
    }
}

/// Bytes that a record adds to a segment, about.
fn added_len(record: &SpillRecord) -> u64 {
    record.key.len() as u64 + frame_len(record) + 64
}

/// Those records of a batch that are to be written, recoded; on a thread that may block.
fn prepare(
    shared: &Shared,
    pending: &Pending,
    batch: SpillBatch,
) -> Result<(Vec<SpillRecord>, SpillCursor), ColdError> {
    let now_ms = shared.wall_ms();
    let mut prepared = Vec::with_capacity(batch.records.len());
    for mut record in batch.records {
        let hash = KeyHash::of(record.space, &record.key);
        let expires_at_ms = match &record.fact {
            SpillFact::Put { facts, .. } => facts.expires_at_ms,
            SpillFact::Tombstone => 0,
        };
        let candidate = Candidate {
            at: record.at,
            tombstone: matches!(record.fact, SpillFact::Tombstone),
            expires_at_ms,
            is_visible: shared.is_visible(record.space, record.at),
        };
        let known = known(shared, pending, hash)?;
        match choose(&candidate, known, now_ms) {
            Choice::Write => {}
            Choice::WriteTombstone => record.fact = SpillFact::Tombstone,
            Choice::Skip => continue,
        }
        if let SpillFact::Put { frame, .. } = &mut record.fact {
            let options = &shared.options;
            match recode::recode(frame, &*options.codec, options.value_len_max) {
                Ok(recoded) => *frame = recoded,
                // Its older copies must not come back for that.
                Err(error) => {
                    tracing::debug!(%error, "a value of the queue cannot be read");
                    record.fact = SpillFact::Tombstone;
                }
            }
        }
        prepared.push(record);
    }
    Ok((prepared, batch.end))
}

/// The copy of a key that the bucket has or is about to get.
fn known(shared: &Shared, pending: &Pending, hash: KeyHash) -> Result<Option<Known>, ColdError> {
    let indexed = shared.index.entry(hash)?.map(|entry| Known {
        at: entry.at,
        is_readable: shared.index.readable_segment(entry.segment).is_some(),
    });
    let pending = pending.lock().get(&hash).map(|&at| Known {
        at,
        is_readable: true,
    });
    Ok(match (indexed, pending) {
        (Some(indexed), Some(pending)) if pending.at >= indexed.at => Some(pending),
        (Some(indexed), _) => Some(indexed),
        (None, pending) => pending,
    })
}
