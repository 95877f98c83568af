//! Files that settings name, checked from time to time. A renewed certificate or a changed secret
//! in a container comes without a signal.

use std::fs;
use std::future;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Between two looks.
const INTERVAL: Duration = Duration::from_secs(10);

/// Files, and how they were when they were last read.
///
/// Files that belong together are not replaced at once, and not all are replaced whole. So they
/// have to look the same twice before they count as changed.
#[derive(Debug)]
pub struct FileWatch {
    files: Arc<[PathBuf]>,
    /// When they were last read.
    read: Vec<Stamp>,
    /// At the last look.
    seen: Vec<Stamp>,
    next: Instant,
}

/// What differs between two states of a file; none if it is not there. Symbolic links are followed:
/// Kubernetes replaces the link to the directory.
type Stamp = Option<(u64, u64, u64, i64, i64)>;

impl FileWatch {
    /// Watches these; to be called before they are read.
    #[must_use]
    pub fn new(files: impl IntoIterator<Item = PathBuf>) -> Self {
        let files: Arc<[PathBuf]> = files.into_iter().collect();
        let read = stamps(&files);
        Self {
            seen: read.clone(),
            read,
            files,
            next: Instant::now() + INTERVAL,
        }
    }

    /// Waits until a file is another one than when they were last read. To be called again after
    /// they were read, or could not be.
    ///
    /// # Cancel safety
    /// Cancelling it loses no change.
    pub async fn changed(&mut self) {
        if self.files.is_empty() {
            future::pending::<()>().await;
        }
        loop {
            sleep_until(self.next).await;
            let files = Arc::clone(&self.files);
            // Only a panic or the end of the runtime is an error.
            let Ok(now) = tokio::task::spawn_blocking(move || stamps(&files)).await else {
                future::pending::<()>().await;
                continue;
            };
            self.next = Instant::now() + INTERVAL;
            let is_settled = now == self.seen;
            self.seen.clone_from(&now);
            if is_settled && now != self.read {
                self.read = now;
                return;
            }
        }
    }
}

fn stamps(files: &[PathBuf]) -> Vec<Stamp> {
    let stamp = |file: &PathBuf| -> io::Result<_> {
        let it = fs::metadata(file)?;
        Ok((it.dev(), it.ino(), it.size(), it.mtime(), it.mtime_nsec()))
    };
    files.iter().map(|file| stamp(file).ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tokio::time::timeout;

    use super::*;

    /// Long enough for every change to be found.
    const A_WHILE: Duration = INTERVAL.saturating_mul(3);

    async fn is_changed(watch: &mut FileWatch) -> bool {
        timeout(A_WHILE, watch.changed()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_that_is_replaced_is_a_change_once() {
        let dir = tempfile::tempdir().unwrap();
        let [cert, key] = ["cert", "key"].map(|name| dir.path().join(name));
        fs::write(&cert, "old").unwrap();
        let mut watch = FileWatch::new([cert.clone(), key.clone()]);
        assert!(!is_changed(&mut watch).await);

        fs::write(dir.path().join("new"), "new").unwrap();
        fs::rename(dir.path().join("new"), &cert).unwrap();
        assert!(is_changed(&mut watch).await);
        assert!(!is_changed(&mut watch).await);
        // One that comes, and one that goes.
        fs::write(&key, "key").unwrap();
        assert!(is_changed(&mut watch).await);
        fs::remove_file(&cert).unwrap();
        assert!(is_changed(&mut watch).await);
        assert!(!is_changed(&mut watch).await);
    }

    #[tokio::test(start_paused = true)]
    async fn files_that_still_change_are_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let mut watch = FileWatch::new([file.clone()]);
        for len in 1..9 {
            fs::write(&file, "x".repeat(len)).unwrap();
            let look = timeout(INTERVAL / 2, watch.changed()).await;
            assert!(look.is_err(), "after {len} bytes");
        }
        assert!(is_changed(&mut watch).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_mounted_secret_changes_by_its_link() {
        let dir = tempfile::tempdir().unwrap();
        for version in ["1", "2"] {
            fs::create_dir(dir.path().join(version)).unwrap();
            fs::write(dir.path().join(version).join("tls.crt"), version).unwrap();
        }
        symlink("1", dir.path().join("data")).unwrap();
        let mut watch = FileWatch::new([dir.path().join("data/tls.crt")]);
        symlink("2", dir.path().join("next")).unwrap();
        fs::rename(dir.path().join("next"), dir.path().join("data")).unwrap();
        assert!(is_changed(&mut watch).await);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_to_watch_is_never_a_change() {
        assert!(!is_changed(&mut FileWatch::new([])).await);
    }
}
