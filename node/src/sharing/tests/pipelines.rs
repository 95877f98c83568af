//! Requests that a client sends to a member without waiting for the answers.

use super::super::metrics::Event;
use super::copies::{Gate, settled};
use super::*;

const SETS: usize = 8;

/// Sends sets of keys whose primary is `owner` to `to`, all at once.
fn sets(to: &Member, map: &Topology, owner: &Member) -> (Client, Vec<String>) {
    let keys: Vec<String> = (0..SETS).map(|nth| key_of(map, owner, nth)).collect();
    let requests = keys.iter().map(|key| format!("set {key} 0 0 1\r\nx\r\n"));
    let mut client = to.client();
    let requests: String = requests.collect();
    client.0.get_mut().write_all(requests.as_bytes()).unwrap();
    (client, keys)
}

fn all_stored(mut client: Client) {
    for _ in 0..SETS {
        assert_eq!(client.line(), "STORED");
    }
}

#[test]
fn sets_of_own_slots_are_with_the_other_owners_side_by_side() {
    let members = ["a", "b", "c"].map(Member::start);
    let first = settled(&members, 3);
    let gate = Gate::before(&members[1]);
    let through = map(2, 3, &members.each_ref().map(|it| (it, Active)));
    go_by(&members.each_ref(), &gate.on(&through, &members[1]));
    until("all is taken over", || {
        members.iter().all(Member::is_filled)
    });
    gate.set_open(false);
    let (client, keys) = sets(&members[0], &first, &members[0]);
    until("all sets are executed while none is acknowledged", || {
        keys.iter().all(|key| members[0].has(key).is_some())
    });
    gate.set_open(true);
    all_stored(client);
    for key in &keys {
        let version = members[0].has(key);
        assert!(members.iter().all(|it| it.has(key) == version), "{key}");
    }
}

#[test]
fn sets_of_another_members_slots_are_forwarded_side_by_side() {
    let members = ["a", "b", "c"].map(Member::start);
    let first = settled(&members, 1);
    let gate = Gate::before(&members[1]);
    let through = map(2, 1, &members.each_ref().map(|it| (it, Active)));
    go_by(&members.each_ref(), &gate.on(&through, &members[1]));
    until("all is taken over", || {
        members.iter().all(Member::is_filled)
    });
    gate.set_open(false);
    let forwarded = || members[0].sharing.events.total(Event::Forwarded);
    let before = forwarded();
    let (client, keys) = sets(&members[0], &first, &members[1]);
    until("all sets are forwarded while none is answered", || {
        forwarded() >= before + SETS as u64
    });
    gate.set_open(true);
    all_stored(client);
    assert!(keys.iter().all(|key| members[1].has(key).is_some()));
}
