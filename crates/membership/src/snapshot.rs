//! The file that the last snapshot of the state is in.
//!
//! Little endian:
//!
//! | offset | size | meaning |
//! | --- | --- | --- |
//! | 0 | 8 | `FONNRS01` |
//! | 8 | 4 | CRC32C of all that follows |
//! | 12 | 4 | length of the meta data in bytes |
//! | 16 | – | meta data (what the snapshot covers), JSON |
//! | – | – | the [`State`](super::state::State), JSON |
//!
//! It is replaced whole: at any crash the old or the new one is there. The entries that it covers
//! are gone from the log, so a damaged one is an error and never read as none.

use std::io;
use std::path::{Path, PathBuf};

use fonn_base::file;
use fonn_codec::checksum;

use super::file_error::FileError;
use super::types::SnapshotMeta;

const MAGIC: &[u8; 8] = b"FONNRS01";
/// Longest snapshot that is taken from another member, in bytes. The bounds of the state keep it
/// below.
pub(super) const LEN_MAX: u64 = 64 << 20;

/// A snapshot as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) meta: SnapshotMeta,
    pub(super) state: Vec<u8>,
}

/// Reads the snapshot in `dir`, if there is one.
pub(super) fn load(dir: &Path) -> Result<Option<Stored>, FileError> {
    let path = path(dir);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(FileError::io(&path)(error)),
    };
    match decode(&bytes) {
        Some(stored) => Ok(Some(stored)),
        None => Err(FileError::of_magic(path, &bytes, MAGIC)),
    }
}

/// Puts a snapshot in the place of the last one. Blocks until it is on disk.
pub(super) fn save(dir: &Path, stored: &Stored) -> Result<(), FileError> {
    let path = path(dir);
    let replaced = file::replace(&path, &encode(stored));
    replaced.map(drop).map_err(FileError::io(&path))
}

fn path(dir: &Path) -> PathBuf {
    dir.join("snapshot")
}

fn encode(stored: &Stored) -> Vec<u8> {
    let meta = serde_json::to_vec(&stored.meta).expect("the meta data has a JSON form");
    let mut body = (meta.len() as u32).to_le_bytes().to_vec();
    body.extend_from_slice(&meta);
    body.extend_from_slice(&stored.state);
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&checksum::crc32c(&body).to_le_bytes());
    bytes.extend_from_slice(&body);
    bytes
}

fn decode(bytes: &[u8]) -> Option<Stored> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let (crc, body) = rest.split_first_chunk::<4>()?;
    if checksum::crc32c(body) != u32::from_le_bytes(*crc) {
        return None;
    }
    let (len, rest) = body.split_first_chunk::<4>()?;
    let (meta, state) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    Some(Stored {
        meta: serde_json::from_slice(meta).ok()?,
        state: state.to_vec(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stored(state: &[u8]) -> Stored {
        Stored {
            meta: SnapshotMeta {
                snapshot_id: "3-7".to_owned(),
                ..SnapshotMeta::default()
            },
            state: state.to_vec(),
        }
    }

    #[test]
    fn the_last_one_saved_is_loaded() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(load(dir.path()).unwrap(), None);
        for state in [&b"one"[..], b"", b"three"] {
            save(dir.path(), &stored(state)).unwrap();
            assert_eq!(load(dir.path()).unwrap(), Some(stored(state)));
        }
    }

    #[test]
    fn damage_anywhere_is_an_error_and_not_an_empty_state() {
        let dir = tempfile::tempdir().unwrap();
        save(dir.path(), &stored(b"state")).unwrap();
        let path = path(dir.path());
        let good = std::fs::read(&path).unwrap();
        for at in 0..good.len() {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            std::fs::write(&path, &bytes).unwrap();
            let loaded = load(dir.path());
            let is_refused = match at {
                // The number of the format.
                6 | 7 => matches!(loaded, Err(FileError::Newer { .. })),
                _ => matches!(loaded, Err(FileError::Corrupt { .. })),
            };
            assert!(is_refused, "{at}: {loaded:?}");
            std::fs::write(&path, &good[..at]).unwrap();
            assert!(
                matches!(load(dir.path()), Err(FileError::Corrupt { .. })),
                "{at}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut sealed = MAGIC.to_vec();
            sealed.extend_from_slice(&checksum::crc32c(&bytes).to_le_bytes());
            sealed.extend_from_slice(&bytes);
            let _ = decode(&sealed);
            prop_assert_eq!(decode(&bytes), None);
        }
    }
}
