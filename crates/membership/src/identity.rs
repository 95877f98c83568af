//! The identity of this data directory: the name of its first use, its raft id, and its cluster.
//!
//! A JSON file, replaced whole. The directory is locked while a process uses it.

use std::fs::{File, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use fonn_base::file;
use fonn_base::random::SplitMix64;
use serde::{Deserialize, Serialize};

use super::types::RaftId;

/// Version of the file.
const VERSION: u32 = 1;

/// Why the identity is not read or written.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The operating system refused.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// A newer version wrote the file.
    #[error("{path} was written by a newer version of fonn-node: start that one again")]
    Newer {
        /// The file.
        path: PathBuf,
    },
    /// The file is damaged.
    #[error(
        "{path} is damaged: move its directory away, and start with --join to follow the cluster anew"
    )]
    Corrupt {
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
}

/// What is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Stored {
    version: u32,
    id: String,
    raft_id: RaftId,
    cluster: u64,
}

/// An identity, and the lock on its directory.
#[derive(Debug)]
pub(super) struct Identity {
    path: PathBuf,
    stored: Stored,
    _lock: File,
}

impl Identity {
    /// Reads the identity in `dir`, or draws one. Blocks.
    pub(super) fn open(dir: &Path, id: &str) -> Result<Self, IdentityError> {
        let path = dir.join("identity");
        let io = |source| IdentityError::Io {
            path: path.clone(),
            source,
        };
        std::fs::create_dir_all(dir).map_err(io)?;
        // Hashes of passwords are in log and snapshot.
        std::fs::set_permissions(dir, Permissions::from_mode(0o700)).map_err(io)?;
        let lock = File::create(dir.join("lock")).map_err(io)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(IdentityError::Locked {
                    path: dir.to_owned(),
                });
            }
            Err(TryLockError::Error(source)) => return Err(io(source)),
        }
        let stored = match std::fs::read(&path) {
            Ok(bytes) => match serde_json::from_slice::<Stored>(&bytes) {
                Ok(stored) if stored.version == VERSION && stored.raft_id != 0 => stored,
                _ if is_newer(&bytes) => return Err(IdentityError::Newer { path }),
                _ => return Err(IdentityError::Corrupt { path }),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => Stored {
                version: VERSION,
                id: id.to_owned(),
                raft_id: draw(),
                cluster: 0,
            },
            Err(source) => return Err(io(source)),
        };
        if stored.id != id {
            return Err(IdentityError::OtherName {
                path: dir.to_owned(),
                stored: stored.id,
                given: id.to_owned(),
            });
        }
        let identity = Self {
            path,
            stored,
            _lock: lock,
        };
        identity.save()?;
        Ok(identity)
    }

    pub(super) const fn raft_id(&self) -> RaftId {
        self.stored.raft_id
    }

    /// The cluster it belongs to; 0 for none yet.
    pub(super) const fn cluster(&self) -> u64 {
        self.stored.cluster
    }

    /// Notes the cluster; blocks until it is on disk.
    pub(super) fn set_cluster(&mut self, cluster: u64) -> Result<(), IdentityError> {
        if self.stored.cluster == cluster {
            return Ok(());
        }
        self.stored.cluster = cluster;
        self.save()
    }

    fn save(&self) -> Result<(), IdentityError> {
        let bytes = serde_json::to_vec(&self.stored).expect("an identity has a JSON form");
        match file::replace(&self.path, &bytes) {
            Ok(_) => Ok(()),
            Err(source) => Err(IdentityError::Io {
                path: self.path.clone(),
                source,
            }),
        }
    }
}

/// Whether a file has the number of a newer version.
fn is_newer(bytes: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    serde_json::from_slice::<Versioned>(bytes).is_ok_and(|it| it.version > VERSION)
}

/// A number that no other member has drawn, and not 0.
pub(super) fn draw() -> u64 {
    SplitMix64::from_entropy().next_u64().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_keeps_its_identity_and_a_new_one_draws_another() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut identity = Identity::open(one.path(), "a").unwrap();
        identity.set_cluster(7).unwrap();
        let raft_id = identity.raft_id();
        drop(identity);
        let mode = std::fs::metadata(one.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "there are hashes in it");
        let identity = Identity::open(one.path(), "a").unwrap();
        assert_eq!((identity.raft_id(), identity.cluster()), (raft_id, 7));
        assert_ne!(Identity::open(two.path(), "a").unwrap().raft_id(), raft_id);
    }

    #[test]
    fn another_process_another_name_and_damage_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let identity = Identity::open(dir.path(), "a").unwrap();
        let locked = Identity::open(dir.path(), "a");
        assert!(
            matches!(locked, Err(IdentityError::Locked { .. })),
            "{locked:?}"
        );
        drop(identity);
        let other = Identity::open(dir.path(), "b");
        assert!(
            matches!(other, Err(IdentityError::OtherName { .. })),
            "{other:?}"
        );
        for bytes in [
            &b""[..],
            b"{}",
            b"\xff",
            b"{\"version\":1,\"id\":\"a\",\"raft_id\":0,\"cluster\":0}",
        ] {
            std::fs::write(dir.path().join("identity"), bytes).unwrap();
            let damaged = Identity::open(dir.path(), "a");
            assert!(
                matches!(damaged, Err(IdentityError::Corrupt { .. })),
                "{damaged:?}"
            );
        }
        let newer = b"{\"version\":2,\"who\":\"a\"}";
        std::fs::write(dir.path().join("identity"), newer).unwrap();
        let newer = Identity::open(dir.path(), "a");
        assert!(
            matches!(newer, Err(IdentityError::Newer { .. })),
            "{newer:?}"
        );
    }
}
