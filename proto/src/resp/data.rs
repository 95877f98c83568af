//! The commands on keys: from arguments to [`Command`]s.

use smallvec::smallvec;

use super::frame::Args;
use super::lcs::Lcs;
use super::number;
use super::reply::{Answer, Form};
use super::session::DATABASE_COUNT;
use super::table::{CommandInfo, DataKind, Kind, Moment};
use super::wording::{self, ReplyError};
use crate::Transfer;
use crate::command::{
    Arith, ArithOp, Command, Delete, ExpireCondition, ExpirySpec, Get, RESP_KEY_LEN_MAX, SetBit,
    SetRange, Store, StoreMode, Touch,
};
use crate::request::Commands;

/// The longest time from now, in ms. The sum with the present time has to stay in the range of
/// Redis's signed 64 bits; as the present time is not known here, it is taken for the largest
/// 42-bit number (the year 2109).
const RELATIVE_EXPIRY_MS_MAX: i64 = i64::MAX - (1 << 42);

/// What of the connection's state decides about a command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context {
    pub(super) value_len_max: usize,
    pub(super) no_touch: bool,
}

/// Builds the commands of a request about keys, and says how its reply is worded.
///
/// # Errors
/// With the words of Redis for malformed arguments.
#[inline]
pub(super) fn commands<'a>(
    kind: DataKind,
    info: &'static CommandInfo,
    args: Args<'a>,
    context: Context,
) -> Result<(Commands<'a>, Form<'a>), ReplyError> {
    let get = |key| Get {
        bump: !context.no_touch,
        ..Get::new(key)
    };
    let (command, form) = match kind {
        DataKind::Get => (Command::Get(get(key(args, 1)?)), Form::Value),
        DataKind::Set => {
            let (store, form) = set(info, args)?;
            (Command::Store(store), form)
        }
        DataKind::GetMany => {
            return many(args, Form::values(args.len() - 1), |key| {
                Command::Get(get(key))
            });
        }
        DataKind::Delete => {
            return many(args, Form::sum(), |key| Command::Delete(Delete::new(key)));
        }
        DataKind::Exists => return many(args, Form::sum(), |key| Command::Get(Get::facts(key))),
        DataKind::Touch => {
            return many(args, Form::sum(), |key| {
                let condition = ExpireCondition::Always;
                Command::Touch(Touch {
                    key,
                    expiry: ExpirySpec::Keep,
                    condition,
                })
            });
        }
        DataKind::SetMany => return set_many(info, args),
        DataKind::SetIfNone => {
            let store = Store {
                mode: StoreMode::Add,
                ..plain_set(args)?
            };
            (Command::Store(store), Form::OneIfStored)
        }
        DataKind::SetExpiring(moment) => {
            let expiry = positive_expiry(info, args.get(2), moment)?;
            (
                Command::Store(Store::set(key(args, 1)?, args.get(3), 0, expiry)),
                Form::Stored,
            )
        }
        DataKind::GetSet => {
            let store = Store {
                want_previous: true,
                ..plain_set(args)?
            };
            (Command::Store(store), Form::Previous)
        }
        DataKind::GetDelete => (
            Command::Get(Get {
                delete: true,
                ..get(key(args, 1)?)
            }),
            Form::Value,
        ),
        DataKind::GetExpiring => {
            let touch = get_expiry(info, args)?;
            (
                Command::Get(Get {
                    touch,
                    ..get(key(args, 1)?)
                }),
                Form::Value,
            )
        }
        DataKind::Append => {
            let store = Store {
                mode: StoreMode::Append,
                vivify: Some(ExpirySpec::Never),
                ..plain_set(args)?
            };
            (Command::Store(store), Form::ValueLen)
        }
        DataKind::Length => (
            Command::Get(Get {
                want_value: false,
                ..get(key(args, 1)?)
            }),
            Form::HitLen,
        ),
        DataKind::GetRange => {
            let (first, last) = (integer(args.get(2))?, integer(args.get(3))?);
            (
                Command::Get(get(key(args, 1)?)),
                Form::Range { first, last },
            )
        }
        DataKind::SetRange => (Command::SetRange(set_range(args, context)?), Form::ValueLen),
        DataKind::Add(delta) => (arith(args, ArithOp::Signed(delta))?, Form::Integer),
        DataKind::Increment => (
            arith(args, ArithOp::Signed(integer(args.get(2))?))?,
            Form::Integer,
        ),
        DataKind::Decrement => {
            let delta = integer(args.get(2))?
                .checked_neg()
                .ok_or(wording::DECREMENT_OVERFLOW)?;
            (arith(args, ArithOp::Signed(delta))?, Form::Integer)
        }
        DataKind::IncrementFloat => {
            let delta = number::float(args.get(2)).ok_or(wording::NOT_A_FLOAT)?;
            if delta.is_infinite() {
                return Err(wording::NOT_FINITE);
            }
            (arith(args, ArithOp::Float(delta))?, Form::Float)
        }
        DataKind::Expire(moment) => (
            Command::Touch(expire(info, args, moment)?),
            Form::OneIfTouched,
        ),
        DataKind::Persist => {
            let (expiry, condition) = (ExpirySpec::Never, ExpireCondition::IfSome);
            let touch = Touch {
                key: key(args, 1)?,
                expiry,
                condition,
            };
            (Command::Touch(touch), Form::OneIfTouched)
        }
        DataKind::Expiry(moment) => (
            Command::Get(Get::facts(key(args, 1)?)),
            Form::Expiry(moment),
        ),
        DataKind::Type => (Command::Get(Get::facts(key(args, 1)?)), Form::Type),
        DataKind::Encoding => {
            let value = Get {
                bump: false,
                ..Get::new(key(args, 2)?)
            };
            (Command::Get(value), Form::Encoding)
        }
        DataKind::Frequency => (Command::Get(Get::facts(key(args, 2)?)), Form::Frequency),
        DataKind::IdleTime => (Command::Get(Get::facts(key(args, 2)?)), Form::IdleTime),
        DataKind::GetBit => {
            let offset = bit_offset(args.get(2), context)?;
            (Command::Get(get(key(args, 1)?)), Form::Bit { offset })
        }
        DataKind::SetBit => (Command::SetBit(set_bit(args, context)?), Form::Integer),
        DataKind::BitCount => (
            Command::Get(get(key(args, 1)?)),
            Form::BitCount(bit_range(args)),
        ),
        DataKind::Lcs => {
            let lcs = lcs(args)?;
            let commands = [key(args, 1)?, key(args, 2)?].map(|key| Command::Get(get(key)));
            return Ok((commands.into_iter().collect(), Form::Lcs(Box::new(lcs))));
        }
    };
    Ok((smallvec![command], form))
}

