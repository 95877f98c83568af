//! The other members to ask about slots.

use crate::peer::{DecodeError, SlotSet, TooLong};

/// Members that know of some slots what the answering one may not, each with these slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sources<'a> {
    /// Each: length of the name in 8 bits, name, slots.
    bytes: &'a [u8],
}

impl<'a> Sources<'a> {
    pub(super) const fn from_bytes(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    pub(super) const fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The members. Ends with the first one that cannot be read.
    pub fn iter(&self) -> impl Iterator<Item = Result<(&'a str, SlotSet), DecodeError>> + use<'a> {
        let mut rest = self.bytes;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let source = split(rest).map(|(source, behind)| {
                rest = behind;
                source
            });
            if source.is_err() {
                rest = &[];
            }
            Some(source)
        })
    }
}

type Source<'a> = (&'a str, SlotSet);

fn split(bytes: &[u8]) -> Result<(Source<'_>, &[u8]), DecodeError> {
    let truncated = || DecodeError::Truncated("sources");
    let (len, rest) = bytes.split_first().ok_or_else(truncated)?;
    let split = rest.split_at_checked(usize::from(*len));
    let (name, rest) = split.ok_or_else(truncated)?;
    let name = std::str::from_utf8(name).map_err(|_| DecodeError::NotText("sources"))?;
    let (slots, rest) = rest.split_at_checked(SlotSet::LEN).ok_or_else(truncated)?;
    let slots = SlotSet::from_bytes(slots).ok_or_else(truncated)?;
    Ok(((name, slots), rest))
}

/// Gathers [`Sources`].
#[derive(Debug, Default)]
pub struct SourcesBuilder {
    bytes: Vec<u8>,
}

impl SourcesBuilder {
    /// Adds a member.
    ///
    /// # Errors
    /// If its name is longer than 255 bytes; it is left out then.
    pub fn push(&mut self, name: &str, slots: &SlotSet) -> Result<(), TooLong> {
        let len = u8::try_from(name.len()).map_err(|_| TooLong {
            what: "a name",
            len: name.len(),
            max: usize::from(u8::MAX),
        })?;
        self.bytes.push(len);
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.extend_from_slice(slots.as_bytes());
        Ok(())
    }

    /// The members that were added.
    #[must_use]
    pub fn sources(&self) -> Sources<'_> {
        Sources::from_bytes(&self.bytes)
    }
}
