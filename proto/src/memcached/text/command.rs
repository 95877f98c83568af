//! The command lines of the text dialect.
//!
//! How many parts a command may have, which of them are ignored and what is answered to others is
//! memcached's behaviour, also where it is odd: `set k 0 0 1 whatever` stores, `delete k 0`
//! deletes, `noreply` silences errors too, and `gat 10` without a key is an empty retrieval.

use smallvec::{SmallVec, smallvec};

use super::reply::Reply;
use super::{
    BAD_FORMAT, ERROR, Parsed, Refusal, Tokens, is_key_len, parse_block_len, parse_exptime,
    parse_signed, parse_u32, parse_unsigned,
};
use crate::command::{
    Arith, ArithOp, Command, Delete, ExpireCondition, ExpirySpec, Get, Store, StoreMode, Touch,
};
use crate::request::{Body, Commands, Reply as AnyReply, ServerCommand, StatsKind};

const BAD_EXPTIME: &str = "CLIENT_ERROR invalid exptime argument";
const BAD_DELTA: &str = "CLIENT_ERROR invalid numeric delta argument";
const BAD_DELETE: &str = "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]";
const VERSION: &str = concat!("VERSION 1.6.18-fonn-", env!("CARGO_PKG_VERSION"));

/// The parts behind the command's name. No valid line but a retrieval has more than the inline
/// ones.
type Arguments<'a> = SmallVec<[&'a [u8]; 8]>;

/// Reads the line of command `verb`; `rest` is what is behind the verb.
pub(super) fn parse_line<'a>(verb: &[u8], rest: &'a [u8]) -> Parsed<'a> {
    match verb {
        b"get" => retrieval(rest, false, None),
        b"gets" => retrieval(rest, true, None),
        b"gat" => retrieval_with_touch(rest, false),
        b"gats" => retrieval_with_touch(rest, true),
        b"set" => storage(rest, StoreMode::Set, false),
        b"add" => storage(rest, StoreMode::Add, false),
        b"replace" => storage(rest, StoreMode::Replace, false),
        b"append" => storage(rest, StoreMode::Append, false),
        b"prepend" => storage(rest, StoreMode::Prepend, false),
        b"cas" => storage(rest, StoreMode::Set, true),
        b"delete" => delete(rest),
        b"incr" => arithmetic(rest, ArithOp::Increment),
        b"decr" => arithmetic(rest, ArithOp::Decrement),
        b"touch" => touch(rest),
        b"flush_all" => flush_all(rest),
        b"verbosity" => verbosity(rest),
        b"stats" => stats(rest),
        b"version" => answer(VERSION, false),
        b"quit" => Parsed::Request(Body::Close, AnyReply::Text(Reply::answer("", true))),
        _ => Parsed::error(ERROR, false),
    }
}

fn answer<'a>(line: &'static str, quiet: bool) -> Parsed<'a> {
    Parsed::Request(Body::Answer, AnyReply::Text(Reply::answer(line, quiet)))
}

fn one<'a>(command: Command<'a>, quiet: bool) -> Parsed<'a> {
    Parsed::Request(
        Body::Data(smallvec![command]),
        AnyReply::Text(Reply::outcome(quiet)),
    )
}

fn server<'a>(command: ServerCommand<'a>, quiet: bool) -> Parsed<'a> {
    Parsed::Request(Body::Server(command), AnyReply::Text(Reply::outcome(quiet)))
}

fn arguments(rest: &[u8]) -> Arguments<'_> {
    Tokens::new(rest).collect()
}

fn is_noreply(arguments: &[&[u8]]) -> bool {
    arguments.last().is_some_and(|last| *last == b"noreply")
}

/// `get <key>*`, `gets <key>*`.
fn retrieval(keys: &[u8], with_cas: bool, touch: Option<ExpirySpec>) -> Parsed<'_> {
    let mut commands = Commands::new();
    for key in Tokens::new(keys) {
        if !is_key_len(key) {
            return Parsed::error(BAD_FORMAT, false);
        }
        commands.push(Command::Get(Get {
            touch,
            ..Get::new(key)
        }));
    }
    match (commands.is_empty(), touch) {
        (true, None) => Parsed::error(ERROR, false),
        (true, Some(_)) => answer("END", false),
        (false, _) => Parsed::Request(
            Body::Data(commands),
            AnyReply::Text(Reply::retrieval(with_cas)),
        ),
    }
}

/// `gat <exptime> <key>*`, `gats <exptime> <key>*`.
fn retrieval_with_touch(rest: &[u8], with_cas: bool) -> Parsed<'_> {
    let mut tokens = Tokens::new(rest);
    let Some(exptime) = tokens.next() else {
        return Parsed::error(ERROR, false);
    };
    match parse_exptime(exptime) {
        Some(expiry) => retrieval(tokens.rest(), with_cas, Some(expiry)),
        None => Parsed::error(BAD_EXPTIME, false),
    }
}

