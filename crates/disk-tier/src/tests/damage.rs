//! Kills, torn files, damage, refusals of the file system.

use fonn_codec::CodecSpec;
use fonn_proto::peer::SlotSet;
use proptest::prelude::*;

use super::corruption::files;
use super::*;
use crate::compaction::{Stopped, candidate, compact, rewrite, switch};
use crate::levels::IdleCpus;
use crate::record::{BOUND_FRAME_LEN, HEAD_LEN, Record, write_head};
use crate::tail::read;
use crate::value;

fn generation(dir: &Path, id: u64) -> std::path::PathBuf {
    dir.join(format!("g{id:010}"))
}

fn cut_log(dir: &Path, id: u64, bytes: u64) {
    let path = generation(dir, id).join("values");
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.set_len(file.metadata().unwrap().len() - bytes)
        .unwrap();
}

async fn put_many(rig: &Rig, versions: std::ops::RangeInclusive<u64>) {
    for version in versions {
        rig.put(
            format!("k{version}").as_bytes(),
            version,
            noise(version, 3000),
        )
        .await;
    }
}

async fn found(rig: &Rig, versions: std::ops::RangeInclusive<u64>) -> Vec<u64> {
    let mut found = Vec::new();
    for version in versions {
        if let Some(entry) = rig.get(format!("k{version}").as_bytes()).await {
            assert_eq!(entry.value, noise(version, 3000));
            assert_eq!(entry.meta.version, version);
            found.push(version);
        }
    }
    found
}

#[tokio::test]
async fn after_a_kill_everything_acknowledged_is_there() {
    let mut rig = Rig::new();
    put_many(&rig, 1..=500).await;
    rig.delete(b"k7", 501).await;
    rig.kill(|_| ());
    let expected: Vec<_> = (1..=500).filter(|version| *version != 7).collect();
    assert_eq!(found(&rig, 1..=500).await, expected);
    // The kernel had all of the index too.
    assert_eq!(rig.stats().records_replayed, 0);
    rig.kill(|_| ());
    assert_eq!(found(&rig, 1..=500).await, expected);
}

#[tokio::test]
async fn a_torn_tail_costs_the_torn_record_and_writing_goes_on() {
    // Known to the index, and as a loss of power may leave it: without what the index had.
    for is_index_lost in [false, true] {
        let mut rig = Rig::new();
        put_many(&rig, 1..=20).await;
        rig.kill(|dir| {
            cut_log(dir, 1, 10);
            if is_index_lost {
                std::fs::remove_dir_all(generation(dir, 1).join("index")).unwrap();
            }
        });
        assert_eq!(found(&rig, 1..=20).await, (1..=19).collect::<Vec<_>>());
        let stats = rig.stats();
        assert_eq!(stats.records_replayed, if is_index_lost { 19 } else { 0 });
        assert_eq!(stats.log_bytes_cut > 0, is_index_lost);
        put_many(&rig, 21..=30).await;
        rig.kill(|_| ());
        assert_eq!(
            found(&rig, 1..=30).await,
            (1..=19).chain(21..=30).collect::<Vec<_>>()
        );
    }
}

#[tokio::test]
async fn an_index_that_knows_more_than_the_log_never_shows_other_bytes() {
    for (written, lost) in [(20, 5), (800, 700)] {
        let mut rig = Rig::new();
        put_many(&rig, 1..=written).await;
        // The index knows all; then the log loses its last records.
        rig.close();
        cut_log(&rig.options.dir, 1, lost * 3063);
        rig.open();
        // Nothing must come to lie where the index says that something else is.
        assert_ne!(rig.newest_id(), 1);
        put_many(&rig, 901..=940).await;
        for _ in 0..2 {
            let found = found(&rig, 1..=940).await;
            let (kept, new) = found.split_at(found.len() - 40);
            assert!(kept.iter().copied().eq(1..=kept.len() as u64), "{kept:?}");
            assert!(
                (kept.len() as u64).abs_diff(written - lost) < 10,
                "{kept:?}"
            );
            assert!(new.iter().copied().eq(901..=940), "{new:?}");
            rig.kill(|_| ());
        }
    }
}

