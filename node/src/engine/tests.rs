//! Tests of the tiers together: against a model, under concurrency, and race by race.

mod bounds;
mod codecs;
mod fetches;
mod flushes;
mod hits;
mod model;
mod purges;
mod quota;
mod races;
mod restart;
mod stores;
mod threads;
mod ttl;
mod write_once;

use std::time::Duration;

use bytes::Bytes;
use fonn_base::clock::ManualClock;
use fonn_disk_tier::levels::CodecChoice;
use fonn_disk_tier::{DiskError, DiskFound, DiskOptions};
use fonn_proto::request::ServerOutcome;
use fonn_proto::{
    Batch, BatchStep, Delete, ExpireCondition, ExpirySpec, Get, Redirects, Store, Touch, WriterId,
};
use fonn_ram_tier::{LruMode, RamOptions};
use tempfile::TempDir;

use super::upkeep::EngineOptions;
use super::*;

pub(super) const SPACE: Space = Space(3);
const GRACE: Duration = Duration::from_secs(120);

/// Unix time in milliseconds at which the tests begin. Compaction reads the machine's clock, so
/// this is far ahead of it: compaction finds no entry of the tests expired.
pub(super) const START_MS: u64 = 3_000_000_000_000;

/// Longest value in bytes, where a test does not choose it.
pub(super) const VALUE_LEN_MAX: usize = 40_000;

/// What a test may choose.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    pub(super) durability: Durability,
    pub(super) ram_bytes: usize,
    pub(super) ram_codec: CodecChoice,
    /// Of fresh and of compacted values on disk.
    pub(super) disk_codecs: (CodecChoice, CodecChoice),
    pub(super) queue_bytes: usize,
    pub(super) value_len_max: usize,
    pub(super) has_disk: bool,
    pub(super) disk_bytes: u64,
    /// Longer values are refused by the disk, after RAM took them.
    pub(super) disk_value_len_max: usize,
}

impl Default for Choice {
    fn default() -> Self {
        Self {
            durability: Durability::Batched,
            ram_bytes: 256 << 10,
            ram_codec: CodecChoice::none(),
            disk_codecs: (CodecChoice::none(), CodecChoice::none()),
            queue_bytes: 1 << 20,
            value_len_max: VALUE_LEN_MAX,
            has_disk: true,
            disk_bytes: 256 << 20,
            disk_value_len_max: VALUE_LEN_MAX,
        }
    }
}

/// A store in a directory of its own, with a clock that is moved by hand.
pub(super) struct Rig {
    engine: Option<Arc<Engine>>,
    clock: ManualClock,
    dir: TempDir,
    choice: Choice,
}

impl Rig {
    pub(super) fn new(choice: Choice) -> Self {
        let mut rig = Self {
            engine: None,
            clock: ManualClock::new(START_MS),
            dir: tempfile::tempdir().unwrap(),
            choice,
        };
        rig.open();
        rig
    }

    fn open(&mut self) {
        let choice = self.choice;
        let options = || EngineOptions {
            settings: Settings {
                value_len_max: choice.value_len_max,
                durability: choice.durability,
            },
            ram: RamOptions {
                budget_bytes: choice.ram_bytes,
                lru: LruMode::Approximate,
                hash_seed: 7,
            },
            disk: choice.has_disk.then(|| DiskOptions {
                dir: self.dir.path().join("data"),
                budget_bytes: choice.disk_bytes,
                durability: choice.durability,
                fresh: choice.disk_codecs.0,
                compacted: choice.disk_codecs.1,
                codec_min_bytes: 256,
                value_len_max: choice.disk_value_len_max,
                queue_bytes_max: choice.queue_bytes,
                memory_bytes: 4 << 20,
                read_threads: 1,
                compaction_percent: 0,
                write_bytes_per_sec_max: None,
                room_wait: fonn_disk_tier::ROOM_WAIT,
            }),
            cold: None,
            ram_codec: (choice.ram_codec, 64),
            clock: self.clock.clock(),
        };
        let deadline = Instant::now() + GRACE;
        self.engine = loop {
            match Engine::open(options()) {
                Ok(engine) => break Some(engine),
                // The threads of the engine that was dropped are still at it.
                Err(OpenError::Disk(DiskError::Locked(_))) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => panic!("{error}"),
            }
        };
    }

    fn close(&mut self) {
        self.engine.take().unwrap().close(GRACE);
    }

    /// Closes and opens.
    pub(super) fn reopen(&mut self) {
        self.close();
        self.open();
    }

    /// Drops it without closing, and opens again.
    pub(super) fn drop_and_open(&mut self) {
        drop(self.engine.take());
        self.open();
    }

    pub(super) fn engine(&self) -> &Engine {
        self.engine.as_ref().unwrap()
    }

    /// The engine, for another task. It must be dropped before the rig is opened again.
    pub(super) fn shared(&self) -> Arc<Engine> {
        Arc::clone(self.engine.as_ref().unwrap())
    }

    pub(super) async fn set(&self, key: &str, value: &[u8]) {
        let outcome = self.run(&set(key, value)).await;
        assert!(matches!(outcome, Outcome::Stored(_)), "{outcome:?}");
    }

