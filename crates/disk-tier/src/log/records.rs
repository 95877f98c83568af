//! The records of a log in their order, read in large pieces.
//!
//! One reader for all walks over a log: opening, which brings an index up to date, and compaction,
//! which writes a log anew. It ends at the first record that is cut or damaged.

use std::io;

use bytes::Bytes;
use fonn_base::entry::Space;

use super::Log;
use crate::record::{Fact, HEAD_LEN, Lengths, Record};
use crate::value;

/// Bytes that are read at once, unless a record is longer.
const WINDOW_LEN: usize = 512 << 10;

/// A whole record that was verified, frame included. It shares the memory of its neighbours: copy
/// what is to be kept.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    /// Its position in the log.
    pub(crate) offset: u64,
    /// All of it.
    pub(crate) bytes: Bytes,
    pub(crate) fact: Fact,
    pub(crate) space: Space,
    key_len: usize,
}

impl Stored {
    pub(super) fn new(
        offset: u64,
        bytes: Bytes,
        (fact, space, key_len): (Fact, Space, usize),
    ) -> Self {
        Self {
            offset,
            bytes,
            fact,
            space,
            key_len,
        }
    }

    /// The key.
    pub(crate) fn key(&self) -> &[u8] {
        self.bytes
            .get(HEAD_LEN..HEAD_LEN + self.key_len)
            .unwrap_or_default()
    }

    /// The frame; empty for a tombstone.
    pub(crate) fn frame(&self) -> &[u8] {
        self.bytes
            .get(HEAD_LEN + self.key_len..)
            .unwrap_or_default()
    }

    /// The record with no neighbours in its memory, to be kept.
    pub(crate) fn alone(mut self) -> Self {
        // A longer one was read alone.
        if self.bytes.len() < WINDOW_LEN {
            self.bytes = Bytes::copy_from_slice(&self.bytes);
        }
        self
    }

    /// Length of the whole record in bytes.
    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.bytes.len()).unwrap_or(u32::MAX)
    }
}

/// Walks a log from a position on, up to where it ended when the walk began.
pub(crate) struct Records<'a> {
    log: &'a Log,
    at: u64,
    end: u64,
    window: Bytes,
    window_at: u64,
}

impl<'a> Records<'a> {
    pub(super) fn new(log: &'a Log, offset: u64) -> Self {
        Self {
            log,
            at: offset,
            end: log.end(),
            window: Bytes::new(),
            window_at: offset,
        }
    }

    /// Where the next record begins; after the last one, where the intact part of the log ends.
    pub(crate) fn position(&self) -> u64 {
        self.at
    }

    /// Where the walk ends, unless it meets damage before.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// The next record; None at the end, and at the first record that is cut or damaged.
    ///
    /// # Errors
    /// Of reading; the walk may be tried again.
    pub(crate) fn next(&mut self) -> io::Result<Option<Stored>> {
        let Some(head) = self.bytes(HEAD_LEN as u64)? else {
            return Ok(None);
        };
        let Some(len) = Lengths::peek(&head).map(|lengths| lengths.record()) else {
            return Ok(None);
        };
        let Some(bytes) = self.bytes(len)? else {
            return Ok(None);
        };
        let Some(record) = Record::parse(&bytes) else {
            return Ok(None);
        };
        if !record.frame.is_empty() && !value::is_intact(record.frame) {
            return Ok(None);
        }
        let (fact, space, key_len) = (record.fact, record.space, record.key.len());
        let offset = self.at;
        self.at += len;
        Ok(Some(Stored {
            offset,
            bytes,
            fact,
            space,
            key_len,
        }))
    }

    /// So many bytes from the current position on; None if the log has fewer.
    fn bytes(&mut self, len: u64) -> io::Result<Option<Bytes>> {
        let left = self.end.saturating_sub(self.at);
        let (Ok(wanted), true) = (usize::try_from(len), len <= left) else {
            return Ok(None);
        };
        let has = |window: &Bytes, start: usize| window.len() >= start.saturating_add(wanted);
        let mut start = usize::try_from(self.at - self.window_at).unwrap_or(usize::MAX);
        if !has(&self.window, start) {
            let left = usize::try_from(left).unwrap_or(usize::MAX);
            let window = self.log.read(self.at, wanted.max(WINDOW_LEN.min(left)));
            // What cannot be read may lie behind the record.
            self.window = window.or_else(|_| self.log.read(self.at, wanted))?;
            self.window_at = self.at;
            start = 0;
        }
        Ok(has(&self.window, start).then(|| self.window.slice(start..start + wanted)))
    }
}