/// The key at a position.
#[inline]
fn key(args: Args<'_>, position: usize) -> Result<&[u8], ReplyError> {
    bounded_key(args.get(position))
}

#[inline]
pub(super) fn bounded_key(key: &[u8]) -> Result<&[u8], ReplyError> {
    if key.len() <= RESP_KEY_LEN_MAX {
        Ok(key)
    } else {
        Err(wording::key_too_long())
    }
}

fn integer(text: &[u8]) -> Result<i64, ReplyError> {
    number::integer(text).ok_or(wording::NOT_AN_INTEGER)
}

/// One command for each argument.
fn many<'a>(
    args: Args<'a>,
    form: Form<'a>,
    command: impl Fn(&'a [u8]) -> Command<'a>,
) -> Result<(Commands<'a>, Form<'a>), ReplyError> {
    let mut commands = Commands::with_capacity(args.len() - 1);
    for key in args.from(1) {
        commands.push(command(bounded_key(key)?));
    }
    Ok((commands, form))
}

/// The keys and values of `MSET` and `MSETNX`.
pub(super) fn pairs<'a>(
    info: &CommandInfo,
    args: Args<'a>,
) -> Result<impl ExactSizeIterator<Item = (&'a [u8], &'a [u8])> + use<'a>, ReplyError> {
    if args.len().is_multiple_of(2) {
        return Err(wording::wrong_arity(info.name));
    }
    let mut keys = args.from(1).step_by(2);
    keys.try_for_each(|key| bounded_key(key).map(drop))?;
    Ok(args.from(1).step_by(2).zip(args.from(2).step_by(2)))
}

fn set_many<'a>(
    info: &CommandInfo,
    args: Args<'a>,
) -> Result<(Commands<'a>, Form<'a>), ReplyError> {
    let store = |(key, value)| Command::Store(Store::set(key, value, 0, ExpirySpec::Never));
    Ok((pairs(info, args)?.map(store).collect(), Form::all_stored()))
}

/// `name key value`.
fn plain_set(args: Args<'_>) -> Result<Store<'_>, ReplyError> {
    Ok(Store::set(key(args, 1)?, args.get(2), 0, ExpirySpec::Never))
}

fn arith<'a>(args: Args<'a>, op: ArithOp) -> Result<Command<'a>, ReplyError> {
    Ok(Command::Arith(Arith {
        key: key(args, 1)?,
        op,
        initial: None,
        absent_is_zero: true,
        touch: None,
        compare: None,
        new_version: None,
    }))
}

