//! Logins and rights of clients, in every dialect.

use std::io::{self, Read as _};

use fonn_auth::{Authenticator, Directory};
use fonn_proto::peer::hello::Hello;

use super::*;

/// argon2 of `secret`, with parameters that cost next to nothing.
const HASH: &str = "$argon2id$v=19$m=64,t=1,p=1$wXQK5rSIdVCHKOR1yYGIrg$tHaqh3b7PSsDIS4ZvXCTzKqUrmYfBtapcZhRS9E2V0w";

const USERS: [(&str, &str, &str); 5] = [
    ("ci", "read-write", "namespace = 'main'"),
    ("dev", "read", "namespace = 'main'"),
    ("pr", "read-write", "namespace = 'pull'\nbase = 'main'"),
    ("other", "read-write", "namespace = 'other'"),
    ("root", "admin", ""),
];

const GET: u8 = 0x00;
const SASL_AUTH: u8 = 0x21;
/// Statuses of the binary protocol.
const OK: u16 = 0;
const AUTH_ERROR: u16 = 0x20;

fn directory(users: &[(&str, &str, &str)]) -> Directory {
    let file = tempfile::NamedTempFile::new().unwrap();
    let rows = users.iter().map(|(name, role, more)| {
        format!("[[user]]\nname = '{name}'\nrole = '{role}'\nhash = '{HASH}'\n{more}\n")
    });
    std::fs::write(file.path(), rows.collect::<String>()).unwrap();
    Directory::load(file.path()).unwrap()
}

struct Guarded {
    node: Node,
    users: Arc<Authenticator>,
}

impl Guarded {
    fn start() -> Self {
        Self::start_with(Tuning::default())
    }

    fn start_with(tuning: Tuning) -> Self {
        let users = Arc::new(Authenticator::new(directory(&USERS)).unwrap());
        let node = Node::start(Options {
            tuning,
            security: Security {
                users: Some(Arc::clone(&users)),
                ..Security::default()
            },
            ..Options::default()
        });
        let namespaces = node.shared.service.engine.namespaces();
        namespaces.set_users(Some(&directory(&USERS)));
        Self { node, users }
    }

    /// A text connection of that user.
    fn text(&self, user: &str) -> TcpStream {
        let mut client = self.node.connect();
        let login = format!("{user} secret");
        exchange(&mut client, &text_set("a", login.as_bytes()), b"STORED\r\n");
        client
    }

    /// A RESP connection of that user.
    fn resp(&self, user: &str) -> TcpStream {
        let mut client = self.node.connect();
        let request = resp(&[b"AUTH", user.as_bytes(), b"secret"]);
        exchange(&mut client, &request, b"+OK\r\n");
        client
    }
}

fn ask(client: &mut TcpStream, args: &[&[u8]], reply: &[u8]) {
    exchange(client, &resp(args), reply);
}

#[test]
fn nothing_is_told_or_done_before_a_client_has_logged_in() {
    let guarded = Guarded::start();
    let mut root = guarded.resp("root");
    ask(&mut root, &[b"SET", b"k", b"v"], b"+OK\r\n");

    let mut text = guarded.node.connect();
    exchange(&mut text, b"get k\r\n", b"CLIENT_ERROR unauthenticated\r\n");
    exchange(
        &mut text,
        b"mg k v\r\n",
        b"CLIENT_ERROR unauthenticated\r\n",
    );
    exchange(&mut text, b"stats\r\n", b"CLIENT_ERROR unauthenticated\r\n");
    // Whatever is set is taken for a name and a password.
    exchange(
        &mut text,
        b"set k 0 0 8\r\nci wrong\r\n",
        b"CLIENT_ERROR authentication failure\r\n",
    );
    exchange(&mut text, b"set k 0 0 11\r\nroot secret\r\n", b"STORED\r\n");
    exchange(&mut text, b"get k\r\n", b"VALUE k 0 1\r\nv\r\nEND\r\n");

    let mut client = guarded.node.connect();
    let no_auth = b"-NOAUTH Authentication required.\r\n";
    for args in [
        &[&b"GET"[..], b"k"][..],
        &[b"SET", b"k", b"x"],
        &[b"DBSIZE"],
        &[b"FLUSHALL"],
        &[b"INFO"],
        &[b"CONFIG", b"GET", b"*"],
        &[b"SCAN", b"0"],
    ] {
        ask(&mut client, args, no_auth);
    }
    client
        .write_all(&resp(&[b"AUTH", b"root", b"wrong"]))
        .unwrap();
    let mut reply = [0; 10];
    client.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"-WRONGPASS");

    let mut client = guarded.node.connect();
    client.write_all(&binary(GET, 1, &[], b"k", b"")).unwrap();
    assert_eq!(binary_reply(&mut client).0, AUTH_ERROR);
    let wrong = binary(SASL_AUTH, 2, &[], b"PLAIN", b"\0root\0wrong");
    client.write_all(&wrong).unwrap();
    assert_eq!(binary_reply(&mut client).0, AUTH_ERROR);
    let right = binary(SASL_AUTH, 3, &[], b"PLAIN", b"\0root\0secret");
    client.write_all(&right).unwrap();
    assert_eq!(binary_reply(&mut client).0, OK);
    client.write_all(&binary(GET, 4, &[], b"k", b"")).unwrap();
    assert_eq!(binary_reply(&mut client), (OK, 4, b"\0\0\0\0v".to_vec()));
    assert!(guarded.node.count(Counter::AuthRequired) >= 11);
    assert_eq!(guarded.node.count(Counter::AuthErrors), 3);
}

