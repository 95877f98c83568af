//! Slots that change hands.

use std::os::unix::fs::FileExt;

use fonn_cold_tier::names::Region;
use fonn_cold_tier::store::fault::FaultStore;
use fonn_cold_tier::store::memory::MemoryStore;
use fonn_cold_tier::{ColdOptions, ObjectStore, SpillMode};
use fonn_disk_tier::levels::{Level, LevelCodec};
use fonn_proto::outcome::Value;
use fonn_proto::peer::{Content, Entry};

use super::super::metrics::Event;
use super::*;
use crate::cold::ColdSetup;
use crate::engine::Acks;

#[test]
fn a_key_is_found_at_its_old_owner_until_its_slot_is_taken_over() {
    let members = ["a", "b", "c"].map(Member::start);
    let [a, b, c] = &members;
    let first = map(1, 1, &[(a, Active), (b, Active)]);
    go_by(&[a, b], &first);
    let keys: Vec<String> = (0..200).map(|number| format!("key-{number}")).collect();
    let mut client = a.client();
    for key in &keys {
        assert_eq!(client.set(key, key), "STORED");
    }
    let second = map(2, 1, &[(a, Active), (b, Active), (c, Active)]);
    let moved: Vec<&String> = keys
        .iter()
        .filter(|key| second.owners(slot(key.as_bytes())).next().unwrap().id == "c")
        .collect();
    assert!(moved.len() > 20);
    go_by(&[a, b, c], &second);
    let mut clients = [a, b, c].map(Member::client);
    // No member copies anything in the background: each is fetched because it is wanted.
    for (number, key) in moved.iter().take(10).enumerate() {
        assert_eq!(clients[number % 3].get(key).as_ref(), Some(*key));
        assert!(c.has(key).is_some());
    }
    assert!(c.has(moved[10]).is_none());
    assert_eq!(clients[0].set(moved[11], "new"), "STORED");
    assert_eq!(clients[1].get(moved[11]).as_deref(), Some("new"));
    assert_eq!(clients[2].delete(moved[12]), "DELETED");
    assert_eq!(clients[0].get(moved[12]), None);

    c.take_over();
    until("c has it all", || c.is_filled());
    for key in moved.iter().skip(13) {
        assert!(c.has(key).is_some(), "{key}");
    }
    assert_eq!(clients[2].get(moved[11]).as_deref(), Some("new"));
    assert_eq!(clients[2].get(moved[12]), None);
}

#[test]
fn values_of_all_sizes_are_taken_over() {
    let mut members = ["a", "b"].map(Member::start);
    let value = |number: usize| "x".repeat([0, 10, 70_000, 1_000_000][number % 4] + number);
    {
        let [a, b] = &members;
        go_by(&[a], &map(1, 1, &[(a, Active)]));
        let mut client = a.client();
        for number in 0..40 {
            let key = format!("key-{number}");
            assert_eq!(client.set(&key, &value(number)), "STORED");
        }
        let second = map(2, 1, &[(a, Draining), (b, Active)]);
        go_by(&[a, b], &second);
        b.take_over();
        until("b has it all", || b.is_filled());
        for number in 0..40 {
            assert!(b.has(&format!("key-{number}")).is_some(), "{number}");
        }
    }
    // The machine may be switched off now.
    members[0].kill();
    let b = &members[1];
    go_by(&[b], &map(3, 1, &[(b, Active)]));
    let mut client = b.client();
    for number in 0..40 {
        assert_eq!(client.get(&format!("key-{number}")), Some(value(number)));
    }
}

async fn put(engine: &Engine, key: &str, version: u64, value: &str) {
    let mut acks = Acks::default();
    let entry = Entry {
        content: Content::Value(Value::Copied(value.as_bytes())),
        ..Entry::tombstone(0, key.as_bytes(), version)
    };
    assert_eq!(engine.put_of_peer(&entry, &mut acks).await, Ok(true));
    assert_eq!(acks.wait().await, []);
}

