//! Outcomes in, packets out.

use bytes::Bytes;

use super::*;
use crate::memcached::binary::Late;
use crate::outcome::{Hit, Number, Stored, Value};
use crate::request::LateReply;
use crate::{Failure, Version};

const VERSION: Version = 0x0102_0304_0506_0708;

const EXPIRY: [u8; 4] = [0, 0, 0, 100];

fn hit(value: Value<'_>) -> Outcome<'_> {
    Outcome::Hit(Hit {
        value_len: value.as_slice().len(),
        value,
        flags: 0x0000_abcd,
        version: VERSION,
        ttl_ms: Some(1000),
        expires_at_ms: Some(1),
        idle_s: 1,
        fetched_before: true,
        stale: false,
        won: false,
        lost: false,
    })
}

fn stored() -> Outcome<'static> {
    Outcome::Stored(Stored {
        version: VERSION,
        value_len: 5,
        previous: None,
    })
}

fn number(text: &[u8]) -> Outcome<'static> {
    Outcome::Number(Number {
        text: text.into(),
        version: VERSION,
        ttl_ms: None,
    })
}

/// Each opcode that carries a command, as a sound packet.
fn data_packets() -> Vec<Vec<u8>> {
    let mut packets = vec![];
    for opcode in [0x00, 0x09, 0x0c, 0x0d, 0x04, 0x14] {
        packets.push(packet(opcode, b"", b"key", b""));
    }
    for opcode in [0x01, 0x02, 0x03, 0x11, 0x12, 0x13] {
        packets.push(packet(opcode, &STORE_EXTRAS, b"key", b"value"));
    }
    for opcode in [0x05, 0x06, 0x15, 0x16] {
        packets.push(packet(opcode, &[0; 20], b"key", b""));
    }
    for opcode in [0x0e, 0x0f, 0x19, 0x1a] {
        packets.push(packet(opcode, b"", b"key", b"value"));
    }
    for opcode in [0x1c, 0x1d, 0x1e, 0x23, 0x24] {
        packets.push(packet(opcode, &EXPIRY, b"key", b""));
    }
    packets
}

#[test]
fn a_getk_hit_has_these_exact_bytes() {
    // What memcached 1.6.18 sends for flags 0xabcd, key "k" and value "v", but for the CAS.
    let expected = b"\x81\x0c\x00\x01\x04\x00\x00\x00\x00\x00\x00\x06\xde\xad\xbe\xef\
        \x01\x02\x03\x04\x05\x06\x07\x08\x00\x00\xab\xcdkv";
    let request = packet(0x0c, b"", b"k", b"");
    assert_eq!(reply_to(&request, &hit(Value::Copied(b"v"))), expected);
}

#[test]
fn hits_carry_flags_version_and_value_and_the_key_if_asked() {
    for (opcode, extras, key) in [
        (0x00, &b""[..], &b""[..]),
        (0x09, b"", b""),
        (0x0c, b"", b"key"),
        (0x0d, b"", b"key"),
        (0x1d, &EXPIRY, b""),
        (0x1e, &EXPIRY, b""),
        (0x23, &EXPIRY, b"key"),
        (0x24, &EXPIRY, b"key"),
    ] {
        let request = packet(opcode, extras, b"key", b"");
        for value in [&b""[..], b"value"] {
            let expected = answer(opcode, 0, VERSION, (&[0, 0, 0xab, 0xcd], key, value));
            assert_eq!(reply_to(&request, &hit(Value::Copied(value))), expected);
        }
    }
}

#[test]
fn a_large_value_is_sent_shared_and_whole() {
    let value = Bytes::from(vec![b'v'; 100_000]);
    let expected = answer(0x00, 0, VERSION, (&[0, 0, 0xab, 0xcd], b"", &value));
    let request = packet(0x00, b"", b"key", b"");
    assert_eq!(reply_to(&request, &hit(Value::Shared(value))), expected);
}

#[test]
fn a_touch_answers_the_flags() {
    let request = packet(0x1c, &EXPIRY, b"key", b"");
    let expected = answer(0x1c, 0, VERSION, (&[0, 0, 0xab, 0xcd], b"", b""));
    assert_eq!(reply_to(&request, &hit(Value::Copied(b""))), expected);
    assert_eq!(reply_to(&request, &Outcome::Miss), bare(0x1c, 1));
}

