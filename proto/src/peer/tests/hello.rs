//! How connections begin.

use proptest::prelude::*;

use crate::Out;
use crate::peer::FIRST_BYTE;
use crate::peer::hello::*;
use crate::session::{Detection, detect};

fn hello(cluster: &str, versions: std::ops::RangeInclusive<u16>) -> Hello {
    Hello {
        version_min: *versions.start(),
        version: *versions.end(),
        ..Hello::new("n", cluster, 1000)
    }
}

fn encoded(hello: &Hello, verdict: Result<(), Rejection>) -> Vec<u8> {
    let mut out = Out::new();
    hello.encode(verdict, &mut out);
    out.to_vec()
}

proptest! {
    #[test]
    fn a_hello_comes_back(
        name in "\\PC{0,100}", cluster in "\\PC{0,100}", body_len_max: u32, code: u8, cut: usize,
    ) {
        let hello = Hello::new(&name, &cluster, body_len_max);
        let verdict = match code {
            0 => Ok(()),
            1 => Err(Rejection::Version),
            2 => Err(Rejection::Cluster),
            3 => Err(Rejection::NotAllowed),
            other => Err(Rejection::Other(other)),
        };
        let mut bytes = encoded(&hello, verdict);
        let len = bytes.len();
        prop_assert!(len <= HELLO_HEAD_LEN + 2 * usize::from(u8::MAX));
        bytes.extend_from_slice(b"the first frame");
        let step = Step::Hello { hello, verdict, len };
        prop_assert_eq!(Hello::decode(&bytes), Ok(step));
        let cut = cut % len;
        match Hello::decode(&bytes[..cut]) {
            Ok(Step::Need { total }) => prop_assert!(cut < total && total <= len),
            other => prop_assert!(false, "{:?}", other),
        }
        prop_assert_eq!(detect(&bytes), Detection::Peer);
    }
}

#[test]
fn another_protocol_is_no_hello() {
    for bytes in [&b"\x80\x0b"[..], b"HTTP/1.1 400", b"\xfaFNQ", b"ERROR\r\n"] {
        assert_eq!(Hello::decode(bytes), Err(HelloError::Magic));
    }
    let mut bytes = encoded(&hello("c", 1..=1), Ok(()));
    *bytes.last_mut().unwrap() = 0xff;
    assert_eq!(Hello::decode(&bytes), Err(HelloError::Malformed));
    let reversed = encoded(
        &Hello {
            version_min: 3,
            ..hello("c", 1..=1)
        },
        Ok(()),
    );
    assert_eq!(Hello::decode(&reversed), Err(HelloError::Malformed));
}

#[test]
fn both_speak_the_newest_version_that_both_know() {
    assert_eq!(hello("c", 1..=3).agree(&hello("c", 2..=9)), Ok(3));
    assert_eq!(hello("", 1..=1).agree(&hello("", 1..=2)), Ok(1));
    assert_eq!(
        hello("c", 1..=2).agree(&hello("c", 3..=4)),
        Err(Rejection::Version)
    );
    // A member that is in no cluster yet is not asked either, nor a node that is alone.
    for other in ["d", ""] {
        assert_eq!(
            hello("c", 1..=2).agree(&hello(other, 1..=2)),
            Err(Rejection::Cluster)
        );
    }
}

#[test]
fn names_that_are_too_long_are_cut_at_a_letter() {
    let name = "ü".repeat(200);
    let long = Hello::new(&name, "", 1);
    assert_eq!(long.name, "ü".repeat(127));
    assert!(Hello::decode(&encoded(&long, Ok(()))).is_ok());
}

#[test]
fn the_first_byte_tells() {
    assert_eq!(detect(&[FIRST_BYTE]), Detection::Peer);
}
