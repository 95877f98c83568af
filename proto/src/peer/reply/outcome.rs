//! Outcomes of commands, field by field.

use crate::Outcome;
use crate::outcome::{Hit, Number, Stored, Value};
use crate::peer::DecodeError;
use crate::peer::field::{Flags, NOT_SENT, Reader, Writer, bit, failure, failure_code};

const HIT: u8 = 0x01;
const MISS: u8 = 0x02;
const STORED: u8 = 0x03;
const NOT_STORED: u8 = 0x04;
const EXISTS: u8 = 0x05;
const NOT_FOUND: u8 = 0x06;
const DELETED: u8 = 0x07;
const TOUCHED: u8 = 0x08;
const NUMBER: u8 = 0x09;
const NOT_A_NUMBER: u8 = 0x0a;
const OVERFLOW: u8 = 0x0b;
const FAILED: u8 = 0x0c;

/// Flags of `HIT`.
mod hit {
    pub(super) const FETCHED_BEFORE: u16 = 1;
    pub(super) const STALE: u16 = 2;
    pub(super) const WON: u16 = 4;
    pub(super) const LOST: u16 = 8;
    pub(super) const TTL: u16 = 16;
    pub(super) const EXPIRY: u16 = 32;
    /// The value's length is told: it is not that of the bytes that are there.
    pub(super) const LENGTH: u16 = 64;
}

/// Flag of `STORED` and `NOT_STORED`: the value before follows.
const PREVIOUS: u16 = 1;

/// Flag of `NUMBER`.
const TTL: u16 = 1;

#[inline]
pub(super) fn write<'v>(outcome: &'v Outcome<'_>, writer: &mut Writer<'_>) -> (u8, u16, Value<'v>) {
    let nothing = Value::Copied(&[]);
    match outcome {
        Outcome::Hit(hit) => (HIT, write_hit(hit, writer), borrowed(&hit.value)),
        Outcome::Miss => (MISS, 0, nothing),
        Outcome::Stored(stored) => {
            writer.u64(stored.version);
            writer.u64(stored.value_len as u64);
            let (flags, value) = write_previous(stored.previous.as_ref());
            (STORED, flags, value)
        }
        Outcome::NotStored(previous) => {
            let (flags, value) = write_previous(previous.as_ref());
            (NOT_STORED, flags, value)
        }
        Outcome::Exists => (EXISTS, 0, nothing),
        Outcome::NotFound => (NOT_FOUND, 0, nothing),
        Outcome::Deleted { version } => {
            writer.u64(*version);
            (DELETED, 0, nothing)
        }
        Outcome::Touched { version } => {
            writer.u64(*version);
            (TOUCHED, 0, nothing)
        }
        Outcome::Number(number) => {
            writer.u64(number.version);
            writer.optional(number.ttl_ms, Writer::u64);
            let flags = bit(number.ttl_ms.is_some(), TTL);
            (NUMBER, flags, Value::Copied(&number.text))
        }
        Outcome::NotANumber => (NOT_A_NUMBER, 0, nothing),
        Outcome::Overflow => (OVERFLOW, 0, nothing),
        Outcome::Failed(failure) => (FAILED, failure_code(*failure), nothing),
        // Members carry out for each other what clients are redirected for.
        Outcome::Moved(_) => (NOT_SENT, 0, nothing),
    }
}

fn write_previous(previous: Option<&bytes::Bytes>) -> (u16, Value<'static>) {
    match previous {
        Some(previous) => (PREVIOUS, Value::Shared(previous.clone())),
        None => (0, Value::Copied(&[])),
    }
}

/// The same value; counts a reference up if it is shared.
#[inline]
fn borrowed<'v>(value: &'v Value<'_>) -> Value<'v> {
    match value {
        Value::Copied(bytes) => Value::Copied(bytes),
        Value::Shared(bytes) => Value::Shared(bytes.clone()),
    }
}

#[inline]
fn write_hit(hit: &Hit<'_>, writer: &mut Writer<'_>) -> u16 {
    let value_len = hit.value.as_slice().len();
    let length = (hit.value_len != value_len).then_some(hit.value_len as u64);
    writer.u32(hit.flags);
    writer.u32(hit.idle_s);
    writer.u64(hit.version);
    writer.optional(hit.ttl_ms, Writer::u64);
    writer.optional(hit.expires_at_ms, Writer::u64);
    writer.optional(length, Writer::u64);
    bit(hit.fetched_before, hit::FETCHED_BEFORE)
        | bit(hit.stale, hit::STALE)
        | bit(hit.won, hit::WON)
        | bit(hit.lost, hit::LOST)
        | bit(hit.ttl_ms.is_some(), hit::TTL)
        | bit(hit.expires_at_ms.is_some(), hit::EXPIRY)
        | bit(length.is_some(), hit::LENGTH)
}

#[inline]
pub(super) fn read<'a>(
    opcode: u8,
    flags: &mut Flags,
    reader: &mut Reader<'a>,
) -> Result<Outcome<'a>, DecodeError> {
    Ok(match opcode {
        HIT => Outcome::Hit(read_hit(flags, reader)?),
        MISS => Outcome::Miss,
        STORED => Outcome::Stored(Stored {
            version: reader.u64("version")?,
            value_len: reader.len("length")?,
            previous: flags.has(PREVIOUS).then(|| reader.owned()),
        }),
        NOT_STORED => Outcome::NotStored(flags.has(PREVIOUS).then(|| reader.owned())),
        EXISTS => Outcome::Exists,
        NOT_FOUND => Outcome::NotFound,
        DELETED => Outcome::Deleted {
            version: reader.u64("version")?,
        },
        TOUCHED => Outcome::Touched {
            version: reader.u64("version")?,
        },
        NUMBER => Outcome::Number(Number {
            version: reader.u64("version")?,
            ttl_ms: reader.optional(flags.has(TTL), |it| it.u64("ttl"))?,
            text: reader.rest().into(),
        }),
        NOT_A_NUMBER => Outcome::NotANumber,
        OVERFLOW => Outcome::Overflow,
        FAILED => Outcome::Failed(failure(flags.number(u16::MAX))?),
        opcode => return Err(DecodeError::UnknownOpcode(opcode)),
    })
}

#[inline]
fn read_hit<'a>(flags: &mut Flags, reader: &mut Reader<'a>) -> Result<Hit<'a>, DecodeError> {
    let client_flags = reader.u32("flags")?;
    let idle_s = reader.u32("idle")?;
    let version = reader.u64("version")?;
    let ttl_ms = reader.optional(flags.has(hit::TTL), |it| it.u64("ttl"))?;
    let expires_at_ms = reader.optional(flags.has(hit::EXPIRY), |it| it.u64("expiry"))?;
    let length = reader.optional(flags.has(hit::LENGTH), |it| it.len("length"))?;
    let value = reader.value();
    Ok(Hit {
        value_len: length.unwrap_or(value.as_slice().len()),
        value,
        flags: client_flags,
        version,
        ttl_ms,
        expires_at_ms,
        idle_s,
        fetched_before: flags.has(hit::FETCHED_BEFORE),
        stale: flags.has(hit::STALE),
        won: flags.has(hit::WON),
        lost: flags.has(hit::LOST),
    })
}
