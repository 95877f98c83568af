//! Marks: positions of the log that a later change feed begins at.
//!
//! Within one store the order of the log is the order in which records were taken. So the changes
//! since a mark are the keys whose newest record is behind it. A mark is the number of a generation
//! and an offset in its value log. Compaction writes a generation anew and moves its records. A
//! mark into such a generation means its beginning: the feed then names more keys than have
//! changed, and never fewer.
//!
//! Numbers of generations begin at 1 again in an emptied directory. So a mark also names its store,
//! by a random number in the file `marks`. The file is written at the first mark, and removed where
//! opening finds no generation. Layouts: `docs/formats/disk-record.md`.

use std::io;
use std::path::Path;

use fonn_base::file;
use parking_lot::Mutex;
use ring::rand::{SecureRandom, SystemRandom};
use tokio::sync::oneshot;

use super::error::DiskError;
use super::generations::Snapshot;
use super::number_file::{parse, to_bytes};
use super::queue::Order;
use super::{DiskTier, Shared};

const FILE: &str = "marks";
const MAGIC: [u8; 4] = *b"FNMK";

/// A position of the log of one store: records before it were taken earlier, those behind it later.
///
/// Marks of one store are ordered by age. Marks of different stores have an order too, without a
/// meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mark {
    /// The random number of the store.
    store: u64,
    place: Place,
}

/// A generation, and an offset in the value log that the writer wrote for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Place {
    pub(crate) generation: u64,
    pub(crate) offset: u64,
}

impl Mark {
    /// Its length in bytes.
    pub const LEN: usize = 24;

    /// As bytes: store, generation and offset, each 8 bytes in little-endian order.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        let fields = [self.store, self.place.generation, self.place.offset];
        for (to, field) in out.as_chunks_mut::<8>().0.iter_mut().zip(fields) {
            *to = field.to_le_bytes();
        }
        out
    }

    /// From bytes; None if these are not as long as a mark.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (fields, rest) = bytes.as_chunks::<8>();
        let [store, generation, offset] = fields else {
            return None;
        };
        rest.is_empty().then(|| Self {
            store: u64::from_le_bytes(*store),
            place: Place {
                generation: u64::from_le_bytes(*generation),
                offset: u64::from_le_bytes(*offset),
            },
        })
    }
}

/// The number of a store, which its marks carry.
pub(crate) struct StoreNumber(Mutex<Option<u64>>);

impl StoreNumber {
    /// Reads the number of a data directory, if a mark was ever made there.
    pub(crate) fn load(dir: &Path) -> Self {
        let bytes = std::fs::read(dir.join(FILE)).ok();
        Self(Mutex::new(bytes.and_then(|bytes| parse(MAGIC, &bytes))))
    }

    /// Whether marks of this store may exist.
    pub(crate) fn is_known(&self) -> bool {
        self.0.lock().is_some()
    }

    /// The number; the first call draws it and saves it.
    fn get_or_draw(&self, dir: &Path) -> Result<u64, DiskError> {
        let mut number = self.0.lock();
        if let Some(number) = *number {
            return Ok(number);
        }
        let draw_and_save = || {
            let mut bytes = [0; 8];
            let filled = SystemRandom::new().fill(&mut bytes);
            filled.map_err(|_| io::Error::other("the system has no random number"))?;
            let drawn = u64::from_le_bytes(bytes);
            file::replace(&dir.join(FILE), &to_bytes(MAGIC, drawn)).map(|_| drawn)
        };
        let drawn = draw_and_save().map_err(DiskError::io("save", &dir.join(FILE)))?;
        *number = Some(drawn);
        Ok(drawn)
    }
}

/// Makes the marks of a directory without generations void: numbers of generations begin anew
/// there.
pub(crate) fn void(dir: &Path) -> Result<(), DiskError> {
    let path = dir.join(FILE);
    let removed = match std::fs::remove_file(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        removed => removed.and_then(|()| file::sync_dir(dir)),
    };
    removed.map_err(DiskError::io("remove", &path))
}

/// The place behind the last record that was written. Called by the writer thread between two
/// batches.
pub(crate) fn end_of_log(generations: &Snapshot) -> Place {
    // A restart removes a newest generation without records. The one before may then be written
    // on.
    let mut newest = generations.iter();
    let last = newest.find(|it| it.committed() > 0);
    let Some(last) = last.or_else(|| generations.last()) else {
        return Place {
            generation: 0,
            offset: 0,
        };
    };
    Place {
        generation: last.id,
        // The offset counts in the first incarnation only.
        offset: if last.incarnation == 0 {
            last.committed()
        } else {
            0
        },
    }
}

