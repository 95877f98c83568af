//! Uploading a segment, and then adding it to the index, in this order.
//!
//! A segment's name and bytes never change, so an upload with a lost answer is repeated. The name
//! may be taken by other bytes: a part of this upload, on a store that is not atomic. Then the
//! records get a name of another writer, and the part is deleted, because its contents are unknown.
//!
//! The bucket may refuse a segment for longer than the grace. Before the next try it is compared
//! with the bucket. A record must not appear late if it was deleted or overwritten meanwhile, even
//! if its tombstone has been collected.
//!
//! Each writer has one upload at a time, so that its segments appear without gaps.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fonn_base::backoff::Backoff;
use tokio::time::Instant;

use crate::error::ColdError;
use crate::follow::reconcile;
use crate::footers;
use crate::format::FormatError;
use crate::index::{Arrival, Cursor};
use crate::names::{KeyHash, SegmentName, WriterId};
use crate::segment::{
    HEADER_LEN, Record, SealedSegment, SegmentBuilder, SegmentHeader, Version, scan_records,
};
use crate::shared::Shared;
use crate::spill::source::SpillCursor;
use crate::status::Counters;
use crate::store::{Body, Operation, StoreError, StoreErrorKind};

/// Waits between tries. There is no end: the queue on the disk waits.
const BACKOFF: Backoff = Backoff {
    base: Duration::from_millis(200),
    cap: Duration::from_secs(30),
    attempts_max: u32::MAX,
};

/// Names that a segment gets, should the bucket keep torn objects under those before.
const NAMES_MAX: usize = 8;

/// The names that a stream of segments gets. Its writer comes into being with the first: others
/// look for new writers among those that began lately.
#[derive(Debug, Default)]
pub(crate) struct Names {
    writer: Option<WriterId>,
    next_seq: u64,
}

impl Names {
    /// The header of the next segment, which is newer than what was made at `after_ms`.
    pub(crate) fn next(&mut self, shared: &Shared, after_ms: u64) -> SegmentHeader {
        let writer = *self.writer.get_or_insert_with(|| shared.begin_writer());
        let header = SegmentHeader {
            region: shared.options.region.clone(),
            writer,
            seq: self.next_seq,
            created_ms: shared.wall_ms().max(after_ms.saturating_add(1)),
        };
        self.next_seq += 1;
        header
    }

    /// Begins anew as another writer: a name was given out whose segment will not appear.
    pub(crate) fn abandon(&mut self, shared: &Shared) {
        if let Some(writer) = self.writer.take() {
            shared.withdraw_writer(writer);
        }
        self.next_seq = 0;
    }
}

/// Tries without an end. Where what is lost is only work, there are [`TRIES`].
pub(crate) const ENDLESS: u32 = u32::MAX;
const TRIES: u32 = 5;

/// Makes a segment that is newer than what was made at `after_ms`, uploads it and merges it.
///
/// # Cancel safety
/// Whether the segment is in the bucket is open then; if it is, its writer's followers find it.
///
/// # Errors
/// [`ColdError`]: the index failed, or the tries are used up.
pub(crate) async fn upload(
    shared: &Arc<Shared>,
    names: &mut Names,
    builder: SegmentBuilder,
    after_ms: u64,
) -> Result<SegmentName, ColdError> {
    let header = names.next(shared, after_ms);
    let sealed = Arc::new(builder.finish(header, &shared.index.marks()));
    let uploaded = async {
        let sealed = put_in_bucket(shared, names, sealed, TRIES, &|_, _| false).await?;
        let name = sealed.footer.header.name();
        enter(shared, sealed, None).await?;
        Ok(name)
    };
    let uploaded = uploaded.await;
    if uploaded.is_err() {
        // Its name was given out and may never appear: no reader shall wait for it.
        names.abandon(shared);
    }
    uploaded
}

/// Uploads a segment, and gives it as it is in the bucket: with another name if its own was taken,
/// without what was replaced meanwhile if that took long. `is_replaced` knows of copies that are in
/// no index yet.
///
/// # Cancel safety, errors
/// As [`upload`].
pub(crate) async fn put_in_bucket(
    shared: &Arc<Shared>,
    names: &mut Names,
    sealed: Arc<SealedSegment>,
    tries_max: u32,
    is_replaced: &(dyn Fn(KeyHash, Version) -> bool + Sync),
) -> Result<Arc<SealedSegment>, ColdError> {
    let mut sealed = sealed;
    let mut torn: Vec<SegmentName> = Vec::new();
    let mut late = None;
    loop {
        match put(shared, &sealed, tries_max).await? {
            Put::Done => break,
            Put::Late => {
                late.get_or_insert_with(|| Late::new(shared));
                sealed = compared(shared, names, sealed, is_replaced).await?;
            }
            // Many random names in a row: something is wrong with the store, not with the name.
            Put::Taken if torn.len() >= NAMES_MAX && tries_max != ENDLESS => {
                let key = sealed.footer.header.name().to_string();
                let kind = StoreErrorKind::AlreadyExists;
                return Err(StoreError::new(Operation::PutIfAbsent, key, kind).into());
            }
            Put::Taken => {
                let name = sealed.footer.header.name();
                tracing::warn!(%name, "the name of a segment is taken by other bytes, it gets another");
                if torn.len() >= NAMES_MAX {
                    tokio::time::sleep(BACKOFF.cap).await;
                }
                sealed = Arc::new(rebuilt(&sealed, other_name(shared, names, &sealed), |_| {
                    true
                }));
                torn.push(name);
            }
        }
    }
    shared.announce_segment(&sealed.footer.header.name());
    // Only now: everything that may be in it is in the bucket elsewhere.
    for name in torn {
        remove_torn(shared, &name).await;
    }
    shared.crash_point("uploaded").await;
    Ok(sealed)
}

