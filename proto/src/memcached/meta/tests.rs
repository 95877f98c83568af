use smallvec::SmallVec;

use crate::Out;
use crate::command::{Arith, ArithOp, Command, Delete, ExpirySpec, Get, Store, StoreMode};
use crate::memcached::text::Parser;
use crate::memcached::text::tests::model::said;
use crate::outcome::{Failure, Hit, Number, Outcome, Stored, Value};
use crate::request::{Body, Limits, Request, Step};

/// Hands the only request in `bytes`, which must have one command, to `check`.
fn with_command<R>(bytes: &[u8], check: impl FnOnce(&Command<'_>, Request<'_>) -> R) -> R {
    let mut parser = Parser::new(Limits { value_len_max: 100 });
    match parser.parse(bytes) {
        Step::Request { request, len } if len == bytes.len() => match &request.body {
            Body::Data(commands) => {
                let command = commands[0].clone();
                check(&command, request)
            }
            body => panic!("{body:?} for {}", bytes.escape_ascii()),
        },
        step => panic!("{step:?} for {}", bytes.escape_ascii()),
    }
}

fn assert_command(bytes: &[u8], expected: &Command<'_>) {
    with_command(bytes, |command, _| {
        assert_eq!(command, expected, "{}", bytes.escape_ascii())
    });
}

/// What the request in `bytes` answers to an outcome.
fn answer(bytes: &[u8], outcome: &Outcome<'_>) -> String {
    with_command(bytes, |command, mut request| {
        let mut out = Out::new();
        request.reply.each(command, outcome, &mut out);
        request.reply.finish(&mut out);
        out.to_vec().escape_ascii().to_string()
    })
}

fn hit() -> Hit<'static> {
    Hit {
        value: Value::Copied(b"abc"),
        value_len: 3,
        flags: 7,
        version: 42,
        ttl_ms: Some(19_001),
        expires_at_ms: Some(1),
        idle_s: 11,
        fetched_before: true,
        stale: false,
        won: false,
        lost: false,
    }
}

#[test]
fn flags_of_mg_reach_the_command() {
    let get = || Get {
        claim: true,
        want_value: false,
        ..Get::new(b"k")
    };
    let cases = [
        ("", get()),
        (
            "v",
            Get {
                want_value: true,
                ..get()
            },
        ),
        (
            "u",
            Get {
                bump: false,
                ..get()
            },
        ),
        (
            "T30",
            Get {
                touch: Some(ExpirySpec::InMs(30_000)),
                ..get()
            },
        ),
        (
            "T0",
            Get {
                touch: Some(ExpirySpec::Never),
                ..get()
            },
        ),
        (
            "N30",
            Get {
                vivify: Some(ExpirySpec::InMs(30_000)),
                ..get()
            },
        ),
        (
            "N0 E77",
            Get {
                vivify: Some(ExpirySpec::Never),
                new_version: Some(77),
                ..get()
            },
        ),
        (
            "R30",
            Get {
                recache_below_s: Some(30),
                ..get()
            },
        ),
        (
            "R99999999999",
            Get {
                recache_below_s: Some(u32::MAX),
                ..get()
            },
        ),
        ("R0", get()),
        ("R-5", get()),
        ("E0", get()),
        ("s f c t h l k Oo q P1 L2 F1 C1 I J1 D1 MX x", get()),
        (
            "v k s T5 N6 R7 E8 u",
            Get {
                want_value: true,
                bump: false,
                touch: Some(ExpirySpec::InMs(5000)),
                vivify: Some(ExpirySpec::InMs(6000)),
                recache_below_s: Some(7),
                new_version: Some(8),
                ..get()
            },
        ),
    ];
    for (flags, expected) in cases {
        assert_command(
            format!("mg k {flags}\r\n").as_bytes(),
            &Command::Get(expected),
        );
    }
}

