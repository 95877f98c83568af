//! The names of writers in the data directory: a file of lines, to which each new name is added.
//!
//! The file is read once, at the start. A cut last line is a name that no entry has. When the file
//! has grown to twice the names that are kept, the next start writes it anew.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fonn_auth::{Authenticator, WRITER_NAMES_MAX, WriterNames};
use fonn_base::file;

const FILE: &str = "writers";

/// Names that are written at once.
const NAMES_AT_ONCE: usize = 1024;

/// The file, open at its end.
#[derive(Debug)]
pub struct WriterFile {
    path: PathBuf,
    file: File,
    /// How many names of those that are known are in it.
    position: u64,
}

impl WriterFile {
    /// Reads the names in a data directory, and opens the file for more.
    ///
    /// # Errors
    /// If the operating system refuses.
    pub fn open(dir: &Path, writers: &WriterNames) -> io::Result<Self> {
        let path = dir.join(FILE);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        let text = String::from_utf8_lossy(&bytes);
        text.lines().for_each(|name| writers.learn(name));
        let is_long = text.lines().count() > 2 * WRITER_NAMES_MAX;
        if is_long || !bytes.is_empty() && !bytes.ends_with(b"\n") {
            let (names, _) = writers.after(0, WRITER_NAMES_MAX);
            file::replace(&path, (names.join("\n") + "\n").as_bytes())?;
        }
        let file = OpenOptions::new().create(true).append(true).open(&path)?;
        let position = *writers.changes().borrow();
        Ok(Self {
            path,
            file,
            position,
        })
    }

    /// Adds the names that are not in the file.
    ///
    /// # Errors
    /// If the operating system refuses; they are tried again.
    fn add_new(&mut self, writers: &WriterNames) -> io::Result<()> {
        loop {
            let (names, end) = writers.after(self.position, NAMES_AT_ONCE);
            if names.is_empty() {
                return Ok(());
            }
            self.file.write_all((names.join("\n") + "\n").as_bytes())?;
            self.position = end;
        }
    }

    /// Keeps the file up to date, for ever.
    pub async fn follow(mut self, users: Arc<Authenticator>) {
        let mut changes = users.writers().changes();
        loop {
            changes.mark_unchanged();
            let known = Arc::clone(&users);
            let added = tokio::task::spawn_blocking(move || {
                let added = self.add_new(known.writers());
                (self, added)
            });
            let Ok((file, added)) = added.await else {
                return;
            };
            self = file;
            if let Err(error) = added {
                let path = self.path.display();
                tracing::warn!(%path, %error, "names of writers could not be kept");
            }
            if changes.changed().await.is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use fonn_auth::writer_id;

    use super::*;

    fn is_known(dir: &Path, name: &str) -> bool {
        let names = WriterNames::default();
        WriterFile::open(dir, &names).unwrap();
        !names.of(writer_id(name)).is_empty()
    }

    #[test]
    fn names_come_back_from_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let names = WriterNames::default();
        let mut file = WriterFile::open(dir.path(), &names).unwrap();
        names.learn("ci");
        names.learn("github:repo:acme/app");
        file.add_new(&names).unwrap();
        assert!(is_known(dir.path(), "ci"));
        assert!(is_known(dir.path(), "github:repo:acme/app"));
        assert!(!is_known(dir.path(), "dev"));
        file.add_new(&names).unwrap();
        let text = fs::read_to_string(dir.path().join(FILE)).unwrap();
        assert_eq!(text, "ci\ngithub:repo:acme/app\n");
    }

    #[test]
    fn a_name_behind_a_cut_line_is_kept_by_itself() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(FILE), "ci\nde").unwrap();
        let names = WriterNames::default();
        let mut file = WriterFile::open(dir.path(), &names).unwrap();
        names.learn("release");
        file.add_new(&names).unwrap();
        for name in ["ci", "de", "release"] {
            assert!(is_known(dir.path(), name), "{name}");
        }
    }
}
