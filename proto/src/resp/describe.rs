//! What `COMMAND` tells about the commands (Redis documentation of `COMMAND`, `COMMAND DOCS` and
//! "Key specifications").

use super::encode::{
    Protocol, put_array_len, put_bulk, put_integer, put_map_len, put_null, put_set_len, put_status,
};
use super::table::{self, COMMANDS, CommandInfo};
use crate::Out;

/// `COMMAND`.
pub(super) fn put_all_commands(out: &mut Out, protocol: Protocol) {
    put_array_len(out, COMMANDS.len());
    COMMANDS
        .iter()
        .for_each(|info| put_command(out, protocol, info));
}

/// `COMMAND INFO name …`: null for a name that is not known.
pub(super) fn put_commands<'a>(
    out: &mut Out,
    protocol: Protocol,
    names: impl ExactSizeIterator<Item = &'a [u8]>,
) {
    put_array_len(out, names.len());
    for name in names {
        match table::find_path(name) {
            Some(info) => put_command(out, protocol, info),
            None => put_null(out, protocol),
        }
    }
}

/// `COMMAND DOCS`.
pub(super) fn put_all_docs(out: &mut Out, protocol: Protocol) {
    put_map_len(out, protocol, COMMANDS.len());
    COMMANDS
        .iter()
        .for_each(|info| put_doc(out, protocol, info));
}

/// `COMMAND DOCS name …`: names that are not known are left out.
pub(super) fn put_docs<'a>(
    out: &mut Out,
    protocol: Protocol,
    names: impl Iterator<Item = &'a [u8]>,
) {
    let known: Vec<_> = names.filter_map(table::find_path).collect();
    put_map_len(out, protocol, known.len());
    known
        .into_iter()
        .for_each(|info| put_doc(out, protocol, info));
}

fn put_command(out: &mut Out, protocol: Protocol, info: &CommandInfo) {
    put_array_len(out, 10);
    put_bulk(out, info.name.as_bytes());
    put_integer(out, info.arity.into());
    put_words(out, protocol, info.flag_names());
    put_integer(out, info.first_key.into());
    put_integer(out, info.last_key.into());
    put_integer(out, info.key_step.into());
    put_words(out, protocol, info.category_names());
    put_set_len(out, protocol, info.tips.len());
    info.tips
        .iter()
        .for_each(|tip| put_bulk(out, tip.as_bytes()));
    put_set_len(out, protocol, usize::from(info.first_key != 0));
    if info.first_key != 0 {
        put_key_specification(out, protocol, info);
    }
    put_subcommands_len(out, protocol, info);
    info.subcommands
        .iter()
        .for_each(|info| put_command(out, protocol, info));
}

/// Redis gives an empty set, but a filled array.
fn put_subcommands_len(out: &mut Out, protocol: Protocol, info: &CommandInfo) {
    match info.subcommands.len() {
        0 => put_set_len(out, protocol, 0),
        count => put_array_len(out, count),
    }
}

/// All our keys lie from a fixed first position on, `key_step` apart.
fn put_key_specification(out: &mut Out, protocol: Protocol, info: &CommandInfo) {
    let name = |out: &mut Out, name: &str| put_bulk(out, name.as_bytes());
    // Counted from the first key on, but still from the end if it is negative.
    let last_key = if info.last_key < 0 {
        info.last_key.into()
    } else {
        i64::from(info.last_key) - i64::from(info.first_key)
    };
    put_map_len(out, protocol, 3);
    name(out, "flags");
    put_words(out, protocol, info.access_names());
    name(out, "begin_search");
    put_map_len(out, protocol, 2);
    name(out, "type");
    name(out, "index");
    name(out, "spec");
    put_map_len(out, protocol, 1);
    name(out, "index");
    put_integer(out, info.first_key.into());
    name(out, "find_keys");
    put_map_len(out, protocol, 2);
    name(out, "type");
    name(out, "range");
    name(out, "spec");
    put_map_len(out, protocol, 3);
    for (field, number) in [
        ("lastkey", last_key),
        ("keystep", info.key_step.into()),
        ("limit", 0),
    ] {
        name(out, field);
        put_integer(out, number);
    }
}

fn put_doc(out: &mut Out, protocol: Protocol, info: &CommandInfo) {
    put_bulk(out, info.name.as_bytes());
    put_map_len(out, protocol, 3 + usize::from(!info.subcommands.is_empty()));
    for (field, text) in [
        ("summary", info.summary),
        ("since", info.since),
        ("group", info.group.name()),
    ] {
        put_bulk(out, field.as_bytes());
        put_bulk(out, text.as_bytes());
    }
    if !info.subcommands.is_empty() {
        put_bulk(out, b"subcommands");
        put_map_len(out, protocol, info.subcommands.len());
        info.subcommands
            .iter()
            .for_each(|info| put_doc(out, protocol, info));
    }
}

/// A set of simple strings.
fn put_words(out: &mut Out, protocol: Protocol, words: impl Iterator<Item = &'static str>) {
    let words: smallvec::SmallVec<[_; 10]> = words.collect();
    put_set_len(out, protocol, words.len());
    words.into_iter().for_each(|word| put_status(out, word));
}
