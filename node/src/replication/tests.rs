//! Members as they start: which maps they apply, what they save, and what they execute.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fonn_base::clock::Clock;
use fonn_base::entry::Space;
use fonn_base::metrics::Metrics;
use fonn_base::tasks::Tasks;
use fonn_disk_tier::levels::CodecChoice;
use fonn_disk_tier::{DiskOptions, Durability};
use fonn_forward::{Forwarder, Map, Topology, Upstreams};
use fonn_membership::{Cluster, Options, Start};
use fonn_proto::member::{Member, MemberState};
use fonn_proto::peer::{Entry as PeerEntry, SlotSet};
use fonn_proto::request::ServerOutcome;
use fonn_proto::{
    Base, Batch, BatchStep, Command, ExpirySpec, Get, Outcome, Overlay, Redirects, Store, Watched,
    WriterId, placement,
};
use fonn_ram_tier::{LruMode, RamOptions};
use fonn_replication::{Epoch, MemberId, Record, Slot, Version};
use fonn_rpc::PeerMetrics;
use fonn_rpc::testing::Node;
use fonn_server::{Execution, Job, Stored};
use futures_util::FutureExt as _;

use super::write::NotAcknowledged;
use super::{Replication, Written, follow};
use crate::engine::{Acks, Engine, EngineOptions, Settings, Transfer};

/// Everything ends long before; a machine under load is slow.
const PATIENCE: Duration = Duration::from_secs(90);

/// Starts a member of a cluster of one.
async fn member(dir: &Path) -> (Cluster, Tasks) {
    let (tasks, any) = (Tasks::new(), SocketAddr::from(([127, 0, 0, 1], 0)));
    let mut options = Options::new("a", Start::Bootstrap, any, "127.0.0.1:1", dir.to_owned());
    // On a busy machine it may not run for a while, and keeps its lease.
    options.down_after = Duration::from_secs(10);
    let cluster = Cluster::start(options, &tasks).await.unwrap();
    (cluster, tasks)
}

/// Starts a member's part in the cluster's data, which it has in memory.
fn share(cluster: &Cluster, tasks: &Tasks) -> (Arc<Replication>, Arc<Engine>) {
    share_on(cluster, tasks, None)
}

/// The same, with a disk.
fn share_on(
    cluster: &Cluster,
    tasks: &Tasks,
    disk: Option<DiskOptions>,
) -> (Arc<Replication>, Arc<Engine>) {
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
        disk,
        cold: None,
        ram_codec: (CodecChoice::none(), 256),
        clock: Clock::system(),
    });
    let peers = follow::Peers {
        version: fonn_proto::peer::VERSION,
        metrics: PeerMetrics::register(&Metrics::new()),
    };
    let (engine, clock) = (engine.unwrap(), Clock::system());
    let replication = follow::start(cluster, &engine, clock, peers, tasks);
    (replication, engine)
}

/// Whether requests of `key` are answered, and admitted by an epoch.
fn answers(replication: &Replication) -> bool {
    replication.answers(b"key") && replication.epoch_and_base().is_some()
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "in vain: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Runs a part of a test as a process runs: nothing of it goes on behind its end. What has begun to
/// block is waited for.
fn process<T>(part: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(part)
}

#[test]
fn a_restarted_member_applies_the_map_of_its_disk_at_once() {
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        process(async {
            let (cluster, tasks) = member(dir.path()).await;
            let (replication, _) = share(&cluster, &tasks);
            until("it goes by its map", || replication.epoch() > 0).await;
            cluster.stop().await;
            let late = tasks.finish(Instant::now() + PATIENCE).await;
            assert_eq!(late, Vec::<&str>::new());
        });
    }
}

