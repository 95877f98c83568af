//! Where lines and data blocks end, and what happens to those that are too long.

use super::model::{VALUE_LEN_MAX, converse, said};
use crate::command::{Command, Delete};
use crate::memcached::text::{LINE_LEN_MAX, Parser, RETRIEVAL_LINE_LEN_MAX};
use crate::request::{Body, Limits, Reply as AnyReply, Step};

#[test]
fn a_value_that_is_too_large_is_swallowed_and_refused() {
    let value = "v".repeat(VALUE_LEN_MAX + 1);
    let len = value.len();
    let too_large = r"SERVER_ERROR object too large for cache\r\n";
    let cases = [
        (format!("set k 0 0 {len}"), too_large),
        (format!("cas k 0 0 {len} 5"), too_large),
        (format!("set k 0 0 {len} noreply"), ""),
        (format!("ms k {len}"), too_large),
        (format!("ms k {len} q"), too_large),
        (
            format!("ms k {len} v v"),
            r"CLIENT_ERROR duplicate flag\r\n",
        ),
        (
            format!("set k x 0 {len}"),
            r"CLIENT_ERROR bad command line format\r\n",
        ),
    ];
    for (line, answer) in cases {
        let stream = format!("{line}\r\n{value}\r\nmn\r\nget k\r\n");
        assert_eq!(
            said(stream.as_bytes()),
            format!(r"{answer}MN\r\nEND\r\n"),
            "{line}"
        );
    }
    let fits = &value[1..];
    let stream = format!("set k 0 0 {}\r\n{fits}\r\n", fits.len());
    assert_eq!(said(stream.as_bytes()), r"STORED\r\n");
}

#[test]
fn a_refused_block_is_skipped_without_being_kept() {
    let mut parser = Parser::new(Limits { value_len_max: 10 });
    let line = b"set k 0 0 2147483645\r\n";
    let block_len = i32::MAX as u64;
    match parser.parse(line) {
        Step::Skip { len } => assert_eq!(len, line.len() as u64 + block_len - 1),
        step => panic!("{step:?}"),
    }
    assert!(matches!(parser.parse(b""), Step::Need { total: 1 }));
    match parser.parse(b"\nget a\r\n") {
        Step::Request { request, len: 1 } => {
            let Body::Data(commands) = &request.body else {
                panic!("{request:?}");
            };
            assert_eq!(commands[0], Command::Delete(Delete::new(b"k")));
            assert!(matches!(request.reply, AnyReply::Text(_)));
        }
        step => panic!("the answer is due, not {step:?}"),
    }
    assert!(matches!(
        parser.parse(b"get a\r\n"),
        Step::Request { len: 7, .. }
    ));
}

#[test]
fn a_set_that_is_refused_for_its_size_removes_the_old_value() {
    let value = "v".repeat(VALUE_LEN_MAX + 1);
    let len = value.len();
    let refused = r"SERVER_ERROR object too large for cache\r\n";
    for (line, answer, is_removed) in [
        (format!("set k 0 0 {len}"), refused, true),
        (format!("set k 0 0 {len} noreply"), "", true),
        (format!("ms k {len}"), refused, true),
        (format!("ms k {len} MS"), refused, true),
        (format!("ms aw== {len} b"), refused, true),
        (format!("ms k {len} C1"), refused, false),
        (format!("ms k {len} ME"), refused, false),
        (format!("ms k {len} MA"), refused, false),
        (format!("cas k 0 0 {len} 5"), refused, false),
        (format!("add k 0 0 {len}"), refused, false),
        (format!("replace k 0 0 {len}"), refused, false),
        (format!("append k 0 0 {len}"), refused, false),
        (format!("prepend k 0 0 {len}"), refused, false),
    ] {
        let stream = format!("set k 0 0 3\r\nold\r\n{line}\r\n{value}\r\nget k\r\n");
        let found = match is_removed {
            true => r"END\r\n",
            false => r"VALUE k 0 3\r\nold\r\nEND\r\n",
        };
        let expected = format!(r"STORED\r\n{answer}{found}");
        assert_eq!(said(stream.as_bytes()), expected, "{line}");
    }
}

