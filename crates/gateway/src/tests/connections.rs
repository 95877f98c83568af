//! Connections over real sockets.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fonn_auth::testing::directory;
use fonn_auth::{Authenticator, Security};
use fonn_server::{ListenAddr, Tuning};

use super::fake::{Fake, VALUE_LEN_MAX, options};
use crate::handler::Front;
use crate::life::Times;
use crate::long::LONG_LEN_MAX;
use crate::server::{Bound, Gateway};

/// No test waits longer than this for anything.
const PATIENCE: Duration = Duration::from_secs(30);

struct Site {
    store: Fake,
    front: Front<Fake>,
    gateway: Option<Gateway>,
    address: String,
}

impl Site {
    fn start(times: Times) -> Self {
        Self::with_tuning(times, Tuning::default())
    }

    fn with_tuning(times: Times, tuning: Tuning) -> Self {
        Self::of(Fake::with_tuning(tuning), times)
    }

    fn with_unread_max(bytes: usize) -> Self {
        let store = Fake::with_tuning(Tuning::default());
        store.0.unread_max.store(bytes, Ordering::SeqCst);
        Self::of(store, Times::default())
    }

    fn of(store: Fake, times: Times) -> Self {
        Self::secured(store, Security::default(), times)
    }

    fn secured(store: Fake, security: Security, times: Times) -> Self {
        let front = Front::new(store.clone(), security, options(times));
        let bound = Bound::new(&ListenAddr::Tcp("127.0.0.1:0".to_owned())).unwrap();
        let gateway = Gateway::start(&front, bound, 1).unwrap();
        let address = gateway.address().to_owned();
        Self {
            store,
            front,
            gateway: Some(gateway),
            address,
        }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Some(gateway) = self.gateway.take() {
            gateway.stop(Duration::ZERO);
            gateway.join();
        }
    }
}

/// Reads a response whose head tells its length.
fn response(stream: &mut TcpStream) -> (u16, Vec<u8>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let len = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; len.map_or(0, |len| len.parse().unwrap())];
    stream.read_exact(&mut body).unwrap();
    (status, body)
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn requests_follow_each_other_on_one_connection() {
    let site = Site::start(Times::default());
    let mut stream = site.connect();
    // Sent at once, and answered in their order.
    stream
        .write_all(
            b"PUT /a HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 5\r\n\r\nhello\
              GET /a HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n\
              PUT /b HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n\
              GET /b HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\nGET /c HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
        )
        .unwrap();
    let expected = [
        (200, &b""[..]),
        (200, b"hello"),
        (200, b""),
        (200, b"abcde"),
    ];
    for (status, body) in expected {
        assert_eq!(response(&mut stream), (status, body.to_vec()));
    }
    assert_eq!(response(&mut stream).0, 404);
}

#[test]
fn a_client_is_asked_for_its_body_only_if_the_body_will_be_read() {
    let site = Site::start(Times::default());
    let mut stream = site.connect();
    let head = |len: u64| {
        format!(
            "PUT /a HTTP/1.1\r\nhost: 127.0.0.1\r\nexpect: 100-continue\r\ncontent-length: {len}\r\n\r\n"
        )
    };
    stream.write_all(head(5).as_bytes()).unwrap();
    assert_eq!(response(&mut stream).0, 100);
    stream.write_all(b"hello").unwrap();
    assert_eq!(response(&mut stream).0, 200);
    stream.write_all(head(LONG_LEN_MAX + 1).as_bytes()).unwrap();
    assert_eq!(response(&mut stream).0, 413);
    assert_eq!(
        stream.read(&mut [0]).unwrap(),
        0,
        "nothing of the body was read"
    );
}

#[test]
fn a_client_that_sends_too_much_reads_why_it_is_refused() {
    let site = Site::start(Times::default());
    let mut stream = site.connect();
    let head = format!(
        "PUT /ac/{} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {}\r\n\r\n",
        "a".repeat(64),
        8 << 20
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&vec![7; 8 << 20]).unwrap();
    assert_eq!(response(&mut stream).0, 413);
}

#[test]
fn a_chunked_result_is_refused_when_it_grows_too_long() {
    let site = Site::start(Times::default());
    let mut stream = site.connect();
    let head = format!(
        "PUT /ac/{} HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n",
        "a".repeat(64)
    );
    stream.write_all(head.as_bytes()).unwrap();
    let chunk = [b"40000\r\n".to_vec(), vec![7; 0x40000], b"\r\n".to_vec()].concat();
    for _ in 0..5 {
        stream.write_all(&chunk).unwrap();
    }
    assert_eq!(response(&mut stream).0, 413);
    until("memory is given back", || {
        site.store.0.charged.load(Ordering::SeqCst) == 0
    });
}

