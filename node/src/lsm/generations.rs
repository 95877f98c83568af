//! All generations, newest first, and the reads that go over them.
//!
//! Invariant: of all records of a key, the one in the newest generation that has any is the newest.
//! The writer thread keeps it: it alone puts records into the newest generation, and copies an old
//! one there only if no newer generation has the key. So a read takes the first record it finds, and
//! the oldest generation can be dropped at any time.

use std::sync::Arc;

use parking_lot::RwLock;
use tracing::{error, warn};

use super::directory::{Directory, disk_bytes, free_bytes};
use super::error::DiskError;
use super::generation::{Generation, is_remnant, remove};
use super::index::{IndexError, IndexMemory};
use super::record::IndexEntry;
use super::stats::{DiskStats, add};

/// All generations that count, newest first. A snapshot stays readable while generations come and go.
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

/// An index that had to be asked could not be read: nobody knows what the key's newest record is.
#[derive(Debug)]
pub(crate) struct Unreadable {
    pub(crate) generation: u64,
    pub(crate) reason: IndexError,
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
    pub(crate) fn find(&self, key: &[u8]) -> Result<Option<Found>, Unreadable> {
        for generation in self.snapshot().iter() {
            let entry = generation.index.get(key).map_err(|reason| Unreadable {
                generation: generation.id,
                reason,
            })?;
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
    pub(crate) stats: &'a DiskStats,
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
        let ids = self.directory.generations()?;
        let next_id = ids.first().map_or(1, |newest| newest + 1);
        let ids = self.keep_within_budget(ids)?;
        let mut list = Vec::new();
        let mut writable = false;
        let mut rest = ids.into_iter();
        for id in rest.by_ref() {
            let dir = self.directory.generation(id);
            match Generation::open(dir, id, self.memory, self.stats) {
                Ok(opened) => {
                    writable |= list.is_empty() && opened.writable;
                    list.push(Arc::new(opened.generation));
                    if opened.lossy {
                        error!(
                            generation = id,
                            "records are lost: dropping all older generations"
                        );
                        add(&self.stats.generations_broken, 1);
                        break;
                    }
                }
                Err(io @ DiskError::Io { .. }) => return Err(io),
                Err(reason) => {
                    error!(generation = id, %reason, "generation is broken: moving it aside and dropping all older ones");
                    add(&self.stats.generations_broken, 1);
                    let path = self.directory.generation(id);
                    self.directory
                        .set_aside(id)
                        .map_err(DiskError::io("move aside", &path))?;
                    break;
                }
            }
        }
        for id in rest {
            self.remove(id)?;
        }
        Ok(OpenedAll {
            list,
            next_id,
            writable,
        })
    }

    /// Removes remnants, and the oldest generations as far as there are too many bytes, before anything
    /// is opened that would need some.
    fn keep_within_budget(&self, ids: Vec<u64>) -> Result<Vec<u64>, DiskError> {
        let mut kept = Vec::new();
        let mut total = self.directory.other_bytes().unwrap_or(0);
        for id in ids {
            let dir = self.directory.generation(id);
            let bytes = disk_bytes(&dir).map_err(DiskError::io("measure", &dir))?;
            let too_much = !kept.is_empty() && total + bytes > self.budget;
            if self.forget || too_much || is_remnant(&dir) {
                self.remove(id)?;
            } else {
                total += bytes;
                kept.push(id);
            }
        }
        while kept.len() > 1 && self.is_disk_full() {
            if let Some(oldest) = kept.pop() {
                warn!(
                    generation = oldest,
                    "the file system is full: dropping the oldest generation"
                );
                self.remove(oldest)?;
            }
        }
        Ok(kept)
    }

    fn is_disk_full(&self) -> bool {
        free_bytes(self.directory.path()).is_ok_and(|free| free < self.reserve)
    }

    fn remove(&self, id: u64) -> Result<(), DiskError> {
        let dir = self.directory.generation(id);
        remove(&dir).map_err(DiskError::io("remove", &dir))
    }
}
