//! Numbers as Redis reads them: strictly.

/// Reads a signed decimal number the way Redis does: no plus sign, no leading zero, no `-0`, no
/// space.
pub(super) fn integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] => {}
        _ => return None,
    }
    // Counted downwards, because there is one more negative number than there are positive ones.
    let negated = digits.iter().try_fold(0_i64, |number, &digit| {
        let digit = digit.is_ascii_digit().then(|| i64::from(digit - b'0'))?;
        number.checked_mul(10)?.checked_sub(digit)
    })?;
    if negative {
        Some(negated)
    } else {
        negated.checked_neg()
    }
}

/// Reads the cursor of `SCAN`: decimal digits.
pub(super) fn cursor(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |number, &digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

/// Reads a floating-point number: decimal or `inf`, not `nan`, and none that only a wider type
/// could hold. Unlike Redis, which leaves it to the C library, it takes no hexadecimal numbers.
pub(super) fn float(text: &[u8]) -> Option<f64> {
    let number: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    let mantissa = text
        .split(|byte| matches!(byte, b'e' | b'E'))
        .next()
        .unwrap_or_default();
    let overflowed = number.is_infinite() && mantissa.iter().any(u8::is_ascii_digit);
    let underflowed = number == 0.0 && mantissa.iter().any(|byte| (b'1'..=b'9').contains(byte));
    (!number.is_nan() && !overflowed && !underflowed).then_some(number)
}

/// A number and the line end behind it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Length {
    /// The number, and how many bytes it takes with its line end.
    Number { number: i64, len: usize },
    /// The line end is yet to come.
    Incomplete,
    /// No number as Redis takes it: no leading zero, no plus sign, no space, at most 18 digits.
    Invalid,
}

/// Reads the number behind the first byte of an array's or bulk string's header.
#[inline]
pub(super) fn length(bytes: &[u8]) -> Length {
    // Nearly all counts and lengths have one digit or two.
    match bytes {
        [ones @ b'0'..=b'9', b'\r', b'\n', ..] => Length::Number {
            number: i64::from(ones - b'0'),
            len: 3,
        },
        [tens @ b'1'..=b'9', ones @ b'0'..=b'9', b'\r', b'\n', ..] => {
            let number = i64::from(tens - b'0') * 10 + i64::from(ones - b'0');
            Length::Number { number, len: 4 }
        }
        _ => any_length(bytes),
    }
}

fn any_length(bytes: &[u8]) -> Length {
    const DIGITS_MAX: usize = 18;
    let start = usize::from(bytes.first() == Some(&b'-'));
    let mut number = 0_i64;
    let mut index = start;
    loop {
        let Some(&byte) = bytes.get(index) else {
            return Length::Incomplete;
        };
        let digit = byte.wrapping_sub(b'0');
        if digit <= 9 {
            let leading_zero = number == 0 && index > start;
            if leading_zero || index - start == DIGITS_MAX {
                return Length::Invalid;
            }
            number = number * 10 + i64::from(digit);
            index += 1;
            continue;
        }
        if byte != b'\r' || index == start || (start == 1 && number == 0) {
            return Length::Invalid;
        }
        return match bytes.get(index + 1) {
            None => Length::Incomplete,
            Some(b'\n') => Length::Number {
                number: if start == 1 { -number } else { number },
                len: index + 2,
            },
            Some(_) => Length::Invalid,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_read_as_strictly_as_redis_reads_them() {
        for (text, expected) in [
            ("0", Some(0)),
            ("-1", Some(-1)),
            ("10", Some(10)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("-9223372036854775809", None),
            ("99999999999999999999999", None),
            ("", None),
            ("-", None),
            ("-0", None),
            ("01", None),
            ("+1", None),
            (" 1", None),
            ("1 ", None),
            ("1a", None),
            ("0x10", None),
        ] {
            assert_eq!(integer(text.as_bytes()), expected, "{text:?}");
        }
    }

    #[test]
    fn lengths_end_with_their_line_and_are_invalid_as_early_as_can_be_told() {
        for (bytes, number, len) in [
            ("0\r\n", 0, 3),
            ("7\r\nrest", 7, 3),
            ("10\r\n", 10, 4),
            ("123456789012345678\r\n", 123_456_789_012_345_678, 20),
            ("-1\r\n", -1, 4),
            ("-12\r\n", -12, 5),
        ] {
            assert_eq!(
                length(bytes.as_bytes()),
                Length::Number { number, len },
                "{bytes:?}"
            );
            for end in 0..len {
                assert_eq!(
                    length(&bytes.as_bytes()[..end]),
                    Length::Incomplete,
                    "{bytes:?} {end}"
                );
            }
        }
        for bytes in [
            "01", "00", "-0\r", "+", " 1", "1a", "\r", "-\r", "1\rx", "1\n", "--",
        ] {
            assert_eq!(length(bytes.as_bytes()), Length::Invalid, "{bytes:?}");
        }
        assert_eq!(length(b"1234567890123456789"), Length::Invalid);
    }

    #[test]
    fn cursors_are_unsigned_decimal_numbers() {
        assert_eq!(cursor(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(cursor(b"007"), Some(7));
        for text in ["", "-1", "x", " 1", "18446744073709551616"] {
            assert_eq!(cursor(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn floats_outside_of_the_range_are_no_floats() {
        for (text, expected) in [
            ("1", Some(1.0)),
            ("1.", Some(1.0)),
            (".5", Some(0.5)),
            ("+1", Some(1.0)),
            ("-3e2", Some(-300.0)),
            ("0", Some(0.0)),
            ("0e9", Some(0.0)),
            ("inf", Some(f64::INFINITY)),
            ("-Infinity", Some(f64::NEG_INFINITY)),
            ("nan", None),
            ("1e400", None),
            ("1e-5000", None),
            ("", None),
            (" 1", None),
            ("1 ", None),
            ("abc", None),
            ("1e", None),
        ] {
            assert_eq!(float(text.as_bytes()), expected, "{text:?}");
        }
    }
}
