//! Outcomes of commands about the whole store, field by field.
//!
//! The others answer commands that no process sends to another.

use super::outcome;
use crate::Outcome;
use crate::outcome::Value;
use crate::peer::field::{Flags, NOT_SENT, Reader, Writer, bit, failure, failure_code};
use crate::peer::{DecodeError, TooLong};
use crate::request::ServerOutcome;

const DONE: u8 = 0x20;
const PAIRS: u8 = 0x21;
const INTEGER: u8 = 0x23;
const SCAN: u8 = 0x24;
const KEY: u8 = 0x25;
const INVALID_CURSOR: u8 = 0x26;
const FAILED: u8 = 0x29;
const OUTCOMES: u8 = 0x2b;
const CHANGED: u8 = 0x2c;
const CROSS_SLOT: u8 = 0x2d;

/// Flag of `KEY`: there is one.
const PRESENT: u16 = 1;

pub(super) fn write<'v>(
    outcome: &'v ServerOutcome,
    writer: &mut Writer<'_>,
) -> Result<(u8, u16, Value<'v>), TooLong> {
    let nothing = Value::Copied(&[]);
    Ok(match outcome {
        ServerOutcome::Done => (DONE, 0, nothing),
        ServerOutcome::Pairs(pairs) => {
            for (name, value) in pairs {
                writer.long(name.as_bytes(), "a name")?;
                writer.long(value.as_bytes(), "a value")?;
            }
            (PAIRS, 0, nothing)
        }
        ServerOutcome::Integer(number) => {
            writer.u64(number.cast_unsigned());
            (INTEGER, 0, nothing)
        }
        ServerOutcome::Scan { cursor, keys } => {
            writer.u64(*cursor);
            for key in keys {
                writer.long(key, "a key")?;
            }
            (SCAN, 0, nothing)
        }
        ServerOutcome::Key(key) => {
            let flags = bit(key.is_some(), PRESENT);
            (
                KEY,
                flags,
                Value::Copied(key.as_deref().unwrap_or_default()),
            )
        }
        ServerOutcome::InvalidCursor => (INVALID_CURSOR, 0, nothing),
        ServerOutcome::Outcomes(outcomes) => {
            for outcome in outcomes.iter() {
                writer.nested(|writer| Ok(outcome::write(outcome, writer)))?;
            }
            (OUTCOMES, 0, nothing)
        }
        ServerOutcome::Changed => (CHANGED, 0, nothing),
        ServerOutcome::CrossSlot => (CROSS_SLOT, 0, nothing),
        ServerOutcome::Failed(failure) => (FAILED, failure_code(*failure), nothing),
        ServerOutcome::Text(_)
        | ServerOutcome::WrongPassword
        | ServerOutcome::AuthNotConfigured
        | ServerOutcome::Cluster(_)
        | ServerOutcome::Invalid(_) => (NOT_SENT, 0, nothing),
    })
}

pub(super) fn read(
    opcode: u8,
    flags: &mut Flags,
    reader: &mut Reader<'_>,
) -> Result<ServerOutcome, DecodeError> {
    Ok(match opcode {
        DONE => ServerOutcome::Done,
        PAIRS => ServerOutcome::Pairs(reader.list(|it| Ok((it.text("name")?, it.text("value")?)))?),
        INTEGER => ServerOutcome::Integer(reader.u64("number")?.cast_signed()),
        SCAN => ServerOutcome::Scan {
            cursor: reader.u64("cursor")?,
            keys: reader.list(|it| it.long("key").map(<[u8]>::to_vec))?,
        },
        KEY => ServerOutcome::Key(flags.has(PRESENT).then(|| reader.rest().to_vec())),
        INVALID_CURSOR => ServerOutcome::InvalidCursor,
        OUTCOMES => {
            let outcomes: Vec<_> = reader.list(|it| {
                it.nested(|opcode, flags, reader| {
                    outcome::read(opcode, flags, reader).map(Outcome::into_owned)
                })
            })?;
            ServerOutcome::Outcomes(outcomes.into())
        }
        CHANGED => ServerOutcome::Changed,
        CROSS_SLOT => ServerOutcome::CrossSlot,
        FAILED => ServerOutcome::Failed(failure(flags.number(u16::MAX))?),
        opcode => return Err(DecodeError::UnknownOpcode(opcode)),
    })
}
