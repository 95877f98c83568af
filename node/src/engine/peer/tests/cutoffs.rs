//! Entries that come or go while a flush or purge draws its cutoff. It hides everything then, also
//! what is newer than the cutoff.

use std::thread;

use fonn_proto::{PurgeScope, WriterId};

use super::*;

#[tokio::test]
async fn a_flush_that_draws_its_cutoff_refuses_no_entry_and_deletes_none() {
    let rig = Rig::new(Choice::default());
    let engine = rig.engine();
    engine.keep_tombstones();
    // The first write reserves versions.
    rig.set("first", b"1").await;
    let version = engine.versions().next();
    let entry = entry("k", version, false);
    let incoming = engine.check_incoming(&entry).unwrap();
    let at = (engine.hot.ram.hash(SPACE, b"k"), SPACE, &b"k"[..]);
    engine.hot.flushes.flush(&[SPACE], || {
        let tried = engine.try_put(at, &incoming, None, None, &mut Acks::default());
        assert!(matches!(tried, Try::Kept));
        let sent = engine.hidden_or(SPACE, Transfer::received(&entry));
        assert!(sent.content.is_some());
        version
    });
    assert_eq!(rig.get("k").await, Some(value(version)));
    assert_eq!(rig.get("first").await, None);
}

#[test]
fn a_purge_that_draws_its_cutoff_is_waited_for() {
    let rig = Rig::new(Choice::default());
    let writer = WriterId::new(7);
    let meta = Meta {
        writer,
        ..Meta::new(BASE, 0, 0)
    };
    let purge = PurgeScope {
        writer,
        namespace: None,
        since: 0,
    };
    let mut asking = None;
    rig.engine().hot.flushes.purge(purge, || {
        let engine = rig.shared();
        let asked = thread::spawn(move || engine.has_purged(SPACE, &meta));
        for _ in 0..1000 {
            thread::yield_now();
        }
        asking = Some(asked);
        BASE
    });
    assert!(!asking.unwrap().join().unwrap());
    let older = Meta {
        version: BASE - 1,
        ..meta
    };
    assert!(rig.engine().has_purged(SPACE, &older));
}
