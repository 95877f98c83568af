//! Overlays that share a namespace, against a model in which each is a map of its own.

use std::collections::{BTreeMap, BTreeSet};

use fonn_auth::{Authenticator, Directory};
use fonn_base::random::SplitMix64;

use super::*;

const USERS: &str = "
[exchange]
key_file = 'token.key'

[[namespace]]
name = 'acme'

[[namespace]]
name = 'acme-pr-{ref}'
base = 'acme'
ttl = '7d'

[[oidc]]
name = 'ci'
issuer = 'https://ci.test'
audience = 'https://cache.test'

[[oidc.rule]]
name = 'main'
when = { ref = 'refs/heads/main' }
role = 'read-write'
namespace = 'acme'

[[oidc.rule]]
name = 'pull-requests'
when = { ref = 'refs/pull/*' }
role = 'read-write'
namespace = 'acme-pr-{ref}'

[[oidc]]
name = 'other'
issuer = 'https://other.test'
audience = 'https://cache.test'

[[oidc.rule]]
name = 'pull-requests'
when = { ref = 'refs/pull/*' }
role = 'read-write'
namespace = 'acme-pr-{ref}'
";

const MAIN: usize = 0;

/// Identities: the main branch, and pull requests. The last two have the same name at different
/// issuers.
const IDENTITIES: [(&str, &str); 4] = [
    ("ci", "refs/heads/main"),
    ("ci", "refs/pull/1/merge"),
    ("ci", "refs/pull/2/merge"),
    ("other", "refs/pull/2/merge"),
];

const TTL_MS: i64 = 7 * 86_400_000;

struct Overlays {
    node: Node,
    users: Arc<Authenticator>,
    _dir: tempfile::TempDir,
}

impl Overlays {
    fn start(has_disk: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("users.toml");
        std::fs::write(&file, USERS).unwrap();
        std::fs::write(dir.path().join("token.key"), "5a".repeat(32)).unwrap();
        let users = Arc::new(Authenticator::new(Directory::load(&file).unwrap()).unwrap());
        let node = Node::start(Options {
            security: Security {
                users: Some(Arc::clone(&users)),
                ..Security::default()
            },
            disk: has_disk.then(|| disk_options(dir.path())),
            ..Options::default()
        });
        let namespaces = node.shared.service.engine.namespaces();
        namespaces.set_users(Some(&users.directory()));
        Self {
            node,
            users,
            _dir: dir,
        }
    }

    fn token(&self, (issuer, reference): (&str, &str)) -> String {
        let claims = [("sub", ["job".to_owned()]), ("ref", [reference.to_owned()])];
        let texts = |name: &str| {
            let claim = claims.iter().find(|claim| claim.0 == name);
            claim.map_or(&[][..], |claim| &claim.1)
        };
        self.users.exchange(issuer, texts).unwrap().secret
    }

    fn clients(&self) -> Vec<Client> {
        let log_in = |identity| {
            let mut client = Client(self.node.connect());
            let token = self.token(identity);
            assert_eq!(client.ask(&[b"AUTH", token.as_bytes()]), Reply::ok());
            client
        };
        IDENTITIES.into_iter().map(log_in).collect()
    }
}

/// A reply of RESP.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Reply {
    Line(String),
    Integer(i64),
    Bulk(Option<Vec<u8>>),
    Array(Vec<Reply>),
}

impl Reply {
    fn ok() -> Self {
        Self::Line("+OK".to_owned())
    }

    fn keys(self) -> BTreeSet<Vec<u8>> {
        let Self::Array(keys) = self else {
            panic!("{self:?}");
        };
        let key = |reply| match reply {
            Self::Bulk(Some(key)) => key,
            other => panic!("{other:?}"),
        };
        keys.into_iter().map(key).collect()
    }
}

struct Client(TcpStream);

impl Client {
    fn ask(&mut self, args: &[&[u8]]) -> Reply {
        self.0.write_all(&resp(args)).unwrap();
        self.reply()
    }

