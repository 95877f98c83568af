//! Kills, torn files, damage, refusals of the file system.

use super::*;

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
    assert!(
        rig.stats().records_replayed > 0,
        "the index was not behind the log: nothing was tested"
    );
    rig.kill(|_| ());
    assert_eq!(found(&rig, 1..=500).await, expected);
}

#[tokio::test]
async fn a_torn_tail_costs_the_torn_record_and_writing_goes_on() {
    let mut rig = Rig::new();
    put_many(&rig, 1..=20).await;
    rig.kill(|dir| cut_log(dir, 1, 10));
    assert_eq!(found(&rig, 1..=20).await, (1..=19).collect::<Vec<_>>());
    put_many(&rig, 21..=30).await;
    rig.kill(|_| ());
    assert_eq!(
        found(&rig, 1..=30).await,
        (1..=19).chain(21..=30).collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn an_index_that_knows_more_than_the_log_never_shows_other_bytes() {
    // With and without a checkpoint behind the end of the log.
    for (written, lost, goes_on) in [(20, 5, true), (800, 700, false)] {
        let mut rig = Rig::new();
        put_many(&rig, 1..=written).await;
        // A clean stop writes the whole index; then the log loses its last records.
        rig.close();
        cut_log(&rig.options.dir, 1, lost * 3063);
        rig.open();
        assert_eq!(rig.newest_id() == 1, goes_on);
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

#[tokio::test]
async fn when_records_are_lost_for_good_what_they_may_have_hidden_is_dropped_too() {
    let mut rig = Rig::new();
    put_many(&rig, 1..=10).await;
    rig.roll().await;
    rig.put(b"first", 11, noise(11, 3000)).await;
    for version in 1..=10 {
        rig.delete(format!("k{version}").as_bytes(), 20 + version)
            .await;
    }
    rig.close();
    let newest = generation(&rig.options.dir, 2);
    std::fs::write(newest.join("index").join("version"), b"rubbish").unwrap();
    let mut bytes = std::fs::read(newest.join("values")).unwrap();
    // The first record stays; from the first tombstone on all are out of reach.
    bytes[3100] ^= 1;
    std::fs::write(newest.join("values"), bytes).unwrap();
    rig.open();
    assert_eq!(rig.version_of(b"first").await, Some(11));
    assert_eq!(found(&rig, 1..=10).await, Vec::<u64>::new());
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
async fn a_damaged_state_starts_empty_because_flushes_are_not_known() {
    let mut rig = Rig::new();
    put_many(&rig, 1..=10).await;
    rig.tier()
        .save_state(&StoreState {
            version_ceiling: 99,
            flushes: vec![],
        })
        .unwrap();
    rig.close();
    std::fs::write(rig.options.dir.join("state"), b"rubbish").unwrap();
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
    let refused = DiskTier::open(rig.options.clone(), Arc::<Witness>::default())
        .err()
        .unwrap();
    assert!(matches!(refused, DiskError::Format { .. }), "{refused}");
    std::fs::write(&format, "fonn-disk 1\n").unwrap();
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
