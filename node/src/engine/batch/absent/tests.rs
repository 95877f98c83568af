use super::*;
use crate::engine::batch::Blocked;
use crate::engine::batch::turn::Turn;
use crate::engine::prepare::Prepared;
use crate::engine::tests::{Choice, Rig, SPACE, all_or_none, block_on, evict_all, is_stored};

#[test]
fn a_lookup_that_a_write_voided_is_repeated() {
    block_on(async {
        let rig = Rig::new(Choice::default());
        let engine = rig.engine();
        let batch = all_or_none([("k", &b"second"[..])]);
        let mut plan = Plan::new(engine, SPACE, &batch);
        let wanted = |plan: &Plan<'_>| {
            let (mut acks, mut grown) = (Acks::default(), Vec::new());
            let (sources, ahead) = ([None], [Prepared::default()]);
            let given = (&sources[..], &ahead[..]);
            let turn = Turn::none();
            match engine.try_batch(plan, &batch, given, (&mut acks, &turn), &mut grown) {
                Err(Blocked::Fetch(wanted)) => wanted,
                _ => panic!("RAM knows the key"),
            }
        };
        let lookups = wanted(&plan);
        assert_eq!(lookups.len(), 1);
        let looked_up = engine.look_up_all(&mut plan, lookups).await;
        assert_eq!(looked_up, Ok(()));
        rig.set("k", b"first").await;
        evict_all(engine);
        assert_eq!(wanted(&plan).len(), 1);
        let mut acks = Acks::default();
        let stored = engine.execute_batch(SPACE, &batch, &mut acks).await;
        assert!(!is_stored(&stored));
        assert_eq!(rig.get("k").await.unwrap(), b"first");
    });
}

/// The lookups of other clients wait behind two at most.
#[test]
fn lookups_wait_for_their_turn_and_are_given_up_at_the_deadline() {
    block_on(async {
        let rig = Rig::new(Choice::default());
        let engine = rig.engine();
        let batch = all_or_none([("k", &b"v"[..])]);
        let mut plan = Plan::new(engine, SPACE, &batch);
        let hash = plan.keys[0].hash;
        let turns = engine.lookup_turns.acquire_many(LOOKUPS_AT_ONCE as u32);
        let turns = turns.await.unwrap();
        let ticket = engine.hot.ticket(hash);
        let looked_up = engine.look_up(&mut plan, vec![(0, ticket)], Instant::now());
        assert_eq!(looked_up.await, Err(Failure::Busy));
        drop(turns);
        let deadline = Instant::now() + std::time::Duration::from_secs(60);
        let looked_up = engine.look_up(&mut plan, vec![(0, ticket)], deadline);
        assert_eq!(looked_up.await, Ok(()));
        assert!(plan.keys[0].fetched.is_some());
    });
}
