//! Content addresses: a function, a hash and a length.

use std::fmt;

use crate::error::ReapiError;
use crate::instance::Instance;
use crate::messages;

/// Length of the longest hash in bytes.
const HASH_LEN_MAX: usize = 64;

/// A digest function, with its number in the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DigestFunction {
    /// SHA-256, which every client knows.
    Sha256 = 1,
    /// SHA-1.
    Sha1 = 2,
    /// MD5.
    Md5 = 3,
    /// SHA-384.
    Sha384 = 5,
    /// SHA-512.
    Sha512 = 6,
    /// BLAKE3.
    Blake3 = 9,
}

impl DigestFunction {
    /// All of them; the first one is what clients take that know no other.
    pub const ALL: [Self; 6] = [
        Self::Sha256,
        Self::Sha1,
        Self::Sha384,
        Self::Sha512,
        Self::Md5,
        Self::Blake3,
    ];

    /// Length of its hashes in bytes.
    #[must_use]
    pub const fn hash_len(self) -> usize {
        match self {
            Self::Md5 => 16,
            Self::Sha1 => 20,
            Self::Sha256 | Self::Blake3 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    /// The name in keys and in resource names.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha1 => "sha1",
            Self::Md5 => "md5",
            Self::Sha384 => "sha384",
            Self::Sha512 => "sha512",
            Self::Blake3 => "blake3",
        }
    }

    /// The function that a request names by its number. Older clients send 0, and the length of the
    /// hash says which one is meant.
    fn named(number: i32, hash_len: usize) -> Option<Self> {
        let find = |fits: &dyn Fn(Self) -> bool| Self::ALL.into_iter().find(|it| fits(*it));
        match number {
            0 => find(&|it| it.hash_len() == hash_len),
            _ => find(&|it| it as i32 == number && it.hash_len() == hash_len),
        }
    }
}

/// The content address of a blob.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest {
    function: DigestFunction,
    hash: [u8; HASH_LEN_MAX],
    len: u64,
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:{}/{}",
            self.function.as_str(),
            self.hash_hex(),
            self.len
        )
    }
}

impl Digest {
    /// A digest by the hexadecimal hash, the length and the number of the function; the number 0
    /// leaves it to the hash.
    ///
    /// # Errors
    /// [`ReapiError`].
    pub fn new(hash_hex: &str, size_bytes: i64, function: i32) -> Result<Self, ReapiError> {
        let text = hash_hex.as_bytes();
        if !text.len().is_multiple_of(2) || text.len() > 2 * HASH_LEN_MAX || text.is_empty() {
            return Err(ReapiError::Hash);
        }
        let mut hash = [0; HASH_LEN_MAX];
        let (pairs, _) = text.as_chunks::<2>();
        for (byte, [high, low]) in hash.iter_mut().zip(pairs) {
            let (high, low) = digit(*high).zip(digit(*low)).ok_or(ReapiError::Hash)?;
            *byte = high << 4 | low;
        }
        let hash_len = text.len() / 2;
        let found = DigestFunction::named(function, hash_len);
        let function = found.ok_or(ReapiError::Function { function, hash_len })?;
        let len = u64::try_from(size_bytes).map_err(|_| ReapiError::Size { size_bytes })?;
        Ok(Self {
            function,
            hash,
            len,
        })
    }

    /// The digest of a blob of `len` bytes by its SHA-256.
    #[must_use]
    pub fn of_sha256(hash: &[u8; 32], len: u64) -> Self {
        Self::of_hash(DigestFunction::Sha256, hash, len)
    }

    /// A digest by the bytes of the hash, as many as the function makes.
    pub(crate) fn of_hash(function: DigestFunction, bytes: &[u8], len: u64) -> Self {
        let mut hash = [0; HASH_LEN_MAX];
        hash.iter_mut()
            .zip(bytes)
            .for_each(|(to, from)| *to = *from);
        Self {
            function,
            hash,
            len,
        }
    }

    /// The digest of a message.
    ///
    /// # Errors
    /// [`ReapiError`].
    pub fn of(message: Option<&messages::Digest>, function: i32) -> Result<Self, ReapiError> {
        let message = message.ok_or(ReapiError::NoDigest)?;
        Self::new(&message.hash, message.size_bytes, function)
    }

    /// The digest of an action, whose length may be unknown: bazel-remote as a proxy sends -1. The
    /// key of a result has the hash alone.
    ///
    /// # Errors
    /// [`ReapiError`].
    pub fn of_action(
        message: Option<&messages::Digest>,
        function: i32,
    ) -> Result<Self, ReapiError> {
        let message = message.ok_or(ReapiError::NoDigest)?;
        Self::new(&message.hash, message.size_bytes.max(0), function)
    }

    /// The function.
    #[must_use]
    pub const fn function(&self) -> DigestFunction {
        self.function
    }

