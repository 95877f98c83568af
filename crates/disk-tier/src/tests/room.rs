//! The budget in its corners: no write may exceed it, whichever thread writes and whatever is not
//! removed yet.

use fonn_cold_tier::Found;

use super::compaction::text;
use super::eviction::{carry, carry_of, fill_until, small};
use super::*;
use crate::compaction::reclaim::Progress;
use crate::compaction::{self, Stopped};
use crate::directory::disk_bytes;

/// A tier below that lets nothing go: no room is made.
struct Holding;

impl Below for Holding {
    fn find(&self, _: Space, _: &[u8]) -> Found {
        Found::Absent
    }

    fn may_have(&self, _: Space, _: &[u8]) -> bool {
        false
    }

    fn passed(&self) -> TailPosition {
        TailPosition::default()
    }

    fn leave(&self, _: TailPosition) -> Leave {
        Leave::Wait
    }

    fn lost(&self, _: &[Leaving]) -> bool {
        true
    }
}

/// A disk that is as full as writes make it, and of which nothing is dropped; the number of its
/// entries.
async fn full() -> (Rig, u64) {
    let rig = Rig::over(Some(Arc::new(Holding)), |options| {
        options.budget_bytes = BUDGET_BYTES_MIN;
    });
    let is_full = || rig.tier().usage().bytes_on_disk > BUDGET_BYTES_MIN * 92 / 100;
    let next = fill_until(&rig, 1, is_full).await;
    (rig, next - 1)
}

/// What no thread reserves: a new generation, and what an index takes beyond what is estimated for
/// it.
const UNRESERVED: u64 = 300 << 10;

fn assert_within_budget(rig: &Rig) {
    let counted = rig.tier().usage().bytes_on_disk;
    assert!(
        counted <= BUDGET_BYTES_MIN + UNRESERVED,
        "{counted} bytes are counted"
    );
    assert_directory_within_budget(rig);
}

fn assert_directory_within_budget(rig: &Rig) {
    let found = disk_bytes(&rig.options.dir).unwrap();
    assert!(
        found <= BUDGET_BYTES_MIN + BUDGET_BYTES_MIN / 10,
        "{found} bytes are there"
    );
}

#[tokio::test]
async fn second_chances_lead_up_to_the_budget_and_not_past_it() {
    let (rig, entries) = full().await;
    for number in 1..=entries / 2 {
        let key = format!("fill{number}");
        carry(&rig, carry_of(&rig, key.as_bytes())).await;
    }
    let stats = rig.stats();
    assert!(stats.carried > 10, "{stats:?}");
    assert!(stats.carries_skipped > 100, "{stats:?}");
    assert_within_budget(&rig);
}

#[tokio::test]
async fn compaction_leads_up_to_the_budget_and_not_past_it() {
    let (rig, _) = full().await;
    let shared = rig.shared();
    let source = Arc::clone(&shared.generations.snapshot()[1]);
    within(|| source.is_sealed()).await;
    let before = rig.tier().usage().bytes_on_disk;
    // As when room is asked for: then it does not wait.
    shared.reclaim.set_on(true);
    shared.reclaim.set(Progress::Asked);
    let rewritten = compaction::rewrite(shared, &source, 0);
    assert!(matches!(rewritten, Err(Stopped::NoSpace)));
    assert_within_budget(&rig);
    shared.set_compaction_bytes(0);
    assert!(rig.tier().usage().bytes_on_disk <= before + (200 << 10));
    // Nor is it begun when it is known that there is no room for it.
    let planned = source.disk_bytes();
    let rewritten = compaction::rewrite(shared, &source, planned);
    assert!(matches!(rewritten, Err(Stopped::NoSpace)));
    shared.reclaim.set(Progress::Idle);
}

#[tokio::test]
async fn what_readers_hold_counts_until_it_is_removed() {
    let rig = Rig::with(|options| {
        options.budget_bytes = BUDGET_BYTES_MIN;
        options.room_wait = Duration::from_millis(100);
    });
    let deadline = Instant::now() + GRACE;
    let mut version = 1;
    let mut held = Vec::new();
    // A reader holds everything that is dropped; everything that goes is hot.
    while rig.stats().generations_dropped < 5 {
        assert!(Instant::now() < deadline, "nothing is dropped");
        let key = format!("fill{version}");
        rig.witness.kept.lock().insert(key.clone().into_bytes());
        let value = noise(version, 20_000);
        let written = rig.try_put(key.as_bytes(), version, value.into()).await;
        assert_within_budget(&rig);
        if written.is_err() && rig.stats().generations_dropped > 0 {
            break;
        }
        if version % 50 == 0 {
            held.push(rig.shared().generations.snapshot());
        }
        version += 1;
    }
    let is_there = |id| rig.options.dir.join(format!("g{id:010}")).exists();
    assert!(is_there(1), "nobody held it");
    drop(held);
    within(|| !is_there(1)).await;
    rig.put(b"one more", version + 1, noise(1, 20_000)).await;
    assert_within_budget(&rig);
}

#[tokio::test]
async fn a_large_value_gets_its_room_before_the_disk_is_full() {
    let rig = small();
    let len = 2_900_000;
    let is_high = || rig.tier().usage().bytes_on_disk > 13 << 20;
    let next = fill_until(&rig, 1, is_high).await;
    // It would lead past what writes may take, and what is there is below what makes room.
    for version in next..next + 3 {
        rig.put(format!("large{version}").as_bytes(), version, noise(1, len))
            .await;
        assert_within_budget(&rig);
    }
    // One that can never be stored costs nothing.
    let generations = rig.tier().usage().generations;
    let refused = rig
        .try_put(b"too large", next + 9, noise(1, 6 << 20).into())
        .await;
    assert_eq!(refused, Err(Failure::OutOfSpace));
    assert!(rig.tier().usage().generations + 2 >= generations);
}

#[tokio::test]
async fn the_budget_holds_while_large_values_come_are_compacted_read_and_dropped() {
    let mut rig = Rig::with(|options| {
        options.budget_bytes = BUDGET_BYTES_MIN;
        options.fresh = "lz4".parse().unwrap();
        options.compacted = "zstd:1".parse().unwrap();
        options.compaction_percent = 100;
    });
    let mut random = fonn_base::random::SplitMix64::new(0x600d);
    for version in 1..=150_u64 {
        let len = 100_000 + random.below(2_800_000) as usize;
        let value = match random.below(2) {
            0 => noise(version, len),
            _ => text(version, len),
        };
        let key = format!("k{}", random.below(24));
        if random.below(3) == 0 {
            rig.witness.kept.lock().insert(key.clone().into_bytes());
        }
        rig.put(key.as_bytes(), version, value).await;
        for _ in 0..4 {
            let key = format!("k{}", random.below(24));
            rig.get(key.as_bytes()).await;
            // What is counted may be more for a moment: what moves from one part to the next counts
            // twice.
            assert_directory_within_budget(&rig);
        }
        if version % 50 == 0 {
            rig.reopen();
            assert_directory_within_budget(&rig);
        }
    }
}
