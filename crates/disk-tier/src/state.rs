//! The small facts that must survive a restart and concern all entries: a file beside the
//! generations.
//!
//! It is replaced whole: written under another name, synced, renamed. There are two of it, because
//! without it nothing may be served: when one is damaged the other counts, and is copied. Layout:
//! `docs/formats/disk-record.md`.

use std::io;
use std::path::Path;

use fonn_base::entry::{Meta, Space};
use fonn_base::file::{self, is_damage};
use fonn_codec::checksum;
use fonn_proto::{PurgeScope, Version, WriterId};
use tracing::warn;

use super::error::DiskError;
use super::stats::{DiskStats, add};

const FILE: &str = "state";
const COPY: &str = "state.copy";
const MAGIC: [u8; 4] = *b"FNST";
const LAYOUT: u32 = 3;
/// Bytes of a flush mark.
const FLUSH_LEN: usize = 20;

/// Bytes of a purge with its cutoff.
const PURGE_LEN: usize = 24;

/// What survives a restart beside the entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreState {
    /// No version at or above it was ever given out.
    pub version_ceiling: Version,
    /// Flushes that still matter.
    pub flushes: Vec<FlushMark>,
    /// Purges of writers, each with its cutoff: lower versions of what it is about are gone.
    pub purges: Vec<(PurgeScope, Version)>,
}

/// A flush: entries of lower versions are gone from its time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushMark {
    /// The space it is about.
    pub space: Space,
    /// Entries whose version is below it are gone.
    pub cutoff: Version,
    /// Unix time in milliseconds from which on they are.
    pub at_ms: u64,
}

impl StoreState {
    /// Whether an entry was flushed at `now_ms`.
    #[must_use]
    pub fn is_flushed(&self, space: Space, version: Version, now_ms: u64) -> bool {
        self.flushes
            .iter()
            .any(|mark| mark.space == space && version < mark.cutoff && mark.at_ms <= now_ms)
    }

    /// Whether an entry with these facts was flushed or purged at `now_ms`.
    #[must_use]
    pub fn is_hidden(&self, space: Space, meta: &Meta, now_ms: u64) -> bool {
        let is_purged = |(purge, cutoff): &(PurgeScope, Version)| {
            meta.version < *cutoff && purge.covers(space, meta.writer, meta.version)
        };
        self.is_flushed(space, meta.version, now_ms)
            || meta.writer.is_known() && self.purges.iter().any(is_purged)
    }

    fn to_bytes(&self) -> Vec<u8> {
        let (flushes, purges) = (self.flushes.len(), self.purges.len());
        let mut out = Vec::with_capacity(24 + flushes * FLUSH_LEN + purges * PURGE_LEN);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&LAYOUT.to_le_bytes());
        out.extend_from_slice(&self.version_ceiling.to_le_bytes());
        out.extend_from_slice(&(flushes as u32).to_le_bytes());
        for mark in &self.flushes {
            out.extend_from_slice(&mark.space.0.to_le_bytes());
            out.extend_from_slice(&mark.cutoff.to_le_bytes());
            out.extend_from_slice(&mark.at_ms.to_le_bytes());
        }
        for (purge, cutoff) in &self.purges {
            out.extend_from_slice(&purge.writer.number().to_le_bytes());
            out.extend_from_slice(&purge.place().to_le_bytes());
            out.extend_from_slice(&purge.since.to_le_bytes());
            out.extend_from_slice(&cutoff.to_le_bytes());
        }
        out.extend_from_slice(&checksum::crc32c(&out).to_le_bytes());
        out
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (body, crc) = bytes.split_last_chunk::<4>()?;
        if checksum::crc32c(body).to_le_bytes() != *crc {
            return None;
        }
        let (head, marks) = body.split_first_chunk::<8>()?;
        if *head != [MAGIC, LAYOUT.to_le_bytes()].concat()[..] {
            return None;
        }
        let (ceiling, marks) = marks.split_first_chunk::<8>()?;
        let (flushes, marks) = marks.split_first_chunk::<4>()?;
        let flushes_len = (u32::from_le_bytes(*flushes) as usize).checked_mul(FLUSH_LEN)?;
        let (marks, purges) = marks.split_at_checked(flushes_len)?;
        let (marks, _) = marks.as_chunks::<FLUSH_LEN>();
        let (purges, rest) = purges.as_chunks::<PURGE_LEN>();
        let flushes = marks
            .iter()
            .map(FlushMark::parse)
            .collect::<Option<Vec<_>>>()?;
        let purges = purges.iter().map(parse_purge).collect::<Option<Vec<_>>>()?;
        rest.is_empty().then_some(Self {
            version_ceiling: u64::from_le_bytes(*ceiling),
            flushes,
            purges,
        })
    }
}

