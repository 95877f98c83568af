//! Checks passwords against the directory in force.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

use argon2::Argon2;
use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use blake2::Blake2sMac256;
use blake2::digest::{FixedOutput, KeyInit, Update};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Semaphore, watch};

use super::directory::{Directory, Identity};
use super::slowdown::{Slowdown, Source};
use crate::pool::{BlockingPool, PoolError};

/// Threads that check passwords. One check takes some 20 ms of a core and 19 MiB.
const THREADS: NonZeroUsize = NonZeroUsize::MIN;

/// Checks that may wait for their thread.
const QUEUE_MAX: usize = 256;

/// Attempts that wait out their penalty at the same time; further ones are refused at once.
const WAITING_MAX: usize = 1024;

/// Longest password in bytes.
const PASSWORD_LEN_MAX: usize = 1024;

/// Passwords known to be right, remembered at most. A client that opens a connection for each compile
/// cannot wait for argon2 each time.
const REMEMBERED_MAX: usize = 8192;

/// Why somebody was not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is no such user, or the password is another one.
    #[error("wrong user name or password")]
    Wrong,
    /// Too many attempts wait already; nothing was checked.
    #[error("too many attempts to log in are waiting; try again later")]
    Busy,
}

/// The users in force, and the memory of who logged in and who failed to.
pub struct Authenticator {
    directory: RwLock<Arc<Directory>>,
    changes: watch::Sender<u64>,
    pool: BlockingPool,
    waiting: Semaphore,
    slowdown: Mutex<Slowdown>,
    remembered: Mutex<HashSet<[u8; 32]>>,
    /// Keys the digests in `remembered`, so that nobody outside can know or aim at one.
    key: [u8; 32],
    /// Checked in the place of a user that does not exist.
    decoy: PasswordHash,
    origin: Instant,
}

impl fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authenticator")
            .field("directory", &*self.directory.read())
            .finish_non_exhaustive()
    }
}

impl Authenticator {
    /// Starts the thread that checks passwords.
    ///
    /// # Errors
    /// If the thread cannot be started or the system gives no random bytes.
    pub fn new(directory: Directory) -> io::Result<Self> {
        let mut key = [0; 32];
        fill_random(&mut key)?;
        let mut password = [0; 32];
        fill_random(&mut password)?;
        let decoy = Argon2::default()
            .hash_password(&password)
            .map_err(|error| io::Error::other(error.to_string()))?;
        Ok(Self {
            directory: RwLock::new(Arc::new(directory)),
            changes: watch::Sender::new(0),
            pool: BlockingPool::new("fonn-auth", THREADS, QUEUE_MAX)?,
            waiting: Semaphore::new(WAITING_MAX),
            slowdown: Mutex::default(),
            remembered: Mutex::default(),
            key,
            decoy,
            origin: Instant::now(),
        })
    }

    /// The users in force.
    #[must_use]
    pub fn directory(&self) -> Arc<Directory> {
        Arc::clone(&self.directory.read())
    }

    /// Puts other users in force. Who is no longer among them is cut off by whoever watches
    /// [`Authenticator::changes`].
    pub fn replace(&self, directory: Directory) {
        *self.directory.write() = Arc::new(directory);
        self.remembered.lock().clear();
        self.changes.send_modify(|count| *count += 1);
    }

    /// Counts up with each [`Authenticator::replace`].
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Who `user` is, if `password` is the right one. An empty user is `default`, as in Redis.
    ///
    /// # Errors
    /// [`Refusal`]; after some wrong ones from the same `source` it takes a while to come.
    pub async fn check(
        &self,
        user: &[u8],
        password: &[u8],
        source: Option<IpAddr>,
    ) -> Result<Identity, Refusal> {
        let user = match user {
            [] => "default",
            name => std::str::from_utf8(name).unwrap_or(""),
        };
        let directory = self.directory();
        let row = directory.user(user);
        let digest = row.map(|row| self.digest(row.identity.stamp, password));
        if let (Some(row), Some(digest)) = (row, &digest)
            && self.remembered.lock().contains(digest)
        {
            return Ok(row.identity.clone());
        }
        let source = Source::of(source);
        self.wait_out(source).await?;
        if password.len() > PASSWORD_LEN_MAX {
            self.slowdown.lock().failed(source, self.origin.elapsed());
            return Err(Refusal::Wrong);
        }
        let hash = row.map_or_else(|| self.decoy.clone(), |row| row.hash.clone());
        let secret = password.to_vec();
        let check = move || Argon2::default().verify_password(&secret, &hash).is_ok();
        let is_right = match self.pool.submit(check) {
            Ok(pending) => pending.await.unwrap_or(false),
            Err(PoolError::Busy | PoolError::Closed | PoolError::Panicked) => {
                return Err(Refusal::Busy);
            }
        };
        match (row, digest) {
            (Some(row), Some(digest)) if is_right => {
                self.remember(&directory, digest);
                Ok(row.identity.clone())
            }
            _ => {
                self.slowdown.lock().failed(source, self.origin.elapsed());
                Err(Refusal::Wrong)
            }
        }
    }

