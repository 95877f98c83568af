//! What is written is what is read, however the bytes are cut.

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;

use super::strategies::*;
use crate::outcome::{Hit, Value};
use crate::peer::*;
use crate::{Get, Out, PurgeScope, WriterId};

/// The frames of a stream that arrives in reads of the sizes in `reads`, over and over.
fn frames(kind: Kind, stream: &[u8], reads: &[usize]) -> Vec<(Head, Vec<u8>)> {
    let mut sizes = reads.iter().copied().cycle();
    let (mut start, mut end, mut need) = (0, 0, 1);
    let mut found = Vec::new();
    while start < stream.len() {
        end = sizes
            .next()
            .map_or(stream.len(), |size| (end + size.max(1)).min(stream.len()));
        while end - start >= need.max(1) {
            match next(kind, &stream[start..end], u32::MAX).unwrap() {
                Step::Need { total } => {
                    assert!(total > end - start, "needs what it has");
                    assert!(end < stream.len(), "needs more than there will be");
                    need = total;
                }
                Step::Frame { head, body, len } => {
                    found.push((head, body.to_vec()));
                    start += len;
                    need = 1;
                }
                Step::TooLong { .. } => panic!("nothing is too long"),
            }
        }
    }
    found
}

fn check_request(request: &Request<'_>, envelope: Envelope, source: Option<&Bytes>) -> Vec<u8> {
    let mut out = Out::new();
    request
        .encode(envelope, u32::MAX, source, &mut out)
        .unwrap();
    let stream = Bytes::from(out.to_vec());
    let Step::Frame { head, body, len } = next(Kind::Request, &stream, u32::MAX).unwrap() else {
        panic!("a frame");
    };
    assert_eq!((len, head.envelope), (stream.len(), envelope));
    assert_eq!(&Request::decode(&head, body, None).unwrap(), request);
    let shared = Request::decode(&head, body, Some(&stream)).unwrap();
    assert_eq!(&plain(shared), request);
    stream.to_vec()
}

