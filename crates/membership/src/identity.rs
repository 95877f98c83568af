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

use super::belonging::Belonging;
use super::file_error::FileError;
use super::types::RaftId;

/// Version of the file.
const VERSION: u32 = 1;

/// What is stored.
#[derive(Serialize, Deserialize)]
struct Stored {
    version: u32,
    id: String,
    raft_id: RaftId,
    /// 0 for none yet.
    cluster: u64,
}

/// An identity, and the lock on its directory.
#[derive(Debug)]
pub(super) struct Identity {
    path: PathBuf,
    id: String,
    belonging: Belonging,
    _lock: File,
}

impl Identity {
    /// Reads the identity in `dir`, or draws one. Blocks.
    pub(super) fn open(dir: &Path, id: &str) -> Result<Self, FileError> {
        let path = dir.join("identity");
        let io = FileError::io(&path);
        std::fs::create_dir_all(dir).map_err(&io)?;
        // Hashes of passwords are in the journal.
        std::fs::set_permissions(dir, Permissions::from_mode(0o700)).map_err(&io)?;
        let lock = File::create(dir.join("lock")).map_err(&io)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(FileError::Locked {
                    path: dir.to_owned(),
                });
            }
            Err(TryLockError::Error(source)) => return Err(io(source)),
        }
        let stored = match std::fs::read(&path) {
            Ok(bytes) => match serde_json::from_slice::<Stored>(&bytes) {
                Ok(stored) if stored.version == VERSION && stored.raft_id != 0 => stored,
                _ if is_newer(&bytes) => return Err(FileError::Newer { path }),
                _ => return Err(FileError::Corrupt { path }),
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
            return Err(FileError::OtherName {
                path: dir.to_owned(),
                stored: stored.id,
                given: id.to_owned(),
            });
        }
        let identity = Self {
            path,
            belonging: Belonging::new(stored.raft_id, stored.cluster),
            id: stored.id,
            _lock: lock,
        };
        identity.save(stored.cluster)?;
        Ok(identity)
    }

    /// The raft id and the cluster.
    pub(super) const fn belonging(&self) -> &Belonging {
        &self.belonging
    }

    /// Notes the cluster; blocks until it is on disk.
    pub(super) fn set_cluster(&self, cluster: u64) -> Result<(), FileError> {
        if self.belonging.cluster() != cluster {
            self.save(cluster)?;
            self.belonging.set_cluster(cluster);
        }
        Ok(())
    }

    fn save(&self, cluster: u64) -> Result<(), FileError> {
        let stored = Stored {
            version: VERSION,
            id: self.id.clone(),
            raft_id: self.belonging.raft_id(),
            cluster,
        };
        let bytes = serde_json::to_vec(&stored).expect("an identity has a JSON form");
        let replaced = file::replace(&self.path, &bytes);
        replaced.map(drop).map_err(FileError::io(&self.path))
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
        let identity = Identity::open(one.path(), "a").unwrap();
        identity.set_cluster(7).unwrap();
        let raft_id = identity.belonging().raft_id();
        drop(identity);
        let mode = std::fs::metadata(one.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "there are hashes in it");
        let identity = Identity::open(one.path(), "a").unwrap();
        let kept = identity.belonging();
        assert_eq!((kept.raft_id(), kept.cluster()), (raft_id, 7));
        let other = Identity::open(two.path(), "a").unwrap();
        assert_ne!(other.belonging().raft_id(), raft_id);
    }

    #[test]
    fn another_process_another_name_and_damage_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let identity = Identity::open(dir.path(), "a").unwrap();
        let locked = Identity::open(dir.path(), "a");
        assert!(
            matches!(locked, Err(FileError::Locked { .. })),
            "{locked:?}"
        );
        drop(identity);
        let other = Identity::open(dir.path(), "b");
        assert!(
            matches!(other, Err(FileError::OtherName { .. })),
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
                matches!(damaged, Err(FileError::Corrupt { .. })),
                "{damaged:?}"
            );
        }
        let newer = b"{\"version\":2,\"who\":\"a\"}";
        std::fs::write(dir.path().join("identity"), newer).unwrap();
        let newer = Identity::open(dir.path(), "a");
        assert!(matches!(newer, Err(FileError::Newer { .. })), "{newer:?}");
    }
}
