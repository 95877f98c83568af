//! All generations, newest first, and the reads that go over them.
//!
//! Invariant: of all records of a key, the one in the newest generation that has any is the newest.
//! The writer thread keeps it: it alone puts records into the newest generation, and copies an old
//! one there only if no newer generation has the key. So a read takes the first record it finds,
//! and the oldest generation can be dropped at any time.

use std::cell::Cell;
use std::sync::Arc;

use fonn_proto::Version;
use parking_lot::RwLock;
use tracing::{error, warn};

use super::directory::{Directory, GenerationName, disk_bytes, free_bytes};
use super::error::DiskError;
use super::forgotten;
use super::generation::{Generation, Holds, look_into, remove};
use super::index::IndexMemory;
use super::record::IndexEntry;
use super::state::StoreState;
use super::stats::{DiskStats, add};

/// All generations that count, newest first. A snapshot stays readable while generations come and
/// go.
pub(crate) type Snapshot = Arc<[Arc<Generation>]>;

/// The list of generations.
pub(crate) struct Generations {
    list: RwLock<Snapshot>,
}

/// An entry and where it was found.
pub(crate) struct Found {
    pub(crate) generation: Arc<Generation>,
    pub(crate) entry: IndexEntry,
}

impl Generations {
    pub(crate) fn new(list: Vec<Arc<Generation>>) -> Self {
        Self {
            list: RwLock::new(list.into()),
        }
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        Arc::clone(&self.list.read())
    }

    pub(crate) fn newest(&self) -> Option<Arc<Generation>> {
        self.list.read().first().cloned()
    }

    pub(crate) fn push_newest(&self, generation: Arc<Generation>) {
        let mut list = self.list.write();
        *list = std::iter::once(generation)
            .chain(list.iter().cloned())
            .collect();
    }

    /// Takes a generation off the list, unless it is the newest.
    pub(crate) fn remove(&self, id: u64) {
        let mut list = self.list.write();
        let newest = list.first().map(|newest| newest.id);
        *list = list
            .iter()
            .filter(|g| g.id != id || Some(g.id) == newest)
            .cloned()
            .collect();
    }

    /// Puts another incarnation in the place of one; false if that is not there any more.
    pub(crate) fn replace(&self, old: &Arc<Generation>, new: Arc<Generation>) -> bool {
        let mut list = self.list.write();
        let Some(at) = list.iter().position(|it| Arc::ptr_eq(it, old)) else {
            return false;
        };
        let mut replaced = list.to_vec();
        if let Some(place) = replaced.get_mut(at) {
            *place = new;
        }
        *list = replaced.into();
        true
    }

    /// The generation of this number, in its present incarnation.
    pub(crate) fn by_id(&self, id: u64) -> Option<Arc<Generation>> {
        self.list.read().iter().find(|it| it.id == id).cloned()
    }

    /// Drops all handles.
    pub(crate) fn clear(&self) {
        *self.list.write() = Arc::new([]);
    }

    pub(crate) fn disk_bytes(&self) -> u64 {
        self.list
            .read()
            .iter()
            .map(|generation| generation.disk_bytes())
            .sum()
    }

    /// The newest record of a key, be it a tombstone.
    ///
    /// # Errors
    /// [`DiskError::Index`] if an index that had to be asked cannot be read: the newest record is
    /// unknown.
    pub(crate) fn find(&self, key: &[u8]) -> Result<Option<Found>, DiskError> {
        for generation in self.snapshot().iter() {
            let entry = generation
                .index
                .get(key)
                .map_err(|reason| generation.unreadable(reason))?;
            if let Some(entry) = entry {
                return Ok(Some(Found {
                    generation: Arc::clone(generation),
                    entry,
                }));
            }
        }
        Ok(None)
    }
}

/// What is needed to open the generations of a directory.
pub(crate) struct Opening<'a> {
    pub(crate) directory: &'a Directory,
    pub(crate) memory: &'a IndexMemory,
    pub(crate) budget: u64,
    /// Bytes that the file system should have left.
    pub(crate) reserve: u64,
    /// The state file is damaged: what was flushed is not known, so nothing may be served.
    pub(crate) forget: bool,
    /// What was forgotten, and is with what is removed.
    pub(crate) forgotten: Forgotten,
    /// Generations beyond the budget are removed before they are opened.
    pub(crate) trim: bool,
    pub(crate) stats: &'a DiskStats,
}

/// Up to which version records may have been dropped, and be known nowhere.
pub(crate) struct Forgotten {
    version: Cell<Version>,
    /// No version at or above it was ever given out.
    ceiling: Version,
}

