//! Flushes that another member tells of.

use std::task::{Context, Waker};

use fonn_base::hlc::{self, VersionRange};
use fonn_proto::outcome::Value;
use fonn_proto::{Version, peer};

use super::*;

const HOUR_S: u32 = 3600;

fn to_come(at_ms: u64) -> peer::Flush {
    peer::Flush {
        space: SPACE.0,
        cutoff: 0,
        at_ms,
        purge: None,
    }
}

async fn adopt(rig: &Rig, flushes: &[peer::Flush]) {
    let adopted = rig.engine().adopt_flushes(flushes.to_vec()).await;
    adopted.unwrap();
}

fn times_to_come(rig: &Rig) -> Vec<u64> {
    let known = rig.engine().known_flushes().into_iter();
    known.map(|it| it.at_ms).filter(|it| *it != 0).collect()
}

#[tokio::test]
async fn of_two_flushes_to_come_the_earlier_one_counts() {
    let rig = Rig::new(Choice::default());
    let later = START_MS + 3_600_000;
    rig.engine().flush(&[SPACE], HOUR_S).await.unwrap();
    assert_eq!(times_to_come(&rig), [later]);
    adopt(&rig, &[to_come(later + 1)]).await;
    assert_eq!(times_to_come(&rig), [later]);
    adopt(&rig, &[to_come(START_MS + 60_000)]).await;
    assert_eq!(times_to_come(&rig), [START_MS + 60_000]);
}

#[tokio::test]
async fn a_later_flush_that_is_done_elsewhere_cancels_the_one_to_come_unless_it_is_told_too() {
    let rig = Rig::new(Choice::default());
    rig.set("old", b"v").await;
    rig.engine().flush(&[SPACE], HOUR_S).await.unwrap();
    let done = |cutoff| peer::Flush {
        space: SPACE.0,
        cutoff,
        at_ms: 0,
        purge: None,
    };
    let first = rig.engine().ledger.hlc.next();
    let wanted = times_to_come(&rig);
    adopt(&rig, &[done(first), to_come(wanted[0])]).await;
    assert_eq!(times_to_come(&rig), wanted);
    assert_eq!(rig.get("old").await, None);
    // One that is known already tells nothing new.
    adopt(&rig, &[done(first)]).await;
    assert_eq!(times_to_come(&rig), wanted);
    rig.set("new", b"v").await;
    let second = rig.engine().ledger.hlc.next();
    adopt(&rig, &[done(second)]).await;
    assert_eq!(times_to_come(&rig), [0; 0]);
    assert_eq!(rig.get("new").await, None);
}

/// The range of an epoch of the cluster, which begins so many milliseconds after the start.
fn range(from_ms: u64) -> VersionRange {
    VersionRange {
        base: hlc::at_ms(START_MS + from_ms),
        ceiling: hlc::at_ms(START_MS + from_ms + 30_000),
    }
}

#[tokio::test]
async fn a_flush_hides_what_a_member_wrote_by_a_clock_that_was_ahead_before_it_was_declared_down() {
    let (mut down, other) = (Rig::new(Choice::default()), Rig::new(Choice::default()));
    down.engine().enter_versions(range(0));
    down.clock.set_wall_ms(START_MS + 700_000);
    down.set("before", b"v").await;
    // Killed and started again, it begins where it had reserved.
    down.drop_and_open();
    down.engine().enter_versions(range(0));
    down.set("ahead", b"v").await;
    other.engine().enter_versions(range(30_000));
    other.engine().flush(&[SPACE], 0).await.unwrap();
    other.set("after", b"v").await;
    adopt(&down, &other.engine().known_flushes()).await;
    assert_eq!(
        (down.get("before").await, down.get("ahead").await),
        (None, None)
    );
    assert_eq!(other.get("after").await.unwrap(), b"v");
}

/// What another member has of a key, given to this member.
async fn give(rig: &Rig, key: &str, version: Version) -> bool {
    let entry = peer::Entry {
        content: peer::Content::Value(Value::Copied(b"v")),
        ..peer::Entry::tombstone(SPACE.0, key.as_bytes(), version)
    };
    let mut acks = Acks::default();
    let is_new = rig.engine().put_of_peer(&entry, &mut acks).await.unwrap();
    assert!(acks.wait().await.is_empty());
    is_new
}

