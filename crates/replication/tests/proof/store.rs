//! The store of a member: the newest record of each key, with floors, flushes and eviction.

use std::collections::BTreeMap;

use fonn_replication::{Epoch, Page, PageRequest, Record, Slot, Version};

pub type Key = u8;

/// What a write carries. The id names the write for the judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Entry {
    Value { key: Key, id: u32 },
    Delete { key: Key, id: u32 },
    Flush { id: u32 },
}

impl Entry {
    pub fn id(self) -> u32 {
        match self {
            Self::Value { id, .. } | Self::Delete { id, .. } | Self::Flush { id } => id,
        }
    }

    fn key(self) -> Option<Key> {
        match self {
            Self::Value { key, .. } | Self::Delete { key, .. } => Some(key),
            Self::Flush { .. } => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Stored {
    version: Version,
    epoch: Epoch,
    entry: Entry,
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
    /// All that is older than this version was flushed.
    Flushed(Version),
    /// Nothing.
    Nothing,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct SlotStore {
    keys: BTreeMap<Key, Stored>,
    flush: Option<Stored>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Store {
    slots: Vec<SlotStore>,
}

const PAGE_RECORDS_MAX: usize = 2;

impl Store {
    pub fn new(slots_len: u16) -> Self {
        Self {
            slots: vec![SlotStore::default(); usize::from(slots_len)],
        }
    }

    /// Keeps the newer version, with the later of both epochs.
    pub fn persist(&mut self, slot: Slot, record: Record<Entry>, now_ms: u64) {
        let store = &mut self.slots[usize::from(slot.0)];
        let mut new = Stored {
            version: record.version,
            epoch: record.epoch,
            entry: record.entry,
            at_ms: now_ms,
            uploaded: false,
        };
        let key = new.entry.key();
        if let (Some(_), Some(flush)) = (key, &mut store.flush)
            && flush.version.supersedes(new.version)
        {
            flush.epoch = flush.epoch.max(new.epoch);
            return;
        }
        let old = match key {
            Some(key) => store.keys.get_mut(&key),
            None => store.flush.as_mut(),
        };
        if let Some(old) = old {
            old.epoch = old.epoch.max(new.epoch);
            if !new.version.supersedes(old.version) {
                return;
            }
            new.epoch = old.epoch;
        }
        let Some(key) = key else {
            store.keys.retain(|_, old| {
                let remains = old.version.supersedes(new.version);
                if !remains {
                    new.epoch = new.epoch.max(old.epoch);
                }
                remains
            });
            store.flush = Some(new);
            return;
        };
        store.keys.insert(key, new);
    }

    pub fn raise_floor(&mut self, slot: Slot) {
        self.slots[usize::from(slot.0)] = SlotStore::default();
    }

    pub fn find(&self, slot: Slot, key: Key) -> StoreLookup {
        let store = &self.slots[usize::from(slot.0)];
        match (store.keys.get(&key), store.flush) {
            (Some(record), _) => match record.entry {
                Entry::Value { id, .. } => StoreLookup::Value(id),
                _ => StoreLookup::Deleted,
            },
            (None, Some(flush)) => StoreLookup::Flushed(flush.version),
            (None, None) => StoreLookup::Nothing,
        }
    }

    /// A page. A full copy leaves out values that the bucket has.
    pub fn page(&self, request: PageRequest) -> Page<Entry> {
        let store = &self.slots[usize::from(request.slot.0)];
        let mut page = Page {
            request,
            records: Vec::new(),
            next: None,
        };
        let wanted = |r: &Stored| match request.after {
            Some(after) => r.epoch > after,
            None => !r.uploaded || !matches!(r.entry, Entry::Value { .. }),
        };
        let record = |r: &Stored| Record {
            version: r.version,
            epoch: r.epoch,
            entry: r.entry,
        };
        if request.cursor == 0 {
            page.records
                .extend(store.flush.iter().filter(|r| wanted(r)).map(record));
        }
        for (&key, stored) in &store.keys {
            let cursor = u64::from(key) + 1;
            if cursor < request.cursor.max(1) || !wanted(stored) {
                continue;
            }
            if page.records.len() == PAGE_RECORDS_MAX {
                page.next = Some(cursor);
                break;
            }
            page.records.push(record(stored));
        }
        page
    }

    /// Evicts records that were stored before a time. Returns the latest epoch among them, and the
    /// slots and keys.
    pub fn evict(&mut self, before_ms: u64, only_uploaded: bool) -> (Epoch, Vec<(Slot, Key)>) {
        let mut through = Epoch(0);
        let mut keys = Vec::new();
        let evicts = |r: &Stored| r.at_ms < before_ms && (r.uploaded || !only_uploaded);
        for (index, store) in (0u16..).zip(&mut self.slots) {
            if let Some(flush) = store.flush.filter(|f| evicts(f)) {
                through = through.max(flush.epoch);
                store.flush = None;
            }
            store.keys.retain(|&key, r| {
                if evicts(r) {
                    through = through.max(r.epoch);
                    keys.push((Slot(index), key));
                }
                !evicts(r)
            });
        }
        (through, keys)
    }

    /// Loses what was stored after a time, as a crash without durable writes does.
    pub fn lose_after(&mut self, after_ms: u64) {
        for store in &mut self.slots {
            store.flush = store.flush.filter(|f| f.at_ms <= after_ms);
            store.keys.retain(|_, r| r.at_ms <= after_ms);
        }
    }

    /// The records that the bucket does not have, marked as uploaded.
    pub fn upload(&mut self) -> Vec<(Slot, Record<Entry>)> {
        let mut uploaded = Vec::new();
        for (index, store) in (0u16..).zip(&mut self.slots) {
            for stored in store.keys.values_mut().chain(store.flush.iter_mut()) {
                if !std::mem::replace(&mut stored.uploaded, true) {
                    let record = Record {
                        version: stored.version,
                        epoch: stored.epoch,
                        entry: stored.entry,
                    };
                    uploaded.push((Slot(index), record));
                }
            }
        }
        uploaded
    }
}
