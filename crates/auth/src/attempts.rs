//! Attempts to log in: which passwords are compared, when, and what a source learns by it.
//!
//! Invariants:
//! - The source is judged before its password is compared. A source that has to wait, or has a
//!   password under check, compares nothing more: its further attempts stand in line
//!   ([`super::turns`]). The one exception are a few comparisons a second for a user that has
//!   logged in from the same source before.
//! - A wrong password that was compared is a failure of its source, also if the client is gone
//!   before the answer.
//! - A guess that a source repeats is refused without a check, and counts once.
//! - A password of a user is checked once at a time, however many attempts wait for it.
//! - A refusal costs the same whether or not the user exists.
//! - Checks of wrong passwords take half of the time of a thread at most, however many sources
//!   guess: a thread rests behind each of them for as long as it took.
//! - Networks take turns in having a password checked, and share the places of those that wait
//!   ([`super::rounds`]). So guesses from few networks hold up a client of another network for a
//!   few checks.

use std::collections::{HashMap, HashSet};
use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use argon2::{Argon2, PasswordHasher as _, PasswordVerifier as _};
use blake2::Blake2sMac256;
use blake2::digest::{FixedOutput, KeyInit, Update};
use fonn_base::pool::BlockingPool;
use parking_lot::Mutex;
use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::sync::watch;
use tokio::time::Instant;
use zeroize::Zeroizing;

use super::checks::NAME_LEN_MAX;
use super::directory::{Directory, Identity};
use super::networks::Source;
use super::rounds::Rounds;
use super::slowdown::{Digest, Slowdown};
use super::turns::{Turn, Turns};

/// Threads that check passwords at most. One check takes some 20 ms of a core, and 19 MiB that no
/// budget knows of.
const THREADS_MAX: usize = 2;

/// The longest rest of a thread behind the check of a wrong password. A check that took longer was
/// suspended with its machine.
const REST_MAX: Duration = Duration::from_secs(1);

/// Sources that may wait for a check.
const CHECKS_MAX: usize = 4096;

/// Attempts that may wait behind one that waits out a penalty. The ones before them are refused, so
/// that a client from the address of a guesser waits minutes at most.
const BEHIND_PENALTY_MAX: usize = 8;

/// Longest password in bytes.
const PASSWORD_LEN_MAX: usize = 1024;

/// Passwords known to be right, remembered at most. A client that opens a connection for each
/// compile cannot wait for argon2 each time.
const REMEMBERED_MAX: usize = 8192;

/// Why an attempt to log in was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is no such user, or the password is another one.
    #[error("wrong user name or password")]
    Wrong,
    /// There is no such token.
    #[error("unknown token: it was revoked, or never was one here")]
    UnknownToken,
    /// The signed token was right once.
    #[error("the token has expired: exchange an identity token for another one")]
    ExpiredExchange,
    /// The token was right once.
    #[error("the token has expired: make another one with `fonnctl token create`")]
    Expired,
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

/// A refusal, and how it came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub refusal: Refusal,
    /// Whether the password was checked for this source for the first time: such are slowed down.
    pub is_new: bool,
}

impl Refused {
    const WRONG: Self = Self {
        refusal: Refusal::Wrong,
        is_new: true,
    };
    const REPEATED: Self = Self {
        refusal: Refusal::Wrong,
        is_new: false,
    };
    const BUSY: Self = Self {
        refusal: Refusal::Busy,
        is_new: false,
    };
}

/// The memory of attempts, and the threads that check passwords.
pub(super) struct Attempts {
    pool: BlockingPool,
    turns: Turns,
    ledger: Arc<Mutex<Ledger>>,
    /// Keys all digests, so that an attacker can neither know nor aim at one.
    key: [u8; 32],
    origin: Instant,
    /// Has the calling thread rest.
    rest: Rest,
}

type Rest = Arc<dyn Fn(Duration) + Send + Sync>;

struct Ledger {
    slowdown: Slowdown,
    /// Passwords that were right.
    right: HashSet<Digest>,
    /// Passwords that are being checked.
    checks: HashMap<Digest, Check>,
    /// The sources that wait for a check which has not begun.
    line: Rounds<Digest>,
    /// Jobs of the pool that will find no check, since the last source gave way that waited for it.
    spare_jobs: usize,
    /// How often a source gave way.
    rejected: u64,
}

struct Check {
    /// The turns of the sources that wait for it, with their numbers in line. They end when the
    /// outcome is on record.
    turns: HashMap<Source, (Turn, u64)>,
    outcome: watch::Sender<Option<bool>>,
    /// Until it begins.
    job: Option<Job>,
}

type Job = Box<dyn FnOnce() + Send>;

