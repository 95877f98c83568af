//! Outcomes to packets.
//!
//! Every packet goes through [`Late::packet`], so that its three lengths always agree with what
//! follows the header.

use super::header::{HEADER_LEN, ReplyHeader, RequestHeader};
use super::status::Status;
use crate::memcached::VERSION;
use crate::outcome::Value;
use crate::request::ServerOutcome;
use crate::request::within::relocate;
use crate::{Command, Failure, Out, Outcome, ServerCommand, StoreMode, Version};

/// Length of the extras of a read: the client's flags.
const FLAGS_LEN: usize = 4;

/// Words the answer to one request.
#[derive(Debug)]
pub struct Reply<'a> {
    /// What every packet of the answer repeats.
    pub(super) late: Late,
    pub(super) is_quiet: bool,
    /// The key, if the reply has to repeat it; otherwise empty.
    pub(super) key: &'a [u8],
    pub(super) answer: Answer,
}

/// What [`Reply::finish`] says.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    /// Nothing: the commands were answered one by one, or there is nothing to say.
    Nothing,
    /// A header and no body.
    Status(Status),
    /// Our version.
    Version,
    /// The SASL mechanisms.
    Mechanisms,
}

impl<'a> Reply<'a> {
    /// A reply that is not quiet and names no key.
    #[inline]
    pub(super) fn new(late: Late, answer: Answer) -> Self {
        Self {
            late,
            is_quiet: false,
            key: &[],
            answer,
        }
    }

    /// The same reply with a key that lies in `buf`; None if it lies elsewhere.
    pub(crate) fn within<'b>(&self, buf: &'b [u8]) -> Option<Reply<'b>> {
        Some(Reply {
            key: relocate(self.key, buf)?,
            ..*self
        })
    }

    /// Words the outcome of the request's command. Quiet opcodes stay silent on success, and on the
    /// miss of a read; every other outcome is told.
    #[inline]
    pub fn each(&mut self, command: &Command<'_>, outcome: &Outcome<'_>, out: &mut Out) {
        if !matches!(self.answer, Answer::Nothing) {
            return;
        }
        match outcome {
            Outcome::Hit(hit) => {
                self.late.packet(
                    Packet {
                        status: Status::Success,
                        version: hit.version,
                        flags: Some(hit.flags),
                        key: self.key,
                        value: &hit.value,
                    },
                    out,
                );
            }
            Outcome::Miss if self.is_quiet => {}
            // The key takes the place of the text, as in memcached.
            Outcome::Miss if self.key.is_empty() => self.late.status(Status::NotFound, out),
            Outcome::Miss => {
                self.late.packet(
                    Packet {
                        key: self.key,
                        ..Packet::of(Status::NotFound)
                    },
                    out,
                );
            }
            Outcome::Stored(stored) => self.success(stored.version, &[], out),
            Outcome::Touched { version } => self.success(*version, &[], out),
            Outcome::Deleted { .. } => self.success(0, &[], out),
            Outcome::Number(number) => match decimal(&number.text) {
                Some(value) => self.success(number.version, &value.to_be_bytes(), out),
                None => self.late.status(Status::NonNumeric, out),
            },
            Outcome::NotStored(_) => self.late.status(not_stored(command), out),
            Outcome::NotFound => self.late.status(not_found(command), out),
            Outcome::Exists => self.late.status(Status::Exists, out),
            Outcome::NotANumber | Outcome::Overflow => {
                self.late.status(Status::NonNumeric, out);
            }
            Outcome::Failed(failure) => self.late.failure(*failure, out),
            // Only clients that ask for it get this reply, and here no client can.
            Outcome::Moved(_) => self.late.failure(Failure::Unavailable, out),
        }
    }

    /// Words an answer that was known from the start.
    #[inline]
    pub fn finish(&mut self, out: &mut Out) {
        match self.answer {
            Answer::Nothing => {}
            Answer::Status(status) => self.late.status(status, out),
            Answer::Version => self.success(0, VERSION.as_bytes(), out),
            Answer::Mechanisms => self.success(0, b"PLAIN", out),
        }
    }

    /// Words the answer to a flush, to statistics (a packet a row, then an empty one) or to
    /// authentication.
    pub fn server(&mut self, _: &ServerCommand<'_>, outcome: &ServerOutcome, out: &mut Out) {
        match outcome {
            ServerOutcome::Done => self.success(0, &[], out),
            ServerOutcome::Pairs(rows) => {
                // A row without a name would look like the end.
                for (name, value) in rows.iter().filter(|(name, _)| !name.is_empty()) {
                    let value = &Value::Copied(value.as_bytes());
                    let row = Packet {
                        key: name.as_bytes(),
                        value,
                        ..Packet::of(Status::Success)
                    };
                    self.late.packet(row, out);
                }
                self.late.status(Status::Success, out);
            }
            ServerOutcome::Failed(failure) => self.late.failure(*failure, out),
            ServerOutcome::WrongPassword => self.late.status(Status::AuthError, out),
            // As a memcached that was started without SASL.
            ServerOutcome::AuthNotConfigured => self.late.status(Status::UnknownCommand, out),
            // Answers to nothing that this dialect can ask.
            ServerOutcome::Text(_)
            | ServerOutcome::Integer(_)
            | ServerOutcome::Scan { .. }
            | ServerOutcome::Key(_)
            | ServerOutcome::InvalidCursor
            | ServerOutcome::Outcomes(_)
            | ServerOutcome::Changed
            | ServerOutcome::CrossSlot
            | ServerOutcome::Invalid(_)
            | ServerOutcome::Cluster(_) => self.late.status(Status::Internal, out),
        }
    }

    /// What is needed to word a failure when the request is gone.
    #[must_use]
    pub fn late(&self) -> Late {
        self.late
    }

    /// A packet with a value and neither flags nor key, unless the opcode is quiet.
    #[inline]
    fn success(&self, version: Version, value: &[u8], out: &mut Out) {
        if !self.is_quiet {
            let value = &Value::Copied(value);
            self.late.packet(
                Packet {
                    version,
                    value,
                    ..Packet::of(Status::Success)
                },
                out,
            );
        }
    }
}

