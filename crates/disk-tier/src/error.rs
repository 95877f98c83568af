//! Why the disk tier could not do something.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// Why the disk tier could not be opened, or not do something.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The operating system refused.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was attempted.
        action: &'static str,
        /// With which file or directory.
        path: PathBuf,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
    /// Another process has the directory.
    #[error("data directory {} is in use by another process: stop it or choose another --data-dir", .0.display())]
    Locked(PathBuf),
    /// The directory was written by another version of the software, or by something else.
    #[error(
        "data directory {} has format {found:?}, this version reads {expected:?}: \
         start the version that wrote it, choose another --data-dir, or delete the directory",
        dir.display()
    )]
    Format {
        /// The directory.
        dir: PathBuf,
        /// What its FORMAT file says; `none` if there is no such file beside data.
        found: String,
        /// What it should say.
        expected: String,
    },
    /// An option is out of its range.
    #[error("{0}")]
    Options(String),
    /// The queue of reads is full.
    #[error("too many reads are waiting for the disk")]
    Busy,
    /// The tier was closed.
    #[error("the disk tier is closed")]
    Closed,
    /// The log does not have all changes since a mark.
    #[error("the log lost changes since the mark: copy the slots in full")]
    FeedLost,
    /// An index cannot be read.
    #[error("cannot read generation {generation}: {reason}")]
    Index {
        /// Number of the generation.
        generation: u64,
        /// What went wrong.
        reason: String,
    },
}

/// Whether a file is damaged, rather than the operating system in a mood that may pass: it is
/// missing, ends early, is something else than it was, the device cannot read it, or what it holds
/// led to a position that no file has.
pub(crate) fn is_damage(error: &io::Error) -> bool {
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

impl DiskError {
    /// For `map_err`: what was attempted, and with what.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io {
            action,
            path,
            source,
        }
    }
}

#[cfg(test)]
mod tests {
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
}
