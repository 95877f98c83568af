//! The server from outside: real sockets, an engine in memory.

mod abuse;
mod access;
mod cluster;
mod dialects;
mod encrypted;
mod ending;
mod expiry;
mod overlays;
mod peers;
mod transactions;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fonn_auth::Security;
use fonn_base::clock::Clock;
use fonn_base::entry::Space;
use fonn_disk_tier::{DiskOptions, Durability};
use fonn_ram_tier::{LruMode, RamOptions};
use fonn_server::{ListenAddr, Listener, Tuning};

use super::{Identity, Server, Shared, Tiers};
use crate::engine::{Engine, EngineOptions, Settings};
use crate::stats::Counter;
use fonn_membership::view::Views;

/// No test waits longer than this for anything.
const PATIENCE: Duration = Duration::from_secs(30);

const VALUE_LEN_MAX: usize = 2 * 1024 * 1024;

struct Options {
    tuning: Tuning,
    ram_budget: usize,
    connections_max: usize,
    security: Security,
    disk: Option<DiskOptions>,
    views: Option<Arc<Views>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            tuning: Tuning::default(),
            ram_budget: 64 << 20,
            connections_max: 1000,
            security: Security::default(),
            disk: None,
            views: None,
        }
    }
}

/// A server with one reactor.
struct Node {
    shared: Arc<Shared>,
    server: Option<Server>,
    addr: SocketAddr,
}

impl Node {
    fn start(options: Options) -> Self {
        let engine = Engine::open(EngineOptions {
            settings: Settings {
                value_len_max: VALUE_LEN_MAX,
                durability: Durability::Batched,
            },
            ram: RamOptions {
                budget_bytes: options.ram_budget,
                lru: LruMode::Approximate,
                hash_seed: 1,
            },
            disk: options.disk,
            cold: None,
            ram_codec: (fonn_disk_tier::levels::CodecChoice::none(), 256),
            clock: Clock::system(),
        })
        .unwrap();
        let shared = Shared::with_tuning(
            Arc::new(Tiers {
                engine,
                replication: None,
                views: options.views,
                identity: Identity::default(),
                live: None,
                users: None,
            }),
            Vec::new(),
            options.connections_max,
            options.tuning,
            options.security,
        );
        let listener = Listener::bind(&ListenAddr::Tcp("127.0.0.1:0".to_owned())).unwrap();
        let addr = listener.local_name().parse().unwrap();
        let server = Server::start(Arc::clone(&shared), vec![listener], 1).unwrap();
        Self {
            shared,
            server: Some(server),
            addr,
        }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.addr).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// A client at another address of this machine.
    fn connect_from(&self, address: [u8; 4]) -> TcpStream {
        use socket2::{Domain, Socket, Type};
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((address, 0)).into()).unwrap();
        socket.connect(&self.addr.into()).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.into()
    }

    /// A client whose kernel takes little of what it does not read.
    fn connect_with_a_small_window(&self) -> TcpStream {
        use socket2::{Domain, Socket, Type};
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket.connect(&self.addr.into()).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.into()
    }

    fn count(&self, counter: Counter) -> u64 {
        self.shared.service.engine.stats().total(counter)
    }

    /// Ends the server and returns how long that took.
    fn drain(&mut self, deadline: Duration) -> Duration {
        let start = Instant::now();
        if let Some(server) = self.server.take() {
            server.drain(deadline);
        }
        start.elapsed()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.drain(Duration::ZERO);
    }
}

/// Waits until something that another thread does has happened.
#[track_caller]
fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[track_caller]
fn expect(stream: &mut TcpStream, reply: &[u8]) {
    let mut got = vec![0; reply.len()];
    let mut len = 0;
    while len < got.len() {
        match stream.read(&mut got[len..]) {
            Ok(0) => break,
            Ok(count) => len += count,
            Err(error) => panic!("{error} behind {:?}", got[..len].escape_ascii().to_string()),
        }
    }
    let shown = |bytes: &[u8]| bytes[..bytes.len().min(300)].escape_ascii().to_string();
    assert!(
        got[..len] == *reply,
        "got {}, expected {}",
        shown(&got[..len]),
        shown(reply)
    );
}

#[track_caller]
fn exchange(stream: &mut TcpStream, request: &[u8], reply: &[u8]) {
    stream.write_all(request).unwrap();
    expect(stream, reply);
}

/// Asserts that the server closed the connection, without a reset.
#[track_caller]
fn expect_end(stream: &mut TcpStream) {
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0, "more came");
}

/// A RESP array.
fn resp(args: &[&[u8]]) -> Vec<u8> {
    let mut request = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        request.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        request.extend_from_slice(arg);
        request.extend_from_slice(b"\r\n");
    }
    request
}

fn text_set(key: &str, value: &[u8]) -> Vec<u8> {
    let mut request = format!("set {key} 0 0 {}\r\n", value.len()).into_bytes();
    request.extend_from_slice(value);
    request.extend_from_slice(b"\r\n");
    request
}

/// A binary request; sets have 8 bytes of extras.
fn binary(opcode: u8, opaque: u32, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
    let body_len = (extras.len() + key.len() + value.len()) as u32;
    let mut packet = vec![0x80, opcode];
    packet.extend_from_slice(&(key.len() as u16).to_be_bytes());
    packet.extend_from_slice(&[extras.len() as u8, 0, 0, 0]);
    packet.extend_from_slice(&body_len.to_be_bytes());
    packet.extend_from_slice(&opaque.to_be_bytes());
    packet.extend_from_slice(&[0; 8]);
    [&packet, extras, key, value].concat()
}

/// Reads a binary reply: status, opaque, body.
#[track_caller]
fn binary_reply(stream: &mut TcpStream) -> (u16, u32, Vec<u8>) {
    let mut header = [0; 24];
    stream.read_exact(&mut header).unwrap();
    assert_eq!(header[0], 0x81);
    let mut body = vec![0; u32::from_be_bytes(header[8..12].try_into().unwrap()) as usize];
    stream.read_exact(&mut body).unwrap();
    let status = u16::from_be_bytes(header[6..8].try_into().unwrap());
    let opaque = u32::from_be_bytes(header[12..16].try_into().unwrap());
    (status, opaque, body)
}
