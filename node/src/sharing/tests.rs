//! Members in one process, each with a disk and a socket; the maps are given to them by hand.

mod chaos;
mod copies;
mod flushes;
mod handover;
pub(super) mod maps;
mod missing;
mod pipelines;
mod repair;
mod restart;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fonn_base::clock::{Clock, ManualClock};
use fonn_base::entry::Space;
use fonn_base::metrics::Metrics;
use fonn_base::tasks::{OnShutdown, Tasks};
use fonn_disk_tier::levels::CodecChoice;
use fonn_disk_tier::{COMPACTION_PERCENT, DiskOptions, Durability};
use fonn_forward::{Forwarder, Map, Member as Row, MemberState, Topology, Upstreams};
use fonn_proto::placement::slot;
use fonn_ram_tier::{LruMode, RamOptions};
use fonn_rpc::{Options, PeerMetrics};
use fonn_server::{ListenAddr, Listener};
use tempfile::TempDir;

use self::maps::placed;
use super::{OWNERS_WAIT, Sharing};
use crate::cluster::Standing;
use crate::engine::{Engine, EngineOptions, Settings};
use crate::server::{Identity, Server, Shared, Tiers};

/// No test waits longer than this for anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long members wait for other owners, where a machine that stands still for seconds is no
/// reason to go on without one.
const OWNERS_PATIENCE: Duration = Duration::from_secs(20);

/// How long vain waits last, in a test that wants that.
const IN_VAIN: Duration = Duration::from_secs(10);

/// How a member stands that heard a leader so long ago, which promises nothing.
const fn heard(leader_silence: Duration) -> Standing {
    Standing {
        leader_silence,
        lease: None,
    }
}

pub(super) struct Member {
    name: String,
    engine: Arc<Engine>,
    sharing: Arc<Sharing>,
    server: Option<Server>,
    address: String,
    /// Runs what takes slots over, if that is wanted.
    background: Option<tokio::runtime::Runtime>,
    /// Whether the cluster's leader is heard.
    is_led: Arc<AtomicBool>,
    _dir: TempDir,
}

impl Member {
    fn start(name: &str) -> Self {
        Self::start_waiting(name, OWNERS_PATIENCE)
    }

