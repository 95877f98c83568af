//! Why a file in the directory of raft is not read or written.

use std::io;
use std::path::{Path, PathBuf};

use super::journal::PAYLOAD_LEN_MAX;

/// Why a file in the directory of raft is not read or written.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The operating system refused.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// A newer version wrote the file, or agreed on what this version does not know.
    #[error("{path} was written by a newer version of fonn-node: start that version again")]
    Newer {
        /// The file.
        path: PathBuf,
    },
    /// The file is damaged where it was acknowledged.
    #[error(
        "{path} is damaged: move its directory away, and start with --join to follow the cluster anew"
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
    },
    /// The journal is gone, and with it what the member voted.
    #[error(
        "{path} is missing, although this node is a member of a cluster and may have voted: put the file back, or \
         move its directory away, and start with --join to follow the cluster anew"
    )]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// Another process uses the directory.
    #[error("{path} is used by another process: give each node its own data directory")]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// The directory belongs to a member of another name.
    #[error(
        "{path} belongs to node {stored:?}, not to {given:?}: set --node-id {stored}, or another data directory"
    )]
    OtherName {
        /// The directory.
        path: PathBuf,
        /// The name in it.
        stored: String,
        /// The name given.
        given: String,
    },
    /// A record of the journal is longer than its format allows.
    #[error("a raft record of {len} bytes is longer than {PAYLOAD_LEN_MAX}")]
    TooLong {
        /// Its length.
        len: usize,
    },
}

impl FileError {
    /// What the operating system said about a file.
    pub(super) fn io(path: &Path) -> impl Fn(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io {
            path: path.clone(),
            source,
        }
    }

    /// What is wrong with a file that cannot be read. `magic` is what a file of this version begins
    /// with; another version has other numbers at its end.
    pub(super) fn of_magic(path: PathBuf, bytes: &[u8], magic: &[u8; 8]) -> Self {
        let (kept, found) = (magic.get(..6), bytes.get(..magic.len()));
        let is_of_other_version = |it: &[u8]| it.get(..6) == kept && it != magic.as_slice();
        match found.is_some_and(is_of_other_version) {
            true => Self::Newer { path },
            false => Self::Corrupt { path },
        }
    }
}
