//! Connections of clients that have not logged in: they hold little, and not for long.

use fonn_auth::Authenticator;
use fonn_auth::testing::{PASSWORD, directory};

use super::*;

/// Time to log in: enough for a client that does so, on a machine that is busy.
const STARTUP_MAX: Duration = Duration::from_secs(3);

fn guarded(startup_max: Duration) -> (Running, Arc<Authenticator>) {
    guarded_by(Tuning {
        startup_max,
        ..Tuning::default()
    })
}

fn guarded_by(tuning: Tuning) -> (Running, Arc<Authenticator>) {
    let users = Authenticator::new(directory(&[("ci", "read-write"), ("dev", "read")]));
    let users = Arc::new(users.unwrap());
    let security = Security {
        users: Some(Arc::clone(&users)),
        ..Security::default()
    };
    let tuning = Tuning {
        memory_wait: Duration::from_millis(50),
        ..tuning
    };
    (Running::tuned(Manner::AtOnce, security, tuning), users)
}

fn log_in(stream: &mut TcpStream, user: &str, password: &[u8]) {
    let head = format!(
        "*3\r\n$4\r\nAUTH\r\n${}\r\n{user}\r\n${}\r\n",
        user.len(),
        password.len()
    );
    let request = [head.as_bytes(), password, b"\r\n"].concat();
    stream.write_all(&request).unwrap();
}

/// All that the server still says.
#[track_caller]
fn the_rest(stream: &mut TcpStream) -> String {
    let mut rest = Vec::new();
    // It may be reset for what was not read.
    let _ = stream.read_to_end(&mut rest);
    rest.escape_ascii().to_string()
}