#[test]
fn misses_are_told_unless_quiet_and_name_the_key_if_asked() {
    for (opcode, extras, expected) in [
        (0x00, &b""[..], bare(0x00, 1)),
        (0x09, b"", vec![]),
        (0x0c, b"", answer(0x0c, 1, 0, (b"", b"key", b""))),
        (0x0d, b"", vec![]),
        (0x1d, &EXPIRY, bare(0x1d, 1)),
        (0x1e, &EXPIRY, vec![]),
        (0x23, &EXPIRY, answer(0x23, 1, 0, (b"", b"key", b""))),
        (0x24, &EXPIRY, vec![]),
    ] {
        assert_eq!(
            reply_to(&packet(opcode, extras, b"key", b""), &Outcome::Miss),
            expected
        );
    }
}

#[test]
fn stores_answer_the_new_version_unless_quiet() {
    for (opcode, quiet) in [
        (0x01, 0x11),
        (0x02, 0x12),
        (0x03, 0x13),
        (0x0e, 0x19),
        (0x0f, 0x1a),
    ] {
        let extras = if opcode < 0x04 {
            &STORE_EXTRAS[..]
        } else {
            b""
        };
        assert_eq!(
            reply_to(&packet(opcode, extras, b"key", b"value"), &stored()),
            answer(opcode, 0, VERSION, (b"", b"", b""))
        );
        assert_eq!(
            reply_to(&packet(quiet, extras, b"key", b"value"), &stored()),
            b""
        );
    }
}

#[test]
fn unmet_conditions_have_the_status_of_their_opcode() {
    // As memcached 1.6.18: (opcode, quiet, condition not met, CAS of an absent entry).
    for (opcode, quiet, not_stored, not_found) in [
        (0x02, 0x12, 2, 1),
        (0x03, 0x13, 1, 1),
        (0x0e, 0x19, 5, 5),
        (0x0f, 0x1a, 5, 5),
    ] {
        let extras = if opcode < 0x04 {
            &STORE_EXTRAS[..]
        } else {
            b""
        };
        for opcode in [opcode, quiet] {
            let request = packet(opcode, extras, b"key", b"value");
            let reply = |outcome| reply_to(&request, &outcome);
            assert_eq!(reply(Outcome::NotStored(None)), bare(opcode, not_stored));
            assert_eq!(reply(Outcome::NotFound), bare(opcode, not_found));
        }
    }
    let set = packet_with_cas(0x01, &STORE_EXTRAS, b"key", b"value", 7);
    assert_eq!(reply_to(&set, &Outcome::NotFound), bare(0x01, 1));
    let setq = packet_with_cas(0x11, &STORE_EXTRAS, b"key", b"value", 7);
    assert_eq!(reply_to(&setq, &Outcome::NotFound), bare(0x11, 1));
}

#[test]
fn another_version_is_always_told() {
    for request in data_packets() {
        assert_eq!(reply_to(&request, &Outcome::Exists), bare(request[1], 2));
    }
}

#[test]
fn deletes_answer_without_a_version() {
    let reply = |opcode, outcome| reply_to(&packet(opcode, b"", b"key", b""), &outcome);
    assert_eq!(reply(0x04, Outcome::Deleted { version: 0 }), bare(0x04, 0));
    assert_eq!(reply(0x14, Outcome::Deleted { version: 0 }), b"");
    assert_eq!(reply(0x04, Outcome::NotFound), bare(0x04, 1));
    assert_eq!(reply(0x14, Outcome::NotFound), bare(0x14, 1));
}

