//! Writes and reads of the disk tier at saturation, in operations per CPU-second of the process.
//!
//! ```text
//! cargo bench -p fonn-disk-tier --bench disk -- [value bytes] [entries] [codec] [durability] [directory] [budget]
//! ```

#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fonn_base::ack::AckGroup;
use fonn_base::entry::{Meta, Space};
use fonn_disk_tier::{
    DiskFound, DiskObserver, DiskOptions, DiskTier, Durability, Write, WriteKind,
};
use fonn_proto::{Failure, Version};

struct Nobody;

impl DiskObserver for Nobody {
    fn written(&self, _: Space, _: &[u8], _: Version, result: Result<(), Failure>) {
        result.unwrap();
    }

    fn keep(&self, _: Space, _: &[u8], _: &Meta) -> bool {
        false
    }
}

/// CPU seconds that the process has used, from its accounting file: user and system ticks of 10 ms.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .collect();
    let ticks = |at: usize| fields[at].parse::<f64>().unwrap();
    (ticks(11) + ticks(12)) / 100.0
}

fn disk_bytes(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let metadata = std::fs::symlink_metadata(path).unwrap();
    let mut total = metadata.blocks() * 512;
    if metadata.is_dir() {
        total += std::fs::read_dir(path)
            .unwrap()
            .map(|e| disk_bytes(&e.unwrap().path()))
            .sum::<u64>();
    }
    total
}

fn key(number: u64) -> Bytes {
    format!("a/b/c/{:064x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).into()
}

/// Bytes that shrink to about half.
fn half_random(len: usize) -> Bytes {
    let mut state = 88_172_645_463_325_252_u64;
    let mut out = Vec::with_capacity(len + 16);
    while out.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
        out.extend_from_slice(b"the same");
    }
    out.truncate(len);
    out.into()
}

/// A number from a file of the process's accounting.
fn accounted(file: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/self/{file}")).unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

struct Round {
    name: &'static str,
    operations: u64,
    value_len: usize,
}

impl Round {
    fn measure<T>(&self, run: impl FnOnce() -> T) -> T {
        let reads = accounted("io", "syscr:");
        let (cpu, wall) = (cpu_seconds(), Instant::now());
        let out = run();
        let (cpu, wall) = (cpu_seconds() - cpu, wall.elapsed().as_secs_f64());
        let reads = (accounted("io", "syscr:") - reads) as f64;
        let operations = self.operations as f64;
        println!(
            "{:<14} {:>9.0} per CPU-second, {:>9.0} per second, {:>6.0} MB/s, {:.1} us CPU and {:.3} reads of files each, at most {} MB of RAM",
            self.name,
            operations / cpu,
            operations / wall,
            operations * self.value_len as f64 / wall / 1e6,
            cpu * 1e6 / operations,
            reads / operations,
            accounted("status", "VmHWM:") / 1024
        );
        out
    }
}

fn main() {
    let args: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| arg != "--bench")
        .collect();
    let arg = |at: usize, default: &str| args.get(at).map_or(default, String::as_str).to_owned();
    let value_len: usize = arg(0, "16384").parse().unwrap();
    let entries: u64 = arg(1, "40000").parse().unwrap();
    let codec = arg(2, "none").parse().unwrap();
    let durability = match &*arg(3, "batched") {
        "none" => Durability::None,
        "fsync" => Durability::Fsync,
        _ => Durability::Batched,
    };
    let dir = tempfile::tempdir_in(arg(4, "/tmp")).unwrap();
    let options = DiskOptions {
        dir: dir.path().to_owned(),
        budget_bytes: arg(5, "10737418240").parse().unwrap(),
        durability,
        fresh: codec,
        compacted: codec,
        codec_min_bytes: 256,
        value_len_max: 256 << 20,
        queue_bytes_max: 32 << 20,
        memory_bytes: 64 << 20,
        read_threads: 2,
        compaction_percent: 0,
        write_bytes_per_sec_max: None,
        room_wait: fonn_disk_tier::ROOM_WAIT,
    };
    let value = half_random(value_len);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let tier = DiskTier::open(options.clone(), Arc::new(Nobody), None).unwrap();
    println!("{entries} entries of {value_len} bytes, codec {codec:?}, {durability:?}");
    let round = |name, operations| Round {
        name,
        operations,
        value_len,
    };

    round("set", entries).measure(|| {
        runtime.block_on(async {
            for number in 0..entries {
                let group = AckGroup::new();
                let kind = WriteKind::Put {
                    meta: Meta::new(number + 1, 0, 0),
                    value: value.clone(),
                };
                let mut write = Write {
                    space: Space(0),
                    key: key(number),
                    kind,
                    ack: Some(group.ack(0)),
                };
                while let Err((back, _)) = tier.try_write(write) {
                    let has_room = tier.wait_for_room(back.cost(), Duration::from_secs(60));
                    assert!(has_room.await);
                    write = back;
                }
            }
            tier.barrier().await;
        });
    });
    let used = disk_bytes(dir.path());
    println!(
        "bytes on disk  {:.3} of the values",
        used as f64 / (entries as f64 * value_len as f64)
    );
    round("get", entries).measure(|| runtime.block_on(read_all(&tier, 0, entries)));
    assert!(tier.clone().close(Duration::from_secs(60)));
    drop(tier);
    let opened = Instant::now();
    let tier = DiskTier::open(options, Arc::new(Nobody), None).unwrap();
    println!("reopened in {:.0} ms", opened.elapsed().as_secs_f64() * 1e3);
    round("get reopened", entries).measure(|| runtime.block_on(read_all(&tier, 0, entries)));
    round("get absent", entries).measure(|| runtime.block_on(read_all(&tier, entries, entries)));
    println!("{:?}", tier.stats().snapshot());
    assert!(tier.close(Duration::from_secs(60)));
}

/// Reads `count` entries from `first` on in a scattered order, 64 at a time.
async fn read_all(tier: &DiskTier, first: u64, count: u64) {
    let tasks: Vec<_> = (0..64)
        .map(|task| {
            let tier = tier.clone();
            tokio::spawn(async move {
                let mut found = 0;
                for number in (task..count).step_by(64) {
                    let number = first + number.wrapping_mul(7919) % count;
                    let got = tier.find(Space(0), &key(number)).await.unwrap();
                    found += u64::from(matches!(got, DiskFound::Entry(_)));
                }
                found
            })
        })
        .collect();
    let mut found = 0;
    for task in tasks {
        found += task.await.unwrap();
    }
    println!("found          {found} of {count}");
}
