//! Copies that left the node before the bucket had them: what they hid must stay hidden.
//!
//! Each leaves a tombstone that is in no segment yet, and a row with its key, from which the
//! spiller writes one into the next segment. Merging that segment gives the tombstone its place.

use std::collections::HashMap;

use super::database::Batch;
use super::table::Deltas;
use super::{Index, IndexError};
use crate::checkpoint::IndexEntry;
use crate::names::KeyHash;
use crate::observer::CopyRef;
use crate::segment::Version;

/// The segment of what is in none.
pub(super) const NOWHERE: u32 = u32::MAX;

const PREFIX_LOST: &[u8] = b"lost/";

/// How many rows are in memory at once, and about how many bytes of their keys.
pub(super) const PAGE_MAX: (usize, usize) = (4096, 1 << 20);

/// A tombstone that has to be in the bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LostRow {
    pub(crate) space: u32,
    pub(crate) key: Vec<u8>,
    pub(crate) at: Version,
}

/// Rows of one piece of the index.
#[derive(Debug)]
pub(crate) struct LostPage {
    pub(crate) rows: Vec<LostRow>,
    /// The last place that was looked at, behind which the next page begins. None if there was
    /// nothing to look at.
    pub(crate) next: Option<Vec<u8>>,
}

/// Whether no flush of a space hides a version.
pub(crate) type IsVisible<'a> = &'a dyn Fn(u32, Version) -> bool;

impl Index {
    /// Notes copies that are about to go, and puts all that the index knows on the disk. Copies
    /// that the index has, or has something newer for, are not lost; returns how many are.
    pub(crate) fn lose(&self, copies: &[CopyRef<'_>]) -> Result<u64, IndexError> {
        let _writer = self.writer.lock();
        let mut batch = Batch::default();
        let mut deltas = Deltas::default();
        let mut count = 0;
        // A key may be told twice.
        let mut noted: HashMap<KeyHash, IndexEntry> = HashMap::new();
        for copy in copies {
            let hash = KeyHash::of(copy.space, copy.key);
            let present = match noted.get(&hash) {
                Some(noted) => Some(*noted),
                None => self.database.entry(hash)?,
            };
            if present.is_some_and(|present| present.at >= copy.at) {
                continue;
            }
            count += 1;
            if let Some(present) = &present {
                deltas.lost(present);
            }
            let entry = IndexEntry {
                hash,
                space: copy.space,
                segment: NOWHERE,
                offset: 0,
                len: 0,
                at: copy.at,
                expires_at_ms: 0,
                tombstone: true,
                shadows: true,
            };
            noted.insert(hash, entry);
            batch.put_entry(entry);
            batch.put_meta(row_key(copy.space, copy.key), row_value(copy.at));
        }
        let changed = deltas.apply(&mut self.table.write());
        self.put_rows(changed, &mut batch);
        if !batch.is_empty() {
            self.database.commit(batch)?;
        }
        // The disk tier drops the copies next, durably. Newer entries, for which a copy is not
        // lost, must be as durable by then.
        self.database.sync()?;
        Ok(count)
    }

    /// Tombstones that are in no segment yet, from behind the place `after` on, which is empty for
    /// the first page. Rows of others are removed, and tombstones that a flush hides: it hides all
    /// that they hide, and no segment takes them.
    pub(crate) fn lost(
        &self,
        after: &[u8],
        is_visible: IsVisible<'_>,
    ) -> Result<LostPage, IndexError> {
        let _writer = self.writer.lock();
        self.open_rows(after, is_visible)
    }

    /// Whether there is a tombstone that is in no segment yet. The caller is the writer.
    pub(super) fn has_open_row(&self, is_visible: IsVisible<'_>) -> Result<bool, IndexError> {
        let mut after: Vec<u8> = Vec::new();
        loop {
            let page = self.open_rows(&after, is_visible)?;
            if !page.rows.is_empty() {
                return Ok(true);
            }
            let Some(next) = page.next else {
                return Ok(false);
            };
            after = next;
        }
    }

    /// [`Index::lost`] of a caller that is the writer.
    fn open_rows(&self, after: &[u8], is_visible: IsVisible<'_>) -> Result<LostPage, IndexError> {
        let found = self.database.meta_page(PREFIX_LOST, after, PAGE_MAX)?;
        let next = found.last().map(|(name, _)| name.clone());
        let mut rows = Vec::new();
        let mut batch = Batch::default();
        for (name, value) in found {
            let row = parse_row(&name, &value)?;
            let hash = KeyHash::of(row.space, &row.key);
            let entry = self.database.entry(hash)?;
            let is_open = entry.is_some_and(|it| it.segment == NOWHERE && it.at == row.at);
            if is_open && is_visible(row.space, row.at) {
                rows.push(row);
                continue;
            }
            if is_open {
                batch.remove_entry(hash);
            }
            batch.remove_meta(row_key(row.space, &row.key));
        }
        if !batch.is_empty() {
            self.database.commit(batch)?;
        }
        Ok(LostPage { rows, next })
    }
}

fn row_key(space: u32, key: &[u8]) -> Vec<u8> {
    [PREFIX_LOST, &space.to_be_bytes(), key].concat()
}

fn row_value(at: Version) -> Vec<u8> {
    at.to_le_bytes().to_vec()
}

/// `name` is what follows the prefix.
fn parse_row(name: &[u8], value: &[u8]) -> Result<LostRow, IndexError> {
    let unreadable = || IndexError::unreadable("row of a lost copy");
    let (space, key) = name.split_first_chunk::<4>().ok_or_else(unreadable)?;
    let version = value.try_into().map_err(|_| unreadable())?;
    Ok(LostRow {
        space: u32::from_be_bytes(*space),
        key: key.to_vec(),
        at: u64::from_le_bytes(version),
    })
}
