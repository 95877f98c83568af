//! Whatever the order in which answers come, clients see that of their requests.

use std::future::{Future as _, poll_fn};
use std::io::{Read as _, Write as _};
use std::pin::pin;
use std::sync::Arc;

use fonn_auth::Security;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::fake::{Fake, Manner};
use crate::registry::Registered;
use crate::socket::Accepted;
use crate::{Shared, connection};

/// Sends `parts` one after the other over a connection of its own, and returns all that comes back.
fn talk(manner: Manner, parts: &[&[u8]]) -> Vec<u8> {
    talk_to(&Arc::new(Fake::new(manner)), parts)
}

/// The same with a service.
fn talk_to(service: &Arc<Fake>, parts: &[&[u8]]) -> Vec<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let shared = Shared::new(Arc::clone(service), Vec::new(), 10);
        let (socket, peer) = Accepted::Unix(ours)
            .into_socket(&Security::default())
            .unwrap();
        shared.registry.pending(0);
        let serve = connection::serve(Registered {
            shared: Arc::clone(&shared),
            connection: shared.registry.add(socket, peer, 0),
        });
        theirs.set_nonblocking(true).unwrap();
        let (mut reader, mut writer) = tokio::net::UnixStream::from_std(theirs)
            .unwrap()
            .into_split();
        let write = async {
            for part in parts {
                writer.write_all(part).await.unwrap();
                // The server reads this part by itself.
                for _ in 0..3 {
                    tokio::task::yield_now().await;
                }
            }
            drop(writer);
        };
        let mut replies = Vec::new();
        let exchange = async {
            tokio::join!(serve, write, async {
                reader.read_to_end(&mut replies).await.unwrap();
            });
        };
        tokio::select! {
            () = exchange => {}
            () = shared.service.keep_answering() => {}
        }
        assert_eq!(shared.service.in_flight(), 0);
        replies
    })
}

#[test]
fn the_service_hears_of_the_next_keys_sixteen_at_a_time() {
    let gets = |keys: std::ops::Range<u32>| -> Vec<u8> {
        let gets = keys.map(|key| format!("get key-{key}\r\n"));
        gets.collect::<String>().into_bytes()
    };
    let expected = |parts: &[&[u8]]| {
        let service = Arc::new(Fake::new(Manner::AtOnce));
        let replies = talk_to(&service, parts);
        assert!(replies.starts_with(b"END\r\n"));
        service.expected()
    };
    let names = |keys: std::ops::Range<u32>| -> Vec<String> {
        keys.map(|key| format!("key-{key}")).collect()
    };
    // What the first request of a connection is about is not known before.
    assert_eq!(expected(&[&gets(0..5)]), [names(1..5)]);
    assert_eq!(expected(&[&gets(0..1), &gets(1..6)]), [names(1..6)]);
    // A connection with few of them waits for others once, and is told to be alone.
    let parts = [&gets(0..1)[..], &gets(1..2), &gets(2..3), &gets(3..6)];
    assert_eq!(expected(&parts), [names(2..3), names(3..6)]);
    assert_eq!(
        expected(&[&gets(0..40)]),
        [names(1..17), names(17..33), names(33..40)]
    );
}

/// What a turn of a connection leaves.
struct Turn {
    /// Bytes that the client got in it.
    received: usize,
    /// Bytes that count as unsent behind it.
    unsent: usize,
}

/// The turns that a reactor gives to a connection with these requests, and the replies to them.
fn turns_of(service: Fake, requests: &[u8]) -> (Vec<Turn>, Vec<u8>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    theirs.write_all(requests).unwrap();
    theirs.shutdown(std::net::Shutdown::Write).unwrap();
    theirs.set_nonblocking(true).unwrap();
    let (mut turns, mut replies) = (Vec::new(), Vec::new());
    runtime.block_on(async {
        let shared = Shared::new(Arc::new(service), Vec::new(), 10);
        let accepted = Accepted::Unix(ours).into_socket(&Security::default());
        let (socket, peer) = accepted.unwrap();
        shared.registry.pending(0);
        let mut serve = pin!(connection::serve(Registered {
            shared: Arc::clone(&shared),
            connection: shared.registry.add(socket, peer, 0),
        }));
        poll_fn(|cx| {
            let end = serve.as_mut().poll(cx);
            let before = replies.len();
            let mut part = [0; 4096];
            while let Ok(len @ 1..) = theirs.read(&mut part) {
                replies.extend_from_slice(&part[..len]);
            }
            turns.push(Turn {
                received: replies.len() - before,
                unsent: shared.unsent_bytes(),
            });
            end
        })
        .await;
    });
    (turns, replies)
}

