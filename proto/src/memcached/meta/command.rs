//! The command lines of the meta dialect.

use smallvec::smallvec;

use super::base64::KeyBuffer;
use super::flags::{Flags, FlagsError, OPAQUE_TOO_LONG};
use super::reply::{Kind, Reply};
use crate::command::{Arith, ArithOp, Command, Delete, ExpirySpec, Get, Store, StoreMode};
use crate::memcached::text::{
    BAD_FORMAT, ERROR, Parsed, Refusal, Tokens, is_key_len, parse_block_len,
};
use crate::request::{Body, Reply as AnyReply};

const BAD_KEY: &str = "CLIENT_ERROR error decoding key";
const BAD_FLAG: &str = "CLIENT_ERROR invalid or duplicate flag";
const BAD_STORE_MODE: &str = "CLIENT_ERROR invalid mode for ms M token";
const BAD_ARITH_MODE: &str = "CLIENT_ERROR invalid mode for ma M token";

/// Reads the line of command `m<verb>`; `rest` is what is behind the verb. A key that has to be
/// decoded lives in `buffer`.
pub(in crate::memcached) fn parse_line<'a>(
    verb: u8,
    rest: &'a [u8],
    buffer: &'a mut KeyBuffer,
) -> Parsed<'a> {
    let mut tokens = Tokens::new(rest);
    let key = tokens.next();
    match (verb, key) {
        (b'n', _) => Parsed::Request(Body::Answer, AnyReply::Meta(Reply::answer("MN"))),
        (b's', Some(key)) => store(key, tokens, buffer),
        (b'g', Some(key)) => or_refused(get(key, tokens.rest(), buffer)),
        (b'd', Some(key)) => or_refused(delete(key, tokens.rest(), buffer)),
        (b'a', Some(key)) => or_refused(arithmetic(key, tokens.rest(), buffer)),
        (b'e', Some(key)) => or_refused(debug(key, tokens, buffer)),
        (b'e', None) => refused(BAD_FORMAT, None),
        _ => Parsed::error(ERROR, false),
    }
}

fn refused<'a>(line: &'static str, swallow: Option<u64>) -> Parsed<'a> {
    Parsed::Refused {
        refusal: Refusal {
            line,
            quiet: false,
            is_meta: true,
        },
        swallow,
    }
}

fn or_refused<'a>(parsed: Result<(Command<'a>, Reply<'a>), &'static str>) -> Parsed<'a> {
    match parsed {
        Ok((command, reply)) => {
            Parsed::Request(Body::Data(smallvec![command]), AnyReply::Meta(reply))
        }
        Err(line) => refused(line, None),
    }
}

/// Reads flags for a command that tells what is wrong with them.
fn exact_flags(tail: &[u8]) -> Result<Flags, &'static str> {
    Flags::parse(tail).map_err(|error| match error {
        FlagsError::Invalid(line) => line,
        FlagsError::OpaqueTooLong => OPAQUE_TOO_LONG,
    })
}

/// Reads flags for a command that has one error for all of them.
fn flags(tail: &[u8]) -> Result<Flags, &'static str> {
    Flags::parse(tail).map_err(|error| match error {
        FlagsError::Invalid(_) => BAD_FLAG,
        FlagsError::OpaqueTooLong => OPAQUE_TOO_LONG,
    })
}

fn check_key_len(key: &[u8]) -> Result<(), &'static str> {
    if is_key_len(key) {
        Ok(())
    } else {
        Err(BAD_FORMAT)
    }
}

/// The key as the flags say to read it.
fn decoded<'a>(
    key: &'a [u8],
    flags: &Flags,
    buffer: &'a mut KeyBuffer,
    error: &'static str,
) -> Result<&'a [u8], &'static str> {
    if flags.base64 {
        buffer.decode(key).ok_or(error)
    } else {
        Ok(key)
    }
}

/// `mg <key> <flags>*`.
fn get<'a>(
    key: &'a [u8],
    tail: &'a [u8],
    buffer: &'a mut KeyBuffer,
) -> Result<(Command<'a>, Reply<'a>), &'static str> {
    check_key_len(key)?;
    let flags = exact_flags(tail)?;
    let get = Get {
        want_value: flags.value,
        touch: flags.ttl,
        bump: !flags.no_bump,
        claim: true,
        vivify: flags.vivify,
        recache_below_s: flags.recache_below_s,
        new_version: flags.new_version,
        ..Get::new(decoded(key, &flags, buffer, BAD_KEY)?)
    };
    Ok((Command::Get(get), Reply::new(Kind::Get, tail, &flags)))
}

