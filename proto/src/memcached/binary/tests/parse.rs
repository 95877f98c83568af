//! Packets in, requests out.

use super::*;
use crate::request::{ServerCommand, StatsKind};
use crate::{Arith, ArithOp, Command, Delete, ExpirySpec, Failure, Get, Store, StoreMode};

fn assert_command(bytes: &[u8], expected: &Command<'_>) {
    with_request(bytes, |request| {
        assert_eq!(request.database, 0);
        let Body::Data(commands) = request.body else {
            panic!("no command: {request:?}")
        };
        assert_eq!(&commands[..], std::slice::from_ref(expected));
    });
}

fn assert_server_command(bytes: &[u8], expected: &ServerCommand<'_>) {
    with_request(bytes, |request| {
        let Body::Server(command) = request.body else {
            panic!("no server command: {request:?}")
        };
        assert_eq!(command, *expected);
    });
}

fn store(mode: StoreMode, compare: Option<u64>) -> Command<'static> {
    let set = Store::set(b"key", b"value", 0xabcd_0123, ExpirySpec::InMs(100_000));
    Command::Store(Store {
        mode,
        compare,
        ..set
    })
}

fn extend(mode: StoreMode, compare: Option<u64>) -> Command<'static> {
    let set = Store::set(b"key", b"value", 0, ExpirySpec::Keep);
    Command::Store(Store {
        mode,
        compare,
        ..set
    })
}

#[test]
fn a_set_is_read_from_its_exact_bytes() {
    let bytes = b"\x80\x01\x00\x03\x08\x00\x00\x07\x00\x00\x00\x10\xde\xad\xbe\xef\
        \x00\x00\x00\x00\x00\x00\x00\x05\xab\xcd\x01\x23\x00\x00\x00\x64keyvalue";
    assert_command(bytes, &store(StoreMode::Set, Some(5)));
}

#[test]
fn reads_come_with_and_without_quiet_and_key() {
    for opcode in [0x00, 0x09, 0x0c, 0x0d] {
        assert_command(
            &packet(opcode, b"", b"key", b""),
            &Command::Get(Get::new(b"key")),
        );
    }
}

#[test]
fn stores_take_flags_expiry_and_cas() {
    for (opcode, quiet, mode) in [
        (0x01, 0x11, StoreMode::Set),
        (0x02, 0x12, StoreMode::Add),
        (0x03, 0x13, StoreMode::Replace),
    ] {
        for opcode in [opcode, quiet] {
            let plain = packet(opcode, &STORE_EXTRAS, b"key", b"value");
            assert_command(&plain, &store(mode, None));
            let compared = packet_with_cas(opcode, &STORE_EXTRAS, b"key", b"value", 77);
            assert_command(&compared, &store(StoreMode::Set, Some(77)));
        }
    }
}

#[test]
fn append_and_prepend_have_no_extras() {
    for (opcode, quiet, mode) in [
        (0x0e, 0x19, StoreMode::Append),
        (0x0f, 0x1a, StoreMode::Prepend),
    ] {
        for opcode in [opcode, quiet] {
            assert_command(&packet(opcode, b"", b"key", b"value"), &extend(mode, None));
            let compared = packet_with_cas(opcode, b"", b"key", b"value", 77);
            assert_command(&compared, &extend(mode, Some(77)));
        }
    }
}

#[test]
fn values_may_be_empty_and_hold_any_byte() {
    let expected = Store::set(b"key", b"", 0, ExpirySpec::Never);
    assert_command(
        &packet(0x01, &[0; 8], b"key", b""),
        &Command::Store(expected),
    );
    let every_byte: Vec<u8> = (0..=255).collect();
    let expected = Store::set(b"a\0 \r\n", &every_byte, 0, ExpirySpec::Never);
    let bytes = packet(0x01, &[0; 8], b"a\0 \r\n", &every_byte);
    assert_command(&bytes, &Command::Store(expected));
}

