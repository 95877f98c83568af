//! The bucket fails in one way after the other while clients read and write; what they saw is
//! judged by [`history`](fonn_tests::history), and hits at home have to stay as fast as they were.
//!
//! `FONN_OUTAGE_SECONDS` (default 15) says for how long.

#![allow(clippy::print_stderr, reason = "the figures must be on record")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use fonn_tests::bucket::{Bucket, Trouble};
use fonn_tests::client::{Cache, TextClient};
use fonn_tests::history::{Action, Operation, Rules, Seen, check};
use fonn_tests::node::FonnNode;
use fonn_tests::promised::is_strict;
use fonn_tests::rng::Rng;
use fonn_tests::values::{Content, ValuePool};

use fonn_tests::spilled::{
    Entries, connect, destroy, hits, metric, over, reads, wait_until, wait_until_ready,
    wait_until_spilled,
};

const WRITERS: usize = 4;
const READERS: usize = 2;
/// Keys of a writer: few, so that readers meet it.
const KEYS: usize = 40;
/// Entries that no client replaces, and only the bucket has at first.
const KEPT: u64 = 400;
/// Between the operations of a client.
const PAUSE: Duration = Duration::from_millis(5);

/// Of a read that needs the bucket.
const COLD_READ_TIMEOUT: Duration = Duration::from_secs(4);
/// How long hits are measured while the bucket works.
const BEFORE: Duration = Duration::from_secs(4);
/// How long one trouble lasts at most.
const TROUBLE_MAX: Duration = Duration::from_secs(3);
/// One hit is due in this time, whether the one before it was answered or not: a stall is seen by
/// all that are due in it.
const PACE: Duration = Duration::from_millis(10);

/// Read again and again: always in RAM.
const HOT: u64 = 8;
/// Read in turn, and more than RAM holds: nearly always on disk.
const SETTLED: u64 = 500;

fn outage_len() -> Result<Duration> {
    let seconds = match std::env::var("FONN_OUTAGE_SECONDS") {
        Ok(text) => text.parse().context("FONN_OUTAGE_SECONDS")?,
        Err(_) => 15,
    };
    Ok(Duration::from_secs(seconds))
}

/// The bytes of a value: of its own length, and nowhere the same as another's.
fn bytes(value: u64) -> Vec<u8> {
    format!("{value} ")
        .repeat(1 + (value % 97) as usize * 16)
        .into_bytes()
}

fn value_of(bytes_read: &[u8]) -> Result<u64> {
    let text = std::str::from_utf8(bytes_read)?;
    let value = text.split(' ').next().unwrap_or_default().parse()?;
    ensure!(bytes_read == bytes(value), "a mixture was read: {text:?}");
    Ok(value)
}

/// What the writer of a key knows of it.
#[derive(Clone, Copy, Debug)]
struct Known {
    value: Option<u64>,
    /// Whether it was written or deleted here. If not the bucket alone may have it.
    is_here: bool,
}

type History = BTreeMap<String, Vec<Operation>>;

/// A client with all that it did.
struct Client<'a> {
    number: usize,
    connection: TextClient,
    random: Rng,
    values: &'a AtomicU64,
    since: Instant,
    history: History,
    /// Its slowest operation.
    slowest: Duration,
}

impl<'a> Client<'a> {
    fn new(number: usize, node: SocketAddr, values: &'a AtomicU64, since: Instant) -> Result<Self> {
        Ok(Self {
            number,
            connection: TextClient::connect(node)?,
            random: Rng::new(number as u64),
            values,
            since,
            history: History::new(),
            slowest: Duration::ZERO,
        })
    }

    /// Asks, and notes what came of it. There is room on the disk: nothing is refused.
    fn ask(
        &mut self,
        key: &str,
        ask: impl FnOnce(&mut TextClient) -> Result<Action>,
    ) -> Result<Action> {
        let begun = self.since.elapsed();
        let action = ask(&mut self.connection)
            .with_context(|| format!("client {}, {key}, at {begun:?}", self.number))?;
        let answered = self.since.elapsed();
        self.slowest = self.slowest.max(answered - begun);
        self.history
            .entry(key.to_owned())
            .or_default()
            .push(Operation {
                client: self.number,
                action,
                begun,
                answered: Some(answered),
            });
        Ok(action)
    }

