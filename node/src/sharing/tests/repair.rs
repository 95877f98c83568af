//! Owners that have different versions of a key come together again.

use fonn_proto::peer::Entry;
use fonn_proto::{Get, Version};

use super::super::metrics::Event;
use super::copies::{runtime, settled};
use super::*;
use crate::engine::Acks;

/// Three owners of every slot that lack nothing and wait so long for each other, and a key that all
/// of them have.
fn agreed(owners_wait: Duration) -> ([Member; 3], String) {
    let members = ["a", "b", "c"].map(|name| Member::start_waiting(name, owners_wait));
    let first = settled(&members, 3);
    members.iter().for_each(Member::repair);
    let key = key_of(&first, &members[0], 0);
    assert_eq!(members[0].client().set(&key, "one"), "STORED");
    let version = members[0].has(&key);
    assert!(version.is_some() && members.iter().all(|it| it.has(&key) == version));
    (members, key)
}

/// Gives one member alone an entry or tombstone that is newer than what all have.
fn come_apart(members: &[Member; 3], at: usize, key: &str, is_deleted: bool) -> Version {
    let engines = [&members[0].engine, &members[at].engine].map(Arc::clone);
    let key = key.as_bytes().to_vec();
    let runtime = members[0].background.as_ref().unwrap();
    runtime.block_on(async move {
        let found = engines[0].fetch_for_peer(Space::default(), &key).await;
        let found = found.unwrap().unwrap();
        let entry = found.entry(Space::default(), &key, usize::MAX);
        let version = entry.version + (1 << 16);
        let newer = match is_deleted {
            true => Entry::tombstone(0, &key, version),
            false => Entry { version, ..entry },
        };
        let mut acks = Acks::default();
        assert!(engines[1].put_of_peer(&newer, &mut acks).await.unwrap());
        assert!(acks.wait().await.is_empty());
        version
    })
}

fn repaired(members: &[Member; 3]) -> u64 {
    let totals = members
        .iter()
        .map(|it| it.sharing.events.total(Event::Repaired));
    totals.sum()
}

/// Has the other owners answer hedged reads of a key, until all owners have that version of it, or
/// nothing.
fn read_until_agreed(members: &[Member; 3], key: &str, wanted: Option<Version>) {
    let get = Get::new(key.as_bytes());
    let begun = Instant::now();
    let runtime = runtime();
    while members.iter().any(|it| it.has(key) != wanted) {
        assert!(begun.elapsed() < PATIENCE, "{}", members[1].describe(key));
        for member in &members[1..] {
            let mut acks = Acks::default();
            let (sharing, engine) = (&member.sharing, &member.engine);
            let read = sharing.read_copy(engine, Space::default(), &get, &mut acks, |_| ());
            runtime.block_on(read);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    // It is counted a moment after the last owner has it.
    until("it is counted", || repaired(members) > 0);
}

#[test]
fn a_write_that_was_refused_is_with_all_owners_in_the_end() {
    let (members, key) = agreed(IN_VAIN);
    let all: Vec<_> = members.iter().map(|it| (it, Active)).collect();
    let second = map(2, 3, &all);
    // One owner has applied the next map already, and accepts nothing from one that has not.
    go_by(&[&members[1]], &second);
    let mut client = members[0].client();
    assert!(client.set(&key, "two").starts_with("SERVER_ERROR"));
    assert_ne!(members[0].has(&key), members[1].has(&key));
    go_by(&[&members[0], &members[2]], &second);
    until("all owners have it", || {
        let newest = members[0].has(&key);
        members.iter().all(|it| it.has(&key) == newest)
    });
    until("it is counted", || repaired(&members) == 1);
    let refused = |it: &Member| it.sharing.events.total(Event::NotReplicated);
    assert_eq!(refused(&members[0]), 1);
    assert_eq!(client.get(&key).as_deref(), Some("two"));
}

/// Three owners of every slot, and a key that all have. Nothing is brought together in the
/// background.
fn alike() -> ([Member; 3], String) {
    let members = ["a", "b", "c"].map(|name| Member::start_waiting(name, IN_VAIN));
    let first = settled(&members, 3);
    let key = key_of(&first, &members[0], 0);
    assert_eq!(members[0].client().set(&key, "one"), "STORED");
    assert!(members.iter().all(|it| it.has(&key).is_some()));
    (members, key)
}

#[test]
fn a_deletion_that_was_refused_is_with_all_owners_when_it_is_repeated() {
    let (members, key) = alike();
    let all: Vec<_> = members.iter().map(|it| (it, Active)).collect();
    let second = map(2, 3, &all);
    go_by(&[&members[1]], &second);
    let mut client = members[0].client();
    assert!(client.delete(&key).starts_with("SERVER_ERROR"));
    assert!(members[1].has(&key).is_some());
    go_by(&[&members[0], &members[2]], &second);
    assert_eq!(client.delete(&key), "NOT_FOUND");
    for member in &members {
        assert_eq!(member.has(&key), None, "{}", member.describe(&key));
    }
}

#[test]
fn a_deletion_of_what_the_first_owner_has_dropped_is_with_all_owners() {
    let (members, key) = alike();
    let version = members[0].has(&key).unwrap();
    let (engine, dropped) = (Arc::clone(&members[0].engine), key.as_bytes().to_vec());
    members[0]
        .background
        .as_ref()
        .unwrap()
        .block_on(async move {
            let space = Space::default();
            engine.hide_copy(space, &dropped, version).await.unwrap();
        });
    assert_eq!(members[0].client().delete(&key), "NOT_FOUND");
    for member in &members {
        assert_eq!(member.has(&key), None, "{}", member.describe(&key));
    }
    // What is stored behind it is newer.
    let mut client = members[0].client();
    assert_eq!(client.set(&key, "two"), "STORED");
    assert_eq!(client.get(&key).as_deref(), Some("two"));
}

#[test]
fn what_the_primary_has_newer_comes_to_an_owner_that_answers_a_hedged_read() {
    let (members, key) = agreed(OWNERS_PATIENCE);
    let version = come_apart(&members, 0, &key, false);
    read_until_agreed(&members, &key, Some(version));
}

#[test]
fn what_the_primary_has_deleted_is_deleted_by_an_owner_that_answers_a_hedged_read() {
    let (members, key) = agreed(OWNERS_PATIENCE);
    come_apart(&members, 0, &key, true);
    read_until_agreed(&members, &key, None);
}

#[test]
fn what_an_owner_has_newer_comes_to_all_when_it_answers_a_hedged_read() {
    let (members, key) = agreed(OWNERS_PATIENCE);
    let version = come_apart(&members, 1, &key, false);
    read_until_agreed(&members, &key, Some(version));
}