    /// Starts one that waits so long for other owners.
    fn start_waiting(name: &str, owners_wait: Duration) -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self::start_with(name, dir, options, owners_wait)
    }

    /// Starts it with the store in `dir`.
    fn start_in(name: &str, dir: TempDir, options: impl Fn(&TempDir) -> EngineOptions) -> Self {
        Self::start_with(name, dir, options, OWNERS_PATIENCE)
    }

    fn start_with(
        name: &str,
        dir: TempDir,
        options: impl Fn(&TempDir) -> EngineOptions,
        owners_wait: Duration,
    ) -> Self {
        let engine = Engine::open(options(&dir)).unwrap();
        engine.keep_tombstones();
        let upstreams = Upstreams::new(
            Arc::new(Map::default()),
            peers("", name),
            PeerMetrics::register(&Metrics::new()),
        );
        let forwarder = Forwarder::new(upstreams.of_member(name), 2 * owners_wait);
        // By this clock a machine that stands still is no break of the process: those are tested
        // with clocks of their own.
        let still = ManualClock::new(1_700_000_000_000);
        let mut sharing = Sharing::new(name, forwarder, still.clock());
        sharing.owners_wait = owners_wait;
        let sharing = Arc::new(sharing);
        sharing.doubt_by(&engine);
        let tiers = Arc::new(Tiers {
            engine: Arc::clone(&engine),
            sharing: Some(Arc::clone(&sharing)),
            views: None,
            identity: Identity::default(),
            live: None,
            users: None,
        });
        let listener = Listener::bind(&ListenAddr::Tcp("127.0.0.1:0".to_owned())).unwrap();
        let address = listener.local_name();
        let shared = Shared::new(tiers, Vec::new(), 1000);
        let server = Server::start(shared, vec![listener], 1).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        // What the node's main task does: the process runs.
        let beating = Arc::clone(&sharing);
        let is_led = Arc::new(AtomicBool::new(true));
        let hears = Arc::clone(&is_led);
        runtime.spawn(async move {
            loop {
                let silence = match hears.load(Ordering::Relaxed) {
                    true => Duration::ZERO,
                    false => PATIENCE,
                };
                beating.beat(heard(silence));
                tokio::time::sleep(super::pulse::BEAT).await;
            }
        });
        Self {
            name: name.to_owned(),
            engine,
            sharing,
            server: Some(server),
            address,
            background: Some(runtime),
            is_led,
            _dir: dir,
        }
    }

    /// Takes over in the background what maps give to it.
    fn take_over(&self) {
        let run = super::handover::run(Arc::clone(&self.sharing), Arc::clone(&self.engine));
        let runtime = self.background.as_ref().unwrap();
        let tasks = Tasks::new();
        tasks.spawn_on(runtime.handle(), "handover", OnShutdown::Abort, run);
    }

    /// Brings owners together that have different versions of a key.
    fn repair(&self) {
        let run = super::repair::run(Arc::clone(&self.sharing), Arc::clone(&self.engine));
        let runtime = self.background.as_ref().unwrap();
        let tasks = Tasks::new();
        tasks.spawn_on(runtime.handle(), "repair", OnShutdown::Abort, run);
    }

    fn is_filled(&self) -> bool {
        self.sharing.counts()[2] == 0
    }

    fn client(&self) -> Client {
        Client::connect(&self.address)
    }

    /// What this member itself has of a key.
    fn has(&self, key: &str) -> Option<u64> {
        let engine = Arc::clone(&self.engine);
        let key = key.as_bytes().to_vec();
        let runtime = self.background.as_ref().unwrap();
        let found = runtime
            .block_on(async move { engine.fetch_for_peer(Space::default(), &key).await.unwrap() });
        found
            .filter(|it| it.content.is_some())
            .map(|it| it.meta.version)
    }

    /// All that there is to say about a key, for messages.
    fn describe(&self, key: &str) -> String {
        let (engine, bytes) = (Arc::clone(&self.engine), key.as_bytes().to_vec());
        let runtime = self.background.as_ref().unwrap();
        let known = runtime.block_on(async move {
            let found = engine.fetch_for_peer(Space::default(), &bytes).await;
            let found = found.unwrap().map(|it| (it.meta.version, it.content));
            (found, engine.forgotten(Space::default(), &bytes))
        });
        let held = self.sharing.held.lock();
        let owners = held.topology.as_ref().map(|map| {
            let owners = map.owners(slot(key.as_bytes()));
            owners.map(|it| it.id.clone()).collect::<Vec<_>>()
        });
        format!(
            "{} at {}: epoch {}, {known:?}, owners {owners:?}, {:?}",
            self.name,
            self.address,
            self.sharing.epoch(),
            held.holdings.get(slot(key.as_bytes())),
        )
    }

    /// Ends it as if its machine had failed.
    fn kill(&mut self) {
        if let Some(server) = self.server.take() {
            server.drain(Duration::ZERO);
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
        if let Some(runtime) = self.background.take() {
            runtime.shutdown_background();
        }
        self.engine.close(Duration::from_secs(5));
    }
}

/// How members are talked to: one that stands still for a while is waited for.
fn peers(address: &str, name: &str) -> Options {
    Options {
        connect_timeout: PATIENCE,
        silence_max: PATIENCE,
        ..Options::new(address, name)
    }
}

fn options(dir: &TempDir) -> EngineOptions {
    EngineOptions {
        settings: Settings {
            value_len_max: 2 << 20,
            durability: Durability::Batched,
        },
        ram: RamOptions {
            budget_bytes: 32 << 20,
            lru: LruMode::Approximate,
            hash_seed: 1,
        },
        disk: Some(DiskOptions {
            dir: dir.path().to_owned(),
            budget_bytes: 256 << 20,
            durability: Durability::Batched,
            fresh: CodecChoice::none(),
            compacted: CodecChoice::none(),
            codec_min_bytes: 256,
            value_len_max: 2 << 20,
            queue_bytes_max: 8 << 20,
            memory_bytes: 16 << 20,
            read_threads: 2,
            compaction_percent: COMPACTION_PERCENT,
            write_bytes_per_sec_max: None,
            room_wait: fonn_disk_tier::ROOM_WAIT,
        }),
        cold: None,
        ram_codec: (CodecChoice::none(), 256),
        clock: Clock::system(),
        spaces: u32::from(Space::DATABASES),
    }
}

/// A map of some members in the states given.
fn map(epoch: u64, replicas: usize, members: &[(&Member, MemberState)]) -> Topology {
    let rows = members.iter().map(|(member, state)| Row {
        address: member.address.clone(),
        ..maps::member(&member.name, *state, 100)
    });
    placed(epoch, replicas, rows.collect()).unwrap()
}