/// The same request with its values copied, to compare by content.
fn plain(request: Request<'_>) -> Request<'_> {
    match request {
        Request::Put { entry, again } => Request::Put {
            entry: plain_entry(entry),
            again,
        },
        other => other,
    }
}

fn plain_entry(mut entry: Entry<'_>) -> Entry<'_> {
    entry.content = match entry.content {
        Content::Value(value) => Content::Value(plain_value(value)),
        Content::Frame(value) => Content::Frame(plain_value(value)),
        other => other,
    };
    entry
}

fn plain_value(value: Value<'_>) -> Value<'_> {
    Value::Copied(match value {
        Value::Copied(bytes) => bytes,
        Value::Shared(bytes) => bytes.to_vec().leak(),
    })
}

fn check_reply(reply: &Reply<'_>, envelope: Envelope) -> Vec<u8> {
    let mut out = Out::new();
    reply.encode(envelope, u32::MAX, &mut out).unwrap();
    let stream = Bytes::from(out.to_vec());
    let Step::Frame { head, body, len } = next(Kind::Reply, &stream, u32::MAX).unwrap() else {
        panic!("a frame");
    };
    assert_eq!((len, head.envelope), (stream.len(), envelope));
    assert_eq!(&Reply::decode(&head, body, None).unwrap(), reply);
    let shared = match Reply::decode(&head, body, Some(&stream)).unwrap() {
        Reply::Entry(entry) => Reply::Entry(plain_entry(entry)),
        Reply::Outcome(crate::Outcome::Hit(hit)) => Reply::Outcome(crate::Outcome::Hit(Hit {
            value: plain_value(hit.value),
            ..hit
        })),
        other => other,
    };
    assert_eq!(&shared, reply);
    stream.to_vec()
}

proptest! {
    #[test]
    fn commands_come_back(pool in pools(), envelope in envelopes(), command in commands()) {
        let request = Request::Command(fill(command, &pool));
        let copied = check_request(&request, envelope, None);
        prop_assert_eq!(check_request(&request, envelope, Some(&pool.value)), copied);
    }

    #[test]
    fn server_commands_come_back(
        pool in pools(), envelope in envelopes(), number in 0..SERVER_COMMANDS, fact: u64, flag: bool,
    ) {
        check_request(&Request::Server(server_command(number, fact, flag, &pool)), envelope, None);
    }

    #[test]
    fn requests_of_members_come_back(
        pool in pools(), envelope in envelopes(), hit in hits(), number in 0_usize..4,
        slots in slot_sets(),
    ) {
        let entry = entry(number, envelope.space, &hit, &pool);
        check_request(&Request::Put { entry, again: hit.won }, envelope, None);
        check_request(&Request::Fetch { key: &pool.key }, envelope, None);
        let after = hit.stale.then_some(hit.version);
        let fetch = Request::FetchSlots { slots, after, cursor: &pool.key, len_max: hit.flags };
        check_request(&fetch, envelope, None);
        check_request(&Request::Ping, envelope, None);
        check_request(&Request::Flushes, envelope, None);
        let names = vec!["ci", "", "issuer:subject"];
        check_request(&Request::Writers { names }, envelope, None);
        for cutoff in [None, Some(hit.version)] {
            let place = envelope.space & 0xfff0;
            for purge in [None, PurgeScope::new(WriterId::new(7), place, hit.version)] {
                let flush = Request::Flush { all_databases: hit.won, cutoff, purge };
                check_request(&flush, envelope, None);
            }
        }
        let get = Get { want_value: hit.won, bump: hit.lost, ..Get::new(&pool.key) };
        check_request(&Request::Copy { get }, envelope, None);
    }

    #[test]
    fn outcomes_come_back(
        pool in pools(), envelope in envelopes(), hit in hits(), number in 0..OUTCOMES,
    ) {
        check_reply(&Reply::Outcome(outcome(number, &hit, &pool)), envelope);
    }

    #[test]
    fn server_outcomes_come_back(
        pool in pools(), envelope in envelopes(), number in 0..SERVER_OUTCOMES, fact: u64, flag: bool,
    ) {
        check_reply(&Reply::Server(server_outcome(number, fact, flag, &pool)), envelope);
    }

    #[test]
    fn replies_of_members_come_back(
        pool in pools(), envelope in envelopes(), hit in hits(), number in 0_usize..4,
    ) {
        let entry = entry(number, envelope.space, &hit, &pool);
        check_reply(&Reply::Entry(entry), envelope);
        for reply in [
            Reply::Applied, Reply::NotNewer, Reply::Unknown, Reply::Pong, Reply::WrongOwner,
            Reply::Refused(refusal(number)), Reply::Version(hit.version),
        ] {
            check_reply(&reply, envelope);
        }
    }

    #[test]
    fn pages_come_back(
        pool in pools(), envelope in envelopes(), facts in vec((0_usize..4, hits()), 0..6),
    ) {
        let entries: Vec<_> = facts
            .iter()
            .map(|(number, hit)| entry(*number, hit.idle_s, hit, &pool))
            .collect();
        let mut page = PageBuilder::new();
        for entry in &entries {
            page.push(entry).unwrap();
        }
        let page = page.page(&pool.key);
        check_reply(&Reply::Page(page), envelope);
        let found: Result<Vec<_>, _> = page.iter().collect();
        prop_assert_eq!(found.unwrap(), entries);
    }

    #[test]
    fn incomplete_slots_come_back(envelope in envelopes(), slots in slot_sets()) {
        check_reply(&Reply::Incomplete(slots), envelope);
    }

    #[test]
    fn flushes_come_back(envelope in envelopes(), rows in vec((0_u32.., 0_u64.., 0_u64.., 0_u32..), 0..6)) {
        let flush = |(space, cutoff, at_ms, writer)| match PurgeScope::new(WriterId::new(writer), space, at_ms) {
            None => Flush { space, cutoff, at_ms, purge: None },
            purge => Flush { space, cutoff, at_ms: 0, purge },
        };
        check_reply(&Reply::Flushes(rows.into_iter().map(flush).collect()), envelope);
    }

    #[test]
    fn a_shared_value_is_not_copied_and_gives_the_same_bytes(
        pool in pools(), envelope in envelopes(), hit in hits(),
    ) {
        let hit = |value| Reply::Outcome(crate::Outcome::Hit(Hit {
            value, value_len: pool.value.len(), ..hit.clone()
        }));
        let written = |reply: Reply<'_>| {
            let mut out = Out::new();
            reply.encode(envelope, u32::MAX, &mut out).unwrap();
            let mut slices = [std::io::IoSlice::new(&[]); 8];
            let count = out.io_slices(&mut slices);
            (out.to_vec(), count)
        };
        let (shared, count) = written(hit(Value::Shared(pool.value.clone())));
        let (copied, one) = written(hit(Value::Copied(&pool.value)));
        prop_assert_eq!(shared, copied);
        prop_assert_eq!(one, 1);
        prop_assert_eq!(count, if pool.value.len() >= crate::out::SHARE_LEN_MIN { 2 } else { 1 });
    }

    #[test]
    fn any_cut_of_the_stream_gives_the_same_frames(
        pool in pools(),
        sent in vec((envelopes(), commands()), 1..8),
        reads in vec(1_usize..300, 1..20),
    ) {
        let mut out = Out::new();
        for (envelope, command) in &sent {
            let request = Request::Command(fill(command.clone(), &pool));
            request.encode(*envelope, u32::MAX, Some(&pool.value), &mut out).unwrap();
        }
        let stream = out.to_vec();
        let whole = frames(Kind::Request, &stream, &[]);
        prop_assert_eq!(whole.len(), sent.len());
        prop_assert_eq!(&frames(Kind::Request, &stream, &reads), &whole);
        for ((head, body), (envelope, command)) in whole.iter().zip(&sent) {
            prop_assert_eq!(head.envelope, *envelope);
            let request = Request::decode(head, body, None).unwrap();
            prop_assert_eq!(request, Request::Command(fill(command.clone(), &pool)));
        }
    }
}
