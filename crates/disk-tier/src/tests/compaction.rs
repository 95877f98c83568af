//! Compaction: what it changes, what it must not change, and kills between its steps.

use fonn_codec::frame::HEADER_LEN;

use super::*;
use crate::compaction::{self, Stopped};
use crate::directory::{GenerationName, disk_bytes};
use crate::generation::Generation;
use crate::record::{HEAD_LEN, index_key};

fn codecs(fresh: &str, last: &str) -> Rig {
    Rig::with(|options| {
        options.fresh = fresh.parse().unwrap();
        options.compacted = last.parse().unwrap();
    })
}

/// Bytes that shrink, different for each seed.
pub(super) fn text(seed: u64, len: usize) -> Vec<u8> {
    let line = format!("{seed} says: over and over, and a little different each time {seed:x};\n");
    let mut out = line.repeat(len / line.len() + 1).into_bytes();
    for (at, byte) in noise(seed, len / 8).into_iter().enumerate() {
        out[at * 8] = byte;
    }
    out.truncate(len);
    out
}

impl Rig {
    fn generation(&self, id: u64) -> Arc<Generation> {
        self.shared().generations.by_id(id).unwrap()
    }

    pub(super) async fn compact(&self, id: u64) {
        within(|| self.generation(id).is_sealed()).await;
        assert!(compaction::compact(self.shared(), &self.generation(id)));
    }

    async fn rewrite(&self, id: u64) -> Generation {
        within(|| self.generation(id).is_sealed()).await;
        compaction::rewrite(self.shared(), &self.generation(id), 0).unwrap()
    }

    /// Whether a generation has any record of a key, be it a tombstone.
    fn has(&self, id: u64, key: &[u8]) -> bool {
        let key = index_key(SPACE, key);
        self.generation(id).index.get(&key).unwrap().is_some()
    }
}

async fn put_texts(rig: &Rig, versions: std::ops::RangeInclusive<u64>) {
    for version in versions {
        rig.put(
            format!("k{version}").as_bytes(),
            version,
            text(version, 20_000),
        )
        .await;
    }
}

async fn assert_texts(rig: &Rig, versions: std::ops::RangeInclusive<u64>) {
    for version in versions {
        let entry = rig.get(format!("k{version}").as_bytes()).await;
        let entry = entry.unwrap_or_else(|| panic!("k{version} is gone"));
        assert_eq!(entry.meta, Meta::new(version, 7, 0));
        assert_eq!(entry.value, text(version, 20_000));
    }
}

fn log_path(rig: &Rig, id: u64, incarnation: u32) -> std::path::PathBuf {
    let name = GenerationName { id, incarnation };
    rig.options.dir.join(name.to_string()).join("values")
}

#[tokio::test]
async fn a_compacted_generation_has_the_last_codec_and_the_same_entries() {
    let mut rig = codecs("lz4", "zstd:3");
    put_texts(&rig, 1..=100).await;
    rig.roll().await;
    let before = rig.generation(1).log.end();
    rig.compact(1).await;
    let compacted = rig.generation(1);
    assert_eq!(compacted.incarnation, 1);
    assert!(compacted.log.end() < before * 9 / 10);
    drop(compacted);
    within(|| !log_path(&rig, 1, 0).exists()).await;
    let zstd = rig.tier().compacted().meter().of(4);
    assert_eq!((zstd.values, zstd.bytes_in), (100, 2_000_000));
    assert!(zstd.bytes_out < before && zstd.cpu > Duration::ZERO);
    let stats = rig.stats();
    assert_eq!(
        (stats.generations_compacted, stats.compaction_recoded),
        (1, 100)
    );
    for round in 0..3 {
        assert_texts(&rig, 1..=100).await;
        // A compacted generation is not compacted again.
        assert!(rig.generation(1).has_been_compacted());
        if round == 0 {
            rig.reopen()
        } else {
            rig.kill(|_| ())
        }
    }
    assert_eq!(rig.stats().reads_corrupt, 0);
}