#[test]
fn a_head_that_comes_byte_by_byte_is_cut_off() {
    let site = Site::start(Times {
        head_max: Duration::from_millis(300),
        ..Times::default()
    });
    let mut idle = site.connect();
    let mut slow = site.connect();
    slow.set_nodelay(true).unwrap();
    let begun = Instant::now();
    let mut sent = 0;
    // Each byte comes in time, and the head does not.
    while slow.write_all(b"G").is_ok() && sent < 10_000 {
        sent += 1;
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(begun.elapsed() >= Duration::from_millis(300) && begun.elapsed() < PATIENCE);
    // One that has sent nothing may be idle for longer.
    idle.write_all(b"GET /a HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        .unwrap();
    assert_eq!(response(&mut idle).0, 404);
    until("the place is given back", || {
        site.store.0.places.load(Ordering::SeqCst) == 1
    });
}

#[test]
fn a_body_that_comes_too_slowly_is_refused_and_its_memory_given_back() {
    let tuning = Tuning {
        rate_window: Duration::from_millis(100),
        stall_max: Duration::from_millis(500),
        ..Tuning::default()
    };
    let site = Site::with_tuning(Times::default(), tuning);
    let mut stream = site.connect();
    stream
        .write_all(b"PUT /a HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100000\r\n\r\nx")
        .unwrap();
    until("memory is charged", || {
        site.store.0.charged.load(Ordering::SeqCst) > 0
    });
    assert_eq!(response(&mut stream).0, 408);
    until("memory is given back", || {
        site.store.0.charged.load(Ordering::SeqCst) == 0
    });
}

#[test]
fn a_client_that_does_not_read_is_cut_off() {
    let site = Site::start(Times {
        stall_max: Duration::from_millis(300),
        ..Times::default()
    });
    let mut stream = site.connect();
    let value = vec![7; VALUE_LEN_MAX];
    let head = format!(
        "PUT /a HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {}\r\n\r\n",
        value.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&value).unwrap();
    assert_eq!(response(&mut stream).0, 200);
    // More than the kernel keeps for a reader.
    for _ in 0..64 {
        stream
            .write_all(b"GET /a HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            .unwrap();
    }
    until("the connection is cut", || {
        site.store.0.places.load(Ordering::SeqCst) == 0
    });
    until("its bytes are let go", || {
        site.store.0.held.load(Ordering::SeqCst) == 0
    });
}

#[test]
fn of_clients_that_do_not_read_the_one_that_stands_still_longest_is_cut_off() {
    let site = Site::start(Times::default());
    site.store
        .0
        .unread_max
        .store(VALUE_LEN_MAX, Ordering::SeqCst);
    let value = vec![7; VALUE_LEN_MAX];
    let head = format!(
        "PUT /a HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {}\r\n\r\n",
        value.len()
    );
    let mut writer = site.connect();
    writer.write_all(head.as_bytes()).unwrap();
    writer.write_all(&value).unwrap();
    assert_eq!(response(&mut writer).0, 200);
    let request = b"GET /a HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".repeat(64);
    let mut stuck = site.connect();
    stuck.write_all(&request).unwrap();
    until("a response is held", || {
        site.store.0.held.load(Ordering::SeqCst) > 0
    });
    // It stands still once the kernel's buffers are full; others are served meanwhile, and after
    // that.
    let mut reader = site.connect();
    while site.store.0.places.load(Ordering::SeqCst) == 3 {
        reader
            .write_all(b"GET /a HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            .unwrap();
        assert_eq!(response(&mut reader), (200, value.clone()));
    }
    until("one was cut", || {
        site.store.0.places.load(Ordering::SeqCst) == 2
    });
    reader
        .write_all(b"GET /a HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        .unwrap();
    assert_eq!(response(&mut reader).0, 200);
}

#[test]
fn an_idle_connection_ends_at_once_when_the_gateway_stops() {
    let mut site = Site::start(Times::default());
    let mut stream = site.connect();
    stream
        .write_all(b"GET /a HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        .unwrap();
    assert_eq!(response(&mut stream).0, 404);
    let begun = Instant::now();
    let gateway = site.gateway.take().unwrap();
    gateway.stop(PATIENCE);
    gateway.join();
    assert!(begun.elapsed() < PATIENCE);
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    assert_eq!(site.store.0.places.load(Ordering::SeqCst), 0);
}

#[test]
fn connections_beyond_the_limit_are_closed() {
    let site = Site::start(Times::default());
    let held: Vec<TcpStream> = (0..100).map(|_| site.connect()).collect();
    until("all have a place", || {
        site.store.0.places.load(Ordering::SeqCst) == 100
    });
    let mut beyond = site.connect();
    assert!(matches!(beyond.read(&mut [0]), Ok(0) | Err(_)));
    drop(held);
    until("the places are free", || {
        site.store.0.places.load(Ordering::SeqCst) == 0
    });
    let mut next = site.connect();
    next.write_all(b"GET /a HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        .unwrap();
    assert_eq!(response(&mut next).0, 404);
}

/// The preface, and settings that say nothing (RFC 9113, sections 3.4 and 6.5).
const HTTP2_BEGIN: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";

/// GET /a over http in HPACK (RFC 7541), for a host that is `127.0.0.1`.
const HTTP2_GET: &[u8] = b"\x82\x86\x04\x02/a\x01\x09127.0.0.1";

/// A PUT of the same with a `content-encoding` that is refused.
const HTTP2_PUT: &[u8] = b"\x02\x03PUT\x86\x04\x02/a\x01\x09127.0.0.1\x0f\x0b\x04gzip";

/// A frame in a stream, of a kind and with flags.
fn frame((kind, flags): (u8, u8), stream: u8, payload: &[u8]) -> Vec<u8> {
    let len = payload.len() as u8;
    [&[0, 0, len, kind, flags, 0, 0, 0, stream], payload].concat()
}

/// A frame of HEADERS in stream 1, with these flags.
fn headers(flags: u8) -> Vec<u8> {
    frame((1, flags), 1, HTTP2_GET)
}

/// Stream, kind and flags of the next frame.
fn next_frame(stream: &mut TcpStream) -> io::Result<(u8, u8, u8)> {
    let mut head = [0; 9];
    stream.read_exact(&mut head)?;
    let [high, mid, low, kind, flags, _, _, _, in_stream] = head;
    let len = u32::from_be_bytes([0, high, mid, low]);
    io::copy(&mut stream.take(len.into()), &mut io::sink())?;
    Ok((in_stream, kind, flags))
}

#[test]
fn what_follows_a_refusal_over_http2_is_taken_before_the_stream_ends() -> io::Result<()> {
    let site = Site::start(Times {
        linger: Duration::from_secs(3600),
        ..Times::default()
    });
    let mut stream = site.connect();
    stream.write_all(HTTP2_BEGIN)?;
    stream.write_all(&frame((1, 4), 1, HTTP2_PUT))?;
    stream.write_all(&frame((0, 0), 1, b"some"))?;
    // The head of the answer, and its text, which ends it.
    while next_frame(&mut stream)? != (1, 0, 1) {}
    stream.write_all(&frame((0, 1), 1, b"more"))?;
    stream.write_all(&frame((1, 5), 3, HTTP2_GET))?;
    // The answer to the next request comes, and no RST_STREAM before it.
    loop {
        match next_frame(&mut stream)? {
            (1, 3, _) => panic!("the stream was reset"),
            (3, 1, _) => return Ok(()),
            _ => {}
        }
    }
}

#[test]
fn a_connection_of_http2_without_a_whole_request_is_idle_whatever_it_sends() -> io::Result<()> {
    let idle_max = Duration::from_millis(300);
    let site = Site::start(Times {
        idle_max,
        ..Times::default()
    });
    // Nothing; a head without END_HEADERS, of which nothing more comes; a frame of data whose
    // payload comes byte by byte; and a PING of eight bytes after the other.
    let cases = [
        (Vec::new(), &b""[..]),
        (headers(0), b""),
        (b"\0\x40\0\0\0\0\0\0\x01".to_vec(), b"x"),
        (Vec::new(), HTTP2_PING),
    ];
    for (first, more) in cases {
        let begun = Instant::now();
        let mut stream = site.connect();
        stream.write_all(HTTP2_BEGIN)?;
        stream.write_all(&first)?;
        let mut writer = stream.try_clone()?;
        std::thread::scope(|scope| {
            // It fails once the connection is closed.
            scope.spawn(move || {
                while !more.is_empty() && writer.write_all(more).is_ok() {
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
            let mut rest = Vec::new();
            let ended = stream.read_to_end(&mut rest);
            let is_in_vain = |it: io::Error| it.kind() == io::ErrorKind::WouldBlock;
            assert!(!ended.is_err_and(is_in_vain), "the connection is not cut");
        });
        assert!(begun.elapsed() >= idle_max, "{:?}", begun.elapsed());
    }
    until("the places are given back", || {
        site.store.0.places.load(Ordering::SeqCst) == 0
    });
    Ok(())
}

/// PING (RFC 9113, section 6.7).
const HTTP2_PING: &[u8] = b"\0\0\x08\x06\0\0\0\0\0eight by";

/// Whether the gateway ends a connection that sends all this, although time does not end it.
fn ends_at(security: Security, sent: Vec<u8>) -> io::Result<bool> {
    let long = Duration::from_secs(3600);
    let times = Times {
        head_max: long,
        idle_max: long,
        ..Times::default()
    };
    let site = Site::secured(Fake::with_tuning(Tuning::default()), security, times);
    let mut stream = site.connect();
    let mut writer = stream.try_clone()?;
    std::thread::scope(|scope| {
        // It fails once the connection is closed.
        scope.spawn(move || writer.write_all(&sent));
        let ended = stream.read_to_end(&mut Vec::new());
        let is_over = !ended.is_err_and(|it| it.kind() == io::ErrorKind::WouldBlock);
        if !is_over {
            stream.shutdown(std::net::Shutdown::Both)?;
        }
        if is_over {
            let stalled = &site.front.figures().stalled;
            until("it is counted", || stalled.load(Ordering::Relaxed) == 1);
        }
        Ok(is_over)
    })
}

fn guarded() -> io::Result<Security> {
    let users = Authenticator::new(directory(&[("ci", "read")]))?;
    Ok(Security {
        users: Some(Arc::new(users)),
        ..Security::default()
    })
}

#[test]
fn a_connection_of_http2_that_sends_frames_without_end_is_cut_off() -> io::Result<()> {
    let sent = [HTTP2_BEGIN, &HTTP2_PING.repeat(20_000)].concat();
    assert!(ends_at(guarded()?, sent.clone())?);
    assert!(ends_at(Security::default(), sent)?);
    Ok(())
}

#[test]
fn a_connection_whose_requests_are_all_refused_is_cut_off() -> io::Result<()> {
    let request = b"GET /a HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n";
    assert!(ends_at(guarded()?, request.repeat(1000))?);
    Ok(())
}

#[test]
fn a_client_of_http2_that_widens_no_window_is_cut_off() -> io::Result<()> {
    let stall_max = Duration::from_millis(300);
    let site = Site::start(Times {
        stall_max,
        ..Times::default()
    });
    let mut writer = site.connect();
    let head = b"PUT /a HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100000\r\n\r\n";
    writer.write_all(head)?;
    writer.write_all(&[7; 100_000])?;
    assert_eq!(response(&mut writer).0, 200);
    let begun = Instant::now();
    let mut stream = site.connect();
    stream.write_all(HTTP2_BEGIN)?;
    // END_STREAM and END_HEADERS.
    stream.write_all(&headers(5))?;
    let mut read = Vec::new();
    let _ = stream.read_to_end(&mut read);
    assert!(begun.elapsed() >= stall_max && begun.elapsed() < PATIENCE);
    // The window of the client, and the heads of frames.
    assert!((0xffff..90_000).contains(&read.len()), "{}", read.len());
    until("its bytes are let go", || {
        site.store.0.held.load(Ordering::SeqCst) == 0
    });
    Ok(())
}

/// What a client of HTTP/2 may send in one request before it is asked to.
fn window(site: &Site) -> io::Result<(u32, TcpStream)> {
    let mut stream = site.connect();
    stream.write_all(HTTP2_BEGIN)?;
    let mut head = [0; 9];
    stream.read_exact(&mut head)?;
    assert_eq!(head[3], 4, "the first frame has settings");
    let mut settings = vec![0; usize::from(head[2])];
    stream.read_exact(&mut settings)?;
    let window = settings.chunks_exact(6).find(|it| it[..2] == [0, 4]);
    let window: [u8; 4] = window.unwrap()[2..].try_into().unwrap();
    Ok((u32::from_be_bytes(window), stream))
}

#[test]
fn as_many_connections_have_wide_windows_as_a_part_of_the_memory_bears() -> io::Result<()> {
    let site = Site::with_unread_max(4 << 20);
    let (first, second) = (window(&site)?, window(&site)?);
    assert_eq!((first.0, second.0), (1 << 20, 1 << 20));
    let (narrow, _third) = window(&site)?;
    assert_eq!(narrow, 256 << 10);
    // A place is free again when its connection has gone.
    drop(first);
    until("a place is free", || {
        window(&site).is_ok_and(|it| it.0 == 1 << 20)
    });
    Ok(())
}
