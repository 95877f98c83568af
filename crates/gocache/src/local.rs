//! The directory of outputs: the go command reads them from there.
//!
//! `o/` has the outputs by name, `a/` a record for each action, `tmp/` what is being written. A
//! file comes into its place whole, by a rename. Each helper holds a shared lock of the directory.
//! The one that starts while it is alone removes the outputs that were not used for the longest
//! time, down to the budget. Others do not: the go command may read an output until its helper
//! ends.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ring::rand::{SecureRandom as _, SystemRandom};

use crate::record::Record;

/// The use of an output is noted when the last note is so old.
const NOTED_EVERY: Duration = Duration::from_secs(3600);

/// Why the directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use the directory {}: {source}; name another one with --dir", dir.display())]
pub struct StoreError {
    dir: PathBuf,
    source: io::Error,
}

/// The directory.
#[derive(Debug)]
pub(crate) struct Store {
    dir: PathBuf,
    /// Locked while the helper lives.
    _lock: File,
    /// What the names of this helper's temporary files begin with. It is random: helpers in
    /// containers may share the directory and have the same process id.
    temp_prefix: String,
    last_temp: AtomicU64,
}

/// An output in the directory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) record: Record,
    pub(crate) path: PathBuf,
}

/// A file that is being written; it is removed unless it is kept.
#[derive(Debug)]
pub(crate) struct Temp {
    path: PathBuf,
}

