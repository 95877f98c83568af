//! What a member answers.
//!
//! Opcodes and fields are listed in `docs/formats/peer.md`. Numbers never change meaning.

mod flushes;
mod outcome;
mod page;
mod server;

use bytes::Bytes;

pub use flushes::Flush;
pub use page::{Page, PageBuilder};

use super::entry::Entry;
use super::field::{Flags, Reader, Writer, encode};
use super::head::{Envelope, Head, Kind};
use super::{DecodeError, SlotSet, TooLong};
use crate::outcome::Value;
use crate::request::ServerOutcome;
use crate::{Out, Outcome, Version};

const APPLIED: u8 = 0x40;
const NOT_NEWER: u8 = 0x41;
const ENTRY: u8 = 0x42;
const UNKNOWN: u8 = 0x43;
const PAGE: u8 = 0x44;
const PONG: u8 = 0x45;
const WRONG_OWNER: u8 = 0x46;
const REFUSED: u8 = 0x47;
const INCOMPLETE: u8 = 0x48;
const VERSION: u8 = 0x49;
const FLUSHES: u8 = 0x4A;

/// The answer to one [`Request`](super::Request).
#[derive(Clone, Debug, PartialEq)]
pub enum Reply<'a> {
    /// Of a command. [`Outcome::Failed`] answers requests of every other kind too.
    Outcome(Outcome<'a>),
    /// Of a server command.
    Server(ServerOutcome),
    /// The entry was kept.
    Applied,
    /// The entry was not kept: this version or a newer one is there.
    NotNewer,
    /// What is known of the key.
    Entry(Entry<'a>),
    /// Nothing is known of the key, not even that it was deleted.
    Unknown,
    /// A part of some slots.
    Page(Page<'a>),
    /// The log has lost changes of these slots since the epoch of the request. They have to be
    /// copied in full.
    Incomplete(SlotSet),
    /// The member answers.
    Pong,
    /// The member does not own the key's slot by its map, whose epoch the envelope has.
    WrongOwner,
    /// The request was not understood. Nothing was done.
    Refused(Refusal),
    /// The version of the entry that a get would find; 0 if it would find none. Of a flush, the one
    /// below which nothing counts.
    Version(Version),
    /// The flushes that the member knows of, those to come among them.
    Flushes(Vec<Flush>),
}

/// Why a request was not understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The opcode or one of its flags is of a newer version.
    Unsupported,
    /// Its fields are malformed.
    Malformed,
    /// It is longer than is taken.
    TooLong,
    /// An entry in it was damaged.
    Damaged,
}

impl Refusal {
    const ALL: [(u16, Self); 4] = [
        (1, Self::Unsupported),
        (2, Self::Malformed),
        (3, Self::TooLong),
        (4, Self::Damaged),
    ];
}

impl From<DecodeError> for Refusal {
    fn from(error: DecodeError) -> Self {
        match error {
            DecodeError::UnknownOpcode(_) | DecodeError::UnknownFlags { .. } => Self::Unsupported,
            DecodeError::Truncated(_)
            | DecodeError::Meaningless { .. }
            | DecodeError::Trailing(_)
            | DecodeError::NotText(_) => Self::Malformed,
            DecodeError::EntryChecksum { .. } => Self::Damaged,
        }
    }
}

impl<'a> Reply<'a> {
    /// Writes the reply as one frame whose body is at most `body_len_max` bytes long. Large shared
    /// values are not copied.
    ///
    /// # Errors
    /// If it is longer. Nothing is written then.
    #[inline]
    pub fn encode(
        &self,
        envelope: Envelope,
        body_len_max: u32,
        out: &mut Out,
    ) -> Result<(), TooLong> {
        match self {
            Self::Outcome(outcome) => Self::encode_outcome(outcome, envelope, body_len_max, out),
            _ => encode(Kind::Reply, envelope, body_len_max, out, |writer| {
                self.write(writer)
            }),
        }
    }

    /// As [`Reply::encode`] of a [`Reply::Outcome`], for an outcome that is borrowed.
    ///
    /// # Errors
    /// As [`Reply::encode`].
    #[inline]
    pub fn encode_outcome(
        outcome: &Outcome<'_>,
        envelope: Envelope,
        body_len_max: u32,
        out: &mut Out,
    ) -> Result<(), TooLong> {
        encode(Kind::Reply, envelope, body_len_max, out, |writer| {
            Ok(outcome::write(outcome, writer))
        })
    }

    fn write(&self, writer: &mut Writer<'_>) -> Result<(u8, u16, Value<'_>), TooLong> {
        let nothing = Value::Copied(&[]);
        Ok(match self {
            Self::Outcome(outcome) => outcome::write(outcome, writer),
            Self::Server(outcome) => return server::write(outcome, writer),
            Self::Applied => (APPLIED, 0, nothing),
            Self::NotNewer => (NOT_NEWER, 0, nothing),
            Self::Entry(entry) => {
                entry.write(writer)?;
                (ENTRY, 0, entry.content.payload())
            }
            Self::Unknown => (UNKNOWN, 0, nothing),
            Self::Page(page) => {
                writer.short(page.next, "a cursor")?;
                (PAGE, 0, Value::Copied(page.entries))
            }
            Self::Incomplete(slots) => (INCOMPLETE, 0, Value::Copied(slots.as_bytes())),
            Self::Flushes(flushes) => {
                flushes.iter().for_each(|flush| flush.write(writer));
                (FLUSHES, 0, nothing)
            }
            Self::Pong => (PONG, 0, nothing),
            Self::WrongOwner => (WRONG_OWNER, 0, nothing),
            Self::Version(version) => {
                writer.u64(*version);
                (VERSION, 0, nothing)
            }
            Self::Refused(refusal) => {
                let row = Refusal::ALL.iter().find(|(_, it)| it == refusal);
                (REFUSED, row.map_or(0, |(number, _)| *number), nothing)
            }
        })
    }

    /// Reads a reply from a frame of replies. Keys and values are parts of `body`. Large values are
    /// shared with `source`, if it is given; `body` is a part of it.
    ///
    /// # Errors
    /// If it is malformed.
    ///
    /// # Panics
    /// If `body` is no part of `source`, and a value in it is large.
    #[inline]
    pub fn decode(
        head: &Head,
        body: &'a [u8],
        source: Option<&'a Bytes>,
    ) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(body, source);
        let mut flags = Flags::new(head);
        let reply = match head.opcode {
            0x01..=0x1f => Self::Outcome(outcome::read(head.opcode, &mut flags, &mut reader)?),
            0x20..=0x3f => Self::Server(server::read(head.opcode, &mut flags, &mut reader)?),
            APPLIED => Self::Applied,
            NOT_NEWER => Self::NotNewer,
            ENTRY => Self::Entry(Entry::decode(reader.rest(), source)?),
            UNKNOWN => Self::Unknown,
            PAGE => Self::Page(Page {
                next: reader.short("cursor")?,
                entries: reader.rest(),
            }),
            INCOMPLETE => Self::Incomplete(
                SlotSet::from_bytes(reader.take(SlotSet::LEN, "slots")?)
                    .ok_or(DecodeError::Truncated("slots"))?,
            ),
            FLUSHES => Self::Flushes(reader.list(Flush::read)?),
            PONG => Self::Pong,
            WRONG_OWNER => Self::WrongOwner,
            VERSION => Self::Version(reader.u64("version")?),
            REFUSED => {
                let number = flags.number(u16::MAX);
                let row = Refusal::ALL.iter().find(|(it, _)| *it == number);
                Self::Refused(row.ok_or_else(|| flags.meaningless())?.1)
            }
            opcode => return Err(DecodeError::UnknownOpcode(opcode)),
        };
        flags.end()?;
        reader.end(reply)
    }
}
