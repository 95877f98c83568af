//! The codecs of the levels in the disk tier: by size and kind of value, under a load of writes
//! with and without a slow device, and once compacted.
//!
//! ```text
//! cargo bench -p fonn-disk-tier --bench levels -- sweep|fresh|compacted|all [directory of the CSV and SVG files] [rounds]
//! ```
//!
//! `fresh` goes over all codecs in turn, so many rounds (1 without the argument), each taking four
//! minutes, and tells medians with the least and the most. `auto` is compared with the best fixed
//! codec within each round.
//!
//! The slow device is a token bucket in the writer (`DiskOptions::write_bytes_per_sec_max`), so
//! that every machine has the same. Each table is written as CSV, the first two as SVG too.

#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

mod data;
mod plot;
mod rig;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use data::{Kind, Pool};
use fonn_disk_tier::levels::CodecChoice;
use plot::Bars;
use rig::{Rig, cpu_seconds, disk_bytes};

const MIB: u64 = 1 << 20;

fn main() {
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--bench");
    let what = args.next().unwrap_or_else(|| "all".to_owned());
    let out = PathBuf::from(args.next().unwrap_or_else(|| "../docs/plots".to_owned()));
    let is_wanted = |name: &str| what == name || what == "all";
    if is_wanted("sweep") {
        sweep(&out);
    }
    if is_wanted("fresh") {
        let rounds = args.next().map_or(1, |rounds| rounds.parse().unwrap());
        fresh(&out, rounds);
    }
    if is_wanted("compacted") {
        compacted(&out);
    }
}

fn save(out: &Path, name: &str, csv: &str) {
    std::fs::create_dir_all(out).unwrap();
    std::fs::write(out.join(format!("{name}.csv")), csv).unwrap();
}

/// Sets and gets by size, kind and codec.
fn sweep(out: &Path) {
    let mut csv =
        "value_bytes,kind,codec,set_mb_s,get_mb_s,disk_per_byte,set_cpu_s_gb,get_cpu_s_gb\n"
            .to_owned();
    let codecs = ["none", "lz4", "snappy", "zlib:6", "zstd:1", "zstd:3"];
    for (kind, value_len) in Kind::ALL
        .into_iter()
        .flat_map(|kind| [100, 1 << 10, 16 << 10, 256 << 10, 2 << 20].map(|len| (kind, len)))
    {
        let pool = Pool::new(kind, value_len);
        // Enough for a figure, and not for ever with the smallest.
        let count = (48 * MIB / value_len as u64).min(100_000);
        let raw = (count * value_len as u64) as f64;
        for codec in codecs {
            let rig = Rig::new(|options| options.fresh = codec.parse().unwrap());
            let (cpu, began) = (cpu_seconds(), Instant::now());
            rig.write(&pool, 0..count);
            let set = (raw / began.elapsed().as_secs_f64(), cpu_seconds() - cpu);
            let (cpu, began) = (cpu_seconds(), Instant::now());
            rig.read(&pool, 0..count);
            let get = (raw / began.elapsed().as_secs_f64(), cpu_seconds() - cpu);
            let disk = disk_bytes(rig.dir()) as f64 / raw;
            let row = format!(
                "{value_len},{},{codec},{:.0},{:.0},{disk:.3},{:.2},{:.2}",
                kind.name(),
                set.0 / 1e6,
                get.0 / 1e6,
                set.1 / raw * 1e9,
                get.1 / raw * 1e9,
            );
            println!("{row}");
            let _ = writeln!(csv, "{row}");
        }
    }
    save(out, "codec-sweep", &csv);
    let mut bars = Bars::new("CPU seconds a GB set, 16 KiB values", &codecs);
    for kind in Kind::ALL {
        let prefix = format!("16384,{},", kind.name());
        let rows = csv.lines().filter(|row| row.starts_with(&prefix));
        let values = rows.map(|row| row.split(',').nth(6).unwrap().parse().unwrap());
        bars.group(kind.name(), values.collect());
    }
    std::fs::write(out.join("codec-sweep.svg"), bars.svg()).unwrap();
}

/// Time before figures are taken: `auto` needs some seconds to see what is scarce.
const WARM_UP: Duration = Duration::from_secs(12);
const MEASURED: Duration = Duration::from_secs(8);

/// Bytes a second of the slow device.
const SLOW: u64 = 20_000_000;

/// The codecs that are compared; the last one chooses.
const FRESH: [&str; 6] = ["none", "snappy", "lz4", "zstd:1", "zstd:3", "auto"];

/// What one codec did in one round.
struct Turn {
    commits_s: f64,
    commits_cpu_s: f64,
    raw_mb_s: f64,
    written_mb_s: f64,
    stalled_share: f64,
    ended_with: String,
}

