//! Copying what counts out of segments that are mostly garbage.
//!
//! The values of several segments go into one, their tombstones into another: one without values
//! hinders the deletion of nothing. Old segments are doomed only when both are in the bucket and in
//! the index.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use crate::checkpoint::{IndexEntry, SegmentFacts, SegmentState};
use crate::error::ColdError;
use crate::footers;
use crate::format::FormatError;
use crate::memory::Held;
use crate::names::KeyHash;
use crate::plan::{Keep, is_settled, is_young, tombstone_needed};
use crate::segment::{Fact, Footer, FooterEntry, Record, SegmentBuilder, Version};
use crate::shared::Shared;
use crate::status::Counters;
use crate::upload::{Names, upload};

/// Records with less than this between them are read together, in bytes.
const GAP_MAX: u64 = 256 << 10;
/// Bytes that are read at a time, unless one record is longer.
const READ_BYTES: u64 = 8 << 20;

/// What becomes of a record of the old segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Another copy counts.
    Ignore,
    /// It is copied.
    Copy,
    /// A tombstone takes its place.
    Hide,
    /// It goes without a trace.
    Forget,
}

/// What decides it.
struct Judge<'a> {
    segment: u32,
    facts: &'a SegmentFacts,
    keep: Keep,
    /// The version of the oldest value in any other segment.
    oldest_other: Version,
    now_ms: u64,
    grace_ms: u64,
    tombstone_age_min_ms: u64,
}

impl Judge<'_> {
    /// `kept` is whether the plan's choice keeps it; `is_visible` whether no flush hides it.
    fn fate(
        &self,
        record: &FooterEntry,
        indexed: Option<&IndexEntry>,
        is_visible: bool,
        kept: bool,
    ) -> Fate {
        let Some(indexed) = indexed else {
            return Fate::Ignore;
        };
        if (indexed.segment, indexed.offset) != (self.segment, record.offset) {
            return Fate::Ignore;
        }
        if !is_visible {
            return Fate::Forget;
        }
        let is_value = !record.tombstone && !indexed.tombstone;
        if is_value && kept && !indexed.is_expired(self.now_ms) {
            return Fate::Copy;
        }
        let is_young = is_young(record.at, self.now_ms, self.tombstone_age_min_ms);
        let is_needed = tombstone_needed(record.at, indexed.shadows, self.oldest_other);
        let is_settled = is_settled(self.facts, self.now_ms, self.grace_ms);
        if is_needed || !is_settled || (record.tombstone && is_young) {
            Fate::Hide
        } else {
            Fate::Forget
        }
    }
}

/// Segments that are being written, and those they are made from.
pub(super) struct Rewriter<'a> {
    shared: &'a Arc<Shared>,
    names: &'a mut Names,
    values: Option<SegmentBuilder>,
    tombstones: Vec<(u32, Box<[u8]>, Version)>,
    sources: Vec<Source>,
    held: Option<Held>,
    /// When the newest of the old segments was made: the new ones are newer.
    after_ms: u64,
}

struct Source {
    id: u32,
    forget: Vec<KeyHash>,
}

/// A record to be copied.
struct Wanted {
    record: FooterEntry,
    indexed: IndexEntry,
}

impl<'a> Rewriter<'a> {
    pub(super) fn new(shared: &'a Arc<Shared>, names: &'a mut Names) -> Self {
        Self {
            shared,
            names,
            values: None,
            tombstones: Vec::new(),
            sources: Vec::new(),
            held: None,
            after_ms: 0,
        }
    }

