//! A store in memory whose operations can fail, or take for ever.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use fonn_admin::HostNames;
use fonn_auth::{Authenticator, Security, Source};
use fonn_proto::{Failure, Space, Version};
use fonn_server::{Event, Scope, Tuning};
use http_body::Body;
use http_body_util::{BodyExt as _, Full};
use hyper::{HeaderMap, Request, StatusCode};
use parking_lot::Mutex;

use crate::handler::{Front, Options, Peer};
use crate::life::{Life, Times};
use crate::store::{Charge, Form, Found, Probed, PutMode, PutOutcome, Store};
use crate::turns::Turn;

/// Longest value of the fake.
pub const VALUE_LEN_MAX: usize = 1 << 20;

/// Memory for requests.
pub const MEMORY_LEN: usize = 16 << 20;

/// What operations do instead of what they should.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    #[default]
    None,
    Fails(Failure),
    /// They take so long.
    Slow(Duration),
    Hangs,
    /// Probes hang, and nothing else does.
    ProbesHang,
}

#[derive(Debug, Default)]
pub struct Inside {
    pub entries: Mutex<HashMap<(Space, Bytes), (Bytes, Form)>>,
    pub fault: Mutex<Fault>,
    /// The keys whose bytes were asked for.
    pub got: Mutex<Vec<Bytes>>,
    /// How many are asked for now, and were at a time.
    pub getting: AtomicUsize,
    pub getting_max: AtomicUsize,
    pub charged: AtomicUsize,
    pub charged_max: AtomicUsize,
    /// Charges that there are now, and were at a time.
    charges: AtomicUsize,
    pub charges_max: AtomicUsize,
    /// Whether first values stay, as in a namespace with `write_once`.
    pub is_write_once: AtomicBool,
    pub held: AtomicUsize,
    pub places: AtomicUsize,
    pub unread_max: AtomicUsize,
    tuning: Tuning,
}

#[derive(Clone, Debug, Default)]
pub struct Fake(pub Arc<Inside>);

/// Counts an operation until it ends, or its future is dropped.
struct Under<'c>(&'c AtomicUsize);

impl Drop for Under<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

pub struct FakeCharge<'s> {
    inside: &'s Inside,
    bytes: usize,
}

impl Charge for FakeCharge<'_> {
    async fn grow(&mut self, bytes: usize) -> bool {
        let charged = self.inside.charged.fetch_add(bytes, Ordering::SeqCst) + bytes;
        self.bytes += bytes;
        self.inside.charged_max.fetch_max(charged, Ordering::SeqCst);
        charged <= MEMORY_LEN
    }
}