/// Options with a bucket below.
fn above(dir: &TempDir, bucket: &Arc<FaultStore>) -> EngineOptions {
    let cold = ColdOptions {
        spill_age: SpillMode::WriteBehind(Duration::from_millis(1)),
        ..ColdOptions::new(dir.path().join("cold"), Region::default())
    };
    EngineOptions {
        cold: Some(ColdSetup {
            options: cold,
            codec: Arc::new(LevelCodec::new(Level::Cold, CodecChoice::none(), 256)),
            store: Arc::clone(bucket) as Arc<dyn ObjectStore>,
            retries: Arc::default(),
        }),
        ..options(dir)
    }
}

#[test]
fn where_the_newest_cannot_be_read_nothing_older_is_shown() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let memory = Arc::new(MemoryStore::new(Clock::system()));
    let bucket = Arc::new(FaultStore::new(memory, 1));
    let dir = tempfile::tempdir().unwrap();
    let now_ms = Clock::system().wall_ms();
    let (older, newer) = ((now_ms - 2) << 16, (now_ms - 1) << 16);
    let log = dir.path().join("g0000000001").join("values");
    let a = Member::start_in("a", dir, |dir| above(dir, &bucket));
    let tasks = Tasks::new();
    runtime.block_on(async {
        a.engine.start_cold(&tasks);
        put(&a.engine, "key", newer, "the newer value").await;
        a.engine.drain_cold(Instant::now() + PATIENCE).await;
    });
    // The bucket alone has it from now on, and fails.
    let bytes = std::fs::read(&log).unwrap();
    let is_value = |it: &[u8]| it == b"the newer value";
    let at = bytes.windows(15).position(is_value).unwrap();
    let log = std::fs::File::options().write(true).open(log).unwrap();
    log.write_all_at(b"T", at as u64).unwrap();
    bucket.go_down();
    let ram = a.engine.ram();
    ram.reserve(ram.budget());
    ram.evict_to_budget(0, u32::MAX, usize::MAX);
    ram.release(ram.budget());
    let b = Member::start("b");
    runtime.block_on(put(&b.engine, "key", older, "older"));
    go_by(&[&a], &map(1, 1, &[(&a, Active)]));
    go_by(&[&a, &b], &map(2, 1, &[(&a, Draining), (&b, Active)]));
    b.take_over();
    until("b has all that can be had", || b.is_filled());
    let mut client = b.client();
    assert_eq!(client.get("key"), None);
    assert_eq!(client.set("key", "new"), "STORED");
    assert_eq!(client.get("key").as_deref(), Some("new"));
}

#[test]
fn large_values_are_taken_over_no_faster_than_allowed() {
    const COUNT: usize = 60;
    let members = ["a", "b"].map(Member::start);
    let [a, b] = &members;
    go_by(&[a], &map(1, 1, &[(a, Active)]));
    let (mut client, value) = (a.client(), "x".repeat(1 << 20));
    for number in 0..COUNT {
        assert_eq!(client.set(&format!("key-{number}"), &value), "STORED");
    }
    let begun = Instant::now();
    go_by(&[a, b], &map(2, 1, &[(a, Draining), (b, Active)]));
    b.take_over();
    until("b has it all", || b.is_filled());
    let (took, rate) = (begun.elapsed(), super::super::handover::RATE as usize);
    let least = Duration::from_millis((COUNT * value.len() * 1000 / rate) as u64);
    // Each wait is of whole milliseconds.
    assert!(took >= least * 9 / 10, "{took:?} of {least:?}");
}

