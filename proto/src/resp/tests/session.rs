//! What a connection chooses, and what the parser answers by itself.

use super::{Client, Model};
use crate::Failure;
use crate::request::{Body, ServerCommand, ServerOutcome, Step};
use crate::resp::{COMMANDS, Parser};

fn answered(outcome: ServerOutcome) -> Client {
    let model = Model {
        server: Some(outcome),
        ..Model::default()
    };
    Client {
        model,
        ..Client::new()
    }
}

const HELLO_2: &str = "*16\\r\\n$6\\r\\nserver\\r\\n$4\\r\\nfonn\\r\\n$7\\r\\nversion\\r\\n$5\\r\\n7.4.0\
    \\r\\n$12\\r\\nfonn_version\\r\\n$5\\r\\n0.1.0\\r\\n$4\\r\\nmode\\r\\n$10\\r\\nstandalone\\r\\n$4\
    \\r\\nrole\\r\\n$6\\r\\nmaster\\r\\n$5\\r\\nproto\\r\\n:2\\r\\n$2\\r\\nid\\r\\n:7\\r\\n$7\\r\\n\
    modules\\r\\n*0\\r\\n";

fn hello_3() -> String {
    HELLO_2.replace("*16", "%8").replace(":2", ":3")
}

#[test]
fn hello_chooses_the_protocol_and_names_the_connection() {
    let mut client = Client::new();
    assert_eq!(client.words("HELLO"), HELLO_2);
    assert_eq!(client.words("HELLO 3 SETNAME bob"), hello_3());
    assert_eq!(client.words("GET k"), "_\\r\\n");
    assert_eq!(client.words("CLIENT GETNAME"), "$3\\r\\nbob\\r\\n");
    assert_eq!(client.words("HELLO"), hello_3());
    assert_eq!(client.words("HELLO 2"), HELLO_2);
    assert_eq!(client.words("GET k"), "$-1\\r\\n");
    assert_eq!(
        client.words("HELLO 4"),
        "-NOPROTO unsupported protocol version\\r\\n"
    );
}

#[test]
fn hello_with_credentials_takes_effect_only_if_they_are_right() {
    let request = "HELLO 3 AUTH user secret SETNAME bob";
    let mut client = answered(ServerOutcome::WrongPassword);
    let refused = "-WRONGPASS invalid username-password pair or user is disabled.\\r\\n";
    assert_eq!(client.words(request), refused);
    client.model.server = None;
    assert_eq!(client.words("GET k"), "$-1\\r\\n");
    assert_eq!(client.words("CLIENT GETNAME"), "$-1\\r\\n");
    // Without users only the user that Redis has by default is taken.
    assert_eq!(client.words(request), refused);
    assert_eq!(client.words("HELLO 3 AUTH default x"), hello_3());
    client.model.server = Some(ServerOutcome::Done);
    assert_eq!(client.words(request), hello_3());
    assert_eq!(client.words("CLIENT GETNAME"), "$3\\r\\nbob\\r\\n");
}

#[test]
fn auth_hands_name_and_password_over() {
    for (bytes, user) in [
        ("AUTH pw\r\n", ""),
        ("AUTH u pw\r\n", "u"),
        ("HELLO 2 AUTH u pw\r\n", "u"),
    ] {
        let mut parser = Parser::new(super::LIMITS, 7);
        let Step::Request { request, .. } = parser.parse(bytes.as_bytes()) else {
            panic!("is complete");
        };
        let Body::Server(ServerCommand::Auth {
            user: found,
            password,
        }) = request.body
        else {
            panic!("{:?}", request.body);
        };
        assert_eq!((found, password), (user.as_bytes(), &b"pw"[..]));
    }
    assert_eq!(answered(ServerOutcome::Done).words("AUTH pw"), "+OK\\r\\n");
    let mut busy = answered(ServerOutcome::Failed(Failure::Busy));
    assert_eq!(
        busy.words("AUTH pw"),
        "-TRYAGAIN the server is busy, try again later\\r\\n"
    );
}

#[test]
fn select_applies_to_the_requests_behind_it() {
    let mut parser = Parser::new(super::LIMITS, 7);
    let mut databases = Vec::new();
    for bytes in [
        &b"GET k\r\n"[..],
        b"SELECT 15\r\n",
        b"GET k\r\n",
        b"RESET\r\n",
        b"DBSIZE\r\n",
    ] {
        let Step::Request { request, .. } = parser.parse(bytes) else {
            panic!("is complete")
        };
        databases.push(request.database);
    }
    assert_eq!([databases[0], databases[2], databases[4]], [0, 15, 0]);
}

