//! What holds for every input: progress, no panic, the same requests however the bytes are cut, and
//! replies whose lengths add up.

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::Failure;
use crate::drive::drive;
use crate::outcome::{Hit, Number, Stored, Value};

/// Opcodes, the known ones more often.
fn opcodes() -> impl Strategy<Value = u8> {
    prop_oneof![4 => 0_u8..=0x24, 1 => any::<u8>()]
}

/// Packets with mostly sensible lengths; often valid, sometimes too long, sometimes inconsistent.
fn packets() -> impl Strategy<Value = Vec<u8>> {
    let extras = prop_oneof![Just(0_usize), Just(4), Just(8), Just(20), 0_usize..40];
    let key = prop_oneof![3 => 1_usize..10, 1 => 0_usize..300];
    let value = prop_oneof![2 => Just(0_usize), 3 => 0_usize..50, 1 => 990_usize..1100];
    let sound = (opcodes(), extras, key, value, any::<u64>(), any::<u8>()).prop_map(
        |(opcode, extras, key, value, cas, byte)| {
            let part = |len| vec![byte; len];
            packet_with_cas(opcode, &part(extras), &part(key), &part(value), cas)
        },
    );
    let unsound = (opcodes(), any::<u16>(), any::<u8>(), 0_u32..2000).prop_map(
        |(opcode, key_len, extras_len, body_len)| {
            let mut bytes = header(opcode, key_len, extras_len, body_len);
            bytes.resize(24 + body_len as usize, b'x');
            bytes
        },
    );
    prop_oneof![4 => sound, 1 => unsound]
}

fn outcomes() -> impl Strategy<Value = Outcome<'static>> {
    let hits = (vec(any::<u8>(), 0..100), any::<u32>(), any::<u64>()).prop_map(
        |(value, flags, version)| {
            Outcome::Hit(Hit {
                value_len: value.len(),
                value: Value::Shared(Bytes::from(value)),
                flags,
                version,
                ttl_ms: None,
                expires_at_ms: None,
                idle_s: 0,
                fetched_before: false,
                stale: false,
                won: false,
                lost: false,
            })
        },
    );
    let numbers = (vec(any::<u8>(), 0..24), any::<u64>()).prop_map(|(text, version)| {
        Outcome::Number(Number {
            text: text.as_slice().into(),
            version,
            ttl_ms: None,
        })
    });
    let failures = (0..Failure::ALL.len()).prop_map(|i| Outcome::Failed(Failure::ALL[i]));
    prop_oneof![
        hits,
        numbers,
        failures,
        any::<u64>().prop_map(|version| Outcome::Stored(Stored {
            version,
            value_len: 0,
            previous: None
        })),
        any::<u64>().prop_map(|version| Outcome::Touched { version }),
        any::<u64>().prop_map(|version| Outcome::Deleted { version }),
        Just(Outcome::Miss),
        Just(Outcome::NotStored(None)),
        Just(Outcome::Exists),
        Just(Outcome::NotFound),
        Just(Outcome::NotANumber),
        Just(Outcome::Overflow),
    ]
}

/// Lengths of the packets in a reply, after checking that the header's lengths add up.
fn reply_packets(mut bytes: &[u8]) -> usize {
    let mut count = 0;
    while !bytes.is_empty() {
        assert_eq!(bytes[0], 0x81);
        assert_eq!(&bytes[12..16], &OPAQUE);
        let key_len = usize::from(u16::from_be_bytes([bytes[2], bytes[3]]));
        let extras_len = usize::from(bytes[4]);
        let body_len = u32::from_be_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]) as usize;
        assert!(extras_len + key_len <= body_len);
        bytes = &bytes[24 + body_len..];
        count += 1;
    }
    count
}

proptest! {
    #[test]
    fn any_cut_of_the_stream_gives_the_same_requests(
        packets in vec(packets(), 1..12),
        reads in vec(1_usize..80, 1..20),
    ) {
        let stream = packets.concat();
        let run = |reads: &[usize]| drive(&mut Parser::new(LIMITS), Parser::parse, &stream, reads);
        let whole = run(&[]);
        prop_assert_eq!(&run(&reads), &whole);
        prop_assert_eq!(&run(&[1]), &whole);
    }

    #[test]
    fn each_packet_is_one_request_that_ends_where_it_ends(
        packets in vec(packets(), 1..12),
    ) {
        let stream = packets.concat();
        let requests = drive(&mut Parser::new(LIMITS), Parser::parse, &stream, &[]);
        let mut end = 0;
        for (packet, request) in packets.iter().zip(&requests) {
            // Lengths that no packet has end the stream with the header.
            let is_broken = request.contains("Broken");
            end += if is_broken { 24 } else { packet.len() };
            let prefix = format!("{end} ");
            prop_assert!(request.starts_with(&prefix), "{} does not end at {}", request, end);
        }
        let closed = requests
            .last()
            .is_some_and(|request| request.contains("Close") || request.contains("Broken"));
        prop_assert!(closed || requests.len() == packets.len());
    }

    #[test]
    fn random_bytes_do_no_harm(
        bytes in vec(any::<u8>(), 0..300),
        reads in vec(1_usize..80, 1..8),
        starts_with_magic in any::<bool>(),
    ) {
        let bytes = if starts_with_magic { [&[0x80], &bytes[..]].concat() } else { bytes };
        let run = |reads: &[usize]| drive(&mut Parser::new(LIMITS), Parser::parse, &bytes, reads);
        prop_assert_eq!(run(&reads), run(&[]));
    }

    #[test]
    fn replies_add_up_and_are_at_most_one_packet(packet in packets(), outcome in outcomes()) {
        let mut parser = Parser::new(LIMITS);
        if let Step::Request { mut request, .. } = parser.parse(&packet) {
            let mut out = Out::new();
            if let Body::Data(commands) = &request.body {
                for command in commands {
                    request.reply.each(command, &outcome, &mut out);
                }
            }
            request.reply.finish(&mut out);
            prop_assert!(reply_packets(&out.to_vec()) <= 1);
        }
    }
}