/// Options as `SET` and `GETEX` take them: the expiry in any of its forms, the rest by `flag`.
///
/// Words that exclude each other are a syntax error; the same word twice is none, as in Redis.
fn expiry_options<'a>(
    args: Args<'a>,
    from: usize,
    mut flag: impl FnMut(&[u8]) -> bool,
) -> Result<ExpiryOption<'a>, ReplyError> {
    let mut chosen = ExpiryOption::None;
    let mut position = from;
    while position < args.len() {
        let word = args.get(position);
        position += 1;
        let option = if let Some(moment) = moment(word) {
            if position == args.len() {
                return Err(wording::SYNTAX);
            }
            position += 1;
            ExpiryOption::At {
                moment,
                text: args.get(position - 1),
            }
        } else if word.eq_ignore_ascii_case(b"KEEPTTL") {
            ExpiryOption::Keep
        } else if word.eq_ignore_ascii_case(b"PERSIST") {
            ExpiryOption::Persist
        } else if flag(word) {
            continue;
        } else {
            return Err(wording::SYNTAX);
        };
        if !chosen.may_become(&option) {
            return Err(wording::SYNTAX);
        }
        chosen = option;
    }
    Ok(chosen)
}

#[derive(Debug)]
enum ExpiryOption<'a> {
    None,
    Keep,
    Persist,
    At { moment: Moment, text: &'a [u8] },
}

impl ExpiryOption<'_> {
    fn may_become(&self, next: &Self) -> bool {
        match (self, next) {
            (Self::At { moment, .. }, Self::At { moment: next, .. }) => moment == next,
            (Self::None, _) | (Self::Keep, Self::Keep) | (Self::Persist, Self::Persist) => true,
            _ => false,
        }
    }
}

fn moment(word: &[u8]) -> Option<Moment> {
    let words: [(&[u8], Moment); 4] = [
        (b"EX", Moment::InSeconds),
        (b"PX", Moment::InMs),
        (b"EXAT", Moment::AtSeconds),
        (b"PXAT", Moment::AtMs),
    ];
    words
        .into_iter()
        .find(|(name, _)| word.eq_ignore_ascii_case(name))
        .map(|(_, moment)| moment)
}

/// `SET key value [NX | XX] [GET] [EX s | PX ms | EXAT s | PXAT ms | KEEPTTL]`.
fn set<'a>(info: &CommandInfo, args: Args<'a>) -> Result<(Store<'a>, Form<'a>), ReplyError> {
    let mut store = plain_set(args)?;
    if args.len() == 3 {
        return Ok((store, Form::Stored));
    }
    let chosen = expiry_options(args, 3, |word| {
        if word.eq_ignore_ascii_case(b"NX") && store.mode != StoreMode::Replace {
            store.mode = StoreMode::Add;
        } else if word.eq_ignore_ascii_case(b"XX") && store.mode != StoreMode::Add {
            store.mode = StoreMode::Replace;
        } else if word.eq_ignore_ascii_case(b"GET") {
            store.want_previous = true;
        } else {
            return false;
        }
        true
    })?;
    store.expiry = match chosen {
        ExpiryOption::None => ExpirySpec::Never,
        ExpiryOption::Keep => ExpirySpec::Keep,
        ExpiryOption::Persist => return Err(wording::SYNTAX),
        ExpiryOption::At { moment, text } => positive_expiry(info, text, moment)?,
    };
    let form = if store.want_previous {
        Form::Previous
    } else {
        Form::Stored
    };
    Ok((store, form))
}

/// `GETEX key [EX s | PX ms | EXAT s | PXAT ms | PERSIST]`.
fn get_expiry(info: &CommandInfo, args: Args<'_>) -> Result<Option<ExpirySpec>, ReplyError> {
    Ok(match expiry_options(args, 2, |_| false)? {
        ExpiryOption::None => None,
        ExpiryOption::Keep => return Err(wording::SYNTAX),
        ExpiryOption::Persist => Some(ExpirySpec::Never),
        ExpiryOption::At { moment, text } => Some(positive_expiry(info, text, moment)?),
    })
}

/// An expiry that has to be above 0, as where a value is stored with it.
fn positive_expiry(
    info: &CommandInfo,
    text: &[u8],
    moment: Moment,
) -> Result<ExpirySpec, ReplyError> {
    match expiry(info, text, moment)? {
        ExpirySpec::Immediately => Err(wording::invalid_expire_time(info)),
        expiry => Ok(expiry),
    }
}

