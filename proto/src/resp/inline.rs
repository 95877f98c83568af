//! Inline commands: a line of words, quoted as in a shell (Redis protocol, "Inline commands").
//!
//! `"…"` knows `\n \r \t \b \a \xHH` and takes any other escaped byte as it is, `'…'` knows `\'`
//! only. A closing quote has to be followed by white space or the end of the line.

use super::frame::Span;

/// A quote is not closed, or is closed within a word.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UnbalancedQuotes;

/// Splits a line without its end into words. Their unquoted bytes are appended to `bytes`, where
/// they lie to `spans`.
pub(super) fn split(
    line: &[u8],
    bytes: &mut Vec<u8>,
    spans: &mut Vec<Span>,
) -> Result<(), UnbalancedQuotes> {
    let mut rest = line;
    loop {
        while let [byte, behind @ ..] = rest
            && is_space(*byte)
        {
            rest = behind;
        }
        if rest.is_empty() {
            return Ok(());
        }
        let start = bytes.len();
        rest = word(rest, bytes)?;
        spans.push(Span {
            start,
            len: bytes.len() - start,
        });
    }
}

/// Takes one word from the front of `rest` and returns what is behind it.
fn word<'l>(mut rest: &'l [u8], bytes: &mut Vec<u8>) -> Result<&'l [u8], UnbalancedQuotes> {
    loop {
        match rest {
            [] => return Ok(rest),
            [byte, ..] if is_space(*byte) => return Ok(rest),
            [b'"', behind @ ..] => return end_of_quote(double_quoted(behind, bytes)?),
            [b'\'', behind @ ..] => return end_of_quote(single_quoted(behind, bytes)?),
            [byte, behind @ ..] => {
                bytes.push(*byte);
                rest = behind;
            }
        }
    }
}

fn double_quoted<'l>(
    mut rest: &'l [u8],
    bytes: &mut Vec<u8>,
) -> Result<&'l [u8], UnbalancedQuotes> {
    loop {
        rest = match rest {
            [] => return Err(UnbalancedQuotes),
            [b'"', behind @ ..] => return Ok(behind),
            [b'\\', b'x', high, low, behind @ ..]
                if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() =>
            {
                bytes.push(nibble(*high) << 4 | nibble(*low));
                behind
            }
            [b'\\', escaped, behind @ ..] => {
                bytes.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                });
                behind
            }
            [byte, behind @ ..] => {
                bytes.push(*byte);
                behind
            }
        };
    }
}

fn single_quoted<'l>(
    mut rest: &'l [u8],
    bytes: &mut Vec<u8>,
) -> Result<&'l [u8], UnbalancedQuotes> {
    loop {
        rest = match rest {
            [] => return Err(UnbalancedQuotes),
            [b'\'', behind @ ..] => return Ok(behind),
            [b'\\', b'\'', behind @ ..] => {
                bytes.push(b'\'');
                behind
            }
            [byte, behind @ ..] => {
                bytes.push(*byte);
                behind
            }
        };
    }
}

fn end_of_quote(behind: &[u8]) -> Result<&[u8], UnbalancedQuotes> {
    match behind {
        [byte, ..] if !is_space(*byte) => Err(UnbalancedQuotes),
        _ => Ok(behind),
    }
}

/// White space between words. Within a word Redis ends only at space, tab, line feed, carriage
/// return and zero; a vertical tab or form feed there belongs to the word.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0)
}

fn nibble(hex: u8) -> u8 {
    match hex {
        b'0'..=b'9' => hex - b'0',
        _ => (hex | 0x20) - b'a' + 10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Result<Vec<String>, UnbalancedQuotes> {
        let (mut bytes, mut spans) = (Vec::new(), Vec::new());
        split(line.as_bytes(), &mut bytes, &mut spans)?;
        let word = |span: &Span| {
            bytes[span.start..span.start + span.len]
                .escape_ascii()
                .to_string()
        };
        Ok(spans.iter().map(word).collect())
    }

    #[test]
    fn quotes_and_escapes_are_those_of_redis() {
        for (line, expected) in [
            ("", vec![]),
            ("  \t ", vec![]),
            ("  PING  ", vec!["PING"]),
            ("PING a\tb", vec!["PING", "a", "b"]),
            ("PING \"a\\x41\\n\"", vec!["PING", "aA\\n"]),
            ("PING 'a\\'b\\n'", vec!["PING", "a\\'b\\\\n"]),
            ("PING a\"b\"", vec!["PING", "ab"]),
            ("PING \"\" ''", vec!["PING", "", ""]),
            ("\"PING\"", vec!["PING"]),
            ("PING \"\\xZZ\\q\"", vec!["PING", "xZZq"]),
            ("PING a\x0bb", vec!["PING", "a\\x0bb"]),
            ("PING\r", vec!["PING"]),
            ("\"\\r\\t\\b\\a\\\\\\\"\"", vec!["\\r\\t\\x08\\x07\\\\\\\""]),
        ] {
            assert_eq!(
                words(line),
                Ok(expected.iter().map(ToString::to_string).collect()),
                "{line}"
            );
        }
        for line in [
            "PING \"a\"b",
            "PING \"a",
            "PING 'a",
            "PING a\"b",
            "PING 'a'b",
            "\"\\",
        ] {
            assert_eq!(words(line), Err(UnbalancedQuotes), "{line}");
        }
    }
}
