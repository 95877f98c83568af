//! The tier below: what it is given to read, what is dropped only when it has passed, and what it
//! is told.

use std::collections::HashMap;

use fonn_cold_tier::Found;

use super::damage::damage_index_block;
use super::*;
use crate::tail::{Tailed, read, unread};

/// A tier below that remembers what it was told.
struct Bucket {
    passed: Mutex<TailPosition>,
    /// What it answers as long as it has not passed the generation.
    leave: Mutex<Leave>,
    asked: Mutex<Vec<TailPosition>>,
    lost: Mutex<HashMap<Vec<u8>, Version>>,
    /// How many records it was told of at once.
    told: Mutex<Vec<usize>>,
    may_have: Mutex<bool>,
    /// Whether it remembers what is lost.
    remembers: Mutex<bool>,
}

impl Bucket {
    fn new(leave: Leave) -> Arc<Self> {
        Arc::new(Self {
            passed: Mutex::default(),
            leave: Mutex::new(leave),
            asked: Mutex::default(),
            lost: Mutex::default(),
            told: Mutex::default(),
            may_have: Mutex::new(false),
            remembers: Mutex::new(true),
        })
    }
}

impl Below for Bucket {
    fn find(&self, _: Space, _: &[u8]) -> Found {
        Found::Absent
    }

    fn may_have(&self, _: Space, _: &[u8]) -> bool {
        *self.may_have.lock()
    }

    fn passed(&self) -> TailPosition {
        *self.passed.lock()
    }

    fn leave(&self, end: TailPosition) -> Leave {
        self.asked.lock().push(end);
        if self.has_passed(end) {
            Leave::Now
        } else {
            *self.leave.lock()
        }
    }

    fn lost(&self, records: &[Leaving]) -> bool {
        self.told.lock().push(records.len());
        let mut lost = self.lost.lock();
        for record in records {
            lost.insert(record.key.clone(), record.version);
        }
        *self.remembers.lock()
    }
}

fn over(bucket: &Arc<Bucket>) -> Rig {
    let below = Arc::clone(bucket) as Arc<dyn Below>;
    Rig::over(Some(below), |options| {
        options.budget_bytes = BUDGET_BYTES_MIN;
        options.compaction_percent = 0;
    })
}

fn keys(tailed: &Tailed) -> Vec<&[u8]> {
    tailed.records.iter().map(|it| &*it.key).collect()
}

fn all(rig: &Rig, from: TailPosition) -> Tailed {
    read(rig.shared(), from, usize::MAX, u64::MAX).unwrap()
}

#[tokio::test]
async fn the_tail_has_the_newest_record_of_each_key_in_the_order_of_writing() {
    let mut rig = Rig::new();
    rig.put(b"a", 1, noise(1, 1000)).await;
    rig.put(b"b", 2, noise(2, 1000)).await;
    rig.roll().await;
    rig.put(b"a", 3, noise(3, 1000)).await;
    rig.delete(b"b", 4).await;
    rig.put(b"c", 5, noise(5, 1000)).await;
    let tailed = all(&rig, TailPosition::default());
    assert_eq!(keys(&tailed), [&b"a"[..], b"b", b"c"]);
    let facts: Vec<Fact> = tailed.records.iter().map(|it| it.fact).collect();
    assert_eq!(facts[0], Fact::Put(Meta::new(3, 7, 0)));
    assert_eq!(facts[1], Fact::Tombstone(4));
    assert!(tailed.records[1].frame.is_empty());

    // From the position behind each record the rest follows; at the end there is nothing, until
    // something is written.
    for at in 0..3 {
        let rest = all(&rig, tailed.records[at].after);
        assert_eq!(keys(&rest), keys(&tailed)[at + 1..]);
    }
    let end = tailed.next;
    assert!(keys(&all(&rig, end)).is_empty());
    assert_eq!(unread(rig.shared(), end, u64::MAX), Unread::default());
    let before = unread(rig.shared(), TailPosition::default(), u64::MAX);
    assert!(before.bytes > 3000 && before.entries >= 3 && before.oldest == Some(1));
    rig.put(b"d", 6, noise(6, 10)).await;
    assert_eq!(keys(&all(&rig, end)), [b"d"]);
    let left = unread(rig.shared(), end, u64::MAX);
    assert_eq!((left.entries, left.oldest), (1, Some(6)));

    // A restart changes no position.
    rig.reopen();
    assert_eq!(keys(&all(&rig, end)), [b"d"]);
    assert_eq!(TailPosition::from_bytes(&end.to_bytes()), end);
    assert_eq!(TailPosition::from_bytes(b"?"), TailPosition::default());
}