    fn line(&mut self) -> String {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            self.0.read_exact(&mut byte).unwrap();
            line.push(byte[0]);
        }
        line.truncate(line.len() - 2);
        String::from_utf8(line).unwrap()
    }

    fn reply(&mut self) -> Reply {
        let line = self.line();
        let (kind, rest) = line.split_at(1);
        let number = || rest.parse::<i64>().unwrap();
        match kind {
            ":" => Reply::Integer(number()),
            "$" if number() < 0 => Reply::Bulk(None),
            "$" => {
                let mut value = vec![0; number() as usize + 2];
                self.0.read_exact(&mut value).unwrap();
                value.truncate(value.len() - 2);
                Reply::Bulk(Some(value))
            }
            "*" => Reply::Array((0..number()).map(|_| self.reply()).collect()),
            _ => Reply::Line(line),
        }
    }

    /// All keys by `SCAN`.
    fn scan(&mut self, pattern: &[u8]) -> BTreeSet<Vec<u8>> {
        let (mut found, mut cursor) = (BTreeSet::new(), b"0".to_vec());
        loop {
            let reply = self.ask(&[b"SCAN", &cursor, b"MATCH", pattern, b"COUNT", b"3"]);
            let Reply::Array(mut parts) = reply else {
                panic!("{reply:?}");
            };
            found.extend(parts.pop().unwrap().keys());
            let Some(Reply::Bulk(Some(next))) = parts.pop() else {
                panic!("no cursor");
            };
            cursor = next;
            if cursor == b"0" {
                return found;
            }
        }
    }
}

type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

/// What each identity has of its own.
#[derive(Default)]
struct Model([Entries; IDENTITIES.len()]);

impl Model {
    fn own(&mut self, who: usize) -> &mut Entries {
        &mut self.0[who]
    }

    /// What an identity reads: its own entry, else that of the main branch.
    fn read(&self, who: usize, key: &[u8]) -> Option<Vec<u8>> {
        self.0[who]
            .get(key)
            .or_else(|| self.0[MAIN].get(key))
            .cloned()
    }
}

/// Keys, among them some with hash tags, and one that is empty.
const KEYS: [&[u8]; 6] = [b"", b"a", b"b{t}", b"c{t}", b"{t}\xff\0", b"prefix/d"];

