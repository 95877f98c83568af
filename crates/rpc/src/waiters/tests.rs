use std::collections::HashMap;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn ticket(now: Instant, timeout_ms: u64, batch: u64) -> Ticket {
    Ticket {
        started: now,
        deadline: now + Duration::from_millis(timeout_ms),
        batch,
        bytes: 1,
    }
}

fn poll(waiters: &mut Waiters<u32>, id: u32) -> Poll<Result<u32, CallError>> {
    waiters.poll(id, Waker::noop())
}

#[test]
fn an_id_is_not_used_again_before_its_reply_came() {
    let now = Instant::now();
    let mut waiters = Waiters::new(1);
    let first = waiters.begin(ticket(now, 10, 1)).unwrap();
    waiters.expire(now + Duration::from_millis(10), &mut Vec::new());
    assert_eq!(
        poll(&mut waiters, first),
        Poll::Ready(Err(CallError::TimedOut))
    );
    assert!(waiters.begin(ticket(now, 10, 1)).is_none(), "still owed");
    let late = waiters.reply(first, || 7).unwrap();
    assert!(!late.is_wanted);
    let second = waiters.begin(ticket(now, 10, 1)).unwrap();
    assert_ne!(first, second);
    assert_eq!(
        waiters.reply(first, || 8).unwrap_err(),
        UnknownId,
        "a repeated reply is nobody's"
    );
    assert_eq!(poll(&mut waiters, second), Poll::Pending);
}

#[test]
fn the_end_of_a_connection_tells_what_was_not_sent() {
    let now = Instant::now();
    let mut waiters = Waiters::<u32>::new(8);
    let sent = waiters.begin(ticket(now, 10, 4)).unwrap();
    let unsent = waiters.begin(ticket(now, 10, 5)).unwrap();
    let gone = waiters.begin(ticket(now, 10, 5)).unwrap();
    waiters.abandon(gone);
    waiters.fail_all(4, CallError::Closed, &mut Vec::new());
    assert_eq!(
        poll(&mut waiters, sent),
        Poll::Ready(Err(CallError::Closed))
    );
    assert_eq!(
        poll(&mut waiters, unsent),
        Poll::Ready(Err(CallError::Unavailable))
    );
    assert_eq!((waiters.used(), waiters.owed()), (0, 0));
}

#[derive(Clone, Debug)]
enum Step {
    Begin { timeout_ms: u64 },
    Reply { pick: usize },
    Stray { id: u32 },
    Poll { pick: usize },
    Abandon { pick: usize },
    Time { ms: u64 },
    End,
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1_u64..50).prop_map(|timeout_ms| Step::Begin { timeout_ms }),
        5 => any::<usize>().prop_map(|pick| Step::Reply { pick }),
        1 => any::<u32>().prop_map(|id| Step::Stray { id }),
        6 => any::<usize>().prop_map(|pick| Step::Poll { pick }),
        2 => any::<usize>().prop_map(|pick| Step::Abandon { pick }),
        2 => (1_u64..30).prop_map(|ms| Step::Time { ms }),
        1 => Just(Step::End),
    ]
}

proptest! {
    /// Against a map from id to what the caller must get. A reply is the id itself, so a result of
    /// another caller shows.
    #[test]
    fn every_caller_gets_its_own_result_once(steps in vec(steps(), 1..300)) {
        const SLOTS: usize = 6;
        let mut now = Instant::now();
        let mut waiters = Waiters::new(SLOTS);
        let mut callers: HashMap<u32, Option<Result<u32, CallError>>> = HashMap::new();
        let mut deadlines: HashMap<u32, Instant> = HashMap::new();
        let mut owed: Vec<u32> = Vec::new();
        for step in steps {
            let pick_caller = |pick: usize| {
                let mut ids: Vec<u32> = callers.keys().copied().collect();
                ids.sort_unstable();
                (!ids.is_empty()).then(|| ids[pick % ids.len()])
            };
            match step {
                Step::Begin { timeout_ms } => match waiters.begin(ticket(now, timeout_ms, 1)) {
                    Some(id) => {
                        prop_assert!(!owed.contains(&id) && !callers.contains_key(&id));
                        owed.push(id);
                        callers.insert(id, None);
                        deadlines.insert(id, now + Duration::from_millis(timeout_ms));
                    }
                    None => prop_assert!(waiters.used() == SLOTS),
                },
                Step::Reply { pick } => if !owed.is_empty() {
                    let id = owed.swap_remove(pick % owed.len());
                    let is_wanted = callers.get(&id) == Some(&None);
                    prop_assert_eq!(waiters.reply(id, || id).unwrap().is_wanted, is_wanted);
                    if is_wanted {
                        callers.insert(id, Some(Ok(id)));
                    }
                },
                Step::Stray { id } => if !owed.contains(&id) {
                    prop_assert!(waiters.reply(id, || id).is_err());
                },
                Step::Poll { pick } => if let Some(id) = pick_caller(pick) {
                    match poll(&mut waiters, id) {
                        Poll::Pending => prop_assert_eq!(callers[&id], None),
                        Poll::Ready(result) => {
                            prop_assert_eq!(callers.remove(&id), Some(Some(result)));
                        }
                    }
                },
                Step::Abandon { pick } => if let Some(id) = pick_caller(pick) {
                    callers.remove(&id);
                    waiters.abandon(id);
                },
                Step::Time { ms } => {
                    now += Duration::from_millis(ms);
                    let count = waiters.expire(now, &mut Vec::new()).count;
                    let mut expected = 0;
                    for (id, result) in &mut callers {
                        if result.is_none() && deadlines[id] <= now {
                            *result = Some(Err(CallError::TimedOut));
                            expected += 1;
                        }
                    }
                    prop_assert_eq!(count, expected);
                },
                Step::End => {
                    waiters.fail_all(1, CallError::Lost, &mut Vec::new());
                    owed.clear();
                    for result in callers.values_mut() {
                        result.get_or_insert(Err(CallError::Lost));
                    }
                },
            }
            prop_assert_eq!(waiters.owed(), owed.len());
            let gone = owed.iter().filter(|id| !callers.contains_key(id)).count();
            prop_assert_eq!(waiters.used(), callers.len() + gone);
        }
    }
}
