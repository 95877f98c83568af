//! Writers of entries, and purges of what they wrote.

use fonn_proto::outcome::Value;
use fonn_proto::{PurgeScope, peer};

use super::*;

const LEAKED: WriterId = WriterId::new(7);
const GOOD: WriterId = WriterId::new(8);

const ALL_OF_LEAKED: PurgeScope = PurgeScope {
    writer: LEAKED,
    namespace: None,
    since: 0,
};

/// Carries a command out for a writer.
async fn run_as(rig: &Rig, writer: WriterId, command: &Command<'_>) -> Outcome<'static> {
    let job = Job {
        writer,
        ..job(command)
    };
    let (outcome, failures) = run_job(rig.engine(), &job).await;
    assert_eq!(failures, []);
    outcome
}

async fn set_as(rig: &Rig, writer: WriterId, key: &str, value: &[u8]) {
    let outcome = run_as(rig, writer, &set(key, value)).await;
    assert!(matches!(outcome, Outcome::Stored(_)), "{outcome:?}");
}

/// The writers of the copies in RAM and on disk.
async fn writers(rig: &Rig, key: &str) -> [WriterId; 2] {
    rig.engine().before_count().await;
    let in_ram = rig.engine().locate_in_ram(SPACE, key.as_bytes());
    let on_disk = rig.engine().locate_on_disk(SPACE, key.as_bytes()).unwrap();
    [in_ram, on_disk].map(|copy| {
        let meta = copy.and_then(|copy| copy.meta);
        meta.map_or(WriterId::NONE, |meta| meta.writer)
    })
}

async fn count(rig: &Rig, purge: PurgeScope) -> u64 {
    let engine = rig.engine();
    engine.before_count().await;
    let spaces = engine.spaces_of(purge);
    let (mut entries, mut cursor) = (0, Some(WrittenCursor::default()));
    while let Some(at) = cursor {
        let step = engine.count_written(purge, &spaces, at, |_| true);
        let step = step.await.unwrap();
        entries += step.entries;
        cursor = step.next;
    }
    entries
}

#[tokio::test]
async fn an_entry_keeps_its_writer_in_both_tiers_and_over_a_restart() {
    let mut rig = Rig::new(Choice::default());
    set_as(&rig, GOOD, "k", b"v").await;
    set_as(&rig, WriterId::NONE, "anonymous", b"v").await;
    assert_eq!(writers(&rig, "k").await, [GOOD; 2]);
    assert_eq!(writers(&rig, "anonymous").await, [WriterId::NONE; 2]);
    rig.reopen();
    assert_eq!(rig.get("k").await.as_deref(), Some(&b"v"[..]));
    assert_eq!(writers(&rig, "k").await, [GOOD; 2]);
}

#[tokio::test]
async fn a_touch_keeps_the_writer_and_an_append_replaces_it() {
    let rig = Rig::new(Choice::default());
    set_as(&rig, LEAKED, "k", b"v").await;
    let in_an_hour = ExpirySpec::InMs(3_600_000);
    let touched = run_as(&rig, GOOD, &touch("k", in_an_hour)).await;
    assert!(matches!(touched, Outcome::Touched { .. }), "{touched:?}");
    assert_eq!(writers(&rig, "k").await, [LEAKED; 2]);
    let append = Command::Store(Store {
        mode: fonn_proto::StoreMode::Append,
        ..Store::set(b"k", b"w", 0, ExpirySpec::Never)
    });
    run_as(&rig, GOOD, &append).await;
    assert_eq!(writers(&rig, "k").await, [GOOD; 2]);
}

#[tokio::test]
async fn a_purge_removes_what_one_writer_wrote_and_nothing_else() {
    for has_disk in [true, false] {
        let mut rig = Rig::new(Choice {
            has_disk,
            ..Choice::default()
        });
        set_as(&rig, GOOD, "good", b"v").await;
        set_as(&rig, GOOD, "overwritten", b"v").await;
        set_as(&rig, LEAKED, "overwritten", b"evil").await;
        set_as(&rig, LEAKED, "bad", b"evil").await;
        set_as(&rig, LEAKED, "mended", b"evil").await;
        set_as(&rig, GOOD, "mended", b"v").await;
        assert_eq!(count(&rig, ALL_OF_LEAKED).await, 2);
        rig.engine().purge_now(ALL_OF_LEAKED).await.unwrap();
        assert_eq!(count(&rig, ALL_OF_LEAKED).await, 0);
        for _ in 0..2 {
            for key in ["good", "mended"] {
                assert_eq!(rig.get(key).await.as_deref(), Some(&b"v"[..]), "{key}");
            }
            for key in ["bad", "overwritten"] {
                assert_eq!(rig.get(key).await, None, "{key}");
            }
            if !has_disk {
                break;
            }
            rig.reopen();
        }
        // It may write again.
        set_as(&rig, LEAKED, "bad", b"later").await;
        assert_eq!(rig.get("bad").await.as_deref(), Some(&b"later"[..]));
        assert_eq!(count(&rig, ALL_OF_LEAKED).await, 1);
    }
}

#[tokio::test]
async fn a_purge_begins_at_its_time() {
    let rig = Rig::new(Choice::default());
    set_as(&rig, LEAKED, "before", b"v").await;
    rig.clock.advance(Duration::from_secs(60));
    let since = fonn_base::hlc::at_ms(START_MS + 30_000);
    set_as(&rig, LEAKED, "after", b"v").await;
    let purge = PurgeScope {
        since,
        ..ALL_OF_LEAKED
    };
    rig.engine().purge_now(purge).await.unwrap();
    assert_eq!(rig.get("before").await.as_deref(), Some(&b"v"[..]));
    assert_eq!(rig.get("after").await, None);
    let elsewhere = PurgeScope {
        namespace: Some(9),
        ..ALL_OF_LEAKED
    };
    rig.engine().purge_now(elsewhere).await.unwrap();
    assert_eq!(rig.get("before").await.as_deref(), Some(&b"v"[..]));
}

#[tokio::test]
async fn what_another_member_sends_has_its_writer_and_is_deleted_if_it_was_purged() {
    let rig = Rig::new(Choice::default());
    let put = |key: &'static str, version, writer| {
        let entry = peer::Entry {
            writer,
            content: peer::Content::Value(Value::Copied(b"evil")),
            ..peer::Entry::tombstone(SPACE.0, key.as_bytes(), version)
        };
        let rig = &rig;
        async move {
            let mut acks = Acks::default();
            assert!(rig.engine().put_of_peer(&entry, &mut acks).await.unwrap());
            assert_eq!(acks.wait().await, []);
        }
    };
    let version = rig.engine().versions().next();
    put("sent", version, LEAKED).await;
    assert_eq!(writers(&rig, "sent").await, [LEAKED; 2]);
    let sent = rig.engine().fetch_for_peer(SPACE, b"sent").await.unwrap();
    assert_eq!(sent.unwrap().entry(SPACE, b"sent", 100).writer, LEAKED);

    set_as(&rig, GOOD, "late", b"v").await;
    let late = rig.engine().versions().next();
    let cutoff = rig.engine().purge_now(ALL_OF_LEAKED).await.unwrap();
    assert!(late < cutoff);
    let sent = rig.engine().fetch_for_peer(SPACE, b"sent").await.unwrap();
    let sent = sent.unwrap();
    let told = sent.entry(SPACE, b"sent", 100);
    assert_eq!(told, peer::Entry::tombstone(SPACE.0, b"sent", version));
    // What the purge was about comes from a member that did not know of it.
    put("late", late, LEAKED).await;
    assert_eq!(rig.get("late").await, None);
    // Nothing older comes back in its place.
    assert_eq!(writers(&rig, "late").await, [WriterId::NONE; 2]);
}

#[tokio::test]
async fn a_member_learns_of_purges_as_of_flushes() {
    let (knows, learns) = (Rig::new(Choice::default()), Rig::new(Choice::default()));
    set_as(&learns, LEAKED, "bad", b"evil").await;
    set_as(&learns, GOOD, "good", b"v").await;
    knows.clock.advance(Duration::from_secs(1));
    knows.engine().purge_now(ALL_OF_LEAKED).await.unwrap();
    let told = knows.engine().known_flushes();
    learns.engine().adopt_flushes(told.clone()).await.unwrap();
    assert_eq!(learns.engine().known_flushes(), told);
    assert_eq!(learns.get("bad").await, None);
    assert_eq!(learns.get("good").await.as_deref(), Some(&b"v"[..]));
}