/// `ms <key> <datalen> <flags>*`. As soon as the length is known the data block is swallowed
/// whatever else is wrong.
fn store<'a>(key: &'a [u8], mut tokens: Tokens<'a>, buffer: &'a mut KeyBuffer) -> Parsed<'a> {
    let Some(value_len) = tokens.next().and_then(parse_block_len) else {
        return refused(BAD_FORMAT, None);
    };
    match store_fields(key, tokens.rest(), buffer) {
        Ok((store, reply)) => Parsed::Store {
            store,
            value_len,
            reply: AnyReply::Meta(reply),
        },
        Err(line) => refused(line, Some(value_len)),
    }
}

fn store_fields<'a>(
    key: &'a [u8],
    tail: &'a [u8],
    buffer: &'a mut KeyBuffer,
) -> Result<(Store<'a>, Reply<'a>), &'static str> {
    check_key_len(key)?;
    let flags = exact_flags(tail)?;
    let mode = match flags.mode {
        None | Some(b'S') => StoreMode::Set,
        Some(b'E') => StoreMode::Add,
        Some(b'A') => StoreMode::Append,
        Some(b'P') => StoreMode::Prepend,
        Some(b'R') => StoreMode::Replace,
        Some(_) => return Err(BAD_STORE_MODE),
    };
    let is_extension = matches!(mode, StoreMode::Append | StoreMode::Prepend);
    // A version to compare with makes set and replace the same: without an entry there is nothing
    // to compare with (NF, not NS). Add wants no entry and so ignores it.
    let (mode, compare) = match (mode, flags.compare) {
        (StoreMode::Replace, Some(version)) => (StoreMode::Set, Some(version)),
        (StoreMode::Add, _) => (StoreMode::Add, None),
        // Memcached takes C0 for no comparison here, unlike for a set.
        (StoreMode::Append | StoreMode::Prepend, Some(0)) => (mode, None),
        (mode, compare) => (mode, compare),
    };
    let expiry = flags.ttl.unwrap_or(ExpirySpec::Never);
    let store = Store {
        mode,
        compare,
        invalidate_if_older: flags.invalidate
            && mode == StoreMode::Set
            && compare.is_some_and(|version| version != 0),
        new_version: flags.new_version,
        vivify: flags.vivify.filter(|_| is_extension),
        ..Store::set(
            decoded(key, &flags, buffer, BAD_KEY)?,
            b"",
            flags.client_flags,
            expiry,
        )
    };
    Ok((store, Reply::new(Kind::Store, tail, &flags)))
}

/// `md <key> <flags>*`.
fn delete<'a>(
    key: &'a [u8],
    tail: &'a [u8],
    buffer: &'a mut KeyBuffer,
) -> Result<(Command<'a>, Reply<'a>), &'static str> {
    check_key_len(key)?;
    let flags = flags(tail)?;
    let delete = Delete {
        compare: flags.compare,
        mark_stale: flags.invalidate,
        keep_entry: flags.remove_value,
        touch: flags.ttl.filter(|_| flags.invalidate || flags.remove_value),
        new_version: flags.new_version,
        ..Delete::new(decoded(key, &flags, buffer, BAD_FLAG)?)
    };
    Ok((
        Command::Delete(delete),
        Reply::new(Kind::Delete, tail, &flags),
    ))
}

/// `ma <key> <flags>*`.
fn arithmetic<'a>(
    key: &'a [u8],
    tail: &'a [u8],
    buffer: &'a mut KeyBuffer,
) -> Result<(Command<'a>, Reply<'a>), &'static str> {
    check_key_len(key)?;
    let flags = flags(tail)?;
    let delta = flags.delta.unwrap_or(1);
    let op = match flags.mode {
        None | Some(b'I' | b'+') => ArithOp::Increment(delta),
        Some(b'D' | b'-') => ArithOp::Decrement(delta),
        Some(_) => return Err(BAD_ARITH_MODE),
    };
    let arith = Arith {
        key: decoded(key, &flags, buffer, BAD_FLAG)?,
        op,
        initial: flags.vivify.map(|expiry| (flags.initial, expiry)),
        absent_is_zero: false,
        touch: flags.ttl,
        // Memcached takes C0 for no comparison here, unlike in ms and md.
        compare: flags.compare.filter(|version| *version != 0),
        new_version: flags.new_version,
    };
    Ok((
        Command::Arith(arith),
        Reply::new(Kind::Arithmetic, tail, &flags),
    ))
}

/// `me <key> [b]`. Anything else behind the key is ignored.
fn debug<'a>(
    key: &'a [u8],
    mut tokens: Tokens<'a>,
    buffer: &'a mut KeyBuffer,
) -> Result<(Command<'a>, Reply<'a>), &'static str> {
    check_key_len(key)?;
    let flags = Flags {
        base64: tokens.next() == Some(b"b"),
        ..Flags::default()
    };
    let key = decoded(key, &flags, buffer, BAD_FORMAT)?;
    Ok((
        Command::Get(Get::facts(key)),
        Reply::new(Kind::Debug, b"", &flags),
    ))
}
