//! The server with a service whose answers come late and in any order.

pub(super) mod fake;
mod large;
mod logins;
mod order;
mod startups;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fonn_auth::Security;

use self::fake::{Fake, Manner};
use super::registry::Registered;
use super::socket::Accepted;
use super::{Event, ListenAddr, Listener, Server, Shared, Tuning};

/// No test waits longer than this for anything.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// A server with one reactor.
pub(super) struct Running {
    shared: Arc<Shared<Fake>>,
    server: Option<Server<Fake>>,
    addr: SocketAddr,
}

impl Running {
    pub(super) fn start(manner: Manner) -> Self {
        Self::protected(manner, Security::default())
    }

    pub(super) fn protected(manner: Manner, security: Security) -> Self {
        Self::tuned(manner, security, Tuning::default())
    }

    pub(super) fn tuned(manner: Manner, security: Security, tuning: Tuning) -> Self {
        let service = Arc::new(Fake::new(manner));
        let shared = Shared::with_tuning(service, Vec::new(), 1000, tuning, security);
        let listener = Listener::bind(&ListenAddr::Tcp("127.0.0.1:0".to_owned())).unwrap();
        let addr = listener.local_name().parse().unwrap();
        let server = Server::start(Arc::clone(&shared), vec![listener], 1).unwrap();
        Self {
            shared,
            server: Some(server),
            addr,
        }
    }

    pub(super) fn address(&self) -> String {
        self.addr.to_string()
    }

    pub(super) fn shared(&self) -> &Arc<Shared<Fake>> {
        &self.shared
    }

    /// The server, to be drained by the test.
    pub(super) fn take(&mut self) -> Server<Fake> {
        self.server.take().unwrap()
    }

    pub(super) fn service(&self) -> &Fake {
        &self.shared.service
    }

    pub(super) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.addr).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// A client whose kernel takes little while the client does not read.
    fn connect_with_a_small_window(&self) -> TcpStream {
        use socket2::{Domain, Socket, Type};
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket.connect(&self.addr.into()).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.into()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.drain(Duration::ZERO);
        }
    }
}

/// Waits until something that another thread does has happened.
#[track_caller]
pub(super) fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[track_caller]
fn expect(stream: &mut TcpStream, reply: &[u8]) {
    let mut got = vec![0; reply.len()];
    stream.read_exact(&mut got).unwrap();
    assert_eq!(
        got.escape_ascii().to_string(),
        reply.escape_ascii().to_string()
    );
}

#[test]
fn what_is_answered_is_sent_while_a_later_answer_takes_its_time() {
    let running = Running::start(Manner::Held);
    let mut client = running.connect();
    client.write_all(b"get a\r\nget b\r\nversion\r\n").unwrap();
    until("both are begun", || running.service().executed() == 2);
    running.service().release(1);
    expect(&mut client, b"END\r\n");
    running.service().release(1);
    let version = format!("END\r\nVERSION {}\r\n", fonn_proto::memcached::VERSION);
    expect(&mut client, version.as_bytes());
}

#[test]
fn commands_in_flight_are_bounded_by_number() {
    let running = Running::start(Manner::Held);
    let mut client = running.connect();
    let mut sender = client.try_clone().unwrap();
    let gets = 20_000;
    let writer = std::thread::spawn(move || sender.write_all(&b"get a\r\n".repeat(gets)));
    let mut answered = 0;
    let mut most = 0;
    while answered < gets {
        until("some are begun", || running.service().in_flight() > 0);
        most = most.max(running.service().in_flight());
        answered += running.service().release(64);
    }
    writer.join().unwrap().unwrap();
    expect(&mut client, &b"END\r\n".repeat(gets));
    assert!((64..=256).contains(&most), "{most} in flight");
    assert!(running.service().in_flight_most() <= 256);
}

