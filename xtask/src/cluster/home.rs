//! The directory of a cluster. What was there before is never removed.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use super::ports::Ports;

/// Marks a directory as one of ours.
const PORTS: &str = "ports";

/// The directory of a cluster.
pub struct Home {
    dir: PathBuf,
    temporary: Option<TempDir>,
    keep: bool,
}

impl Home {
    /// Takes `dir`, if it is empty, not there, or ours; without one, makes a temporary one.
    ///
    /// # Errors
    /// If it is none of these.
    pub fn open(dir: Option<&Path>, keep: bool) -> Result<Self> {
        let Some(dir) = dir else {
            let temporary = tempfile::Builder::new().prefix("fonn-cluster-").tempdir();
            let temporary = temporary.context("cannot make a temporary directory")?;
            return Ok(Self {
                dir: temporary.path().to_owned(),
                temporary: Some(temporary),
                keep,
            });
        };
        fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        // The nodes get its path, wherever they stand.
        let dir = dir.canonicalize()?;
        let mut found = fs::read_dir(&dir)?;
        ensure!(
            dir.join(PORTS).is_file() || found.next().is_none(),
            "--dir {}: it is not empty, and no cluster was kept there",
            dir.display()
        );
        Ok(Self {
            dir,
            temporary: None,
            keep,
        })
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The directory that is the bucket.
    pub fn bucket(&self) -> PathBuf {
        self.dir.join("bucket")
    }

    /// The directory of a program.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn of_member(&self, name: &str) -> Result<PathBuf> {
        let dir = self.dir.join(name);
        fs::create_dir_all(&dir).with_context(|| format!("making {}", dir.display()))?;
        Ok(dir)
    }

    /// The ports that were kept here, or else those that are chosen now.
    ///
    /// # Errors
    /// If they cannot be read, chosen or kept.
    pub fn ports(&self, choose: impl FnOnce() -> Result<Ports>) -> Result<Ports> {
        let path = self.dir.join(PORTS);
        if path.is_file() {
            let text = fs::read_to_string(&path)?;
            return Ports::of_text(&text).with_context(|| format!("reading {}", path.display()));
        }
        let ports = choose()?;
        fs::write(&path, ports.to_text()).with_context(|| format!("writing {}", path.display()))?;
        Ok(ports)
    }

    /// Removes it, unless it is to be kept.
    ///
    /// # Errors
    /// If something in it cannot be removed.
    pub fn close(self) -> Result<()> {
        match (self.keep, self.temporary) {
            (true, Some(temporary)) => drop(temporary.keep()),
            (true, None) => {}
            (false, Some(temporary)) => temporary.close().context("removing the data")?,
            (false, None) => {
                let removed = fs::remove_dir_all(&self.dir);
                removed.with_context(|| format!("removing {}", self.dir.display()))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choose() -> Result<Ports> {
        Ports::choose(1, 1, None)
    }

    #[test]
    fn what_others_have_put_somewhere_stays_there() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("theirs"), "x").unwrap();
        assert!(Home::open(Some(dir.path()), false).is_err());
        assert!(dir.path().join("theirs").is_file());
    }

    #[test]
    fn a_kept_cluster_has_the_same_ports_again_and_is_removed_when_it_is_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("cluster");
        let first = Home::open(Some(&dir), true).unwrap();
        let ports = first.ports(choose).unwrap();
        first.close().unwrap();
        let again = Home::open(Some(&dir), false).unwrap();
        assert_eq!(again.ports(choose).unwrap(), ports);
        fs::write(again.of_member("node-1").unwrap().join("log"), "x").unwrap();
        again.close().unwrap();
        assert!(!dir.exists());
    }

    #[test]
    fn a_temporary_directory_is_kept_on_request() {
        for keep in [false, true] {
            let home = Home::open(None, keep).unwrap();
            home.ports(choose).unwrap();
            let dir = home.dir().to_owned();
            home.close().unwrap();
            assert_eq!(dir.exists(), keep);
            if keep {
                fs::remove_dir_all(dir).unwrap();
            }
        }
    }
}
