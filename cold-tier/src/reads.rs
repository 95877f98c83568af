//! What a node read from the bucket, as it reports to the collecting nodes: an object of lines,
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

use std::collections::HashMap;
use std::fmt::Write;

use fonn_codec::checksum;

use crate::names::SegmentName;

/// Segments that a node tells of: those it read last.
pub(crate) const SEGMENTS_MAX: usize = 8192;

/// Longer objects are not read, in bytes.
pub(crate) const LEN_MAX: u64 = 1 << 20;

const FIRST: &str = "fonn-reads 1 ";

/// When segments were read last by this node: Unix time in milliseconds, by their numbers in the
/// index.
#[derive(Debug, Default)]
pub(crate) struct OwnReads {
    last_ms: HashMap<u32, u64>,
    /// Whether there are any that were not told.
    is_news: bool,
}

impl OwnReads {
    /// Something in a segment was read.
    pub(crate) fn note(&mut self, segment: u32, now_ms: u64) {
        let last_ms = self.last_ms.entry(segment).or_default();
        *last_ms = now_ms.max(*last_ms);
        self.is_news = true;
    }

    /// All of them if some were not told yet; those of which there is no segment any more, as
    /// `is_known` says, are forgotten.
    pub(crate) fn take_news(&mut self, is_known: impl Fn(u32) -> bool) -> Option<Vec<(u32, u64)>> {
        if !std::mem::take(&mut self.is_news) {
            return None;
        }
        self.last_ms.retain(|&segment, _| is_known(segment));
        Some(self.last_ms.iter().map(|(&id, &ms)| (id, ms)).collect())
    }

    /// They were not told after all.
    pub(crate) fn keep_news(&mut self) {
        self.is_news = true;
    }
}

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

    #[test]
    fn what_was_told_is_told_again_only_with_something_new() {
        let mut own = OwnReads::default();
        assert_eq!(own.take_news(|_| true), None);
        own.note(1, 5);
        own.note(2, 7);
        own.note(2, 6);
        let mut told = own.take_news(|_| true).unwrap();
        told.sort_unstable();
        assert_eq!(told, [(1, 5), (2, 7)]);
        assert_eq!(own.take_news(|_| true), None);
        own.keep_news();
        assert_eq!(own.take_news(|id| id == 2), Some(vec![(2, 7)]));
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