#[test]
fn arithmetic_answers_eight_bytes_unless_quiet() {
    for (opcode, quiet) in [(0x05, 0x15), (0x06, 0x16)] {
        for (text, bytes) in [
            (&b"10"[..], [0, 0, 0, 0, 0, 0, 0, 10]),
            (b"18446744073709551615", [0xff; 8]),
            // A memcached-like store pads what became shorter.
            (b"0 ", [0; 8]),
        ] {
            let request = packet(opcode, &[0; 20], b"key", b"");
            let expected = answer(opcode, 0, VERSION, (b"", b"", &bytes));
            assert_eq!(reply_to(&request, &number(text)), expected);
            let request = packet(quiet, &[0; 20], b"key", b"");
            assert_eq!(reply_to(&request, &number(text)), b"");
        }
        for opcode in [opcode, quiet] {
            let request = packet(opcode, &[0; 20], b"key", b"");
            assert_eq!(reply_to(&request, &Outcome::NotFound), bare(opcode, 1));
            assert_eq!(reply_to(&request, &Outcome::NotANumber), bare(opcode, 6));
            assert_eq!(reply_to(&request, &Outcome::Overflow), bare(opcode, 6));
            // A number of another dialect's operation does not fit into eight unsigned bytes.
            assert_eq!(reply_to(&request, &number(b"-1")), bare(opcode, 6));
        }
    }
}

#[test]
fn each_failure_has_its_status_and_no_body_also_when_quiet() {
    for (failure, status) in [
        (Failure::Busy, 0x85),
        (Failure::OutOfSpace, 0x82),
        (Failure::TooLarge, 0x03),
        (Failure::ReadOnly, 0x20),
        (Failure::AuthRequired, 0x20),
        (Failure::Unavailable, 0x86),
    ] {
        for request in data_packets() {
            let expected = bare(request[1], status);
            assert_eq!(reply_to(&request, &Outcome::Failed(failure)), expected);
            let late = with_request(&request, |request| request.reply.late());
            assert!(matches!(late, LateReply::Binary(Late { .. })));
            let mut out = Out::new();
            late.failure(failure, &mut out);
            assert_eq!(out.to_vec(), expected, "late {failure:?}");
        }
    }
}

#[test]
fn statistics_are_a_packet_a_row_and_an_empty_one() {
    let request = packet(0x10, b"", b"", b"");
    let rows = [("pid", "17"), ("", "nameless"), ("empty", "")];
    let rows = rows.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let expected = [
        answer(0x10, 0, 0, (b"", b"pid", b"17")),
        answer(0x10, 0, 0, (b"", b"empty", b"")),
        bare(0x10, 0),
    ];
    assert_eq!(
        server_reply_to(&request, &ServerOutcome::Pairs(rows.into())),
        expected.concat()
    );
    assert_eq!(
        server_reply_to(&request, &ServerOutcome::Pairs(vec![])),
        bare(0x10, 0)
    );
    // `reset`: memcached 1.6.18 sends the one empty packet.
    let reset = packet(0x10, b"", b"reset", b"");
    assert_eq!(server_reply_to(&reset, &ServerOutcome::Done), bare(0x10, 0));
}

#[test]
fn a_flush_is_answered_unless_quiet() {
    let flush = |opcode| packet(opcode, b"", b"", b"");
    assert_eq!(
        server_reply_to(&flush(0x08), &ServerOutcome::Done),
        bare(0x08, 0)
    );
    assert_eq!(server_reply_to(&flush(0x18), &ServerOutcome::Done), b"");
    for opcode in [0x08, 0x18] {
        let refused = ServerOutcome::Failed(Failure::ReadOnly);
        assert_eq!(
            server_reply_to(&flush(opcode), &refused),
            bare(opcode, 0x20)
        );
    }
}

#[test]
fn authentication_is_answered_by_status_alone() {
    let request = packet(0x21, b"", b"PLAIN", b"\0user\0secret");
    for (outcome, status) in [
        (ServerOutcome::Done, 0),
        (ServerOutcome::WrongPassword, 0x20),
        (ServerOutcome::AuthNotConfigured, 0x81),
        (ServerOutcome::Failed(Failure::Busy), 0x85),
    ] {
        assert_eq!(server_reply_to(&request, &outcome), bare(0x21, status));
    }
}

#[test]
fn outcomes_that_nothing_here_asks_for_are_an_internal_error() {
    let request = packet(0x10, b"", b"", b"");
    for outcome in [
        ServerOutcome::Text("text".to_owned()),
        ServerOutcome::Integer(1),
        ServerOutcome::Scan {
            cursor: 0,
            keys: vec![],
        },
        ServerOutcome::Key(None),
        ServerOutcome::InvalidCursor,
    ] {
        assert_eq!(server_reply_to(&request, &outcome), bare(0x10, 0x84));
    }
}