fn expiry(info: &CommandInfo, text: &[u8], moment: Moment) -> Result<ExpirySpec, ReplyError> {
    let number = integer(text)?;
    let invalid = || wording::invalid_expire_time(info);
    let ms = match moment {
        Moment::InSeconds | Moment::AtSeconds => number.checked_mul(1000).ok_or_else(invalid)?,
        Moment::InMs | Moment::AtMs => number,
    };
    if ms <= 0 {
        return Ok(ExpirySpec::Immediately);
    }
    match moment {
        Moment::AtSeconds | Moment::AtMs => Ok(ExpirySpec::AtMs(ms.unsigned_abs())),
        Moment::InSeconds | Moment::InMs if ms <= RELATIVE_EXPIRY_MS_MAX => {
            Ok(ExpirySpec::InMs(ms.unsigned_abs()))
        }
        Moment::InSeconds | Moment::InMs => Err(invalid()),
    }
}

/// `EXPIRE key time [NX | XX | GT | LT]` and its kin. Redis looks at the options first.
fn expire<'a>(info: &CommandInfo, args: Args<'a>, moment: Moment) -> Result<Touch<'a>, ReplyError> {
    let (mut nx, mut xx, mut gt, mut lt) = (false, false, false, false);
    for word in args.from(3) {
        let option = match word {
            [b'n' | b'N', b'x' | b'X'] => &mut nx,
            [b'x' | b'X', b'x' | b'X'] => &mut xx,
            [b'g' | b'G', b't' | b'T'] => &mut gt,
            [b'l' | b'L', b't' | b'T'] => &mut lt,
            _ => return Err(wording::about("ERR Unsupported option ", word, "")),
        };
        *option = true;
    }
    let condition = match (nx, xx, gt, lt) {
        (true, false, false, false) => ExpireCondition::IfNone,
        (true, ..) => return Err(wording::CONDITIONS_EXCLUDE_NX),
        (_, _, true, true) => return Err(wording::CONDITIONS_GT_LT),
        // A key that never expires fails GT already, so XX adds nothing to it. To LT it does.
        (_, _, true, false) => ExpireCondition::IfLater,
        (_, true, false, true) => ExpireCondition::IfSomeAndEarlier,
        (_, false, false, true) => ExpireCondition::IfEarlier,
        (_, true, false, false) => ExpireCondition::IfSome,
        (false, false, false, false) => ExpireCondition::Always,
    };
    Ok(Touch {
        key: key(args, 1)?,
        expiry: expiry(info, args.get(2), moment)?,
        condition,
    })
}

/// A database by its number.
///
/// # Errors
/// With the words of Redis.
pub(super) fn database(text: &[u8]) -> Result<u8, ReplyError> {
    let number = number::integer(text).ok_or(wording::NOT_AN_INTEGER)?;
    let number = i32::try_from(number).map_err(|_| wording::INT_OUT_OF_RANGE)?;
    match u8::try_from(number) {
        Ok(database) if database < DATABASE_COUNT => Ok(database),
        _ => Err(wording::DATABASE_OUT_OF_RANGE),
    }
}

/// What `PING` and `ECHO` answer.
///
/// # Errors
/// If `PING` has several arguments.
pub(super) fn echo<'a>(info: &CommandInfo, args: Args<'a>) -> Result<Answer<'a>, ReplyError> {
    match args.len() {
        1 => Ok(Answer::Status("PONG")),
        2 => Ok(Answer::Bulk(args.get(1))),
        _ => Err(wording::wrong_arity(info.name)),
    }
}

/// What `OBJECT HELP` answers.
pub(super) const OBJECT_HELP: &[&str] = &[
    "OBJECT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "ENCODING <key>",
    "    Return the kind of internal representation used in order to store the value",
    "    associated with a <key>.",
    "FREQ <key>",
    "    Return the access frequency index of the <key>. The returned integer is",
    "    proportional to the logarithm of the recent access frequency of the key.",
    "IDLETIME <key>",
    "    Return the idle time of the <key>, that is the approximated number of",
    "    seconds elapsed since the last access to the key.",
    "HELP",
    "    Prints this help.",
];

