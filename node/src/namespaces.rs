//! Namespaces: what each may take, takes, and was asked for.
//!
//! Enforcement is not here: in RAM a namespace over its quota gives up its own entries
//! (`ram/quota.rs`); on disk it is counted from time to time and its oldest entries are cut off
//! (`engine/quota.rs`). Between two counts what was written since is added, so the sum is an upper
//! bound, by which writes are refused that would lead far past the quota.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use fonn_auth::{DEFAULT_NAMESPACE, Directory, Namespace};
use fonn_base::entry::Space;
use fonn_base::metrics::striped::Counters;
use fonn_base::size::ByteCount;
use fonn_proto::Failure;
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

/// No quota.
const UNLIMITED: u64 = u64::MAX;

/// The part of its quota by which a namespace may be past it, until the oldest entries are cut off.
const SLACK_PART: u64 = 8;

/// The least that it may be past it: what a device writes while a small namespace is counted.
const SLACK_BYTES_MIN: u64 = 8 << 20;

/// Bytes that an entry takes on disk beside key and value, about.
const RECORD_OVERHEAD: u64 = 64;

/// Namespaces whose requests are counted apart; those of all others are added up.
pub const COUNTED_MAX: usize = 64;

/// What is counted of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Asked {
    /// Gets that found an entry.
    Hit,
    /// Gets that found none.
    Miss,
    /// Stores of any kind.
    Store,
}

const ASKED: usize = 3;

/// What a namespace may take and takes.
#[derive(Debug)]
struct Account {
    /// Of its namespace.
    number: u32,
    /// Where requests are counted. 0 is the place of all namespaces that have none of their own.
    place: usize,
    quota: AtomicU64,
    is_write_once: AtomicBool,
    ttl_ms_max: AtomicU64,
    /// Bytes on disk when it was last counted, without what was cut off then.
    counted_bytes: AtomicU64,
    /// Bytes written since.
    since: AtomicU64,
    is_asked_for: AtomicBool,
    refused: AtomicU64,
    /// What was counted.
    counted: Mutex<DiskAccount>,
}

impl Account {
    fn new(number: u32, place: usize) -> Self {
        Self {
            number,
            place,
            quota: AtomicU64::new(UNLIMITED),
            is_write_once: AtomicBool::new(false),
            ttl_ms_max: AtomicU64::new(UNLIMITED),
            counted_bytes: AtomicU64::new(0),
            since: AtomicU64::new(0),
            is_asked_for: AtomicBool::new(false),
            refused: AtomicU64::new(0),
            counted: Mutex::default(),
        }
    }
}

/// What a namespace holds on disk and what became of its writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskAccount {
    /// Bytes when it was last counted and of what was written since.
    pub bytes: u64,
    /// Entries when it was last counted.
    pub entries: u64,
    /// When that was (Unix time in ms); 0 for never.
    pub counted_at_ms: u64,
    /// How long that took.
    pub count_took_ms: u64,
    /// Entries cut off because of the quota.
    pub cut_entries: u64,
    /// Their bytes.
    pub cut_bytes: u64,
    /// Writes refused because of the quota.
    pub refused: u64,
}

/// All namespaces.
#[derive(Debug)]
pub struct Namespaces {
    default: Account,
    /// Those that are known beside it, and those that keep a place; by number.
    named: ArcSwap<Vec<Arc<Account>>>,
    asked: Counters<{ COUNTED_MAX * ASKED }>,
    known: RwLock<Arc<[Arc<Namespace>]>>,
    /// A namespace has to be counted.
    pub(crate) wake: Notify,
}

impl Default for Namespaces {
    fn default() -> Self {
        let namespaces = Self {
            default: Account::new(0, 1),
            named: ArcSwap::default(),
            asked: Counters::default(),
            known: RwLock::new(Arc::new([])),
            wake: Notify::new(),
        };
        namespaces.set([]);
        namespaces
    }
}

impl Namespaces {
    /// The namespaces of a users file; `default` is always there.
    pub fn set_users(&self, users: Option<&Directory>) {
        let named = users.map_or(&[][..], Directory::namespaces);
        self.set(named.iter().cloned());
    }