#[test]
fn deletes_take_a_cas() {
    for opcode in [0x04, 0x14] {
        assert_command(
            &packet(opcode, b"", b"key", b""),
            &Command::Delete(Delete::new(b"key")),
        );
        assert_command(
            &packet_with_cas(opcode, b"", b"key", b"", u64::MAX),
            &Command::Delete(Delete {
                compare: Some(u64::MAX),
                ..Delete::new(b"key")
            }),
        );
    }
}

/// Delta 5, initial value 258, and the expiry.
fn arith_extras(expiry: u32) -> Vec<u8> {
    [
        &[0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 1, 2],
        &expiry.to_be_bytes()[..],
    ]
    .concat()
}

#[test]
fn arithmetic_takes_delta_initial_value_expiry_and_cas() {
    let expected = |op, compare, initial| {
        Command::Arith(Arith {
            key: b"key",
            op,
            initial,
            absent_is_zero: false,
            touch: None,
            compare,
            new_version: None,
        })
    };
    for (opcode, quiet, op) in [
        (0x05, 0x15, ArithOp::Increment(5)),
        (0x06, 0x16, ArithOp::Decrement(5)),
    ] {
        for opcode in [opcode, quiet] {
            assert_command(
                &packet(opcode, &arith_extras(0), b"key", b""),
                &expected(op, None, Some((258, ExpirySpec::Never))),
            );
            assert_command(
                &packet_with_cas(opcode, &arith_extras(7), b"key", b"", 9),
                &expected(op, Some(9), Some((258, ExpirySpec::InMs(7000)))),
            );
            // All ones: fail where there is no entry.
            assert_command(
                &packet(opcode, &arith_extras(u32::MAX), b"key", b""),
                &expected(op, None, None),
            );
        }
    }
}

#[test]
fn touching_reads_set_the_expiry() {
    let expected = Get {
        touch: Some(ExpirySpec::InMs(100_000)),
        ..Get::new(b"key")
    };
    for opcode in [0x1d, 0x1e, 0x23, 0x24] {
        assert_command(
            &packet(opcode, &[0, 0, 0, 100], b"key", b""),
            &Command::Get(expected.clone()),
        );
    }
    // memcached 1.6.18 answers TOUCH with the flags, so it is a read without the value.
    let touch = Get {
        want_value: false,
        ..expected
    };
    assert_command(
        &packet(0x1c, &[0, 0, 0, 100], b"key", b""),
        &Command::Get(touch),
    );
}

#[test]
fn expiries_are_unsigned() {
    // memcached 1.6.18 keeps an entry that was set or touched with 0xffffffff.
    for (seconds, expected) in [
        (0, ExpirySpec::Never),
        (1, ExpirySpec::InMs(1000)),
        (2_592_000, ExpirySpec::InMs(2_592_000_000)),
        (2_592_001, ExpirySpec::AtMs(2_592_001_000)),
        (0x8000_0000, ExpirySpec::AtMs(2_147_483_648_000)),
        (u32::MAX, ExpirySpec::AtMs(4_294_967_295_000)),
    ] {
        let extras = [[0; 4], u32::to_be_bytes(seconds)].concat();
        let expected = Store::set(b"key", b"v", 0, expected);
        assert_command(
            &packet(0x01, &extras, b"key", b"v"),
            &Command::Store(expected),
        );
    }
}

#[test]
fn data_type_and_virtual_bucket_are_ignored() {
    // As memcached 1.6.18 does.
    let mut bytes = packet(0x00, b"", b"key", b"");
    bytes[5] = 7;
    bytes[6..8].copy_from_slice(&[0x12, 0x34]);
    assert_command(&bytes, &Command::Get(Get::new(b"key")));
}

#[test]
fn flush_may_name_a_delay() {
    for opcode in [0x08, 0x18] {
        let flush = |delay_s| ServerCommand::Flush {
            all_databases: false,
            delay_s,
        };
        assert_server_command(&packet(opcode, b"", b"", b""), &flush(0));
        assert_server_command(&packet(opcode, &[0, 0, 1, 0], b"", b""), &flush(256));
    }
}

