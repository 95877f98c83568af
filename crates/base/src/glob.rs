//! Redis's glob patterns, for `SCAN MATCH` and `CONFIG GET`.
//!
//! `*` any run of bytes, `?` any byte, `[abc]`, `[a-z]`, `[^a]` a byte of a class, `\` takes the
//! next byte as it is. As in Redis, an unclosed class ends with the pattern.

/// Whether all of `text` matches `pattern`.
///
/// Runs in time proportional to the product of both lengths at worst, without recursion: only the
/// last `*` is ever tried again.
#[must_use]
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut rest, mut input) = (pattern, text);
    let mut retry: Option<(&[u8], &[u8])> = None;
    loop {
        if let [b'*', after @ ..] = rest {
            rest = after;
            retry = Some((after, input));
            continue;
        }
        match (rest.is_empty(), input.split_first()) {
            (true, None) => return true,
            (false, Some((byte, after))) => {
                if let Some(left) = match_one(rest, *byte) {
                    (rest, input) = (left, after);
                    continue;
                }
            }
            _ => {}
        }
        // The last star takes one byte more.
        match retry {
            Some((after_star, [_, from @ ..])) => {
                retry = Some((after_star, from));
                (rest, input) = (after_star, from);
            }
            _ => return false,
        }
    }
}

/// The bytes that each text begins with which matches `pattern`.
#[must_use]
pub fn literal_prefix(pattern: &[u8]) -> Vec<u8> {
    let (mut rest, mut prefix) = (pattern, Vec::new());
    loop {
        rest = match rest {
            [b'\\', literal, rest @ ..] => {
                prefix.push(*literal);
                rest
            }
            [] | [b'*' | b'?' | b'[', ..] => return prefix,
            [literal, rest @ ..] => {
                prefix.push(*literal);
                rest
            }
        };
    }
}

/// Matches one byte against the first element of a pattern that is not a star; the rest of the
/// pattern if it does.
fn match_one(pattern: &[u8], byte: u8) -> Option<&[u8]> {
    match pattern {
        [b'?', rest @ ..] => Some(rest),
        [b'\\', literal, rest @ ..] => (*literal == byte).then_some(rest),
        [b'[', rest @ ..] => match_class(rest, byte),
        [literal, rest @ ..] => (*literal == byte).then_some(rest),
        [] => None,
    }
}

/// Matches a byte against a class whose `[` is behind us.
fn match_class(class: &[u8], byte: u8) -> Option<&[u8]> {
    let (negated, mut rest) = match class {
        [b'^', rest @ ..] => (true, rest),
        _ => (false, class),
    };
    let mut found = false;
    loop {
        match rest {
            [] => break,
            [b']', after @ ..] => {
                rest = after;
                break;
            }
            [b'\\', literal, after @ ..] => {
                found |= *literal == byte;
                rest = after;
            }
            [low, b'-', high, after @ ..] => {
                found |= (*low.min(high)..=*low.max(high)).contains(&byte);
                rest = after;
            }
            [literal, after @ ..] => {
                found |= *literal == byte;
                rest = after;
            }
        }
    }
    (found != negated).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::{literal_prefix, matches};

    #[test]
    fn patterns_match_as_in_redis() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("*", "anything", true),
            ("", "", true),
            ("", "a", false),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h*llo", "heeeello", true),
            ("h[ae]llo", "hallo", true),
            ("h[ae]llo", "hillo", false),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("a\\*b", "a*b", true),
            ("a\\*b", "axb", false),
            ("*a*b*c*", "xxaxxbxxc", true),
            ("*a*b*c", "xxaxxbxx", false),
            ("[ab", "a", true),
            ("a]", "a]", true),
        ] {
            assert_eq!(
                matches(pattern.as_bytes(), text.as_bytes()),
                expected,
                "{pattern} {text}"
            );
        }
    }

    #[test]
    fn what_comes_before_the_first_choice_is_a_prefix() {
        for (pattern, expected) in [
            ("", ""),
            ("*", ""),
            ("ab*c", "ab"),
            ("ab?c", "ab"),
            ("ab[c]", "ab"),
            ("a\\*b\\", "a*b\\"),
            ("abc", "abc"),
        ] {
            let prefix = literal_prefix(pattern.as_bytes());
            assert_eq!(prefix, expected.as_bytes(), "{pattern}");
        }
        // A byte that is escaped is never a choice.
        let (all, mut pattern): (Vec<u8>, _) = ((0..=u8::MAX).collect(), Vec::new());
        for byte in &all {
            pattern.extend_from_slice(&[b'\\', *byte]);
        }
        pattern.push(b'*');
        assert_eq!(literal_prefix(&pattern), all);
        assert!(matches(&pattern, &all) && !matches(&pattern, &all[..255]));
    }

    #[test]
    fn many_stars_do_not_explode() {
        let pattern = b"*a".repeat(200);
        let text = b"a".repeat(5_000);
        assert!(!matches(&[&pattern[..], b"b"].concat(), &text));
    }
}
