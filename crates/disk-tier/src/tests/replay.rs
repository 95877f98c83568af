//! Damage in what opening reads of a log, because the index does not know it: what it costs, and
//! what it must never show.

use fonn_base::random::SplitMix64;

use super::*;
use crate::log::Log;
use crate::record::{BOUND_FRAME_LEN, HEAD_LEN, write_head};

pub(super) fn log_of(dir: &Path, id: u64) -> std::path::PathBuf {
    dir.join(format!("g{id:010}")).join("values")
}

/// Makes an index useless, so that all of the log is read again.
fn break_index(dir: &Path, id: u64) {
    let index = dir.join(format!("g{id:010}")).join("index");
    std::fs::write(index.join("version"), b"rubbish").unwrap();
}

fn change(path: &Path, places: &[usize], by: u8) {
    let mut bytes = std::fs::read(path).unwrap();
    for place in places {
        bytes[*place] ^= by;
    }
    std::fs::write(path, bytes).unwrap();
}

/// A record of the newest log: where it is, whose, and what a read is to find if it is the newest.
pub(super) struct Written {
    pub(super) offset: usize,
    pub(super) key: Vec<u8>,
    pub(super) version: Option<Version>,
}

pub(super) fn records_of(path: &Path) -> Vec<Written> {
    let log = Log::open(path).unwrap();
    let mut records = log.records(0);
    let mut all = Vec::new();
    while let Some(record) = records.next().unwrap() {
        all.push(Written {
            offset: usize::try_from(record.offset).unwrap(),
            key: record.key().to_vec(),
            version: match record.fact {
                Fact::Put(meta) => Some(meta.version),
                Fact::Tombstone(_) => None,
            },
        });
    }
    all
}

/// Every key in the older generation; in the newer one sets, overwrites and deletes of these.
async fn written() -> Rig {
    let rig = Rig::new();
    let mut random = SplitMix64::new(5);
    for key in 0..20_u64 {
        rig.put(format!("key {key}").as_bytes(), 1 + key, noise(key, 400))
            .await;
    }
    rig.roll().await;
    for version in 100..170 {
        let key = format!("key {}", random.below(20));
        if random.below(4) == 0 {
            rig.delete(key.as_bytes(), version).await;
        } else {
            let len = [0, 9, 300, 3000][random.below(4) as usize];
            rig.put(key.as_bytes(), version, noise(version, len)).await;
        }
    }
    rig
}

/// Bytes of a record that its own checksum covers: a damage there hides whose record it was.
fn bound_of(record: &Written) -> usize {
    HEAD_LEN + record.key.len() + BOUND_FRAME_LEN
}

/// What a read of each key is to find when the newest record of `lost` is none.
fn expected(records: &[Written], lost: usize) -> Vec<(Vec<u8>, Option<Version>)> {
    let newest = |key: &[u8]| records.iter().rposition(|record| record.key == key);
    (0..20_u64)
        .map(|number| {
            let key = format!("key {number}").into_bytes();
            let version = match newest(&key) {
                Some(at) if at == lost => None,
                Some(at) => records[at].version,
                None => Some(1 + number),
            };
            (key, version)
        })
        .collect()
}

#[tokio::test]
async fn one_damaged_byte_costs_its_record_or_all_that_is_older_and_shows_nothing_older() {
    let rig = written().await;
    let mut random = SplitMix64::new(0x0da6);
    for round in 0..48 {
        let copy = rig.dir.path().join(format!("round-{round}"));
        // As a kill leaves it, or with an index that is of no use.
        copy_all(&rig.options.dir, &copy);
        let path = log_of(&copy, 2);
        let records = records_of(&path);
        let len = std::fs::metadata(&path).unwrap().len();
        // Heads are few of all bytes: every other time one of them.
        let place = if round % 2 == 0 {
            random.below(len) as usize
        } else {
            let at = random.below(records.len() as u64) as usize;
            records[at].offset + random.below(60) as usize
        };
        let place = place.min(len as usize - 1);
        let lost = records.iter().rposition(|it| it.offset <= place).unwrap();
        change(&path, &[place], random.below(255) as u8 + 1);
        if round % 3 == 0 {
            break_index(&copy, 2);
        }
        let observer = Arc::<Witness>::default();
        let options = DiskOptions {
            dir: copy.clone(),
            ..rig.options.clone()
        };
        let tier = DiskTier::open(options, observer, None).unwrap();
        // Without the index, all that is older than a record of an unknown key goes.
        let looked_at = u64::from(round % 3 == 0);
        let is_unknown = place - records[lost].offset < bound_of(&records[lost]);
        let broken = looked_at * u64::from(is_unknown);
        for (key, version) in expected(&records, lost) {
            let version = version.filter(|_| broken == 0);
            let found = tier.get(SPACE, &key).await.unwrap();
            let context = format!("round {round}: byte {place}, record {lost}, {key:?}");
            assert_eq!(
                found.as_ref().map(|it| it.meta.version),
                version,
                "{context}"
            );
        }
        let stats = tier.stats().snapshot();
        // Opening need not look at what the index knows.
        let counts = (stats.records_damaged, stats.generations_broken);
        assert_eq!(
            counts,
            (looked_at - broken, broken),
            "round {round}: byte {place}"
        );
        assert_eq!(stats.log_bytes_cut, 0);
        assert!(tier.close(GRACE));
        std::fs::remove_dir_all(copy).unwrap();
    }
}

