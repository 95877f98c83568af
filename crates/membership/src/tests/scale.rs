//! The sizes that docs/scale.md reckons with, of a cluster of a hundred members in ten zones.

use std::time::Instant;

use openraft::CommittedLeaderId;
use openraft::raft::AppendEntriesRequest;
use prost::Message as _;

use fonn_proto::grpc::v1::{RaftEnds, RaftKind};
use fonn_proto::placement::SLOT_COUNT;

use crate::map::Map;
use crate::member::MemberInfo;
use crate::network;
use crate::service::message;
use crate::state::settle::settle;
use crate::state::{Change, State};
use crate::types::{LogId, TypeConfig, Vote};

fn info(number: u64) -> MemberInfo {
    let id = format!("cache-{number:03}.internal");
    MemberInfo {
        raft_id: u64::MAX / 101 * (number + 1),
        client_address: format!("{id}:11211"),
        cluster_address: format!("{id}:11290"),
        zone: format!("zone-{}", number % 10),
        weight: 100,
        version: "0.1.0".to_owned(),
        id,
    }
}

fn hundred() -> State {
    let mut state = State::default();
    let (cluster, founder) = (u64::MAX / 3, info(0));
    state.apply(Change::Form {
        cluster,
        founder,
        version: 0,
        down_after_ms: 1500,
    });
    for number in 1..100 {
        state.apply(Change::Join(info(number)));
        state.apply(Change::Activate(info(number).raft_id));
    }
    state.apply(Change::SetReplicas(2));
    settle(&mut state);
    state
}

#[test]
fn a_hundred_members_are_a_small_map_and_a_small_state() {
    let mut state = hundred();
    let began = Instant::now();
    let map = Map::new(&state);
    let took = began.elapsed();
    let map_len = message(&map).encoded_len();
    let state_len = serde_json::to_vec(&state).unwrap().len();
    let end = |index| LogId::new(CommittedLeaderId::new(7, u64::MAX / 101), index);
    let heartbeat = AppendEntriesRequest::<TypeConfig> {
        vote: Vote::new_committed(7, u64::MAX / 101),
        prev_log_id: Some(end(12_345)),
        entries: Vec::new(),
        leader_commit: Some(end(12_345)),
    };
    let ends = RaftEnds {
        cluster: u64::MAX / 3,
        source: u64::MAX / 101,
        target: u64::MAX / 101 * 2,
    };
    let heartbeat = network::request(ends, RaftKind::Append, &heartbeat).unwrap();
    let heartbeat_len = heartbeat.encoded_len();

    let MemberInfo { id, raft_id, .. } = info(42);
    state.apply(Change::Down(raft_id));
    let after = Map::new(&state);
    let moved = (0..SLOT_COUNT).filter(|slot| map.owner_ids(*slot) != after.owner_ids(*slot));
    let moved: Vec<_> = moved.collect();
    let had = |slot: &&u16| map.owner_ids(**slot).contains(&id.as_str());
    let least = moved.iter().filter(had).count();
    println!(
        "100 members, 2 owners: map {map_len} bytes as sent, made in {took:?}; state {state_len} bytes; \
         heartbeat {heartbeat_len} bytes; a fall changes the owners of {} slots, {least} at least",
        moved.len()
    );
    assert!((80_000..110_000).contains(&map_len), "{map_len}");
    assert!((20_000..60_000).contains(&state_len), "{state_len}");
    assert!((100..600).contains(&heartbeat_len), "{heartbeat_len}");
    assert!(moved.len() * 100 <= least * 110, "{} {least}", moved.len());
}
