//! Checks passwords and tokens against the directory in force: the users file and what members
//! agreed on.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use fonn_base::clock::Clock;
use fonn_base::metrics::Label as _;
use parking_lot::{Mutex, RwLock};
use ring::digest::{SHA256, digest};
use tokio::sync::watch;

use super::attempts::{self, Attempts, HashError, Refusal};
use super::checks::shown;
use super::directory::{Directory, Identity, Namespace, Role};
use super::metrics::{Refusals, Refused, TokenLogin, TokenLogins};
use super::networks::Source;
use super::oidc::{ExchangeError, ExchangedToken};
use super::records::{self, LeftOut, Records, UserRecord};
use super::signed;
use super::token::TokenHash;
use super::writers::WriterNames;

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

/// The users in force, and the memory of attempts to log in.
pub struct Authenticator {
    sources: Mutex<Sources>,
    directory: RwLock<Arc<Directory>>,
    changes: watch::Sender<u64>,
    revisions: watch::Sender<u64>,
    attempts: Attempts,
    refusals: Refusals,
    token_logins: TokenLogins,
    writers: WriterNames,
    clock: Clock,
}

/// No wait for the expiry of an identity is longer, since the clock of the machine may be set
/// meanwhile.
const EXPIRY_WAIT_MAX: Duration = Duration::from_secs(10);

impl fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authenticator")
            .field("directory", &*self.directory.read())
            .finish_non_exhaustive()
    }
}

