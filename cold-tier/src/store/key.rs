//! Names of objects.

use std::fmt;

/// The name of an object: `/`-separated segments.
///
/// It is restricted to what is safe as an S3 key, in a URL and as a path: at most 1024 bytes;
/// segments of 1 to 200 bytes out of ASCII letters, digits and `-_.=`, that do not begin with a
/// dot. So no key can leave a directory or name one of its hidden files.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey(Box<str>);

/// A text that is not an object key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "an object key has at most {} bytes, in segments of 1 to {} ASCII letters, digits and -_.= \
     with no dot in front",
    ObjectKey::LEN_MAX,
    ObjectKey::SEGMENT_LEN_MAX
)]
pub struct KeyError;

impl ObjectKey {
    /// Longest key in bytes, as in S3.
    pub const LEN_MAX: usize = 1024;
    /// Longest segment in bytes; file systems take 255.
    pub const SEGMENT_LEN_MAX: usize = 200;

    /// Checks a text.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn new(text: &str) -> Result<Self, KeyError> {
        let is_safe = |b: u8| b.is_ascii_alphanumeric() || b"-_.=".contains(&b);
        let is_segment = |segment: &str| {
            (1..=Self::SEGMENT_LEN_MAX).contains(&segment.len())
                && !segment.starts_with('.')
                && segment.bytes().all(is_safe)
        };
        if text.len() <= Self::LEN_MAX && text.split('/').all(is_segment) {
            Ok(Self(text.into()))
        } else {
            Err(KeyError)
        }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Component, Path};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ordinary_keys_are_accepted() {
        let longest = format!("{}/{}", "x".repeat(200), "y".repeat(200));
        for text in ["a", "v1/eu-1/node_7/00ff.seg", "a=b/c..d/e.", &longest] {
            assert_eq!(ObjectKey::new(text).unwrap().as_str(), text);
        }
    }

    #[test]
    fn what_could_leave_a_directory_is_refused() {
        for text in [
            "..",
            "../a",
            "a/../b",
            "a/..",
            ".",
            "./a",
            ".tmp/x",
            "a/.hidden",
        ] {
            assert_eq!(ObjectKey::new(text), Err(KeyError), "{text}");
        }
        for text in ["", "/", "/a", "a/", "a//b", &"x".repeat(201)] {
            assert_eq!(ObjectKey::new(text), Err(KeyError), "{text}");
        }
        for text in [
            "a b", "a\\b", "a\0b", "a\nb", "ä", "a%2fb", "a:b", "~", "a*",
        ] {
            assert_eq!(ObjectKey::new(text), Err(KeyError), "{text}");
        }
        assert_eq!(ObjectKey::new(&"abc/abc/a".repeat(129)), Err(KeyError));
    }

    proptest! {
        #[test]
        fn every_accepted_key_is_a_plain_relative_path(text in "[a./=\\-_\\\\~ \0é]{0,12}") {
            if let Ok(key) = ObjectKey::new(&text) {
                let mut components = Path::new(key.as_str()).components();
                prop_assert!(components.all(|part| matches!(part, Component::Normal(_))));
                let joined = Path::new("/r").join(key.as_str());
                prop_assert_eq!(joined.to_str().unwrap(), format!("/r/{key}"));
            }
        }
    }
}