#[tokio::test]
async fn a_damaged_record_is_a_miss_and_does_not_show_the_older_one() {
    let mut rig = Rig::new();
    rig.put(b"k", 1, noise(1, 3000)).await;
    rig.roll().await;
    rig.put(b"k", 2, noise(2, 3000)).await;
    rig.put(b"other", 3, noise(3, 3000)).await;
    rig.close();
    let path = generation(&rig.options.dir, 2).join("values");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[1000] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    rig.open();
    assert_eq!(rig.version_of(b"k").await, None);
    assert_eq!(rig.version_of(b"other").await, Some(3));
    assert_eq!(rig.stats().reads_corrupt, 1);
}

#[tokio::test]
async fn a_broken_index_is_made_anew_from_the_log() {
    let mut rig = Rig::new();
    put_many(&rig, 1..=300).await;
    rig.roll().await;
    put_many(&rig, 301..=600).await;
    rig.delete(b"k5", 601).await;
    rig.close();
    for id in [1, 2] {
        let index = generation(&rig.options.dir, id).join("index");
        std::fs::write(index.join("version"), b"rubbish").unwrap();
    }
    rig.open();
    assert_eq!(rig.stats().indexes_rebuilt, 2);
    let expected: Vec<_> = (1..=600).filter(|version| *version != 5).collect();
    assert_eq!(found(&rig, 1..=600).await, expected);
}

/// The largest table of an index, if it has several blocks of entries.
fn table_of(dir: &Path, id: u64) -> Option<std::path::PathBuf> {
    let mut tables = files(&generation(dir, id).join("index"));
    tables.retain(|path| path.extension().is_none_or(|it| it != "jnl"));
    let len = |path: &std::path::PathBuf| std::fs::metadata(path).map_or(0, |it| it.len());
    let largest = tables.into_iter().max_by_key(len)?;
    (len(&largest) > 30_000).then_some(largest)
}

/// Stops the tier, damages a block of entries in the index of a sealed generation, and opens the
/// tier again.
pub(super) async fn damage_index_block(rig: &mut Rig, id: u64) {
    let is_in_tables = || {
        let sealed = rig.shared().generations.by_id(id).unwrap();
        table_of(&rig.options.dir, id).is_some() && sealed.is_quiet()
    };
    within(is_in_tables).await;
    rig.close();
    let table = table_of(&rig.options.dir, id).unwrap();
    let mut bytes = std::fs::read(&table).unwrap();
    // Some 45,000 bytes of entries come behind old checkpoints, and before 4,000 bytes of index and
    // filter. No checksum covers the header of a block, which is shorter than the damage.
    let start = bytes.len() - 20_000;
    let damaged = bytes[start..].iter_mut().take(100);
    damaged.for_each(|byte| *byte ^= 1);
    std::fs::write(table, bytes).unwrap();
    rig.open();
}

#[tokio::test]
async fn a_damaged_block_of_an_index_holds_up_no_reader_and_compaction_mends_it() {
    let mut rig = Rig::new();
    let key = |number: u64| format!("k{number:04}").into_bytes();
    for number in 0..1000 {
        rig.put(&key(number), number + 1, noise(number, 100)).await;
    }
    let mut expected: Vec<_> = (1..=1000).map(Some).collect();
    for number in (0..1000).step_by(10) {
        let version = number + 2000;
        if number % 20 == 0 {
            rig.delete(&key(number), version).await;
            expected[number as usize] = None;
        } else {
            rig.put(&key(number), version, noise(version, 100)).await;
            expected[number as usize] = Some(version);
        }
    }
    rig.roll().await;
    rig.put(b"newer", 4000, noise(1, 100)).await;
    damage_index_block(&mut rig, 1).await;
    let shared = rig.shared();
    within(|| shared.generations.snapshot()[1].is_sealed()).await;
    shared.generations.snapshot()[1].set_compacted();
    assert!(candidate(shared).is_none());

    // The tail has everything, and of keys of the damaged block more than the newest record.
    let tailed = read(shared, TailPosition::default(), usize::MAX, u64::MAX).unwrap();
    let newest: BTreeMap<_, _> = tailed.records.iter().map(|it| (&it.key, it.fact)).collect();
    assert_eq!(newest.len(), 1001);
    for (number, expected) in expected.iter().enumerate() {
        let fact = newest[&Bytes::from(key(number as u64))];
        let deleted = Fact::Tombstone(number as u64 + 2000);
        let put = |version| Fact::Put(Meta::new(version, 7, 0));
        assert_eq!(fact, expected.map_or(deleted, put));
    }
    let all_slots = SlotSet::all();
    let limits = SlotLimits {
        keys: usize::MAX,
        bytes: usize::MAX,
    };
    let scan = || rig.tier().scan_slots(&all_slots, None, None, limits);
    assert!(matches!(scan().await, Err(DiskError::Index { .. })));

    let source = candidate(shared).unwrap();
    assert_eq!(source.id, 1);
    assert!(compact(shared, &source));
    drop(source);
    assert!(candidate(shared).is_none());
    assert_eq!(scan().await.unwrap().keys.len(), 1001);
    for _ in 0..2 {
        for (number, version) in expected.iter().enumerate() {
            assert_eq!(rig.version_of(&key(number as u64)).await, *version);
        }
        rig.reopen();
    }
}

