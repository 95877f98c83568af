//! Clients that stop in the middle of something, or send without an end: each is cut off in time,
//! holds little memory meanwhile, and keeps no other client waiting.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;

use fonn_reapi::Method;
use fonn_tests::certificates::Certified;
use fonn_tests::client::{HttpClient, write_messages};
use fonn_tests::node::{FonnNode, NodeOptions};
use fonn_tests::spilled::{metric, wait_until};
use fonn_tests::usage::{rss_bytes, rss_peak_bytes};

use super::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, FRAME_LEN_MAX, Frames, HEADERS, NONE, PREFACE,
    RST_STREAM, request,
};
use super::guarded::Guarded;

/// A busy machine needs its time.
const LIMIT: Duration = Duration::from_secs(120);

/// The limit of a head, of a TLS handshake, and of the window in which a body has to make progress.
const HEAD_MAX: Duration = Duration::from_secs(10);

/// The limit of a client that stops in the middle of a body or of a response.
const STALL_MAX: Duration = Duration::from_secs(60);

/// Clocks of two processes are not read at one moment.
const SLACK: Duration = Duration::from_secs(1);

/// Between two bytes of a client that sends a byte at a time.
const PACE: Duration = Duration::from_millis(50);

const CONNECTIONS: &str = "fonn_http_connections";
const STALLED: &str = "fonn_http_connections_stalled_total";

/// `ci:correct-horse` as HTTP Basic has it.
const CI: (&str, &str) = ("authorization", "Basic Y2k6Y29ycmVjdC1ob3JzZQ==");

fn open_node() -> Result<FonnNode> {
    NodeOptions::new().in_memory().with_http().start()
}

/// The beginning of a `ClientHello` of 512 bytes in one record (RFC 8446, section 4.1.2).
const PART_OF_HELLO: &[u8] = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x01\x02\x03";