#[test]
fn flags_of_ms_reach_the_command() {
    let set = || Store::set(b"k", b"abc", 0, ExpirySpec::Never);
    let minute = Some(ExpirySpec::InMs(60_000));
    let cases = [
        ("", set()),
        ("MS", set()),
        (
            "F4294967295 T9",
            Store::set(b"k", b"abc", u32::MAX, ExpirySpec::InMs(9000)),
        ),
        (
            "ME",
            Store {
                mode: StoreMode::Add,
                ..set()
            },
        ),
        (
            "ME C5",
            Store {
                mode: StoreMode::Add,
                ..set()
            },
        ),
        (
            "MR",
            Store {
                mode: StoreMode::Replace,
                ..set()
            },
        ),
        (
            "MR C5",
            Store {
                compare: Some(5),
                ..set()
            },
        ),
        (
            "C5",
            Store {
                compare: Some(5),
                ..set()
            },
        ),
        (
            "C5 I",
            Store {
                compare: Some(5),
                invalidate_if_older: true,
                ..set()
            },
        ),
        (
            "MR C5 I",
            Store {
                compare: Some(5),
                invalidate_if_older: true,
                ..set()
            },
        ),
        (
            "C0 I",
            Store {
                compare: Some(0),
                ..set()
            },
        ),
        ("I", set()),
        (
            "MA",
            Store {
                mode: StoreMode::Append,
                ..set()
            },
        ),
        (
            "MA N60",
            Store {
                mode: StoreMode::Append,
                vivify: minute,
                ..set()
            },
        ),
        (
            "MP N60 C5 I",
            Store {
                mode: StoreMode::Prepend,
                vivify: minute,
                compare: Some(5),
                ..set()
            },
        ),
        (
            "MA C0",
            Store {
                mode: StoreMode::Append,
                ..set()
            },
        ),
        ("N60", set()),
        (
            "E77 k c s Oo q",
            Store {
                new_version: Some(77),
                ..set()
            },
        ),
    ];
    for (flags, expected) in cases {
        let line = format!("ms k 3 {flags}\r\nabc\r\n");
        assert_command(line.as_bytes(), &Command::Store(expected));
    }
}

#[test]
fn flags_of_md_reach_the_command() {
    let delete = || Delete::new(b"k");
    let touch = Some(ExpirySpec::InMs(30_000));
    let cases = [
        ("", delete()),
        ("T30", delete()),
        (
            "C5 q k Oo",
            Delete {
                compare: Some(5),
                ..delete()
            },
        ),
        (
            "I",
            Delete {
                mark_stale: true,
                ..delete()
            },
        ),
        (
            "I T30 E9",
            Delete {
                mark_stale: true,
                touch,
                new_version: Some(9),
                ..delete()
            },
        ),
        (
            "x",
            Delete {
                keep_entry: true,
                ..delete()
            },
        ),
        (
            "x I T30",
            Delete {
                keep_entry: true,
                mark_stale: true,
                touch,
                ..delete()
            },
        ),
    ];
    for (flags, expected) in cases {
        assert_command(
            format!("md k {flags}\r\n").as_bytes(),
            &Command::Delete(expected),
        );
    }
}

#[test]
fn flags_of_ma_reach_the_command() {
    let arith = |op| Arith {
        key: b"k",
        op,
        initial: None,
        absent_is_zero: false,
        touch: None,
        compare: None,
        new_version: None,
    };
    let one = || arith(ArithOp::Increment(1));
    let cases = [
        ("", one()),
        ("MI", one()),
        ("M+ D5", arith(ArithOp::Increment(5))),
        ("MD", arith(ArithOp::Decrement(1))),
        (
            "M- D18446744073709551615",
            arith(ArithOp::Decrement(u64::MAX)),
        ),
        ("J5", one()),
        (
            "N0",
            Arith {
                initial: Some((0, ExpirySpec::Never)),
                ..one()
            },
        ),
        (
            "N60 J13",
            Arith {
                initial: Some((13, ExpirySpec::InMs(60_000))),
                ..one()
            },
        ),
        (
            "T60",
            Arith {
                touch: Some(ExpirySpec::InMs(60_000)),
                ..one()
            },
        ),
        (
            "C7 E8",
            Arith {
                compare: Some(7),
                new_version: Some(8),
                ..one()
            },
        ),
        ("C0", one()),
        ("v t c k q Oo", one()),
    ];
    for (flags, expected) in cases {
        assert_command(
            format!("ma k {flags}\r\n").as_bytes(),
            &Command::Arith(expected),
        );
    }
}