/// Deletes what an upload left under a name of this process. What is a segment stays: the copy of a
/// virtual machine may have minted the same name, and it is another one's then.
async fn remove_torn(shared: &Shared, name: &SegmentName) {
    match footers::read(shared, name).await {
        Err(ColdError::Segment {
            source: FormatError::Version { .. },
            ..
        }) => return,
        Err(ColdError::Segment { .. }) => {}
        Ok(_) | Err(_) => return,
    }
    match shared.bucket().delete(&name.key()).await {
        Ok(()) => {
            shared.unreadable.lock().remove(name);
        }
        Err(error) => tracing::warn!(%error, "a torn segment stays in the bucket"),
    }
}

/// Merges a segment that is in the bucket. With it, the queue up to `spilled` is done.
///
/// # Errors
/// [`ColdError`]: the index failed.
pub(crate) async fn enter(
    shared: &Arc<Shared>,
    sealed: Arc<SealedSegment>,
    spilled: Option<SpillCursor>,
) -> Result<(), ColdError> {
    let last_new_ms = shared.wall_ms();
    shared
        .blocking(move |shared| {
            let arrival = Arrival {
                size: sealed.len,
                footer: &sealed.footer,
                cursor: Some(Cursor {
                    next_seq: sealed.footer.header.seq + 1,
                    last_new_ms,
                }),
                spilled: spilled.as_ref(),
            };
            Ok(shared.index.merge(&arrival, None)?)
        })
        .await?;
    shared.crash_point("merged").await;
    Ok(())
}

/// An upload that is late. Until it is done, the index forgets nothing that the upload has to be
/// compared with.
struct Late<'a>(&'a Shared);

impl<'a> Late<'a> {
    fn new(shared: &'a Shared) -> Self {
        shared.late_uploads.fetch_add(1, Ordering::Relaxed);
        Self(shared)
    }
}

impl Drop for Late<'_> {
    fn drop(&mut self) {
        self.0.late_uploads.fetch_sub(1, Ordering::Relaxed);
    }
}

enum Put {
    Done,
    /// There is another object of that name.
    Taken,
    /// The bucket has refused it for so long that it must be compared first.
    Late,
}

/// The header of a segment that takes the place of `sealed`.
fn other_name(shared: &Shared, names: &mut Names, sealed: &SealedSegment) -> SegmentHeader {
    names.abandon(shared);
    names.next(shared, sealed.footer.header.created_ms)
}

/// What still counts of a segment, after everything in the bucket was merged. Tries until the
/// bucket lets itself be read.
async fn compared(
    shared: &Arc<Shared>,
    names: &mut Names,
    sealed: Arc<SealedSegment>,
    is_replaced: &(dyn Fn(KeyHash, Version) -> bool + Sync),
) -> Result<Arc<SealedSegment>, ColdError> {
    let mut attempt = 0u32;
    loop {
        match reconcile::run(shared).await {
            Ok(()) => break,
            Err(error) if shared.index_failed() => return Err(error),
            Err(error) => {
                tracing::debug!(%error, "a late segment waits for a comparison with the bucket");
                let delay = BACKOFF.delay(attempt, &mut shared.random.lock());
                tokio::time::sleep(delay.unwrap_or(BACKOFF.cap)).await;
                attempt = attempt.saturating_add(1);
            }
        }
    }
    let asked = Arc::clone(&sealed);
    let mut gone: HashSet<KeyHash> = shared
        .blocking(move |shared| {
            let mut gone = HashSet::new();
            for entry in &asked.footer.entries {
                let hash = entry.hash();
                let newer = shared.index.entry(hash)?.is_some_and(|it| it.at > entry.at);
                if newer || !shared.is_visible(entry.space, entry.at) {
                    gone.insert(hash);
                }
            }
            Ok(gone)
        })
        .await?;
    let entries = sealed.footer.entries.iter();
    let replaced = entries.filter(|entry| is_replaced(entry.hash(), entry.at));
    gone.extend(replaced.map(|entry| entry.hash()));
    if gone.is_empty() {
        return Ok(sealed);
    }
    tracing::info!(
        entries = gone.len(),
        "entries of a late segment have been replaced"
    );
    let header = other_name(shared, names, &sealed);
    let stays = |record: &Record<'_>| !gone.contains(&KeyHash::of(record.space, record.key));
    Ok(Arc::new(rebuilt(&sealed, header, stays)))
}

