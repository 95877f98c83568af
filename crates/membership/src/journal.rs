//! The file that raft's log, its vote and the last snapshot of the state are in.
//!
//! Records are only appended; each is on disk before it is acknowledged. Little endian:
//!
//! | offset | size | meaning |
//! | --- | --- | --- |
//! | 0 | 8 | `FONNRJ02`, once at the start of the file |
//! | 0 | 2 | `0xF0 0x9D`, the start of a record |
//! | 2 | 4 | CRC32C of all that follows |
//! | 6 | 4 | length of the payload in bytes, at most [`PAYLOAD_LEN_MAX`] |
//! | 10 | 8 | bytes of the file that were surely on disk when the record was written |
//! | 18 | 1 | kind, see [`Record`] |
//! | 19 | – | payload, JSON; of a snapshot: what it covers, a line feed, and the state |
//!
//! Invariant: what was acknowledged is read again or the journal does not open. What a crash left
//! behind the last acknowledged record was never acknowledged, in whatever order its pages
//! reached the disk, and is cut off. Damage that a later record knows to have been on disk is an
//! error, since a participant that forgot what it promised may break the agreement of the others.
//! A snapshot is known to have been on disk by the record that purges what it covers.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use fonn_base::file;
use fonn_codec::checksum;

use super::file_error::FileError;
use super::types::{Entry, LogId, SnapshotMeta, Vote};

pub(super) const NAME: &str = "journal";
const MAGIC: &[u8; 8] = b"FONNRJ02";
const MARK: [u8; 2] = [0xF0, 0x9D];
const HEADER_LEN: usize = 19;
/// Longest state in a snapshot, in bytes of JSON. The bounds of the state keep it below.
pub(super) const SNAPSHOT_LEN_MAX: usize = 64 << 20;
/// Longest change, in bytes of JSON.
pub(super) const CHANGE_LEN_MAX: usize = (1 << 20) - 1024;
/// Longest payload of a record, in bytes: a snapshot with what it covers.
pub(super) const PAYLOAD_LEN_MAX: usize = SNAPSHOT_LEN_MAX + (1 << 20);
/// In a journal that is written anew, all of it is on disk before it takes the place of the last
/// one.
const WHOLE: u64 = u64::MAX;
/// A journal longer than this is written anew when entries are purged from it.
const REWRITE_LEN: u64 = 1 << 20;

/// What a record says.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Record {
    /// 1: the vote that was given.
    Vote(Vote),
    /// 2: an entry, which follows the last one or the last purged.
    Entry(Entry),
    /// 3: the entries from this index on are no longer.
    Truncate(u64),
    /// 4: the entries up to this one are in a snapshot, and no longer here.
    Purge(LogId),
    /// 5: the entries up to this one hold for good.
    Committed(LogId),
    /// 6: a snapshot, which replaces one that covers no more.
    Snapshot(StoredSnapshot),
}

/// A snapshot of the state as it is stored.
#[derive(Clone, PartialEq)]
pub(super) struct StoredSnapshot {
    /// What it covers.
    pub(super) meta: SnapshotMeta,
    /// The [`State`](super::state::State), JSON.
    pub(super) state: Vec<u8>,
}

/// Without the state, which has hashes of passwords.
impl fmt::Debug for StoredSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len = self.state.len();
        write!(
            f,
            "StoredSnapshot {{ meta: {:?}, state: {len} B }}",
            self.meta
        )
    }
}

/// What all records together say.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Contents {
    pub(super) vote: Option<Vote>,
    pub(super) committed: Option<LogId>,
    pub(super) purged: Option<LogId>,
    pub(super) snapshot: Option<StoredSnapshot>,
    pub(super) entries: BTreeMap<u64, Entry>,
}

impl Contents {
    /// The last entry, or the last purged if there is none.
    pub(super) fn last(&self) -> Option<LogId> {
        let last = self.entries.last_key_value().map(|(_, entry)| entry.log_id);
        last.or(self.purged)
    }

    /// Takes a record in; false if it does not fit to what is there.
    fn take(&mut self, record: Record) -> bool {
        let fits = match &record {
            Record::Entry(entry) => {
                let expected = self.last().map(|last| last.index.checked_add(1));
                expected.is_none_or(|expected| expected == Some(entry.log_id.index))
            }
            Record::Purge(log_id) => log_id.index < u64::MAX,
            _ => true,
        };
        if fits {
            self.put(record);
        }
        fits
    }

