//! Looking into the bucket on an operator's behalf: list, inspect, verify, rebuild.

use std::collections::HashSet;

use fonn_base::boxed::BoxFuture;

use crate::ColdTier;
use crate::checkpoint::{SegmentFacts, SegmentState};
use crate::error::ColdError;
use crate::follow::{self, reconcile};
use crate::footers;
use crate::format::FormatError;
use crate::names::SegmentName;
use crate::segment::{FooterEntry, HEADER_LEN, TRAILER_LEN, verify as verify_bytes};
use crate::shared::Shared;
use crate::store::StoreErrorKind;

/// A segment, as its footer tells it.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// Bytes of its footer in the object.
    pub footer_len: u64,
    /// Its records, and whether the index leads to each.
    pub entries: Vec<(FooterEntry, bool)>,
}

/// The segments in the bucket, compared with the index.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// Those in the bucket, each with its length in bytes.
    pub listed: Vec<(SegmentName, u64)>,
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

/// What is told how far work is: segments done and in all.
pub type Progress<'p> = dyn FnMut(u64, u64) + Send + 'p;

impl ColdTier {
    /// Segments that the index knows, in the order of their names.
    #[must_use]
    pub fn list(&self) -> Vec<SegmentFacts> {
        let all = self.shared.index.table().all().into_iter();
        let mut all: Vec<SegmentFacts> = all.map(|(_, facts)| facts).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Reads a segment's footer: what is in it, and which of that counts.
    ///
    /// # Errors
    /// [`ColdError`].
    pub fn inspect<'a>(
        &'a self,
        name: &'a SegmentName,
    ) -> BoxFuture<'a, Result<Inspection, ColdError>> {
        Box::pin(async move {
            let (footer, size) = footers::read(&self.shared, name).await?;
            let name = name.clone();
            let look = self.shared.blocking(move |shared| {
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
                    footer_len: size.saturating_sub(around),
                    entries,
                })
            });
            look.await
        })
    }

    /// Compares the list of the segments in the bucket with the index.
    ///
    /// # Errors
    /// [`ColdError`].
    pub fn compare(&self) -> BoxFuture<'_, Result<Comparison, ColdError>> {
        Box::pin(async move {
            let listed = reconcile::list(&self.shared).await?;
            let in_bucket: HashSet<&SegmentName> = listed.iter().map(|(name, _)| name).collect();
            let mut missing = self.list();
            missing.retain(|facts| {
                let is_lost = matches!(facts.state, SegmentState::Lost { .. });
                facts.live_entries > 0 && !is_lost && !in_bucket.contains(&facts.name)
            });
            let missing = missing.into_iter().map(|facts| facts.name).collect();
            Ok(Comparison { listed, missing })
        })
    }

    /// Reads a segment as a whole and checks every byte, and the index against it. None if there is
    /// no such segment.
    ///
    /// # Errors
    /// [`ColdError`]: the bucket or the index failed; damage is in the answer.
    pub fn verify_segment<'a>(
        &'a self,
        name: &'a SegmentName,
    ) -> BoxFuture<'a, Result<Option<SegmentCheck>, ColdError>> {
        Box::pin(async move {
            let shared = &self.shared;
            let known = shared.index.table().number(name);
            let size = known.and_then(|id| Some(shared.index.table().facts(id)?.size));
            let size = size.unwrap_or(shared.options.segment_target_bytes);
            let _held = shared.reads.hold(size).await;
            let bytes = match shared.bucket().get(&name.key()).await {
                Ok(bytes) => bytes,
                Err(error) if error.kind == StoreErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            let name = name.clone();
            let checked = shared.blocking(move |shared| check(shared, &name, known, &bytes));
            checked.await.map(Some)
        })
    }

    /// Merges the footer of every segment in the bucket again, and marks segments that are gone.
    /// The index serves meanwhile. `progress` gets segments done and in all.
    ///
    /// # Errors
    /// [`ColdError`]; what was merged stays.
    pub fn rebuild<'a>(
        &'a self,
        progress: &'a mut Progress<'a>,
    ) -> BoxFuture<'a, Result<(), ColdError>> {
        Box::pin(async move {
            let shared = &self.shared;
            let listed = reconcile::names(shared).await?;
            let (mut done, total) = (0, listed.len() as u64);
            let merged = footers::read_many(shared, listed, |name, read| {
                done += 1;
                progress(done, total);
                async move {
                    match read {
                        Ok(read) => follow::merge(shared, read, None).await,
                        Err(error @ ColdError::Segment { .. }) => {
                            follow::note_unreadable(shared, &name, &error);
                            Ok(())
                        }
                        Err(error) if error.is_not_found() => Ok(()),
                        Err(error) => Err(error),
                    }
                }
            });
            merged.await?;
            reconcile::run(shared).await
        })
    }
}

/// Checks the bytes of a segment, which the index knows by the number `known`.
fn check(
    shared: &Shared,
    name: &SegmentName,
    known: Option<u32>,
    bytes: &[u8],
) -> Result<SegmentCheck, ColdError> {
    let mut check = SegmentCheck {
        bytes: bytes.len() as u64,
        ..SegmentCheck::default()
    };
    let wrong_name = FormatError::Field {
        part: "header",
        field: "name",
    };
    let footer = match verify_bytes(bytes) {
        Ok(footer) if footer.header.name() == *name => footer,
        other => {
            check.damage = Some(other.err().unwrap_or(wrong_name).to_string());
            return Ok(check);
        }
    };
    check.records = footer.entries.len() as u64;
    for entry in &footer.entries {
        let Some(indexed) = shared.index.entry(entry.hash())? else {
            continue;
        };
        // Only a copy at least as new may be in its place, or it was dropped.
        let is_wrong = if (Some(indexed.segment), indexed.at) == (known, entry.at) {
            indexed.len != entry.len
        } else {
            known.is_some() && indexed.at < entry.at
        };
        check.wrong_entries += u64::from(is_wrong);
    }
    Ok(check)
}