/// One random command of a client, whose reply has to be that of the model.
fn step(random: &mut SplitMix64, clients: &mut [Client], model: &mut Model) {
    let who = random.below(clients.len() as u64) as usize;
    let mut key = || KEYS[random.below(KEYS.len() as u64) as usize];
    let (key, other) = (key(), key());
    let value = random.next_u64().to_string().into_bytes();
    let client = &mut clients[who];
    let integer = |it: bool| Reply::Integer(i64::from(it));
    match random.below(14) {
        0..3 => {
            assert_eq!(client.ask(&[b"SET", key, &value]), Reply::ok());
            model.own(who).insert(key.to_vec(), value);
        }
        3..5 => assert_eq!(
            client.ask(&[b"GET", key]),
            Reply::Bulk(model.read(who, key))
        ),
        5 => {
            let read = |key| Reply::Bulk(model.read(who, key));
            let expected = Reply::Array(vec![read(key), read(other)]);
            assert_eq!(client.ask(&[b"MGET", key, other]), expected);
        }
        6 => {
            let had = model.own(who).remove(key).is_some();
            assert_eq!(client.ask(&[b"DEL", key]), integer(had));
        }
        7 => {
            let own = model.own(who).entry(key.to_vec()).or_default();
            own.extend_from_slice(b"x");
            let len = own.len() as i64;
            assert_eq!(client.ask(&[b"APPEND", key, b"x"]), Reply::Integer(len));
        }
        8 => {
            let own = model.own(who);
            let is_free = !own.contains_key(key) && !own.contains_key(other);
            let reply = client.ask(&[b"MSETNX", key, &value, other, &value]);
            assert_eq!(reply, integer(is_free));
            if is_free {
                own.insert(key.to_vec(), value.clone());
                own.insert(other.to_vec(), value);
            }
        }
        9 if key != other => {
            let own = model.own(who);
            let reply = client.ask(&[b"COPY", key, other, b"REPLACE"]);
            assert_eq!(reply, integer(own.contains_key(key)));
            if let Some(value) = own.get(key).cloned() {
                own.insert(other.to_vec(), value);
            }
        }
        10 => {
            assert_eq!(client.ask(&[b"WATCH", key]), Reply::ok());
            assert_eq!(client.ask(&[b"MULTI"]), Reply::ok());
            let queued = Reply::Line("+QUEUED".to_owned());
            assert_eq!(client.ask(&[b"GET", key]), queued);
            assert_eq!(client.ask(&[b"SET", other, &value]), queued);
            assert_eq!(client.ask(&[b"GET", other]), queued);
            let expected = vec![
                Reply::Bulk(model.read(who, key)),
                Reply::ok(),
                Reply::Bulk(Some(value.clone())),
            ];
            assert_eq!(client.ask(&[b"EXEC"]), Reply::Array(expected));
            model.own(who).insert(other.to_vec(), value);
        }
        11 => {
            let count = model.own(who).len() as i64;
            assert_eq!(client.ask(&[b"DBSIZE"]), Reply::Integer(count));
            let own = model.own(who);
            match client.ask(&[b"RANDOMKEY"]) {
                Reply::Bulk(Some(key)) => assert!(own.contains_key(&key), "{key:?}"),
                reply => assert_eq!((reply, count), (Reply::Bulk(None), 0)),
            }
        }
        12 => {
            let (all, tagged) = (client.scan(b"*"), client.scan(b"*{t}*"));
            let own: BTreeSet<_> = model.own(who).keys().cloned().collect();
            assert_eq!(all, own);
            let is_tagged = |key: &Vec<u8>| key.windows(3).any(|part| part == b"{t}");
            assert_eq!(tagged, own.into_iter().filter(is_tagged).collect());
        }
        _ => {
            // However long a client asks for.
            client.ask(&[b"EXPIRE", key, b"99999999"]);
            client.ask(&[b"PERSIST", key]);
            let left = client.ask(&[b"PTTL", key]);
            let Reply::Integer(left) = left else {
                panic!("{left:?}");
            };
            let is_own = model.own(who).contains_key(key);
            match (who, is_own) {
                (MAIN, true) => assert_eq!(left, -1),
                (_, true) => assert!((1..=TTL_MS).contains(&left), "{left}"),
                (MAIN, false) => assert_eq!(left, -2),
                (_, false) => assert!(left < 0, "{left}"),
            }
        }
    }
}

#[test]
fn overlays_see_nothing_of_each_other_and_the_base_nothing_of_them() {
    for (has_disk, seed, steps) in [(false, 1, 2000), (true, 2, 300)] {
        let overlays = Overlays::start(has_disk);
        let mut clients = overlays.clients();
        let (mut random, mut model) = (SplitMix64::new(seed), Model::default());
        for _ in 0..steps {
            step(&mut random, &mut clients, &mut model);
        }
        assert!(
            model.0.iter().all(|own| own.len() > 1),
            "too little was done"
        );
        for (who, client) in clients.iter_mut().enumerate() {
            for key in KEYS {
                let expected = Reply::Bulk(model.read(who, key));
                assert_eq!(client.ask(&[b"GET", key]), expected, "{who} {key:?}");
            }
        }
    }
}

