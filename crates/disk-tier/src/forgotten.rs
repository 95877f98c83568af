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
use fonn_proto::Version;

use super::number_file::{parse, to_bytes};

const FILE: &str = "forgotten";
const MAGIC: [u8; 4] = *b"FNFG";

/// Reads the version; None if there is none that can be believed.
pub(crate) fn load(dir: &Path) -> Option<Version> {
    parse(MAGIC, &std::fs::read(dir.join(FILE)).ok()?)
}

/// Notes the version; durable when it returns. If it cannot be written, the file is removed: an
/// older version would be believed after a restart.
///
/// # Errors
/// What the operating system said of writing, or of the removal if not even that is possible.
pub(crate) fn save(dir: &Path, version: Version) -> io::Result<()> {
    let path = dir.join(FILE);
    let replaced = file::replace(&path, &to_bytes(MAGIC, version)).map(drop);
    replaced.inspect_err(|_| {
        let _ = std::fs::remove_file(&path).and_then(|()| file::sync_dir(dir));
    })
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
        let bytes = to_bytes(MAGIC, 7 << 50);
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
