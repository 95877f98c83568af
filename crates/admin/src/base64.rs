//! Base64 (RFC 4648, section 4, with padding), for logins in HTTP.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The bytes that `text` encodes; None if it is no base64 with padding.
pub(super) fn decode(text: &[u8]) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let padding = text.iter().rev().take_while(|&&byte| byte == b'=').count();
    if padding > 2 {
        return None;
    }
    let digits = &text[..text.len() - padding];
    let (mut out, mut bits, mut count) = (Vec::with_capacity(text.len() / 4 * 3), 0_u32, 0);
    for digit in digits {
        let value = ALPHABET.iter().position(|known| known == digit)?;
        bits = bits << 6 | value as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
        }
    }
    Some(out)
}

/// The base64 of `bytes`.
pub(super) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |at: usize| u32::from(group.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let value = (bits >> (18 - 6 * digit)) as usize % 64;
            text.push(match digit <= group.len() {
                true => char::from(ALPHABET[value]),
                false => '=',
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// RFC 4648, section 10.
    const VECTORS: [(&str, &str); 7] = [
        ("", ""),
        ("f", "Zg=="),
        ("fo", "Zm8="),
        ("foo", "Zm9v"),
        ("foob", "Zm9vYg=="),
        ("fooba", "Zm9vYmE="),
        ("foobar", "Zm9vYmFy"),
    ];

    #[test]
    fn the_vectors_of_the_norm_hold() {
        for (plain, encoded) in VECTORS {
            assert_eq!(encode(plain.as_bytes()), encoded);
            assert_eq!(decode(encoded.as_bytes()).unwrap(), plain.as_bytes());
        }
        for wrong in [
            "Z", "Zg", "Zg=", "Zg===", "Z===", "====", "Zg==Zg==", "Z g=", "Zm9-",
        ] {
            assert_eq!(decode(wrong.as_bytes()), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn what_was_encoded_comes_back(bytes: Vec<u8>) {
            prop_assert_eq!(decode(encode(&bytes).as_bytes()), Some(bytes));
        }

        #[test]
        fn anything_is_decoded_or_refused(text: Vec<u8>) {
            let _ = decode(&text);
        }
    }
}