impl Default for Ledger {
    fn default() -> Self {
        Self {
            slowdown: Slowdown::default(),
            right: HashSet::new(),
            checks: HashMap::new(),
            line: Rounds::new(CHECKS_MAX),
            spare_jobs: 0,
            rejected: 0,
        }
    }
}

impl Ledger {
    /// Has a source wait for a check. False if it gives way to others.
    fn join(&mut self, digest: Digest, turn: Turn, source: Source, now: Duration) -> bool {
        let Some(check) = self.checks.get_mut(&digest) else {
            return false;
        };
        if check.job.is_none() {
            check.turns.insert(source, (turn, 0));
            return true;
        }
        let (id, given_way) = self.line.push(source, digest);
        check.turns.insert(source, (turn, id));
        let Some((given_way, digest)) = given_way else {
            return true;
        };
        self.give_way(given_way, &digest, now);
        given_way != source
    }

    /// A source waits for a check no longer.
    fn give_way(&mut self, source: Source, digest: &Digest, now: Duration) {
        // A right one that is remembered would have been told from it.
        self.slowdown.failed(source, None, now);
        self.rejected += 1;
        let Some(check) = self.checks.get_mut(digest) else {
            return;
        };
        check.turns.remove(&source);
        if check.turns.is_empty() {
            self.checks.remove(digest);
            self.spare_jobs += 1;
        }
    }

    /// The check that is next. It begins: no source waits in line for it any more.
    fn next_job(&mut self) -> Option<Job> {
        let Some((_, digest)) = self.line.pop() else {
            self.spare_jobs = self.spare_jobs.saturating_sub(1);
            return None;
        };
        let check = self.checks.get_mut(&digest)?;
        for (source, (_, id)) in &check.turns {
            self.line.remove(*source, *id);
        }
        check.job.take()
    }
}

/// What an attempt claims.
struct Claim<'a> {
    directory: &'a Arc<Directory>,
    name: &'a str,
    password: &'a [u8],
    source: Source,
    /// Of the user, if there is one of that name.
    stamp: Option<u64>,
    digest: Digest,
    now: Duration,
}

/// What became of an attempt that was looked at.
enum Look {
    Right,
    /// The source was told before that it is wrong.
    Repeated,
    /// It is being checked.
    Pending(watch::Receiver<Option<bool>>),
    /// There is no place for a check.
    Full,
    /// The source has to wait for its turn.
    InLine,
}

impl Attempts {
    /// Starts the threads.
    ///
    /// # Errors
    /// If a thread cannot be started or the system gives no random bytes.
    pub fn new() -> io::Result<Self> {
        let mut key = [0; 32];
        let filled = SystemRandom::new().fill(&mut key);
        filled.map_err(|_| io::Error::other("the system gives no random bytes"))?;
        Ok(Self {
            pool: BlockingPool::new("fonn-auth", threads(), CHECKS_MAX)?,
            turns: Turns::default(),
            ledger: Arc::default(),
            key,
            origin: Instant::now(),
            rest: Arc::new(std::thread::sleep),
        })
    }

    /// The same, with something else for the rest of a thread.
    #[cfg(test)]
    pub fn with_rest(self, rest: impl Fn(Duration) + Send + Sync + 'static) -> Self {
        Self {
            rest: Arc::new(rest),
            ..self
        }
    }

    /// The user that `name` and `password` stand for.
    ///
    /// # Errors
    /// [`Refused`]; after some wrong guesses of the same source it takes a while to come.
    ///
    /// # Cancel safety
    /// Cancelling it loses the answer. A check that was begun is finished and counted.
    pub async fn check(
        &self,
        directory: &Arc<Directory>,
        name: &str,
        password: &[u8],
        source: Source,
    ) -> Result<Identity, Refused> {
        // Neither can be right, which is no secret; nothing is computed from them.
        if name.len() > NAME_LEN_MAX || password.len() > PASSWORD_LEN_MAX {
            return Err(Refused::REPEATED);
        }
        let user = directory.user(name);
        let stamp = user.map(|user| user.identity.stamp);
        let mut claim = Claim {
            directory,
            name,
            password,
            source,
            stamp,
            digest: self.digest(stamp.unwrap_or(0), name, password),
            now: self.origin.elapsed(),
        };
        let mut look = self.arrive(&claim);
        if matches!(look, Look::InLine) {
            let turn = self.turns.take(source).await;
            let turn = turn.map_err(|_| Refused::BUSY)?;
            self.wait_out(source, &turn).await?;
            claim.now = self.origin.elapsed();
            look = self.compare(&claim, turn, &mut self.ledger.lock());
        }
        let is_right = match look {
            Look::Right => true,
            Look::Repeated => return Err(Refused::REPEATED),
            Look::Pending(mut outcome) => {
                let outcome = outcome.wait_for(Option::is_some).await;
                outcome.map_err(|_| Refused::BUSY)?.unwrap_or(false)
            }
            Look::Full | Look::InLine => return Err(Refused::BUSY),
        };
        match user {
            Some(user) if is_right => Ok(user.identity.clone()),
            _ => Err(Refused::WRONG),
        }
    }