#[test]
fn a_member_that_was_away_shows_no_older_copy() {
    let members = ["a", "b"].map(Member::start);
    let [a, b] = &members;
    let both = [(a, Active), (b, Active)];
    let first = map(1, 1, &both);
    go_by(&[a, b], &first);
    let keys: Vec<String> = (0..4).map(|nth| key_of(&first, a, nth)).collect();
    let mut clients = [a, b].map(Member::client);
    for key in &keys {
        assert_eq!(clients[0].set(key, "old"), "STORED");
    }
    // It is away; b is the owner meanwhile, and knows nothing of what a had.
    go_by(&[b], &map(2, 1, &[(a, Down), (b, Active)]));
    assert_eq!(clients[1].set(&keys[0], "new"), "STORED");
    assert_eq!(clients[1].set(&keys[1], "new"), "STORED");
    assert_eq!(clients[1].delete(&keys[1]), "DELETED");
    assert_eq!(clients[1].get(&keys[2]), None);

    let third = map(3, 1, &both);
    a.sharing.go_by(third.clone(), false);
    b.sharing.go_by(third, true);
    assert_eq!(clients[0].get(&keys[0]).as_deref(), Some("new"));
    assert_eq!(clients[0].get(&keys[1]), None);
    // An unchanged entry is as good as it was.
    assert_eq!(clients[0].get(&keys[2]).as_deref(), Some("old"));
    a.take_over();
    until("a has it all", || a.is_filled());
    assert_eq!(clients[0].get(&keys[0]).as_deref(), Some("new"));
    assert_eq!(clients[0].get(&keys[1]), None);
    assert_eq!(clients[0].get(&keys[3]).as_deref(), Some("old"));
}

#[test]
fn a_stand_in_shows_nothing_of_what_it_had_when_it_stood_in_before() {
    let members = ["a", "b"].map(Member::start);
    let [a, b] = &members;
    let first = map(1, 1, &[(a, Active), (b, Active)]);
    go_by(&[a, b], &first);
    // No member had its own slots before.
    b.take_over();
    until("b knows that", || b.is_filled());
    let [one, two, own] = [
        key_of(&first, a, 0),
        key_of(&first, a, 1),
        key_of(&first, b, 0),
    ];
    let mut clients = [a, b].map(Member::client);
    assert_eq!(clients[1].set(&own, "its own"), "STORED");
    go_by(&[b], &map(2, 1, &[(a, Down), (b, Active)]));
    for key in [&one, &two] {
        assert_eq!(clients[1].set(key, "b"), "STORED");
    }
    let third = map(3, 1, &[(a, Active), (b, Active)]);
    a.sharing.go_by(third.clone(), false);
    b.sharing.go_by(third, true);
    assert_eq!(clients[0].get(&one).as_deref(), Some("b"));
    assert_eq!(clients[0].set(&one, "a, later"), "STORED");
    assert_eq!(clients[0].delete(&two), "DELETED");
    // Only a knows of that, and falls once more.
    go_by(&[b], &map(4, 1, &[(a, Down), (b, Active)]));
    assert_eq!((clients[1].get(&one), clients[1].get(&two)), (None, None));
    let added = clients[1].ask(&format!("add {two} 0 0 8\r\nb, later\r\n"));
    assert_eq!(added, "STORED", "there is nothing");
    assert_eq!(clients[1].get(&two).as_deref(), Some("b, later"));
    assert_eq!(clients[1].get(&own).as_deref(), Some("its own"));
    let fifth = map(5, 1, &[(a, Active), (b, Active)]);
    a.sharing.go_by(fifth.clone(), false);
    b.sharing.go_by(fifth, true);
    assert_eq!(
        clients[0].get(&one).as_deref(),
        Some("a, later"),
        "it is hidden there alone"
    );
    assert_eq!(clients[0].get(&two).as_deref(), Some("b, later"));
}

#[test]
fn the_old_owner_is_believed_once_it_goes_by_the_new_map() {
    let members = ["a", "b"].map(Member::start);
    let [a, b] = &members;
    go_by(&[a], &map(1, 1, &[(a, Active)]));
    let mut client = a.client();
    assert_eq!(client.set("key", "one"), "STORED");
    // A member that starts: it has gone by no map yet.
    let second = map(2, 1, &[(a, Draining), (b, Active)]);
    go_by(&[b], &second);
    // a is still the owner, as far as it knows.
    let address = b.address.clone();
    let reader = std::thread::spawn(move || Client::connect(&address).get("key"));
    until("b asks", || b.sharing.events.total(Event::Asked) > 1);
    assert_eq!(client.set("key", "two"), "STORED");
    go_by(&[a], &second);
    assert_eq!(reader.join().unwrap().as_deref(), Some("two"));
}