#[test]
fn a_reader_changes_nothing_and_its_connection_goes_on() {
    let guarded = Guarded::start();
    let mut ci = guarded.resp("ci");
    ask(&mut ci, &[b"SET", b"k", b"v"], b"+OK\r\n");

    let mut dev = guarded.resp("dev");
    let refused = |client: &mut TcpStream, args: &[&[u8]]| {
        client.write_all(&resp(args)).unwrap();
        let mut first = [0; 1];
        client.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"-", "{args:?}");
        while first != *b"\n" {
            client.read_exact(&mut first).unwrap();
        }
    };
    for args in [
        &[&b"SET"[..], b"k", b"x"][..],
        &[b"DEL", b"k"],
        &[b"APPEND", b"k", b"x"],
        &[b"INCR", b"n"],
        &[b"EXPIRE", b"k", b"1"],
        &[b"GETDEL", b"k"],
        &[b"GETEX", b"k", b"EX", b"1"],
        &[b"MSET", b"a", b"b"],
        &[b"MSETNX", b"a", b"b"],
        &[b"FLUSHDB"],
        &[b"CONFIG", b"GET", b"*"],
    ] {
        refused(&mut dev, args);
    }
    ask(&mut dev, &[b"GET", b"k"], b"$1\r\nv\r\n");
    ask(&mut dev, &[b"EXISTS", b"a", b"n"], b":0\r\n");

    let mut text = guarded.node.connect();
    exchange(&mut text, b"set a 0 0 10\r\ndev secret\r\n", b"STORED\r\n");
    text.write_all(b"set k 0 0 1\r\nx\r\nget k\r\n").unwrap();
    let mut reply = String::new();
    let mut byte = [0];
    while !reply.ends_with("END\r\n") {
        text.read_exact(&mut byte).unwrap();
        reply.push(char::from(byte[0]));
    }
    assert!(!reply.starts_with("STORED"), "{reply}");
    assert!(reply.ends_with("VALUE k 0 1\r\nv\r\nEND\r\n"), "{reply}");
}

#[test]
fn namespaces_see_nothing_of_each_other() {
    let guarded = Guarded::start();
    let (mut ci, mut other) = (guarded.resp("ci"), guarded.resp("other"));
    ask(&mut ci, &[b"SET", b"k", b"main"], b"+OK\r\n");
    ask(&mut other, &[b"GET", b"k"], b"$-1\r\n");
    ask(&mut other, &[b"DBSIZE"], b":0\r\n");
    // Whatever the cursor, there are no keys behind it.
    other
        .write_all(&resp(&[b"SCAN", b"0", b"COUNT", b"100000"]))
        .unwrap();
    let (mut reply, mut byte) = (Vec::new(), [0]);
    while reply.iter().filter(|&&it| it == b'\n').count() < 4 {
        other.read_exact(&mut byte).unwrap();
        reply.push(byte[0]);
    }
    assert!(reply.ends_with(b"*0\r\n"), "{reply:?}");
    ask(&mut other, &[b"SET", b"k", b"own"], b"+OK\r\n");
    ask(&mut other, &[b"FLUSHALL"], b"+OK\r\n");
    ask(&mut other, &[b"GET", b"k"], b"$-1\r\n");
    ask(&mut ci, &[b"GET", b"k"], b"$4\r\nmain\r\n");
    ask(&mut ci, &[b"DBSIZE"], b":1\r\n");
}

