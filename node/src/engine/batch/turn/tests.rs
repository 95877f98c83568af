use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fonn_proto::request::ServerOutcome;
use fonn_proto::{Batch, BatchStep, Command, Get};

use super::super::Plan;
use super::*;
use crate::engine::Acks;
use crate::engine::tests::{Choice, Rig, SPACE, evict_all};

const LONG_LEN: usize = FREE_LEN_MAX / 2 + 1;

async fn rig(ram_codec: &str) -> Rig {
    let rig = Rig::new(Choice {
        ram_codec: ram_codec.parse().unwrap(),
        ram_bytes: 8 << 20,
        queue_bytes: 8 << 20,
        value_len_max: 1 << 20,
        disk_value_len_max: 1 << 20,
        ..Choice::default()
    });
    rig.set("long", &[7; LONG_LEN]).await;
    rig.set("short", b"v").await;
    rig
}

fn reads<const N: usize>(keys: [&'static str; N]) -> Batch<'static> {
    let get = |key: &'static str| BatchStep::Command(Command::Get(Get::new(key.as_bytes())));
    Batch {
        steps: keys.into_iter().map(get).collect(),
        ..Batch::default()
    }
}

async fn run(rig: &Rig, batch: &Batch<'_>) -> ServerOutcome {
    let mut acks = Acks::default();
    let outcome = rig.engine().execute_batch(SPACE, batch, &mut acks).await;
    assert!(matches!(outcome, ServerOutcome::Outcomes(_)), "{outcome:?}");
    outcome
}

#[tokio::test]
async fn batches_that_return_long_values_have_turns_until_their_outcomes_are_dropped() {
    for ram_codec in ["none", "lz4"] {
        let rig = rig(ram_codec).await;
        let (long, short) = (reads(["long", "long"]), reads(["short", "long"]));
        let mut held = Vec::new();
        for _ in 0..TURNS {
            held.push(run(&rig, &long).await);
        }
        let mut acks = Acks::default();
        let mut waits = pin!(rig.engine().execute_batch(SPACE, &long, &mut acks));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(waits.as_mut().poll(&mut cx).is_pending(), "{ram_codec}");
        // What is short needs no turn.
        run(&rig, &short).await;
        held.pop();
        let Poll::Ready(outcome) = waits.as_mut().poll(&mut cx) else {
            panic!("{ram_codec}: it waits for more than a turn");
        };
        assert!(matches!(outcome, ServerOutcome::Outcomes(_)), "{outcome:?}");
        drop((outcome, held));
        assert_eq!(rig.engine().batch_turns.available_permits(), TURNS);
    }
}

#[tokio::test]
async fn a_batch_without_a_turn_fetches_no_more_than_it_may_hold() {
    let rig = rig("none").await;
    rig.set("longer", &[8; LONG_LEN]).await;
    let engine = rig.engine();
    evict_all(engine);
    let batch = reads(["long", "longer"]);
    let mut plan = Plan::new(engine, SPACE, &batch);
    let ticket = |index: usize| (index, engine.hot.ticket(plan.keys[index].hash));
    let wanted = vec![ticket(0), ticket(1)];
    let all = engine.batch_turns.acquire_many(TURNS as u32).await.unwrap();
    let mut turn = Turn::none();
    let fetched = engine.fetch_keys(&mut plan, wanted.clone(), &mut turn);
    // The second value waits for the turn, however long that takes.
    let soon = Duration::from_millis(200);
    assert!(tokio::time::timeout(soon, fetched).await.is_err());
    assert!(plan.keys[1].fetched.is_none() && !turn.is_held());
    drop(all);
    assert_eq!(
        engine.fetch_keys(&mut plan, wanted, &mut turn).await,
        Ok(())
    );
    assert!(plan.keys[1].fetched.is_some() && turn.is_held());
}

#[test]
fn a_turn_allows_more_bytes_or_one_value_of_any_size() {
    let turns = Arc::new(Semaphore::new(2));
    let mut turn = Turn::none();
    assert!(!turn.may_make(FREE_LEN_MAX + 1));
    assert!(turn.may_make(FREE_LEN_MAX) && !turn.may_make(1));
    assert!(turn.try_take(&turns));
    assert!(turn.may_make(BATCH_VALUES_LEN_MAX) && !turn.may_make(1));
    let mut turn = Turn::none();
    assert!(turn.try_take(&turns));
    assert!(turn.may_make(0) && turn.may_make(BATCH_VALUES_LEN_MAX + 1));
    assert!(!turn.may_make(1));
}

#[tokio::test]
async fn a_batch_that_gets_no_turn_in_time_is_refused_as_busy() {
    let turns = Arc::new(Semaphore::new(0));
    let mut turn = Turn::none();
    let taken = turn.take(&turns, Instant::now()).await;
    assert_eq!(taken, Err(Failure::Busy));
    turns.add_permits(1);
    assert!(turn.try_take(&turns) && turn.is_held());
    // It has one already.
    assert_eq!(turn.take(&turns, Instant::now()).await, Ok(()));
    // Short outcomes do not keep it.
    let _outcomes = turn.given_with(vec![Outcome::Miss]);
    assert_eq!(turns.available_permits(), 1);
}
