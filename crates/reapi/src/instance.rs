//! Instance names, which select entries inside the namespace of a client.

use crate::error::ReapiError;

/// Longest instance name. With a digest it is a key that every protocol takes.
const LEN_MAX: usize = 1024;

/// Segments that a resource name has elsewhere.
const RESERVED: [&str; 7] = [
    "blobs",
    "uploads",
    "actions",
    "actionResults",
    "operations",
    "capabilities",
    "compressed-blobs",
];

/// The name of an instance, which may be empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Instance(String);

impl Instance {
    /// An instance by its name. A slash at its beginning or at its end is no part of it.
    ///
    /// # Errors
    /// [`ReapiError`].
    pub fn new(name: &str) -> Result<Self, ReapiError> {
        let name = name.strip_prefix('/').unwrap_or(name);
        let name = name.strip_suffix('/').unwrap_or(name);
        if name.len() > LEN_MAX {
            return Err(ReapiError::TooLong {
                what: "an instance name",
                len: name.len(),
                len_max: LEN_MAX,
            });
        }
        if name.is_empty() {
            return Ok(Self::default());
        }
        for segment in name.split('/') {
            match segment {
                "" | "." | ".." => return Err(ReapiError::Segment),
                segment if RESERVED.contains(&segment) => return Err(ReapiError::Reserved),
                _ => {}
            }
        }
        Ok(Self(format!("{name}/")))
    }

    /// The instance of a key of the HTTP dialect: what stands before `ac/` or `cas/`. HTTP has
    /// checked its segments.
    #[must_use]
    pub fn of_key(key: &[u8], kind: &str) -> Option<Self> {
        let key = std::str::from_utf8(key).ok()?;
        let (path, _) = key.rsplit_once('/')?;
        let prefix = path.strip_suffix(kind)?;
        (prefix.is_empty() || prefix.ends_with('/')).then(|| Self(prefix.to_owned()))
    }

    /// What keys begin with: empty, or the name and a slash.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slash_around_a_name_is_no_part_of_it() {
        for name in ["a/b", "/a/b", "a/b/", "/a/b/"] {
            assert_eq!(Instance::new(name).unwrap().prefix(), "a/b/", "{name}");
        }
        for name in ["", "/"] {
            assert_eq!(Instance::new(name).unwrap().prefix(), "", "{name}");
        }
    }

    #[test]
    fn names_that_could_be_taken_for_others_are_refused() {
        for name in [
            "a//b",
            "..",
            "a/./b",
            "///",
            "blobs",
            "a/uploads/b",
            "compressed-blobs",
        ] {
            assert!(Instance::new(name).is_err(), "{name}");
        }
        assert!(Instance::new(&"x".repeat(LEN_MAX)).is_ok());
        assert_eq!(
            Instance::new(&"x".repeat(LEN_MAX + 1)),
            Err(ReapiError::TooLong {
                what: "an instance name",
                len: LEN_MAX + 1,
                len_max: LEN_MAX,
            })
        );
    }

    #[test]
    fn the_instance_of_an_http_key_stands_before_the_kind() {
        let of = |key: &str| Instance::of_key(key.as_bytes(), "ac").map(|it| it.0);
        assert_eq!(of("ac/00").as_deref(), Some(""));
        assert_eq!(of("a/b/ac/00").as_deref(), Some("a/b/"));
        assert_eq!(of("a/cas/00"), None);
        assert_eq!(of("mac/00"), None);
    }
}
