//! The codecs of the levels in the disk tier: by size and kind of value, where processor, device or
//! space is scarce, and once compacted.
//!
//! ```text
//! cargo bench -p fonn-disk-tier --bench levels -- sweep|fresh|compacted|all [directory of the CSV and SVG files] [rounds]
//! ```
//!
//! `fresh` goes over all codecs in turn, so many rounds (1 without the argument), each taking
//! eleven minutes, or three to six with `processor`, `device` or `space` behind the rounds. Each
//! table is written as CSV, the first two as SVG too.

#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

mod data;
mod fresh;
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
        fresh::run(&out, rounds, args.next().as_deref());
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
