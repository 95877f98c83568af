//! The segments that the index knows, in RAM: small (some hundred bytes each), and asked at each
//! read.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::checkpoint::{IndexEntry, SegmentFacts, SegmentState};
use crate::names::{Region, SegmentName};

/// Segments by number and by name.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: BTreeMap<u32, Row>,
    numbers: HashMap<SegmentName, u32>,
    next: u32,
}

#[derive(Debug)]
struct Row {
    facts: SegmentFacts,
    /// Raised by readers, which do not lock for writing.
    last_read_ms: AtomicU64,
}

impl Table {
    pub(crate) fn with_next(next: u32) -> Self {
        Self {
            next,
            ..Self::default()
        }
    }

    /// Adds or replaces a row.
    pub(crate) fn put(&mut self, id: u32, facts: SegmentFacts) {
        self.next = self.next.max(id.saturating_add(1));
        self.numbers.insert(facts.name.clone(), id);
        let last_read_ms = AtomicU64::new(facts.last_read_ms);
        self.rows.insert(
            id,
            Row {
                facts,
                last_read_ms,
            },
        );
    }

    pub(crate) fn remove(&mut self, id: u32) {
        if let Some(row) = self.rows.remove(&id) {
            self.numbers.remove(&row.facts.name);
        }
    }

    /// The number of the next new segment. Numbers are never used twice, so that an entry left
    /// behind by a crash leads nowhere instead of to another segment.
    pub(crate) fn next(&self) -> u32 {
        self.next
    }

    pub(crate) fn number(&self, name: &SegmentName) -> Option<u32> {
        self.numbers.get(name).copied()
    }

    /// What is known of a segment, with the time of its last read.
    pub(crate) fn facts(&self, id: u32) -> Option<SegmentFacts> {
        let row = self.rows.get(&id)?;
        Some(SegmentFacts {
            last_read_ms: row.last_read_ms.load(Ordering::Relaxed),
            ..row.facts.clone()
        })
    }

    pub(crate) fn state(&self, id: u32) -> Option<SegmentState> {
        Some(self.rows.get(&id)?.facts.state)
    }

    pub(crate) fn name(&self, id: u32) -> Option<&SegmentName> {
        Some(&self.rows.get(&id)?.facts.name)
    }

    /// Notes that something in a segment was read.
    pub(crate) fn note_read(&self, id: u32, now_ms: u64) {
        if let Some(row) = self.rows.get(&id) {
            row.last_read_ms.fetch_max(now_ms, Ordering::Relaxed);
        }
    }

    /// The segments from which something was read, with the time of the last read.
    pub(crate) fn reads(&self) -> impl Iterator<Item = (&SegmentName, u64)> {
        let rows = self.rows.values();
        let reads = rows.map(|row| (&row.facts.name, row.last_read_ms.load(Ordering::Relaxed)));
        reads.filter(|(_, last_ms)| *last_ms > 0)
    }

    pub(crate) fn all(&self) -> Vec<(u32, SegmentFacts)> {
        let ids = self.rows.keys();
        ids.filter_map(|&id| Some((id, self.facts(id)?))).collect()
    }

    /// Bytes of each region's segments that are in the bucket. Of other regions than `own` only
    /// those in which anything counts: what they have replaced, they delete unseen.
    pub(crate) fn region_bytes(&self, own: &Region) -> BTreeMap<Region, u64> {
        let mut sizes: BTreeMap<Region, u64> = BTreeMap::new();
        for Row { facts, .. } in self.rows.values() {
            let is_lost = matches!(facts.state, SegmentState::Lost { .. });
            let region = &facts.name.region;
            if is_lost || (facts.live_entries == 0 && region != own) {
                continue;
            }
            // There are few regions: most rows need no copy of the name.
            match sizes.get_mut(region) {
                Some(bytes) => *bytes += facts.size,
                None => {
                    sizes.insert(region.clone(), facts.size);
                }
            }
        }
        sizes
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// When a segment was made; None if it is unknown or lost.
    pub(crate) fn created_ms(&self, id: u32) -> Option<u64> {
        let facts = &self.rows.get(&id)?.facts;
        let is_lost = matches!(facts.state, SegmentState::Lost { .. });
        (!is_lost).then_some(facts.created_ms)
    }
}

/// Changes to rows that are written with the batch that causes them.
#[derive(Debug, Default)]
pub(crate) struct Deltas(HashMap<u32, Delta>);

#[derive(Clone, Copy, Debug, Default)]
struct Delta {
    entries: i32,
    bytes: i64,
}

impl Deltas {
    /// An entry leads to its segment from now on.
    pub(crate) fn gained(&mut self, entry: &IndexEntry) {
        self.change(entry, 1);
    }

    /// An entry does so no more.
    pub(crate) fn lost(&mut self, entry: &IndexEntry) {
        self.change(entry, -1);
    }

    fn change(&mut self, entry: &IndexEntry, sign: i32) {
        let delta = self.0.entry(entry.segment).or_default();
        delta.entries += sign;
        delta.bytes += i64::from(sign) * i64::from(entry.len);
    }

    /// Applies them, and names the rows that changed.
    pub(crate) fn apply(self, table: &mut Table) -> Vec<u32> {
        let mut changed = Vec::with_capacity(self.0.len());
        for (id, delta) in self.0 {
            if let Some(row) = table.rows.get_mut(&id) {
                let facts = &mut row.facts;
                facts.live_entries = facts.live_entries.saturating_add_signed(delta.entries);
                facts.live_bytes = facts.live_bytes.saturating_add_signed(delta.bytes);
                changed.push(id);
            }
        }
        changed
    }
}