/// `RENAME from to`, `RENAMENX from to`, `COPY from to [DB number] [REPLACE]`.
///
/// # Errors
/// With the words of Redis for malformed arguments.
pub(super) fn transfer<'a>(
    info: &CommandInfo,
    args: Args<'a>,
    own_database: u8,
) -> Result<(Transfer<'a>, Form<'a>), ReplyError> {
    let mut transfer = Transfer {
        from: key(args, 1)?,
        to: key(args, 2)?,
        database: own_database,
        removes: true,
        replaces: true,
    };
    if let Kind::Rename { replaces } = info.kind {
        transfer.replaces = replaces;
        let form = if replaces {
            Form::Renamed
        } else {
            Form::OneIfRenamed
        };
        return Ok((transfer, form));
    }
    (transfer.removes, transfer.replaces) = (false, false);
    let mut position = 3;
    while position < args.len() {
        let option = args.get(position);
        if option.eq_ignore_ascii_case(b"REPLACE") {
            transfer.replaces = true;
        } else if option.eq_ignore_ascii_case(b"DB") && position + 1 < args.len() {
            position += 1;
            transfer.database = database(args.get(position))?;
        } else {
            return Err(wording::SYNTAX);
        }
        position += 1;
    }
    if transfer.from == transfer.to && transfer.database == own_database {
        return Err(wording::SAME_OBJECT);
    }
    Ok((transfer, Form::OneIfStored))
}

/// The position of a bit, counted from the highest one of the first byte.
fn bit_offset(text: &[u8], context: Context) -> Result<u64, ReplyError> {
    let offset = number::integer(text).and_then(|offset| u64::try_from(offset).ok());
    offset
        .filter(|offset| offset / 8 < context.value_len_max as u64)
        .ok_or(wording::BIT_OFFSET)
}

fn set_bit<'a>(args: Args<'a>, context: Context) -> Result<SetBit<'a>, ReplyError> {
    let offset = bit_offset(args.get(2), context)?;
    let is_set = match number::integer(args.get(3)) {
        Some(0) => false,
        Some(1) => true,
        _ => return Err(wording::BIT_VALUE),
    };
    Ok(SetBit {
        key: key(args, 1)?,
        offset,
        is_set,
    })
}

/// A part of a value; negative positions count from its end.
#[derive(Clone, Copy, Debug)]
pub(super) struct BitRange {
    pub(super) first: i64,
    pub(super) last: i64,
    /// Whether positions are those of bits, not of bytes.
    pub(super) in_bits: bool,
}

/// `BITCOUNT key [first last [BYTE | BIT]]`. Redis looks at the arguments if there is an entry.
fn bit_range(args: Args<'_>) -> Result<Option<BitRange>, ReplyError> {
    let in_bits = match args.len() {
        2 => return Ok(None),
        4 => false,
        5 => args.get(4).eq_ignore_ascii_case(b"BIT"),
        _ => return Err(wording::SYNTAX),
    };
    let (first, last) = (integer(args.get(2))?, integer(args.get(3))?);
    if args.len() == 5 && !in_bits && !args.get(4).eq_ignore_ascii_case(b"BYTE") {
        return Err(wording::SYNTAX);
    }
    Ok(Some(BitRange {
        first,
        last,
        in_bits,
    }))
}

/// `LCS key key [LEN] [IDX] [MINMATCHLEN len] [WITHMATCHLEN]`.
fn lcs(args: Args<'_>) -> Result<Lcs, ReplyError> {
    let mut lcs = Lcs::default();
    let mut position = 3;
    while position < args.len() {
        let option = args.get(position);
        if option.eq_ignore_ascii_case(b"IDX") {
            lcs.tells_matches = true;
        } else if option.eq_ignore_ascii_case(b"LEN") {
            lcs.tells_len = true;
        } else if option.eq_ignore_ascii_case(b"WITHMATCHLEN") {
            lcs.tells_match_len = true;
        } else if option.eq_ignore_ascii_case(b"MINMATCHLEN") && position + 1 < args.len() {
            position += 1;
            lcs.match_len_min = u64::try_from(integer(args.get(position))?).unwrap_or(0);
        } else {
            return Err(wording::SYNTAX);
        }
        position += 1;
    }
    if lcs.tells_len && lcs.tells_matches {
        return Err(wording::LCS_LEN_AND_IDX);
    }
    Ok(lcs)
}

fn set_range<'a>(args: Args<'a>, context: Context) -> Result<SetRange<'a>, ReplyError> {
    let offset = integer(args.get(2))?;
    let offset = u64::try_from(offset).map_err(|_| wording::OFFSET_OUT_OF_RANGE)?;
    let value = args.get(3);
    if !value.is_empty() && offset + value.len() as u64 > context.value_len_max as u64 {
        return Err(wording::STRING_TOO_LONG);
    }
    Ok(SetRange {
        key: key(args, 1)?,
        offset,
        value,
    })
}