impl Authenticator {
    /// Starts the threads that check passwords.
    ///
    /// # Errors
    /// If a thread cannot be started or the system gives no random bytes.
    pub fn new(directory: Directory) -> io::Result<Self> {
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
            attempts: Attempts::new()?,
            refusals: Refusals::default(),
            token_logins: TokenLogins::default(),
            writers: WriterNames::default(),
            clock: Clock::system(),
        })
    }

    /// The same, going by another clock.
    #[cfg(any(test, feature = "test-util"))]
    #[must_use]
    pub fn with_clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// The users in force.
    #[must_use]
    pub fn directory(&self) -> Arc<Directory> {
        Arc::clone(&self.directory.read())
    }

    /// Puts the users of another file in force, beside those that members agreed on. A user that is
    /// no longer among them is cut off by the watchers of [`Authenticator::changes`].
    pub fn replace(&self, mut file: Directory) {
        let mut sources = self.sources.lock();
        file.tokens.continue_counts(&sources.file.tokens);
        sources.file = Arc::new(file);
        self.enforce(&mut sources);
    }

    /// Puts in force what members agreed on, beside the users of the file, if it is newer than what
    /// they agreed on before. Says whether it was. Takes some milliseconds for thousands of users.
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

    /// Whether members may agree on `then` in the place of `now`, beside the users of the file
    /// here.
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
                    is_write_once: false,
                    ttl: None,
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
        self.attempts.hash(password).await
    }

    /// Counts up with each [`Authenticator::replace`] and [`Authenticator::replicate`].
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Whether `identity` is still in force: neither removed, nor changed, nor expired.
    #[must_use]
    pub fn holds(&self, identity: &Identity) -> bool {
        self.directory.read().holds(identity, self.clock.wall_ms())
    }

    /// Whether `identity` has expired, by a clock that costs next to nothing to read and is some
    /// milliseconds late.
    #[inline]
    #[must_use]
    pub fn has_expired(&self, identity: &Identity) -> bool {
        identity.expiry.is_some() && identity.has_expired(self.clock.coarse_wall_ms())
    }

    /// How long to wait before it is asked again whether `identity` has expired; `None` if it never
    /// does.
    #[must_use]
    pub fn expiry_wait(&self, identity: &Identity) -> Option<Duration> {
        let left_ms = identity
            .expiry?
            .unix_ms()
            .saturating_sub(self.clock.wall_ms());
        // At least one tick, so that a clock that is a little behind is not asked without a pause.
        Some(Duration::from_millis(left_ms.max(1)).min(EXPIRY_WAIT_MAX))
    }

    /// Names of identities that have logged in, here or elsewhere.
    #[must_use]
    pub const fn writers(&self) -> &WriterNames {
        &self.writers
    }

    /// What came of logins by tokens.
    pub(super) const fn token_logins(&self) -> &TokenLogins {
        &self.token_logins
    }

    fn count_token_login(&self, what: TokenLogin) {
        self.token_logins.add(what.index(), 1);
    }

    /// What the admin port refused.
    pub(super) const fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// Counts a login that the admin port refused.
    pub fn count_refusal(&self, why: Refused) {
        self.refusals.add(why.index(), 1);
    }

    /// The identity of `user`, if `password` is the right one. An empty user is `default`, as in
    /// Redis. A token in the place of the password stands for itself, whatever the user is.
    ///
    /// # Errors
    /// [`Refusal`], which is logged; after some wrong guesses from the same `address` that of a
    /// password takes a while to come. That of a token comes at once.
    pub async fn check(
        &self,
        user: &[u8],
        password: &[u8],
        address: Option<IpAddr>,
    ) -> Result<Identity, Refusal> {
        let identity = self.identify(user, password, address).await?;
        self.writers.learn(&identity.user);
        Ok(identity)
    }

    async fn identify(
        &self,
        user: &[u8],
        password: &[u8],
        address: Option<IpAddr>,
    ) -> Result<Identity, Refusal> {
        if signed::is_signed(password) {
            return self.check_signed(password, address);
        }
        if let Some(hash) = TokenHash::of(password) {
            return self.check_token(&hash, address);
        }
        let name = match user {
            [] => "default",
            name => std::str::from_utf8(name).unwrap_or(""),
        };
        let directory = self.directory();
        let source = Source::of(address);
        let checked = self
            .attempts
            .check(&directory, name, password, source)
            .await;
        checked.map_err(|attempts::Refused { refusal, is_new }| {
            let user = shown(user);
            match (refusal, is_new) {
                (Refusal::Wrong, true) => tracing::info!(%user, ?address, "{refusal}"),
                // They come as fast as the client likes.
                _ => {
                    if let Some(attempts) = self.attempts.log_due(source) {
                        tracing::info!(%user, ?address, attempts, "{refusal}");
                    }
                }
            }
            refusal
        })
    }

    /// The identity of a token. A right one is let in also while its source waits out a penalty:
    /// 256 bits cannot be guessed. A wrong one counts as a wrong guess of its source.
    fn check_token(&self, hash: &TokenHash, address: Option<IpAddr>) -> Result<Identity, Refusal> {
        let directory = self.directory();
        let source = Source::of(address);
        match directory.tokens.by_hash(hash) {
            Some(token) if !token.identity.has_expired(self.clock.wall_ms()) => {
                token.count_login();
                self.count_token_login(TokenLogin::Accepted);
                Ok(token.identity.clone())
            }
            Some(token) => {
                self.count_token_login(TokenLogin::Expired);
                if let Some(attempts) = self.attempts.log_due(source) {
                    let token = &token.identity.user;
                    tracing::info!(%token, ?address, attempts, "{}", Refusal::Expired);
                }
                Err(Refusal::Expired)
            }
            None => Err(self.unknown_token(hash.bytes(), address)),
        }
    }

    /// The identity of a signed token. A wrong one counts as a wrong guess of its source.
    fn check_signed(&self, token: &[u8], address: Option<IpAddr>) -> Result<Identity, Refusal> {
        match self.directory().exchange.verify(token) {
            Some(identity) if !identity.has_expired(self.clock.wall_ms()) => {
                self.count_token_login(TokenLogin::Accepted);
                Ok(identity)
            }
            Some(identity) => {
                self.count_token_login(TokenLogin::Expired);
                if let Some(attempts) = self.attempts.log_due(Source::of(address)) {
                    let identity = &identity.user;
                    tracing::info!(%identity, ?address, attempts, "{}", Refusal::ExpiredExchange);
                }
                Err(Refusal::ExpiredExchange)
            }
            None => {
                let mut hash = [0; 32];
                hash.copy_from_slice(digest(&SHA256, token).as_ref());
                Err(self.unknown_token(&hash, address))
            }
        }
    }

    fn unknown_token(&self, hash: &[u8; 32], address: Option<IpAddr>) -> Refusal {
        self.count_token_login(TokenLogin::Unknown);
        let refusal = Refusal::UnknownToken;
        // They come as fast as the client likes: each may be another one.
        if let Some(attempts) = self.attempts.wrong_token(hash, Source::of(address)) {
            tracing::info!(?address, attempts, "{refusal}");
        }
        refusal
    }

    /// The token for an identity whose claims the issuer of the name `issuer` has proved. `claims`
    /// tells the texts of a claim.
    ///
    /// # Errors
    /// [`ExchangeError`].
    pub fn exchange<'c>(
        &self,
        issuer: &str,
        claims: impl Fn(&str) -> &'c [String],
    ) -> Result<ExchangedToken, ExchangeError> {
        let directory = self.directory();
        let exchanged = directory
            .exchange
            .exchange(issuer, claims, self.clock.wall_ms())?;
        tracing::debug!(identity = %exchanged.identity.user, rule = %exchanged.rule, "an OIDC identity was exchanged for a token");
        Ok(exchanged)
    }

    pub(super) const fn attempts(&self) -> &Attempts {
        &self.attempts
    }

    /// Keeps the threads that hash busy, until what is returned is dropped.
    #[cfg(any(test, feature = "test-util"))]
    #[must_use]
    pub fn occupy(&self) -> Vec<std::sync::mpsc::SyncSender<()>> {
        self.attempts.occupy()
    }

    /// How many attempts wait or are checked.
    #[cfg(any(test, feature = "test-util"))]
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.attempts.waiting()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{HASH, PASSWORD, directory, parsed};
    use crate::{Role, TokenSecret};

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

    #[tokio::test]
    async fn a_file_without_entries_lets_no_client_in() {
        let auth = authenticator(&[("default", "admin")]);
        let root = auth.check(b"", PASSWORD, peer()).await.unwrap();
        auth.replace(parsed("[[namespace]]\nname = 'main'\n"));
        assert!(auth.directory().is_empty() && !auth.holds(&root));
        let secret = TokenSecret::new(&[7; 32]);
        for (user, password) in [
            (&b""[..], &b""[..]),
            (b"", PASSWORD),
            (b"default", PASSWORD),
            (b"", secret.text().as_bytes()),
            (b"", b"fonnx_00"),
        ] {
            let checked = auth.check(user, password, peer()).await;
            assert!(checked.is_err(), "{user:?} {password:?}");
        }
        // Those that members agree on are let in beside it.
        assert!(auth.replicate(records(1, &[("ci", Role::Read)])));
        let elsewhere = Some(IpAddr::from([10, 0, 0, 8]));
        assert!(auth.check(b"ci", PASSWORD, elsewhere).await.is_ok());
        assert!(!auth.directory().is_empty() && auth.file().is_empty());
    }

    #[tokio::test]
    async fn a_user_that_was_removed_or_changed_is_no_longer_held() {
        let auth = authenticator(&[("ci", "read-write"), ("dev", "read")]);
        let changes = auth.changes();
        let ci = auth.check(b"ci", PASSWORD, peer()).await.unwrap();
        let dev = auth.check(b"dev", PASSWORD, peer()).await.unwrap();
        assert!(auth.holds(&ci) && auth.holds(&dev));
        auth.replace(directory(&[("ci", "read")]));
        assert!(changes.has_changed().unwrap());
        assert!(!auth.holds(&ci), "another role");
        assert!(!auth.holds(&dev), "removed");
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
        assert!(auth.holds(&ci));
        // The file is read again, and has nothing to do with it.
        auth.replace(directory(&[("root", "admin"), ("dev", "read")]));
        assert!(auth.holds(&ci) && auth.holds(&root));
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
        assert!(changes.has_changed().unwrap() && !auth.holds(&ci));
        assert!(auth.holds(&root), "not changed");
        let ci = auth.check(b"ci", PASSWORD, peer()).await.unwrap();
        assert_eq!(ci.role, Role::Read);
        assert!(auth.replicate(records(4, &[])));
        assert!(!auth.holds(&ci));
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
