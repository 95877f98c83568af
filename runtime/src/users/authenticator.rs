//! Checks passwords against the directory in force: the users file and what members agreed on.

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
use tokio::sync::watch;

use super::directory::{Directory, Identity, Namespace, Role};
use super::metrics::Refusals;
use super::records::{self, LeftOut, Records, UserRecord};
use super::slowdown::{Slowdown, Source};
use super::turns::{Turn, Turns};
use crate::pool::{BlockingPool, PoolError};

/// Threads that check passwords. One check takes some 20 ms of a core and 19 MiB.
const THREADS: NonZeroUsize = NonZeroUsize::MIN;

/// Checks that may wait for their thread.
const QUEUE_MAX: usize = 256;

/// Attempts that may wait behind one that waits out a penalty; those before are refused, so that who comes from the
/// same address as a guesser waits minutes at most.
const BEHIND_PENALTY_MAX: usize = 8;

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

/// Why a password was not hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HashError {
    /// It cannot be one.
    #[error("a password has 1 to {PASSWORD_LEN_MAX} bytes")]
    Length,
    /// Too much waits already.
    #[error("too many passwords are waiting to be hashed or checked; try again later")]
    Busy,
    /// The system gave no random bytes.
    #[error("the password cannot be hashed: the system gives no random bytes")]
    Random,
}

/// From where users come.
struct Sources {
    file: Arc<Directory>,
    records: Arc<Records>,
    left_out: LeftOut,
}

/// A user as an admin sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// Its namespace, as it is in force; of a user that is not let in, only the name is known.
    pub namespace: Arc<Namespace>,
    /// The name of the namespace under it.
    pub base: Option<Arc<str>>,
    /// Whether the users file has it; else members agreed on it.
    pub is_of_file: bool,
    /// Why it is not let in as this says, if so.
    pub ignored: Option<String>,
}

