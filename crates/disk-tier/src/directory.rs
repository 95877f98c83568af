//! The data directory: whose it is, what is in it, how much it takes.
//!
//! ```text
//! FORMAT            "fonn-disk 4\n"
//! LOCK              held by the process that has it open
//! state, state.copy see `state`
//! g0000000001/      a generation: values, index/, and `dropped` once it no longer counts
//! g0000000001.1/    the same generation, compacted: replaces the one before once it has `values`
//! broken-…/         the last generation that could not be opened
//! ```

use std::fmt;
use std::fs::{DirBuilder, File, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use fonn_base::file::{self, is_damage};
use tracing::warn;

use super::error::DiskError;
use super::state;

const FORMAT: &str = "fonn-disk 4";
/// What every version of the format begins with.
const FORMAT_ANY: &str = "fonn-disk ";
const BROKEN: &str = "broken-";

/// Which generation, and how often it was written anew. Orders by age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct GenerationName {
    /// Its number, used once: the highest is the newest.
    pub(crate) id: u64,
    /// 0 for what the writer wrote. The highest that is complete counts.
    pub(crate) incarnation: u32,
}

impl GenerationName {
    /// The name of a generation that is to be written.
    pub(crate) fn first(id: u64) -> Self {
        Self { id, incarnation: 0 }
    }

    /// The name of what shall replace it.
    pub(crate) fn next(self) -> Self {
        Self {
            incarnation: self.incarnation + 1,
            ..self
        }
    }
}

impl fmt::Display for GenerationName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.incarnation {
            0 => write!(f, "g{:010}", self.id),
            incarnation => write!(f, "g{:010}.{incarnation}", self.id),
        }
    }
}

impl FromStr for GenerationName {
    type Err = ();

    /// Reads the one way that it is written.
    fn from_str(text: &str) -> Result<Self, ()> {
        let rest = text.strip_prefix('g').ok_or(())?;
        let (id, incarnation) = rest.split_once('.').unwrap_or((rest, "0"));
        let name = Self {
            id: id.parse().map_err(drop)?,
            incarnation: incarnation.parse().map_err(drop)?,
        };
        (name.to_string() == text).then_some(name).ok_or(())
    }
}

/// A data directory that this process has locked.
#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    /// Its format was not to be read, and was written anew.
    is_mended: bool,
    /// Locked as long as it is open.
    _lock: File,
}

