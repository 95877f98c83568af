//! The dialect-free command model: what every parser produces and every executor understands.
//!
//! A [`Command`] concerns exactly one key. Requests that name several keys (`get a b`, `MGET`,
//! `DEL a b`) carry one command a key; what has to be atomic over several keys is a
//! [`ServerCommand`](crate::ServerCommand).

use crate::Version;

/// Longest key of the memcached protocols, in bytes (protocol.txt, "Keys").
pub const MEMCACHED_KEY_LEN_MAX: usize = 250;

/// Flags of an entry that lists the chunks of a long value: "long" in ASCII. Only the HTTP port
/// knows how to read it; for clients of other protocols the entry is a miss.
pub const MANIFEST_FLAGS: u32 = 0x6c6f_6e67;

/// Flags of an entry that has a blob as a stream of zstd: "pack" in ASCII. Such an entry is a miss
/// as well for clients of other protocols.
pub const PACKED_FLAGS: u32 = 0x7061_636b;

/// Whether an entry with these flags has a value that only the HTTP port knows how to read.
#[must_use]
pub const fn is_hidden(flags: u32) -> bool {
    matches!(flags, MANIFEST_FLAGS | PACKED_FLAGS)
}

/// What the keys begin with under which the HTTP port keeps lists for the cache of GitHub Actions:
/// one for each version, with the keys of its archives. They are the only entries that change in a
/// namespace that keeps first values, since a list grows with each archive.
pub const ACTIONS_LISTS: &[u8] = b"actions/index/";

/// Longest key accepted over RESP, in bytes. Redis allows 512 MiB; a cache key has no need of it,
/// and an LSM key is at most 65,535 bytes.
pub const RESP_KEY_LEN_MAX: usize = 32 * 1024;

/// Memcached takes an expiry above this many seconds for an absolute Unix time (protocol.txt,
/// "Expiration times").
pub const MEMCACHED_RELATIVE_EXPIRY_MAX_S: i64 = 60 * 60 * 24 * 30;

/// When an entry expires, as the client said it. Resolved by the executor's wall clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpirySpec {
    /// Never.
    Never,
    /// Leaves the expiry as it is (`KEEPTTL`); never, where there was no entry.
    Keep,
    /// So many milliseconds from now.
    InMs(u64),
    /// At a Unix time in milliseconds. One in the past expires the entry at once.
    AtMs(u64),
    /// At once: memcached's negative expiry.
    Immediately,
}

impl ExpirySpec {
    /// Reads memcached's `exptime`: 0 never, negative at once, up to 30 days relative seconds,
    /// above that an absolute Unix time in seconds.
    #[must_use]
    pub fn from_memcached_seconds(exptime: i64) -> Self {
        match exptime {
            0 => Self::Never,
            i64::MIN..0 => Self::Immediately,
            1..=MEMCACHED_RELATIVE_EXPIRY_MAX_S => Self::InMs(exptime.unsigned_abs() * 1000),
            _ => Self::AtMs(exptime.unsigned_abs().saturating_mul(1000)),
        }
    }
}