/// The users in force, and the memory of who logged in and who failed to.
pub struct Authenticator {
    sources: Mutex<Sources>,
    directory: RwLock<Arc<Directory>>,
    changes: watch::Sender<u64>,
    revisions: watch::Sender<u64>,
    pool: BlockingPool,
    turns: Turns,
    slowdown: Mutex<Slowdown>,
    refusals: Refusals,
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
        let directory = Arc::new(directory);
        Ok(Self {
            sources: Mutex::new(Sources {
                file: Arc::clone(&directory),
                records: Arc::default(),
                left_out: LeftOut::new(),
            }),
            directory: RwLock::new(directory),
            changes: watch::Sender::new(0),
            revisions: watch::Sender::new(0),
            pool: BlockingPool::new("fonn-auth", THREADS, QUEUE_MAX)?,
            turns: Turns::default(),
            slowdown: Mutex::default(),
            refusals: Refusals::default(),
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

    /// Puts the users of another file in force, beside those that members agreed on. Who is no longer among
    /// them is cut off by whoever watches [`Authenticator::changes`].
    pub fn replace(&self, file: Directory) {
        let mut sources = self.sources.lock();
        sources.file = Arc::new(file);
        self.enforce(&mut sources);
    }

    /// Puts in force what members agreed on, beside the users of the file, if it is newer than what they agreed
    /// on before. Says whether it was. Takes some milliseconds for thousands of users.
    pub fn replicate(&self, records: Records) -> bool {
        let mut sources = self.sources.lock();
        if records.revision <= sources.records.revision {
            return false;
        }
        let revision = records.revision;
        sources.records = Arc::new(records);
        self.enforce(&mut sources);
        self.revisions.send_replace(revision);
        true
    }

    fn enforce(&self, sources: &mut Sources) {
        let (directory, left_out) = records::union(&sources.file, &sources.records);
        for (user, why) in &left_out {
            if sources.left_out.get(user) != Some(why) {
                tracing::warn!(%user, %why, "a user that members agreed on is not let in");
            }
        }
        sources.left_out = left_out;
        *self.directory.write() = Arc::new(directory);
        self.changes.send_modify(|count| *count += 1);
    }

    /// What members agreed on, as it is in force.
    #[must_use]
    pub fn records(&self) -> Arc<Records> {
        Arc::clone(&self.sources.lock().records)
    }

    /// The revision of [`Authenticator::records`].
    #[must_use]
    pub fn revisions(&self) -> watch::Receiver<u64> {
        self.revisions.subscribe()
    }

    /// Whether members may agree on `then` in the place of `now`, beside the users of the file here.
    ///
    /// # Errors
    /// A sentence that says what is wrong; no hash is in it.
    pub fn judge(&self, now: &Records, then: &Records) -> Result<(), String> {
        let file = Arc::clone(&self.sources.lock().file);
        records::judge(&file, now, then)
    }

    /// The users of the file alone.
    #[must_use]
    pub fn file(&self) -> Arc<Directory> {
        Arc::clone(&self.sources.lock().file)
    }

    /// All users, by name, those of the file first where both have one.
    #[must_use]
    pub fn list(&self) -> Vec<Listed> {
        let sources = self.sources.lock();
        let directory = self.directory();
        let base = |namespace: &Namespace| {
            let mut all = directory.namespaces().iter();
            let base = all.find(|it| Some(it.number) == namespace.base);
            base.map(|it| Arc::clone(&it.name))
        };
        let listed = |name: &str, role, namespace: &str| {
            let unknown = || {
                Arc::new(Namespace {
                    name: namespace.into(),
                    number: super::namespace_number(namespace),
                    base: None,
                    quota: None,
                })
            };
            let namespace = directory.namespace(namespace);
            let namespace = namespace.map_or_else(unknown, Arc::clone);
            Listed {
                name: name.to_owned(),
                role,
                base: base(&namespace),
                namespace,
                is_of_file: true,
                ignored: None,
            }
        };
        let of_file = sources.file.identities().into_iter();
        let mut all: Vec<Listed> = of_file
            .map(|it| listed(&it.user, it.role, &it.namespace.name))
            .collect();
        all.extend(sources.records.users.iter().map(|(name, record)| {
            let UserRecord {
                role, namespace, ..
            } = record;
            let ignored = match sources.file.user(name) {
                Some(_) => Some("the users file has a user of that name".to_owned()),
                None => sources.left_out.get(name).cloned(),
            };
            Listed {
                is_of_file: false,
                ignored,
                ..listed(name, *role, namespace)
            }
        }));
        all.sort_by(|a, b| (&a.name, !a.is_of_file).cmp(&(&b.name, !b.is_of_file)));
        all
    }

    /// The argon2 hash of a password with a salt of its own, made where passwords are checked.
    ///
    /// # Errors
    /// [`HashError`].
    pub async fn hash(&self, password: &[u8]) -> Result<String, HashError> {
        if password.is_empty() || password.len() > PASSWORD_LEN_MAX {
            return Err(HashError::Length);
        }
        let secret = password.to_vec();
        let hash = move || Argon2::default().hash_password(&secret);
        let pending = self.pool.submit(hash).map_err(|_| HashError::Busy)?;
        match pending.await {
            Ok(Ok(hash)) => Ok(hash.to_string()),
            Ok(Err(_)) => Err(HashError::Random),
            Err(_) => Err(HashError::Busy),
        }
    }

    /// Counts up with each [`Authenticator::replace`] and [`Authenticator::replicate`].
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// What the admin port refused.
    pub(crate) const fn refusals(&self) -> &Refusals {
        &self.refusals
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
        let is_remembered =
            || digest.is_some_and(|digest| self.remembered.lock().contains(&digest));
        if let Some(row) = row
            && is_remembered()
        {
            return Ok(row.identity.clone());
        }
        let source = Source::of(source);
        let turn = self.turns.take(source).await?;
        // The one before it may have had the same password.
        if let Some(row) = row
            && is_remembered()
        {
            return Ok(row.identity.clone());
        }
        self.wait_out(source, &turn).await?;
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
                self.remember(digest);
                Ok(row.identity.clone())
            }
            _ => {
                self.slowdown.lock().failed(source, self.origin.elapsed());
                Err(Refusal::Wrong)
            }
        }
    }

