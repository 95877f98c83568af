//! Up to which version records were dropped that may be known nowhere any more: a file beside the
//! generations.
//!
//! What another member sends for a key that is not known here is kept only if it is newer: it may
//! be a copy of what was overwritten or deleted here, by a record that is gone since. The file is
//! there from the first start on, and written before anything is dropped; where it is missing or
//! damaged, all that was ever given out may have been dropped. Layout:
//! `docs/formats/disk-record.md`.

use std::io;
use std::path::Path;

use fonn_base::file;
use fonn_codec::checksum;
use fonn_proto::Version;

const FILE: &str = "forgotten";
const MAGIC: [u8; 4] = *b"FNFG";
const LAYOUT: u32 = 1;

/// Reads the version; None if there is none that can be believed.
pub(crate) fn load(dir: &Path) -> Option<Version> {
    parse(&std::fs::read(dir.join(FILE)).ok()?)
}

/// Notes the version; durable when it returns. If it cannot be written, the file is removed: an
/// older version would be believed after a restart.
///
/// # Errors
/// What the operating system said of writing, or of the removal if not even that is possible.
pub(crate) fn save(dir: &Path, version: Version) -> io::Result<()> {
    let path = dir.join(FILE);
    let replaced = file::replace(&path, &to_bytes(version)).map(drop);
    replaced.inspect_err(|_| {
        let _ = std::fs::remove_file(&path).and_then(|()| file::sync_dir(dir));
    })
}

fn to_bytes(version: Version) -> Vec<u8> {
    let mut out = Vec::with_capacity(20);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&LAYOUT.to_le_bytes());
    out.extend_from_slice(&version.to_le_bytes());
    out.extend_from_slice(&checksum::crc32c(&out).to_le_bytes());
    out
}

fn parse(bytes: &[u8]) -> Option<Version> {
    let (body, crc) = bytes.split_last_chunk::<4>()?;
    let version = body.last_chunk::<8>()?;
    let version = u64::from_le_bytes(*version);
    let is_whole = checksum::crc32c(body).to_le_bytes() == *crc && to_bytes(version) == bytes;
    is_whole.then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_saved_last_is_loaded_and_damage_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(load(dir.path()), None);
        for version in [0, 7 << 50] {
            save(dir.path(), version).unwrap();
            assert_eq!(load(dir.path()), Some(version));
        }
        let bytes = to_bytes(7 << 50);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            std::fs::write(dir.path().join(FILE), &damaged).unwrap();
            assert_eq!(load(dir.path()), None, "byte {at}");
            std::fs::write(dir.path().join(FILE), &bytes[..at]).unwrap();
            assert_eq!(load(dir.path()), None, "cut at {at}");
        }
    }

    #[test]
    fn where_it_cannot_be_written_the_older_one_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        save(dir.path(), 7).unwrap();
        // Nothing can be made under that name.
        std::fs::create_dir(dir.path().join("forgotten.new")).unwrap();
        assert!(save(dir.path(), 8).is_err());
        assert_eq!(load(dir.path()), None);
    }
}
