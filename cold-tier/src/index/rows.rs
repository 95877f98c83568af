//! The bytes of the small rows of the index.

use super::{Cursor, IndexError, Merged};
use crate::checkpoint::SegmentFacts;
use crate::names::WriterKey;
use crate::segment::MarkKey;

pub(crate) fn encode_facts(facts: &SegmentFacts) -> Vec<u8> {
    let mut row = Vec::with_capacity(192);
    facts.encode_into(&mut row);
    row
}

pub(crate) fn decode_facts(row: &[u8]) -> Result<SegmentFacts, IndexError> {
    SegmentFacts::decode(row).map_err(|error| IndexError::Broken(error.to_string()))
}

pub(crate) fn number(bytes: &[u8]) -> Result<u64, IndexError> {
    let bytes = <[u8; 8]>::try_from(bytes).map_err(|_| IndexError::unreadable("number"))?;
    Ok(u64::from_le_bytes(bytes))
}

pub(crate) fn mark(key: &[u8]) -> Result<MarkKey, IndexError> {
    let wrong = || IndexError::unreadable("key of a flush mark");
    let (space, rest) = key.split_first_chunk().ok_or_else(wrong)?;
    let (writer, since) = rest.split_first_chunk().ok_or_else(wrong)?;
    let since = since.try_into().map_err(|_| wrong())?;
    Ok((
        u32::from_be_bytes(*space),
        u32::from_be_bytes(*writer),
        u64::from_be_bytes(since),
    ))
}

/// Reads `<region>/<writer>`.
pub(crate) fn writer_key(key: &[u8]) -> Result<WriterKey, IndexError> {
    let text = std::str::from_utf8(key).ok();
    text.and_then(|text| text.split_once('/'))
        .and_then(|(region, writer)| {
            Some(WriterKey {
                region: region.parse().ok()?,
                writer: writer.parse().ok()?,
            })
        })
        .ok_or_else(|| IndexError::unreadable("name of a writer"))
}

pub(crate) fn encode_cursor(cursor: &Cursor) -> Vec<u8> {
    pair(cursor.next_seq, cursor.last_new_ms)
}

pub(crate) fn decode_cursor(row: &[u8]) -> Result<Cursor, IndexError> {
    let (next_seq, last_new_ms) = split(row)?;
    Ok(Cursor {
        next_seq,
        last_new_ms,
    })
}

pub(crate) fn encode_merged(merged: &Merged) -> Vec<u8> {
    pair(merged.segments, merged.entries)
}

pub(crate) fn decode_merged(row: &[u8]) -> Result<Merged, IndexError> {
    let (segments, entries) = split(row)?;
    Ok(Merged { segments, entries })
}

fn pair(first: u64, second: u64) -> Vec<u8> {
    [first.to_le_bytes(), second.to_le_bytes()].concat()
}

fn split(row: &[u8]) -> Result<(u64, u64), IndexError> {
    let (first, second) = row
        .split_at_checked(8)
        .ok_or_else(|| IndexError::unreadable("pair of numbers"))?;
    Ok((number(first)?, number(second)?))
}
