//! Routers in front of members, over real sockets.

mod member;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fonn_auth::Security;
use fonn_base::config::InForce;
use fonn_base::metrics::Metrics;
use fonn_base::release::Release;
use fonn_forward::{Event, Map, Topology};
use fonn_program::CommonSettings;
use fonn_proto::member::MemberState;
use fonn_proto::placement::{Placed, SLOT_COUNT, Table};
use fonn_proto::{
    Base, Command, ExpirySpec, Get, Outcome, Overlay, Redirects, Space, Store, WriterId,
};
use fonn_server::{Answered as _, Job, Listener};

use self::member::Member;

use crate::config::{self, Settings};
use crate::service::{Server, Shared};

/// No test waits longer than this for anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// So long a write waits for another map.
const MAP_WAIT: Duration = Duration::from_secs(3);

/// Three members, and a map of them.
struct Cluster {
    members: Vec<Member>,
    map: Arc<Map>,
    epoch: u64,
}

struct Running {
    shared: Arc<Shared>,
    server: Option<Server>,
    address: String,
}

impl Cluster {
    fn start() -> Self {
        let mut cluster = Self {
            members: ["a", "b", "c"].map(Member::start).into(),
            map: Arc::default(),
            epoch: 0,
        };
        Member::meet(&cluster.members);
        cluster.announce(&[]);
        cluster
    }

    /// A new map, in which the members named `down` own nothing.
    fn announce(&mut self, down: &[&str]) {
        self.epoch += 1;
        let is_down = |member: &Member| down.contains(&member.name.as_str());
        let rows: Vec<_> = self
            .members
            .iter()
            .map(|member| match is_down(member) {
                true => member.row(MemberState::Down),
                false => member.row(MemberState::Active),
            })
            .collect();
        let placed = self.members.iter().map(|member| Placed {
            id: &member.name,
            zone: "z",
            weight: if is_down(member) { 0 } else { 100 },
        });
        let table = Table::new(&placed.collect::<Vec<_>>(), 1).unwrap();
        let owners = (0..SLOT_COUNT)
            .map(|slot| Some(table.owners(slot)))
            .collect();
        let topology = Topology::new(self.epoch, rows, owners).unwrap();
        self.members.iter().for_each(|it| it.hear(self.epoch));
        assert!(self.map.offer(topology));
    }

    /// A router that gives up on nothing before the test does.
    fn router(&self) -> Running {
        self.router_within("60s")
    }

    /// One whose commands take so long at most.
    fn router_within(&self, timeout: &str) -> Running {
        let settings = Settings {
            cluster: vec!["127.0.0.1:1".parse().unwrap()],
            common: CommonSettings {
                listen: vec!["127.0.0.1:0".parse().unwrap()],
                threads: Some(2),
                ..CommonSettings::default()
            },
            timeout: Some(timeout.parse().unwrap()),
            ..Settings::default()
        };
        let config = config::resolve(settings).unwrap();
        let listener = Listener::bind(&config.common.listen[0]).unwrap();
        let address = listener.local_name();
        let shared = crate::cli::shared(
            &config,
            InForce::new(config.settings(), None),
            &Release::this(),
            Security::default(),
            &self.map,
            &Metrics::new(),
        );
        let server = Server::start(Arc::clone(&shared), vec![listener], 2).unwrap();
        Running {
            shared,
            server: Some(server),
            address,
        }
    }
}

impl Running {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn total(&self, event: Event) -> u64 {
        self.shared.service.events().total(event)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.drain(Duration::ZERO);
        }
    }
}

#[track_caller]
fn exchange(stream: &mut TcpStream, request: &[u8], reply: &[u8]) {
    stream.write_all(request).unwrap();
    let mut got = vec![0; reply.len()];
    stream.read_exact(&mut got).unwrap();
    let shown = |bytes: &[u8]| bytes[..bytes.len().min(300)].escape_ascii().to_string();
    assert!(got == reply, "got {}, not {}", shown(&got), shown(reply));
}