async fn put(
    shared: &Arc<Shared>,
    sealed: &SealedSegment,
    tries_max: u32,
) -> Result<Put, ColdError> {
    let key = sealed.footer.header.name().key();
    let body = Body::from(sealed.body.clone());
    let began = Instant::now();
    let mut attempt = 0u32;
    let mut is_conditional = true;
    loop {
        let is_late = attempt > 0 && began.elapsed() > shared.options.grace;
        if is_late && tries_max == ENDLESS {
            return Ok(Put::Late);
        }
        shared.crash_point("before-put").await;
        let result = if is_conditional {
            shared.bucket().put_if_absent(&key, body.clone()).await
        } else {
            shared.bucket().put(&key, body.clone()).await
        };
        let error = match result {
            Ok(()) => return Ok(Put::Done),
            Err(error) => error,
        };
        let error = match error.kind {
            StoreErrorKind::Unsupported if is_conditional => {
                is_conditional = false;
                continue;
            }
            StoreErrorKind::AlreadyExists => match is_there(shared, sealed).await {
                Ok(Some(true)) => return Ok(Put::Done),
                Ok(Some(false)) => return Ok(Put::Taken),
                // It was there and is not: once more.
                Ok(None) => error,
                Err(error) => error,
            },
            _ => error,
        };
        attempt = attempt.saturating_add(1);
        if attempt >= tries_max {
            return Err(error.into());
        }
        Counters::add(&shared.counters.upload_retries, 1);
        if attempt.is_power_of_two() {
            tracing::warn!(%error, attempt, "a segment cannot be uploaded, trying again");
        }
        let delay = BACKOFF.delay(attempt - 1, &mut shared.random.lock());
        tokio::time::sleep(delay.unwrap_or(BACKOFF.cap)).await;
    }
}

/// Whether the object of that name has these bytes, by its length and footer. None: there is none.
async fn is_there(shared: &Shared, sealed: &SealedSegment) -> Result<Option<bool>, StoreError> {
    match footers::read(shared, &sealed.footer.header.name()).await {
        Ok((footer, size)) => Ok(Some(size == sealed.len && footer == sealed.footer)),
        Err(ColdError::Store(error)) if error.kind == StoreErrorKind::NotFound => Ok(None),
        Err(ColdError::Store(error)) => Err(error),
        // It is no segment, or a damaged one.
        Err(_) => Ok(Some(false)),
    }
}

/// The same records, or those of them that stay, in a segment of another name.
fn rebuilt(
    sealed: &SealedSegment,
    header: SegmentHeader,
    stays: impl Fn(&Record<'_>) -> bool,
) -> SealedSegment {
    let bytes = sealed.to_bytes();
    let end = HEADER_LEN + usize::try_from(sealed.footer.data_len).unwrap_or(0);
    let data = bytes.get(HEADER_LEN..end).unwrap_or_default();
    let mut builder = SegmentBuilder::new();
    // They were made in this process and fitted into a segment.
    let records = scan_records(data).flatten().map(|(_, record)| record);
    for record in records.filter(stays) {
        let pushed = builder.push(&record);
        debug_assert!(pushed.is_ok());
    }
    builder.finish(header, &sealed.footer.flush_marks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::{Fact, verify};

    #[test]
    fn a_rebuilt_segment_has_the_same_records_or_those_that_stay() {
        let header = |seq| SegmentHeader {
            region: "eu".parse().unwrap(),
            writer: WriterId::mint(1, 2),
            seq,
            created_ms: 7,
        };
        let mut builder = SegmentBuilder::new();
        for version in 0..100 {
            let record = Record {
                space: 1,
                key: b"k",
                at: version,
                fact: Fact::Tombstone,
            };
            builder.push(&record).unwrap();
        }
        let sealed = builder.finish(header(0), &[]);
        let other = rebuilt(&sealed, header(9), |_| true);
        let footer = verify(&other.to_bytes()).unwrap();
        assert_eq!(footer.header.seq, 9);
        assert_eq!(footer.entries, sealed.footer.entries);
        let half = rebuilt(&sealed, header(10), |record| record.at < 50);
        let footer = verify(&half.to_bytes()).unwrap();
        assert_eq!(footer.entries, sealed.footer.entries[..50]);
    }
}