fn parse_purge(bytes: &[u8; PURGE_LEN]) -> Option<(PurgeScope, Version)> {
    let (writer, rest) = bytes.split_first_chunk::<4>()?;
    let (place, rest) = rest.split_first_chunk::<4>()?;
    let (since, cutoff) = rest.split_first_chunk::<8>()?;
    let writer = WriterId::new(u32::from_le_bytes(*writer));
    let purge = PurgeScope::new(
        writer,
        u32::from_le_bytes(*place),
        u64::from_le_bytes(*since),
    );
    Some((purge?, u64::from_le_bytes(cutoff.try_into().ok()?)))
}

impl FlushMark {
    fn parse(bytes: &[u8; FLUSH_LEN]) -> Option<Self> {
        let (space, rest) = bytes.split_first_chunk::<4>()?;
        let (cutoff, rest) = rest.split_first_chunk::<8>()?;
        let (at_ms, _) = rest.split_first_chunk::<8>()?;
        Some(Self {
            space: Space(u32::from_le_bytes(*space)),
            cutoff: u64::from_le_bytes(*cutoff),
            at_ms: u64::from_le_bytes(*at_ms),
        })
    }
}

/// What one of the two files says.
#[derive(Debug, PartialEq, Eq)]
enum Stored {
    State(StoreState),
    Missing,
    Damaged,
}

/// Reads the state of a data directory; the default one if none was ever saved, None if both files
/// are damaged.
///
/// # Errors
/// [`DiskError::Io`] if the operating system refuses.
pub(crate) fn load(dir: &Path, stats: &DiskStats) -> Result<Option<StoreState>, DiskError> {
    let (first, copy) = (read(dir, FILE)?, read(dir, COPY)?);
    let is_whole = first == copy;
    let state = match (first, copy) {
        (Stored::State(state), _) => state,
        (Stored::Missing, Stored::Missing) => return Ok(Some(StoreState::default())),
        (_, Stored::State(state)) => {
            warn!("the state file is damaged: its copy counts");
            add(&stats.files_mended, 1);
            state
        }
        _ => return Ok(None),
    };
    if !is_whole {
        // After a kill between the two, or because of damage: what was saved last is to be in both.
        save(dir, &state)?;
    }
    Ok(Some(state))
}

fn read(dir: &Path, name: &str) -> Result<Stored, DiskError> {
    let path = dir.join(name);
    match std::fs::read(&path) {
        Ok(bytes) => Ok(StoreState::parse(&bytes).map_or(Stored::Damaged, Stored::State)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Stored::Missing),
        Err(error) if is_damage(&error) => Ok(Stored::Damaged),
        Err(error) => Err(DiskError::io("read", &path)(error)),
    }
}

/// Whether there is a state that can be read: then the directory is a store's.
pub(crate) fn is_present(dir: &Path) -> bool {
    [FILE, COPY]
        .iter()
        .any(|name| matches!(read(dir, name), Ok(Stored::State(_))))
}

