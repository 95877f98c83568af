//! Opcodes: what each one does, whether it is quiet, and which lengths its packet may have.

use std::ops::RangeInclusive;

use super::Status;
use super::header::RequestHeader;
use crate::StoreMode;
use crate::command::MEMCACHED_KEY_LEN_MAX;

/// Longest SASL body in bytes: user, password and their separators.
pub(super) const CREDENTIALS_LEN_MAX: u32 = 4096;

/// Longest name of a SASL mechanism in bytes (RFC 4422, section 3.1).
const MECHANISM_LEN_MAX: u16 = 20;

/// What an opcode does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Get,
    /// Set, add and replace: with flags and expiry.
    Store(StoreMode),
    /// Append and prepend: without.
    Extend(StoreMode),
    Delete,
    Increment,
    Decrement,
    Quit,
    Flush,
    Noop,
    Version,
    Stat,
    Verbosity,
    Touch,
    GetAndTouch,
    SaslMechanisms,
    SaslAuth,
    SaslStep,
}

/// An opcode, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Opcode {
    pub(super) operation: Operation,
    /// Success (of a read: a miss) is not answered.
    pub(super) is_quiet: bool,
    /// The reply repeats the key.
    pub(super) names_key: bool,
}

impl Opcode {
    /// Looks an opcode up; None if it is unknown.
    #[inline]
    pub(super) fn from_byte(byte: u8) -> Option<Self> {
        use Operation::{
            Decrement, Delete, Extend, Flush, Get, GetAndTouch, Increment, Noop, Quit, SaslAuth,
            SaslMechanisms, SaslStep, Stat, Store, Touch, Verbosity, Version,
        };
        let loud = |operation| Self {
            operation,
            is_quiet: false,
            names_key: false,
        };
        let quiet = |operation| Self {
            operation,
            is_quiet: true,
            names_key: false,
        };
        let named = |opcode| Self {
            names_key: true,
            ..opcode
        };
        Some(match byte {
            0x00 => loud(Get),
            0x01 => loud(Store(StoreMode::Set)),
            0x02 => loud(Store(StoreMode::Add)),
            0x03 => loud(Store(StoreMode::Replace)),
            0x04 => loud(Delete),
            0x05 => loud(Increment),
            0x06 => loud(Decrement),
            0x07 => loud(Quit),
            0x08 => loud(Flush),
            0x09 => quiet(Get),
            0x0a => loud(Noop),
            0x0b => loud(Version),
            0x0c => named(loud(Get)),
            0x0d => named(quiet(Get)),
            0x0e => loud(Extend(StoreMode::Append)),
            0x0f => loud(Extend(StoreMode::Prepend)),
            0x10 => loud(Stat),
            0x11 => quiet(Store(StoreMode::Set)),
            0x12 => quiet(Store(StoreMode::Add)),
            0x13 => quiet(Store(StoreMode::Replace)),
            0x14 => quiet(Delete),
            0x15 => quiet(Increment),
            0x16 => quiet(Decrement),
            0x17 => quiet(Quit),
            0x18 => quiet(Flush),
            0x19 => quiet(Extend(StoreMode::Append)),
            0x1a => quiet(Extend(StoreMode::Prepend)),
            0x1b => loud(Verbosity),
            0x1c => loud(Touch),
            0x1d => loud(GetAndTouch),
            0x1e => quiet(GetAndTouch),
            0x20 => loud(SaslMechanisms),
            0x21 => loud(SaslAuth),
            0x22 => loud(SaslStep),
            0x23 => named(loud(GetAndTouch)),
            0x24 => named(quiet(GetAndTouch)),
            _ => return None,
        })
    }

    /// Whether the packet stores its value whatever was there before.
    pub(super) fn replaces(self, header: &RequestHeader) -> bool {
        self.operation == Operation::Store(StoreMode::Set) && header.cas == 0
    }

    /// Checks the lengths in the header, before any of the body is read: a packet that passes is
    /// worth waiting for, and its body is bounded.
    #[inline]
    pub(super) fn check(self, header: &RequestHeader, value_len_max: u32) -> Result<(), Status> {
        let allowed = self.operation.lengths(value_len_max);
        let Some(value_len) = header.value_len() else {
            return Err(Status::InvalidArguments);
        };
        let extras_fit = header.extras_len == allowed.extras
            || (allowed.extras_optional && header.extras_len == 0);
        if !extras_fit || !allowed.key.contains(&header.key_len) {
            return Err(Status::InvalidArguments);
        }
        match allowed.value {
            _ if value_len == 0 => Ok(()),
            ValueRule::None => Err(Status::InvalidArguments),
            ValueRule::UpTo(max, _) if value_len <= max => Ok(()),
            ValueRule::UpTo(_, excess) => Err(excess),
        }
    }
}

/// The lengths that a packet may have.
struct Lengths {
    extras: u8,
    /// The extras may be left out.
    extras_optional: bool,
    key: RangeInclusive<u16>,
    value: ValueRule,
}

/// Whether there is a value.
#[derive(Clone, Copy)]
enum ValueRule {
    None,
    /// Any length up to this; the status says what a longer one is refused with.
    UpTo(u32, Status),
}

impl Operation {
    #[inline]
    fn lengths(self, value_len_max: u32) -> Lengths {
        const KEY: RangeInclusive<u16> = 1..=MEMCACHED_KEY_LEN_MAX as u16;
        const NO_KEY: RangeInclusive<u16> = 0..=0;
        let of = |extras, key, value| Lengths {
            extras,
            extras_optional: false,
            key,
            value,
        };
        let value = ValueRule::UpTo(value_len_max, Status::TooLarge);
        let credentials = ValueRule::UpTo(CREDENTIALS_LEN_MAX, Status::InvalidArguments);
        match self {
            Self::Get | Self::Delete => of(0, KEY, ValueRule::None),
            Self::Store(_) => of(8, KEY, value),
            Self::Extend(_) => of(0, KEY, value),
            Self::Increment | Self::Decrement => of(20, KEY, ValueRule::None),
            Self::Touch | Self::GetAndTouch => of(4, KEY, ValueRule::None),
            Self::Quit | Self::Noop | Self::Version | Self::SaslMechanisms => {
                of(0, NO_KEY, ValueRule::None)
            }
            Self::Flush => Lengths {
                extras_optional: true,
                ..of(4, NO_KEY, ValueRule::None)
            },
            Self::Verbosity => of(4, NO_KEY, ValueRule::None),
            Self::Stat => of(0, 0..=MEMCACHED_KEY_LEN_MAX as u16, ValueRule::None),
            Self::SaslAuth | Self::SaslStep => of(0, 1..=MECHANISM_LEN_MAX, credentials),
        }
    }
}