    /// Takes a record of raft in, which fits.
    pub(super) fn put(&mut self, record: Record) {
        match record {
            Record::Vote(vote) => self.vote = Some(vote),
            Record::Committed(log_id) => self.committed = Some(log_id),
            Record::Truncate(index) => drop(self.entries.split_off(&index)),
            Record::Purge(log_id) => {
                self.entries = self.entries.split_off(&log_id.index.saturating_add(1));
                self.purged = Some(log_id);
            }
            Record::Entry(entry) => drop(self.entries.insert(entry.log_id.index, entry)),
            Record::Snapshot(new) => {
                // One that is built beside another that is installed may have the older state, and
                // come last. The log behind the newer one is gone.
                let covers = |it: &StoredSnapshot| it.meta.last_log_id;
                let known = self.snapshot.as_ref();
                if known.is_none_or(|known| covers(known) <= covers(&new)) {
                    self.snapshot = Some(new);
                }
            }
        }
    }
}

/// The open file.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    file: File,
    len: u64,
    /// Of these, how many are surely on disk.
    durable_len: u64,
    /// Set when a write failed: what is behind [`Journal::len`] is unknown from then on.
    broken: bool,
}

impl Journal {
    /// Checks that there is a journal in `dir`, of a member whose identity names a cluster. Without
    /// it, an empty one would be made, and a second vote given in a term that had one.
    pub(super) fn require(dir: &Path) -> Result<(), FileError> {
        let path = dir.join(NAME);
        match path.try_exists().map_err(FileError::io(&path))? {
            true => Ok(()),
            false => Err(FileError::Missing { path }),
        }
    }

    /// Opens the journal in `dir`, or makes an empty one.
    pub(super) fn open(dir: &Path) -> Result<(Self, Contents), FileError> {
        let path = dir.join(NAME);
        let io = FileError::io(&path);
        if !path.exists() {
            file::replace(&path, MAGIC).map_err(&io)?;
        }
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(&io)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(&io)?;
        let Some(records) = bytes.strip_prefix(MAGIC) else {
            return Err(FileError::of_magic(path, &bytes, MAGIC));
        };
        let mut contents = Contents::default();
        let read = read_all(records, |record| contents.take(record));
        let offset = (MAGIC.len() + read.len) as u64;
        if read.is_newer {
            return Err(FileError::Newer { path });
        }
        if read.is_corrupt {
            return Err(FileError::Corrupt { path });
        }
        if offset < bytes.len() as u64 {
            let cut = bytes.len() as u64 - offset;
            tracing::warn!(path = %path.display(), bytes = cut, "cut off an unfinished raft record");
            file.set_len(offset).map_err(&io)?;
        }
        // What was read may so far be in the memory of the operating system alone.
        file.sync_data().map_err(&io)?;
        file.seek(SeekFrom::Start(offset)).map_err(&io)?;
        let journal = Self {
            path,
            file,
            len: offset,
            durable_len: offset,
            broken: false,
        };
        Ok((journal, contents))
    }

    /// Appends records and waits until they are on disk. After an error the journal takes nothing
    /// more.
    ///
    /// [`Record::Committed`] alone is not worth a wait. It only says how much of the log may be
    /// applied before any member is asked. If it is lost with the power, the map is older at the
    /// start.
    pub(super) fn append(&mut self, records: &[Record]) -> Result<(), FileError> {
        let is_lazy = |record: &Record| matches!(record, Record::Committed(_));
        let sync = !records.iter().all(is_lazy);
        let mut bytes = Vec::new();
        for record in records {
            encode(record, self.durable_len, &mut bytes)?;
        }
        let written = if self.broken {
            Err(io::Error::other("an earlier write failed"))
        } else {
            let file = &mut self.file;
            file.write_all(&bytes)
                .and_then(|()| if sync { file.sync_data() } else { Ok(()) })
        };
        self.broken = written.is_err();
        self.len += bytes.len() as u64;
        if sync && !self.broken {
            self.durable_len = self.len;
        }
        written.map_err(FileError::io(&self.path))
    }

    /// Writes the journal anew with `contents` alone if it has grown long.
    pub(super) fn shrink(&mut self, contents: &Contents) -> Result<(), FileError> {
        if self.len <= REWRITE_LEN {
            return Ok(());
        }
        self.rewrite(contents)
    }

    fn rewrite(&mut self, contents: &Contents) -> Result<(), FileError> {
        let mut bytes = MAGIC.to_vec();
        let head = [
            contents.snapshot.clone().map(Record::Snapshot),
            contents.vote.map(Record::Vote),
            contents.purged.map(Record::Purge),
        ];
        let entries = contents.entries.values().cloned().map(Record::Entry);
        let tail = contents.committed.map(Record::Committed);
        for record in head.into_iter().flatten().chain(entries).chain(tail) {
            encode(&record, WHOLE, &mut bytes)?;
        }
        let replaced = file::replace(&self.path, &bytes).and_then(|mut file| {
            self.len = file.seek(SeekFrom::End(0))?;
            self.durable_len = self.len;
            self.file = file;
            Ok(())
        });
        self.broken |= replaced.is_err();
        replaced.map_err(FileError::io(&self.path))
    }
}