/// One operation on one key.
#[derive(Clone, Debug, PartialEq)]
pub enum Command<'a> {
    /// Reads an entry, or facts about it.
    Get(Get<'a>),
    /// Writes a value: set, add, replace, append, prepend, cas.
    Store(Store<'a>),
    /// Adds to a number kept as decimal text.
    Arith(Arith<'a>),
    /// Removes an entry, or marks it stale.
    Delete(Delete<'a>),
    /// Changes the expiry and nothing else.
    Touch(Touch<'a>),
    /// Overwrites part of a value (RESP `SETRANGE`).
    SetRange(SetRange<'a>),
    /// Sets or clears one bit of a value (RESP `SETBIT`).
    SetBit(SetBit<'a>),
}

impl<'a> Command<'a> {
    /// The key the command is about.
    #[must_use]
    pub fn key(&self) -> &'a [u8] {
        match self {
            Self::Get(get) => get.key,
            Self::Store(store) => store.key,
            Self::Arith(arith) => arith.key,
            Self::Delete(delete) => delete.key,
            Self::Touch(touch) => touch.key,
            Self::SetRange(range) => range.key,
            Self::SetBit(bit) => bit.key,
        }
    }

    /// The same command on another key.
    #[must_use]
    pub fn on<'k>(&self, key: &'k [u8]) -> Command<'k>
    where
        'a: 'k,
    {
        match self {
            Self::Get(get) => Command::Get(Get { key, ..get.clone() }),
            Self::Store(store) => Command::Store(Store {
                key,
                ..store.clone()
            }),
            Self::Arith(arith) => Command::Arith(Arith {
                key,
                ..arith.clone()
            }),
            Self::Delete(delete) => Command::Delete(Delete {
                key,
                ..delete.clone()
            }),
            Self::Touch(touch) => Command::Touch(Touch {
                key,
                ..touch.clone()
            }),
            Self::SetRange(range) => Command::SetRange(SetRange {
                key,
                ..range.clone()
            }),
            Self::SetBit(bit) => Command::SetBit(SetBit { key, ..bit.clone() }),
        }
    }

    /// Whether the command may change anything: what a read-only credential must not do.
    #[must_use]
    pub fn is_write(&self) -> bool {
        match self {
            Self::Get(get) => get.changes_entry(),
            _ => true,
        }
    }

    /// Whether the command may change something and answers with a value. Such a command is not
    /// repeated because its answer was too long for a connection.
    #[inline]
    #[must_use]
    pub fn answers_once_only(&self) -> bool {
        match self {
            Self::Get(get) => {
                get.want_value && (get.delete || get.claim || get.recache_below_s.is_some())
            }
            Self::Store(store) => store.want_previous,
            _ => false,
        }
    }
}

/// Reads an entry. [`Get::new`] is a plain `get`; the other fields are meta and RESP extras.
///
/// Answered with `Hit` or `Miss`.
#[derive(Clone, Debug, PartialEq)]
pub struct Get<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Whether the reply needs the value's bytes; its length is given in any case.
    pub want_value: bool,
    /// Sets a new expiry on a hit (`gat`, `GETEX`, meta `T`).
    pub touch: Option<ExpirySpec>,
    /// Whether the hit counts as a use: recency is moved and the entry marked fetched. False for
    /// meta `mn`-like probes that asked for no bump, and for RESP `TTL`, `TYPE`, `EXISTS`.
    pub bump: bool,
    /// On a miss stores an empty value with this expiry, and answers it as a hit with
    /// `won` set (meta `N`).
    pub vivify: Option<ExpirySpec>,
    /// Whether the client takes part in recaching: a stale entry hands out its token (`won`) to the
    /// first such get, and later ones are told that they `lost` (meta `mg`). Other gets leave it
    /// alone.
    pub claim: bool,
    /// Hands out the recache token (`won`) when fewer seconds than this remain to live (meta `R`).
    pub recache_below_s: Option<u32>,
    /// Version for what `vivify` stores (meta `E`).
    pub new_version: Option<Version>,
    /// Removes the entry after reading it (`GETDEL`).
    pub delete: bool,
}

impl<'a> Get<'a> {
    /// A plain read of the value.
    #[must_use]
    pub fn new(key: &'a [u8]) -> Self {
        Self {
            key,
            want_value: true,
            touch: None,
            bump: true,
            vivify: None,
            claim: false,
            recache_below_s: None,
            new_version: None,
            delete: false,
        }
    }

    /// Whether the read may change anything but recency and the recache token of a stale entry.
    #[must_use]
    pub fn changes_entry(&self) -> bool {
        self.delete
            || self.touch.is_some()
            || self.vivify.is_some()
            || self.recache_below_s.is_some()
    }

    /// A read of the entry's facts, without value and without counting as a use.
    #[must_use]
    pub fn facts(key: &'a [u8]) -> Self {
        Self {
            want_value: false,
            bump: false,
            ..Self::new(key)
        }
    }
}

/// How a [`Store`] treats what is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreMode {
    /// Writes in any case.
    Set,
    /// Writes only if there is no entry; otherwise `NotStored`.
    Add,
    /// Writes only if there is an entry; otherwise `NotStored`.
    Replace,
    /// Puts the bytes behind the present value; flags and expiry stay. `NotStored` without an
    /// entry.
    Append,
    /// Puts the bytes before the present value; flags and expiry stay. `NotStored` without an
    /// entry.
    Prepend,
}

/// Writes a value.
///
/// Answered with `Stored`, `NotStored` (the mode's condition failed), `Exists` (`compare` differs)
/// or `NotFound` (`compare` given, no entry).
#[derive(Clone, Debug, PartialEq)]
pub struct Store<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The bytes to write.
    pub value: &'a [u8],
    /// The client's opaque flags.
    pub flags: u32,
    /// When the entry expires.
    pub expiry: ExpirySpec,
    /// What to do with what is there.
    pub mode: StoreMode,
    /// Writes only over this version.
    pub compare: Option<Version>,
    /// With `compare`: when the given version is *older* than the entry's, stores all the same and
    /// marks the entry stale (meta `ms … I`).
    pub invalidate_if_older: bool,
    /// The version the entry gets instead of a fresh one (meta `E`).
    pub new_version: Option<Version>,
    /// Append and prepend: creates the entry with this expiry where there is none (meta `N`,
    /// RESP `APPEND`).
    pub vivify: Option<ExpirySpec>,
    /// Asks for the value that was there before (`SET … GET`, `GETSET`): in `Stored::previous`, and
    /// for `NotStored` as [`Outcome::NotStored`](crate::Outcome::NotStored)'s.
    pub want_previous: bool,
}

impl<'a> Store<'a> {
    /// A plain `set`.
    #[must_use]
    pub fn set(key: &'a [u8], value: &'a [u8], flags: u32, expiry: ExpirySpec) -> Self {
        Self {
            key,
            value,
            flags,
            expiry,
            mode: StoreMode::Set,
            compare: None,
            invalidate_if_older: false,
            new_version: None,
            vivify: None,
            want_previous: false,
        }
    }
}

/// The kinds of arithmetic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ArithOp {
    /// Memcached `incr`: unsigned 64 bits, wraps.
    Increment(u64),
    /// Memcached `decr`: unsigned 64 bits, stops at 0.
    Decrement(u64),
    /// RESP `INCRBY`/`DECRBY`: signed 64 bits, overflow is refused.
    Signed(i64),
    /// RESP `INCRBYFLOAT`.
    Float(f64),
}

