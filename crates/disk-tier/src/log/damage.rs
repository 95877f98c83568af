//! What a damaged record of a log was about.
//!
//! A record that cannot be served has to be known all the same: of which key it is, because older
//! records of that key must not come to light, and where it ends, because others follow. Nothing is
//! searched for behind it: a value may hold what looks like a record, and a client may have written
//! it there. Nothing is repaired either (ADR 0035).

use std::io;

use bytes::Bytes;

use super::Log;
use super::records::Stored;
use crate::record::{HEAD_LEN, Lengths, Record};

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
    let Some(lengths) = Lengths::peek(&head) else {
        return torn_or_unknown(log, at, HEAD_LEN);
    };
    // The head is whole, so its lengths are those that were written.
    let Some(bytes) = whole(log, at, lengths)? else {
        return Ok(Damage::Torn);
    };
    match named(at, bytes) {
        Some(named) => Ok(Damage::Named(named)),
        None => torn_or_unknown(log, at, lengths.bound()),
    }
}

fn torn_or_unknown(log: &Log, at: u64, len: usize) -> io::Result<Damage> {
    Ok(match is_hole(log, at, len)? {
        true => Damage::Torn,
        false => Damage::Unknown,
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

/// Whether a page in which a part of the `len` bytes at `at` lies was never written. A loss of
/// power may take any page that no sync has reached: the pages of a batch reach the device in any
/// order.
fn is_hole(log: &Log, at: u64, len: usize) -> io::Result<bool> {
    let end = at + len_within(len, log.end().saturating_sub(at)) as u64;
    let mut from = at;
    while from < end {
        let border = (from + 1).next_multiple_of(PAGE_LEN);
        // Of the first page the part before `at` may be older; a later page is lost as a whole.
        let until = match from == at {
            true => border.min(end),
            false => border.min(log.end()),
        };
        let page = log.read(from, len_within(PAGE_LEN as usize, until - from))?;
        if page.iter().all(|byte| *byte == 0) {
            return Ok(true);
        }
        from = border;
    }
    Ok(false)
}
