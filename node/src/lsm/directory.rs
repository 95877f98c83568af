//! The data directory: whose it is, what is in it, how much it takes.
//!
//! ```text
//! FORMAT            "fonn-disk 1\n"
//! LOCK              held by the process that has it open
//! state             see `state`
//! g0000000001/      a generation: values, index/, and `dropped` once it no longer counts
//! broken-…/         the last generation that could not be opened
//! ```

use std::fs::{File, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::error::DiskError;

const FORMAT: &str = "fonn-disk 1";
const BROKEN: &str = "broken-";

/// A data directory that this process has locked.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    /// Locked as long as it is open.
    _lock: File,
}

impl Directory {
    /// Makes, locks and checks a data directory.
    pub(crate) fn open(path: &Path) -> Result<Self, DiskError> {
        std::fs::create_dir_all(path).map_err(DiskError::io("make data directory", path))?;
        let lock_path = path.join("LOCK");
        let lock = File::create(&lock_path).map_err(DiskError::io("open", &lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(DiskError::Locked(path.to_owned())),
            Err(TryLockError::Error(error)) => {
                return Err(DiskError::io("lock", &lock_path)(error));
            }
        }
        let directory = Self {
            path: path.to_owned(),
            _lock: lock,
        };
        directory.check_format()?;
        Ok(directory)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn check_format(&self) -> Result<(), DiskError> {
        let path = self.path.join("FORMAT");
        let found = match std::fs::read(&path) {
            Ok(found) => String::from_utf8_lossy(found.get(..64).unwrap_or(&found))
                .trim()
                .to_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if self.generations()?.is_empty() {
                    return self
                        .write_format(&path)
                        .map_err(DiskError::io("write", &path));
                }
                "none".to_owned()
            }
            Err(error) => return Err(DiskError::io("read", &path)(error)),
        };
        if found == FORMAT {
            return Ok(());
        }
        Err(DiskError::Format {
            dir: self.path.clone(),
            found,
            expected: FORMAT.to_owned(),
        })
    }

    fn write_format(&self, path: &Path) -> io::Result<()> {
        let new = self.path.join("FORMAT.new");
        let mut file = File::create(&new)?;
        writeln!(file, "{FORMAT}")?;
        file.sync_all()?;
        std::fs::rename(&new, path)?;
        sync_dir(&self.path)
    }

    /// The directory of a generation.
    pub(crate) fn generation(&self, id: u64) -> PathBuf {
        self.path.join(format!("g{id:010}"))
    }

    /// The numbers of all generations in it, newest first.
    pub(crate) fn generations(&self) -> Result<Vec<u64>, DiskError> {
        let mut ids: Vec<u64> = self
            .names()?
            .iter()
            .filter_map(|name| name.strip_prefix('g')?.parse().ok())
            .collect();
        ids.sort_unstable_by(|a, b| b.cmp(a));
        Ok(ids)
    }

    /// Moves a generation aside for whoever wants to know why it is broken, in place of the last such.
    pub(crate) fn set_aside(&self, id: u64) -> io::Result<()> {
        self.remove_set_aside()?;
        std::fs::rename(
            self.generation(id),
            self.path.join(format!("{BROKEN}g{id:010}")),
        )
    }

    /// Removes what was moved aside.
    pub(crate) fn remove_set_aside(&self) -> io::Result<()> {
        for name in self.names().map_err(io::Error::other)? {
            if name.starts_with(BROKEN) {
                std::fs::remove_dir_all(self.path.join(name))?;
            }
        }
        Ok(())
    }

    /// Bytes on disk of what was moved aside, and of the few files that are no generation's.
    pub(crate) fn other_bytes(&self) -> io::Result<u64> {
        let mut total = 0;
        for name in self.names().map_err(io::Error::other)? {
            if name
                .strip_prefix('g')
                .is_none_or(|id| id.parse::<u64>().is_err())
            {
                total += disk_bytes(&self.path.join(name))?;
            }
        }
        Ok(total)
    }

    fn names(&self) -> Result<Vec<String>, DiskError> {
        let list = || {
            std::fs::read_dir(&self.path)?
                .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
                .collect::<io::Result<Vec<_>>>()
        };
        list().map_err(DiskError::io("list", &self.path))
    }
}

/// Bytes that the file system has given to a file, or to a directory and all that is in it. What
/// vanishes meanwhile does not count.
pub(crate) fn disk_bytes(path: &Path) -> io::Result<u64> {
    let count = || {
        let metadata = std::fs::symlink_metadata(path)?;
        let mut total = metadata.blocks() * 512;
        if metadata.is_dir() {
            for entry in std::fs::read_dir(path)? {
                total += disk_bytes(&entry?.path())?;
            }
        }
        Ok(total)
    };
    count().or_else(|error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => Ok(0),
        _ => Err(error),
    })
}

/// Bytes that this process could still write to the file system of `path`.
pub(crate) fn free_bytes(path: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(path)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Makes names in a directory survive a loss of power.
pub(crate) fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_had_by_one_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let first = Directory::open(dir.path()).unwrap();
        let error = Directory::open(dir.path()).unwrap_err();
        assert!(
            matches!(&error, DiskError::Locked(path) if path == dir.path()),
            "{error}"
        );
        drop(first);
        Directory::open(dir.path()).unwrap();
    }

    #[test]
    fn a_foreign_format_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("FORMAT"), "fonn-disk 2\n").unwrap();
        let message = Directory::open(dir.path()).unwrap_err().to_string();
        assert!(
            message.contains("fonn-disk 2") && message.contains("fonn-disk 1"),
            "{message}"
        );
        assert!(message.contains("delete the directory"), "{message}");
        assert_eq!(
            std::fs::read(dir.path().join("FORMAT")).unwrap(),
            b"fonn-disk 2\n"
        );
    }

    #[test]
    fn generations_without_a_format_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("g0000000001")).unwrap();
        let error = Directory::open(dir.path()).unwrap_err();
        assert!(matches!(error, DiskError::Format { .. }), "{error}");
    }

    #[test]
    fn generations_are_listed_newest_first_and_the_broken_one_counts_as_other() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        for id in [2, 10, 1] {
            let path = directory.generation(id);
            std::fs::create_dir(&path).unwrap();
            std::fs::write(path.join("values"), vec![1; 100_000]).unwrap();
        }
        assert_eq!(directory.generations().unwrap(), [10, 2, 1]);
        assert!(directory.other_bytes().unwrap() < 100_000);
        directory.set_aside(2).unwrap();
        directory.set_aside(1).unwrap();
        assert_eq!(directory.generations().unwrap(), [10]);
        let other = directory.other_bytes().unwrap();
        assert!((100_000..200_000).contains(&other), "{other}");
    }
}
