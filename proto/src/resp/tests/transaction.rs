//! What a connection keeps for `EXEC`, and when it gives that up. The words of Redis are in the
//! recording.

use super::Client;
use crate::batch::BATCH_STEPS_MAX;
use crate::placement;
use crate::request::{Body, Limits, ServerCommand, ServerOutcome, Step};

const QUEUED: &str = "+QUEUED\\r\\n";
const DISCARDED: &str = "-EXECABORT Transaction discarded because of previous errors.\\r\\n";
const TOO_LARGE: &str = "-ERR the transaction has too many commands or bytes\\r\\n";

/// What `EXEC` asks for after these requests, whose answers are worded.
fn executed(requests: &[&str]) -> String {
    let mut client = Client::new();
    for request in requests {
        client.words(request);
    }
    let Step::Request { request, .. } = client.parser.parse(b"EXEC\r\n") else {
        panic!("is complete");
    };
    let Body::Server(ServerCommand::Atomic(batch)) = request.body else {
        panic!("{:?}", request.body);
    };
    let slot = batch.slot();
    assert!(slot.is_none_or(|slot| slot == placement::slot(b"t")));
    let (watched, steps) = (batch.watched.len(), batch.steps.len());
    format!(
        "{watched} watched, {steps} steps, one slot: {}",
        slot.is_some()
    )
}

#[test]
fn exec_asks_for_one_batch() {
    let requests = [
        "WATCH {t}w",
        "MULTI",
        "SET {t}a 1",
        "MGET {t}a {t}b",
        "RENAME {t}a {t}c",
        "PING",
    ];
    assert_eq!(executed(&requests), "1 watched, 4 steps, one slot: true");
    let requests = ["MULTI", "SET a 1", "SET b 1"];
    assert_eq!(executed(&requests), "0 watched, 2 steps, one slot: false");
}

#[test]
fn an_empty_transaction_needs_no_executor() {
    let mut client = Client::new();
    client.words("MULTI");
    client.words("PING");
    assert_eq!(client.words("EXEC"), "*1\\r\\n+PONG\\r\\n");
}

#[test]
fn a_command_that_is_not_admitted_spoils_the_transaction() {
    let mut client = Client::new();
    client.words("MULTI");
    assert_eq!(client.words("SET a 1"), QUEUED);
    // The server refuses the command: it does not word its answer.
    assert!(matches!(
        client.parser.parse(b"DEL a\r\n"),
        Step::Request { .. }
    ));
    assert_eq!(client.words("SET b 1"), QUEUED);
    assert_eq!(client.words("EXEC"), DISCARDED);
    assert!(client.model.entries.is_empty());
}

#[test]
fn what_is_refused_before_it_is_worded_begins_nothing() {
    let mut client = Client::new();
    assert!(matches!(
        client.parser.parse(b"MULTI\r\n"),
        Step::Request { .. }
    ));
    assert_eq!(client.words("EXEC"), "-ERR EXEC without MULTI\\r\\n");
}

#[test]
fn a_transaction_is_bounded_in_steps_and_in_bytes() {
    let mut client = Client::new();
    client.words("MULTI");
    let many: Vec<&[u8]> = std::iter::once(&b"DEL"[..])
        .chain(std::iter::repeat_n(&b"k"[..], BATCH_STEPS_MAX))
        .collect();
    assert_eq!(client.call(&many), QUEUED);
    assert_eq!(client.words("GET k"), TOO_LARGE);
    assert_eq!(client.words("EXEC"), DISCARDED);

    let value = vec![b'v'; 1000];
    let mut client = Client::with_limits(Limits {
        value_len_max: 2000,
    });
    client.words("MULTI");
    assert_eq!(client.call(&[b"SET", b"k", &value]), QUEUED);
    assert_eq!(client.call(&[b"SET", b"k", &value]), TOO_LARGE);
    assert_eq!(client.words("EXEC"), DISCARDED);
}

#[test]
fn what_is_kept_is_counted_and_is_free_afterwards() {
    let mut client = Client::new();
    assert_eq!(client.parser.kept_len(), 0);
    client.words("WATCH key");
    let watched = client.parser.kept_len();
    assert!(watched >= 3);
    client.words("MULTI");
    client.words("SET k value");
    assert!(client.parser.kept_len() >= watched + 9);
    assert_eq!(client.words("EXEC"), "*1\\r\\n+OK\\r\\n");
    assert_eq!(client.parser.kept_len(), 0);
    client.words("MULTI");
    client.words("SET k other");
    client.words("RESET");
    assert_eq!(client.parser.kept_len(), 0);
}

#[test]
fn what_is_given_up_for_want_of_memory_is_told_by_exec() {
    let mut client = Client::new();
    client.words("MULTI");
    client.words("SET k value");
    client.parser.forget_kept();
    assert!(client.parser.kept_len() == 0);
    assert_eq!(client.words("SET k value"), QUEUED);
    assert_eq!(client.words("EXEC"), DISCARDED);
}

#[test]
fn commands_about_the_server_and_the_connection_do_not_stand_in_transactions() {
    for refused in [
        "SELECT 1",
        "FLUSHDB",
        "SCAN 0",
        "HELLO 3",
        "AUTH p",
        "MSETNX a 1",
        "INFO",
    ] {
        let mut client = Client::new();
        client.words("MULTI");
        let answer = client.words(refused);
        assert_eq!(
            answer, "-ERR Command not allowed inside a transaction\\r\\n",
            "{refused}"
        );
        assert_eq!(client.words("EXEC"), DISCARDED);
    }
}

#[test]
fn an_argument_that_is_too_long_spoils_the_transaction() {
    let mut client = Client::new();
    client.words("MULTI");
    let long = vec![b'k'; 100_000];
    assert!(client.call(&[b"GET", &long]).starts_with("-ERR"));
    assert_eq!(client.words("EXEC"), DISCARDED);
}

#[test]
fn the_executor_may_refuse_the_batch_as_a_whole() {
    for (outcome, answer) in [
        (ServerOutcome::Changed, "*-1\\r\\n"),
        (
            ServerOutcome::CrossSlot,
            "-CROSSSLOT Keys in request don\\'t hash to the same slot\\r\\n",
        ),
        (
            ServerOutcome::Failed(crate::Failure::Busy),
            "-TRYAGAIN the server is busy, try again later\\r\\n",
        ),
    ] {
        let mut client = Client::new();
        client.words("MULTI");
        client.words("SET k v");
        client.model.server = Some(outcome);
        assert_eq!(client.words("EXEC"), answer);
        client.model.server = None;
        assert_eq!(client.words("EXEC"), "-ERR EXEC without MULTI\\r\\n");
    }
}
