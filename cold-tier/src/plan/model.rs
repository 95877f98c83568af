//! A bucket with its writers and a collector, small enough to try every way of going wrong.
//!
//! Keys are numbers. Versions count up over all writers, as the clocks of owners do: of one key
//! they are given in order. Every object is merged by the collector within the grace, in any order
//! over writers, as the plan demands.

use std::collections::BTreeMap;

use super::*;
use crate::checkpoint::IndexEntry;
use crate::names::{KeyHash, WriterId};
use crate::segment::{FlushMark, Footer, FooterEntry, HEADER_LEN, RECORD_HEAD_LEN, SegmentHeader};

pub(super) const GRACE_MS: u64 = 1000;
const SPACE: u32 = 0;
/// What header, footer and trailer add to a segment.
const OVERHEAD: u64 = 40;
/// The collector's place among the writers.
const COLLECTOR: usize = 3;

#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Put { ttl_ms: u64, len: u32 },
    Delete,
}

#[derive(Clone, Debug)]
pub(super) enum Op {
    /// A writer uploads a segment.
    Spill {
        writer: usize,
        records: Vec<(u8, Kind)>,
    },
    Flush {
        writer: usize,
    },
    Advance {
        ms: u64,
    },
    /// The collector merges the next segment of one writer.
    Follow {
        seed: usize,
    },
    Read {
        nth: usize,
    },
    /// One round, cut off after so many of its small steps.
    Collect {
        interrupt_after: usize,
    },
    /// The collector is a new process, with an index built from what is in the bucket.
    Restart,
}

#[derive(Clone, Debug)]
struct Object {
    footer: Footer,
    size: u64,
    /// When something was read from it last.
    read_ms: u64,
}

pub(super) struct World {
    pub(super) now_ms: u64,
    version: u64,
    objects: BTreeMap<u32, Object>,
    next_id: u32,
    next_seq: [u64; 4],
    /// Uploaded by each writer, not yet merged by the collector.
    unmerged: [Vec<u32>; 4],
    /// What happened last to each key, of what reached the bucket.
    newest: BTreeMap<u8, FooterEntry>,
    cutoff: u64,
    index: BTreeMap<KeyHash, IndexEntry>,
    /// What the collector knows of segments; live counts are computed when asked.
    known: BTreeMap<u32, SegmentFacts>,
    known_cutoff: u64,
    pub(super) budget: Option<u64>,
    pub(super) limits: PlanLimits,
    /// Tombstones go into segments of their own.
    pub(super) is_sorted: bool,
    pub(super) dropped: usize,
    pub(super) tombstones_written: usize,
    pub(super) deleted: usize,
    pub(super) merged: usize,
}

impl World {
    pub(super) fn new(budget: Option<u64>) -> Self {
        Self {
            now_ms: 1_000_000,
            version: 1,
            objects: BTreeMap::new(),
            next_id: 0,
            next_seq: [0; 4],
            unmerged: Default::default(),
            newest: BTreeMap::new(),
            cutoff: 0,
            index: BTreeMap::new(),
            known: BTreeMap::new(),
            known_cutoff: 0,
            budget,
            limits: PlanLimits {
                steps_max: 6,
                copy_bytes_max: 20_000,
                garbage_bytes_min: 100,
                segment_bytes: 8_000,
                merge_min: 3,
            },
            is_sorted: true,
            dropped: 0,
            tombstones_written: 0,
            deleted: 0,
            merged: 0,
        }
    }

    pub(super) fn physical(&self) -> u64 {
        self.objects.values().map(|object| object.size).sum()
    }

    /// Segments that count, by how small they are and whether they have values; the one that
    /// carries the flushes left out.
    pub(super) fn alike(&self) -> BTreeMap<(u32, bool), usize> {
        let mut alike = BTreeMap::new();
        let carrier = self.carrier();
        for (id, facts) in self.facts() {
            if facts.state == SegmentState::Live && facts.live_entries > 0 && carrier != Some(id) {
                let smallness = merge::smallness(facts.live_bytes, self.limits.segment_bytes);
                *alike.entry((smallness, has_values(&facts))).or_default() += 1;
            }
        }
        alike
    }

    pub(super) fn objects(&self) -> usize {
        self.objects.len()
    }