    fn get(&mut self, key: &str) -> Result<Option<u64>> {
        let action = self.ask(key, |client| {
            let got = client.get(key)?;
            let value = got.as_deref().map(value_of).transpose()?;
            // No client compares and stores here.
            Ok(Action::Get(value.map(|value| Seen { value, token: 0 })))
        })?;
        Ok(match action {
            Action::Get(seen) => seen.map(|it| it.value),
            _ => None,
        })
    }

    fn set(&mut self, key: &str) -> Result<u64> {
        let value = self.values.fetch_add(1, Ordering::Relaxed);
        self.ask(key, |client| {
            client.set(key, &bytes(value), None)?;
            Ok(Action::Set(value))
        })?;
        Ok(value)
    }

    fn delete(&mut self, key: &str) -> Result<()> {
        self.ask(key, |client| {
            let was_there = client.delete(key)?;
            Ok(Action::Delete { was_there })
        })?;
        Ok(())
    }
}

/// The keys that one client alone writes: what it reads of them is exactly what it wrote last.
struct Writer<'a> {
    client: Client<'a>,
    known: Vec<Known>,
}

fn key_of(writer: usize, key: usize) -> String {
    format!("writer-{writer}/{key}")
}

impl Writer<'_> {
    fn key(&self, at: usize) -> String {
        key_of(self.client.number, at)
    }

    fn run(mut self, is_over: &AtomicBool) -> Result<Self> {
        while !is_over.load(Ordering::Relaxed) {
            let at = self.client.random.below(KEYS as u64) as usize;
            let key = self.key(at);
            let value = match self.client.random.below(10) {
                0 => {
                    self.client.delete(&key)?;
                    None
                }
                1..=4 => Some(self.client.set(&key)?),
                _ => {
                    let (seen, known) = (self.client.get(&key)?, self.known[at]);
                    let is_right = seen == known.value || (seen.is_none() && !known.is_here);
                    ensure!(is_right, "{key}: {seen:?} instead of {known:?}");
                    thread::sleep(PAUSE);
                    continue;
                }
            };
            self.known[at] = Known {
                value,
                is_here: true,
            };
            thread::sleep(PAUSE);
        }
        Ok(self)
    }

    /// Everything is as it was acknowledged last.
    fn check(&self, node: &FonnNode) -> Result<()> {
        let mut cache = node.text()?;
        for (at, known) in self.known.iter().enumerate() {
            let key = self.key(at);
            if !known.is_here {
                wait_until_read(&mut cache, &key)?;
            }
            let seen = cache.get(&key)?.as_deref().map(value_of).transpose()?;
            ensure!(seen == known.value, "{key}: {seen:?} instead of {known:?}");
        }
        Ok(())
    }
}

/// After an outage the bucket is asked again only after a while.
fn wait_until_read(cache: &mut dyn Cache, key: &str) -> Result<()> {
    wait_until(
        "reads go to the bucket again",
        Duration::from_secs(90),
        || Ok(cache.get(key)?.is_some()),
    )
}

/// Reads what others write, and what no client replaces.
fn read<'a>(
    mut client: Client<'a>,
    kept: &Entries<'_>,
    is_over: &AtomicBool,
) -> Result<Client<'a>> {
    let mut cache = TextClient::connect(client.connection.socket().peer_addr()?)?;
    while !is_over.load(Ordering::Relaxed) {
        let writer = client.random.below(WRITERS as u64) as usize;
        let key = key_of(writer, client.random.below(KEYS as u64) as usize);
        client.get(&key)?;
        let number = client.random.below(KEPT);
        if let Some(got) = cache.get(&kept.key(number))? {
            kept.judge(number, &got)?;
        }
        thread::sleep(PAUSE);
    }
    Ok(client)
}

/// How long hits took, sorted.
struct Hits(Vec<Duration>);

impl Hits {
    /// What so many of a hundred took at most.
    fn quantile(&self, percent: usize) -> Duration {
        self.0[(self.0.len() - 1) * percent / 100]
    }
}