#[tokio::test]
async fn half_made_and_half_dropped_generations_do_not_matter() {
    let mut rig = Rig::new();
    put_many(&rig, 1..=10).await;
    rig.roll().await;
    put_many(&rig, 11..=20).await;
    rig.close();
    std::fs::create_dir(generation(&rig.options.dir, 50)).unwrap();
    std::fs::create_dir(generation(&rig.options.dir, 51)).unwrap();
    std::fs::write(generation(&rig.options.dir, 51).join("values"), b"").unwrap();
    std::fs::write(generation(&rig.options.dir, 1).join("dropped"), b"").unwrap();
    rig.open();
    assert_eq!(found(&rig, 1..=20).await, (11..=20).collect::<Vec<_>>());
    rig.roll().await;
    assert!(rig.newest_id() > 51, "names are used once");
    assert!(
        !generation(&rig.options.dir, 1).exists() && !generation(&rig.options.dir, 50).exists()
    );
}

#[tokio::test]
async fn a_state_that_is_damaged_twice_starts_empty_because_flushes_are_not_known() {
    let mut rig = Rig::new();
    put_many(&rig, 1..=10).await;
    rig.tier()
        .save_state(&StoreState {
            purges: Vec::new(),
            version_ceiling: 99,
            flushes: vec![],
        })
        .unwrap();
    rig.close();
    std::fs::write(rig.options.dir.join("state"), b"rubbish").unwrap();
    rig.open();
    assert_eq!(found(&rig, 1..=10).await, (1..=10).collect::<Vec<_>>());
    assert_eq!(rig.tier().load_state().version_ceiling, 99);
    assert_eq!(rig.stats().files_mended, 1);
    rig.close();
    for name in ["state", "state.copy"] {
        std::fs::write(rig.options.dir.join(name), b"rubbish").unwrap();
    }
    rig.open();
    assert_eq!(found(&rig, 1..=10).await, Vec::<u64>::new());
    rig.put(b"k1", 100, noise(1, 10)).await;
    assert_eq!(rig.version_of(b"k1").await, Some(100));
}

#[tokio::test]
async fn a_foreign_format_is_refused_and_nothing_deleted() {
    let mut rig = Rig::new();
    put_many(&rig, 1..=3).await;
    rig.close();
    let format = rig.options.dir.join("FORMAT");
    std::fs::write(&format, "fonn-disk 9\n").unwrap();
    let refused = DiskTier::open(rig.options.clone(), Arc::<Witness>::default(), None)
        .err()
        .unwrap();
    assert!(matches!(refused, DiskError::Format { .. }), "{refused}");
    std::fs::write(&format, "fonn-disk 4\n").unwrap();
    rig.open();
    assert_eq!(found(&rig, 1..=3).await, [1, 2, 3]);
}

/// Takes the index's tables away, so that fjall's own threads fail and poison it.
fn sabotage_index(rig: &Rig) {
    let keyspaces = generation(&rig.options.dir, rig.newest_id()).join("index/keyspaces");
    std::fs::remove_dir_all(keyspaces).unwrap();
}

