//! Damage of any kind in any file of a store whose history is known: the start succeeds, what is
//! hit is a miss, nothing older comes to light, and what is not hit is there.
//!
//! `FONN_DAMAGE_ROUNDS` says how many rounds each test has, `FONN_DAMAGE_SEED` with which seed.

use std::ops::Range;
use std::path::PathBuf;

use fonn_base::random::SplitMix64;

use super::replay::{log_of, records_of};
use super::*;

const KEYS: u64 = 40;
const GENERATIONS: u64 = 3;

fn key_of(number: u64) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

/// Sets, overwrites and deletes of the same keys in several generations.
async fn store() -> Rig {
    let rig = Rig::new();
    let mut random = SplitMix64::new(11);
    let mut version = 0;
    for generation in 1..=GENERATIONS {
        for number in 0..2 * KEYS {
            version += 1;
            let key = key_of(if generation == 1 {
                number % KEYS
            } else {
                random.below(KEYS)
            });
            if generation > 1 && random.below(4) == 0 {
                rig.delete(&key, version).await;
            } else {
                let len = [0, 9, 300, 3000][random.below(4) as usize];
                rig.put(&key, version, noise(version, len)).await;
            }
        }
        if generation < GENERATIONS {
            rig.roll().await;
        }
    }
    let state = StoreState {
        purges: Vec::new(),
        version_ceiling: 1 << 40,
        flushes: vec![],
    };
    rig.tier().save_state(&state).unwrap();
    let sealed = || {
        let generations = rig.shared().generations.snapshot();
        generations.iter().skip(1).all(|it| it.is_quiet())
    };
    within(sealed).await;
    rig
}

/// The newest record of a key.
struct Newest {
    key: Vec<u8>,
    generation: u64,
    place: Range<usize>,
    version: Option<Version>,
}

fn history(dir: &Path) -> Vec<Newest> {
    let mut newest: Vec<Newest> = Vec::new();
    for generation in 1..=GENERATIONS {
        let path = log_of(dir, generation);
        let records = records_of(&path);
        let len = std::fs::metadata(&path).unwrap().len() as usize;
        let ends = records.iter().skip(1).map(|it| it.offset).chain([len]);
        let ends: Vec<_> = ends.collect();
        for (record, end) in records.into_iter().zip(ends) {
            newest.retain(|it| it.key != record.key);
            newest.push(Newest {
                key: record.key,
                generation,
                place: record.offset..end,
                version: record.version,
            });
        }
    }
    assert_eq!(newest.len() as u64, KEYS);
    newest
}

/// What is done to a file.
#[derive(Clone, Copy, Debug)]
enum Harm {
    SomeBytes,
    Garbage,
    Pages,
    Cut,
    Inserted,
    Appended,
    Emptied,
    Removed,
}

const HARMS: [Harm; 8] = [
    Harm::SomeBytes,
    Harm::Garbage,
    Harm::Pages,
    Harm::Cut,
    Harm::Inserted,
    Harm::Appended,
    Harm::Emptied,
    Harm::Removed,
];

/// Harms a file; the bytes that may not be what they were.
fn harm(path: &Path, harm: Harm, random: &mut SplitMix64) -> Range<usize> {
    let mut bytes = std::fs::read(path).unwrap();
    let len = bytes.len();
    let mut below = |bound: usize| random.below(bound.max(1) as u64) as usize;
    let at = below(len);
    let hit = match harm {
        Harm::SomeBytes | Harm::Garbage | Harm::Pages if len == 0 => 0..0,
        Harm::SomeBytes => {
            let end = (at + 200).min(len);
            for _ in 0..2 + below(38) {
                let place = at + below(end - at);
                bytes[place] ^= 1 + below(255) as u8;
            }
            at..end
        }
        Harm::Garbage => {
            let end = at + 1 + below(len - at);
            let seed = below(1 << 30) as u64;
            bytes[at..end].copy_from_slice(&noise(seed, end - at));
            at..end
        }
        Harm::Pages => {
            let start = at / 4096 * 4096;
            let end = (start + 4096 * (1 + below(3))).min(len);
            bytes[start..end].fill(0);
            start..end
        }
        Harm::Cut => {
            bytes.truncate(at);
            at..usize::MAX
        }
        Harm::Inserted => {
            let seed = below(1 << 30) as u64;
            let garbage = noise(seed, 1 + below(5000));
            bytes.splice(at..at, garbage);
            at..usize::MAX
        }
        Harm::Appended => {
            let seed = below(1 << 30) as u64;
            bytes.extend(noise(seed, 1 + below(10_000)));
            len..usize::MAX
        }
        Harm::Emptied | Harm::Removed => {
            bytes.clear();
            0..usize::MAX
        }
    };
    match harm {
        Harm::Removed => std::fs::remove_file(path).unwrap(),
        _ => std::fs::write(path, bytes).unwrap(),
    }
    hit
}