    /// Copies what is to be kept of a segment.
    pub(super) async fn add(
        &mut self,
        id: u32,
        facts: &SegmentFacts,
        keep: Keep,
    ) -> Result<(), ColdError> {
        self.after_ms = self.after_ms.max(facts.created_ms);
        let (footer, _) = footers::read(self.shared, &facts.name).await?;
        let mut source = Source {
            id,
            forget: Vec::new(),
        };
        let judge = Judge {
            segment: id,
            facts,
            keep,
            oldest_other: self.shared.oldest_values(&BTreeSet::new()).besides(id),
            now_ms: self.shared.wall_ms(),
            grace_ms: self.shared.options.grace_ms(),
            tombstone_age_min_ms: self.shared.options.tombstone_age_min_ms(),
        };
        let wanted = self.choose(&judge, footer, &mut source).await?;
        for group in groups(&wanted) {
            self.copy(
                facts,
                wanted.get(group).unwrap_or_default(),
                &judge,
                &mut source,
            )
            .await?;
        }
        self.sources.push(source);
        Ok(())
    }

    /// Judges all records of a segment, and gives those to be copied in their order.
    async fn choose(
        &mut self,
        judge: &Judge<'_>,
        footer: Footer,
        source: &mut Source,
    ) -> Result<Vec<Wanted>, ColdError> {
        let hashes: Vec<KeyHash> = footer.entries.iter().map(FooterEntry::hash).collect();
        let asked = hashes.clone();
        let indexed = self
            .shared
            .blocking(move |shared| {
                let found = asked.iter().map(|hash| shared.index.entry(*hash));
                Ok(found.collect::<Result<Vec<_>, _>>()?)
            })
            .await?;
        let mut kept_bytes = 0;
        let mut wanted = Vec::new();
        for ((record, hash), indexed) in footer.entries.into_iter().zip(hashes).zip(indexed) {
            let is_kept = match judge.keep {
                Keep::AllLive => true,
                Keep::ReadSince(since_ms) => {
                    let is_hot = self.shared.recent.lock().last_ms(&hash) >= since_ms.max(1);
                    is_hot && (kept_bytes + u64::from(record.len)) * 2 <= judge.facts.data_len
                }
            };
            let is_visible = self.shared.is_visible(record.space, record.at);
            match (
                judge.fate(&record, indexed.as_ref(), is_visible, is_kept),
                indexed,
            ) {
                (Fate::Copy, Some(indexed)) => {
                    kept_bytes += u64::from(record.len);
                    wanted.push(Wanted { record, indexed });
                }
                (Fate::Hide, _) => self.hide(record),
                (Fate::Forget, _) => source.forget.push(hash),
                (Fate::Ignore, _) | (Fate::Copy, None) => {}
            }
        }
        Ok(wanted)
    }

    fn hide(&mut self, record: FooterEntry) {
        self.tombstones.push((record.space, record.key, record.at));
    }

    /// Copies records that are read together.
    async fn copy(
        &mut self,
        facts: &SegmentFacts,
        group: &[Wanted],
        judge: &Judge<'_>,
        source: &mut Source,
    ) -> Result<(), ColdError> {
        let (Some(first), Some(last)) = (group.first(), group.last()) else {
            return Ok(());
        };
        let range = first.record.offset..last.record.offset + u64::from(last.record.len);
        if self.held.is_none() {
            let segment_bytes = self.shared.options.segment_bytes();
            self.held = Some(self.shared.uploads.hold(segment_bytes).await);
        }
        let mut bytes = self.read(facts, range.clone()).await?;
        let mut is_second = false;
        for wanted in group {
            let record = loop {
                if let Some(record) = find(&bytes, range.start, wanted) {
                    break Some(record);
                }
                if is_second {
                    break None;
                }
                // Maybe damaged on its way.
                is_second = true;
                bytes = self.read(facts, range.clone()).await?;
            };
            match record {
                Some(record) => self.push(&record).await?,
                None => {
                    tracing::error!(name = %facts.name, offset = wanted.record.offset, "a damaged record is dropped");
                    let hole = IndexEntry {
                        tombstone: true,
                        ..wanted.indexed
                    };
                    match judge.fate(&wanted.record, Some(&hole), true, false) {
                        Fate::Hide => self.hide(wanted.record.clone()),
                        _ => source.forget.push(wanted.record.hash()),
                    }
                }
            }
        }
        Ok(())
    }