#[test]
fn a_length_that_no_block_has_is_refused_at_once_and_nothing_is_swallowed() {
    for len in [
        "2147483646",
        "2147483647",
        "4294967295",
        "9223372036854775807",
        "-1",
    ] {
        for line in [format!("set k 0 0 {len}"), format!("ms k {len}")] {
            assert_eq!(
                said(format!("{line}\r\nmn\r\n").as_bytes()),
                r"CLIENT_ERROR bad command line format\r\nMN\r\n",
                "{line}"
            );
        }
    }
}

#[test]
fn what_is_needed_for_a_block_is_told_exactly() {
    let mut parser = Parser::new(Limits {
        value_len_max: 1 << 30,
    });
    let line = b"set k 0 0 1000000\r\n";
    let total = line.len() + 1_000_000 + 2;
    assert!(matches!(parser.parse(&line[..9]), Step::Need { total: 10 }));
    assert!(matches!(parser.parse(line), Step::Need { total: needed } if needed == total));
    let mut stream = line.to_vec();
    stream.resize(total - 2, b'v');
    assert!(matches!(parser.parse(&stream), Step::Need { total: needed } if needed == total));
    stream.extend_from_slice(b"\r");
    assert!(matches!(parser.parse(&stream), Step::Need { total: needed } if needed == total));
    stream.extend_from_slice(b"\nget a\r\n");
    let Step::Request { request, len } = parser.parse(&stream) else {
        panic!("complete");
    };
    assert_eq!(len, total);
    let Body::Data(commands) = request.body else {
        panic!("a store");
    };
    assert!(matches!(&commands[0], Command::Store(store) if store.value.len() == 1_000_000));
}

#[test]
fn a_line_that_is_too_long_ends_the_connection() {
    let too_long = (b"CLIENT_ERROR line too long\r\n".to_vec(), true);
    let (x, end) = (|count| "x".repeat(count), "\r\n");
    // The carriage return counts as part of the line.
    assert_eq!(
        said(format!("{}{end}", x(LINE_LEN_MAX - 1)).as_bytes()),
        r"ERROR\r\n"
    );
    assert_eq!(
        converse(format!("{}{end}", x(LINE_LEN_MAX)).as_bytes()),
        too_long
    );
    assert_eq!(converse(x(LINE_LEN_MAX + 1).as_bytes()), too_long);
    assert_eq!(converse(x(LINE_LEN_MAX).as_bytes()), (Vec::new(), false));
    for verb in ["get ", "gets ", "gat 0 ", "  gats 0 "] {
        let keys = "k ".repeat((RETRIEVAL_LINE_LEN_MAX - verb.len()) / 2 - 1);
        assert_eq!(said(format!("{verb}{keys}\r\n").as_bytes()), r"END\r\n");
        assert_eq!(
            converse(format!("{verb}{keys}k k k\r\n").as_bytes()),
            too_long
        );
    }
    for verb in ["mg ", "set ", "getx "] {
        assert_eq!(
            converse(format!("{verb}{}\r\n", x(LINE_LEN_MAX)).as_bytes()),
            too_long
        );
    }
}

#[test]
fn a_plain_get_is_read_as_it_would_be_on_the_long_way() {
    let read = |bytes: &[u8]| {
        let mut parser = Parser::new(Limits {
            value_len_max: VALUE_LEN_MAX,
        });
        match parser.parse(bytes) {
            Step::Request { request, len } => (format!("{request:?}"), len as u64),
            Step::Need { total } => ("more".to_owned(), total as u64),
            Step::Skip { len } => ("skip".to_owned(), len),
        }
    };
    let keys = [
        "k", "a\tb", "a\rb", "k\r", "\r", "", " k", "k ", "a b", "a  b", "\0",
    ];
    let long_keys = [248, 249, 250, 251, 252, 300].map(|len| "k".repeat(len));
    let all = keys.into_iter().chain(long_keys.iter().map(String::as_str));
    for key in all {
        for end in ["", "\r", "\n", "\r\n", "\r\nget"] {
            let line = format!("get {key}{end}");
            // A space before it is of no meaning, but makes it another line than the plain one.
            let (request, len) = read(format!(" {line}").as_bytes());
            assert_eq!(read(line.as_bytes()), (request, len - 1), "{line:?}");
        }
    }
}