    /// Length of the blob in bytes.
    #[must_use]
    #[expect(
        clippy::len_without_is_empty,
        reason = "a digest has a length of its own; see `Hasher`"
    )]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// The hash.
    #[must_use]
    pub fn hash(&self) -> &[u8] {
        self.hash
            .get(..self.function.hash_len())
            .unwrap_or_default()
    }

    /// The hash in hexadecimal digits.
    #[must_use]
    pub fn hash_hex(&self) -> String {
        let mut text = Vec::with_capacity(2 * HASH_LEN_MAX);
        self.push_hex(&mut text);
        String::from_utf8(text).unwrap_or_default()
    }

    /// The digest as a message.
    #[must_use]
    pub fn message(&self) -> messages::Digest {
        messages::Digest {
            hash: self.hash_hex(),
            size_bytes: i64::try_from(self.len).unwrap_or(i64::MAX),
        }
    }

    /// The key of the blob.
    #[must_use]
    pub fn blob_key(&self, instance: &Instance) -> Vec<u8> {
        self.key(instance, "cas")
    }

    /// The key of the result of the action that the digest names.
    #[must_use]
    pub fn result_key(&self, instance: &Instance) -> Vec<u8> {
        self.key(instance, "ac")
    }

    /// The path of the HTTP dialect for SHA-256. Other functions have an empty segment in their
    /// keys, which HTTP refuses: what is stored over HTTP is verified as SHA-256 alone.
    fn key(&self, instance: &Instance, kind: &str) -> Vec<u8> {
        let name = self.function.as_str();
        let parts: &[&str] = match self.function {
            DigestFunction::Sha256 => &[instance.prefix(), kind, "/"],
            _ => &[instance.prefix(), kind, "//", name, "/"],
        };
        let len = parts.iter().map(|it| it.len()).sum::<usize>() + 2 * self.hash().len();
        let mut key = Vec::with_capacity(len);
        for part in parts {
            key.extend_from_slice(part.as_bytes());
        }
        self.push_hex(&mut key);
        key
    }

    fn push_hex(&self, out: &mut Vec<u8>) {
        let digit = |value: u8| {
            if value < 10 {
                b'0' + value
            } else {
                b'a' + value - 10
            }
        };
        for byte in self.hash() {
            out.extend_from_slice(&[digit(byte >> 4), digit(byte & 15)]);
        }
    }
}

/// The value of a lower-case hexadecimal digit.
const fn digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_the_hash_tells_the_function_that_a_request_does_not() {
        for (len, function) in [
            (32, DigestFunction::Md5),
            (40, DigestFunction::Sha1),
            (64, DigestFunction::Sha256),
            (96, DigestFunction::Sha384),
            (128, DigestFunction::Sha512),
        ] {
            let digest = Digest::new(&"a".repeat(len), 3, 0).unwrap();
            assert_eq!((digest.function(), digest.len()), (function, 3));
            assert_eq!(digest.hash_hex(), "a".repeat(len));
        }
        let blake3 = Digest::new(&"a".repeat(64), 3, 9).unwrap();
        assert_eq!(blake3.function(), DigestFunction::Blake3);
    }

    #[test]
    fn malformed_digests_name_no_blob() {
        let sha256 = "a".repeat(64);
        for hash in ["", "a", "A0", "zz", &"A".repeat(64), &"a".repeat(130)] {
            assert!(Digest::new(hash, 1, 0).is_err(), "{hash}");
        }
        assert!(Digest::new(&sha256, -1, 0).is_err());
        // The function of a request and the hash have to agree; VSO has no implementation.
        assert!(Digest::new(&sha256, 1, 2).is_err());
        assert!(Digest::new(&sha256, 1, 4).is_err());
        assert_eq!(Digest::of(None, 0), Err(ReapiError::NoDigest));
    }

    #[test]
    fn the_length_of_an_action_may_be_unknown() {
        let instance = Instance::new("").unwrap();
        let keys = [-1, 0, 7].map(|size_bytes| {
            let hash = "0f".repeat(32);
            let action = Digest::of_action(Some(&messages::Digest { hash, size_bytes }), 0);
            action.unwrap().result_key(&instance)
        });
        assert_eq!(keys[0], keys[1]);
        assert_eq!(keys[1], keys[2]);
    }

    #[test]
    fn keys_of_sha_256_are_those_of_http_and_others_cannot_be_had_over_http() {
        let hash = "0f".repeat(32);
        let main = Instance::new("main/linux").unwrap();
        let sha256 = Digest::new(&hash, 1, 1).unwrap();
        assert_eq!(
            sha256.blob_key(&main),
            format!("main/linux/cas/{hash}").into_bytes()
        );
        assert_eq!(
            sha256.result_key(&Instance::default()),
            format!("ac/{hash}").into_bytes()
        );
        let blake3 = Digest::new(&hash, 1, 9).unwrap();
        assert_eq!(
            blake3.blob_key(&main),
            format!("main/linux/cas//blake3/{hash}").into_bytes()
        );
    }
}
