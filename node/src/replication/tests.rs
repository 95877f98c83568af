//! Restarted members: which maps they apply.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fonn_base::clock::Clock;
use fonn_base::entry::Space;
use fonn_base::metrics::Metrics;
use fonn_base::tasks::Tasks;
use fonn_disk_tier::Durability;
use fonn_disk_tier::levels::CodecChoice;
use fonn_membership::{Cluster, Options, Start};
use fonn_ram_tier::{LruMode, RamOptions};
use fonn_rpc::PeerMetrics;

use super::{Replication, follow};
use crate::engine::{Engine, EngineOptions, Settings};

/// Everything ends long before; a machine under load is slow.
const PATIENCE: Duration = Duration::from_secs(90);

/// Starts a member of a cluster of one.
async fn member(dir: &Path) -> (Cluster, Tasks) {
    let (tasks, any) = (Tasks::new(), SocketAddr::from(([127, 0, 0, 1], 0)));
    let options = Options::new("a", Start::Bootstrap, any, "127.0.0.1:1", dir.to_owned());
    let cluster = Cluster::start(options, &tasks).await.unwrap();
    (cluster, tasks)
}

/// Starts a member's part in the cluster's data, which it has in memory.
fn share(cluster: &Cluster, tasks: &Tasks) -> Arc<Replication> {
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
    follow::start(cluster, &engine, clock, peers, tasks)
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
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let (cluster, tasks) = member(dir.path()).await;
        let replication = share(&cluster, &tasks);
        until("it goes by its map", || replication.epoch() > 0).await;
        cluster.stop().await;
        let late = tasks.finish(Instant::now() + PATIENCE).await;
        assert_eq!(late, Vec::<&str>::new());
    }
}