/// Sends writes of which some cannot be carried out before the next map, as `event` counts, and
/// announces that map. All are stored then. A machine that stands still may announce it when they
/// have waited long enough: they are sent again.
#[track_caller]
fn stored_by_the_next_map(
    router: &Running,
    client: &mut TcpStream,
    sets: &[Vec<u8>],
    event: Event,
    announce: impl FnOnce(),
) {
    let start = Instant::now();
    client.write_all(&sets.concat()).unwrap();
    while router.total(event) == 0 {
        assert!(start.elapsed() < PATIENCE, "no write waits");
        std::thread::sleep(Duration::from_millis(1));
    }
    announce();
    let is_late = start.elapsed() >= MAP_WAIT;
    let mut replies = BufReader::new(client.try_clone().unwrap());
    let mut stored = 0;
    for _ in sets {
        let mut reply = String::new();
        replies.read_line(&mut reply).unwrap();
        let is_stored = reply == "STORED\r\n";
        assert!(is_stored || is_late, "{reply}");
        stored += usize::from(is_stored);
    }
    if stored < sets.len() {
        exchange(client, &sets.concat(), &b"STORED\r\n".repeat(sets.len()));
    }
}

fn set(key: &str, value: &[u8]) -> Vec<u8> {
    let head = format!("set {key} 5 0 {}\r\n", value.len());
    [head.as_bytes(), value, b"\r\n"].concat()
}

fn hit(key: &str, value: &[u8]) -> Vec<u8> {
    let head = format!("VALUE {key} 5 {}\r\n", value.len());
    [head.as_bytes(), value, b"\r\n"].concat()
}

fn resp(words: &str) -> Vec<u8> {
    let args: Vec<_> = words.split(' ').collect();
    let mut request = format!("*{}\r\n", args.len());
    for arg in args {
        request.push_str(&format!("${}\r\n{arg}\r\n", arg.len()));
    }
    request.into_bytes()
}

#[test]
fn what_one_router_stores_every_router_finds_by_every_protocol() {
    let cluster = Cluster::start();
    let (first, second) = (cluster.router(), cluster.router());
    let mut writer = first.connect();
    let requests: Vec<_> = (0..300).map(|n| set(&format!("key-{n}"), b"v")).collect();
    exchange(&mut writer, &requests.concat(), &b"STORED\r\n".repeat(300));
    for member in &cluster.members {
        assert!(
            (50..=150).contains(&member.entries()),
            "{}",
            member.entries()
        );
    }
    let mut text = second.connect();
    let names: Vec<_> = (0..300).map(|n| format!("key-{n}")).collect();
    let hits: Vec<_> = names.iter().map(|name| hit(name, b"v")).collect();
    let request = format!("get {}\r\n", names.join(" "));
    let reply = [&hits.concat()[..], b"END\r\n"].concat();
    exchange(&mut text, request.as_bytes(), &reply);
    let mut redis = second.connect();
    exchange(&mut redis, &resp("GET key-7"), b"$1\r\nv\r\n");
    exchange(
        &mut redis,
        &resp("MGET key-1 none key-2"),
        b"*3\r\n$1\r\nv\r\n$-1\r\n$1\r\nv\r\n",
    );
    exchange(&mut redis, &resp("DEL key-1 none key-2"), b":2\r\n");
    exchange(&mut redis, &resp("DBSIZE"), b":298\r\n");
    exchange(&mut redis, &resp("PING"), b"+PONG\r\n");
    exchange(&mut text, b"flush_all\r\n", b"OK\r\n");
    exchange(&mut redis, &resp("DBSIZE"), b":0\r\n");
    exchange(&mut redis, &resp("RANDOMKEY"), b"$-1\r\n");
}

