//! One range of bytes (RFC 9110, section 14).

use std::ops::Range;

/// What a `Range` header asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// All of it: there is no range, several, or one of an unknown unit.
    All,
    /// This part, which is not empty.
    Part(Range<usize>),
    /// Nothing that is there.
    Unsatisfiable,
}

/// Reads a `Range` header for a value of `len` bytes.
pub(crate) fn wanted(header: Option<&[u8]>, len: usize) -> Wanted {
    let text = header.and_then(|it| std::str::from_utf8(it).ok());
    let Some(range) = text.and_then(|it| it.trim().strip_prefix("bytes=")) else {
        return Wanted::All;
    };
    let Some((first, last)) = range.trim().split_once('-') else {
        return Wanted::All;
    };
    let number = |text: &str| match text.bytes().all(|it| it.is_ascii_digit()) {
        true => Some(text.parse().unwrap_or(usize::MAX)),
        false => None,
    };
    match (first, last) {
        ("", "") => Wanted::All,
        ("", suffix) => match number(suffix) {
            None => Wanted::All,
            Some(0) => Wanted::Unsatisfiable,
            Some(_) if len == 0 => Wanted::Unsatisfiable,
            Some(suffix) => Wanted::Part(len.saturating_sub(suffix)..len),
        },
        (first, last) => {
            let end = match last {
                "" => Some(len),
                last => number(last).map(|last| last.saturating_add(1).min(len)),
            };
            match (number(first), end) {
                (Some(first), Some(_)) if first >= len => Wanted::Unsatisfiable,
                (Some(first), Some(end)) if first < end => Wanted::Part(first..end),
                // The last byte comes before the first: not a range at all.
                _ => Wanted::All,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_range_of_bytes_is_a_part() {
        for (header, part) in [
            ("bytes=0-0", 0..1),
            ("bytes=2-4", 2..5),
            ("bytes=2-", 2..10),
            ("bytes=-3", 7..10),
            ("bytes=-30", 0..10),
            ("bytes=9-99999999999999999999999", 9..10),
        ] {
            assert_eq!(
                wanted(Some(header.as_bytes()), 10),
                Wanted::Part(part),
                "{header}"
            );
        }
        for header in [
            "bytes=10-",
            "bytes=10-12",
            "bytes=-0",
            "bytes=99999999999999999999999-",
        ] {
            assert_eq!(
                wanted(Some(header.as_bytes()), 10),
                Wanted::Unsatisfiable,
                "{header}"
            );
        }
        for header in [
            "bytes=0-1,3-4",
            "items=0-1",
            "bytes=",
            "bytes=-",
            "bytes=4-2",
            "bytes=+1-2",
            "",
        ] {
            assert_eq!(wanted(Some(header.as_bytes()), 10), Wanted::All, "{header}");
        }
        assert_eq!(wanted(None, 10), Wanted::All);
    }

    proptest! {
        #[test]
        fn a_part_is_never_empty_and_lies_within_the_value(header: Vec<u8>, len in 0usize..100) {
            if let Wanted::Part(part) = wanted(Some(&header), len) {
                prop_assert!(part.start < part.end && part.end <= len);
            }
        }

        #[test]
        fn every_range_of_two_numbers_is_read(first in 0usize..50, last in 0usize..50, len in 0usize..50) {
            let found = wanted(Some(format!("bytes={first}-{last}").as_bytes()), len);
            let expected = match () {
                () if first >= len => Wanted::Unsatisfiable,
                () if first > last => Wanted::All,
                () => Wanted::Part(first..(last + 1).min(len)),
            };
            prop_assert_eq!(found, expected);
        }
    }
}
