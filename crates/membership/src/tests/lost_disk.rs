//! Disks that are lost, over real sockets and real raft.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use openraft::{EntryPayload, Membership};

use fonn_base::tasks::Tasks;

use super::world::{Node, World, leader, remove_dir, voters};
use crate::journal::{Journal, Record};
use crate::types::{Entry, LogId, RaftId};
use crate::{Cluster, ClusterError, FileError, Start};
use fonn_proto::member::MemberState::{Active, Down};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_is_lost_while_voters_change_leaves_a_cluster_that_can_be_led() {
    let world = World::at(3);
    let mut nodes = world.form(&["a", "b", "c", "d"]).await;
    voters(&nodes, &["a", "b", "c"]).await;
    let at = leader(&nodes).await;
    let lost = nodes.remove(at);
    // One that votes no more, and one that votes from now on.
    let leaving = nodes.iter().position(|node| node.id() != "d").unwrap();
    let leaving = nodes[leaving].id().to_owned();
    let raft_id = |node: &Node| node.cluster.raft_id();
    let all = || nodes.iter().chain([&lost]);
    let voting = |without: &str| -> BTreeSet<RaftId> {
        all()
            .filter(|node| node.id() != without)
            .map(raft_id)
            .collect()
    };
    let (old, new) = (voting("d"), voting(&leaving));
    let members = lost.cluster.participant.metrics().membership_config;
    let members = members.membership().nodes();
    let members: std::collections::BTreeMap<_, _> =
        members.map(|(id, it)| (*id, it.clone())).collect();
    let joint = Membership::new(vec![old, new.clone()], members.clone());
    let uniform = Membership::new(vec![new], members);

    // What is written below follows what all of them have.
    let newest = |node: &Node| node.cluster.participant.metrics().last_log_index;
    for node in &nodes {
        node.status(|_| newest(node) == newest(&lost)).await;
    }
    // No member stands for election while they stop.
    let ports: Vec<(String, String)> = nodes
        .iter()
        .map(|node| (node.id().to_owned(), node.address()))
        .collect();
    all().for_each(|node| world.links.isolate(&node.address()));
    join_all(nodes.into_iter().chain([lost]).map(Node::stop)).await;
    world.links.heal();

    // The leader had told all of the first step, and of the second only the leaving ones.
    for (id, _) in &ports {
        let (mut journal, contents) = Journal::open(&world.dir(id)).unwrap();
        let last = contents.last().unwrap();
        let entry = |more, membership: &Membership<_, _>| Entry {
            log_id: LogId::new(last.leader_id, last.index + more),
            payload: EntryPayload::Membership(membership.clone()),
        };
        let mut records = vec![Record::Entry(entry(1, &joint))];
        if *id == leaving {
            records.push(Record::Entry(entry(2, &uniform)));
        }
        journal.append(&records).unwrap();
    }
    let mut again = Vec::new();
    for (id, address) in &ports {
        let mut options = world.options(id, Start::Join(Vec::new()));
        options.listen = address.parse().unwrap();
        again.push(world.start(options).await);
    }
    let is_led = |leader: &Option<String>| {
        let leader = leader.as_deref();
        again.iter().any(|node| Some(node.id()) == leader)
    };
    again[0].status(|status| is_led(&status.leader)).await;
    let gone = ["a", "b", "c"]
        .into_iter()
        .find(|id| ports.iter().all(|(it, _)| it != id));
    let gone = gone.unwrap();
    again[0].sees(&[gone], Down).await;
    // With an empty disk it comes back, and what was begun is gone on with.
    remove_dir(&world.dir(gone));
    again.push(world.join(gone, &again[0]).await);
    again[0].sees(&["a", "b", "c", "d"], Active).await;
    for node in again {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_lost_its_journal_does_not_vote_a_second_time() {
    let world = World::new();
    let node = world.found("a").await;
    node.status(|status| status.cluster != 0).await;
    node.stop().await;
    let journal = world.dir("a").join("journal");
    let aside = journal.with_extension("aside");
    std::fs::rename(&journal, &aside).unwrap();
    let again = || world.options("a", Start::Bootstrap);
    let refused = Cluster::start(again(), &Tasks::new()).await.unwrap_err();
    assert!(
        matches!(refused, ClusterError::File(FileError::Missing { .. })),
        "{refused}"
    );
    assert!(refused.to_string().contains("--join"), "{refused}");
    assert!(!journal.exists(), "a new one was made");
    std::fs::rename(&aside, &journal).unwrap();
    let node = world.start(again()).await;
    node.sees(&["a"], Active).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_founder_that_was_killed_before_it_noted_its_cluster_enters_it() {
    let world = World::new();
    let node = world.found("a").await;
    let formed = node.status(|status| status.cluster != 0).await.cluster;
    node.stop().await;
    let path = world.dir("a").join("identity");
    let noted = std::fs::read_to_string(&path).unwrap();
    let before = noted.replace(&format!("\"cluster\":{formed}"), "\"cluster\":0");
    assert_ne!(before, noted);
    std::fs::write(&path, before).unwrap();
    let node = world.found("a").await;
    let entered = node.status(|status| status.cluster != 0).await.cluster;
    assert_eq!(entered, formed);
    node.stop().await;
}