/// How often the reactor turns to a connection that sends a transaction of so many commands.
fn turns(command: &str, count: usize) -> usize {
    let service = Fake::new(Manner::AtOnce);
    service.put(b"a", b"some value".to_vec());
    let requests = ["MULTI\r\n", &command.repeat(count), "EXEC\r\n"].concat();
    let (turns, replies) = turns_of(service, requests.as_bytes());
    let replies = replies.escape_ascii().to_string();
    assert!(replies.contains(&format!("*{count}\\r\\n")), "{replies}");
    turns.len()
}

#[test]
fn others_have_their_turn_between_the_computed_answers_of_a_transaction() {
    let read = turns("GET a\r\n", 50);
    for command in ["LCS a a\r\n", "BITCOUNT a\r\n"] {
        let computed = turns(command, 50);
        // A connection that was alone before does not let others compose first.
        assert!(computed >= read + 47, "{command}: {computed}, {read}");
    }
}

#[test]
fn short_replies_to_a_batch_wait_for_a_turn_and_others_do_not() {
    let received = |value_len: usize, requests: usize| {
        let service = Fake::new(Manner::AtOnce);
        service.put(b"a", vec![b'v'; value_len]);
        let requests = b"get a\r\n".repeat(requests);
        // What a reactor knows of its connections is kept for each thread.
        let turns = std::thread::spawn(move || turns_of(service, &requests).0);
        let turns = turns.join().unwrap();
        let received: Vec<usize> = turns.iter().map(|turn| turn.received).collect();
        received.iter().position(|len| *len > 0).unwrap()
    };
    let at_once = received(10, 1);
    assert_eq!(received(400, 16), at_once, "its replies are long");
    assert_eq!(received(10, 16), at_once + 1);
}

/// Replies of about 400 bytes.
fn with_short_value() -> Fake {
    let service = Fake::new(Manner::AtOnce);
    service.put(b"hot", vec![b'v'; 400]);
    service
}

#[test]
fn what_gathers_in_a_turn_is_sent_before_others_have_theirs() {
    const GETS: usize = 600;
    let reply_len = b"$400\r\n\r\n".len() + 400;
    let (turns, replies) = turns_of(with_short_value(), &b"GET hot\r\n".repeat(GETS));
    assert_eq!(replies.len(), GETS * reply_len);
    let most = turns.iter().map(|turn| turn.received).max();
    // Those of 128 requests, and not all at the end.
    assert!(most <= Some(128 * reply_len), "{most:?} bytes");
}

#[test]
fn replies_that_wait_for_an_acknowledgement_are_counted() {
    const GETS: usize = 100;
    let set = b"set k 0 0 1\r\nv\r\n";
    let requests = [&set[..], &b"get hot\r\n".repeat(GETS)].concat();
    let (turns, replies) = turns_of(with_short_value(), &requests);
    assert!(replies.starts_with(b"STORED\r\nVALUE hot 0 400\r\n"));
    let most = turns.iter().map(|turn| turn.unsent).max();
    assert!(most >= Some(GETS * 400), "{most:?} bytes");
    assert_eq!(turns.last().map(|turn| turn.unsent), Some(0));
}

fn key() -> impl Strategy<Value = String> {
    (
        prop::sample::select(vec!["k", "hot", "fail", "key-"]),
        0..4_u8,
    )
        .prop_map(|(kind, number)| format!("{kind}{number}"))
}

