//! The fields of an encoded protobuf message, one after the other, without the message in memory
//! ([encoding](https://protobuf.dev/programming-guides/encoding/)).
//!
//! An element of a repeated field takes two bytes at least, and many times that when it is decoded.

/// Elements that any message may have, however short it is.
const ELEMENTS_MIN: usize = 64;

/// A message has fewer elements than one for so many of its bytes. A digest alone takes 66.
const ELEMENT_BYTES: usize = 32;

/// The bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// The fields of a message: number, and content if it is of variable length.
pub(crate) struct Fields<'m>(&'m [u8]);

impl<'m> Fields<'m> {
    pub(crate) fn of(message: &'m [u8]) -> Self {
        Self(message)
    }

    fn take(&mut self, len: u64) -> Result<&'m [u8], Malformed> {
        let len = usize::try_from(len).map_err(|_| Malformed)?;
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or(Malformed)?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(Malformed)
    }

    fn field(&mut self) -> Result<(u64, Option<&'m [u8]>), Malformed> {
        let tag = self.varint()?;
        let content = match tag & 7 {
            0 => self.varint().map(|_| None)?,
            1 => self.take(8).map(|_| None)?,
            2 => {
                let len = self.varint()?;
                Some(self.take(len)?)
            }
            5 => self.take(4).map(|_| None)?,
            // Groups are of an older protobuf.
            _ => return Err(Malformed),
        };
        Ok((tag >> 3, content))
    }
}

impl<'m> Iterator for Fields<'m> {
    type Item = Result<(u64, Option<&'m [u8]>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

/// Whether a message has so many fields for its length that it would take many times its length
/// when it is decoded. No client sends such a message.
#[must_use]
pub fn is_crowded(message: &[u8]) -> bool {
    let elements_max = ELEMENTS_MIN + message.len() / ELEMENT_BYTES;
    Fields::of(message).nth(elements_max).is_some()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fields_of_each_kind_are_told_in_their_order() {
        let message = [
            &[0x08, 0x96, 0x01][..],
            &[0x12, 0x02, b'h', b'i'],
            &[0x19, 1, 2, 3, 4, 5, 6, 7, 8],
            &[0x25, 1, 2, 3, 4],
            &[0x12, 0x00],
        ]
        .concat();
        let fields: Result<Vec<_>, _> = Fields::of(&message).collect();
        let expected = [
            (1, None),
            (2, Some(&b"hi"[..])),
            (3, None),
            (4, None),
            (2, Some(&b""[..])),
        ];
        assert_eq!(fields, Ok(expected.to_vec()));
    }

    #[test]
    fn what_is_cut_off_or_of_no_kind_ends_the_fields() {
        for message in [
            &[0x08][..],
            &[0x12, 0x03, b'h', b'i'],
            &[0x19, 1],
            &[0x0b],
            &[0xff; 11],
        ] {
            let fields: Vec<_> = Fields::of(message).collect();
            assert_eq!(fields, [Err(Malformed)], "{message:?}");
        }
    }

    #[test]
    fn a_message_of_empty_elements_is_crowded_and_one_of_digests_is_not() {
        assert!(is_crowded(&[0x12, 0x00].repeat(1_000)));
        let digest = [&[0x12, 70][..], &[0x0a; 70]].concat();
        assert!(!is_crowded(&digest.repeat(60_000)));
        assert!(!is_crowded(&[0x12, 0x00].repeat(64)));
        assert!(!is_crowded(b""));
    }

    proptest! {
        #[test]
        fn any_bytes_end(bytes: Vec<u8>) {
            prop_assert!(Fields::of(&bytes).count() <= bytes.len());
        }
    }
}
