//! The digest functions.

use md5::{Digest as _, Md5};
use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256, SHA384, SHA512};

use crate::digest::{Digest, DigestFunction};

enum State {
    Sha(Context),
    Md5(Md5),
    Blake3(Box<blake3::Hasher>),
}

/// Compares the bytes of a blob with its digest as they come.
pub struct Hasher {
    function: DigestFunction,
    state: State,
    len: u64,
}

impl std::fmt::Debug for Hasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hasher")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl Hasher {
    /// A hasher for blobs of `function`.
    #[must_use]
    pub fn new(function: DigestFunction) -> Self {
        let state = match function {
            DigestFunction::Sha256 => State::Sha(Context::new(&SHA256)),
            DigestFunction::Sha1 => State::Sha(Context::new(&SHA1_FOR_LEGACY_USE_ONLY)),
            DigestFunction::Sha384 => State::Sha(Context::new(&SHA384)),
            DigestFunction::Sha512 => State::Sha(Context::new(&SHA512)),
            DigestFunction::Md5 => State::Md5(Md5::new()),
            DigestFunction::Blake3 => State::Blake3(Box::default()),
        };
        Self {
            function,
            state,
            len: 0,
        }
    }

    /// Whether a digest is that of no bytes. Clients take that blob to be always there.
    #[must_use]
    pub fn names_empty(digest: &Digest) -> bool {
        digest.len() == 0 && Self::new(digest.function()).is(digest)
    }

    /// Bytes that came.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "see `names_empty`")]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Takes the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.len = self.len.saturating_add(bytes.len() as u64);
        match &mut self.state {
            State::Sha(context) => context.update(bytes),
            State::Md5(md5) => md5.update(bytes),
            State::Blake3(blake3) => {
                blake3.update(bytes);
            }
        }
    }

    /// The digest of what came and of `last`.
    #[must_use]
    pub fn digest(mut self, last: &[u8]) -> Digest {
        self.update(last);
        match self.state {
            State::Sha(context) => {
                Digest::of_hash(self.function, context.finish().as_ref(), self.len)
            }
            State::Md5(md5) => Digest::of_hash(self.function, &md5.finalize(), self.len),
            State::Blake3(blake3) => {
                Digest::of_hash(self.function, blake3.finalize().as_bytes(), self.len)
            }
        }
    }

    /// Whether what came is the blob.
    #[must_use]
    pub fn is(self, digest: &Digest) -> bool {
        self.len == digest.len() && self.digest(&[]) == *digest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The digests of `abc`, from the standards of the functions.
    const ABC: [(DigestFunction, &str); 6] = [
        (DigestFunction::Md5, "900150983cd24fb0d6963f7d28e17f72"),
        (
            DigestFunction::Sha1,
            "a9993e364706816aba3e25717850c26c9cd0d89d",
        ),
        (
            DigestFunction::Sha256,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        ),
        (
            DigestFunction::Sha384,
            "cb00753f45a35e8bb5a03d699ac65007272c32ab0eded1631a8b605a43ff5bed\
             8086072ba1e7cc2358baeca134c825a7",
        ),
        (
            DigestFunction::Sha512,
            "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a\
             2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
        ),
        (
            DigestFunction::Blake3,
            "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85",
        ),
    ];

    #[test]
    fn the_empty_blob_is_known_by_its_hash() {
        let names_empty = |hash| Hasher::names_empty(&Digest::new(hash, 0, 0).unwrap());
        assert!(names_empty("da39a3ee5e6b4b0d3255bfef95601890afd80709"));
        assert!(!names_empty("da39a3ee5e6b4b0d3255bfef95601890afd80700"));
    }

    #[test]
    fn a_blob_is_what_its_digest_says_in_every_function() {
        for (function, hash) in ABC {
            let digest = Digest::new(hash, 3, function as i32).unwrap();
            let is = |parts: &[&[u8]]| {
                let mut hasher = Hasher::new(function);
                parts.iter().for_each(|part| hasher.update(part));
                hasher.is(&digest)
            };
            assert!(is(&[b"a", b"", b"bc"]), "{function:?}");
            assert!(!is(&[b"abd"]) && !is(&[b"ab"]) && !is(&[]), "{function:?}");
            assert!(!Hasher::names_empty(&digest));
            let longer = Digest::new(hash, 4, function as i32).unwrap();
            let mut hasher = Hasher::new(function);
            hasher.update(b"abc");
            assert!(!hasher.is(&longer), "{function:?}");
        }
    }
}