#[test]
fn statistics_are_chosen_by_key() {
    for (key, kind) in [
        (&b""[..], StatsKind::General),
        (b"items", StatsKind::Items),
        (b"settings", StatsKind::Settings),
        (b"conns", StatsKind::Connections),
        (b"sizes", StatsKind::Empty),
        (b"slabs", StatsKind::Empty),
        (b"reset", StatsKind::Reset),
    ] {
        assert_server_command(&packet(0x10, b"", key, b""), &ServerCommand::Stats(kind));
    }
    assert_eq!(
        answers(&packet(0x10, b"", b"foo", b"")),
        (bare(0x10, 1), false)
    );
}

#[test]
fn sasl_plain_carries_user_and_password() {
    let auth = |password| ServerCommand::Auth {
        user: b"user",
        password,
    };
    for (message, password) in [
        (&b"\0user\0secret"[..], &b"secret"[..]),
        (b"user\0user\0secret", b"secret"),
        (b"\0user\0", b""),
    ] {
        assert_server_command(&packet(0x21, b"", b"PLAIN", message), &auth(password));
    }
}

#[test]
fn other_sasl_messages_are_an_authentication_error() {
    for (mechanism, message) in [
        (&b"PLAIN"[..], &b""[..]),
        (b"PLAIN", b"user"),
        (b"PLAIN", b"\0user"),
        (b"PLAIN", b"\0\0secret"),
        (b"PLAIN", b"\0user\0sec\0ret"),
        (b"PLAIN", b"admin\0user\0secret"),
        (b"plain", b"\0user\0secret"),
        (b"CRAM-MD5", b"\0user\0secret"),
    ] {
        let bytes = packet(0x21, b"", mechanism, message);
        assert_eq!(answers(&bytes), (bare(0x21, 0x20), false), "{message:?}");
    }
    assert_eq!(
        answers(&packet(0x22, b"", b"PLAIN", b"x")),
        (bare(0x22, 0x20), false)
    );
}

#[test]
fn credentials_are_bounded() {
    let longest = [b"\0user\0", &[b'x'; 4090][..]].concat();
    assert_server_command(
        &packet(0x21, b"", b"PLAIN", &longest),
        &ServerCommand::Auth {
            user: b"user",
            password: &[b'x'; 4090],
        },
    );
    let longer = [&longest[..], b"x"].concat();
    assert_eq!(
        answers(&packet(0x21, b"", b"PLAIN", &longer)),
        (bare(0x21, 4), false)
    );
}

#[test]
fn what_is_needed_is_told_exactly() {
    let bytes = packet(0x01, &STORE_EXTRAS, b"key", &[b'v'; 1000]);
    let mut parser = Parser::new(LIMITS);
    for arrived in 0..bytes.len() {
        let expected = if arrived < 24 { 24 } else { bytes.len() };
        match parser.parse(&bytes[..arrived]) {
            Step::Need { total } => assert_eq!(total, expected, "after {arrived} bytes"),
            other => panic!("{other:?} after {arrived} bytes"),
        }
    }
    assert!(matches!(parser.parse(&bytes), Step::Request { len, .. } if len == bytes.len()));
}

#[test]
fn a_long_value_is_skipped_and_then_refused() {
    // SET, ADD, REPLACE with extras; APPEND, PREPEND without; and their quiet forms.
    for opcode in [0x01, 0x02, 0x03, 0x0e, 0x0f, 0x11, 0x12, 0x13, 0x19, 0x1a] {
        let extras_len = if matches!(opcode, 0x0e | 0x0f | 0x19 | 0x1a) {
            0
        } else {
            8
        };
        let mut parser = Parser::new(LIMITS);
        let header = header(opcode, 3, extras_len, u32::from(extras_len) + 3 + 1001);
        let packet_len = 24 + u64::from(extras_len) + 3 + 1001;
        // The header is enough to know, and for a set the key, whose entry is removed.
        let is_set = matches!(opcode, 0x01 | 0x11);
        let head = [&header[..], &[0; 8], b"key"].concat();
        if is_set {
            let needs =
                |bytes| matches!(Parser::new(LIMITS).parse(bytes), Step::Need { total: 35 });
            assert!(needs(&header) && needs(&head[..34]));
        }
        match parser.parse(if is_set { &head } else { &header }) {
            Step::Skip { len } => assert_eq!(len, packet_len - 1),
            other => panic!("{other:?}"),
        }
        assert!(matches!(parser.parse(b""), Step::Need { total: 1 }));
        {
            let Step::Request {
                mut request,
                len: 1,
            } = parser.parse(b"v")
            else {
                panic!("no refusal of one byte")
            };
            let mut out = Out::new();
            if let Body::Data(commands) = &request.body {
                assert!(is_set, "{opcode:#04x}");
                assert_eq!(commands[0], Command::Delete(Delete::new(b"key")));
                for outcome in [Outcome::NotFound, Outcome::Failed(Failure::Busy)] {
                    request.reply.each(&commands[0], &outcome, &mut out);
                }
            } else {
                assert!(!is_set && matches!(request.body, Body::Answer));
            }
            request.reply.finish(&mut out);
            assert_eq!(out.to_vec(), bare(opcode, 3));
        }
        let noop = packet(0x0a, b"", b"", b"");
        assert!(matches!(
            parser.parse(&noop),
            Step::Request {
                request: Request {
                    body: Body::Answer,
                    ..
                },
                len: 24
            }
        ));
    }
}

