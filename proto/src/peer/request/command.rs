//! Commands of clients, field by field.

use bytes::Bytes;

use crate::command::{
    Arith, ArithOp, Delete, ExpireCondition, Get, SetBit, SetRange, Store, StoreMode, Touch,
};
use crate::outcome::Value;
use crate::peer::field::{Flags, Reader, Writer, bit, payload};
use crate::peer::{DecodeError, TooLong};
use crate::{Command, ExpirySpec};

const GET: u8 = 0x01;
const STORE: u8 = 0x02;
const ARITH: u8 = 0x03;
const DELETE: u8 = 0x04;
const TOUCH: u8 = 0x05;
const SET_RANGE: u8 = 0x06;
const SET_BIT: u8 = 0x07;

/// Flags of `GET`. A plain get has none, so its body is the key.
mod get {
    pub(super) const NO_VALUE: u16 = 1;
    pub(super) const NO_BUMP: u16 = 2;
    pub(super) const CLAIM: u16 = 4;
    pub(super) const DELETE: u16 = 8;
    pub(super) const TOUCH: u16 = 16;
    pub(super) const VIVIFY: u16 = 32;
    pub(super) const RECACHE: u16 = 64;
    pub(super) const NEW_VERSION: u16 = 128;
}

/// Flags of `STORE`; the lowest three bits are the mode.
mod store {
    pub(super) const MODE: u16 = 7;
    pub(super) const COMPARE: u16 = 8;
    pub(super) const INVALIDATE: u16 = 16;
    pub(super) const NEW_VERSION: u16 = 32;
    pub(super) const VIVIFY: u16 = 64;
    pub(super) const PREVIOUS: u16 = 128;
    pub(super) const EXPIRY: u16 = 256;
}

/// Flags of `ARITH`; the lowest two bits are the operation.
mod arith {
    pub(super) const OPERATION: u16 = 3;
    pub(super) const INITIAL: u16 = 4;
    pub(super) const ABSENT_IS_ZERO: u16 = 8;
    pub(super) const TOUCH: u16 = 16;
    pub(super) const COMPARE: u16 = 32;
    pub(super) const NEW_VERSION: u16 = 64;
}

/// Flags of `DELETE`.
mod delete {
    pub(super) const COMPARE: u16 = 1;
    pub(super) const MARK_STALE: u16 = 2;
    pub(super) const KEEP_ENTRY: u16 = 4;
    pub(super) const TOUCH: u16 = 8;
    pub(super) const NEW_VERSION: u16 = 16;
}

/// The lowest bits of `TOUCH`'s flags are the condition.
const TOUCH_CONDITION: u16 = 7;

/// Flag of `SET_BIT`.
const BIT_IS_SET: u16 = 1;

const MODES: [StoreMode; 5] = [
    StoreMode::Set,
    StoreMode::Add,
    StoreMode::Replace,
    StoreMode::Append,
    StoreMode::Prepend,
];

const CONDITIONS: [ExpireCondition; 6] = [
    ExpireCondition::Always,
    ExpireCondition::IfNone,
    ExpireCondition::IfSome,
    ExpireCondition::IfLater,
    ExpireCondition::IfEarlier,
    ExpireCondition::IfSomeAndEarlier,
];

/// The place of a mode or condition in its table, which is its number on the wire.
fn number<T: PartialEq>(table: &[T], value: &T) -> u16 {
    let place = table.iter().position(|it| it == value);
    place.and_then(|it| u16::try_from(it).ok()).unwrap_or(0)
}

#[inline]
pub(super) fn write<'v>(
    command: &Command<'v>,
    writer: &mut Writer<'_>,
    source: Option<&Bytes>,
) -> Result<(u8, u16, Value<'v>), TooLong> {
    Ok(match command {
        Command::Get(get) => (GET, write_get(get, writer), Value::Copied(get.key)),
        Command::Store(store) => {
            let flags = write_store(store, writer);
            writer.short(store.key, "a key")?;
            (STORE, flags, payload(store.value, source))
        }
        Command::Arith(arith) => (ARITH, write_arith(arith, writer), Value::Copied(arith.key)),
        Command::Delete(delete) => {
            let flags = write_delete(delete, writer);
            (DELETE, flags, Value::Copied(delete.key))
        }
        Command::Touch(touch) => {
            writer.expiry(touch.expiry);
            let flags = number(&CONDITIONS, &touch.condition);
            (TOUCH, flags, Value::Copied(touch.key))
        }
        Command::SetRange(range) => {
            writer.u64(range.offset);
            writer.short(range.key, "a key")?;
            (SET_RANGE, 0, payload(range.value, source))
        }
        Command::SetBit(set) => {
            writer.u64(set.offset);
            (SET_BIT, bit(set.is_set, BIT_IS_SET), Value::Copied(set.key))
        }
    })
}

