//! What a damaged record of a log was about.
//!
//! A record that cannot be served has to be known all the same: of which key it is, because older
//! records of that key must not come to light, and where it ends, because others follow. Nothing is
//! searched for behind it: a value may hold what looks like a record, and a client may have written
//! it there.

use std::io;

use bytes::Bytes;

use super::Log;
use super::records::Stored;
use crate::record::{BOUND_FRAME_LEN, HEAD_LEN, Lengths, Record, is_head_intact};
use crate::value;

/// The longest key in bytes with which one changed byte is looked for: what that costs grows with
/// the square of it. 10 ms with keys of 250 bytes.
const MENDED_KEY_LEN_MAX: usize = 1024;

/// Files are written in pages; those that never were read as zeros.
const PAGE_LEN: u64 = 4096;

/// What is at a position where no intact record begins.
#[derive(Debug)]
pub(crate) enum Damage {
    /// A record whose key, facts and length are known. Its bytes are not to be served.
    Named(Stored),
    /// The log ends in the middle of a record, or before anything was written there: no writer was
    /// told that it was written.
    Torn,
    /// It is unknown what was there, and where it ends.
    Unknown,
}

/// Looks at the damage at `at`, which lies before the end of the log.
///
/// # Errors
/// Of reading.
pub(crate) fn look(log: &Log, at: u64) -> io::Result<Damage> {
    let left = log.end().saturating_sub(at);
    let head = log.read(at, len_within(HEAD_LEN, left))?;
    if head.len() < HEAD_LEN {
        return Ok(Damage::Torn);
    }
    if let Some(lengths) = Lengths::peek(&head) {
        let bound = log.read(at, len_within(lengths.bound(), left))?;
        if is_head_intact(&bound) {
            return Ok(match whole(log, at, lengths)? {
                Some(bytes) => named(at, bytes).map_or(Damage::Unknown, Damage::Named),
                None => Damage::Torn,
            });
        }
    }
    if let Some(record) = mend(log, at)? {
        return Ok(Damage::Named(record));
    }
    let is_cut = Lengths::peek(&head).is_some_and(|lengths| lengths.bound() as u64 > left);
    Ok(if is_cut || is_hole(log, at)? {
        Damage::Torn
    } else {
        Damage::Unknown
    })
}

fn len_within(len: usize, left: u64) -> usize {
    usize::try_from(left).map_or(len, |left| len.min(left))
}

/// All bytes of a record, if the log has them.
fn whole(log: &Log, at: u64, lengths: Lengths) -> io::Result<Option<Bytes>> {
    if lengths.record() > log.end().saturating_sub(at) {
        return Ok(None);
    }
    let len = usize::try_from(lengths.record()).map_err(io::Error::other)?;
    log.read(at, len).map(Some)
}

fn named(at: u64, bytes: Bytes) -> Option<Stored> {
    let record = Record::parse(&bytes)?;
    let told = (record.fact, record.space, record.key.len());
    Some(Stored::new(at, bytes, told))
}

/// Looks for the one byte whose change makes a head, key and start of a frame right. The checksum
/// of the frame has to agree; so a mistake takes the chance of one in 2^32 for each of some 10,000
/// tries, twice. A tombstone has no frame: once. None if there is no such byte, or more than one.
fn mend(log: &Log, at: u64) -> io::Result<Option<Stored>> {
    let left = log.end().saturating_sub(at);
    let most = HEAD_LEN + MENDED_KEY_LEN_MAX + BOUND_FRAME_LEN;
    let mut start = log.read(at, len_within(most, left))?.to_vec();
    // The byte may be one of a length: then no more is known of how far the checksum goes.
    let said = Lengths::peek(&start).map_or(HEAD_LEN, |lengths| lengths.bound());
    let said = said.min(start.len());
    let mut found = None;
    for place in 0..said {
        let Some(&byte) = start.get(place) else { break };
        for change in 1..=u8::MAX {
            set(&mut start, place, byte ^ change);
            let lengths = Lengths::peek(&start).filter(|lengths| lengths.record() <= left);
            let Some(lengths) = lengths else { continue };
            let is_right = start.get(..lengths.bound()).is_some_and(is_head_intact);
            if !is_right {
                continue;
            }
            let Some(bytes) = whole(log, at, lengths)? else {
                continue;
            };
            let mut bytes = bytes.to_vec();
            set(&mut bytes, place, byte ^ change);
            let Some(record) = named(at, bytes.into()) else {
                continue;
            };
            if !record.frame().is_empty() && !value::is_intact(record.frame()) {
                continue;
            }
            if found.replace(record).is_some() {
                return Ok(None);
            }
        }
        set(&mut start, place, byte);
    }
    Ok(found)
}

fn set(bytes: &mut [u8], place: usize, byte: u8) {
    if let Some(here) = bytes.get_mut(place) {
        *here = byte;
    }
}

/// Whether the head, or its rest from the next page on, was never written.
fn is_hole(log: &Log, at: u64) -> io::Result<bool> {
    let end = log.end();
    let zeros_from = |from: u64| -> io::Result<bool> {
        let len = len_within(HEAD_LEN, end.saturating_sub(from));
        Ok(log.read(from, len)?.iter().all(|byte| *byte == 0))
    };
    let page = at.next_multiple_of(PAGE_LEN);
    Ok(zeros_from(at)? || (page < at + HEAD_LEN as u64 && zeros_from(page)?))
}
