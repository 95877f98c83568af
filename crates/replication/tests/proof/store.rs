//! The store of a member: the newest record of each key, with floors and eviction.

use std::collections::BTreeMap;

use fonn_base::hlc::VersionRange;

use fonn_replication::{
    Attempt, Cursor, Epoch, Page, PageRequest, Record, Rule, Rules, Slot, SlotSet, Version,
};

use super::clock::Clock;
use super::raft::Agreed;

pub type Key = u8;

/// What a write carries. The id names the write for the judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Entry {
    Value { key: Key, id: u32 },
    Delete { key: Key, id: u32 },
}

impl Entry {
    pub fn id(self) -> u32 {
        match self {
            Self::Value { id, .. } | Self::Delete { id, .. } => id,
        }
    }

    pub fn key(self) -> Key {
        match self {
            Self::Value { key, .. } | Self::Delete { key, .. } => key,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stored {
    record: Record<Entry>,
    at_ms: u64,
    uploaded: bool,
}

/// What a store knows about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreLookup {
    /// A value.
    Value(u32),
    /// The key was deleted.
    Deleted,
    /// Nothing.
    Nothing,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct SlotStore {
    keys: BTreeMap<Key, Stored>,
    /// Versions up to this one are hidden.
    hidden: Version,
}

impl SlotStore {
    fn retain(&mut self, keep: impl Fn(&Stored) -> bool) {
        self.keys.retain(|_, stored| keep(stored));
    }
}

/// How a store clears slots. The contract of the command leaves both to the shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Clearing {
    /// It removes what it had when the command came, in the background.
    Listed,
    /// It hides all versions up to the base of the range until it has removed them.
    UpToBase,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Removal {
    attempt: Attempt,
    slots: SlotSet,
    how: Clearing,
    /// The base of the range when it began.
    base: Version,
    /// What is removed at the end.
    listed: Vec<(Slot, Version)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Store {
    slots: Vec<SlotStore>,
    pub clock: Clock,
    epoch: Epoch,
    range: VersionRange,
    removals: Vec<Removal>,
    /// Versions below this one are flushed.
    flushed: Version,
}

const PAGE_RECORDS_MAX: usize = 2;

impl Store {
    pub fn new(slots_len: u16) -> Self {
        Self {
            slots: vec![SlotStore::default(); usize::from(slots_len)],
            clock: Clock::default(),
            epoch: Epoch(0),
            range: VersionRange::default(),
            removals: Vec::new(),
            flushed: Version(0),
        }
    }

    /// Hides what is here behind a version of the clock, and returns it.
    pub fn flush_now(&mut self, wall_ms: u64) -> Version {
        self.flushed = self.clock.assign(wall_ms);
        self.flushed
    }

    /// Hides what is below the version of another member, and assigns later ones from now on.
    pub fn flush_below(&mut self, cutoff: Version) {
        self.flushed = self.flushed.max(cutoff);
        self.clock.observe(cutoff);
    }

    pub fn flushed(&self) -> Version {
        self.flushed
    }

    fn visible(&self, slot: Slot, key: Key) -> Option<&Stored> {
        let stored = self.slots[usize::from(slot.0)].keys.get(&key);
        stored.filter(|stored| stored.record.version >= self.flushed)
    }

    /// Notes the range of versions of a topology that the core applies. Floors go by it.
    pub fn follow(&mut self, agreed: &Agreed, rules: Rules) {
        let range = match rules == Rules::without(Rule::Range) {
            true => VersionRange {
                base: 0,
                ceiling: u64::MAX,
            },
            false => agreed.versions,
        };
        let is_extended = self.epoch == agreed.topology.epoch;
        (self.epoch, self.range) = (agreed.topology.epoch, range);
        if is_extended {
            self.enter();
        }
    }

    /// Assigns versions in the range. Before the applied epoch is saved, a crash could return the
    /// member to an earlier epoch with versions of the later one.
    pub fn enter(&mut self) {
        self.clock.enter(self.range);
    }

    /// The epoch of the range of versions.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Executes a write: assigns a version and stores it.
    pub fn execute(
        &mut self,
        slot: Slot,
        admitted: Epoch,
        entry: Entry,
        (wall_ms, now_ms): (u64, u64),
    ) -> Option<Record<Entry>> {
        // In another epoch the member may not be the primary.
        if admitted != self.epoch {
            return None;
        }
        let version = self.clock.assign(wall_ms);
        // A copy from the bucket may have a version that the range does not have yet.
        if self.version(slot, entry.key()) >= version {
            return None;
        }
        let record = Record {
            slot,
            version,
            epoch: admitted,
            entry,
        };
        self.persist(record.clone(), now_ms);
        Some(record)
    }

    /// Keeps the newer version, with the later of both epochs.
    pub fn persist(&mut self, record: Record<Entry>, now_ms: u64) {
        self.clock.hear(record.version);
        let store = &mut self.slots[usize::from(record.slot.0)];
        if record.version <= store.hidden || record.version < self.flushed {
            return;
        }
        let key = record.entry.key();
        let mut new = Stored {
            record,
            at_ms: now_ms,
            uploaded: false,
        };
        if let Some(old) = store.keys.get_mut(&key) {
            old.record.epoch = old.record.epoch.max(new.record.epoch);
            if new.record.version <= old.record.version {
                return;
            }
            new.record.epoch = old.record.epoch;
        }
        store.keys.insert(key, new);
    }

    /// Keeps what the bucket returned. The feed does not have it, because the bucket has it.
    pub fn fill(&mut self, mut record: Record<Entry>, now_ms: u64) {
        record.epoch = Epoch(0);
        let (slot, key, version) = (record.slot, record.entry.key(), record.version);
        self.persist(record, now_ms);
        let store = &mut self.slots[usize::from(slot.0)];
        let filled = store.keys.get_mut(&key);
        if let Some(filled) = filled.filter(|stored| stored.record.version == version) {
            filled.uploaded = true;
        }
    }

    /// The record of a key.
    pub fn record(&self, slot: Slot, key: Key) -> Option<Stored> {
        self.slots[usize::from(slot.0)].keys.get(&key).cloned()
    }

    /// Loses a version that a crash found in memory alone. What it replaced is there again.
    pub fn lose(&mut self, slot: Slot, key: Key, version: Version, before: Option<Stored>) {
        let keys = &mut self.slots[usize::from(slot.0)].keys;
        if keys
            .get(&key)
            .is_some_and(|stored| stored.record.version == version)
        {
            keys.remove(&key);
            keys.extend(before.map(|before| (key, before)));
        }
    }

    /// Forgets which versions were assigned, except those that are stored.
    pub fn forget_clock(&mut self) {
        let stored = |store: &SlotStore| {
            let versions = store.keys.values().map(|stored| stored.record.version);
            versions.max()
        };
        let highest = self.slots.iter().filter_map(stored).max();
        self.clock = Clock::new(highest.unwrap_or_default());
    }

    /// Hides what the slots have up to the base of the range, for good.
    pub fn raise_floor(&mut self, slots: &SlotSet) {
        let base = Version(self.range.base);
        for &slot in slots {
            let store = &mut self.slots[usize::from(slot.0)];
            store.hidden = store.hidden.max(base);
            store.retain(|stored| stored.record.version > base);
        }
    }

    /// Begins to clear slots.
    pub fn clear(&mut self, attempt: Attempt, slots: &SlotSet, how: Clearing) {
        let mut listed = Vec::new();
        if how == Clearing::UpToBase {
            self.raise_floor(slots);
        }
        for &slot in slots {
            let store = &mut self.slots[usize::from(slot.0)];
            if how == Clearing::Listed {
                store.hidden = Version(0);
                let stored = store.keys.values();
                listed.extend(stored.map(|stored| (slot, stored.record.version)));
            }
        }
        // A crash finds a part of it done.
        for (slot, version) in listed.iter().step_by(2) {
            let store = &mut self.slots[usize::from(slot.0)];
            store.retain(|stored| stored.record.version != *version);
        }
        let slots = slots.clone();
        self.removals.push(Removal {
            attempt,
            slots,
            how,
            base: Version(self.range.base),
            listed,
        });
    }

    /// Ends what [`Store::clear`] began, and all removals that began before.
    pub fn end_clear(&mut self, attempt: Attempt) {
        let found = self.removals.iter().position(|r| r.attempt == attempt);
        let ended = found.map_or(0, |index| index + 1);
        for removal in self.removals.drain(..ended) {
            for &slot in &removal.slots {
                let store = &mut self.slots[usize::from(slot.0)];
                store.hidden = Version(0);
                store.retain(|stored| !removal.listed.contains(&(slot, stored.record.version)));
            }
        }
        for removal in self.removals.iter().filter(|r| r.how == Clearing::UpToBase) {
            for &slot in &removal.slots {
                self.slots[usize::from(slot.0)].hidden = removal.base;
            }
        }
    }

    /// Forgets the removals that a crash ended, and what only the process knew.
    pub fn crash(&mut self) {
        self.removals.clear();
        (self.epoch, self.range) = (Epoch(0), VersionRange::default());
        self.enter();
    }

    pub fn find(&self, slot: Slot, key: Key) -> StoreLookup {
        match self.visible(slot, key).map(|stored| stored.record.entry) {
            Some(Entry::Value { id, .. }) => StoreLookup::Value(id),
            Some(Entry::Delete { .. }) => StoreLookup::Deleted,
            None => StoreLookup::Nothing,
        }
    }

    /// The version of a key.
    pub fn version(&self, slot: Slot, key: Key) -> Version {
        let stored = self.visible(slot, key);
        stored.map_or(Version(0), |stored| stored.record.version)
    }

    /// A page. A full copy leaves out values that the bucket has.
    pub fn page(&self, request: PageRequest) -> Page<Entry> {
        let is_shown = |r: &Stored| r.record.version >= self.flushed;
        let wanted = |r: &Stored| match request.after {
            Some(after) => r.record.epoch > after,
            None => !r.uploaded || !matches!(r.record.entry, Entry::Value { .. }),
        };
        let mut records = Vec::new();
        let mut next = None;
        'slots: for slot in &request.slots {
            let store = &self.slots[usize::from(slot.0)];
            for (&key, stored) in store
                .keys
                .iter()
                .filter(|(_, stored)| wanted(stored) && is_shown(stored))
            {
                let [high, low] = slot.0.to_be_bytes();
                let cursor = [high, low, key];
                if cursor[..] < request.cursor[..] {
                    continue;
                }
                if records.len() == PAGE_RECORDS_MAX {
                    next = Some(Cursor::from(cursor));
                    break 'slots;
                }
                records.push(stored.record.clone());
            }
        }
        Page {
            request,
            records,
            next,
        }
    }

    /// Evicts records that were stored before a time. Returns the latest epoch among them, and the
    /// slots and keys.
    pub fn evict(&mut self, before_ms: u64, only_uploaded: bool) -> (Epoch, Vec<(Slot, Key)>) {
        let mut through = Epoch(0);
        let mut keys = Vec::new();
        let evicts = |r: &Stored| r.at_ms < before_ms && (r.uploaded || !only_uploaded);
        for store in &mut self.slots {
            let stored = store.keys.values();
            for Stored { record, .. } in stored.filter(|stored| evicts(stored)) {
                through = through.max(record.epoch);
                keys.push((record.slot, record.entry.key()));
            }
            store.retain(|stored| !evicts(stored));
        }
        (through, keys)
    }

    /// Loses what was stored after a time, as a crash without durable writes does. What is left
    /// does not tell which versions were assigned.
    pub fn lose_after(&mut self, after_ms: u64) {
        for store in &mut self.slots {
            store.retain(|stored| stored.at_ms <= after_ms);
        }
        self.clock = Clock::default();
    }

    /// The records that the bucket does not have, marked as uploaded.
    pub fn upload(&mut self) -> Vec<Record<Entry>> {
        let mut uploaded = Vec::new();
        for store in &mut self.slots {
            for stored in store.keys.values_mut() {
                if !std::mem::replace(&mut stored.uploaded, true) {
                    uploaded.push(stored.record.clone());
                }
            }
        }
        uploaded
    }
}