#[test]
fn a_value_of_the_greatest_length_is_taken() {
    let value = [b'v'; 1000];
    let expected = Store::set(b"key", &value, 0, ExpirySpec::Never);
    assert_command(
        &packet(0x01, &[0; 8], b"key", &value),
        &Command::Store(expected),
    );
}

#[test]
fn the_greatest_body_length_is_skipped_without_overflow() {
    let longest = i32::MAX as u32;
    let mut parser = Parser::new(LIMITS);
    match parser.parse(&header(0x02, 3, 8, longest)) {
        Step::Skip { len } => assert_eq!(len, u64::from(longest) + 23),
        other => panic!("{other:?}"),
    }
    let mut parser = Parser::new(Limits {
        value_len_max: usize::MAX,
    });
    match parser.parse(&header(0x01, 3, 8, longest)) {
        Step::Need { total } => assert_eq!(total as u64, u64::from(longest) + 24),
        other => panic!("{other:?}"),
    }
}

#[test]
fn lengths_that_no_packet_has_are_answered_at_once_and_close() {
    for header in [
        header(0x01, 3, 8, i32::MAX as u32 + 1),
        header(0x01, 3, 8, u32::MAX),
        header(0xff, 0, 0, u32::MAX),
        header(0x00, 5, 0, 1), // key longer than the body
        header(0x00, 1, 5, 1), // extras longer than the body
        header(0x00, 1, 0, 0), // key without a body
        header(0x01, 1, 8, 8), // extras and key longer than the body
        header(0x01, u16::MAX, 255, 9),
    ] {
        assert_eq!(
            answers(&header),
            (bare(header[1], 4), true),
            "{header:02x?}"
        );
    }
}

#[test]
fn keys_have_1_to_250_bytes() {
    let longest = [b'k'; 250];
    assert_command(
        &packet(0x00, b"", &longest, b""),
        &Command::Get(Get::new(&longest)),
    );
    let extras = |opcode: u8| match opcode {
        0x01..=0x03 | 0x11..=0x13 => 8,
        0x05 | 0x06 | 0x15 | 0x16 => 20,
        0x1c..=0x1e | 0x23 | 0x24 => 4,
        _ => 0,
    };
    for opcode in (0x00..=0x06)
        .chain(0x09..=0x09)
        .chain(0x0c..=0x0f)
        .chain(0x11..=0x16)
        .chain([0x19, 0x1a, 0x1c, 0x1d, 0x1e, 0x23, 0x24])
    {
        for key in [&b""[..], &[b'k'; 251], &[b'k'; 300]] {
            let bytes = packet(opcode, &vec![0; extras(opcode)], key, b"");
            assert_eq!(answers(&bytes), (bare(opcode, 4), false), "{opcode:#04x}");
        }
    }
}

