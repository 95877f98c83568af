use fonn_auth::testing::{PASSWORD, directory};
use fonn_proto::session::{Dialect, Session};
use fonn_proto::{Batch, BatchStep, Delete, ExpirySpec, Get, Limits, Step, Transfer};
use smallvec::smallvec;

use super::*;

fn body(command: Command<'_>) -> Body<'_> {
    Body::Data(smallvec![command])
}

fn batch(step: BatchStep<'_>) -> Body<'_> {
    Body::Server(ServerCommand::Atomic(Batch {
        steps: vec![step],
        ..Batch::default()
    }))
}

#[test]
fn a_client_without_login_gets_nothing_of_what_is_stored() {
    for body in [
        body(Command::Get(Get::new(b"k"))),
        Body::Server(ServerCommand::Count),
        Body::Server(ServerCommand::Stats(StatsKind::General)),
        Body::Server(ServerCommand::ClusterView),
        Body::Server(ServerCommand::CountInSlot(1)),
        Body::Server(ServerCommand::Time),
        Body::Server(ServerCommand::Atomic(Batch::default())),
        // A stranger has the server keep nothing.
        Body::Queued(smallvec![]),
    ] {
        assert_eq!(permit(None, &body), Err(Failure::AuthRequired), "{body:?}");
    }
    for body in [Body::Answer, Body::LogOut] {
        assert_eq!(permit(None, &body), Ok(()), "{body:?}");
    }
}

#[tokio::test]
async fn a_password_that_came_is_to_be_overwritten_once_whether_or_not_it_was_right() {
    let users = Authenticator::new(directory(&[("ci", "read")])).unwrap();
    let security = Security {
        users: Some(Arc::new(users)),
        ..Security::default()
    };
    let mut guard = Guard::new(&security, "10.0.0.1:1");
    for password in [PASSWORD, &b"wrong"[..]] {
        assert!(!guard.took_password());
        let user = &b"ci"[..];
        let outcome = guard.log_in(Credentials { user, password }).await;
        assert_eq!(outcome == ServerOutcome::Done, password == PASSWORD);
        assert!(guard.took_password());
    }
    assert!(!guard.took_password());
}

/// Whether a store that begins so logs in a user, if its value has `len` bytes.
fn is_login(line: &str, len: usize) -> bool {
    let users = Authenticator::new(directory(&[("ci", "read")])).unwrap();
    let security = Security {
        users: Some(Arc::new(users)),
        ..Security::default()
    };
    let guard = Guard::new(&security, "10.0.0.1:1");
    let request = format!("{line} {len}\r\nci {}\r\n", "x".repeat(len - 3));
    let limits = Limits {
        value_len_max: 1 << 20,
    };
    let mut session = Session::new(Dialect::Text, limits, 1);
    let Step::Request { request, .. } = session.parse(request.as_bytes()) else {
        panic!("no request");
    };
    guard.credentials(&request.body, &request.reply).is_some()
}

/// A value is no login only because it comes first.
#[test]
fn a_login_of_the_text_protocol_is_short_and_no_meta_command() {
    assert!(is_login("set k 0 0", TEXT_LOGIN_LEN_MAX));
    assert!(!is_login("set k 0 0", TEXT_LOGIN_LEN_MAX + 1));
    assert!(!is_login("ms k", 20));
}

#[test]
fn readers_change_nothing() {
    let mut touching = Get::new(b"k");
    touching.touch = Some(ExpirySpec::Never);
    let mut taking = Get::new(b"k");
    taking.delete = true;
    let flush = ServerCommand::Flush {
        all_databases: true,
        delay_s: 0,
    };
    let copy = Transfer {
        from: b"a",
        to: b"b",
        database: 0,
        removes: false,
        replaces: false,
    };
    for body in [
        body(Command::Delete(Delete::new(b"k"))),
        body(Command::Get(touching)),
        body(Command::Get(taking)),
        Body::Data(smallvec![
            Command::Get(Get::new(b"a")),
            Command::Delete(Delete::new(b"b"))
        ]),
        Body::Server(flush),
        Body::Queued(smallvec![Command::Delete(Delete::new(b"k"))]),
        batch(BatchStep::Command(Command::Delete(Delete::new(b"k")))),
        batch(BatchStep::Transfer(copy)),
    ] {
        let refused = Err(Failure::ReadOnly);
        assert_eq!(permit(Some(Role::Read), &body), refused, "{body:?}");
        for role in [Role::ReadWrite, Role::Admin] {
            assert_eq!(permit(Some(role), &body), Ok(()), "{body:?}");
        }
    }
    for read in [
        body(Command::Get(Get::new(b"k"))),
        Body::Server(ServerCommand::ClusterView),
        Body::Server(ServerCommand::CountInSlot(1)),
        Body::Server(ServerCommand::Time),
        Body::Queued(smallvec![Command::Get(Get::new(b"k"))]),
        batch(BatchStep::Command(Command::Get(Get::new(b"k")))),
    ] {
        assert_eq!(permit(Some(Role::Read), &read), Ok(()), "{read:?}");
    }
}

#[test]
fn the_server_as_a_whole_is_for_admins() {
    for command in [
        ServerCommand::Stats(StatsKind::Reset),
        ServerCommand::Stats(StatsKind::Connections),
        ServerCommand::Stats(StatsKind::Settings),
        ServerCommand::ConfigGet(vec![b"*"]),
        ServerCommand::ConfigSet(vec![(b"log", b"info")]),
        ServerCommand::Keys(b"*"),
    ] {
        let body = Body::Server(command);
        assert_eq!(permit(Some(Role::ReadWrite), &body), Err(Failure::ReadOnly));
        assert_eq!(permit(Some(Role::Admin), &body), Ok(()));
    }
}
