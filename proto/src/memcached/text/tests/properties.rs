//! However the network cuts the stream into reads, the requests are the same; no bytes panic.

use proptest::prelude::*;

use crate::drive::drive;
use crate::memcached::text::Parser;
use crate::request::{Limits, Step};

const LIMITS: Limits = Limits { value_len_max: 100 };

fn requests(bytes: &[u8], reads: &[usize]) -> Vec<String> {
    drive(&mut Parser::new(LIMITS), Parser::parse, bytes, reads)
}

/// Pieces of lines, so that random streams are often nearly right.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    let words = prop::sample::select(
        "get gets gat gats set add replace append prepend cas delete incr decr touch flush_all \
         verbosity stats version quit noreply mg ms md ma me mn a key YQ== 0 1 -1 5 30 101 150 \
         99999999999 18446744073709551616 x b c f h k l Oxy q s t v N30 R30 T0 E9 C1 F7 I MA ME MX J1 D5 u"
            .split_whitespace()
            .collect::<Vec<_>>(),
    );
    prop_oneof![
        8 => words.prop_map(|word| format!("{word} ").into_bytes()),
        3 => Just(b"\r\n".to_vec()),
        1 => Just(b"\n".to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..8),
        1 => (0..120_usize).prop_map(|len| vec![b'k'; len]),
    ]
}

/// Whole commands, with the right and the wrong lengths.
fn command() -> impl Strategy<Value = Vec<u8>> {
    let storage = prop::sample::select(vec![
        "set k 0 0 LEN",
        "cas k 1 2 LEN 3",
        "ms k LEN",
        "ms YQ== LEN b q k",
        "set k 0 0 LEN noreply",
        "append k 0 0 LEN",
        "set k x 0 LEN",
        "ms k LEN k k",
        "ms k LEN MX",
    ]);
    let block =
        (storage, 0..130_usize, -1..2_i8, any::<bool>()).prop_map(|(line, len, off, cr)| {
            let stated = len as i64 + i64::from(off.max(-(len.min(1) as i8)));
            let line = line.replace("LEN", &stated.to_string());
            let end = if cr { "\r\n" } else { "\n" };
            [line.as_bytes(), end.as_bytes(), &vec![b'v'; len], b"\r\n"].concat()
        });
    let line = prop::collection::vec(piece(), 0..8).prop_map(|pieces| pieces.concat());
    prop_oneof![block, line]
}

fn stream() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(command(), 0..12).prop_map(|commands| commands.concat())
}

proptest! {
    #[test]
    fn any_cut_into_reads_gives_the_same_requests(
        bytes in stream(),
        reads in prop::collection::vec(1..40_usize, 1..8),
    ) {
        let at_once = requests(&bytes, &[]);
        prop_assert_eq!(&at_once, &requests(&bytes, &[1]));
        prop_assert_eq!(&at_once, &requests(&bytes, &reads));
    }

    #[test]
    fn random_bytes_never_panic_and_are_used_up(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        prop_assert_eq!(requests(&bytes, &[]), requests(&bytes, &[1]));
    }

    #[test]
    fn long_lines_are_judged_the_same_in_any_cut(
        spaces in prop_oneof![Just(0_usize), 0..2100_usize],
        verb in prop::sample::select(vec!["get ", "gets ", "gat 0 ", "gats 0 ", "set ", "mg ", ""]),
        len in prop_oneof![2030..2070_usize, 65_500..65_600_usize],
        newline in any::<bool>(),
        read in 500..5000_usize,
    ) {
        let mut bytes = vec![b' '; spaces];
        bytes.extend_from_slice(verb.as_bytes());
        while bytes.len() < len {
            bytes.extend_from_slice(b"k ");
        }
        bytes.truncate(len);
        bytes.extend_from_slice(if newline { b"\r\nmn\r\n" } else { b"" });
        prop_assert_eq!(requests(&bytes, &[]), requests(&bytes, &[read]));
    }
}

#[test]
fn a_stream_is_parsed_the_same_at_each_single_cut() {
    let stream = b"set a 1 2 3\r\nabc\r\nget a b\r\nms YQ== 2 b k\r\nhi\r\nset a 0 0 200\r\n"
        .iter()
        .chain(&[b'v'; 200])
        .chain(b"\r\nmg a v\nset a 0 0 1\r\nxyz\r\nquit\r\n")
        .copied()
        .collect::<Vec<_>>();
    let at_once = requests(&stream, &[]);
    assert_eq!(at_once.len(), 8, "{at_once:#?}");
    for cut in 1..stream.len() {
        assert_eq!(
            requests(&stream, &[cut, stream.len()]),
            at_once,
            "cut at {cut}"
        );
    }
}

/// A byte-wise reader must not make the parser search a long line again and again.
#[test]
fn a_line_is_searched_once_however_it_arrives() {
    let line = [b"get ".as_slice(), &b"key ".repeat(15_000), b"\r\n"].concat();
    let mut parser = Parser::new(LIMITS);
    for end in 1..line.len() {
        let searched = parser.searched();
        assert_eq!(searched, end - 1, "all that was there before was searched");
        assert!(matches!(parser.parse(&line[..end]), Step::Need { total } if total == end + 1));
    }
    assert!(matches!(parser.parse(&line), Step::Request { len, .. } if len == line.len()));
    assert_eq!(parser.searched(), 0);
}
