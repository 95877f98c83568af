//! Looking into the bucket on an operator's behalf: list, inspect, verify, rebuild.

use std::collections::HashSet;
use std::sync::Arc;

use crate::checkpoint::{SegmentFacts, SegmentState};
use crate::error::ColdError;
use crate::follow::{self, reconcile};
use crate::footers;
use crate::names::SegmentName;
use crate::segment::{
    FlushMark, FooterEntry, HEADER_LEN, SegmentError, TRAILER_LEN, verify as verify_bytes,
};
use crate::shared::Shared;
use crate::store::Operation;

/// A segment, as the index knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentReport {
    /// The index's own number for it.
    pub id: u32,
    /// What is known of it.
    pub facts: SegmentFacts,
}

/// A segment, as its footer tells it.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// Bytes of the object.
    pub size: u64,
    /// Bytes of its footer there.
    pub footer_len: u64,
    /// When it was made: Unix time in milliseconds.
    pub created_ms: u64,
    /// The flushes that its writer knew.
    pub flush_marks: Vec<FlushMark>,
    /// Its records, and whether the index leads to each.
    pub entries: Vec<(FooterEntry, bool)>,
}

pub(crate) fn list(shared: &Shared) -> Vec<SegmentReport> {
    let mut all: Vec<SegmentReport> = shared
        .index
        .table()
        .all()
        .into_iter()
        .map(|(id, facts)| SegmentReport { id, facts })
        .collect();
    all.sort_by(|a, b| a.facts.name.cmp(&b.facts.name));
    all
}

pub(crate) async fn inspect(
    shared: &Arc<Shared>,
    name: &SegmentName,
) -> Result<Inspection, ColdError> {
    let (footer, size) = footers::read(shared, name).await?;
    let name = name.clone();
    shared
        .blocking(move |shared| {
            let id = shared.index.table().number(&name);
            let mut entries = Vec::with_capacity(footer.entries.len());
            for entry in footer.entries {
                let indexed = shared.index.entry(entry.hash())?;
                let counts = indexed.is_some_and(|indexed| {
                    Some(indexed.segment) == id && indexed.offset == entry.offset
                });
                entries.push((entry, counts));
            }
            // What is not header, records and trailer.
            let around = (HEADER_LEN + TRAILER_LEN) as u64 + footer.data_len;
            Ok(Inspection {
                size,
                footer_len: size.saturating_sub(around),
                created_ms: footer.header.created_ms,
                flush_marks: footer.flush_marks,
                entries,
            })
        })
        .await
}

/// The segments in the bucket, compared with the index.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// Those in the bucket, each with its length in bytes.
    pub listed: Vec<(SegmentName, u64)>,
    /// Those that the index does not know. The next full comparison merges them.
    pub unknown: Vec<SegmentName>,
    /// Those that the index leads to and that are not in the bucket, besides those that are marked
    /// as lost already.
    pub missing: Vec<SegmentName>,
}

/// What the check of one segment found.
#[derive(Clone, Debug, Default)]
pub struct SegmentCheck {
    /// Bytes of it.
    pub bytes: u64,
    /// Records in it; none are counted if it is damaged.
    pub records: u64,
    /// Entries of the index whose record is not where it says.
    pub wrong_entries: u64,
    /// How it is damaged.
    pub damage: Option<String>,
}

pub(crate) async fn compare(shared: &Arc<Shared>) -> Result<Comparison, ColdError> {
    let listed = reconcile::list(shared).await?;
    let in_bucket: HashSet<&SegmentName> = listed.iter().map(|(name, _)| name).collect();
    let table = shared.index.table();
    let missing = table.all().into_iter().filter(|(_, facts)| {
        let is_lost = matches!(facts.state, SegmentState::Lost { .. });
        facts.live_entries > 0 && !is_lost && !in_bucket.contains(&facts.name)
    });
    let missing = missing.map(|(_, facts)| facts.name).collect();
    let names = listed.iter().map(|(name, _)| name);
    let unknown = names.filter(|name| table.number(name).is_none());
    let unknown = unknown.cloned().collect();
    Ok(Comparison {
        listed,
        unknown,
        missing,
    })
}

/// What is told how far work is: segments done and in all.
pub type Progress<'p> = dyn FnMut(u64, u64) + Send + 'p;

/// None if there is no such segment.
pub(crate) async fn verify_segment(
    shared: &Arc<Shared>,
    name: &SegmentName,
) -> Result<Option<SegmentCheck>, ColdError> {
    let key = name.key();
    let known = shared.index.table().number(name);
    let size = known.and_then(|id| Some(shared.index.table().facts(id)?.size));
    let size = size.unwrap_or(shared.options.segment_target_bytes);
    let _held = shared.reads.hold(size).await;
    let about = (Operation::Get, key.as_str(), size);
    let bytes = match shared.call(about, shared.store.get(&key)).await {
        Ok(bytes) => bytes,
        Err(error) if error.kind == crate::store::StoreErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut check = SegmentCheck {
        bytes: bytes.len() as u64,
        ..SegmentCheck::default()
    };
    let checked = name.clone();
    let outcome = shared
        .blocking(move |shared| {
            let footer = match verify_bytes(&bytes) {
                Ok(footer) if footer.header.name() == checked => footer,
                Ok(_) => {
                    return Ok(Err(SegmentError::Field {
                        part: "header",
                        field: "name",
                    }));
                }
                Err(error) => return Ok(Err(error)),
            };
            let Some(id) = known else {
                return Ok(Ok((footer.entries.len() as u64, 0)));
            };
            let mut wrong = 0;
            for entry in &footer.entries {
                let indexed = shared.index.entry(entry.hash())?;
                let is_wrong = match indexed {
                    // Only a copy at least as new may be in its place, or it was dropped.
                    Some(indexed) if indexed.segment == id && indexed.at == entry.at => {
                        indexed.len != entry.len
                    }
                    Some(indexed) => indexed.at < entry.at,
                    None => false,
                };
                wrong += u64::from(is_wrong);
            }
            Ok(Ok((footer.entries.len() as u64, wrong)))
        })
        .await?;
    match outcome {
        Ok((records, wrong)) => {
            check.records = records;
            check.wrong_entries = wrong;
        }
        Err(error) => check.damage = Some(error.to_string()),
    }
    Ok(Some(check))
}

pub(crate) async fn rebuild(
    shared: &Arc<Shared>,
    progress: &mut Progress<'_>,
) -> Result<(), ColdError> {
    let listed = reconcile::names(shared).await?;
    let total = listed.len() as u64;
    let done = std::sync::atomic::AtomicU64::new(0);
    let progress = parking_lot::Mutex::new(progress);
    footers::read_many(shared, listed, |name, read| {
        let (done, progress) = (&done, &progress);
        async move {
            let so_far = done.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
            (progress.lock())(so_far, total);
            match read {
                Ok(read) => follow::merge(shared, name, read, None).await,
                Err(error @ ColdError::Segment { .. }) => {
                    follow::note_unreadable(shared, &name, &error);
                    Ok(())
                }
                Err(error) if error.is_not_found() => Ok(()),
                Err(error) => Err(error),
            }
        }
    })
    .await
}