#[tokio::test]
async fn what_is_compacted_is_as_small_as_if_it_had_been_written_so() {
    let mut ends = Vec::new();
    for fresh in ["lz4", "zstd:3"] {
        let rig = codecs(fresh, "zstd:3");
        put_texts(&rig, 1..=100).await;
        put_noise(&rig, 101..=200).await;
        rig.roll().await;
        rig.compact(1).await;
        ends.push(rig.generation(1).log.end());
    }
    let [compacted, written] = ends[..] else {
        panic!("two stores");
    };
    assert!(compacted * 100 <= written * 103, "{compacted} of {written}");
}

#[tokio::test]
async fn the_index_of_a_compacted_generation_is_made_anew_from_its_log() {
    let mut rig = codecs("lz4", "zstd:3");
    put_texts(&rig, 1..=50).await;
    rig.roll().await;
    rig.compact(1).await;
    rig.close();
    let index = rig.options.dir.join("g0000000001.1/index/version");
    std::fs::write(index, b"rubbish").unwrap();
    rig.open();
    assert_eq!(rig.stats().indexes_rebuilt, 1);
    assert_texts(&rig, 1..=50).await;
}

#[tokio::test]
async fn a_kill_between_any_two_steps_costs_nothing() {
    for step in 0..5 {
        let mut rig = codecs("lz4", "zstd:3");
        rig.put(b"deleted", 1, text(1, 20_000)).await;
        rig.put(b"k2", 2, "older").await;
        rig.roll().await;
        put_texts(&rig, 2..=60).await;
        rig.delete(b"deleted", 61).await;
        rig.roll().await;
        let source = rig.generation(2);
        let target = rig.rewrite(2).await;
        // 0: the new incarnation is there and does not count. 1: it counts.
        if step >= 1 {
            target.publish().unwrap();
        }
        if step >= 2 {
            source.mark_dropped().unwrap();
        }
        let mut meddle: Box<dyn FnOnce(&Path)> = Box::new(|_| ());
        if step == 3 {
            // The old one was being removed.
            meddle = Box::new(|dir| std::fs::remove_file(dir.join("g0000000002/values")).unwrap());
        }
        if step == 4 {
            // The log of the new one had reached the disk, its index had not.
            meddle = Box::new(|dir| {
                std::fs::remove_dir_all(dir.join("g0000000002.1/index")).unwrap();
            });
        }
        drop((source, target));
        rig.kill(meddle);
        let expected = u32::from(step >= 1);
        assert_eq!(rig.generation(2).incarnation, expected, "step {step}");
        for _ in 0..2 {
            assert_texts(&rig, 2..=60).await;
            assert_eq!(rig.version_of(b"deleted").await, None, "step {step}");
            rig.kill(|_| ());
        }
        let directories = std::fs::read_dir(&rig.options.dir).unwrap();
        let names = directories.map(|it| it.unwrap().file_name().into_string().unwrap());
        let of_second = names.filter(|name| name.starts_with("g0000000002"));
        assert_eq!(of_second.count(), 1, "step {step}: one incarnation is left");
    }
}

#[tokio::test]
async fn a_dropped_compacted_generation_does_not_leave_its_former_incarnation() {
    let mut rig = codecs("lz4", "zstd:3");
    put_texts(&rig, 1..=20).await;
    rig.roll().await;
    let source = rig.generation(1);
    let target = rig.rewrite(1).await;
    target.publish().unwrap();
    // A reader keeps the old one, and marking it has failed.
    target.mark_dropped().unwrap();
    drop((source, target));
    rig.kill(|_| ());
    assert_eq!(rig.version_of(b"k1").await, None);
    assert!(rig.shared().generations.by_id(1).is_none());
}

