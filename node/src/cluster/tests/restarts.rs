//! Restarted members: which maps they apply, and whose replies they use.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fonn_base::clock::Clock;
use fonn_base::entry::Space;
use fonn_base::metrics::Metrics;
use fonn_base::tasks::Tasks;
use fonn_disk_tier::Durability;
use fonn_disk_tier::levels::CodecChoice;
use fonn_proto::peer::SlotSet;
use fonn_proto::placement::SLOT_COUNT;
use fonn_ram_tier::{LruMode, RamOptions};
use fonn_rpc::PeerMetrics;

use super::world::{Node, PATIENCE, World};
use crate::cluster::map::Map;
use crate::cluster::member::MemberState::Active;
use crate::cluster::{Cluster, ClusterError, JournalError, Start};
use crate::engine::{Engine, EngineOptions, Settings};
use crate::sharing::{Sharing, follow};

/// Starts a member's part in the cluster's data, which it has in memory.
fn share(node: &Node) -> Arc<Sharing> {
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
async fn after_a_start_the_map_of_before_is_gone_by_first_and_then_all_that_came_since() {
    let world = World::at(4);
    let options = |id: &str, start| {
        let mut options = world.options(id, start);
        // No member fails: the map changes only with new ones.
        options.detector.silence = 10 * PATIENCE;
        options
    };
    let a = world.start(options("a", Start::Bootstrap)).await;
    a.sees(&["a"], Active).await;
    let join = || Start::Join(vec![a.address()]);
    let b = world.start(options("b", join())).await;
    // From then on it has slots that were all the first one's, and nothing of them.
    let before = b.sees(&["a", "b"], Active).await;
    let listen = b.cluster.address();
    b.stop().await;
    // By the map without the one before, the third one would have stood in for some of these slots.
    let c = world.start(options("c", join())).await;
    let now = c.sees(&["a", "b", "c"], Active).await;
    let mut again = options("b", join());
    again.listen = listen;
    let b = world.start(again).await;
    // All of that is known before any member applies a map.
    b.map(|map| map.epoch >= now.epoch).await;
    assert_eq!(b.cluster.state_of_start().epoch, before.epoch);
    assert!(now.epoch > before.epoch + 1, "there is none in between");

    // No member answers for its entries: what is lacked stays so.
    let sharing = share(&b);
    until("it goes by the newest map", || sharing.epoch() >= now.epoch).await;
    let sources = sharing.sources(&SlotSet::all(), false);
    let sources: Vec<(&str, SlotSet)> = sources.sources().iter().map(Result::unwrap).collect();
    let is_of_b = |map: &Map, slot| map.owners(slot).any(|owner| owner.id == "b");
    let lacked = (0..SLOT_COUNT).filter(|slot| is_of_b(&before, *slot) || is_of_b(&now, *slot));
    let lacked: SlotSet = lacked.collect();
    let told: Vec<(&str, u32)> = sources.iter().map(|(id, of)| (*id, of.len())).collect();
    // The third one had nothing by any map, so it is asked for nothing; the first one is for all.
    assert_eq!(told, [("a", lacked.len())]);
    assert!(sources[0].1 == lacked, "of other slots");
    for node in [a, b, c] {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_member_applies_the_map_of_its_disk_at_once() {
    let world = World::new();
    let node = world.found("a").await;
    node.sees(&["a"], Active).await;
    node.stop().await;
    let node = world.found("a").await;
    let sharing = share(&node);
    until("it goes by its map", || sharing.epoch() > 0).await;
    node.stop().await;
}
