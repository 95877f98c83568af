//! Batches, field by field.

use super::command;
use crate::batch::{Batch, BatchStep, Seen, Transfer, Watched};
use crate::outcome::Value;
use crate::peer::field::{Flags, Reader, Writer, bit};
use crate::peer::{DecodeError, TooLong};
use crate::{Base, Command, Space};

/// Flags of a batch: reads go through to another space; keys there lack the prefix of an overlay;
/// no key may have an entry.
const BASE: u16 = 1;
const OVERLAY: u16 = 2;
const ALL_ABSENT: u16 = 4;

/// An element that is no command on one key.
const WATCHED: u8 = 0x60;
const TRANSFER: u8 = 0x61;

/// Flag of `WATCHED`: there was an entry.
const PRESENT: u16 = 1;

/// Flags of `TRANSFER`.
const REMOVES: u16 = 1;
const REPLACES: u16 = 2;

/// Writes the fields of a batch and returns its flags.
pub(super) fn write(batch: &Batch<'_>, writer: &mut Writer<'_>) -> Result<u16, TooLong> {
    writer.optional(batch.base, |writer, base| writer.u32(base.space.0));
    for watched in &batch.watched {
        writer.nested(|writer| Ok(write_watched(watched, writer)))?;
    }
    for step in &batch.steps {
        writer.nested(|writer| match step {
            BatchStep::Command(command) => command::write(command, writer, None),
            BatchStep::Transfer(transfer) => write_transfer(transfer, writer),
        })?;
    }
    let is_of_overlay = batch.base.is_some_and(|base| base.prefix_len > 0);
    Ok(bit(batch.base.is_some(), BASE)
        | bit(is_of_overlay, OVERLAY)
        | bit(batch.all_absent, ALL_ABSENT))
}

fn write_watched<'v>(watched: &Watched<'v>, writer: &mut Writer<'_>) -> (u8, u16, Value<'v>) {
    writer.u8(watched.database);
    writer.optional(watched.seen, |writer, seen| {
        writer.u64(seen.version);
        writer.u64(seen.expires_at_ms);
    });
    let flags = bit(watched.seen.is_some(), PRESENT);
    (WATCHED, flags, Value::Copied(watched.key))
}

fn write_transfer<'v>(
    transfer: &Transfer<'v>,
    writer: &mut Writer<'_>,
) -> Result<(u8, u16, Value<'v>), TooLong> {
    writer.u8(transfer.database);
    writer.short(transfer.from, "a key")?;
    let flags = bit(transfer.removes, REMOVES) | bit(transfer.replaces, REPLACES);
    Ok((TRANSFER, flags, Value::Copied(transfer.to)))
}

/// One element of a batch.
enum Element<'a> {
    Watched(Watched<'a>),
    Step(BatchStep<'a>),
}

pub(super) fn read<'a>(
    flags: &mut Flags,
    reader: &mut Reader<'a>,
) -> Result<Batch<'a>, DecodeError> {
    let base = reader.optional(flags.has(BASE), |it| it.u32("base"))?;
    let is_of_overlay = base.is_some() && flags.has(OVERLAY);
    let mut batch = Batch {
        base: base.map(|space| match is_of_overlay {
            true => Base::of_overlay(Space(space)),
            false => Base::of(Space(space)),
        }),
        all_absent: flags.has(ALL_ABSENT),
        ..Batch::default()
    };
    for element in reader.list(|it| it.nested(read_element))? {
        match element {
            Element::Watched(watched) => batch.watched.push(watched),
            Element::Step(step) => batch.steps.push(step),
        }
    }
    Ok(batch)
}

fn read_element<'a>(
    opcode: u8,
    flags: &mut Flags,
    reader: &mut Reader<'a>,
) -> Result<Element<'a>, DecodeError> {
    Ok(match opcode {
        WATCHED => Element::Watched(Watched {
            database: database(reader)?,
            seen: reader.optional(flags.has(PRESENT), |it| {
                Ok(Seen {
                    version: it.u64("version")?,
                    expires_at_ms: it.u64("expiry")?,
                })
            })?,
            key: reader.rest(),
        }),
        TRANSFER => Element::Step(BatchStep::Transfer(Transfer {
            database: database(reader)?,
            from: reader.short("key")?,
            removes: flags.has(REMOVES),
            replaces: flags.has(REPLACES),
            to: reader.rest(),
        })),
        _ => {
            let command: Command<'a> = command::read(opcode, flags, reader)?;
            Element::Step(BatchStep::Command(command))
        }
    })
}

fn database(reader: &mut Reader<'_>) -> Result<u8, DecodeError> {
    let database = reader.u8("database")?;
    match u32::from(database) < Space::DATABASES {
        true => Ok(database),
        false => Err(DecodeError::Meaningless {
            field: "database",
            value: u64::from(database),
        }),
    }
}