/// Makes the log durable up to a place, and returns the mark of it. Else a loss of power could
/// shorten the log, and later records would take offsets before the mark.
fn keep(shared: &Shared, place: Place) -> Result<Mark, DiskError> {
    let store = shared.marks.get_or_draw(shared.directory.path())?;
    if let Some(generation) = shared.generations.by_id(place.generation) {
        let synced = shared.sync(&generation);
        let dir = shared.directory.path();
        synced.map_err(DiskError::io("sync a value log in", dir))?;
    }
    Ok(Mark { store, place })
}

/// Where a feed since a mark begins: the generations that it covers, newest first, and the offset
/// of its first record in the last of them. None if the feed would not be complete.
///
/// Generations are dropped oldest first. So none behind the mark was dropped while its own is
/// there.
pub(crate) fn begin(shared: &Shared, generations: &Snapshot, mark: &Mark) -> Option<(usize, u64)> {
    let Mark { store, place } = *mark;
    if *shared.marks.0.lock() != Some(store) {
        return None;
    }
    let at = generations
        .iter()
        .position(|it| it.id == place.generation)?;
    let generation = generations.get(at)?;
    let offset = match generation.incarnation {
        // A log that is shorter than it was has lost records.
        0 if place.offset > generation.committed() => return None,
        0 => place.offset,
        _ => 0,
    };
    Some((at + 1, offset))
}

impl DiskTier {
    /// Marks the present end of the log. Every write that was queued before the call is before the
    /// mark, and every write that is queued after the call returns is behind it. The log is durable
    /// up to the mark. Some milliseconds, like a sync.
    ///
    /// From now on, and after each restart, tombstones are written and kept as after
    /// [`DiskTier::keep_tombstones`], because the feed consists of them too.
    ///
    /// # Errors
    /// [`DiskError::Io`] if the log cannot be synced or the number of the store not be saved,
    /// [`DiskError::Busy`], [`DiskError::Closed`].
    ///
    /// # Cancel safety
    /// Cancelling it loses nothing.
    pub async fn mark(&self) -> Result<Mark, DiskError> {
        let shared = &self.handle.shared;
        shared.keep_tombstones();
        let (answer, answered) = oneshot::channel();
        shared.queue.push_order(Order::Mark(answer));
        let place = answered.await.map_err(|_| DiskError::Closed)?;
        // It takes as long as a sync.
        let sync = move |shared: &Shared| keep(shared, place);
        self.ask(&shared.walks, sync).await
    }

    /// Whether a feed since the mark is complete: the log still has every change behind it, as far
    /// as a later change did not replace it. No means that the slots are to be copied in full. No
    /// I/O.
    #[must_use]
    pub fn holds(&self, mark: &Mark) -> bool {
        let shared = &self.handle.shared;
        begin(shared, &shared.generations.snapshot(), mark).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_from_its_bytes_and_from_no_others() {
        let mark = Mark {
            store: 1 << 60,
            place: Place {
                generation: 7,
                offset: 5 << 40,
            },
        };
        let bytes = mark.to_bytes();
        assert_eq!(Mark::parse(&bytes), Some(mark));
        assert_eq!(bytes[8..16], 7_u64.to_le_bytes());
        assert_eq!(Mark::parse(&bytes[1..]), None);
        assert_eq!(Mark::parse(&[&bytes[..], &[0]].concat()), None);
        assert_eq!(Mark::parse(&[]), None);
    }

    #[test]
    fn the_number_of_a_store_outlives_a_restart_and_damage_voids_its_marks() {
        let dir = tempfile::tempdir().unwrap();
        let number = || StoreNumber::load(dir.path());
        assert!(!number().is_known());
        let drawn = number().get_or_draw(dir.path()).unwrap();
        assert_eq!(number().get_or_draw(dir.path()).unwrap(), drawn);
        let bytes = to_bytes(MAGIC, drawn);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            std::fs::write(dir.path().join(FILE), &damaged).unwrap();
            assert!(!number().is_known(), "byte {at}");
        }
        assert_ne!(number().get_or_draw(dir.path()).unwrap(), drawn);
        void(dir.path()).unwrap();
        void(dir.path()).unwrap();
        assert!(!number().is_known());
    }
}
