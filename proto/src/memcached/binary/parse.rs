//! Bytes to requests.
//!
//! Everything that can be wrong with a packet shows in its header, so a bad one is refused before
//! its body is there, and a good one is handed out in one piece. The only state is a refusal whose
//! body is still being dropped.

use super::header::{HEADER_LEN, MAGIC_REQUEST, RequestHeader};
use super::opcode::{Opcode, Operation};
use super::reply::{Answer, Late, Reply};
use super::status::Status;
use crate::request::{
    Body, Commands, Limits, Request, ServerCommand, StatsKind, Step, UNAUTHENTICATED_LEN_MAX,
};
use crate::{
    Arith, ArithOp, Command, Delete, ExpirySpec, Failure, Get, Store, StoreMode, Version, request,
};

/// The expiry of an increment or decrement that must not create the entry.
const NEVER_CREATE: u32 = 0xffff_ffff;

/// Longest body in bytes: memcached counts it with a sign.
const BODY_LEN_MAX: u32 = i32::MAX as u32;

/// Parses the requests of one connection.
#[derive(Debug)]
pub struct Parser {
    value_len_max: u32,
    /// A refused packet of which one byte is left in the stream: a request has to be made of
    /// something.
    refused: Option<(Late, Status)>,
    /// The key of a set that is refused for its size, whose entry is removed then, as memcached
    /// does: no read after the error finds the old value. Empty for other refusals.
    outdated: Vec<u8>,
    is_authenticated: bool,
    /// Why the next packet that is not there as a whole is refused.
    refuse_next: Option<Failure>,
}

impl Parser {
    /// A parser at the start of a connection.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            // A body's length has 32 bits: what is allowed beyond that cannot be sent.
            value_len_max: u32::try_from(limits.value_len_max).unwrap_or(u32::MAX),
            refused: None,
            outdated: Vec::new(),
            is_authenticated: true,
            refuse_next: None,
        }
    }

    /// Refuses the request at the front with `failure`; see
    /// [`Session::refuse`](crate::session::Session::refuse).
    pub fn refuse(&mut self, failure: Failure) {
        self.refuse_next = Some(failure);
    }

    /// As [`Session::set_authenticated`](crate::session::Session::set_authenticated).
    pub fn set_authenticated(&mut self, is_authenticated: bool) {
        self.is_authenticated = is_authenticated;
    }

    /// Takes the next request from the front of `buf`, the unconsumed bytes of the connection.
    /// Copies nothing: keys and values are slices of `buf`.
    #[inline]
    pub fn parse<'a>(&'a mut self, buf: &'a [u8]) -> Step<'a> {
        let Some(&first) = buf.first() else {
            return Step::Need {
                total: if self.refused.is_some() {
                    1
                } else {
                    HEADER_LEN
                },
            };
        };
        if let Some((late, status)) = self.refused.take() {
            let body = match self.outdated.as_slice() {
                [] => Body::Answer,
                key => data(Command::Delete(Delete::new(key))),
            };
            return step(body, Reply::new(late, Answer::Status(status)), 1);
        }
        if first != MAGIC_REQUEST {
            // Where the next packet starts is unknown from here on.
            return step(
                Body::Broken,
                Reply::new(Late::default(), Answer::Nothing),
                1,
            );
        }
        let Some((header, body)) = buf.split_first_chunk::<HEADER_LEN>() else {
            return Step::Need { total: HEADER_LEN };
        };
        let header = RequestHeader::decode(header);
        if let Some(status) = self.impossible(&header) {
            let reply = Reply::new(Late::of(&header), Answer::Status(status));
            return step(Body::Broken, reply, HEADER_LEN);
        }
        let opcode = match Opcode::from_byte(header.opcode) {
            Some(opcode) => match opcode.check(&header, self.value_len_max) {
                Ok(()) => opcode,
                Err(Status::TooLarge) if opcode.replaces(&header) => {
                    let key_start = usize::from(header.extras_len);
                    let key_end = key_start.saturating_add(usize::from(header.key_len));
                    let Some(key) = body.get(key_start..key_end) else {
                        let total = HEADER_LEN.saturating_add(key_end);
                        return Step::Need { total };
                    };
                    let step = self.refuse_packet(&header, Status::TooLarge);
                    self.outdated.extend_from_slice(key);
                    return step;
                }
                Err(status) => return self.refuse_packet(&header, status),
            },
            None => return self.refuse_packet(&header, Status::UnknownCommand),
        };
        let body_len = header.body_len as usize;
        let Some(body) = body.get(..body_len) else {
            if let Some(failure) = self.refuse_next.take() {
                return self.refuse_packet(&header, failure.into());
            }
            return Step::Need {
                total: HEADER_LEN.saturating_add(body_len),
            };
        };
        let (extras, rest) = split(body, usize::from(header.extras_len));
        let (key, value) = split(rest, usize::from(header.key_len));
        let (body, reply) = request(opcode, &header, Parts { extras, key, value });
        step(body, reply, HEADER_LEN.saturating_add(body_len))
    }

    /// Why a packet with such lengths is not waited for: no packet can have them, or none of a
    /// client that has not logged in.
    #[inline]
    fn impossible(&self, header: &RequestHeader) -> Option<Status> {
        if header.value_len().is_none() || header.body_len > BODY_LEN_MAX {
            Some(Status::InvalidArguments)
        } else if !self.is_authenticated && header.packet_len() > UNAUTHENTICATED_LEN_MAX as u64 {
            Some(Status::AuthError)
        } else {
            None
        }
    }

    /// Drops the packet except for its last byte, which then becomes the refusal.
    #[cold]
    fn refuse_packet<'a>(&mut self, header: &RequestHeader, status: Status) -> Step<'a> {
        self.refused = Some((Late::of(header), status));
        self.outdated.clear();
        Step::Skip {
            len: header.packet_len().saturating_sub(1),
        }
    }
}

