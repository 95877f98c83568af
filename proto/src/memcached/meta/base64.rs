//! Base64 (RFC 4648, section 4, with padding) for binary keys: flag `b`.

use crate::Out;
use crate::command::MEMCACHED_KEY_LEN_MAX;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Not a digit of base64.
const INVALID: u8 = 0xff;

const VALUES: [u8; 256] = values();

#[allow(clippy::indexing_slicing)] // Evaluated by the compiler.
const fn values() -> [u8; 256] {
    let mut values = [INVALID; 256];
    let mut value = 0;
    while value < ALPHABET.len() {
        values[ALPHABET[value] as usize] = value as u8;
        value += 1;
    }
    values
}

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
    ///
    /// Unused bits of the last digit may be anything, as in memcached.
    pub(super) fn decode(&mut self, encoded: &[u8]) -> Option<&[u8]> {
        let (groups, []) = encoded.as_chunks::<4>() else {
            return None;
        };
        let (last, full) = groups.split_last()?;
        let mut len = 0_usize;
        for group in full {
            let bytes = decode_group(group)?;
            len = self.append(len, &bytes)?;
        }
        let (bytes, count) = match last {
            [a, b, b'=', b'='] => (decode_group(&[*a, *b, b'A', b'A'])?, 1),
            [a, b, c, b'='] => (decode_group(&[*a, *b, *c, b'A'])?, 2),
            group => (decode_group(group)?, 3),
        };
        len = self.append(len, bytes.get(..count)?)?;
        self.0.get(..len)
    }

    fn append(&mut self, at: usize, bytes: &[u8]) -> Option<usize> {
        let end = at.checked_add(bytes.len())?;
        self.0.get_mut(at..end)?.copy_from_slice(bytes);
        Some(end)
    }
}

fn decode_group(group: &[u8; 4]) -> Option<[u8; 3]> {
    let mut bits = 0_u32;
    for digit in group {
        let value = *VALUES.get(usize::from(*digit))?;
        if value == INVALID {
            return None;
        }
        bits = (bits << 6) | u32::from(value);
    }
    let [_, first, second, third] = bits.to_be_bytes();
    Some([first, second, third])
}

/// Writes bytes as base64.
pub(super) fn put_encoded(bytes: &[u8], out: &mut Out) {
    for group in bytes.chunks(3) {
        let (bits, digit_count) = match *group {
            [a, b, c] => (u32::from_be_bytes([0, a, b, c]), 4),
            [a, b] => (u32::from_be_bytes([0, a, b, 0]), 3),
            [a] => (u32::from_be_bytes([0, a, 0, 0]), 2),
            _ => return,
        };
        let mut text = *b"====";
        for (digit, shift) in text.iter_mut().zip([18, 12, 6, 0]).take(digit_count) {
            let value = (bits >> shift) & 63;
            *digit = ALPHABET.get(value as usize).copied().unwrap_or(b'=');
        }
        out.put(&text);
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