#[test]
fn binary_keys_are_decoded_for_every_command() {
    let key = b"\x00\r\n \xff";
    assert_command(
        b"mg AA0KIP8= b\r\n",
        &Command::Get(Get {
            claim: true,
            want_value: false,
            ..Get::new(key)
        }),
    );
    let set = Store::set(key, b"x", 0, ExpirySpec::Never);
    assert_command(b"ms AA0KIP8= 1 b\r\nx\r\n", &Command::Store(set));
    assert_command(b"md AA0KIP8= b\r\n", &Command::Delete(Delete::new(key)));
    assert_command(b"me AA0KIP8= b\r\n", &Command::Get(Get::facts(key)));
    with_command(b"ma AA0KIP8= b\r\n", |command, _| {
        assert_eq!(command.key(), key)
    });
    // In the reply the key is base64 again, wherever `b` stands.
    assert_eq!(
        answer(b"mg AA0KIP8= k b Oo\r\n", &Outcome::Miss),
        r"EN kAA0KIP8= b Oo\r\n"
    );
    assert_eq!(
        said(b"ms AA0KIP8= 1 b\r\nx\r\nmg AA0KIP8= b k v\r\n"),
        r"HD\r\nVA 1 kAA0KIP8= b\r\nx\r\n"
    );
}

#[test]
fn mg_returns_flags_in_the_order_of_the_request() {
    let hit = |stale, won, lost| {
        Outcome::Hit(Hit {
            stale,
            won,
            lost,
            ..hit()
        })
    };
    let plain = hit(false, false, false);
    assert_eq!(answer(b"mg k\r\n", &plain), r"HD\r\n");
    assert_eq!(answer(b"mg k v\r\n", &plain), r"VA 3\r\nabc\r\n");
    let line = r"VA 3 s3 f7 c42 t20 h1 l11 kk Oxy\r\nabc\r\n";
    assert_eq!(answer(b"mg k s f c t h l k Oxy q u v\r\n", &plain), line);
    let line = r"HD Oxy kk l11 h1 t20 c42 f7 s3\r\n";
    assert_eq!(answer(b"mg k Oxy k l h t c f s\r\n", &plain), line);
    let fresh = Hit {
        ttl_ms: None,
        fetched_before: false,
        ..self::hit()
    };
    assert_eq!(
        answer(b"mg k t h\r\n", &Outcome::Hit(fresh)),
        r"HD t-1 h0\r\n"
    );
    assert_eq!(
        answer(b"mg k s\r\n", &hit(true, true, false)),
        r"HD s3 X W\r\n"
    );
    assert_eq!(
        answer(b"mg k s\r\n", &hit(true, false, true)),
        r"HD s3 Z X\r\n"
    );
    assert_eq!(
        answer(b"mg k N30\r\n", &hit(false, true, false)),
        r"HD W\r\n"
    );
}

