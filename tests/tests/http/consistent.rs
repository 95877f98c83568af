//! Action results while the budget evicts what they refer to, and while a member is lost.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail, ensure};
use fonn_reapi::messages::{ActionResult, Digest, OutputFile};
use prost::Message as _;

use fonn_tests::client::HttpClient;
use fonn_tests::cluster::Cluster;
use fonn_tests::node::NodeOptions;
use fonn_tests::process::free_address;
use fonn_tests::rng::Rng;
use fonn_tests::values::{Content, ValuePool};

/// Blobs of a result, and their length.
const BLOBS: u64 = 8;
const BLOB_LEN: usize = 128 << 10;

/// How long writers and readers run, unless FONN_CONSISTENCY_SECONDS says otherwise.
const SECONDS: u64 = 5;

const READERS: u64 = 3;

/// Results of which one node keeps all blobs from a look for them on, until so many others came:
/// less than half of what its budget holds.
const KEPT: u64 = 20;

/// What all threads share.
struct Course {
    http: SocketAddr,
    /// Whether one node has everything. An owner in a cluster that cannot be reached for a moment
    /// makes a blob a miss that is there again later.
    is_alone: bool,
    pool: ValuePool,
    /// Actions whose result was stored.
    stored: AtomicU64,
    is_over: AtomicBool,
    returned: AtomicU64,
    refused: AtomicU64,
    /// Results of which a blob was gone when it was read.
    lost: AtomicU64,
}

fn action_path(action: u64) -> String {
    format!("/ac/{action:064x}")
}

impl Course {
    fn new(http: SocketAddr, is_alone: bool) -> Self {
        Self {
            http,
            is_alone,
            pool: ValuePool::new(Content::Random, 8 << 20),
            stored: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            returned: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        }
    }

    fn door(&self) -> Result<HttpClient> {
        HttpClient::connect(self.http)
    }

    fn is_running(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }

    /// Stores results, each action once. A write that an owner is missing for is made again.
    fn write(&self) -> Result<()> {
        let mut door = self.door()?;
        let mut number = self.stored.load(Ordering::Relaxed);
        while self.is_running() {
            if self.store(&mut door, number)? {
                number += 1;
                self.stored.store(number, Ordering::Release);
            }
        }
        Ok(())
    }

    /// Stores a result and its blobs; false if one was refused.
    fn store(&self, door: &mut HttpClient, number: u64) -> Result<bool> {
        let mut put = |path: &str, value: &[u8]| match door.put(path, value)? {
            200 => Ok(true),
            503 => Ok(false),
            status => bail!("PUT {path}: {status}"),
        };
        let mut files = Vec::new();
        for blob in 0..BLOBS {
            let bytes = self.pool.value(number * BLOBS + blob, BLOB_LEN).to_vec();
            let digest = digest_of(&bytes);
            if !put(&format!("/cas/{}", digest.hash), &bytes)? {
                return Ok(false);
            }
            let digest = Some(digest);
            files.push(OutputFile {
                digest,
                ..OutputFile::default()
            });
        }
        let result = ActionResult {
            output_files: files,
            ..ActionResult::default()
        };
        put(&action_path(number), &result.encode_to_vec())
    }

