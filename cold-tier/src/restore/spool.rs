//! Parts of a checkpoint on the disk, until they enter the index.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Its name for the moment that it has one. The database beside it has no file of that name.
const NAME: &str = "restore.tmp";

/// A file that is gone with the process.
#[derive(Debug)]
pub(super) struct Spool {
    file: File,
    /// Where each part ends.
    ends: Vec<u64>,
}

impl Spool {
    /// An empty one in `dir`. Blocks.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub(super) fn create(dir: &Path) -> io::Result<Self> {
        let path = dir.join(NAME);
        let mut options = OpenOptions::new();
        // One that is there was left by a kill between these two calls.
        let options = options.read(true).write(true).create(true).truncate(true);
        let file = options.open(&path)?;
        fs::remove_file(&path)?;
        Ok(Self {
            file,
            ends: Vec::new(),
        })
    }

    /// Adds a part. Blocks.
    ///
    /// # Errors
    /// When the disk does not take it.
    pub(super) fn append(mut self, part: &[u8]) -> io::Result<Self> {
        self.file.write_all(part)?;
        let start = self.ends.last().copied().unwrap_or(0);
        self.ends.push(start + part.len() as u64);
        Ok(self)
    }

    /// The part of that index. Blocks.
    ///
    /// # Errors
    /// When there is none, or the disk does not give it.
    pub(super) fn read(&self, index: usize) -> io::Result<Vec<u8>> {
        let end = self.ends.get(index).copied();
        let end = end.ok_or(io::ErrorKind::NotFound)?;
        let before = index.checked_sub(1).and_then(|index| self.ends.get(index));
        let start = before.copied().unwrap_or(0);
        let mut part = vec![0; usize::try_from(end - start).unwrap_or(usize::MAX)];
        self.file.read_exact_at(&mut part, start)?;
        Ok(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_read_back_and_nothing_is_left_behind() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(NAME), "left by a kill").unwrap();
        let mut spool = Spool::create(dir.path()).unwrap();
        for part in [&b"one"[..], b"", b"three"] {
            spool = spool.append(part).unwrap();
        }
        assert_eq!(spool.read(2).unwrap(), b"three");
        assert_eq!(spool.read(0).unwrap(), b"one");
        assert_eq!(spool.read(1).unwrap(), b"");
        assert_eq!(spool.read(3).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