    pub(super) fn apply(&mut self, op: &Op) {
        match op {
            Op::Spill { writer, records } => self.spill(*writer, records),
            Op::Flush { writer } => {
                self.version += 1;
                self.cutoff = self.version;
                // Acknowledged once the bucket has it.
                self.spill(*writer, &[]);
            }
            Op::Advance { ms } => {
                self.now_ms += ms;
                self.catch_up();
            }
            Op::Follow { seed } => self.follow(*seed),
            Op::Read { nth } => {
                let count = self.objects.len().max(1);
                let now_ms = self.now_ms;
                if let Some(object) = self.objects.values_mut().nth(nth % count) {
                    object.read_ms = now_ms;
                }
            }
            Op::Collect { interrupt_after } => {
                self.collect(*interrupt_after);
            }
            Op::Restart => {
                self.index.clear();
                self.known.clear();
                self.known_cutoff = 0;
                self.unmerged = Default::default();
                for id in self.objects.keys().copied().collect::<Vec<_>>() {
                    self.merge(id);
                }
            }
        }
        self.check();
    }

    fn spill(&mut self, writer: usize, records: &[(u8, Kind)]) {
        let mut entries = Vec::new();
        for (key, kind) in records {
            self.version += 1;
            let (len, expires_at_ms) = match kind {
                Kind::Put { ttl_ms, len } if *ttl_ms > 0 => (*len, self.now_ms + ttl_ms),
                Kind::Put { len, .. } => (*len, 0),
                Kind::Delete => (0, 0),
            };
            entries.push(FooterEntry {
                space: SPACE,
                key: [*key].into(),
                at: self.version,
                expires_at_ms,
                offset: 0,
                len: RECORD_HEAD_LEN as u32 + 1 + len,
                tombstone: matches!(kind, Kind::Delete),
            });
        }
        for entry in &entries {
            self.newest.insert(entry.key[0], entry.clone());
        }
        let id = self.upload(writer, self.now_ms, entries, self.cutoff);
        self.unmerged[writer].push(id);
    }

    fn upload(
        &mut self,
        writer: usize,
        created_ms: u64,
        mut entries: Vec<FooterEntry>,
        cutoff: u64,
    ) -> u32 {
        let mut offset = HEADER_LEN as u64;
        for entry in &mut entries {
            entry.offset = offset;
            offset += u64::from(entry.len);
        }
        let data_len = offset - HEADER_LEN as u64;
        let space = SPACE;
        let footer = Footer {
            header: SegmentHeader {
                region: "r".parse().unwrap(),
                writer: WriterId::mint(0, writer as u128),
                seq: self.next_seq[writer],
                created_ms,
            },
            entries,
            flush_marks: (cutoff > 0)
                .then_some(FlushMark::of_space(space, cutoff))
                .into_iter()
                .collect(),
            data_len,
        };
        self.next_seq[writer] += 1;
        let id = self.next_id;
        self.next_id += 1;
        self.objects.insert(
            id,
            Object {
                footer,
                size: data_len + OVERHEAD,
                read_ms: 0,
            },
        );
        id
    }

    /// Merges the next segment of one writer.
    fn follow(&mut self, seed: usize) {
        let writer = seed % self.unmerged.len();
        if let Some(id) = self.unmerged[writer].first().copied() {
            self.unmerged[writer].remove(0);
            if self.objects.contains_key(&id) {
                self.merge(id);
            }
        }
    }

    /// Merges all that was uploaded.
    pub(super) fn follow_all(&mut self) {
        for writer in 0..self.unmerged.len() {
            while !self.unmerged[writer].is_empty() {
                self.follow(writer);
            }
        }
    }

    /// No node is behind for the grace.
    fn catch_up(&mut self) {
        for writer in 0..self.unmerged.len() {
            while self.unmerged[writer].first().is_some_and(|id| {
                self.objects.get(id).is_none_or(|object| {
                    self.now_ms >= object.footer.header.created_ms + GRACE_MS / 2
                })
            }) {
                self.follow(writer);
            }
        }
    }

    fn merge(&mut self, id: u32) {
        let object = &self.objects[&id];
        let created_ms = object.footer.header.created_ms;
        self.known.insert(id, object.footer.facts(object.size));
        for mark in &object.footer.flush_marks {
            self.known_cutoff = self.known_cutoff.max(mark.cutoff);
        }
        for entry in &object.footer.entries {
            let new = IndexEntry::of(id, entry);
            let merged = match self.index.get(&new.hash) {
                Some(present) => {
                    let present_ms = self.known[&present.segment].created_ms;
                    present.merge(present_ms, new, created_ms)
                }
                None => new,
            };
            self.index.insert(new.hash, merged);
        }
    }

