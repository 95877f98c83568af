//! What a namespace has on disk, and that what it lost costs no other its entries.

use std::sync::atomic::AtomicBool;

use super::*;

const BUSY: Space = Space(7 * 16);
const CALM: Space = Space(9 * 16);

async fn write(rig: &Rig, space: Space, key: &str, meta: Meta, value: Vec<u8>) {
    let group = AckGroup::new();
    let write = Write {
        space,
        key: Bytes::copy_from_slice(key.as_bytes()),
        kind: WriteKind::Put {
            meta,
            value: value.into(),
        },
        ack: Some(group.ack(0)),
    };
    rig.tier().write(write, GRACE).await.unwrap();
    assert_eq!(group.wait().await, []);
}

/// As a quota does it: what is older than `below` counts no more.
fn cut(rig: &Rig, space: Space, below: Version) {
    rig.tier()
        .save_state(&StoreState {
            purges: Vec::new(),
            version_ceiling: u64::MAX / 2,
            flushes: vec![FlushMark {
                space,
                cutoff: below,
                at_ms: 0,
            }],
        })
        .unwrap();
}

#[tokio::test]
async fn a_census_counts_what_a_read_would_find() {
    let mut rig = Rig::new();
    let census = async |rig: &Rig| rig.tier().census(7, 1000).await.unwrap();
    assert_eq!(census(&rig).await, Census::default());
    let value = |n| noise(n, 5000);
    for n in 1..=10 {
        let key = format!("k{n}");
        write(&rig, BUSY, &key, Meta::new(n, 0, 0), value(n)).await;
        write(&rig, CALM, &key, Meta::new(n, 0, 0), value(n)).await;
    }
    let ten = census(&rig).await;
    assert_eq!((ten.entries, ten.spaces()), (10, &[BUSY][..]));
    assert!((50_000..52_000).contains(&ten.bytes), "{ten:?}");
    // Another database of the namespace.
    let other = Space(BUSY.0 + 15);
    write(&rig, other, "k1", Meta::new(20, 0, 0), value(1)).await;
    assert_eq!(census(&rig).await.spaces(), [BUSY, other]);
    rig.roll().await;
    // Written again, deleted, expired.
    write(&rig, BUSY, "k1", Meta::new(21, 0, 0), value(1)).await;
    let expired = Meta::new(22, 0, 999);
    write(&rig, BUSY, "k2", expired, value(2)).await;
    let delete = Write {
        space: BUSY,
        key: Bytes::from_static(b"k3"),
        kind: WriteKind::Tombstone { version: 23 },
        ack: None,
    };
    rig.tier().write(delete, GRACE).await.unwrap();
    rig.tier().barrier().await;
    assert_eq!(census(&rig).await.entries, 9);
    cut(&rig, BUSY, 6);
    // Four and five go; two and three are gone, and one is newer.
    assert_eq!(census(&rig).await.entries, 7);
    let before = census(&rig).await;
    rig.reopen();
    assert_eq!(census(&rig).await, before);
    let left = before.cut(25_500).unwrap();
    assert_eq!((left.below, left.entries), (8, 2), "{before:?}");
}

#[tokio::test]
async fn a_census_of_many_entries_goes_in_steps() {
    let rig = Rig::new();
    for version in 1..=10_000 {
        let write = Write {
            space: Space(BUSY.0 + (version % 2) as u32),
            key: Bytes::from(format!("k{version}")),
            kind: WriteKind::Put {
                meta: Meta::new(version, 0, 0),
                value: Bytes::from_static(b"v"),
            },
            ack: None,
        };
        rig.tier().write(write, GRACE).await.unwrap();
    }
    rig.tier().barrier().await;
    let census = rig.tier().census(7, 0).await.unwrap();
    assert_eq!(census.entries, 10_000);
    assert_eq!(census.spaces().len(), 2);
}

