//! Files that take the place of others as a whole, that are read up to a bound, or are damaged.
//!
//! Invariant of [`replace`]: after a crash or a loss of power the old file or the new one is found,
//! never a part.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
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

/// Room behind a text of the expected length, so that the reader finds the end without growing it.
const SPARE_LEN: usize = 64;

/// Reads a text file of at most `len_max` bytes.
///
/// No more than that is read of a device or a pipe, which tell no length. The text has one
/// allocation if the file has the length that it tells, so a caller may overwrite it.
///
/// # Errors
/// What the operating system said, a text that is no UTF-8, or one that is too long.
pub fn read_text(path: &Path, len_max: usize) -> io::Result<String> {
    let file = File::open(path)?;
    let len = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
    let mut text = String::with_capacity(len.min(len_max).saturating_add(SPARE_LEN));
    let taken_max = u64::try_from(len_max).unwrap_or(u64::MAX).saturating_add(1);
    file.take(taken_max).read_to_string(&mut text)?;
    match text.len() > len_max {
        true => Err(io::Error::other(format!(
            "it is too long: expected at most {len_max} bytes"
        ))),
        false => Ok(text),
    }
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
    use std::io::Seek as _;
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
    fn no_more_than_the_bound_is_read_of_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("users.toml");
        fs::write(&path, "four").unwrap();
        assert_eq!(read_text(&path, 4).unwrap(), "four");
        let error = read_text(&path, 3).unwrap_err().to_string();
        assert_eq!(error, "it is too long: expected at most 3 bytes");
        // It has no end, and tells a length of 0.
        let error = read_text(Path::new("/dev/zero"), 1024).unwrap_err();
        assert!(error.to_string().contains("at most 1024 bytes"), "{error}");
        fs::write(&path, b"\xFF").unwrap();
        let error = read_text(&path, 4).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
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