    fn facts(&self) -> Vec<(u32, SegmentFacts)> {
        let mut all = self.known.clone();
        for (id, facts) in &mut all {
            facts.live_entries = 0;
            facts.live_bytes = 0;
            facts.last_read_ms = self.objects.get(id).map_or(0, |object| object.read_ms);
        }
        for entry in self.index.values() {
            let facts = all.get_mut(&entry.segment).unwrap();
            facts.live_entries += 1;
            facts.live_bytes += u64::from(entry.len);
        }
        all.into_iter().collect()
    }

    /// One round; whether there was anything to do.
    pub(super) fn collect(&mut self, interrupt_after: usize) -> bool {
        let mut left = interrupt_after;
        if self.known_cutoff > 0 && self.carrier().is_none() {
            let id = self.upload(COLLECTOR, self.now_ms, Vec::new(), self.known_cutoff);
            self.merge(id);
        }
        let segments = self.facts();
        let plan = plan(&PlanInput {
            now_ms: self.now_ms,
            segments: &segments,
            oldest: self.oldest(),
            budget: self.budget,
            grace_ms: GRACE_MS,
            tombstone_age_min_ms: GRACE_MS,
            hot_since_ms: self.now_ms - 3 * GRACE_MS,
            marks_in: self.carrier(),
            limits: self.limits,
        });
        assert!(plan.steps.len() <= self.limits.steps_max);
        self.check_frugality(&plan, &segments);
        let is_whole = |step: &Step| {
            matches!(
                step,
                Step::Rewrite {
                    keep: Keep::AllLive,
                    ..
                }
            )
        };
        for steps in plan.steps.chunk_by(|a, b| is_whole(a) && is_whole(b)) {
            let is_done = match steps {
                [Step::Delete(id)] => self.delete(*id, &mut left),
                [Step::Rewrite { segment, keep }] => self.rewrite(&[*segment], *keep, &mut left),
                merged => {
                    let ids: Vec<u32> = merged.iter().map(|step| step.segment()).collect();
                    self.merged += ids.len();
                    self.rewrite(&ids, Keep::AllLive, &mut left)
                }
            };
            self.check();
            if !is_done {
                return true;
            }
        }
        !plan.steps.is_empty()
    }

    fn oldest(&self) -> OldestValues {
        OldestValues::of(self.known.iter().map(|(id, facts)| (*id, facts)))
    }

    /// The newest segment that carries the flush the collector knows of.
    fn carrier(&self) -> Option<u32> {
        let is_carrier = |id: &&u32| {
            self.objects.get(*id).is_some_and(|object| {
                let marks = &object.footer.flush_marks;
                marks
                    .first()
                    .is_some_and(|mark| mark.cutoff == self.known_cutoff)
            })
        };
        self.known.keys().rev().find(is_carrier).copied()
    }

    fn delete(&mut self, id: u32, left: &mut usize) -> bool {
        if !take(left) {
            return false;
        }
        self.objects.remove(&id);
        self.deleted += 1;
        self.check();
        if !take(left) {
            return false;
        }
        self.index.retain(|_, entry| entry.segment != id);
        self.known.remove(&id);
        true
    }

