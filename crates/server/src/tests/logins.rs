//! Passwords take a processor for a while, and no reactor.

use std::io::ErrorKind;

use fonn_auth::testing::{PASSWORD, directory, parsed, row};
use fonn_auth::{Authenticator, TokenSecret};
use fonn_base::clock::ManualClock;

use super::*;
use crate::Service as _;

const CLIENTS: usize = 50;
const GETS: usize = 1000;

fn log_in(stream: &mut TcpStream, user: &str) {
    let password = std::str::from_utf8(PASSWORD).unwrap();
    let request = format!(
        "*3\r\n$4\r\nAUTH\r\n${}\r\n{user}\r\n${}\r\n{password}\r\n",
        user.len(),
        password.len()
    );
    stream.write_all(request.as_bytes()).unwrap();
}

#[test]
fn gets_are_answered_while_logins_wait_for_the_thread_that_hashes() {
    let users = Authenticator::new(directory(&[("ci", "read-write"), ("dev", "read")]));
    let users = Arc::new(users.unwrap());
    let security = Security {
        users: Some(Arc::clone(&users)),
        ..Security::default()
    };
    // It has one reactor.
    let running = Running::protected(Manner::AtOnce, security);
    let mut dev = running.connect();
    log_in(&mut dev, "dev");
    expect(&mut dev, b"+OK\r\n");

    let busy = users.occupy();
    let mut waiting: Vec<TcpStream> = (0..CLIENTS).map(|_| running.connect()).collect();
    for client in &mut waiting {
        log_in(client, "ci");
    }
    until("all logins have come", || users.waiting() == CLIENTS);
    for _ in 0..GETS {
        dev.write_all(b"GET a\r\n").unwrap();
        expect(&mut dev, b"$-1\r\n");
    }
    // A password that is remembered needs no thread either.
    let mut other = running.connect();
    log_in(&mut other, "dev");
    expect(&mut other, b"+OK\r\n");
    for client in &mut waiting {
        client.set_nonblocking(true).unwrap();
        let told = client.read(&mut [0]).unwrap_err();
        assert_eq!(told.kind(), ErrorKind::WouldBlock, "nobody hashed it");
        client.set_nonblocking(false).unwrap();
    }
    drop(busy);
    for client in &mut waiting {
        expect(client, b"+OK\r\n");
    }
    assert_eq!(users.waiting(), 0);
}

#[test]
fn a_meta_set_before_the_login_is_answered_and_no_login() {
    let users = Authenticator::new(directory(&[("ci", "read-write")]));
    let security = Security {
        users: Some(Arc::new(users.unwrap())),
        ..Security::default()
    };
    let running = Running::protected(Manner::AtOnce, security);
    let mut client = running.connect();
    client.write_all(b"ms k 11\r\nci password\r\n").unwrap();
    expect(&mut client, b"CLIENT_ERROR unauthenticated\r\n");
    assert_eq!(running.service().counted(Event::AuthFailed), 0);
}

#[test]
fn a_set_that_is_refused_for_its_size_removes_the_old_value_only_where_the_user_may_write() {
    let users = Authenticator::new(directory(&[("ci", "read-write"), ("dev", "read")]));
    let security = Security {
        users: Some(Arc::new(users.unwrap())),
        ..Security::default()
    };
    let running = Running::protected(Manner::AtOnce, security);
    let mut ci = running.connect();
    log_in(&mut ci, "ci");
    expect(&mut ci, b"+OK\r\n");
    let mut dev = running.connect();
    log_in(&mut dev, "dev");
    expect(&mut dev, b"+OK\r\n");
    let len_max = running.service().value_len_max();
    let mut set = format!("*3\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n", len_max + 1).into_bytes();
    set.resize(set.len() + len_max + 1, b'v');
    set.extend(b"\r\nGET k\r\n");
    ci.write_all(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$3\r\nold\r\n")
        .unwrap();
    expect(&mut ci, b"+OK\r\n");
    dev.write_all(&set).unwrap();
    let refused = b"-NOPERM this user has no permissions to change anything\r\n";
    expect(&mut dev, &[&refused[..], b"$3\r\nold\r\n"].concat());
    ci.write_all(&set).unwrap();
    let refused = format!("-ERR value is too large (max {len_max} bytes)\r\n$-1\r\n");
    expect(&mut ci, refused.as_bytes());
}

/// A server with two tokens, of which one expires a second after the time of the clock.
fn with_tokens() -> (Running, Arc<Authenticator>, ManualClock) {
    // 2026-01-01, in milliseconds.
    let clock = ManualClock::new(1_767_225_600_000);
    let token = |name: &str, number: u8, more: &str| {
        let hash = TokenSecret::new(&[number; 32]).hash();
        format!("[[token]]\nname = '{name}'\nhash = '{hash}'\nrole = 'read'\n{more}\n")
    };
    let rows = [
        token("short", 1, "expires = 2026-01-01T00:00:01Z"),
        token("long", 2, ""),
    ];
    let users = Authenticator::new(parsed(&rows.concat())).unwrap();
    let users = Arc::new(users.with_clock(clock.clock()));
    let security = Security {
        users: Some(Arc::clone(&users)),
        ..Security::default()
    };
    let running = Running::protected(Manner::AtOnce, security);
    (running, users, clock)
}

fn log_in_by_token(running: &Running, number: u8) -> TcpStream {
    let mut stream = running.connect();
    let secret = TokenSecret::new(&[number; 32]);
    let request = format!("AUTH {}\r\nGET a\r\n", secret.text());
    stream.write_all(request.as_bytes()).unwrap();
    expect(&mut stream, b"+OK\r\n$-1\r\n");
    stream
}

fn is_ended(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0]) {
        Ok(len) => len == 0,
        // It is no end when nothing comes in time.
        Err(error) => error.kind() == ErrorKind::ConnectionReset,
    }
}

#[test]
fn an_idle_connection_ends_when_its_token_expires() {
    let (running, _, clock) = with_tokens();
    let mut short = log_in_by_token(&running, 1);
    let mut long = log_in_by_token(&running, 2);
    clock.advance(Duration::from_secs(1));
    assert!(is_ended(&mut short));
    long.write_all(b"GET a\r\n").unwrap();
    expect(&mut long, b"$-1\r\n");
}

#[test]
fn a_connection_ends_when_its_token_is_revoked() {
    let (running, users, _) = with_tokens();
    let mut long = log_in_by_token(&running, 2);
    users.replace(parsed(&row("long", "read", "")));
    assert!(is_ended(&mut long));
}
