//! A store that answers as it is told to.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use fonn_base::metrics::Label as _;
use fonn_base::random::SplitMix64;
use fonn_proto::outcome::Value;
use fonn_proto::peer::Entry;
use fonn_proto::peer::hello::{Hello, Rejection};
use fonn_proto::request::ServerOutcome;
use fonn_proto::{
    BatchStep, ClusterView, Command, Failure, Get, Hit, Moved, Outcome, Redirects, ServerCommand,
    Space, placement,
};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::{
    Acks, Answered, Client, Event, Execution, FixedBudget, Job, Later, Service, Shared, Stored,
};

/// When commands are executed.
#[derive(Clone, Copy, Debug)]
pub enum Manner {
    /// Before the next one is looked at.
    AtOnce,
    /// Some at once, others when a few have gathered, in an order that the seed decides.
    Shuffled(u64),
    /// When [`Fake::release`] says so.
    Held,
}

/// Keys that begin so are read on the short way if they are there.
const AT_HAND: &[u8] = b"hot";

/// Keys that begin so belong to another, which is found out late.
const ELSEWHERE: &[u8] = b"else";

/// Writes to keys that begin so are not acknowledged.
const FAILING: &[u8] = b"fail";

/// Other processes' writes to keys that begin so are carried out on the spot. What follows is the
/// key as far as acknowledgements are concerned, or the answer comes later.
const IN_PASSING: &[u8] = b"now ";
const LATER: &[u8] = b"later";

type Key = (Space, Vec<u8>);

enum Task {
    Get(Key),
    Store(Key, Vec<u8>),
    Delete(Key),
}

impl Task {
    fn of(job: &Job<'_>) -> Option<Self> {
        let key = (job.space, job.command.key().to_vec());
        Some(match job.command {
            Command::Get(_) => Self::Get(key),
            Command::Store(store) => Self::Store(key, store.value.to_vec()),
            Command::Delete(_) => Self::Delete(key),
            _ => return None,
        })
    }
}

struct Held {
    task: Task,
    comes_to_nothing: bool,
    answer: oneshot::Sender<Came>,
}

#[derive(Default)]
struct Store {
    entries: HashMap<Key, Bytes>,
    held: VecDeque<Held>,
}

pub struct Fake {
    manner: Manner,
    store: Mutex<Store>,
    random: Mutex<SplitMix64>,
    budget: FixedBudget,
    counts: [AtomicU64; Event::ALL.len()],
    executed: AtomicUsize,
    foreseen: Mutex<Vec<String>>,
    expected: Mutex<Vec<Vec<String>>>,
    in_flight: Arc<AtomicUsize>,
    in_flight_most: AtomicUsize,
}

/// An answer to come.
pub struct Coming {
    answer: oneshot::Receiver<Came>,
    in_flight: Arc<AtomicUsize>,
}

/// Its outcome, or that it has to be executed again.
type Came = Result<Known, Again>;

/// An outcome.
pub struct Known(Outcome<'static>);

/// It was not executed.
pub struct Again;

impl Answered for Known {
    fn outcome(&self) -> Outcome<'_> {
        self.0.clone()
    }
}

impl Future for Coming {
    type Output = Came;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Came> {
        let answer = Pin::new(&mut self.answer).poll(cx);
        answer.map(|it| it.unwrap_or(Ok(Known(Outcome::Failed(Failure::Unavailable)))))
    }
}

impl Later for Coming {}

impl Drop for Coming {
    fn drop(&mut self) {
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
    }
}

#[derive(Default)]
pub struct FakeAcks {
    failures: Vec<(usize, Failure)>,
    count: usize,
}

impl Acks for FakeAcks {
    fn count(&self) -> usize {
        self.count
    }

    async fn wait(&mut self) -> Vec<(usize, Failure)> {
        tokio::task::yield_now().await;
        self.count = 0;
        std::mem::take(&mut self.failures)
    }
}

impl FakeAcks {
    fn add(&mut self, key: &[u8]) {
        if key.starts_with(FAILING) {
            self.failures.push((self.count, Failure::OutOfSpace));
        }
        self.count += 1;
    }
}

impl Store {
    fn run(&mut self, task: Task) -> Outcome<'static> {
        match task {
            Task::Get(key) => match self.entries.get(&key) {
                Some(value) => Outcome::Hit(hit(Value::Shared(value.clone()))),
                None => Outcome::Miss,
            },
            Task::Store(key, value) => {
                let value_len = value.len();
                self.entries.insert(key, value.into());
                Outcome::Stored(fonn_proto::outcome::Stored {
                    version: 1,
                    value_len,
                    previous: None,
                })
            }
            Task::Delete(key) => match self.entries.remove(&key) {
                Some(_) => Outcome::Deleted { version: 0 },
                None => Outcome::NotFound,
            },
        }
    }

    fn answer(&mut self, at: usize) {
        if let Some(held) = self.held.remove(at) {
            let came = match held.comes_to_nothing {
                true => Err(Again),
                false => Ok(Known(self.run(held.task))),
            };
            // The caller may be gone.
            let _ = held.answer.send(came);
        }
    }
}