impl Drop for Temp {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// A temporary directory that no other user can read; it is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// # Errors
    /// If it cannot be made.
    pub(crate) fn new() -> io::Result<Self> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let name = format!(
            "fonn-gocache-{}-{}",
            std::process::id(),
            since.map_or(0, |it| it.as_nanos())
        );
        let path = std::env::temp_dir().join(name);
        // It fails if there is anything of that name.
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self { path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// A file of the directory, as the budget sees it.
struct Aged {
    used_at: SystemTime,
    len: u64,
    path: PathBuf,
}

impl Store {
    /// Opens the directory, makes it if it is not there, and brings it to `budget` bytes if no
    /// other helper uses it.
    ///
    /// # Errors
    /// If the directory cannot be made, locked or written to.
    pub(crate) fn open(dir: &Path, budget: u64) -> Result<Self, StoreError> {
        Self::open_in(dir, budget).map_err(|source| StoreError {
            dir: dir.to_owned(),
            source,
        })
    }

    fn open_in(dir: &Path, budget: u64) -> io::Result<Self> {
        for part in ["a", "o", "tmp"] {
            fs::create_dir_all(dir.join(part))?;
        }
        let options = File::options().create(true).append(true).clone();
        let lock = options.open(dir.join("lock"))?;
        match lock.try_lock() {
            Ok(()) => {
                trim(dir, budget)?;
                lock.unlock()?;
            }
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
        lock.lock_shared()?;
        let mut random = [0; 8];
        let filled = SystemRandom::new().fill(&mut random);
        filled.map_err(|_| io::Error::other("the kernel has no random bytes"))?;
        Ok(Self {
            dir: dir.to_owned(),
            _lock: lock,
            temp_prefix: hex(&random),
            last_temp: AtomicU64::new(0),
        })
    }

    /// The output of an action, if it is there.
    pub(crate) fn find(&self, action: &[u8]) -> Option<Kept> {
        let record = Record::parse(&fs::read(self.place("a", action)).ok()?)?;
        let path = self.place("o", &record.output);
        let metadata = fs::metadata(&path).ok()?;
        if metadata.len() != record.len {
            return None;
        }
        let now = SystemTime::now();
        let noted_at = metadata.modified().unwrap_or(now);
        if now
            .duration_since(noted_at)
            .is_ok_and(|it| it > NOTED_EVERY)
        {
            // Only its age suffers if that fails.
            let _ = File::options()
                .append(true)
                .open(&path)
                .and_then(|file| file.set_modified(now));
        }
        Some(Kept { record, path })
    }

    /// A new file to write.
    ///
    /// # Errors
    /// If it cannot be made.
    pub(crate) fn temp(&self) -> io::Result<(File, Temp)> {
        let number = self.last_temp.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}.{number}", self.temp_prefix);
        let path = self.dir.join("tmp").join(name);
        let file = File::create_new(&path)?;
        Ok((file, Temp { path }))
    }

    /// Makes what was written to `temp` the output of an action.
    ///
    /// # Errors
    /// If a file cannot be written or renamed, or if the output has a name that is too long.
    pub(crate) fn keep(&self, temp: &Temp, action: &[u8], record: Record) -> io::Result<Kept> {
        let bytes = record.encode().ok_or(io::ErrorKind::InvalidInput)?;
        let path = self.place("o", &record.output);
        make_parent(&path)?;
        fs::rename(&temp.path, &path)?;
        let (mut file, of_action) = self.temp()?;
        file.write_all(&bytes)?;
        let place = self.place("a", action);
        make_parent(&place)?;
        fs::rename(&of_action.path, place)?;
        Ok(Kept { record, path })
    }

    fn place(&self, part: &str, name: &[u8]) -> PathBuf {
        let name = hex(name);
        let first = name.get(..2).unwrap_or(&name);
        self.dir.join(part).join(first).join(&name)
    }
}

fn make_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Removes what no helper writes any more, and the outputs beyond the budget with their actions.
fn trim(dir: &Path, budget: u64) -> io::Result<()> {
    for left in files(&dir.join("tmp"))? {
        fs::remove_file(left.path)?;
    }
    let mut outputs = files(&dir.join("o"))?;
    let mut total: u64 = outputs.iter().map(|it| it.len).sum();
    if total <= budget {
        return Ok(());
    }
    outputs.sort_by_key(|it| it.used_at);
    for output in outputs {
        if total <= budget {
            break;
        }
        fs::remove_file(output.path)?;
        total -= output.len;
    }
    for action in files(&dir.join("a"))? {
        let record = fs::read(&action.path)?;
        let output = Record::parse(&record).map(|it| hex(&it.output));
        let is_there = output.is_some_and(|it| {
            let first = it.get(..2).unwrap_or(&it);
            dir.join("o").join(first).join(&it).exists()
        });
        if !is_there {
            fs::remove_file(action.path)?;
        }
    }
    Ok(())
}

/// The files in a directory and in those below it.
fn files(dir: &Path) -> io::Result<Vec<Aged>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        if metadata.is_dir() {
            found.extend(files(&entry.path())?);
        } else {
            found.push(Aged {
                used_at: metadata.modified()?,
                len: metadata.len(),
                path: entry.path(),
            });
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keep(store: &Store, name: u8, len: usize) -> Kept {
        let (mut file, temp) = store.temp().unwrap();
        file.write_all(&vec![name; len]).unwrap();
        let record = Record {
            output: vec![name, 1],
            len: len as u64,
            stored_at_ns: 5,
            digest: [0; 32],
        };
        store.keep(&temp, &[name], record).unwrap()
    }

    #[test]
    fn an_output_is_found_by_its_action_until_its_file_is_cut() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), 100).unwrap();
        assert_eq!(store.find(b"a"), None);
        let kept = keep(&store, b'a', 10);
        assert_eq!(fs::read(&kept.path).unwrap(), [b'a'; 10]);
        assert_eq!(store.find(b"a").as_ref(), Some(&kept));
        fs::write(&kept.path, b"short").unwrap();
        assert_eq!(store.find(b"a"), None);
    }

    #[test]
    fn a_helper_that_is_alone_removes_the_oldest_outputs_beyond_the_budget() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), 100).unwrap();
        for (age, name) in (0..).zip([b'c', b'b', b'a']) {
            let kept = keep(&store, name, 40);
            let used_at = SystemTime::now() - Duration::from_secs(1000 * age);
            let file = File::options().append(true).open(kept.path).unwrap();
            file.set_modified(used_at).unwrap();
        }
        let beside = Store::open(dir.path(), 100).unwrap();
        assert!(beside.find(b"a").is_some(), "another helper may use it");
        drop((store, beside));
        fs::write(dir.path().join("tmp/1.1"), b"left over").unwrap();
        let store = Store::open(dir.path(), 100).unwrap();
        assert_eq!(store.find(b"a"), None);
        assert!(store.find(b"b").is_some() && store.find(b"c").is_some());
        assert_eq!(files(&dir.path().join("a")).unwrap().len(), 2);
        assert_eq!(files(&dir.path().join("tmp")).unwrap().len(), 0);
    }

    #[test]
    fn a_temporary_directory_is_private_and_removed_with_all_that_is_in_it() {
        use std::os::unix::fs::PermissionsExt as _;
        let scratch = Scratch::new().unwrap();
        let path = scratch.path().to_owned();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        keep(&Store::open(&path, 100).unwrap(), b'a', 10);
        drop(scratch);
        assert!(!path.exists());
    }

    #[test]
    fn what_is_not_kept_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path(), 100).unwrap();
        let (mut file, temp) = store.temp().unwrap();
        file.write_all(b"half").unwrap();
        drop(temp);
        assert_eq!(files(&dir.path().join("tmp")).unwrap().len(), 0);
    }

    #[test]
    fn helpers_with_the_same_process_id_write_different_files() {
        let dir = tempfile::tempdir().unwrap();
        let stores = [(); 2].map(|()| Store::open(dir.path(), 100).unwrap());
        let temps = stores.each_ref().map(|store| store.temp().unwrap());
        assert_ne!(temps[0].1.path, temps[1].1.path);
        assert_eq!(files(&dir.path().join("tmp")).unwrap().len(), 2);
    }
}