/// `<verb> <key> <flags> <exptime> <bytes> [noreply]`, `cas` with `<cas unique>` behind `<bytes>`.
fn storage(rest: &[u8], mode: StoreMode, with_compare: bool) -> Parsed<'_> {
    let arguments = arguments(rest);
    let [key, flags, exptime, value_len, tail @ ..] = arguments.as_slice() else {
        return Parsed::error(ERROR, false);
    };
    let (compare, tail) = match (with_compare, tail) {
        (true, [compare, tail @ ..]) => (Some(*compare), tail),
        (true, []) => return Parsed::error(ERROR, false),
        (false, tail) => (None, tail),
    };
    if tail.len() > 1 {
        return Parsed::error(ERROR, false);
    }
    let quiet = is_noreply(&arguments);
    let Some(value_len) = parse_block_len(value_len) else {
        return Parsed::error(BAD_FORMAT, quiet);
    };
    let refused = Parsed::Refused {
        refusal: Refusal {
            line: BAD_FORMAT,
            quiet,
            is_meta: false,
        },
        swallow: Some(value_len),
    };
    let (Some(flags), Some(expiry)) = (parse_u32(flags), parse_exptime(exptime)) else {
        return refused;
    };
    let compare = match compare.map(parse_unsigned) {
        Some(None) => return refused,
        Some(compare) => compare,
        None => None,
    };
    if !is_key_len(key) {
        return refused;
    }
    Parsed::Store {
        store: Store {
            mode,
            compare,
            ..Store::set(key, b"", flags, expiry)
        },
        value_len,
        reply: AnyReply::Text(Reply::outcome(quiet)),
    }
}

/// `delete <key> [0] [noreply]`; the 0 was a time once.
fn delete(rest: &[u8]) -> Parsed<'_> {
    let arguments = arguments(rest);
    let quiet = arguments.len() > 1 && is_noreply(&arguments);
    match arguments.as_slice() {
        [] | [_, _, _, _, ..] => Parsed::error(ERROR, false),
        [key] | [key, b"0" | b"noreply"] | [key, b"0", b"noreply"] => {
            if is_key_len(key) {
                one(Command::Delete(Delete::new(key)), quiet)
            } else {
                Parsed::error(BAD_FORMAT, quiet)
            }
        }
        _ => Parsed::error(BAD_DELETE, quiet),
    }
}

/// `incr <key> <delta> [noreply]`, `decr` likewise.
fn arithmetic(rest: &[u8], op: fn(u64) -> ArithOp) -> Parsed<'_> {
    let arguments = arguments(rest);
    let ([key, delta] | [key, delta, _]) = arguments.as_slice() else {
        return Parsed::error(ERROR, false);
    };
    let quiet = is_noreply(&arguments);
    if !is_key_len(key) {
        return Parsed::error(BAD_FORMAT, quiet);
    }
    let Some(delta) = parse_unsigned(delta) else {
        return Parsed::error(BAD_DELTA, quiet);
    };
    let arith = Arith {
        key,
        op: op(delta),
        initial: None,
        absent_is_zero: false,
        touch: None,
        compare: None,
        new_version: None,
    };
    one(Command::Arith(arith), quiet)
}

/// `touch <key> <exptime> [noreply]`.
fn touch(rest: &[u8]) -> Parsed<'_> {
    let arguments = arguments(rest);
    let ([key, exptime] | [key, exptime, _]) = arguments.as_slice() else {
        return Parsed::error(ERROR, false);
    };
    let quiet = is_noreply(&arguments);
    if !is_key_len(key) {
        return Parsed::error(BAD_FORMAT, quiet);
    }
    match parse_exptime(exptime) {
        Some(expiry) => one(
            Command::Touch(Touch {
                key,
                expiry,
                condition: ExpireCondition::Always,
            }),
            quiet,
        ),
        None => Parsed::error(BAD_EXPTIME, quiet),
    }
}

/// `flush_all [delay] [noreply]`. A delay that is not positive means now.
fn flush_all(rest: &[u8]) -> Parsed<'_> {
    let arguments = arguments(rest);
    if arguments.len() > 2 {
        return Parsed::error(ERROR, false);
    }
    let quiet = is_noreply(&arguments);
    let delay_s = match arguments.as_slice() {
        [] | [b"noreply"] => 0,
        [delay, ..] => match parse_signed(delay) {
            Some(delay) => u32::try_from(delay.max(0)).unwrap_or(u32::MAX),
            None => return Parsed::error(BAD_EXPTIME, quiet),
        },
    };
    server(
        ServerCommand::Flush {
            all_databases: false,
            delay_s,
        },
        quiet,
    )
}

/// `verbosity <level> [noreply]`: accepted and without effect, the level is the operator's.
fn verbosity(rest: &[u8]) -> Parsed<'_> {
    let arguments = arguments(rest);
    let ([level] | [level, _]) = arguments.as_slice() else {
        return Parsed::error(ERROR, false);
    };
    let quiet = is_noreply(&arguments);
    match parse_u32(level) {
        Some(_) => answer("OK", quiet),
        None => Parsed::error(BAD_FORMAT, quiet),
    }
}

/// `stats [what]`.
fn stats(rest: &[u8]) -> Parsed<'_> {
    let kind = match Tokens::new(rest).next() {
        None => StatsKind::General,
        Some(b"items") => StatsKind::Items,
        Some(b"settings") => StatsKind::Settings,
        Some(b"conns") => StatsKind::Connections,
        Some(b"slabs" | b"sizes") => StatsKind::Empty,
        Some(b"reset") => StatsKind::Reset,
        Some(_) => return Parsed::error(ERROR, false),
    };
    server(ServerCommand::Stats(kind), false)
}
