//! Restarted members: which maps they apply, and whose replies they use.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fonn_base::clock::Clock;
use fonn_base::entry::Space;
use fonn_base::metrics::Metrics;
use fonn_base::tasks::Tasks;
use fonn_disk_tier::Durability;
use fonn_disk_tier::levels::CodecChoice;
use fonn_ram_tier::{LruMode, RamOptions};
use fonn_rpc::PeerMetrics;

use super::world::{Node, PATIENCE, World};
use crate::cluster::member::MemberState::Active;
use crate::cluster::{Cluster, ClusterError, JournalError, Start};
use crate::engine::{Engine, EngineOptions, Settings};
use crate::replication::{Replication, follow};

/// Starts a member's part in the cluster's data, which it has in memory.
fn share(node: &Node) -> Arc<Replication> {
    let engine = Engine::open(EngineOptions {
        settings: Settings {
            value_len_max: 1 << 20,
            durability: Durability::None,
        },
        ram: RamOptions {
            budget_bytes: 8 << 20,
            lru: LruMode::Approximate,
            hash_seed: 1,
        },
        disk: None,
        cold: None,
        ram_codec: (CodecChoice::none(), 256),
        clock: Clock::system(),
        spaces: u32::from(Space::DATABASES),
    });
    let peers = follow::Peers {
        version: fonn_proto::peer::VERSION,
        metrics: PeerMetrics::register(&Metrics::new()),
    };
    let (engine, clock) = (engine.unwrap(), Clock::system());
    follow::start(&node.cluster, &engine, clock, peers, &node.tasks)
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
        matches!(refused, ClusterError::Journal(JournalError::Missing { .. })),
        "{refused}"
    );
    assert!(refused.to_string().contains("--join"), "{refused}");
    assert!(!journal.exists(), "a new one was made");
    std::fs::rename(&aside, &journal).unwrap();
    let node = world.start(again()).await;
    node.sees(&["a"], Active).await;
    node.stop().await;
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_member_applies_the_map_of_its_disk_at_once() {
    let world = World::new();
    let node = world.found("a").await;
    node.sees(&["a"], Active).await;
    node.stop().await;
    let node = world.found("a").await;
    let replication = share(&node);
    until("it goes by its map", || replication.epoch() > 0).await;
    node.stop().await;
}