/// Whatever a client says, its key is behind the prefix of its own overlay.
#[test]
fn a_stored_key_of_another_overlay_is_a_key_like_any_other() {
    let overlays = Overlays::start(false);
    let mut clients = overlays.clients();
    assert_eq!(clients[1].ask(&[b"SET", b"k", b"secret"]), Reply::ok());
    let directory = overlays.users.directory();
    let namespace = directory.namespace("acme-pr-{ref}").unwrap().number;
    let mut stored = Vec::new();
    let mut cursor = 0;
    loop {
        let ram = overlays.node.shared.service.engine.ram();
        cursor = ram.scan(cursor, 100, |found| {
            if found.space.namespace() == namespace {
                stored.push(found.key.to_vec());
            }
        });
        if cursor == 0 {
            break;
        }
    }
    assert_eq!(stored.len(), 1);
    assert!(
        stored[0].ends_with(b"k") && stored[0].len() > 16,
        "{stored:?}"
    );
    for who in [2, 3, MAIN] {
        assert_eq!(clients[who].ask(&[b"GET", &stored[0]]), Reply::Bulk(None));
        assert_eq!(clients[who].ask(&[b"DEL", &stored[0]]), Reply::Integer(0));
        assert_eq!(clients[who].ask(&[b"SET", &stored[0], b"x"]), Reply::ok());
    }
    let secret = Reply::Bulk(Some(b"secret".to_vec()));
    assert_eq!(clients[1].ask(&[b"GET", b"k"]), secret);
}

#[test]
fn a_flush_of_one_overlay_is_refused_and_one_of_the_base_is_seen_by_all() {
    let overlays = Overlays::start(false);
    let mut clients = overlays.clients();
    for client in &mut clients {
        assert_eq!(client.ask(&[b"SET", b"k", b"own"]), Reply::ok());
    }
    assert_eq!(clients[MAIN].ask(&[b"SET", b"base", b"v"]), Reply::ok());
    for command in [&b"FLUSHDB"[..], b"FLUSHALL"] {
        let reply = clients[1].ask(&[command]);
        let is_refused = matches!(&reply, Reply::Line(line) if line.starts_with("-NOPERM"));
        assert!(is_refused, "{reply:?}");
    }
    assert_eq!(clients[MAIN].ask(&[b"FLUSHALL"]), Reply::ok());
    for client in &mut clients[1..] {
        assert_eq!(client.ask(&[b"GET", b"base"]), Reply::Bulk(None));
        assert_eq!(
            client.ask(&[b"GET", b"k"]),
            Reply::Bulk(Some(b"own".to_vec()))
        );
    }
    // Other protocols, and keys of the greatest length.
    let mut text = overlays.node.connect();
    let token = overlays.token(IDENTITIES[1]);
    exchange(
        &mut text,
        &text_set("a", format!("any {token}").as_bytes()),
        b"STORED\r\n",
    );
    exchange(&mut text, b"get k\r\n", b"VALUE k 0 3\r\nown\r\nEND\r\n");
    exchange(&mut text, b"mg k k v\r\n", b"VA 3 kk\r\nown\r\n");
    let longest = "k".repeat(250);
    exchange(&mut text, &text_set(&longest, b"v"), b"STORED\r\n");
    let found = format!("VALUE {longest} 0 1\r\nv\r\nEND\r\n");
    exchange(
        &mut text,
        format!("get {longest}\r\n").as_bytes(),
        found.as_bytes(),
    );
    let longest = vec![b'k'; 32 * 1024];
    assert_eq!(clients[1].ask(&[b"SET", &longest, b"v"]), Reply::ok());
    assert_eq!(
        clients[1].ask(&[b"GET", &longest]),
        Reply::Bulk(Some(b"v".to_vec()))
    );
    assert_eq!(clients[2].ask(&[b"GET", &longest]), Reply::Bulk(None));
}

fn disk_options(dir: &std::path::Path) -> DiskOptions {
    DiskOptions {
        dir: dir.join("data"),
        budget_bytes: 256 << 20,
        durability: Durability::Batched,
        fresh: fonn_disk_tier::levels::CodecChoice::none(),
        compacted: fonn_disk_tier::levels::CodecChoice::none(),
        codec_min_bytes: 256,
        value_len_max: VALUE_LEN_MAX,
        queue_bytes_max: 8 << 20,
        memory_bytes: 4 << 20,
        read_threads: 1,
        compaction_percent: 0,
        write_bytes_per_sec_max: None,
        room_wait: fonn_disk_tier::ROOM_WAIT,
    }
}
