//! Commands about the whole store, field by field.

use super::batch;
use crate::ServerCommand;
use crate::outcome::Value;
use crate::peer::field::{Flags, Reader, Writer, bit};
use crate::peer::{DecodeError, TooLong};
use crate::placement::SLOT_COUNT;
use crate::request::StatsKind;

const FLUSH: u8 = 0x20;
const STATS: u8 = 0x21;
const INFO: u8 = 0x22;
const CONFIG_GET: u8 = 0x23;
const COUNT: u8 = 0x24;
const SCAN: u8 = 0x25;
const RANDOM_KEY: u8 = 0x26;
const STORE_ALL_IF_NONE: u8 = 0x27;
const CLIENT_INFO: u8 = 0x28;
const AUTH: u8 = 0x29;
const CLUSTER_VIEW: u8 = 0x2a;
const COUNT_IN_SLOT: u8 = 0x2b;
const CONFIG_SET: u8 = 0x2c;
const TIME: u8 = 0x2d;
const KEYS: u8 = 0x2e;
const ATOMIC: u8 = 0x2f;

/// Flag of `FLUSH`.
const ALL_DATABASES: u16 = 1;

/// Flag of `SCAN`.
const PATTERN: u16 = 1;

/// The number of each on the wire, in the flags of `STATS`.
const STATS_KINDS: [(u16, StatsKind); 7] = [
    (0, StatsKind::General),
    (1, StatsKind::Items),
    (2, StatsKind::Settings),
    (3, StatsKind::Connections),
    (4, StatsKind::Empty),
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
        ServerCommand::Stats(kind) => {
            let row = STATS_KINDS.iter().find(|(_, it)| it == kind);
            (STATS, row.map_or(0, |(number, _)| *number), nothing)
        }
        ServerCommand::Info(sections) => {
            for section in sections {
                writer.long(section.as_bytes(), "a section")?;
            }
            (INFO, 0, nothing)
        }
        ServerCommand::ConfigGet(patterns) => {
            for pattern in patterns {
                writer.long(pattern, "a pattern")?;
            }
            (CONFIG_GET, 0, nothing)
        }
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
        ServerCommand::StoreAllIfNone(pairs) => {
            for (key, value) in pairs {
                writer.long(key, "a key")?;
                writer.long(value, "a value")?;
            }
            (STORE_ALL_IF_NONE, 0, nothing)
        }
        ServerCommand::ClientInfo => (CLIENT_INFO, 0, nothing),
        ServerCommand::Auth { user, password } => {
            writer.long(user, "a user's name")?;
            (AUTH, 0, Value::Copied(password))
        }
        ServerCommand::ClusterView => (CLUSTER_VIEW, 0, nothing),
        ServerCommand::CountInSlot(slot) => {
            writer.u16(*slot);
            (COUNT_IN_SLOT, 0, nothing)
        }
        ServerCommand::ConfigSet(pairs) => {
            for (name, value) in pairs {
                writer.long(name, "a name")?;
                writer.long(value, "a value")?;
            }
            (CONFIG_SET, 0, nothing)
        }
        ServerCommand::Time => (TIME, 0, nothing),
        ServerCommand::Keys(pattern) => (KEYS, 0, Value::Copied(pattern)),
        ServerCommand::Atomic(batch) => (ATOMIC, batch::write(batch, writer)?, nothing),
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
        INFO => ServerCommand::Info(reader.list(|it| it.text("section"))?),
        CONFIG_GET => ServerCommand::ConfigGet(reader.list(|it| it.long("pattern"))?),
        COUNT => ServerCommand::Count,
        SCAN => ServerCommand::Scan {
            cursor: reader.u64("cursor")?,
            count: reader.len("count")?,
            pattern: flags.has(PATTERN).then(|| reader.rest()),
        },
        RANDOM_KEY => ServerCommand::RandomKey,
        STORE_ALL_IF_NONE => ServerCommand::StoreAllIfNone(
            reader.list(|it| Ok((it.long("key")?, it.long("value")?)))?,
        ),
        CLIENT_INFO => ServerCommand::ClientInfo,
        AUTH => ServerCommand::Auth {
            user: reader.long("user")?,
            password: reader.rest(),
        },
        CLUSTER_VIEW => ServerCommand::ClusterView,
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
        CONFIG_SET => {
            ServerCommand::ConfigSet(reader.list(|it| Ok((it.long("name")?, it.long("value")?)))?)
        }
        TIME => ServerCommand::Time,
        KEYS => ServerCommand::Keys(reader.rest()),
        ATOMIC => ServerCommand::Atomic(batch::read(flags, reader)?),
        opcode => return Err(DecodeError::UnknownOpcode(opcode)),
    })
}