/// What is answered until the line that ends it.
fn lines(client: &mut TcpStream, request: &[u8], end: &str) -> String {
    client.write_all(request).unwrap();
    let (mut reply, mut byte) = (String::new(), [0]);
    while !reply.ends_with(end) {
        assert_eq!(client.read(&mut byte).unwrap(), 1, "{reply}");
        reply.push(char::from(byte[0]));
    }
    reply
}

#[test]
fn what_is_told_of_the_server_is_told_of_the_own_namespace_alone() {
    let guarded = Guarded::start();
    let mut ci = guarded.resp("ci");
    ask(
        &mut ci,
        &[b"MSET", b"a", b"1", b"b", b"2", b"c", b"3"],
        b"+OK\r\n",
    );
    ask(&mut ci, &[b"GET", b"a"], b"$1\r\n1\r\n");
    ask(&mut ci, &[b"GET", b"b"], b"$1\r\n2\r\n");
    ask(&mut ci, &[b"GET", b"absent"], b"$-1\r\n");
    let stats = |user: &str, kind: &str| {
        let request = format!("stats{kind}\r\n");
        lines(&mut guarded.text(user), request.as_bytes(), "END\r\n")
    };
    let own = |[hits, misses, stores, items]: [u32; 4]| {
        [
            format!("get_hits {hits}"),
            format!("get_misses {misses}"),
            format!("cmd_set {stores}"),
            format!("curr_items {items}"),
        ]
    };
    for (user, counts) in [
        ("ci", [2, 1, 3, 3]),
        ("dev", [2, 1, 3, 3]),
        ("other", [0; 4]),
    ] {
        let told = stats(user, "");
        for line in own(counts) {
            assert!(told.contains(&format!("STAT {line}\r\n")), "{user}: {told}");
        }
        let names = [
            "bytes",
            "_maxbytes",
            "connections",
            "hits_",
            "evict",
            "auth_errors",
            "disk",
            "busy",
        ];
        for name in names {
            assert!(!told.contains(name), "{name} to {user}: {told}");
        }
        let items = format!("STAT items:1:number {}\r\nEND\r\n", counts[3]);
        assert_eq!(stats(user, " items"), items);
        let settings = lines(&mut guarded.text(user), b"stats settings\r\n", "\r\n");
        assert!(!settings.starts_with("STAT"), "{settings}");

        let mut client = guarded.resp(user);
        let info = lines(&mut client, &resp(&[b"INFO"]), "# Keyspace\r\n");
        for line in [
            format!("keyspace_hits:{}\r\n", counts[0]),
            format!("keyspace_misses:{}\r\n", counts[1]),
        ] {
            assert!(info.contains(&line), "{user}: {info}");
        }
        for name in [
            "memory",
            "clients",
            "evicted",
            "connections",
            "disk",
            "_ram",
        ] {
            assert!(!info.contains(name), "{name} to {user}: {info}");
        }
    }
    ask(&mut guarded.resp("other"), &[b"RANDOMKEY"], b"$-1\r\n");
    // An admin is told of all.
    let all = stats("root", "");
    for name in [
        "limit_maxbytes",
        "curr_connections",
        "auth_errors",
        "get_hits_ram 2",
    ] {
        assert!(all.contains(&format!("STAT {name}")), "{all}");
    }
    assert!(stats("root", " items").contains("items:1:evicted "));
    let info = lines(
        &mut guarded.resp("root"),
        &resp(&[b"INFO"]),
        "# Keyspace\r\n",
    );
    assert!(info.contains("used_memory:"), "{info}");
}