    async fn read(&self, facts: &SegmentFacts, range: Range<u64>) -> Result<Bytes, ColdError> {
        let key = facts.name.key();
        Ok(self.shared.bucket().get_range(&key, range).await?)
    }

    async fn push(&mut self, bytes: &Bytes) -> Result<(), ColdError> {
        // Its checksum was right a moment ago.
        let Ok(record) = Record::decode(bytes) else {
            return Ok(());
        };
        let segment_bytes = self.shared.options.segment_bytes();
        let is_full = |values: &SegmentBuilder| {
            !values.is_empty() && values.len() + bytes.len() as u64 > segment_bytes
        };
        if self.values.as_ref().is_some_and(is_full) {
            // The source goes on in the next one, and is doomed after that.
            self.flush().await?;
        }
        for _ in 0..2 {
            let values = self.values.get_or_insert_default();
            match values.push_shared(&record, bytes) {
                Err(FormatError::Full { .. }) => self.flush().await?,
                Ok(()) | Err(_) => return Ok(()),
            }
        }
        Ok(())
    }

    /// Brings what was collected into the bucket and the index, then dooms the segments it is from.
    async fn flush(&mut self) -> Result<(), ColdError> {
        if let Some(values) = self.values.take() {
            upload(self.shared, self.names, values, self.after_ms).await?;
        }
        self.shared.crash_point("values-moved").await;
        let mut tombstones = std::mem::take(&mut self.tombstones).into_iter().peekable();
        while tombstones.peek().is_some() {
            let mut builder = SegmentBuilder::new();
            while let Some((space, key, at)) = tombstones.peek() {
                let record = Record {
                    space: *space,
                    key,
                    at: *at,
                    fact: Fact::Tombstone,
                };
                if builder.push(&record).is_err() {
                    break;
                }
                tombstones.next();
            }
            upload(self.shared, self.names, builder, self.after_ms).await?;
        }
        self.held = None;
        self.shared.crash_point("moved").await;
        for source in std::mem::take(&mut self.sources) {
            let since_ms = self.shared.wall_ms();
            let dropped = source.forget.len() as u64;
            Counters::add(&self.shared.counters.dropped_entries, dropped);
            self.shared
                .blocking(move |shared| {
                    shared.index.forget(source.id, source.forget)?;
                    let left = shared.index.table().facts(source.id);
                    // What was merged meanwhile and is there again: the next plan sees it.
                    if left.is_some_and(|left| left.live_entries == 0) {
                        let doomed = SegmentState::Doomed { since_ms };
                        shared.index.set_state(source.id, doomed)?;
                    }
                    Ok(())
                })
                .await?;
            self.shared.crash_point("doomed").await;
        }
        Ok(())
    }

    /// Finishes what was begun.
    pub(super) async fn finish(mut self) -> Result<(), ColdError> {
        self.flush().await
    }
}

/// Records that are read together.
fn groups(wanted: &[Wanted]) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    let mut start = 0;
    let mut end = 0;
    for (index, wanted) in wanted.iter().enumerate() {
        let record = wanted.record.offset..wanted.record.offset + u64::from(wanted.record.len);
        let is_near = record.start <= end + GAP_MAX && record.end - start <= READ_BYTES;
        match groups.last_mut() {
            Some(group) if is_near => group.end = index + 1,
            _ => {
                start = record.start;
                groups.push(index..index + 1);
            }
        }
        end = record.end;
    }
    groups
}

/// A record in bytes that begin at `start`, if it is whole and the one that is wanted.
fn find(bytes: &Bytes, start: u64, wanted: &Wanted) -> Option<Bytes> {
    let from = usize::try_from(wanted.record.offset - start).ok()?;
    let to = from.checked_add(usize::try_from(wanted.record.len).ok()?)?;
    if to > bytes.len() {
        return None;
    }
    let bytes = bytes.slice(from..to);
    let record = Record::decode(&bytes).ok()?;
    let is_it = record.space == wanted.record.space
        && *record.key == *wanted.record.key
        && record.at == wanted.record.at;
    is_it.then_some(bytes)
}
