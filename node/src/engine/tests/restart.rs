//! Flushes and versions across restarts and with a clock that jumps.

use std::task::{Context, Waker};

use super::*;

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

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
    let ahead_ms = rig.engine().ledger.hlc.ahead_ms();
    assert!(ahead_ms < 1000, "{ahead_ms}");
}