/// Where the client of a job has to go, if it wants to know.
fn moved(job: &Job<'_>) -> Option<Moved> {
    let key = job.command.key();
    let is_told = key.starts_with(ELSEWHERE) && job.redirects != Redirects::Never;
    is_told.then(|| Moved {
        slot: placement::slot(key),
        host: format!("{:?}", job.redirects),
        port: 7,
    })
}

fn hit(value: Value<'_>) -> Hit<'_> {
    Hit {
        value_len: value.as_slice().len(),
        value,
        flags: 0,
        version: 1,
        ttl_ms: None,
        expires_at_ms: None,
        idle_s: 0,
        fetched_before: false,
        stale: false,
        won: false,
        lost: false,
    }
}

impl Fake {
    pub fn new(manner: Manner) -> Self {
        let seed = match manner {
            Manner::Shuffled(seed) => seed,
            _ => 0,
        };
        Self {
            manner,
            store: Mutex::default(),
            random: Mutex::new(SplitMix64::new(seed)),
            budget: FixedBudget::new(64 << 20),
            counts: Default::default(),
            executed: AtomicUsize::new(0),
            foreseen: Mutex::default(),
            expected: Mutex::default(),
            in_flight: Arc::default(),
            in_flight_most: AtomicUsize::new(0),
        }
    }

    pub fn put(&self, key: &[u8], value: Vec<u8>) {
        let key = (Space::default(), key.to_vec());
        self.store.lock().entries.insert(key, value.into());
    }

    /// Commands begun whose answers were not taken.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::SeqCst)
    }

    pub fn in_flight_most(&self) -> usize {
        self.in_flight_most.load(Ordering::SeqCst)
    }

    /// Commands begun.
    pub fn executed(&self) -> usize {
        self.executed.load(Ordering::SeqCst)
    }

    /// The keys that were announced, by announcement.
    pub fn expected(&self) -> Vec<Vec<String>> {
        self.expected.lock().clone()
    }

    pub fn counted(&self, event: Event) -> u64 {
        self.counts[event as usize].load(Ordering::SeqCst)
    }

    /// Has up to `count` of those that are held executed, the newest first.
    pub fn release_last(&self, count: usize) -> usize {
        let mut store = self.store.lock();
        let count = count.min(store.held.len());
        for _ in 0..count {
            let last = store.held.len() - 1;
            store.answer(last);
        }
        count
    }

    /// Has up to `count` of those that are held executed, the oldest first.
    pub fn release(&self, count: usize) -> usize {
        let mut store = self.store.lock();
        let count = count.min(store.held.len());
        (0..count).for_each(|_| store.answer(0));
        count
    }

    /// Holds one, or executes some of those that are held.
    fn shuffle(&self, store: &mut Store) {
        let mut random = self.random.lock();
        while random.below(4) == 0 && !store.held.is_empty() {
            let at = random.below(store.held.len() as u64) as usize;
            store.answer(at);
        }
    }

    /// Executes what is held, by and by, until nothing is.
    pub async fn keep_answering(&self) {
        loop {
            tokio::task::yield_now().await;
            let mut store = self.store.lock();
            if !store.held.is_empty() {
                let at = self.random.lock().below(store.held.len() as u64) as usize;
                store.answer(at);
            }
        }
    }
}

impl Service for Fake {
    type Moment = ();
    type Acks = FakeAcks;
    type Later = Coming;
    type Answer = Known;
    type Again = Again;
    type Budget = FixedBudget;

    fn value_len_max(&self) -> usize {
        4 << 20
    }

    fn budget(&self) -> &FixedBudget {
        &self.budget
    }

    fn count(&self, event: Event, n: u64) {
        self.counts[event as usize].fetch_add(n, Ordering::SeqCst);
    }

    fn moment(&self) {}

    fn foresee(&self, _: Space, key: &[u8]) -> Option<u64> {
        let mut foreseen = self.foreseen.lock();
        foreseen.push(String::from_utf8_lossy(key).into_owned());
        Some(foreseen.len() as u64 - 1)
    }

    fn expect(&self, lookups: &[u64]) {
        let foreseen = self.foreseen.lock();
        let keys = lookups.iter().map(|&at| foreseen[at as usize].clone());
        self.expected.lock().push(keys.collect());
    }