#[tokio::test]
async fn what_is_overwritten_or_deleted_is_left_out() {
    let mut rig = codecs("none", "none");
    put_texts(&rig, 1..=40).await;
    rig.put(b"twice", 41, noise(1, 30_000)).await;
    rig.put(b"twice", 42, noise(2, 30_000)).await;
    rig.roll().await;
    for version in 1..=30 {
        rig.put(format!("k{version}").as_bytes(), 100 + version, "newer")
            .await;
    }
    rig.delete(b"k31", 200).await;
    rig.roll().await;
    rig.compact(1).await;
    let left = rig.generation(1).log.end();
    let expected = 9 * (20_000 + 60 + 3) + 30_000 + 60 + 5;
    assert!(left.abs_diff(expected) < 100, "{left} bytes are left");
    for _ in 0..2 {
        assert_texts(&rig, 32..=40).await;
        assert_eq!(rig.version_of(b"k1").await, Some(101));
        assert_eq!(rig.version_of(b"k31").await, None);
        assert_eq!(rig.get(b"twice").await.unwrap().value, noise(2, 30_000));
        rig.reopen();
    }
}

#[tokio::test]
async fn tombstones_stay_as_long_as_they_hide_something() {
    let mut rig = codecs("lz4", "zstd:3");
    rig.put(b"old", 1, "value").await;
    put_texts(&rig, 2..=5).await;
    rig.roll().await;
    rig.put(b"new", 10, "value").await;
    rig.delete(b"old", 11).await;
    rig.delete(b"new", 12).await;
    put_texts(&rig, 20..=30).await;
    rig.roll().await;
    rig.compact(2).await;
    assert!(rig.has(2, b"old") && !rig.has(2, b"new"));
    assert_eq!(rig.version_of(b"old").await, None);
    rig.compact(1).await;
    assert!(!rig.has(1, b"old"));
    for _ in 0..2 {
        assert_eq!(rig.version_of(b"old").await, None);
        assert_eq!(rig.version_of(b"new").await, None);
        rig.kill(|_| ());
    }
}

#[tokio::test]
async fn an_expired_or_flushed_entry_leaves_a_tombstone_if_an_older_one_is_behind_it() {
    let mut rig = codecs("lz4", "zstd:3");
    for (version, key) in (1..).zip([&b"expired"[..], b"flushed"]) {
        rig.put(key, version, text(version, 9000)).await;
    }
    rig.roll().await;
    for (version, key) in (11..).zip([&b"expired"[..], b"alone"]) {
        let meta = Meta::new(version, 0, 1);
        let value = text(version, 9000).into();
        rig.write(key, WriteKind::Put { meta, value })
            .await
            .unwrap();
    }
    rig.put(b"flushed", 13, text(13, 9000)).await;
    put_texts(&rig, 20..=30).await;
    rig.roll().await;
    let flush = FlushMark {
        space: SPACE,
        cutoff: 14,
        at_ms: 0,
    };
    let state = StoreState {
        purges: Vec::new(),
        version_ceiling: 0,
        flushes: vec![flush],
    };
    rig.tier().save_state(&state).unwrap();
    rig.compact(2).await;
    assert!(rig.has(2, b"expired") && rig.has(2, b"flushed") && !rig.has(2, b"alone"));
    for _ in 0..2 {
        for key in [&b"expired"[..], b"flushed", b"alone"] {
            assert_eq!(rig.version_of(key).await, None);
        }
        assert_texts(&rig, 20..=30).await;
        rig.kill(|_| ());
    }
}

#[tokio::test]
async fn a_generation_of_which_nothing_is_of_use_goes() {
    let mut rig = codecs("lz4", "zstd:3");
    put_texts(&rig, 1..=10).await;
    rig.roll().await;
    for version in 1..=10 {
        rig.delete(format!("k{version}").as_bytes(), 20 + version)
            .await;
    }
    rig.roll().await;
    rig.compact(1).await;
    assert!(rig.shared().generations.by_id(1).is_none());
    rig.compact(2).await;
    assert!(rig.shared().generations.by_id(2).is_none());
    rig.kill(|_| ());
    assert_eq!(rig.version_of(b"k1").await, None);
}