    async fn delete(&self, key: &str) -> Outcome<'static> {
        self.run(&Command::Delete(Delete::new(key.as_bytes())))
            .await
    }

    async fn touch(&self, key: &str, expiry: ExpirySpec) -> Outcome<'static> {
        self.run(&touch(key, expiry)).await
    }

    /// The value of a key.
    pub(super) async fn get(&self, key: &str) -> Option<Vec<u8>> {
        match self.run(&get(key)).await {
            Outcome::Hit(hit) => Some(hit.value.as_slice().to_vec()),
            Outcome::Miss => None,
            other => panic!("{other:?}"),
        }
    }

    pub(super) async fn run(&self, command: &Command<'_>) -> Outcome<'static> {
        let (outcome, failures) = run(self.engine(), command).await;
        assert_eq!(failures, [] as [Failure; 0], "{command:?}");
        outcome
    }

    /// One try of a command, and the ticket of the fetch that it asks for.
    fn ticket(&self, command: &Command<'_>) -> Ticket {
        match self.attempt(command, None) {
            Attempt::Fetch(ticket) => ticket,
            _ => panic!("RAM knows the key"),
        }
    }

    fn attempt(&self, command: &Command<'_>, fetched: Option<&Fetched>) -> Attempt {
        let job = job(command);
        self.engine().attempt(
            &job,
            fetched,
            &Prepared::default(),
            &mut Acks::default(),
            &mut Vec::new(),
        )
    }

    /// What the disk has of a key, as if asked with `ticket`.
    async fn fetch(&self, key: &str, ticket: Ticket) -> Fetched {
        let disk = self.engine().disk().unwrap();
        let entry = match disk.find(SPACE, key.as_bytes()).await.unwrap() {
            DiskFound::Entry(entry) => Some(entry),
            DiskFound::Absent | DiskFound::Below(_) => None,
        };
        Fetched {
            ticket,
            entry,
            facts: None,
            from: From::Disk,
            reading: None,
        }
    }
}

fn job<'a>(command: &'a Command<'a>) -> Job<'a> {
    Job {
        space: SPACE,
        command,
        source: None,
        base: None,
        routed_by: None,
        redirects: Redirects::Never,
        writer: WriterId::NONE,
    }
}

pub(super) fn set<'a>(key: &'a str, value: &'a [u8]) -> Command<'a> {
    Command::Store(Store::set(key.as_bytes(), value, 0, ExpirySpec::Never))
}

/// A batch that stores all pairs or none.
pub(super) fn all_or_none<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Batch<'a> {
    let set = |(key, value)| BatchStep::Command(set(key, value));
    Batch {
        all_absent: true,
        steps: pairs.into_iter().map(set).collect(),
        ..Batch::default()
    }
}

/// Whether a batch stored all; false if a key had an entry.
#[track_caller]
pub(super) fn is_stored(outcome: &ServerOutcome) -> bool {
    match outcome {
        ServerOutcome::Outcomes(_) => true,
        ServerOutcome::Changed => false,
        other => panic!("{other:?}"),
    }
}

fn get(key: &str) -> Command<'_> {
    Command::Get(Get::new(key.as_bytes()))
}

fn touch(key: &str, expiry: ExpirySpec) -> Command<'_> {
    Command::Touch(Touch {
        key: key.as_bytes(),
        expiry,
        condition: ExpireCondition::Always,
    })
}

/// Executes a command and waits for the disk: the outcome, and how its writes failed. Half of the
/// stores go the short way, as those of a connection do.
async fn run(engine: &Engine, command: &Command<'_>) -> (Outcome<'static>, Vec<Failure>) {
    run_job(engine, &job(command)).await
}

/// As [`run`], for a job.
async fn run_job(engine: &Engine, job: &Job<'_>) -> (Outcome<'static>, Vec<Failure>) {
    let (mut acks, mut scratch) = (Acks::default(), Vec::new());
    let is_short = matches!(job.command, Command::Store(store) if store.value.len() % 2 == 0);
    let stored = match is_short {
        true => stores::answer(engine, job, &mut acks),
        false => None,
    };
    let outcome = match stored {
        Some(outcome) => outcome,
        None => own(engine.execute(job, &mut acks, &mut scratch).await),
    };
    let failures = acks.wait().await;
    (
        outcome,
        failures.into_iter().map(|failed| failed.1).collect(),
    )
}

fn own(outcome: Outcome<'_>) -> Outcome<'static> {
    match outcome {
        Outcome::Hit(hit) => Outcome::Hit(fonn_proto::Hit {
            value: Value::Shared(Bytes::copy_from_slice(hit.value.as_slice())),
            value_len: hit.value_len,
            flags: hit.flags,
            version: hit.version,
            ttl_ms: hit.ttl_ms,
            expires_at_ms: hit.expires_at_ms,
            idle_s: hit.idle_s,
            fetched_before: hit.fetched_before,
            stale: hit.stale,
            won: hit.won,
            lost: hit.lost,
        }),
        Outcome::Miss => Outcome::Miss,
        Outcome::Stored(stored) => Outcome::Stored(stored),
        Outcome::NotStored(previous) => Outcome::NotStored(previous),
        Outcome::Exists => Outcome::Exists,
        Outcome::NotFound => Outcome::NotFound,
        Outcome::Deleted { version } => Outcome::Deleted { version },
        Outcome::Touched { version } => Outcome::Touched { version },
        Outcome::Number(number) => Outcome::Number(number),
        Outcome::NotANumber => Outcome::NotANumber,
        Outcome::Overflow => Outcome::Overflow,
        Outcome::Failed(failure) => Outcome::Failed(failure),
        Outcome::Moved(moved) => Outcome::Moved(moved),
    }
}

/// Runs a future on a thread of its own.
pub(super) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(future)
}

/// Evicts whatever may be evicted.
pub(super) fn evict_all(engine: &Engine) {
    let ram = engine.ram();
    let bytes = ram.budget();
    ram.reserve(bytes);
    ram.evict_to_budget(None, u32::MAX, usize::MAX);
    ram.release(bytes);
}