/// The ways to begin, with what is sent. No client says more than that.
fn beginnings(addr: SocketAddr) -> [(&'static str, Vec<u8>); 5] {
    let settings = [PREFACE, b"\0\0\0\x04\0\0\0\0\0"].concat();
    let fields = request(addr, "GET", "/a", &[]);
    let len = u8::try_from(fields.len()).unwrap_or(u8::MAX);
    // Neither END_HEADERS nor END_STREAM.
    let head = [&[0, 0, len, HEADERS, NONE, 0, 0, 0, 1][..], &fields].concat();
    [
        ("nothing", Vec::new()),
        ("a part of a ClientHello", PART_OF_HELLO.to_vec()),
        ("the preface of HTTP/2", PREFACE.to_vec()),
        ("the settings of HTTP/2", settings.clone()),
        ("HEADERS without END_HEADERS", [settings, head].concat()),
    ]
}

#[test]
fn a_client_that_stops_before_its_first_request_is_cut_off_after_ten_seconds() -> Result<()> {
    const EACH: usize = 16;
    let certified = Certified::new()?;
    let options = NodeOptions::new()
        .in_memory()
        .flag("--tls-cert", certified.file("cert"))
        .flag("--tls-key", certified.file("key"));
    let guarded = Guarded::start(options)?;
    let node = &guarded.node;
    let mut honest = HttpClient::connect(node.http())?;
    let mut is_served = || -> Result<()> {
        let answer = honest.request("GET", "/a", &[CI], b"")?;
        ensure!(answer.status == 404, "{answer:?}");
        Ok(())
    };
    is_served()?;
    let (begun, before) = (Instant::now(), rss_bytes(node.pid()?)?);
    let mut stuck = Vec::new();
    for (what, bytes) in beginnings(node.http()) {
        for _ in 0..EACH {
            let mut stream = TcpStream::connect(node.http())?;
            stream.set_read_timeout(Some(LIMIT))?;
            stream.write_all(&bytes)?;
            stuck.push((what, stream));
        }
    }
    let all = stuck.len() as f64;
    wait_until("all are cut off", LIMIT, || {
        is_served()?;
        let grown = rss_bytes(node.pid()?)?.saturating_sub(before);
        ensure!(grown < 32 << 20, "grown by {grown} bytes");
        let accepted = metric(node, "fonn_http_connections_total")?;
        Ok(accepted == all + 1.0 && metric(node, CONNECTIONS)? == 1.0)
    })?;
    ensure!(begun.elapsed() >= HEAD_MAX, "{:?}", begun.elapsed());
    for (what, mut stream) in stuck {
        let mut rest = Vec::new();
        let ended = stream.read_to_end(&mut rest);
        let is_reset = |it: &std::io::Error| it.kind() == ErrorKind::ConnectionReset;
        let is_over = ended.as_ref().err().is_none_or(is_reset);
        ensure!(is_over, "{what}: {ended:?}");
    }
    let stalled = metric(node, STALLED)?;
    ensure!(stalled == all, "{stalled} of {all} are counted");
    is_served()
}

/// The server keeps a list of headers of 128 KiB, and some frames that add nothing.
#[test]
fn endless_continuation_frames_end_the_connection_at_once() -> Result<()> {
    let node = open_node()?;
    let mut other = HttpClient::connect(node.http())?;
    for (what, len) in [("long", FRAME_LEN_MAX), ("of one byte", 1), ("empty", 0)] {
        let mut frames = Frames::connect(node.http())?;
        let before = rss_peak_bytes(node.pid()?)?;
        let first = request(node.http(), "GET", "/a", &[]);
        frames.send(HEADERS, NONE, 1, &first)?;
        // A field whose value takes more bytes than ever come: 2^28 and some.
        let mut piece = vec![b'a'; len];
        let field = [0, 1, b'x', 0x7f, 0xff, 0xff, 0xff, 0x7f];
        frames.send(CONTINUATION, NONE, 1, &field)?;
        let begun = Instant::now();
        let mut sent = 0_u64;
        while frames.send(CONTINUATION, NONE, 1, &piece).is_ok() {
            sent += 1;
            piece.fill(b'b');
            ensure!(begun.elapsed() < LIMIT, "{what}: {sent} frames were taken");
        }
        ensure!(other.get("/a")?.is_none());
        let grown = rss_peak_bytes(node.pid()?)?.saturating_sub(before);
        ensure!(grown < 16 << 20, "{what}: grown by {grown} bytes");
    }
    Ok(())
}

/// Such a stream is closed before the server has begun its request.
#[test]
fn streams_that_are_reset_at_once_hold_no_memory_and_keep_no_client_out() -> Result<()> {
    const STREAMS: u32 = 20_000;
    const CANCEL: [u8; 4] = [0, 0, 0, 8];
    let node = open_node()?;
    let mut other = HttpClient::connect(node.http())?;
    ensure!(other.put("/a", &vec![7; 1 << 20])? == 200);
    let before = rss_peak_bytes(node.pid()?)?;
    let fields = request(node.http(), "GET", "/a", &[]);
    for _ in 0..4 {
        let mut frames = Frames::connect(node.http())?;
        for number in 0..STREAMS {
            let stream = 2 * number + 1;
            let begun = frames.send(HEADERS, END_HEADERS | END_STREAM, stream, &fields);
            // The server may close the connection for it.
            if begun.is_err() || frames.send(RST_STREAM, NONE, stream, &CANCEL).is_err() {
                break;
            }
        }
        ensure!(other.get("/a")?.is_some_and(|it| it.len() == 1 << 20));
    }
    let grown = rss_peak_bytes(node.pid()?)?.saturating_sub(before);
    ensure!(grown < 32 << 20, "grown by {grown} bytes");
    wait_until("no stream is left", LIMIT, || {
        Ok(metric(&node, CONNECTIONS)? == 1.0)
    })
}

/// How a body of one byte at a time ended.
#[derive(Debug)]
struct Dripped {
    took: Duration,
    /// What was replied, of HTTP/1.1 alone.
    reply: String,
}

fn drip_http1(addr: SocketAddr, path: &str) -> Result<Dripped> {
    let mut stream = TcpStream::connect(addr)?;
    stream.set_nodelay(true)?;
    let head = format!("PUT {path} HTTP/1.1\r\nhost: {addr}\r\ncontent-length: 8000000\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    stream.set_read_timeout(Some(PACE))?;
    let (begun, mut reply) = (Instant::now(), [0; 4096]);
    loop {
        ensure!(begun.elapsed() < LIMIT, "{path} is still awaited");
        stream.write_all(b"x").context("a byte of HTTP/1.1")?;
        // The wait for a reply is the pace.
        match stream.read(&mut reply) {
            Ok(count) => {
                return Ok(Dripped {
                    took: begun.elapsed(),
                    reply: String::from_utf8_lossy(&reply[..count]).into_owned(),
                });
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The same in a stream of HTTP/2, whose connection is good for another request then. `first` comes
/// before the bytes.
fn drip_http2(addr: SocketAddr, fields: &[u8], first: &[u8]) -> Result<Dripped> {
    let mut frames = Frames::connect(addr)?;
    frames.send(HEADERS, END_HEADERS, 1, fields)?;
    for part in first.chunks(FRAME_LEN_MAX) {
        frames.send(DATA, NONE, 1, part)?;
    }
    let begun = Instant::now();
    while !frames.arrived()?.iter().any(|it| it.kind == HEADERS) {
        ensure!(begun.elapsed() < LIMIT, "the body is still awaited");
        let sent = frames.send(DATA, NONE, 1, b"x");
        sent.context("a byte of HTTP/2")?;
        std::thread::sleep(PACE);
    }
    let took = begun.elapsed();
    let fields = request(addr, "GET", "/a", &[]);
    frames
        .send(HEADERS, END_HEADERS | END_STREAM, 3, &fields)
        .context("the next request")?;
    frames.next_of(HEADERS, 3).context("the next response")?;
    Ok(Dripped {
        took,
        reply: String::new(),
    })
}

/// The least rate is 16 KiB/s, and it is measured over ten seconds.
#[test]
fn a_body_that_drips_is_refused_after_ten_seconds_in_each_protocol() -> Result<()> {
    const EACH: usize = 8;
    let options = NodeOptions::new().in_memory().with_http();
    // Less than what the bodies announce.
    let node = options.flag("--ram-budget", "64m").start()?;
    let addr = node.http();
    let mut other = HttpClient::connect(addr)?;
    ensure!(other.put("/b", b"hello")? == 200);
    let before = rss_bytes(node.pid()?)?;
    let put = |addr| request(addr, "PUT", "/a", &[("content-length", "8000000")]);
    let grpc = [("content-type", "application/grpc"), ("te", "trailers")];
    let resource = format!("uploads/u/blobs/{}/8000000", "0f".repeat(32));
    // The first message of an upload, and a head that tells of a long one.
    let opening = [
        &write_messages(&resource, &Bytes::from(vec![7; 20_000]))[0][..],
        &[0, 0, 0, 0x3f, 0xff, 0x52, 0xfc, 0x7f],
    ];
    let opening = opening.concat();
    let dripped = std::thread::scope(|scope| {
        let mut drips = Vec::new();
        for _ in 0..EACH {
            drips.push(scope.spawn(|| drip_http1(addr, "/a")));
            drips.push(scope.spawn(|| drip_http2(addr, &put(addr), b"")));
            let call = request(addr, "POST", Method::Write.path(), &grpc);
            let opening = &opening;
            drips.push(scope.spawn(move || drip_http2(addr, &call, opening)));
        }
        while drips.iter().any(|it| !it.is_finished()) {
            let begun = Instant::now();
            ensure!(other.get("/b")?.as_deref() == Some(&b"hello"[..]));
            ensure!(begun.elapsed() < HEAD_MAX, "{:?}", begun.elapsed());
            let grown = rss_bytes(node.pid()?)?.saturating_sub(before);
            ensure!(grown < 32 << 20, "grown by {grown} bytes");
            std::thread::sleep(PACE);
        }
        let joined = drips.into_iter().map(|it| it.join().unwrap());
        joined.collect::<Result<Vec<_>>>()
    })?;
    for it in &dripped {
        let (took, reply) = (it.took, &it.reply);
        ensure!(took >= HEAD_MAX - SLACK && took < STALL_MAX, "{took:?}");
        ensure!(
            reply.is_empty() || reply.starts_with("HTTP/1.1 408 "),
            "{reply}"
        );
    }
    let refused = "fonn_http_requests_total{dialect=\"generic\",status=\"408\"}";
    let refused = metric(&node, refused)?;
    ensure!(refused == 2.0 * EACH as f64, "{refused}");
    let late = "fonn_reapi_requests_total{method=\"Write\",code=\"DEADLINE_EXCEEDED\"}";
    let late = metric(&node, late)?;
    ensure!(late == EACH as f64, "{late}");
    Ok(())
}

/// A GET over HTTP/2 whose client never widens the window of 65,535 bytes.
fn stuck_http2(addr: SocketAddr, streams: u32) -> Result<Frames> {
    let mut frames = Frames::connect(addr)?;
    let fields = request(addr, "GET", "/large", &[]);
    for number in 0..streams {
        let stream = 2 * number + 1;
        frames.send(HEADERS, END_HEADERS | END_STREAM, stream, &fields)?;
    }
    Ok(frames)
}

#[test]
fn a_client_that_stops_reading_is_cut_off_after_a_minute_in_each_version() -> Result<()> {
    let options = NodeOptions::new().in_memory().with_http();
    let node = options.flag("--max-value", "64m").start()?;
    let value = vec![7; 32 << 20];
    let mut other = HttpClient::connect(node.http())?;
    ensure!(other.put("/large", &value)? == 200);
    let before = rss_bytes(node.pid()?)?;
    let begun = Instant::now();
    let mut http2 = stuck_http2(node.http(), 2)?;
    let first = http2.next_of(DATA, 1)?;
    ensure!(!first.payload.is_empty());
    // More than the kernel keeps for a reader.
    let mut http1 = HttpClient::connect(node.http())?;
    for _ in 0..4 {
        http1.send_head("GET", "/large", &[])?;
    }
    let is_over = |node: &FonnNode| -> Result<bool> { Ok(metric(node, CONNECTIONS)? == 1.0) };
    wait_until("both are cut off", LIMIT, || {
        ensure!(other.request("HEAD", "/large", &[], b"")?.status == 200);
        let grown = rss_bytes(node.pid()?)?.saturating_sub(before);
        ensure!(grown < 16 << 20, "grown by {grown} bytes");
        is_over(&node)
    })?;
    let took = begun.elapsed();
    ensure!(took >= STALL_MAX - SLACK, "cut off after {took:?}");
    let rest = http2.rest()?;
    let sent: usize = rest.iter().map(|it| it.payload.len()).sum();
    ensure!(sent < 128 << 10, "{sent} bytes were sent beyond the window");
    ensure!(metric(&node, STALLED)? == 2.0);
    ensure!(other.get("/large")?.as_ref() == Some(&value));
    Ok(())
}

/// Clients that leave 8 values of 8 MiB unread each hold a part of the memory, and give way to one
/// that reads. `stick` connects such a client, and `go_on` is what it does meanwhile.
fn assert_give_way<T>(
    stick: impl Fn(SocketAddr) -> Result<T>,
    mut go_on: impl FnMut(SocketAddr, &mut T),
) -> Result<()> {
    let options = NodeOptions::new().in_memory().with_http();
    let node = options.flag("--ram-budget", "128m").start()?;
    let value = vec![7; 8 << 20];
    let mut http = HttpClient::connect(node.http())?;
    ensure!(http.put("/large", &value)? == 200);
    let before = rss_bytes(node.pid()?)?;
    let stuck = (0..8).map(|_| stick(node.http()));
    let mut stuck = stuck.collect::<Result<Vec<_>>>()?;
    // A miss, while they take all of that part; each gives way after a second.
    let begun = Instant::now();
    while http.get("/large")?.as_ref() != Some(&value) {
        ensure!(begun.elapsed() < LIMIT, "nothing gives way");
        stuck.iter_mut().for_each(|it| go_on(node.http(), it));
    }
    let grown = rss_bytes(node.pid()?)?.saturating_sub(before);
    ensure!(grown < 96 << 20, "grown by {grown} bytes");
    ensure!(node.text()?.command("version")?.starts_with("VERSION"));
    Ok(())
}

#[test]
fn clients_of_http1_that_do_not_read_give_way_to_others() -> Result<()> {
    let stick = |addr| {
        let mut client = HttpClient::connect(addr)?;
        for _ in 0..4 {
            client.send_head("GET", "/large", &[])?;
        }
        Ok(client)
    };
    assert_give_way(stick, |_, _| {})
}

/// A stuck stream whose connection makes progress in others has no time of its own.
#[test]
fn streams_that_do_not_read_give_way_to_others_also_on_a_busy_connection() -> Result<()> {
    let stick = |addr| Ok((stuck_http2(addr, 4)?, 101));
    assert_give_way(stick, |addr, (frames, stream)| {
        let small = request(addr, "GET", "/small", &[]);
        // Those that were cut off fail.
        let _ = frames.send(HEADERS, END_HEADERS | END_STREAM, *stream, &small);
        *stream += 2;
    })
}

/// Load balancers need no login for it, so each of these calls is begun.
#[test]
fn health_checks_that_are_never_complete_buy_a_stranger_no_time() -> Result<()> {
    let guarded = Guarded::start(NodeOptions::new().in_memory())?;
    let addr = guarded.node.http();
    let grpc = [("content-type", "application/grpc"), ("te", "trailers")];
    let call = request(addr, "POST", Method::HealthCheck.path(), &grpc);
    let (mut frames, begun) = (Frames::connect(addr)?, Instant::now());
    let mut stream = 1;
    // Each has two seconds, so some are always under way.
    while frames.send(HEADERS, END_HEADERS, stream, &call).is_ok() && frames.arrived().is_ok() {
        ensure!(begun.elapsed() < LIMIT, "the connection is not cut");
        stream += 2;
        std::thread::sleep(Duration::from_millis(500));
    }
    let took = begun.elapsed();
    ensure!(took >= HEAD_MAX - SLACK && took < STALL_MAX, "{took:?}");
    ensure!(stream > 10, "only {stream} calls were begun");
    Ok(())
}
