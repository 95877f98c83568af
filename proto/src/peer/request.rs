//! What a member asks of another.
//!
//! Opcodes and fields are listed in `docs/formats/peer.md`. Numbers never change meaning.

mod batch;
mod command;
mod server;

use bytes::Bytes;

use super::entry::Entry;
use super::field::{Flags, Reader, Writer, bit, encode};
use super::head::{Envelope, Head, Kind};
use super::{DecodeError, SlotSet, TooLong};
use crate::outcome::Value;
use crate::{Command, Get, Out, PurgeScope, ServerCommand, Version, WriterId};

const PUT: u8 = 0x40;
const FETCH: u8 = 0x41;
const FETCH_SLOTS: u8 = 0x42;
const PING: u8 = 0x43;
const COPY: u8 = 0x45;
const FLUSHES: u8 = 0x47;
const FLUSH: u8 = 0x48;
const WRITERS: u8 = 0x49;

const PUT_AGAIN: u16 = 1;

const FETCH_SLOTS_CHANGED: u16 = 1;

const FLUSH_ALL_DATABASES: u16 = 1;
const FLUSH_CUTOFF: u16 = 2;
const FLUSH_PURGE: u16 = 4;

/// One request.
#[derive(Clone, Debug, PartialEq)]
pub enum Request<'a> {
    /// A client's command on one key. Answered with [`Reply::Outcome`](super::Reply::Outcome) or
    /// `WrongOwner`.
    Command(Command<'a>),
    /// About the whole store. Answered with [`Reply::Server`](super::Reply::Server).
    Server(ServerCommand<'a>),
    /// A write of the primary. An owner or learner that has applied the epoch of the envelope keeps
    /// it if it is newer than what is there. Answered with `Applied` or `NotNewer`, so repeating it
    /// does no harm, or with `WrongOwner`.
    Put {
        /// The entry with its version.
        entry: Entry<'a>,
        /// The member may have it already, and has to log it once more: it counts as written in the
        /// epoch of the envelope.
        again: bool,
    },
    /// The newest entry or tombstone of a key, whichever member owns its slot. Answered with
    /// `Entry` or `Unknown`. It is no use of the entry.
    Fetch {
        /// The key.
        key: &'a [u8],
    },
    /// Entries and tombstones of some slots, asked of their primary by a member that copies them.
    /// Answered with `Page`, with `Incomplete` where the log of the primary has lost changes, or
    /// with `WrongOwner` by a member that has applied another epoch.
    FetchSlots {
        /// Which slots.
        slots: SlotSet,
        /// Only what was written after this epoch; all there is without it.
        after: Option<u64>,
        /// Empty, or what the last page said.
        cursor: &'a [u8],
        /// About how many bytes of entries the page may have.
        len_max: u32,
    },
    /// Answered with `Pong`: whether the member answers at all.
    Ping,
    /// A get that changes nothing, of the copy that an owner has in memory or on disk, whatever its
    /// rank. Answered with a hit, or `Unknown` where it has none to show, and then nothing is said
    /// about the key; or `WrongOwner`.
    Copy {
        /// What is read.
        get: Get<'a>,
    },
    /// What was flushed, as far as the member knows. Answered with `Flushes`.
    Flushes,
    /// Names of identities that have logged in, for the numbers that entries have of their writers.
    /// Answered with `Applied`.
    Writers {
        /// The names, each at most 65,535 bytes long.
        names: Vec<&'a str>,
    },
    /// Makes what there is in the frame's space invisible. Answered with `Version`, the one below
    /// which nothing counts there any more, once that survives a restart; or with `WrongOwner` by a
    /// member that has applied a newer epoch than the caller, or does not know whether it still
    /// belongs to the cluster.
    Flush {
        /// Not in the space alone, but in all databases of its namespace.
        all_databases: bool,
        /// What is below this version, which the member gives no more; without one, all that was
        /// written before now.
        cutoff: Option<Version>,
        /// Of a purge: only what this is about becomes invisible, wherever it is.
        purge: Option<PurgeScope>,
    },
}

impl<'a> Request<'a> {
    /// Writes the request as one frame whose body is at most `body_len_max` bytes long. Large
    /// values that lie in `source` are not copied.
    ///
    /// # Errors
    /// If it is longer, or its key is longer than 65,535 bytes. Nothing is written then.
    #[inline]
    pub fn encode(
        &self,
        envelope: Envelope,
        body_len_max: u32,
        source: Option<&Bytes>,
        out: &mut Out,
    ) -> Result<(), TooLong> {
        encode(Kind::Request, envelope, body_len_max, out, |writer| {
            self.write(writer, source)
        })
    }

    /// Writes the fields; returns opcode, flags and what comes behind the fields.
    #[inline]
    fn write(
        &self,
        writer: &mut Writer<'_>,
        source: Option<&Bytes>,
    ) -> Result<(u8, u16, Value<'_>), TooLong> {
        Ok(match self {
            Self::Command(command) => return command::write(command, writer, source),
            Self::Server(command) => return server::write(command, writer),
            Self::Put { entry, again } => {
                entry.write(writer)?;
                (PUT, bit(*again, PUT_AGAIN), entry.content.payload())
            }
            Self::Fetch { key } => (FETCH, 0, Value::Copied(key)),
            Self::FetchSlots {
                slots,
                after,
                cursor,
                len_max,
            } => {
                writer.u32(*len_max);
                writer.optional(*after, Writer::u64);
                writer.put(slots.as_bytes());
                let flags = bit(after.is_some(), FETCH_SLOTS_CHANGED);
                (FETCH_SLOTS, flags, Value::Copied(cursor))
            }
            Self::Ping => (PING, 0, Value::Copied(&[])),
            Self::Flushes => (FLUSHES, 0, Value::Copied(&[])),
            Self::Writers { names } => {
                for name in names {
                    writer.short(name.as_bytes(), "a name")?;
                }
                (WRITERS, 0, Value::Copied(&[]))
            }
            Self::Flush {
                all_databases,
                cutoff,
                purge,
            } => {
                writer.optional(*cutoff, Writer::u64);
                writer.optional(*purge, write_purge);
                let flags = bit(*all_databases, FLUSH_ALL_DATABASES)
                    | bit(cutoff.is_some(), FLUSH_CUTOFF)
                    | bit(purge.is_some(), FLUSH_PURGE);
                (FLUSH, flags, Value::Copied(&[]))
            }
            Self::Copy { get } => {
                let flags = command::write_get(get, writer);
                (COPY, flags, Value::Copied(get.key))
            }
        })
    }

    /// Reads a request from a frame of requests. Keys and values are parts of `body`. Large values
    /// are shared with `source`, if it is given; `body` is a part of it.
    ///
    /// # Errors
    /// If it is malformed: it is answered with a [`Refusal`](super::Refusal).
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
        let request = match head.opcode {
            0x01..=0x1f => Self::Command(command::read(head.opcode, &mut flags, &mut reader)?),
            0x20..=0x3f => Self::Server(server::read(head.opcode, &mut flags, &mut reader)?),
            PUT => {
                let entry = Entry::decode(reader.rest(), source)?;
                if entry.space != head.envelope.space {
                    return Err(DecodeError::Meaningless {
                        field: "space",
                        value: u64::from(entry.space),
                    });
                }
                Self::Put {
                    entry,
                    again: flags.has(PUT_AGAIN),
                }
            }
            FETCH => Self::Fetch { key: reader.rest() },
            FETCH_SLOTS => {
                let len_max = reader.u32("length")?;
                let after =
                    reader.optional(flags.has(FETCH_SLOTS_CHANGED), |it| it.u64("epoch"))?;
                let slots = reader.take(SlotSet::LEN, "slots")?;
                Self::FetchSlots {
                    after,
                    slots: SlotSet::from_bytes(slots).ok_or(DecodeError::Truncated("slots"))?,
                    cursor: reader.rest(),
                    len_max,
                }
            }
            PING => Self::Ping,
            FLUSHES => Self::Flushes,
            WRITERS => Self::Writers {
                names: reader.list(read_name)?,
            },
            FLUSH => Self::Flush {
                all_databases: flags.has(FLUSH_ALL_DATABASES),
                cutoff: reader.optional(flags.has(FLUSH_CUTOFF), |it| it.u64("cutoff"))?,
                purge: reader.optional(flags.has(FLUSH_PURGE), read_purge)?,
            },
            COPY => Self::Copy {
                get: command::read_get(&mut flags, &mut reader)?,
            },
            opcode => return Err(DecodeError::UnknownOpcode(opcode)),
        };
        flags.end()?;
        reader.end(request)
    }
}

fn read_name<'a>(reader: &mut Reader<'a>) -> Result<&'a str, DecodeError> {
    std::str::from_utf8(reader.short("name")?).map_err(|_| DecodeError::NotText("name"))
}

fn write_purge(writer: &mut Writer<'_>, purge: PurgeScope) {
    writer.u32(purge.writer.number());
    writer.u32(purge.place());
    writer.u64(purge.since);
}

fn read_purge(reader: &mut Reader<'_>) -> Result<PurgeScope, DecodeError> {
    let writer = WriterId::new(reader.u32("writer")?);
    let place = reader.u32("place")?;
    let purge = PurgeScope::new(writer, place, reader.u64("first version")?);
    purge.ok_or(DecodeError::Meaningless {
        field: "place",
        value: u64::from(place),
    })
}