#[test]
fn a_flush_is_handed_to_one_member_by_its_map_and_to_another_if_that_is_gone() {
    let mut cluster = Cluster::start();
    let router = cluster.router();
    let mut client = router.connect();
    let keys: Vec<_> = (0..60).map(|n| format!("key-{n}")).collect();
    let sets: Vec<_> = keys.iter().map(|key| set(key, b"v")).collect();
    exchange(&mut client, &sets.concat(), &b"STORED\r\n".repeat(60));
    assert!(cluster.members.iter().all(|it| it.entries() > 0));
    exchange(&mut client, b"flush_all\r\n", b"OK\r\n");
    assert!(cluster.members.iter().all(|it| it.entries() == 0));
    let flushes = |cluster: &Cluster| -> usize {
        let flushes = cluster.members.iter().map(Member::flushes);
        flushes.sum()
    };
    assert_eq!(flushes(&cluster), 1);
    // By a newer map there may be others.
    cluster.members.iter().for_each(|it| it.hear(2));
    client.write_all(b"flush_all\r\n").unwrap();
    cluster.announce(&[]);
    exchange(&mut client, b"", b"OK\r\n");
    assert_eq!((cluster.epoch, flushes(&cluster)), (2, 2));
    cluster.members[0].kill();
    exchange(&mut client, b"flush_all\r\n", b"OK\r\n");
    assert_eq!(flushes(&cluster), 3);
}

#[test]
fn thousands_of_pipelined_requests_are_answered_in_order_slow_ones_among_them() {
    let cluster = Cluster::start();
    let router = cluster.router();
    let mut client = router.connect();
    let (mut requests, mut replies) = (Vec::new(), Vec::new());
    for n in 0..4000 {
        let key = match n % 500 {
            0 => format!("slow-{n}"),
            _ => format!("key-{n}"),
        };
        let value = n.to_string();
        requests.extend(set(&key, value.as_bytes()));
        replies.extend_from_slice(b"STORED\r\n");
        requests.extend(format!("get {key}\r\n").as_bytes());
        replies.extend(hit(&key, value.as_bytes()));
        replies.extend_from_slice(b"END\r\n");
        if n % 7 == 0 {
            requests.extend_from_slice(b"mn\r\n");
            replies.extend_from_slice(b"MN\r\n");
        }
    }
    let mut sender = client.try_clone().unwrap();
    let sending = std::thread::spawn(move || sender.write_all(&requests).unwrap());
    exchange(&mut client, b"", &replies);
    sending.join().unwrap();
}

#[test]
fn large_values_pass() {
    let cluster = Cluster::start();
    let router = cluster.router();
    let mut client = router.connect();
    let value: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    exchange(&mut client, &set("big", &value), b"STORED\r\n");
    let reply = [&hit("big", &value)[..], b"END\r\n"].concat();
    exchange(&mut client, b"get big\r\n", &reply);
    let requests = b"get big\r\n".repeat(10);
    exchange(&mut client, &requests, &reply.repeat(10));
}

#[test]
fn without_members_reads_are_misses_writes_are_busy_and_the_check_of_sccache_succeeds() {
    let mut cluster = Cluster::start();
    cluster.members.iter_mut().for_each(Member::kill);
    let router = cluster.router_within("5s");
    let mut client = router.connect();
    exchange(
        &mut client,
        &set("p/.sccache_check", b"Hello"),
        b"STORED\r\n",
    );
    let reply = [&hit("p/.sccache_check", b"Hello")[..], b"END\r\n"].concat();
    exchange(&mut client, b"get p/.sccache_check\r\n", &reply);
    exchange(&mut client, b"get a b c\r\n", b"END\r\n");
    assert_eq!(router.total(Event::MapWait), 0, "a read waited");
    exchange(&mut client, &set("k", b"v"), b"SERVER_ERROR busy\r\n");
    exchange(
        &mut client,
        b"flush_all\r\n",
        b"SERVER_ERROR unavailable\r\n",
    );
    exchange(&mut client, b"mn\r\n", b"MN\r\n");
    assert!(router.total(Event::Unanswered) >= 4);
}

