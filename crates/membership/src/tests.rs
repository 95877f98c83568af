//! Several members in one process, over real sockets.

pub(super) mod encrypted;
pub(super) mod faults;
mod hostile;
mod leases;
mod lost_disk;
mod ranges;
mod scale;
mod stalls;
mod versions;
mod world;

use std::time::{Duration, Instant};

use fonn_base::tasks::Tasks;

use super::election::LEASE;
use super::state::{Change, Put, Record, RecordKind};
use super::{ChangeError, Cluster, Start, Status};
use fonn_proto::member::MemberState::{Active, Down};
use world::{PATIENCE, World, leader, remove_dir, voters, watched};

use fonn_proto::grpc::v1::{JoinRequest, MapRequest};
use fonn_proto::placement::SLOT_COUNT;

/// How long a fall may take until it is seen everywhere. The simulation holds it to its bar; a
/// machine under load gets more.
const FALL_MAX: Duration = Duration::from_secs(30);

/// Where members heard their leader all the time there was no reason for another one. On a machine
/// that stood still there may have been.
fn assert_led_alike(before: &Status, after: &Status, silence_max: Duration) {
    let lease = LEASE;
    println!("the leader was silent for {silence_max:?} at most, of {lease:?}");
    if silence_max < lease {
        assert_eq!((after.term, &after.leader), (before.term, &before.leader));
    }
}

/// A ceiling of versions that no epoch reaches by itself.
const CEILING: u64 = 1 << 50;