/// The body of a packet.
#[derive(Clone, Copy)]
struct Parts<'a> {
    extras: &'a [u8],
    key: &'a [u8],
    value: &'a [u8],
}

#[inline]
fn request<'a>(opcode: Opcode, header: &RequestHeader, parts: Parts<'a>) -> (Body<'a>, Reply<'a>) {
    let Parts { extras, key, value } = parts;
    let reply = |answer| Reply {
        is_quiet: opcode.is_quiet,
        key: if opcode.names_key { key } else { &[] },
        ..Reply::new(Late::of(header), answer)
    };
    let compare = (header.cas != 0).then_some(header.cas);
    let body = match opcode.operation {
        Operation::Get => data(Command::Get(Get::new(key))),
        Operation::GetAndTouch => data(Command::Get(Get {
            touch: Some(expiry(extras)),
            ..Get::new(key)
        })),
        // memcached answers a touch with the entry's flags, as a read without the value.
        Operation::Touch => data(Command::Get(Get {
            touch: Some(expiry(extras)),
            want_value: false,
            ..Get::new(key)
        })),
        Operation::Store(mode) => {
            let (flags, expires) = split(extras, 4);
            let set = Store::set(key, value, be32(flags), expiry(expires));
            // `protocol_binary.txt`, section 4.2: with a CAS token the entry must exist and have
            // it, for Add too.
            let mode = match compare {
                Some(_) => StoreMode::Set,
                None => mode,
            };
            data(Command::Store(Store {
                mode,
                compare,
                ..set
            }))
        }
        Operation::Extend(mode) => {
            let set = Store::set(key, value, 0, ExpirySpec::Keep);
            data(Command::Store(Store {
                mode,
                compare,
                ..set
            }))
        }
        Operation::Delete => data(Command::Delete(Delete {
            compare,
            ..Delete::new(key)
        })),
        Operation::Increment => data(arith(ArithOp::Increment, key, extras, compare)),
        Operation::Decrement => data(arith(ArithOp::Decrement, key, extras, compare)),
        Operation::Flush => Body::Server(ServerCommand::Flush {
            all_databases: false,
            delay_s: if extras.is_empty() { 0 } else { be32(extras) },
        }),
        Operation::Stat => match stats_kind(key) {
            Some(kind) => Body::Server(ServerCommand::Stats(kind)),
            None => return (Body::Answer, reply(Answer::Status(Status::NotFound))),
        },
        Operation::SaslAuth => match credentials(key, value) {
            Some((user, password)) => Body::Server(ServerCommand::Auth { user, password }),
            None => return (Body::Answer, reply(Answer::Status(Status::AuthError))),
        },
        Operation::Noop | Operation::Verbosity => {
            return (Body::Answer, reply(Answer::Status(Status::Success)));
        }
        Operation::Version => return (Body::Answer, reply(Answer::Version)),
        Operation::SaslMechanisms => return (Body::Answer, reply(Answer::Mechanisms)),
        // PLAIN is over with the first step.
        Operation::SaslStep => return (Body::Answer, reply(Answer::Status(Status::AuthError))),
        Operation::Quit if opcode.is_quiet => return (Body::Close, reply(Answer::Nothing)),
        Operation::Quit => return (Body::Close, reply(Answer::Status(Status::Success))),
    };
    (body, reply(Answer::Nothing))
}