#[inline]
pub(super) fn write_get(get: &Get<'_>, writer: &mut Writer<'_>) -> u16 {
    writer.optional(get.touch, Writer::expiry);
    writer.optional(get.vivify, Writer::expiry);
    writer.optional(get.recache_below_s, Writer::u32);
    writer.optional(get.new_version, Writer::u64);
    bit(!get.want_value, get::NO_VALUE)
        | bit(!get.bump, get::NO_BUMP)
        | bit(get.claim, get::CLAIM)
        | bit(get.delete, get::DELETE)
        | bit(get.touch.is_some(), get::TOUCH)
        | bit(get.vivify.is_some(), get::VIVIFY)
        | bit(get.recache_below_s.is_some(), get::RECACHE)
        | bit(get.new_version.is_some(), get::NEW_VERSION)
}

#[inline]
fn write_store(store: &Store<'_>, writer: &mut Writer<'_>) -> u16 {
    let expiry = (store.expiry != ExpirySpec::Never).then_some(store.expiry);
    writer.u32(store.flags);
    writer.optional(expiry, Writer::expiry);
    writer.optional(store.compare, Writer::u64);
    writer.optional(store.new_version, Writer::u64);
    writer.optional(store.vivify, Writer::expiry);
    number(&MODES, &store.mode)
        | bit(expiry.is_some(), store::EXPIRY)
        | bit(store.compare.is_some(), store::COMPARE)
        | bit(store.invalidate_if_older, store::INVALIDATE)
        | bit(store.new_version.is_some(), store::NEW_VERSION)
        | bit(store.vivify.is_some(), store::VIVIFY)
        | bit(store.want_previous, store::PREVIOUS)
}

fn write_arith(arith: &Arith<'_>, writer: &mut Writer<'_>) -> u16 {
    let (operation, operand) = match arith.op {
        ArithOp::Increment(delta) => (0, delta),
        ArithOp::Decrement(delta) => (1, delta),
        ArithOp::Signed(delta) => (2, delta.cast_unsigned()),
        ArithOp::Float(delta) => (3, delta.to_bits()),
    };
    writer.u64(operand);
    writer.optional(arith.initial, |writer, (value, expiry)| {
        writer.u64(value);
        writer.expiry(expiry);
    });
    writer.optional(arith.touch, Writer::expiry);
    writer.optional(arith.compare, Writer::u64);
    writer.optional(arith.new_version, Writer::u64);
    operation
        | bit(arith.initial.is_some(), arith::INITIAL)
        | bit(arith.absent_is_zero, arith::ABSENT_IS_ZERO)
        | bit(arith.touch.is_some(), arith::TOUCH)
        | bit(arith.compare.is_some(), arith::COMPARE)
        | bit(arith.new_version.is_some(), arith::NEW_VERSION)
}

fn write_delete(delete: &Delete<'_>, writer: &mut Writer<'_>) -> u16 {
    writer.optional(delete.compare, Writer::u64);
    writer.optional(delete.touch, Writer::expiry);
    writer.optional(delete.new_version, Writer::u64);
    bit(delete.compare.is_some(), delete::COMPARE)
        | bit(delete.mark_stale, delete::MARK_STALE)
        | bit(delete.keep_entry, delete::KEEP_ENTRY)
        | bit(delete.touch.is_some(), delete::TOUCH)
        | bit(delete.new_version.is_some(), delete::NEW_VERSION)
}

