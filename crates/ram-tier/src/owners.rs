//! Namespaces with a quota: their entries have a recency list of their own in each shard, so that a
//! namespace over its quota gives up its own entries, the least recently used first, in constant
//! time each.
//!
//! Invariant: an entry is in the list of its namespace, if that has one, else in the common one.
//! [`Allowance::used`] is what the entries of all shards take that belong to the namespace.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fonn_base::entry::Space;

use super::LruMode;
use super::recency::Recency;

/// Bytes that are counted for an entry beside its block and shared value: its slot and place in the
/// table.
pub(super) const ENTRY_OVERHEAD: usize = 32;

/// What a namespace may take, and takes.
#[derive(Debug)]
pub(super) struct Allowance {
    pub namespace: u32,
    pub quota: usize,
    pub used: AtomicUsize,
    /// Entries and bytes that went because of the quota.
    pub evicted: AtomicUsize,
}

impl Allowance {
    pub fn over(&self) -> usize {
        self.used.load(Ordering::Relaxed).saturating_sub(self.quota)
    }
}

/// A namespace's list in one shard.
#[derive(Debug)]
struct Owner {
    allowance: Arc<Allowance>,
    recency: Recency,
}

/// The recency lists of one shard.
#[derive(Debug)]
pub(super) struct Lists {
    mode: LruMode,
    common: Recency,
    /// Sorted by namespace; few.
    owners: Vec<Owner>,
}

impl Lists {
    pub fn new(mode: LruMode) -> Self {
        Self {
            mode,
            common: Recency::new(mode),
            owners: Vec::new(),
        }
    }

    /// Whether any namespace has a list of its own: without one no caller needs to know an entry's
    /// space.
    pub fn are_many(&self) -> bool {
        !self.owners.is_empty()
    }

    fn owner(&self, namespace: u32) -> Option<usize> {
        self.owners
            .binary_search_by_key(&namespace, |owner| owner.allowance.namespace)
            .ok()
    }

    /// The list of a space's entries. `space` is asked only where it matters.
    pub fn of(&mut self, space: impl FnOnce() -> Space) -> &mut Recency {
        if self.owners.is_empty() {
            return &mut self.common;
        }
        match self.owner(space().namespace()) {
            Some(at) => &mut self.owners[at].recency,
            None => &mut self.common,
        }
    }

    /// The list of a namespace that has one of its own.
    pub fn owned(&self, namespace: u32) -> Option<&Recency> {
        self.owner(namespace).map(|at| &self.owners[at].recency)
    }

    /// All lists.
    pub fn all(&self) -> impl Iterator<Item = &Recency> {
        let owned = self.owners.iter().map(|owner| &owner.recency);
        std::iter::once(&self.common).chain(owned)
    }

    /// Counts bytes of an entry that came.
    pub fn add(&self, space: Space, bytes: usize) {
        if let Some(at) = self.owner(space.namespace()) {
            let used = &self.owners[at].allowance.used;
            used.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Counts bytes of an entry that went.
    pub fn sub(&self, space: Space, bytes: usize) {
        if let Some(at) = self.owner(space.namespace()) {
            let used = &self.owners[at].allowance.used;
            used.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Begins anew with these namespaces; all lists are empty then.
    pub fn reset(&mut self, allowances: &[Arc<Allowance>]) {
        self.common = Recency::new(self.mode);
        self.owners = allowances
            .iter()
            .map(|allowance| Owner {
                allowance: Arc::clone(allowance),
                recency: Recency::new(self.mode),
            })
            .collect();
    }
}