/// Makes room when the tier asks for it, on a thread of its own, as the compaction thread does with
/// quotas. That thread does not run in these tests: it also removes outdated records in the
/// background, and how many it has removed when room runs out depends on the machine.
struct Reclaimer {
    is_over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Reclaimer {
    fn of(rig: &Rig) -> Self {
        let shared = Arc::clone(&rig.tier().handle.shared);
        shared.reclaim.set_on(true);
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            while !over.load(Ordering::Acquire) {
                crate::compaction::reclaim::run(&shared);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Self {
            is_over,
            thread: Some(thread),
        }
    }
}

impl Drop for Reclaimer {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        let joined = self.thread.take().unwrap().join();
        assert!(joined.is_ok() || std::thread::panicking());
    }
}

/// Fills half of the disk with entries of one namespace, and has another write several times the
/// budget, which holds no more than a fraction of it. How many of the first are left.
async fn survivors(is_reclaiming: bool) -> (u64, u64, DiskStatsSnapshot) {
    const VALUE_LEN: usize = 20_000;
    let rig = Rig::with(|options| options.budget_bytes = 48 << 20);
    let _reclaimer = is_reclaiming.then(|| Reclaimer::of(&rig));
    let mut version = 0;
    let calm = (24 << 20) / VALUE_LEN as u64;
    for n in 0..calm {
        version += 1;
        let meta = Meta::new(version, 0, 0);
        write(&rig, CALM, &format!("c{n}"), meta, noise(n, VALUE_LEN)).await;
    }
    for n in 0..(144 << 20) / VALUE_LEN as u64 {
        version += 1;
        let meta = Meta::new(version, 0, 0);
        write(
            &rig,
            BUSY,
            &format!("b{n}"),
            meta,
            noise(version, VALUE_LEN),
        )
        .await;
        if n % 20 == 0 {
            cut(&rig, BUSY, version - 20);
        }
    }
    assert!(rig.tier().usage().bytes_on_disk <= 48 << 20);
    let mut left = 0;
    for n in 0..calm {
        let found = rig.tier().get(CALM, format!("c{n}").as_bytes()).await;
        if let Some(entry) = found.unwrap() {
            assert_eq!(entry.value, noise(n, VALUE_LEN));
            left += 1;
        }
    }
    (left, calm, rig.stats())
}

#[tokio::test]
async fn what_one_namespace_lost_does_not_push_out_another() {
    let (left, calm, stats) = survivors(true).await;
    assert_eq!(left, calm, "{stats:?}");
    assert!(stats.reclaimed_bytes > 40 << 20, "{stats:?}");
    let (left, calm, stats) = survivors(false).await;
    assert_eq!(stats.reclaimed_bytes, 0);
    assert!(left < calm / 2, "without it, {left} of {calm} are left");
}

#[tokio::test]
async fn when_nothing_is_useless_the_oldest_goes_as_ever() {
    let rig = Rig::with(|options| {
        options.budget_bytes = 24 << 20;
        options.compaction_percent = 25;
    });
    rig.tier().set_reclaiming(true);
    for n in 1..=4000 {
        let meta = Meta::new(n, 0, 0);
        write(&rig, CALM, &format!("c{n}"), meta, noise(n, 20_000)).await;
    }
    assert!(rig.tier().usage().bytes_on_disk <= 24 << 20);
    assert_eq!(rig.stats().writes_failed, 0);
    assert!(rig.stats().generations_dropped > 3);
    assert!(rig.tier().get(CALM, b"c4000").await.unwrap().is_some());
    assert!(rig.tier().get(CALM, b"c1").await.unwrap().is_none());
}

#[tokio::test]
async fn many_small_remains_are_merged() {
    let rig = Rig::with(|options| {
        options.budget_bytes = 256 << 20;
        options.compaction_percent = 25;
    });
    rig.tier().set_reclaiming(true);
    let count = crate::compaction::reclaim::GENERATIONS_MANY + 6;
    for n in 0..count as u64 {
        let meta = Meta::new(n + 1, 0, 0);
        write(&rig, CALM, &format!("c{n}"), meta, noise(n, 2000)).await;
        rig.roll().await;
    }
    let generations = || rig.tier().usage().generations;
    within(|| generations() <= crate::compaction::reclaim::GENERATIONS_MANY).await;
    for n in 0..count as u64 {
        let found = rig.tier().get(CALM, format!("c{n}").as_bytes()).await;
        assert_eq!(found.unwrap().unwrap().value, noise(n, 2000));
    }
}
