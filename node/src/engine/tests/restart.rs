//! Flushes and versions across restarts and with a clock that jumps.

use std::task::{Context, Waker};

use fonn_base::hlc::VersionRange;

use super::*;

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// How many milliseconds the versions are ahead of the wall clock.
fn ahead_ms(rig: &Rig) -> u64 {
    let newest_ms = fonn_base::hlc::wall_ms(rig.engine().ledger.hlc.last());
    newest_ms.saturating_sub(rig.clock.clock().wall_ms())
}

#[tokio::test]
async fn a_flush_survives_a_restart_and_leaves_what_came_after_it() {
    let mut rig = Rig::new(Choice::default());
    rig.set("old", b"v").await;
    rig.engine().flush(&[SPACE], 0).await.unwrap();
    rig.set("new", b"v").await;
    for _ in 0..2 {
        assert_eq!(rig.get("old").await, None);
        assert_eq!(rig.get("new").await.unwrap(), b"v");
        rig.drop_and_open();
    }
}

#[tokio::test]
async fn a_flush_that_fell_due_while_the_node_was_down_is_done_before_anything_is_served() {
    let mut rig = Rig::new(Choice::default());
    rig.set("k", b"v").await;
    rig.engine().flush(&[SPACE], 10).await.unwrap();
    assert!(rig.get("k").await.is_some());
    rig.close();
    rig.clock.set_wall_ms(START_MS + 11_000);
    rig.open();
    assert_eq!(rig.get("k").await, None);
    rig.clock.set_wall_ms(START_MS);
    rig.reopen();
    assert_eq!(rig.get("k").await, None, "it is not undone by the clock");
}

#[tokio::test]
async fn a_delayed_flush_is_done_by_the_upkeep_and_no_second_time() {
    let mut rig = Rig::new(Choice::default());
    rig.set("old", b"v").await;
    rig.engine().flush(&[SPACE], 10).await.unwrap();
    rig.clock.advance(Duration::from_secs(10));
    rig.engine().upkeep_once(&mut 0).await;
    assert_eq!(rig.get("old").await, None);
    rig.set("new", b"v").await;
    rig.engine().upkeep_once(&mut 0).await;
    rig.drop_and_open();
    assert_eq!(rig.get("new").await.unwrap(), b"v");
}

#[tokio::test]
async fn a_flush_whose_client_has_left_is_done_and_saved() {
    let mut rig = Rig::new(Choice::default());
    rig.set("k", b"v").await;
    {
        let engine = rig.engine();
        let mut flush = Box::pin(engine.flush(&[SPACE], 0));
        let _ = flush.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }
    // The flush goes on by itself, and drops the engine's parts when it is done.
    rig.drop_and_open();
    assert_eq!(rig.get("k").await, None);
}

#[tokio::test]
async fn a_write_during_a_clock_jump_is_overwritten_after_a_restart_with_the_clock_back() {
    let mut rig = Rig::new(Choice::default());
    rig.clock.set_wall_ms(START_MS + DAY_MS);
    rig.set("k", b"old").await;
    rig.clock.set_wall_ms(START_MS);
    rig.drop_and_open();
    rig.set("k", b"new").await;
    evict_all(rig.engine());
    assert_eq!(rig.get("k").await.unwrap(), b"new");
    rig.reopen();
    assert_eq!(rig.get("k").await.unwrap(), b"new");
}

#[tokio::test]
async fn a_clean_stop_keeps_no_reservation_of_versions() {
    let mut rig = Rig::new(Choice::default());
    rig.set("k", b"v").await;
    for _ in 0..3 {
        rig.reopen();
    }
    rig.set("k", b"v").await;
    let ahead_ms = ahead_ms(&rig);
    assert!(ahead_ms < 1000, "{ahead_ms}");
}

#[tokio::test]
async fn a_member_writes_above_all_that_another_one_can_have_written_by_an_earlier_epoch() {
    let at = |ms| fonn_base::hlc::at_ms(START_MS + ms);
    let range = |base, ceiling| VersionRange {
        base: at(base),
        ceiling: at(ceiling),
    };
    let (mut down, other) = (Rig::new(Choice::default()), Rig::new(Choice::default()));
    down.engine().enter_versions(range(0, 24_000));
    down.set("k", b"old").await;
    // Its clock jumps, and it is killed and started again and again.
    for _ in 0..40 {
        down.clock.advance(Duration::from_secs(60));
        down.drop_and_open();
        down.engine().enter_versions(range(0, 24_000));
        down.set("k", b"older").await;
    }
    other.engine().enter_versions(range(24_000, 28_000));
    other.set("k", b"new").await;
    let (newest, other) = (down.engine().ledger.hlc.last(), other.engine());
    assert!(newest < at(24_000) && other.ledger.hlc.last() > newest);
    // No write had to wait for the disk.
    assert!(other.ledger.hlc.last() < other.ledger.ceiling());
}

#[tokio::test]
async fn an_empty_store_gives_no_version_that_it_can_have_given_before_it_was_emptied() {
    let range = VersionRange {
        base: fonn_base::hlc::at_ms(START_MS),
        ceiling: fonn_base::hlc::at_ms(START_MS + 24_000),
    };
    let (before, again) = (Rig::new(Choice::default()), Rig::new(Choice::default()));
    before.set("earlier", b"v").await;
    before.engine().enter_versions(range);
    before.clock.set_wall_ms(START_MS + 60_000);
    before.set("k", b"v").await;
    again.engine().enter_versions(range);
    again.set("k", b"w").await;
    assert!(again.engine().ledger.hlc.last() > before.engine().ledger.hlc.last());
}

#[tokio::test]
async fn a_node_that_is_killed_again_and_again_is_no_further_ahead_than_once() {
    let mut rig = Rig::new(Choice::default());
    rig.set("k", b"v").await;
    for _ in 0..5 {
        rig.drop_and_open();
    }
    let ahead_ms = ahead_ms(&rig);
    assert!(ahead_ms <= crate::engine::CEILING_AHEAD_MS, "{ahead_ms}");
    rig.set("k", b"w").await;
    assert_eq!(rig.get("k").await.unwrap(), b"w");
}

#[tokio::test]
async fn a_node_without_writes_reserves_nothing_and_the_next_write_does() {
    let rig = Rig::new(Choice::default());
    rig.set("k", b"v").await;
    // What was given so far is seen once more.
    for _ in 0..2 {
        rig.clock.advance(Duration::from_secs(8));
        rig.engine().upkeep_once(&mut 0).await;
    }
    let ceiling = rig.engine().ledger.ceiling();
    for _ in 0..10 {
        rig.clock.advance(Duration::from_secs(8));
        rig.engine().upkeep_once(&mut 0).await;
    }
    assert_eq!(rig.engine().ledger.ceiling(), ceiling);
    rig.set("k", b"w").await;
    assert!(rig.engine().ledger.ceiling() > ceiling);
    assert_eq!(rig.get("k").await.unwrap(), b"w");
}