#[tokio::test]
async fn what_does_not_shrink_is_copied_and_a_generation_of_it_is_left_alone() {
    let rig = codecs("lz4", "zstd:3");
    let zip = [b"PK\x03\x04".to_vec(), noise(1, 50_000)].concat();
    for (version, key) in (1..).zip(["zip", "noise", "small"]) {
        let value = match key {
            "zip" => zip.clone(),
            "noise" => noise(2, 50_000),
            _ => b"some bytes".to_vec(),
        };
        rig.put(key.as_bytes(), version, value).await;
    }
    let records: usize = [(3, zip.len()), (5, 50_000), (5, 10)]
        .map(|(key, value)| HEAD_LEN + key + HEADER_LEN + value)
        .iter()
        .sum();
    assert_eq!(rig.generation(1).log.end(), records as u64, "no byte more");
    rig.roll().await;
    put_texts(&rig, 10..=19).await;
    rig.put(b"zip2", 20, zip.clone()).await;
    rig.roll().await;
    rig.compact(1).await;
    let untouched = rig.generation(1);
    assert!(untouched.has_been_compacted() && untouched.incarnation == 0);
    rig.compact(2).await;
    assert_eq!(rig.generation(2).incarnation, 1);
    assert_eq!(rig.get(b"zip2").await.unwrap().value, zip);
    assert_eq!(
        rig.tier().compacted().meter().of(0).values,
        0,
        "nothing was tried in vain"
    );
    assert_texts(&rig, 10..=19).await;
}

/// Values that do not shrink, until not all that follow are looked at.
async fn put_noise(rig: &Rig, versions: std::ops::RangeInclusive<u64>) {
    for version in versions {
        let key = format!("n{version}");
        rig.put(key.as_bytes(), version, noise(version, 1500)).await;
    }
}

#[tokio::test]
async fn text_that_was_not_looked_at_behind_noise_gets_its_codec_by_compaction() {
    let rig = codecs("lz4", "zstd:3");
    put_noise(&rig, 1..=600).await;
    let mut left = Vec::new();
    for version in 601..=640 {
        let key = format!("t{version}");
        rig.put(key.as_bytes(), version, text(version, 1500)).await;
        let entry = rig.get(key.as_bytes()).await.unwrap();
        if entry.frame.is_none() {
            left.push(key);
        }
    }
    let unlooked = rig.tier().fresh().meter().unlooked();
    assert!((300..560).contains(&unlooked), "{unlooked}");
    assert!((1..=30).contains(&left.len()), "{left:?}");
    assert_eq!(
        rig.tier().fresh().meter().of(1).values,
        40 - left.len() as u64
    );
    rig.roll().await;
    rig.compact(1).await;
    assert_eq!(rig.generation(1).incarnation, 1);
    assert_eq!(rig.tier().compacted().meter().of(4).values, 40);
    for version in 601..=640 {
        let entry = rig.get(format!("t{version}").as_bytes()).await.unwrap();
        assert_eq!(entry.value, text(version, 1500));
        assert!(entry.frame.is_some(), "t{version} was compacted as it was");
    }
    for version in 1..=600 {
        let entry = rig.get(format!("n{version}").as_bytes()).await.unwrap();
        assert_eq!(entry.value, noise(version, 1500));
    }
}