/// Reads entries in turn, one every [`PACE`]; how long each took from when it was due.
fn measure(
    node: SocketAddr,
    entries: &Entries<'_>,
    count: u64,
    is_over: &AtomicBool,
) -> Result<Hits> {
    let mut cache = TextClient::connect(node)?;
    let mut taken = Vec::new();
    let mut due = Instant::now();
    for number in (0..count).cycle() {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        thread::sleep(due.saturating_duration_since(Instant::now()));
        entries.check(&mut cache, number..number + 1)?;
        taken.push(due.elapsed());
        due += PACE;
    }
    taken.sort();
    ensure!(!taken.is_empty(), "nothing was measured");
    Ok(Hits(taken))
}

/// Hits in RAM and on disk while `meanwhile` runs.
fn measure_both(
    node: &FonnNode,
    [hot, settled]: [&Entries<'_>; 2],
    meanwhile: impl FnOnce(),
) -> Result<[Hits; 2]> {
    let (address, is_over) = (node.addr(), AtomicBool::new(false));
    thread::scope(|scope| {
        let hot = scope.spawn(|| measure(address, hot, HOT, &is_over));
        let settled = scope.spawn(|| measure(address, settled, SETTLED, &is_over));
        meanwhile();
        is_over.store(true, Ordering::Relaxed);
        Ok([joined(hot)?, joined(settled)?])
    })
}

fn joined<T>(thread: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    let result = thread.join().ok();
    result.context("a thread panicked")?
}

/// One trouble after the other, until the time is up.
fn outage(bucket: &Bucket, lasts: Duration) {
    let begun = Instant::now();
    let each = TROUBLE_MAX.min(lasts / Trouble::ALL.len() as u32);
    for trouble in Trouble::ALL.into_iter().cycle() {
        let left = lasts.saturating_sub(begun.elapsed());
        if left.is_zero() {
            break;
        }
        bucket.fail(trouble);
        let requests = bucket.requests();
        thread::sleep(each.min(left));
        eprintln!("{trouble:?}: {} requests", bucket.requests() - requests);
    }
    bucket.come_up();
}

/// Hits in RAM and on disk while the bucket works, and while it fails.
fn before_and_during(
    node: &FonnNode,
    bucket: &Bucket,
    entries: [&Entries<'_>; 2],
    lasts: Duration,
) -> Result<[[Hits; 2]; 2]> {
    let before = measure_both(node, entries, || thread::sleep(BEFORE))?;
    let disk = hits(node, "disk")?;
    let during = measure_both(node, entries, || outage(bucket, lasts))?;
    let from_disk = hits(node, "disk")? - disk;
    let [_, settled] = &during;
    ensure!(
        from_disk > settled.0.len() as f64 * 0.5,
        "{from_disk} hits from disk"
    );
    Ok([before, during])
}

#[test]
fn with_a_bucket_that_fails_in_every_way_nothing_is_lost_or_comes_back_and_hits_stay_fast()
-> Result<()> {
    let lasts = outage_len()?;
    let bucket = Bucket::in_process()?;
    let (small, large) = (
        ValuePool::new(Content::Random, 1 << 10),
        ValuePool::new(Content::Random, 64 << 10),
    );
    let entries = |pool, len, prefix| Entries {
        pool,
        lens: len,
        prefix,
    };
    let kept = entries(&small, &[1 << 10], "kept/");
    let hot = entries(&small, &[1 << 10], "hot/");
    let settled = entries(&large, &[64 << 10], "settled/");
    let (values, since) = (AtomicU64::new(0), Instant::now());

    // All keys have a value that the bucket alone has, so that older copies are there to come back.
    let first = over(&bucket).start()?;
    kept.write(&mut *connect(&first)?, 0..KEPT)?;
    let mut writers = Vec::new();
    for number in 0..WRITERS {
        let mut client = Client::new(number, first.addr(), &values, since)?;
        let known = (0..KEYS).map(|at| {
            let value = Some(client.set(&key_of(number, at))?);
            Ok(Known {
                value,
                is_here: false,
            })
        });
        let known = known.collect::<Result<Vec<_>>>()?;
        writers.push(Writer { client, known });
    }
    wait_until_spilled(&first)?;
    destroy(first)?;
    let node = over(&bucket)
        .flag("--ram-budget", "16m")
        .flag("--cold-read-timeout", "4s")
        .start()?;
    wait_until_ready(&node)?;
    let mut cache = node.text()?;
    settled.write(&mut cache, 0..SETTLED)?;
    hot.write(&mut cache, 0..HOT)?;
    wait_until_spilled(&node)?;
    let (ram, disk) = (hits(&node, "ram")?, hits(&node, "disk")?);
    hot.check(&mut cache, 0..HOT)?;
    settled.check(&mut cache, 0..SETTLED)?;
    assert!(hits(&node, "ram")? - ram >= HOT as f64);
    let settled_share = (hits(&node, "disk")? - disk) / SETTLED as f64;
    assert!(
        settled_share > 0.5,
        "{settled_share} of what is settled is read from disk"
    );
    for writer in &mut writers {
        writer.client.connection = node.text()?;
    }

    let is_over = AtomicBool::new(false);
    let (before, during, writers, readers) = thread::scope(|scope| -> Result<_> {
        let is_over = &is_over;
        let writers = writers.into_iter();
        let writers: Vec<_> = writers.map(|it| scope.spawn(|| it.run(is_over))).collect();
        let mut readers = Vec::new();
        for number in WRITERS..WRITERS + READERS {
            let client = Client::new(number, node.addr(), &values, since)?;
            readers.push(scope.spawn(|| read(client, &kept, is_over)));
        }
        let measured = before_and_during(&node, &bucket, [&hot, &settled], lasts);
        is_over.store(true, Ordering::Relaxed);
        // What the clients saw says more than what could not be measured for it.
        let writers: Vec<_> = writers.into_iter().map(joined).collect::<Result<_>>()?;
        let readers: Vec<_> = readers.into_iter().map(joined).collect::<Result<_>>()?;
        let [before, during] = measured?;
        Ok((before, during, writers, readers))
    })?;

    // By itself, with what was not brought into it meanwhile.
    wait_until_spilled(&node)?;
    assert_eq!(metric(&node, "fonn_cold_lost_entries_total")?, 0.0);
    assert_eq!(reads(&node, "damaged")? + reads(&node, "gone")?, 0.0);
    let failed = reads(&node, "unavailable")? + reads(&node, "deadline")?;
    assert!(failed > 0.0, "no read noticed");
    for writer in &writers {
        writer.check(&node)?;
    }
    let mut cache = node.text()?;
    for number in 0..KEPT {
        wait_until_read(&mut cache, &kept.key(number))?;
    }
    kept.check(&mut cache, 0..KEPT)?;

    let mut history = History::new();
    let clients = writers.iter().map(|it| &it.client).chain(&readers);
    let mut slowest = Duration::ZERO;
    for client in clients {
        slowest = slowest.max(client.slowest);
        for (key, operations) in &client.history {
            history.entry(key.clone()).or_default().extend(operations);
        }
    }
    let rules = Rules {
        windows: &[],
        cut_off_cannot_write: true,
    };
    for (key, operations) in &history {
        check(operations, rules).with_context(|| key.clone())?;
    }
    let count: usize = history.values().map(Vec::len).sum();
    eprintln!("{count} operations, the slowest took {slowest:?}");

    destroy(node)?;
    let next = over(&bucket).start()?;
    wait_until_ready(&next)?;
    for writer in &writers {
        writer.check(&next)?;
    }
    kept.check(&mut next.text()?, 0..KEPT)?;

    // A machine that stands still for a second makes all late that is due in it, whatever the
    // bucket does. A read that waits for the bucket makes all late that comes behind, so that it
    // shows in the middle too.
    let percent = if is_strict() { 99 } else { 50 };
    for (at, tier) in ["ram", "disk"].into_iter().enumerate() {
        let [was, is] = [&before, &during].map(|it| it[at].quantile(percent));
        eprintln!(
            "hits from {tier}: {percent} % within {was:?} before ({} hits), {is:?} during the outage ({}), 99 % within {:?} and {:?}",
            before[at].0.len(),
            during[at].0.len(),
            before[at].quantile(99),
            during[at].quantile(99),
        );
        // A read that waits for the bucket waits four times as long as a busy machine may take.
        assert!(
            is < was * 4 + COLD_READ_TIMEOUT / 4,
            "hits from {tier}: {is:?}, {was:?} before"
        );
    }
    Ok(())
}