impl Drop for FakeCharge<'_> {
    fn drop(&mut self) {
        self.inside.charged.fetch_sub(self.bytes, Ordering::SeqCst);
        self.inside.charges.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Fake {
    pub fn with_tuning(tuning: Tuning) -> Self {
        Self(Arc::new(Inside {
            tuning,
            unread_max: AtomicUsize::new(usize::MAX),
            ..Inside::default()
        }))
    }

    pub fn set(&self, fault: Fault) {
        *self.0.fault.lock() = fault;
    }

    async fn disturbed(&self) -> Result<(), Failure> {
        let fault = *self.0.fault.lock();
        match fault {
            Fault::None => Ok(()),
            Fault::Fails(failure) => Err(failure),
            Fault::Slow(time) => {
                tokio::time::sleep(time).await;
                Ok(())
            }
            Fault::Hangs => std::future::pending().await,
            Fault::ProbesHang => Ok(()),
        }
    }

    async fn found(&self, scope: Scope, key: Bytes) -> Result<Option<Found>, Failure> {
        self.disturbed().await?;
        let found = self.0.entries.lock().get(&(scope.space, key)).cloned();
        Ok(found.map(|(bytes, form)| Found {
            version: version(&bytes),
            bytes,
            form,
        }))
    }

    /// The keys whose bytes were asked for since the last time.
    pub fn taken(&self) -> Vec<Bytes> {
        std::mem::take(&mut *self.0.got.lock())
    }

    /// Removes the entries of these bytes.
    pub fn evict(&self, is_evicted: impl Fn(&Bytes) -> bool) {
        self.0
            .entries
            .lock()
            .retain(|_, (bytes, _)| !is_evicted(bytes));
    }

    /// Whether the first value of a key stays (ADR 0021).
    fn keeps_first(&self, key: &[u8]) -> bool {
        let changing: [&[u8]; 3] = [b"actions/block/", b"actions/index/", b"actions/upload/"];
        let changes = changing.iter().any(|it| key.starts_with(it));
        self.0.is_write_once.load(Ordering::SeqCst) && !changes
    }

    pub fn value(&self, key: &str) -> Option<Bytes> {
        let key = (Space::default(), Bytes::copy_from_slice(key.as_bytes()));
        let entries = self.0.entries.lock();
        entries.get(&key).map(|(bytes, _)| bytes.clone())
    }
}

/// A version that tells values apart.
fn version(value: &Bytes) -> Version {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl Store for Fake {
    type Charge<'s> = FakeCharge<'s>;

    fn value_len_max(&self) -> usize {
        VALUE_LEN_MAX
    }

    async fn get(self, scope: Scope, key: Bytes) -> Result<Option<Found>, Failure> {
        self.0.got.lock().push(key.clone());
        let getting = self.0.getting.fetch_add(1, Ordering::SeqCst) + 1;
        self.0.getting_max.fetch_max(getting, Ordering::SeqCst);
        let _under = Under(&self.0.getting);
        self.found(scope, key).await
    }

    async fn probe(self, scope: Scope, key: Bytes) -> Result<Option<Probed>, Failure> {
        if *self.0.fault.lock() == Fault::ProbesHang {
            std::future::pending::<()>().await;
        }
        let found = self.found(scope, key).await?;
        Ok(found.map(|it| Probed {
            len: it.bytes.len(),
            form: it.form,
        }))
    }

    fn probe_at_once(&self, _: Scope, keys: &[Bytes]) -> Vec<Option<Probed>> {
        // All that is asked for may take a while.
        vec![None; keys.len()]
    }

    async fn put(
        self,
        scope: Scope,
        key: Bytes,
        bytes: Bytes,
        form: Form,
        mode: PutMode,
    ) -> Result<PutOutcome, Failure> {
        self.disturbed().await?;
        if bytes.len() > VALUE_LEN_MAX {
            return Err(Failure::TooLarge);
        }
        let keeps_first = self.keeps_first(&key);
        let mut entries = self.0.entries.lock();
        let there = entries.get(&(scope.space, key.clone()));
        let there = there.map(|(bytes, _)| version(bytes));
        let is_kept = match mode {
            PutMode::Replace => keeps_first && there.is_some(),
            PutMode::Keep => there.is_some(),
            PutMode::Over(_) if keeps_first => return Err(Failure::ReadOnly),
            PutMode::Over(over) => there != Some(over),
        };
        if is_kept {
            return Ok(PutOutcome::Kept);
        }
        entries.insert((scope.space, key), (bytes, form));
        Ok(PutOutcome::Stored)
    }

    async fn delete(self, scope: Scope, key: Bytes) -> Result<bool, Failure> {
        self.disturbed().await?;
        Ok(self.0.entries.lock().remove(&(scope.space, key)).is_some())
    }

    async fn charge(&self, _: Source, bytes: usize) -> Option<FakeCharge<'_>> {
        let inside: &Inside = &self.0;
        let charges = inside.charges.fetch_add(1, Ordering::SeqCst) + 1;
        inside.charges_max.fetch_max(charges, Ordering::SeqCst);
        let mut charge = FakeCharge { inside, bytes: 0 };
        charge.grow(bytes).await.then_some(charge)
    }

    fn is_contended(&self) -> bool {
        false
    }

    fn tuning(&self) -> &Tuning {
        &self.0.tuning
    }

    fn unread_max(&self) -> usize {
        self.0.unread_max.load(Ordering::SeqCst)
    }

    fn hold(&self, bytes: usize) {
        self.0.held.fetch_add(bytes, Ordering::SeqCst);
    }

    fn let_go(&self, bytes: usize) {
        self.0.held.fetch_sub(bytes, Ordering::SeqCst);
    }

    fn count(&self, _: Event, _: u64) {}

    fn take_place(&self) -> bool {
        self.0.places.fetch_add(1, Ordering::SeqCst);
        true
    }

    fn give_back_place(&self) {
        self.0.places.fetch_sub(1, Ordering::SeqCst);
    }
}

pub fn options(times: Times) -> Options {
    Options {
        deadline: Duration::from_secs(2),
        hosts: HostNames::default(),
        connections_max: 100,
        times,
    }
}

/// A front and what it stands on.
pub struct Site {
    pub store: Fake,
    pub front: Front<Fake>,
}

impl Site {
    pub fn new() -> Self {
        let store = Fake::with_tuning(Tuning::default());
        let front = front(&store);
        Self { store, front }
    }
}

pub const PEER: Peer = Peer {
    address: IpAddr::V4(Ipv4Addr::LOCALHOST),
    is_encrypted: false,
};

/// Less than a body may stand still.
pub const STEP: Duration = Duration::from_millis(600);

pub fn get(path: &str) -> Request<Full<Bytes>> {
    Request::get(path).body(Full::default()).unwrap()
}

/// A front without users.
pub fn front(store: &Fake) -> Front<Fake> {
    Front::new(
        store.clone(),
        Security::default(),
        options(Times::default()),
    )
}

/// A front with users, and its store.
pub fn guarded(users: Arc<Authenticator>) -> (Fake, Front<Fake>) {
    let security = Security {
        users: Some(users),
        ..Security::default()
    };
    let store = Fake::with_tuning(Tuning::default());
    let front = Front::new(store.clone(), security, options(Times::default()));
    (store, front)
}

/// All turns of calls that hash a blob.
pub async fn all_turns(front: &Front<Fake>) -> [Turn; 2] {
    let take = || front.reworks().take(Space::default(), Duration::ZERO);
    [take().await.unwrap(), take().await.unwrap()]
}

/// A response that was read to its end.
#[derive(Debug)]
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
}

/// Asks a front without a network.
pub async fn ask<B>(front: &Front<Fake>, request: Request<B>) -> Reply
where
    B: Body<Data: Send> + Unpin + Send,
{
    let life = Life::new(Times::default(), Source::of(None), false);
    let response = front.answer(request, PEER, &life).await;
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes().to_vec();
    Reply {
        status: head.status,
        headers: head.headers,
        body,
    }
}
