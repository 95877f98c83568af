//! Why the disk tier could not do something.

use std::io;
use std::path::{Path, PathBuf};

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