#[test]
fn reset_goes_back_to_the_defaults() {
    let mut client = Client::resp3();
    client.words("CLIENT SETNAME bob");
    client.words("SELECT 3");
    client.words("CLIENT SETINFO LIB-NAME redis-py");
    assert_eq!(client.words("RESET"), "+RESET\\r\\n");
    assert_eq!(client.words("GET k"), "$-1\\r\\n");
    let line = "id=7 name= db=0 resp=2 lib-name=redis-py lib-ver= cmd=client|info\\n";
    assert_eq!(
        client.words("CLIENT INFO"),
        format!("${}\\r\\n{line}\\r\\n", line.len() - 1)
    );
}

#[test]
fn client_info_joins_what_parser_and_connection_know() {
    let mut client = answered(ServerOutcome::Text(
        "addr=127.0.0.1:5 age=3 user=ci\n".into(),
    ));
    client.words("HELLO 3 SETNAME bob");
    client.words("CLIENT SETINFO lib-ver 8.0");
    assert_eq!(
        client.words("CLIENT INFO"),
        "=99\\r\\ntxt:id=7 addr=127.0.0.1:5 age=3 user=ci name=bob db=0 resp=3 lib-name= \
         lib-ver=8.0 cmd=client|info\\n\\r\\n"
    );
}

#[test]
fn client_attributes_are_checked() {
    let mut client = Client::new();
    assert_eq!(
        client.words("CLIENT SETINFO LIB-NAME redis-py"),
        "+OK\\r\\n"
    );
    assert_eq!(
        client.call(&[b"CLIENT", b"SETINFO", b"lib-ver", b"a b"]),
        "-ERR lib-ver cannot contain spaces, newlines or special characters.\\r\\n"
    );
    assert_eq!(
        client.words("CLIENT SETINFO lib-x 1"),
        "-ERR Unrecognized option \\'lib-x\\'\\r\\n"
    );
    let long = [b'n'; 1025];
    assert!(
        client
            .call(&[b"CLIENT", b"SETNAME", &long])
            .starts_with("-ERR Client names")
    );
    assert_eq!(client.words("CLIENT ID"), ":7\\r\\n");
    assert_eq!(
        client.words("CLIENT MAINT_NOTIFICATIONS ON"),
        "-ERR unknown subcommand \\'MAINT_NOTIFICATIONS\\'. Try CLIENT HELP.\\r\\n"
    );
}

#[test]
fn reads_do_not_count_as_a_use_after_no_touch() {
    let mut parser = Parser::new(super::LIMITS, 7);
    let mut bumps = Vec::new();
    for bytes in [&b"GET k\r\n"[..], b"CLIENT NO-TOUCH on\r\n", b"GET k\r\n"] {
        let Step::Request { request, .. } = parser.parse(bytes) else {
            panic!("is complete")
        };
        bumps.push(format!("{:?}", request.body).contains("bump: true"));
    }
    assert_eq!(bumps, [true, false, false]);
}

#[test]
fn quit_is_answered_before_the_connection_closes() {
    assert_eq!(Client::new().send(b"QUIT\r\nPING\r\n"), "+OK\\r\\n<closed>");
}

#[test]
fn command_lists_the_whole_table_in_both_protocols() {
    for mut client in [Client::new(), Client::resp3()] {
        let all = client.words("COMMAND");
        assert!(all.starts_with(&format!("*{}\\r\\n*10\\r\\n$3\\r\\nget", COMMANDS.len())));
        assert_eq!(client.words("COMMAND INFO"), all);
        for info in COMMANDS {
            assert!(
                all.contains(&format!("\\r\\n{}\\r\\n", info.name)),
                "{}",
                info.name
            );
        }
        assert_eq!(
            client.words("COMMAND COUNT"),
            format!(":{}\\r\\n", COMMANDS.len())
        );
    }
}

#[test]
fn command_docs_describe_commands_with_their_subcommands() {
    let doc = "$6\\r\\ndbsize\\r\\n%3\\r\\n$7\\r\\nsummary\\r\\n$40\\r\\nReturns how many keys the \
        database holds\\r\\n$5\\r\\nsince\\r\\n$5\\r\\n1.0.0\\r\\n$5\\r\\ngroup\\r\\n$6\\r\\nserver\\r\\n";
    let mut client = Client::resp3();
    assert_eq!(
        client.words("COMMAND DOCS nope dbsize"),
        format!("%1\\r\\n{doc}")
    );
    let resp2 = format!("*2\\r\\n{}", doc.replace("%3", "*6"));
    assert_eq!(Client::new().words("COMMAND DOCS DBSIZE"), resp2);
    let config = client.words("COMMAND DOCS config");
    assert!(config.contains("$11\\r\\nsubcommands\\r\\n%3\\r\\n$10\\r\\nconfig|get\\r\\n"));
    assert!(
        client
            .words("COMMAND DOCS")
            .starts_with(&format!("%{}\\r\\n", COMMANDS.len()))
    );
    let many = vec![&b"COMMAND"[..], b"INFO"]
        .into_iter()
        .chain([&b"get"[..]; 1025]);
    let refused = client.call(&many.collect::<Vec<_>>());
    assert_eq!(refused, "-ERR too many command names\\r\\n");
}