/// What decides on the harm, and how many rounds there are.
fn settings(rounds: usize) -> (SplitMix64, usize) {
    let set = |name| Some(std::env::var(name).ok()?.parse::<u64>().unwrap());
    let rounds = set("FONN_DAMAGE_ROUNDS").map_or(rounds, |rounds| rounds as usize);
    (
        SplitMix64::new(set("FONN_DAMAGE_SEED").unwrap_or(0x5eed)),
        rounds,
    )
}

fn opened(dir: &Path, like: &DiskOptions) -> DiskTier {
    let options = DiskOptions {
        dir: dir.to_owned(),
        ..like.clone()
    };
    DiskTier::open(options, Arc::<Witness>::default(), None).unwrap()
}

/// Copies of a store: as a kill leaves it, and after a clean stop.
async fn copies() -> (Rig, [PathBuf; 2]) {
    let mut rig = store().await;
    let killed = rig.dir.path().join("killed");
    copy_all(&rig.options.dir, &killed);
    rig.close();
    let closed = rig.options.dir.clone();
    (rig, [killed, closed])
}

#[tokio::test]
async fn damage_in_a_log_costs_the_records_that_it_hits_and_nothing_else() {
    let (rig, copies) = copies().await;
    let (mut random, rounds) = settings(40);
    for round in 0..rounds {
        let dir = rig.dir.path().join(format!("round-{round}"));
        copy_all(&copies[round / 8 % 2], &dir);
        let history = history(&dir);
        let generation = 1 + random.below(GENERATIONS);
        let kind = HARMS[round % HARMS.len()];
        let hit = harm(&log_of(&dir, generation), kind, &mut random);
        let context = format!("round {round}: {kind:?} in {generation} at {hit:?}");
        let check = async |tier: &DiskTier, when: &str| {
            for newest in &history {
                let found = tier.get(SPACE, &newest.key).await.unwrap();
                let found = found.map(|entry| {
                    let value = noise(entry.meta.version, entry.value.len());
                    assert_eq!(entry.value, value, "{context}, {when}");
                    entry.meta.version
                });
                let is_hit = newest.generation == generation
                    && newest.place.start < hit.end
                    && hit.start < newest.place.end;
                assert!(
                    found == newest.version || (is_hit && found.is_none()),
                    "{context}, {when}: {:?} is {:?} at {:?}, found {found:?}",
                    String::from_utf8_lossy(&newest.key),
                    newest.version,
                    newest.place,
                );
            }
        };
        for when in ["at the start", "at the next start"] {
            let tier = opened(&dir, &rig.options);
            check(&tier, when).await;
            assert_eq!(tier.stats().snapshot().generations_broken, 0, "{context}");
            assert!(tier.close(GRACE));
        }
        let tier = opened(&dir, &rig.options);
        tier.compact_all().await;
        check(&tier, "when all has compacted").await;
        assert!(tier.close(GRACE));
        let tier = opened(&dir, &rig.options);
        check(&tier, "after that").await;
        assert!(tier.close(GRACE));
        std::fs::remove_dir_all(dir).unwrap();
    }
}

/// All files below a directory, but logs and the lock.
pub(super) fn files(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            files.extend(self::files(&path));
        } else if !["values", "LOCK"].contains(&name) {
            files.push(path);
        }
    }
    files.sort();
    files
}

#[tokio::test]
async fn damage_in_any_other_file_neither_fails_the_start_nor_shows_anything_older() {
    let (rig, copies) = copies().await;
    let (mut random, rounds) = settings(96);
    let (mut found, mut all) = (0, 0);
    for round in 0..rounds {
        let dir = rig.dir.path().join(format!("round-{round}"));
        copy_all(&copies[round / 8 % 2], &dir);
        let history = history(&dir);
        let files = files(&dir);
        // Journals are sparse, and no reader looks beyond what is written.
        let path = &files[random.below(files.len() as u64) as usize];
        let kind = HARMS[round % HARMS.len()];
        trim(path);
        harm(path, kind, &mut random);
        let name = path.strip_prefix(&dir).unwrap().display();
        let context = format!("round {round}: {kind:?} in {name}");
        for when in ["at the start", "at the next start"] {
            let tier = opened(&dir, &rig.options);
            for newest in &history {
                all += 1;
                // An index that cannot be read is told: it is unknown whether there is an entry.
                let Ok(read) = tier.get(SPACE, &newest.key).await else {
                    continue;
                };
                let version = read.map(|entry| entry.meta.version);
                assert!(
                    version.is_none() || version == newest.version,
                    "{context}, {when}: {:?} is {:?}, found {version:?}",
                    String::from_utf8_lossy(&newest.key),
                    newest.version,
                );
                found += u32::from(version == newest.version);
            }
            assert!(tier.close(GRACE));
        }
        std::fs::remove_dir_all(dir).unwrap();
    }
    assert!(found > all * 95 / 100, "{found} of {all} were found");
}

/// Cuts what was never written off a sparse file.
fn trim(path: &Path) {
    let bytes = std::fs::read(path).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0);
    std::fs::write(path, &bytes[..end.map_or(0, |end| end + 1)]).unwrap();
}
