//! Names of identities that write.

use crate::peer::DecodeError;
use crate::peer::field::Reader;

/// A request has so many bytes of names at most. A single name may be longer.
const LEN_MAX: usize = 32 * 1024;

/// Names of identities, each behind its length in 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriterNames<'a> {
    bytes: &'a [u8],
}

impl<'a> WriterNames<'a> {
    pub(super) fn from_bytes(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes, None);
        reader.list(|it| {
            let name = it.short("name")?;
            std::str::from_utf8(name).map_err(|_| DecodeError::NotText("name"))
        })?;
        Ok(Self { bytes })
    }

    pub(super) const fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The names.
    pub fn iter(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let mut rest = self.bytes;
        std::iter::from_fn(move || {
            let (len, behind) = rest.split_first_chunk()?;
            let (name, behind) = behind.split_at_checked(u16::from_le_bytes(*len).into())?;
            rest = behind;
            std::str::from_utf8(name).ok()
        })
    }
}

/// Gathers [`WriterNames`].
#[derive(Clone, Debug, Default)]
pub struct WriterNamesBuilder {
    bytes: Vec<u8>,
}

impl WriterNamesBuilder {
    /// Adds a name; false if there is no room for it.
    pub fn push(&mut self, name: &str) -> bool {
        let Ok(len) = u16::try_from(name.len()) else {
            return false;
        };
        if !self.bytes.is_empty() && self.bytes.len().saturating_add(name.len()) > LEN_MAX {
            return false;
        }
        self.bytes.extend_from_slice(&len.to_le_bytes());
        self.bytes.extend_from_slice(name.as_bytes());
        true
    }

    /// The names that were added.
    #[must_use]
    pub fn names(&self) -> WriterNames<'_> {
        WriterNames { bytes: &self.bytes }
    }
}
