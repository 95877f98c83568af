//! Whatever goes wrong, every caller is answered once, and by the answer to its own request.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::testing::Connection;

/// What the node does with a request.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Answer,
    /// Answers behind so many later ones.
    Later(usize),
    Forget,
    Cut,
    CutInside(usize),
    Damage,
    Stray,
}

fn faults() -> impl Strategy<Value = Fault> {
    prop_oneof![
        20 => Just(Fault::Answer),
        8 => (1_usize..6).prop_map(Fault::Later),
        2 => Just(Fault::Forget),
        1 => Just(Fault::Cut),
        1 => (1_usize..40).prop_map(Fault::CutInside),
        1 => Just(Fault::Damage),
        1 => Just(Fault::Stray),
    ]
}

/// Serves connections, each request by the next fault of the list, until it is dropped.
async fn serve(node: &Node, faults: &[Fault]) {
    let mut faults = faults
        .iter()
        .copied()
        .chain(std::iter::repeat(Fault::Answer));
    loop {
        let mut connection = node.accept().await;
        serve_one(&mut connection, &mut faults).await;
    }
}

async fn serve_one(connection: &mut Connection, faults: &mut impl Iterator<Item = Fault>) {
    let mut later = Vec::new();
    while let Some(request) = connection.try_request().await {
        let key = request.key();
        let reply = hit(&key);
        match faults.next().unwrap_or(Fault::Answer) {
            Fault::Answer => connection.reply(&request, &reply).await,
            Fault::Later(count) => later.push((count, request)),
            Fault::Forget => {}
            Fault::Cut => return,
            Fault::CutInside(len) => return connection.part_of_reply(&request, &reply, len).await,
            Fault::Damage => connection.damaged_reply(&request, &reply).await,
            Fault::Stray => connection.stray_reply(&request, &reply).await,
        }
        let mut still = Vec::new();
        for (count, request) in later {
            if count == 0 {
                connection.reply(&request, &hit(&request.key())).await;
            } else {
                still.push((count - 1, request));
            }
        }
        later = still;
    }
}

/// What a caller does.
#[derive(Clone, Copy, Debug)]
enum Caller {
    Waits,
    /// Gives up after so many turns of the others.
    Leaves(usize),
}

fn callers() -> impl Strategy<Value = Caller> {
    prop_oneof![
        5 => Just(Caller::Waits),
        1 => (0_usize..20).prop_map(Caller::Leaves),
    ]
}

async fn call(client: &Client, number: usize, caller: Caller) -> Option<Result<(), CallError>> {
    // Of different lengths: inside the slot, and outside.
    let key = format!("{number}-{}", "x".repeat(number * 7 % 400));
    let pending = match begin(client, key.as_bytes(), Duration::from_millis(60)) {
        Ok(pending) => pending,
        Err(error) => return Some(Err(error)),
    };
    match caller {
        Caller::Waits => Some(pending.await.map(|answer| {
            assert_eq!(value(&answer), key.as_bytes(), "another caller's answer");
        })),
        Caller::Leaves(turns) => {
            for _ in 0..turns {
                tokio::task::yield_now().await;
            }
            None
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn every_caller_is_answered_once_with_its_own_answer(
        faults in vec(faults(), 0..60),
        waves in vec(vec(callers(), 1..25), 1..6),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let node = Node::bind().await;
            let mut options = Options {
                requests_max: 64,
                silence_max: Duration::from_millis(80),
                owing_max: Duration::from_millis(150),
                ..options(&node)
            };
            options.breaker.wait.base = Duration::from_millis(2);
            options.breaker.wait.cap = Duration::from_millis(5);
            let client = start(options);
            let calls = async {
                for wave in &waves {
                    let calls = wave.iter().enumerate().map(|(number, &caller)| {
                        let client = client.clone();
                        tokio::spawn(async move { call(&client, number, caller).await })
                    });
                    let calls: Vec<_> = calls.collect();
                    for call in calls {
                        let ended = tokio::time::timeout(LONG, call).await;
                        ended.expect("an end").expect("no panic");
                    }
                }
                // With the node well again, so is the client.
                let end = Instant::now() + LONG;
                while call(&client, 5, Caller::Waits).await != Some(Ok(())) {
                    assert!(Instant::now() < end, "it never recovered: {:?}", client.health());
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                while client.usage() != (0, 0) {
                    assert!(Instant::now() < end, "left behind: {:?}", client.usage());
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            };
            tokio::select! {
                () = calls => {}
                () = serve(&node, &faults) => {}
            }
        });
    }
}
