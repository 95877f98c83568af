//! Commands about the whole store, field by field.
//!
//! The others are for clients alone: no process sends them to another.

use super::batch;
use crate::ServerCommand;
use crate::outcome::Value;
use crate::peer::field::{Flags, NOT_SENT, Reader, Writer, bit};
use crate::peer::{DecodeError, TooLong};
use crate::placement::SLOT_COUNT;
use crate::request::StatsKind;

const FLUSH: u8 = 0x20;
const STATS: u8 = 0x21;
const COUNT: u8 = 0x24;
const SCAN: u8 = 0x25;
const RANDOM_KEY: u8 = 0x26;
const COUNT_IN_SLOT: u8 = 0x2b;
const ATOMIC: u8 = 0x2f;

/// Flag of `FLUSH`.
const ALL_DATABASES: u16 = 1;

/// Flag of `SCAN`.
const PATTERN: u16 = 1;

/// The number of each on the wire, in the flags of `STATS`.
const STATS_KINDS: [(u16, StatsKind); 4] = [
    (0, StatsKind::General),
    (1, StatsKind::Items),
    (5, StatsKind::Reset),
    (6, StatsKind::Namespace),
];

pub(super) fn write<'v>(
    command: &ServerCommand<'v>,
    writer: &mut Writer<'_>,
) -> Result<(u8, u16, Value<'v>), TooLong> {
    let nothing = Value::Copied(&[]);
    Ok(match command {
        ServerCommand::Flush {
            all_databases,
            delay_s,
        } => {
            writer.u32(*delay_s);
            (FLUSH, bit(*all_databases, ALL_DATABASES), nothing)
        }
        ServerCommand::Stats(kind) => match STATS_KINDS.iter().find(|(_, it)| it == kind) {
            Some((number, _)) => (STATS, *number, nothing),
            None => (NOT_SENT, 0, nothing),
        },
        ServerCommand::Count => (COUNT, 0, nothing),
        ServerCommand::Scan {
            cursor,
            pattern,
            count,
        } => {
            writer.u64(*cursor);
            writer.u64(*count as u64);
            let flags = bit(pattern.is_some(), PATTERN);
            (SCAN, flags, Value::Copied(pattern.unwrap_or_default()))
        }
        ServerCommand::RandomKey => (RANDOM_KEY, 0, nothing),
        ServerCommand::CountInSlot(slot) => {
            writer.u16(*slot);
            (COUNT_IN_SLOT, 0, nothing)
        }
        ServerCommand::Atomic(batch) => (ATOMIC, batch::write(batch, writer)?, nothing),
        ServerCommand::Info(_)
        | ServerCommand::ConfigGet(_)
        | ServerCommand::ConfigSet(_)
        | ServerCommand::Time
        | ServerCommand::Keys(_)
        | ServerCommand::ClientInfo
        | ServerCommand::Auth { .. }
        | ServerCommand::ClusterView => (NOT_SENT, 0, nothing),
    })
}

pub(super) fn read<'a>(
    opcode: u8,
    flags: &mut Flags,
    reader: &mut Reader<'a>,
) -> Result<ServerCommand<'a>, DecodeError> {
    Ok(match opcode {
        FLUSH => ServerCommand::Flush {
            all_databases: flags.has(ALL_DATABASES),
            delay_s: reader.u32("delay")?,
        },
        STATS => {
            let number = flags.number(u16::MAX);
            let row = STATS_KINDS.iter().find(|(it, _)| *it == number);
            ServerCommand::Stats(row.ok_or_else(|| flags.meaningless())?.1)
        }
        COUNT => ServerCommand::Count,
        SCAN => ServerCommand::Scan {
            cursor: reader.u64("cursor")?,
            count: reader.len("count")?,
            pattern: flags.has(PATTERN).then(|| reader.rest()),
        },
        RANDOM_KEY => ServerCommand::RandomKey,
        COUNT_IN_SLOT => {
            let slot = reader.u16("slot")?;
            if slot >= SLOT_COUNT {
                return Err(DecodeError::Meaningless {
                    field: "slot",
                    value: u64::from(slot),
                });
            }
            ServerCommand::CountInSlot(slot)
        }
        ATOMIC => ServerCommand::Atomic(batch::read(flags, reader)?),
        opcode => return Err(DecodeError::UnknownOpcode(opcode)),
    })
}
