//! Judges what clients of one cluster see.
//!
//! Times are positions in the sequence of all events. A write is before another one if it was
//! answered before the other one began. A read must not return a value that is before an
//! acknowledged write. A miss must not hide an acknowledged value that nothing removed. A write may
//! depend on the value that it replaces, so no acknowledged write may lie between the two versions.

use std::collections::HashMap;

use fonn_replication::Version;

use super::store::Key;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Value,
    Gone,
}

#[derive(Clone, Copy, Debug)]
struct Operation {
    began: u64,
    /// When it was answered, refused, or given up because its member crashed.
    ended: Option<u64>,
    /// The member answered that it did nothing.
    skipped: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct KeyState {
    /// The latest beginning of an acknowledged write or deletion.
    acknowledged: u64,
    /// The latest beginning of an acknowledged value.
    value: u64,
    /// The latest end of a deletion, acknowledged or not.
    gone: u64,
    gone_open: u32,
    /// When the key was last evicted somewhere, or all owners of its slot were lost.
    forgotten: u64,
    /// A write of another region may hide those of this region.
    foreign: bool,
}

/// Where a write is in the order of versions, and which version it replaced when it was executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replaced {
    pub replaced: Version,
    pub version: Version,
}

pub struct Judge {
    now: u64,
    operations: HashMap<u32, Operation>,
    keys: Vec<Vec<KeyState>>,
    /// The acknowledged writes of each key since its slot was lost last.
    replaced: HashMap<(u16, Key), Vec<Replaced>>,
    pub reads: u64,
    pub hits: u64,
    pub acknowledged: u64,
    pub flushes: u64,
    /// Flushes that are not answered.
    flushing: u32,
    /// The latest end of a flush.
    flushed: u64,
}

/// The slot and the key that an operation is about.
pub type Scope = (u16, Key);

impl Judge {
    pub fn new(slots: u16, keys: u8) -> Self {
        Self {
            now: 1,
            operations: HashMap::new(),
            replaced: HashMap::new(),
            keys: vec![vec![KeyState::default(); usize::from(keys)]; usize::from(slots)],
            reads: 0,
            hits: 0,
            acknowledged: 0,
            flushes: 0,
            flushing: 0,
            flushed: 0,
        }
    }

    fn time(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    fn key(&mut self, (slot, key): Scope) -> &mut KeyState {
        &mut self.keys[usize::from(slot)][usize::from(key)]
    }

    pub fn begin(&mut self, id: u32, kind: Kind, scope: Scope) {
        let began = self.time();
        let operation = Operation {
            began,
            ended: None,
            skipped: false,
        };
        self.operations.insert(id, operation);
        if kind == Kind::Gone {
            self.key(scope).gone_open += 1;
        }
    }

    fn end(&mut self, id: u32, kind: Kind, scope: Scope) -> u64 {
        let ended = self.time();
        let operation = self.operations.get_mut(&id).expect("it has begun");
        operation.ended = Some(ended);
        let began = operation.began;
        if kind == Kind::Gone {
            let key = self.key(scope);
            key.gone_open -= 1;
            key.gone = ended;
        }
        began
    }

    pub fn acknowledge(&mut self, id: u32, kind: Kind, scope: Scope) {
        self.acknowledged += 1;
        let began = self.end(id, kind, scope);
        let key = self.key(scope);
        key.acknowledged = key.acknowledged.max(began);
        if kind == Kind::Value {
            key.value = key.value.max(began);
        }
    }

    /// A flush deletes all keys. Returns when it began.
    pub fn begin_flush(&mut self) -> u64 {
        let began = self.time();
        self.flushing += 1;
        self.replaced.clear();
        for key in self.keys.iter_mut().flatten() {
            key.gone_open += 1;
        }
        began
    }

    pub fn end_flush(&mut self, began: u64, is_acknowledged: bool) {
        let ended = self.time();
        self.flushing -= 1;
        self.flushed = ended;
        self.flushes += u64::from(is_acknowledged);
        self.replaced.clear();
        for key in self.keys.iter_mut().flatten() {
            key.gone_open -= 1;
            key.gone = ended;
            if is_acknowledged {
                key.acknowledged = key.acknowledged.max(began);
            }
        }
    }

    /// Whether a flush ran while a write did: it may have hidden the write, or what the write
    /// replaced.
    pub fn is_flushed(&self, id: u32) -> bool {
        let began = self.operations.get(&id).map_or(0, |it| it.began);
        self.flushing > 0 || began <= self.flushed
    }

    /// An acknowledged write may be hidden by a flush that was refused.
    pub fn doubt(&mut self, scope: Scope) {
        let now = self.time();
        self.key(scope).forgotten = now;
    }

    /// Judges that an acknowledged write replaced the one before it.
    pub fn replaced(&mut self, slot: u16, key: Key, write: Replaced) -> Result<(), String> {
        let others = self.replaced.entry((slot, key)).or_default();
        let between = |a: &Replaced, b: &Replaced| a.replaced < b.version && b.version < a.version;
        let skips = |other: &&Replaced| between(&write, other) || between(other, &write);
        if let Some(other) = others.iter().find(skips) {
            return Err(format!(
                "lost: slot {slot} key {key}: {write:?} and {other:?}"
            ));
        }
        others.push(write);
        Ok(())
    }

    /// The write may have been carried out in part.
    pub fn fail(&mut self, id: u32, kind: Kind, scope: Scope) {
        self.end(id, kind, scope);
    }

    /// The member answered that it did nothing.
    pub fn skip(&mut self, id: u32, kind: Kind, scope: Scope) {
        self.end(id, kind, scope);
        self.operations.get_mut(&id).expect("it has begun").skipped = true;
    }

    pub fn evicted(&mut self, slot: u16, key: Key) {
        let now = self.time();
        self.replaced.remove(&(slot, key));
        self.key((slot, key)).forgotten = now;
    }

    pub fn foreign(&mut self, scope: Scope) {
        self.key(scope).foreign = true;
    }

    /// All owners of a slot were lost. A bucket may then return what it had of a key. If it had
    /// nothing of this cluster, it may get an older write of a member that comes back.
    pub fn lost(&mut self, slot: u16, key: Key, bucket: Option<Option<u32>>) {
        let now = self.time();
        let began = |id: u32| self.operations.get(&id).map_or(0, |o| o.began);
        let known = bucket.map(|id| id.map_or(0, began));
        self.replaced.remove(&(slot, key));
        let key = self.key((slot, key));
        key.forgotten = now;
        key.acknowledged = key.acknowledged.min(known.unwrap_or(u64::MAX));
    }

    /// Judges a read of this moment.
    pub fn read(&mut self, slot: u16, key: Key, shown: Option<u32>) -> Result<(), String> {
        self.reads += 1;
        let state = self.keys[usize::from(slot)][usize::from(key)];
        let Some(id) = shown else {
            let removed = state.gone_open > 0 || state.gone > state.value;
            let kept = state.value > 0 && !removed && state.forgotten < state.value;
            if kept && !state.foreign {
                return Err(format!("lost: slot {slot} key {key} is a miss"));
            }
            return Ok(());
        };
        self.hits += 1;
        let Some(operation) = self.operations.get(&id) else {
            return Ok(()); // a value of another region
        };
        if operation.skipped {
            return Err(format!("write {id} shows, which was answered as not done"));
        }
        if operation
            .ended
            .is_some_and(|ended| ended < state.acknowledged)
        {
            return Err(format!(
                "stale: slot {slot} key {key} shows write {id}, which ended before a write began \
                 that is acknowledged"
            ));
        }
        Ok(())
    }
}