#[test]
fn answers_that_come_while_the_client_does_not_read_are_taken_and_counted() {
    const LEN: usize = 1 << 18;
    // As many as may be in flight before the length of an answer is known.
    const GETS: usize = 64;
    let running = Running::start(Manner::Held);
    let service = running.service();
    service.put(b"big", vec![b'v'; LEN]);
    let mut client = running.connect_with_a_small_window();
    client.write_all(&b"get big\r\n".repeat(GETS)).unwrap();
    until("all are begun", || service.in_flight() == GETS);
    assert_eq!(service.release(GETS), GETS);
    // The kernel takes a part of them.
    until("the others are taken", || service.in_flight() == 0);
    until("they are counted", || {
        running.shared.unsent_bytes() >= GETS * LEN / 4
    });
    let head = format!("VALUE big 0 {LEN}\r\n");
    let item = [head.as_bytes(), &[b'v'; LEN], b"\r\nEND\r\n"].concat();
    let mut got = vec![0; item.len()];
    for _ in 0..GETS {
        client.read_exact(&mut got).unwrap();
        assert!(got == item);
    }
    until("nothing is counted", || running.shared.unsent_bytes() == 0);
}

#[test]
fn answers_that_wait_for_a_slow_one_are_taken_and_counted() {
    const LEN: usize = 1 << 18;
    let running = Running::start(Manner::Held);
    let service = running.service();
    service.put(b"big", vec![b'v'; LEN]);
    let mut client = running.connect();
    client
        .write_all(&[&b"get slow\r\n"[..], &b"get big\r\n".repeat(20)].concat())
        .unwrap();
    until("all are begun", || service.in_flight() == 21);
    assert_eq!(service.release_last(20), 20);
    until("all but one are counted", || {
        service.in_flight() == 1 && running.shared.unsent_bytes() == 20 * LEN
    });
    service.release(1);
    expect(&mut client, b"END\r\nVALUE big 0 262144\r\n");
}

#[test]
fn the_parsed_commands_of_a_long_line_are_counted_while_they_are_executed() {
    const KEYS: usize = 300;
    // Longer than the buffer that connections lend each other, in which requests are short.
    let keys = format!(" {}", "k".repeat(150)).repeat(KEYS);
    for (name, answer) in [("get", &b"END\r\n"[..]), ("MGET", b"*300\r\n")] {
        let running = Running::start(Manner::Held);
        let service = running.service();
        let mut client = running.connect();
        client
            .write_all(format!("{name}{keys}\r\n").as_bytes())
            .unwrap();
        until("it is begun", || service.in_flight() > 0);
        let command_len = size_of::<fonn_proto::Command<'static>>();
        assert!(running.shared.unsent_bytes() > KEYS * command_len);
        let mut answered = 0;
        while answered < KEYS {
            answered += service.release(KEYS);
            std::thread::yield_now();
        }
        expect(&mut client, answer);
        until("nothing is counted", || running.shared.unsent_bytes() == 0);
    }
}

#[test]
fn an_answer_that_is_computed_from_a_value_is_not_made_on_the_short_way() {
    let running = Running::start(Manner::AtOnce);
    running.service().put(b"hot", vec![0xff; 100]);
    let mut client = running.connect();
    client.write_all(b"GET hot\r\nBITCOUNT hot\r\n").unwrap();
    let value = [&b"$100\r\n"[..], &[0xff; 100], b"\r\n"].concat();
    expect(&mut client, &[&value[..], b":800\r\n"].concat());
    // The value was read by an execution, which keeps it without a lock.
    assert_eq!(running.service().executed(), 1);
}

#[test]
fn few_commands_are_in_flight_whose_answers_are_large() {
    let running = Running::start(Manner::Held);
    let mut client = running.connect();
    running.service().put(b"big", vec![b'v'; 1 << 20]);
    let item = [
        &b"VALUE big 0 1048576\r\n"[..],
        &[b'v'; 1 << 20],
        b"\r\nEND\r\n",
    ]
    .concat();
    client.write_all(b"get big\r\n").unwrap();
    until("it is begun", || running.service().release(1) == 1);
    let mut got = vec![0; item.len()];
    client.read_exact(&mut got).unwrap();
    assert!(got == item);
    let before = running.service().executed();
    client.write_all(&b"get big\r\n".repeat(100)).unwrap();
    let mut most = 0;
    for _ in 0..100 {
        until("one is in flight", || running.service().in_flight() > 0);
        most = most.max(running.service().in_flight());
        running.service().release(1);
        client.read_exact(&mut got).unwrap();
        assert!(got == item);
    }
    assert_eq!(running.service().executed() - before, 100);
    assert!(most <= 4, "{most} in flight");
}