#[tokio::test]
async fn the_tail_is_read_in_pieces_and_up_to_a_horizon() {
    let rig = Rig::new();
    for number in 0..20_u64 {
        if number == 10 {
            rig.roll().await;
        }
        let key = format!("{number:02}");
        rig.put(key.as_bytes(), number + 1, noise(number, 1000))
            .await;
    }
    let (mut at, mut seen) = (TailPosition::default(), 0);
    loop {
        let piece = read(rig.shared(), at, 3000, u64::MAX).unwrap();
        if piece.records.is_empty() {
            break;
        }
        assert!(piece.records.len() <= 3);
        assert_eq!(piece.next, piece.records.last().unwrap().after);
        seen += piece.records.len();
        at = piece.next;
    }
    assert_eq!(seen, 20);
    let oldest = rig.shared().generations.snapshot().last().unwrap().id;
    let first = read(rig.shared(), TailPosition::default(), usize::MAX, oldest).unwrap();
    assert_eq!(first.records.len(), 10);
    let none = read(
        rig.shared(),
        TailPosition::default(),
        usize::MAX,
        oldest - 1,
    )
    .unwrap();
    assert!(none.records.is_empty());
}

#[tokio::test]
async fn a_record_of_the_tail_holds_no_memory_but_its_own() {
    let rig = Rig::new();
    rig.tier().keep_tombstones();
    rig.delete(b"a", 1).await;
    rig.delete(b"b", 2).await;
    let tailed = all(&rig, TailPosition::default());
    assert_eq!(keys(&tailed), [b"a", b"b"]);
    assert!(tailed.records.iter().all(|it| it.key.is_unique()));
}

#[tokio::test]
async fn a_damaged_record_is_passed_over() {
    let rig = Rig::new();
    for (number, key) in (1..).zip([b"a", b"b", b"c"]) {
        rig.put(key, number, noise(number, 1000)).await;
    }
    let tailed = all(&rig, TailPosition::default());
    let log = rig.options.dir.join("g0000000001/values");
    let mut bytes = std::fs::read(&log).unwrap();
    let second = tailed.records[0].after.offset as usize;
    for (at, expected) in [(second + 8, 2), (second + 500, 2)] {
        bytes[at] ^= 0x40;
        std::fs::write(&log, &bytes).unwrap();
        assert_eq!(all(&rig, TailPosition::default()).records.len(), expected);
        bytes[at] ^= 0x40;
    }
    // A head that cannot tell how long its record is.
    bytes[second + 4] = 99;
    std::fs::write(&log, &bytes).unwrap();
    assert_eq!(keys(&all(&rig, TailPosition::default())), [b"a", b"c"]);
}

#[tokio::test]
async fn what_the_device_cannot_read_of_a_log_is_passed_over() {
    let rig = Rig::new();
    for (number, key) in (1..).zip([b"a", b"b", b"c"]) {
        rig.put(key, number, noise(number, 1000)).await;
    }
    let tailed = all(&rig, TailPosition::default());
    // Reads behind it fail as those of a bad sector do.
    let log = rig.options.dir.join("g0000000001/values");
    let log = std::fs::File::options().write(true).open(log).unwrap();
    log.set_len(tailed.records[0].after.offset + 500).unwrap();
    let left = all(&rig, TailPosition::default());
    assert_eq!(keys(&left), [b"a"]);
    assert_eq!(left.next, tailed.next);
    rig.put(b"d", 4, noise(4, 1000)).await;
    assert_eq!(keys(&all(&rig, left.next)), [b"d"]);
}

/// Writes until something happens. A write that waits for room does not hold that up.
async fn fill(rig: &Rig, first: Version, until: impl Fn() -> bool) {
    let writes = async {
        for version in first.. {
            let key = format!("fill{version}");
            let value = noise(version, 20_000).into();
            let _ = rig.try_put(key.as_bytes(), version, value).await;
        }
    };
    tokio::select! {
        () = writes => {}
        () = within(until) => {}
    }
}

#[tokio::test]
async fn nothing_is_dropped_before_the_tier_below_has_passed_it() {
    let bucket = Bucket::new(Leave::Wait);
    let rig = over(&bucket);
    rig.put(b"first", 1, noise(1, 100)).await;
    fill(&rig, 2, || !bucket.asked.lock().is_empty()).await;
    rig.tier().wake_upkeep();
    within(|| bucket.asked.lock().len() > 1).await;
    assert_eq!(rig.stats().generations_dropped, 0);
    // It was told what to hurry with before it was asked whether it has it.
    let oldest = rig.shared().generations.snapshot().last().unwrap().id;
    assert_eq!(rig.tier().leaving(), oldest);

    *bucket.passed.lock() = bucket.asked.lock()[0];
    rig.tier().wake_upkeep();
    within(|| rig.stats().generations_dropped == 1).await;
    assert_eq!(rig.version_of(b"first").await, None);
    assert!(bucket.lost.lock().is_empty());
}