#[test]
fn a_client_that_does_not_log_in_in_time_is_cut_off_and_others_stay() {
    let (running, _) = guarded(STARTUP_MAX);
    let mut known = running.connect();
    log_in(&mut known, "ci", PASSWORD);
    expect(&mut known, b"+OK\r\n");
    let starts: [&[u8]; 6] = [
        b"",
        b"g",
        b"set k 0 0 2000\r\nabc",
        b"*3\r\n$4\r\nAUTH\r\n",
        b"get k\r\n",
        b"\x80",
    ];
    let mut strangers = starts.map(|start| {
        let mut client = running.connect();
        client.write_all(start).unwrap();
        client
    });
    // One that never stops sending is cut off too.
    let mut restless = running.connect();
    let sender = std::thread::spawn(move || {
        let begun = Instant::now();
        while restless.write_all(b"version\r\n").is_ok() {
            assert!(begun.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    for (client, start) in strangers.iter_mut().zip(starts) {
        let said = the_rest(client);
        let expected = match start {
            b"get k\r\n" => "CLIENT_ERROR unauthenticated\\r\\n",
            _ => "",
        };
        assert_eq!(said, expected, "{}", start.escape_ascii());
    }
    sender.join().unwrap();
    assert_eq!(running.service().counted(Event::Stalled), 7);
    known.write_all(b"PING\r\n").unwrap();
    expect(&mut known, b"+PONG\r\n");
}

#[test]
fn the_time_that_a_password_is_checked_does_not_count() {
    let (running, users) = guarded(STARTUP_MAX);
    let busy = users.occupy();
    let mut right = running.connect();
    log_in(&mut right, "ci", PASSWORD);
    until("the login has come", || users.waiting() == 1);
    std::thread::sleep(STARTUP_MAX + Duration::from_secs(1));
    drop(busy);
    expect(&mut right, b"+OK\r\n");
    right.write_all(b"PING\r\n").unwrap();
    expect(&mut right, b"+PONG\r\n");
}

#[test]
fn a_client_whose_login_fails_behind_the_deadline_is_told_and_cut_off() {
    // While the answer is delayed, the server looks at the deadline several times.
    let (running, users) = guarded_by(Tuning {
        startup_max: STARTUP_MAX,
        stranger_delay: Duration::from_secs(2),
        ..Tuning::default()
    });
    let busy = users.occupy();
    let mut wrong = running.connect();
    log_in(&mut wrong, "ci", b"wrong");
    until("the login has come", || users.waiting() == 1);
    std::thread::sleep(STARTUP_MAX + Duration::from_secs(1));
    drop(busy);
    let said = the_rest(&mut wrong);
    assert!(said.starts_with("-WRONGPASS"), "{said}");
}

#[test]
fn before_the_login_nothing_is_reserved_and_large_requests_end_the_connection() {
    let (running, _) = guarded(PATIENCE);
    let reserved = || running.shared().reserved_bytes();
    let set = [&[0x80, 1, 0, 1, 8, 0, 0, 0, 0x0a, 0, 0, 9][..], &[0; 12]].concat();
    for (request, said) in [
        (
            &b"set k 0 0 178956400\r\n"[..],
            "CLIENT_ERROR unauthenticated\\r\\n",
        ),
        (&set, "\\x81\\x01\\x00\\x00\\x00\\x00\\x00 "),
        (
            b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$178956400\r\n",
            "-ERR Protocol error: unauthenticated bulk length\\r\\n",
        ),
        (
            b"*1000000\r\n$3\r\nDEL\r\n",
            "-ERR Protocol error: unauthenticated multibulk length\\r\\n",
        ),
    ] {
        let mut client = running.connect();
        client.write_all(request).unwrap();
        let told = the_rest(&mut client);
        assert!(told.starts_with(said), "{told}");
        assert_eq!(reserved(), 0);
    }
    // What fits is waited for, and nothing is reserved for it meanwhile.
    let mut client = running.connect();
    let part = b"*2\r\n$4\r\nAUTH\r\n$9000\r\nabc";
    let before = running.service().counted(Event::BytesRead);
    client.write_all(part).unwrap();
    until("it has come", || {
        running.service().counted(Event::BytesRead) == before + part.len() as u64
    });
    assert_eq!(reserved(), 0);
    // Behind the login the same requests are executed.
    let mut known = running.connect();
    log_in(&mut known, "ci", PASSWORD);
    expect(&mut known, b"+OK\r\n");
    let value = vec![b'v'; 1 << 20];
    let set = [
        &b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1048576\r\n"[..],
        &value,
        b"\r\n",
    ]
    .concat();
    // In one write with the login of a connection, too.
    known.write_all(&set).unwrap();
    expect(&mut known, b"+OK\r\n");
    let mut both = running.connect();
    log_in(&mut both, "ci", PASSWORD);
    both.write_all(&set).unwrap();
    expect(&mut both, b"+OK\r\n+OK\r\n");
}

#[test]
fn one_source_that_opens_many_connections_keeps_none_of_its_clients_out() {
    let (running, _) = guarded(PATIENCE);
    let mut idle: Vec<TcpStream> = (0..600).map(|_| running.connect()).collect();
    until("the first ones gave way", || {
        running.service().counted(Event::Rejected) == 600 - 512
    });
    let mut known = running.connect();
    log_in(&mut known, "ci", PASSWORD);
    expect(&mut known, b"+OK\r\n");
    assert_eq!(the_rest(&mut idle[0]), "");
    // The newest ones are still there.
    let newest = idle.last_mut().unwrap();
    newest.write_all(b"version\r\n").unwrap();
    expect(newest, b"VERSION");
}

/// The delay and the bound of a source make a rate: a source cannot have more answers than that
/// without a login.
#[test]
fn a_source_gets_few_answers_a_second_before_its_login() {
    const REQUESTS: u32 = 5;
    let delay = Tuning::default().stranger_delay;
    assert!(delay * 10 >= Duration::from_secs(1), "{delay:?}");
    let (running, _) = guarded(PATIENCE);
    let mut stranger = running.connect();
    let begun = Instant::now();
    stranger
        .write_all(&b"PING\r\n".repeat(REQUESTS as usize))
        .unwrap();
    expect(&mut stranger, &b"+PONG\r\n".repeat(REQUESTS as usize));
    assert!(begun.elapsed() >= delay * REQUESTS);
}

/// What a stranger has asked for is not held until the delays of all its requests are over.
#[test]
fn answers_before_the_login_are_sent_one_by_one() {
    let (running, _) = guarded_by(Tuning {
        startup_max: PATIENCE,
        stranger_delay: Duration::from_secs(2),
        ..Tuning::default()
    });
    let mut stranger = running.connect();
    stranger.write_all(&b"PING\r\n".repeat(3)).unwrap();
    expect(&mut stranger, b"+PONG\r\n");
    // Sent together with it, the others would be there.
    stranger.set_nonblocking(true).unwrap();
    let others = stranger.read(&mut [0]).unwrap_err();
    assert_eq!(others.kind(), std::io::ErrorKind::WouldBlock);
}

/// A connection whose answer is delayed is counted, so it gives way to newer ones of its source.
#[test]
fn a_stranger_that_is_delayed_gives_way_like_one_that_is_silent() {
    const COUNT: usize = 560;
    let users = Authenticator::new(directory(&[("ci", "read-write")]));
    let security = Security {
        users: Some(Arc::new(users.unwrap())),
        ..Security::default()
    };
    let tuning = Tuning {
        startup_max: PATIENCE,
        ..Tuning::default()
    };
    let running = Running::tuned(Manner::AtOnce, security, tuning);
    // They send many requests, of which each is delayed.
    let mut strangers = Vec::new();
    for _ in 0..COUNT {
        let mut stranger = running.connect();
        stranger.write_all(&b"PING\r\n".repeat(1000)).unwrap();
        strangers.push(stranger);
    }
    until("all have come", || {
        running.service().counted(Event::Rejected) == COUNT as u64 - 512
    });
    until("the oldest ones have ended", || {
        running.shared().registry.len() <= 512
    });
}
