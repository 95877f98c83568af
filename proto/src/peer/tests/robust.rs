//! Damaged, cut-off, too long and unknown frames.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;

use super::strategies::*;
use crate::peer::*;
use crate::request::{ServerOutcome, StatsKind};
use crate::{ClusterView, Command, ExpirySpec, Get, Moved, Out, Outcome, ServerCommand, Store};

fn encoded(request: &Request<'_>, envelope: Envelope) -> Vec<u8> {
    let mut out = Out::new();
    request.encode(envelope, u32::MAX, None, &mut out).unwrap();
    out.to_vec()
}

/// A frame with a right checksum around any body.
fn sealed(kind: Kind, opcode: u8, flags: u16, body: &[u8]) -> Vec<u8> {
    let head = Head {
        opcode,
        flags,
        envelope: Envelope::default(),
        body_len: body.len() as u32,
    };
    let mut bytes = [&[0; HEAD_LEN], body].concat();
    frame::seal(&mut bytes, kind, &head, &[]);
    bytes
}

proptest! {
    #[test]
    fn a_frame_that_is_cut_off_needs_more(pool in pools(), command in commands(), cut: usize) {
        let bytes = encoded(&Request::Command(fill(command, &pool)), Envelope::default());
        let cut = cut % bytes.len();
        match next(Kind::Request, &bytes[..cut], u32::MAX).unwrap() {
            Step::Need { total } => prop_assert!(cut < total && total <= bytes.len().max(HEAD_LEN)),
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn a_flipped_bit_in_what_is_summed_up_is_seen(
        pool in pools(), envelope in envelopes(), command in commands(), bit: usize,
    ) {
        let mut bytes = encoded(&Request::Command(fill(command, &pool)), envelope);
        let bit = bit % (bytes.len().min(HEAD_LEN + CHECKED_LEN) * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        match next(Kind::Request, &bytes, u32::MAX) {
            Err(FrameError::Kind(_)) => prop_assert!(bit < 8),
            Err(FrameError::Checksum { .. }) => {}
            // A longer length, of which the part that is summed up is not there.
            Ok(Step::Need { total }) => prop_assert!(total <= HEAD_LEN + CHECKED_LEN),
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn a_flipped_bit_anywhere_in_an_entry_is_seen(
        pool in pools(), hit in hits(), number in 0_usize..4, bit: usize,
    ) {
        let entry = entry(number, 7, &hit, &pool);
        let mut page = PageBuilder::new();
        page.push(&entry).unwrap();
        let mut bytes = page.page(&[]).entries.to_vec();
        // Behind the length in front of the entry.
        let bit = 32 + bit % ((bytes.len() - 4) * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        let page = Page { entries: &bytes, next: &[] };
        let found: Vec<_> = page.iter().collect();
        prop_assert!(matches!(found[..], [Err(DecodeError::EntryChecksum { .. })]), "{:?}", found);
    }

    #[test]
    fn any_bytes_are_followed_or_refused(bytes in vec(any::<u8>(), 0..200), first in 0_usize..4) {
        let mut bytes = bytes;
        if let (Some(place), Some(&kind)) = (bytes.first_mut(), [0xfb, 0xfc, 0xfa].get(first)) {
            *place = kind;
        }
        for kind in [Kind::Request, Kind::Reply] {
            if let Ok(Step::Need { total }) = next(kind, &bytes, u32::MAX) {
                prop_assert!(total > bytes.len() && total <= HEAD_LEN + CHECKED_LEN);
            }
        }
        let _ = hello::Hello::decode(&bytes);
    }

    /// Right checksums around nonsense: what a peer with a fault might send.
    #[test]
    fn any_body_is_read_or_refused_and_reads_back_as_it_was_written(
        opcode in prop_oneof![4 => 0_u8..0x50, 1 => any::<u8>()],
        flags in prop_oneof![2 => Just(0_u16), 2 => 0_u16..512, 1 => any::<u16>()],
        body in vec(prop_oneof![3 => 0_u8..6, 1 => any::<u8>()], 0..120),
    ) {
        let bytes = sealed(Kind::Request, opcode, flags, &body);
        let Ok(Step::Frame { head, body: found, .. }) = next(Kind::Request, &bytes, u32::MAX) else {
            panic!("a frame");
        };
        if let Ok(request) = Request::decode(&head, found, None) {
            // There is one encoding of each request, but for an expiry that need not be told.
            let again = encoded(&request, head.envelope);
            let may_tell_never = match request {
                Request::Command(Command::Store(store)) => store.expiry == ExpirySpec::Never,
                _ => false,
            };
            prop_assert!(again == bytes || may_tell_never);
        }
        let bytes = sealed(Kind::Reply, opcode, flags, &body);
        let Ok(Step::Frame { head, body: found, .. }) = next(Kind::Reply, &bytes, u32::MAX) else {
            panic!("a frame");
        };
        if let Ok(Reply::Page(page)) = Reply::decode(&head, found, None) {
            prop_assert!(page.iter().count() <= found.len());
        }
    }

    #[test]
    fn a_body_that_is_cut_off_or_longer_is_refused_or_another_one(
        pool in pools(), command in commands(), cut: usize,
    ) {
        let bytes = encoded(&Request::Command(fill(command, &pool)), Envelope::default());
        let Ok(Step::Frame { head, body, .. }) = next(Kind::Request, &bytes, u32::MAX) else {
            panic!("a frame");
        };
        if !body.is_empty() {
            let _ = Request::decode(&head, &body[..cut % body.len()], None);
        }
    }
}

#[test]
fn a_body_longer_than_is_taken_can_be_dropped_before_it_is_there() {
    let value = vec![7; 5000];
    let store = Store::set(b"key", &value, 0, ExpirySpec::Never);
    let envelope = Envelope {
        id: 99,
        ..Envelope::default()
    };
    let bytes = encoded(&Request::Command(Command::Store(store)), envelope);
    let Ok(Step::TooLong { head, len }) = next(Kind::Request, &bytes[..600], 1000) else {
        panic!("too long");
    };
    assert_eq!((head.envelope.id, len), (99, bytes.len() as u64));
    // Not believed before its checksum was seen.
    assert_eq!(
        next(Kind::Request, &bytes[..40], 1000),
        Ok(Step::Need {
            total: HEAD_LEN + CHECKED_LEN
        })
    );
}

#[test]
fn what_is_too_long_to_send_leaves_nothing_behind() {
    let mut out = Out::new();
    out.put(b"before");
    let value = vec![7; 5000];
    let store = Store::set(b"key", &value, 0, ExpirySpec::Never);
    let request = Request::Command(Command::Store(store));
    let error = request
        .encode(Envelope::default(), 1000, None, &mut out)
        .unwrap_err();
    assert_eq!((error.len, error.max), (5009, 1000));
    let key = vec![b'k'; KEY_LEN_MAX + 1];
    let store = Store::set(&key, b"", 0, ExpirySpec::Never);
    let request = Request::Command(Command::Store(store));
    assert!(
        request
            .encode(Envelope::default(), u32::MAX, None, &mut out)
            .is_err()
    );
    let entry = Entry::tombstone(0, &key, 1);
    assert!(PageBuilder::new().push(&entry).is_err());
    let reply = Reply::Entry(entry);
    assert!(
        reply
            .encode(Envelope::default(), u32::MAX, &mut out)
            .is_err()
    );
    assert_eq!(out.to_vec(), b"before");
}

#[test]
fn what_a_newer_version_may_send_is_told_from_what_is_broken() {
    let refusal = |opcode, flags, body: &[u8]| {
        let bytes = sealed(Kind::Request, opcode, flags, body);
        let Ok(Step::Frame { head, body, .. }) = next(Kind::Request, &bytes, u32::MAX) else {
            panic!("a frame");
        };
        Refusal::from(Request::decode(&head, body, None).unwrap_err())
    };
    assert_eq!(refusal(0x1f, 0, b""), Refusal::Unsupported);
    assert_eq!(refusal(0x77, 0, b""), Refusal::Unsupported);
    assert_eq!(refusal(0x01, 0x8000, b"key"), Refusal::Unsupported);
    assert_eq!(refusal(0x43, 0, b"x"), Refusal::Malformed);
    assert_eq!(refusal(0x02, 0, b"\0\0\0\0\x09\0key"), Refusal::Malformed);
    assert_eq!(refusal(0x40, 0, &[0; 26]), Refusal::Damaged);
    assert_eq!(
        refusal(0x49, 0, b"\x01\0\xff"),
        Refusal::Malformed,
        "no UTF-8"
    );
}

/// Logins and settings are out of the reach of other members and routers.
#[test]
fn commands_that_no_process_sends_to_another_are_refused() {
    let (name, value) = (&b"log"[..], &b"debug"[..]);
    for command in [
        ServerCommand::Stats(StatsKind::Settings),
        ServerCommand::Stats(StatsKind::Connections),
        ServerCommand::Info(Vec::new()),
        ServerCommand::ConfigGet(vec![name]),
        ServerCommand::ConfigSet(vec![(name, value)]),
        ServerCommand::Time,
        ServerCommand::Keys(b"*"),
        ServerCommand::ClientInfo,
        ServerCommand::Auth {
            user: name,
            password: value,
        },
        ServerCommand::ClusterView,
    ] {
        let bytes = encoded(&Request::Server(command), Envelope::default());
        let Ok(Step::Frame { head, body, .. }) = next(Kind::Request, &bytes, u32::MAX) else {
            panic!("a frame");
        };
        assert_eq!(body, b"");
        let error = Request::decode(&head, body, None).unwrap_err();
        assert_eq!(Refusal::from(error), Refusal::Unsupported);
    }
}

#[test]
fn answers_that_no_process_sends_to_another_are_refused() {
    let moved = Moved {
        slot: 1,
        host: "host".to_owned(),
        port: 2,
    };
    for reply in [
        Reply::Outcome(Outcome::Moved(moved)),
        Reply::Server(ServerOutcome::Text("text".to_owned())),
        Reply::Server(ServerOutcome::WrongPassword),
        Reply::Server(ServerOutcome::AuthNotConfigured),
        Reply::Server(ServerOutcome::Cluster(Arc::new(ClusterView::alone(
            "node", None,
        )))),
        Reply::Server(ServerOutcome::Invalid("why".to_owned())),
    ] {
        let mut out = Out::new();
        reply
            .encode(Envelope::default(), u32::MAX, &mut out)
            .unwrap();
        let bytes = out.to_vec();
        let Ok(Step::Frame { head, body, .. }) = next(Kind::Reply, &bytes, u32::MAX) else {
            panic!("a frame");
        };
        let error = Reply::decode(&head, body, None).unwrap_err();
        assert_eq!(Refusal::from(error), Refusal::Unsupported);
    }
}

#[test]
fn a_reply_is_not_taken_for_a_request() {
    let bytes = encoded(
        &Request::Command(Command::Get(Get::new(b"k"))),
        Envelope::default(),
    );
    assert_eq!(next(Kind::Reply, &bytes, 99), Err(FrameError::Kind(0xfb)));
    assert_eq!(next(Kind::Reply, b"\xfa", 99), Err(FrameError::Kind(0xfa)));
}

#[test]
fn an_entry_of_another_space_than_its_request_is_refused() {
    let entry = Entry::tombstone(3, b"key", 1);
    let bytes = encoded(
        &Request::Put {
            entry,
            again: false,
        },
        Envelope::default(),
    );
    let Ok(Step::Frame { head, body, .. }) = next(Kind::Request, &bytes, u32::MAX) else {
        panic!("a frame");
    };
    assert!(Request::decode(&head, body, None).is_err());
}

#[test]
fn slots_are_in_a_set_or_not() {
    let mut set: SlotSet = [0, 7, 8, 16_383, 16_384].into_iter().collect();
    assert_eq!(set.len(), 4);
    assert!(set.contains(16_383) && !set.contains(16_384) && !set.contains(1));
    set.remove(7);
    assert!(!set.contains(7) && set.contains(8));
    assert_eq!(
        (SlotSet::all().len(), SlotSet::new().is_empty()),
        (16_384, true)
    );
}