/// All of them apply a map.
fn go_by(members: &[&Member], map: &Topology) {
    for member in members {
        member.sharing.go_by(map.clone(), true);
    }
}

/// A key whose slot `owner` is the primary of.
fn key_of(map: &Topology, owner: &Member, nth: usize) -> String {
    (0..)
        .map(|number| format!("key-{number}"))
        .filter(|key| map.owners(slot(key.as_bytes())).next().unwrap().id == owner.name)
        .nth(nth)
        .unwrap()
}

/// A client of the memcached text protocol.
struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(BufReader::new(stream))
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn ask(&mut self, request: &str) -> String {
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
        self.line()
    }

    fn set(&mut self, key: &str, value: &str) -> String {
        self.ask(&format!("set {key} 0 0 {}\r\n{value}\r\n", value.len()))
    }

    fn delete(&mut self, key: &str) -> String {
        self.ask(&format!("delete {key}\r\n"))
    }

    fn get(&mut self, key: &str) -> Option<String> {
        let head = self.ask(&format!("get {key}\r\n"));
        if head == "END" {
            return None;
        }
        let len = head.rsplit(' ').next().unwrap().parse::<usize>();
        let len = len.unwrap_or_else(|_| panic!("instead of a value: {head}"));
        let mut value = vec![0; len + 2];
        self.0.read_exact(&mut value).unwrap();
        value.truncate(len);
        assert_eq!(self.line(), "END");
        Some(String::from_utf8(value).unwrap())
    }
}

#[track_caller]
fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

use MemberState::{Active, Down, Draining};

#[test]
fn a_command_is_executed_by_the_owner_whichever_member_gets_it() {
    let members = ["a", "b", "c"].map(Member::start);
    let all: Vec<_> = members.iter().map(|it| (it, Active)).collect();
    let first = map(1, 1, &all);
    go_by(&members.each_ref(), &first);
    until("nobody lacks anything", || {
        // Nothing is there yet, and no member copies anything here.
        members.iter().all(|it| it.sharing.epoch() == 1)
    });
    let mut clients = members.each_ref().map(|it| it.client());
    for number in 0..60 {
        let key = format!("key-{number}");
        assert_eq!(clients[number % 3].set(&key, &key), "STORED");
        for client in &mut clients {
            assert_eq!(client.get(&key).as_ref(), Some(&key));
        }
        let owner = &first.owners(slot(key.as_bytes())).next().unwrap().id;
        for member in &members {
            assert_eq!(member.has(&key).is_some(), member.name == *owner, "{key}");
        }
    }
    assert_eq!(clients[0].delete("key-7"), "DELETED");
    assert_eq!(clients[1].get("key-7"), None);
    assert_eq!(clients[2].delete("key-7"), "NOT_FOUND");
}

#[test]
fn a_member_that_missed_a_map_asks_the_owners_of_its_slots_by_it() {
    let [a, b] = ["a", "b"].map(Member::start);
    let maps = [
        (1, Active, Draining),
        (2, Draining, Active),
        (3, Active, Draining),
    ]
    .map(|(epoch, of_a, of_b)| map(epoch, 1, &[(&a, of_a), (&b, of_b)]));
    go_by(&[&a, &b], &maps[0]);
    a.take_over();
    until("nothing is lacked", || a.is_filled());
    let (mut at_a, mut at_b) = (a.client(), b.client());
    assert_eq!(at_a.set("key", "old"), "STORED");
    // One has not seen the map yet by which the slot is its again, the other not the one by which
    // it was not.
    a.sharing.go_by(maps[2].clone(), true);
    b.sharing.go_by(maps[1].clone(), true);
    assert_eq!(at_b.set("key", "new"), "STORED");
    b.sharing.go_by(maps[2].clone(), true);
    assert_eq!(at_a.get("key").as_deref(), Some("new"));
}