#[test]
fn an_overlay_reads_its_base_and_never_changes_it() {
    let guarded = Guarded::start();
    let (mut ci, mut pr) = (guarded.resp("ci"), guarded.resp("pr"));
    ask(&mut ci, &[b"SET", b"k", b"base"], b"+OK\r\n");
    ask(&mut pr, &[b"GET", b"k"], b"$4\r\nbase\r\n");
    ask(&mut pr, &[b"GETEX", b"k", b"PX", b"1"], b"$4\r\nbase\r\n");
    ask(&mut pr, &[b"GETDEL", b"k"], b"$4\r\nbase\r\n");
    ask(&mut pr, &[b"DEL", b"k"], b":0\r\n");
    ask(&mut pr, &[b"FLUSHALL"], b"+OK\r\n");
    ask(
        &mut pr,
        &[b"MGET", b"k", b"absent"],
        b"*2\r\n$4\r\nbase\r\n$-1\r\n",
    );
    ask(&mut pr, &[b"SET", b"k", b"poison"], b"+OK\r\n");
    ask(&mut pr, &[b"GET", b"k"], b"$6\r\npoison\r\n");
    ask(&mut ci, &[b"GET", b"k"], b"$4\r\nbase\r\n");
    ask(&mut ci, &[b"TTL", b"k"], b":-1\r\n");
    ask(&mut pr, &[b"DEL", b"k"], b":1\r\n");
    ask(&mut pr, &[b"GET", b"k"], b"$4\r\nbase\r\n");
}

#[test]
fn a_removed_user_is_cut_off_at_once() {
    let guarded = Guarded::start();
    let (mut ci, mut dev) = (guarded.resp("ci"), guarded.resp("dev"));
    guarded.users.replace(directory(&USERS[..1]));
    // Idle, it sees the end of the connection.
    let mut rest = Vec::new();
    match dev.read_to_end(&mut rest) {
        Ok(_) => assert_eq!(rest, b""),
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset),
    }
    ask(&mut ci, &[b"SET", b"k", b"v"], b"+OK\r\n");
    let mut again = guarded.node.connect();
    again
        .write_all(&resp(&[b"AUTH", b"dev", b"secret"]))
        .unwrap();
    let mut reply = [0; 10];
    again.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"-WRONGPASS");
}

#[test]
fn members_of_a_cluster_are_not_let_in_past_the_users() {
    let mut hello = fonn_proto::Out::new();
    Hello::new("b", "", 1 << 20).encode(Ok(()), &mut hello);
    let answer_len = |node: &Node| {
        let mut client = node.connect();
        client.write_all(&hello.to_vec()).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        let _ = client.read_to_end(&mut answer);
        answer.len()
    };
    assert_eq!(answer_len(&Guarded::start().node), 0);
    assert!(answer_len(&Node::start(Options::default())) > 0);
}

#[test]
fn a_user_that_may_only_read_gets_no_recache_token() {
    let guarded = Guarded::start();
    let mut writer = guarded.text("ci");
    let mut reader = guarded.text("dev");
    exchange(&mut writer, &text_set("k", b"v"), b"STORED\r\n");
    exchange(&mut writer, b"md k I\r\n", b"HD\r\n");
    exchange(&mut reader, b"mg k v\r\n", b"VA 1 X\r\nv\r\n");
    exchange(&mut writer, b"mg k v\r\n", b"VA 1 X W\r\nv\r\n");
    exchange(&mut reader, b"mg k v\r\n", b"VA 1 X\r\nv\r\n");
    exchange(&mut writer, b"mg k v\r\n", b"VA 1 Z X\r\nv\r\n");
}

#[test]
fn reset_logs_out() {
    let guarded = Guarded::start();
    let mut client = guarded.resp("ci");
    ask(&mut client, &[b"SET", b"k", b"v"], b"+OK\r\n");
    ask(&mut client, &[b"MULTI"], b"+OK\r\n");
    ask(&mut client, &[b"GET", b"k"], b"+QUEUED\r\n");
    ask(&mut client, &[b"RESET"], b"+RESET\r\n");
    let no_auth = b"-NOAUTH Authentication required.\r\n";
    ask(&mut client, &[b"GET", b"k"], no_auth);
    ask(&mut client, &[b"MULTI"], no_auth);
    ask(&mut client, &[b"WATCH", b"k"], no_auth);
    ask(&mut client, &[b"EXEC"], b"-ERR EXEC without MULTI\r\n");
    // The next user of the connection sees its own namespace.
    ask(&mut client, &[b"AUTH", b"other", b"secret"], b"+OK\r\n");
    ask(&mut client, &[b"GET", b"k"], b"$-1\r\n");
}

