use fonn_proto::{Delete, ExpirySpec, Get};
use smallvec::smallvec;

use super::*;

fn body(command: Command<'_>) -> Body<'_> {
    Body::Data(smallvec![command])
}

#[test]
fn who_is_not_logged_in_gets_nothing_of_what_is_stored() {
    for body in [
        body(Command::Get(Get::new(b"k"))),
        Body::Server(ServerCommand::Count),
        Body::Server(ServerCommand::Stats(StatsKind::General)),
        Body::Server(ServerCommand::ClusterView),
        Body::Server(ServerCommand::CountInSlot(1)),
    ] {
        assert_eq!(permit(None, &body), Err(Failure::AuthRequired), "{body:?}");
    }
    assert_eq!(permit(None, &Body::Answer), Ok(()));
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
    for body in [
        body(Command::Delete(Delete::new(b"k"))),
        body(Command::Get(touching)),
        body(Command::Get(taking)),
        Body::Data(smallvec![
            Command::Get(Get::new(b"a")),
            Command::Delete(Delete::new(b"b"))
        ]),
        Body::Server(flush),
        Body::Server(ServerCommand::StoreAllIfNone(vec![(b"a", b"b")])),
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
    ] {
        let body = Body::Server(command);
        assert_eq!(permit(Some(Role::ReadWrite), &body), Err(Failure::ReadOnly));
        assert_eq!(permit(Some(Role::Admin), &body), Ok(()));
    }
}