#[test]
fn commands_in_flight_are_dropped_when_their_client_has_gone() {
    let running = Running::start(Manner::Held);
    let mut client = running.connect();
    client.write_all(&b"get a\r\n".repeat(10)).unwrap();
    until("they are begun", || running.service().in_flight() == 10);
    // A reset, as when the client's process was killed with replies unread.
    socket2::SockRef::from(&client)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
    drop(client);
    until("they are dropped", || running.service().in_flight() == 0);
    until("the connection is gone", || {
        running.shared.registry.is_empty()
    });
}

#[test]
fn a_command_waits_for_one_in_flight_that_changes_its_key() {
    let running = Running::start(Manner::Held);
    let mut client = running.connect();
    client
        .write_all(b"get k\r\nget k\r\nset k 0 0 1\r\nv\r\nget l\r\nget k\r\n")
        .unwrap();
    let service = running.service();
    until("the reads are begun", || service.executed() == 2);
    service.release(2);
    until("the write is begun, and the next", || {
        service.executed() == 4
    });
    service.release(2);
    until("the read behind it is begun", || service.executed() == 5);
    service.release(1);
    expect(
        &mut client,
        b"END\r\nEND\r\nSTORED\r\nEND\r\nVALUE k 0 1\r\nv\r\nEND\r\n",
    );
}

#[test]
fn a_client_that_asks_for_owners_is_told_the_address_that_it_reached() {
    let running = Running::start(Manner::AtOnce);
    let mut client = running.connect();
    client.write_all(b"CLUSTER SLOTS\r\n").unwrap();
    let id = fonn_proto::cluster::NodeId::of_name("fake");
    let port = running.addr.port();
    let slots = format!(
        "*1\r\n*3\r\n:0\r\n:16383\r\n*4\r\n$9\r\n127.0.0.1\r\n:{port}\r\n$40\r\n{id}\r\n*0\r\n"
    );
    expect(&mut client, slots.as_bytes());
}

#[test]
fn only_a_client_that_asks_for_owners_is_sent_to_others() {
    let running = Running::start(Manner::Held);
    let service = running.service();
    let mut client = running.connect();
    client
        .write_all(b"*2\r\n$3\r\nGET\r\n$4\r\nelse\r\n")
        .unwrap();
    until("it is begun", || service.release(1) == 1);
    expect(&mut client, b"$-1\r\n");
    // Whether its answer has to be waited for, and whether others are waited for before it.
    let slot = fonn_proto::placement::slot(b"else");
    for (asks, redirects) in [("READWRITE", "ToPrimary"), ("READONLY", "ToOwner")] {
        let requests = format!(
            "*1\r\n${}\r\n{asks}\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*2\r\n$3\r\nGET\r\n$4\r\nelse\r\n\
             GET else\r\n",
            asks.len()
        );
        client.write_all(requests.as_bytes()).unwrap();
        until("the first is begun", || service.release(1) == 1);
        let moved = format!("-MOVED {slot} {redirects}:7\r\n");
        expect(
            &mut client,
            format!("+OK\r\n$-1\r\n{moved}{moved}").as_bytes(),
        );
    }
    // Other dialects have no words for it.
    let mut client = running.connect();
    client.write_all(b"get else\r\n").unwrap();
    until("it is begun", || service.release(1) == 1);
    expect(&mut client, b"END\r\n");
}

#[test]
fn a_panic_ends_one_connection_and_leaves_no_trace_of_it() {
    let running = Running::start(Manner::AtOnce);
    let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (socket, peer) = Accepted::Unix(ours)
            .into_socket(&Security::default())
            .unwrap();
        running.shared.registry.pending(0);
        let registered = Registered {
            shared: Arc::clone(&running.shared),
            connection: running.shared.registry.add(socket, peer, 0),
        };
        assert_eq!(running.shared.registry.len(), 1);
        let task = std::panic::AssertUnwindSafe(move || {
            let _registered = registered;
            std::panic::resume_unwind(Box::new("a bug"));
        });
        assert!(std::panic::catch_unwind(task).is_err());
    });
    assert_eq!(running.shared.registry.len(), 0);
    assert!(running.shared.registry.list().is_empty());
    assert_eq!(running.service().counted(Event::Panicked), 1);
    assert_eq!(theirs.read(&mut [0; 1]).unwrap(), 0, "the socket is open");
}
