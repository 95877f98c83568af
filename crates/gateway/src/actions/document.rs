//! The messages of `github.actions.results.api.v1.CacheService` as JSON (Twirp). Both spellings of
//! names are read, as protobuf's JSON mapping demands.

use ring::digest::{Context, SHA256};
use serde::Deserialize;

use super::{EntryId, KEY_LEN_MAX};

/// Prefixes of one request at most. Clients send nine.
const PREFIXES_MAX: usize = 32;

/// `CreateCacheEntry`.
#[derive(Debug, Deserialize)]
pub(crate) struct Reserve {
    #[serde(default)]
    pub(crate) key: String,
    #[serde(default)]
    pub(crate) version: String,
}

/// `FinalizeCacheEntryUpload`.
#[derive(Debug, Deserialize)]
pub(crate) struct Publish {
    #[serde(default)]
    pub(crate) key: String,
    #[serde(default)]
    pub(crate) version: String,
    #[serde(default, alias = "sizeBytes")]
    size_bytes: Number,
}

/// `GetCacheEntryDownloadURL`.
#[derive(Debug, Deserialize)]
pub(crate) struct Find {
    #[serde(default)]
    pub(crate) key: String,
    #[serde(default)]
    pub(crate) version: String,
    #[serde(default, alias = "restoreKeys")]
    pub(crate) restore_keys: Vec<String>,
}

/// A 64-bit integer, which JSON of protobuf writes as a string.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Number {
    Number(u64),
    Text(String),
}

impl Default for Number {
    fn default() -> Self {
        Self::Number(0)
    }
}

/// Whether an entry may have this key and version.
fn is_named(key: &str, version: &str) -> bool {
    let is_short = key.len() <= KEY_LEN_MAX && version.len() <= KEY_LEN_MAX;
    is_short && !key.is_empty() && !version.is_empty()
}

impl Reserve {
    /// The request of a body; `None` if it is malformed.
    pub(crate) fn parse(body: &[u8]) -> Option<Self> {
        let request: Self = serde_json::from_slice(body).ok()?;
        is_named(&request.key, &request.version).then_some(request)
    }
}

impl Publish {
    /// The request of a body; `None` if it is malformed.
    pub(crate) fn parse(body: &[u8]) -> Option<Self> {
        let request: Self = serde_json::from_slice(body).ok()?;
        is_named(&request.key, &request.version).then_some(request)
    }

    /// The length that the client says it uploaded.
    pub(crate) fn len(&self) -> Option<u64> {
        match &self.size_bytes {
            Number::Number(len) => Some(*len),
            Number::Text(text) => text.parse().ok(),
        }
    }
}

impl Find {
    /// The request of a body; `None` if it is malformed.
    pub(crate) fn parse(body: &[u8]) -> Option<Self> {
        let request: Self = serde_json::from_slice(body).ok()?;
        let prefixes = &request.restore_keys;
        let are_short = prefixes.iter().all(|it| it.len() <= KEY_LEN_MAX);
        let is_valid =
            is_named(&request.key, &request.version) && prefixes.len() <= PREFIXES_MAX && are_short;
        is_valid.then_some(request)
    }
}

/// The name of the entry with this key and version.
pub(crate) fn entry_id(key: &str, version: &str) -> EntryId {
    let mut context = Context::new(&SHA256);
    context.update(&(version.len() as u64).to_le_bytes());
    context.update(version.as_bytes());
    context.update(key.as_bytes());
    let mut id = [0; 32];
    id.copy_from_slice(context.finish().as_ref());
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_of_names_are_read() {
        let body = br#"{"key":"k","restore_keys":["a","b"],"version":"v"}"#;
        assert_eq!(Find::parse(body).unwrap().restore_keys, ["a", "b"]);
        let body = br#"{"key":"k","restoreKeys":["c"],"version":"v","metadata":{"scope":[]}}"#;
        assert_eq!(Find::parse(body).unwrap().restore_keys, ["c"]);
        for size in [r#""size_bytes":"215""#, r#""sizeBytes":215"#] {
            let body = format!(r#"{{"key":"k","version":"v",{size}}}"#);
            assert_eq!(Publish::parse(body.as_bytes()).unwrap().len(), Some(215));
        }
        let body = br#"{"key":"k","version":"v","size_bytes":"many"}"#;
        assert_eq!(Publish::parse(body).unwrap().len(), None);
    }

    #[test]
    fn keys_and_versions_are_neither_empty_nor_long() {
        let long = "k".repeat(KEY_LEN_MAX + 1);
        for (key, version) in [("", "v"), ("k", ""), (&long, "v"), ("k", &long)] {
            let body = format!(r#"{{"key":"{key}","version":"{version}"}}"#);
            assert!(Reserve::parse(body.as_bytes()).is_none());
            assert!(Find::parse(body.as_bytes()).is_none());
        }
        let prefixes = vec!["a"; PREFIXES_MAX + 1];
        let body = serde_json::json!({"key": "k", "version": "v", "restore_keys": prefixes});
        assert!(Find::parse(body.to_string().as_bytes()).is_none());
    }

    #[test]
    fn a_key_and_a_version_are_not_confused() {
        assert_ne!(entry_id("ab", "c"), entry_id("b", "ca"));
        assert_ne!(entry_id("a", "b"), entry_id("b", "a"));
    }
}