    /// Waits until `source` may try again.
    async fn wait_out(&self, source: Source) -> Result<(), Refusal> {
        let wait = self.slowdown.lock().wait(source, self.origin.elapsed());
        if wait > Duration::ZERO {
            let _permit = self.waiting.try_acquire().map_err(|_| Refusal::Busy)?;
            tokio::time::sleep(wait).await;
        }
        Ok(())
    }

    fn remember(&self, directory: &Arc<Directory>, digest: [u8; 32]) {
        let mut remembered = self.remembered.lock();
        // The directory may have been replaced while the password was checked.
        if !Arc::ptr_eq(directory, &self.directory.read()) {
            return;
        }
        if remembered.len() >= REMEMBERED_MAX {
            remembered.clear();
        }
        remembered.insert(digest);
    }

    /// What is remembered of a right password.
    fn digest(&self, stamp: u64, password: &[u8]) -> [u8; 32] {
        let mut mac = Blake2sMac256::new(&self.key.into());
        mac.update(&stamp.to_le_bytes());
        mac.update(password);
        mac.finalize_fixed().into()
    }
}

fn fill_random(bytes: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        filled += rustix::rand::getrandom(&mut bytes[filled..], flags)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::users::Role;
    use crate::users::tests_support::{PASSWORD, directory};

    fn peer() -> Option<IpAddr> {
        Some(IpAddr::from([10, 0, 0, 9]))
    }

    fn authenticator(rows: &[(&str, &str)]) -> Authenticator {
        Authenticator::new(directory(rows)).unwrap()
    }

    #[tokio::test]
    async fn the_right_password_lets_in_and_no_other() {
        let auth = authenticator(&[("ci", "read-write"), ("default", "read")]);
        for _ in 0..2 {
            let who = auth.check(b"ci", PASSWORD, peer()).await.unwrap();
            assert_eq!((&*who.user, who.role), ("ci", Role::ReadWrite));
            for (user, password) in [
                (&b"ci"[..], &b"wrong"[..]),
                (b"ci", b""),
                (b"nobody", PASSWORD),
                (b"\xff", PASSWORD),
            ] {
                let source = Some(IpAddr::from([10, 0, 1, password.len() as u8]));
                assert_eq!(
                    auth.check(user, password, source).await.err(),
                    Some(Refusal::Wrong)
                );
            }
        }
        // `AUTH password` of Redis.
        let who = auth.check(b"", PASSWORD, peer()).await.unwrap();
        assert_eq!(who.role, Role::Read);
    }

    #[tokio::test(start_paused = true)]
    async fn guessing_is_slowed_and_others_are_not() {
        let auth = authenticator(&[("ci", "read-write")]);
        let start = tokio::time::Instant::now();
        for _ in 0..12 {
            assert!(auth.check(b"ci", b"guess", peer()).await.is_err());
        }
        assert!(
            start.elapsed() > Duration::from_secs(20),
            "{:?}",
            start.elapsed()
        );
        let before = tokio::time::Instant::now();
        let other = Some(IpAddr::from([10, 0, 0, 10]));
        assert!(auth.check(b"ci", PASSWORD, other).await.is_ok());
        // Whoever is behind the same address and has logged in before, neither.
        assert!(auth.check(b"ci", PASSWORD, peer()).await.is_ok());
        assert!(before.elapsed() < Duration::from_millis(100));
    }

    #[tokio::test]
    async fn a_user_that_was_removed_or_changed_is_no_longer_held() {
        let auth = authenticator(&[("ci", "read-write"), ("dev", "read")]);
        let changes = auth.changes();
        let ci = auth.check(b"ci", PASSWORD, peer()).await.unwrap();
        let dev = auth.check(b"dev", PASSWORD, peer()).await.unwrap();
        assert!(auth.directory().holds(&ci) && auth.directory().holds(&dev));
        auth.replace(directory(&[("ci", "read")]));
        assert!(changes.has_changed().unwrap());
        assert!(!auth.directory().holds(&ci), "another role");
        assert!(!auth.directory().holds(&dev), "removed");
        assert!(auth.check(b"dev", PASSWORD, peer()).await.is_err());
        assert_eq!(
            auth.check(b"ci", PASSWORD, peer()).await.unwrap().role,
            Role::Read
        );
    }

    #[tokio::test]
    async fn nothing_secret_is_in_what_is_printed() {
        let auth = authenticator(&[("ci", "admin")]);
        let who = auth.check(b"ci", PASSWORD, peer()).await.unwrap();
        let printed = format!("{auth:?} {who:?} {:?}", auth.directory());
        assert!(!printed.contains("argon2") && !printed.contains("hunter"));
    }
}