/// Adds to a number kept as decimal text.
///
/// Answered with `Number`, `NotFound`, `Exists`, `NotANumber` or `Overflow`.
#[derive(Clone, Debug, PartialEq)]
pub struct Arith<'a> {
    /// The key.
    pub key: &'a [u8],
    /// What to add.
    pub op: ArithOp,
    /// Where there is no entry: creates it with this value (the reply is the value itself, nothing
    /// is added) and this expiry. None answers `NotFound`. RESP creates 0 and adds: it gives
    /// `Some((delta, Never))` as text in `Signed`/`Float` by the executor's rule that an absent
    /// number is 0, so RESP leaves this None and sets `absent_is_zero`.
    pub initial: Option<(u64, ExpirySpec)>,
    /// Takes an absent entry for 0 (RESP).
    pub absent_is_zero: bool,
    /// A new expiry for the entry (meta `T`).
    pub touch: Option<ExpirySpec>,
    /// Works only on this version.
    pub compare: Option<Version>,
    /// The version the entry gets instead of a fresh one (meta `E`).
    pub new_version: Option<Version>,
}

/// Removes an entry, or marks it stale.
///
/// Answered with `Deleted`, `NotFound` or `Exists`.
#[derive(Clone, Debug, PartialEq)]
pub struct Delete<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Removes only this version.
    pub compare: Option<Version>,
    /// Marks the entry stale, with a fresh version, instead of removing it (meta `I`).
    pub mark_stale: bool,
    /// Removes the value and the client flags but keeps the entry (meta `x`).
    pub keep_entry: bool,
    /// With `mark_stale` or `keep_entry`: a new expiry (meta `T`).
    pub touch: Option<ExpirySpec>,
    /// The version the kept entry gets instead of a fresh one (meta `E`).
    pub new_version: Option<Version>,
}

impl<'a> Delete<'a> {
    /// A plain `delete`.
    #[must_use]
    pub fn new(key: &'a [u8]) -> Self {
        Self {
            key,
            compare: None,
            mark_stale: false,
            keep_entry: false,
            touch: None,
            new_version: None,
        }
    }
}

/// When a [`Touch`] applies (Redis `EXPIRE` options).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpireCondition {
    /// Always.
    Always,
    /// Only if the entry never expires (`NX`; also what `PERSIST` does not want).
    IfNone,
    /// Only if the entry expires (`XX`; `PERSIST`).
    IfSome,
    /// Only to a later time; never counts as latest (`GT`).
    IfLater,
    /// Only to an earlier time; never counts as latest (`LT`).
    IfEarlier,
    /// Only if the entry expires, and to an earlier time (`XX LT`).
    IfSomeAndEarlier,
}

/// Changes the expiry.
///
/// Answered with `Touched`, `NotFound` or `NotStored` (condition not met).
#[derive(Clone, Debug, PartialEq)]
pub struct Touch<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The new expiry. `Keep` only counts as a use (RESP `TOUCH`).
    pub expiry: ExpirySpec,
    /// When it applies.
    pub condition: ExpireCondition,
}

/// Overwrites part of a value, padding with zero bytes; an absent entry counts as empty.
///
/// Answered with `Stored`, whose `value_len` is the new length. An empty `value` changes nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct SetRange<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Where the bytes go.
    pub offset: u64,
    /// The bytes.
    pub value: &'a [u8],
}

/// Sets or clears one bit of a value, padding with zero bytes; an absent entry counts as empty.
///
/// Answered with `Number`: the bit before, as `0` or `1`.
#[derive(Clone, Debug, PartialEq)]
pub struct SetBit<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Position of the bit; 0 is the highest bit of the first byte.
    pub offset: u64,
    /// What the bit becomes.
    pub is_set: bool,
}