#[inline]
pub(super) fn read<'a>(
    opcode: u8,
    flags: &mut Flags,
    reader: &mut Reader<'a>,
) -> Result<Command<'a>, DecodeError> {
    Ok(match opcode {
        GET => Command::Get(read_get(flags, reader)?),
        STORE => Command::Store(read_store(flags, reader)?),
        ARITH => Command::Arith(read_arith(flags, reader)?),
        DELETE => Command::Delete(Delete {
            compare: reader.optional(flags.has(delete::COMPARE), |it| it.u64("compare"))?,
            mark_stale: flags.has(delete::MARK_STALE),
            keep_entry: flags.has(delete::KEEP_ENTRY),
            touch: reader.optional(flags.has(delete::TOUCH), |it| it.expiry("touch"))?,
            new_version: reader.optional(flags.has(delete::NEW_VERSION), |it| it.u64("version"))?,
            key: reader.rest(),
        }),
        TOUCH => {
            let condition = CONDITIONS.get(usize::from(flags.number(TOUCH_CONDITION)));
            Command::Touch(Touch {
                condition: *condition.ok_or_else(|| flags.meaningless())?,
                expiry: reader.expiry("expiry")?,
                key: reader.rest(),
            })
        }
        SET_RANGE => Command::SetRange(SetRange {
            offset: reader.u64("offset")?,
            key: reader.short("key")?,
            value: reader.rest(),
        }),
        SET_BIT => Command::SetBit(SetBit {
            offset: reader.u64("offset")?,
            is_set: flags.has(BIT_IS_SET),
            key: reader.rest(),
        }),
        opcode => return Err(DecodeError::UnknownOpcode(opcode)),
    })
}

#[inline]
pub(super) fn read_get<'a>(
    flags: &mut Flags,
    reader: &mut Reader<'a>,
) -> Result<Get<'a>, DecodeError> {
    Ok(Get {
        want_value: !flags.has(get::NO_VALUE),
        bump: !flags.has(get::NO_BUMP),
        claim: flags.has(get::CLAIM),
        delete: flags.has(get::DELETE),
        touch: reader.optional(flags.has(get::TOUCH), |it| it.expiry("touch"))?,
        vivify: reader.optional(flags.has(get::VIVIFY), |it| it.expiry("vivify"))?,
        recache_below_s: reader.optional(flags.has(get::RECACHE), |it| it.u32("recache"))?,
        new_version: reader.optional(flags.has(get::NEW_VERSION), |it| it.u64("version"))?,
        key: reader.rest(),
    })
}

#[inline]
fn read_store<'a>(flags: &mut Flags, reader: &mut Reader<'a>) -> Result<Store<'a>, DecodeError> {
    let mode = MODES.get(usize::from(flags.number(store::MODE)));
    Ok(Store {
        mode: *mode.ok_or_else(|| flags.meaningless())?,
        flags: reader.u32("flags")?,
        expiry: reader
            .optional(flags.has(store::EXPIRY), |it| it.expiry("expiry"))?
            .unwrap_or(ExpirySpec::Never),
        compare: reader.optional(flags.has(store::COMPARE), |it| it.u64("compare"))?,
        invalidate_if_older: flags.has(store::INVALIDATE),
        new_version: reader.optional(flags.has(store::NEW_VERSION), |it| it.u64("version"))?,
        vivify: reader.optional(flags.has(store::VIVIFY), |it| it.expiry("vivify"))?,
        want_previous: flags.has(store::PREVIOUS),
        key: reader.short("key")?,
        value: reader.rest(),
    })
}

fn read_arith<'a>(flags: &mut Flags, reader: &mut Reader<'a>) -> Result<Arith<'a>, DecodeError> {
    let operand = reader.u64("operand")?;
    Ok(Arith {
        op: match flags.number(arith::OPERATION) {
            0 => ArithOp::Increment(operand),
            1 => ArithOp::Decrement(operand),
            2 => ArithOp::Signed(operand.cast_signed()),
            _ => ArithOp::Float(f64::from_bits(operand)),
        },
        initial: reader.optional(flags.has(arith::INITIAL), |it| {
            Ok((it.u64("initial")?, it.expiry("expiry")?))
        })?,
        absent_is_zero: flags.has(arith::ABSENT_IS_ZERO),
        touch: reader.optional(flags.has(arith::TOUCH), |it| it.expiry("touch"))?,
        compare: reader.optional(flags.has(arith::COMPARE), |it| it.u64("compare"))?,
        new_version: reader.optional(flags.has(arith::NEW_VERSION), |it| it.u64("version"))?,
        key: reader.rest(),
    })
}