#[tokio::test]
async fn what_a_failing_tier_below_lacks_is_told_when_it_is_dropped() {
    let bucket = Bucket::new(Leave::Lossy);
    let rig = over(&bucket);
    rig.put(b"first", 1, noise(1, 100)).await;
    rig.put(b"again", 2, noise(2, 100)).await;
    rig.roll().await;
    rig.put(b"again", 3, noise(3, 100)).await;
    fill(&rig, 4, || rig.stats().generations_dropped > 0).await;
    let lost = bucket.lost.lock();
    assert_eq!(lost.get(&b"first"[..]), Some(&1));
    // A newer one is in another generation.
    assert_ne!(lost.get(&b"again"[..]), Some(&2));
}

#[tokio::test]
async fn nothing_is_dropped_that_the_tier_below_cannot_remember_as_lost() {
    let bucket = Bucket::new(Leave::Lossy);
    *bucket.remembers.lock() = false;
    let rig = over(&bucket);
    rig.put(b"first", 1, noise(1, 100)).await;
    fill(&rig, 2, || bucket.asked.lock().len() > 1).await;
    assert!(bucket.lost.lock().contains_key(&b"first"[..]));
    assert_eq!(rig.stats().generations_dropped, 0);
    assert_eq!(rig.version_of(b"first").await, Some(1));
    *bucket.remembers.lock() = true;
    rig.tier().wake_upkeep();
    within(|| rig.stats().generations_dropped > 0).await;
}

#[tokio::test]
async fn what_is_lost_is_told_in_large_pieces() {
    let bucket = Bucket::new(Leave::Lossy);
    let below = Arc::clone(&bucket) as Arc<dyn Below>;
    let rig = Rig::over(Some(below), |_| ());
    for number in 1..=2000 {
        let key = format!("k{number:04}");
        rig.put(key.as_bytes(), number, &b"v"[..]).await;
    }
    // With these keys it is more than a MiB.
    for number in 2001..=2040 {
        let key = format!("{number:030000}");
        rig.put(key.as_bytes(), number, &b"v"[..]).await;
    }
    rig.roll().await;
    rig.shared()
        .reserve_bytes
        .store(u64::MAX, Ordering::Relaxed);
    rig.tier().wake_upkeep();
    within(|| rig.stats().generations_dropped == 1).await;
    let told = bucket.told.lock();
    assert_eq!((told.len(), told.iter().sum::<usize>()), (2, 2040));
}

#[tokio::test]
async fn what_a_damaged_index_does_not_name_is_told_from_the_log() {
    let bucket = Bucket::new(Leave::Lossy);
    let mut rig = over(&bucket);
    let key = |number: u64| format!("k{number:04}").into_bytes();
    for number in 0..1000 {
        rig.put(&key(number), number + 1, noise(number, 100)).await;
    }
    rig.roll().await;
    rig.put(&key(7), 2000, noise(1, 100)).await;
    damage_index_block(&mut rig, 1).await;
    rig.shared()
        .reserve_bytes
        .store(u64::MAX, Ordering::Relaxed);
    rig.tier().wake_upkeep();
    within(|| rig.stats().generations_dropped == 1).await;
    let lost = bucket.lost.lock();
    for number in (0..1000).filter(|number| *number != 7) {
        assert_eq!(lost.get(&key(number)), Some(&(number + 1)));
    }
    assert_eq!(lost.len(), 999);
}

#[tokio::test]
async fn a_deletion_is_written_if_only_the_tier_below_may_have_the_key() {
    let bucket = Bucket::new(Leave::Now);
    let rig = over(&bucket);
    rig.delete(b"k", 1).await;
    assert!(keys(&all(&rig, TailPosition::default())).is_empty());
    *bucket.may_have.lock() = true;
    rig.delete(b"k", 2).await;
    assert_eq!(keys(&all(&rig, TailPosition::default())), [b"k"]);
}

