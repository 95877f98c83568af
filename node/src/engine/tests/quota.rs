//! Quotas over RAM and disk.

use std::sync::mpsc;

use fonn_auth::{Directory, Namespace};
use fonn_base::events::Events;
use fonn_base::size::ByteCount;
use fonn_base::tasks::{OnShutdown, Tasks};

use super::*;

const QUOTA: u64 = 1 << 20;

fn limit(rig: &Rig, quota: u64) {
    rig.engine().namespaces().set([Arc::new(Namespace {
        name: "default".into(),
        number: SPACE.namespace(),
        base: None,
        quota: Some(ByteCount::new(quota)),
        is_write_once: false,
        ttl: None,
    })]);
    rig.engine().apply_quotas();
}

fn enforce(rig: &Rig) -> Tasks {
    let tasks = Tasks::new();
    let engine = Arc::clone(rig.engine.as_ref().unwrap());
    let events = Events::new(rig.clock.clock(), 16);
    tasks.spawn("quotas", OnShutdown::Abort, engine.enforce_quotas(events));
    tasks
}

async fn counted(rig: &Rig, mut is_so: impl FnMut(crate::namespaces::DiskAccount) -> bool) {
    let deadline = Instant::now() + GRACE;
    loop {
        let account = rig.engine().namespaces().disk_account(SPACE.namespace());
        if account.counted_at_ms > 0 && is_so(account) {
            return;
        }
        assert!(Instant::now() < deadline, "{account:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn left(rig: &Rig, count: u32) -> Vec<u32> {
    let mut left = Vec::new();
    for n in 0..count {
        if rig.get(&format!("k{n}")).await.is_some() {
            left.push(n);
        }
    }
    left
}

#[tokio::test]
async fn the_oldest_entries_go_and_stay_gone_over_a_restart_which_counts_again() {
    let mut rig = Rig::new(Choice::default());
    limit(&rig, QUOTA);
    let tasks = enforce(&rig);
    for n in 0..300 {
        rig.clock.advance(Duration::from_millis(10));
        rig.set(&format!("k{n}"), &[b'v'; 10_000]).await;
    }
    counted(&rig, |it| it.bytes <= QUOTA && it.cut_entries > 0).await;
    let before = left(&rig, 300).await;
    assert!((80..=105).contains(&before.len()), "{before:?}");
    assert_eq!(before, (300 - before.len() as u32..300).collect::<Vec<_>>());
    // Deletes and overwrites give their bytes back: nothing else has to go for what comes instead.
    for n in &before[..50] {
        rig.delete(&format!("k{n}")).await;
    }
    for n in 300..330 {
        rig.set(&format!("k{n}"), &[b'v'; 10_000]).await;
    }
    for _ in 0..20 {
        rig.set("k329", &[b'v'; 10_000]).await;
    }
    rig.engine().namespaces().ask_for(SPACE.namespace());
    let expected = before.len() - 50 + 30;
    counted(&rig, |it| it.entries == expected as u64).await;
    assert_eq!(left(&rig, 330).await.len(), expected);
    let ram = rig.engine().ram().quota_use(SPACE.namespace()).unwrap();
    assert!(ram.used_bytes as u64 <= QUOTA, "{ram:?}");
    tasks.finish(Instant::now()).await;
    drop(tasks);

    rig.reopen();
    limit(&rig, QUOTA);
    let tasks = enforce(&rig);
    counted(&rig, |it| {
        it.entries == expected as u64 && it.cut_entries == 0
    })
    .await;
    assert_eq!(left(&rig, 330).await.len(), expected);
    for n in 330..400 {
        rig.set(&format!("k{n}"), &[b'v'; 10_000]).await;
    }
    counted(&rig, |it| it.bytes <= QUOTA && it.cut_entries > 0).await;
    assert!(rig.get("k399").await.is_some());
    tasks.finish(Instant::now()).await;
}

#[tokio::test]
async fn a_lower_quota_takes_what_is_there() {
    let rig = Rig::new(Choice::default());
    let tasks = enforce(&rig);
    for n in 0..100 {
        rig.set(&format!("k{n}"), &[b'v'; 10_000]).await;
    }
    assert_eq!(left(&rig, 100).await.len(), 100);
    limit(&rig, QUOTA / 4);
    counted(&rig, |it| it.bytes <= QUOTA / 4).await;
    assert!(left(&rig, 100).await.len() <= 26);
    tasks.finish(Instant::now()).await;
}

#[tokio::test]
async fn writes_far_past_the_quota_are_refused_only_until_it_was_counted() {
    let rig = Rig::new(Choice {
        ram_bytes: 64 << 20,
        queue_bytes: 32 << 20,
        ..Choice::default()
    });
    limit(&rig, QUOTA);
    let mut stored = 0;
    let refused = loop {
        let outcome = rig.run(&set(&format!("k{stored}"), &[b'v'; 30_000])).await;
        match outcome {
            Outcome::Stored(_) => stored += 1,
            Outcome::Failed(failure) => break failure,
            other => panic!("{other:?}"),
        }
        assert!(stored < 1000, "without a count it must end");
    };
    assert_eq!(refused, Failure::OutOfSpace);
    assert!(rig.get("k0").await.is_some(), "what was there is there");
    let tasks = enforce(&rig);
    counted(&rig, |it| it.bytes <= QUOTA && it.refused == 1).await;
    rig.set("later", b"v").await;
    assert_eq!(rig.get("later").await.as_deref(), Some(&b"v"[..]));
    let large = vec![b'v'; 30_000];
    limit(&rig, 40_000);
    let outcome = rig.run(&set("k", &large)).await;
    assert_eq!(outcome, Outcome::Failed(Failure::TooLarge));
    // A short value is tried in two ways, and counts once too.
    limit(&rig, 1_000);
    let outcome = rig.run(&set("short", &[b'v'; 900])).await;
    assert_eq!(outcome, Outcome::Failed(Failure::TooLarge));
    counted(&rig, |it| it.refused == 3).await;
    tasks.finish(Instant::now()).await;
}

#[tokio::test]
async fn without_a_disk_ram_keeps_the_quota() {
    let rig = Rig::new(Choice {
        ram_bytes: 64 << 20,
        has_disk: false,
        ..Choice::default()
    });
    limit(&rig, QUOTA);
    for n in 0..500 {
        rig.set(&format!("k{n}"), &[b'v'; 10_000]).await;
        let ram = rig.engine().ram().quota_use(SPACE.namespace()).unwrap();
        assert!(ram.used_bytes as u64 <= QUOTA);
    }
    let left = left(&rig, 500).await;
    assert!((80..=105).contains(&left.len()), "{left:?}");
    assert_eq!(left.last(), Some(&499));
}

/// argon2 of `secret`, with parameters that cost next to nothing.
const HASH: &str = "$argon2id$v=19$m=64,t=1,p=1$wXQK5rSIdVCHKOR1yYGIrg$tHaqh3b7PSsDIS4ZvXCTzKqUrmYfBtapcZhRS9E2V0w";

/// A users file whose namespace `default` may take so much.
fn users(quota: u64) -> Arc<Directory> {
    let file = tempfile::NamedTempFile::new().unwrap();
    let row = format!("[[user]]\nname = 'ci'\nrole = 'read'\nhash = '{HASH}'\nquota = '{quota}'\n");
    std::fs::write(file.path(), row).unwrap();
    Arc::new(Directory::load(file.path()).unwrap())
}

/// A thread that has looked up the users is overtaken by a newer change, or tries to be.
#[test]
fn of_two_changes_of_users_at_once_the_newer_one_stays_in_force() {
    const OVERTAKEN: Duration = Duration::from_millis(500);
    let rig = Rig::new(Choice::default());
    let engine = rig.engine();
    let in_force = parking_lot::Mutex::new(users(QUOTA));
    let (looked, is_looked) = mpsc::sync_channel(1);
    let (done, is_done) = mpsc::sync_channel(1);
    let in_force = &in_force;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            engine.set_users(|| {
                let older = Arc::clone(&in_force.lock());
                looked.send(()).unwrap();
                // The other one may have to wait for this.
                let _ = is_done.recv_timeout(OVERTAKEN);
                Some(older)
            });
        });
        is_looked.recv().unwrap();
        *in_force.lock() = users(2 * QUOTA);
        engine.set_users(|| Some(Arc::clone(&in_force.lock())));
        let _ = done.send(());
    });
    let namespace = SPACE.namespace();
    assert_eq!(engine.namespaces().quota(namespace), Some(2 * QUOTA));
    let ram = engine.ram().quota_use(namespace).unwrap();
    assert_eq!(ram.quota_bytes as u64, 2 * QUOTA);
}

