//! Where the cold tier is: `s3://bucket/prefix` or `file:///directory`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::ObjectKey;

/// A place for objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A bucket, or the part of it whose keys begin with a prefix.
    S3 {
        /// Its name.
        bucket: String,
        /// What the keys begin with, without the slash behind it.
        prefix: Option<ObjectKey>,
    },
    /// A directory.
    File {
        /// Its absolute path, taken as it stands: nothing in it is percent-encoded.
        dir: PathBuf,
    },
}

/// What is accepted, for messages.
const ACCEPTED: &str = "give `s3://bucket`, `s3://bucket/prefix` or `file:///directory`";

/// A text that is no location.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LocationError {
    /// Neither of the two kinds of URL.
    #[error("`{value}` names no object store: {ACCEPTED}")]
    Scheme {
        /// The text.
        value: String,
    },
    /// Credentials in the URL. The text is not repeated.
    #[error(
        "the URL of an object store has no credentials in it: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and {ACCEPTED}"
    )]
    Credentials,
    /// Not the name of a bucket.
    #[error(
        "`{bucket}` in `{value}` is no bucket: a name has 3 to 63 lower-case letters, digits, dots \
         and hyphens, and begins and ends with a letter or digit"
    )]
    Bucket {
        /// The text.
        value: String,
        /// The part that is wrong.
        bucket: String,
    },
    /// Not a prefix of keys.
    #[error(
        "`{prefix}` in `{value}` is no prefix: it has segments of letters, digits and -_.= between \
         single slashes, none of them begins with a dot, and at most {PREFIX_LEN_MAX} bytes"
    )]
    Prefix {
        /// The text.
        value: String,
        /// The part that is wrong.
        prefix: String,
    },
    /// Not an absolute path.
    #[error("`{value}` has no absolute path: give `file:///directory`, with three slashes")]
    Path {
        /// The text.
        value: String,
    },
}

/// Longest prefix: the rest of a key is for what is in the store.
const PREFIX_LEN_MAX: usize = 512;

impl FromStr for Location {
    type Err = LocationError;

    fn from_str(text: &str) -> Result<Self, LocationError> {
        let value = || text.to_owned();
        if let Some(path) = text.strip_prefix("file://") {
            if path.len() < 2 || !path.starts_with('/') || path.contains('\0') {
                return Err(LocationError::Path { value: value() });
            }
            let dir = PathBuf::from(path);
            return Ok(Self::File { dir });
        }
        if text.contains('@') {
            return Err(LocationError::Credentials);
        }
        let Some(rest) = text.strip_prefix("s3://") else {
            return Err(LocationError::Scheme { value: value() });
        };
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if !is_bucket(bucket) {
            let bucket = bucket.to_owned();
            return Err(LocationError::Bucket {
                value: value(),
                bucket,
            });
        }
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        let wrong_prefix = || LocationError::Prefix {
            value: value(),
            prefix: prefix.to_owned(),
        };
        let prefix = match prefix {
            "" => None,
            long if long.len() > PREFIX_LEN_MAX => return Err(wrong_prefix()),
            text => Some(ObjectKey::new(text).map_err(|_| wrong_prefix())?),
        };
        Ok(Self::S3 {
            bucket: bucket.to_owned(),
            prefix,
        })
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::S3 { bucket, prefix } => {
                write!(f, "s3://{bucket}")?;
                prefix.iter().try_for_each(|prefix| write!(f, "/{prefix}"))
            }
            Self::File { dir } => write!(f, "file://{}", dir.display()),
        }
    }
}

/// The rules for general purpose buckets (Amazon S3 User Guide, "Bucket naming rules").
fn is_bucket(name: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_end = |byte: Option<u8>| byte.is_some_and(is_inner);
    (3..=63).contains(&name.len())
        && name
            .bytes()
            .all(|byte| is_inner(byte) || b".-".contains(&byte))
        && is_end(name.bytes().next())
        && is_end(name.bytes().next_back())
        && !name.contains("..")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn s3(bucket: &str, prefix: Option<&str>) -> Location {
        Location::S3 {
            bucket: bucket.to_owned(),
            prefix: prefix.map(|prefix| ObjectKey::new(prefix).unwrap()),
        }
    }

    #[test]
    fn buckets_prefixes_and_directories_are_accepted() {
        for (text, location) in [
            ("s3://my-bucket", s3("my-bucket", None)),
            ("s3://my-bucket/", s3("my-bucket", None)),
            ("s3://a.b.c/x", s3("a.b.c", Some("x"))),
            ("s3://abc/team/cache_1/", s3("abc", Some("team/cache_1"))),
            (
                "file:///var/lib/fonn",
                Location::File {
                    dir: "/var/lib/fonn".into(),
                },
            ),
            (
                "file:///a b@c",
                Location::File {
                    dir: "/a b@c".into(),
                },
            ),
        ] {
            assert_eq!(text.parse(), Ok(location.clone()), "{text}");
            assert_eq!(location.to_string().parse(), Ok(location), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_what_would_be_right() {
        for (text, part) in [
            ("", "`` names no object store: give `s3://bucket`"),
            ("bucket/prefix", "`bucket/prefix` names no object store"),
            ("gs://bucket", "`gs://bucket` names no"),
            ("/var/lib", "or `file:///directory`"),
            ("s3://", "`` in `s3://` is no bucket: a name has 3 to 63"),
            ("s3://My-Bucket/x", "`My-Bucket` in `s3://My-Bucket/x`"),
            ("s3://ab", "is no bucket"),
            ("s3://-ab", "is no bucket"),
            ("s3://a..b", "is no bucket"),
            ("s3://abc//x", "`/x` in `s3://abc//x` is no prefix"),
            ("s3://abc/a b", "is no prefix"),
            ("s3://abc/../x", "is no prefix"),
            ("s3://abc/x?versions", "is no prefix"),
            (
                "file://relative/dir",
                "give `file:///directory`, with three",
            ),
            ("file://", "has no absolute path"),
            ("file:///", "has no absolute path"),
        ] {
            let error = text.parse::<Location>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        let long = format!("s3://abc/{}", ["x".repeat(100).as_str(); 6].join("/"));
        assert!(matches!(
            long.parse::<Location>(),
            Err(LocationError::Prefix { .. })
        ));
    }

    #[test]
    fn credentials_are_refused_and_not_repeated() {
        let error = "s3://AKIA:secret@bucket/x".parse::<Location>().unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
    }

    proptest! {
        #[test]
        fn any_text_is_accepted_or_refused(text in "(s3://|file://|)[a-zA-Z0-9./@ -]{0,80}") {
            if let Ok(location) = text.parse::<Location>() {
                prop_assert_eq!(location.to_string().parse(), Ok(location));
            }
        }
    }
}