    /// Looks at an attempt that has no turn.
    fn arrive(&self, claim: &Claim<'_>) -> Look {
        let mut ledger = self.ledger.lock();
        let Claim { source, now, .. } = *claim;
        if ledger.slowdown.knows(source, &claim.digest) {
            return Look::Repeated;
        }
        // The source asks what it is about to be told.
        if let Some(check) = ledger.checks.get(&claim.digest)
            && check.turns.contains_key(&source)
        {
            return Look::Pending(check.outcome.subscribe());
        }
        if ledger.slowdown.wait(source, now).is_zero()
            && let Some(turn) = self.turns.try_take(source)
        {
            return self.compare(claim, turn, &mut ledger);
        }
        if let Some(stamp) = claim.stamp
            && ledger.slowdown.take_token(source, stamp, now)
            && ledger.right.contains(&claim.digest)
        {
            ledger.slowdown.give_token(source);
            return Look::Right;
        }
        Look::InLine
    }

    /// Compares the password with those that were right, or has it checked. What is wrong is put on
    /// record before the turn ends, whether or not the client waits for it.
    fn compare(&self, claim: &Claim<'_>, turn: Turn, ledger: &mut Ledger) -> Look {
        let Claim {
            digest,
            source,
            stamp,
            now,
            ..
        } = *claim;
        if ledger.slowdown.knows(source, &digest) {
            return Look::Repeated;
        }
        if let Some(stamp) = stamp
            && ledger.right.contains(&digest)
        {
            ledger.slowdown.succeeded(source, stamp, now);
            return Look::Right;
        }
        if !ledger.checks.contains_key(&digest) {
            if ledger.spare_jobs > 0 {
                ledger.spare_jobs -= 1;
            } else {
                let shared = Arc::clone(&self.ledger);
                let next = move || {
                    let job = shared.lock().next_job();
                    if let Some(check) = job {
                        check();
                    }
                };
                // It runs whether or not an attempt waits for it.
                if self.pool.submit(next).map(drop).is_err() {
                    ledger.slowdown.failed(source, None, now);
                    return Look::Full;
                }
            }
            let check = Check {
                turns: HashMap::new(),
                outcome: watch::Sender::new(None),
                job: Some(Box::new(self.job(claim))),
            };
            ledger.checks.insert(digest, check);
        }
        let check = ledger.checks.get(&digest);
        let Some(pending) = check.map(|check| check.outcome.subscribe()) else {
            return Look::Full;
        };
        match ledger.join(digest, turn, source, now) {
            true => Look::Pending(pending),
            false => Look::Full,
        }
    }