#[tokio::test]
async fn compaction_keeps_what_the_tier_below_was_not_told() {
    let bucket = Bucket::new(Leave::Now);
    let rig = over(&bucket);
    *bucket.may_have.lock() = true;
    rig.delete(b"deleted", 1).await;
    rig.put(b"kept", 2, noise(2, 1000)).await;
    let before = all(&rig, TailPosition::default());
    rig.roll().await;
    let sealed = || rig.shared().generations.snapshot()[1].clone();
    within(|| sealed().is_sealed()).await;
    let compact_now = || {
        let source = sealed();
        let target = crate::compaction::rewrite(rig.shared(), &source, 0).unwrap();
        crate::compaction::switch(rig.shared(), &source, target).unwrap();
    };
    compact_now();
    let after = all(&rig, TailPosition::default());
    assert_eq!(keys(&after), [&b"deleted"[..], b"kept"]);
    // Positions mean other records now: a reader begins that generation anew.
    assert_eq!(keys(&all(&rig, before.records[0].after)), keys(&after));

    *bucket.passed.lock() = after.next;
    compact_now();
    assert_eq!(keys(&all(&rig, TailPosition::default())), [b"kept"]);
}

#[tokio::test]
async fn what_is_being_read_for_the_tier_below_is_compacted_when_that_is_done() {
    let bucket = Bucket::new(Leave::Now);
    let rig = over(&bucket);
    let candidate = || crate::compaction::candidate(rig.shared()).map(|it| it.id);
    rig.put(b"a", 1, noise(1, 1000)).await;
    rig.put(b"b", 2, noise(2, 1000)).await;
    let read = all(&rig, TailPosition::default());
    rig.roll().await;
    let sealed = rig.shared().generations.snapshot()[1].clone();
    within(|| sealed.is_sealed()).await;
    assert_eq!(candidate(), Some(sealed.id));

    *bucket.passed.lock() = read.records[0].after;
    assert_eq!(candidate(), None);
    *bucket.passed.lock() = read.next;
    assert_eq!(candidate(), Some(sealed.id));
}

/// A loss of power shortens the log, or a kill leaves a newest generation without records, which
/// the next start removes.
#[tokio::test]
async fn what_is_written_while_the_tier_below_is_ahead_of_the_log_is_read() {
    let bucket = Bucket::new(Leave::Now);
    let mut rig = over(&bucket);
    rig.put(b"a", 1, noise(1, 1000)).await;
    for (number, generations) in (2..).zip([0, 1, 9]) {
        let end = all(&rig, TailPosition::default()).next;
        let passed = TailPosition {
            generation: end.generation + generations,
            offset: end.offset + 5000,
            ..end
        };
        *bucket.passed.lock() = passed;
        rig.reopen();
        let key = format!("key {number}");
        rig.put(key.as_bytes(), number, noise(number, 1000)).await;
        let behind = all(&rig, passed);
        assert_eq!(keys(&behind), [key.as_bytes()], "{passed:?}");
        assert!(behind.next > passed, "{passed:?}");
    }
    // At its end, the log is written on.
    *bucket.passed.lock() = all(&rig, TailPosition::default()).next;
    let newest = rig.newest_id();
    rig.reopen();
    assert_eq!(rig.newest_id(), newest);
    assert_eq!(rig.version_of(b"a").await, Some(1));
}

/// Else a node at rest would seem to have nothing of its last generation in the bucket, until
/// something is written.
#[tokio::test]
async fn what_is_compacted_behind_a_reader_at_its_end_is_not_read_again() {
    let bucket = Bucket::new(Leave::Now);
    let rig = over(&bucket);
    rig.put(b"a", 1, noise(1, 1000)).await;
    rig.put(b"b", 2, noise(2, 1000)).await;
    let end = all(&rig, TailPosition::default()).next;
    *bucket.passed.lock() = end;
    rig.roll().await;
    // Twice, since room may be made by writing it anew once more.
    for _ in 0..2 {
        let source = rig.shared().generations.snapshot()[1].clone();
        within(|| source.is_sealed()).await;
        let target = crate::compaction::rewrite(rig.shared(), &source, 0).unwrap();
        crate::compaction::switch(rig.shared(), &source, target).unwrap();
        assert_eq!(unread(rig.shared(), end, u64::MAX), Unread::default());
        assert!(keys(&all(&rig, end)).is_empty());
    }
    rig.put(b"c", 3, noise(3, 1000)).await;
    assert_eq!(keys(&all(&rig, end)), [b"c"]);
    assert_eq!(unread(rig.shared(), end, u64::MAX).oldest, Some(3));
    // A reader of its own begins with what there is.
    let rest = all(&rig, TailPosition::default());
    assert_eq!(keys(&rest), [b"a", b"b", b"c"]);
}