    /// What is to be kept of some segments, in one of values and one of tombstones.
    fn rewrite(&mut self, ids: &[u32], keep: Keep, left: &mut usize) -> bool {
        if !take(left) {
            return false;
        }
        let mut values = Vec::new();
        let mut tombstones = Vec::new();
        let mut gone = Vec::new();
        let mut sources = Vec::new();
        let (mut after_ms, mut read_ms) = (0, 0);
        for id in ids {
            let Some(object) = self.objects.get(id).cloned() else {
                continue;
            };
            let facts = self.known[id].clone();
            sources.push(*id);
            after_ms = after_ms.max(facts.created_ms);
            read_ms = read_ms.max(object.read_ms);
            let is_settled = is_settled(&facts, self.now_ms, GRACE_MS);
            let oldest_other = self.oldest().besides(*id);
            let mut kept_bytes = 0;
            for entry in &object.footer.entries {
                let Some(present) = self.index.get(&entry.hash()) else {
                    continue;
                };
                if present.segment != *id || present.at != entry.at {
                    continue;
                }
                if entry.at < self.known_cutoff {
                    gone.push(present.hash);
                    continue;
                }
                let is_kept = match keep {
                    _ if present.tombstone || present.is_expired(self.now_ms) => false,
                    Keep::AllLive => true,
                    // Every other one was read, in a segment that was.
                    Keep::ReadSince(since_ms) => {
                        let bytes = kept_bytes + u64::from(entry.len);
                        object.read_ms >= since_ms
                            && entry.at % 2 == 0
                            && bytes <= facts.data_len / 2
                    }
                };
                if is_kept {
                    kept_bytes += u64::from(entry.len);
                    values.push(entry.clone());
                    continue;
                }
                self.dropped += usize::from(!present.tombstone);
                if !is_settled || tombstone_needed(present.at, present.shadows, oldest_other) {
                    self.tombstones_written += 1;
                    tombstones.push(FooterEntry {
                        tombstone: true,
                        expires_at_ms: 0,
                        len: (RECORD_HEAD_LEN + entry.key.len()) as u32,
                        ..entry.clone()
                    });
                } else {
                    gone.push(present.hash);
                }
            }
        }
        let created_ms = self.now_ms.max(after_ms + 1);
        let outputs = if self.is_sorted {
            vec![values, tombstones]
        } else {
            vec![values.into_iter().chain(tombstones).collect()]
        };
        let mut made = Vec::new();
        for entries in outputs {
            if entries.is_empty() {
                continue;
            }
            let new = self.upload(COLLECTOR, created_ms, entries, self.known_cutoff);
            self.check();
            made.push(new);
            if !take(left) {
                // What was uploaded is found like anybody's.
                self.unmerged[COLLECTOR].extend(made);
                return false;
            }
        }
        for new in made {
            self.objects.get_mut(&new).unwrap().read_ms = read_ms;
            self.merge(new);
        }
        for hash in gone {
            self.index.remove(&hash);
        }
        let since_ms = self.now_ms;
        for id in sources {
            self.known.get_mut(&id).unwrap().state = SegmentState::Doomed { since_ms };
        }
        true
    }

    /// Nothing is evicted while what stays is within the budget.
    fn check_frugality(&self, plan: &Plan, segments: &[(u32, SegmentFacts)]) {
        let stays: u64 = segments
            .iter()
            .filter(|(_, facts)| facts.state == SegmentState::Live || facts.live_entries > 0)
            .map(|(_, facts)| facts.size)
            .sum();
        if self.budget.is_none_or(|budget| stays <= budget) {
            let mut keeps = plan.steps.iter().filter_map(|step| match step {
                Step::Delete(_) => None,
                Step::Rewrite { keep, .. } => Some(keep),
            });
            assert!(keeps.all(|keep| *keep == Keep::AllLive), "{plan:?}");
        }
    }

    /// What a reader finds that builds its index from the objects there are.
    fn check(&self) {
        let mut index: BTreeMap<KeyHash, (IndexEntry, u64)> = BTreeMap::new();
        let mut cutoff = 0;
        for (id, object) in &self.objects {
            let created_ms = object.footer.header.created_ms;
            for mark in &object.footer.flush_marks {
                cutoff = cutoff.max(mark.cutoff);
            }
            for entry in &object.footer.entries {
                let new = IndexEntry::of(*id, entry);
                let merged = match index.get(&new.hash) {
                    Some((present, present_ms)) => present.merge(*present_ms, new, created_ms),
                    None => new,
                };
                let merged_ms = self.objects[&merged.segment].footer.header.created_ms;
                index.insert(new.hash, (merged, merged_ms));
            }
        }
        for (key, newest) in &self.newest {
            let found = index.get(&newest.hash()).map(|(entry, _)| entry);
            let is_gone = |at: Version, cutoff: u64, expires_at_ms: u64| {
                at < cutoff || (expires_at_ms != 0 && expires_at_ms <= self.now_ms)
            };
            let served = found.filter(|entry| {
                !entry.tombstone && !is_gone(entry.at, cutoff, entry.expires_at_ms)
            });
            if let Some(served) = served {
                assert!(
                    served.at >= newest.at,
                    "key {key} came back: {served:?}, {newest:?}"
                );
                assert!(!newest.tombstone && newest.at >= self.cutoff);
            }
            let counts =
                !newest.tombstone && !is_gone(newest.at, self.cutoff, newest.expires_at_ms);
            if counts && self.budget.is_none() {
                assert!(served.is_some(), "key {key} was lost: {newest:?}");
            }
        }
    }
}

/// One small step, if there is one left.
fn take(left: &mut usize) -> bool {
    let is_left = *left > 0;
    *left = left.saturating_sub(1);
    is_left
}
