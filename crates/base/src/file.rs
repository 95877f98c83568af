//! Files that take the place of others as a whole, and what tells that a file is damaged.
//!
//! Invariant of [`replace`]: after a crash or a loss of power the old file or the new one is found, never a part.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::io::Errno;

/// Whether a file is damaged, rather than the operating system in a mood that may pass: it is
/// missing, ends early, is something else than it was, the device cannot read it, or what it holds
/// led to a position that no file has.
#[must_use]
pub fn is_damage(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    let is_unreadable = |errno| matches!(errno, Errno::IO | Errno::UCLEAN | Errno::OVERFLOW);
    errno.is_some_and(is_unreadable)
        || matches!(
            error.kind(),
            io::ErrorKind::NotFound
                | io::ErrorKind::UnexpectedEof
                | io::ErrorKind::InvalidData
                | io::ErrorKind::InvalidInput
                | io::ErrorKind::Other
                | io::ErrorKind::AlreadyExists
                | io::ErrorKind::IsADirectory
                | io::ErrorKind::NotADirectory
        )
}

/// Puts `bytes` in the place of a file, or makes the file. Durable when it returns. Only the user
/// that the process runs as may open it.
///
/// The bytes are written to `PATH.new` first, which a crash may leave behind. The returned file is
/// open to read and write, behind the bytes.
///
/// # Errors
/// What the operating system said; the old file may be in its place, or the new one.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<File> {
    let new = path.with_added_extension("new");
    let mut file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    sync_parent(path)?;
    Ok(file)
}

/// Makes the names in a directory survive a loss of power.
///
/// # Errors
/// What the operating system said.
pub fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// As [`sync_dir`], for the directory that `path` is in.
///
/// # Errors
/// What the operating system said.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    sync_dir(parent.unwrap_or(Path::new(".")))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Seek as _};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn what_may_pass_is_no_damage() {
        let of = |errno: Errno| is_damage(&io::Error::from(errno));
        for errno in [Errno::IO, Errno::UCLEAN, Errno::INVAL, Errno::ISDIR] {
            assert!(of(errno), "{errno:?}");
        }
        for errno in [Errno::ACCESS, Errno::MFILE, Errno::NOMEM, Errno::NOSPC] {
            assert!(!of(errno), "{errno:?}");
        }
        assert!(is_damage(&io::ErrorKind::UnexpectedEof.into()));
    }

    #[test]
    fn a_file_is_replaced_as_a_whole_and_nothing_else_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.copy");
        fs::write(
            dir.path().join("state.copy.new"),
            "what a crash left behind",
        )
        .unwrap();
        for text in ["the first", "new"] {
            let mut file = replace(&path, text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            file.write_all(b" and more").unwrap();
            let mut read = String::new();
            file.rewind().unwrap();
            file.read_to_string(&mut read).unwrap();
            assert_eq!(read, format!("{text} and more"));
        }
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_stays_where_no_other_can_take_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        replace(&path, b"old").unwrap();
        fs::create_dir(dir.path().join("state.new")).unwrap();
        replace(&path, b"new").unwrap_err();
        assert_eq!(fs::read(&path).unwrap(), b"old");
    }
}