    /// Sets which namespaces are known and what they may take.
    pub fn set(&self, named: impl IntoIterator<Item = Arc<Namespace>>) {
        let mut held = self.known.write();
        let mut known: Vec<Arc<Namespace>> = named.into_iter().collect();
        if !known.iter().any(|it| it.number == 0) {
            known.push(Arc::new(Namespace {
                name: DEFAULT_NAMESPACE.into(),
                number: 0,
                base: None,
                quota: None,
                is_write_once: false,
                ttl: None,
            }));
        }
        known.sort_by(|a, b| a.name.cmp(&b.name));
        let of = |number| known.iter().find(|it| it.number == number);
        let before = self.named.load();
        // A namespace keeps its place for as long as the process lives: its counters go on.
        let kept = |it: &&Arc<Account>| it.place > 0 || of(it.number).is_some();
        let mut accounts: Vec<Arc<Account>> = before.iter().filter(kept).cloned().collect();
        let taken = accounts.iter().map(|it| it.place).max();
        let mut next = taken.unwrap_or(0).max(self.default.place) + 1;
        for it in known.iter().filter(|it| it.number != 0) {
            if accounts.iter().any(|account| account.number == it.number) {
                continue;
            }
            let place = if next < COUNTED_MAX { next } else { 0 };
            next += 1;
            accounts.push(Arc::new(Account::new(it.number, place)));
        }
        accounts.sort_by_key(|it| it.number);
        for account in &accounts {
            account.go_by(of(account.number));
        }
        self.default.go_by(of(0));
        self.named.store(accounts.into());
        *held = known.into();
        drop(held);
        self.wake.notify_one();
    }

    /// The namespaces that are known, by name.
    #[must_use]
    pub fn known(&self) -> Arc<[Arc<Namespace>]> {
        Arc::clone(&self.known.read())
    }

    /// What `look` finds in the account of a namespace; None of one that is not known.
    #[inline]
    fn of<T>(&self, namespace: u32, look: impl FnOnce(&Account) -> T) -> Option<T> {
        if namespace == 0 {
            return Some(look(&self.default));
        }
        let named = self.named.load();
        let found = named.binary_search_by_key(&namespace, |it| it.number);
        found.ok().and_then(|at| named.get(at)).map(|it| look(it))
    }

    /// What a namespace may take.
    #[must_use]
    pub fn quota(&self, namespace: u32) -> Option<u64> {
        let quota = self.of(namespace, |it| it.quota.load(Ordering::Relaxed))?;
        (quota != UNLIMITED).then_some(quota)
    }

    /// Whether the entries of a namespace keep their first value.
    #[inline]
    #[must_use]
    pub fn is_write_once(&self, namespace: u32) -> bool {
        let is_write_once = self.of(namespace, |it| it.is_write_once.load(Ordering::Relaxed));
        is_write_once.unwrap_or(false)
    }

    /// How long the entries of a namespace live at most, in milliseconds.
    #[inline]
    #[must_use]
    pub fn ttl_ms_max(&self, namespace: u32) -> Option<u64> {
        let ttl_ms = self.of(namespace, |it| it.ttl_ms_max.load(Ordering::Relaxed))?;
        (ttl_ms != UNLIMITED).then_some(ttl_ms)
    }

    /// Counts a request.
    #[inline]
    pub fn count(&self, space: Space, asked: Asked) {
        let place = self.of(space.namespace(), |it| it.place).unwrap_or(0);
        self.asked.add(place * ASKED + asked as usize, 1);
    }

    /// Requests of a namespace so far; None if they are not counted apart.
    #[must_use]
    pub fn asked(&self, namespace: u32, asked: Asked) -> Option<u64> {
        let place = self.of(namespace, |it| it.place)?;
        (place > 0).then(|| self.asked.total(place * ASKED + asked as usize))
    }

    /// Requests of all namespaces that are not counted apart.
    #[must_use]
    pub fn asked_others(&self, asked: Asked) -> u64 {
        self.asked.total(asked as usize)
    }

    /// Whether a write of this length may be taken.
    ///
    /// # Errors
    /// [`Failure::TooLarge`] if it is more than half of the quota; [`Failure::OutOfSpace`] if the
    /// namespace is too far past it: for the moment that it takes to cut off its oldest entries.
    pub fn admit(&self, space: Space, len: usize) -> Result<(), Failure> {
        let Some(failure) = self.refusal(space, len) else {
            return Ok(());
        };
        self.of(space.namespace(), |it| {
            it.refused.fetch_add(1, Ordering::Relaxed)
        });
        Err(failure)
    }

