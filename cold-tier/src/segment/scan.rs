//! Reading the records of a segment one after the other, without its footer or against it.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use crate::format::FormatError;
use crate::segment::record::Head;
use crate::segment::{Footer, FooterEntry, HEADER_LEN, Record, SegmentHeader, Tail, decode_tail};

/// Iterates over the records in `data`: the bytes of a segment from [`HEADER_LEN`] on, up to its
/// footer. Each comes with its offset in the object. After the first error nothing follows: where
/// a record is damaged its length is not known.
#[must_use]
pub fn scan_records(data: &[u8]) -> Records<'_> {
    Records {
        rest: data,
        offset: HEADER_LEN as u64,
    }
}

/// The records of a segment; see [`scan_records`].
#[derive(Clone, Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
    offset: u64,
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<(u64, Record<'a>), FormatError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let (bytes, rest) = match split(self.rest) {
            Ok(parts) => parts,
            Err(error) => {
                self.rest = &[];
                return Some(Err(error));
            }
        };
        let offset = self.offset;
        self.rest = rest;
        self.offset = offset.saturating_add(bytes.len() as u64);
        let record = Record::decode(bytes);
        if record.is_err() {
            self.rest = &[];
        }
        Some(record.map(|record| (offset, record)))
    }
}

fn split(bytes: &[u8]) -> Result<(&[u8], &[u8]), FormatError> {
    let len = Head::parse(bytes)?.record_len();
    bytes.split_at_checked(len).ok_or(FormatError::Length {
        part: "record",
        needed: len as u64,
        len: bytes.len() as u64,
    })
}

/// Checks a whole segment: header, footer, every record, and that they say the same.
///
/// # Errors
/// [`FormatError`]: what is wrong first.
pub fn verify(object: &[u8]) -> Result<Footer, FormatError> {
    let header = SegmentHeader::decode(object)?;
    let disagree = |field| FormatError::Field {
        part: "footer",
        field,
    };
    let footer = match decode_tail(object, object.len() as u64)? {
        Tail::Complete(footer) => footer,
        Tail::NeedMore { suffix_len } => {
            return Err(FormatError::Length {
                part: "segment",
                needed: suffix_len,
                len: object.len() as u64,
            });
        }
    };
    if footer.header != header {
        return Err(disagree("header"));
    }
    let data_len = usize::try_from(footer.data_len).map_err(|_| disagree("data length"))?;
    let data = object
        .get(HEADER_LEN..)
        .and_then(|rest| rest.get(..data_len))
        .ok_or(disagree("data length"))?;
    let mut entries = footer.entries.iter();
    for record in scan_records(data) {
        let (offset, record) = record?;
        if entries.next() != Some(&FooterEntry::of(offset, &record)) {
            return Err(disagree("entry"));
        }
    }
    match entries.next() {
        None => Ok(footer),
        Some(_) => Err(disagree("number of entries")),
    }
}