    /// The check of a password, for a thread of the pool.
    fn job(&self, claim: &Claim<'_>) -> impl FnOnce() + Send + 'static {
        let Claim {
            stamp, digest, now, ..
        } = *claim;
        let (ledger, rest) = (Arc::clone(&self.ledger), Arc::clone(&self.rest));
        let directory = Arc::clone(claim.directory);
        let name = claim.name.to_owned();
        let password = Zeroizing::new(claim.password.to_vec());
        let decoy = self.digest(0, &name, b"");
        move || {
            let begun = std::time::Instant::now();
            let mut under_way = UnderWay {
                ledger,
                digest,
                stamp,
                now,
                is_right: None,
            };
            let hash = match directory.user(&name) {
                Some(user) => Some(&user.hash),
                None => directory.decoy(&decoy),
            };
            let is_right =
                hash.is_some_and(|hash| Argon2::default().verify_password(&password, hash).is_ok());
            let is_right = is_right && stamp.is_some();
            under_way.is_right = Some(is_right);
            let took = begun.elapsed();
            // The client has its answer before the rest.
            drop(under_way);
            if !is_right {
                rest(took.min(REST_MAX));
            }
        }
    }

    /// Waits until `source` may try again.
    async fn wait_out(&self, source: Source, turn: &Turn) -> Result<(), Refused> {
        let now = self.origin.elapsed();
        let wait = self.ledger.lock().slowdown.wait(source, now);
        if wait > Duration::ZERO {
            if turn.behind() > BEHIND_PENALTY_MAX {
                return Err(Refused::BUSY);
            }
            tokio::time::sleep(wait).await;
        }
        Ok(())
    }

    /// Counts an attempt that was refused without a check. Returns how many were since the last
    /// line of the log, if it is time for one.
    pub fn log_due(&self, source: Source) -> Option<u64> {
        let now = self.origin.elapsed();
        self.ledger.lock().slowdown.refused(source, now)
    }

    /// Counts a token that is not known as a wrong guess of its source. Returns as
    /// [`Attempts::log_due`] does.
    pub fn wrong_token(&self, hash: &[u8; 32], source: Source) -> Option<u64> {
        let digest = self.digest(0, "", hash);
        let now = self.origin.elapsed();
        let mut ledger = self.ledger.lock();
        ledger.slowdown.failed(source, Some(&digest), now);
        ledger.slowdown.refused(source, now)
    }

    /// The argon2 hash of a password with a salt of its own, made where passwords are checked.
    ///
    /// # Errors
    /// [`HashError`].
    pub async fn hash(&self, password: &[u8]) -> Result<String, HashError> {
        if password.is_empty() || password.len() > PASSWORD_LEN_MAX {
            return Err(HashError::Length);
        }
        let secret = Zeroizing::new(password.to_vec());
        let hash = move || Argon2::default().hash_password(&secret);
        let pending = self.pool.submit(hash).map_err(|_| HashError::Busy)?;
        match pending.await {
            Ok(Ok(hash)) => Ok(hash.to_string()),
            Ok(Err(_)) => Err(HashError::Random),
            Err(_) => Err(HashError::Busy),
        }
    }

    /// What is remembered of a password of a user as it is: of no use once that is another. A user
    /// that does not exist has the stamp 0.
    fn digest(&self, stamp: u64, name: &str, password: &[u8]) -> Digest {
        let mut mac = Blake2sMac256::new(&self.key.into());
        mac.update(&stamp.to_le_bytes());
        mac.update(&(name.len() as u64).to_le_bytes());
        mac.update(name.as_bytes());
        mac.update(password);
        mac.finalize_fixed().into()
    }

    /// Keeps the threads that hash busy, until what is returned is dropped.
    #[cfg(any(test, feature = "test-util"))]
    #[allow(clippy::unwrap_used, reason = "only tests use it")]
    pub fn occupy(&self) -> Vec<std::sync::mpsc::SyncSender<()>> {
        let occupy = |_| {
            let (end, ended) = std::sync::mpsc::sync_channel(0);
            let (begin, begun) = std::sync::mpsc::sync_channel(1);
            let job = move || begin.send(()).is_ok() && ended.recv().is_ok();
            // It is run whether or not the test waits for it.
            drop(self.pool.submit(job).unwrap());
            begun.recv().unwrap();
            end
        };
        (0..threads().get()).map(occupy).collect()
    }

    /// How many attempts wait for their turn or for a check.
    #[cfg(any(test, feature = "test-util"))]
    pub fn waiting(&self) -> usize {
        let ledger = self.ledger.lock();
        let checks = ledger.checks.values();
        let (turns, pending) = checks.fold((0, 0), |(turns, pending), check| {
            let pending = pending + check.outcome.receiver_count();
            (turns + check.turns.len(), pending)
        });
        self.turns.len() - turns + pending
    }

    /// Whether a password is being checked.
    #[cfg(test)]
    pub fn is_checking(&self) -> bool {
        !self.ledger.lock().checks.is_empty()
    }

    /// Checks that wait for a thread.
    pub fn depth(&self) -> usize {
        self.pool.depth()
    }

    /// Checks that were refused, because too many waited for a thread.
    pub fn rejected(&self) -> u64 {
        self.ledger.lock().rejected
    }
}

/// A check on its thread. What it found is on record once this is dropped, also if it panicked.
struct UnderWay {
    ledger: Arc<Mutex<Ledger>>,
    digest: Digest,
    stamp: Option<u64>,
    now: Duration,
    is_right: Option<bool>,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut ledger = self.ledger.lock();
        let Some(check) = ledger.checks.remove(&self.digest) else {
            return;
        };
        for source in check.turns.keys().copied() {
            match (self.is_right, self.stamp) {
                (Some(true), Some(stamp)) => ledger.slowdown.succeeded(source, stamp, self.now),
                (Some(_), _) => ledger.slowdown.failed(source, Some(&self.digest), self.now),
                (None, _) => ledger.slowdown.failed(source, None, self.now),
            }
        }
        if self.is_right == Some(true) {
            // Users may have been replaced meanwhile: the digest is of one as it was when the check
            // began.
            if ledger.right.len() >= REMEMBERED_MAX {
                ledger.right.clear();
            }
            ledger.right.insert(self.digest);
        }
        drop(ledger);
        check.outcome.send_replace(self.is_right);
    }
}

fn threads() -> NonZeroUsize {
    let cores = available_parallelism().map_or(1, NonZeroUsize::get);
    NonZeroUsize::new((cores / 2).clamp(1, THREADS_MAX)).unwrap_or(NonZeroUsize::MIN)
}

#[cfg(test)]
mod tests;