    /// As [`Namespaces::admit`], for a write that is tried in another way when it is not taken: it
    /// is not counted as refused.
    pub fn refusal(&self, space: Space, len: usize) -> Option<Failure> {
        let state = |it: &Account| (it.quota.load(Ordering::Relaxed), it.bytes());
        let (quota, held) = self.of(space.namespace(), state)?;
        if quota == UNLIMITED {
            return None;
        }
        let bytes = len as u64 + RECORD_OVERHEAD;
        let slack = (quota / SLACK_PART).max(SLACK_BYTES_MIN);
        if bytes > quota / 2 {
            return Some(Failure::TooLarge);
        }
        if held.saturating_add(bytes) <= quota.saturating_add(slack) {
            return None;
        }
        self.wake.notify_one();
        Some(Failure::OutOfSpace)
    }

    /// Notes a write to the disk of about this length.
    pub fn charge(&self, space: Space, len: usize) {
        let is_over = self.of(space.namespace(), |it| {
            let quota = it.quota.load(Ordering::Relaxed);
            let is_limited = quota != UNLIMITED;
            if is_limited {
                let bytes = len as u64 + RECORD_OVERHEAD;
                it.since.fetch_add(bytes, Ordering::Relaxed);
            }
            is_limited && it.bytes() > quota
        });
        if is_over == Some(true) {
            self.wake.notify_one();
        }
    }

    /// The namespaces that have to be counted: those that may be past their quota, were never
    /// counted or have one and are asked for.
    #[must_use]
    pub fn due(&self) -> Vec<u32> {
        let is_due = |account: &Account| {
            let quota = account.quota.load(Ordering::Relaxed);
            let is_new = || account.counted.lock().counted_at_ms == 0;
            account.is_asked_for.load(Ordering::Relaxed)
                || quota != UNLIMITED && (is_new() || account.bytes() > quota)
        };
        let named = self.named.load();
        let all = named.iter().map(|it| &**it).chain([&self.default]);
        all.filter(|it| is_due(it)).map(|it| it.number).collect()
    }

    /// Has a namespace counted soon.
    pub fn ask_for(&self, namespace: u32) {
        self.of(namespace, |it| {
            it.is_asked_for.store(true, Ordering::Relaxed)
        });
        self.wake.notify_one();
    }

    /// What was written since the last count; to be given to [`Namespaces::counted`].
    pub(crate) fn begin_count(&self, namespace: u32) -> u64 {
        let begun = self.of(namespace, |account| {
            account.is_asked_for.store(false, Ordering::Relaxed);
            account.since.load(Ordering::Relaxed)
        });
        begun.unwrap_or(0)
    }

    /// Notes the outcome of a count: what is left, and what was cut off this time.
    pub(crate) fn counted(&self, namespace: u32, begun: u64, count: DiskAccount) {
        self.of(namespace, |account| {
            account.counted_bytes.store(count.bytes, Ordering::Relaxed);
            account.since.fetch_sub(begun, Ordering::Relaxed);
            let mut counted = account.counted.lock();
            *counted = DiskAccount {
                counted_at_ms: count.counted_at_ms.max(1),
                cut_entries: counted.cut_entries + count.cut_entries,
                cut_bytes: counted.cut_bytes + count.cut_bytes,
                ..count
            };
        });
    }

    /// What a namespace holds on disk.
    #[must_use]
    pub fn disk_account(&self, namespace: u32) -> DiskAccount {
        let account = self.of(namespace, |account| DiskAccount {
            bytes: account.bytes(),
            refused: account.refused.load(Ordering::Relaxed),
            ..*account.counted.lock()
        });
        account.unwrap_or_default()
    }
}

impl Account {
    /// Takes over what is said of its namespace; nothing is, of one that is not known any more.
    fn go_by(&self, named: Option<&Arc<Namespace>>) {
        let quota = named.and_then(|it| it.quota);
        let quota = quota.map_or(UNLIMITED, ByteCount::bytes);
        let before = self.quota.swap(quota, Ordering::Relaxed);
        if before == UNLIMITED && quota != UNLIMITED {
            // What was written without a quota was not added to the last count.
            self.is_asked_for.store(true, Ordering::Relaxed);
        }
        let is_write_once = named.is_some_and(|it| it.is_write_once);
        self.is_write_once.store(is_write_once, Ordering::Relaxed);
        let ttl_ms_max = named.and_then(|it| it.ttl).map_or(UNLIMITED, |ttl| {
            u64::try_from(ttl.as_millis()).unwrap_or(UNLIMITED)
        });
        self.ttl_ms_max.store(ttl_ms_max, Ordering::Relaxed);
    }