/// Replaces the state of a data directory; durable when it returns.
///
/// # Errors
/// [`DiskError::Io`]; after a restart it is the one before then.
pub(crate) fn save(dir: &Path, state: &StoreState) -> Result<(), DiskError> {
    let bytes = state.to_bytes();
    let path = dir.join(FILE);
    file::replace(&path, &bytes).map_err(DiskError::io("save", &path))?;
    if file::replace(&dir.join(COPY), &bytes).is_err() {
        // None is better than an older one.
        let _ = std::fs::remove_file(dir.join(COPY));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn purge() -> PurgeScope {
        PurgeScope {
            writer: WriterId::new(5),
            namespace: None,
            since: 10,
        }
    }

    fn state() -> StoreState {
        StoreState {
            purges: vec![(purge(), 12)],
            version_ceiling: 1 << 50,
            flushes: vec![
                FlushMark {
                    space: Space(0),
                    cutoff: 7,
                    at_ms: 8,
                },
                FlushMark {
                    space: Space(u32::MAX),
                    cutoff: 9,
                    at_ms: u64::MAX,
                },
            ],
        }
    }

    fn load(dir: &Path) -> Result<Option<StoreState>, DiskError> {
        super::load(dir, &DiskStats::default())
    }

    #[test]
    fn when_one_of_the_two_is_damaged_or_gone_the_other_counts_and_both_are_whole_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name| dir.path().join(name);
        for (name, other) in [(FILE, COPY), (COPY, FILE)] {
            save(dir.path(), &state()).unwrap();
            let stats = DiskStats::default();
            std::fs::write(path(name), b"rubbish").unwrap();
            assert_eq!(super::load(dir.path(), &stats).unwrap(), Some(state()));
            let mended = stats.snapshot().files_mended;
            assert_eq!(mended, u64::from(name == FILE), "{name}");
            std::fs::remove_file(path(other)).unwrap();
            assert_eq!(load(dir.path()).unwrap(), Some(state()), "{name}");
        }
        // What was saved last counts, wherever a kill came.
        let newer = StoreState::default();
        std::fs::write(path(FILE), newer.to_bytes()).unwrap();
        assert_eq!(load(dir.path()).unwrap(), Some(newer.clone()));
        std::fs::remove_file(path(FILE)).unwrap();
        assert_eq!(load(dir.path()).unwrap(), Some(newer));
        std::fs::write(path(FILE), b"rubbish").unwrap();
        std::fs::write(path(COPY), b"rubbish").unwrap();
        assert_eq!(load(dir.path()).unwrap(), None);
    }

    #[test]
    fn a_saved_state_is_loaded_and_the_first_one_is_the_default() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(load(dir.path()).unwrap(), Some(StoreState::default()));
        save(dir.path(), &state()).unwrap();
        assert_eq!(load(dir.path()).unwrap(), Some(state()));
    }

    #[test]
    fn a_torn_write_leaves_the_state_before_it() {
        let dir = tempfile::tempdir().unwrap();
        save(dir.path(), &state()).unwrap();
        let bytes = StoreState::default().to_bytes();
        for len in 0..bytes.len() {
            std::fs::write(dir.path().join("state.new"), &bytes[..len]).unwrap();
            assert_eq!(load(dir.path()).unwrap(), Some(state()));
        }
    }

    #[test]
    fn any_damage_to_the_state_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let bytes = state().to_bytes();
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            std::fs::write(dir.path().join(FILE), &damaged).unwrap();
            assert_eq!(load(dir.path()).unwrap(), None, "byte {at}");
            std::fs::write(dir.path().join(FILE), &bytes[..at]).unwrap();
            assert_eq!(load(dir.path()).unwrap(), None, "cut at {at}");
        }
    }

    #[test]
    fn a_flush_concerns_older_versions_of_its_space_from_its_time_on() {
        let state = StoreState {
            purges: Vec::new(),
            version_ceiling: 0,
            flushes: vec![FlushMark {
                space: Space(3),
                cutoff: 10,
                at_ms: 100,
            }],
        };
        assert!(state.is_flushed(Space(3), 9, 100));
        assert!(!state.is_flushed(Space(3), 10, 100));
        assert!(!state.is_flushed(Space(3), 9, 99));
        assert!(!state.is_flushed(Space(4), 9, 100));
    }

    #[test]
    fn a_purge_hides_what_its_writer_wrote_below_the_cutoff() {
        let state = state();
        let meta = |writer, version| Meta {
            writer: WriterId::new(writer),
            ..Meta::new(version, 0, 0)
        };
        let space = Space(3);
        assert!(state.is_hidden(space, &meta(5, 11), 0));
        assert!(!state.is_hidden(space, &meta(5, 12), 0));
        assert!(!state.is_hidden(space, &meta(5, 9), 0));
        assert!(!state.is_hidden(space, &meta(6, 11), 0));
        assert!(!state.is_hidden(space, &meta(0, 11), 0));
    }
}