#[tokio::test]
async fn when_fjall_fails_the_next_generation_takes_over_and_nothing_acknowledged_is_lost() {
    let mut rig = Rig::new();
    put_many(&rig, 1..=50).await;
    sabotage_index(&rig);
    let first = rig.shared().generations.newest().unwrap();
    first.index.flush().unwrap();
    let mut version = 50;
    let deadline = Instant::now() + GRACE;
    while rig.stats().generations_failed == 0 {
        assert!(Instant::now() < deadline, "fjall did not fail");
        version += 1;
        put_many(&rig, version..=version).await;
    }
    drop(first);
    put_many(&rig, version + 1..=version + 20).await;
    let all = 1..=version + 20;
    assert_eq!(
        found(&rig, all.clone()).await,
        all.clone().collect::<Vec<_>>()
    );
    rig.delete(b"k3", version + 30).await;
    rig.kill(|_| ());
    assert_eq!(
        found(&rig, all.clone()).await,
        all.filter(|v| *v != 3).collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn without_space_values_are_refused_deletions_pass_and_writing_resumes() {
    let rig = Rig::new();
    put_many(&rig, 1..=10).await;
    let reserve = rig.shared().reserve_bytes.swap(u64::MAX, Ordering::Relaxed);
    assert_eq!(
        rig.try_put(b"k", 11, noise(0, 100).into()).await,
        Err(Failure::OutOfSpace)
    );
    rig.delete(b"k1", 12).await;
    assert_eq!(rig.version_of(b"k1").await, None);
    assert_eq!(rig.version_of(b"k2").await, Some(2));
    rig.shared().reserve_bytes.store(reserve, Ordering::Relaxed);
    rig.put(b"k", 13, noise(0, 100)).await;
}

#[tokio::test]
async fn without_space_oldest_generations_go_first() {
    let rig = Rig::new();
    put_many(&rig, 1..=10).await;
    rig.roll().await;
    put_many(&rig, 11..=20).await;
    rig.shared()
        .reserve_bytes
        .store(u64::MAX, Ordering::Relaxed);
    rig.shared().wake_upkeep();
    within(|| rig.tier().usage().generations == 1).await;
    assert_eq!(found(&rig, 1..=20).await, (11..=20).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_refused_write_costs_one_generation_however_many_bytes_are_free() {
    let rig = Rig::new();
    put_many(&rig, 1..=10).await;
    rig.roll().await;
    put_many(&rig, 11..=20).await;
    rig.roll().await;
    put_many(&rig, 21..=30).await;
    for (left, first) in [(2, 11), (1, 21), (1, 21)] {
        rig.shared().set_refused();
        within(|| !rig.shared().is_disk_full()).await;
        assert_eq!(rig.tier().usage().generations, left);
        let expected: Vec<_> = (first..=30).collect();
        assert_eq!(found(&rig, 1..=30).await, expected);
    }
    put_many(&rig, 31..=31).await;
}

#[tokio::test]
async fn nothing_relies_on_a_log_whose_sync_failed() {
    let rig = Rig::new();
    rig.put(b"k", 1, noise(1, 100)).await;
    rig.roll().await;
    rig.put(b"k", 2, noise(2, 100)).await;
    let newest = rig.shared().generations.newest().unwrap();
    within(|| !newest.log.is_dirty()).await;
    newest.log.fail_syncs();
    let source = Arc::clone(&rig.shared().generations.snapshot()[1]);
    within(|| source.is_sealed()).await;
    // The record that replaced the older one may be lost with the power.
    let target = rewrite(rig.shared(), &source, 0).unwrap();
    let switched = switch(rig.shared(), &source, target);
    assert!(matches!(switched, Err(Stopped::Failed(_))));
    assert!(matches!(rig.tier().mark().await, Err(DiskError::Io { .. })));
    assert!(newest.has_failed());
    rig.put(b"k", 3, noise(3, 100)).await;
    assert_ne!(rig.newest_id(), newest.id);
}

#[tokio::test]
async fn deletions_fail_with_the_record_of_their_batch_that_they_rely_on() {
    let rig = Rig::with(|options| options.durability = Durability::Fsync);
    rig.put(b"k", 1, noise(1, 100)).await;
    rig.put(b"l", 1, noise(1, 100)).await;
    within(|| rig.shared().has_spare()).await;
    let newest = rig.shared().generations.newest().unwrap();
    newest.log.fail_syncs();
    {
        let spare = rig.shared().spare.lock();
        spare.ready.as_ref().unwrap().log.fail_syncs();
    }
    let group = AckGroup::new();
    // The writer sleeps until the test waits, and takes all in one batch. The later one of a pair
    // relies on the tombstone of the first.
    for (index, (key, version)) in [("k", 3), ("k", 5), ("l", 5), ("l", 3)]
        .into_iter()
        .enumerate()
    {
        let write = Write {
            space: SPACE,
            key: key.into(),
            kind: WriteKind::Tombstone { version },
            ack: Some(group.ack(index)),
        };
        rig.tier().try_write(write).unwrap();
    }
    let failed = [0_usize, 1, 2, 3].map(|index| (index, Failure::Unavailable));
    assert_eq!(group.wait().await, failed);
    assert_eq!(rig.version_of(b"k").await, Some(1));
    assert_eq!(rig.version_of(b"l").await, Some(1));
}

/// The codecs of this build, from which records are made.
fn specs() -> Vec<CodecSpec> {
    let all = ["none", "lz4", "snappy", "zlib:6", "zstd:3"];
    all.iter().filter_map(|name| name.parse().ok()).collect()
}

/// A record as the writer makes it.
fn stored(spec: CodecSpec, key: &[u8], raw: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    fonn_codec::encode(spec, 16, raw, &mut frame).unwrap();
    let meta = Meta {
        cas_override: Some(4),
        ..Meta::new(9, 7, 1 << 41)
    };
    let frame_len = u32::try_from(frame.len()).unwrap();
    let mut out = Vec::new();
    write_head(&mut out, (SPACE, key), &Fact::Put(meta), &frame, frame_len);
    out.extend_from_slice(&frame);
    out
}

/// What a read makes of the bytes of a record.
fn value_in(record: &[u8], len_max: usize) -> Option<Bytes> {
    let frame = Bytes::copy_from_slice(Record::parse(record)?.frame);
    let decoded = value::decode(&frame, len_max, &IdleCpus::default());
    decoded.ok().map(|decoded| decoded.value)
}

#[test]
fn every_change_of_one_byte_of_a_small_record_is_detected() {
    let values = [vec![], b"short".to_vec(), text_of(300), noise(1, 100)];
    for spec in specs() {
        for raw in &values {
            let good = stored(spec, b"some key", raw);
            assert_eq!(value_in(&good, 1 << 20).as_ref(), Some(&raw.clone().into()));
            let mut bad = good.clone();
            for (at, byte) in good.iter().enumerate() {
                for change in 1..=255 {
                    bad[at] = byte ^ change;
                    let read = value_in(&bad, 1 << 20);
                    assert_eq!(read, None, "{spec} {} at {at} by {change:#x}", raw.len());
                }
                bad[at] = *byte;
            }
        }
    }
    // A tombstone has no frame.
    let mut tombstone = Vec::new();
    let fact = Fact::Tombstone(77);
    write_head(&mut tombstone, (SPACE, b"some key"), &fact, &[], 0);
    for at in 0..tombstone.len() {
        for change in 1..=255 {
            let mut bad = tombstone.clone();
            bad[at] ^= change;
            assert_eq!(Record::parse(&bad), None, "at {at} by {change:#x}");
        }
    }
}

#[test]
fn random_changes_of_one_byte_of_a_large_record_are_detected() {
    let raw = [text_of(200_000), noise(2, 100_000)].concat();
    for spec in specs() {
        let mut record = stored(spec, b"some key", &raw);
        for place in noise(3, 8 * 100).chunks(8) {
            let place = u64::from_le_bytes(place.try_into().unwrap());
            let (at, change) = (place as usize % record.len(), (place >> 56) as u8 | 1);
            record[at] ^= change;
            assert_eq!(value_in(&record, 1 << 20), None, "{spec} at {at}");
            record[at] ^= change;
        }
        assert_eq!(value_in(&record, 1 << 20), Some(raw.clone().into()));
    }
}

fn text_of(len: usize) -> Vec<u8> {
    super::compaction::text(8, len)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// A process that can write the files can mend checksums, too: that costs the entry, not the
    /// process.
    #[test]
    fn a_record_with_any_fields_and_right_checksums_does_no_harm(
        spec in proptest::sample::select(specs()),
        len in 0..2000_usize,
        changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut record = stored(spec, b"some key", &text_of(len));
        for (at, byte) in changes {
            let at = at.index(record.len());
            record[at] = byte;
        }
        let frame_start = HEAD_LEN + b"some key".len();
        if let Some((head, payload)) = record[frame_start..].split_first_chunk_mut::<16>() {
            let crc = crc32c::crc32c_append(crc32c::crc32c(&head[..12]), payload);
            head[12..].copy_from_slice(&crc.to_le_bytes());
        }
        let bound = record.len().min(frame_start + BOUND_FRAME_LEN);
        let crc = crc32c::crc32c(&record[4..bound]);
        record[..4].copy_from_slice(&crc.to_le_bytes());
        if let Some(value) = value_in(&record, 4000) {
            prop_assert!(value.len() <= 4000);
        }
    }
}