    /// Waits until `source` may try again.
    async fn wait_out(&self, source: Source, turn: &Turn<'_>) -> Result<(), Refusal> {
        let wait = self.slowdown.lock().wait(source, self.origin.elapsed());
        if wait > Duration::ZERO {
            if turn.behind() > BEHIND_PENALTY_MAX {
                return Err(Refusal::Busy);
            }
            tokio::time::sleep(wait).await;
        }
        Ok(())
    }

    /// Keeps the thread that hashes busy, until what is returned is dropped.
    #[cfg(test)]
    pub(crate) fn occupy(&self) -> std::sync::mpsc::SyncSender<()> {
        let (end, ended) = std::sync::mpsc::sync_channel(0);
        let (begin, begun) = std::sync::mpsc::sync_channel(1);
        let job = move || begin.send(()).is_ok() && ended.recv().is_ok();
        // It is run whether or not anybody waits for it.
        drop(self.pool.submit(job).unwrap());
        begun.recv().unwrap();
        end
    }

    /// How many attempts wait or are checked.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.turns.waiting()
    }

    /// Users may have been replaced while the password was checked: the digest is of one as it was then.
    fn remember(&self, digest: [u8; 32]) {
        let mut remembered = self.remembered.lock();
        if remembered.len() >= REMEMBERED_MAX {
            remembered.clear();
        }
        remembered.insert(digest);
    }

    /// What is remembered of a right password of a user as it is: of no use once that is another.
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
    use crate::users::tests_support::{HASH, PASSWORD, directory};

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

    #[tokio::test(start_paused = true)]
    async fn guesses_at_once_are_as_slow_as_one_after_the_other() {
        let auth = authenticator(&[("ci", "read-write")]);
        let start = tokio::time::Instant::now();
        let guesses = (0..200).map(|_| auth.check(b"ci", b"guess", peer()));
        let refused = futures_util::future::join_all(guesses).await;
        let tried = refused
            .iter()
            .filter(|it| matches!(it, Err(Refusal::Wrong)))
            .count();
        // Those that cost nothing, the first that costs, and what may wait behind a penalty.
        assert!((5..=14).contains(&tried), "{tried} of 200 were tried");
        assert!(
            start.elapsed() > Duration::from_secs(20),
            "{:?}",
            start.elapsed()
        );
    }

    /// How long an answer takes does not tell which users there are.
    #[tokio::test]
    async fn a_user_that_does_not_exist_costs_a_hash_as_one_that_does() {
        let auth = Arc::new(authenticator(&[("ci", "read-write")]));
        let busy = auth.occupy();
        let attempts = [&b"ci"[..], b"nobody", b"\xff"].map(|user| {
            let (auth, user) = (Arc::clone(&auth), user.to_vec());
            // Of another source each, so that none waits for its turn.
            let source = IpAddr::from([10, 0, 1, user.len() as u8]);
            tokio::spawn(async move { auth.check(&user, b"guess", Some(source)).await })
        });
        while auth.pool.depth() < attempts.len() {
            let is_told = |it: &tokio::task::JoinHandle<_>| it.is_finished();
            assert!(!attempts.iter().any(is_told), "nobody hashed it");
            tokio::task::yield_now().await;
        }
        drop(busy);
        for attempt in attempts {
            assert_eq!(attempt.await.unwrap().err(), Some(Refusal::Wrong));
        }
    }

    #[tokio::test]
    async fn a_burst_of_one_right_password_is_let_in_whole() {
        let auth = authenticator(&[("ci", "read-write")]);
        let logins = (0..500).map(|_| auth.check(b"ci", PASSWORD, peer()));
        let all = futures_util::future::join_all(logins).await;
        assert!(all.iter().all(Result::is_ok));
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

    fn records(revision: u64, users: &[(&str, Role)]) -> Records {
        let record = |role| UserRecord {
            hash: HASH.to_owned(),
            role,
            namespace: "main".to_owned(),
        };
        Records {
            revision,
            users: users
                .iter()
                .map(|&(name, role)| (name.to_owned(), record(role)))
                .collect(),
            ..Records::default()
        }
    }

    #[tokio::test]
    async fn what_members_agreed_on_is_in_force_beside_the_file_whichever_comes_anew() {
        let auth = authenticator(&[("root", "admin")]);
        assert!(auth.replicate(records(2, &[("ci", Role::ReadWrite), ("root", Role::Read)])));
        assert_eq!(*auth.revisions().borrow(), 2);
        let ci = auth.check(b"ci", PASSWORD, peer()).await.unwrap();
        let root = auth.check(b"root", PASSWORD, peer()).await.unwrap();
        assert_eq!((ci.role, root.role), (Role::ReadWrite, Role::Admin));
        // An older version comes late.
        assert!(!auth.replicate(records(1, &[])));
        assert!(auth.directory().holds(&ci));
        // The file is read again, and has nothing to do with it.
        auth.replace(directory(&[("root", "admin"), ("dev", "read")]));
        assert!(auth.directory().holds(&ci) && auth.directory().holds(&root));
        let listed = |auth: &Authenticator| {
            let all = auth.list().into_iter();
            all.map(|it| (it.name, it.role, it.is_of_file, it.ignored.is_some()))
                .collect::<Vec<_>>()
        };
        let expected = [
            ("ci", Role::ReadWrite, false, false),
            ("dev", Role::Read, true, false),
            ("root", Role::Admin, true, false),
            ("root", Role::Read, false, true),
        ];
        let expected =
            expected.map(|(name, role, file, ignored)| (name.into(), role, file, ignored));
        assert_eq!(listed(&auth), expected);
        let changes = auth.changes();
        assert!(auth.replicate(records(3, &[("ci", Role::Read)])));
        assert!(changes.has_changed().unwrap() && !auth.directory().holds(&ci));
        assert!(auth.directory().holds(&root), "not changed");
        let ci = auth.check(b"ci", PASSWORD, peer()).await.unwrap();
        assert_eq!(ci.role, Role::Read);
        assert!(auth.replicate(records(4, &[])));
        assert!(!auth.directory().holds(&ci));
        let gone = auth.check(b"ci", PASSWORD, peer()).await;
        assert_eq!(gone.err(), Some(Refusal::Wrong));
    }

    #[tokio::test]
    async fn a_hash_that_is_made_here_is_accepted_here() {
        let auth = authenticator(&[("root", "admin")]);
        let hash = auth.hash(b"new").await.unwrap();
        assert_ne!(hash, auth.hash(b"new").await.unwrap(), "the same salt");
        let mut new = records(1, &[("ci", Role::Read)]);
        new.users.get_mut("ci").unwrap().hash = hash;
        auth.replicate(new);
        assert!(auth.check(b"ci", b"new", peer()).await.is_ok());
        assert!(auth.check(b"ci", PASSWORD, peer()).await.is_err());
        assert_eq!(auth.hash(b"").await, Err(HashError::Length));
        assert_eq!(auth.hash(&[b'x'; 1025]).await, Err(HashError::Length));
    }

    #[tokio::test]
    async fn nothing_secret_is_in_what_is_printed() {
        let auth = authenticator(&[("ci", "admin")]);
        let who = auth.check(b"ci", PASSWORD, peer()).await.unwrap();
        auth.replicate(records(1, &[("dev", Role::Read)]));
        let printed = format!(
            "{auth:?} {who:?} {:?} {:?} {:?}",
            auth.directory(),
            auth.records(),
            auth.list()
        );
        assert!(!printed.contains("argon2") && !printed.contains("hunter"));
    }
}
