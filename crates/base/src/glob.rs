//! Redis's glob patterns, for `SCAN MATCH` and `CONFIG GET`.
//!
//! `*` any run of bytes, `?` any byte, `[abc]`, `[a-z]`, `[^a]` a byte of a class, `\` takes the
//! next byte as it is. As in Redis, an unclosed class ends with the pattern.

/// Whether all of `text` matches `pattern`. It takes as many steps as a [`Matching`].
#[must_use]
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let mut matching = Matching::new(pattern, text);
    loop {
        let mut steps = usize::MAX;
        if let Some(is_match) = matching.advance(&mut steps) {
            return is_match;
        }
    }
}

/// The matching of a text against a pattern, which can be interrupted.
///
/// It takes as many steps as the product of both lengths at worst, without recursion: only the last
/// `*` is ever tried again.
#[derive(Debug)]
pub struct Matching<'m> {
    /// What is left of pattern and text.
    rest: &'m [u8],
    input: &'m [u8],
    /// What is behind the last `*`, and the text that it was tried on last.
    retry: Option<(&'m [u8], &'m [u8])>,
}

impl<'m> Matching<'m> {
    /// Whether all of `text` matches `pattern`, to be found out.
    #[must_use]
    pub fn new(pattern: &'m [u8], text: &'m [u8]) -> Self {
        Self {
            rest: pattern,
            input: text,
            retry: None,
        }
    }

    /// Goes on until the answer is known. None if that takes more than `steps`, which are counted
    /// down. A step looks at one byte of the pattern.
    pub fn advance(&mut self, steps: &mut usize) -> Option<bool> {
        while *steps > 0 {
            if let [b'*', after @ ..] = self.rest {
                self.rest = after;
                self.retry = Some((after, self.input));
                *steps -= 1;
                continue;
            }
            match (self.rest.is_empty(), self.input.split_first()) {
                (true, None) => return Some(true),
                (false, Some((byte, after))) => {
                    let (is_match, left) = match_one(self.rest, *byte);
                    *steps = steps.saturating_sub(self.rest.len() - left.len());
                    if is_match {
                        (self.rest, self.input) = (left, after);
                        continue;
                    }
                }
                _ => *steps -= 1,
            }
            // The last star takes one byte more.
            match self.retry {
                Some((after_star, [_, from @ ..])) => {
                    self.retry = Some((after_star, from));
                    (self.rest, self.input) = (after_star, from);
                }
                _ => return Some(false),
            }
        }
        None
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

/// Whether one byte matches the first element of a pattern that is not a star, and what is behind
/// the element.
fn match_one(pattern: &[u8], byte: u8) -> (bool, &[u8]) {
    match pattern {
        [b'?', rest @ ..] => (true, rest),
        [b'\\', literal, rest @ ..] => (*literal == byte, rest),
        [b'[', rest @ ..] => match_class(rest, byte),
        [literal, rest @ ..] => (*literal == byte, rest),
        [] => (false, &[]),
    }
}

/// As [`match_one`], for a class whose `[` is behind us.
fn match_class(class: &[u8], byte: u8) -> (bool, &[u8]) {
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
    (found != negated, rest)
}

#[cfg(test)]
mod tests {
    use super::{Matching, literal_prefix, matches};

    /// The same, interrupted after each few steps; and how many steps it took.
    fn matches_in_steps(pattern: &[u8], text: &[u8], steps_max: usize) -> (bool, usize) {
        let (mut matching, mut taken) = (Matching::new(pattern, text), 0);
        loop {
            let mut steps = steps_max;
            let is_match = matching.advance(&mut steps);
            taken += steps_max - steps;
            match is_match {
                Some(is_match) => return (is_match, taken),
                None => assert_eq!(steps, 0),
            }
        }
    }

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
            let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
            let name = pattern.escape_ascii();
            assert_eq!(matches(pattern, text), expected, "{name}");
            for steps_max in 1..10 {
                let (is_match, _) = matches_in_steps(pattern, text, steps_max);
                assert_eq!(is_match, expected, "{name}");
            }
        }
    }

    #[test]
    fn all_bytes_of_a_class_are_counted() {
        let pattern = [&b"*["[..], &[b'a'; 100], b"]x"].concat();
        let (is_match, taken) = matches_in_steps(&pattern, &[b'b'; 50], usize::MAX);
        assert!(!is_match && taken >= 50 * 102, "{taken}");
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