#[test]
fn a_write_waits_for_an_old_owner_that_answers_and_is_slow_to_apply_the_map() {
    let members = ["a", "b"].map(|name| Member::start_waiting(name, IN_VAIN));
    let [a, b] = &members;
    go_by(&[a], &map(1, 1, &[(a, Active)]));
    assert_eq!(a.client().set("key", "one"), "STORED");
    let second = map(2, 1, &[(a, Draining), (b, Active)]);
    go_by(&[b], &second);
    let mut clients = [b.client(), b.client()];
    std::thread::scope(|scope| {
        let [reader, writer] = &mut clients;
        let begun = Instant::now();
        let reading = scope.spawn(|| reader.get("key"));
        let writing = scope.spawn(|| writer.set("key", "two"));
        assert_eq!(reading.join().unwrap(), None, "a read is a miss then");
        until("it takes longer than for a read", || {
            begun.elapsed() > IN_VAIN + IN_VAIN / 6
        });
        assert!(!writing.is_finished());
        go_by(&[a], &second);
        assert_eq!(writing.join().unwrap(), "STORED");
    });
    assert_eq!(clients[0].get("key").as_deref(), Some("two"));
}

#[test]
fn a_replica_answers_routers_when_it_lacks_nothing() {
    let members = ["a", "b"].map(Member::start);
    let [a, b] = &members;
    let first = map(1, 2, &[(a, Active), (b, Active)]);
    go_by(&[a, b], &first);
    let slot = slot(key_of(&first, a, 0).as_bytes());
    assert!(!b.sharing.serves(slot, true));
    // Everything is new to it: it asks first.
    assert!(!b.sharing.serves(slot, false));
    b.take_over();
    until("b has it all", || b.is_filled());
    assert!(b.sharing.serves(slot, false));
    assert!(!b.sharing.serves(slot, true));
    assert!(a.sharing.serves(slot, true));
}

#[test]
fn no_member_is_said_to_be_needed_no_more_by_a_map_that_is_not_applied_yet() {
    let members = ["a", "b", "c"].map(Member::start);
    let [a, b, c] = &members;
    let first = map(1, 1, &[(a, Active), (b, Active), (c, Active)]);
    go_by(&[a, b, c], &first);
    let needed = |asked: &Member, epoch: u64| {
        let sharing = Arc::clone(&asked.sharing);
        let runtime = asked.background.as_ref().unwrap();
        runtime.block_on(async move { sharing.needed_from("a", epoch).await })
    };
    for member in &members {
        member.take_over();
    }
    until("nothing is needed", || needed(b, 1) == Ok(0));
    // The cluster has decided that `a` leaves; the members hear of it one after the other.
    let second = map(2, 1, &[(a, Draining), (b, Active), (c, Active)]);
    assert_eq!(needed(b, 2), Err("b".to_owned()));
    go_by(&[b], &second);
    assert_eq!(needed(b, 2), Err("c".to_owned()));
    go_by(&[c], &second);
    assert!(needed(b, 2).unwrap() > 1000);
    go_by(&[a], &second);
    until("nothing is needed", || needed(b, 2) == Ok(0));
}

#[test]
fn what_one_source_deleted_does_not_come_back_from_another_one() {
    let members = ["a", "b", "c"].map(Member::start);
    let [a, b, c] = &members;
    // One owner after the other, and no member copies anything in the background.
    for (epoch, owner) in [(1, b), (2, a), (3, c)] {
        let states = members.each_ref().map(|it| match it.name == owner.name {
            true => (it, Active),
            false => (it, Draining),
        });
        go_by(&[a, b, c], &map(epoch, 1, &states));
        match epoch {
            1 => assert_eq!(b.client().set("key", "old"), "STORED"),
            2 => assert_eq!(a.client().delete("key"), "DELETED"),
            _ => assert_eq!(c.client().get("key"), None),
        }
    }
    // b has it still, and is asked behind a.
    assert!(b.has("key").is_some() && c.has("key").is_none());
}
