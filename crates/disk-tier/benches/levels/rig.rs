//! A disk tier to measure, and what the process has used.

use std::cell::Cell;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fonn_base::entry::{Meta, Space};
use fonn_disk_tier::levels::CodecChoice;
use fonn_disk_tier::{
    DiskFound, DiskObserver, DiskOptions, DiskTier, Durability, Write, WriteKind,
};
use fonn_proto::{Failure, Version};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::data::Pool;

const PATIENCE: Duration = Duration::from_secs(300);

struct Nobody;

impl DiskObserver for Nobody {
    fn written(&self, _: Space, _: &[u8], _: Version, result: Result<(), Failure>) {
        result.unwrap();
    }

    fn keep(&self, _: Space, _: &[u8], _: &Meta) -> bool {
        false
    }
}

pub struct Rig {
    tier: Option<DiskTier>,
    runtime: Runtime,
    dir: TempDir,
}

impl Rig {
    pub fn new(change: impl FnOnce(&mut DiskOptions)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut options = DiskOptions {
            dir: dir.path().to_owned(),
            budget_bytes: 4 << 30,
            durability: Durability::Batched,
            fresh: CodecChoice::none(),
            compacted: CodecChoice::none(),
            codec_min_bytes: 256,
            value_len_max: 256 << 20,
            queue_bytes_max: 16 << 20,
            memory_bytes: 64 << 20,
            read_threads: 2,
            compaction_percent: 0,
            write_bytes_per_sec_max: None,
            room_wait: fonn_disk_tier::ROOM_WAIT,
        };
        change(&mut options);
        Self {
            tier: Some(DiskTier::open(options, Arc::new(Nobody), None).unwrap()),
            runtime: tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .build()
                .unwrap(),
            dir,
        }
    }

    pub fn tier(&self) -> &DiskTier {
        self.tier.as_ref().unwrap()
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Writes and waits until all is written.
    pub fn write(&self, pool: &Pool, numbers: Range<u64>) {
        self.runtime.block_on(async {
            for number in numbers {
                self.put(pool, number).await;
            }
            self.tier().barrier().await;
        });
    }

    /// Writes for a while, and returns the number that comes next.
    pub fn write_for(&self, pool: &Pool, first: u64, time: Duration) -> u64 {
        self.runtime.block_on(async {
            let began = Instant::now();
            let mut number = first;
            while began.elapsed() < time {
                self.put(pool, number).await;
                number += 1;
            }
            self.tier().barrier().await;
            number
        })
    }

    /// Reads values and writes those that are missing, all at once. Returns how many were there.
    pub fn read_or_write(&self, pool: &Pool, numbers: &[u64]) -> u64 {
        let hits = Cell::new(0);
        self.runtime.block_on(async {
            let requests = numbers.iter().map(|&number| {
                let hits = &hits;
                async move {
                    match self.tier().find(Space(0), &key(number)).await.unwrap() {
                        DiskFound::Entry(_) => hits.set(hits.get() + 1),
                        _ => self.put(pool, number).await,
                    }
                }
            });
            all(requests.collect()).await;
        });
        hits.get()
    }

    async fn put(&self, pool: &Pool, number: u64) {
        let kind = WriteKind::Put {
            meta: Meta::new(number + 1, 0, 0),
            value: pool.value(number).clone(),
        };
        let mut write = Write {
            space: Space(0),
            key: key(number),
            kind,
            ack: None,
        };
        while let Err((back, _)) = self.tier().try_write(write) {
            assert!(self.tier().wait_for_room(back.cost(), PATIENCE).await);
            write = back;
        }
    }

    /// Reads all, 64 at a time, in a scattered order, and compares.
    pub fn read(&self, pool: &Pool, numbers: Range<u64>) {
        let count = numbers.end - numbers.start;
        self.runtime.block_on(async {
            let readers = (0..64).map(|reader| async move {
                for at in (reader..count).step_by(64) {
                    let number = numbers.start + at.wrapping_mul(7919) % count;
                    let got = self.tier().find(Space(0), &key(number)).await.unwrap();
                    let value = match got {
                        DiskFound::Entry(entry) => Some(entry.value),
                        _ => None,
                    };
                    assert_eq!(value.as_ref(), Some(pool.value(number)));
                }
            });
            all(readers.collect()).await;
        });
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        assert!(self.tier.take().unwrap().close(PATIENCE));
    }
}

/// Runs futures beside each other on this thread.
async fn all<F: Future<Output = ()>>(futures: Vec<F>) {
    let mut running: Vec<_> = futures.into_iter().map(Box::pin).collect();
    std::future::poll_fn(|context| {
        running.retain_mut(|future| future.as_mut().poll(context).is_pending());
        if running.is_empty() {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
}

fn key(number: u64) -> Bytes {
    format!("a/b/c/{:064x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).into()
}

/// CPU seconds that the process has used, user and system.
pub fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Bytes on disk of a directory.
pub fn disk_bytes(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let Ok(metadata) = std::fs::symlink_metadata(path) else {
        return 0;
    };
    let mut total = metadata.blocks() * 512;
    if metadata.is_dir()
        && let Ok(entries) = std::fs::read_dir(path)
    {
        total += entries
            .flatten()
            .map(|it| disk_bytes(&it.path()))
            .sum::<u64>();
    }
    total
}