/// Codecs for fresh values under as many writes as the tier takes.
fn fresh(out: &Path, rounds: usize) {
    let mut csv =
        "device,codec,commits_s,commits_s_min,commits_s_max,commits_cpu_s,raw_mb_s,written_mb_s,\
         stalled_share,ended_with\n"
            .to_owned();
    let pool = Pool::new(Kind::Object, 16 << 10);
    let mut bars = Bars::new("commits a second, best = 1", &FRESH);
    for (device, limit) in [("fast", None), ("20 MB/s", Some(SLOW))] {
        let mut turns: [Vec<Turn>; FRESH.len()] = Default::default();
        for round in 0..rounds {
            for (codec, turns) in FRESH.iter().zip(&mut turns) {
                let turn = turn(&pool, codec, limit);
                println!(
                    "{device}, round {round}: {codec}, {:.0} commits/s",
                    turn.commits_s
                );
                turns.push(turn);
            }
        }
        let mut medians = Vec::new();
        for (codec, turns) in FRESH.iter().zip(&turns) {
            let of = |of: fn(&Turn) -> f64| spread(turns.iter().map(of).collect());
            let commits = of(|turn| turn.commits_s);
            let mut ended: Vec<&str> = turns.iter().map(|turn| &*turn.ended_with).collect();
            ended.sort_unstable();
            ended.dedup();
            let row = format!(
                "{device},{codec},{:.0},{:.0},{:.0},{:.0},{:.0},{:.0},{:.2},{}",
                commits.median,
                commits.least,
                commits.most,
                of(|turn| turn.commits_cpu_s).median,
                of(|turn| turn.raw_mb_s).median,
                of(|turn| turn.written_mb_s).median,
                of(|turn| turn.stalled_share).median,
                ended.join(" or "),
            );
            println!("{row}");
            let _ = writeln!(csv, "{row}");
            medians.push(commits.median);
        }
        let best = medians.iter().copied().fold(0.0, f64::max);
        bars.group(device, medians.iter().map(|rate| rate / best).collect());
        beside_the_best(device, &turns, &medians);
    }
    save(out, "codec-fresh", &csv);
    std::fs::write(out.join("codec-fresh.svg"), bars.svg()).unwrap();
}

/// `auto` beside the fixed codec of the highest median, round by round.
fn beside_the_best(device: &str, turns: &[Vec<Turn>; FRESH.len()], medians: &[f64]) {
    let [fixed @ .., auto] = turns;
    let of_median = |&at: &usize| medians[at];
    let best = (0..fixed.len()).max_by(|a, b| of_median(a).total_cmp(&of_median(b)));
    let best = best.unwrap();
    let ratios = auto.iter().zip(&fixed[best]);
    let ratios = spread(
        ratios
            .map(|(auto, best)| auto.commits_s / best.commits_s)
            .collect(),
    );
    println!(
        "{device}: auto beside {}: {:.3} ({:.3}-{:.3})",
        FRESH[best], ratios.median, ratios.least, ratios.most
    );
}

fn turn(pool: &Pool, codec: &str, write_bytes_per_sec_max: Option<u64>) -> Turn {
    let rig = Rig::new(|options| {
        options.fresh = codec.parse().unwrap();
        options.budget_bytes = 1 << 30;
        options.write_bytes_per_sec_max = write_bytes_per_sec_max;
    });
    let first = rig.write_for(pool, 0, WARM_UP);
    let before = (rig.tier().stats().snapshot(), cpu_seconds(), Instant::now());
    let next = rig.write_for(pool, first, MEASURED);
    let seconds = before.2.elapsed().as_secs_f64();
    let cpu = cpu_seconds() - before.1;
    let stats = rig.tier().stats().snapshot();
    let commits = (next - first) as f64;
    let written = (stats.written_bytes - before.0.written_bytes) as f64;
    let stalled = (stats.writer_stalled_ns - before.0.writer_stalled_ns) as f64 / 1e9;
    Turn {
        commits_s: commits / seconds,
        commits_cpu_s: commits / cpu,
        raw_mb_s: commits * 16384.0 / seconds / 1e6,
        written_mb_s: written / seconds / 1e6,
        stalled_share: stalled / seconds,
        ended_with: rig.tier().fresh().active().0.to_string(),
    }
}

/// Of some figures.
struct Spread {
    least: f64,
    median: f64,
    most: f64,
}

fn spread(mut values: Vec<f64>) -> Spread {
    values.sort_by(f64::total_cmp);
    Spread {
        least: values[0],
        median: values[values.len() / 2],
        most: values[values.len() - 1],
    }
}

/// What is on disk once everything is compacted, and what it cost.
fn compacted(out: &Path) {
    let mut csv = "fresh,compacted,kind,disk_per_byte_fresh,disk_per_byte_compacted,write_cpu_s_gb,compaction_cpu_s_gb,compaction_seconds\n"
        .to_owned();
    for kind in [Kind::Compressible, Kind::Object, Kind::Precompressed] {
        for (new, old) in [("lz4", "lz4"), ("lz4", "zstd:3"), ("zstd:3", "zstd:3")] {
            let pool = Pool::new(kind, 16 << 10);
            let count = 256 * MIB / (16 << 10);
            let raw = (count * (16 << 10)) as f64;
            let rig = Rig::new(|options| {
                options.fresh = new.parse().unwrap();
                // Compaction runs when all is written: one generation takes it.
                options.compacted = CodecChoice::none();
                options.compaction_percent = 100;
            });
            let cpu = cpu_seconds();
            rig.write(&pool, 0..count);
            let write_cpu = cpu_seconds() - cpu;
            let fresh = disk_bytes(rig.dir()) as f64 / raw;
            rig.tier().compacted().set(old.parse().unwrap(), 256);
            let (cpu, began) = (cpu_seconds(), Instant::now());
            // Compaction takes the newest generation when it is at rest, and if that would gain
            // anything.
            while rig.tier().usage().uncompacted_bytes > 0 && new != old {
                std::thread::sleep(Duration::from_millis(50));
            }
            std::thread::sleep(Duration::from_millis(500));
            let compaction_cpu = cpu_seconds() - cpu;
            let compacted = disk_bytes(rig.dir()) as f64 / raw;
            let row = format!(
                "{new},{old},{},{fresh:.4},{compacted:.4},{:.2},{:.2},{:.1}",
                kind.name(),
                write_cpu / raw * 1e9,
                compaction_cpu / raw * 1e9,
                began.elapsed().as_secs_f64(),
            );
            println!("{row}");
            let _ = writeln!(csv, "{row}");
            rig.read(&pool, 0..count);
        }
    }
    save(out, "codec-compacted", &csv);
}