/// What every packet of an answer repeats from the request: enough to word a failure when the
/// request itself is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Late {
    opcode: u8,
    opaque: u32,
}

impl Late {
    #[inline]
    pub(super) fn of(header: &RequestHeader) -> Self {
        Self {
            opcode: header.opcode,
            opaque: header.opaque,
        }
    }

    /// Words a failure: a status, for quiet opcodes too.
    pub fn failure(&self, failure: Failure, out: &mut Out) {
        self.status(failure.into(), out);
    }

    /// A packet whose body is the text of the status, which most have none of.
    #[inline]
    fn status(self, status: Status, out: &mut Out) {
        let value = &Value::Copied(status.text());
        self.packet(
            Packet {
                value,
                ..Packet::of(status)
            },
            out,
        );
    }

    #[inline]
    fn packet(self, packet: Packet<'_>, out: &mut Out) {
        let extras_len = if packet.flags.is_some() { FLAGS_LEN } else { 0 };
        let value_len = packet.value.as_slice().len();
        let body_len = extras_len
            .saturating_add(packet.key.len())
            .saturating_add(value_len);
        let (Ok(key_len), Ok(body_len)) =
            (u16::try_from(packet.key.len()), u32::try_from(body_len))
        else {
            // A value set by another protocol may be longer than the length field can say.
            return self.status(Status::TooLarge, out);
        };
        let header = ReplyHeader {
            opcode: self.opcode,
            key_len,
            extras_len: extras_len as u8,
            status: packet.status,
            body_len,
            opaque: self.opaque,
            cas: packet.version,
        };
        if let Some(flags) = packet.flags {
            let mut head = [0; HEADER_LEN + FLAGS_LEN];
            let (front, extras) = head.split_at_mut(HEADER_LEN);
            front.copy_from_slice(&header.encode());
            extras.copy_from_slice(&flags.to_be_bytes());
            out.put(&head);
        } else {
            out.put(&header.encode());
        }
        if !packet.key.is_empty() {
            out.put(packet.key);
        }
        if value_len > 0 {
            out.put_value(packet.value);
        }
    }
}

/// What is in a packet besides what [`Late`] gives.
#[derive(Clone, Copy)]
struct Packet<'p> {
    status: Status,
    version: Version,
    flags: Option<u32>,
    key: &'p [u8],
    value: &'p Value<'p>,
}

impl Packet<'_> {
    /// A status and nothing else.
    #[inline]
    fn of(status: Status) -> Self {
        Self {
            status,
            version: 0,
            flags: None,
            key: &[],
            value: &Value::Copied(&[]),
        }
    }
}

/// The status for a store whose condition was not met.
fn not_stored(command: &Command<'_>) -> Status {
    match command {
        Command::Store(store) => match store.mode {
            StoreMode::Add => Status::Exists,
            StoreMode::Replace => Status::NotFound,
            StoreMode::Set | StoreMode::Append | StoreMode::Prepend => Status::NotStored,
        },
        _ => Status::NotStored,
    }
}

/// The status for an entry that is not there; append and prepend have their own, also with a CAS.
fn not_found(command: &Command<'_>) -> Status {
    match command {
        Command::Store(store) if matches!(store.mode, StoreMode::Append | StoreMode::Prepend) => {
            Status::NotStored
        }
        _ => Status::NotFound,
    }
}

/// Reads a stored number. memcached pads one that became shorter with blanks.
fn decimal(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text)
        .ok()?
        .trim_end_matches(' ')
        .parse()
        .ok()
}