#[test]
fn states_that_cannot_be_saved_are_gone_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let saved = |dir: &Path| super::saved::load(dir).map(|saved| saved.incarnation);
    for can_save in [true, false, true] {
        let in_the_way = dir.path().join("slots.new");
        if !can_save {
            std::fs::create_dir(&in_the_way).unwrap();
        }
        let before = saved(dir.path());
        process(async {
            let (cluster, tasks) = member(dir.path()).await;
            let (replication, _) = share(&cluster, &tasks);
            until("it goes by its map", || replication.epoch() > 0).await;
            assert_eq!(saved(dir.path()).is_some(), can_save, "after {before:?}");
            replication.note_stop().unwrap();
            cluster.stop().await;
            tasks.finish(Instant::now() + PATIENCE).await;
        });
        if !can_save {
            std::fs::remove_dir(&in_the_way).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_was_sent_by_an_older_epoch_is_not_executed() {
    let dir = tempfile::tempdir().unwrap();
    let (cluster, tasks) = member(dir.path()).await;
    let (replication, engine) = share(&cluster, &tasks);
    until("it answers", || answers(&replication)).await;
    let epoch = replication.epoch();
    let set = Command::Store(Store::set(b"key", b"value", 0, ExpirySpec::Never));
    let get = Command::Get(Get::new(b"key"));
    let execute = async |command, routed_by| {
        let job = Job {
            space: Space::default(),
            command,
            source: None,
            base: None,
            routed_by,
            redirects: Redirects::Never,
            writer: WriterId::NONE,
        };
        let (mut acks, mut scratch) = (Acks::default(), Vec::new());
        let execution = replication.execute(&engine, &job, &mut acks, &mut scratch);
        match execution.await {
            Execution::Done(outcome) => Some(outcome.into_owned()),
            Execution::WrongOwner => None,
            Execution::Later(_) => panic!("no other member takes part"),
        }
    };
    assert_eq!(execute(&set, Some(epoch - 1)).await, None);
    // A read shows what is there now, whenever it was sent.
    let found = execute(&get, Some(epoch - 1)).await;
    assert_eq!(found, Some(Outcome::Miss));
    for routed_by in [Some(epoch), None] {
        let stored = execute(&set, routed_by).await;
        assert!(matches!(stored, Some(Outcome::Stored(_))), "{stored:?}");
    }
    cluster.stop().await;
    tasks.finish(Instant::now() + PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_was_sent_by_an_older_epoch_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (cluster, tasks) = member(dir.path()).await;
    let (replication, engine) = share(&cluster, &tasks);
    until("it answers", || answers(&replication)).await;
    let epoch = replication.epoch();
    let slots = [placement::slot(b"key")];
    let execute = async |batch: &Batch<'_>, routed_by| {
        let (sender, mut acks) = ((Space::default(), routed_by), Acks::default());
        let executed = replication.execute_batch(&engine, sender, (&slots, batch), &mut acks);
        executed.await
    };
    let batch = |command| Batch {
        steps: vec![BatchStep::Command(command)],
        ..Batch::default()
    };
    let set = batch(Command::Store(Store::set(
        b"key",
        b"value",
        0,
        ExpirySpec::Never,
    )));
    let get = batch(Command::Get(Get::new(b"key")));
    let set_if_absent = Batch {
        all_absent: true,
        ..set.clone()
    };
    for write in [&set, &set_if_absent] {
        assert_eq!(execute(write, Some(epoch - 1)).await, None);
    }
    // A read shows what is there now, whenever it was sent.
    let missed = Some(ServerOutcome::Outcomes(vec![Outcome::Miss].into()));
    assert_eq!(execute(&get, Some(epoch - 1)).await, missed);
    for (write, routed_by) in [(&set_if_absent, Some(epoch)), (&set, None)] {
        let Some(ServerOutcome::Outcomes(outcomes)) = execute(write, routed_by).await else {
            panic!("not carried out: {write:?}");
        };
        assert!(matches!(outcomes[..], [Outcome::Stored(_)]), "{outcomes:?}");
    }
    cluster.stop().await;
    tasks.finish(Instant::now() + PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_reads_no_base_entry_below_the_floor() {
    let dir = tempfile::tempdir().unwrap();
    let (cluster, tasks) = member(dir.path()).await;
    let (replication, engine) = share(&cluster, &tasks);
    until("it answers", || answers(&replication)).await;
    let (space, slots) = (Space::default(), [placement::slot(b"key")]);
    // The base has `key`, and the overlay has not.
    let set = Command::Store(Store::set(b"key", b"value", 0, ExpirySpec::Never));
    let (mut acks, mut scratch) = (Acks::default(), Vec::new());
    let job = Job::own(space, &set);
    let stored = engine.execute(&job, &mut acks, &mut scratch);
    assert!(matches!(stored.await, Outcome::Stored(_)));
    let key = Overlay::new([7; 16]).key(b"key");
    let watched = Watched {
        database: 0,
        key: &key,
        seen: None,
    };
    let execute = async |watched: Vec<Watched<'_>>| {
        let batch = Batch {
            base: Some(Base::of_overlay(space)),
            watched,
            steps: vec![BatchStep::Command(Command::Get(Get::new(&key)))],
            ..Batch::default()
        };
        let (sender, mut acks) = ((Space::new(1, 0), None), Acks::default());
        let executed = replication.execute_batch(&engine, sender, (&slots, &batch), &mut acks);
        executed.await.unwrap()
    };
    let ServerOutcome::Outcomes(outcomes) = execute(Vec::new()).await else {
        panic!("not carried out");
    };
    assert!(matches!(outcomes[..], [Outcome::Hit(_)]), "{outcomes:?}");
    let changed = execute(vec![watched.clone()]).await;
    assert_eq!(changed, ServerOutcome::Changed);
    let floor = engine.versions().next();
    replication.rights.raise_floor(slots[0], floor);
    let missed = ServerOutcome::Outcomes(vec![Outcome::Miss].into());
    for watched in [vec![watched.clone()], Vec::new()] {
        assert_eq!(execute(watched).await, missed);
    }
    cluster.stop().await;
    tasks.finish(Instant::now() + PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_forgotten_since_an_older_epoch_hides_no_later_write() {
    let dir = tempfile::tempdir().unwrap();
    let (cluster, tasks) = member(dir.path()).await;
    let (replication, engine) = share(&cluster, &tasks);
    until("it answers", || answers(&replication)).await;
    let epoch = replication.epoch();
    let keys = [b"one".as_slice(), b"two"].map(|key| (Space::default(), key));
    let replicated = replication.replicate_all(&engine, keys, epoch).await;
    assert_eq!(replicated, Ok(()));
    let late = replication.replicate_all(&engine, keys, epoch - 1).await;
    assert_eq!(late, Err(NotAcknowledged::Interrupted));
    for (space, key) in keys {
        assert_eq!(engine.newest(space, key).await, Ok(None));
    }
    cluster.stop().await;
    tasks.finish(Instant::now() + PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_goes_on_under_another_epoch_is_logged_behind_its_mark() {
    let (dir, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (cluster, tasks) = member(dir.path()).await;
    let disk = DiskOptions {
        dir: data.path().to_owned(),
        budget_bytes: 1 << 30,
        durability: Durability::Batched,
        fresh: CodecChoice::none(),
        compacted: CodecChoice::none(),
        codec_min_bytes: 256,
        value_len_max: 1 << 20,
        queue_bytes_max: 1 << 20,
        memory_bytes: 4 << 20,
        read_threads: 1,
        compaction_percent: 0,
        write_bytes_per_sec_max: None,
        room_wait: fonn_disk_tier::ROOM_WAIT,
    };
    let (replication, engine) = share_on(&cluster, &tasks, Some(disk));
    until("it answers", || answers(&replication)).await;
    let (space, key, mut acks) = (Space::default(), b"key", Acks::default());
    let version = engine.versions().next();
    let entry = PeerEntry::tombstone(space.0, key, version);
    assert!(engine.put_of_peer(&entry, &mut acks).await.unwrap());
    assert_eq!(acks.wait().await, []);
    let mark = engine.mark().await.unwrap();
    let written = engine.fetch_for_peer(space, key).await.unwrap().unwrap();
    let record = Record {
        slot: Slot(placement::slot(key)),
        version: Version(version),
        epoch: Epoch(replication.epoch()),
        entry: Arc::new(Written {
            space,
            key: key.to_vec().into(),
            transfer: written,
        }),
    };
    assert!(replication.store(&engine, &[record], None).await);
    let all = SlotSet::all();
    let feed = engine.fetch_slots(&all, Some(mark), &[], 1 << 20).await;
    let entries = feed.unwrap().entries;
    assert_ne!(entries.len(), 0, "the feed behind the mark lacks it");
    cluster.stop().await;
    tasks.finish(Instant::now() + PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_is_carried_out_on_the_spot_by_the_epoch_of_its_sender_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (cluster, tasks) = member(dir.path()).await;
    let (replication, engine) = share(&cluster, &tasks);
    until("it answers", || answers(&replication)).await;
    let epoch = replication.epoch();
    let store = |routed_by, value: &[u8]| {
        let command = Command::Store(Store::set(b"key", value, 0, ExpirySpec::Never));
        let job = Job {
            routed_by,
            ..Job::own(Space::default(), &command)
        };
        let (mut acks, mut outcome) = (Acks::default(), None);
        let word = |stored: &Outcome<'_>| outcome = Some(matches!(stored, Outcome::Stored(_)));
        let moment = engine.moment();
        let stored = replication.store_at_once(&engine, &job, moment, &mut acks, word);
        (matches!(stored, Stored::Yes), outcome)
    };
    assert_eq!(store(Some(epoch), b"one"), (true, Some(true)));
    // A client's own command, and one whose sender may have been told that it failed.
    assert_eq!(store(None, b"two"), (false, None));
    assert_eq!(store(Some(epoch - 1), b"two"), (false, None));
    // What is below has to be hidden first.
    replication.rights.raise_floor(placement::slot(b"key"), 1);
    assert_eq!(store(Some(epoch), b"two"), (false, None));
    let kept = engine.fetch_for_peer(Space::default(), b"key").await;
    let (value, _) = kept.unwrap().unwrap().content.unwrap();
    assert_eq!(value, "one");
    cluster.stop().await;
    tasks.finish(Instant::now() + PATIENCE).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_a_member_is_slow_to_take_is_not_sent_to_it_a_second_time() {
    let dir = tempfile::tempdir().unwrap();
    let (cluster, tasks) = member(dir.path()).await;
    let other = Node::bind().await;
    let members = vec![Member {
        id: "b".to_owned(),
        client_address: other.address(),
        state: MemberState::Active,
        ..Member::default()
    }];
    let unowned = (0..placement::SLOT_COUNT).map(|_| None).collect();
    let map = Map::default();
    assert!(map.offer(Topology::new(1, members, unowned).unwrap()));
    let metrics = PeerMetrics::register(&Metrics::new());
    let upstreams = Upstreams::new(Arc::new(map), fonn_rpc::Options::new("", "a"), metrics);
    let replication = Replication::new(
        ("a", cluster.belonging()),
        Forwarder::new(upstreams, PATIENCE),
        PATIENCE,
        Clock::system(),
        (dir.path().to_owned(), Tasks::new()),
    );
    *replication.names.lock() = Arc::from(vec![Some("b".to_owned())]);
    let (space, to, epoch) = (Space::default(), MemberId(0), Epoch(1));
    let gone = PeerEntry::tombstone(space.0, b"key", 7);
    let record = Record {
        slot: Slot(placement::slot(b"key")),
        version: Version(7),
        epoch,
        entry: Arc::new(Written {
            space,
            key: Arc::from(b"key".as_slice()),
            transfer: Transfer::received(&gone),
        }),
    };
    let taking = async {
        let mut connection = other.accept().await;
        connection.request().await;
        let repeated = replication.send_write(to, epoch, &record, true);
        assert_eq!(
            repeated.now_or_never(),
            Some(false),
            "it waits for an answer"
        );
    };
    // The connection ends without an answer, and the write may be sent again.
    let sent = replication.send_write(to, epoch, &record, false);
    let (is_too_long, ()) = tokio::join!(sent, taking);
    assert!(!is_too_long);
    assert!(replication.sending.lock().is_empty());
    cluster.stop().await;
    tasks.finish(Instant::now() + PATIENCE).await;
}