#[tokio::test]
async fn what_the_index_knows_needs_no_more_of_the_log() {
    let mut rig = written().await;
    rig.close();
    let path = log_of(&rig.options.dir, 2);
    let records = records_of(&path);
    for lost in [10, 40, records.len() - 1] {
        let copy = rig.dir.path().join(format!("copy-{lost}"));
        copy_all(&rig.options.dir, &copy);
        let at = records[lost].offset;
        // More than one byte: the record itself does not tell whose it was.
        change(&log_of(&copy, 2), &[at + 1, at + 8, at + 30, at + 46], 0x5a);
        let mut rig = Rig::with(|options| options.dir.clone_from(&copy));
        for (key, version) in expected(&records, lost) {
            assert_eq!(rig.version_of(&key).await, version, "{lost}: {key:?}");
        }
        assert_eq!(rig.stats().generations_broken, 0);
        // It goes on being written, and the next start finds the same.
        rig.put(b"one more", 1000, noise(1, 50)).await;
        rig.reopen();
        for (key, version) in expected(&records, lost) {
            assert_eq!(rig.version_of(&key).await, version, "{lost}: {key:?}");
        }
        assert_eq!(rig.version_of(b"one more").await, Some(1000));
    }
}

#[tokio::test]
async fn when_the_keys_of_lost_records_are_unknown_all_that_is_older_goes() {
    let mut rig = written().await;
    rig.close();
    let path = log_of(&rig.options.dir, 2);
    let records = records_of(&path);
    let at = records[10].offset;
    change(&path, &[at + 1, at + 8, at + 30, at + 46], 0x5a);
    break_index(&rig.options.dir, 2);
    rig.open();
    for key in 0..20 {
        let key = format!("key {key}");
        assert_eq!(rig.version_of(key.as_bytes()).await, None, "{key}");
    }
    assert_eq!(rig.stats().generations_broken, 1);
    rig.put(b"key 1", 1000, noise(1, 50)).await;
    assert_eq!(rig.version_of(b"key 1").await, Some(1000));
}

#[tokio::test]
async fn a_record_inside_a_value_is_never_taken_for_one() {
    let mut forged = Vec::new();
    let fact = Fact::Put(Meta::new(1 << 40, 0, 0));
    let mut frame = Vec::new();
    fonn_codec::encode(fonn_codec::CodecSpec::none(), 0, b"poison", &mut frame).unwrap();
    let frame_len = u32::try_from(frame.len()).unwrap();
    write_head(&mut forged, (SPACE, b"victim"), &fact, &frame, frame_len);
    forged.extend_from_slice(&frame);
    for damaged in [&[2][..], &[9], &[1, 8, 30, 46], &[40, 41]] {
        let mut rig = Rig::new();
        rig.put(b"victim", 1, noise(1, 100)).await;
        rig.put(b"carrier", 2, forged.repeat(20)).await;
        rig.put(b"behind", 3, noise(3, 100)).await;
        rig.close();
        let path = log_of(&rig.options.dir, 1);
        let at = records_of(&path)[1].offset;
        let places: Vec<_> = damaged.iter().map(|place| at + place).collect();
        change(&path, &places, 0x11);
        break_index(&rig.options.dir, 1);
        rig.open();
        let victim = rig.version_of(b"victim").await;
        assert_eq!(victim, None, "{damaged:?}");
        assert_eq!(rig.version_of(b"carrier").await, None, "{damaged:?}");
    }
}

/// A record that begins so many bytes before a page ends, behind a filler up to there.
fn across_pages(bytes: &mut Vec<u8>, before: usize) -> usize {
    let put = |out: &mut Vec<u8>, key: &[u8], frame: &[u8]| {
        let frame_len = u32::try_from(frame.len()).unwrap();
        write_head(out, (SPACE, key), &Fact::Tombstone(500), frame, frame_len);
        out.extend_from_slice(frame);
    };
    let page = (bytes.len() + 200).next_multiple_of(4096);
    let filler = page - before - bytes.len() - HEAD_LEN - b"filler".len();
    put(bytes, b"filler", &vec![1; filler]);
    assert_eq!(bytes.len(), page - before);
    put(bytes, &[b'k'; 100], &[1; 10_000]);
    page
}

#[tokio::test]
async fn pages_that_were_never_written_are_cut_off_and_counted() {
    // Bytes of a head, or of a head and a key, before a page ends, and whether the page before that
    // border is lost or the one behind it.
    let across =
        [20, 1, HEAD_LEN - 1, HEAD_LEN + 5].map(|before| [(before, true), (before, false)]);
    let cases = across.concat();
    for lost in std::iter::once(None).chain(cases.into_iter().map(Some)) {
        let mut rig = written().await;
        let mut cut = 0;
        rig.kill(|dir| {
            let path = log_of(dir, 2);
            let mut bytes = std::fs::read(&path).unwrap();
            let mut intact = bytes.len();
            if let Some((before, is_first)) = lost {
                let page = across_pages(&mut bytes, before);
                intact = page - before;
                let zeros = match is_first {
                    true => intact..page,
                    false => page..page + 4096,
                };
                bytes[zeros].fill(0);
            } else {
                bytes.resize(bytes.len() + 10_000, 0);
            }
            cut = bytes.len() - intact;
            std::fs::write(&path, bytes).unwrap();
        });
        let records = records_of(&log_of(&rig.options.dir, 2));
        for (key, version) in expected(&records, usize::MAX) {
            assert_eq!(rig.version_of(&key).await, version, "{key:?}");
        }
        let stats = rig.stats();
        assert_eq!(stats.log_bytes_cut, cut as u64, "{lost:?}");
        assert_eq!(stats.generations_broken, 0, "{lost:?}");
    }
}
