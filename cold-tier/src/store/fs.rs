//! A store in a directory: one file for each object, named like its key.
//!
//! Objects are written to a temporary file in `.tmp`, synced, and moved in place, so a reader or a
//! crash never sees a part of one; the directory is synced too, so an acknowledged object survives
//! power loss. Files that could not be keys are not objects and are left alone. Several processes
//! may share a directory. Directories that became empty stay.
//!
//! Calls block, so they run on a [`BlockingPool`]; a full pool answers
//! [`StoreErrorKind::Throttled`].

mod walk;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use fonn_base::file::sync_parent;
use fonn_base::pool::{BlockingPool, run_blocking};
use fonn_base::random::SplitMix64;
use parking_lot::Mutex;

use super::{
    Body, ObjectKey, ObjectMeta, ObjectStore, Operation, PAGE_MAX, Page, Pieces, READ_BYTES_MAX,
    StoreError, StoreErrorKind, StoreFuture, Suffix, select, select_suffix,
};

/// Where unfinished objects are written. No key can name it.
const TEMPORARY_DIR: &str = ".tmp";

/// Age after which an unfinished object is the remains of a crash. Younger ones may belong to
/// another process.
const TEMPORARY_AGE_MAX: Duration = Duration::from_secs(3600);

/// Bytes that are read at a time of what is handed over in pieces.
const STREAM_STEP: u64 = 1 << 20;

/// Objects as files below a root directory; cheap to clone.
#[derive(Clone, Debug)]
pub struct FsStore {
    pool: BlockingPool,
    dir: Arc<Directory>,
}

#[derive(Debug)]
struct Directory {
    root: PathBuf,
    names: Mutex<SplitMix64>,
}

impl FsStore {
    /// Opens a store, creating the directory if needed, and removes the remains of crashes. Blocks.
    ///
    /// # Errors
    /// When the directory cannot be made or read.
    pub fn open(root: impl Into<PathBuf>, pool: BlockingPool) -> io::Result<Self> {
        let dir = Directory {
            root: root.into(),
            names: Mutex::new(SplitMix64::from_entropy()),
        };
        if !dir.root.exists() {
            tracing::warn!(
                directory = %dir.root.display(),
                "the bucket's directory did not exist and is made, empty: is its file system mounted?"
            );
        }
        create_dirs(&dir.root.join(TEMPORARY_DIR))?;
        dir.remove_remains(SystemTime::now())?;
        Ok(Self {
            pool,
            dir: Arc::new(dir),
        })
    }

    /// Runs `work` on the pool.
    fn run<T, F>(&self, operation: Operation, subject: &str, work: F) -> StoreFuture<'static, T>
    where
        T: Send + 'static,
        F: FnOnce(&Directory) -> io::Result<T> + Send + 'static,
    {
        let (store, subject) = (self.clone(), subject.to_owned());
        Box::pin(async move {
            let dir = Arc::clone(&store.dir);
            match run_blocking(&store.pool, move || work(&dir)).await {
                Ok(Ok(result)) => Ok(result),
                Ok(Err(error)) => Err(StoreError::from_io(operation, &subject, error)),
                Err(error) => Err(StoreError::from_pool(operation, &subject, error)),
            }
        })
    }
}

impl ObjectStore for FsStore {
    fn put<'a>(&'a self, key: &'a ObjectKey, body: Body) -> StoreFuture<'a, ()> {
        let owned = key.clone();
        self.run(Operation::Put, key.as_str(), move |dir| {
            // A rename replaces an object of that key in one step.
            dir.write(&owned, &body, |temporary, path| fs::rename(temporary, path))
        })
    }

    fn put_if_absent<'a>(&'a self, key: &'a ObjectKey, body: Body) -> StoreFuture<'a, ()> {
        let owned = key.clone();
        self.run(Operation::PutIfAbsent, key.as_str(), move |dir| {
            // Spares the writing in the usual case; the link below decides.
            if fs::symlink_metadata(dir.path(&owned)).is_ok() {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            // A link fails where there is an object of that key.
            dir.write(&owned, &body, |temporary, path| {
                fs::hard_link(temporary, path)
            })
        })
    }

    fn get<'a>(&'a self, key: &'a ObjectKey) -> StoreFuture<'a, Bytes> {
        let owned = key.clone();
        self.run(Operation::Get, key.as_str(), move |dir| {
            let (mut file, size) = dir.open(&owned)?;
            if size > READ_BYTES_MAX {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            let mut body = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
            file.read_to_end(&mut body)?;
            Ok(body.into())
        })
    }

    fn get_range<'a>(&'a self, key: &'a ObjectKey, range: Range<u64>) -> StoreFuture<'a, Bytes> {
        let owned = key.clone();
        self.run(Operation::GetRange, key.as_str(), move |dir| {
            let (file, size) = dir.open(&owned)?;
            read_part(&file, select(&range, size))
        })
    }

    fn stream_range<'a>(
        &'a self,
        key: &'a ObjectKey,
        range: Range<u64>,
        to: &'a Pieces,
    ) -> StoreFuture<'a, u64> {
        Box::pin(async move {
            let mut at = range.start;
            to.begin(key).await?;
            loop {
                let step = at..range.end.min(at.saturating_add(STREAM_STEP));
                let asked = step.end.saturating_sub(at);
                match self.get_range(key, step).await {
                    // The object ends where the last step did.
                    Err(error) if error.kind == StoreErrorKind::OutOfRange && at > range.start => {
                        break;
                    }
                    Err(error) => return Err(error),
                    Ok(bytes) => {
                        let len = bytes.len() as u64;
                        at += len;
                        to.bytes(key, bytes).await?;
                        if len < asked || at >= range.end {
                            break;
                        }
                    }
                }
            }
            Ok(at - range.start)
        })
    }