#[test]
fn malformed_lengths_are_answered_and_swallowed() {
    let malformed: Vec<Vec<u8>> = vec![
        packet(0x00, b"abcd", b"key", b""),        // GET with extras
        packet(0x00, b"", b"key", b"value"),       // with a value
        packet(0x01, b"", b"key", b"value"),       // SET without extras
        packet(0x01, &[0; 4], b"key", b"value"),   // with too few
        packet(0x01, &[0; 20], b"key", b"value"),  // with too many
        packet(0x04, &[0; 4], b"key", b""),        // DELETE with extras
        packet(0x04, b"", b"key", b"value"),       // with a value
        packet(0x05, b"", b"key", b""),            // INCREMENT without extras
        packet(0x05, &[0; 20], b"key", b"value"),  // with a value
        packet(0x07, b"", b"key", b""),            // QUIT with a key
        packet(0x08, &[0; 3], b"", b""),           // FLUSH with odd extras
        packet(0x08, b"", b"key", b""),            // with a key
        packet(0x0a, b"", b"", b"value"),          // NOOP with a value
        packet(0x0b, b"", b"key", b""),            // VERSION with a key
        packet(0x0b, &[0; 4], b"", b""),           // with extras
        packet(0x0e, &[0; 8], b"key", b"value"),   // APPEND with extras
        packet(0x10, &[0; 4], b"reset", b""),      // STAT with extras
        packet(0x10, b"", b"reset", b"value"),     // with a value
        packet(0x1b, b"", b"", b""),               // VERBOSITY without extras
        packet(0x1c, b"", b"key", b""),            // TOUCH without extras
        packet(0x1d, b"", b"key", b""),            // GAT without extras
        packet(0x20, b"", b"PLAIN", b""),          // SASL_LIST_MECHS with a key
        packet(0x21, b"", b"", b"\0user\0secret"), // SASL_AUTH without a mechanism
    ];
    for bytes in malformed {
        let opcode = bytes[1];
        let mut stream = bytes.clone();
        stream.extend(packet(0x0a, b"", b"", b""));
        let expected = [bare(opcode, 4), bare(0x0a, 0)].concat();
        assert_eq!(answers(&stream), (expected, false), "{bytes:02x?}");
    }
}

#[test]
fn unknown_opcodes_are_answered_and_swallowed() {
    for opcode in (0x1f..=0x1f).chain(0x25..=0xff) {
        for body in [&b""[..], b"extras, key and value", &[b'x'; 5000]] {
            let mut stream = packet(opcode, b"", b"", body);
            stream.extend(packet(0x0a, b"", b"", b""));
            let expected = [bare(opcode, 0x81), bare(0x0a, 0)].concat();
            assert_eq!(answers(&stream), (expected, false), "{opcode:#04x}");
        }
    }
}

#[test]
fn a_wrong_magic_closes_without_an_answer() {
    for magic in (0..=255).filter(|&magic| magic != 0x80) {
        let mut stream = packet(0x0a, b"", b"", b"");
        stream.push(magic);
        assert_eq!(answers(&stream), (bare(0x0a, 0), true), "{magic:#04x}");
    }
}

#[test]
fn quit_answers_before_it_closes_and_quitq_does_not() {
    let noop = packet(0x0a, b"", b"", b"");
    let quit = [packet(0x07, b"", b"", b""), noop.clone()].concat();
    assert_eq!(answers(&quit), (bare(0x07, 0), true));
    let quitq = [packet(0x17, b"", b"", b""), noop].concat();
    assert_eq!(answers(&quitq), (vec![], true));
}

#[test]
fn what_the_server_knows_itself_is_answered_at_once() {
    assert_eq!(answers(&packet(0x0a, b"", b"", b"")).0, bare(0x0a, 0));
    assert_eq!(
        answers(&packet(0x1b, &[0, 0, 0, 1], b"", b"")).0,
        bare(0x1b, 0)
    );
    let version = concat!("1.6.18-fonn-", env!("CARGO_PKG_VERSION")).as_bytes();
    assert_eq!(
        answers(&packet(0x0b, b"", b"", b"")).0,
        answer(0x0b, 0, 0, (b"", b"", version))
    );
    assert_eq!(
        answers(&packet(0x20, b"", b"", b"")).0,
        answer(0x20, 0, 0, (b"", b"", b"PLAIN"))
    );
}