#[test]
fn when_a_member_dies_reads_are_hits_or_misses_and_writes_go_on_with_the_next_map() {
    let mut cluster = Cluster::start();
    let router = cluster.router();
    let mut client = router.connect();
    let keys: Vec<_> = (0..100).map(|n| format!("key-{n}")).collect();
    let sets: Vec<_> = keys.iter().map(|key| set(key, b"v")).collect();
    exchange(&mut client, &sets.concat(), &b"STORED\r\n".repeat(100));
    let lost = cluster.members[1].entries();
    assert!(lost > 10);
    cluster.members[1].kill();

    let gets: Vec<_> = keys.iter().map(|key| format!("get {key}\r\n")).collect();
    client.write_all(gets.concat().as_bytes()).unwrap();
    client.write_all(b"mn\r\n").unwrap();
    let mut replies = Vec::new();
    while !replies.ends_with(b"MN\r\n") {
        let mut part = [0; 4096];
        let len = client.read(&mut part).unwrap();
        assert!(len > 0, "the connection ended");
        replies.extend_from_slice(&part[..len]);
    }
    let replies = String::from_utf8(replies).unwrap();
    assert!(!replies.contains("ERROR"), "{replies}");
    assert_eq!(replies.matches("VALUE").count(), 100 - lost);
    assert_eq!(replies.matches("END").count(), 100);

    // The writes wait for the next primary.
    stored_by_the_next_map(&router, &mut client, &sets, Event::MapWait, || {
        cluster.announce(&["b"]);
    });
}

#[test]
fn a_member_with_a_newer_map_is_asked_again_when_the_router_has_it_too() {
    let mut cluster = Cluster::start();
    let router = cluster.router();
    let mut client = router.connect();
    cluster.members[1].go_by(2, false);
    let keys: Vec<_> = (0..50).map(|n| format!("key-{n}")).collect();
    let sets: Vec<_> = keys.iter().map(|key| set(key, b"v")).collect();
    stored_by_the_next_map(&router, &mut client, &sets, Event::WrongOwner, || {
        cluster.announce(&["b"]);
    });
    assert_eq!(cluster.members[1].entries(), 0);
    assert!(cluster.members[1].commands() == 0);
}

#[test]
fn a_router_tells_cluster_clients_that_it_owns_all_slots() {
    let mut cluster = Cluster::start();
    let router = cluster.router();
    let mut client = router.connect();
    let (host, port) = router.address.rsplit_once(':').unwrap();
    let name = format!("router {}", router.address);
    let id = fonn_proto::cluster::NodeId::of_name(&name);
    let slots = format!(
        "*1\r\n*3\r\n:0\r\n:16383\r\n*4\r\n$9\r\n{host}\r\n:{port}\r\n$40\r\n{id}\r\n*0\r\n"
    );
    exchange(&mut client, &resp("CLUSTER SLOTS"), slots.as_bytes());
    // These clients are served like others: keys of all members, whatever the map becomes.
    for n in 0..60 {
        exchange(&mut client, &resp(&format!("SET key-{n} v")), b"+OK\r\n");
    }
    let slot = fonn_proto::placement::slot(b"key-7");
    let count = resp(&format!("CLUSTER COUNTKEYSINSLOT {slot}"));
    exchange(&mut client, &count, b":1\r\n");
    cluster.announce(&["b"]);
    for n in 60..120 {
        exchange(&mut client, &resp(&format!("SET key-{n} v")), b"+OK\r\n");
    }
    exchange(&mut client, &resp("CLUSTER SLOTS"), slots.as_bytes());
}