#[test]
fn a_reader_queues_nothing_that_changes_anything() {
    let guarded = Guarded::start();
    ask(&mut guarded.resp("ci"), &[b"SET", b"k", b"v"], b"+OK\r\n");
    let mut client = guarded.resp("dev");
    let refused = b"-NOPERM this user has no permissions to change anything\r\n";
    for write in [
        &[&b"DEL"[..], b"k"][..],
        &[b"GETDEL", b"k"],
        &[b"RENAME", b"k", b"l"],
        &[b"COPY", b"k", b"l"],
        &[b"SETBIT", b"k", b"1", b"1"],
    ] {
        ask(&mut client, write, refused);
        ask(&mut client, &[b"MULTI"], b"+OK\r\n");
        ask(&mut client, &[b"GET", b"k"], b"+QUEUED\r\n");
        ask(&mut client, write, refused);
        let discarded = b"-EXECABORT Transaction discarded because of previous errors.\r\n";
        ask(&mut client, &[b"EXEC"], discarded);
    }
    ask(&mut client, &[b"MULTI"], b"+OK\r\n");
    ask(&mut client, &[b"GET", b"k"], b"+QUEUED\r\n");
    ask(&mut client, &[b"EXEC"], b"*1\r\n$1\r\nv\r\n");
    for refused_command in [
        &[&b"KEYS"[..], b"*"][..],
        &[b"CONFIG", b"SET", b"log", b"debug"],
    ] {
        ask(&mut client, refused_command, refused);
        ask(&mut guarded.resp("ci"), refused_command, refused);
    }
    ask(&mut guarded.resp("root"), &[b"KEYS", b"*"], b"*0\r\n");
}

#[test]
fn a_transaction_reads_through_an_overlay() {
    let guarded = Guarded::start();
    let (mut ci, mut pr) = (guarded.resp("ci"), guarded.resp("pr"));
    ask(&mut ci, &[b"SET", b"k", b"base"], b"+OK\r\n");
    ask(&mut pr, &[b"WATCH", b"k"], b"+OK\r\n");
    ask(&mut pr, &[b"MULTI"], b"+OK\r\n");
    ask(&mut pr, &[b"GET", b"k"], b"+QUEUED\r\n");
    ask(&mut pr, &[b"GETDEL", b"k"], b"+QUEUED\r\n");
    ask(&mut pr, &[b"SET", b"k", b"own"], b"+QUEUED\r\n");
    ask(&mut pr, &[b"GET", b"k"], b"+QUEUED\r\n");
    let reply = b"*4\r\n$4\r\nbase\r\n$4\r\nbase\r\n+OK\r\n$3\r\nown\r\n";
    ask(&mut pr, &[b"EXEC"], reply);
    ask(&mut ci, &[b"GET", b"k"], b"$4\r\nbase\r\n");
    // A change of the base is a change of what was watched.
    ask(&mut pr, &[b"DEL", b"k"], b":1\r\n");
    ask(&mut pr, &[b"WATCH", b"k"], b"+OK\r\n");
    ask(&mut ci, &[b"SET", b"k", b"newer"], b"+OK\r\n");
    ask(&mut pr, &[b"MULTI"], b"+OK\r\n");
    ask(&mut pr, &[b"EXEC"], b"*-1\r\n");
}

#[test]
fn each_answer_to_a_stranger_is_delayed_and_none_to_a_user() {
    const HOUR: Duration = Duration::from_secs(3600);
    let guarded = Guarded::start_with(Tuning {
        stranger_delay: HOUR,
        startup_max: HOUR,
        ..Tuning::default()
    });
    let requests: [&[u8]; 5] = [
        b"*1\r\n$-7\r\n",
        b"GET k\r\n",
        b"AUTH root wrong\r\n",
        b"PING\r\n",
        b"\x81",
    ];
    let mut strangers = requests.map(|request| {
        let mut stranger = guarded.node.connect();
        stranger.write_all(request).unwrap();
        stranger
    });
    until("all have come", || {
        let counts = [
            Counter::ProtocolErrors,
            Counter::AuthRequired,
            Counter::AuthErrors,
        ];
        counts.map(|it| guarded.node.count(it)) == [2, 1, 1]
    });
    // Users log in and are answered meanwhile.
    let mut user = guarded.resp("root");
    let refused = b"-WRONGPASS invalid username-password pair or user is disabled.\r\n";
    ask(&mut user, &[b"AUTH", b"root", b"wrong"], refused);
    ask(&mut user, &[b"PING"], b"+PONG\r\n");
    let invalid = b"-ERR Protocol error: invalid bulk length\r\n";
    exchange(&mut user, requests[0], invalid);
    for stranger in &mut strangers {
        stranger.set_nonblocking(true).unwrap();
        let got = stranger.read(&mut [0; 1]).map_err(|error| error.kind());
        assert_eq!(got, Err(std::io::ErrorKind::WouldBlock));
    }
}
