//! CPU time of a hit in the RAM tier on one thread: lock, find, read out, note the use.
//!
//! Run: `cargo run --release -p fonn-ram-tier --example ram_lookups`

#![allow(clippy::print_stdout, reason = "printing is its purpose")]

use std::error::Error;
use std::hint::black_box;
use std::time::{Duration, Instant};

use fonn_base::entry::{Meta, Space};
use fonn_ram_tier::{LruMode, NewEntry, RamOptions, RamTier, StoredIn};

const LOOKUPS: usize = 5_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    for lru in [LruMode::Approximate, LruMode::Strict] {
        for entries in [100_000, 4_000_000] {
            measure(lru, entries)?;
        }
    }
    Ok(())
}

/// Nanoseconds that this thread has run (proc(5), schedstat): other load on the machine does not
/// count.
fn cpu_ns() -> Result<f64, Box<dyn Error>> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(text
        .split_ascii_whitespace()
        .next()
        .ok_or("no figure")?
        .parse()?)
}

fn key_of(number: u64) -> [u8; 16] {
    let mut key = [b'k'; 16];
    key[8..].copy_from_slice(&number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes());
    key
}

fn put(tier: &RamTier, number: u64) -> Result<(), Box<dyn Error>> {
    let key = key_of(number);
    let hash = tier.hash(Space(0), &key);
    let entry = NewEntry {
        space: Space(0),
        key: &key,
        stored: StoredIn::Slice(&[b'v'; 100]),
        meta: Meta::new(number + 1, 0, 0),
        framed: false,
        dirty: false,
    };
    tier.lock(hash).insert(hash, entry, 0)?;
    tier.evict_to_budget(Some(hash), 0, usize::MAX);
    Ok(())
}

fn measure(lru: LruMode, entries: u64) -> Result<(), Box<dyn Error>> {
    let tier = RamTier::new(RamOptions {
        budget_bytes: 4 << 30,
        lru,
        hash_seed: 1,
    });
    let mut longest = Duration::ZERO;
    let start = cpu_ns()?;
    for number in 0..entries {
        let one = Instant::now();
        put(&tier, number)?;
        longest = longest.max(one.elapsed());
    }
    let insert_ns = (cpu_ns()? - start) / entries as f64;

    let mut scratch = Vec::with_capacity(128);
    let mut random = 1_u64;
    let mut hits = 0_usize;
    let start = cpu_ns()?;
    for step in 0..LOOKUPS {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let key = key_of((random >> 33) % entries);
        let hash = tier.hash(Space(0), &key);
        let mut shard = tier.lock(hash);
        if let Some(id) = shard.find(hash, Space(0), &key) {
            let found = shard.get(id);
            scratch.clear();
            scratch.extend_from_slice(found.stored.as_slice());
            hits += usize::from(!found.meta.is_expired(1));
            shard.touch_use(id, (step >> 20) as u32);
        }
        drop(shard);
        black_box(&scratch);
    }
    let hit_ns = (cpu_ns()? - start) / LOOKUPS as f64;

    // A full tier: each write evicts.
    tier.set_budget(tier.used());
    let start = cpu_ns()?;
    let writes = entries.min(1_000_000);
    for number in 0..writes {
        put(&tier, entries + number)?;
    }
    let evict_ns = (cpu_ns()? - start) / writes as f64;
    println!(
        "{lru:?}, {entries} entries: {hit_ns:.0} ns per hit ({hits} hits), {insert_ns:.0} ns per insert \
         (longest {longest:?}), {evict_ns:.0} ns per insert that evicts",
    );
    Ok(())
}