    fn bytes(&self) -> u64 {
        let counted = self.counted_bytes.load(Ordering::Relaxed);
        counted.saturating_add(self.since.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(name: &str, number: u32, quota: Option<u64>) -> Arc<Namespace> {
        Arc::new(Namespace {
            name: name.into(),
            number,
            base: None,
            quota: quota.map(ByteCount::new),
            is_write_once: false,
            ttl: None,
        })
    }

    fn limited(quota: u64) -> (Namespaces, Space) {
        let namespaces = Namespaces::default();
        namespaces.set([known("main", 7, Some(quota))]);
        (namespaces, Space::new(7, 3))
    }

    #[test]
    fn a_namespace_is_counted_when_it_may_be_past_its_quota_and_refused_when_far_past() {
        let quota = 64 << 20;
        let (namespaces, space) = limited(quota);
        assert_eq!(namespaces.due(), [7], "it was never counted");
        let count = |bytes, begun| {
            let count = DiskAccount {
                bytes,
                ..DiskAccount::default()
            };
            namespaces.counted(7, begun, count);
        };
        count(quota - 100, namespaces.begin_count(7));
        assert!(namespaces.due().is_empty());
        namespaces.charge(space, 1000);
        assert_eq!(namespaces.due(), [7]);
        assert_eq!(namespaces.admit(space, 1 << 20), Ok(()));
        namespaces.charge(space, 8 << 20);
        assert_eq!(namespaces.admit(space, 1 << 20), Err(Failure::OutOfSpace));
        // What was written while it was being counted is not in the count.
        let begun = namespaces.begin_count(7);
        namespaces.charge(space, 5000);
        count(quota / 2, begun);
        assert_eq!(namespaces.admit(space, 1 << 20), Ok(()));
        let account = namespaces.disk_account(7);
        assert_eq!(account.bytes, quota / 2 + 5000 + RECORD_OVERHEAD);
        assert_eq!(account.refused, 1);
    }

    #[test]
    fn a_namespace_that_gets_a_quota_is_counted_anew() {
        let namespaces = Namespaces::default();
        namespaces.set([known("main", 7, None)]);
        let count = |bytes| {
            let begun = namespaces.begin_count(7);
            let count = DiskAccount {
                bytes,
                ..DiskAccount::default()
            };
            namespaces.counted(7, begun, count);
        };
        count(1000);
        // More than the quota to come, and not noted without one.
        namespaces.charge(Space::new(7, 3), 100 << 20);
        namespaces.set([known("main", 7, Some(64 << 20))]);
        assert_eq!(namespaces.due(), [7]);
        count(1000);
        namespaces.set([known("main", 7, Some(32 << 20))]);
        assert!(
            namespaces.due().is_empty(),
            "writes were added to the count"
        );
    }

    #[test]
    fn a_value_that_would_take_most_of_the_quota_is_too_large() {
        let (namespaces, space) = limited(1 << 20);
        assert_eq!(namespaces.admit(space, 600 << 10), Err(Failure::TooLarge));
        assert_eq!(namespaces.admit(space, 500 << 10), Ok(()));
        assert_eq!(namespaces.admit(Space::new(8, 0), 600 << 10), Ok(()));
        namespaces.set([]);
        assert_eq!(namespaces.admit(space, 600 << 10), Ok(()));
    }

    #[test]
    fn requests_of_many_namespaces_are_counted_in_bounded_places() {
        let namespaces = Namespaces::default();
        let named = |n: u32| known(&format!("n{n:03}"), n, None);
        namespaces.set((1..200).map(named));
        for n in 0..300 {
            namespaces.count(Space::new(n, 0), Asked::Hit);
            namespaces.count(Space::new(n, 1), Asked::Store);
        }
        assert_eq!(
            namespaces.asked(0, Asked::Hit),
            Some(1),
            "`default` is known"
        );
        assert_eq!(namespaces.asked(1, Asked::Store), Some(1));
        assert_eq!(namespaces.asked(1, Asked::Miss), Some(0));
        assert_eq!(namespaces.asked(199, Asked::Hit), None);
        let apart = COUNTED_MAX as u64 - 1;
        assert_eq!(namespaces.asked_others(Asked::Hit), 300 - apart);
        // One that is gone keeps its place and its counters.
        namespaces.set([named(150)]);
        assert_eq!(namespaces.asked(1, Asked::Hit), Some(1));
        assert_eq!(namespaces.asked(150, Asked::Hit), None);
    }
}