    /// Runs a writer and readers for a while, until enough results were returned and refused since.
    fn run(&self, seconds: u64, enough: u64) -> Result<()> {
        let count = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        let before = [&self.returned, &self.refused].map(count);
        self.is_over.store(false, Ordering::Relaxed);
        let (begun, patience) = (Instant::now(), Duration::from_secs(seconds + 60));
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| self.write());
            let readers: Vec<_> = (0..READERS)
                .map(|seed| scope.spawn(move || self.read(seed)))
                .collect();
            // On a machine that is busy the time alone says little.
            while begun.elapsed() < patience
                && (begun.elapsed().as_secs() < seconds
                    || count(&self.returned) < before[0] + enough
                    || count(&self.refused) < before[1] + enough)
                && !writer.is_finished()
            {
                std::thread::sleep(Duration::from_millis(20));
            }
            self.is_over.store(true, Ordering::Relaxed);
            let all = std::iter::once(writer).chain(readers);
            all.into_iter()
                .try_for_each(|it| it.join().map_err(|_| anyhow!("a client panicked"))?)
        })?;
        let after = [&self.returned, &self.refused].map(count);
        ensure!(
            after[0] >= before[0] + enough && after[1] >= before[1] + enough,
            "{before:?}, and then {after:?}"
        );
        Ok(())
    }

    /// Reads results and at once their blobs. A result of which a blob is gone is never returned
    /// again.
    fn read(&self, seed: u64) -> Result<()> {
        let (mut door, mut rng) = (self.door()?, Rng::new(seed));
        while self.is_running() {
            let stored = self.stored.load(Ordering::Acquire);
            if stored == 0 {
                std::thread::yield_now();
                continue;
            }
            let path = action_path(rng.below(stored));
            let Some(result) = door.get(&path)? else {
                self.refused.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            self.returned.fetch_add(1, Ordering::Relaxed);
            let result = ActionResult::decode(&result[..])?;
            let mut is_lost = false;
            for digest in result
                .output_files
                .iter()
                .filter_map(|it| it.digest.as_ref())
            {
                match door.get(&format!("/cas/{}", digest.hash))? {
                    Some(bytes) => ensure!(digest_of(&bytes) == *digest),
                    None => is_lost = true,
                }
            }
            if is_lost {
                self.lost.fetch_add(1, Ordering::Relaxed);
                let came = self.stored.load(Ordering::Acquire) - stored;
                ensure!(
                    !self.is_alone || came >= KEPT,
                    "{path}: a blob went when {came} results came"
                );
                let again = door.get(&path)?;
                ensure!(!self.is_alone || again.is_none(), "{path} is returned");
            }
        }
        Ok(())
    }

    /// What happened. The results that were returned have to be good, but for so many and one of
    /// 200: a reader may be slow, or ask an owner that has just lost its place.
    fn judge(&self, allowed: u64) -> Result<String> {
        let counts = [&self.returned, &self.refused, &self.lost];
        let [returned, refused, lost] = counts.map(|cell| cell.load(Ordering::Relaxed));
        let told = format!(
            "{returned} results returned, {refused} refused, {lost} lost a blob before it was read"
        );
        ensure!(lost <= allowed + returned / 200, "{told}");
        Ok(told)
    }
}

fn digest_of(bytes: &[u8]) -> Digest {
    let hash = fonn_reapi::Hasher::new(fonn_reapi::DigestFunction::Sha256);
    hash.digest(bytes).message()
}

/// How long writers and readers run.
fn seconds() -> Result<u64> {
    let seconds = std::env::var("FONN_CONSISTENCY_SECONDS").ok();
    Ok(seconds.map_or(Ok(SECONDS), |it| it.parse())?)
}

#[test]
fn a_result_that_is_returned_has_all_its_blobs_while_the_budget_evicts() -> Result<()> {
    let options = NodeOptions::new().in_memory().with_http();
    let node = options.flag("--ram-budget", "64m").start()?;
    let course = Course::new(node.http(), true);
    course.run(seconds()?, 100)?;
    println!("{}", course.judge(0)?);
    Ok(())
}

#[test]
fn a_result_that_is_returned_has_all_its_blobs_when_a_member_is_lost() -> Result<()> {
    let options = NodeOptions::new().with_http();
    let options = options.flag("--ram-budget", "64m");
    let mut cluster = Cluster::form_of(3, options.flag("--disk-budget", "128m"))?;
    let http = free_address()?;
    let _router = cluster.router_with(vec![("--http-listen", http.to_string())])?;
    let course = Course::new(http, false);
    std::thread::scope(|scope| {
        let running = scope.spawn(|| course.run(seconds()?, 100));
        // A member is lost in the middle of it.
        while course.returned.load(Ordering::Relaxed) < 50 && !running.is_finished() {
            std::thread::sleep(Duration::from_millis(20));
        }
        cluster.nodes[2].kill9()?;
        running.join().unwrap()
    })?;
    // Each reader may have been between a result and its blobs.
    println!("{}", course.judge(READERS)?);
    Ok(())
}