impl Forgotten {
    /// What is known of a directory; `state` is what was saved of it, if that is not damaged.
    pub(crate) fn load(
        directory: &Directory,
        state: Option<&StoreState>,
    ) -> Result<Self, DiskError> {
        let ceiling = state.map_or(0, |state| state.version_ceiling);
        let known = forgotten::load(directory.path());
        // The first one has the number 1: as long as it is there, nothing was dropped.
        let names = directory.generations()?;
        let is_complete = names.last().is_none_or(|oldest| oldest.id == 1);
        let version = known.unwrap_or(if is_complete { 0 } else { ceiling });
        // Without the file the next start finds out what this start did, or takes more for dropped.
        if known.is_none()
            && let Err(error) = forgotten::save(directory.path(), version)
        {
            warn!(%error, "cannot note that nothing was dropped yet");
        }
        Ok(Self {
            version: Cell::new(version),
            ceiling,
        })
    }

    /// Records up to this version may have been dropped.
    pub(crate) fn version(&self) -> Version {
        self.version.get()
    }
}

/// The generations of a directory, and the number that the next one gets.
pub(crate) struct OpenedAll {
    pub(crate) list: Vec<Arc<Generation>>,
    pub(crate) next_id: u64,
    /// Whether the newest may go on being written.
    pub(crate) writable: bool,
}

impl Opening<'_> {
    /// Opens what is there, newest first. From a generation on that cannot be opened or has lost
    /// records, older ones are removed: they might hold what it deleted.
    pub(crate) fn run(&self) -> Result<OpenedAll, DiskError> {
        let names = self.directory.generations()?;
        let next_id = names.first().map_or(1, |newest| newest.id + 1);
        let names = self.keep_within_budget(names)?;
        let mut list = Vec::new();
        let mut writable = false;
        let mut broken = None;
        let mut rest = names.into_iter();
        for name in rest.by_ref() {
            let dir = self.directory.generation(name);
            match Generation::open(dir, name, self.memory, self.stats) {
                Ok(opened) => {
                    writable |= list.is_empty() && opened.writable;
                    list.push(Arc::new(opened.generation));
                }
                Err(io @ DiskError::Io { .. }) => return Err(io),
                Err(reason) => {
                    error!(generation = name.id, %reason, "generation is broken: moving it aside and dropping all older ones");
                    add(&self.stats.generations_broken, 1);
                    broken = Some(name);
                    break;
                }
            }
        }
        if broken.is_some() {
            self.forget();
        }
        // The oldest first: a kill in between must leave nothing without what is newer than it.
        for name in rest.rev() {
            self.remove(name)?;
        }
        if let Some(name) = broken {
            let path = self.directory.generation(name);
            self.directory
                .set_aside(name)
                .map_err(DiskError::io("move aside", &path))?;
        }
        Ok(OpenedAll {
            list,
            next_id,
            writable,
        })
    }

    /// Removes remnants, incarnations that were replaced, and the oldest generations as far as
    /// there are too many bytes, before anything is opened that would need some.
    fn keep_within_budget(
        &self,
        names: Vec<GenerationName>,
    ) -> Result<Vec<GenerationName>, DiskError> {
        let mut kept = Vec::new();
        let mut gone = Vec::new();
        let mut total = self.directory.other_bytes().unwrap_or(0);
        let mut is_over = false;
        let mut replaced_by = None;
        for name in names {
            let dir = self.directory.generation(name);
            let bytes = disk_bytes(&dir).map_err(DiskError::io("measure", &dir))?;
            let is_replaced = replaced_by == Some(name.id);
            let holds = look_into(&dir, self.memory);
            if holds != Holds::Nothing {
                replaced_by = Some(name.id);
            }
            let is_nothing = is_replaced || holds != Holds::Generation;
            // With one that is too much, all older ones go.
            is_over |= self.trim && !is_nothing && !kept.is_empty() && total + bytes > self.budget;
            if self.forget || is_nothing || is_over {
                if !is_nothing {
                    self.forget();
                }
                gone.push(name);
            } else {
                total += bytes;
                kept.push(name);
            }
        }
        // The oldest first: a kill in between must leave nothing without what is newer than it.
        for name in gone.into_iter().rev() {
            self.remove(name)?;
        }
        while self.trim && kept.len() > 1 && self.is_disk_full() {
            if let Some(oldest) = kept.pop() {
                warn!(
                    generation = oldest.id,
                    "the file system is full: dropping the oldest generation"
                );
                self.forget();
                self.remove(oldest)?;
            }
        }
        Ok(kept)
    }

    /// Notes that generations are about to be removed which no reader has looked into: any version
    /// that was given out may be in them. With a tier below, that tier knows.
    fn forget(&self) {
        let Forgotten { version, ceiling } = &self.forgotten;
        if !self.trim || version.get() >= *ceiling {
            return;
        }
        version.set(*ceiling);
        if let Err(error) = forgotten::save(self.directory.path(), *ceiling) {
            warn!(%error, "cannot note what was dropped");
        }
    }

    fn is_disk_full(&self) -> bool {
        free_bytes(self.directory.path()).is_ok_and(|free| free < self.reserve)
    }

    fn remove(&self, name: GenerationName) -> Result<(), DiskError> {
        let dir = self.directory.generation(name);
        remove(&dir).map_err(DiskError::io("remove", &dir))
    }
}