#[test]
fn a_member_that_was_away_is_told_what_was_flushed_meanwhile_and_by_which_members() {
    let members = ["a", "b", "c"].map(Member::start);
    let [a, b, c] = &members;
    let states = |of_b, of_c| [(a, Active), (b, of_b), (c, of_c)];
    let first = map(1, 1, &states(Active, Active));
    go_by(&[a, b, c], &first);
    let (at_b, at_c) = (key_of(&first, b, 0), key_of(&first, c, 0));
    let mut client = a.client();
    for key in [&at_b, &at_c] {
        assert_eq!(client.set(key, "before"), "STORED");
    }
    // Two are away. One comes back while the other is told only by it.
    go_by(&[a], &map(2, 1, &states(Down, Down)));
    assert_eq!(client.ask("flush_all\r\n"), "OK");
    assert_eq!(client.set("after", "flush"), "STORED");
    let third = map(3, 1, &states(Active, Down));
    go_by(&[a], &third);
    b.sharing.go_by(third, false);
    b.take_over();
    until("all is taken over", || b.is_filled());
    assert_eq!(client.get(&at_b), None);
    let fourth = map(4, 1, &[(a, Draining), (b, Active), (c, Active)]);
    go_by(&[a, b], &fourth);
    c.sharing.go_by(fourth, false);
    until("all is taken over", || b.is_filled());
    let mut client = c.client();
    for key in [&at_b, &at_c] {
        assert_eq!(client.get(key), None, "{key}");
        assert_eq!(client.set(key, "again"), "STORED");
        assert_eq!(client.get(key).as_deref(), Some("again"));
    }
    assert_eq!(client.get("after").as_deref(), Some("flush"));
}

#[test]
fn a_process_that_stood_still_answers_for_nothing_until_it_heard_the_leader() {
    let member = Member::start("a");
    let upstreams = Upstreams::new(
        Arc::new(Map::default()),
        Options::new("", "a"),
        PeerMetrics::register(&Metrics::new()),
    );
    let time = ManualClock::new(1_700_000_000_000);
    let forwarder = Forwarder::new(upstreams.of_member("a"), OWNERS_WAIT);
    let sharing = Sharing::new("a", forwarder, time.clock());
    sharing.go_by(map(1, 1, &[(&member, Active)]), true);
    let answers = || {
        (
            sharing.serves(7, false),
            sharing.serves(7, true),
            sharing.answers(b"key"),
        )
    };
    assert_eq!(answers(), (true, true, true));
    time.advance(Duration::from_secs(5));
    assert_eq!(answers(), (false, false, false));
    sharing.beat(heard(Duration::from_secs(9)));
    assert_eq!(answers(), (false, false, false));
    for _ in 0..5 {
        time.advance(super::pulse::BEAT);
        sharing.beat(heard(Duration::from_millis(20)));
    }
    assert_eq!(answers(), (true, true, true));
}

#[test]
fn a_member_that_returns_without_slots_is_told_what_was_flushed_before_it_gets_some() {
    let members = ["a", "b"].map(Member::start);
    let [a, b] = &members;
    let first = map(1, 1, &[(a, Active), (b, Active)]);
    go_by(&[a, b], &first);
    let key = key_of(&first, b, 0);
    let mut client = a.client();
    assert_eq!(client.set(&key, "before"), "STORED");
    go_by(&[a], &map(2, 1, &[(a, Active), (b, Down)]));
    assert_eq!(client.ask("flush_all\r\n"), "OK");
    // It serves, and no member is its source.
    let third = map(3, 1, &[(a, Active), (b, Draining)]);
    go_by(&[a], &third);
    b.sharing.go_by(third, false);
    b.take_over();
    until("it is told", || !b.engine.known_flushes().is_empty());
    let fourth = map(4, 1, &[(a, Active), (b, Active)]);
    go_by(&[a, b], &fourth);
    until("all is taken over", || b.is_filled());
    assert_eq!(b.client().get(&key), None);
}

#[test]
fn a_flush_is_for_all_members() {
    let members = ["a", "b", "c"].map(Member::start);
    let all: Vec<_> = members.iter().map(|it| (it, Active)).collect();
    let first = map(1, 2, &all);
    go_by(&members.each_ref(), &first);
    let mut clients = members.each_ref().map(|it| it.client());
    let keys = members.each_ref().map(|owner| key_of(&first, owner, 0));
    for key in &keys {
        assert_eq!(clients[0].set(key, "x"), "STORED");
    }
    assert_eq!(clients[1].ask("flush_all\r\n"), "OK");
    for client in &mut clients {
        for key in &keys {
            assert_eq!(client.get(key), None);
        }
    }
}