#[tokio::test]
async fn what_two_members_flush_has_the_cutoff_of_the_one_that_is_ahead() {
    let (behind, ahead) = (Rig::new(Choice::default()), Rig::new(Choice::default()));
    ahead.clock.set_wall_ms(START_MS + 20_000);
    behind.set("old", b"v").await;
    ahead.set("old", b"v").await;
    let drawn = [&behind, &ahead].map(|rig| rig.engine().flush_now(&[SPACE]));
    let drawn = futures_util::future::join_all(drawn).await;
    let cutoff = drawn.into_iter().map(Result::unwrap).max().unwrap();
    for rig in [&behind, &ahead] {
        rig.engine().flush_below(&[SPACE], cutoff).await.unwrap();
        assert_eq!(rig.get("old").await, None);
        assert_eq!(rig.engine().flushed_below(SPACE), cutoff);
    }
    behind.set("new", b"v").await;
    let version = rig_version(&behind, "new").await;
    assert!(version > cutoff, "{version} {cutoff}");
    assert!(
        give(&ahead, "new", version).await,
        "it is no older than the flush"
    );
    // Behind others, or told again, it changes nothing.
    behind
        .engine()
        .flush_below(&[SPACE], cutoff - 1)
        .await
        .unwrap();
    behind.engine().flush_below(&[SPACE], cutoff).await.unwrap();
    assert_eq!(behind.get("new").await.unwrap(), b"v");
    let beyond = behind.engine().flush_below(&[SPACE], Version::MAX).await;
    assert_eq!(beyond, Err(Failure::Unavailable));
    assert_eq!(behind.get("new").await.unwrap(), b"v");
}

async fn rig_version(rig: &Rig, key: &str) -> Version {
    let newest = rig.engine().newest(SPACE, key.as_bytes()).await;
    newest.unwrap().unwrap()
}

#[tokio::test]
async fn a_flush_that_was_taken_over_outlives_a_restart() {
    let mut rig = Rig::new(Choice::default());
    rig.set("old", b"v").await;
    let cutoff = rig.engine().flush_now(&[SPACE]).await.unwrap() + (20_000 << 16);
    rig.engine().flush_below(&[SPACE], cutoff).await.unwrap();
    rig.drop_and_open();
    assert_eq!(rig.engine().flushed_below(SPACE), cutoff);
    rig.set("new", b"v").await;
    assert_eq!(rig.get("new").await.unwrap(), b"v");
    assert_eq!(rig.get("old").await, None);
}

#[tokio::test]
async fn what_others_wrote_since_a_flush_that_fell_due_while_the_member_was_down_stays() {
    let mut rig = Rig::new(Choice::default());
    rig.set("old", b"v").await;
    rig.engine().flush(&[SPACE], 60).await.unwrap();
    rig.close();
    rig.clock.set_wall_ms(START_MS + 3_600_000);
    rig.open();
    assert_eq!(rig.get("old").await, None);
    assert!(give(&rig, "since", hlc::at_ms(START_MS + 61_000)).await);
    assert!(!give(&rig, "before", hlc::at_ms(START_MS + 59_000)).await);
    assert_eq!(rig.get("since").await.unwrap(), b"v");
}

#[tokio::test]
async fn what_others_wrote_since_a_flush_that_fell_due_while_the_member_stood_still_stays() {
    let rig = Rig::new(Choice::default());
    {
        let engine = rig.engine();
        let mut due = Box::pin(engine.fell_due());
        let waits = due.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(waits.is_pending());
    }
    rig.set("old", b"v").await;
    rig.engine().flush(&[SPACE], 60).await.unwrap();
    rig.engine().upkeep_once(&mut 0).await;
    rig.clock.set_wall_ms(START_MS + 3_600_000);
    rig.engine().upkeep_once(&mut 0).await;
    assert_eq!(rig.get("old").await, None);
    assert!(give(&rig, "since", hlc::at_ms(START_MS + 61_000)).await);
    assert_eq!(rig.get("since").await.unwrap(), b"v");
    assert_eq!(times_to_come(&rig), [0; 0]);
}
