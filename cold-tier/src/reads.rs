//! When segments were read last, as a node reports to the collecting nodes: an object of lines,
//! `v1/read/<region>/<writer>`.
//!
//! ```text
//! fonn-reads 1 <checksum>
//! <region>/<writer>/<seq> <Unix time in milliseconds of the last read>
//! ```
//!
//! The checksum is the CRC-32C of all behind the first line, in hexadecimal. Nothing rests on these
//! objects but which segments a budget gives up first: one that is damaged or of another format
//! tells nothing.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use std::fmt::Write;

use fonn_codec::checksum;

use crate::names::SegmentName;

/// Segments that a node tells of: those that were read last.
pub(crate) const SEGMENTS_MAX: usize = 8192;

/// Longer objects are not read, in bytes.
pub(crate) const LEN_MAX: u64 = 1 << 20;

const FIRST: &str = "fonn-reads 1 ";

/// The object that tells of `reads`, at most [`SEGMENTS_MAX`] of them.
pub(crate) fn compose(mut reads: Vec<(SegmentName, u64)>) -> String {
    reads.sort_by_key(|(_, ms)| std::cmp::Reverse(*ms));
    reads.truncate(SEGMENTS_MAX);
    let mut lines = String::new();
    for (name, ms) in reads {
        // A string takes everything.
        let _ = writeln!(lines, "{} {ms}", name.short());
    }
    let checksum = checksum::crc32c(lines.as_bytes());
    format!("{FIRST}{checksum:08x}\n{lines}")
}

/// What an object tells; None if it is damaged or of another format.
pub(crate) fn parse(bytes: &[u8]) -> Option<Vec<(SegmentName, u64)>> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (checksum, lines) = text.strip_prefix(FIRST)?.split_once('\n')?;
    let computed = checksum::crc32c(lines.as_bytes());
    if checksum != format!("{computed:08x}") {
        return None;
    }
    let read = |line: &str| {
        let (name, ms) = line.split_once(' ')?;
        Some((SegmentName::parse_short(name)?, ms.parse().ok()?))
    };
    lines.lines().map(read).collect()
}

#[cfg(test)]
#[allow(clippy::arithmetic_side_effects)] // Of small numbers, known to the tests.
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(seq: u64) -> SegmentName {
        SegmentName {
            region: "eu-1".parse().unwrap(),
            writer: "01ARYZ6S4128T5CY4TQKFF04HM".parse().unwrap(),
            seq,
        }
    }

    #[test]
    fn it_is_spelled_as_documented_and_damage_tells_nothing() {
        let text = compose(vec![(name(1), 5), (name(2), 1_750_000_000_000)]);
        let lines = "eu-1/01ARYZ6S4128T5CY4TQKFF04HM/0000000000000002 1750000000000\n\
                     eu-1/01ARYZ6S4128T5CY4TQKFF04HM/0000000000000001 5\n";
        let checksum = checksum::crc32c(lines.as_bytes());
        assert_eq!(text, format!("fonn-reads 1 {checksum:08x}\n{lines}"));
        for at in 0..text.len() {
            let mut damaged = text.clone().into_bytes();
            damaged[at] ^= 1;
            assert_eq!(parse(&damaged), None, "byte {at}");
        }
        assert_eq!(parse(compose(Vec::new()).as_bytes()), Some(Vec::new()));
    }

    #[test]
    fn the_segments_read_last_are_told_and_the_object_is_bounded() {
        let reads = (0..20_000).map(|n| (name(n), n)).collect();
        let text = compose(reads);
        assert!((text.len() as u64) < LEN_MAX, "{} bytes", text.len());
        let told = parse(text.as_bytes()).unwrap();
        assert_eq!(told.len(), SEGMENTS_MAX);
        assert!(
            told.iter()
                .all(|(_, ms)| *ms >= 20_000 - SEGMENTS_MAX as u64)
        );
    }

    proptest! {
        #[test]
        fn what_was_composed_is_parsed(
            seqs in proptest::collection::btree_set(any::<u64>(), 0..50),
            ms in any::<u64>(),
        ) {
            let reads: Vec<_> = seqs.into_iter().map(|seq| (name(seq), ms ^ seq)).collect();
            let mut told = parse(compose(reads.clone()).as_bytes()).unwrap();
            told.sort();
            let mut reads = reads;
            reads.sort();
            prop_assert_eq!(told, reads);
        }

        #[test]
        fn any_bytes_tell_something_or_nothing(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let lines = String::from_utf8_lossy(&bytes);
            let sealed = format!("{FIRST}{:08x}\n{lines}", checksum::crc32c(lines.as_bytes()));
            let told = (parse(&bytes), parse(sealed.as_bytes()));
            prop_assert!(told.0.is_none());
            if let Some(told) = told.1 {
                prop_assert!(told.len() <= bytes.len());
            }
        }
    }
}
