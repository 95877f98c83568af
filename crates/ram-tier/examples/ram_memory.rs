//! Resident memory that entries of the RAM tier take, against what the tier counts.
//!
//! `approximate` and `strict`: the memory bar's fill, random keys of 16 bytes with values of 100,
//! in that mode. `churn`: values of mixed sizes, many times the budget, to see what fragmentation
//! adds.
//!
//! Run:
//! `cargo run --release -p fonn-ram-tier --example ram_memory -- MODE [BUDGET_MIB]`, where the mode
//! is `approximate`, `strict` or `churn`.

#![allow(clippy::print_stdout, reason = "printing is its purpose")]

use std::error::Error;

use fonn_base::entry::{Meta, Space};
use fonn_ram_tier::{LruMode, NewEntry, RamOptions, RamTier, StoredIn};

const ENTRIES: usize = 100_000;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let what = args.next().unwrap_or_else(|| "approximate".to_owned());
    let budget_mib = args.next().map_or(Ok(4096), |mib| mib.parse::<usize>())?;
    match what.as_str() {
        "approximate" => fill(budget_mib << 20, LruMode::Approximate),
        "strict" => fill(budget_mib << 20, LruMode::Strict),
        "churn" => churn(budget_mib << 20),
        _ => Err("expected approximate, strict or churn".into()),
    }
}

/// Resident bytes of this process, from the kernel's exact count (smaps_rollup, not the batched
/// statm).
fn resident_bytes() -> Result<usize, Box<dyn Error>> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup")?;
    let line = text
        .lines()
        .find(|line| line.starts_with("Rss:"))
        .ok_or("no Rss line")?;
    let kib = line.split_ascii_whitespace().nth(1).ok_or("no figure")?;
    Ok(kib.parse::<usize>()? * 1024)
}

/// A splitmix64 step: reproducible and good enough.
fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

fn put(tier: &RamTier, key: &[u8], value: &[u8], now_s: u32) -> Result<(), Box<dyn Error>> {
    let hash = tier.hash(Space(0), key);
    let entry = NewEntry {
        space: Space(0),
        key,
        stored: StoredIn::Slice(value),
        meta: Meta::new(u64::from(now_s) + 1, 0, 0),
        framed: false,
        dirty: false,
    };
    tier.lock(hash).insert(hash, entry, now_s)?;
    tier.evict_to_budget(Some(hash), now_s, usize::MAX);
    Ok(())
}

fn fill(budget_bytes: usize, lru: LruMode) -> Result<(), Box<dyn Error>> {
    let before = resident_bytes()?;
    let tier = RamTier::new(RamOptions {
        budget_bytes,
        lru,
        hash_seed: 1,
    });
    let mut random = 7;
    for _ in 0..ENTRIES {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&next_random(&mut random).to_le_bytes());
        key[8..].copy_from_slice(&next_random(&mut random).to_le_bytes());
        put(&tier, &key, &[b'v'; 100], 0)?;
    }
    let grown = resident_bytes()?.saturating_sub(before);
    println!(
        "{lru:?}, {} shards: {} entries, {:.1} B RSS per entry (grown by {grown} from {before}), \
         {:.1} B counted per entry",
        tier.shard_count(),
        tier.len(),
        grown as f64 / ENTRIES as f64,
        tier.used() as f64 / ENTRIES as f64,
    );
    Ok(())
}

/// Three phases whose value sizes differ, so that freed memory must serve other sizes.
fn churn(budget_bytes: usize) -> Result<(), Box<dyn Error>> {
    let before = resident_bytes()?;
    let tier = RamTier::new(RamOptions {
        budget_bytes,
        lru: LruMode::Approximate,
        hash_seed: 1,
    });
    let value = vec![b'v'; 4 << 20];
    let mut random = 7;
    let mut highest = 0.0_f64;
    let mut now_s = 0;
    for (name, shortest, longest) in [
        ("100 B", 100, 100),
        ("64 B-4 KiB", 64, 4 << 10),
        ("4 KiB-4 MiB", 4 << 10, 4 << 20),
        ("16 B-256 KiB", 16, 256 << 10),
        ("100 B", 100, 100),
    ] {
        let mut written = 0;
        while written < 3 * budget_bytes {
            let key = next_random(&mut random).to_le_bytes();
            let len = shortest + next_random(&mut random) as usize % (longest - shortest + 1);
            put(&tier, &key, &value[..len], now_s)?;
            let before_mib = written >> 24;
            written += len + 100;
            if written >> 24 != before_mib {
                now_s += 1;
                highest = highest.max((resident_bytes()?.saturating_sub(before)) as f64);
            }
        }
        println!(
            "values of {name}: {} entries, RSS {:.0} MiB, counted {:.0} MiB, budget {} MiB, \
             highest RSS {:.0} MiB",
            tier.len(),
            (resident_bytes()?.saturating_sub(before)) as f64 / f64::from(1 << 20),
            tier.used() as f64 / f64::from(1 << 20),
            budget_bytes >> 20,
            highest / f64::from(1 << 20),
        );
    }
    Ok(())
}
