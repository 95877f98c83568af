//! Resource names of `google.bytestream`, which name blobs:
//!
//! | name | means |
//! |---|---|
//! | `[instance/]blobs/[function/]{hash}/{size}` | a blob |
//! | `[instance/]compressed-blobs/zstd/[function/]{hash}/{size}` | a blob, compressed on its way |
//! | `[instance/]uploads/{id}/…[/anything]` | the upload of either |
//!
//! A slash at the beginning is ignored: moon sends one if its instance has no name.

use crate::digest::{Digest, DigestFunction};
use crate::error::ReapiError;
use crate::instance::Instance;

/// Longest name that is looked at.
const LEN_MAX: usize = 4096;

/// How a blob is compressed on its way, with the number in the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compressor {
    /// Not at all.
    Identity = 0,
    /// As a stream of zstd.
    Zstd = 1,
}

/// A blob that is read or written as a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// The instance.
    pub instance: Instance,
    /// The blob.
    pub digest: Digest,
    /// How it is compressed on its way.
    pub compressor: Compressor,
}

impl Resource {
    /// The blob that is read.
    ///
    /// # Errors
    /// [`ReapiError`].
    pub fn for_read(name: &str) -> Result<Self, ReapiError> {
        let segments = segments(name)?;
        let kind = ["blobs", "compressed-blobs"];
        let at = segments.iter().position(|it| kind.contains(it));
        let (instance, rest) = split(&segments, at)?;
        Self::of(instance, rest, Ending::Exact)
    }

    /// The blob that is uploaded.
    ///
    /// # Errors
    /// [`ReapiError`].
    pub fn for_write(name: &str) -> Result<Self, ReapiError> {
        let segments = segments(name)?;
        let at = segments.iter().position(|it| *it == "uploads");
        let (instance, rest) = split(&segments, at)?;
        match rest {
            ["uploads", id, blob @ ..] if !id.is_empty() => {
                Self::of(instance, blob, Ending::Anything)
            }
            _ => Err(ReapiError::ResourceName),
        }
    }

    fn of(instance: &[&str], blob: &[&str], ending: Ending) -> Result<Self, ReapiError> {
        let (compressor, address) = match blob {
            ["blobs", address @ ..] => (Compressor::Identity, address),
            ["compressed-blobs", "zstd", address @ ..] => (Compressor::Zstd, address),
            ["compressed-blobs", _, ..] => return Err(ReapiError::Compressor),
            _ => return Err(ReapiError::ResourceName),
        };
        if instance.iter().any(|it| it.is_empty()) {
            return Err(ReapiError::Segment);
        }
        let named = |name: &str| {
            DigestFunction::ALL
                .into_iter()
                .find(|it| it.as_str() == name)
        };
        let (function, address) = match address {
            [name, rest @ ..] if let Some(function) = named(name) => (function as i32, rest),
            _ => (0, address),
        };
        let [hash, size, rest @ ..] = address else {
            return Err(ReapiError::ResourceName);
        };
        if ending == Ending::Exact && !rest.is_empty() {
            return Err(ReapiError::ResourceName);
        }
        // Only digits: a sign is no part of a number here.
        if size.is_empty() || !size.bytes().all(|it| it.is_ascii_digit()) {
            return Err(ReapiError::ResourceName);
        }
        let size = size.parse().map_err(|_| ReapiError::ResourceName)?;
        Ok(Self {
            instance: Instance::new(&instance.join("/"))?,
            digest: Digest::new(hash, size, function)?,
            compressor,
        })
    }
}

/// What may follow the size.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    Exact,
    Anything,
}

fn segments(name: &str) -> Result<Vec<&str>, ReapiError> {
    if name.len() > LEN_MAX {
        return Err(ReapiError::TooLong {
            what: "a resource name",
            len: name.len(),
            len_max: LEN_MAX,
        });
    }
    Ok(name.strip_prefix('/').unwrap_or(name).split('/').collect())
}

/// The segments before `at`, and those from there.
fn split<'s, 'n>(
    segments: &'s [&'n str],
    at: Option<usize>,
) -> Result<(&'s [&'n str], &'s [&'n str]), ReapiError> {
    at.and_then(|at| segments.split_at_checked(at))
        .ok_or(ReapiError::ResourceName)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hash() -> String {
        "0f".repeat(32)
    }

    #[test]
    fn names_of_real_clients_are_understood() {
        let hash = hash();
        // Bazel, and moon without an instance and with one.
        for (name, prefix, compressor) in [
            (
                format!("uploads/0-1/blobs/{hash}/5"),
                "",
                Compressor::Identity,
            ),
            (
                format!("/uploads/0-1/compressed-blobs/zstd/{hash}/5"),
                "",
                Compressor::Zstd,
            ),
            (
                format!("x/y/uploads/0-1/blobs/{hash}/5/meta/data"),
                "x/y/",
                Compressor::Identity,
            ),
            (
                format!("x/uploads/0-1/blobs/blake3/{hash}/5"),
                "x/",
                Compressor::Identity,
            ),
        ] {
            let resource = Resource::for_write(&name).unwrap();
            assert_eq!(resource.instance.prefix(), prefix, "{name}");
            assert_eq!(
                (resource.compressor, resource.digest.len()),
                (compressor, 5),
                "{name}"
            );
            assert!(Resource::for_read(&name).is_err(), "{name}");
        }
        for name in [
            format!("blobs/{hash}/5"),
            format!("/x/compressed-blobs/zstd/{hash}/5"),
        ] {
            assert_eq!(Resource::for_read(&name).unwrap().digest.hash_hex(), hash);
            assert!(Resource::for_write(&name).is_err(), "{name}");
        }
    }

    #[test]
    fn names_of_no_blob_are_refused() {
        let hash = hash();
        for name in [
            String::new(),
            "/".to_owned(),
            "blobs".to_owned(),
            format!("blobs/{hash}"),
            format!("blobs/{hash}/"),
            format!("blobs/{hash}/-1"),
            format!("blobs/{hash}/+1"),
            format!("blobs/{hash}/99999999999999999999"),
            format!("blobs/{hash}/1/2"),
            format!("blobs/sha1/{hash}/1"),
            format!("blobs/vso/{hash}/1"),
            format!("x//blobs/{hash}/1"),
            format!("../blobs/{hash}/1"),
            format!("//blobs/{hash}/1"),
            format!("compressed-blobs/deflate/{hash}/1"),
        ] {
            assert!(Resource::for_read(&name).is_err(), "{name}");
        }
        assert!(Resource::for_write(&format!("uploads//blobs/{hash}/1")).is_err());
        assert!(Resource::for_write(&format!("uploads/blobs/{hash}/1")).is_err());
    }

    proptest! {
        #[test]
        fn a_name_that_is_understood_has_one_key(name in "(/)?([a-c/.]{0,6}/)?(uploads/u/)?(blobs|compressed-blobs/zstd)/(sha256/)?[0-9a-f]{64}/[0-9]{1,5}") {
            for resource in [Resource::for_read(&name), Resource::for_write(&name)].into_iter().flatten() {
                let key = resource.digest.blob_key(&resource.instance);
                let key = String::from_utf8(key).unwrap();
                prop_assert!(!key.starts_with('/') && !key.contains("//") && !key.contains("/../"));
                let again = format!("{}blobs/{}/{}", resource.instance.prefix(), resource.digest.hash_hex(), resource.digest.len());
                let again = Resource::for_read(&again).unwrap();
                prop_assert_eq!(again.digest.blob_key(&again.instance), key.into_bytes());
            }
        }
    }
}