impl Directory {
    /// Makes, locks and checks a data directory.
    pub(crate) fn open(path: &Path) -> Result<Self, DiskError> {
        make_dir_all(path).map_err(DiskError::io("make data directory", path))?;
        close_to_others(path);
        let lock_path = path.join("LOCK");
        let lock = create_file(&lock_path).map_err(DiskError::io("open", &lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(DiskError::Locked(path.to_owned())),
            Err(TryLockError::Error(error)) => {
                return Err(DiskError::io("lock", &lock_path)(error));
            }
        }
        let mut directory = Self {
            path: path.to_owned(),
            is_mended: false,
            _lock: lock,
        };
        directory.is_mended = directory.check_format()?;
        Ok(directory)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether its format was not to be read.
    pub(crate) fn is_mended(&self) -> bool {
        self.is_mended
    }

    /// Refuses another version of the format, and what is no store. In a store, a file that is
    /// missing or says nothing is damage, and written anew: every record tells its own layout. True
    /// if that was done.
    fn check_format(&self) -> Result<bool, DiskError> {
        let path = self.path.join("FORMAT");
        let found = match std::fs::read(&path) {
            Ok(found) => Some(
                String::from_utf8_lossy(found.get(..64).unwrap_or(&found))
                    .trim()
                    .to_owned(),
            ),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) if is_damage(&error) => Some(error.to_string()),
            Err(error) => return Err(DiskError::io("read", &path)(error)),
        };
        if found.as_deref() == Some(FORMAT) {
            return Ok(false);
        }
        let version = found.as_deref().and_then(|it| it.strip_prefix(FORMAT_ANY));
        let is_foreign = version.is_some_and(|version| version.parse::<u64>().is_ok());
        let is_store = !self.generations()?.is_empty() || state::is_present(&self.path);
        match found {
            Some(found) if is_foreign || !is_store => Err(DiskError::Format {
                dir: self.path.clone(),
                found,
                expected: FORMAT.to_owned(),
            }),
            found => {
                file::replace(&path, format!("{FORMAT}\n").as_bytes())
                    .map_err(DiskError::io("write", &path))?;
                if is_store {
                    warn!(found, "the FORMAT file of a store is damaged: written anew");
                }
                Ok(is_store)
            }
        }
    }

    /// The directory of a generation.
    pub(crate) fn generation(&self, name: GenerationName) -> PathBuf {
        self.path.join(name.to_string())
    }

    /// All generations in it, newest first, complete or not.
    pub(crate) fn generations(&self) -> Result<Vec<GenerationName>, DiskError> {
        let names = self.names()?;
        let mut found: Vec<GenerationName> =
            names.iter().filter_map(|name| name.parse().ok()).collect();
        found.sort_unstable_by(|a, b| b.cmp(a));
        Ok(found)
    }

    /// Moves a generation aside for a later look at why it is broken, in place of the last
    /// such.
    pub(crate) fn set_aside(&self, name: GenerationName) -> io::Result<()> {
        self.remove_set_aside()?;
        std::fs::rename(
            self.generation(name),
            self.path.join(format!("{BROKEN}{name}")),
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
            if name.parse::<GenerationName>().is_err() {
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

/// Whether a data directory has generations. None is opened.
#[must_use]
pub fn has_generations(path: &Path) -> bool {
    let Ok(mut names) = std::fs::read_dir(path) else {
        return false;
    };
    names.any(|entry| {
        let name = entry.map(|entry| entry.file_name());
        name.is_ok_and(|name| name.to_string_lossy().parse::<GenerationName>().is_ok())
    })
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

/// The mode of directories: only the user that the process runs as sees what is in them.
const DIR_MODE: u32 = 0o700;

/// The mode of files.
pub(crate) const FILE_MODE: u32 = 0o600;

/// Makes a directory for this user alone.
pub(crate) fn make_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(DIR_MODE).create(path)
}

/// Makes a directory and those above it for this user alone, as far as they are missing.
fn make_dir_all(path: &Path) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(DIR_MODE)
        .create(path)
}

/// Makes a file for this user alone, or empties the one that is there.
pub(crate) fn create_file(path: &Path) -> io::Result<File> {
    File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(FILE_MODE)
        .open(path)
}

/// Takes the rights of others from a directory that an older version or an operator made. A
/// directory of another owner stays as it is, as the root of a mounted volume does.
fn close_to_others(path: &Path) {
    let Ok(mode) = std::fs::metadata(path).map(|it| it.mode()) else {
        return;
    };
    if mode & 0o077 == 0 {
        return;
    }
    let closed = std::fs::set_permissions(path, Permissions::from_mode(DIR_MODE));
    if let (Err(error), true) = (closed, mode & 0o007 != 0) {
        warn!(dir = %path.display(), %error, "every user of this machine can read the data directory: chmod it to 0700");
    }
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
    fn others_see_nothing_of_a_data_directory_also_if_it_was_open_before() {
        let dir = tempfile::tempdir().unwrap();
        let made = dir.path().join("above/data");
        let open = dir.path().join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, Permissions::from_mode(0o755)).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        for path in [&made, &open] {
            let directory = Directory::open(path).unwrap();
            state::save(path, &state::StoreState::default()).unwrap();
            make_dir(&directory.generation(GenerationName::first(1))).unwrap();
            assert_eq!(mode(path), 0o700);
            for entry in std::fs::read_dir(path).unwrap() {
                let path = entry.unwrap().path();
                let expected = if path.is_dir() { 0o700 } else { 0o600 };
                assert_eq!(mode(&path), expected, "{}", path.display());
            }
        }
    }

    #[test]
    fn a_foreign_format_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("FORMAT"), "fonn-disk 5\n").unwrap();
        let message = Directory::open(dir.path()).unwrap_err().to_string();
        assert!(
            message.contains("fonn-disk 4") && message.contains("fonn-disk 5"),
            "{message}"
        );
        assert!(message.contains("delete the directory"), "{message}");
        assert_eq!(
            std::fs::read(dir.path().join("FORMAT")).unwrap(),
            b"fonn-disk 5\n"
        );
    }

    #[test]
    fn a_format_that_says_nothing_is_written_anew_in_a_store_and_refused_elsewhere() {
        for damage in [
            None,
            Some(&b""[..]),
            Some(b"fonn-d\x01sk 1\n"),
            Some(&[0; 12]),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let format = dir.path().join("FORMAT");
            let meddle = || match damage {
                Some(bytes) => std::fs::write(&format, bytes).unwrap(),
                None => drop(std::fs::remove_file(&format)),
            };
            meddle();
            let opened = Directory::open(dir.path());
            assert_eq!(opened.is_ok(), damage.is_none(), "{damage:?}");
            drop(opened);
            meddle();
            std::fs::create_dir(dir.path().join("g0000000001")).unwrap();
            assert!(Directory::open(dir.path()).unwrap().is_mended());
            assert!(!Directory::open(dir.path()).unwrap().is_mended());
            meddle();
            std::fs::remove_dir(dir.path().join("g0000000001")).unwrap();
            state::save(dir.path(), &state::StoreState::default()).unwrap();
            assert!(Directory::open(dir.path()).unwrap().is_mended());
        }
    }

    #[test]
    fn generations_are_listed_newest_first_and_the_broken_one_counts_as_other() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        let name = |id, incarnation| GenerationName { id, incarnation };
        let (first, second, tenth) = (name(1, 0), name(2, 0), name(10, 0));
        let compacted = name(2, 12);
        for name in [second, tenth, compacted, first] {
            let path = directory.generation(name);
            std::fs::create_dir(&path).unwrap();
            std::fs::write(path.join("values"), vec![1; 100_000]).unwrap();
        }
        std::fs::create_dir(dir.path().join("g2")).unwrap();
        assert_eq!(
            directory.generations().unwrap(),
            [tenth, compacted, second, first]
        );
        assert!(directory.other_bytes().unwrap() < 100_000);
        directory.set_aside(second).unwrap();
        directory.set_aside(first).unwrap();
        assert_eq!(directory.generations().unwrap(), [tenth, compacted]);
        let other = directory.other_bytes().unwrap();
        assert!((100_000..200_000).contains(&other), "{other}");
    }
}
