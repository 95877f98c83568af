//! Action results while the budget evicts what they refer to.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use fonn_reapi::messages::{ActionResult, Digest, OutputFile};
use prost::Message as _;

use fonn_tests::client::HttpClient;
use fonn_tests::node::{FonnNode, NodeOptions};
use fonn_tests::rng::Rng;
use fonn_tests::values::{Content, ValuePool};

/// Blobs of a result, and their length.
const BLOBS: u64 = 8;
const BLOB_LEN: usize = 128 << 10;

/// How long writers and readers run, unless FONN_CONSISTENCY_SECONDS says otherwise.
const SECONDS: u64 = 5;

/// What all threads share.
struct Course {
    node: FonnNode,
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
    fn door(&self) -> Result<HttpClient> {
        HttpClient::connect(self.node.http())
    }

    fn is_running(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }

    /// Stores results, each action once.
    fn write(&self) -> Result<()> {
        let mut door = self.door()?;
        let mut number = 0;
        while self.is_running() {
            let mut files = Vec::new();
            for blob in 0..BLOBS {
                let bytes = self.pool.value(number * BLOBS + blob, BLOB_LEN).to_vec();
                let digest = digest_of(&bytes);
                let path = format!("/cas/{}", digest.hash);
                ensure!(door.put(&path, &bytes)? == 200);
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
            ensure!(door.put(&action_path(number), &result.encode_to_vec())? == 200);
            number += 1;
            self.stored.store(number, Ordering::Release);
        }
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
                ensure!(door.get(&path)?.is_none(), "{path} is returned again");
            }
        }
        Ok(())
    }
}

fn digest_of(bytes: &[u8]) -> Digest {
    let hash = fonn_reapi::Hasher::new(fonn_reapi::DigestFunction::Sha256);
    hash.digest(bytes).message()
}

#[test]
fn a_result_that_is_returned_has_all_its_blobs_while_the_budget_evicts() -> Result<()> {
    let seconds = std::env::var("FONN_CONSISTENCY_SECONDS").ok();
    let seconds = seconds.map_or(Ok(SECONDS), |it| it.parse())?;
    let options = NodeOptions::new().in_memory().with_http();
    let course = Course {
        node: options.flag("--ram-budget", "64m").start()?,
        pool: ValuePool::new(Content::Random, 8 << 20),
        stored: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
        returned: AtomicU64::new(0),
        refused: AtomicU64::new(0),
        lost: AtomicU64::new(0),
    };
    let (begun, patience) = (Instant::now(), Duration::from_secs(seconds + 60));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| course.write());
        let readers = [1, 2, 3].map(|seed| {
            scope.spawn({
                let course = &course;
                move || course.read(seed)
            })
        });
        let count = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        // On a machine that is busy the time alone says little.
        while begun.elapsed() < patience
            && (begun.elapsed().as_secs() < seconds
                || count(&course.refused) < 100
                || count(&course.returned) < 100)
            && !writer.is_finished()
        {
            std::thread::sleep(Duration::from_millis(20));
        }
        course.is_over.store(true, Ordering::Relaxed);
        writer.join().unwrap()?;
        readers
            .into_iter()
            .try_for_each(|reader| reader.join().unwrap())
    })?;
    let [returned, refused, lost] =
        [&course.returned, &course.refused, &course.lost].map(|cell| cell.load(Ordering::Relaxed));
    println!(
        "{returned} results returned, {refused} refused, {lost} lost a blob before it was read"
    );
    ensure!(
        returned >= 100 && refused >= 100,
        "{returned} and {refused}"
    );
    ensure!(
        lost * 100 <= returned,
        "{lost} of {returned} lost a blob before it was read"
    );
    Ok(())
}