#[test]
fn quiet_leaves_out_what_is_nominal() {
    let stored = || {
        Outcome::Stored(Stored {
            version: 9,
            value_len: 5,
            previous: None,
        })
    };
    let number = || {
        let text = SmallVec::from_slice(b"17");
        Outcome::Number(Number {
            text,
            version: 9,
            ttl_ms: Some(1),
        })
    };
    let deleted = || Outcome::Deleted { version: 0 };
    let not_numeric = r"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
    let busy = || Outcome::Failed(Failure::Busy);
    // The line, an outcome, the answer, and whether quiet leaves it out.
    let cases = [
        ("mg k k Oo", Outcome::Miss, r"EN kk Oo\r\n", true),
        ("mg k", Outcome::Hit(hit()), r"HD\r\n", false),
        ("mg k", busy(), r"SERVER_ERROR busy\r\n", false),
        ("ms k 1 c s k Oo", stored(), r"HD c9 s5 kk Oo\r\n", true),
        (
            "ms k 1 k c s",
            Outcome::NotStored(None),
            r"NS kk c0 s1\r\n",
            false,
        ),
        ("ms k 1 Oo", Outcome::Exists, r"EX Oo\r\n", false),
        ("ms k 1", Outcome::NotFound, r"NF\r\n", false),
        ("ms k 1", busy(), r"SERVER_ERROR busy\r\n", false),
        ("md k Oo k t c", deleted(), r"HD Oo kk\r\n", true),
        ("md k Oo k", Outcome::NotFound, r"NF Oo kk\r\n", false),
        ("md k", Outcome::Exists, r"EX\r\n", false),
        ("md k", busy(), r"SERVER_ERROR busy\r\n", false),
        ("ma k c t k Oo", number(), r"HD c9 t1 kk Oo\r\n", true),
        ("ma k v c", number(), r"VA 2 c9\r\n17\r\n", true),
        ("ma k t k", Outcome::NotFound, r"NF kk\r\n", false),
        ("ma k", Outcome::Exists, r"EX\r\n", false),
        ("ma k", Outcome::NotStored(None), r"NS\r\n", false),
        ("ma k v", Outcome::NotANumber, not_numeric, false),
        ("ma k", busy(), r"SERVER_ERROR busy\r\n", false),
    ];
    for (line, outcome, expected, is_left_out) in cases {
        let block = if line.starts_with("ms") { "x\r\n" } else { "" };
        let loud = format!("{line}\r\n{block}");
        assert_eq!(answer(loud.as_bytes(), &outcome), expected, "{line}");
        let quiet = format!("{line} q\r\n{block}");
        let expected = if is_left_out { "" } else { expected };
        assert_eq!(answer(quiet.as_bytes(), &outcome), expected, "{line} q");
    }
}

#[test]
fn me_shows_the_facts_of_an_entry() {
    let found = Outcome::Hit(hit());
    let line = r"ME key exp=20 la=11 cas=42 fetch=yes cls=1 size=6\r\n";
    assert_eq!(answer(b"me key\r\n", &found), line);
    let line = r"ME a2V5 exp=20 la=11 cas=42 fetch=yes cls=1 size=6\r\n";
    assert_eq!(answer(b"me a2V5 b\r\n", &found), line);
    assert_eq!(answer(b"me key\r\n", &Outcome::Miss), r"EN\r\n");
    let failed = Outcome::Failed(Failure::AuthRequired);
    assert_eq!(
        answer(b"me key\r\n", &failed),
        r"CLIENT_ERROR unauthenticated\r\n"
    );
}

#[test]
fn an_opaque_has_up_to_31_bytes() {
    let (fits, over) = ("o".repeat(31), "o".repeat(32));
    let too_long = r"CLIENT_ERROR opaque token too long\r\n";
    for (line, code) in [
        ("mg k", "EN"),
        ("md k", "NF"),
        ("ma k", "NF"),
        ("ms k 1", "HD"),
    ] {
        let block = if line.starts_with("ms") { "x\r\n" } else { "" };
        let with = |opaque: &str| said(format!("{line} O{opaque}\r\n{block}mn\r\n").as_bytes());
        assert_eq!(with(&fits), format!(r"{code} O{fits}\r\nMN\r\n"));
        assert_eq!(with(&over), format!(r"{too_long}MN\r\n"));
    }
}

#[test]
fn a_wrong_client_flag_leaves_the_line_of_another_error() {
    let both = said(b"ms k 1 Mab Fx\r\nv\r\n");
    assert_eq!(both, r"CLIENT_ERROR incorrect length for M token\r\n");
    let one = said(b"ms k 1 Fx\r\nv\r\n");
    assert_eq!(one, r"CLIENT_ERROR bad command line format\r\n");
}

#[test]
fn removing_only_the_value_keeps_the_entry() {
    let stream = b"ms k 3 F5\r\nabc\r\nmd k x\r\nmg k v f c\r\nmd k x E90\r\nmg k c\r\n";
    let answers = r"HD\r\nHD\r\nVA 0 f0 c2\r\n\r\nHD\r\nHD c90\r\n";
    assert_eq!(said(stream), answers);
}