#[tokio::test]
async fn a_namespace_is_not_told_how_many_entries_others_have_however_many_there_are() {
    // More than one count looks at.
    const MANY: u64 = 20_000;
    let rig = Rig::new(Choice::default());
    let other = Space::new(SPACE.namespace() + 1, 0);
    let engine = rig.engine();
    for number in 0..MANY {
        rig.set(&format!("k{number}"), b"v").await;
    }
    // As long as there is one namespace, about as many as were written are its own.
    let all = engine.count_entries(SPACE).await.unwrap();
    assert!(all >= MANY, "{all}");
    let known = |name: &str, space: Space| {
        Arc::new(Namespace {
            name: name.into(),
            number: space.namespace(),
            base: None,
            quota: None,
            is_write_once: false,
            ttl: None,
        })
    };
    let both = [known("default", SPACE), known("other", other)];
    engine.namespaces().set(both);
    assert_eq!(engine.count_entries(other).await, Ok(0));
    // As many as were looked at, until the namespace was counted.
    let some = engine.count_entries(SPACE).await.unwrap();
    assert!((1..=MANY).contains(&some), "{some}");
    // Once it was counted that is what is told, until it was counted again.
    let tasks = enforce(&rig);
    counted(&rig, |_| true).await;
    assert_eq!(engine.count_entries(SPACE).await, Ok(MANY));
    drop(tasks);
}