#[test]
fn each_router_tells_cluster_clients_that_it_owns_all_slots_and_serves_them() {
    let cluster = Cluster::start();
    for router in [cluster.router(), cluster.router()] {
        let (host, port) = router.address.rsplit_once(':').unwrap();
        let name = fonn_proto::cluster::router_name(&router.address);
        let id = fonn_proto::cluster::NodeId::of_name(&name);
        let owner = format!("*4\r\n$9\r\n{host}\r\n:{port}\r\n$40\r\n{id}\r\n*0\r\n");
        let slots = format!("*1\r\n*3\r\n:0\r\n:16383\r\n{owner}");
        let mut client = router.connect();
        exchange(&mut client, &resp("CLUSTER SLOTS"), slots.as_bytes());
        let own = format!("$40\r\n{id}\r\n");
        exchange(&mut client, &resp("CLUSTER MYID"), own.as_bytes());
        // No client is redirected.
        for n in 0..40 {
            exchange(&mut client, &resp(&format!("SET key-{n} v")), b"+OK\r\n");
        }
    }
}

#[test]
fn a_scan_goes_through_all_members() {
    let cluster = Cluster::start();
    let router = cluster.router();
    let mut client = router.connect();
    let sets: Vec<_> = (0..60).map(|n| set(&format!("key-{n}"), b"v")).collect();
    exchange(&mut client, &sets.concat(), &b"STORED\r\n".repeat(60));
    let mut redis = router.connect();
    let mut cursor = "0".to_owned();
    let mut found = Vec::new();
    for _ in 0..6 {
        redis.write_all(&resp(&format!("SCAN {cursor}"))).unwrap();
        redis.write_all(&resp("PING")).unwrap();
        let mut reply = Vec::new();
        while !reply.ends_with(b"+PONG\r\n") {
            let mut byte = [0];
            redis.read_exact(&mut byte).unwrap();
            reply.push(byte[0]);
        }
        let reply = String::from_utf8(reply).unwrap();
        let lines: Vec<_> = reply.lines().collect();
        cursor = lines[2].to_owned();
        let keys = lines.iter().filter(|line| line.starts_with("key-"));
        found.extend(keys.map(|key| (*key).to_owned()));
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(cursor, "0");
    found.sort();
    found.dedup();
    assert_eq!(found.len(), 60);
}

#[test]
fn an_overlay_reads_its_base_wherever_the_key_is_and_never_changes_it() {
    let cluster = Cluster::start();
    let router = cluster.router();
    let forwarder = router.shared.service.forwarder();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let (base, own) = (Space(16), Space(32));
    let execute = |space, base, command: Command<'_>| {
        let job = Job {
            space,
            command: &command,
            source: None,
            base,
            routed_by: None,
            redirects: Redirects::Never,
            writer: WriterId::NONE,
        };
        let came = runtime.block_on(async {
            match forwarder.begin(&job).await {
                Ok(came) => came,
                Err(again) => forwarder.again(&job, again).await,
            }
        });
        match came.outcome() {
            Outcome::Hit(hit) => Some(hit.value.as_slice().to_vec()),
            _ => None,
        }
    };
    for number in 0..20 {
        let overlay = Overlay::new([number; 16]);
        for (lower, is_one_of_many) in [(Base::of(base), false), (Base::of_overlay(base), true)] {
            let key = format!("key-{number}-{is_one_of_many}").into_bytes();
            let stored = match is_one_of_many {
                true => overlay.key(&key),
                false => key.clone(),
            };
            let get = |key| Command::Get(Get::new(key));
            let set = |key, value| Command::Store(Store::set(key, value, 0, ExpirySpec::Never));
            let upper = |command| execute(own, Some(lower), command);
            assert_eq!(upper(get(&stored)), None);
            execute(base, None, set(&key, b"of the base"));
            assert_eq!(upper(get(&stored)).unwrap(), b"of the base");
            upper(set(&stored, b"its own"));
            assert_eq!(upper(get(&stored)).unwrap(), b"its own");
            assert_eq!(execute(base, None, get(&key)).unwrap(), b"of the base");
        }
    }
}