#[tokio::test]
async fn a_generation_of_noise_is_left_alone_and_one_with_some_text_is_not_wherever_it_is() {
    for fresh in ["lz4", "none"] {
        let rig = codecs(fresh, "zstd:3");
        put_noise(&rig, 1..=600).await;
        let is_looked_at = fresh != "none";
        assert_eq!(rig.tier().fresh().meter().unlooked() > 300, is_looked_at);
        rig.roll().await;
        rig.compact(1).await;
        let untouched = rig.generation(1);
        assert!(
            untouched.has_been_compacted() && untouched.incarnation == 0,
            "{fresh}"
        );
        put_noise(&rig, 601..=900).await;
        for version in 901..=920 {
            let key = format!("t{version}");
            rig.put(key.as_bytes(), version, text(version, 1500)).await;
        }
        rig.roll().await;
        rig.compact(2).await;
        assert_eq!(rig.generation(2).incarnation, 1, "{fresh}");
        assert_eq!(rig.tier().compacted().meter().of(4).values, 20, "{fresh}");
    }
}

#[tokio::test]
async fn a_damaged_generation_stays_as_it_is() {
    let mut rig = codecs("lz4", "zstd:3");
    put_texts(&rig, 1..=20).await;
    rig.roll().await;
    let sealed = rig.generation(1);
    // Its log is not read again at opening.
    within(|| sealed.index.known().unwrap().is_sealed).await;
    drop(sealed);
    rig.close();
    let path = log_path(&rig, 1, 0);
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    rig.open();
    rig.put(b"other", 30, "value").await;
    rig.roll().await;
    rig.compact(1).await;
    assert_eq!(rig.stats().compaction_failures, 1);
    assert_eq!(rig.generation(1).incarnation, 0);
    let mut found = 0;
    for version in 1..=20 {
        found += u32::from(rig.get(format!("k{version}").as_bytes()).await.is_some());
    }
    assert_eq!(found, 19);
}

#[tokio::test]
async fn a_generation_that_is_dropped_meanwhile_is_given_up() {
    let rig = codecs("lz4", "zstd:3");
    put_texts(&rig, 1..=20).await;
    rig.roll().await;
    let source = rig.generation(1);
    let target = rig.rewrite(1).await;
    source.mark_dropped().unwrap();
    rig.shared().generations.remove(1);
    let switched = compaction::switch(rig.shared(), &source, target);
    assert!(matches!(switched, Err(Stopped::Gone)), "{switched:?}");
    assert!(!rig.options.dir.join("g0000000001.1").exists());
}

#[tokio::test]
async fn a_read_that_began_before_the_switch_ends_well() {
    let rig = codecs("lz4", "zstd:3");
    put_texts(&rig, 1..=20).await;
    rig.roll().await;
    let snapshot = rig.shared().generations.snapshot();
    let key = index_key(SPACE, b"k9");
    let found = rig.shared().generations.find(&key).unwrap().unwrap();
    rig.compact(1).await;
    let looked = crate::reader::look(&found.generation.log, &found.entry, (SPACE, b"k9"));
    assert!(matches!(looked, crate::reader::Looked::Whole { .. }));
    assert!(log_path(&rig, 1, 0).exists());
    drop((snapshot, found));
    within(|| !log_path(&rig, 1, 0).exists()).await;
}