    fn answer_hit(
        &self,
        space: Space,
        get: &Get<'_>,
        (): (),
        _: &mut Vec<u8>,
        word: impl FnOnce(&Outcome<'_>),
    ) -> bool {
        if !get.key.starts_with(AT_HAND) || get.changes_entry() {
            return false;
        }
        let store = self.store.lock();
        let Some(value) = store.entries.get(&(space, get.key.to_vec())) else {
            return false;
        };
        word(&Outcome::Hit(hit(Value::Copied(value))));
        true
    }

    fn store_at_once(
        &self,
        job: &Job<'_>,
        (): (),
        acks: &mut FakeAcks,
        word: impl FnOnce(&Outcome<'_>),
    ) -> Stored<Coming> {
        let key = job.command.key().strip_prefix(IN_PASSING);
        let (Some(key), Some(task)) = (key, Task::of(job)) else {
            return Stored::No;
        };
        acks.add(key);
        let mut store = self.store.lock();
        self.executed.fetch_add(1, Ordering::SeqCst);
        if !key.starts_with(LATER) {
            word(&store.run(task));
            return Stored::Yes;
        }
        let (answer, coming) = oneshot::channel();
        store.held.push_back(Held {
            task,
            comes_to_nothing: key.ends_with(ELSEWHERE),
            answer,
        });
        self.in_flight.fetch_add(1, Ordering::SeqCst);
        Stored::Later(Coming {
            answer: coming,
            in_flight: Arc::clone(&self.in_flight),
        })
    }

    fn take_at_once(&self, entry: &Entry<'_>, acks: &mut FakeAcks) -> bool {
        let key = entry.key.strip_prefix(IN_PASSING);
        key.is_some_and(|key| {
            acks.add(key);
            true
        })
    }

    async fn execute<'s>(
        &self,
        job: &Job<'_>,
        acks: &mut FakeAcks,
        scratch: &'s mut Vec<u8>,
    ) -> Execution<'s, Coming> {
        let Some(task) = Task::of(job) else {
            return Execution::Done(Outcome::NotANumber);
        };
        if moved(job).is_some() {
            let (answer, coming) = oneshot::channel();
            // The other end is below.
            let _ = answer.send(Err(Again));
            self.in_flight.fetch_add(1, Ordering::SeqCst);
            return Execution::Later(Coming {
                answer: coming,
                in_flight: Arc::clone(&self.in_flight),
            });
        }
        if let Command::Store(store) = job.command {
            acks.add(store.key);
        }
        let mut store = self.store.lock();
        // A thread that sees the count has to take the lock to release what it counts.
        self.executed.fetch_add(1, Ordering::SeqCst);
        let is_held = match self.manner {
            Manner::AtOnce => false,
            Manner::Held => true,
            // What is read at once must not come before a write of its key that is held.
            Manner::Shuffled(_) => {
                !job.command.key().starts_with(AT_HAND) && self.random.lock().below(4) > 0
            }
        };
        if !is_held {
            let outcome = store.run(task);
            return Execution::Done(match outcome {
                Outcome::Hit(hit) => {
                    scratch.clear();
                    scratch.extend_from_slice(hit.value.as_slice());
                    Outcome::Hit(Hit {
                        value: Value::Copied(scratch),
                        ..hit
                    })
                }
                other => other,
            });
        }
        let (answer, coming) = oneshot::channel();
        let is_shuffled = matches!(self.manner, Manner::Shuffled(_));
        store.held.push_back(Held {
            task,
            comes_to_nothing: is_shuffled && self.random.lock().below(5) == 0,
            answer,
        });
        let now = self.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        self.in_flight_most.fetch_max(now, Ordering::SeqCst);
        if is_shuffled {
            self.shuffle(&mut store);
        }
        Execution::Later(Coming {
            answer: coming,
            in_flight: Arc::clone(&self.in_flight),
        })
    }

    async fn again(&self, job: &Job<'_>, _: Again) -> Known {
        tokio::task::yield_now().await;
        if let Some(moved) = moved(job) {
            return Known(Outcome::Moved(moved));
        }
        let task = Task::of(job);
        Known(task.map_or(Outcome::NotANumber, |task| self.store.lock().run(task)))
    }

    fn greet(&self, hello: &Hello, _: &str) -> (Hello, Result<(), Rejection>) {
        // As if it came from far away.
        let verdict = match hello.name.as_str() {
            "afar" => Err(Rejection::NotAllowed),
            _ => Ok(()),
        };
        (Hello::new("fake", "", (4 << 20) + 1000), verdict)
    }

    async fn execute_server(
        &self,
        _: &Shared<Self>,
        client: Client<'_>,
        command: &ServerCommand<'_>,
        _: &mut FakeAcks,
    ) -> ServerOutcome {
        let mut store = self.store.lock();
        match command {
            ServerCommand::Flush { .. } => {
                store.entries.clear();
                ServerOutcome::Done
            }
            ServerCommand::Count => ServerOutcome::Integer(store.entries.len() as i64),
            ServerCommand::ClientInfo => ServerOutcome::Text(client.peer.to_owned()),
            ServerCommand::ClusterView => {
                let view = ClusterView::alone("fake", client.local);
                ServerOutcome::Cluster(Arc::new(view))
            }
            ServerCommand::Atomic(batch) => {
                let outcomes = batch.steps.iter().map(|step| match step {
                    BatchStep::Command(Command::Get(get)) => {
                        store.run(Task::Get((client.space, get.key.to_vec())))
                    }
                    _ => Outcome::NotANumber,
                });
                ServerOutcome::Outcomes(outcomes.collect())
            }
            _ => ServerOutcome::Pairs(Vec::new()),
        }
    }
}