#[inline]
fn step<'a>(body: Body<'a>, reply: Reply<'a>, len: usize) -> Step<'a> {
    let reply = request::Reply::Binary(reply);
    Step::Request {
        request: Request {
            database: 0,
            body,
            reply,
        },
        len,
    }
}

#[inline]
fn data(command: Command<'_>) -> Body<'_> {
    Body::Data(Commands::from_buf([command]))
}

#[inline]
fn arith<'a>(
    op: fn(u64) -> ArithOp,
    key: &'a [u8],
    extras: &[u8],
    compare: Option<Version>,
) -> Command<'a> {
    let (delta, rest) = split(extras, 8);
    let (initial, expires) = split(rest, 8);
    let creates = be32(expires) != NEVER_CREATE;
    Command::Arith(Arith {
        key,
        op: op(be64(delta)),
        initial: creates.then(|| (be64(initial), expiry(expires))),
        absent_is_zero: false,
        touch: None,
        compare,
        new_version: None,
    })
}

/// The key of a `STAT` packet.
fn stats_kind(key: &[u8]) -> Option<StatsKind> {
    Some(match key {
        b"" => StatsKind::General,
        b"items" => StatsKind::Items,
        b"settings" => StatsKind::Settings,
        b"conns" => StatsKind::Connections,
        b"sizes" | b"slabs" => StatsKind::Empty,
        b"reset" => StatsKind::Reset,
        _ => return None,
    })
}

/// User and password of SASL `PLAIN`: `[authzid] NUL authcid NUL passwd` (RFC 4616, section 2). To
/// act for another user (another authzid) is refused.
fn credentials<'a>(mechanism: &[u8], message: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
    let mut fields = message.split(|&byte| byte == 0);
    let (acts_for, user, password) = (fields.next()?, fields.next()?, fields.next()?);
    let is_sound = mechanism == b"PLAIN"
        && fields.next().is_none()
        && !user.is_empty()
        && (acts_for.is_empty() || acts_for == user);
    is_sound.then_some((user, password))
}

/// Splits at `len`; what is missing counts as empty (the lengths were checked before).
#[inline]
fn split(bytes: &[u8], len: usize) -> (&[u8], &[u8]) {
    bytes.split_at_checked(len).unwrap_or((bytes, &[]))
}

/// An expiry field. It is unsigned: 0xffffffff is a time in 2106, not one in the past.
#[inline]
fn expiry(bytes: &[u8]) -> ExpirySpec {
    ExpirySpec::from_memcached_seconds(i64::from(be32(bytes)))
}

#[inline]
pub(super) fn be32(bytes: &[u8]) -> u32 {
    bytes
        .first_chunk()
        .map_or(0, |chunk| u32::from_be_bytes(*chunk))
}

#[inline]
pub(super) fn be64(bytes: &[u8]) -> u64 {
    bytes
        .first_chunk()
        .map_or(0, |chunk| u64::from_be_bytes(*chunk))
}