#[test]
fn what_was_acknowledged_is_with_all_owners() {
    let members = ["a", "b", "c"].map(Member::start);
    let all: Vec<_> = members.iter().map(|it| (it, Active)).collect();
    let first = map(1, 2, &all);
    go_by(&members.each_ref(), &first);
    let mut client = members[0].client();
    for number in 0..40 {
        let key = format!("key-{number}");
        assert_eq!(client.set(&key, "one"), "STORED");
        assert_eq!(client.set(&key, "two"), "STORED");
        let owners: Vec<&str> = first
            .owners(slot(key.as_bytes()))
            .map(|it| it.id.as_str())
            .collect();
        let versions: Vec<_> = members
            .iter()
            .filter(|it| owners.contains(&it.name.as_str()))
            .map(|it| it.has(&key))
            .collect();
        assert_eq!(versions.len(), 2);
        assert!(versions[0].is_some() && versions[0] == versions[1], "{key}");
        assert_eq!(client.delete(&key), "DELETED");
        assert!(members.iter().all(|it| it.has(&key).is_none()), "{key}");
    }
}

#[test]
fn a_write_that_an_owner_does_not_take_is_not_acknowledged() {
    let mut members = ["a", "b"].map(|name| Member::start_waiting(name, IN_VAIN));
    let all: Vec<_> = members.iter().map(|it| (it, Active)).collect();
    let first = map(1, 2, &all);
    go_by(&members.each_ref(), &first);
    let key = key_of(&first, &members[0], 0);
    members[1].kill();
    let mut client = members[0].client();
    assert!(client.set(&key, "x").starts_with("SERVER_ERROR"));
    // Once it is known to be down, no member waits for it.
    let second = map(2, 2, &[(&members[0], Active), (&members[1], Down)]);
    go_by(&[&members[0]], &second);
    assert_eq!(client.set(&key, "y"), "STORED");
}

#[test]
fn without_a_leader_all_or_none_is_stored_where_the_other_owners_are_there_alone() {
    let mut members = ["a", "b"].map(|name| Member::start_waiting(name, IN_VAIN));
    let first = map(1, 2, &[(&members[0], Active), (&members[1], Active)]);
    go_by(&members.each_ref(), &first);
    members[0].take_over();
    until("nothing is lacked", || members[0].is_filled());
    let key = key_of(&first, &members[0], 0);
    let mut client = members[0].client();
    let mut store_all = |key: &str| {
        client.ask(&format!(
            "*3\r\n$6\r\nMSETNX\r\n${}\r\n{key}\r\n$1\r\nx\r\n",
            key.len()
        ))
    };
    members[0].is_led.store(false, Ordering::Relaxed);
    until("the leader is missed", || {
        members[0].sharing.pulse.is_leaderless()
    });
    assert_eq!(store_all(&key), ":1");
    // A member that is cut off may have been replaced: nothing is executed.
    members[1].kill();
    let other = key_of(&first, &members[0], 1);
    let answer = store_all(&other);
    assert!(answer.starts_with('-'), "{answer}");
    assert_eq!(members[0].has(&other), None);
}

#[test]
fn a_member_that_was_replaced_and_does_not_know_acknowledges_nothing() {
    let members = ["a", "b"].map(|name| Member::start_waiting(name, IN_VAIN));
    let all: Vec<_> = members.iter().map(|it| (it, Active)).collect();
    let first = map(1, 2, &all);
    go_by(&members.each_ref(), &first);
    let key = key_of(&first, &members[0], 0);
    let mut clients = members.each_ref().map(|it| it.client());
    assert_eq!(clients[0].set(&key, "one"), "STORED");
    // The others held it for down, and went on without it.
    let second = map(2, 2, &[(&members[0], Down), (&members[1], Active)]);
    go_by(&[&members[1]], &second);
    assert_eq!(clients[1].set(&key, "two"), "STORED");
    assert!(clients[0].set(&key, "three").starts_with("SERVER_ERROR"));
    assert_eq!(clients[1].get(&key).as_deref(), Some("two"));
    // What is under way when it learns of it fails as well, though the others take what is newer.
    let before = members[0].has(&key);
    let writing = std::thread::scope(|scope| {
        let writing = scope.spawn(|| clients[0].set(&key, "four"));
        until("it is under way", || members[0].has(&key) != before);
        go_by(&[&members[0]], &second);
        writing.join().unwrap()
    });
    assert!(writing.starts_with("SERVER_ERROR"), "{writing}");
    assert_eq!(clients[1].get(&key).as_deref(), Some("two"));
}