fn encode(record: &Record, durable_len: u64, out: &mut Vec<u8>) -> Result<(), FileError> {
    let (kind, payload) = match record {
        Record::Vote(vote) => (1, json(vote)),
        Record::Entry(entry) => (2, json(entry)),
        Record::Truncate(index) => (3, json(index)),
        Record::Purge(log_id) => (4, json(log_id)),
        Record::Committed(log_id) => (5, json(log_id)),
        Record::Snapshot(StoredSnapshot { meta, state }) => {
            (6, [&json(meta)[..], b"\n", state].concat())
        }
    };
    if payload.len() > PAYLOAD_LEN_MAX {
        return Err(FileError::TooLong { len: payload.len() });
    }
    let mut body = Vec::with_capacity(HEADER_LEN + payload.len());
    body.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    body.extend_from_slice(&durable_len.to_le_bytes());
    body.push(kind);
    body.extend_from_slice(&payload);
    out.extend_from_slice(&MARK);
    out.extend_from_slice(&checksum::crc32c(&body).to_le_bytes());
    out.extend_from_slice(&body);
    Ok(())
}

/// The JSON of a value that has one: no map with other keys than text, nothing that can fail.
fn json<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("the types of records have a JSON form")
}

/// A whole record.
struct Frame<'a> {
    kind: u8,
    payload: &'a [u8],
    durable_len: u64,
    /// Bytes with the header.
    len: usize,
}

/// The record at the start of `bytes`; none if there is no whole one.
fn frame(bytes: &[u8]) -> Option<Frame<'_>> {
    let rest = bytes.strip_prefix(&MARK)?;
    let (crc, body) = rest.split_first_chunk::<4>()?;
    let (payload_len, rest) = body.split_first_chunk::<4>()?;
    let (durable_len, rest) = rest.split_first_chunk::<8>()?;
    let (kind, rest) = rest.split_first()?;
    let payload_len = u32::from_le_bytes(*payload_len) as usize;
    if payload_len > PAYLOAD_LEN_MAX {
        return None;
    }
    let payload = rest.get(..payload_len)?;
    let len = HEADER_LEN.checked_add(payload_len)?;
    let covered = bytes.get(MARK.len() + crc.len()..len)?;
    let is_whole = checksum::crc32c(covered) == u32::from_le_bytes(*crc);
    is_whole.then(|| Frame {
        kind: *kind,
        payload,
        durable_len: u64::from_le_bytes(*durable_len),
        len,
    })
}

fn decode(kind: u8, payload: &[u8]) -> Option<Record> {
    fn from<T: DeserializeOwned>(payload: &[u8]) -> Option<T> {
        serde_json::from_slice(payload).ok()
    }
    Some(match kind {
        1 => Record::Vote(from(payload)?),
        2 => Record::Entry(from(payload)?),
        3 => Record::Truncate(from(payload)?),
        4 => Record::Purge(from(payload)?),
        5 => Record::Committed(from(payload)?),
        6 => {
            let end = payload.iter().position(|byte| *byte == b'\n')?;
            let (meta, state) = (payload.get(..end)?, payload.get(end + 1..)?);
            Record::Snapshot(StoredSnapshot {
                meta: from(meta)?,
                state: state.to_vec(),
            })
        }
        _ => return None,
    })
}

/// How far a journal can be read.
#[derive(Debug, PartialEq, Eq)]
struct ReadLen {
    /// Bytes of whole records from the start.
    len: usize,
    /// Whether what follows is damage and not the unfinished end.
    is_corrupt: bool,
    /// Whether what follows is a whole record that says nothing to this version.
    is_newer: bool,
}

fn read_all(bytes: &[u8], mut take: impl FnMut(Record) -> bool) -> ReadLen {
    let mut rest = bytes;
    loop {
        let len = bytes.len().saturating_sub(rest.len());
        let Some(frame) = frame(rest) else {
            let damage_at = MAGIC.len().saturating_add(len) as u64;
            let is_corrupt = was_durable(rest, damage_at);
            return ReadLen {
                len,
                is_corrupt,
                is_newer: false,
            };
        };
        let record = decode(frame.kind, frame.payload);
        // Whole, and yet not understood, or not of this log.
        let is_newer = record.is_none();
        if !record.is_some_and(&mut take) {
            return ReadLen {
                len,
                is_corrupt: true,
                is_newer,
            };
        }
        rest = rest.get(frame.len..).unwrap_or_default();
    }
}

/// Whether a whole record somewhere in `rest` knows that more than `len` bytes were on disk before
/// it.
fn was_durable(rest: &[u8], len: u64) -> bool {
    let tails = (1..rest.len()).filter_map(|at| rest.get(at..));
    tails.filter_map(frame).any(|frame| frame.durable_len > len)
}
