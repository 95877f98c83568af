//! Base64 (RFC 4648, section 4, with padding) for binary keys: flag `b`.

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{GeneralPurpose, GeneralPurposeConfig};

use crate::Out;
use crate::command::MEMCACHED_KEY_LEN_MAX;

/// Unused bits of the last digit may be anything, as in memcached.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// Room for the longest key that can be decoded: the encoded one is bound by the key length.
const DECODED_LEN_MAX: usize = MEMCACHED_KEY_LEN_MAX / 4 * 3;

/// Storage for a decoded key, reused from request to request.
#[derive(Debug)]
pub(in crate::memcached) struct KeyBuffer([u8; DECODED_LEN_MAX]);

impl Default for KeyBuffer {
    fn default() -> Self {
        Self([0; DECODED_LEN_MAX])
    }
}

impl KeyBuffer {
    /// Decodes a key. None if it is empty, no base64, not padded to groups of four, or too long.
    pub(super) fn decode(&mut self, encoded: &[u8]) -> Option<&[u8]> {
        let len = BASE64.decode_slice(encoded, &mut self.0).ok()?;
        self.0.get(..len).filter(|key| !key.is_empty())
    }
}

/// Writes bytes as base64.
pub(super) fn put_encoded(bytes: &[u8], out: &mut Out) {
    // Whole groups of three bytes, so that only the last chunk is padded.
    for chunk in bytes.chunks(DECODED_LEN_MAX) {
        let mut text = [0; DECODED_LEN_MAX / 3 * 4];
        // It fits.
        let len = BASE64.encode_slice(chunk, &mut text).unwrap_or(0);
        out.put(text.get(..len).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encode(bytes: &[u8]) -> Vec<u8> {
        let mut out = Out::new();
        put_encoded(bytes, &mut out);
        out.to_vec()
    }

    fn decode(encoded: &[u8]) -> Option<Vec<u8>> {
        KeyBuffer::default().decode(encoded).map(<[u8]>::to_vec)
    }

    #[test]
    fn the_vectors_of_rfc_4648_hold() {
        let vectors: [(&[u8], &[u8]); 6] = [
            (b"f", b"Zg=="),
            (b"fo", b"Zm8="),
            (b"foo", b"Zm9v"),
            (b"foob", b"Zm9vYg=="),
            (b"fooba", b"Zm9vYmE="),
            (b"foobar", b"Zm9vYmFy"),
        ];
        for (bytes, encoded) in vectors {
            assert_eq!(encode(bytes), encoded);
            assert_eq!(decode(encoded).as_deref(), Some(bytes));
        }
        assert_eq!(
            decode(b"Zh==").as_deref(),
            Some(&b"f"[..]),
            "unused bits are ignored"
        );
    }

    #[test]
    fn what_is_not_base64_is_refused() {
        for bad in [
            &b""[..],
            b"Z",
            b"Zg",
            b"Zg=",
            b"Zm9",
            b"Zm9v=",
            b"=Zm9",
            b"Zm!v",
            b"Z-9_",
            b"====",
            b"Z===",
            b"Zg==Zg==",
            b"Zm=v",
        ] {
            assert_eq!(decode(bad), None, "{bad:?}");
        }
        assert_eq!(decode(&[b'A'; 248]).map(|key| key.len()), Some(186));
        assert_eq!(decode(&[b'A'; 252]), None, "longer than a key may be");
    }

    proptest! {
        #[test]
        fn decoding_undoes_encoding(bytes in prop::collection::vec(any::<u8>(), 1..=186)) {
            prop_assert_eq!(decode(&encode(&bytes)), Some(bytes));
        }
    }
}