    fn get_suffix<'a>(&'a self, key: &'a ObjectKey, len_bytes: u64) -> StoreFuture<'a, Suffix> {
        let owned = key.clone();
        self.run(Operation::GetSuffix, key.as_str(), move |dir| {
            let (file, object_size_bytes) = dir.open(&owned)?;
            let selected = select_suffix(len_bytes, object_size_bytes);
            Ok(Suffix {
                bytes: read_part(&file, selected)?,
                object_size_bytes,
            })
        })
    }

    fn head<'a>(&'a self, key: &'a ObjectKey) -> StoreFuture<'a, ObjectMeta> {
        let owned = key.clone();
        self.run(Operation::Head, key.as_str(), move |dir| {
            let metadata = fs::symlink_metadata(dir.path(&owned)).map_err(absence_as_not_found)?;
            if metadata.is_file() {
                Ok(meta(owned, &metadata))
            } else {
                Err(no_object())
            }
        })
    }

    fn delete<'a>(&'a self, key: &'a ObjectKey) -> StoreFuture<'a, ()> {
        let owned = key.clone();
        self.run(Operation::Delete, key.as_str(), move |dir| {
            let path = dir.path(&owned);
            match fs::remove_file(&path) {
                Ok(()) => sync_parent(&path),
                Err(error) if is_absence(&error) => Ok(()),
                Err(error) => Err(error),
            }
        })
    }

    fn list<'a>(
        &'a self,
        prefix: &'a str,
        after: Option<&'a str>,
        limit: usize,
    ) -> StoreFuture<'a, Page> {
        if limit == 0 {
            let error = StoreError::new(Operation::List, prefix, StoreErrorKind::Invalid);
            return Box::pin(std::future::ready(Err(error)));
        }
        let limit = limit.min(PAGE_MAX);
        let (text, after) = (prefix.to_owned(), after.unwrap_or_default().to_owned());
        self.run(Operation::List, prefix, move |dir| {
            // One more than asked for tells whether there is a next page.
            let mut objects = walk::objects(&dir.root, &text, &after, limit + 1)?;
            let has_more = objects.len() > limit;
            objects.truncate(limit);
            let last = objects.last().filter(|_| has_more);
            let next = last.map(|last| last.key.to_string());
            Ok(Page { objects, next })
        })
    }
}

impl Directory {
    fn path(&self, key: &ObjectKey) -> PathBuf {
        self.root.join(key.as_str())
    }

    /// Opens an object and tells its size.
    fn open(&self, key: &ObjectKey) -> io::Result<(File, u64)> {
        let path = self.path(key);
        let file = File::open(path).map_err(absence_as_not_found)?;
        let metadata = file.metadata()?;
        if metadata.is_file() {
            Ok((file, metadata.len()))
        } else {
            Err(no_object())
        }
    }

    /// Writes a temporary file and has it put in place.
    fn write(
        &self,
        key: &ObjectKey,
        body: &Body,
        place: fn(&Path, &Path) -> io::Result<()>,
    ) -> io::Result<()> {
        let path = self.path(key);
        if let Some(parent) = path.parent() {
            create_dirs(parent)?;
        }
        let name = format!("{:016x}", self.names.lock().next_u64());
        let temporary = Temporary(self.root.join(TEMPORARY_DIR).join(name));
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&temporary.0)?;
        for chunk in body.chunks() {
            file.write_all(chunk)?;
        }
        file.sync_all()?;
        place(&temporary.0, &path)?;
        sync_parent(&path)
    }

    fn remove_remains(&self, now: SystemTime) -> io::Result<()> {
        for entry in fs::read_dir(self.root.join(TEMPORARY_DIR))? {
            let entry = entry?;
            // Another process may clean up at the same time.
            let Ok(modified) = entry.metadata().and_then(|metadata| metadata.modified()) else {
                continue;
            };
            if now
                .duration_since(modified)
                .is_ok_and(|age| age > TEMPORARY_AGE_MAX)
            {
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok(())
    }
}

/// A temporary file, removed when it was not renamed.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // After a rename there is nothing to remove; after a crash `remove_remains` does it.
        let _ = fs::remove_file(&self.0);
    }
}

fn read_part(file: &File, selected: Result<Range<u64>, StoreErrorKind>) -> io::Result<Bytes> {
    let selected = selected.map_err(|kind| match kind {
        StoreErrorKind::OutOfRange => io::ErrorKind::UnexpectedEof,
        _ => io::ErrorKind::InvalidInput,
    })?;
    let len =
        usize::try_from(selected.end - selected.start).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut body = vec![0; len];
    file.read_exact_at(&mut body, selected.start)?;
    Ok(body.into())
}

fn no_object() -> io::Error {
    io::ErrorKind::NotFound.into()
}

/// A file in the middle of the path means the same to a reader as a missing directory.
fn absence_as_not_found(error: io::Error) -> io::Error {
    if is_absence(&error) {
        no_object()
    } else {
        error
    }
}

/// Whether the path leads nowhere: a part of it is missing, or is a file.
fn is_absence(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// Creates a directory and what is missing above it, durably.
fn create_dirs(dir: &Path) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        create_dirs(parent)?;
    }
    match fs::create_dir(dir) {
        Ok(()) => sync_parent(dir),
        // Another process was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        // It is a file, which an object of this key cannot share its name with.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Err(io::ErrorKind::NotADirectory.into())
        }
        Err(error) => Err(error),
    }
}

fn meta(key: ObjectKey, metadata: &fs::Metadata) -> ObjectMeta {
    let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    let since = modified
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let modified_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    ObjectMeta {
        key,
        size_bytes: metadata.len(),
        modified_ms,
    }
}

#[cfg(test)]
mod tests;