fn text() -> impl Strategy<Value = Vec<u8>> {
    let value = prop::collection::vec(any::<u8>(), 0..40);
    let large = (1..40_usize).prop_map(|kib| vec![b'x'; kib * 1024]);
    let store = |(key, value): (String, Vec<u8>), head: &str| {
        let head = format!("{head} {key} 0 0 {}\r\n", value.len());
        [head.as_bytes(), &value, b"\r\n"].concat()
    };
    prop_oneof![
        4 => key().prop_map(|key| format!("get {key}\r\n").into_bytes()),
        2 => prop::collection::vec(key(), 1..6)
            .prop_map(|keys| format!("gets {}\r\n", keys.join(" ")).into_bytes()),
        3 => (key(), value).prop_map(move |it| store(it, "set")),
        1 => (key(), large).prop_map(move |it| store(it, "set")),
        1 => key().prop_map(|key| format!("delete {key}\r\n").into_bytes()),
        1 => key().prop_map(|key| format!("mg {key} v k O7\r\n").into_bytes()),
        // Keys in base64 are kept by the parser: k0, hot1.
        1 => prop::sample::select(vec!["mg azA= b k v\r\n", "mg aG90MQ== b v\r\n"])
            .prop_map(|line| line.as_bytes().to_vec()),
        1 => Just(b"mn\r\n".to_vec()),
        1 => Just(b"version\r\n".to_vec()),
        1 => Just(b"incr k0 1\r\n".to_vec()),
        1 => Just(b"nonsense\r\n".to_vec()),
        1 => Just(b"flush_all\r\n".to_vec()),
    ]
}

fn resp() -> impl Strategy<Value = Vec<u8>> {
    let keys = || prop::collection::vec(key(), 1..6);
    let args = prop_oneof![
        4 => key().prop_map(|key| vec!["GET".to_owned(), key]),
        3 => (key(), "[a-z]{0,20}").prop_map(|(key, value)| vec!["SET".to_owned(), key, value]),
        2 => keys().prop_map(|keys| [vec!["MGET".to_owned()], keys].concat()),
        1 => keys().prop_map(|keys| [vec!["DEL".to_owned()], keys].concat()),
        1 => keys().prop_map(|keys| {
            let pairs = keys.into_iter().flat_map(|key| [key, "v".to_owned()]);
            [vec!["MSET".to_owned()], pairs.collect()].concat()
        }),
        1 => Just(vec!["DBSIZE".to_owned()]),
        1 => Just(vec!["PING".to_owned()]),
        1 => Just(vec!["CLIENT".to_owned(), "INFO".to_owned()]),
        1 => (0..2_u8).prop_map(|database| vec!["SELECT".to_owned(), database.to_string()]),
        1 => Just(vec!["FLUSHALL".to_owned()]),
    ];
    args.prop_map(|args| {
        let mut request = format!("*{}\r\n", args.len());
        for arg in args {
            request.push_str(&format!("${}\r\n{arg}\r\n", arg.len()));
        }
        request.into_bytes()
    })
}

fn assert_same(requests: &[Vec<u8>], cuts: &[prop::sample::Index], seed: u64) {
    let bytes = requests.concat();
    let in_order = talk(Manner::AtOnce, &[&bytes]);
    let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len())).collect();
    cuts.sort_unstable();
    let ends = cuts.iter().copied().chain([bytes.len()]);
    let starts = [0].into_iter().chain(cuts.iter().copied());
    let parts: Vec<_> = starts
        .zip(ends)
        .map(|(from, to)| &bytes[from..to])
        .collect();
    let late = talk(Manner::Shuffled(seed), &parts);
    assert_eq!(
        late.escape_ascii().to_string(),
        in_order.escape_ascii().to_string()
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn late_text_answers_are_sent_as_if_they_had_come_in_order(
        requests in prop::collection::vec(text(), 1..40),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
        seed in any::<u64>(),
    ) {
        assert_same(&requests, &cuts, seed);
    }

    #[test]
    fn late_resp_answers_are_sent_as_if_they_had_come_in_order(
        requests in prop::collection::vec(resp(), 1..40),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
        seed in any::<u64>(),
    ) {
        assert_same(&requests, &cuts, seed);
    }
}