#[tokio::test]
async fn entries_that_the_build_cannot_read_are_misses_and_survive_compaction() {
    let mut rig = codecs("lz4", "zstd:3");
    rig.put(b"foreign", 1, text(1, 9000)).await;
    put_texts(&rig, 2..=20).await;
    rig.roll().await;
    rig.close();
    // An unknown codec, in a record that is in order.
    let path = log_path(&rig, 1, 0);
    let mut bytes = std::fs::read(&path).unwrap();
    let frame = HEAD_LEN + b"foreign".len();
    let len = u32::from_le_bytes(bytes[frame + 8..frame + 12].try_into().unwrap()) as usize;
    bytes[frame + 1] = 200;
    let crc = crc32c::crc32c(&bytes[frame..frame + 12]);
    let crc = crc32c::crc32c_append(crc, &bytes[frame + 16..frame + 16 + len]);
    bytes[frame + 12..frame + 16].copy_from_slice(&crc.to_le_bytes());
    let crc = crc32c::crc32c(&bytes[4..frame + 16]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    std::fs::write(&path, bytes).unwrap();
    // Reading the whole log again must not take it for the damaged end.
    std::fs::remove_dir_all(path.with_file_name("index")).unwrap();
    rig.open();
    for incarnation in [0, 1] {
        assert_eq!(rig.generation(1).incarnation, incarnation);
        assert_eq!(rig.get(b"foreign").await, None);
        assert!(
            rig.has(1, b"foreign"),
            "it is still there for a build that knows it"
        );
        assert_texts(&rig, 2..=20).await;
        if incarnation == 0 {
            rig.put(b"other", 30, "value").await;
            rig.roll().await;
            rig.compact(1).await;
        }
    }
    let stats = rig.stats();
    assert_eq!((stats.reads_unsupported, stats.reads_corrupt), (2, 0));
}

#[tokio::test]
async fn every_pair_of_codecs_reads_back_after_the_configuration_changed() {
    let all = ["none", "lz4", "snappy", "zlib:6", "zstd:3"];
    let mut rig = codecs("none", "none");
    let mut version = 0;
    for last in all {
        rig.options.compacted = last.parse().unwrap();
        rig.reopen();
        let first = version + 1;
        for fresh in all {
            rig.tier().fresh().set(fresh.parse().unwrap(), 256);
            version += 1;
            put_texts(&rig, version..=version).await;
        }
        rig.roll().await;
        let id = rig.newest_id() - 1;
        rig.compact(id).await;
        assert_texts(&rig, first..=version).await;
    }
    rig.options.fresh = "snappy".parse().unwrap();
    rig.options.compacted = "none".parse().unwrap();
    rig.reopen();
    assert_texts(&rig, 1..=version).await;
    assert_eq!(rig.stats().reads_corrupt, 0);
}

#[tokio::test]
async fn the_thread_compacts_what_is_sealed_and_what_is_at_rest() {
    let rig = Rig::with(|options| {
        options.fresh = "lz4".parse().unwrap();
        options.compacted = "zstd:3".parse().unwrap();
        options.compaction_percent = 100;
    });
    put_texts(&rig, 1..=300).await;
    rig.roll().await;
    put_texts(&rig, 301..=900).await;
    // The second one is compacted when it has had no write for a while.
    within(|| rig.tier().usage().uncompacted_bytes == 0 && rig.stats().generations_compacted >= 2)
        .await;
    assert_texts(&rig, 1..=900).await;
}

#[tokio::test]
async fn the_budget_holds_while_generations_are_compacted() {
    let budget = BUDGET_BYTES_MIN;
    let rig = Rig::with(|options| {
        options.budget_bytes = budget;
        options.compacted = "zstd:1".parse().unwrap();
        options.compaction_percent = 100;
    });
    let mut most = 0;
    let mut version = 0;
    while rig.stats().generations_compacted < 20 || version < 3000 {
        version += 1;
        rig.put(
            format!("k{version}").as_bytes(),
            version,
            text(version, 20_000),
        )
        .await;
        if version % 20 == 0 {
            most = most.max(disk_bytes(&rig.options.dir).unwrap());
        }
        // Writes as fast as this test's leave the compaction thread, which is behind all others, no
        // time on a busy machine.
        let is_behind = || rig.tier().usage().uncompacted_bytes > budget / 4;
        let given_up = Instant::now() + Duration::from_millis(200);
        while is_behind() && Instant::now() < given_up {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(version < 50_000, "{:?}", rig.stats());
    }
    assert!(most <= budget + budget / 10, "{most} bytes");
    assert_eq!(rig.stats().writes_failed, 0);
    assert_texts(&rig, version - 50..=version).await;
}

#[tokio::test]
async fn new_facts_carry_the_stored_bytes_wherever_and_however_they_are_stored() {
    let mut rig = codecs("lz4", "zstd:3");
    put_texts(&rig, 1..=9).await;
    rig.roll().await;
    rig.compact(1).await;
    // The codec of fresh values plays no part.
    rig.tier().fresh().set(CodecChoice::none(), 256);
    let before = rig.get(b"k3").await.unwrap();
    let raw = Bytes::from(text(3, 20_000));
    for (version, framed) in [(20, false), (21, true)] {
        let stored = if framed {
            before.frame.clone().unwrap()
        } else {
            raw.clone()
        };
        let meta = Meta {
            flags: 99,
            ..Meta::new(version, 0, 0)
        };
        // The second time, the version that has the value is not on disk any more.
        let of = 3;
        let kind = WriteKind::Facts {
            meta,
            of,
            stored,
            framed,
        };
        rig.write(b"k3", kind).await.unwrap();
        let after = rig.get(b"k3").await.unwrap();
        assert_eq!((after.meta, &after.value), (meta, &raw));
        assert_eq!(
            after.frame, before.frame,
            "the same bytes, framed: {framed}"
        );
    }
    let encoded = rig.tier().fresh().meter();
    assert_eq!(
        encoded.of(0).values + encoded.of(1).values,
        9,
        "nothing was encoded again"
    );
    // Neither a frame nor on disk: encoded as any new value.
    let meta = Meta::new(30, 0, 0);
    let kind = WriteKind::Facts {
        meta,
        of: 29,
        stored: raw.clone(),
        framed: false,
    };
    rig.write(b"new", kind).await.unwrap();
    assert_eq!(rig.get(b"new").await.unwrap().value, raw);
    rig.kill(|_| ());
    assert_eq!(rig.get(b"k3").await.unwrap().value, raw);
    assert_eq!(rig.version_of(b"new").await, Some(30));
}

/// Bytes that no codec shrinks and that do not look random.
fn stubborn() -> Vec<u8> {
    noise(5, 300).iter().map(|byte| byte % 140).collect()
}

#[tokio::test]
async fn what_is_compacted_is_not_tried_again_when_it_is_written_anew_for_room() {
    let rig = codecs("lz4", "zstd:3");
    put_texts(&rig, 1..=20).await;
    rig.put(b"stubborn", 21, stubborn()).await;
    rig.roll().await;
    rig.compact(1).await;
    let tried = || [0, 1, 4].map(|codec| rig.tier().compacted().meter().of(codec).values);
    assert_eq!(tried(), [1, 0, 20], "one did not shrink");
    for (incarnation, last) in [(2, "zstd:3"), (3, "zstd:9")] {
        rig.tier().compacted().set(last.parse().unwrap(), 256);
        let target = rig.rewrite(1).await;
        compaction::switch(rig.shared(), &rig.generation(1), target).unwrap();
        assert_eq!(rig.generation(1).incarnation, incarnation);
        assert_eq!(tried(), [1, 0, 20]);
    }
    assert_texts(&rig, 1..=20).await;
    assert_eq!(rig.get(b"stubborn").await.unwrap().value, stubborn());
}

#[tokio::test]
async fn compaction_takes_its_share_of_a_processor() {
    let mut rig = codecs("lz4", "zstd:9");
    rig.options.compaction_percent = 0;
    put_texts(&rig, 1..=200).await;
    rig.roll().await;
    // Opened anew with a share, the thread of its own compacts it; so this is asked of that
    // thread's meter.
    rig.options.compaction_percent = 25;
    let began = Instant::now();
    rig.reopen();
    within(|| rig.stats().generations_compacted == 1).await;
    let cpu = rig.tier().compacted().meter().of(4).cpu;
    assert_eq!(rig.tier().compacted().meter().of(4).values, 200);
    // The last piece is not followed by a rest.
    assert!(cpu > Duration::ZERO && began.elapsed() > 3 * cpu, "{cpu:?}");
}