/// A change that the map does not show: it raises the ceiling of versions.
fn raised(ceiling: u64) -> Change {
    Change::ExtendVersions { ceiling }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_three_and_five_members_form_a_cluster_with_one_and_three_voters() {
    let world = World::new();
    let mut nodes = vec![world.found("a").await];
    nodes[0].sees(&["a"], Active).await;
    nodes[0].voters(&["a"]).await;
    nodes.push(world.join("b", &nodes[0]).await);
    nodes[1].sees(&["a", "b"], Active).await;
    nodes[0].voters(&["a"]).await;
    nodes.push(world.join("c", &nodes[1]).await);
    voters(&nodes, &["a", "b", "c"]).await;
    // Asked at a member that does not lead.
    nodes.push(world.join("d", &nodes[1]).await);
    nodes.push(world.join("e", &nodes[3]).await);
    let all = ["a", "b", "c", "d", "e"];
    let mut maps = Vec::new();
    for node in &nodes {
        maps.push(node.sees(&all, Active).await);
    }
    assert!(
        maps.iter()
            .all(|map| !map.owners.is_empty() && map.owners == maps[0].owners)
    );
    voters(&nodes, &["a", "b", "c"]).await;
    let epoch = nodes[4].propose(Change::SetReplicas(3)).await.unwrap();
    for node in &nodes {
        // When the new owners have their slots.
        node.map(|map| map.epoch > epoch && map.owners(7).count() == 3)
            .await;
    }
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_follower_and_a_killed_leader_are_found_down() {
    let world = World::new();
    let mut nodes = world.form(&["a", "b", "c", "d", "e"]).await;
    voters(&nodes, &["a", "b", "c"]).await;
    let position = leader(&nodes).await;
    let leading = nodes.remove(position);
    let leading_id = leading.id().to_owned();
    // One that does not vote, so that the other two voters stay.
    let position = nodes.iter().position(|node| node.id() == "e").unwrap();
    let follower = nodes.remove(position);
    for (victim, what) in [(follower, "follower"), (leading, "leader")] {
        let id = victim.id().to_owned();
        let killed = Instant::now();
        victim.stop().await;
        let mut slowest = Duration::ZERO;
        for node in &nodes {
            node.sees(&[&id], Down).await;
            slowest = slowest.max(killed.elapsed());
        }
        println!("{what} {id} seen down by all after {slowest:?}");
        assert!(slowest < FALL_MAX, "{what}: {slowest:?}");
        let map = nodes[0].cluster.map().borrow().clone();
        let owns = (0..SLOT_COUNT).any(|slot| map.owners(slot).any(|it| it.id == id));
        assert!(!owns, "{id} owns slots");
    }
    // Another votes in the place of the leader that is gone.
    nodes[0]
        .status(|status| status.voters.len() == 3 && !status.voters.contains(&leading_id))
        .await;
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_was_cut_off_returns_with_its_old_term_and_deposes_no_leader() {
    let world = World::new();
    let nodes = world.form(&["a", "b", "c"]).await;
    voters(&nodes, &["a", "b", "c"]).await;
    let leading = leader(&nodes).await;
    let follower = (leading + 1) % 3;
    let (leader_node, cut_off) = (&nodes[leading], &nodes[follower]);
    let before = leader_node.cluster.status();
    let others = [leader_node, &nodes[(leading + 2) % 3]];

    let ((), silence_max) = watched(&others, async {
        world.links.isolate(&cut_off.address());
        leader_node.sees(&[cut_off.id()], Down).await;
        let alone = cut_off.cluster.status();
        // Long enough to stand for election many times, if it did.
        world.links.dropped(&cut_off.address(), 60).await;
        let meanwhile = cut_off.cluster.status();
        assert_eq!(meanwhile.term, alone.term, "it raised its term alone");
        assert_ne!(
            cut_off.cluster.map().borrow().epoch,
            0,
            "it still has its map"
        );

        world.links.heal();
        for node in &nodes {
            node.sees(&[cut_off.id()], Active).await;
        }
    })
    .await;
    let after = leader_node.cluster.status();
    assert_led_alike(&before, &after, silence_max);
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_cut_off_declares_no_member_down_and_follows_the_next() {
    let world = World::new();
    let nodes = world.form(&["a", "b", "c"]).await;
    voters(&nodes, &["a", "b", "c"]).await;
    let old = leader(&nodes).await;
    let others: Vec<usize> = (0..3).filter(|&at| at != old).collect();
    let term = nodes[old].cluster.status().term;

    world.links.isolate(&nodes[old].address());
    for &other in &others {
        nodes[other].sees(&[nodes[old].id()], Down).await;
    }
    // What was under way when it was cut off has arrived or is lost.
    let epoch = nodes[old].cluster.map().borrow().epoch;
    world.links.dropped(&nodes[old].address(), 60).await;
    assert_eq!(
        nodes[old].cluster.map().borrow().epoch,
        epoch,
        "it goes on with its last map"
    );
    let lost = nodes[old]
        .cluster
        .propose(raised(2 * CEILING), Duration::from_millis(300))
        .await;
    assert!(matches!(lost, Err(ChangeError::Unavailable(_))), "{lost:?}");
    nodes[others[0]].propose(raised(CEILING)).await.unwrap();

    world.links.heal();
    nodes[old].sees(&["a", "b", "c"], Active).await;
    let mut states = nodes[old].cluster.state();
    let state = states
        .wait_for(|state| state.versions.ceiling >= CEILING)
        .await
        .unwrap();
    assert!(state.versions.ceiling < 2 * CEILING);
    drop(state);
    nodes[old].status(|status| status.term > term).await;
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_quorum_the_map_stays_and_changes_wait_until_it_is_back() {
    let world = World::at(2);
    let mut nodes = world.form(&["a", "b", "c"]).await;
    voters(&nodes, &["a", "b", "c"]).await;
    let addresses: Vec<String> = nodes.iter().map(|node| node.address()).collect();
    // Both at once: two that are left would hold the first one for down.
    for address in &addresses[1..] {
        world.links.isolate(address);
    }
    let map = nodes[0].cluster.map().borrow().clone();
    for node in nodes.drain(1..) {
        node.stop().await;
    }
    let alone = nodes.remove(0);
    let refused = alone
        .cluster
        .propose(raised(CEILING), Duration::from_secs(1))
        .await;
    assert!(
        matches!(refused, Err(ChangeError::Unavailable(_))),
        "{refused:?}"
    );
    assert_eq!(
        alone.cluster.map().borrow().members,
        map.members,
        "nobody is declared down alone"
    );
    alone.stop().await;
    world.links.heal();

    // Alone again, from its disk, at once with the map: what was agreed is known without another
    // member.
    let mut options = world.options("a", Start::Join(Vec::new()));
    options.listen = addresses[0].parse().unwrap();
    let alone = world.start(options).await;
    assert_eq!(*alone.cluster.map().borrow(), map);

    let mut options = world.options("b", Start::Join(vec![alone.address()]));
    options.listen = addresses[1].parse().unwrap();
    let second = world.start(options).await;
    alone.propose(raised(CEILING)).await.unwrap();
    second.propose(raised(2 * CEILING)).await.unwrap();
    alone.sees(&["c"], Down).await;
    alone.stop().await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_member_has_to_be_told_how_it_comes_in() {
    let world = World::new();
    let options = world.options("a", Start::Join(Vec::new()));
    let started = Cluster::start(options, &Tasks::new()).await;
    let error = started.err().unwrap().to_string();
    assert!(
        error.contains("--bootstrap") && error.contains("--join"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_disk_is_a_new_incarnation_and_votes_under_another_id() {
    let world = World::new();
    let mut nodes = world.form(&["a", "b", "c"]).await;
    voters(&nodes, &["a", "b", "c"]).await;
    let old = nodes[2].cluster.raft_id();
    nodes.pop().unwrap().stop().await;
    remove_dir(&world.dir("c"));
    nodes.push(world.join("c", &nodes[0]).await);
    let new = nodes[2].cluster.raft_id();
    assert_ne!(old, new);
    for node in &nodes {
        let mut states = node.cluster.state();
        let is_back = states.wait_for(|state| {
            let member = state.members.get("c");
            member.is_some_and(|it| it.info.raft_id == new && it.state() == Active)
        });
        let found = tokio::time::timeout(PATIENCE, is_back).await;
        found.unwrap().unwrap();
    }
    voters(&nodes, &["a", "b", "c"]).await;
    // That it votes no more and that it is forgotten are two steps.
    let knows = |raft_id| {
        let metrics = nodes[0].cluster.participant.metrics();
        let mut known = metrics.membership_config.nodes();
        known.any(|(id, _)| *id == raft_id)
    };
    nodes[0].status(|_| knows(new) && !knows(old)).await;
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_restarts_twenty_times_is_the_same_and_disturbs_no_other() {
    let world = World::at(4);
    let mut nodes = world.form(&["a", "b", "c"]).await;
    voters(&nodes, &["a", "b", "c"]).await;
    let leading = leader(&nodes).await;
    let mut restarting = nodes.remove((leading + 1) % 3);
    let id = restarting.id().to_owned();
    let raft_id = restarting.cluster.raft_id();
    let address = restarting.address();
    let before = nodes[0].cluster.status();
    let restarts = async {
        for round in 0..20 {
            restarting.stop().await;
            let start = Start::Join(vec![nodes[round % 2].address()]);
            let mut options = world.options(&id, start);
            options.listen = address.parse().unwrap();
            restarting = world.start(options).await;
            restarting
                .propose(raised((round as u64 + 1) * CEILING))
                .await
                .unwrap();
        }
        assert_eq!(restarting.cluster.raft_id(), raft_id);
        let mut states = restarting.cluster.state();
        let state = states
            .wait_for(|state| state.versions.ceiling >= 20 * CEILING)
            .await
            .unwrap()
            .clone();
        assert_eq!(state.members[&id].info.raft_id, raft_id);
        for node in &nodes {
            node.sees(&["a", "b", "c"], Active).await;
        }
        (restarting, nodes[0].cluster.status())
    };
    let others: Vec<_> = nodes.iter().collect();
    let ((restarting, after), silence_max) = watched(&others, restarts).await;
    assert_led_alike(&before, &after, silence_max);
    restarting.stop().await;
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_joins_when_the_log_is_cut_gets_a_snapshot_and_keeps_it() {
    let world = World::new();
    let founder = world.found("a").await;
    founder.sees(&["a"], Active).await;
    // More than one piece of a snapshot.
    let record = "x".repeat(8 << 10);
    for number in 0..super::SNAPSHOT_ENTRIES + 100 {
        let put = Change::PutTogether {
            revision: number,
            puts: vec![Put {
                kind: RecordKind::Namespace,
                name: (number % 100).to_string(),
                record: Some(Record(format!("{number} {record}"))),
            }],
        };
        founder.propose(put).await.unwrap();
    }
    let mut metrics = founder.cluster.participant.raft.metrics();
    metrics
        .wait_for(|metrics| metrics.purged.is_some())
        .await
        .unwrap();
    let joined = world.join("b", &founder).await;
    joined.sees(&["a", "b"], Active).await;
    founder.sees(&["a", "b"], Active).await;
    let in_time = Instant::now() + PATIENCE;
    let state = loop {
        let state = founder.cluster.state().borrow().clone();
        // What the one has applied the other applies a moment later.
        if *joined.cluster.state().borrow() == state {
            break state;
        }
        assert!(Instant::now() < in_time, "they have different states");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert!(joined.cluster.participant.metrics().snapshot.is_some());
    joined.stop().await;
    let again = world.join("b", &founder).await;
    assert_eq!(again.cluster.state().borrow().namespaces, state.namespaces);
    again.stop().await;
    founder.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_founder_that_restarts_forms_no_second_cluster() {
    let world = World::new();
    let node = world.found("a").await;
    node.sees(&["a"], Active).await;
    node.status(|status| status.cluster != 0).await;
    let cluster = node.cluster.status().cluster;
    node.stop().await;
    let mut options = world.options("a", Start::Bootstrap);
    options.zone = "elsewhere".to_owned();
    let node = world.start(options).await;
    let map = node
        .map(|map| map.member("a").is_some_and(|it| it.zone == "elsewhere"))
        .await;
    assert_eq!((map.cluster, map.members.len()), (cluster, 1));
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_member_is_out_and_its_disk_stays_out() {
    let world = World::new();
    let mut nodes = world.form(&["a", "b", "c"]).await;
    voters(&nodes, &["a", "b", "c"]).await;
    let id = "c".to_owned();
    nodes[1]
        .propose(Change::Drain { id: id.clone() })
        .await
        .unwrap();
    nodes[1].propose(Change::Remove { id }).await.unwrap();
    nodes[1].map(|map| map.member("c").is_none()).await;
    nodes[1].status(|status| status.voters.len() == 1).await;
    nodes.pop().unwrap().stop().await;
    let returned = world.join("c", &nodes[0]).await;
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", nodes[0].address()));
    let mut client = super::peers::client(channel.unwrap().connect().await.unwrap());
    let info = &returned.cluster.participant.info;
    let request = JoinRequest {
        id: info.id.clone(),
        raft_id: info.raft_id,
        client_address: info.client_address.clone(),
        cluster_address: info.cluster_address.clone(),
        zone: info.zone.clone(),
        ..JoinRequest::default()
    };
    let in_time = Instant::now() + PATIENCE;
    let refused = loop {
        let refused = client.join(request.clone()).await.unwrap_err();
        // There may be no leader for a moment, since one that voted is gone.
        if refused.code() != tonic::Code::Unavailable || Instant::now() > in_time {
            break refused;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert!(refused.message().contains("was removed"), "{refused:?}");
    let known = nodes[0].map(|map| map.member("c").is_none()).await;
    assert_eq!(known.members.len(), 2);
    returned.stop().await;
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_the_disk_of_a_member_that_runs_is_refused() {
    let world = World::new();
    let mut options = world.options("a", Start::Bootstrap);
    // A machine that stands still for a while holds no member for silent.
    options.down_after = Duration::from_secs(60);
    let founder = world.start(options).await;
    let original = world.join("b", &founder).await;
    founder.sees(&["b"], Active).await;
    // The same name and raft id, at another address.
    let info = &original.cluster.participant.info;
    let channel = tonic::transport::Endpoint::from_shared(format!("http://{}", founder.address()));
    let mut client = super::peers::client(channel.unwrap().connect().await.unwrap());
    let request = JoinRequest {
        cluster: founder.cluster.status().cluster,
        id: info.id.clone(),
        raft_id: info.raft_id,
        client_address: "127.0.0.1:1".to_owned(),
        cluster_address: "127.0.0.1:2".to_owned(),
        zone: info.zone.clone(),
        weight: info.weight.into(),
        version: info.version.clone(),
        ..JoinRequest::default()
    };
    let refused = client.join(request).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::AlreadyExists, "{refused:?}");
    assert!(refused.message().contains(&info.cluster_address));
    let state = founder.cluster.state().borrow().clone();
    assert_eq!(state.members["b"].info, *info);
    original.stop().await;
    founder.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_follows_the_map_and_is_told_of_the_end() {
    let world = World::new();
    let nodes = world.form(&["a", "b"]).await;
    let endpoint =
        tonic::transport::Endpoint::from_shared(format!("http://{}", nodes[1].address()));
    let channel = endpoint.unwrap().connect().await.unwrap();
    let mut client = super::peers::client(channel);
    let request = MapRequest::default();
    let mut stream = client.map(request).await.unwrap().into_inner();
    let first = stream.message().await.unwrap().unwrap();
    assert_eq!(first.members.len(), 2);
    assert_eq!(
        (first.members[0].id.as_str(), first.members[0].share),
        ("a", 100)
    );
    let weight = Change::SetWeight {
        id: "a".into(),
        weight: 50,
    };
    let epoch = nodes[1].propose(weight).await.unwrap();
    let mut next = stream.message().await.unwrap().unwrap();
    // When the slots have moved.
    while next.epoch <= epoch || next.members[0].share != 50 {
        next = stream.message().await.unwrap().unwrap();
    }
    let [first, second] = nodes.try_into().ok().unwrap();
    second.stop().await;
    // What it told before may be on the way.
    let ends = async { while let Ok(Some(_)) = stream.message().await {} };
    let in_time = tokio::time::timeout(PATIENCE, ends).await;
    assert!(in_time.is_ok(), "the stream goes on");
    first.stop().await;
}
